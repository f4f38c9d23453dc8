//! One plugin of a `plugbay.toml` against its author's file: the plan it becomes.

use std::path::{Path, PathBuf};

use super::{
    author::{Author, mcp_is_later, named},
    codes::Code,
    degrade, grants,
    host::{Host, Plugin},
    names,
    read::At,
    report::{Notes, Problem, Severity},
    resolve::{self, Surroundings},
    secrets,
    settings::{self, Layer, Layers, pick},
    source::{Source, Span},
    tools::Listed,
};
use crate::{
    digest,
    plan::{Digest, Effect, FileGrant, Level, PluginPlan, STATE, Secret, ToolPlan},
};

/// What one plugin is built from.
pub(crate) struct Build<'a> {
    pub(crate) name: &'a At<String>,
    pub(crate) plugin: &'a At<Plugin>,
    /// None for a bare command.
    pub(crate) author: Option<&'a Author>,
    pub(crate) host: Option<&'a Host>,
    pub(crate) defaults: Layer<'a>,
    /// The operator's file and its folder.
    pub(crate) source: &'a Source,
    pub(crate) dir: &'a Path,
    pub(crate) around: &'a Surroundings,
}

impl Build<'_> {
    /// The plan, if nothing keeps the plugin from running.
    pub(crate) fn plan(&self, notes: &mut Notes) -> Option<PluginPlan> {
        let (source, plugin) = (self.source, &self.plugin.value);
        let layers = Layers { upper: Layer::plugin(plugin), lower: self.defaults };
        settings::check(layers.upper, source, notes);
        settings::check_pairs(layers, true, source, notes);
        self.check_wire(notes);
        if let Some(prefix) = &plugin.prefix {
            named("a prefix", prefix, names::tool, source, notes);
        }

        let granted = grants::grants(self.name, plugin, self.author, source, notes);
        let effects = grants::effects(self.name, plugin, self.author, source, notes);
        let is_enabled = plugin.enabled.as_ref().is_none_or(|it| it.value);
        let command = self.command(is_enabled, notes);
        let digest = self.digest(command.as_deref(), notes);
        let secrets = self.secrets(is_enabled, notes);
        self.unset(&granted.env, notes);
        let level = pick!(layers, sandbox.level).map_or(Level::default(), |it| it.value);
        let unenforced = degrade::unenforced(self.host, plugin, layers, level);
        // What does not run breaks no rule.
        let refuse = degrade::refuses(layers).filter(|_| is_enabled);
        let degraded = degrade::report(self.name, unenforced, refuse, source, notes);

        let dir = self.author.map_or(self.dir, |it| &it.dir);
        let mut plan = PluginPlan::new(&**self.name, command.unwrap_or_default(), dir);
        settings::apply(layers, &mut plan);
        plan.digest = digest;
        plan.env = self.around.environment(granted.env.iter().map(String::as_str));
        self.files(&granted.files, &mut plan, notes);
        plan.sandbox.network = granted.network;
        plan.prefix = plugin.prefix.as_ref().map(|it| it.value.clone());
        plan.grant_tools = granted.tools;
        plan.grant_scopes = granted.scopes;
        plan.secrets = secrets;
        plan.effects = effects;
        plan.enabled = is_enabled;
        plan.degraded = degraded;
        if let Some(config) = &plugin.config {
            plan.config = config.0.clone();
        }
        if let Some(author) = self.author {
            degrade::needs(self.name, author, layers, &plan, source, notes);
            self.not_granted(author, notes);
            let identity = &author.file.plugin;
            plan.identity = Some((identity.id.value.clone(), identity.version.value.clone()));
            plan.discover = false;
            self.tools(author, &mut plan, notes);
        }
        (!notes.is_fatal()).then_some(plan)
    }

    /// Grants of files, with real folders in the place of variables.
    fn files(&self, granted: &[(String, bool)], plan: &mut PluginPlan, notes: &mut Notes) {
        for (path, write) in granted {
            let (folder, rest, make) = match path.strip_prefix("${") {
                None => (None, path.as_str(), false),
                Some(word) => {
                    // What is neither has been told as a fault of the path.
                    let (word, rest) = word.split_once('}').unwrap_or_default();
                    let folder = match word {
                        "state" => self.state_folder(notes),
                        _ => Some(self.dir.to_owned()),
                    };
                    let Some(folder) = folder else { continue };
                    (Some(folder), rest.trim_start_matches('/'), word == "state")
                }
            };
            if let (true, Some(folder)) = (make, &folder) {
                let shown = folder.to_string_lossy().into_owned();
                plan.env.insert(STATE.to_owned(), shown);
            }
            let path = match folder {
                Some(folder) if rest.is_empty() => folder,
                Some(folder) => folder.join(rest),
                None => rest.into(),
            };
            plan.sandbox.files.push(FileGrant { path, write: *write, make });
        }
    }

    /// What is kept for this plugin from one run to the next.
    fn state_folder(&self, notes: &mut Notes) -> Option<PathBuf> {
        let said = self.host.and_then(|it| it.state_dir.as_ref());
        let said = said.map(|it| self.dir.join(&it.value));
        let Some(all) = said.or_else(|| self.around.state_folder()) else {
            let message = "nothing says where `${state}` is";
            let problem = Problem::error(Code::PB0107, message);
            notes.add(problem.help("write state_dir under [host]"));
            return None;
        };
        Some(all.join(&self.name.value))
    }

    fn check_wire(&self, notes: &mut Notes) {
        let Some(wire) = &self.plugin.wire else { return };
        if self.author.is_some() {
            let message = "`wire` belongs to `command`: with `from`, the plugin.toml says it";
            notes.add(Problem::error(Code::PB0109, message).at(
                self.source,
                &wire.span,
                "remove this key",
            ));
        } else {
            mcp_is_later(wire, self.source, notes);
        }
    }

    /// A plugin that is switched off may lack its program: it is listed, and what
    /// is missing is a warning.
    fn command(&self, is_enabled: bool, notes: &mut Notes) -> Option<Vec<String>> {
        let (words, dir, source) = match (self.author, &self.plugin.command) {
            (Some(author), _) => (author.command(self.around), &*author.dir, &author.source),
            (None, Some(words)) => (words, self.dir, self.source),
            (None, None) => return None,
        };
        for word in words.iter().filter(|word| secrets::looks_secret("", word)) {
            let message = "this argument looks like a secret";
            let problem = Problem::warning(Code::PB0310, message);
            notes.add(
                problem
                    .at(
                        source,
                        &word.span,
                        "every user sees the arguments of a process (not shown here)",
                    )
                    .help("hand it over under [plugins.NAME.secrets] as a reference"),
            );
        }
        match resolve::command(words, dir, self.around, source) {
            Ok(command) => Some(command),
            Err(mut problem) if !is_enabled => {
                problem.severity = Severity::Warning;
                notes.add(*problem);
                Some(words.iter().map(|it| it.value.clone()).collect())
            }
            Err(problem) => {
                notes.add(*problem);
                None
            }
        }
    }

    /// What the file that is run must be. An author's file is not covered itself, so it may
    /// say nothing that runs beside that file.
    fn digest(&self, command: Option<&[String]>, notes: &mut Notes) -> Option<Digest> {
        let text = self.plugin.digest.as_ref()?;
        named("a digest", text, names::digest, self.source, notes);
        let (sha256, word) = (names::digest_bytes(text)?, digest::word(command?));
        if let (Some(author), Some(option)) =
            (self.author, word.checked_sub(1).filter(|it| 0 < *it))
        {
            let message = format!("the digest of `{}` cannot stand for all that runs", **self.name);
            let option = author.command(self.around).get(option);
            let at = option.map_or(&author.file.run.command.span, |it| &it.span);
            let problem = Problem::error(Code::PB0518, message)
                .at(&author.source, at, "an option of the interpreter, in a file without a digest")
                .also(self.source, &text.span, "the digest");
            notes.add(problem.help(
                "remove the option, or write the command in place of `from`, so that this file \
                 says it",
            ));
        }
        Some(Digest { sha256, word })
    }

    fn secrets(
        &self,
        is_enabled: bool,
        notes: &mut Notes,
    ) -> std::collections::BTreeMap<String, Secret> {
        let given = self.plugin.secrets.as_ref().map_or(&[][..], |it| &it.0);
        let mut values = std::collections::BTreeMap::new();
        for (name, source) in given {
            named("the name of a secret", name, names::variable, self.source, notes);
            if let Some(author) = self.author
                && names::variable(name).is_ok()
                && !asked_secrets(author).any(|it| it.0.value == name.value)
            {
                notes.add(self.never_asked_secret(author, name));
                continue;
            }
            // What does not run is handed nothing.
            if !is_enabled {
                continue;
            }
            match secrets::resolve(source, self.dir, self.around) {
                Ok(value) => values.extend(value.map(|it| (name.value.clone(), it))),
                Err((why, next)) => {
                    let message = format!("the secret `{}` cannot be had: {why}", **name);
                    let problem = Problem::error(Code::PB0302, message);
                    let label = "where it should come from";
                    notes.add(problem.at(self.source, &source.span, label).help(next));
                }
            }
        }
        if let Some(author) = self.author.filter(|_| is_enabled) {
            for (name, why, optional) in asked_secrets(author) {
                if !optional && !given.iter().any(|(it, _)| it.value == name.value) {
                    notes.add(self.missing_secret(name, why, author));
                }
            }
        }
        values
    }

    fn never_asked_secret(&self, author: &Author, name: &At<String>) -> Problem {
        let message = format!("`{}` never asked for the secret `{}`", **self.name, **name);
        let problem = Problem::error(Code::PB0303, message).at(
            self.source,
            &name.span,
            "not asked for in its plugin.toml",
        );
        let asked: Vec<&str> = asked_secrets(author).map(|it| it.0.as_str()).collect();
        match names::near(name, asked.iter().copied()) {
            Some(near) => problem.near(self.source, &name.span, near),
            None if asked.is_empty() => {
                problem.help(format!("`{}` asks for no secret", author.title()))
            }
            None => problem.help(format!("`{}` asks for: {}", author.title(), asked.join(", "))),
        }
    }

    fn missing_secret(&self, name: &At<String>, why: Option<&str>, author: &Author) -> Problem {
        let message = format!("`{}` needs the secret `{}`", **self.name, **name);
        let problem = Problem::error(Code::PB0301, message);
        let comment = why.map(|why| format!("   # {why}")).unwrap_or_default();
        let name_here = &**self.name;
        let lines = format!(
            "[plugins.{name_here}.secrets]\n{} = {{ file = \"/run/secrets/…\" }}{comment}",
            **name
        );
        if std::ptr::eq(self.source, &author.source) || self.source.name == author.source.name {
            // No operator's file yet.
            let problem =
                problem.at(self.source, &name.span, "nobody has said where it comes from");
            return problem.help(format!(
                "write a plugbay.toml and run that:\n\nmanifest = 1\n\n[plugins.{name_here}]\n\
                 from = \"…\"\n\n{lines}"
            ));
        }
        problem
            .at(self.source, &self.header(), "has no source for it")
            .help(format!("add to this file:\n\n{lines}"))
    }

    /// Where the plugin's table begins.
    fn header(&self) -> Span {
        self.plugin.span.clone()
    }

    /// A granted variable that is not set would be a riddle inside the plugin.
    fn unset(&self, granted: &[String], notes: &mut Notes) {
        let list = self.plugin.grant.as_ref().and_then(|it| it.env.as_ref());
        for name in list.into_iter().flatten() {
            if granted.contains(&name.value)
                && names::variable(name).is_ok()
                && !resolve::ENV_ALWAYS.contains(&name.as_str())
                && !self.around.env.contains_key(&name.value)
            {
                let message = format!("`{}` is granted and is not set where plugbay runs", **name);
                let problem = Problem::warning(Code::PB0306, message);
                notes.add(problem.at(self.source, &name.span, "the plugin will not have it"));
            }
        }
    }

    fn not_granted(&self, author: &Author, notes: &mut Notes) {
        let secrets: Vec<&str> = self
            .plugin
            .secrets
            .iter()
            .flat_map(|it| &it.0)
            .map(|(name, _)| name.as_str())
            .collect();
        let open = grants::not_granted(author, self.plugin.grant.as_deref(), &secrets);
        if !open.is_empty() {
            let message = format!("`{}` asks for more than it is granted", **self.name);
            let problem = Problem::note(Code::PB0208, message);
            let help = format!("not granted:\n{}", open.join("\n"));
            notes.add(problem.at(self.source, &self.header(), "runs without it").help(help));
        }
    }

    /// Every tool of the author's file, with the operator's effects, and the names
    /// of those that will be listed: granted, with a schema that holds, and with a
    /// name that holds once it has its prefix. The plan names the others too, for a
    /// handshake that provides them is no surprise.
    fn tools(&self, author: &Author, plan: &mut PluginPlan, notes: &mut Notes) {
        let mut granted = Vec::new();
        for listed in &author.tools {
            let mut tool = listed.plan.clone();
            let rule = plan.effects.iter().find(|(it, _)| names::covers(it, &tool.name));
            tool.effect = rule.map_or(tool.effect, |(_, effect)| *effect);
            if plan.grant_tools.iter().any(|it| names::covers(it, &tool.name))
                && self.holds_with_prefix(author, listed, notes)
            {
                granted.push(tool.name.clone());
            }
            plan.tools.push(tool);
        }
        plan.tools.extend(author.withheld().map(unlisted));
        plan.grant_tools = granted;
    }

    fn holds_with_prefix(&self, author: &Author, tool: &Listed, notes: &mut Notes) -> bool {
        let prefix = self.plugin.prefix.as_ref().filter(|it| names::tool(it).is_ok());
        let Some(prefix) = prefix else { return true };
        let name = &tool.plan.name;
        let Err(expected) = names::tool(&full_name(Some(prefix), name)) else { return true };
        let message = format!("the tool `{name}` is withheld: {expected}, with its prefix");
        notes.add(
            Problem::error(Code::PB0206, message)
                .at(self.source, &prefix.span, "put before its name")
                .also(&author.source, &tool.name_at, "the name")
                .help("choose a shorter prefix")
                .tool(name),
        );
        false
    }
}

/// A tool that has a name and is never listed.
fn unlisted(name: &str) -> ToolPlan {
    ToolPlan {
        name: name.to_owned(),
        description: String::new(),
        input_schema: serde_json::json!({ "type": "object" }),
        output_schema: None,
        effect: Effect::Write,
        idempotent: false,
    }
}

/// A tool's name in the registry.
pub(crate) fn full_name(prefix: Option<&str>, name: &str) -> String {
    match prefix {
        Some(prefix) => format!("{prefix}_{name}"),
        None => name.to_owned(),
    }
}

fn asked_secrets(author: &Author) -> impl Iterator<Item = (&At<String>, Option<&str>, bool)> {
    let asks = author.asks().and_then(|it| it.secret.as_ref()).into_iter().flatten();
    asks.map(|it| {
        let why = it.why.as_ref().map(|it| it.as_str());
        (&it.name, why, it.optional.as_ref().is_some_and(|it| it.value))
    })
}
