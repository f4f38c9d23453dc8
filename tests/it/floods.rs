//! Memory: whatever a plugin sends, the supervisor keeps a bounded part of it.

use plugbay_supervisor::{PluginPlan, plan::RestartWhen};
use serde_json::json;

use crate::{
    alone::alone,
    stage::{holds, within},
    world::{World, peak_memory, trace},
};

/// What may be added to the peak by any flood: two frames of the largest size, and
/// room for the allocator's own.
const MARGIN: u64 = 24 << 20;

fn plan(world: &World, mode: &str) -> PluginPlan {
    let mut plan = world.plugin("p", mode);
    plan.restart.when = RestartWhen::Never;
    plan.prefix = Some("p".into());
    plan
}

/// Runs one flood to its end, `flooded` in the trace or the plugin's death, while
/// it and a sibling are called, and returns by how much the peak has grown.
async fn flood(world: &World, mode: &str) -> u64 {
    let file = world.path("trace");
    let mode = format!("{mode} life=300 trace={}", file.display());
    let stage = world.supervise([plan(world, &mode), world.plugin("sibling", "good life=300")]);
    stage.up("sibling").await;
    stage.call("echo", json!({})).await.expect("the sibling answers");
    let before = peak_memory();
    within("an answer", stage.ready("p")).await.ok();
    let over = || 0 < stage.exits("p") || trace(&file).iter().any(|(_, it)| it == "flooded");
    within("the end of the flood", async {
        while !over() {
            stage.call("echo", json!({})).await.expect("the sibling answers");
            // Its answers come through the flood; it may also be dead.
            stage.call("p_echo", json!({})).await.ok();
        }
    })
    .await;
    let grown = peak_memory() - before;
    stage.end().await;
    grown
}

macro_rules! bounded {
    ($($name:ident: $mode:expr;)*) => {$(
        #[test]
        fn $name() {
            alone(async |world| {
                let grown = flood(world, $mode).await;
                assert!(grown < MARGIN, "the peak grew by {grown} bytes");
            });
        }
    )*};
}

bounded! {
    a_flood_of_small_notes_is_bounded: "flood-stdout n=300000";
    a_flood_of_the_largest_notes_is_bounded: "flood-big-notes n=300";
    a_flood_of_unknown_frames_is_bounded: "flood-unknown n=200000";
    a_flood_of_noise_is_bounded: "flood-garbage n=20000";
    a_flood_of_pings_nobody_takes_the_answers_of_is_bounded: "flood-pings deaf=1 n=1000000";
    a_flood_of_ends_for_nobody_is_bounded: "flood-ends n=100000";
    a_flood_of_calls_to_the_host_is_bounded: "flood-calls n=100000";
    a_flood_of_stderr_is_bounded: "flood-stderr bytes=100000000";
    a_flood_of_stderr_without_a_line_end_is_bounded: "flood-stderr bytes=100000000 line=0";
    a_frame_that_claims_four_gigabytes_is_refused_by_its_header: "huge-frame send=1000000";
}

#[test]
fn a_flood_of_progress_is_bounded_and_the_call_ends() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "flood-progress life=300")]);
        stage.up("p").await;
        let before = peak_memory();
        // Nobody asks for it, and somebody slow does.
        let call = plugbay_supervisor::Call::new("sleep", json!({ "ms": 1000 }))
            .on_progress(|_| std::thread::sleep(std::time::Duration::from_micros(50)));
        let caller = plugbay_supervisor::Caller::trusted("test");
        let (slow, deaf) =
            futures::join!(stage.send(&caller, call), stage.call("sleep", json!({ "ms": 1000 })),);
        slow.expect("it ends");
        deaf.expect("it ends");
        let grown = peak_memory() - before;
        assert!(grown < MARGIN, "the peak grew by {grown} bytes");
        stage.end().await;
    });
}

/// Nobody reads what is queued for a plugin that reads nothing: what waits is
/// bounded by the calls that may run.
#[test]
fn a_plugin_that_reads_nothing_costs_no_more_than_the_calls_it_may_have() {
    alone(async |world| {
        let mut plan = world.plugin("p", "stops-reading life=300");
        (plan.limits.concurrency, plan.limits.queue) = (4, 4);
        plan.timeouts.drain = std::time::Duration::from_millis(200);
        plan.timeouts.exit_grace = std::time::Duration::from_millis(100);
        plan.timeouts.eof_grace = std::time::Duration::from_millis(100);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let before = peak_memory();
        for _ in 0..200 {
            let call =
                plugbay_supervisor::Call::new("echo", json!({ "text": "x".repeat(500_000) }));
            let call = call.deadline(std::time::Duration::from_millis(5));
            stage.send(&plugbay_supervisor::Caller::trusted("test"), call).await.ok();
        }
        let grown = peak_memory() - before;
        assert!(grown < MARGIN, "the peak grew by {grown} bytes");
        stage.end().await;
    });
}

/// The call's own memory goes with it: ten thousand calls that time out or are
/// answered leave as much as a hundred do.
#[test]
fn calls_leave_nothing_in_memory() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good life=300");
        plan.limits.queue = 1000;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let round = async |calls: usize| {
            for _ in 0..calls {
                let call = plugbay_supervisor::Call::new("sleep", json!({ "ms": 2 }));
                let call = call.deadline(std::time::Duration::from_millis(1));
                let trusted = plugbay_supervisor::Caller::trusted("test");
                let late = stage.send(&trusted, call);
                let echo = stage.call("echo", json!({ "text": "x".repeat(10_000) }));
                let (late, echo) = futures::join!(late, echo);
                drop((late, echo.expect("it answers")));
            }
        };
        round(100).await;
        let before = peak_memory();
        round(3000).await;
        let grown = peak_memory() - before;
        // The test itself writes every fact down, about 500 bytes a call.
        assert!(grown < 8 << 20, "the peak grew by {grown} bytes");
        holds("every place to be given back", || stage.inside("p") == 0).await;
        stage.end().await;
    });
}
