//! CLOSE, the end of the stream, and silence. [R-LC-11] to [R-LC-22], [R-TO-06] to [R-TO-15]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

const STAGES: [At; 7] =
    [At::Start, At::Ready, At::Activating, At::Active, At::Open, At::Cancelling, At::Draining];

/// What a host tells of its open calls when all is lost.
fn lost(at: At) -> Vec<Event> {
    let lost = |id| Event::Ended { id: CallId(id), outcome: Err(Failure::Lost { sent: true }) };
    match at {
        At::Start | At::Ready | At::Active => vec![],
        At::Activating => vec![lost(1)],
        At::Open => vec![lost(3)],
        At::Cancelling => vec![Event::Released { id: CallId(3) }],
        At::Draining => vec![Event::Released { id: CallId(3) }, lost(5)],
    }
}

/// The end is over: nothing is told, written, awaited or accepted any more.
#[track_caller]
fn is_over(end: &mut Conversation) {
    assert_eq!((end.stage(), end.open_calls(), end.has_open()), (Stage::Closed, 0, false));
    let written = end.outbox().queued();
    for bytes in [&ping()[..], &frame(0x02, 0, json!({"code": "ok"}), b""), b"noise"] {
        feed(end, bytes, Tick(9_000));
    }
    end.eof();
    end.tick(Tick(u64::MAX));
    end.close(Close::Internal, None);
    end.note(None, &Note::Retire { reason: "x".into() });
    end.cancel(CallId(3), CancelReason::User, Tick(9_000));
    let call = Outgoing { method: "plugin.activate", ..Outgoing::default() };
    assert!(end.call(&call, Tick(9_000)).is_err());
    assert!(end.end(CallId(3), Ok(Default::default())).is_err());
    assert_eq!((events(end), end.outbox().queued(), end.deadline()), (vec![], written, None));
}

#[test]
fn the_end_of_the_stream_between_frames_ends_everything_in_every_stage() {
    for at in STAGES {
        let mut pair = Pair::at(at);
        pair.host.eof();
        let mut told = lost(at);
        told.push(Event::Over(Over::Eof));
        assert_eq!(pair.host_events(), told, "{at:?}");
        assert!(pair.host.outbox().is_empty());
        is_over(&mut pair.host);
        pair.plugin.eof();
        assert_eq!(pair.plugin_events(), [Event::Over(Over::Eof)], "{at:?}");
        is_over(&mut pair.plugin);
    }
}

#[test]
fn close_from_the_peer_ends_everything_in_every_stage() {
    let bytes = [frame(0x02, 0, json!({"code": "grease"}), b"\xc1"), ping()].concat();
    let over =
        Event::Over(Over::Closed { code: Close::Internal, supported: vec![], message: None });
    for at in STAGES {
        let mut pair = Pair::at(at);
        feed(&mut pair.host, &bytes, pair.now);
        let mut told = lost(at);
        told.push(over.clone());
        assert_eq!(pair.host_events(), told, "{at:?}");
        assert!(pair.host.outbox().is_empty(), "CLOSE was answered");
        is_over(&mut pair.host);
        feed(&mut pair.plugin, &bytes, pair.now);
        assert_eq!(pair.plugin_events(), std::slice::from_ref(&over), "{at:?}");
        assert!(pair.plugin.outbox().is_empty(), "CLOSE was answered");
        is_over(&mut pair.plugin);
    }
}

#[test]
fn our_own_close_ends_the_calls_at_once_and_the_rest_with_the_stream() {
    for at in STAGES {
        let mut pair = Pair::at(at);
        pair.host.outbox().take();
        feed(&mut pair.host, &ping()[..5], pair.now);
        pair.host.close(Close::Ok, Some("bye"));
        assert_eq!(pair.host_events(), lost(at), "{at:?}");
        let body = pack(&json!({"msg": "bye"}));
        assert_eq!(written(&mut pair.host), [("CLOSE", 0, json!({"code": "ok"}), body)]);
        if at == At::Ready {
            // With nothing more, the half frame before is no fault.
            pair.host.eof();
            assert_eq!(pair.host_events(), [Event::Over(Over::Eof)]);
            continue;
        }
        // Whatever still arrives is ignored, half frames and noise included.
        feed(&mut pair.host, &frame(0x12, 3, json!({}), b""), pair.now);
        feed(&mut pair.host, b"noise", pair.now);
        feed(&mut pair.host, &ping()[..5], pair.now);
        assert_eq!((pair.host_events(), pair.host.deadline()), (vec![], None));
        pair.wait(1_000_000);
        pair.host.close(Close::Internal, None);
        assert!(pair.host.outbox().is_empty());
        pair.host.eof();
        assert_eq!(pair.host_events(), [Event::Over(Over::Eof)]);
        is_over(&mut pair.host);
    }
}

#[test]
fn a_violation_ends_the_open_calls_too() {
    for at in STAGES {
        let mut pair = Pair::at(at);
        feed(&mut pair.host, b"x", pair.now);
        let mut told = pair.host_events();
        assert!(matches!(told.pop(), Some(Event::Over(Over::Broken(_)))));
        assert_eq!(told, lost(at), "{at:?}");
        assert_eq!(written(&mut pair.host).last().unwrap().0, "CLOSE");
        is_over(&mut pair.host);
    }
}

#[test]
fn a_plugin_still_writes_its_answers_when_its_input_has_ended() {
    let mut pair = Pair::at(At::Open);
    feed(&mut pair.plugin, &ping(), pair.now);
    pair.plugin.end(CallId(3), Ok(blob(5))).unwrap();
    pair.plugin.eof();
    assert_eq!(written(&mut pair.plugin).len(), 2);
}

#[test]
fn a_plugin_that_closes_still_writes_what_it_had_to_say() {
    let mut pair = Pair::at(At::Start);
    let hello = pair.host.outbox().take();
    let bytes = [&hello[..], &call(1, "plugin.activate"), &ping(), b"noise"].concat();
    feed(&mut pair.plugin, &bytes, pair.now);
    let kinds: Vec<_> = written(&mut pair.plugin).into_iter().map(|frame| frame.0).collect();
    assert_eq!(kinds, ["HELLO", "PONG", "CLOSE"]);
}

#[test]
fn what_had_not_left_when_the_stream_ended_has_not_run_and_is_not_written() {
    let lost = |id, sent| Event::Ended { id, outcome: Err(Failure::Lost { sent }) };
    let mut pair = Pair::at(At::Active);
    let [a, b, c] = [(); 3].map(|()| pair.start("tool.call"));
    let one = pair.host.outbox().len() / 3;
    // The first has left, half of the second too.
    pair.host.outbox().advance((one + one / 2) as usize);
    pair.host.eof();
    let told = [lost(a, true), lost(b, false), lost(c, false), Event::Over(Over::Eof)];
    assert_eq!(pair.host_events(), told);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn what_had_not_begun_to_leave_before_our_close_never_runs() {
    let lost = |id, sent| Event::Ended { id, outcome: Err(Failure::Lost { sent }) };
    let ends: [fn(&mut Conversation); 2] =
        [|host| host.close(Close::Ok, None), |host| feed(host, b"noise", Tick(1_000))];
    for end in ends {
        let mut pair = Pair::at(At::Active);
        let [a, b, c] = [(); 3].map(|()| pair.start("tool.call"));
        let one = pair.host.outbox().len() / 3;
        let left = (one + one / 2) as usize;
        let first = pair.host.outbox().pieces::<1>().0[0][..left].to_vec();
        pair.host.outbox().advance(left);
        feed(&mut pair.plugin, &first, pair.now);
        end(&mut pair.host);
        // Half a frame cannot be taken back, CLOSE has to follow the other half.
        let told = pair.host_events();
        assert_eq!(told[..3], [lost(a, true), lost(b, true), lost(c, false)]);
        pair.reach_plugin();
        let told = pair.plugin_events();
        let ids: Vec<CallId> = told
            .iter()
            .filter_map(|event| match event {
                Event::Called(call) => Some(call.id),
                _ => None,
            })
            .collect();
        assert_eq!(ids, [a, b]);
        assert!(matches!(told.last(), Some(Event::Over(Over::Closed { .. }))));
    }
}

#[test]
fn a_message_is_cut_so_that_it_always_fits() {
    let mut pair = Pair::at(At::Active);
    pair.host.close(Close::Internal, Some(&"é".repeat(100_000)));
    pair.reach_plugin();
    let told = pair.plugin_events();
    let [Event::Over(Over::Closed { message: Some(message), .. })] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(message.len(), contract::MESSAGE_MAX);
}

#[test]
fn a_host_asks_after_silence_and_gives_up_after_more() {
    let mut pair = Pair::at(At::Active);
    assert_eq!(pair.host.deadline(), Some(pair.now.after(10_000)));
    pair.wait(9_999);
    assert!(pair.host.outbox().is_empty());
    pair.wait(1);
    assert_eq!(written(&mut pair.host)[0].0, "PING");
    assert_eq!(pair.host.deadline(), Some(pair.now.after(20_000)));
    pair.wait(19_999);
    assert_eq!((pair.host_events(), pair.host.outbox().is_empty()), (vec![], true));
    pair.wait(1);
    let found = is_broken(&mut pair.host, Close::Timeout);
    assert_eq!(found, Violation::Silent { silent_ms: 30_000 });
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let mut pair = Pair::at(At::Active);
    pair.wait(10_000);
    pair.wait(19_999);
    written(&mut pair.host);
    feed(&mut pair.host, &ping()[..1], pair.now);
    assert_eq!(pair.host.deadline(), Some(pair.now.after(10_000)));
    pair.wait(9_999);
    assert!(pair.host.outbox().is_empty());
    pair.wait(1);
    assert_eq!(written(&mut pair.host)[0].0, "PING");
}

#[test]
fn each_ping_is_another_one_and_its_answer_quiets_the_host() {
    let mut pair = Pair::at(At::Ready);
    let mut seen = Vec::new();
    for _ in 0..3 {
        pair.wait(10_000);
        let frames = pair.host.outbox().take();
        seen.push(frames.clone());
        feed(&mut pair.plugin, &frames, pair.now);
        pair.reach_host();
        assert_eq!((pair.host_events(), pair.plugin_events()), (vec![], vec![]));
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn a_plugin_without_async_is_not_asked_while_it_works() {
    let serial = Announce { features: Features::NONE, ..announce() };
    for at in [At::Activating, At::Open, At::Cancelling, At::Draining] {
        let mut pair = Pair::with(announce(), serial.clone(), at);
        pair.wait(1_000_000);
        let told = pair.host_events();
        let broken = told.iter().any(|event| matches!(event, Event::Over(_)));
        assert!(!broken && pair.host.outbox().is_empty(), "{at:?}: {told:?}");
    }
    let mut pair = Pair::with(announce(), serial, At::Active);
    pair.wait(10_000);
    assert_eq!(written(&mut pair.host)[0].0, "PING");
}

#[test]
fn a_ping_is_answered_with_its_body_in_every_stage_and_in_order() {
    for at in STAGES.into_iter().filter(|at| *at != At::Start) {
        for who in [Who::Host, Who::Plugin] {
            let mut end = Pair::at(at).into_end(who);
            let bodies = [&b""[..], b"\xc1\xc1", &[7; 64]];
            for body in bodies {
                feed(&mut end, &frame(0x03, 0, json!({}), body), Tick(1_000));
            }
            let pongs = bodies.map(|body| ("PONG", 0, json!({}), body.to_vec()));
            assert_eq!(written(&mut end), pongs);
        }
    }
}

#[test]
fn a_ping_with_more_than_64_bytes_is_refused() {
    for who in [Who::Host, Who::Plugin] {
        let bytes = frame(0x03, 0, json!({}), &[0; 65]);
        refuses(At::Active, who, &bytes, Close::ProtocolError);
    }
}

#[test]
fn a_pong_that_nobody_asked_for_is_harmless() {
    for who in [Who::Host, Who::Plugin] {
        assert_eq!(accepts(At::Active, who, &frame(0x04, 0, json!({}), &[1; 500])), []);
    }
}

#[test]
fn a_pong_comes_after_the_refusals_that_came_before_the_ping() {
    let mut plugin = Pair::at(At::Ready).plugin;
    let bytes = [call(1, "a.b"), call(3, "c.d"), ping(), call(5, "e.f")].concat();
    feed(&mut plugin, &bytes, Tick(1_000));
    let kinds: Vec<_> = written(&mut plugin).into_iter().map(|(kind, id, ..)| (kind, id)).collect();
    assert_eq!(kinds, [("END", 1), ("END", 3), ("PONG", 0), ("END", 5)]);
}

#[test]
fn who_asks_and_does_not_read_the_answers_is_let_go() {
    // Four calls are accepted, so 1024 + 16 may be owed.
    const MOST: usize = 1_040;
    for who in [Who::Host, Who::Plugin] {
        let mut end = Pair::at(At::Ready).into_end(who);
        feed(&mut end, &ping().repeat(MOST), Tick(1_000));
        assert_eq!(events(&mut end), []);
        feed(&mut end, &ping(), Tick(1_000));
        is_broken(&mut end, Close::Calm);
    }
    // Refusals are owed as well.
    let mut plugin = Pair::at(At::Ready).plugin;
    for at in 0..=MOST as u32 {
        feed(&mut plugin, &call(2 * at + 1, "a.b"), Tick(1_000));
    }
    is_broken(&mut plugin, Close::Calm);
}

#[test]
fn only_answers_that_were_not_taken_count_as_owed() {
    let mut plugin = Pair::at(At::Ready).plugin;
    feed(&mut plugin, &ping().repeat(1_040), Tick(1_000));
    for _ in 0..5_000 {
        // One PONG of 13 bytes is taken for each that is asked for.
        plugin.outbox().advance(13);
        feed(&mut plugin, &ping(), Tick(1_000));
        assert_eq!(events(&mut plugin), []);
    }
    plugin.outbox().advance(12);
    feed(&mut plugin, &ping(), Tick(1_000));
    let told = events(&mut plugin);
    assert!(matches!(told[..], [Event::Over(Over::Broken(Violation::Calm))]), "{told:?}");
}

#[test]
fn a_call_that_is_taken_back_does_not_change_what_is_owed() {
    let mut pair = Pair::at(At::Active);
    let id = pair.start("tool.call");
    feed(&mut pair.host, &ping().repeat(1_040), pair.now);
    pair.host.cancel(id, CancelReason::User, pair.now);
    assert_eq!(pair.host_events(), [Event::Released { id }]);
    pair.host.outbox().advance(13);
    feed(&mut pair.host, &ping(), pair.now);
    assert_eq!(pair.host_events(), []);
    feed(&mut pair.host, &ping(), pair.now);
    is_broken(&mut pair.host, Close::Calm);
}

#[test]
fn the_buffer_can_be_read_into_while_nobody_holds_the_conversation() {
    let mut pair = Pair::at(At::Ready);
    let bytes = ping();
    for half in [&bytes[..7], &bytes[7..]] {
        let mut buffer = pair.plugin.take_buffer();
        assert!(buffer.capacity() - buffer.len() >= 16 << 10);
        buffer.extend_from_slice(half);
        pair.plugin.put_buffer(buffer);
        pair.plugin.received(pair.now);
    }
    assert_eq!(written(&mut pair.plugin)[0].0, "PONG");
}
