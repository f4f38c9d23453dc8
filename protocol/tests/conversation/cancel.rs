//! Giving calls up. [R-CN]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

const ID: CallId = CallId(3);

fn cancelled() -> Result<bytes::Bytes, Fault> {
    Err(Fault::new(Code::Cancelled))
}

#[test]
fn a_cancelled_call_keeps_its_slot_until_its_end() {
    let mut pair = Pair::at(At::Open);
    pair.host.cancel(ID, CancelReason::User, pair.now);
    assert_eq!((pair.host_events(), pair.host.open_calls()), (vec![], 1));
    pair.reach_plugin();
    let told = [Event::CancelRequested { id: ID, reason: CancelReason::User }];
    assert_eq!(pair.plugin_events(), told);
    assert_eq!((pair.plugin.open_calls(), pair.plugin.outbox().is_empty()), (1, true));
    pair.plugin.end(ID, cancelled()).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
    assert_eq!((pair.host.open_calls(), pair.plugin.open_calls()), (0, 0));
}

#[test]
fn an_end_that_crosses_the_cancel_wins_and_its_outcome_is_dropped() {
    let mut pair = Pair::at(At::Open);
    pair.plugin.end(ID, Ok(blob(10))).unwrap();
    pair.host.cancel(ID, CancelReason::User, pair.now);
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [], "a late CANCEL is a race");
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
}

#[test]
fn a_result_after_cancel_is_correct_as_well() {
    let mut pair = Pair::at(At::Cancelling);
    pair.plugin.end(ID, Ok(blob(10))).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
}

#[test]
fn cancelling_twice_or_too_late_does_nothing() {
    let mut pair = Pair::at(At::Cancelling);
    pair.host.cancel(ID, CancelReason::Shutdown, pair.now);
    pair.host.cancel(CallId(1), CancelReason::User, pair.now);
    pair.host.cancel(CallId(99), CancelReason::User, pair.now);
    assert!(pair.host.outbox().is_empty());
    assert_eq!(accepts(At::Cancelling, Who::Plugin, &frame(0x13, 3, json!({}), b"")), []);
}

#[test]
fn the_reason_travels_and_an_unknown_one_means_the_user() {
    for (word, reason) in [
        (json!("user"), CancelReason::User),
        (json!("deadline"), CancelReason::Deadline),
        (json!("idle"), CancelReason::Idle),
        (json!("parent"), CancelReason::Parent),
        (json!("shutdown"), CancelReason::Shutdown),
        (json!("grease"), CancelReason::User),
        (json!(null), CancelReason::User),
    ] {
        let bytes = frame(0x13, 3, json!({ "reason": word }), b"ignored");
        let told = [Event::CancelRequested { id: ID, reason }];
        assert_eq!(accepts(At::Open, Who::Plugin, &bytes), told);
        let mut pair = Pair::at(At::Open);
        pair.host.cancel(ID, reason, pair.now);
        pair.reach_plugin();
        assert_eq!(pair.plugin_events(), told);
    }
}

#[test]
fn notes_about_a_call_that_was_given_up_are_not_told() {
    let mut pair = Pair::at(At::Cancelling);
    pair.plugin.note(Some(ID), &Note::Retire { reason: "x".into() });
    pair.reach_host();
    assert_eq!(pair.host_events(), []);
}

#[test]
fn a_plugin_that_does_not_end_a_cancelled_call_is_told_to_be_stuck_once() {
    let mut pair = Pair::at(At::Open);
    pair.wait(100);
    pair.host.cancel(ID, CancelReason::User, pair.now);
    pair.reach_plugin();
    let due = pair.now.after(5_000);
    assert_eq!(pair.host.deadline(), Some(due));
    pair.wait(4_999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [Event::Stuck { id: ID }]);
    assert!(pair.host.deadline().is_some_and(|at| due < at));
    // Not even when another call makes the host look again.
    let call = Outgoing { method: "tool.call", deadline: Some(9), ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    pair.wait(4_000);
    assert_eq!(pair.host_events().len(), 2);
    // The slot is still taken, and an END is still welcome.
    assert_eq!(pair.host.open_calls(), 1);
    pair.plugin.end(ID, cancelled()).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
}

#[test]
fn an_end_within_the_grace_is_not_stuck() {
    let mut pair = Pair::at(At::Cancelling);
    pair.wait(4_999);
    pair.plugin.end(ID, cancelled()).unwrap();
    pair.reach_host();
    pair.wait(1);
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
}

#[test]
fn a_call_of_which_nothing_has_left_is_taken_back() {
    let mut pair = Pair::at(At::Active);
    let id = pair.start("tool.call");
    pair.host.cancel(id, CancelReason::User, pair.now);
    assert_eq!(pair.host_events(), [Event::Released { id }]);
    assert!(pair.host.outbox().is_empty());
    assert_eq!(pair.host.open_calls(), 0);
    // Its id is not used again.
    assert_eq!(pair.call("tool.call"), CallId(id.0 + 2));
    assert_eq!(pair.plugin_events().len(), 1);
}

#[test]
fn a_call_that_has_begun_to_leave_is_cancelled_on_the_wire() {
    let mut pair = Pair::at(At::Active);
    let id = pair.start("tool.call");
    let first = pair.host.outbox().pieces::<1>().0[0][..1].to_vec();
    pair.host.outbox().advance(1);
    feed(&mut pair.plugin, &first, pair.now);
    pair.host.cancel(id, CancelReason::User, pair.now);
    assert_eq!(pair.host_events(), []);
    pair.reach_plugin();
    let told = pair.plugin_events();
    assert!(matches!(told[..], [Event::Called(_), Event::CancelRequested { .. }]), "{told:?}");
}

#[test]
fn whichever_calls_are_taken_back_the_others_arrive() {
    // Sizes on both sides of what is copied; every subset of four is taken back.
    for gone in 0..16u8 {
        let mut pair = Pair::at(At::Active);
        let lens = [100, 40_000, 0, 20_000];
        let calls = lens.map(|len| {
            let call = Outgoing { method: "tool.call", body: blob(len), ..Outgoing::default() };
            (pair.host.call(&call, pair.now).unwrap(), blob(len))
        });
        // A reply of the protocol's own lies between.
        feed(&mut pair.host, &ping(), pair.now);
        let late = pair.host.outbox().queued();
        for (at, (id, _)) in calls.iter().enumerate() {
            if gone & 1 << at != 0 {
                pair.host.cancel(*id, CancelReason::User, pair.now);
            }
        }
        let stay = calls.iter().enumerate().filter(|(at, _)| gone & 1 << at == 0);
        let expected: Vec<_> = stay.map(|(_, call)| call.clone()).collect();
        assert!(pair.host.outbox().queued() < late || gone == 0);
        assert_eq!(pair.host.open_calls(), expected.len());
        assert!(expected.iter().all(|(id, _)| !pair.host.is_sent(*id)));
        pair.reach_plugin();
        assert!(expected.iter().all(|(id, _)| pair.host.is_sent(*id)));
        let arrived: Vec<_> = pair
            .plugin_events()
            .into_iter()
            .map(|event| match event {
                Event::Called(call) => (call.id, call.body),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(arrived, expected, "taken back: {gone:04b}");
    }
}

#[test]
fn what_moved_up_behind_a_call_that_was_taken_back_is_known_to_be_sent_in_time() {
    let mut pair = Pair::at(At::Active);
    let [a, b] = [(); 2].map(|()| pair.start("tool.call"));
    pair.host.cancel(a, CancelReason::User, pair.now);
    let len = pair.host.outbox().len() as usize;
    pair.host.outbox().advance(len - 1);
    assert!(!pair.host.is_sent(b));
    pair.host.outbox().advance(1);
    assert!(pair.host.is_sent(b));
    pair.host.cancel(b, CancelReason::User, pair.now);
    assert_eq!(written(&mut pair.host)[0].0, "CANCEL");
}

#[test]
fn a_lifecycle_step_that_is_taken_back_leaves_the_stage_as_it_was() {
    for (at, method, stage) in [
        (At::Ready, "plugin.activate", Stage::Ready),
        (At::Active, "plugin.deactivate", Stage::Active),
    ] {
        let mut pair = Pair::at(at);
        let id = pair.start(method);
        assert_ne!(pair.host.stage(), stage);
        pair.host.cancel(id, CancelReason::User, pair.now);
        assert_eq!((pair.host.stage(), pair.plugin.stage()), (stage, stage));
        assert!(pair.host.call(&Outgoing { method, ..Outgoing::default() }, pair.now).is_ok());
    }
}

#[test]
fn a_cancelled_activation_leads_where_its_end_says() {
    for (outcome, stage) in [(Ok(Default::default()), Stage::Active), (cancelled(), Stage::Ready)] {
        let mut pair = Pair::at(At::Activating);
        pair.host.cancel(CallId(1), CancelReason::Deadline, pair.now);
        pair.reach_plugin();
        assert_eq!(
            (pair.host.stage(), pair.plugin.stage()),
            (Stage::Activating, Stage::Activating)
        );
        pair.plugin.end(CallId(1), outcome).unwrap();
        pair.reach_host();
        assert_eq!((pair.host.stage(), pair.plugin.stage()), (stage, stage));
        assert_eq!(pair.host_events(), [Event::Released { id: CallId(1) }]);
    }
}
