//! Limits that the system enforces, and what is said of a plugin that goes over one.
//! Each is also tried by a plugin without it, where it does not strike.

use std::{fs, sync::Arc, time::Duration};

use plugbay_supervisor::{
    Builder, Fact, PluginPlan,
    isolation::{Held, Machine},
    plan::{Ceilings, IfMissing, Item, Level, Limits, Plan},
};
use serde_json::json;

use crate::{
    alone::{As, alone, alone_as},
    isolation::{attempt, walled},
    stage::{Stage, holds, within},
    world::{World, cgroups, patience},
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

/// Limits of each process: changed in all of them, and in those that they start later.
#[test]
fn limits_of_each_process_are_changed_while_a_plugin_runs() {
    // With a cgroup, which knows them all, and without.
    alone(async |world| limits_of_each_process_change(world, Some(64)).await);
}

#[test]
fn limits_of_each_process_are_changed_without_a_cgroup() {
    alone(async |world| limits_of_each_process_change(world, None).await);
}

#[test]
fn limits_of_each_process_are_changed_by_a_user_without_rights() {
    alone_as(As::Nobody, async |world| limits_of_each_process_change(world, None).await);
}

async fn limits_of_each_process_change(world: &World, processes: Option<u32>) {
    let stage = with(world, |plan| {
        plan.limits.open_files = Some(64);
        plan.limits.file_bytes = Some(4 * MIB);
        // As where there is none of our cgroups.
        plan.limits.processes = processes.filter(|_| has_cgroups());
    })
    .await;
    assert!(attempt(&stage, "daemon", "", 0).await.starts_with("ok"));
    let is_child = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|it| *it == 0).any(|it| it == b"wait")
    };
    let child = || world.processes().into_iter().find(is_child);
    holds("a child whose parent is gone", || child().is_some()).await;
    let child = child().expect("it waits");
    assert_eq!(open_files(child), "64 64");
    let held = changed(&stage, "open_files", |it| it.open_files = Some(32)).await;
    assert_eq!((held.limit, held.refused), (Some(32), None));
    assert!(held.used.is_some_and(|it| (3..32).contains(&it)), "{:?}", held.used);
    assert_eq!(open_files(child), "32 32");
    assert_eq!(attempt(&stage, "files until", "", 32).await, "EMFILE");
    assert_eq!(attempt(&stage, "files until", "", 16).await, "ok 16");
    let held = changed(&stage, "file", |it| it.file_bytes = Some(2 * MIB)).await;
    assert_eq!((held.limit, held.refused), (Some(2 * MIB), None));
    assert_eq!(attempt(&stage, "file of", "", MIB).await, "ok");
    // Up again, for those who may.
    let held = changed(&stage, "open_files", |it| it.open_files = Some(48)).await;
    match held.refused.as_deref() {
        None => {
            assert!(may_raise());
            assert_eq!(attempt(&stage, "files until", "", 34).await, "ok 34");
        }
        Some(why) => {
            assert!(!may_raise() && why.contains("CAP_SYS_RESOURCE"), "{why}");
            assert_eq!(held.limit, Some(32));
            assert_eq!(attempt(&stage, "files until", "", 34).await, "EMFILE");
        }
    }
    let held = changed(&stage, "file", |it| it.file_bytes = None).await;
    assert_eq!(held.refused.as_deref(), Some("a limit is not lifted while it runs"));
    assert_eq!(stage.starts("p"), 1, "it is the same process all the time");
    // What it is said to have gone over.
    let (kind, said) = death(&stage, "file of", 3 * MIB).await;
    assert_eq!(kind, "file_too_large");
    assert!(said.contains("2MiB"), "{said}");
    stage.end().await;
}

/// What a process may open, and what it may raise that to itself; nothing if it is gone.
fn open_files(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|it| it.strip_prefix("Max open files")).unwrap_or("");
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Whether we may raise what another process may not exceed.
fn may_raise() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("it is ours");
    let line = status.lines().find_map(|it| it.strip_prefix("CapEff:\t")).expect("it has some");
    let capabilities = u64::from_str_radix(line, 16).expect("a number");
    capabilities & 1 << 24 != 0
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

        // All plugins together can be held to nothing else.
        let mut bare = walled(world, Level::Standard);
        let ceilings = Ceilings { cpu_percent: Some(50), ..Ceilings::default() };
        let all = Plan { plugins: vec![bare.clone()], ceilings };
        let stage = world.start(Builder::default().plan(all));
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        assert!(error.to_string().contains("cannot be held to `cpu`"), "{error}");
        stage.end().await;
        let ceilings = Ceilings { processes: Some(64), ..Ceilings::default() };
        bare.limits.processes = Some(16);
        let all = Plan { plugins: vec![bare.clone()], ceilings };
        let stage = world.start(Builder::default().plan(all));
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        let said = error.to_string();
        let parts = ["cannot be held to `processes`", ": for host.processes, cannot "];
        assert!(parts.iter().all(|it| said.contains(it)), "{said}");
        stage.end().await;
        bare.sandbox.prefer = vec![Item::Processes];
        let stage = world.start(Builder::default().plan(Plan { plugins: vec![bare], ceilings }));
        stage.up("p").await;
        assert_eq!(attempt(&stage, "processes until", "", 32).await, "EAGAIN", "its own holds");
        let degraded = stage.plugin("p").expect("it is there").degraded;
        let said = "processes is not enforced: its own limit holds, and all plugins together start";
        assert!(matches!(degraded.as_slice(), [it] if it.starts_with(said)), "{degraded:?}");
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

/// Three plugins that have one ceiling, each with its own tool.
async fn three(world: &World, ceilings: Ceilings, set: impl Fn(&mut Limits)) -> Stage {
    let plugins = ["a", "b", "c"].map(|name| {
        let mut plan = walled(world, Level::Standard);
        plan.name = name.into();
        plan.prefix = Some(name.into());
        set(&mut plan.limits);
        plan
    });
    let plan = Plan { plugins: plugins.into(), ceilings };
    let stage = world.start(Builder::default().plan(plan));
    for name in ["a", "b", "c"] {
        stage.up(name).await;
    }
    stage
}

/// What a deed of one of them came to, if it lived to say.
async fn deed(stage: &Stage, plugin: &str, deed: &str, number: u64) -> Option<String> {
    let args = json!({ "deed": deed, "number": number });
    stage.call(&format!("{plugin}_try"), args).await.ok().map(|it| it.text())
}

/// The kernel ends the one that has the most, which need not be the one that asked last.
#[test]
fn plugins_that_together_use_too_much_memory_lose_one_and_it_is_said_why() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceilings = ceilings_of(128);
        let mut tries = 0;
        let stage = loop {
            let stage = three(world, ceilings, |it| it.memory_bytes = Some(96 * MIB)).await;
            assert!(deed(&stage, "a", "memory, kept", 80 * MIB).await.is_some(), "below its own");
            if deed(&stage, "b", "memory, kept", 60 * MIB).await.is_some() {
                break stage;
            }
            // The kernel takes another one if the first is slow to go, on a busy machine.
            assert_eq!(stage.exit("b").await.0.kind(), "host_out_of_memory");
            stage.end().await;
            tries += 1;
            assert!(tries < 5, "there is never room");
        };
        let (reason, rung) = stage.exit("a").await;
        assert_eq!((reason.kind(), reason.code()), ("host_out_of_memory", Some("PB0516")));
        assert!(reason.to_string().contains("together used the 128MiB"), "{reason}");
        assert_eq!(rung, None, "nobody else ended it");
        // Whoever goes over its own limit is told of that one.
        assert_eq!(deed(&stage, "b", "memory, kept", 90 * MIB).await, None);
        let (reason, _) = stage.exit("b").await;
        assert_eq!(reason.kind(), "out_of_memory");
        assert!(reason.to_string().contains("its limit of 96MiB"), "{reason}");
        assert!(deed(&stage, "c", "memory", 16 * MIB).await.is_some());
        assert_eq!(stage.starts("c"), 1, "it has seen nothing of that");
        stage.end().await;

        // Also one that has no limit of its own.
        let stage = three(world, ceilings, |_| {}).await;
        assert_eq!(deed(&stage, "a", "memory, kept", 256 * MIB).await, None);
        assert_eq!(stage.exit("a").await.0.kind(), "host_out_of_memory");
        assert!(deed(&stage, "b", "memory", 16 * MIB).await.is_some());
        stage.end().await;

        // The same with more room, where all live.
        let ceilings = ceilings_of(512);
        let stage = three(world, ceilings, |it| it.memory_bytes = Some(96 * MIB)).await;
        for (name, size) in [("a", 80), ("b", 60), ("c", 60)] {
            assert!(deed(&stage, name, "memory, kept", size * MIB).await.is_some());
        }
        stage.end().await;
    });
}

#[test]
fn plugins_that_together_start_too_many_processes_are_refused_one() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceilings = Ceilings { processes: Some(48), ..Ceilings::default() };
        let stage = three(world, ceilings, |it| it.processes = Some(40)).await;
        assert_eq!(deed(&stage, "a", "processes, kept", 20).await.as_deref(), Some("ok 20"));
        let refused = deed(&stage, "b", "processes until", 30).await;
        assert_eq!(refused.as_deref(), Some("EAGAIN"));
        assert_eq!(deed(&stage, "b", "processes until", 4).await.as_deref(), Some("ok 4"));
        assert_eq!(deed(&stage, "c", "processes until", 4).await.as_deref(), Some("ok 4"));
        stage.down("b").await;
        stage.exit("b").await;
        let counted = stage.facts(|fact| match fact {
            Fact::Remains { refused, refused_to_all, .. } => Some((*refused, *refused_to_all)),
            _ => None,
        });
        assert!(matches!(counted.as_slice(), [(0, 1..)]), "{counted:?}");
        stage.end().await;

        // What its own limit refuses is not laid to the others.
        let stage = three(world, ceilings, |it| it.processes = Some(16)).await;
        assert_eq!(deed(&stage, "a", "processes until", 30).await.as_deref(), Some("EAGAIN"));
        stage.down("a").await;
        stage.exit("a").await;
        let counted = stage.facts(|fact| match fact {
            Fact::Remains { refused, refused_to_all, .. } => Some((*refused, *refused_to_all)),
            _ => None,
        });
        assert!(matches!(counted.as_slice(), [(1.., 0)]), "{counted:?}");
        stage.end().await;
        assert!(cgroups(std::process::id()).is_empty(), "the one for all is gone as well");
    });
}

#[test]
fn plugins_share_the_processor_time_that_all_may_have() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceilings = Ceilings { cpu_percent: Some(30), ..Ceilings::default() };
        let stage = three(world, ceilings, |_| {}).await;
        let spent = |outcome: Option<String>| -> u64 {
            let number = outcome.as_deref().and_then(|it| it.strip_prefix("ok ")?.parse().ok());
            number.unwrap_or_else(|| panic!("{outcome:?}"))
        };
        let work = |name| deed(&stage, name, "work", 1000);
        let (a, b, c) = tokio::join!(work("a"), work("b"), work("c"));
        let all = [a, b, c].map(spent);
        // Three tenths of a second, and what the first period gives each. On a busy machine it
        // is less; without the bound each core would have given a whole one.
        assert!(all.iter().sum::<u64>() < 700, "{all:?}");
        stage.end().await;

        let mut wants = [10, 90].into_iter();
        let plans = ["a", "b"].map(|name| {
            let mut plan = walled(world, Level::Standard);
            plan.name = name.into();
            plan.prefix = Some(name.into());
            plan.limits.cpu_percent = wants.next();
            plan
        });
        let stage = world.start(Builder::default().plan(Plan { plugins: plans.into(), ceilings }));
        for (name, expected) in [("a", 10), ("b", 30)] {
            stage.up(name).await;
            let held = stage.hold(name).await.expect("it is there");
            let held: Vec<_> = held.into_iter().map(|it| (it.key, it.limit, it.refused)).collect();
            assert_eq!(held, [("cpu", Some(expected), None)], "{name}");
        }
        assert!(spent(deed(&stage, "a", "work", 1000).await) < 300, "its own is less");
        stage.end().await;

        // Whose bound it was that one met is told. So little, that also a busy machine gives it
        // that much.
        let ceilings = Ceilings { cpu_percent: Some(3), ..Ceilings::default() };
        let mut plan = walled(world, Level::Standard);
        plan.limits.cpu_percent = Some(90);
        plan.timeouts.hello = patience(plan.timeouts.hello);
        plan.timeouts.call = Duration::from_secs(2);
        plan.timeouts.drain = Duration::from_millis(100);
        plan.timeouts.cancel_grace = Duration::from_millis(100);
        let stage = world.start(Builder::default().plan(Plan { plugins: vec![plan], ceilings }));
        stage.up("p").await;
        let args = json!({ "deed": "work", "number": 600_000 });
        stage.call("try", args).await.expect_err("it does not come to its end");
        let (reason, _) = stage.exit("p").await;
        assert!(reason.to_string().contains("kept from more by host.cpu"), "{reason}");
        stage.end().await;
    });
}

/// What a plugin's own cgroup has of processor time, in percent of a core, where `all` have that
/// much and its limit is `own`; or what it should have.
fn own_share(plugin: &str, own: u64, all: u64) -> Result<(), (u64, u64)> {
    let name = format!("-{plugin}");
    let folders = cgroups(std::process::id());
    let mut folders = folders.iter().filter(|it| it.ends_with(&name));
    let found = folders.find_map(|it| {
        let read = |file| fs::read_to_string(format!("{it}/{file}")).ok();
        // Version 1 has no cgroup with more than the one that it lies in.
        let quota = read("cpu.cfs_quota_us").map(|it| (it, own.min(all)));
        let (quota, due) = quota.or_else(|| Some((read("cpu.max")?, own)))?;
        Some((quota.split_whitespace().next()?.parse::<u64>().ok()? / 1000, due))
    });
    let (has, due) = found.expect("it has a cgroup with such a bound");
    if has == due { Ok(()) } else { Err((has, due)) }
}

#[test]
fn a_ceiling_on_processor_time_is_changed_while_plugins_run() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceiling = |most| Ceilings { cpu_percent: Some(most), ..Ceilings::default() };
        let stage = three(world, ceiling(50), |it| it.cpu_percent = Some(80)).await;
        assert_eq!(own_share("a", 80, 50), Ok(()));
        for most in [20, 60, 100] {
            let held = stage.hold_all(Some(ceiling(most))).into_iter();
            let held: Vec<_> = held.map(|it| (it.key, it.limit, it.refused)).collect();
            assert_eq!(held, [("cpu", Some(most.into()), None)]);
            // More is given by their keepers, and nobody has asked them here.
            for name in ["a", "b", "c"] {
                holds("it to have what it may", || own_share(name, 80, most.into()).is_ok()).await;
            }
        }
        // What starts now starts under what holds now.
        stage.restart("b").expect("it is in the plan");
        stage.up("b").await;
        assert_eq!(own_share("b", 80, 100), Ok(()));
        stage.end().await;
    });
}

/// A script with the old numbers is written by then, and nobody has carried it out.
#[test]
fn what_is_changed_during_a_start_holds_when_it_is_over() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let first = Ceilings { processes: Some(64), ..ceilings_of(256) };
        let mut plan = walled(world, Level::Standard);
        plan.limits.processes = Some(60);
        let plan = Plan { plugins: vec![plan], ceilings: first };
        let stage = world.start(Builder::default().plan(plan));
        stage.up("p").await;
        for round in 1..=8_u32 {
            stage.down("p").await;
            begin(&stage, "p").await;
            // In every other round the limits of the plugin only.
            let number = round / 2;
            let (own, expected) = if round % 2 == 1 { (16, "EAGAIN") } else { (60, "ok 40") };
            let others =
                Ceilings { processes: Some(64 + number), ..ceilings_of(256 + u64::from(number)) };
            let mut plan = stage.plan("p").expect("it is there");
            plan.limits.processes = Some(own);
            stage.set_bounds("p", plan.limits, plan.timeouts).expect("it is there");
            stage.hold_all(Some(others));
            stage.up("p").await;
            assert_eq!(stage.ceilings(), others);
            let held = stage.hold_all(None).into_iter();
            let held: Vec<_> = held.map(|it| (it.key, it.limit)).collect();
            let processes = Some(u64::from(64 + number));
            assert_eq!(held, [("memory", others.memory_bytes), ("processes", processes)]);
            assert_eq!(attempt(&stage, "processes until", "", 40).await, expected, "{round}");
        }
        stage.end().await;
    });
}

/// Starts a plugin that is down: its helper runs then, and has what it is to write.
async fn begin(stage: &Stage, plugin: &str) {
    stage.restart(plugin).expect("it is in the plan");
    stage.heeded(plugin).await.expect("it is in the plan");
}

#[test]
fn a_start_that_fails_leaves_the_ceilings_as_they_have_been_changed() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let mut fails = world.plugin("fails", "exit at=start code=1");
        fails.sandbox.level = Level::Standard;
        fails.restart.first = Duration::from_secs(3600);
        let plan = Plan {
            plugins: vec![walled(world, Level::Standard), fails],
            ceilings: ceilings_of(256),
        };
        let stage = world.start(Builder::default().plan(plan));
        stage.up("p").await;
        for round in 1..=8 {
            let (others, before) = (ceilings_of(256 + round), stage.exits("fails"));
            stage.restart("fails").expect("it is in the plan");
            let has_ended = || before < stage.exits("fails");
            while stage.plugin("fails").expect("it is there").pid.is_none() && !has_ended() {
                tokio::task::yield_now().await;
            }
            stage.hold_all(Some(others));
            holds("it to end", has_ended).await;
            let held = stage.hold_all(None).into_iter();
            let held: Vec<_> = held.map(|it| (it.key, it.limit)).collect();
            assert_eq!(held, [("memory", others.memory_bytes)]);
        }
        stage.end().await;
    });
}

/// It would take from all what they have just been given, or be refused it.
#[test]
fn processor_time_that_is_given_to_all_during_a_start_is_no_reason_to_die() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceiling = |most| Ceilings { cpu_percent: Some(most), ..Ceilings::default() };
        let stage = three(world, ceiling(20), |it| it.cpu_percent = Some(80)).await;
        for round in 0..32_u32 {
            let most = if round % 2 == 0 { 100 - round } else { 10 + round };
            stage.down("b").await;
            stage.restart("b").expect("it is in the plan");
            // At another moment of the start each time.
            let (other, moment) = (stage.clone(), Duration::from_micros((round / 2 * 100).into()));
            let change = tokio::task::spawn_blocking(move || {
                std::thread::sleep(moment);
                other.hold_all(Some(ceiling(most)))
            });
            let held = change.await.expect("it does not panic").into_iter();
            let held: Vec<_> = held.map(|it| (it.key, it.refused)).collect();
            assert_eq!(held, [("cpu", None)]);
            stage.up("b").await;
            let held = stage.hold_all(None).into_iter().map(|it| it.limit);
            assert_eq!(held.collect::<Vec<_>>(), [Some(most.into())]);
            for name in ["a", "b", "c"] {
                holds("it to have what it may", || own_share(name, 80, most.into()).is_ok()).await;
            }
        }
        stage.end().await;
    });
}

/// Two operators at once, while plugins come, go, and do not come up.
#[test]
fn ceilings_that_change_all_the_time_are_taken_and_kill_nobody() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let names = ["a", "b", "c", "silent"];
        let plans = names.into_iter().zip(1_u32..).map(|(name, number)| {
            let mut plan = walled(world, Level::Standard);
            plan.name = name.into();
            plan.prefix = Some(name.into());
            plan.limits.cpu_percent = Some(30 * number);
            if name == "silent" {
                plan.command = vec!["/bin/true".into()];
            }
            plan
        });
        // Few enough for any cgroup above us.
        let ceilings = |number: u32| Ceilings {
            cpu_percent: Some(10 + number * 37 % 140),
            processes: Some(400 + number % 100),
            ..ceilings_of(900 + u64::from(number % 50))
        };
        let plan = Plan { plugins: plans.collect(), ceilings: ceilings(0) };
        let stage = world.start(Builder::default().plan(plan));
        // Also if this panics, they end.
        let at_work = Arc::new(());
        let operators = [0, 1].map(|first| {
            let (stage, at_work) = (stage.clone(), Arc::downgrade(&at_work));
            tokio::task::spawn_blocking(move || {
                let mut numbers = (first..).step_by(2);
                let mut refused = Vec::new();
                while at_work.strong_count() != 0 {
                    let held = stage.hold_all(numbers.next().map(ceilings));
                    refused.extend(held.into_iter().filter(|it| it.refused.is_some()));
                    std::thread::yield_now();
                }
                refused
            })
        });
        for _ in 0..20 {
            for name in names {
                stage.restart(name).expect("it is in the plan");
            }
            within("its end", stage.ready("silent")).await.expect_err("it says nothing");
            for name in &names[..3] {
                stage.up(name).await;
            }
        }
        drop(at_work);
        for operator in operators {
            assert_eq!(operator.await.expect("it does not panic"), []);
        }
        stage.down("silent").await;
        let now = stage.ceilings();
        let held: Vec<_> = stage.hold_all(None).into_iter().map(|it| it.limit).collect();
        let due = [now.memory_bytes, now.cpu_percent.map(u64::from), now.processes.map(u64::from)];
        assert_eq!(held, due);
        let all = now.cpu_percent.map_or(0, u64::from);
        for (name, own) in [("a", 30), ("b", 60), ("c", 90)] {
            holds("it to have what it may", || own_share(name, own, all).is_ok()).await;
        }
        stage.end().await;
    });
}

/// By another program, or because the system did not take it when it was due.
#[test]
fn a_ceiling_that_does_not_hold_is_set_again_as_it_was() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceilings = Ceilings { processes: Some(64), ..Ceilings::default() };
        let stage = three(world, ceilings, |_| {}).await;
        let all = cgroups(std::process::id()).into_iter().find(|it| {
            it.ends_with("-all") && fs::exists(format!("{it}/pids.max")).expect("it is ours")
        });
        fs::write(format!("{}/pids.max", all.expect("it is there")), "32").expect("it is ours");
        let limit = |others| stage.hold_all(others)[0].limit;
        assert_eq!(limit(None), Some(32), "it is only looked at");
        assert_eq!(limit(Some(ceilings)), Some(64));
        stage.end().await;
    });
}

/// Of memory, in MiB.
fn ceilings_of(mib: u64) -> Ceilings {
    Ceilings { memory_bytes: Some(mib * MIB), ..Ceilings::default() }
}

#[test]
fn a_ceiling_is_changed_while_plugins_run() {
    alone(async |world| {
        if !has_cgroups() {
            return;
        }
        let ceilings = ceilings_of(128);
        let stage = three(world, ceilings, |_| {}).await;
        let said = |others: Option<Ceilings>| -> Vec<_> {
            let held = stage.hold_all(others).into_iter();
            held.map(|it| (it.key, it.limit, it.refused)).collect()
        };
        assert_eq!(said(None), [("memory", Some(128 * MIB), None)]);
        let more = Ceilings { processes: Some(64), ..ceilings_of(512) };
        let words = "no limit of this kind was set when plugbay started".to_owned();
        let all = [("memory", Some(512 * MIB), None), ("processes", None, Some(words))].to_vec();
        assert_eq!(said(Some(more)), all);
        let now = ceilings_of(512);
        assert_eq!(stage.ceilings(), now, "what is not taken stays as it was");
        assert!(deed(&stage, "a", "memory, kept", 200 * MIB).await.is_some());

        // Less than they use. What starts next starts under what holds.
        let less = Ceilings { memory_bytes: Some(64 * MIB), ..now };
        let [(_, limit, Some(refused))] = &said(Some(less))[..] else { panic!("it is taken") };
        assert_eq!(*limit, Some(512 * MIB));
        assert!(refused.starts_with("it uses "), "{refused}");
        stage.restart("b").expect("it is in the plan");
        stage.up("b").await;
        assert_eq!(stage.ceilings(), now);
        assert_eq!(said(None), [("memory", Some(512 * MIB), None)]);
        stage.end().await;
    });
}
