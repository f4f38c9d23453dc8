//! Many calls at once: slots, the queue, the rate, and one start for all.

use std::time::Duration;

use plugbay_supervisor::{Call, CallError, Caller, Fact, State};
use serde_json::json;

use crate::{
    alone::alone,
    calls::declared,
    stage::{brief, holds},
};

fn started(fact: &Fact) -> Option<()> {
    matches!(fact, Fact::CallStarted { .. }).then_some(())
}

#[test]
fn a_hundred_callers_of_one_sleeping_plugin_start_one_process() {
    alone(async |world| {
        let mut plan = declared(world, "slow-activate ms=50", &["echo", "state"]);
        plan.limits.queue = 200;
        let stage = world.supervise([plan]);
        let text = |n: usize| format!("caller {n}");
        let calls = (0..100).map(|n| stage.spawn("echo", json!({ "text": text(n) })));
        for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(call.await.expect("it ends").expect("it answers").text(), text(n));
        }
        assert_eq!(stage.starts("p"), 1);
        let state = stage.ask_state().await;
        assert_eq!((&state["calls"], &state["activations"]), (&json!(101), &json!(1)));
        assert!(state["peak"].as_u64() <= Some(8), "never more than the concurrency: {state}");
        stage.end().await;
    });
}

#[test]
fn a_start_that_fails_answers_all_who_wait_and_is_not_repeated_for_each() {
    alone(async |world| {
        let mut plan = declared(world, "exits-early", &["echo"]);
        plan.limits.queue = 200;
        (plan.restart.first, plan.restart.jitter) = (Duration::from_secs(60), 0.0);
        let stage = world.supervise([plan]);
        let calls = (0..100).map(|_| stage.spawn("echo", json!({})));
        for call in calls.collect::<Vec<_>>() {
            let told = brief(&call.await.expect("it ends"));
            // Who comes after its death is told that it waits.
            assert!(
                told == "lost exited, not run, again"
                    || told == "inactive backoff exited, not run, again"
                    // Its stdout has ended, and it is not gone yet.
                    || told == "inactive stopping stdout_ended, not run, again",
                "{told}"
            );
        }
        assert_eq!(stage.starts("p"), 1);
        stage.end().await;
    });
}

#[test]
fn more_calls_than_may_run_wait_and_more_than_may_wait_are_refused() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        (plan.limits.concurrency, plan.limits.queue) = (3, 2);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let five = [(); 5].map(|()| stage.spawn("sleep", json!({ "ms": 600_000 })));
        let inside = || stage.inside("p");
        holds("five calls inside", || inside() == 5).await;
        assert_eq!(brief(&stage.call("echo", json!({})).await), "busy, not run, again");
        let running = stage.facts(started).len();
        assert!(running <= 3, "{running} run");
        for call in &five {
            call.abort();
        }
        holds("all places free", || inside() == 0).await;
        assert!(stage.ask_state().await["peak"].as_u64() <= Some(3));
        stage.end().await;
    });
}

/// Waiting calls get their turn in the order in which they came.
#[test]
fn the_queue_is_fair() {
    alone(async |world| {
        let mut plan = world.plugin("p", "serial");
        plan.limits.queue = 64;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut calls = Vec::new();
        for n in 0..20 {
            let (here, done) = (stage.clone(), std::sync::Arc::clone(&order));
            calls.push(tokio::spawn(async move {
                here.call("sleep", json!({ "ms": 20 })).await.expect("it answers");
                done.lock().expect("nobody panics").push(n);
            }));
            holds("the call to be inside", || {
                n < stage.inside("p") + order.lock().expect("nobody panics").len()
            })
            .await;
        }
        for call in calls {
            call.await.expect("it ends");
        }
        let order = order.lock().expect("nobody panics").clone();
        // Neighbours may swap: entering and queueing are two steps, and so are being
        // answered and saying so. Nobody is overtaken by more than that.
        let fair = order.iter().enumerate().all(|(at, n)| usize::abs_diff(at, *n) <= 1);
        assert!(fair, "{order:?}");
        stage.end().await;
    });
}

/// Who leaves does not make room: the plugin is still at work.
#[test]
fn a_slot_is_held_until_the_plugin_has_ended_the_call_though_its_caller_left() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        (plan.limits.concurrency, plan.limits.queue) = (1, 1);
        plan.timeouts.cancel_grace = Duration::from_secs(60);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let left = stage.spawn("stubborn", json!({ "ms": 600 }));
        stage.a_call_starts().await;
        left.abort();
        stage
            .fact("the call to be dropped", |fact| {
                matches!(fact, Fact::CallDropped { .. }).then_some(())
            })
            .await;
        assert_eq!(stage.inside("p"), 1, "it still has its place");
        let second = stage.spawn("state", json!({}));
        holds("the second call to wait", || stage.inside("p") == 2 || second.is_finished()).await;
        assert_eq!(brief(&stage.call("echo", json!({})).await), "busy, not run, again");
        let state = second.await.expect("it ends").expect("it answers").data.expect("data");
        assert_eq!((&state["peak"], &state["cancels"]), (&json!(1), &json!(1)), "{state}");
        stage.end().await;
    });
}

#[test]
fn a_rate_is_kept_and_a_call_refused_for_another_reason_costs_nothing_of_it() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo"]);
        plan.limits.calls_per_minute = Some(3);
        let stage = world.supervise([plan]);
        let stranger = Caller::new("stranger");
        for _ in 0..10 {
            let denied = stage.send(&stranger, Call::new("echo", json!({}))).await;
            assert_eq!(brief(&denied), "denied, not run, never again");
        }
        for _ in 0..3 {
            stage.call("echo", json!({})).await.expect("within the rate");
        }
        let error = stage.call("echo", json!({})).await.expect_err("over the rate");
        let CallError::Busy { why, after, .. } = &error else { panic!("{error}") };
        assert_eq!(why, "3 calls a minute are allowed");
        assert!(*after <= Duration::from_secs(20), "{after:?}");
        assert_eq!(stage.state("p"), State::Active);
        stage.end().await;
    });
}

/// A plugin that says a call did not run because it is going down gets it back,
/// but not for ever.
#[test]
fn a_call_that_a_draining_plugin_gives_back_is_sent_again_three_times_at_most() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let args = json!({ "code": "unavailable", "reason": "pb.draining", "retry": "safe" });
        let answer = stage.call("fail", args.clone()).await;
        assert_eq!(brief(&answer), "failed unavailable pb.draining, not run, again");
        assert_eq!(stage.ask_state().await["calls"], 5, "four times this call, and `state`");
        let args = json!({ "code": "unavailable", "reason": "pb.draining", "retry": "maybe" });
        stage.call("fail", args).await.expect_err("it may have run");
        assert_eq!(stage.ask_state().await["calls"], 7, "what may have run is not sent again");
        stage.end().await;
    });
}
