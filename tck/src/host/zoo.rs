//! Who a host is tried on: the plugins of `fixtures/`, which the judge carries with it, and what
//! the host must make of each, in `host.toml`.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    process::{Command, Stdio},
    sync::LazyLock,
};

use serde::Deserialize;
use tempfile::TempDir;

use crate::{checks, process::Program};

/// The fixtures, by name of file.
const FILES: [(&str, &str); 4] = [
    ("host.py", include_str!("../../fixtures/host.py")),
    ("reference.py", include_str!("../../fixtures/reference.py")),
    ("zoo.py", ZOO),
    ("benign.py", MIXES),
];
const ZOO: &str = include_str!("../../fixtures/zoo.py");
const MIXES: &str = include_str!("../../fixtures/benign.py");
const EXPECTED: &str = include_str!("../host.toml");

/// The group of those that keep every rule.
pub const BENIGN: &str = "benign";

/// One plugin.
#[derive(Clone, Debug)]
pub struct Animal {
    /// Which fixture has it.
    pub book: &'static str,
    /// Such as `CN-09`, `CA-05-B` or `drops+slow`.
    pub name: &'static str,
    /// Its deviation, in its own words.
    pub about: &'static str,
    pub due: &'static Due,
}

/// What a host must make of a plugin. By default: everything works, as if it deviated in nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Due {
    /// The step of the tour in which the plugin must come to its end.
    pub at: Option<String>,
    /// Why, one of these, in the words of `HOST.md`.
    #[serde(default)]
    pub ends: Vec<String>,
    /// The code of the CLOSE that the plugin must have read then.
    pub close: Option<String>,
    /// It depends on what is the host's to choose: it may also work.
    #[serde(default)]
    pub may: bool,
    /// How calls of a step may end, if not as those of a plugin without fault.
    #[serde(default)]
    pub says: BTreeMap<String, Vec<String>>,
    /// The rules that say so. Otherwise those that the plugin's own check judges.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The plugin says that its host has broken a rule, and it has not.
    #[serde(default)]
    pub blames: bool,
}

static TABLE: LazyLock<BTreeMap<String, Due>> =
    LazyLock::new(|| toml::from_str(EXPECTED).expect("a test reads what is built in"));
static WORKS: LazyLock<Due> = LazyLock::new(Due::default);
static ALL: LazyLock<Vec<Animal>> = LazyLock::new(|| {
    let animal = |book, name: &'static str, about| {
        let due = TABLE.get(name).unwrap_or(&WORKS);
        Animal { book, name, about, due }
    };
    let mutants = mutants(ZOO).map(|(name, about)| animal("zoo", name, about));
    let mixes = MIXES.lines().find_map(|line| line.strip_prefix("MIXES = (")).unwrap_or_default();
    let mixes = mixes.trim_end_matches(')').split(", ").map(|mix| mix.trim_matches('"'));
    mutants.chain(mixes.map(|mix| animal(BENIGN, mix, "Keeps every rule."))).collect()
});

/// All plugins, in the order of the fixtures.
pub fn all() -> &'static [Animal] {
    &ALL
}

/// What each class of a fixture is called, and what it says of itself. Read once.
fn mutants(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let classes = text.lines().zip(text.lines().skip(1));
    classes.filter_map(|(class, about)| {
        let (name, _) = class.strip_prefix("class ")?.split_once("(Fixture)")?;
        Some((&*name.replace('_', "-").leak(), about.trim().trim_matches('"')))
    })
}

impl Animal {
    /// The letters of the id; `benign` for what has none.
    pub fn group(&self) -> &'static str {
        if self.book == BENIGN { BENIGN } else { self.name.get(..2).unwrap_or(self.name) }
    }

    /// The rules that are judged with it.
    pub fn rules(&self) -> Vec<&'static str> {
        if !self.due.rules.is_empty() {
            return self.due.rules.iter().map(String::as_str).collect();
        }
        let check = self.name.get(..5).and_then(checks::find);
        check.map_or_else(Vec::new, |check| check.rules.to_vec())
    }
}

/// The fixtures where they can be started.
#[derive(Debug)]
pub struct Zoo {
    folder: TempDir,
    python: String,
}

impl Zoo {
    /// Writes them into a folder of their own, which is gone when this is dropped.
    ///
    /// # Errors
    /// There is no Python, or no place to write to.
    pub fn open() -> Result<Self, String> {
        let program = Program::find(&["python3".into()], BTreeMap::new());
        let program = program.map_err(|why| format!("the zoo needs Python 3: {}", why.0))?;
        let written = |error: io::Error| format!("the zoo cannot be written to a folder: {error}");
        let folder = tempfile::Builder::new().prefix("plugbay-tck-").tempdir().map_err(written)?;
        for (name, text) in FILES {
            fs::write(folder.path().join(name), text).map_err(written)?;
        }
        let mut zoo = Self { folder, python: program.argv.into_iter().next().unwrap_or_default() };
        // Compiles them once and not with each start, and finds the interpreter behind a script of its name.
        let script = format!(
            "import sys; sys.path[:1] = [{:?}]; import host, zoo, benign; print(sys.executable)",
            zoo.path()
        );
        let output = Command::new(&zoo.python)
            .args(["-S", "-c", &script])
            .envs(zoo.env())
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} cannot be started: {error}", zoo.python))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            let last = words.lines().last().unwrap_or("it says nothing").to_owned();
            return Err(format!("{} cannot run the zoo: {last}", zoo.python));
        }
        zoo.python = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(zoo)
    }

    /// The folder's path; Python takes no other.
    pub fn path(&self) -> &str {
        self.folder.path().to_str().unwrap_or_default()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.path()).join(name)
    }

    /// What its programs need of an environment.
    pub fn env(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("PYTHONPYCACHEPREFIX".into(), format!("{}/cache", self.path()))])
    }

    /// The command that starts a plugin.
    pub fn argv(&self, book: &str, name: &str) -> Vec<String> {
        let script = format!("{}/host.py", self.path());
        [&self.python, "-S", &script, book, name].map(str::to_owned).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_plugin_of_the_fixtures_is_there_and_nothing_else_is_expected() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), all.len());
        let count = |book| all.iter().filter(|it| it.book == book).count();
        assert_eq!(count("zoo"), ZOO.matches("(Fixture):").count());
        assert_eq!(count("benign"), 7);
        assert!(
            all.iter()
                .all(|it| it.about.ends_with('.') && !it.rules().is_empty() || it.book == "benign")
        );
        assert!(all.iter().all(|it| it.about.ends_with('.') && !it.rules().is_empty()));
        let unknown: Vec<_> = TABLE.keys().filter(|name| !names.contains(name.as_str())).collect();
        assert_eq!(unknown, Vec::<&String>::new());
    }
}
