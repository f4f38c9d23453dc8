//! Takes guards away, one at a time, and expects a test to notice.
//!
//! A package that wants this keeps a `mutants.toml`: what to find, what to put in
//! its place, and which test must then fail. Everything happens in a copy under
//! `target/`, so a run can be stopped at any time.
//!
//! ```toml
//! package = "plugbay-protocol"      # for all that follow; each may name its own
//!
//! [[mutant]]
//! file = "src/codec.rs"             # in the package's folder
//! find = "if head_len == 0 {"       # stands there exactly once
//! replace = "if false {"
//! test = "frames::a_head_of_no_bytes_is_refused_from_the_header"
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;

/// A test that runs this long has been led into a loop.
const HANGS: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    package: Option<String>,
    #[serde(default)]
    mutant: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    package: Option<String>,
    file: PathBuf,
    find: String,
    replace: String,
    test: String,
}

struct Mutant {
    package: String,
    /// The package's, from the workspace's root.
    folder: PathBuf,
    /// From the workspace's root.
    file: PathBuf,
    line: usize,
    find: String,
    replace: String,
    test: String,
}

/// What became of a mutant.
enum Fate {
    /// The test noticed.
    Killed,
    /// The test never came to an end, which is noticed as well.
    Hangs,
    /// Nobody noticed: a guard without a test.
    Survives,
    /// It is no program, so it says nothing.
    DoesNotCompile,
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), Vec<String>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if words.iter().any(|word| word.starts_with('-')) {
        return Err(vec![
            "usage: cargo xtask mutants [WORD…]: those in whose file or test each \
                         WORD occurs"
                .into(),
        ]);
    }
    let mut mutants = lists(root)?;
    mutants.retain(|it| {
        let place = format!("{} {} {}", it.package, it.file.display(), it.test);
        words.iter().all(|word| place.contains(word))
    });
    if mutants.is_empty() {
        return Err(vec!["no mutant has that in its file or test".into()]);
    }
    let bench = Bench::set_up(root).map_err(|why| vec![format!("the copy: {why}")])?;
    bench.baseline(&mutants)?;

    let mut problems = Vec::new();
    let mut killed = 0;
    for mutant in &mutants {
        let start = Instant::now();
        let fate = bench.fate(mutant).map_err(|why| vec![format!("{}: {why}", mutant.place())])?;
        let word = match fate {
            Fate::Killed => "killed",
            Fate::Hangs => "hangs",
            Fate::Survives => "SURVIVES",
            Fate::DoesNotCompile => "NO PROGRAM",
        };
        let seconds = start.elapsed().as_secs_f32();
        println!("{word:10} {seconds:5.1} s  {:44} {}", mutant.place(), mutant.test);
        match fate {
            Fate::Killed | Fate::Hangs => killed += 1,
            Fate::Survives => problems.push(format!(
                "{}: {:?} in place of {:?} goes unnoticed by {}",
                mutant.place(),
                mutant.replace,
                mutant.find,
                mutant.test
            )),
            Fate::DoesNotCompile => problems.push(format!(
                "{}: {:?} in place of {:?} does not compile",
                mutant.place(),
                mutant.replace,
                mutant.find
            )),
        }
    }
    println!("{killed} of {} mutants were noticed", mutants.len());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

impl Mutant {
    fn place(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }
}

/// Every mutant of every `mutants.toml`, checked against the sources.
fn lists(root: &Path) -> Result<Vec<Mutant>, Vec<String>> {
    let mut problems = Vec::new();
    let mut mutants = Vec::new();
    let found = list_files(root).map_err(|why| vec![format!("{}: {why}", root.display())])?;
    for path in found {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path).map_err(|why| vec![format!("{name}: {why}")])?;
        let list: List = toml::from_str(&text).map_err(|why| vec![format!("{name}: {why}")])?;
        let folder = path.parent().unwrap_or(root).strip_prefix(root).unwrap_or(Path::new(""));
        for entry in list.mutant {
            let Some(package) = entry.package.or_else(|| list.package.clone()) else {
                problems.push(format!("{name}: expected `package`, for {}", entry.test));
                continue;
            };
            let file = folder.join(&entry.file);
            let source = match fs::read_to_string(root.join(&file)) {
                Ok(source) => source,
                Err(why) => {
                    problems.push(format!("{name}: {}: {why}", file.display()));
                    continue;
                }
            };
            let found = source.matches(&entry.find).count();
            if found != 1 {
                problems.push(format!(
                    "{name}: expected {:?} once in {}, found it {found} times",
                    entry.find,
                    file.display()
                ));
                continue;
            }
            let before = source.split(&entry.find).next().unwrap_or_default();
            let line = 1 + before.matches('\n').count();
            let Entry { find, replace, test, .. } = entry;
            let folder = folder.to_path_buf();
            mutants.push(Mutant { package, folder, file, line, find, replace, test });
        }
    }
    if problems.is_empty() { Ok(mutants) } else { Err(problems) }
}

fn list_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let list = entry?.path().join("mutants.toml");
        if list.is_file() {
            found.push(list);
        }
    }
    found.sort();
    Ok(found)
}

/// A copy of the workspace, and where it is built.
struct Bench {
    copy: PathBuf,
    build: PathBuf,
}

impl Bench {
    fn set_up(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        // Both stay: the next run finds its dependencies built.
        let folder = root.join("target/mutants");
        let bench = Self { copy: folder.join("copy"), build: folder.join("build") };
        if bench.copy.exists() {
            fs::remove_dir_all(&bench.copy)?;
        }
        copy(&root, &bench.copy)?;
        Ok(bench)
    }

    fn cargo(&self, package: &str, arguments: &[&str]) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(&self.copy)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("RUST_BACKTRACE", "0")
            .args(["test", "--quiet", "--tests", "--package", package])
            .args(arguments);
        cargo
    }

    /// Without any mutant all is green, and the tests that are named exist.
    fn baseline(&self, mutants: &[Mutant]) -> Result<(), Vec<String>> {
        let mut wanted = BTreeMap::<&str, BTreeSet<&str>>::new();
        for mutant in mutants {
            wanted.entry(&mutant.package).or_default().insert(&mutant.test);
        }
        let mut problems = Vec::new();
        for (package, tests) in wanted {
            println!("{package} as it is …");
            let run = |arguments: &[&str]| -> Result<Output, Vec<String>> {
                let output = self.cargo(package, arguments).output();
                output.map_err(|why| vec![format!("cargo: {why}")])
            };
            let green = run(&[])?;
            if !green.status.success() {
                let text = [green.stdout, green.stderr].concat();
                let text = String::from_utf8_lossy(&text).into_owned();
                return Err(vec![text, format!("{package} fails without any mutant")]);
            }
            let list = String::from_utf8_lossy(&run(&["--", "--list"])?.stdout).into_owned();
            let known: BTreeSet<&str> =
                list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
            let missing = tests.difference(&known);
            problems.extend(missing.map(|test| format!("{package} has no test {test}")));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Applies the mutant, runs its test, and takes it back.
    fn fate(&self, mutant: &Mutant) -> io::Result<Fate> {
        let file = self.copy.join(&mutant.file);
        let source = fs::read_to_string(&file)?;
        fs::write(&file, source.replacen(&mutant.find, &mutant.replace, 1))?;
        let fate = self.judge(mutant);
        fs::write(&file, source)?;
        fate
    }

    fn judge(&self, mutant: &Mutant) -> io::Result<Fate> {
        let built = self.cargo(&mutant.package, &["--no-run", "--message-format=json"]).output()?;
        if !built.status.success() {
            return Ok(Fate::DoesNotCompile);
        }
        let messages = String::from_utf8_lossy(&built.stdout).into_owned();
        let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
        for message in messages {
            let message: serde_json::Value = message;
            // Programs that the tests start are built too, and are no tests.
            let program = message["executable"].as_str();
            if let Some(program) = program.filter(|_| message["profile"]["test"] == true) {
                match self.test(Path::new(program), mutant)? {
                    Fate::Survives => {}
                    fate => return Ok(fate),
                }
            }
        }
        Ok(Fate::Survives)
    }

    /// Runs the test, if it is in this program. Without cargo between us and it, a
    /// test that hangs can be killed.
    fn test(&self, program: &Path, mutant: &Mutant) -> io::Result<Fate> {
        let mut test = Command::new(program)
            .current_dir(self.copy.join(&mutant.folder))
            .env("RUST_BACKTRACE", "0")
            .args(["--exact", &mutant.test])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let start = Instant::now();
        loop {
            match test.try_wait()? {
                Some(status) if status.success() => return Ok(Fate::Survives),
                Some(_) => return Ok(Fate::Killed),
                None if HANGS <= start.elapsed() => {
                    test.kill()?;
                    test.wait()?;
                    return Ok(Fate::Hangs);
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// Copies what belongs to the sources.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let to = to.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &to)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_matches_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mutants = lists(&root).unwrap();
        assert!(40 <= mutants.len());
        assert!(mutants.iter().all(|it| it.find != it.replace));
    }

    #[test]
    fn a_list_that_does_not_match_is_told_with_its_place() {
        let root = std::env::temp_dir().join(format!("xtask-mutants-{}", std::process::id()));
        let folder = root.join("one");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.rs"), "twice twice\nonce\n").unwrap();
        let list = |find: &str, package: &str| {
            let entry = format!("file = \"a.rs\"\nfind = \"{find}\"\nreplace = \"\"\ntest = \"t\"");
            fs::write(folder.join("mutants.toml"), format!("{package}[[mutant]]\n{entry}\n"))
                .unwrap();
            lists(&root).map(|mutants| mutants.iter().map(Mutant::place).collect::<Vec<_>>())
        };
        let place = PathBuf::from("one").join("a.rs");
        let package = "package = \"one\"\n";
        assert_eq!(list("once", package), Ok(vec![format!("{}:2", place.display())]));
        for (find, package, expected) in [
            ("twice", package, "found it 2 times"),
            ("never", package, "found it 0 times"),
            ("once", "", "expected `package`"),
        ] {
            let problems = list(find, package).unwrap_err();
            assert!(problems[0].contains(expected), "{problems:?}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
