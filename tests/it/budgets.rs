//! Time budgets: the total, the silence, the grace after a cancel, and what they
//! cost the plugin.

use std::time::Duration;

use plugbay_supervisor::{
    Budget, Call, CallError, Caller, PluginPlan, Ran, State, manifest::adjust,
};
use serde_json::json;

use crate::{
    alone::alone,
    calls::declared,
    stage::{brief, holds},
    world::trace,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const LATE: &str = "timed out deadline, may have run, again if idempotent";
const SILENT: &str = "timed out idle, may have run, again if idempotent";

#[test]
fn one_slow_call_fails_alone_and_the_plugin_goes_on() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let trusted = Caller::trusted("test");
        let slow = Call::new("sleep", json!({ "ms": 60_000 })).deadline(ms(200));
        let (slow, ()) = futures::join!(stage.send(&trusted, slow), async {
            for _ in 0..100 {
                stage.call("echo", json!({})).await.expect("it is not slow");
            }
        });
        assert_eq!(brief(&slow), LATE);
        let Err(CallError::TimedOut { budget, waited, .. }) = slow else { panic!("{slow:?}") };
        assert_eq!((budget, waited), (Budget::Deadline, ms(200)));
        assert_eq!((stage.starts("p"), stage.state("p")), (1, State::Active));
        stage.end().await;
    });
}

#[test]
fn progress_resets_the_silence_and_never_the_total() {
    alone(async |world| {
        let mut plan = world.plugin("p", "chatty ms=10");
        plan.timeouts.drain = ms(100);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        // Many times the silence budget, all of it filled with progress.
        let call = Call::new("echo", json!({})).idle(ms(400)).deadline(ms(1500));
        let answer = stage.send(&Caller::trusted("test"), call).await;
        assert_eq!(brief(&answer), LATE);
        stage.end().await;
    });
}

#[test]
fn bounds_can_be_changed_while_a_plugin_runs() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let plan = || stage.plan("p").expect("it is there");
        let set = |change: &[(&str, &str)]| {
            let change: Vec<(String, String)> =
                change.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            let PluginPlan { limits, timeouts, .. } = adjust(&plan(), &change).expect("sound");
            stage.set_bounds("p", limits, timeouts).expect("it is there");
        };
        // This one says it once; `echo` gives it back as data too.
        let echo = |size| stage.call("text", json!({ "text": "x".repeat(size) }));
        // Those of calls hold from the next one on.
        echo(10_000).await.expect("it is small enough");
        set(&[("result", "2KiB")]);
        assert_eq!(brief(&echo(10_000).await), "result too large, run, never again");
        set(&[("result", "256KiB"), ("call", "200ms"), ("cancel", "100ms"), ("stop", "1s")]);
        let answer = stage.call("sleep", json!({ "ms": 60_000 })).await;
        assert_eq!(brief(&answer), "timed out idle, may have run, again if idempotent");
        set(&[("call", "30s"), ("calls", "1/min")]);
        echo(1).await.expect("the first of this minute");
        assert!(brief(&echo(1).await).starts_with("busy"));
        // Those of the connection hold for the next process.
        set(&[("calls", "100000/min"), ("frame", "64KiB"), ("result", "64KiB")]);
        echo(60_000).await.expect("a result of this size may still come");
        stage.restart("p").expect("it is there");
        holds("its second life", || stage.starts("p") == 2 && stage.state("p") == State::Active)
            .await;
        // The plugin itself knows that no frame holds it now.
        let answer = echo(70_000).await;
        assert!(matches!(answer, Err(CallError::Failed { .. })), "{answer:?}");
        echo(1).await.expect("it is well");
        let limits = plan().limits;
        assert_eq!((limits.frame_bytes, limits.calls_per_minute), (64 << 10, Some(100_000)));
        stage.end().await;
    });
}

#[test]
fn silence_ends_a_call_long_before_its_total() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let call = Call::new("sleep", json!({ "ms": 600_000 })).idle(ms(200));
        let answer = stage.send(&Caller::trusted("test"), call).await;
        assert_eq!(brief(&answer), SILENT);
        stage.end().await;
    });
}

#[test]
fn a_call_that_ends_its_progress_within_its_silence_is_not_cut_off() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        // Longer in all than the silence allows.
        let args = json!({ "n": 30, "every_ms": 100 });
        let call = Call::new("progress", args).idle(ms(2000));
        stage.send(&Caller::trusted("test"), call).await.expect("it reports in time");
        stage.end().await;
    });
}

#[test]
fn the_total_counts_the_start_of_the_plugin_too() {
    alone(async |world| {
        let stage = world.supervise([declared(world, "silent", &["echo"])]);
        let call = Call::new("echo", json!({})).deadline(ms(200));
        let answer = stage.send(&Caller::trusted("test"), call).await;
        assert_eq!(brief(&answer), "timed out deadline, not run, again");
        stage.end().await;
    });
}

#[test]
fn the_total_counts_the_wait_for_a_slot_too() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.limits.concurrency = 1;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let first = stage.spawn("sleep", json!({ "ms": 600_000 }));
        stage.a_call_starts().await;
        let call = Call::new("echo", json!({})).deadline(ms(200));
        let answer = stage.send(&Caller::trusted("test"), call).await;
        assert_eq!(brief(&answer), "timed out deadline, not run, again");
        first.abort();
        stage.end().await;
    });
}

#[test]
fn a_call_nobody_ends_after_its_cancel_costs_the_plugin_its_process_and_not_the_others_theirs() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        (plan.timeouts.cancel_grace, plan.restart.first) = (ms(200), ms(10));
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let call = Call::new("stubborn", json!({ "ms": 3_600_000 })).deadline(ms(100));
        let answer = stage.send(&Caller::trusted("test"), call).await;
        assert_eq!(brief(&answer), LATE);
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("call_stuck", Some("eof")), "without the long grace");
        stage.until("p", State::Active).await;
        stage.call("echo", json!({})).await.expect("the next process serves");
        assert_eq!(stage.starts("p"), 2);
        stage.end().await;
    });
}

#[test]
fn a_late_answer_to_a_call_that_timed_out_is_nobodys_and_harms_nobody() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let trusted = Caller::trusted("test");
        for _ in 0..20 {
            // It answers at about the time the budget runs out: either is right.
            let call = Call::new("stubborn", json!({ "ms": 20 })).deadline(ms(20));
            let late = brief(&stage.send(&trusted, call).await);
            assert!(late == "ok" || late == LATE, "{late}");
            let args = json!({ "text": "mine" });
            let mine = stage.call("echo", args).await.expect("it answers");
            assert_eq!(mine.text(), "mine");
        }
        assert_eq!(stage.starts("p"), 1);
        stage.end().await;
    });
}

#[test]
fn a_spent_budget_is_told_to_the_plugin_with_its_name() {
    alone(async |world| {
        let file = world.path("trace");
        let mode = format!("good trace={}", file.display());
        let stage = world.supervise([world.plugin("p", &mode)]);
        stage.up("p").await;
        let trusted = Caller::trusted("test");
        let sleep = || Call::new("sleep", json!({ "ms": 600_000 }));
        stage.send(&trusted, sleep().deadline(ms(50))).await.expect_err("late");
        stage.send(&trusted, sleep().idle(ms(50))).await.expect_err("silent");
        let cancels = || {
            let events = trace(&file).into_iter().map(|(_, event)| event);
            let words = events.filter_map(|it| {
                let mut words = it.split(' ').map(str::to_owned);
                (words.next()? == "cancel").then(|| words.nth(1)).flatten()
            });
            words.collect::<Vec<_>>()
        };
        holds("both cancels", || cancels() == ["deadline", "idle"]).await;
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_cannot_report_is_given_its_silence_as_the_whole() {
    alone(async |world| {
        let file = world.path("trace");
        let mut plan = world.plugin("p", &format!("serial trace={}", file.display()));
        plan.timeouts.call_idle = ms(200);
        plan.timeouts.cancel_grace = ms(200);
        plan.timeouts.eof_grace = ms(200);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let answer = stage.call("sleep", json!({ "ms": 3_600_000 })).await;
        let Err(CallError::TimedOut { ran: Ran::Unknown, .. }) = answer else {
            panic!("{answer:?}")
        };
        let (reason, _) = stage.exit("p").await;
        assert_eq!(reason.kind(), "call_stuck");
        stage.end().await;
        let doubt = trace(&file).into_iter().find(|(_, event)| event.starts_with("doubt"));
        assert_eq!(doubt, None);
    });
}
