//! The same work through plugbay: a registry on one side, a plugin written with
//! the Rust SDK on the other, all features on.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use plugbay_sdk::{Context, Effect, Error, Plugin, Tool};
use plugbay_supervisor::{Call, Caller, PluginPlan, Registry, Supervisor, plan::Level};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{
    floor,
    harness::{Against, Budget, Figure, Measure, Promise, median, percentile},
};

/// The first argument of a plugin.
const PLUGIN: &str = "child-plugin";
/// Room for the large echo, on both sides.
const FRAME: u32 = 2 << 20;
const IDLE_PLUGINS: usize = 20;
/// Calls between two looks at the clock.
const BATCH: u64 = 16;

const fn against(
    name: &'static str,
    unit: &'static str,
    floor: &'static str,
    promise: Option<Promise>,
) -> Figure {
    Figure { name, unit, against: Some(Against { floor, promise }) }
}

pub(crate) const MEASURES: &[Measure] = &[
    Measure {
        name: "plugbay: one at a time",
        figures: &[
            against("plugbay, depth 1, p50", "us", floor::DEPTH_1, Some(Promise::AtMost(2.0))),
            against("plugbay, depth 1, p99", "us", floor::DEPTH_1_P99, None),
        ],
        run: depth_1,
    },
    Measure {
        name: "plugbay: 64 at once",
        figures: &[against(
            "plugbay, depth 64",
            "calls/s",
            floor::DEPTH_64,
            Some(Promise::AtLeast(0.25)),
        )],
        run: depth_64,
    },
    Measure {
        name: "plugbay: large echo",
        figures: &[against("plugbay, 1 MiB echo", "ms", floor::ECHO, Some(Promise::AtMost(1.6)))],
        run: echo,
    },
    Measure {
        name: "plugbay: spawn",
        figures: &[against(
            "plugbay, spawn to ready",
            "ms",
            floor::SPAWN,
            Some(Promise::AtMost(1.5)),
        )],
        run: |budget| spawn(budget, 10 << 20, Level::None),
    },
    Measure {
        name: "plugbay: spawn behind walls",
        figures: &[against(
            "plugbay, spawn to ready, standard",
            "ms",
            floor::SPAWN,
            Some(Promise::AtMost(2.5)),
        )],
        run: |budget| spawn(budget, 10 << 20, Level::Standard),
    },
    Measure {
        name: "plugbay: spawn behind strict walls",
        figures: &[against(
            "plugbay, spawn to ready, strict",
            "ms",
            floor::SPAWN,
            Some(Promise::AtMost(3.5)),
        )],
        run: |budget| spawn(budget, 10 << 20, Level::Strict),
    },
    Measure {
        name: "plugbay: spawn from a large parent",
        figures: &[against(
            "plugbay, spawn to ready, large parent",
            "ms",
            floor::SPAWN_LARGE,
            Some(Promise::AtMost(1.5)),
        )],
        run: |budget| spawn(budget, budget.ballast, Level::None),
    },
    Measure {
        name: "plugbay: memory",
        figures: &[
            Figure {
                name: "plugbay, host memory for each idle plugin",
                unit: "KiB",
                against: None,
            },
            against("plugbay, idle plugin, private memory", "KiB", floor::MEMORY, None),
        ],
        run: memory,
    },
];

// ── The plugin ─────────────────────────────────────────────────────────────────

#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: String,
}

async fn echo_text(_: Context, args: Echo) -> Result<String, Error> {
    Ok(args.text)
}

/// Runs the plugin if the arguments ask for it.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    if std::env::args().nth(1)? != PLUGIN {
        return None;
    }
    let plugin = Plugin::new("bench.plugin", "1.0.0")
        .concurrency(64)
        .frame_limit(FRAME)
        .tool(Tool::new("echo", echo_text).effect(Effect::Read));
    Some(plugin.run())
}

// ── The host ───────────────────────────────────────────────────────────────────

fn plan(name: String) -> anyhow::Result<PluginPlan> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let command = vec![program.display().to_string(), PLUGIN.to_owned()];
    let mut plan = PluginPlan::new(name, command, "/");
    plan.limits.concurrency = 64;
    plan.limits.frame_bytes = FRAME;
    plan.limits.result_bytes = FRAME as usize;
    Ok(plan)
}

/// Runs `work` on a runtime of one thread, against one plugin that is up.
fn with_plugin<T, F>(work: impl FnOnce(Registry, Caller) -> F) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>> + Send + 'static,
{
    runtime()?.block_on(async {
        let supervisor = Supervisor::builder().plugin(plan("bench".to_owned())?).start()?;
        supervisor.ready("bench").await?;
        // In a task, as an agent loop runs its calls: the future of `block_on` costs
        // one more system call for each time it is woken.
        let result = tokio::spawn(work(supervisor.registry(), Caller::trusted("bench"))).await?;
        supervisor.shutdown().await;
        result
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot make a runtime")
}

async fn echo_once(registry: &Registry, caller: &Caller, n: u64) -> anyhow::Result<()> {
    let text = format!("echo number {n}");
    let output = registry.call(caller, Call::new("echo", json!({ "text": text }))).await?;
    anyhow::ensure!(output.text() == text, "a wrong answer to {n}");
    Ok(())
}

fn depth_1(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let budget = *budget;
    with_plugin(async move |registry, caller| {
        let warm = Instant::now() + budget.time / 10;
        while Instant::now() < warm {
            echo_once(&registry, &caller, 1).await?;
        }
        let mut took = Vec::new();
        let end = Instant::now() + budget.time;
        while Instant::now() < end {
            let start = Instant::now();
            echo_once(&registry, &caller, took.len() as u64).await?;
            took.push(start.elapsed().as_secs_f64());
        }
        Ok(vec![percentile(&mut took, 0.50) * 1e6, percentile(&mut took, 0.99) * 1e6])
    })
}

fn depth_64(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let budget = *budget;
    with_plugin(async move |registry, caller| {
        let start = Instant::now();
        let (from, until) = (start + budget.time / 10, start + budget.time + budget.time / 10);
        let lanes = (0..64).map(|_| {
            let (registry, caller) = (registry.clone(), caller.clone());
            tokio::spawn(async move {
                let mut answered = 0_u64;
                loop {
                    for n in 0..BATCH {
                        echo_once(&registry, &caller, n).await?;
                    }
                    match Instant::now() {
                        now if until <= now => return anyhow::Ok(answered),
                        now if from <= now => answered += BATCH,
                        _ => {}
                    }
                }
            })
        });
        let mut answered = 0;
        for lane in lanes.collect::<Vec<_>>() {
            answered += lane.await??;
        }
        Ok(vec![answered as f64 / budget.time.as_secs_f64()])
    })
}

fn echo(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let budget = *budget;
    with_plugin(async move |registry, caller| {
        // A little less than 1 MiB of text, so that the payload with its frame is 1 MiB.
        let text: String =
            (0..(1 << 20) - 64).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        let mut took = Vec::new();
        let end = Instant::now() + budget.time;
        while took.len() < 5 || Instant::now() < end {
            let args = json!({ "text": text });
            let start = Instant::now();
            let output = registry.call(&caller, Call::new("echo", args)).await?;
            took.push(start.elapsed().as_secs_f64());
            anyhow::ensure!(output.text() == text, "the echo differs");
        }
        Ok(vec![median(&mut took) * 1e3])
    })
}

fn spawn(budget: &Budget, ballast: usize, level: Level) -> anyhow::Result<Vec<f64>> {
    // Written, not only reserved: it is resident.
    let ballast = std::hint::black_box(vec![0xA5_u8; ballast]);
    let took = runtime()?.block_on(async {
        // A plugin that sleeps and is woken: what its tools are is known.
        let mut plan = plan("bench".to_owned())?;
        plan.sandbox.level = level;
        let supervisor = Supervisor::builder().plugin(plan).start()?;
        let mut took = Vec::new();
        let end = Instant::now() + budget.time;
        while took.len() < 6 || Instant::now() < end {
            let start = Instant::now();
            supervisor.ready("bench").await?;
            took.push(start.elapsed().as_secs_f64());
            supervisor.stop("bench").await?;
            supervisor.resume("bench")?;
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        supervisor.shutdown().await;
        // The first start compiles the schemas of its tools.
        took.remove(0);
        anyhow::Ok(took)
    });
    drop(ballast);
    Ok(vec![median(&mut took?) * 1e3])
}

/// What idle plugins cost: pages of our own for each, and pages of theirs.
fn memory(_: &Budget) -> anyhow::Result<Vec<f64>> {
    runtime()?.block_on(async {
        let ours = || floor::private_kib(std::process::id());
        let (mut before, mut private) = (0.0, Vec::new());
        let mut supervisors = Vec::new();
        // The first few pay for what all share.
        for at in 0..IDLE_PLUGINS + 5 {
            if at == 5 {
                before = ours()?;
            }
            let name = format!("bench{at}");
            let supervisor = Supervisor::builder().plugin(plan(name.clone())?).start()?;
            supervisor.ready(&name).await?;
            let registry = supervisor.registry();
            echo_once(&registry, &Caller::trusted("bench"), 1).await?;
            supervisors.push((supervisor, name));
        }
        let each = (ours()? - before) / IDLE_PLUGINS as f64;
        for (supervisor, name) in supervisors {
            let pid = supervisor.plugin(&name)?.pid.context("the plugin is gone")?;
            private.push(floor::private_kib(pid)?);
            supervisor.shutdown().await;
        }
        Ok(vec![each, median(&mut private)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments that the measurements send are what the tools take.
    #[test]
    fn arguments_fit_their_tools() {
        assert!(serde_json::from_value::<Echo>(json!({ "text": "a" })).is_ok());
    }
}
