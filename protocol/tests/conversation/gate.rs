//! Which calls may start. [R-GT]

use plugbay_protocol::*;
use serde_json::{Value, json};

use crate::pair::*;

/// What a plugin does with a CALL: runs it, or the error it answers.
#[track_caller]
fn answer(plugin: &mut Conversation, bytes: &[u8]) -> Option<Value> {
    feed(plugin, bytes, Tick(1_000));
    let called = matches!(events(plugin)[..], [Event::Called(_)]);
    match &written(plugin)[..] {
        [] if called => None,
        [("END", _, head, _)] if !called => Some(head["err"].clone()),
        other => panic!("expected a call or one END, found {other:?}"),
    }
}

#[test]
fn a_plugin_refuses_what_its_stage_does_not_allow() {
    let inactive = json!({"code": "failed_precondition", "reason": "pb.inactive", "retry": "safe"});
    let already =
        json!({"code": "failed_precondition", "reason": "pb.already_active", "retry": "no"});
    let draining = json!({"code": "unavailable", "reason": "pb.draining", "retry": "safe"});
    let unknown = json!({"code": "unimplemented", "reason": "pb.unknown_method", "retry": "no"});
    let methods = ["plugin.activate", "plugin.deactivate", "tool.call", "plugin.x"];
    let all = |err: &Value| [(); 4].map(|()| Some(err.clone()));
    let [_, two, three, four] = all(&inactive);
    for (at, expected) in [
        (At::Ready, [None, two, three, four]),
        (At::Activating, all(&inactive)),
        (At::Active, [Some(already), None, None, Some(unknown)]),
        (At::Draining, all(&draining)),
    ] {
        for (method, expected) in methods.into_iter().zip(expected) {
            let mut plugin = Pair::at(at).plugin;
            assert_eq!(answer(&mut plugin, &call(9, method)), expected, "{at:?} {method}");
        }
    }
}

#[test]
fn a_refused_call_has_had_its_end() {
    let mut plugin = Pair::at(At::Ready).plugin;
    assert!(answer(&mut plugin, &call(1, "tool.call")).is_some());
    assert_eq!(plugin.end(CallId(1), Ok(Default::default())), Err(Misuse::NoSuchCall));
    assert_eq!((plugin.open_calls(), plugin.has_open()), (0, false));
    feed(&mut plugin, &frame(0x13, 1, json!({}), b""), Tick(1_000));
    assert_eq!(events(&mut plugin), []);
    // And its id is used.
    feed(&mut plugin, &call(1, "plugin.activate"), Tick(1_000));
    is_broken(&mut plugin, Close::BadId);
}

#[test]
fn the_stage_decides_before_the_body_is_looked_at() {
    let mut plugin = Pair::at(At::Ready).plugin;
    let err = answer(&mut plugin, &frame(0x10, 1, json!({"method": "tool.call"}), b"\xc1"));
    assert_eq!(err.unwrap()["reason"], "pb.inactive");
}

#[test]
fn the_stage_decides_before_the_limit() {
    let mut plugin = Pair::at(At::Draining).plugin;
    for id in [7, 9, 11, 13, 15] {
        let err = answer(&mut plugin, &call(id, "tool.call")).unwrap();
        assert_eq!(err["reason"], "pb.draining");
    }
}

#[test]
fn a_plugin_refuses_calls_beyond_its_own_limit_and_takes_them_again_after_an_end() {
    let mut plugin = Pair::at(At::Active).plugin;
    for id in [3, 5, 7, 9] {
        assert_eq!(answer(&mut plugin, &call(id, "tool.call")), None);
    }
    let busy =
        json!({"code": "resource_exhausted", "reason": "pb.too_many_calls", "retry": "safe"});
    assert_eq!(answer(&mut plugin, &call(11, "tool.call")), Some(busy.clone()));
    // The limit comes before the method, and the lifecycle is exempt from it.
    assert_eq!(answer(&mut plugin, &call(13, "no.such.method")), Some(busy.clone()));
    assert_eq!(answer(&mut plugin, &call(15, "plugin.x")).unwrap()["code"], "unimplemented");
    // A cancelled call still counts.
    feed(&mut plugin, &frame(0x13, 3, json!({}), b""), Tick(1_000));
    assert!(matches!(events(&mut plugin)[..], [Event::CancelRequested { .. }]));
    assert_eq!(answer(&mut plugin, &call(17, "tool.call")), Some(busy));
    plugin.end(CallId(3), Ok(Default::default())).unwrap();
    written(&mut plugin);
    assert_eq!(answer(&mut plugin, &call(19, "tool.call")), None);
    assert_eq!(answer(&mut plugin, &call(21, "plugin.deactivate")), None);
}

#[test]
fn a_host_checks_the_same_gate_before_anything_is_sent() {
    let table = [
        (At::Start, [false, false, false]),
        (At::Ready, [true, false, false]),
        (At::Activating, [false, false, false]),
        (At::Active, [false, true, true]),
        (At::Open, [false, true, true]),
        (At::Draining, [false, false, false]),
    ];
    for (at, expected) in table {
        for (method, passes) in
            ["plugin.activate", "plugin.deactivate", "tool.call"].into_iter().zip(expected)
        {
            let mut pair = Pair::at(at);
            let before = pair.host.outbox().queued();
            let found = pair.host.call(&Outgoing { method, ..Outgoing::default() }, pair.now);
            let expected = if passes { Ok(()) } else { Err(Misuse::NotActive) };
            assert_eq!(found.map(drop), expected, "{at:?} {method}");
            assert_eq!(pair.host.outbox().queued() > before, passes);
        }
    }
}

#[test]
fn a_host_never_has_more_calls_open_than_the_plugin_accepts() {
    let mut pair = Pair::at(At::Active);
    let ids = [(); 4].map(|()| pair.call("tool.call"));
    let call = Outgoing { method: "tool.call", ..Outgoing::default() };
    assert_eq!(pair.host.call(&call, pair.now), Err(Misuse::Full { max: 4 }));
    // A cancelled call keeps its slot until its END.
    pair.host.cancel(ids[1], CancelReason::User, pair.now);
    assert_eq!(pair.host.call(&call, pair.now), Err(Misuse::Full { max: 4 }));
    pair.reach_plugin();
    pair.plugin.end(ids[1], Err(Fault::new(Code::Cancelled))).unwrap();
    pair.reach_host();
    assert!(pair.host.call(&call, pair.now).is_ok());
    // The lifecycle is exempt.
    assert!(pair.host.call(&Outgoing { method: "plugin.deactivate", ..call }, pair.now).is_ok());
}

#[test]
fn a_method_that_only_begins_like_the_lifecycle_is_not_exempt() {
    let mut plugin = Pair::at(At::Active).plugin;
    for (id, method) in [(3, "plugins.x"), (5, "pluginx"), (7, "plugin"), (9, "Plugin.x")] {
        assert_eq!(answer(&mut plugin, &call(id, method)), None, "{method}");
    }
    assert_eq!(answer(&mut plugin, &call(11, "plugin_")).unwrap()["reason"], "pb.too_many_calls");
}

#[test]
fn a_lifecycle_method_takes_no_slot_whether_it_exists_or_not() {
    let mut pair = Pair::at(At::Active);
    let unknown = pair.start("plugin.x");
    assert_eq!((pair.host.open_calls(), pair.host.has_open()), (0, true));
    for _ in 0..4 {
        pair.start("tool.call");
    }
    pair.flow();
    let told = pair.host_events();
    assert!(matches!(told[..], [Event::Ended { id, .. }] if id == unknown), "{told:?}");
    assert_eq!((pair.host.stage(), pair.plugin.stage()), (Stage::Active, Stage::Active));
}

#[test]
fn neither_end_may_do_what_only_the_other_may() {
    let mut pair = Pair::at(At::Open);
    let call = Outgoing { method: "tool.call", ..Outgoing::default() };
    assert_eq!(pair.plugin.call(&call, pair.now), Err(Misuse::NotAgreed("reverse")));
    assert_eq!(pair.host.end(CallId(3), Ok(Default::default())), Err(Misuse::NoSuchCall));
    pair.plugin.cancel(CallId(3), CancelReason::User, pair.now);
    assert!(pair.plugin.outbox().is_empty() && pair.host.outbox().is_empty());
}

#[test]
fn the_id_of_a_call_that_was_refused_is_used_up() {
    let mut plugin = Pair::at(At::Ready).plugin;
    feed(&mut plugin, &call(5, "tool.call"), Tick(1_000));
    assert_eq!(written(&mut plugin)[0].0, "END");
    for (bytes, code) in [(frame(0x13, 5, json!({}), b""), None), (call(5, "a.b"), Some("bad_id"))]
    {
        feed(&mut plugin, &bytes, Tick(1_000));
        let closed = written(&mut plugin).pop().map(|(.., head, _)| head["code"].clone());
        assert_eq!(closed, code.map(|code| json!(code)));
    }
}
