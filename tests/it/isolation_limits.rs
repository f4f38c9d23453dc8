//! Limits that the system enforces, and what is said of a plugin that goes over one.
//! Each is also tried by a plugin without it, where it does not strike.

use std::fs;

use plugbay_supervisor::{
    Fact, PluginPlan,
    isolation::{Held, Machine},
    plan::{IfMissing, Level, Limits},
};
use serde_json::json;

use crate::{
    alone::{As, alone, alone_as},
    isolation::{attempt, walled},
    stage::{Stage, holds, within},
    world::{World, cgroups},
};

const MIB: u64 = 1 << 20;

async fn with(world: &World, set: impl Fn(&mut PluginPlan)) -> Stage {
    let mut plan = walled(world, Level::Standard);
    set(&mut plan);
    let stage = world.supervise([plan]);
    stage.up("p").await;
    stage
}

/// A deed that ends the plugin: why it did, as is said.
async fn death(stage: &Stage, deed: &str, number: u64) -> (String, String) {
    let args = json!({ "deed": deed, "number": number });
    stage.call("try", args).await.expect_err("it dies");
    let (reason, rung) = stage.exit("p").await;
    assert_eq!(rung, None, "nobody else ended it");
    (reason.kind().to_owned(), reason.to_string())
}

/// Whether this machine has cgroups for us; says so if not.
fn has_cgroups() -> bool {
    let cgroups = &Machine::here().cgroups;
    for ability in [&cgroups.memory, &cgroups.cpu, &cgroups.processes] {
        if let Err(lack) = ability {
            eprintln!("skipped: {}", lack.cause);
            return false;
        }
    }
    true
}

#[test]
fn memory_over_the_limit_is_the_end_and_is_told_from_every_other_kill() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let stage = with(world, |plan| plan.limits.memory_bytes = Some(64 * MIB)).await;
        assert!(attempt(&stage, "memory", "", 16 * MIB).await.starts_with("ok"));
        let (kind, said) = death(&stage, "memory", 256 * MIB).await;
        assert_eq!(kind, "out_of_memory");
        assert!(said.contains("its limit of 64MiB"), "{said}");
        stage.end().await;

        // What lies in its folder for temporary files counts.
        let stage = with(world, |plan| plan.limits.memory_bytes = Some(64 * MIB)).await;
        let outcome = stage.call("try", json!({ "deed": "file of", "number": 256 * MIB })).await;
        let spent = match outcome {
            // The folder itself has the same bound.
            Ok(output) => output.text() == "ENOSPC",
            Err(_) => stage.exit("p").await.0.kind() == "out_of_memory",
        };
        assert!(spent, "it wrote more than it may have");
        stage.end().await;

        // The same without a limit, and one that ends itself by the same signal.
        let stage = with(world, |_| {}).await;
        assert!(attempt(&stage, "memory", "", 256 * MIB).await.starts_with("ok"));
        stage.end().await;
        let stage = with(world, |plan| plan.limits.memory_bytes = Some(64 * MIB)).await;
        let (kind, _) = death(&stage, "end by", 9).await;
        assert_eq!(kind, "killed");
        stage.end().await;
    });
}

#[test]
fn a_file_that_is_too_large_is_the_end() {
    alone(async |world| {
        let stage = with(world, |plan| plan.limits.file_bytes = Some(4 * MIB)).await;
        let (kind, said) = death(&stage, "file of", 8 * MIB).await;
        assert_eq!(kind, "file_too_large");
        assert!(said.contains("its limit of 4MiB"), "{said}");
        stage.end().await;
        let stage = with(world, |_| {}).await;
        assert_eq!(attempt(&stage, "file of", "", 8 * MIB).await, "ok");
        stage.end().await;
    });
}

#[test]
fn more_open_files_than_allowed_are_refused() {
    alone(async |world| {
        let stage = with(world, |plan| plan.limits.open_files = Some(64)).await;
        assert_eq!(attempt(&stage, "files until", "", 64).await, "EMFILE");
        assert!(attempt(&stage, "files until", "", 16).await.starts_with("ok"));
        stage.end().await;
        let stage = with(world, |_| {}).await;
        assert_eq!(attempt(&stage, "files until", "", 64).await, "ok 64");
        stage.end().await;
    });
}

#[test]
fn more_processes_than_allowed_are_refused() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let stage = with(world, |plan| plan.limits.processes = Some(16)).await;
        assert_eq!(attempt(&stage, "processes until", "", 32).await, "EAGAIN");
        assert_eq!(attempt(&stage, "processes until", "", 4).await, "ok 4");
        stage.down("p").await;
        stage.exit("p").await;
        let refused = stage.facts(|fact| match fact {
            Fact::Remains { refused, .. } => Some(*refused),
            _ => None,
        });
        assert!(refused.iter().sum::<u64>() > 0, "{refused:?}");
        stage.end().await;
        let stage = with(world, |_| {}).await;
        assert_eq!(attempt(&stage, "processes until", "", 32).await, "ok 32");
        stage.end().await;
    });
}

#[test]
fn processor_time_is_rationed() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let stage = with(world, |plan| plan.limits.cpu_percent = Some(20)).await;
        let outcome = attempt(&stage, "work", "", 1000).await;
        let spent = outcome.strip_prefix("ok ").and_then(|it| it.parse::<u64>().ok());
        // A fifth of a second, and what the first period gives on top. On a busy machine
        // it is less.
        assert!(spent.is_some_and(|it| it < 500), "{outcome}");
        let folder = cgroups(std::process::id());
        let throttled = folder.iter().any(|it| {
            let stat = fs::read_to_string(format!("{it}/cpu.stat")).unwrap_or_default();
            stat.lines().any(|line| line.starts_with("nr_periods") && line != "nr_periods 0")
        });
        assert!(throttled, "its time is counted in {folder:?}");
        stage.end().await;
    });
}

#[test]
fn a_stopped_plugin_has_no_cgroup() {
    alone(async |world| {
        let limits = |plan: &mut PluginPlan| {
            plan.limits.memory_bytes = Some(64 * MIB);
            plan.limits.processes = Some(16);
            plan.limits.cpu_percent = Some(100);
        };
        if !has_cgroups() {
            return;
        }
        let stage = with(world, limits).await;
        assert!(!cgroups(std::process::id()).is_empty(), "it runs in some");
        stage.down("p").await;
        holds("them to be gone", || cgroups(std::process::id()).is_empty()).await;
        stage.end().await;
    });
}

/// A user without rights makes no cgroups: what cannot be had otherwise is refused.
#[test]
fn without_cgroups_what_can_be_had_otherwise_is_had_and_the_rest_refused() {
    alone_as(As::Nobody, async |world| {
        let machine = Machine::here();
        if let Err(lack) = &machine.processes {
            return eprintln!("skipped: {}", lack.cause);
        }
        if machine.cgroups.memory.is_ok() {
            return eprintln!("skipped: this user may make cgroups");
        }
        let mut plan = walled(world, Level::Standard);
        plan.limits.memory_bytes = Some(64 * MIB);
        let stage = world.supervise([plan.clone()]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        assert!(error.to_string().contains("cannot be held to `memory`"), "{error}");
        stage.end().await;

        plan.sandbox.if_missing = IfMissing::Warn;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let degraded = stage.plugin("p").expect("it is there").degraded;
        assert!(
            matches!(degraded.as_slice(), [it] if it.starts_with("memory is not")),
            "{degraded:?}"
        );
        assert!(attempt(&stage, "memory", "", 16 * MIB).await.starts_with("ok"));
        // Not the end it would have had, but an end.
        death(&stage, "memory", 256 * MIB).await;
        stage.end().await;

        let stage = with(world, |plan| plan.limits.processes = Some(16)).await;
        assert_eq!(attempt(&stage, "processes until", "", 32).await, "EAGAIN");
        assert_eq!(attempt(&stage, "processes until", "", 4).await, "ok 4");
        stage.end().await;
    });
}

/// Sets limits of a plugin that runs, and says what then holds of one.
async fn changed(stage: &Stage, key: &str, set: impl Fn(&mut Limits)) -> Held {
    let mut plan = stage.plan("p").expect("it is there");
    set(&mut plan.limits);
    stage.set_bounds("p", plan.limits, plan.timeouts).expect("it is there");
    let held = stage.hold("p").await.expect("it is there");
    held.into_iter().find(|it| it.key == key).expect("it is set")
}

#[test]
fn limits_are_changed_while_a_plugin_runs() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let stage = with(world, |plan| {
            plan.limits.memory_bytes = Some(64 * MIB);
            plan.limits.processes = Some(32);
        })
        .await;
        let starts = stage.starts("p");
        let held = changed(&stage, "memory", |it| it.memory_bytes = Some(256 * MIB)).await;
        assert_eq!((held.limit, held.refused), (Some(256 * MIB), None));
        assert!(held.used.is_some_and(|it| 0 < it && it < 64 * MIB), "{:?}", held.used);
        // More than it had.
        assert!(attempt(&stage, "memory", "", 128 * MIB).await.starts_with("ok"));

        assert_eq!(attempt(&stage, "processes until", "", 16).await, "ok 16");
        let held = changed(&stage, "processes", |it| it.processes = Some(16)).await;
        assert_eq!((held.limit, held.refused), (Some(16), None));
        assert_eq!(attempt(&stage, "processes until", "", 16).await, "EAGAIN");

        // Less than it needs, and what it was started without.
        let held = changed(&stage, "memory", |it| it.memory_bytes = Some(65_536)).await;
        assert!(held.refused.is_some_and(|it| it.starts_with("it uses ")), "{:?}", held.limit);
        let held = changed(&stage, "cpu", |it| it.cpu_percent = Some(20)).await;
        let words = "no limit of this kind was set when it started";
        assert_eq!((held.limit, held.refused.as_deref()), (None, Some(words)));

        let held = changed(&stage, "memory", |it| it.memory_bytes = Some(96 * MIB)).await;
        assert_eq!((held.limit, held.refused), (Some(96 * MIB), None));
        assert_eq!(stage.starts("p"), starts, "it is the same process all the time");
        let (kind, said) = death(&stage, "memory", 200 * MIB).await;
        assert_eq!(kind, "out_of_memory");
        assert!(said.contains("its limit of 96MiB"), "{said}");
        assert_eq!(stage.hold("p").await.expect("it is there"), [], "nothing runs");

        // The next process has them all.
        stage.restart("p").expect("it is in the plan");
        stage.up("p").await;
        let held = stage.hold("p").await.expect("it is there");
        let limits: Vec<_> = held.iter().map(|it| (it.key, it.limit, &it.refused)).collect();
        let all = [("memory", 96 * MIB), ("cpu", 20), ("processes", 16)];
        assert_eq!(limits, all.map(|(key, limit)| (key, Some(limit), &None)));
        stage.end().await;
    });
}
