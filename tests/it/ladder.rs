//! Ending a process: each rung works, the next one follows where it does not, and
//! what a plugin started goes with it.

use std::{collections::BTreeSet, time::Duration};

use plugbay_supervisor::{PluginPlan, State};
use serde_json::json;

use crate::{
    alone::alone,
    stage::{Stage, holds, within},
    world::{World, stat, trace},
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Rungs below this one are short, because they will not work; this one is not.
fn until(mut plan: PluginPlan, rung: &str) -> PluginPlan {
    let times = &mut plan.timeouts;
    let all = [
        ("close", &mut times.exit_grace),
        ("eof", &mut times.eof_grace),
        ("term", &mut times.term_grace),
    ];
    let mut real = Duration::from_secs(30);
    for (name, time) in all {
        *time = ms(100);
        if name == rung {
            *time = real;
            real = ms(100);
        }
    }
    plan
}

#[test]
fn who_ignores_a_rung_is_ended_by_the_next() {
    alone(async |world| {
        for rung in ["close", "eof", "term", "kill"] {
            for mode in ["good", "serial", "flood-stdout", "flood-stderr", "closes-stderr"] {
                let plan = until(world.plugin("p", &format!("{mode} until={rung}")), rung);
                let stage = world.supervise([plan]);
                stage.up("p").await;
                stage.down("p").await;
                let (reason, last) = stage.exit("p").await;
                assert_eq!((last, reason.kind()), (Some(rung), "stopped"), "{mode}");
                stage.end().await;
            }
        }
    });
}

#[test]
fn who_broke_the_protocol_and_stays_is_ended_without_the_long_grace() {
    alone(async |world| {
        for (rung, mode) in [("eof", "garbage"), ("term", "bad-type"), ("kill", "stray")] {
            let mut plan = until(world.plugin("p", &format!("{mode} until={rung}")), rung);
            plan.timeouts.exit_grace = Duration::from_secs(3600);
            plan.restart.first = Duration::from_secs(3600);
            let stage = world.supervise([plan]);
            within("an answer", stage.ready("p")).await.ok();
            let (_, last) = stage.exit("p").await;
            assert_eq!(last, Some(rung), "{mode}");
            stage.end().await;
        }
    });
}

#[test]
fn a_stopped_process_hears_the_ladder() {
    alone(async |world| {
        let mut plan = until(world.plugin("p", "stop-self"), "term");
        plan.timeouts.drain = ms(100);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let pid = stage.plugin("p").expect("it is there").pid.expect("it runs");
        holds("it to be stopped", || matches!(stat(pid), Some(('T', _)))).await;
        stage.down("p").await;
        assert_eq!(stage.exit("p").await.1, Some("term"));
        stage.end().await;
    });
}

#[test]
fn a_stop_does_not_wait_for_a_plugin_that_reads_nothing() {
    alone(async |world| {
        let mut plan = until(world.plugin("p", "hang"), "term");
        (plan.timeouts.drain, plan.limits.concurrency) = (ms(100), 64);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        // The pipe is full, so not even CLOSE can be written.
        let calls = [(); 40].map(|()| stage.spawn("echo", json!({ "text": "x".repeat(8000) })));
        holds("all calls inside", || stage.inside("p") == 40).await;
        stage.down("p").await;
        for call in calls {
            call.await.expect("it ends").expect_err("nobody answers");
        }
        stage.end().await;
    });
}

/// The grandchildren of a plugin, from its trace.
async fn grandchildren(world: &World, stage: &Stage, mode: &str) -> BTreeSet<u32> {
    let file = world.path("trace");
    stage.up("p").await;
    let born = || {
        let events = trace(&file).into_iter();
        events.filter_map(|(_, it)| it.strip_prefix("grandchild ")?.parse().ok()).collect()
    };
    holds(&format!("{mode} to have a grandchild"), || !BTreeSet::is_empty(&born())).await;
    born()
}

#[test]
fn what_a_plugin_started_in_its_group_goes_with_it() {
    alone(async |world| {
        // It holds the pipes and ignores every polite signal.
        let mode = format!("fork-child trace={}", world.path("trace").display());
        let stage = world.supervise([world.plugin("p", &mode)]);
        let kin = grandchildren(world, &stage, &mode).await;
        stage.down("p").await;
        assert_eq!(stage.exit("p").await.1, Some("close"), "the leader went at once");
        holds("the grandchild to be gone", || kin.is_disjoint(&world.processes())).await;
        stage.end().await;
    });
}

#[test]
fn a_dead_leader_does_not_hide_its_living_children() {
    alone(async |world| {
        // It starts a process that keeps the pipes, and exits at once.
        let mut plan = world.plugin("p", "orphan");
        plan.restart.first = Duration::from_secs(3600);
        let stage = world.supervise([plan]);
        within("an answer", stage.ready("p")).await.ok();
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("exited", None));
        holds("all of them to be gone", || world.processes().is_empty()).await;
        stage.end().await;
    });
}

/// Only the kernel could hold it. It is not waited for, though it has the pipes.
#[test]
fn a_child_that_left_the_group_delays_nothing() {
    alone(async |world| {
        let file = world.path("trace");
        for mode in ["escape-child", "orphan escape=1"] {
            let mode = format!("{mode} life=600 trace={}", file.display());
            let mut plan = world.plugin("p", &mode);
            plan.restart.first = Duration::from_secs(3600);
            let stage = world.supervise([plan]);
            within("an answer", stage.ready("p")).await.ok();
            if mode.starts_with("escape") {
                grandchildren(world, &stage, &mode).await;
            } else {
                stage.exit("p").await;
            }
            stage.down("p").await;
            stage.end().await;
            for (_, event) in trace(&file) {
                let Some(pid) = event.strip_prefix("grandchild ") else { continue };
                let pid: u32 = pid.parse().expect("a pid");
                // Still ours: a number may have a new owner by now.
                if world.processes().contains(&pid) {
                    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).ok();
                }
            }
            holds("what escaped to be gone", || world.processes().is_empty()).await;
        }
    });
}

#[test]
fn a_wrapper_chain_goes_as_a_whole() {
    alone(async |world| {
        let fixture = crate::world::hostile().display().to_string();
        let script = format!("sh -c 'sleep 1000 & {fixture} good; exit 3'");
        let plan = world.program("p", vec!["/bin/sh".into(), "-c".into(), script]);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        assert!(3 <= world.processes().len());
        stage.call("echo", json!({})).await.expect("it answers through the chain");
        stage.down("p").await;
        holds("all of them to be gone", || world.processes().is_empty()).await;
        stage.end().await;
    });
}

#[test]
fn a_second_process_is_never_started_before_the_first_is_gone() {
    alone(async |world| {
        let mut plan = until(world.plugin("p", "good until=eof"), "eof");
        plan.timeouts.exit_grace = ms(20);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        for n in 2..=10 {
            stage.restart("p").expect("it is in the plan");
            holds("its next process", || {
                assert!(world.processes().len() <= 1, "two at once");
                stage.starts("p") == n && stage.state("p") == State::Active
            })
            .await;
        }
        stage.end().await;
    });
}
