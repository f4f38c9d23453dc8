//! Nothing outlives its keeper: whatever a plugin starts, and whoever is killed.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plugbay_supervisor::{
    Fact, PluginPlan,
    plan::{IfMissing, Level},
};

use crate::{
    alone::{As, alone, alone_as},
    isolation::{attempt, walled},
    stage::{Stage, holds, within},
    world::World,
};

fn plan(world: &World, mode: &str) -> PluginPlan {
    let mut plan = world.plugin("p", mode);
    plan.sandbox.level = Level::Standard;
    plan.restart.first = Duration::from_secs(3600);
    plan
}

/// Waits until the plugin has its child: the two guards, the plugin, and that.
async fn with_child(world: &World, stage: &Stage) {
    within("an answer", stage.ready("p")).await.expect("it comes up");
    holds("the child to be there", || world.processes().len() == 4).await;
}

#[test]
fn what_a_plugin_started_ends_with_it_wherever_it_hides() {
    alone(async |world| {
        for mode in ["fork-child", "escape-child"] {
            let stage = world.supervise([plan(world, mode)]);
            with_child(world, &stage).await;
            stage.down("p").await;
            // Not a moment later: the end of the plugin is the end of all of it.
            assert_eq!(world.processes(), [].into(), "{mode}");
            stage.end().await;
        }
    });
}

#[test]
fn a_plugin_that_leaves_its_child_behind_leaves_nothing() {
    alone(async |world| {
        for mode in ["orphan", "orphan escape=1"] {
            let stage = world.supervise([plan(world, mode)]);
            within("an answer", stage.ready("p")).await.ok();
            let (reason, rung) = stage.exit("p").await;
            assert_eq!((reason.kind(), rung), ("exited", None), "{mode}");
            assert_eq!(world.processes(), [].into(), "{mode}");
            let left = stage.facts(|fact| match fact {
                Fact::Remains { left_behind, .. } => Some(*left_behind),
                _ => None,
            });
            assert_eq!(left, [1], "{mode}");
            stage.end().await;
        }
    });
}

#[test]
fn the_ladder_reaches_the_plugin_through_its_keeper() {
    alone(async |world| {
        for (mode, rung) in [
            ("good", Some("close")),
            ("ignores-close", Some("eof")),
            ("ignores-eof", Some("term")),
            ("ignores-term", Some("kill")),
            // It has stopped itself: SIGTERM alone would wait for ever.
            ("stop-self at=active until=term", Some("term")),
        ] {
            let mut plan = plan(world, mode);
            plan.timeouts.exit_grace = Duration::from_millis(300);
            plan.timeouts.eof_grace = Duration::from_millis(300);
            plan.timeouts.drain = Duration::from_millis(300);
            let stage = world.supervise([plan]);
            stage.up("p").await;
            stage.down("p").await;
            let (_, last) = stage.exit("p").await;
            if mode == "good" {
                assert!(last.is_none() || last == rung, "{mode}: {last:?}");
            } else {
                assert_eq!(last, rung, "{mode}");
            }
            assert_eq!(world.processes(), [].into(), "{mode}");
            stage.end().await;
        }
    });
}

#[test]
fn who_kills_a_guard_kills_the_plugin_and_is_told_from_a_crash() {
    alone(async |world| {
        let stage = world.supervise([plan(world, "escape-child")]);
        with_child(world, &stage).await;
        let guard = stage.plugin("p").expect("it is there").pid.expect("it runs");
        let guard = Pid::from_raw(i32::try_from(guard).expect("a pid"));
        kill(guard, Signal::SIGKILL).expect("it is ours");
        let (reason, _) = stage.exit("p").await;
        assert_eq!(reason.kind(), "helper_lost");
        holds("all of them to be gone", || world.processes().is_empty()).await;
        stage.end().await;
    });
}

#[test]
fn a_guard_that_is_stopped_does_not_hold_up_the_ladder() {
    alone(async |world| {
        let mut plan = plan(world, "ignores-term");
        plan.timeouts.drain = Duration::from_millis(100);
        plan.timeouts.exit_grace = Duration::from_millis(100);
        plan.timeouts.eof_grace = Duration::from_millis(100);
        plan.timeouts.term_grace = Duration::from_millis(100);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let guard = stage.plugin("p").expect("it is there").pid.expect("it runs");
        let guard = Pid::from_raw(i32::try_from(guard).expect("a pid"));
        kill(guard, Signal::SIGSTOP).expect("it is ours");
        stage.down("p").await;
        assert_eq!(stage.exit("p").await.1, Some("kill"));
        holds("all of them to be gone", || world.processes().is_empty()).await;
        stage.end().await;
    });
}

#[test]
fn a_guard_that_is_stopped_ends_the_plugin_when_the_supervisor_is_dropped() {
    alone(async |world| {
        let stage = world.supervise([plan(world, "escape-child")]);
        with_child(world, &stage).await;
        let guard = stage.plugin("p").expect("it is there").pid.expect("it runs");
        let guard = Pid::from_raw(i32::try_from(guard).expect("a pid"));
        kill(guard, Signal::SIGSTOP).expect("it is ours");
        drop(stage);
        holds("all of them to be gone", || world.processes().is_empty()).await;
    });
}

/// Without a PID namespace and without a cgroup the keeper ends one after the other.
#[test]
fn where_there_is_no_namespace_the_keeper_hunts_until_none_is_left() {
    alone_as(As::RestrictedNobody, async |world| {
        for deed in ["daemon", "hopper"] {
            let mut plan = walled(world, Level::Standard);
            plan.sandbox.if_missing = IfMissing::Warn;
            plan.limits.processes = Some(64);
            let stage = world.supervise([plan]);
            stage.up("p").await;
            assert!(attempt(&stage, deed, "", 0).await.starts_with("ok"));
            stage.down("p").await;
            assert_eq!(world.processes(), [].into(), "{deed}");
            stage.end().await;
        }
    });
}

/// One that is never found under the number that it was seen with.
#[test]
fn who_forks_all_the_time_ends_with_its_namespace() {
    alone(async |world| {
        for level in [Level::Standard, Level::Strict] {
            let mut plan = walled(world, level);
            plan.limits.processes = Some(64);
            let stage = world.supervise([plan]);
            stage.up("p").await;
            assert!(attempt(&stage, "hopper", "", 0).await.starts_with("ok"));
            stage.down("p").await;
            assert_eq!(world.processes(), [].into());
            stage.end().await;
        }
    });
}
