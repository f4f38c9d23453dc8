//! Judges the judge: each check has to find the plugin that breaks its rule, and no check may find one that
//! is merely odd.
//!
//! `tck/fixtures/zoo.py` holds the mutants, each the reference with one deviation, and `benign.py` the odd
//! ones. What comes of this is the kill matrix: per mutant whether its own check noticed, and which others
//! did. Those are declared beside the mutant (`also`), so that a check which starts to judge what is not its
//! business is seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use plugbay_tck::{
    case::Subject,
    check::{Check, Mode},
    checks,
    probe::probe,
    process::Program,
    run::{LONG, Outcome, Status},
    settings::Settings,
};
use serde::{Deserialize, Serialize};

const USAGE: &str = "usage: cargo xtask zoo [--own] [--json] [--jobs N] [--time-scale X] [WORD…]
  WORD            only what has a WORD in its name, such as CN-09, CN or serial
  --own           of each mutant just its own check, and no long check on the benign: two minutes
  --jobs N        how many plugins are judged at once (2; with --own 8)
  --time-scale X  multiplies every wait (1)";

/// How many checks run at once on a plugin.
const CHECKS_AT_ONCE: usize = 4;

/// What is known to be slow on a busy machine gets this many times its time before it counts as wrong.
const PATIENCE: f64 = 3.0;

/// The checks of the protocol. Those of the contracts on top of it have their mutants in `bridges_zoo.py`,
/// which the suite's own tests try.
fn core() -> impl Iterator<Item = &'static Check> {
    checks::all().filter(|check| !check.group().starts_with('B'))
}

struct Options {
    own: bool,
    json: bool,
    jobs: usize,
    scale: f64,
    words: Vec<String>,
}

impl Options {
    fn read(arguments: &[String]) -> Option<Self> {
        let mut all = Self { own: false, json: false, jobs: 0, scale: 1.0, words: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(word) = arguments.next() {
            match word.as_str() {
                "--own" => all.own = true,
                "--json" => all.json = true,
                "--jobs" => {
                    all.jobs = arguments.next()?.parse().ok().filter(|n| (1..=64).contains(n))?
                }
                "--time-scale" => {
                    let scale = arguments.next()?.parse().ok();
                    all.scale = scale.filter(|x| (0.1..=100.0).contains(x))?;
                }
                word if word.starts_with('-') => return None,
                word => all.words.push(word.to_owned()),
            }
        }
        if all.jobs == 0 {
            all.jobs = if all.own { 8 } else { 2 };
        }
        Some(all)
    }

    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }
}

/// What zoo.py says that it has.
#[derive(Deserialize)]
struct Table {
    mutants: Vec<Mutant>,
    /// Checks that have no mutant, with the reason.
    without: BTreeMap<String, String>,
}

/// A plugin that breaks one rule.
#[derive(Deserialize)]
struct Mutant {
    /// The id of its check, perhaps with a letter behind it.
    name: String,
    about: String,
    /// Other checks that may notice.
    also: BTreeSet<String>,
}

impl Mutant {
    fn check(&self) -> &str {
        self.name.get(..5).unwrap_or(&self.name)
    }
}

/// A line of the matrix.
#[derive(Serialize)]
struct Row {
    mutant: String,
    check: String,
    deviation: String,
    /// Whether its own check noticed.
    killed: bool,
    /// What that check saw, or why it saw nothing.
    seen: String,
    /// Other checks that noticed: those declared, and those not.
    also: Vec<String>,
    undeclared: Vec<String>,
}

/// What came of a plugin that keeps every rule.
#[derive(Serialize)]
struct Clean {
    benign: String,
    /// The checks that say it does not, and what they saw.
    wrong: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Matrix {
    mutants: Vec<Row>,
    benign: Vec<Clean>,
    killed: usize,
    survivors: usize,
    undeclared: usize,
    clean: usize,
    seconds: u64,
}

/// The interpreter itself, found once: a `python3` in PATH may be a script that looks for it each time.
struct Python {
    program: String,
    folder: String,
    env: BTreeMap<String, String>,
}

impl Python {
    fn find(root: &Path) -> Result<Self, String> {
        let root = root.canonicalize().map_err(|error| error.to_string())?;
        let cache = root.join("target/pycache").display().to_string();
        let mut python = Self {
            program: "python3".into(),
            folder: root.join("tck/fixtures").display().to_string(),
            // Read and kept once, not with each of thousands of starts.
            env: BTreeMap::from([("PYTHONPYCACHEPREFIX".into(), cache)]),
        };
        python.program = python.says("print(sys.executable)")?.trim().to_owned();
        Ok(python)
    }

    fn argv(&self, script: &str) -> Vec<String> {
        // Without what only people who program in it need.
        let code = format!("import sys; sys.path[:1] = [{:?}]; {script}", self.folder);
        vec![self.program.clone(), "-S".into(), "-c".into(), code]
    }

    fn says(&self, script: &str) -> Result<String, String> {
        let argv = self.argv(script);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).envs(&self.env).env_remove("PYTHONDONTWRITEBYTECODE");
        let output = command.output().map_err(|error| format!("{}: {error}", argv[0]))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    }

    fn table(&self) -> Result<Table, String> {
        let text = self.says("import zoo; print(zoo.table())")?;
        serde_json::from_str(&text).map_err(|error| format!("zoo.py: {error}"))
    }

    fn mixes(&self) -> Result<Vec<String>, String> {
        let text = self.says("import benign; print(benign.table())")?;
        serde_json::from_str(&text).map_err(|error| format!("benign.py: {error}"))
    }

    /// Tries the checks on the plugin of this name.
    fn judge(
        &self,
        module: &str,
        name: &str,
        checks: &[&'static Check],
        scale: f64,
    ) -> Result<Vec<Outcome>, String> {
        let mut argv = self.argv(&format!("import {module}; {module}.main()"));
        argv.push(name.to_owned());
        let program = Program::find(&argv, self.env.clone()).map_err(|why| why.0)?;
        let settings = Settings::default();
        let interrupted = Arc::new(AtomicBool::new(false));
        let profile = probe(&program, &settings, scale, &interrupted)
            .or_else(|_| probe(&program, &settings, scale * PATIENCE, &interrupted))
            .map_err(|unfit| format!("{}\n{}", unfit.seen, unfit.stderr))?;
        let budget = Duration::from_secs(60);
        let subject = Subject {
            program,
            mode: Mode::Sdk,
            settings,
            profile,
            scale,
            budget,
            interrupted,
            record: false,
        };
        // Always the same, so that a run can be compared with the one before.
        Ok(plugbay_tck::run::run(&subject, checks, 7, CHECKS_AT_ONCE, &|_| ()))
    }

    /// The checks that say that something is wrong, and what each saw. What may just have been too slow is
    /// tried again, alone and with more time.
    fn wrong(
        &self,
        module: &str,
        name: &str,
        outcomes: &[Outcome],
        scale: f64,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut wrong = BTreeMap::new();
        for outcome in outcomes.iter().filter(|it| is_wrong(it)) {
            // What is watched everywhere was seen in the conversation of another check.
            let ids = [Some(outcome.id), outcome.seen_in];
            let checks: Vec<_> = ids.iter().flatten().filter_map(|id| checks::find(id)).collect();
            let again = self.judge(module, name, &checks, scale * PATIENCE)?;
            if let Some(again) = again.iter().find(|it| it.id == outcome.id && is_wrong(it)) {
                wrong.insert(outcome.id.to_owned(), said(again));
            }
        }
        Ok(wrong)
    }

    fn row(&self, mutant: &Mutant, options: &Options) -> Result<Row, String> {
        let own = mutant.check();
        // The long checks take as long as all others together. They are for their own mutants, and for the benign.
        let wanted = |check: &&Check| check.id == own || !options.own && !LONG.contains(&check.id);
        let checks: Vec<_> = core().filter(wanted).collect();
        let outcomes = self.judge("zoo", &mutant.name, &checks, options.scale)?;
        let (mut its_own, others): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|it| it.id == own);
        let is_killed = |it: &&Outcome| matches!(it.status, Status::Fail | Status::Warn);
        if !its_own.iter().any(|it| is_killed(&it)) {
            // On a busy machine a deviation may come later than a check waits for it.
            let alone: Vec<_> = checks::find(own).into_iter().collect();
            its_own = self.judge("zoo", &mutant.name, &alone, options.scale * PATIENCE)?;
            its_own.retain(|it| it.id == own);
        }
        let (declared, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|it| mutant.also.contains(it.id));
        let undeclared = self.wrong("zoo", &mutant.name, &others, options.scale)?;
        Ok(Row {
            mutant: mutant.name.clone(),
            check: own.to_owned(),
            deviation: mutant.about.clone(),
            killed: its_own.iter().any(|it| is_killed(&it)),
            seen: its_own.first().map(said).unwrap_or_default(),
            also: declared.iter().filter(|it| is_wrong(it)).map(|it| it.id.to_owned()).collect(),
            undeclared: undeclared.into_keys().collect(),
        })
    }

    fn clean(&self, mix: &str, options: &Options) -> Result<Clean, String> {
        let wanted = |check: &&Check| !options.own || !LONG.contains(&check.id);
        let checks: Vec<_> = core().filter(wanted).collect();
        let outcomes = self.judge("benign", mix, &checks, options.scale)?;
        let wrong = self.wrong("benign", mix, &outcomes, options.scale)?;
        Ok(Clean { benign: mix.to_owned(), wrong })
    }
}

fn is_wrong(outcome: &Outcome) -> bool {
    !matches!(outcome.status, Status::Pass | Status::Na | Status::Blocked)
}

fn said(outcome: &Outcome) -> String {
    format!("{}: {}", outcome.status.as_str(), outcome.reason.as_deref().unwrap_or(""))
}

/// What is wrong with the zoo itself: checks without mutant, mutants without check.
fn amiss(table: &Table) -> Vec<String> {
    let with: BTreeSet<&str> = table.mutants.iter().map(Mutant::check).collect();
    let mut problems = Vec::new();
    for check in core() {
        match (with.contains(check.id), table.without.contains_key(check.id)) {
            (false, false) => problems.push(format!(
                "{} has no mutant in tck/fixtures/zoo.py, and no reason why not",
                check.id
            )),
            (true, true) => {
                problems.push(format!("{} has a mutant and a reason why it has none", check.id))
            }
            _ => {}
        }
    }
    let others = table.mutants.iter().flat_map(|it| it.also.iter().map(String::as_str));
    let named = with.iter().copied().chain(others).chain(table.without.keys().map(String::as_str));
    problems.extend(
        named
            .filter(|id| checks::find(id).is_none())
            .map(|id| format!("zoo.py names {id}, and there is no such check")),
    );
    problems
}

/// Does it for all, some at a time, and tells how far it is; the results are in their order.
fn each<T: Sync, R: Send>(all: &[T], jobs: usize, act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let done = AtomicUsize::new(0);
    plugbay_tck::run::each(all, jobs, &AtomicBool::new(false), |one| {
        let result = act(one);
        let done = 1 + done.fetch_add(1, Ordering::Relaxed);
        if done.is_multiple_of(10) {
            eprintln!("{done} of {}", all.len());
        }
        result
    })
}

fn matrix(root: &Path, options: &Options) -> Result<Matrix, String> {
    let begun = Instant::now();
    let python = Python::find(root)?;
    let table = python.table()?;
    let problems = amiss(&table);
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    let wanted: Vec<&Mutant> = table.mutants.iter().filter(|it| options.wants(&it.name)).collect();
    let mixes: Vec<String> = python.mixes()?.into_iter().filter(|mix| options.wants(mix)).collect();
    eprintln!("{} mutants, {} at once", wanted.len(), options.jobs);
    let mutants = each(&wanted, options.jobs, |mutant| {
        let row = python.row(mutant, options).unwrap_or_else(|why| Row::not_judged(mutant, why));
        if !row.killed || !row.undeclared.is_empty() {
            eprintln!("{}", row.line());
        }
        row
    });
    eprintln!("{} benign plugins", mixes.len());
    // One at a time: whether they are in time matters.
    let benign = each(&mixes, 1, |mix| {
        let clean = python.clean(mix, options).unwrap_or_else(|why| {
            // As wrong as can be.
            Clean { benign: mix.clone(), wrong: BTreeMap::from([("not judged".to_owned(), why)]) }
        });
        eprintln!("{}", clean.line());
        clean
    });
    let killed = mutants.iter().filter(|row| row.killed).count();
    Ok(Matrix {
        killed,
        survivors: mutants.len() - killed,
        undeclared: mutants.iter().map(|row| row.undeclared.len()).sum(),
        clean: benign.iter().filter(|it| it.wrong.is_empty()).count(),
        mutants,
        benign,
        seconds: begun.elapsed().as_secs(),
    })
}

impl Row {
    /// One that could not be tried, which is as bad as one that survives.
    fn not_judged(mutant: &Mutant, why: String) -> Self {
        Self {
            mutant: mutant.name.clone(),
            check: mutant.check().to_owned(),
            deviation: mutant.about.clone(),
            killed: false,
            seen: why,
            also: Vec::new(),
            undeclared: Vec::new(),
        }
    }

    fn line(&self) -> String {
        let fate = if self.killed { "killed  " } else { "SURVIVES" };
        let mut line = format!("{:8} {fate} {}", self.mutant, self.deviation);
        if !self.killed {
            line += &format!(" [{}]", self.seen);
        }
        if !self.also.is_empty() {
            line += &format!(" also {}", self.also.join(" "));
        }
        if !self.undeclared.is_empty() {
            line += &format!(" UNDECLARED {}", self.undeclared.join(" "));
        }
        line
    }
}

impl Clean {
    fn line(&self) -> String {
        let wrong: Vec<String> =
            self.wrong.iter().map(|(id, seen)| format!("\n         {id} {seen}")).collect();
        let fate = if wrong.is_empty() { "clean" } else { "NOT CLEAN" };
        format!("benign   {fate}    {}{}", self.benign, wrong.concat())
    }
}

impl Matrix {
    fn tell(&self) {
        self.mutants.iter().for_each(|row| println!("{}", row.line()));
        self.benign.iter().for_each(|it| println!("{}", it.line()));
        println!(
            "\n{} of {} mutants killed by their own check; {} survivors; {} undeclared kills; \
             {} of {} benign clean; {} s",
            self.killed,
            self.mutants.len(),
            self.survivors,
            self.undeclared,
            self.clean,
            self.benign.len(),
            self.seconds
        );
    }

    fn problems(&self) -> Vec<String> {
        let rows = self.mutants.iter().filter(|it| !it.killed || !it.undeclared.is_empty());
        let benign = self.benign.iter().filter(|it| !it.wrong.is_empty());
        rows.map(Row::line).chain(benign.map(Clean::line)).collect()
    }
}

/// Prints the matrix, and fails if it is not the declared one.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), Vec<String>> {
    let options = Options::read(arguments).ok_or_else(|| vec![USAGE.to_owned()])?;
    let matrix = matrix(root, &options).map_err(|why| vec![why])?;
    if matrix.mutants.is_empty() && matrix.benign.is_empty() {
        return Err(vec![format!("nothing has {} in its name", options.words.join(" or "))]);
    }
    if options.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&matrix).map_err(|error| vec![error.to_string()])?
        );
    } else {
        matrix.tell();
    }
    let problems = matrix.problems();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn every_check_has_a_mutant_or_a_reason_why_not() {
        let mut table = Python::find(root()).unwrap().table().unwrap();
        assert_eq!(amiss(&table), Vec::<String>::new());
        assert!(table.without.values().all(|reason| reason.len() > 10));
        table.mutants.retain(|it| it.check() != "CN-09");
        assert!(amiss(&table)[0].starts_with("CN-09 has no mutant"));
    }

    /// The diagonal of the matrix, and what is legal.
    #[test]
    fn each_check_finds_its_mutant_and_nothing_in_benign_plugins() {
        let options = Options::read(&["--own".to_owned()]).unwrap();
        let matrix = matrix(root(), &options).unwrap();
        assert_eq!(matrix.problems(), Vec::<String>::new());
        assert!(matrix.killed >= core().count(), "{}", matrix.killed);
        assert_eq!(matrix.clean, matrix.benign.len());
    }
}
