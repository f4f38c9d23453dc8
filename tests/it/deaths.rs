//! Restart patience: back-off, the budget, quarantine, and what lifts it.

use std::time::Duration;

use plugbay_supervisor::{
    CallError, Fact, PluginPlan, State,
    plan::{Restart, RestartWhen},
};
use serde_json::json;

use crate::{
    alone::alone,
    calls::declared,
    stage::{brief, holds, within},
    world::World,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn patient(world: &World, mode: &str, budget: u32) -> PluginPlan {
    let mut plan = declared(world, mode, &["echo", "state"]);
    plan.restart =
        Restart { first: ms(20), max: ms(80), jitter: 0.0, budget, ..Restart::default() };
    plan
}

#[test]
fn each_death_waits_twice_as_long_until_the_longest_and_the_last_is_quarantine() {
    alone(async |world| {
        let stage = world.supervise([patient(world, "exits-early", 4)]);
        let down = within("an answer", stage.ready("p")).await;
        assert!(down.is_err());
        stage.until("p", State::Quarantined).await;
        assert_eq!(stage.starts("p"), 5);
        let over = |fact: &Fact| {
            matches!(fact, Fact::Became { state: State::Quarantined, .. }).then_some(())
        };
        stage.fact("the last of it", over).await;
        let deaths = stage.facts(|fact| match fact {
            Fact::Waiting { deaths, delay, .. } => Some((*deaths, *delay)),
            _ => None,
        });
        let numbers = deaths.iter().map(|(deaths, _)| *deaths).collect::<Vec<_>>();
        assert_eq!(numbers, [1, 2, 3, 4]);
        for ((_, delay), most) in deaths.iter().zip([20, 40, 80, 80]) {
            assert!(*delay <= ms(most), "{deaths:?}");
        }
        let status = stage.plugin("p").expect("it is there");
        assert_eq!(
            status.reason.to_string(),
            "is quarantined after 5 deaths within 600s; \
             the last time it exited with status 1 before it was ready"
        );
        assert!(status.last_words.0.contains("cannot find the thing it needs"));
        let told = stage.call("echo", json!({})).await;
        assert_eq!(brief(&told), "inactive quarantined quarantined, not run, never again");
        let error = told.expect_err("it is quarantined");
        assert_eq!(error.code(), "PB0509");
        assert_eq!(error.for_model(), "This tool is not available. Go on without it.");
        stage.end().await;
    });
}

#[test]
fn a_hundred_callers_do_not_wake_a_quarantined_plugin_and_an_operator_does() {
    alone(async |world| {
        let count = world.path("lives");
        let mode = format!("exits-early first=2 count={}", count.display());
        let stage = world.supervise([patient(world, &mode, 1)]);
        assert!(within("an answer", stage.ready("p")).await.is_err());
        stage.until("p", State::Quarantined).await;
        for _ in 0..100 {
            stage.call("echo", json!({})).await.expect_err("it is quarantined");
        }
        assert_eq!(stage.starts("p"), 2);
        stage.resume("p").expect("it is in the plan");
        stage.until("p", State::Dormant).await;
        assert_eq!(stage.plugin("p").expect("it is there").deaths, 0, "all is forgiven");
        stage.call("echo", json!({})).await.expect("its third life is a good one");
        assert_eq!(stage.starts("p"), 3);
        stage.end().await;
    });
}

#[test]
fn a_restart_lifts_a_quarantine_too() {
    alone(async |world| {
        let count = world.path("lives");
        let mode = format!("exits-early first=1 count={}", count.display());
        let stage = world.supervise([patient(world, &mode, 0)]);
        assert!(within("an answer", stage.ready("p")).await.is_err());
        stage.until("p", State::Quarantined).await;
        stage.restart("p").expect("it is in the plan");
        stage.until("p", State::Active).await;
        stage.end().await;
    });
}

#[test]
fn a_call_during_the_wait_is_told_when_to_come_back_and_wakes_nobody() {
    alone(async |world| {
        let mut plan = patient(world, "exits-early", 5);
        (plan.restart.first, plan.restart.max) = (ms(60_000), ms(60_000));
        let stage = world.supervise([plan]);
        assert!(within("an answer", stage.ready("p")).await.is_err());
        stage.until("p", State::Backoff).await;
        let error = stage.call("echo", json!({})).await.expect_err("it waits");
        let CallError::Inactive { after: Some(after), .. } = error else { panic!("{error}") };
        assert!(after <= ms(60_000) && ms(1) < after, "{after:?}");
        assert_eq!(stage.starts("p"), 1);
        stage.end().await;
    });
}

#[test]
fn a_fault_that_another_start_would_repeat_is_not_tried_again() {
    alone(async |world| {
        for (mode, kind) in [
            ("wrong-version", "version_unsupported"),
            ("version-close", "version_unsupported"),
            ("bad-manifest-body", "manifest_differs"),
            ("duplicate-tools", "manifest_differs"),
            ("activate-error", "activate_failed"),
            ("activate-error code=permission_denied", "activate_failed"),
        ] {
            let mut plan = world.plugin("p", mode);
            plan.restart.first = ms(1);
            let stage = world.supervise([plan]);
            assert!(within("an answer", stage.ready("p")).await.is_err());
            stage.until("p", State::Quarantined).await;
            let status = stage.plugin("p").expect("it is there");
            assert_eq!((status.reason.kind(), status.starts), (kind, 1), "{mode}");
            stage.end().await;
        }
    });
}

#[test]
fn a_banner_on_every_start_does_not_become_a_storm() {
    alone(async |world| {
        let mut plan = patient(world, "banner text=Welcome!", 2);
        plan.name = "loud".into();
        let stage = world.supervise([plan]);
        let error = within("an answer", stage.ready("loud")).await.expect_err("it prints");
        assert_eq!(
            error.to_string(),
            "loud wrote text or other bytes to stdout before its HELLO; stdout carries frames only"
        );
        stage.until("loud", State::Quarantined).await;
        assert_eq!(stage.starts("loud"), 3);
        let reason = stage.plugin("loud").expect("it is there").reason;
        let printed = reason.private().expect("the operator sees what it printed");
        assert!(printed.starts_with("Welcome!\n"), "{printed:?}");
        assert!(!format!("{reason} {reason:?}").contains("Welcome"));
        stage.end().await;
    });
}

#[test]
fn being_well_for_long_enough_wins_back_all_patience() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo", "crash"]);
        plan.restart = patient(world, "good", 1).restart;
        plan.restart.healthy = ms(50);
        let stage = world.supervise([plan]);
        for life in 1..=4 {
            let alive = || stage.starts("p") == life && stage.state("p") == State::Active;
            holds("its next life", || life == 1 || alive()).await;
            stage.call("echo", json!({})).await.expect("it serves");
            // Longer than it takes to count as well.
            tokio::time::sleep(ms(60)).await;
            stage.call("crash", json!({})).await.expect_err("it dies");
            holds("its end to be told", || stage.exits("p") as u64 == life).await;
            assert_eq!(stage.plugin("p").expect("it is there").deaths, 1);
        }
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_is_never_restarted_is_started_by_the_next_call_and_once_for_each() {
    alone(async |world| {
        let count = world.path("lives");
        let mode = format!("exits-early first=2 count={}", count.display());
        let mut plan = patient(world, &mode, 5);
        plan.restart.when = RestartWhen::Never;
        let stage = world.supervise([plan]);
        for n in 1..=2 {
            let told = brief(&stage.call("echo", json!({})).await);
            assert_eq!(told, "lost exited, not run, again");
            assert_eq!(stage.starts("p"), n, "one start for each call");
            stage.until("p", State::Dormant).await;
        }
        stage.call("echo", json!({})).await.expect("its third life is a good one");
        stage.end().await;
    });
}

#[test]
fn two_failing_plugins_do_not_keep_a_third_from_its_work() {
    alone(async |world| {
        let mut first = patient(world, "crash-loop", 3);
        first.name = "first".into();
        let mut second = patient(world, "exits-early", 3);
        second.name = "second".into();
        (first.prefix, second.prefix) = (Some("a".into()), Some("b".into()));
        let stage = world.supervise([first, second, world.plugin("good", "good")]);
        stage.up("good").await;
        for name in ["first", "second"] {
            drop(within("an answer", stage.ready(name)).await);
        }
        let quarantined = |name: &str| stage.state(name) == State::Quarantined;
        while !(quarantined("first") && quarantined("second")) {
            stage.call("echo", json!({})).await.expect("the third serves");
        }
        assert_eq!(stage.starts("good"), 1);
        stage.end().await;
    });
}
