//! Activation and deactivation. [R-LC]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

fn stages(pair: &Pair) -> (Stage, Stage) {
    (pair.host.stage(), pair.plugin.stage())
}

#[test]
fn both_sides_agree_on_the_stage_after_each_step() {
    let ok = || Ok(Default::default());
    let err = || Err(Fault::new(Code::FailedPrecondition));
    let mut pair = Pair::at(At::Ready);
    for (method, during, outcome, after) in [
        ("plugin.activate", Stage::Activating, err(), Stage::Ready),
        ("plugin.activate", Stage::Activating, ok(), Stage::Active),
        ("plugin.deactivate", Stage::Draining, err(), Stage::Active),
        ("plugin.deactivate", Stage::Draining, ok(), Stage::Ready),
        ("plugin.activate", Stage::Activating, ok(), Stage::Active),
    ] {
        let id = pair.call(method);
        assert_eq!(stages(&pair), (during, during), "{method}");
        pair.plugin.end(id, outcome).unwrap();
        pair.reach_host();
        assert_eq!(stages(&pair), (after, after), "{method}");
        assert_eq!((pair.host.open_calls(), pair.host.has_open()), (0, false));
    }
}

#[test]
fn a_step_whose_result_does_not_fit_has_failed_for_both_sides() {
    let small = Announce { limits: Limits::FLOOR, ..announce() };
    for (at, id, method, after) in
        [(At::Activating, 1, "", Stage::Ready), (At::Active, 3, "plugin.deactivate", Stage::Active)]
    {
        let mut pair = Pair::with(small.clone(), announce(), at);
        if !method.is_empty() {
            pair.call(method);
        }
        assert!(pair.plugin.end(CallId(id), Ok(blob(70_000))).is_err());
        pair.reach_host();
        assert_eq!(stages(&pair), (after, after));
    }
}

#[test]
fn deactivation_ends_after_every_other_call() {
    let mut pair = Pair::at(At::Draining);
    let (work, step) = (CallId(3), CallId(5));
    assert_eq!(pair.plugin.end(step, Ok(Default::default())), Err(Misuse::CallsOpen));
    assert!(pair.plugin.outbox().is_empty());
    pair.plugin.end(work, Ok(Default::default())).unwrap();
    pair.plugin.end(step, Ok(Default::default())).unwrap();
    pair.reach_host();
    let told =
        [Event::Released { id: work }, Event::Ended { id: step, outcome: Ok(Default::default()) }];
    assert_eq!(pair.host_events(), told);
    assert_eq!(stages(&pair), (Stage::Ready, Stage::Ready));
}

#[test]
fn a_plugin_that_ends_its_deactivation_first_is_refused() {
    let mut host = Pair::at(At::Draining).host;
    feed(&mut host, &frame(0x12, 5, json!({}), b""), Tick(1_000));
    let found = is_broken(&mut host, Close::BadState);
    assert!(matches!(found, Violation::State { kind: "END", .. }), "{found}");
}

#[test]
fn a_busy_plugin_refuses_and_is_active_again_with_its_calls() {
    let mut pair = Pair::at(At::Open);
    let step = pair.call("plugin.deactivate");
    let busy = Fault::new(Code::FailedPrecondition).because("pb.busy").retry(Retry::Safe);
    pair.plugin.end(step, Err(busy.clone())).unwrap();
    pair.reach_host();
    assert_eq!(*fault(&pair.host_events()[0]), busy);
    assert_eq!(stages(&pair), (Stage::Active, Stage::Active));
    assert_eq!((pair.host.open_calls(), pair.plugin.open_calls()), (1, 1));
    pair.call("tool.call");
    assert_eq!(pair.plugin.open_calls(), 2);
}

#[test]
fn while_draining_what_is_open_is_finished_and_cancelled_as_usual() {
    let mut pair = Pair::at(At::Open);
    let more = pair.call("tool.call");
    pair.call("plugin.deactivate");
    pair.plugin_events();
    pair.host.cancel(more, CancelReason::Shutdown, pair.now);
    pair.reach_plugin();
    let told = [Event::CancelRequested { id: more, reason: CancelReason::Shutdown }];
    assert_eq!(pair.plugin_events(), told);
    pair.plugin.note(Some(CallId(3)), &Note::Retire { reason: "late".into() });
    pair.plugin.end(CallId(3), Ok(blob(1))).unwrap();
    pair.plugin.end(more, Err(Fault::new(Code::Cancelled))).unwrap();
    pair.reach_host();
    let told = pair.host_events();
    assert!(
        matches!(
            told[..],
            [Event::Note { .. }, Event::Ended { outcome: Ok(_), .. }, Event::Released { .. }]
        ),
        "{told:?}"
    );
}

#[test]
fn answers_that_were_under_way_when_the_deactivation_was_sent_still_count() {
    let mut pair = Pair::at(At::Open);
    pair.plugin.end(CallId(3), Ok(blob(1))).unwrap();
    let step = pair.start("plugin.deactivate");
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Ended { id: CallId(3), outcome: Ok(blob(1)) }]);
    pair.reach_plugin();
    pair.plugin.end(step, Ok(Default::default())).unwrap();
    pair.reach_host();
    assert_eq!(stages(&pair), (Stage::Ready, Stage::Ready));
}

#[test]
fn a_lifecycle_step_is_no_work_and_a_call_is() {
    let mut pair = Pair::at(At::Activating);
    assert_eq!((pair.host.open_calls(), pair.host.has_open()), (0, true));
    assert_eq!((pair.plugin.open_calls(), pair.plugin.has_open()), (0, true));
    pair = Pair::at(At::Open);
    assert_eq!((pair.host.open_calls(), pair.plugin.open_calls()), (1, 1));
}

#[test]
fn a_wish_to_retire_changes_nothing() {
    let mut pair = Pair::at(At::Active);
    pair.plugin.note(None, &Note::Retire { reason: "memory".into() });
    pair.reach_host();
    let note = Note::Retire { reason: "memory".into() };
    assert_eq!(pair.host_events(), [Event::Note { id: None, note }]);
    assert_eq!(stages(&pair), (Stage::Active, Stage::Active));
    pair.call("tool.call");
    assert!(matches!(pair.plugin_events()[..], [Event::Called(_)]));
}
