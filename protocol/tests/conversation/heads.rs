//! What heads may say and how they are read. [R-HD]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

/// A CALL #3 with this head.
fn call_head(head: &[u8]) -> Vec<u8> {
    raw(0x10, 3, head, b"")
}

/// `{"method": "tool.call", "x": …}` with the value given as bytes.
fn with_x(value: &[u8]) -> Vec<u8> {
    call_head(&[b"\x82\xa6method\xa9tool.call\xa1x", value].concat())
}

#[test]
fn a_head_is_one_map_with_string_keys_and_nothing_more() {
    for head in [
        &b"\xc0"[..],
        b"\x01",
        b"\x90",
        b"\x91\xa6method\xa9tool.call",
        b"\x92\xa6method\xa9tool.call",
        b"\xa6method",
        b"\xc1",
        b"\x81\xa6method\xa9tool.call\xc0",
        b"\x81\xa6method\xa9tool.cal",
        b"\x81\xa6method",
        b"\x82\xa6method\xa9tool.call",
        b"\x81\xc4\x06method\xa9tool.call",
        b"\x81\x01\xa9tool.call",
        b"\x82\xa6method\xa9tool.call\xc0\x01",
        b"\x82\xa6method\xa9tool.call\xa6method\xa9tool.call",
        b"\x82\xa6method\xa9tool.call\xd9\x06method\xc0",
        b"\xdf\xff\xff\xff\xff",
        b"\xde\xff\xff",
    ] {
        let found = refuses(At::Active, Who::Plugin, &call_head(head), Close::ProtocolError);
        assert!(matches!(found, Violation::Head { kind: "CALL", .. }), "{head:x?}: {found}");
    }
}

#[test]
fn whatever_a_newer_peer_adds_to_a_head_is_passed_over() {
    for value in [
        &b"\xc0"[..],
        b"\xc2",
        b"\xcb\x7f\xf8\0\0\0\0\0\0",
        b"\xd3\x80\0\0\0\0\0\0\0",
        b"\xc4\x02\xff\xfe",
        b"\xa0",
        b"\x92\x81\xa1y\x90\x80",
        b"\x82\xa1y\x01\xa1z\x81\xa1y\xff",
    ] {
        assert_eq!(accepts(At::Active, Who::Plugin, &with_x(value)).len(), 1, "{value:x?}");
    }
}

#[test]
fn a_value_that_heads_may_not_hold_is_refused_even_under_an_unknown_key() {
    for value in [
        &b"\xd4\x01\x00"[..],
        b"\xc7\x00\x01",
        b"\xc1",
        b"\xa1\xff",
        b"\xa2\xc3\x28",
        b"\x81\xa1\xff\xc0",
        b"\xcf\x00\x20\x00\x00\x00\x00\x00\x00",
        b"\xd3\x00\x20\x00\x00\x00\x00\x00\x00",
        b"\x82\xa1y\x01\xa1y\x01",
        b"\x91\x82\xa1y\x01\xa1y\x01",
        b"\x81\x01\xc0",
        b"\x91\x91\x91\x91\x91\x91\x91\x91\xc0",
    ] {
        refuses(At::Active, Who::Plugin, &with_x(value), Close::ProtocolError);
    }
    let deepest = b"\x91\x91\x91\x91\x91\x91\x91\xc0";
    assert_eq!(accepts(At::Active, Who::Plugin, &with_x(deepest)).len(), 1);
    let largest = b"\xcf\x00\x1f\xff\xff\xff\xff\xff\xff";
    assert_eq!(accepts(At::Active, Who::Plugin, &with_x(largest)).len(), 1);
}

#[test]
fn every_width_of_marker_is_read_the_same() {
    for deadline in [
        &b"\x07"[..],
        b"\xcc\x07",
        b"\xcd\x00\x07",
        b"\xce\0\0\0\x07",
        b"\xcf\0\0\0\0\0\0\0\x07",
        b"\xd0\x07",
        b"\xd1\x00\x07",
        b"\xd2\0\0\0\x07",
        b"\xd3\0\0\0\0\0\0\0\x07",
    ] {
        for (map, key) in [
            (&b"\x82"[..], &b"\xa8deadline"[..]),
            (b"\xde\x00\x02", b"\xd9\x08deadline"),
            (b"\xdf\0\0\0\x02", b"\xda\x00\x08deadline"),
            (b"\x82", b"\xdb\0\0\0\x08deadline"),
        ] {
            let head = [map, b"\xa6method\xa4a.bc", key, deadline].concat();
            let told = accepts(At::Active, Who::Plugin, &call_head(&head));
            let [Event::Called(call)] = &told[..] else { panic!("{head:x?}: {told:?}") };
            assert_eq!((&*call.method, call.deadline), ("a.bc", Some(7)), "{head:x?}");
        }
    }
}

#[test]
fn nil_counts_as_absent() {
    let head = json!({"method": "a.b", "deadline": null, "idle": null});
    let told = accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b""));
    let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((call.deadline, call.idle), (None, None));
    let ok = frame(0x12, 3, json!({"err": null}), b"\xc0");
    assert!(matches!(accepts(At::Open, Who::Host, &ok)[..], [Event::Ended { outcome: Ok(_), .. }]));
}

#[test]
fn a_field_is_found_behind_many_others() {
    let mut head = json!({});
    for n in 0..40 {
        head[format!("a{n:02}")] = json!([n, {"method": "wrong", "deadline": 1}]);
    }
    head["deadline"] = 9.into();
    head["method"] = "right.one".into();
    let told = accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b""));
    let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&*call.method, call.deadline), ("right.one", Some(9)));
}

#[test]
fn fields_are_found_and_twins_refused_wherever_they_stand() {
    for count in 1..12_usize {
        let head = |twins: Option<(usize, usize)>, at: usize| {
            let mut bytes = vec![0x80 | count as u8];
            for n in 0..count {
                let n = twins.filter(|(_, twin)| *twin == n).map_or(n, |(first, _)| first);
                match n == at {
                    true => bytes.extend(b"\xa6method\xa1m"),
                    false => bytes.extend([0xa1, b'a' + n as u8, 0x07]),
                }
            }
            call_head(&bytes)
        };
        for at in 0..count {
            let told = accepts(At::Active, Who::Plugin, &head(None, at));
            assert!(matches!(&told[..], [Event::Called(call)] if call.method == "m"), "{told:?}");
            for first in 0..at {
                refuses(At::Active, Who::Plugin, &head(Some((first, at)), 0), Close::ProtocolError);
            }
        }
    }
}

#[test]
fn a_field_of_the_tables_with_a_wrong_type_or_range_is_refused() {
    let host = [
        (0x12, json!({"err": "no"})),
        (0x12, json!({"err": {}})),
        (0x12, json!({"err": {"code": 5}})),
        (0x12, json!({"err": {"code": "internal", "reason": 1}})),
        (0x12, json!({"err": {"code": "internal", "retry": true}})),
        (0x12, json!({"err": {"code": "internal", "after": -1}})),
        (0x12, json!({"err": {"code": "internal", "after": "1"}})),
        (0x90, json!({})),
        (0x90, json!({"topic": 1})),
    ];
    for (kind, head) in host {
        let bytes = frame(kind, 3, head.clone(), b"");
        let mut end = Pair::at(At::Open).host;
        feed(&mut end, &bytes, Tick(1_000));
        assert!(matches!(is_broken(&mut end, Close::ProtocolError), Violation::Head { .. }));
    }
    let plugin = [
        (0x10, 5, json!({})),
        (0x10, 5, json!({"method": null})),
        (0x10, 5, json!({"method": 1})),
        (0x10, 5, json!({"method": "a", "deadline": "1"})),
        (0x10, 5, json!({"method": "a", "deadline": -1})),
        (0x10, 5, json!({"method": "a", "deadline": 1.0})),
        (0x10, 5, json!({"method": "a", "idle": []})),
        (0x10, 5, json!({"method": "a", "in": 1})),
        (0x10, 5, json!({"method": "a", "scopes": "host.x"})),
        (0x10, 5, json!({"method": "a", "key": 1})),
        (0x10, 5, json!({"method": "a", "attempt": 256})),
        (0x10, 5, json!({"method": "a", "attempt": "1"})),
        (0x14, 3, json!({})),
        (0x14, 3, json!({"n": true})),
        (0x13, 3, json!({"reason": 1})),
        (0x02, 0, json!({})),
        (0x02, 0, json!({"code": 1})),
        (0x02, 0, json!({"code": "ok", "supported": 1})),
    ];
    for (kind, id, head) in plugin {
        refuses(At::Open, Who::Plugin, &frame(kind, id, head, b""), Close::ProtocolError);
    }
}

#[test]
fn numbers_that_a_head_cannot_hold_are_written_as_the_largest_that_it_can() {
    const MOST: u64 = (1 << 53) - 1;
    let mut pair = Pair::at(At::Active);
    let call = Outgoing {
        method: "tool.call",
        deadline: Some(u64::MAX),
        idle: Some(MOST + 1),
        ..Outgoing::default()
    };
    let id = pair.host.call(&call, pair.now).unwrap();
    pair.reach_plugin();
    let told = pair.plugin_events();
    let [Event::Called(arrived)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((arrived.deadline, arrived.idle), (Some(MOST), Some(MOST)));

    let note = Note::Progress {
        n: Some(u64::MAX),
        total: Some(MOST),
        unit: None,
        body: Default::default(),
    };
    pair.plugin.note(Some(id), &note);
    let after = Fault { after: Some(u64::MAX), ..Fault::new(Code::Unavailable) };
    pair.plugin.end(id, Err(after)).unwrap();
    pair.reach_host();
    let told = pair.host_events();
    let [Event::Note { note: Note::Progress { n, total, .. }, .. }, end] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*n, *total, fault(end).after), (Some(MOST), Some(MOST), Some(MOST)));
}

#[test]
fn whatever_we_write_in_a_head_is_read_back_the_same() {
    let mut pair = Pair::at(At::Active);
    for ms in [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, 1 << 52] {
        for method in ["m", &"n".repeat(31), &"n".repeat(32), &"n".repeat(255), &"n".repeat(256)] {
            let call =
                Outgoing { method, deadline: Some(ms), idle: Some(ms + 1), ..Outgoing::default() };
            let id = pair.host.call(&call, pair.now).unwrap();
            pair.reach_plugin();
            let told = pair.plugin_events();
            let [Event::Called(arrived)] = &told[..] else { panic!("{told:?}") };
            let expected = (method, Some(ms), Some(ms + 1));
            assert_eq!((&*arrived.method, arrived.deadline, arrived.idle), expected);
            pair.plugin.end(id, Ok(Default::default())).unwrap();
            pair.flow();
            pair.host_events();
        }
    }
}

#[test]
fn a_body_that_cannot_be_decoded_is_no_fault_of_the_connection() {
    for body in [&b"\xc1"[..], b"\x91", b"\xc0\xc0", b"\x81\x01\x01", &[0x91; 200]] {
        assert!(check_body(body).is_err());
        let bytes = frame(0x10, 3, json!({"method": "tool.call"}), body);
        let told = accepts(At::Active, Who::Plugin, &bytes);
        let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(call.body, body);
    }
}

#[test]
fn what_a_call_says_about_itself_is_passed_on() {
    let tp = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let head = json!({
        "method": "tool.call", "key": "k7", "attempt": 2, "scopes": ["host.x", 5, "", {"a": []}],
        "trace": {"tp": tp, "ts": "a=b", "more": 1},
    });
    let told = accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b""));
    let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
    let details = Details {
        // Entries that nobody recognises are passed over.
        scopes: Some(vec!["host.x".into(), "".into()]),
        key: Some("k7".into()),
        attempt: 2,
        trace: Some(Trace { parent: tp.into(), state: Some("a=b".into()) }),
    };
    assert_eq!(call.details.as_deref(), Some(&details));
    // None at all is something else than none given.
    let head = json!({"method": "tool.call", "scopes": [7]});
    let told = accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b""));
    let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(call.details.as_ref().unwrap().scopes, Some(vec![]));
}

#[test]
fn a_trace_that_is_not_valid_is_ignored() {
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let tp = |tp: String| json!({ "tp": tp });
    let fine = [
        tp(format!("00-{trace}-{span}-00")),
        tp(format!("cc-{trace}-{span}-01")),
        tp(format!("cc-{trace}-{span}-01-what-a-later-version-adds")),
    ];
    let zeros = |n| "0".repeat(n);
    let bad = [
        json!(5),
        json!("00"),
        json!([]),
        json!({}),
        json!({"tp": 1}),
        json!({"tp": format!("00-{trace}-{span}-01"), "ts": 1}),
        tp(String::new()),
        tp(format!("ff-{trace}-{span}-01")),
        tp(format!("0-{trace}-{span}-01")),
        tp(format!("00-{trace}-{span}")),
        tp(format!("00-{trace}-{span}-1")),
        tp(format!("00-{trace}-{span}-01-")),
        tp(format!("00-{trace}-{span}-0g")),
        tp(format!("00-{}-{span}-01", trace.to_uppercase())),
        tp(format!("00-{}-{span}-01", zeros(32))),
        tp(format!("00-{trace}-{}-01", zeros(16))),
        tp(format!("00-{}-{span}-01", &trace[1..])),
        tp(format!("00-{trace}-{span}0-01")),
    ];
    let found = |trace: &serde_json::Value| {
        let head = json!({"method": "tool.call", "trace": trace});
        let told = accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b""));
        let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
        call.details.clone()
    };
    for trace in fine {
        let details = found(&trace).expect("it is valid");
        assert_eq!(json!(details.trace.as_ref().unwrap().parent), trace["tp"]);
    }
    for trace in bad {
        assert_eq!(found(&trace), None, "{trace}");
    }
}
