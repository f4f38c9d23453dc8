//! Calls of the plugin's, their parents and their scopes. [R-RV] [R-SC]

use std::sync::Arc;

use plugbay_protocol::*;
use serde_json::{Value, json};

use crate::pair::*;

/// The call of the host that is open in most of these tests.
const PARENT: CallId = CallId(3);
/// The first call of the plugin's.
const ID: CallId = CallId(2);

fn both() -> Announce {
    Announce { features: Features::ALL, ..announce() }
}

fn scopes(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// A pair that has come this far, in which everything under `host.` that is used here
/// has been granted.
fn pair(at: At) -> Pair {
    granted(at, &["host.x", "host.named[a_*]", "host.background"])
}

/// What a call says about itself that may do only this.
fn narrows(list: &[&str]) -> Option<Arc<Details>> {
    Some(Details { scopes: Some(scopes(list)), ..Details::default() }.into())
}

fn granted(at: At, grant: &[&str]) -> Pair {
    let mut pair = Pair::with(both(), both(), at);
    pair.host.grant(scopes(grant));
    pair.plugin.grant(scopes(grant));
    pair
}

fn reverse(method: &str, parent: Option<CallId>) -> Outgoing<'_> {
    Outgoing { method, parent, ..Outgoing::default() }
}

/// The same, and lets it arrive.
#[track_caller]
fn call_host(pair: &mut Pair, parent: Option<CallId>) -> CallId {
    let id = pair.plugin.call(&reverse("host.x", parent), pair.now).unwrap();
    pair.reach_host();
    let told = pair.host_events();
    assert!(matches!(&told[..], [Event::Called(call)] if call.id == id), "{told:?}");
    id
}

/// A CALL from a plugin.
fn raw_call(id: u32, head: Value, body: &[u8]) -> Vec<u8> {
    frame(0x10, id, head, body)
}

fn x(id: u32, parent: Option<u32>) -> Vec<u8> {
    raw_call(id, json!({"method": "host.x", "parent": parent}), b"")
}

/// What a host answers at once: the head of its END, if it writes one.
fn answer(host: &mut Conversation, bytes: &[u8], now: Tick) -> Option<Value> {
    feed(host, bytes, now);
    let frames = written(host);
    let end = frames.into_iter().find(|(kind, ..)| *kind == "END");
    end.map(|(.., head, _)| head["err"].clone())
}

fn denied() -> Value {
    json!({"code": "permission_denied", "reason": "pb.scope_denied", "retry": "no"})
}

fn cancelled() -> Fault {
    Fault::new(Code::Cancelled)
}

/// Every line of the table, on conversations that are truly in that stage.
#[test]
fn both_ends_do_what_the_table_of_reverse_calls_says() {
    let spec = include_str!("../../../sdk-spec/tables/reverse.txt");
    let mut lines = 0;
    for line in spec.lines().filter(|line| !line.starts_with('#')) {
        let (left, verdict) = line.split_once(" = ").unwrap();
        let words: Vec<&str> = left.split(" + ").collect();
        let at = match words[0] {
            "Ready" => At::Ready,
            "Activating" => At::Activating,
            "Active" => At::Open,
            _ => At::Draining,
        };
        let open = match at {
            At::Activating => CallId(1),
            // Call 3 has been given up by then.
            At::Draining => CallId(5),
            _ => PARENT,
        };
        let parent = match words[1] {
            "absent" => None,
            "open" => Some(open),
            _ => Some(CallId(77)),
        };
        let method = if words[2] == "covered" { "host.x" } else { "host.y" };
        // In Ready no call is open, so an open parent is some other id there.
        let Pair { mut host, mut plugin, now, .. } = pair(at);
        let ours = plugin.call(&reverse(method, parent), now);
        let head = json!({"method": method, "parent": parent.map(|id| id.0)});
        let end = answer(&mut host, &raw_call(2, head, b""), now);
        match verdict {
            "run" => {
                let told = events(&mut host);
                assert!(matches!(told[..], [Event::Called(_)]), "{line}: {told:?}");
                assert_eq!((end, ours), (None, Ok(ID)), "{line}");
            }
            "CLOSE bad_state" => {
                assert_eq!(host.stage(), Stage::Closed, "{line}");
                let expected = match (parent, at) {
                    (Some(id), _) if id != open || at == At::Ready => Misuse::NoSuchCall,
                    _ => Misuse::NotActive,
                };
                assert_eq!(ours, Err(expected), "{line}");
            }
            _ => {
                let words: Vec<&str> = verdict.split(' ').collect();
                let expected = json!({"code": words[1], "reason": words[2], "retry": words[4]});
                assert_eq!((end, ours), (Some(expected), Err(Misuse::NotGranted)), "{line}");
                assert_eq!(events(&mut host), [], "it reaches nobody");
            }
        }
        lines += 1;
    }
    assert_eq!(lines, 24);
}

#[test]
fn a_reverse_call_goes_there_and_back() {
    let mut pair = pair(At::Open);
    let details = Details { key: Some("k".into()), ..Details::default() };
    let call = Outgoing {
        method: "host.x",
        parent: Some(PARENT),
        deadline: Some(500),
        idle: Some(100),
        details: Some(details.clone().into()),
        body: blob(5),
        ..Outgoing::default()
    };
    assert_eq!(pair.plugin.call(&call, pair.now), Ok(ID));
    assert_eq!((pair.plugin.reverse_calls(), pair.plugin.open_calls()), (1, 1));
    pair.reach_host();
    let expected = Incoming {
        id: ID,
        method: "host.x".into(),
        deadline: Some(500),
        idle: Some(100),
        input: false,
        parent: Some(PARENT),
        details: Some(details.into()),
        body: blob(5),
    };
    assert_eq!(pair.host_events(), [Event::Called(expected)]);
    assert_eq!((pair.host.reverse_calls(), pair.host.open_calls()), (1, 1));
    pair.host.end(ID, Ok(blob(7))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Ended { id: ID, outcome: Ok(blob(7)) }]);
    assert_eq!((pair.host.reverse_calls(), pair.plugin.reverse_calls()), (0, 0));
    assert_eq!(pair.host.end(ID, Ok(blob(7))), Err(Misuse::NoSuchCall));
    pair.plugin.end(PARENT, Ok(blob(1))).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Ended { id: PARENT, outcome: Ok(blob(1)) }]);
}

#[test]
fn ids_of_a_plugin_are_even_and_increase() {
    let mut pair = pair(At::Open);
    let ids = [(); 3].map(|()| call_host(&mut pair, None).0);
    assert_eq!(ids, [2, 4, 6]);
    for (id, code) in [(0, "bad_id"), (7, "bad_id"), (6, "bad_id"), (2, "bad_id"), (5, "bad_id")] {
        let mut host = self::pair(At::Open).host;
        feed(&mut host, &x(6, None), Tick(1_000));
        events(&mut host);
        feed(&mut host, &x(id, None), Tick(1_000));
        is_broken(&mut host, Close::parse(code));
    }
}

#[test]
fn without_the_feature_a_plugin_cannot_call() {
    let only = |features| Announce { features, ..announce() };
    for (host, plugin) in [(Features::ASYNC, Features::ALL), (Features::ALL, Features::ASYNC)] {
        let mut pair = Pair::with(only(host), only(plugin), At::Open);
        pair.plugin.grant(scopes(&["host.x"]));
        let found = pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now);
        assert_eq!(found, Err(Misuse::NotAgreed("reverse")));
        feed(&mut pair.host, &x(2, Some(3)), Tick(1_000));
        is_broken(&mut pair.host, Close::BadState);
    }
}

#[test]
fn each_end_says_only_what_is_its_to_say() {
    let mut pair = pair(At::Open);
    let call = Outgoing { parent: Some(PARENT), ..reverse("tool.call", None) };
    assert_eq!(pair.host.call(&call, pair.now), Err(Misuse::WrongEnd));
    let call = Outgoing { details: narrows(&[]), ..reverse("host.x", None) };
    assert_eq!(pair.plugin.call(&call, pair.now), Err(Misuse::WrongEnd));
    assert!(pair.host.outbox().is_empty() && pair.plugin.outbox().is_empty());
    // And hears only what is the other's.
    let head = json!({"method": "tool.call", "parent": 2});
    feed(&mut pair.plugin, &raw_call(5, head, b""), pair.now);
    assert!(matches!(&pair.plugin_events()[..], [Event::Called(call)] if call.parent.is_none()));
    let head = json!({"method": "host.x", "scopes": []});
    feed(&mut pair.host, &raw_call(2, head, b""), pair.now);
    let told = pair.host_events();
    let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(call.details.as_ref().and_then(|details| details.scopes.clone()), None);
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
fn a_host_serves_only_so_many_calls_at_once() {
    let one = Announce { limits: Limits { calls: 1, ..Limits::FLOOR }, ..both() };
    let mut pair = Pair::with(one, both(), At::Open);
    pair.host.grant(scopes(&["host.x"]));
    pair.plugin.grant(scopes(&["host.x"]));
    let id = call_host(&mut pair, Some(PARENT));
    let next = reverse("host.x", Some(PARENT));
    assert_eq!(pair.plugin.call(&next, pair.now), Err(Misuse::Full { max: 1 }));
    let busy =
        json!({"code": "resource_exhausted", "reason": "pb.too_many_calls", "retry": "safe"});
    assert_eq!(answer(&mut pair.host, &x(4, Some(3)), pair.now), Some(busy));
    // Who has no right does not learn that.
    let denied_first = raw_call(6, json!({"method": "host.y", "parent": 3}), b"");
    assert_eq!(answer(&mut pair.host, &denied_first, pair.now), Some(denied()));
    assert_eq!(pair.host_events(), []);
    assert_eq!(pair.host.reverse_calls(), 1);
    pair.host.end(id, Ok(blob(0))).unwrap();
    pair.host.outbox().take();
    feed(&mut pair.host, &x(8, Some(3)), pair.now);
    assert!(matches!(pair.host_events()[..], [Event::Called(_)]));
}

#[test]
fn refusals_that_are_not_read_count_as_owed() {
    let mut pair = granted(At::Open, &[]);
    let mut id = 0;
    while pair.host.stage() != Stage::Closed {
        id += 2;
        feed(&mut pair.host, &x(id, Some(3)), pair.now);
        assert!(id < 5_000);
    }
    is_broken(&mut pair.host, Close::Calm);
    assert_eq!(id / 2, 1_024 + 4 * 4 + 1);
}

#[test]
fn authority_is_the_grant_within_what_the_parent_leaves_of_it() {
    let name = |name: &str| pack(&json!({ "name": name }));
    for (grant, narrowed, method, body, fine) in [
        (&["host.named"][..], None, "host.named", name("b"), true),
        (&["host.named[a_*]"], None, "host.named", name("a_1"), true),
        (&["host.named[a_*]"], None, "host.named", name("b"), false),
        (&["host.named[a_*]"], None, "host.named", vec![], false),
        (&["host.named[a_*]"], None, "host.other", name("a_1"), false),
        (&["host.named"], Some(&["host.named[a_*]"][..]), "host.named", name("a_1"), true),
        (&["host.named"], Some(&["host.named[a_*]"]), "host.named", name("b"), false),
        (&["host.named[a_*]"], Some(&["host.named"]), "host.named", name("b"), false),
        (&["host.named"], Some(&["host.x"]), "host.named", name("b"), false),
        (&["host.named"], Some(&[]), "host.named", name("b"), false),
        (&[], Some(&["host.named"]), "host.named", name("b"), false),
        (&["host.named", "nonsense["], Some(&["host.named", ""]), "host.named", vec![], true),
    ] {
        let mut pair = granted(At::Active, grant);
        let details = narrowed.and_then(narrows);
        let call = Outgoing { method: "tool.call", details, ..Outgoing::default() };
        pair.host.call(&call, pair.now).unwrap();
        pair.reach_plugin();
        let head = json!({"method": method, "parent": 3});
        let end = answer(&mut pair.host, &raw_call(2, head, &body), pair.now);
        assert_eq!(end, (!fine).then(denied), "{grant:?} {narrowed:?} {method}");
        // A plugin knows by itself which methods it may not call, and not which names.
        let methods = |list: &[String]| list.iter().any(|s| s.split('[').next() == Some(method));
        let may = methods(&scopes(grant)) && narrowed.is_none_or(|list| methods(&scopes(list)));
        let ours = pair.plugin.call(&reverse(method, Some(PARENT)), pair.now);
        assert_eq!(ours.is_ok(), may, "{grant:?} {narrowed:?} {method}");
        assert!(may || ours == Err(Misuse::NotGranted));
    }
}

#[test]
fn work_in_the_background_needs_a_scope_of_its_own() {
    for (grant, fine) in [
        (&["host.x", "host.background"][..], true),
        (&["host.x"], false),
        (&["host.background"], false),
        (&["host.x", "host.background[*]"], false),
    ] {
        let mut pair = granted(At::Active, grant);
        let ours = pair.plugin.call(&reverse("host.x", None), pair.now);
        assert_eq!(ours, if fine { Ok(ID) } else { Err(Misuse::NotGranted) });
        let end = answer(&mut pair.host, &x(2, None), pair.now);
        assert_eq!(end, (!fine).then(denied), "{grant:?}");
    }
    // With a parent it does not matter.
    let mut pair = granted(At::Open, &["host.x"]);
    call_host(&mut pair, Some(PARENT));
}

#[test]
fn a_new_grant_replaces_the_old_one() {
    let mut pair = granted(At::Open, &["host.x"]);
    pair.host.grant(scopes(&["host.y"]));
    assert_eq!(answer(&mut pair.host, &x(2, Some(3)), pair.now), Some(denied()));
    let y = raw_call(4, json!({"method": "host.y", "parent": 3}), b"");
    assert_eq!(answer(&mut pair.host, &y, pair.now), None);
    // Nothing has been granted until it is said.
    let mut pair = Pair::with(both(), both(), At::Open);
    assert_eq!(answer(&mut pair.host, &x(2, Some(3)), pair.now), Some(denied()));
}

fn parent_with(deadline: Option<u64>, idle: Option<u64>) -> Pair {
    let mut pair = pair(At::Active);
    let call = Outgoing { method: "tool.call", deadline, idle, ..Outgoing::default() };
    assert_eq!(pair.host.call(&call, pair.now), Ok(PARENT));
    pair.reach_plugin();
    pair.plugin_events();
    pair
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
fn a_plugins_clock_decides_about_its_own_calls() {
    let mut pair = pair(At::Open);
    let call = Outgoing { deadline: Some(1_000), ..reverse("host.x", Some(PARENT)) };
    pair.plugin.call(&call, pair.now).unwrap();
    pair.reach_host();
    pair.host_events();
    assert_eq!(pair.plugin.deadline(), Some(pair.now.after(1_000)));
    pair.now = pair.now.after(999);
    pair.plugin.tick(pair.now);
    assert_eq!(pair.plugin_events(), []);
    pair.now = pair.now.after(1);
    pair.plugin.tick(pair.now);
    let outcome = Err(Failure::Expired { budget: Budget::Deadline, ms: 1_000, sent: true });
    assert_eq!(pair.plugin_events(), [Event::Ended { id: ID, outcome }]);
    // A plugin does not wait for a grace: it has nobody to kill.
    assert_eq!(pair.plugin.deadline(), None);
    pair.reach_host();
    let told = [Event::CancelRequested { id: ID, reason: CancelReason::Deadline }];
    assert_eq!(pair.host_events(), told);
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Err(Misuse::CallsOpen));
    pair.host.end(ID, Err(cancelled())).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Released { id: ID }]);
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Ok(()));
}

#[test]
fn a_plugin_has_no_patience_of_its_own() {
    let mut pair = pair(At::Open);
    assert_eq!(pair.plugin.deadline(), None);
    pair.plugin.tick(Tick(u64::MAX));
    let mut fresh = Conversation::plugin(both(), Tick(0));
    assert_eq!(fresh.deadline(), None);
    fresh.tick(Tick(u64::MAX));
    assert!(fresh.outbox().is_empty() && pair.plugin.outbox().is_empty());
    assert_eq!((events(&mut fresh), pair.plugin_events()), (vec![], vec![]));
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
fn a_plugin_gives_its_own_call_up() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    pair.plugin.cancel(id, CancelReason::User, pair.now);
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::CancelRequested { id, reason: CancelReason::User }]);
    pair.host.end(id, Err(cancelled())).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Released { id }]);
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
fn reverse_calls_stream_both_ways() {
    let mut pair = pair(At::Open);
    let call = Outgoing { input: true, ..reverse("host.x", Some(PARENT)) };
    pair.plugin.call(&call, pair.now).unwrap();
    pair.plugin.item(ID, &blob(3)).unwrap();
    pair.plugin.end_input(ID);
    pair.reach_host();
    let item = |len| Event::Item { id: ID, body: blob(len), size: 16 + len as u32 };
    let told = pair.host_events();
    assert!(matches!(&told[0], Event::Called(call) if call.input));
    assert_eq!(told[1..], [item(3), Event::InputEnded { id: ID }]);
    pair.host.taken(ID, 19);
    pair.host.item(ID, &blob(4)).unwrap();
    pair.host.end(ID, Ok(blob(1))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [item(4), Event::Ended { id: ID, outcome: Ok(blob(1)) }]);
}

#[test]
fn a_reverse_call_stays_behind_the_items_that_were_sent_before_it() {
    let mut pair = pair(At::Open);
    pair.plugin.item(PARENT, &blob(3)).unwrap();
    pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
    pair.reach_host();
    assert!(matches!(pair.host_events()[..], [Event::Item { id: PARENT, .. }, Event::Called(_)]));
}

#[test]
fn a_plugin_that_is_told_notes_ignores_them() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    let progress = json!({"topic": "progress", "n": 1});
    feed(&mut pair.plugin, &frame(0x90, id.0, progress.clone(), b""), pair.now);
    feed(&mut pair.host, &frame(0x90, id.0, progress, b""), pair.now);
    assert_eq!((pair.plugin_events(), pair.host_events()), (vec![], vec![]));
    let note = Note::Progress { n: None, total: None, unit: None, body: blob(0) };
    pair.host.note(Some(id), &note);
    pair.host.note(None, &note);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn a_call_that_could_only_wait_for_its_ancestors_is_known() {
    let two = Announce { limits: Limits { calls: 2, ..Limits::FLOOR }, ..both() };
    let mut pair = Pair::with(both(), two, At::Open);
    let first = PARENT;
    assert!(!pair.host.would_deadlock(&[first]), "a slot is free");
    let second = pair.call("tool.call");
    assert!(pair.host.would_deadlock(&[first, second]));
    assert!(pair.host.would_deadlock(&[second, CallId(99), first]));
    assert!(!pair.host.would_deadlock(&[first]), "the other may end");
    assert!(!pair.host.would_deadlock(&[]));
    // A step of the lifecycle holds no slot.
    pair.call("plugin.deactivate");
    assert!(pair.host.would_deadlock(&[first, second]));
    pair.plugin.end(second, Ok(blob(0))).unwrap();
    pair.reach_host();
    assert!(!pair.host.would_deadlock(&[first]));
}

#[test]
fn the_end_of_the_conversation_ends_the_plugins_calls_too() {
    let lost = |id, sent| Event::Ended { id, outcome: Err(Failure::Lost { sent }) };
    for close in [false, true] {
        let mut pair = pair(At::Open);
        let gone = call_host(&mut pair, Some(PARENT));
        let half = pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
        pair.plugin.outbox().advance(1);
        let [first, second] =
            [(); 2].map(|()| pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap());
        let note = Note::Retire { reason: "x".into() };
        pair.plugin.note(None, &note);
        match close {
            true => pair.plugin.close(Close::Ok, None),
            false => pair.plugin.eof(),
        }
        let mut told = pair.plugin_events();
        if !close {
            assert_eq!(told.pop(), Some(Event::Over(Over::Eof)));
        }
        let expected =
            [lost(gone, true), lost(half, true), lost(first, false), lost(second, false)];
        assert_eq!(told, expected);
        // What is told as never sent is not.
        let rest = pair.plugin.outbox().take();
        let frames: Vec<u8> = [&[0xc1][..], &rest].concat();
        let mut decoder = Decoder::new();
        decoder.buffer().extend_from_slice(&frames);
        let kinds = std::iter::from_fn(|| decoder.frame().unwrap()).map(|raw| raw.kind);
        let mut expected = vec![Kind::Call, Kind::Note];
        expected.extend(close.then_some(Kind::Close));
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn the_hosts_work_is_over_with_the_conversation() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    pair.host.eof();
    let told = pair.host_events();
    assert!(matches!(told[..], [Event::Ended { id: PARENT, .. }, Event::Over(_)]), "{told:?}");
    assert_eq!((pair.host.reverse_calls(), pair.host.has_open()), (0, false));
    assert_eq!(pair.host.end(id, Ok(blob(0))), Err(Misuse::NoSuchCall));
}

#[test]
fn arguments_and_results_that_do_not_fit_fail_alone() {
    let small = Announce { limits: Limits { calls: 4, ..Limits::FLOOR }, ..both() };
    let mut pair = Pair::with(small.clone(), small, At::Open);
    pair.host.grant(scopes(&["host.x"]));
    pair.plugin.grant(scopes(&["host.x"]));
    let call = Outgoing { body: blob(70_000), ..reverse("host.x", Some(PARENT)) };
    let found = pair.plugin.call(&call, pair.now);
    assert!(matches!(found, Err(Misuse::TooLarge { .. })), "{found:?}");
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Ok(()), "and nothing is open");
    let parent = pair.call("tool.call");
    pair.flow();
    pair.plugin_events();
    pair.host_events();
    let id = call_host(&mut pair, Some(parent));
    let found = pair.host.end(id, Ok(blob(70_000)));
    assert!(matches!(found, Err(Misuse::TooLarge { .. })), "{found:?}");
    pair.reach_plugin();
    let told = pair.plugin_events();
    assert_eq!(fault(&told[0]).reason.as_deref(), Some("pb.frame_limit"));
    assert_eq!(pair.plugin.end(parent, Ok(blob(0))), Ok(()));
}

/// Lifecycle steps are the host's alone. [R-LC-01]
#[test]
fn a_plugin_does_not_start_a_step_of_the_lifecycle() {
    let mut pair = granted(At::Open, &["host.x"]);
    let found = pair.plugin.call(&reverse("plugin.deactivate", Some(PARENT)), pair.now);
    assert_eq!(found, Err(Misuse::NotGranted));
    let head = json!({"method": "plugin.deactivate", "parent": 3});
    assert_eq!(answer(&mut pair.host, &raw_call(2, head, b""), pair.now), Some(denied()));
    assert_eq!((pair.host.stage(), pair.plugin.stage()), (Stage::Active, Stage::Active));
}
