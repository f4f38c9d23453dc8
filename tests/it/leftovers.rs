//! What is inherited, what is left, and what happens when nobody says goodbye.
//! That nothing is left is checked after each test, here are the ways to leave.

use std::collections::BTreeSet;

use plugbay_supervisor::{Call, Caller, State};
use serde_json::json;

use crate::{
    alone::alone,
    stage::{brief, holds, within},
};

#[test]
fn a_supervisor_that_is_dropped_takes_its_plugins_and_their_calls_with_it() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good"), {
            let mut plan = world.plugin("q", "slow-activate ms=600000 tools=late");
            plan.tools = vec![crate::calls::tool("late", plugbay_supervisor::Effect::Read)];
            plan.discover = false;
            plan
        }]);
        stage.up("p").await;
        let registry = stage.registry.clone();
        let call = |tool: &str, args| {
            let (registry, call) = (registry.clone(), Call::new(tool, args));
            tokio::spawn(async move { registry.call(&Caller::trusted("test"), call).await })
        };
        let running = call("sleep", json!({ "ms": 600_000 }));
        let waiting = call("late", json!({}));
        holds("both inside", || stage.inside("p") == 1 && stage.inside("q") == 1).await;
        stage.a_call_starts().await;
        stage.uncounted(3);
        drop(stage);
        let running = within("the running call", running).await.expect("it ends");
        assert_eq!(brief(&running), "lost shutdown, may have run, again if idempotent");
        let waiting = within("the waiting call", waiting).await.expect("it ends");
        assert_eq!(brief(&waiting), "lost shutdown, not run, again");
        holds("both processes to be gone", || world.processes().is_empty()).await;
        // Who still holds the registry is told, and wakes nobody.
        let caller = Caller::trusted("test");
        let late = registry.call(&caller, Call::new("echo", json!({})));
        let late = within("a late call", late).await;
        assert_eq!(brief(&late), "inactive stopped shutdown, not run, never again");
        assert_eq!(registry.tool("echo").expect("it is listed").state, State::Stopped);
    });
}

#[test]
fn a_supervisor_that_is_dropped_in_a_crowd_of_calls_ends_them_all() {
    alone(async |world| {
        for _ in 0..20 {
            let stage = world.supervise([world.plugin("p", "good")]);
            stage.up("p").await;
            let registry = stage.registry.clone();
            let calls = (0..20).map(|n| {
                let registry = registry.clone();
                let call = Call::new("sleep", json!({ "ms": n % 3 }));
                tokio::spawn(async move { registry.call(&Caller::trusted("test"), call).await })
            });
            let calls = calls.collect::<Vec<_>>();
            stage.a_call_starts().await;
            stage.uncounted(20);
            drop(stage);
            for call in calls {
                let answer = within("the end of a call", call).await.expect("it ends");
                let told = brief(&answer);
                assert!(told == "ok" || told.contains("shutdown"), "a call ended as {told}");
            }
        }
    });
}

#[test]
fn a_plugin_inherits_three_pipes_and_no_variable_that_was_not_given_to_it() {
    alone(async |world| {
        let given = crate::world::descriptors();
        let given = given.into_iter().filter(|(fd, _)| crate::world::is_inherited(*fd));
        let given = given.map(|(_, target)| target).collect::<BTreeSet<_>>();
        // Something to inherit, in case somebody let it.
        let file = std::fs::File::create(world.path("open")).expect("a writable folder");
        let mut plan = world.plugin("p", "good");
        plan.env.insert("GIVEN".into(), "yes".into());
        let stage = world.supervise([world.plugin("other", "good tools=text"), plan]);
        stage.up("other").await;
        stage.up("p").await;
        let env = stage.call("env", json!({})).await.expect("it answers").data.expect("data");
        let names = env["env"].as_object().expect("a map").keys().map(String::as_str);
        assert_eq!(
            names.collect::<BTreeSet<_>>(),
            BTreeSet::from(["GIVEN", "PLUGBAY_PROTOCOL", crate::world::MARK])
        );
        assert_eq!(env["dir"], world.path("").to_string_lossy().trim_end_matches('/'));
        let fds = stage.call("fds", json!({})).await.expect("it answers").data.expect("data");
        let fds = fds["fds"].as_object().expect("a map");
        // The fixture itself moves its pipes and opens the folder it reads.
        let others = fds.values().filter(|it| {
            let target = it.as_str().expect("a path");
            !target.starts_with("pipe:") && target != "/dev/null" && !target.contains("/fd")
        });
        assert_eq!(others.count(), 0, "{fds:?}");
        let pipes = fds.values().filter_map(|it| it.as_str()).filter(|it| it.starts_with("pipe:"));
        // Known: what this process was itself given without close-on-exec passes through.
        let given = given.iter().map(|it| it.to_str().expect("UTF-8")).collect::<BTreeSet<_>>();
        let own = pipes.filter(|it| !given.contains(it)).collect::<BTreeSet<_>>();
        assert_eq!(own.len(), 3, "{fds:?}");
        drop(file);
        stage.end().await;
    });
}

/// A pipe end that a sibling inherited would keep the dead plugin's stdout open.
#[test]
fn one_plugins_death_is_seen_while_its_younger_siblings_live() {
    alone(async |world| {
        let mut first = world.plugin("first", "good");
        first.prefix = Some("first".into());
        let stage = world.supervise([first, world.plugin("second", "good")]);
        stage.up("first").await;
        stage.up("second").await;
        let answer = stage.call("first_crash", json!({})).await;
        assert_eq!(brief(&answer), "lost crashed, may have run, again if idempotent");
        stage.call("echo", json!({})).await.expect("the second lives");
        stage.end().await;
    });
}

#[test]
fn a_plugin_has_a_group_of_its_own_and_no_signal_blocked() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let it = stage.call("pid", json!({})).await.expect("it answers").data.expect("data");
        assert_eq!(it["pid"], it["pgid"], "{it}");
        assert_eq!(it["blocked"], "0000000000000000", "{it}");
        stage.end().await;
    });
}

#[test]
fn a_hundred_lives_leave_no_descriptor_and_no_zombie() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.restart.first = std::time::Duration::ZERO;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let before = crate::world::descriptors().len();
        for life in 2..=100 {
            stage.restart("p").expect("it is in the plan");
            holds("the next life", || {
                stage.starts("p") == life && stage.state("p") == State::Active
            })
            .await;
        }
        stage.call("echo", json!({})).await.expect("it answers");
        assert_eq!(crate::world::descriptors().len(), before);
        assert_eq!(crate::world::zombies(), BTreeSet::new());
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_starts_with_its_supervisor_is_up_before_anybody_calls() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.idle.start_at_boot = true;
        let builder = plugbay_supervisor::Supervisor::builder().plugin(plan);
        let supervisor = builder.start().expect("the plan is sound");
        let up = || supervisor.plugin("p").expect("it is there").state == State::Active;
        holds("the plugin to be up", up).await;
        within("the shutdown", supervisor.shutdown()).await;
    });
}
