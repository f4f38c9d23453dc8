//! A `plugin.toml` once it has been checked: the author's side.

use std::path::{Path, PathBuf};

use super::{
    codes::Code,
    names,
    plugin::{Asks, Kind, PluginFile, Wire},
    read::At,
    report::{Notes, Problem},
    resolve::Surroundings,
    source::{Source, Span},
    tools::{self, Listed},
};

/// What an author says, checked.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    pub(crate) file: PluginFile,
    pub(crate) tools: Vec<Listed>,
    pub(crate) source: Source,
    /// The folder of the file.
    pub(crate) dir: PathBuf,
}

impl Author {
    /// Checks everything that needs no operator.
    pub(crate) fn new(file: PluginFile, source: &Source, dir: &Path, notes: &mut Notes) -> Self {
        let mut check = Check { source, notes };
        check.identity(&file);
        check.run(&file);
        if let Some(asks) = &file.asks {
            check.asks(asks);
        }
        let provides = file.provides.as_deref().unwrap_or_default();
        let tools = tools::listed(provides, dir, source, notes);
        Self { file, tools, source: source.clone(), dir: dir.to_owned() }
    }

    /// The command for this operating system.
    pub(crate) fn command(&self, around: &Surroundings) -> &At<Vec<At<String>>> {
        let on = self.file.run.on.iter().flat_map(|on| &on.0);
        on.into_iter()
            .find(|(os, _)| **os == around.os)
            .map_or(&self.file.run.command, |(_, on)| &on.command)
    }

    /// `acme.geocode 1.4.0`.
    pub(crate) fn title(&self) -> String {
        let plugin = &self.file.plugin;
        format!("{} {}", plugin.id.value, plugin.version.value)
    }

    /// Names of tools that are written and have a fault of their own.
    pub(crate) fn withheld(&self) -> impl Iterator<Item = &str> {
        let provides = self.file.provides.iter().flatten();
        let tools = provides.filter(|it| *it.kind == Kind::Tool).map(|it| it.name.as_str());
        tools.filter(|name| !self.tools.iter().any(|it| it.plan.name == *name))
    }

    pub(crate) fn asks_host(&self) -> impl Iterator<Item = &At<String>> {
        self.asks().and_then(|it| it.host.as_ref()).into_iter().flatten().map(|it| &it.call)
    }

    pub(crate) fn asks_net(&self) -> impl Iterator<Item = &At<String>> {
        self.asks().and_then(|it| it.net.as_ref()).into_iter().flatten().map(|it| &it.to)
    }

    pub(crate) fn asks_env(&self) -> impl Iterator<Item = &At<String>> {
        self.asks().and_then(|it| it.env.as_ref()).into_iter().flatten().map(|it| &it.name)
    }

    pub(crate) fn asks(&self) -> Option<&Asks> {
        self.file.asks.as_ref()
    }
}

struct Check<'a> {
    source: &'a Source,
    notes: &'a mut Notes,
}

impl Check<'_> {
    fn identity(&mut self, file: &PluginFile) {
        let plugin = &file.plugin;
        self.name("a plugin's id", &plugin.id, names::id);
        self.name("a version", &plugin.version, names::version);
        if let Some(protocol) = plugin.protocol.as_ref().filter(|it| ***it != "1") {
            let message = format!(
                "the plugin speaks protocol {}, and this plugbay speaks protocol 1",
                **protocol
            );
            self.notes.add(
                Problem::error(Code::PB0106, message)
                    .at(self.source, &protocol.span, "expected \"1\"")
                    .help("build the plugin for protocol 1, or use the plugbay it was built for"),
            );
        }
    }

    fn run(&mut self, file: &PluginFile) {
        if let Some(wire) = file.run.wire.as_ref() {
            mcp_is_later(wire, self.source, self.notes);
        }
        for (os, _) in file.run.on.iter().flat_map(|on| &on.0) {
            const SYSTEMS: [&str; 4] = ["linux", "macos", "windows", "freebsd"];
            if !SYSTEMS.contains(&os.as_str()) {
                let message = format!("`{}` is no operating system that plugbay knows", **os);
                let problem = Problem::error(Code::PB0108, message).at(
                    self.source,
                    &os.span,
                    "nothing would ever use this command",
                );
                let near = names::near(os, SYSTEMS);
                self.notes.add(match near {
                    Some(near) => problem.near(self.source, &os.span, near),
                    None => problem.help(format!("expected one of {}", SYSTEMS.join(", "))),
                });
            }
        }
    }

    fn asks(&mut self, asks: &Asks) {
        let net = asks.net.iter().flatten().map(|it| &it.to);
        net.for_each(|to| self.name("a host to connect to", to, names::host_port_or_all));
        let fs = asks.fs.iter().flatten().map(|it| &it.path);
        fs.for_each(|path| self.name("a path to ask for", path, names::granted_path));
        let host = asks.host.iter().flatten().map(|it| &it.call);
        host.for_each(|call| self.name("the name of a host's method", call, names::scope));
        let env = asks.env.iter().flatten().map(|it| &it.name);
        env.for_each(|name| self.name("the name of a variable", name, names::variable));
        let secrets = asks.secret.iter().flatten().map(|it| &it.name);
        secrets.for_each(|name| self.name("the name of a secret", name, names::variable));
    }

    fn name(&mut self, what: &str, text: &At<String>, rule: fn(&str) -> Result<(), String>) {
        named(what, text, rule, self.source, self.notes);
    }
}

/// Notes a text that is no such name.
pub(crate) fn named(
    what: &str,
    text: &At<String>,
    rule: fn(&str) -> Result<(), String>,
    source: &Source,
    notes: &mut Notes,
) {
    if let Err(expected) = rule(text) {
        let message = format!("`{}` cannot be {what}: {expected}", **text);
        let label = format!("not {what}");
        notes.add(Problem::error(Code::PB0107, message).at(source, &text.span, label));
    }
}

/// MCP comes through a bridge that this version lacks.
pub(crate) fn mcp_is_later(wire: &At<Wire>, source: &Source, notes: &mut Notes) {
    if **wire == Wire::Mcp {
        let span: &Span = &wire.span;
        notes.add(
            Problem::error(Code::PB0114, "plugins that speak MCP are planned and do not run yet")
                .at(source, span, "not in this version")
                .help("this version runs plugins that speak frames, the protocol of sdk-spec/"),
        );
    }
}
