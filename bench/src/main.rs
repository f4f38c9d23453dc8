//! Measures plugbay against what the kernel allows, in one interleaved run.
//!
//! See `README.md` beside this for how to run it and what each figure means.

mod child;
mod floor;
mod frame;
mod harness;
mod plugbay;
mod report;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use harness::{Budget, Measure};

/// What is measured, floors first. Whoever measures something new adds a list.
const LISTS: &[&[Measure]] = &[floor::MEASURES, plugbay::MEASURES];

/// Measures plugbay against the raw pipe floor, interleaved.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Pin this process and all it starts to one core
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// How often the whole list is run through
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeats: usize,
    /// How long each measurement runs in each repeat
    #[arg(long, value_name = "MS", default_value_t = 300)]
    ms: u64,
    /// Run only measurements whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How much memory the parent holds for the figures of a large parent
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    ballast_mib: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a promised ratio is missed
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    // Before anything else: what a child does until its first byte is measured.
    if let Some(code) = child::run_if_asked().or_else(plugbay::run_if_asked) {
        return code;
    }
    match measure(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("plugbay-bench: {error:#}");
            ExitCode::from(70)
        }
    }
}

fn measure(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(core) = options.core {
        pin(core).with_context(|| format!("cannot pin to core {core}"))?;
    }
    let wanted =
        |measure: &&Measure| options.only.as_ref().is_none_or(|t| measure.name.contains(t));
    let measures: Vec<&Measure> = LISTS.iter().copied().flatten().filter(wanted).collect();
    anyhow::ensure!(!measures.is_empty(), "no measurement has such a name");
    let budget =
        Budget { time: Duration::from_millis(options.ms), ballast: options.ballast_mib << 20 };
    let report = harness::run(&measures, &budget, options.repeats.max(1), options.core)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    let missed = options.check && !report.keeps_its_promises();
    Ok(ExitCode::from(u8::from(missed)))
}

/// Pins this thread, and with it all threads and processes started later.
fn pin(core: usize) -> nix::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores)
}
