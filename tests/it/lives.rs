//! Up and down: idle stop, stop, restart, resume and shutdown in every state.

use std::{fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use plugbay_supervisor::{CallError, Fact, NotReady, PluginPlan, Reason, State, digest_of};
use serde_json::json;

use crate::{
    alone::alone,
    calls::declared,
    stage::{Stage, brief, holds, within},
    world::{World, trace},
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn sleepy(world: &World, mode: &str, idle: Duration) -> PluginPlan {
    let mut plan = declared(world, mode, &["echo", "sleep", "state"]);
    plan.idle.stop_after = Some(idle);
    plan
}

#[test]
fn a_plugin_nobody_uses_goes_to_sleep_stays_listed_and_is_woken_by_a_call() {
    alone(async |world| {
        let stage = world.supervise([sleepy(world, "good", ms(50))]);
        stage.up("p").await;
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("idle_stop", Some("close")));
        stage.until("p", State::Dormant).await;
        assert_eq!(world.processes().len(), 0);
        let tool = stage.registry.tool("echo").expect("it stays listed");
        assert_eq!(tool.state, State::Dormant);
        stage.call("echo", json!({})).await.expect("it wakes");
        assert_eq!(stage.starts("p"), 2);
        stage.end().await;
    });
}

#[test]
fn a_discovered_tool_stays_listed_while_its_plugin_sleeps() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.idle.stop_after = Some(ms(50));
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let generation = stage.registry.tool("echo").expect("listed").generation;
        stage.until("p", State::Dormant).await;
        stage.call("echo", json!({})).await.expect("it wakes");
        assert_eq!(
            stage.registry.tool("echo").expect("listed").generation,
            generation,
            "the same tool again"
        );
        stage.end().await;
    });
}

#[test]
fn a_running_call_keeps_a_plugin_awake_however_long_it_takes() {
    alone(async |world| {
        let stage = world.supervise([sleepy(world, "good", ms(20))]);
        stage.call("sleep", json!({ "ms": 400 })).await.expect("it answers");
        assert_eq!(stage.starts("p"), 1);
        stage.until("p", State::Dormant).await;
        stage.end().await;
    });
}

/// The moment at which a plugin falls asleep, hit again and again with calls: none
/// is lost, each ends once and well.
#[test]
fn no_call_is_lost_around_the_moment_a_plugin_falls_asleep() {
    alone(async |world| {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut luck = fastrand::Rng::with_seed(seed);
        let idle = ms(10);
        let stage = world.supervise([sleepy(world, "good", idle)]);
        let mut calls = 0;
        while stage.starts("p") < 20 || calls < 150 {
            let crowd = luck.usize(1..4);
            let answers = (0..crowd).map(|_| stage.call("echo", json!({ "text": "here" })));
            for answer in futures::future::join_all(answers).await {
                assert_eq!(answer.expect("it answers").text(), "here", "seed {seed}");
            }
            calls += crowd;
            // Mostly just before or after the moment.
            tokio::time::sleep(ms(8) + Duration::from_micros(luck.u64(0..5000))).await;
        }
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_has_work_of_its_own_is_left_awake_and_asked_again_later() {
    alone(async |world| {
        let file = world.path("trace");
        let mode = format!("busy-deactivate n=2 trace={}", file.display());
        let stage = world.supervise([sleepy(world, &mode, ms(30))]);
        stage.up("p").await;
        stage.until("p", State::Dormant).await;
        assert_eq!(stage.starts("p"), 1);
        let asked = trace(&file).into_iter().filter(|(_, it)| it.ends_with("plugin.deactivate"));
        assert_eq!(asked.count(), 3);
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_will_not_let_go_while_idle_is_ended_all_the_same() {
    alone(async |world| {
        for mode in
            ["ignores-deactivate", "deactivate-error", "eof at=draining", "crash at=draining"]
        {
            let mut plan = sleepy(world, mode, ms(30));
            plan.timeouts.drain = ms(200);
            let stage = world.supervise([plan]);
            stage.up("p").await;
            stage.until("p", State::Dormant).await;
            stage.end().await;
        }
    });
}

#[test]
fn a_plugin_that_asks_to_be_replaced_serves_until_then_and_sleeps_until_the_next_call() {
    alone(async |world| {
        // It asks on its first call, long after it came up.
        let mut plan = declared(world, "retire at=call reason=max_calls", &["echo"]);
        plan.restart.first = ms(1);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        tokio::time::sleep(ms(5)).await;
        stage.call("echo", json!({})).await.expect("it serves until then");
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("retired", Some("close")));
        assert_eq!(reason.to_string(), "asked to be replaced (max_calls)");
        stage.call("echo", json!({})).await.expect("the next process serves");
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_asks_to_be_replaced_as_soon_as_it_is_up_is_not_started_for_ever() {
    alone(async |world| {
        let mut plan = declared(world, "retire", &["echo"]);
        (plan.restart.first, plan.restart.max, plan.restart.budget) = (ms(50), ms(50), 3);
        let stage = world.supervise([plan]);
        // Whoever calls is served, or waits for the next process, until patience is spent.
        let mut served = 0;
        while stage.call("echo", json!({})).await.is_ok() {
            served += 1;
            assert!(stage.starts("p") <= 4, "it is started for ever");
        }
        stage.until("p", State::Quarantined).await;
        assert_eq!(stage.starts("p"), 4);
        assert!(4 <= served, "each of its lives has served");
        stage.end().await;
    });
}

/// What to do to a plugin in some state, and where that must lead.
#[derive(Clone, Copy, Debug)]
enum Order {
    Stop,
    Restart,
    Resume,
    Shutdown,
    Drop,
}

/// A plugin brought into a state, by what the name says.
async fn bring(stage: &Stage, state: State) {
    match state {
        State::Dormant => {}
        State::Starting => {
            let here = stage.clone();
            tokio::spawn(async move {
                // Whatever becomes of it.
                here.ready("p").await.ok();
            });
            stage.until("p", State::Starting).await;
        }
        State::Stopped => stage.down("p").await,
        State::Backoff | State::Quarantined => {
            stage.ready("p").await.ok();
            stage.until("p", state).await;
        }
        State::Draining => {
            stage.up("p").await;
            stage.until("p", State::Draining).await;
        }
        State::Stopping => {
            stage.up("p").await;
            stage.until("p", State::Stopping).await;
        }
        _ => stage.up("p").await,
    }
}

fn plan_for(world: &World, state: State) -> PluginPlan {
    let mode = match state {
        State::Starting => "slow-activate ms=100",
        State::Backoff | State::Quarantined => "exits-early",
        State::Draining => "ignores-deactivate",
        State::Stopping => "ignores-close",
        _ => "good",
    };
    let mut plan = declared(world, mode, &["echo"]);
    (plan.restart.first, plan.restart.max) = (ms(60_000), ms(60_000));
    match state {
        State::Quarantined => plan.restart.budget = 0,
        State::Draining => {
            (plan.idle.stop_after, plan.timeouts.drain) = (Some(ms(1)), ms(300));
        }
        State::Stopping => {
            (plan.idle.stop_after, plan.timeouts.exit_grace) = (Some(ms(1)), ms(300));
        }
        _ => {}
    }
    plan
}

const STATES: [State; 8] = [
    State::Dormant,
    State::Starting,
    State::Active,
    State::Draining,
    State::Stopping,
    State::Backoff,
    State::Quarantined,
    State::Stopped,
];

#[test]
fn every_order_works_in_every_state() {
    alone(async |world| {
        for state in STATES {
            for order in [Order::Stop, Order::Restart, Order::Resume, Order::Shutdown, Order::Drop]
            {
                println!("{order:?} in {state}");
                let stage = world.supervise([plan_for(world, state)]);
                bring(&stage, state).await;
                let before = stage.starts("p");
                match order {
                    Order::Stop => {
                        stage.down("p").await;
                        assert_eq!(stage.state("p"), State::Stopped);
                        assert_eq!(stage.plugin("p").expect("there").pid, None);
                        let told = brief(&stage.call("echo", json!({})).await);
                        assert_eq!(told, "inactive stopped stopped, not run, never again");
                    }
                    Order::Restart => {
                        stage.restart("p").expect("it is in the plan");
                        holds("a new process", || before < stage.starts("p")).await;
                    }
                    Order::Resume => {
                        stage.resume("p").expect("it is in the plan");
                        let lifted = [State::Quarantined, State::Stopped].contains(&state);
                        if lifted {
                            stage.until("p", State::Dormant).await;
                        }
                        if state == State::Backoff {
                            holds("a new process", || before < stage.starts("p")).await;
                        }
                    }
                    Order::Shutdown | Order::Drop => {}
                }
                match order {
                    Order::Drop => drop(stage),
                    _ => {
                        stage.end().await;
                        assert_eq!(stage.state("p"), State::Stopped);
                        assert_eq!(world.processes().len(), 0, "{order:?} in {state}");
                    }
                }
                holds("nothing to be left", || world.processes().is_empty()).await;
            }
        }
    });
}

#[test]
fn an_order_for_a_plugin_that_is_not_in_the_plan_names_the_nearest() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("greeter", "good")]);
        let error = stage.restart("greter").expect_err("there is none");
        assert_eq!(
            error.to_string(),
            "no plugin is called \"greter\"; the nearest name is \"greeter\""
        );
        assert!(stage.stop("x").await.is_err() && stage.resume("x").is_err());
        let ready = stage.ready("x").await;
        assert!(matches!(ready, Err(NotReady::NoSuchPlugin(_))));
        stage.end().await;
    });
}

#[test]
fn a_stop_waits_for_running_calls_and_refuses_new_ones() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let running = stage.spawn("sleep", json!({ "ms": 300 }));
        stage.a_call_starts().await;
        let stopping = tokio::spawn({
            let stage = stage.clone();
            async move { stage.down("p").await }
        });
        stage.until("p", State::Draining).await;
        let told = brief(&stage.call("echo", json!({})).await);
        assert_eq!(told, "inactive draining stopped, not run, never again");
        assert_eq!(brief(&running.await.expect("it ends")), "ok");
        stopping.await.expect("it ends");
        assert_eq!(stage.state("p"), State::Stopped);
        stage.end().await;
    });
}

#[test]
fn ten_stops_at_once_are_one_and_all_return_when_it_is_down() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let stops = (0..10).map(|_| async {
            stage.down("p").await;
            assert_eq!(stage.state("p"), State::Stopped);
        });
        futures::future::join_all(stops).await;
        stage.exit("p").await;
        assert_eq!(stage.facts(|it| matches!(it, Fact::Exited { .. }).then_some(())).len(), 1);
        stage.end().await;
    });
}

#[test]
fn every_shutdown_of_several_returns_only_when_everything_is_gone() {
    alone(async |world| {
        let mut plan = world.plugin("p", "ignores-close");
        plan.timeouts.exit_grace = ms(200);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let shutdowns = (0..3).map(|_| async {
            stage.end().await;
            assert_eq!(stage.state("p"), State::Stopped);
            assert_eq!(world.processes().len(), 0);
        });
        futures::future::join_all(shutdowns).await;
    });
}

#[test]
fn a_stop_that_is_overtaken_by_a_restart_does_not_wait_for_ever() {
    alone(async |world| {
        let mut plan = world.plugin("p", "ignores-close");
        plan.timeouts.exit_grace = ms(200);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let stopping = tokio::spawn({
            let stage = stage.clone();
            async move { stage.down("p").await }
        });
        stage.until("p", State::Stopping).await;
        stage.restart("p").expect("it is in the plan");
        stopping.await.expect("it ends");
        stage.up("p").await;
        stage.end().await;
    });
}

/// One whose program is hashed for a good while, and is not what its digest says: read to its
/// end it would be refused.
fn slow_to_compare(world: &World) -> PluginPlan {
    let program = world.path("program");
    fs::write(&program, "small").expect("it is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut plan = world.program("p", vec![program.display().to_string()]);
    plan.digest = Some(digest_of(&plan).expect("it can be read").1);
    plan.timeouts.hello = Duration::from_secs(3600);
    let large = fs::OpenOptions::new().write(true).open(&program).expect("it is ours");
    large.set_len(512 << 20).expect("a sparse file");
    plan
}

/// What somebody is told who waits for it while it is ended.
async fn ended_by(stage: &Stage, orders: impl Future<Output = ()>) -> Arc<Reason> {
    let (ready, ()) = within("its end", futures::future::join(stage.ready("p"), orders)).await;
    let Err(NotReady::Down { reason, .. }) = ready else { panic!("it is no program") };
    reason
}

#[test]
fn a_plugin_whose_program_is_being_compared_hears_orders() {
    alone(async |world| {
        let stage = world.supervise([slow_to_compare(world)]);
        let orders = async {
            stage.until("p", State::Starting).await;
            assert_eq!(stage.hold("p").await.expect("it is there"), [], "nothing runs yet");
            assert_eq!(stage.state("p"), State::Starting);
            // It begins anew.
            stage.restart("p").expect("it is there");
            stage.until("p", State::Starting).await;
            stage.down("p").await;
        };
        let reason = ended_by(&stage, orders).await;
        assert!(["stopped", "restarted"].contains(&reason.kind()), "{reason}");
        assert_eq!((stage.state("p"), stage.starts("p")), (State::Stopped, 2));
        stage.end().await;
    });
}

#[test]
fn a_shutdown_does_not_wait_for_a_program_that_is_being_compared() {
    alone(async |world| {
        let stage = world.supervise([slow_to_compare(world)]);
        let end = async {
            stage.until("p", State::Starting).await;
            stage.shutdown_within(Duration::from_secs(3600)).await;
        };
        let reason = ended_by(&stage, end).await;
        assert_eq!(reason.kind(), "shutdown");
    });
}

#[test]
fn a_shutdown_does_not_wait_for_a_drain_that_began_before_it() {
    alone(async |world| {
        let mut plan = sleepy(world, "ignores-deactivate life=600", ms(20));
        plan.timeouts.drain = Duration::from_secs(3600);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        stage.until("p", State::Draining).await;
        within("the shutdown", stage.shutdown_within(ms(100))).await;
        assert_eq!(world.processes().len(), 0);
    });
}

#[test]
fn a_shutdown_gives_running_calls_their_time_and_then_takes_them_away() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let long = stage.spawn("sleep", json!({ "ms": 600_000 }));
        within("it to be sent", async { while stage.ask_state().await["open"] != 2 {} }).await;
        let short = stage.spawn("sleep", json!({ "ms": 500 }));
        // On a busy machine it may have ended before anybody looks.
        let sent = async { while stage.ask_state().await["open"] != 3 && !short.is_finished() {} };
        within("both to be sent", sent).await;
        within("the shutdown", stage.shutdown_within(Duration::from_secs(2))).await;
        assert_eq!(brief(&short.await.expect("it ends")), "ok");
        let long = long.await.expect("it ends");
        let CallError::Lost { reason, .. } = long.expect_err("it was taken away") else {
            panic!("it was taken away")
        };
        assert_eq!(reason.kind(), "shutdown");
        let told = brief(&stage.call("echo", json!({})).await);
        assert_eq!(told, "inactive stopped shutdown, not run, never again");
    });
}

#[test]
fn a_disabled_plugin_is_shown_and_never_started_and_offers_nothing() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo"]);
        plan.enabled = false;
        let stage = world.supervise([plan]);
        assert_eq!(stage.state("p"), State::Disabled);
        let told = brief(&stage.call("echo", json!({})).await);
        assert_eq!(told, "not found, not run, never again");
        assert!(within("an answer", stage.ready("p")).await.is_err());
        stage.down("p").await;
        stage.restart("p").expect("it is in the plan");
        assert_eq!((stage.state("p"), stage.starts("p")), (State::Disabled, 0));
        stage.end().await;
    });
}

#[test]
fn a_program_that_cannot_be_started_is_named_and_not_tried_again() {
    alone(async |world| {
        for (command, said) in [
            ("/nowhere/at/all", "is missing"),
            ("/etc/passwd", "is it executable"),
            ("relative", "not an absolute path"),
        ] {
            let mut plan = world.program("p", vec![command.into()]);
            plan.restart.first = ms(1);
            let stage = world.supervise([plan]);
            let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
            let NotReady::Down { reason, .. } = &error else { panic!("{error}") };
            assert_eq!(reason.kind(), "spawn_failed");
            assert!(error.to_string().contains(said), "{error}");
            assert!(error.to_string().contains(command), "{error}");
            assert_eq!((stage.state("p"), stage.starts("p")), (State::Quarantined, 1));
            stage.end().await;
        }
    });
}

#[test]
fn what_was_ordered_first_happens_first() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        for _ in 0..10 {
            stage.ready("p").await.expect("it comes up");
            stage.down("p").await;
            // Not one turn of the runtime lies between the two.
            stage.resume("p").expect("it is in the plan");
        }
        stage.ready("p").await.expect("it was resumed before it was wanted");
        stage.end().await;
    });
}
