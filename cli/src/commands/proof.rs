//! `plugbay limits test`: each limit, and a program that goes over it.

use std::{
    fs::{self, DirBuilder, File},
    io::Write,
    os::unix::fs::DirBuilderExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use plugbay_supervisor::{
    Fact, NotReady, PluginPlan, Supervisor,
    plan::{Ceilings, FileGrant, Item, Level, Plan, STATE},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    args::{ProbeLimits, TestLimits},
    exit::Exit,
    render::{BAD, GOOD, Screen, tools::styled},
    trouble::{Outcome, Trouble},
};

const MIB: u64 = 1 << 20;
/// What each probe is allowed.
const MEMORY: u64 = 64 * MIB;
const FILE: u64 = MIB;
const FILES: u32 = 32;
const PROCESSES: u32 = 16;
const CPU_PERCENT: u32 = 20;
/// For how long a probe works, of which it may have a fifth.
const WORK: Duration = Duration::from_secs(1);
/// What a probe writes to its log at once, and what of that may be passed on in a second.
const LOG: u64 = MIB;
const LOG_RATE: u64 = 64 << 10;
/// How long a probe waits to be found out.
const STATE_WAIT: Duration = Duration::from_secs(40);

/// One limit, of a plugin or of all: how it is set, and what shows that it holds.
struct Proof {
    limit: &'static str,
    set: fn(&mut PluginPlan, &mut Ceilings),
    /// What a probe that was stopped there says, or what is said of its end.
    holds: fn(kind: &str, said: &str) -> bool,
}

/// What the first period gives comes on top; on a busy machine it is less.
fn is_little(_: &str, said: &str) -> bool {
    let spent = said.split_whitespace().next().and_then(|it| it.parse::<u64>().ok());
    spent.is_some_and(|it| it < 500)
}

const PROOFS: &[Proof] = &[
    Proof {
        limit: "memory",
        set: |plan, _| plan.limits.memory_bytes = Some(MEMORY),
        holds: |kind, _| kind == "out_of_memory",
    },
    Proof {
        limit: "cpu",
        set: |plan, _| plan.limits.cpu_percent = Some(CPU_PERCENT),
        holds: is_little,
    },
    Proof {
        limit: "processes",
        set: |plan, _| plan.limits.processes = Some(PROCESSES),
        holds: |_, said| said.starts_with("refused after "),
    },
    Proof {
        limit: "open_files",
        set: |plan, _| plan.limits.open_files = Some(FILES),
        holds: |_, said| said.starts_with("refused after "),
    },
    Proof {
        limit: "file",
        set: |plan, _| plan.limits.file_bytes = Some(FILE),
        holds: |kind, _| kind == "file_too_large",
    },
    Proof {
        limit: "state",
        set: |plan, _| plan.limits.state_bytes = Some(FILE),
        holds: |kind, _| kind == "state_too_large",
    },
    // Files in memory: they count as memory, and are bounded also where that cannot be.
    Proof {
        limit: "tmp",
        set: |plan, _| {
            plan.limits.memory_bytes = Some(MEMORY);
            plan.sandbox.prefer = vec![Item::Memory];
        },
        holds: |kind, said| kind == "out_of_memory" || said.starts_with("refused after "),
    },
    Proof {
        limit: "stderr",
        set: |plan, _| plan.limits.stderr_bytes_per_second = LOG_RATE,
        holds: |_, said| said.starts_with(DROPPED),
    },
    Proof {
        limit: "host.memory",
        set: |_, all| all.memory_bytes = Some(MEMORY),
        holds: |kind, _| kind == "host_out_of_memory",
    },
    Proof {
        limit: "host.cpu",
        set: |_, all| all.cpu_percent = Some(CPU_PERCENT),
        holds: is_little,
    },
    Proof {
        limit: "host.processes",
        set: |_, all| all.processes = Some(PROCESSES),
        holds: |_, said| said.starts_with("refused after "),
    },
];

/// The kind of reason of a plugin that this machine cannot hold to its limit.
const NOT_ISOLATED: &str = "not_isolated";
/// How it begins what is said of a log of which a part was dropped.
const DROPPED: &str = "dropped ";

/// What became of one.
#[derive(Debug, Serialize)]
struct Result {
    limit: &'static str,
    holds: bool,
    /// Why it cannot be had here, which is no fault of ours.
    lack: Option<String>,
    said: String,
}

pub(super) async fn test(args: &TestLimits, screen: &Screen) -> Outcome {
    let program = std::env::current_exe().ok().and_then(|it| it.to_str().map(str::to_owned));
    let program = program.ok_or_else(|| {
        Trouble::new(Exit::Bad, "cannot tell where this program is, which the test runs again")
    })?;
    let mut results = Vec::new();
    for proof in PROOFS {
        results.push(prove(proof, &program).await?);
    }
    if args.json {
        screen.json(&json!({ "limits": results }))?;
    } else {
        screen.data(&table(&results))?;
    }
    let is_wrong = |it: &Result| !it.holds && it.lack.is_none();
    Ok(if results.iter().any(is_wrong) { Exit::Bad } else { Exit::Fine })
}

/// Runs the probe, which never says hello: how it ends is what is looked at.
async fn prove(proof: &Proof, program: &str) -> Outcome<Result> {
    let deed = proof.limit.trim_start_matches("host.");
    let command = [program, "limits", "probe", deed].map(str::to_owned);
    let mut plan = PluginPlan::new("probe", command.to_vec(), "/");
    plan.sandbox.level = Level::Standard;
    plan.restart.budget = 0;
    let kept = std::env::temp_dir().join(format!("plugbay-limits-{}", std::process::id()));
    if proof.limit == "state" {
        // Ours, and not one that somebody has put there.
        DirBuilder::new().mode(0o700).create(&kept).map_err(|error| {
            Trouble::new(Exit::Bad, format!("cannot make {}: {error}", kept.display()))
        })?;
        plan.env.insert(STATE.to_owned(), kept.display().to_string());
        plan.sandbox.files.push(FileGrant { path: kept.clone(), write: true, make: true });
        plan.timeouts.hello = 2 * STATE_WAIT;
    }
    let mut ceilings = Ceilings::default();
    (proof.set)(&mut plan, &mut ceilings);
    let builder = Supervisor::builder().plan(Plan { plugins: vec![plan], ceilings });
    let (mut events, mut lines) = (builder.events(), builder.stderr());
    let supervisor = builder.start();
    let supervisor = supervisor.map_err(|error| Trouble::new(Exit::Bad, error.to_string()))?;
    let ready = supervisor.ready("probe").await;
    supervisor.shutdown().await;
    drop(supervisor);
    if proof.limit == "state" {
        fs::remove_dir_all(&kept).ok();
    }
    let (kind, reason, words) = match ready {
        Err(NotReady::Down { reason, last_words, .. }) => {
            // Quarantined at its first death, which is the one of interest.
            let reason = match &*reason {
                plugbay_supervisor::Reason::Quarantined { last, .. } => last.as_ref().clone(),
                reason => reason.clone(),
            };
            (reason.kind(), reason.to_string(), last_words.0)
        }
        Err(other) => ("", other.to_string(), String::new()),
        Ok(()) => ("", "it said hello".to_owned(), String::new()),
    };
    if kind == NOT_ISOLATED {
        let lack = Some(reason.clone());
        return Ok(Result { limit: proof.limit, holds: false, lack, said: reason });
    }
    let words = match proof.limit {
        "stderr" => {
            let mut passed = 0;
            while let Ok(line) = lines.recv().await {
                passed += line.line.0.len();
            }
            let mut dropped = 0;
            while let Some(event) = events.next().await {
                if let Fact::Dropped { what: "stderr bytes", count, .. } = event.fact {
                    dropped += count;
                }
            }
            match dropped {
                0 => format!("passed on {passed} bytes"),
                _ => format!("{DROPPED}{dropped} bytes of {LOG}, and passed on {passed}"),
            }
        }
        _ => words,
    };
    let words = words.trim();
    let holds = (proof.holds)(kind, words);
    let said = match words {
        "" => format!("it {reason}"),
        words => words.to_owned(),
    };
    Ok(Result { limit: proof.limit, holds, lack: None, said })
}

fn table(results: &[Result]) -> String {
    let rows: Vec<[String; 3]> = results
        .iter()
        .map(|it| {
            let answer = match (it.holds, &it.lack) {
                (true, _) => "holds",
                (false, None) => "does not hold",
                (false, Some(_)) => "cannot be had here",
            };
            [it.limit.to_owned(), answer.to_owned(), it.said.clone()]
        })
        .collect();
    let style = |row: usize, column: usize| match (column, &results[row]) {
        (1, Result { holds: true, .. }) => Some(GOOD),
        (1, Result { lack: None, .. }) => Some(BAD),
        _ => None,
    };
    styled(&rows, style)
}

/// Goes over one limit, and says on stderr how far it came.
pub(super) fn probe(args: &ProbeLimits) -> Outcome {
    let said = match args.deed.as_str() {
        "memory" => {
            let mut kept = Vec::new();
            for _ in 0..4 * MEMORY / MIB {
                // Written, not only reserved.
                kept.push(std::hint::black_box(vec![1_u8; MIB as usize]));
            }
            format!("was given {} MiB", kept.len())
        }
        "cpu" => {
            let start = Instant::now();
            while start.elapsed() < WORK {
                std::hint::black_box(start);
            }
            let spent = getrusage(UsageWho::RUSAGE_SELF)
                .map_or(0, |it| it.user_time().tv_sec() * 1000 + it.user_time().tv_usec() / 1000);
            format!("{spent} ms of processor time within {} ms", WORK.as_millis())
        }
        "processes" => until_refused(2 * PROCESSES as usize, |_| {
            let this = std::env::current_exe()?;
            let mut command = Command::new(this);
            command.args(["limits", "probe", "wait"]).stdin(Stdio::piped());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        }),
        // Ends when its parent does, whose end of the pipe it reads.
        "wait" => {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).ok();
            return Ok(Exit::Fine);
        }
        "open_files" => until_refused(2 * FILES as usize, |_| File::open("/dev/null")),
        "file" => {
            let piece = vec![1_u8; 64 << 10];
            let written = File::create("/tmp/probe")
                .and_then(|mut file| (0..64).try_for_each(|_| file.write_all(&piece)));
            outcome(64, written.err())
        }
        // No file is larger than it may be, and all together are.
        "tmp" => {
            let piece = vec![1_u8; MIB as usize];
            let most = (2 * MEMORY / MIB) as usize;
            until_refused(most, |n| fs::write(format!("/tmp/probe-{n}"), &piece))
        }
        "stderr" => {
            let line = format!("{}\n", "x".repeat(1023));
            let written =
                (0..LOG >> 10).try_for_each(|_| std::io::stderr().write_all(line.as_bytes()));
            outcome((LOG >> 10) as usize, written.err())
        }
        "state" => {
            let folder = std::path::PathBuf::from(std::env::var_os(STATE).unwrap_or_default());
            let written = fs::write(folder.join("probe"), vec![1; 4 * FILE as usize]);
            // It is ended at the next look.
            std::thread::sleep(STATE_WAIT);
            outcome(4, written.err())
        }
        other => return Err(Trouble::usage(format!("there is no limit {other:?}"))),
    };
    eprintln!("{said}");
    Ok(Exit::Bad)
}

/// Takes one after the other and keeps them all, until the system gives no more.
fn until_refused<T>(most: usize, mut next: impl FnMut(usize) -> std::io::Result<T>) -> String {
    let mut given = Vec::new();
    let refused = loop {
        if given.len() == most {
            break None;
        }
        match next(given.len()) {
            Ok(it) => given.push(it),
            Err(error) => break Some(error),
        }
    };
    outcome(given.len(), refused)
}

fn outcome(count: usize, refused: Option<std::io::Error>) -> String {
    match refused {
        Some(error) => format!("refused after {count}: {error}"),
        None => format!("was given {count}"),
    }
}
