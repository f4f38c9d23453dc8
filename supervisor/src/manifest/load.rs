//! From a path to a plan: reading files, one plugin after the other, and what
//! concerns several of them.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Invalid, Loaded,
    author::Author,
    codes::Code,
    degrade,
    host::{HostFile, Plugin},
    names,
    operator::{Build, full_name},
    plugin::PluginFile,
    read::{At, Node, Read, Reader},
    report::{Notes, Problem, Report, Severity, printable},
    resolve::Surroundings,
    secrets,
    settings::{self, Layer, Layers},
    shape,
    source::{Source, Span},
};
use crate::plan::{Ceilings, Plan, PluginPlan};

/// The author's file in a plugin's folder.
pub(crate) const PLUGIN_FILE: &str = "plugin.toml";

/// Collects what one load finds.
pub(crate) struct Load<'a> {
    around: &'a Surroundings,
    report: Report,
    plugins: Vec<Built>,
    invalid: Vec<Invalid>,
    ceilings: Ceilings,
    /// Whether somebody has said that there is no sandbox.
    knows_no_sandbox: bool,
}

/// A plugin that can run, and what later checks need of its author's file.
struct Built {
    plan: PluginPlan,
    names_at: Vec<(String, Span, Source)>,
}

impl<'a> Load<'a> {
    pub(crate) fn new(around: &'a Surroundings) -> Self {
        Self {
            around,
            report: Report::default(),
            plugins: Vec::new(),
            invalid: Vec::new(),
            ceilings: Ceilings::default(),
            knows_no_sandbox: false,
        }
    }

    /// An operator's file, or the file of one plugin.
    pub(crate) fn file(&mut self, path: &Path) {
        let name = path.display().to_string();
        match read_file(path) {
            Ok(text) => self.text(&name, &text, &folder_of(path)),
            Err(problem) => self.report.add(*problem),
        }
    }

    /// The same from text; `dir` is where relative paths start.
    pub(crate) fn text(&mut self, name: &str, text: &str, dir: &Path) {
        let mut source = Source::new(name, text);
        let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        match open(&mut source, text) {
            Err(problems) => {
                self.report.sources.push(source);
                problems.into_iter().for_each(|it| self.report.add(it));
            }
            Ok(table) if is_plugin_file(name, table.get_ref()) => {
                self.lone_plugin(source, table, dir);
            }
            Ok(table) => self.host(source, table, dir),
        }
    }

    /// A folder with a `plugin.toml`, or one whose folders have one.
    pub(crate) fn folder(&mut self, path: &Path) {
        if path.join(PLUGIN_FILE).exists() {
            return self.file(&path.join(PLUGIN_FILE));
        }
        let shown = path.display();
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(err) => {
                let message = format!("cannot read the folder `{shown}`: {}", why(&err));
                return self.report.add(Problem::error(Code::PB0110, message));
            }
        };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path().join(PLUGIN_FILE)))
            .filter(|file| file.is_file())
            .collect();
        files.sort();
        if files.is_empty() {
            let message = format!(
                "no plugin in `{shown}`: neither it nor a folder in it has a {PLUGIN_FILE}"
            );
            let problem = Problem::error(Code::PB0110, message);
            return self.report.add(problem.help("`plugbay new` writes one"));
        }
        files.iter().for_each(|file| self.file(file));
    }

    fn host(&mut self, source: Source, table: Spanned<DeTable<'_>>, dir: &Path) {
        self.report.sources.push(source.clone());
        let mut reader = Reader::new(&source);
        let file = HostFile::read(&as_node(table), &mut reader);
        let read = reader.problems;
        let mut notes = Notes::default();
        let Some(file) = file else {
            return read.into_iter().for_each(|it| self.report.add(it));
        };
        let defaults = Layer::defaults(file.defaults.as_ref());
        settings::check(defaults, &source, &mut notes);
        let lower = Layers { upper: defaults, lower: Layer::default() };
        settings::check_pairs(lower, false, &source, &mut notes);
        if let Some(host) = &file.host {
            settings::check_host(host, &source, &mut notes);
            self.ceilings = settings::ceilings(host);
        }
        degrade::later(&file, &source, &mut notes);
        if degrade::says_level(lower) {
            self.knows_no_sandbox = true;
        }
        // A fault outside of the plugins' tables is everybody's: a limit that was
        // misspelt in `[defaults]` must not be missing in silence.
        let is_fatal = notes.is_fatal()
            || read.iter().any(|it| it.severity == Severity::Error && it.plugin.is_none());
        read.into_iter().chain(notes.problems).for_each(|it| self.report.add(it));

        for (name, plugin) in file.plugins.iter().flat_map(|it| &it.0) {
            let built = plugin
                .as_ref()
                .and_then(|plugin| self.plugin(name, plugin, &file, defaults, &source, dir));
            match built.filter(|_| !is_fatal && !self.has_fault(name)) {
                Some(built) => self.plugins.push(built),
                None => self.refuse(name, is_fatal),
            }
        }
    }

    fn plugin(
        &mut self,
        name: &At<String>,
        plugin: &At<Plugin>,
        file: &HostFile,
        defaults: Layer<'_>,
        source: &Source,
        dir: &Path,
    ) -> Option<Built> {
        let mut notes = Notes::about(name);
        super::author::named("the name of a plugin", name, names::tool, source, &mut notes);
        let author = match (&plugin.from, &plugin.command) {
            (Some(from), None) => match self.author(from, source, dir, &mut notes) {
                Some(author) => Some(author),
                // Nothing to compare with: more problems would be echoes.
                None => {
                    notes.problems.into_iter().for_each(|it| self.report.add(it));
                    return None;
                }
            },
            (None, Some(_)) => None,
            // It has one, and that one has a fault.
            (None, None) if self.has_fault(name) => return None,
            (from, command) => {
                notes.add(neither_or_both(name, plugin, from.as_ref(), command.as_ref(), source));
                notes.problems.into_iter().for_each(|it| self.report.add(it));
                return None;
            }
        };
        let build = Build {
            name,
            plugin,
            author: author.as_ref(),
            host: file.host.as_ref(),
            defaults,
            source,
            dir,
            around: self.around,
        };
        let plan = build.plan(&mut notes);
        self.knows_no_sandbox |=
            degrade::says_level(Layers { upper: Layer::plugin(plugin), lower: defaults });
        notes.problems.into_iter().for_each(|it| self.report.add(it));
        Some(Built { plan: plan?, names_at: author.as_ref().map(names_at).unwrap_or_default() })
    }

    /// Reads and checks the file in the folder that `from` names.
    fn author(
        &mut self,
        from: &At<String>,
        source: &Source,
        dir: &Path,
        notes: &mut Notes,
    ) -> Option<Author> {
        let folder = dir.join(&**from);
        let path = folder.join(PLUGIN_FILE);
        // A pipe of that name would keep the whole load waiting.
        let read = match path.is_file() || !path.exists() {
            true => read_file(&path),
            false => Err(Box::new(Problem::error(
                Code::PB0110,
                format!("the {PLUGIN_FILE} in `{}` is not a file", **from),
            ))),
        };
        let text = match read {
            Ok(text) => text,
            Err(problem) => {
                let (message, help) = if folder.is_file() {
                    let message = format!("`{}` is a file", **from);
                    (message, "`from` names the folder that has the plugin.toml".to_owned())
                } else if folder.is_dir() && !path.exists() {
                    let message = format!("the folder `{}` has no {PLUGIN_FILE}", **from);
                    (message, "for a program without one, write `command` instead of `from`".into())
                } else if !folder.exists() {
                    let message = format!("there is no folder `{}`", **from);
                    (message, "the path starts at the folder of this file".to_owned())
                } else {
                    (problem.message, "check the file and its permissions".to_owned())
                };
                let problem = Problem::error(Code::PB0110, message);
                let problem =
                    problem.at(source, &from.span, "expected a folder with a plugin.toml");
                notes.add(
                    match super::resolve::beside(&folder, from).filter(|_| !folder.exists()) {
                        Some(near) => problem.near(source, &from.span, &near),
                        None => problem.help(help),
                    },
                );
                return None;
            }
        };
        // The name to show: as the operator would write it, from the same place.
        let base = Path::new(&*source.name).parent().unwrap_or(Path::new(""));
        let shown = base.join(&**from).join(PLUGIN_FILE).display().to_string();
        let mut author_source = Source::new(&shown, &text);
        let opened = open(&mut author_source, &text);
        if self.report.source(&shown).is_none() {
            self.report.sources.push(author_source.clone());
        }
        match opened {
            Ok(table) => author(&author_source, table, &folder, notes),
            Err(problems) => {
                problems.into_iter().for_each(|it| notes.add(it));
                None
            }
        }
    }

    /// A plugin without an operator: its tools, and nothing else it asks for.
    fn lone_plugin(&mut self, source: Source, table: Spanned<DeTable<'_>>, dir: &Path) {
        self.report.sources.push(source.clone());
        // Problems carry a name even if the file is too broken to have one.
        let by_folder = dir.file_name().map(|it| it.to_string_lossy().into_owned());
        let name = short_name(table.get_ref()).or(by_folder).unwrap_or_else(|| "plugin".into());
        let mut notes = Notes::default();
        let author = author(&source, table, dir, &mut notes);
        let mut about = Notes::about(&name);
        notes.problems.into_iter().for_each(|it| about.add(it));
        let mut notes = about;
        let built = author.and_then(|author| {
            let span = author.file.plugin.id.span.clone();
            let name = At::new(name.clone(), span.clone());
            super::author::named("the name of a plugin", &name, names::tool, &source, &mut notes);
            let is_taken = self.plugins.iter().any(|it| it.plan.name == *name);
            if is_taken || self.invalid.iter().any(|it| it.name == *name) {
                let message = format!("another plugin has the name `{}` already", *name);
                let problem = Problem::error(Code::PB0113, message);
                notes.add(
                    problem
                        .at(&source, &span, "named after the last part of its id")
                        .help("name both in a plugbay.toml: [plugins.NAME] with from = \"…\""),
                );
            }
            let plugin = At::new(Plugin::default(), author.file.plugin.span.clone());
            let build = Build {
                name: &name,
                plugin: &plugin,
                author: Some(&author),
                host: None,
                defaults: Layer::default(),
                source: &source,
                dir,
                around: self.around,
            };
            let plan = build.plan(&mut notes)?;
            Some(Built { plan, names_at: names_at(&author) })
        });
        notes.problems.into_iter().for_each(|it| self.report.add(it));
        match built {
            Some(built) => self.plugins.push(built),
            None => self.refuse(&name, false),
        }
    }

    fn has_fault(&self, name: &str) -> bool {
        self.fault(name).is_some()
    }

    fn fault(&self, name: &str) -> Option<&Problem> {
        self.report.problems.iter().find(|it| {
            it.severity == Severity::Error
                && it.tool.is_none()
                && it.plugin.as_deref() == Some(name)
        })
    }

    fn refuse(&mut self, name: &str, by_file: bool) {
        let why = match self.fault(name) {
            Some(problem) => problem.to_string(),
            None if by_file => "the file has a fault outside of its plugins' tables".to_owned(),
            // Two plugins of one faulty file: the problem stands under the first.
            None => "its plugin.toml has a fault".to_owned(),
        };
        self.invalid.push(Invalid { name: printable(name), why });
    }

    /// What concerns several plugins, and the result.
    pub(crate) fn finish(mut self) -> Loaded {
        self.withhold_collisions();
        self.report.sort();
        if !self.plugins.is_empty() && !self.knows_no_sandbox {
            self.report.add(degrade::no_sandbox());
        }
        let plugins = self.plugins.into_iter().map(|it| it.plan).collect();
        Loaded {
            plan: Plan { plugins, ceilings: self.ceilings },
            invalid: self.invalid,
            report: self.report,
        }
    }

    /// Of two tools with one name neither is listed: a plugin must never stand in
    /// for another.
    fn withhold_collisions(&mut self) {
        let mut all: Vec<(String, usize, String)> = Vec::new();
        for (at, built) in self.plugins.iter().enumerate().filter(|(_, it)| it.plan.enabled) {
            let prefix = built.plan.prefix.as_deref();
            // Whoever has a plugin.toml has its grants by whole names here.
            let tools = built.plan.tools.iter().map(|it| &it.name);
            let listed = tools.filter(|it| built.plan.grant_tools.contains(it));
            all.extend(listed.map(|it| (full_name(prefix, it), at, it.clone())));
        }
        all.sort();
        for same in all.chunk_by(|a, b| a.0 == b.0).filter(|it| 1 < it.len()) {
            let (full, first, _) = &same[0];
            let owners: Vec<String> = same
                .iter()
                .map(|(_, at, _)| format!("`{}`", self.plugins[*at].plan.name))
                .collect();
            let message =
                format!("the tool `{full}` is withheld: {} all have one", owners.join(" and "));
            let message =
                if same.len() == 2 { message.replace(" all ", " both ") } else { message };
            let owner = self.plugins[*first].plan.name.clone();
            let mut problem = Problem::error(Code::PB0205, message).tool(full).plugin(&owner);
            for (n, (_, at, tool)) in same.iter().enumerate() {
                let built = &self.plugins[*at];
                let place = built.names_at.iter().find(|(it, ..)| it == tool);
                if let Some((_, span, source)) = place {
                    let label = format!("from `{}`", built.plan.name);
                    problem = match n {
                        0 => problem.at(source, span, label),
                        _ => problem.also(source, span, label),
                    };
                }
            }
            self.report.add(problem.help(format!(
                "give one a prefix, such as [plugins.{owner}] with prefix = \"{owner}\", \
                 or grant the tool of one only"
            )));
            for (_, at, tool) in same {
                self.plugins[*at].plan.grant_tools.retain(|it| it != tool);
            }
        }
    }
}

/// The last part of a plugin's id: its name where no operator gives another.
fn short_name(table: &DeTable<'_>) -> Option<String> {
    let id = table.get("plugin")?.get_ref().as_table()?.get("id")?.get_ref().as_str()?;
    id.rsplit('.').next().filter(|it| names::tool(it).is_ok()).map(str::to_owned)
}

fn names_at(author: &Author) -> Vec<(String, Span, Source)> {
    let tools = author.tools.iter();
    tools.map(|it| (it.plan.name.clone(), it.name_at.clone(), author.source.clone())).collect()
}

/// Parses, hides what must not be quoted, and checks the version.
pub(crate) fn open<'t>(
    source: &mut Source,
    text: &'t str,
) -> Result<Spanned<DeTable<'t>>, Vec<Problem>> {
    let parsed = shape::parse(source, text);
    let faults = parsed.as_ref().err().map_or(&[][..], Vec::as_slice);
    let hidden = match &parsed {
        Ok(table) => secrets::to_hide(text, table.get_ref(), faults),
        Err(_) => {
            let (table, _) = DeTable::parse_recoverable(text);
            secrets::to_hide(text, table.get_ref(), faults)
        }
    };
    source.hide(&hidden);
    let table = parsed?;
    shape::version(source, table.get_ref()).map_err(|it| vec![*it])?;
    Ok(table)
}

/// A checked `plugin.toml`, or none if it has a fault that concerns all of it.
fn author(
    source: &Source,
    table: Spanned<DeTable<'_>>,
    dir: &Path,
    notes: &mut Notes,
) -> Option<Author> {
    let mut reader = Reader::new(source);
    let file = PluginFile::read(&as_node(table), &mut reader);
    let mut own = Notes::default();
    reader.problems.into_iter().for_each(|it| own.add(it));
    let author = file.map(|file| Author::new(file, source, dir, &mut own));
    let is_fatal = own.is_fatal();
    own.problems.into_iter().for_each(|it| notes.add(it));
    author.filter(|_| !is_fatal)
}

pub(crate) fn as_node(table: Spanned<DeTable<'_>>) -> Node<'_> {
    Spanned::new(table.span(), DeValue::Table(table.into_inner()))
}

/// Which of the two files it is: by its name, or else by its tables.
fn is_plugin_file(name: &str, table: &DeTable<'_>) -> bool {
    let has = |keys: &[&str]| keys.iter().any(|key| table.contains_key(*key));
    if has(&["plugins", "host", "defaults"]) {
        return false;
    }
    Path::new(name).file_name().is_some_and(|it| it == PLUGIN_FILE)
        || has(&["plugin", "run", "provides", "asks", "needs"])
}

fn neither_or_both(
    name: &str,
    plugin: &At<Plugin>,
    from: Option<&At<String>>,
    command: Option<&At<Vec<At<String>>>>,
    source: &Source,
) -> Problem {
    match (from, command) {
        (Some(from), Some(command)) => {
            let message = format!("`{name}` has both `from` and `command`");
            Problem::error(Code::PB0109, message)
                .at(source, &command.span, "a command of its own")
                .also(source, &from.span, "a folder whose plugin.toml has a command")
                .help("keep `from`, and let its plugin.toml say the command; or keep `command`")
        }
        _ => {
            let message = format!("`{name}` has neither `from` nor `command`");
            Problem::error(Code::PB0109, message).at(source, &plugin.span, "nothing to run").help(
                "write from = \"./folder\" with a plugin.toml in it, or command = [\"program\"]",
            )
        }
    }
}

fn read_file(path: &Path) -> Result<String, Box<Problem>> {
    let shown = path.display();
    let cannot = |message: String| Box::new(Problem::error(Code::PB0110, message));
    let file = fs::File::open(path)
        .map_err(|err| cannot(format!("cannot read `{shown}`: {}", why(&err))))?;
    let mut bytes = Vec::new();
    file.take(shape::FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|err| cannot(format!("cannot read `{shown}`: {}", why(&err))))?;
    if shape::FILE_BYTES_MAX < bytes.len() {
        return Err(cannot(format!("`{shown}` has more than 1 MiB, which no manifest has")));
    }
    String::from_utf8(bytes).map_err(|err| {
        let at = err.utf8_error().valid_up_to();
        let line = err.as_bytes()[..at].iter().filter(|it| **it == b'\n').count() + 1;
        let message = format!("`{shown}` is not UTF-8 text (line {line})");
        Box::new(Problem::error(Code::PB0101, message).help("save it as UTF-8"))
    })
}

fn why(err: &std::io::Error) -> String {
    match err.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => "no permission".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        std::io::ErrorKind::NotADirectory => "a part of the path is no folder".to_owned(),
        _ => err.to_string(),
    }
}

/// The folder that relative paths in a file start from; absolute.
fn folder_of(path: &Path) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new("."));
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
}
