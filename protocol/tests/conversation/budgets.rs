//! Deadline and idle. [R-TO-01] to [R-TO-05]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

/// A pair with one open call that has these budgets.
fn open(deadline: Option<u64>, idle: Option<u64>) -> (Pair, CallId) {
    let mut pair = Pair::at(At::Active);
    let call = Outgoing { method: "tool.call", deadline, idle, ..Outgoing::default() };
    let id = pair.host.call(&call, pair.now).unwrap();
    pair.reach_plugin();
    pair.plugin_events();
    (pair, id)
}

fn expired(id: CallId, budget: Budget, ms: u64, sent: bool) -> Event {
    Event::Ended { id, outcome: Err(Failure::Expired { budget, ms, sent }) }
}

fn progress(pair: &mut Pair, id: CallId) {
    let note = Note::Progress { n: None, total: None, unit: None, body: Default::default() };
    pair.plugin.note(Some(id), &note);
    pair.reach_host();
}

#[test]
fn a_call_expires_at_its_deadline_and_not_before() {
    let (mut pair, id) = open(Some(1_000), None);
    assert_eq!(pair.host.deadline(), Some(pair.now.after(1_000)));
    pair.wait(999);
    assert_eq!((pair.host_events(), pair.host.outbox().is_empty()), (vec![], true));
    pair.wait(1);
    assert_eq!(pair.host_events(), [expired(id, Budget::Deadline, 1_000, true)]);
    assert_eq!(written(&mut pair.host), [("CANCEL", 3, json!({"reason": "deadline"}), vec![])]);
    assert_eq!(pair.host.open_calls(), 1, "the slot is kept until END");
}

#[test]
fn a_call_expires_after_silence_and_not_before() {
    let (mut pair, id) = open(None, Some(1_000));
    pair.wait(999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [expired(id, Budget::Idle, 1_000, true)]);
    assert_eq!(written(&mut pair.host), [("CANCEL", 3, json!({"reason": "idle"}), vec![])]);
}

#[test]
fn the_end_of_an_expired_call_releases_it() {
    let (mut pair, id) = open(Some(1_000), None);
    pair.wait(1_000);
    pair.reach_plugin();
    let told = [Event::CancelRequested { id, reason: CancelReason::Deadline }];
    assert_eq!(pair.plugin_events(), told);
    pair.host_events();
    // Given up by its budget, so giving it up again says nothing.
    pair.host.cancel(id, CancelReason::User, pair.now);
    assert!(pair.host.outbox().is_empty());
    pair.plugin.end(id, Ok(blob(3))).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id }]);
    pair.wait(60_000);
    assert!(!pair.host_events().contains(&Event::Stuck { id }));
}

#[test]
fn an_expired_call_without_an_end_is_stuck_after_the_grace() {
    let (mut pair, id) = open(Some(1_000), None);
    pair.wait(1_000);
    pair.host_events();
    pair.wait(4_999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [Event::Stuck { id }]);
}

#[test]
fn progress_renews_idle_and_never_the_deadline() {
    let (mut pair, id) = open(Some(5_000), Some(1_000));
    for _ in 0..6 {
        pair.wait(800);
        progress(&mut pair, id);
        let told = pair.host_events();
        assert!(matches!(told[..], [Event::Note { .. }]), "{told:?}");
    }
    pair.wait(199);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [expired(id, Budget::Deadline, 5_000, true)]);
}

#[test]
fn every_note_about_the_call_renews_idle_and_no_other_frame_does() {
    let (mut pair, id) = open(None, Some(1_000));
    pair.wait(900);
    feed(&mut pair.host, &frame(0x90, id.0, json!({"topic": "grease.x"}), b""), pair.now);
    pair.wait(900);
    assert_eq!(pair.host_events(), []);
    feed(&mut pair.host, &frame(0x90, 0, json!({"topic": "log"}), b""), pair.now);
    feed(&mut pair.host, &ping(), pair.now);
    pair.wait(100);
    assert!(pair.host_events().contains(&expired(id, Budget::Idle, 1_000, true)));
}

#[test]
fn a_budget_of_nothing_expires_at_the_next_tick() {
    for (deadline, idle, budget) in
        [(Some(0), None, Budget::Deadline), (None, Some(0), Budget::Idle)]
    {
        let (mut pair, id) = open(deadline, idle);
        assert_eq!(pair.host.deadline(), Some(pair.now));
        pair.wait(0);
        assert_eq!(pair.host_events(), [expired(id, budget, 0, true)]);
    }
}

#[test]
fn when_both_are_spent_the_deadline_is_told() {
    let (mut pair, id) = open(Some(1_000), Some(1_000));
    pair.wait(1_000);
    assert_eq!(pair.host_events(), [expired(id, Budget::Deadline, 1_000, true)]);
}

#[test]
fn time_cannot_overflow() {
    let (mut pair, _) = open(Some(u64::MAX), Some(u64::MAX - 7));
    pair.host.tick(Tick(u64::MAX - 1));
    assert!(pair.host_events().is_empty());
    let patience = Patience {
        hello_ms: u64::MAX,
        ping_after_ms: u64::MAX,
        ping_dead_ms: u64::MAX,
        cancel_grace_ms: u64::MAX,
    };
    let mut pair = Pair::with(Announce { patience, ..announce() }, announce(), At::Open);
    pair.host.cancel(CallId(3), CancelReason::User, Tick(u64::MAX));
    pair.host.tick(Tick(u64::MAX - 1));
    assert_eq!(pair.host_events(), []);
}

#[test]
fn a_clock_that_goes_back_does_no_harm() {
    let (mut pair, id) = open(Some(1_000), Some(500));
    feed(&mut pair.host, &ping(), Tick(0));
    pair.host.tick(Tick(0));
    assert_eq!(pair.host_events(), []);
    pair.now = Tick(1_500);
    pair.wait(0);
    assert_eq!(pair.host_events(), [expired(id, Budget::Idle, 500, true)]);
}

#[test]
fn an_expired_call_of_which_nothing_has_left_never_runs() {
    let mut pair = Pair::at(At::Active);
    let call = Outgoing { method: "tool.call", deadline: Some(10), ..Outgoing::default() };
    let id = pair.host.call(&call, pair.now).unwrap();
    pair.wait(10);
    let told = [expired(id, Budget::Deadline, 10, false), Event::Released { id }];
    assert_eq!(pair.host_events(), told);
    assert_eq!(pair.host.open_calls(), 0);
    pair.flow();
    assert_eq!(pair.plugin_events(), []);
}

#[test]
fn an_expired_call_that_has_begun_to_leave_counts_as_sent() {
    let mut pair = Pair::at(At::Active);
    let call = Outgoing { method: "tool.call", deadline: Some(10), ..Outgoing::default() };
    let id = pair.host.call(&call, pair.now).unwrap();
    pair.host.outbox().advance(1);
    pair.wait(10);
    assert_eq!(pair.host_events(), [expired(id, Budget::Deadline, 10, true)]);
}

#[test]
fn each_call_has_a_clock_of_its_own() {
    let mut pair = Pair::at(At::Active);
    let mut start = |ms| {
        let call = Outgoing { method: "tool.call", deadline: Some(ms), ..Outgoing::default() };
        pair.host.call(&call, pair.now).unwrap()
    };
    let [c, a, b] = [start(300), start(100), start(200)];
    pair.reach_plugin();
    for (id, ms) in [(a, 100), (b, 200), (c, 300)] {
        assert_eq!(pair.host.deadline(), Some(Tick(1_000 + ms)));
        pair.wait(99);
        assert_eq!(pair.host_events(), []);
        pair.wait(1);
        assert_eq!(pair.host_events(), [expired(id, Budget::Deadline, ms, true)]);
    }
}

#[test]
fn the_deadline_is_told_in_time_for_a_call_that_comes_later() {
    let (mut pair, _) = open(Some(9_000), None);
    let call = Outgoing { method: "tool.call", deadline: Some(50), ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    assert_eq!(pair.host.deadline(), Some(pair.now.after(50)));
}
