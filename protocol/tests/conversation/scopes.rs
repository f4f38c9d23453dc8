//! What a plugin may call, and how much of it. [R-SC]

use std::sync::Arc;

use plugbay_protocol::*;
use serde_json::json;

use crate::{pair::*, reverse::*};

/// What a call says about itself that may do only this.
fn narrows(list: &[&str]) -> Option<Arc<Details>> {
    Some(Details { scopes: Some(scopes(list)), ..Details::default() }.into())
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
