//! Where the plugins come from: a command line, a file, a folder, or what is here.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use plugbay_supervisor::{
    Plan, PluginPlan,
    manifest::{self, Code, Loaded, Report, Severity, names},
};

use crate::{
    exit::Exit,
    split,
    trouble::{Outcome, Trouble},
};

/// Which plugins to run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Source {
    /// Take one program as a plugin: its command line, split as a shell would and
    /// never run by one
    #[arg(long, value_name = "COMMAND", conflicts_with = "config", help_heading = "Plugins")]
    pub(crate) plugin: Option<String>,

    /// Use this plugbay.toml or plugin.toml, or the plugins in this folder [default:
    /// plugbay.toml, else plugin.toml, in the current folder]
    #[arg(long, short, value_name = "PATH", value_hint = clap::ValueHint::AnyPath, help_heading = "Plugins")]
    pub(crate) config: Option<PathBuf>,

    /// With --plugin: give the program an environment variable; without =VALUE it is
    /// taken from here
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Plugins")]
    pub(crate) env: Vec<String>,
}

/// The plugins, and what to call their source.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) loaded: Loaded,
    pub(crate) from: String,
}

impl Source {
    /// Whether the command line says which plugins are meant.
    pub(crate) fn is_named(&self) -> bool {
        self.plugin.is_some() || self.config.is_some()
    }

    /// What a program is called that this command line starts.
    pub(crate) fn name(&self, line: &str) -> Outcome<String> {
        Ok(split::name(&self.words(line)?))
    }

    fn words(&self, line: &str) -> Outcome<Vec<String>> {
        split::words(line).map_err(|why| Trouble::usage(format!("--plugin {line:?}: {why}")))
    }

    /// The command line that does something else with the same plugins.
    pub(crate) fn command(&self, command: &str) -> String {
        let mut line = format!("plugbay {command}");
        let mut add = |option: &str, value: &str| {
            // Only a zero byte cannot be quoted, and no argument can hold one.
            let value = shlex::try_quote(value).unwrap_or_default();
            line.push_str(&format!(" {option} {value}"));
        };
        if let Some(plugin) = &self.plugin {
            add("--plugin", plugin);
        }
        if let Some(config) = &self.config {
            add("--config", &config.to_string_lossy());
        }
        for word in &self.env {
            // Its value may be a secret, and messages are copied into reports.
            let value = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
            add("--env", value);
        }
        line
    }

    /// Finds and reads them. Faults of single plugins are in the report.
    pub(crate) fn find(&self) -> Outcome<Found> {
        if self.plugin.is_none() && !self.env.is_empty() {
            return Err(Trouble::usage(
                "--env is for a program that --plugin names: a manifest says itself which \
                 variables its plugins get",
            )
            .help("in plugbay.toml: [plugins.NAME.grant] env = [\"LANG\"]"));
        }
        if let Some(line) = &self.plugin {
            let plugin = self.bare(line)?;
            let from = plugin.name.clone();
            let plan = Plan { plugins: vec![plugin], ..Plan::default() };
            let loaded = Loaded { plan, invalid: Vec::new(), report: Report::default() };
            return Ok(Found { loaded, from });
        }
        let path = self.path().map_err(|it| {
            let help = "or run one program as a plugin: --plugin 'python3 greet.py'";
            if self.config.is_some() { it } else { it.help(help) }
        })?;
        let loaded = load(&path);
        Ok(Found { loaded, from: path.display().to_string() })
    }

    /// The file or folder that is meant.
    pub(crate) fn path(&self) -> Outcome<PathBuf> {
        if let Some(path) = &self.config {
            return exists(path).map(|()| path.clone());
        }
        let here = ["plugbay.toml", "plugin.toml"].into_iter().map(PathBuf::from);
        here.into_iter().find(|it| it.exists()).ok_or_else(|| {
            Trouble::usage("there is no plugbay.toml and no plugin.toml in this folder")
                .help("name a file or a folder: --config PATH")
                .help("or begin a plugin: plugbay new my-plugin --lang python")
        })
    }

    fn bare(&self, line: &str) -> Outcome<PluginPlan> {
        let words = self.words(line)?;
        if let Some(word) = split::shell_word(&words) {
            return Err(Trouble::usage(format!(
                "--plugin {line:?}: there is no shell to see `{word}`"
            ))
            .help("to have one, write: --plugin \"sh -c '…'\""));
        }
        let mut plugin =
            manifest::command(&split::name(&words), &words).map_err(|mut problem| {
                if problem.code == Code::PB0121 {
                    // The problem's own advice is for a manifest.
                    let program = &words[0];
                    let help = format!("`chmod +x {program}`, or --plugin 'INTERPRETER {program}'");
                    problem.help = Some(help);
                }
                Trouble::from(problem)
            })?;
        for word in &self.env {
            let (name, value) = variable(word)?;
            plugin.env.insert(name, value);
        }
        // Whoever waits for one answer waits for the process to end, too: what comes
        // after CLOSE is bounded more tightly than where an operator has a say.
        plugin.timeouts.exit_grace = Duration::from_secs(2);
        plugin.timeouts.term_grace = Duration::from_secs(1);
        plugin.timeouts.cancel_grace = Duration::from_secs(2);
        Ok(plugin)
    }
}

impl Found {
    /// Why nothing of it can run, if so. What is wrong with a manifest has been shown.
    pub(crate) fn check(&self) -> Outcome<()> {
        let Self { loaded, from } = self;
        if !loaded.plan.plugins.is_empty() {
            return Ok(());
        }
        let all = &loaded.report.problems;
        let mut faults = all.iter().filter(|it| it.severity == Severity::Error).map(|it| it.code);
        let Some(first) = faults.next() else {
            let trouble = Trouble::new(Exit::Bad, format!("there is no plugin in {from}"));
            return Err(trouble.help("one plugin: [plugins.NAME] from = \"FOLDER\""));
        };
        let mut trouble = Trouble::coded(first.as_str(), format!("no plugin in {from} can run"));
        if faults.any(|it| Exit::of(it) != trouble.exit) {
            trouble.exit = Exit::Bad;
        }
        Err(trouble.with("problems", loaded.report.to_json()["problems"].clone()))
    }
}

/// Reads a file or a folder.
pub(crate) fn load(path: &Path) -> Loaded {
    if path.is_dir() {
        let own = path.join("plugbay.toml");
        if own.is_file() { manifest::load_file(own) } else { manifest::load_folder(path) }
    } else {
        manifest::load_file(path)
    }
}

/// Whether a path that somebody typed is there.
pub(crate) fn exists(path: &Path) -> Outcome<()> {
    if path.exists() {
        return Ok(());
    }
    let trouble =
        Trouble::new(Exit::NotFound, format!("there is no file or folder `{}`", path.display()));
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let beside: Vec<String> = entries.filter_map(|it| it.file_name().into_string().ok()).collect();
    let word = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    Err(match names::near(word, beside.iter().map(String::as_str)) {
        Some(near) => {
            trouble.help(format!("did you mean `{}`?", path.with_file_name(near).display()))
        }
        None => trouble,
    })
}

fn variable(word: &str) -> Outcome<(String, String)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (word, None),
    };
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(Trouble::usage(format!("--env: {name:?} cannot be a variable's name")));
    }
    let value = value.map_or_else(|| std::env::var(name), Ok).map_err(|_| {
        Trouble::usage(format!("--env {name}: it is not set here, or is not UTF-8"))
            .help(format!("give it a value: --env {name}=VALUE"))
    })?;
    Ok((name.to_owned(), value))
}
