//! Ids, ENDs and what may be said about a call. [R-CA]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

#[test]
fn calls_end_in_any_order() {
    let mut pair = Pair::at(At::Active);
    let [a, b, c] = [(); 3].map(|()| pair.call("tool.call"));
    for id in [c, a, b] {
        pair.plugin.end(id, Ok(pack(&json!(id.0)).into())).unwrap();
    }
    pair.reach_host();
    let expected = [c, a, b].map(|id| Event::Ended { id, outcome: Ok(pack(&json!(id.0)).into()) });
    assert_eq!(pair.host_events(), expected);
    assert_eq!((pair.host.open_calls(), pair.plugin.open_calls()), (0, 0));
}

#[test]
fn ids_are_odd_and_increase() {
    let mut pair = Pair::at(At::Active);
    assert_eq!([(); 4].map(|()| pair.start("tool.call").0), [3, 5, 7, 9]);
}

#[test]
fn a_call_with_a_wrong_id_is_refused() {
    for (id, at) in [
        (0, At::Active),
        (2, At::Active),
        (4, At::Active),
        (1, At::Active),
        (1, At::Open),
        (3, At::Open),
        (3, At::Cancelling),
    ] {
        let found = refuses(at, Who::Plugin, &call(id, "tool.call"), Close::BadId);
        assert!(matches!(found, Violation::Id { kind: "CALL", .. }), "{found}");
    }
}

#[test]
fn the_offending_id_is_named_in_close() {
    let mut plugin = Pair::at(At::Active).plugin;
    feed(&mut plugin, &call(4, "tool.call"), Tick(1_000));
    assert_eq!(written(&mut plugin)[0].2, json!({"code": "bad_id", "id": 4}));
}

#[test]
fn ids_may_be_left_out_and_what_was_left_out_is_closed() {
    let mut plugin = Pair::at(At::Active).plugin;
    feed(&mut plugin, &call(u32::MAX, "tool.call"), Tick(1_000));
    assert!(matches!(events(&mut plugin)[..], [Event::Called(_)]));
    for kind in [0x12, 0x13] {
        feed(&mut plugin, &frame(kind, 101, json!({}), b""), Tick(1_000));
        assert_eq!(events(&mut plugin), []);
    }
    feed(&mut plugin, &call(101, "tool.call"), Tick(1_000));
    is_broken(&mut plugin, Close::BadId);
}

#[test]
fn a_plugin_that_calls_is_refused() {
    for (id, code) in [
        (2, Close::BadState),
        (4, Close::BadState),
        (0, Close::BadId),
        (3, Close::BadId),
        (5, Close::BadId),
    ] {
        refuses(At::Active, Who::Host, &call(id, "host.x"), code);
    }
}

#[test]
fn what_a_plugin_may_not_say_about_a_call() {
    // Call 1 is over, 3 is open, 5 was never opened, 2 would be the plugin's own.
    let table = [
        (0x12, 0, Close::BadId),
        (0x12, 1, Close::BadState),
        (0x12, 5, Close::BadId),
        (0x12, 2, Close::BadId),
        (0x13, 0, Close::BadId),
        (0x13, 1, Close::BadState),
        (0x13, 3, Close::BadState),
        (0x13, 5, Close::BadState),
        (0x11, 0, Close::BadId),
        (0x11, 1, Close::BadState),
        (0x11, 3, Close::BadState),
        (0x11, 2, Close::BadState),
        (0x14, 0, Close::BadId),
        (0x14, 3, Close::BadState),
    ];
    for (kind, id, code) in table {
        for at in [At::Open, At::Cancelling] {
            let mut host = Pair::at(at).host;
            let head = json!({"n": 1});
            feed(&mut host, &frame(kind, id, head, b""), Tick(1_000));
            is_broken(&mut host, code);
        }
    }
}

#[test]
fn what_a_host_may_not_say_about_a_call() {
    let table = [
        (0x12, 0, Close::BadId),
        (0x12, 3, Close::BadState),
        (0x12, 5, Close::BadId),
        (0x12, 2, Close::BadId),
        (0x13, 0, Close::BadId),
        (0x13, 2, Close::BadState),
        (0x11, 0, Close::BadId),
        (0x11, 1, Close::BadState),
        (0x11, 3, Close::BadState),
        (0x14, 0, Close::BadId),
        (0x14, 1, Close::BadState),
        (0x14, 3, Close::BadState),
    ];
    for (kind, id, code) in table {
        for at in [At::Open, At::Cancelling] {
            refuses(at, Who::Plugin, &frame(kind, id, json!({"n": 1}), b""), code);
        }
    }
}

#[test]
fn late_frames_of_the_caller_are_a_race_and_harmless() {
    for (kind, id) in [(0x12, 1), (0x13, 1), (0x13, 5), (0x13, 77)] {
        let bytes = frame(kind, id, json!({}), b"");
        assert_eq!(accepts(At::Open, Who::Plugin, &bytes), [], "type {kind:#x} #{id}");
    }
    let note = frame(0x90, 3, json!({"topic": "progress"}), b"");
    assert_eq!(accepts(At::Open, Who::Plugin, &note), []);
}

#[test]
fn a_second_end_of_our_own_is_never_written() {
    let mut pair = Pair::at(At::Open);
    pair.plugin.end(CallId(3), Ok(Default::default())).unwrap();
    assert_eq!(pair.plugin.end(CallId(3), Ok(Default::default())), Err(Misuse::NoSuchCall));
    let late = Err(Fault::new(Code::Internal));
    assert_eq!(pair.plugin.end(CallId(3), late), Err(Misuse::NoSuchCall));
    assert_eq!(pair.plugin.end(CallId(5), Ok(Default::default())), Err(Misuse::NoSuchCall));
    assert_eq!(written(&mut pair.plugin).len(), 1);
}

#[test]
fn a_fault_arrives_as_it_was_sent() {
    let mut pair = Pair::at(At::Active);
    let long = Fault {
        after: Some(1_500),
        ..Fault::new(Code::Conflict).because("acme.stale").retry(Retry::Maybe)
    };
    for sent in [
        Fault::new(Code::Internal),
        Fault::new(Code::NotFound).message("no such row: ✂"),
        long.message("changed meanwhile"),
    ] {
        let id = pair.call("tool.call");
        pair.plugin.end(id, Err(sent.clone())).unwrap();
        pair.reach_host();
        let told = pair.host_events();
        assert_eq!(*fault(&told[0]), sent);
        assert_eq!(fault(&told[0]).text(), sent.text());
    }
}

#[test]
fn unknown_words_in_a_fault_have_a_meaning() {
    let head = json!({"err": {"code": "grease_x", "retry": "grease", "reason": "any.thing"}});
    let told = accepts(At::Open, Who::Host, &frame(0x12, 3, head, b"\xc1"));
    let found = fault(&told[0]);
    assert_eq!((found.code, found.retry), (Code::Unknown, Retry::No));
    assert_eq!((found.reason.as_deref(), found.text()), (Some("any.thing"), None));
}

#[test]
fn a_result_that_does_not_fit_becomes_a_fault() {
    let small = Announce { limits: Limits::FLOOR, ..announce() };
    for outcome in [
        Ok(blob(65_536 - 15)),
        Err(Fault { body: blob(65_536), ..Fault::new(Code::Internal) }),
        Err(Fault::new(Code::Internal).because("x".repeat(65_536))),
    ] {
        let mut pair = Pair::with(small.clone(), announce(), At::Open);
        let found = pair.plugin.end(CallId(3), outcome);
        assert!(matches!(found, Err(Misuse::TooLarge { max: 65_536, .. })), "{found:?}");
        pair.reach_host();
        let told = pair.host_events();
        let expected = Fault::new(Code::ResourceExhausted).because("pb.frame_limit");
        assert_eq!(*fault(&told[0]), expected);
        assert_eq!((told.len(), pair.plugin.open_calls()), (1, 0));
    }
    let mut pair = Pair::with(small, announce(), At::Open);
    assert_eq!(pair.plugin.end(CallId(3), Ok(blob(65_536 - 16))), Ok(()));
    pair.reach_host();
    assert!(matches!(pair.host_events()[..], [Event::Ended { outcome: Ok(_), .. }]));
}

#[test]
fn arguments_that_do_not_fit_are_not_sent_and_use_no_id() {
    let small = Announce { limits: Limits { calls: 9, ..Limits::FLOOR }, ..announce() };
    let mut pair = Pair::with(announce(), small, At::Active);
    // Header 12, head 18, gap 2.
    for (body, fits) in [(65_536 - 32, true), (65_536 - 31, false)] {
        let call = Outgoing { method: "tool.call", body: blob(body), ..Outgoing::default() };
        let found = pair.host.call(&call, pair.now);
        if fits {
            assert_eq!(found, Ok(CallId(3)));
            assert_eq!(pair.host.outbox().take().len(), 65_536);
        } else {
            assert_eq!(found, Err(Misuse::TooLarge { size: 65_537, max: 65_536 }));
            assert!(pair.host.outbox().is_empty());
        }
    }
    assert_eq!(pair.start("tool.call"), CallId(5));
    let long = "m".repeat(70_000);
    let found = pair.host.call(&Outgoing { method: &long, ..Outgoing::default() }, pair.now);
    assert!(matches!(found, Err(Misuse::TooLarge { .. })));
    // Nothing of what did not fit is left between the others.
    pair.start("tool.call");
    pair.reach_plugin();
    assert_eq!(pair.plugin_events().len(), 2);
}

#[test]
fn a_call_is_sent_once_its_last_byte_has_left() {
    let mut pair = Pair::at(At::Active);
    let [a, b] = [(); 2].map(|()| pair.start("tool.call"));
    let half = (pair.host.outbox().len() / 2) as usize;
    pair.host.outbox().advance(half - 1);
    assert_eq!((pair.host.is_sent(a), pair.host.is_sent(b)), (false, false));
    pair.host.outbox().advance(1);
    assert_eq!((pair.host.is_sent(a), pair.host.is_sent(b)), (true, false));
    pair.host.outbox().advance(half);
    assert!(pair.host.is_sent(b));
}

#[test]
fn notes_about_an_open_call_are_told_and_others_are_not() {
    let log = Note::Log { level: Level::Warn, event: "slow".into(), body: blob(3) };
    let progress = Note::Progress {
        n: Some(1),
        total: Some(2),
        unit: Some("files".into()),
        body: contract::message("on it"),
    };
    let retire = Note::Retire { reason: "memory".into() };
    let mut pair = Pair::at(At::Open);
    for (id, note) in
        [(Some(CallId(3)), &progress), (Some(CallId(3)), &log), (None, &log), (None, &retire)]
    {
        pair.plugin.note(id, note);
        pair.reach_host();
        assert_eq!(pair.host_events(), [Event::Note { id, note: note.clone() }]);
    }
    // Not open: nothing is written.
    for id in [1, 5, 2] {
        pair.plugin.note(Some(CallId(id)), &progress);
        assert!(pair.plugin.outbox().is_empty());
    }
    for at in [At::Start, At::Ready] {
        let mut plugin = Pair::at(at).plugin;
        plugin.note(None, &log);
        assert_eq!(plugin.outbox().is_empty(), at == At::Start);
    }
}

#[test]
fn a_note_that_nobody_asked_for_is_harmless() {
    let progress = json!({"topic": "progress", "n": 1});
    for id in [1, 5, 2, 4] {
        let bytes = frame(0x90, id, progress.clone(), b"");
        assert_eq!(accepts(At::Open, Who::Host, &bytes), [], "#{id}");
    }
    for id in [0, 3] {
        let unknown = frame(0x90, id, json!({"topic": "grease.x", "n": "?"}), b"\xc1");
        assert_eq!(accepts(At::Open, Who::Host, &unknown), []);
        // A plugin ignores every note.
        assert_eq!(accepts(At::Open, Who::Plugin, &frame(0x90, id, progress.clone(), b"")), []);
        let log = frame(0x90, id, json!({"topic": "log"}), b"");
        assert_eq!(accepts(At::Open, Who::Plugin, &log), []);
    }
}

#[test]
fn unknown_words_in_a_note_have_a_meaning() {
    for lvl in [json!("loud"), json!(null)] {
        let bytes = frame(0x90, 0, json!({"topic": "log", "lvl": lvl}), b"");
        let note = Note::Log { level: Level::Info, event: "".into(), body: Default::default() };
        assert_eq!(accepts(At::Open, Who::Host, &bytes), [Event::Note { id: None, note }]);
    }
    for (word, level) in [
        ("debug", Level::Debug),
        ("info", Level::Info),
        ("warn", Level::Warn),
        ("error", Level::Error),
    ] {
        assert_eq!(level.as_str(), word);
        let bytes = frame(0x90, 0, json!({"topic": "log", "lvl": word}), b"");
        let note = Note::Log { level, event: "".into(), body: Default::default() };
        assert_eq!(accepts(At::Open, Who::Host, &bytes), [Event::Note { id: None, note }]);
    }
}

/// \[R-NO-01\] \[R-NO-07\]
#[test]
fn a_note_that_says_nothing_its_topic_can_say_is_ignored() {
    for head in [
        json!({"topic": "progress", "n": "1"}),
        json!({"topic": "progress", "total": -1}),
        json!({"topic": "progress", "unit": 1}),
        json!({"topic": "log", "lvl": 1}),
        json!({"topic": "log", "event": []}),
        json!({"topic": "retire", "reason": {}}),
    ] {
        let bytes = frame(0x90, 3, head, b"");
        assert_eq!(accepts(At::Open, Who::Host, &bytes), []);
        assert_eq!(accepts(At::Open, Who::Plugin, &bytes), []);
    }
}

#[test]
fn a_note_that_is_too_large_is_dropped() {
    let small = Announce { limits: Limits::FLOOR, ..announce() };
    let mut pair = Pair::with(small, announce(), At::Open);
    let progress = |body| Note::Progress { n: None, total: None, unit: None, body };
    pair.plugin.note(Some(CallId(3)), &progress(blob(70_000)));
    pair.plugin.note(None, &Note::Retire { reason: "r".repeat(70_000) });
    assert!(pair.plugin.outbox().is_empty());
    pair.plugin.note(Some(CallId(3)), &progress(blob(100)));
    assert_eq!(written(&mut pair.plugin).len(), 1);
}
