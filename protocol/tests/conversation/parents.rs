//! How a plugin's calls hang on those that they serve. [R-RV]

use plugbay_protocol::*;
use serde_json::json;

use crate::{pair::*, reverse::*};

fn parent_with(deadline: Option<u64>, idle: Option<u64>) -> Pair {
    let mut pair = pair(At::Active);
    let call = Outgoing { method: "tool.call", deadline, idle, ..Outgoing::default() };
    assert_eq!(pair.host.call(&call, pair.now), Ok(PARENT));
    pair.reach_plugin();
    pair.plugin_events();
    pair
}

#[test]
fn a_call_does_not_end_before_those_that_serve_it() {
    let mut pair = pair(At::Open);
    let background = call_host(&mut pair, None);
    let id = call_host(&mut pair, Some(PARENT));
    for outcome in [Ok(blob(1)), Err(Fault::new(Code::Internal))] {
        assert_eq!(pair.plugin.end(PARENT, outcome), Err(Misuse::CallsOpen));
    }
    assert!(pair.plugin.outbox().is_empty());
    pair.host.end(id, Ok(blob(0))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(1))), Ok(()), "background work is another matter");
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Ended { id: PARENT, outcome: Ok(blob(1)) }]);
    assert_eq!(pair.host.end(background, Ok(blob(0))), Ok(()));
}

#[test]
fn a_plugin_that_ends_a_call_before_those_that_serve_it_is_refused() {
    for head in [json!({}), json!({"err": {"code": "cancelled"}})] {
        for at in [At::Open, At::Activating] {
            let mut pair = pair(at);
            let parent = if at == At::Open { PARENT } else { CallId(1) };
            call_host(&mut pair, Some(parent));
            feed(&mut pair.host, &frame(0x12, parent.0, head.clone(), b""), pair.now);
            is_broken(&mut pair.host, Close::BadState);
        }
    }
}

#[test]
fn deactivation_ends_after_every_call_in_either_direction() {
    let mut pair = pair(At::Draining);
    pair.plugin.end(PARENT, Ok(blob(0))).unwrap();
    pair.reach_host();
    pair.host_events();
    // A plugin that drains may still call: for its deactivation, and in the background.
    let ids = [call_host(&mut pair, None), call_host(&mut pair, Some(CallId(5)))];
    assert_eq!(pair.plugin.end(CallId(5), Ok(blob(0))), Err(Misuse::CallsOpen));
    pair.host.end(ids[1], Ok(blob(0))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin.end(CallId(5), Ok(blob(0))), Err(Misuse::CallsOpen));
    pair.host.end(ids[0], Ok(blob(0))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin.end(CallId(5), Ok(blob(0))), Ok(()));
    pair.reach_host();
    assert_eq!(pair.host.stage(), Stage::Ready);

    let mut pair = self::pair(At::Active);
    call_host(&mut pair, None);
    pair.call("plugin.deactivate");
    // With an error it may: the plugin stays active.
    let mut other = self::pair(At::Active);
    call_host(&mut other, None);
    other.call("plugin.deactivate");
    other.plugin.end(PARENT, Err(Fault::new(Code::FailedPrecondition))).unwrap();
    other.reach_host();
    assert_eq!(other.host.stage(), Stage::Active);
    feed(&mut pair.host, &frame(0x12, 3, json!({}), b""), pair.now);
    is_broken(&mut pair.host, Close::BadState);
}

#[test]
fn a_reverse_call_has_no_more_time_than_is_left_of_its_parents() {
    for (parent, own, expected) in [
        (None, None, None),
        (None, Some(500), Some(500)),
        (Some(1_000), None, Some(600)),
        (Some(1_000), Some(500), Some(500)),
        (Some(1_000), Some(5_000), Some(600)),
        (Some(300), Some(5_000), Some(0)),
    ] {
        let mut pair = parent_with(parent, None);
        pair.now = pair.now.after(400);
        // The plugin cuts it.
        let call = Outgoing { deadline: own, ..reverse("host.x", Some(PARENT)) };
        pair.plugin.call(&call, pair.now).unwrap();
        let frames = written(&mut pair.plugin);
        assert_eq!(frames[0].2.get("deadline"), expected.map(|ms| json!(ms)).as_ref());
        // And so does the host, whatever the plugin says.
        let head = json!({"method": "host.x", "parent": 3, "deadline": own});
        feed(&mut pair.host, &raw_call(2, head, b""), pair.now);
        let told = pair.host_events();
        let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(call.deadline, expected);
    }
}

#[test]
fn when_the_host_gives_a_call_up_it_ends_what_it_does_for_it() {
    let mut pair = pair(At::Open);
    let other = pair.call("tool.call");
    let [a, b] = [call_host(&mut pair, Some(PARENT)), call_host(&mut pair, Some(PARENT))];
    let [c, d] = [call_host(&mut pair, Some(other)), call_host(&mut pair, None)];
    pair.plugin_events();
    pair.host.cancel(PARENT, CancelReason::User, pair.now);
    assert_eq!(pair.host_events(), [Event::Withdrawn { id: a }, Event::Withdrawn { id: b }]);
    assert_eq!(pair.host.reverse_calls(), 2);
    for id in [a, b] {
        assert_eq!(pair.host.end(id, Ok(blob(1))), Err(Misuse::NoSuchCall));
    }
    pair.reach_plugin();
    let told = [
        Event::CancelRequested { id: PARENT, reason: CancelReason::User },
        Event::Released { id: a },
        Event::Released { id: b },
    ];
    assert_eq!(pair.plugin_events(), told);
    // What the plugin says about them comes late and is ignored.
    let frames = written(&mut pair.plugin);
    let expected = [a, b].map(|id| ("CANCEL", id.0, json!({"reason": "parent"}), vec![]));
    assert_eq!(frames, expected);
    for (_, id, head, _) in frames {
        feed(&mut pair.host, &frame(0x13, id, head, b""), pair.now);
    }
    pair.plugin.end(PARENT, Err(cancelled())).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: PARENT }]);
    for id in [c, d] {
        pair.host.end(id, Ok(blob(1))).unwrap();
    }
    pair.reach_plugin();
    assert_eq!(pair.plugin_events().len(), 2);
}

#[test]
fn a_call_that_expires_takes_its_reverse_calls_along() {
    let mut pair = parent_with(Some(1_000), None);
    let id = call_host(&mut pair, Some(PARENT));
    pair.wait(1_000);
    let told = pair.host_events();
    assert!(
        matches!(told[..], [Event::Ended { id: PARENT, .. }, Event::Withdrawn { id: child }]
        if child == id),
        "{told:?}"
    );
}

#[test]
fn a_reverse_call_that_crosses_the_cancel_of_its_parent_ends_at_once() {
    let mut pair = pair(At::Open);
    pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
    pair.host.cancel(PARENT, CancelReason::User, pair.now);
    pair.reach_host();
    assert_eq!(pair.host_events(), [], "no service hears of it");
    pair.reach_plugin();
    let told = [
        Event::CancelRequested { id: PARENT, reason: CancelReason::User },
        Event::Released { id: ID },
    ];
    assert_eq!(pair.plugin_events(), told);
    pair.plugin.end(PARENT, Err(cancelled())).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: PARENT }]);
}

#[test]
fn a_plugin_that_reads_cancel_gives_up_what_it_calls_for_that_call_and_nothing_else() {
    let mut pair = pair(At::Open);
    let sent = call_host(&mut pair, Some(PARENT));
    let given_up = call_host(&mut pair, Some(PARENT));
    let other = call_host(&mut pair, None);
    pair.plugin.cancel(given_up, CancelReason::User, pair.now);
    pair.plugin.outbox().take();
    let unsent = pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
    feed(&mut pair.plugin, &frame(0x13, 3, json!({"reason": "shutdown"}), b""), pair.now);
    let told = [
        Event::CancelRequested { id: PARENT, reason: CancelReason::Shutdown },
        Event::Released { id: unsent },
    ];
    assert_eq!(pair.plugin_events(), told);
    let frames = written(&mut pair.plugin);
    assert_eq!(frames, [("CANCEL", sent.0, json!({"reason": "parent"}), vec![])]);
    assert_eq!(pair.plugin.reverse_calls(), 3);
    // Until their ENDs have come the call cannot end.
    assert_eq!(pair.plugin.end(PARENT, Err(cancelled())), Err(Misuse::CallsOpen));
    for id in [sent, given_up] {
        feed(&mut pair.plugin, &frame(0x12, id.0, json!({}), b""), pair.now);
    }
    assert_eq!(pair.plugin.end(PARENT, Err(cancelled())), Ok(()));
    assert_eq!(pair.plugin.reverse_calls(), 1);
    let _still_open = other;
}

#[test]
fn silence_does_not_count_while_the_plugin_waits_for_its_host() {
    let mut pair = parent_with(Some(90_000), Some(1_000));
    pair.wait(900);
    let [a, b] = [call_host(&mut pair, Some(PARENT)), call_host(&mut pair, Some(PARENT))];
    pair.wait(8_000);
    pair.host.end(a, Ok(blob(0))).unwrap();
    pair.wait(8_000);
    assert_eq!(pair.host_events(), [], "one is still open");
    pair.host.end(b, Ok(blob(0))).unwrap();
    assert_eq!(pair.host.deadline(), Some(Tick(0)), "to be looked at at once");
    pair.wait(0);
    pair.wait(999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    let outcome = Err(Failure::Expired { budget: Budget::Idle, ms: 1_000, sent: true });
    assert_eq!(pair.host_events(), [Event::Ended { id: PARENT, outcome }]);
}

#[test]
fn a_reverse_call_is_a_sign_of_life_of_its_parent_even_if_it_is_refused() {
    for method in ["host.x", "host.y"] {
        let mut pair = parent_with(None, Some(1_000));
        pair.wait(900);
        let head = json!({"method": method, "parent": 3});
        feed(&mut pair.host, &raw_call(2, head, b""), pair.now);
        pair.wait(999);
        let told = pair.host_events();
        assert!(!told.iter().any(|event| matches!(event, Event::Ended { .. })), "{told:?}");
    }
    // One without a parent, or with another, is not.
    let mut pair = parent_with(None, Some(1_000));
    pair.wait(900);
    feed(&mut pair.host, &x(2, None), pair.now);
    pair.wait(100);
    let told = pair.host_events();
    assert!(told.iter().any(|event| matches!(event, Event::Ended { id: PARENT, .. })), "{told:?}");
}

#[test]
fn a_reverse_call_belongs_to_the_trace_of_its_parent() {
    let trace = |n: u32| Trace {
        parent: format!("00-{n:032x}-b7ad6b7169203331-01"),
        state: Some("a=b".into()),
    };
    let mut pair = pair(At::Active);
    let (of_parent, own) = (trace(7), trace(8));
    let of =
        |trace: &Trace| Some(Details { trace: Some(trace.clone()), ..Details::default() }.into());
    let call = Outgoing { details: of(&of_parent), ..reverse("tool.call", None) };
    pair.host.call(&call, pair.now).unwrap();
    pair.reach_plugin();
    for (given, expected) in [(None, &of_parent), (Some(&own), &own)] {
        let details = given.and_then(of);
        let call = Outgoing { details, ..reverse("host.x", Some(PARENT)) };
        pair.plugin.call(&call, pair.now).unwrap();
        pair.reach_host();
        let told = pair.host_events();
        let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(call.details.as_ref().unwrap().trace.as_ref(), Some(expected));
    }
    let background = call_host(&mut pair, None);
    assert_eq!(background, CallId(6));
}

#[test]
fn a_call_that_could_only_wait_for_its_ancestors_is_known() {
    let two = Announce { limits: Limits { calls: 2, ..Limits::FLOOR }, ..both() };
    let mut pair = Pair::with(both(), two, At::Open);
    let first = PARENT;
    assert!(!pair.host.would_deadlock(&[first], 2), "a slot is free");
    let second = pair.call("tool.call");
    assert!(pair.host.would_deadlock(&[first, second], 2));
    assert!(pair.host.would_deadlock(&[second, CallId(99), first], 2));
    assert!(!pair.host.would_deadlock(&[first], 2), "the other may end");
    assert!(!pair.host.would_deadlock(&[], 2));
    // A step of the lifecycle holds no slot.
    let step = pair.call("plugin.deactivate");
    assert!(pair.host.would_deadlock(&[first, second], 2));
    assert!(!pair.host.would_deadlock(&[first, step], 2));
    pair.plugin.end(second, Ok(blob(0))).unwrap();
    pair.reach_host();
    assert!(!pair.host.would_deadlock(&[first], 2));
}
