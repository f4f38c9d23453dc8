//! Callers that leave: at any moment, and never at the cost of others.

use std::{sync::Arc, time::Duration};

use plugbay_supervisor::{Call, Caller, Fact};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    alone::alone,
    calls::declared,
    stage::{brief, holds},
    world::trace,
};

#[test]
fn dropping_a_call_cancels_it_in_the_plugin() {
    alone(async |world| {
        let file = world.path("trace");
        let stage = world.supervise([world.plugin("p", &format!("good trace={}", file.display()))]);
        stage.up("p").await;
        let call = stage.spawn("sleep", json!({ "ms": 600_000 }));
        stage.a_call_starts().await;
        call.abort();
        let told = |it: &str| it.starts_with("cancel ") && it.ends_with(" user");
        holds("the plugin to be told", || trace(&file).iter().any(|(_, it)| told(it))).await;
        let data = stage.ask_state().await;
        assert_eq!(data["cancels"], 1);
        stage.end().await;
    });
}

#[test]
fn a_caller_that_leaves_while_the_plugin_starts_or_while_it_waits_leaves_nothing() {
    alone(async |world| {
        let mut plan = declared(world, "slow-activate ms=300", &["echo", "sleep", "state"]);
        plan.limits.concurrency = 1;
        let stage = world.supervise([plan]);
        let starting = stage.spawn("echo", json!({}));
        stage
            .fact("the plugin to start", |fact| match fact {
                Fact::Spawned { .. } => Some(()),
                _ => None,
            })
            .await;
        starting.abort();
        assert!(starting.await.expect_err("it was given up").is_cancelled());
        stage.up("p").await;
        let running = stage.spawn("sleep", json!({ "ms": 600_000 }));
        stage.a_call_starts().await;
        let waiting = stage.spawn("echo", json!({}));
        let inside = || stage.inside("p");
        holds("the second call to wait", || inside() == 2).await;
        waiting.abort();
        assert!(waiting.await.expect_err("it was given up").is_cancelled());
        assert_eq!(inside(), 1);
        running.abort();
        let data = stage.ask_state().await;
        assert_eq!(data["calls"], 2, "neither of the two ever reached it");
        stage.end().await;
    });
}

/// The moment is drawn: before the start, in the queue, in the plugin, at the
/// answer, after it. Whatever it is, each call ends once, every place is given
/// back, the plugin is not suspected, and no answer reaches somebody else.
#[test]
fn five_hundred_calls_given_up_at_any_moment_confuse_nobody() {
    alone(async |world| {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut luck = fastrand::Rng::with_seed(seed);
        let mut plan = world.plugin("p", "good");
        (plan.limits.concurrency, plan.limits.queue) = (8, 600);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let crowd = Arc::new(Semaphore::new(24));
        let mut races = Vec::new();
        for n in 0..500 {
            let (ms, patience) = (luck.u64(0..4), luck.u64(0..6000));
            let kind = luck.u8(0..4);
            let (stage, crowd) = (stage.clone(), Arc::clone(&crowd));
            races.push(tokio::spawn(async move {
                let _turn = crowd.acquire().await.expect("it is never closed");
                let text = format!("race {n}");
                let (tool, args) = match kind {
                    0 => ("echo", json!({ "text": text })),
                    1 => ("sleep", json!({ "ms": ms })),
                    2 => ("stubborn", json!({ "ms": ms })),
                    _ => ("progress", json!({ "n": ms, "every_ms": 1 })),
                };
                let call = Call::new(tool, args).on_progress(|_| {});
                let trusted = Caller::trusted("racer");
                let call = stage.send(&trusted, call);
                let patience = Duration::from_micros(patience);
                match tokio::time::timeout(patience, call).await {
                    Ok(answer) => {
                        let output = answer.expect("it answers");
                        assert!(tool != "echo" || output.text() == text, "somebody else's answer");
                        1
                    }
                    Err(_) => 0,
                }
            }));
        }
        let mut answered = 0;
        for race in races {
            answered += race.await.expect("a race ends");
        }
        // Both happen, or this shows nothing.
        assert!((1..500).contains(&answered), "{answered} answered, seed {seed}");
        holds("every place to be given back", || stage.inside("p") == 0).await;
        let data = stage.ask_state().await;
        assert_eq!((&data["open"], &data["refused"]), (&json!(1), &json!(0)), "seed {seed}");
        assert_eq!(stage.starts("p"), 1, "seed {seed}");
        stage.end().await;
    });
}

#[test]
fn giving_up_a_hundred_calls_to_a_plugin_that_reads_nothing_blocks_nobody() {
    alone(async |world| {
        let mut deaf = world.plugin("p", "stops-reading");
        (deaf.limits.concurrency, deaf.limits.queue) = (64, 64);
        (deaf.timeouts.cancel_grace, deaf.timeouts.drain) =
            (Duration::from_millis(300), Duration::from_millis(300));
        (deaf.timeouts.exit_grace, deaf.timeouts.eof_grace) =
            (Duration::from_millis(100), Duration::from_millis(100));
        deaf.prefix = Some("deaf".into());
        let stage = world.supervise([deaf, world.plugin("sibling", "good")]);
        stage.up("p").await;
        stage.up("sibling").await;
        // More than a pipe holds, so that the outbox fills.
        let calls =
            [(); 100].map(|()| stage.spawn("deaf_echo", json!({ "text": "x".repeat(8000) })));
        stage.call("echo", json!({})).await.expect("the sibling answers");
        for call in &calls {
            call.abort();
        }
        stage.call("echo", json!({})).await.expect("the sibling answers");
        for call in calls {
            assert!(call.await.expect_err("it was given up").is_cancelled());
        }
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("call_stuck", Some("term")));
        stage.end().await;
    });
}

#[test]
fn a_call_that_timed_out_unsent_did_not_run_and_never_will() {
    alone(async |world| {
        let mut deaf = world.plugin("p", "stops-reading");
        deaf.limits.concurrency = 64;
        (deaf.timeouts.exit_grace, deaf.timeouts.eof_grace) =
            (Duration::from_millis(100), Duration::from_millis(100));
        deaf.timeouts.drain = Duration::from_millis(100);
        let stage = world.supervise([deaf]);
        stage.up("p").await;
        let mut told = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let call = Call::new("echo", json!({ "text": "x".repeat(8000) }));
            let call = call.deadline(Duration::from_millis(20));
            told.insert(brief(&stage.send(&Caller::trusted("test"), call).await));
        }
        assert_eq!(
            told.into_iter().collect::<Vec<_>>(),
            [
                "timed out deadline, may have run, again if idempotent",
                "timed out deadline, not run, again",
            ],
            "the pipe holds some of them, and the others never left"
        );
        stage.end().await;
    });
}
