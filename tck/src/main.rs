//! `plugbay-tck`: the terminal's side of the judge.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use plugbay_tck::{
    baseline::Baseline,
    case::Subject,
    check::{Check, Mode, Stop},
    checks,
    host::{
        self,
        zoo::{Animal, Zoo},
    },
    probe::{Unfit, probe},
    process::Program,
    record,
    replay::replay,
    report::{Plugin, Report, html, human, machine},
    run::{Outcome, Status, run},
    settings::Settings,
    vectors,
    walk::{self, Walk},
};

/// Judges any executable against protocol 1.
///
/// Exit codes: 0 every MUST that applies is kept, 1 one is not, 2 wrong usage, 3 the subject could
/// not be tested, 4 the suite could not tell, 130 interrupted.
#[derive(Parser)]
#[command(name = "plugbay-tck", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Judge any plugin: all that can be seen without its help
    Plugin(Trial),
    /// Judge a fixture that provides contract tck: everything
    Sdk(Trial),
    /// Judge as a fixture if it is one, and as any plugin if not
    Run(Trial),
    /// Hold a recorded conversation again, and tell where the plugin answers otherwise
    ///
    /// Exit codes: 0 it answers as it did, 1 it does not, 2 wrong usage, 3 it cannot be started.
    Replay(Replay),
    /// Make a recorded random walk as short as it can be and still fail the same way
    ///
    /// Exit codes: 0 it was made shorter, 1 it does not fail any more, 2 wrong usage, 3 the subject
    /// could not be tested.
    Shrink(Shrink),
    /// Judge a supervisor: run the whole zoo of plugins against it, through an adapter
    Host(Host),
    /// Judge a codec or a receiver by the vectors of the spec, over lines of JSON
    Vectors(Vectors),
    /// List the checks
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell what a check does and which rules it judges
    Explain {
        /// Such as CN-04
        id: String,
    },
    /// Print the JSON Schema of what --json prints
    Schema,
    /// Print a script that completes commands in a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
struct Trial {
    /// Only these checks, such as CN-04
    #[arg(long = "check", value_name = "ID")]
    checks: Vec<String>,
    /// Only these groups, such as CN
    #[arg(long = "group", value_name = "LETTERS")]
    groups: Vec<String>,
    /// Not these checks or groups
    #[arg(long, value_name = "ID")]
    skip: Vec<String>,
    /// How to activate the plugin and what to call
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// What may fail for now, by check; what passes all the same fails the run
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write a baseline of all that fails; reasons that --baseline gives are kept
    #[arg(long, value_name = "FILE")]
    write_baseline: Option<PathBuf>,
    /// Repeats what was random in an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Checks that run at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Multiplies every wait, for slow machines
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// A SHOULD that is not kept fails the run
    #[arg(long)]
    strict: bool,
    /// Whole conversations of what failed, bodies too, for replay and shrink
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    telling: Telling,
    /// The plugin's program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
struct Host {
    /// Only these plugins of the zoo, such as CN-09, or groups of them, such as CN or benign
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Not these plugins or groups
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// Repeats what was random in an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plugins that are tried at the same time, each with a host of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Multiplies every wait, for slow machines
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    #[command(flatten)]
    telling: Telling,
    /// The adapter of the host, and its arguments
    #[arg(last = true, required = true, value_name = "ADAPTER")]
    command: Vec<String>,
}

/// What is told of a run, and where.
#[derive(Args)]
struct Telling {
    /// The report as JSON on stdout
    #[arg(long)]
    json: bool,
    /// The report as TAP 14 on stdout
    #[arg(long, conflicts_with = "json")]
    tap: bool,
    /// The report as JUnit XML into a file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The report as a page that needs nothing else, with pictures of what failed, into a file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A badge, as a shields.io endpoint takes it, into a file
    #[arg(long, value_name = "FILE")]
    badge: Option<PathBuf>,
    /// Annotations on stdout and a summary for the step, as GitHub takes them
    #[arg(long)]
    gh: bool,
    /// A line for every check, and whole conversations
    #[arg(long, short)]
    verbose: bool,
    /// Show bodies, which may be confidential
    #[arg(long)]
    bodies: bool,
}

#[derive(Args)]
struct Replay {
    /// Only the conversations of this check
    #[arg(long, value_name = "ID")]
    check: Option<String>,
    /// Its environment, from the same file as in the run
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Multiplies every wait, for slow machines
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// Show bodies, which may be confidential
    #[arg(long)]
    bodies: bool,
    /// What --record wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The plugin's program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
struct Shrink {
    /// Where the short walk is recorded; FILE.min if absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How often each shorter walk must fail to be taken
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    times: u8,
    /// How to activate the plugin
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Multiplies every wait while it is made shorter; the result is tried with twice that
    #[arg(long, value_name = "X", default_value_t = 0.25, value_parser = scale)]
    time_scale: f64,
    /// What --record wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The plugin's program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
struct Vectors {
    /// Only what a codec alone can judge, that knows nothing of calls
    #[arg(long)]
    codec: bool,
    /// Only what this side reads
    #[arg(long, value_name = "SIDE", value_parser = ["host", "plugin"])]
    receiver: Option<String>,
    /// Only these, such as invalid/gap-missing
    #[arg(long = "vector", value_name = "ID")]
    ids: Vec<String>,
    /// Multiplies every wait, for slow machines
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = scale)]
    time_scale: f64,
    /// The report as JSON on stdout
    #[arg(long)]
    json: bool,
    /// The program that answers, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn scale(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number such as 2 or 0.5".to_owned())?;
    if (0.1..=100.0).contains(&number) { Ok(number) } else { Err("expected 0.1 to 100".into()) }
}

/// Something the user can mend.
struct Usage(String);

/// How long one check may take.
const BUDGET: Duration = Duration::from_secs(60);

const USAGE: u8 = 2;
const UNFIT: u8 = 3;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Plugin(trial) => judge(&trial, Some(Mode::Plugin)),
        Command::Sdk(trial) => judge(&trial, Some(Mode::Sdk)),
        Command::Run(trial) => judge(&trial, None),
        Command::Replay(asked) => told(replayed(&asked)),
        Command::Shrink(asked) => told(shrunk(&asked)),
        Command::Host(asked) => told(judge_host(&asked)),
        Command::Vectors(vectors) => told(judge_vectors(&vectors)),
        Command::List { json } => list(json),
        Command::Explain { id } => explain(&id),
        Command::Schema => {
            print!("{}", machine::SCHEMA);
            ExitCode::SUCCESS
        }
        Command::Completions { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            clap_complete::generate(shell, &mut command, "plugbay-tck", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn judge(trial: &Trial, mode: Option<Mode>) -> ExitCode {
    told(judged(trial, mode))
}

fn told(outcome: Result<u8, Usage>) -> ExitCode {
    match outcome {
        Ok(code) => code.into(),
        Err(Usage(what)) => {
            anstream::eprintln!("\x1b[31merror\x1b[0m: {what}");
            USAGE.into()
        }
    }
}

fn judged(trial: &Trial, mode: Option<Mode>) -> Result<u8, Usage> {
    let settings = settings(trial.settings.as_deref())?;
    let checks = chosen(trial)?;
    let baseline = baseline(trial, &checks)?;
    let interrupted = interruptible();
    let env: BTreeMap<String, String> = settings.env.clone();
    let found = Program::find(&trial.command, env).map_err(|why| Unfit {
        seen: why.0,
        help: "the program and its arguments come after --",
        stderr: String::new(),
        interrupted: false,
    });
    let probed = found.and_then(|program| {
        let profile = probe(&program, &settings, trial.time_scale, &interrupted)?;
        Ok((program, profile))
    });
    let (program, profile) = match probed {
        Ok(both) => both,
        Err(unfit) if unfit.interrupted => return Ok(INTERRUPTED),
        Err(unfit) => {
            return Ok(tell_unfit(&trial.command, trial.telling.json, trial.telling.tap, &unfit));
        }
    };
    let is_fixture = profile.kinds().contains("tck");
    if mode == Some(Mode::Sdk) && !is_fixture {
        let unfit = Unfit {
            seen: format!("{} provides nothing of kind tck, so it is no fixture", profile.name),
            help: "judge it as any plugin: plugbay-tck plugin -- …",
            stderr: String::new(),
            interrupted: false,
        };
        return Ok(tell_unfit(&trial.command, trial.telling.json, trial.telling.tap, &unfit));
    }
    let mode = mode.unwrap_or(if is_fixture { Mode::Sdk } else { Mode::Plugin });
    let seed = trial.seed.unwrap_or_else(|| fastrand::u64(..1 << 53));
    let plugin = Plugin::new(&trial.command, &profile);
    let subject = Subject {
        program,
        mode,
        settings,
        profile,
        scale: trial.time_scale,
        budget: BUDGET,
        record: trial.record.is_some(),
        interrupted,
    };
    let progress = Progress::new(checks.len(), "checks", &trial.telling);
    let mut results =
        run(&subject, &checks, seed, trial.jobs.into(), &|outcome| progress.heard(outcome));
    progress.clear();
    baseline.apply(&mut results);
    let (summary, stale) = (Report::count(&results), Report::stale(&results));
    let report = Report {
        tck: env!("CARGO_PKG_VERSION"),
        spec: "1.0",
        mode,
        plugin,
        seed,
        time_scale: trial.time_scale,
        results,
        stale,
        summary,
        again: again(trial, seed),
    };
    tell(&trial.telling, &report)?;
    if subject.interrupted.load(Ordering::Relaxed) {
        return Ok(INTERRUPTED);
    }
    if let Some(path) = &trial.record {
        let all = report.results.iter().filter_map(|it| it.recording.as_ref());
        record::save(path, all).map_err(|error| Usage(format!("{}: {error}", path.display())))?;
    }
    if let Some(path) = &trial.write_baseline {
        save(path, Baseline::write(&report.results))?;
    }
    Ok(report.exit_code(trial.strict))
}

fn settings(path: Option<&Path>) -> Result<Settings, Usage> {
    path.map_or_else(|| Ok(Settings::default()), |path| Settings::load(path).map_err(Usage))
}

fn baseline(trial: &Trial, checks: &[&'static Check]) -> Result<Baseline, Usage> {
    let Some(path) = &trial.baseline else { return Ok(Baseline::default()) };
    let baseline = Baseline::load(path).map_err(Usage)?;
    let untried = baseline.untried(checks);
    if untried.is_empty() {
        return Ok(baseline);
    }
    let (path, untried) = (path.display(), untried.join(", "));
    Err(Usage(format!(
        "{path} lists {untried}, which this run would not try; leave out --baseline or choose more checks"
    )))
}

/// The command that repeats one check; its id takes the place of `{check}`.
fn again(trial: &Trial, seed: u64) -> String {
    let mut words = vec!["plugbay-tck run --check {check}".to_owned(), format!("--seed {seed}")];
    if let Some(path) = &trial.settings {
        words.push(format!("--settings {}", path.display()));
    }
    if (trial.time_scale - 1.0).abs() > f64::EPSILON {
        words.push(format!("--time-scale {}", trial.time_scale));
    }
    words.push("--verbose --".into());
    words.extend(trial.command.iter().map(|word| quote(word)));
    words.join(" ")
}

fn quote(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-./=:,@%+".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn chosen(trial: &Trial) -> Result<Vec<&'static Check>, Usage> {
    let groups: Vec<&str> = checks::GROUPS.iter().map(|(letters, ..)| *letters).collect();
    for id in trial.checks.iter().chain(&trial.skip) {
        let is_group = groups.iter().any(|it| it.eq_ignore_ascii_case(id));
        if checks::find(id).is_none() && !is_group {
            return Err(Usage(format!("there is no check {id}; `plugbay-tck list` shows all")));
        }
    }
    for group in &trial.groups {
        if !groups.iter().any(|it| it.eq_ignore_ascii_case(group)) {
            return Err(Usage(format!(
                "there is no group {group}; there are {}",
                groups.join(" ")
            )));
        }
    }
    let is = |check: &Check, word: &String| {
        check.id.eq_ignore_ascii_case(word) || check.group().eq_ignore_ascii_case(word)
    };
    let all = trial.checks.is_empty() && trial.groups.is_empty();
    let wanted = |check: &&Check| {
        let named = trial.checks.iter().chain(&trial.groups).any(|word| is(check, word));
        (all || named) && !trial.skip.iter().any(|word| is(check, word))
    };
    let chosen: Vec<&'static Check> = checks::all().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Usage("nothing is left to be tried".into()));
    }
    Ok(chosen)
}

fn tell_unfit(argv: &[String], json: bool, tap: bool, unfit: &Unfit) -> u8 {
    let command = argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    let seen = human::clean(&unfit.seen);
    if json {
        let value = serde_json::json!({
            "tck": env!("CARGO_PKG_VERSION"),
            "error": { "kind": "unfit", "seen": unfit.seen, "help": unfit.help, "command": argv },
        });
        println!("{value:#}");
    }
    if tap {
        println!("TAP version 14\nBail out! {seen}");
    }
    anstream::eprintln!("\x1b[31mnothing could be tested\x1b[0m: {seen}");
    let words: Vec<&str> = unfit.stderr.lines().rev().take(6).collect();
    if !words.is_empty() {
        anstream::eprintln!("   = its last words on stderr:");
        for line in words.iter().rev() {
            anstream::eprintln!("       | {}", human::clean(line));
        }
    }
    anstream::eprintln!("   = the subject was: {command}");
    anstream::eprintln!("   = help: {}", unfit.help);
    UNFIT
}

fn save(path: &Path, text: String) -> Result<(), Usage> {
    std::fs::write(path, text).map_err(|error| Usage(format!("{}: {error}", path.display())))
}

fn tell(telling: &Telling, report: &Report) -> Result<(), Usage> {
    if let Some(path) = &telling.junit {
        save(path, machine::junit(report))?;
    }
    if let Some(path) = &telling.html {
        save(path, html::page(report, telling.bodies))?;
    }
    if let Some(path) = &telling.badge {
        save(path, format!("{:#}\n", machine::badge(report)))?;
    }
    if telling.gh {
        // The log of a workflow is where commands to it stand.
        print!("{}", machine::annotations(report));
        if let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
            let told =
                file.and_then(|mut file| file.write_all(machine::summary(report).as_bytes()));
            told.map_err(|error| Usage(format!("{}: {error}", path.display())))?;
        }
    }
    let detail = human::Detail { verbose: telling.verbose, bodies: telling.bodies };
    if telling.json {
        println!("{:#}", machine::json(report, telling.bodies));
    } else if telling.tap {
        print!("{}", machine::tap(report));
    } else {
        anstream::print!("{}", human::render(report, detail));
    }
    Ok(())
}

fn interruptible() -> Arc<AtomicBool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).ok();
    }
    interrupted
}

/// Who cannot be started, as exit code 3 tells it.
fn not_started(seen: String) -> Unfit {
    let help = "the program and its arguments come after --";
    Unfit { seen, help, stderr: String::new(), interrupted: false }
}

fn replayed(asked: &Replay) -> Result<u8, Usage> {
    let settings = settings(asked.settings.as_deref())?;
    let mut all = record::load(&asked.file).map_err(Usage)?;
    if let Some(id) = &asked.check {
        all.retain(|it| it.head.check.eq_ignore_ascii_case(id));
        if all.is_empty() {
            return Err(Usage(format!("{} has nothing of {id}", asked.file.display())));
        }
    }
    let interrupted = interruptible();
    let program = match Program::find(&asked.command, settings.env) {
        Ok(program) => program,
        Err(why) => return Ok(tell_unfit(&asked.command, false, false, &not_started(why.0))),
    };
    let mut differing = 0;
    for recording in &all {
        let id = &recording.head.check;
        let replayed = match replay(&program, recording, asked.time_scale, &interrupted) {
            Ok(replayed) => replayed,
            Err(Stop::Interrupted) => return Ok(INTERRUPTED),
            Err(Stop::Fault(why)) => return Err(Usage(format!("{id}: {why}"))),
            Err(stop) => return Err(Usage(format!("{id}: {stop:?}"))),
        };
        let Some(difference) = &replayed.difference else {
            anstream::println!("\x1b[1m{id}\x1b[0m answers as it did");
            if let Some(failure) = &recording.head.failure {
                let (expected, seen) =
                    (human::clean(&failure.expected), human::clean(&failure.seen));
                anstream::println!("   expected  {expected}\n   saw       {seen}");
            }
            continue;
        };
        differing += 1;
        let at = difference.line.map_or("after the last line".into(), |at| format!("line {at}"));
        anstream::println!("\x1b[33m{id} answers otherwise\x1b[0m, {at}");
        for line in &replayed.lines[replayed.lines.len().saturating_sub(12)..] {
            anstream::println!("   {}", human::show(line, asked.bodies));
        }
        let shown = |text: &str| match asked.bodies {
            true => human::clean(text),
            false => human::clean(text.split(" with the body ").next().unwrap_or(text)),
        };
        let (recorded, seen) = (shown(&difference.recorded), shown(&difference.seen));
        anstream::println!("   recorded  {recorded}\n   now       {seen}");
        if recorded == seen {
            anstream::println!("   the bodies differ; --bodies shows them");
        }
    }
    Ok(u8::from(differing > 0))
}

fn shrunk(asked: &Shrink) -> Result<u8, Usage> {
    let settings = settings(asked.settings.as_deref())?;
    let file = asked.file.display();
    let all = record::load(&asked.file).map_err(Usage)?;
    let found = all.iter().find_map(|it| Some((&it.head, it.head.walk.as_ref()?)));
    let (head, walk) = found.ok_or_else(|| {
        Usage(format!(
            "{file} holds no random walk; RB-06 takes one, and only what fails is recorded"
        ))
    })?;
    let interrupted = interruptible();
    let probed = Program::find(&asked.command, settings.env.clone())
        .map_err(|why| not_started(why.0))
        .and_then(|program| {
            let profile = probe(&program, &settings, 1.0, &interrupted)?;
            Ok((program, profile))
        });
    let (program, profile) = match probed {
        Ok(both) => both,
        Err(unfit) if unfit.interrupted => return Ok(INTERRUPTED),
        Err(unfit) => return Ok(tell_unfit(&asked.command, false, false, &unfit)),
    };
    let mut subject = Subject {
        program,
        mode: Mode::Sdk,
        settings,
        profile,
        scale: asked.time_scale,
        budget: BUDGET,
        record: true,
        interrupted,
    };
    let failure = head.failure.clone().unwrap_or_default();
    let fault = walk::Fault::new(&head.check, &failure);
    let shown = std::io::stderr().is_terminal();
    let mut tries = 0_u32;
    let fails = |subject: &Subject, walk: &Walk, times: u8| {
        (0..times).try_fold(true, |all, _| Ok(all && walk.shows(&fault, subject)?.is_some()))
    };
    let stopped = |stop: Stop| match stop {
        Stop::Interrupted => Ok(INTERRUPTED),
        Stop::Fault(why) | Stop::Inconclusive(why) => Err(Usage(why)),
        other => Err(Usage(format!("{other:?}"))),
    };
    match fails(&subject, walk, 1) {
        Ok(true) => {}
        Ok(false) => {
            anstream::println!(
                "the walk of {} steps does not fail that way now: {fault}",
                walk.steps.len()
            );
            return Ok(1);
        }
        Err(stop) => return stopped(stop),
    }
    let short = walk::shrink(walk, |walk| {
        tries += 1;
        if shown {
            eprint!("\r\x1b[Ktry {tries}: {} steps", walk.steps.len());
        }
        fails(&subject, walk, asked.times)
    });
    if shown {
        eprint!("\r\x1b[K");
    }
    let short = match short {
        Ok(short) => short,
        Err(stop) => return stopped(stop),
    };
    subject.scale = (asked.time_scale * 2.0).min(100.0);
    let recording = match short.shows(&fault, &subject) {
        Ok(Some(recording)) => recording,
        Ok(None) => {
            let scale = asked.time_scale * 4.0;
            anstream::println!(
                "what is left fails only if nobody waits; try --time-scale {scale}, or --times 20"
            );
            return Ok(1);
        }
        Err(stop) => return stopped(stop),
    };
    let out = asked.out.clone().unwrap_or_else(|| {
        let mut name = asked.file.clone().into_os_string();
        name.push(".min");
        name.into()
    });
    record::save(&out, std::iter::once(&recording))
        .map_err(|error| Usage(format!("{}: {error}", out.display())))?;
    println!("{} of {} steps are enough:", short.steps.len(), walk.steps.len());
    for (at, step) in short.steps.iter().enumerate() {
        println!("{:>4}  {step}", at + 1);
    }
    if let Some(failure) = &recording.head.failure {
        let (expected, seen) = (human::clean(&failure.expected), human::clean(&failure.seen));
        println!("      expected  {expected}\n      saw       {seen}");
    }
    let command = asked.command.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    println!("again: plugbay-tck replay {} -- {command}", quote(&out.display().to_string()));
    Ok(0)
}

fn judge_host(asked: &Host) -> Result<u8, Usage> {
    let animals = animals(asked)?;
    let interrupted = interruptible();
    let seed = asked.seed.unwrap_or_else(|| fastrand::u64(..1 << 53));
    let jobs = asked.jobs.into();
    let terms = host::Terms { seed, scale: asked.time_scale, jobs, interrupted };
    let told = |unfit: &Unfit| {
        Ok(tell_unfit(&asked.command, asked.telling.json, asked.telling.tap, unfit))
    };
    let program = match Program::find(&asked.command, BTreeMap::new()) {
        Ok(program) => program,
        Err(why) => return told(&not_started(why.0)),
    };
    let zoo = match Zoo::open() {
        Ok(zoo) => zoo,
        Err(seen) => {
            let help = "the plugins of the zoo are programs for python3, which has to be in PATH";
            return told(&Unfit { help, ..not_started(seen) });
        }
    };
    let name = match host::probe(&program, &terms) {
        Ok(name) => name,
        Err((Stop::Interrupted, _)) => return Ok(INTERRUPTED),
        Err((stop, stderr)) => {
            let seen = match stop {
                Stop::Fail(failure) => {
                    format!("expected {}, saw {}", failure.expected, failure.seen)
                }
                other => format!("{other:?}"),
            };
            let help = "lines of JSON each way; see tck/HOST.md";
            return told(&Unfit { seen, help, stderr, interrupted: false });
        }
    };
    let progress = Progress::new(animals.len(), "plugins", &asked.telling);
    let results = host::run(&program, &zoo, &animals, &terms, &|outcome| progress.heard(outcome));
    progress.clear();
    let report = Report {
        tck: env!("CARGO_PKG_VERSION"),
        spec: "1.0",
        mode: Mode::Host,
        plugin: Plugin::host(&asked.command, &name.name, &name.version),
        seed,
        time_scale: asked.time_scale,
        summary: Report::count(&results),
        results,
        stale: Vec::new(),
        again: host_again(asked, seed),
    };
    tell(&asked.telling, &report)?;
    if terms.interrupted.load(Ordering::Relaxed) {
        return Ok(INTERRUPTED);
    }
    Ok(report.exit_code(false))
}

fn animals(asked: &Host) -> Result<Vec<&'static Animal>, Usage> {
    let is = |animal: &Animal, word: &String| {
        animal.name.eq_ignore_ascii_case(word) || animal.group().eq_ignore_ascii_case(word)
    };
    let all = host::zoo::all();
    for word in asked.only.iter().chain(&asked.skip) {
        if !all.iter().any(|animal| is(animal, word)) {
            return Err(Usage(format!(
                "the zoo has no plugin and no group {word}; they are named after the checks, see `plugbay-tck list`, \
                 and the others are in the group benign"
            )));
        }
    }
    let wanted = |animal: &&Animal| {
        (asked.only.is_empty() || asked.only.iter().any(|word| is(animal, word)))
            && !asked.skip.iter().any(|word| is(animal, word))
    };
    let chosen: Vec<&'static Animal> = all.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Usage("nothing is left to be tried".into()));
    }
    Ok(chosen)
}

/// The command that tries one plugin again; its name takes the place of `{check}`.
fn host_again(asked: &Host, seed: u64) -> String {
    let mut words = vec!["plugbay-tck host --only {check}".to_owned(), format!("--seed {seed}")];
    if (asked.time_scale - 1.0).abs() > f64::EPSILON {
        words.push(format!("--time-scale {}", asked.time_scale));
    }
    words.push("--verbose --".into());
    words.extend(asked.command.iter().map(|word| quote(word)));
    words.join(" ")
}

fn judge_vectors(asked: &Vectors) -> Result<u8, Usage> {
    let mut vectors = vectors::all();
    for id in &asked.ids {
        if !vectors.iter().any(|vector| vector.id == *id) {
            return Err(Usage(format!("there is no vector {id}; sdk-spec/vectors has them all")));
        }
    }
    vectors.retain(|vector| {
        (asked.ids.is_empty() || asked.ids.contains(&vector.id))
            && (!asked.codec || vector.is_for_codecs())
            && asked.receiver.as_ref().is_none_or(|side| vector.receiver == *side)
    });
    if vectors.is_empty() {
        return Err(Usage("nothing is left to be tried".into()));
    }
    let interrupted = interruptible();
    let unfit = |why: String, stderr: String| Unfit {
        seen: why,
        help: "a line of JSON for each on stdin, a line of JSON back; see tck/VECTORS.md",
        stderr,
        interrupted: false,
    };
    let found = Program::find(&asked.command, BTreeMap::new());
    let outcomes = found.map_err(|why| unfit(why.0, String::new())).and_then(|program| {
        let asked = vectors::ask(&program, &vectors, asked.time_scale, &interrupted);
        asked
            .map_err(|lost| Unfit { interrupted: lost.interrupted, ..unfit(lost.why, lost.stderr) })
    });
    let count =
        |all: &[vectors::Outcome], status| all.iter().filter(|it| it.status == status).count();
    let outcomes = match outcomes {
        Ok(all) if count(&all, vectors::Status::Skipped) == all.len() => {
            Err(unfit("it skips all that it is asked".into(), String::new()))
        }
        other => other,
    };
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(unfit) if unfit.interrupted => return Ok(INTERRUPTED),
        Err(unfit) => return Ok(tell_unfit(&asked.command, asked.json, false, &unfit)),
    };
    let (pass, fail, skipped) = (
        count(&outcomes, vectors::Status::Pass),
        count(&outcomes, vectors::Status::Fail),
        count(&outcomes, vectors::Status::Skipped),
    );
    if asked.json {
        let report = serde_json::json!({
            "tck": env!("CARGO_PKG_VERSION"),
            "spec": "1.0",
            "command": asked.command,
            "vectors": outcomes,
            "summary": { "pass": pass, "fail": fail, "n/a": skipped },
        });
        println!("{report:#}");
    } else {
        for outcome in outcomes.iter().filter(|it| it.status == vectors::Status::Fail) {
            let rule = outcome.rule.as_deref().map(|rule| format!(" ({rule})")).unwrap_or_default();
            let why = human::clean(outcome.reason.as_deref().unwrap_or_default());
            anstream::println!("\x1b[31mfail\x1b[0m \x1b[1m{}\x1b[0m{rule}\n   {why}", outcome.id);
        }
        let on = if fail == 0 { "\x1b[32m" } else { "\x1b[31m" };
        let more = if skipped > 0 { format!(", {skipped} not applicable") } else { String::new() };
        anstream::println!("{on}\x1b[1m{pass}/{} vectors\x1b[0m{more}", pass + fail);
    }
    Ok(u8::from(fail > 0))
}

fn list(json: bool) -> ExitCode {
    let modes = |check: &Check| check.modes().into_iter().collect::<Vec<_>>();
    if json {
        let all = checks::all().map(|check| {
            serde_json::json!({
                "id": check.id, "title": check.title, "group": check.group(), "level": check.level,
                "rules": check.rules, "modes": modes(check),
                "needs": check.needs.iter().map(ToString::to_string).collect::<Vec<_>>(),
            })
        });
        println!("{:#}", serde_json::Value::from_iter(all));
        return ExitCode::SUCCESS;
    }
    for (letters, about, group) in checks::GROUPS {
        if group.is_empty() {
            continue;
        }
        anstream::println!("\x1b[1m{letters}\x1b[0m  {about}");
        for check in *group {
            anstream::println!(
                "   {:<6} {:<6} {}",
                check.id,
                machine::level(check.level),
                check.title
            );
        }
    }
    ExitCode::SUCCESS
}

fn explain(id: &str) -> ExitCode {
    let Some(check) = checks::find(id) else {
        anstream::eprintln!(
            "\x1b[31merror\x1b[0m: there is no check {id}; `plugbay-tck list` shows all"
        );
        return USAGE.into();
    };
    anstream::println!("\x1b[1m{}\x1b[0m  {}", check.id, check.title);
    anstream::println!("   {}", machine::level(check.level));
    anstream::println!("   rules   {}", check.rules.join(" "));
    let needs: Vec<String> = check.needs.iter().map(ToString::to_string).collect();
    if !needs.is_empty() {
        anstream::println!("   needs   {}", needs.join(", "));
    }
    if plugbay_tck::monitor::WATCHED.contains(&check.id) {
        anstream::println!("   watched in the conversations of all checks");
    }
    anstream::println!("   try it  plugbay-tck run --check {} --verbose -- COMMAND", check.id);
    ExitCode::SUCCESS
}

/// One line on a terminal that says how far it is.
struct Progress {
    total: usize,
    what: &'static str,
    done: AtomicUsize,
    failed: AtomicUsize,
    shown: bool,
}

impl Progress {
    fn new(total: usize, what: &'static str, telling: &Telling) -> Self {
        let shown = std::io::stderr().is_terminal() && !telling.tap;
        Self { total, what, done: AtomicUsize::new(0), failed: AtomicUsize::new(0), shown }
    }

    fn heard(&self, outcome: &Outcome) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if matches!(outcome.status, Status::Fail | Status::HarnessError) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if self.shown {
            let failed = self.failed.load(Ordering::Relaxed);
            eprint!(
                "\r\x1b[K{done} of {} {}, {failed} failed; {} just ended",
                self.total, self.what, outcome.id
            );
        }
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
