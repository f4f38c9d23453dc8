//! The intersection of what a plugin asks for and what an operator grants.

use plugbay_protocol::scope::may_be_granted;

use super::{
    author::{Author, named},
    codes::Code,
    host::{Grant, GrantFs, GrantNet, Plugin},
    names,
    plugin::{Access, AskFs, AskHost, AskSecret},
    read::At,
    report::{Notes, Problem},
    resolve::ENV_ALWAYS,
    source::{Source, Span},
};
use crate::{
    peer::Peer,
    plan::{Effect, Network, ToolPlan},
};

/// What is granted, in the words of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Patterns over the plugin's own tool names.
    pub(crate) tools: Vec<String>,
    /// Whole names of the host's methods.
    pub(crate) scopes: Vec<String>,
    /// Names of environment variables.
    pub(crate) env: Vec<String>,
    /// Paths as they are written, and whether they may be changed.
    pub(crate) files: Vec<(String, bool)>,
    /// What may be connected to.
    pub(crate) network: Network,
}

/// Checks one plugin's grants against what its author asks for. Without an
/// author there is no ask, and the operator's word is all there is.
pub(crate) fn grants(
    name: &str,
    plugin: &Plugin,
    author: Option<&Author>,
    source: &Source,
    notes: &mut Notes,
) -> Granted {
    let mut check = Check { name, author, source, notes };
    let grant = plugin.grant.as_ref().map(|it| &it.value);
    let tools = check.tools(grant);
    let Some(grant) = grant else { return Granted { tools, ..Granted::default() } };
    let network = check.net(grant);
    check.fs(grant);
    let scopes = check.host(grant);
    let env = check.env(grant);
    let files = grant.fs.iter().flatten();
    let files = files.map(|it| (it.path.value.clone(), it.access.value == Access::ReadWrite));
    Granted { tools, scopes, env, files: files.collect(), network }
}

struct Check<'a> {
    name: &'a str,
    author: Option<&'a Author>,
    source: &'a Source,
    notes: &'a mut Notes,
}

impl Check<'_> {
    /// All tools where nothing is said: a plugin is there for its tools, and what
    /// they may do is decided by effect.
    fn tools(&mut self, grant: Option<&Grant>) -> Vec<String> {
        let Some(patterns) = grant.and_then(|it| it.tools.as_ref()) else {
            return vec!["*".to_owned()];
        };
        for pattern in patterns {
            if is_pattern(pattern, "the name of a tool", names::tool, self.source, self.notes)
                && let Some(author) = self.author
            {
                tool_exists(self.name, pattern, author, self.source, self.notes);
            }
        }
        patterns.iter().map(|it| it.value.clone()).collect()
    }

    fn net(&mut self, grant: &Grant) -> Network {
        let Some(granted) = &grant.net else { return Network::None };
        let rule = match granted {
            GrantNet::All(_) => names::host_port_or_all,
            GrantNet::Hosts(_) => names::host_port,
        };
        for to in granted.words() {
            named("a host to grant", to, rule, self.source, self.notes);
            let Some(author) = self.author else { continue };
            let asked: Vec<&str> = author.asks_net().map(|it| it.as_str()).collect();
            if rule(to).is_ok() && !asked.iter().any(|it| covers_host(it, to)) {
                self.never_asked("this host", "net", to, &asked);
            }
        }
        match granted {
            GrantNet::All(_) => Network::All,
            GrantNet::Hosts(hosts) if hosts.is_empty() => Network::None,
            // What is no host has been told.
            GrantNet::Hosts(hosts) => {
                Network::Hosts(hosts.iter().filter_map(|it| it.parse().ok()).collect())
            }
        }
    }

    fn fs(&mut self, grant: &Grant) {
        for it in grant.fs.iter().flatten() {
            named("a path to grant", &it.path, names::granted_path, self.source, self.notes);
            let Some(author) = self.author else { continue };
            if names::granted_path(&it.path).is_err() {
                continue;
            }
            let asks: Vec<&AskFs> =
                author.asks().and_then(|it| it.fs.as_ref()).into_iter().flatten().collect();
            let mut above =
                asks.iter().filter(|ask| names::is_below(&it.path, &ask.path)).peekable();
            if above.peek().is_none() {
                let asked: Vec<&str> = asks.iter().map(|it| it.path.as_str()).collect();
                self.never_asked("this path", "fs", &it.path, &asked);
            } else if !above.any(|ask| ask.access.covers(*it.access)) {
                let (path, wanted) = (&it.path.value, it.access.as_str());
                let message = format!("`{}` never asked for {wanted} access to {path}", self.name);
                let problem = Problem::error(Code::PB0204, message)
                    .at(self.source, &it.access.span, "wider than its plugin.toml asks")
                    .suggest(self.source, &it.access.span, "\"read\"", "grant what it asks for");
                self.notes.add(problem);
            }
        }
    }

    fn host(&mut self, grant: &Grant) -> Vec<String> {
        let mut granted: Vec<String> = Vec::new();
        for pattern in grant.host.iter().flatten() {
            let Some(author) = self.author else {
                // Without a list of asks there is nothing that a `*` could stand for.
                named(
                    "the name of a host's method",
                    pattern,
                    names::scope,
                    self.source,
                    self.notes,
                );
                granted.push(pattern.value.clone());
                continue;
            };
            if pattern.contains('[') {
                // Narrower than what was asked for, or the same.
                let what = "the name of a host's method";
                named(what, pattern, names::scope, self.source, self.notes);
                let asked: Vec<String> = author.asks_host().map(|it| it.to_string()).collect();
                match may_be_granted(&asked, pattern) {
                    true => granted.push(pattern.value.clone()),
                    false => {
                        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
                        self.never_asked("this call", "host", pattern, &asked);
                    }
                }
                continue;
            }
            if !is_pattern(
                pattern,
                "the name of a host's method",
                names::scope,
                self.source,
                self.notes,
            ) {
                continue;
            }
            let asked: Vec<&str> = author.asks_host().map(|it| it.as_str()).collect();
            let covered = asked.iter().filter(|it| names::covers(pattern, it));
            let before = granted.len();
            granted.extend(covered.map(|it| (*it).to_owned()));
            if granted.len() == before {
                self.never_asked("this call", "host", pattern, &asked);
            }
        }
        granted.sort();
        granted.dedup();
        granted
    }

    fn env(&mut self, grant: &Grant) -> Vec<String> {
        for name in grant.env.iter().flatten() {
            named("the name of a variable", name, names::variable, self.source, self.notes);
            if name.starts_with("PLUGBAY_") {
                let message = format!("`{}` cannot be granted: plugbay sets it itself", **name);
                self.notes.add(Problem::error(Code::PB0107, message).at(
                    self.source,
                    &name.span,
                    "names that begin with PLUGBAY_ are reserved",
                ));
                continue;
            }
            let Some(author) = self.author else { continue };
            let asked: Vec<&str> = author.asks_env().map(|it| it.as_str()).collect();
            let is_asked = asked.contains(&name.as_str()) || ENV_ALWAYS.contains(&name.as_str());
            if names::variable(name).is_ok() && !is_asked {
                self.never_asked("this variable", "env", name, &asked);
            }
        }
        grant.env.iter().flatten().map(|it| it.value.clone()).collect()
    }

    fn never_asked(&mut self, what: &str, key: &str, granted: &At<String>, asked: &[&str]) {
        let Some(author) = self.author else { return };
        let title = author.title();
        let problem = Problem::error(
            Code::PB0204,
            format!("`{}` never asked for {what}: {}", self.name, granted.value),
        )
        .at(self.source, &granted.span, "granted here, not asked for in its plugin.toml");
        let help = if asked.is_empty() {
            format!("`{title}` asks for nothing under `{key}`")
        } else {
            format!("`{title}` asks for: {}", asked.join(", "))
        };
        let near = names::near(granted, asked.iter().copied());
        let problem = match near {
            Some(near) => problem.near(self.source, &granted.span, near),
            None => problem.help(help),
        };
        self.notes.add(problem);
    }
}

/// Whether whoever may connect to the one may connect to the other; each is a host and a
/// port, or the word for all.
fn covers_host(wide: &str, narrow: &str) -> bool {
    match (wide.parse::<Peer>(), narrow.parse::<Peer>()) {
        (Ok(wide), Ok(narrow)) => wide.covers(&narrow),
        _ => wide == names::ALL_HOSTS,
    }
}

/// Whether a text is a name, or the start of one and `*`.
fn is_pattern(
    text: &At<String>,
    what: &str,
    rule: fn(&str) -> Result<(), String>,
    source: &Source,
    notes: &mut Notes,
) -> bool {
    let fault = match text.strip_suffix('*') {
        // What is before the `*` is the start of a name and not always one itself.
        Some(start) if !start.contains('*') && !start.contains(char::is_whitespace) => None,
        Some(_) => Some("expected one `*`, at the end".to_owned()),
        None if text.contains('*') => Some("expected `*` at the end, or not at all".to_owned()),
        None => rule(text).err(),
    };
    if let Some(expected) = &fault {
        let message = format!("`{}` cannot be {what}: {expected}", **text);
        let label = "a pattern is the start of a name and `*`";
        notes.add(Problem::error(Code::PB0107, message).at(source, &text.span, label));
    }
    fault.is_none()
}

/// Whether a pattern covers a tool of the plugin; if none, it is noted.
fn tool_exists(
    name: &str,
    pattern: &At<String>,
    author: &Author,
    source: &Source,
    notes: &mut Notes,
) -> bool {
    let mut all = author.file.provides.iter().flatten().map(|it| it.name.as_str());
    if all.any(|it| names::covers(pattern, it)) {
        return true;
    }
    // `*` on a plugin without tools grants nothing, and says so truly.
    if pattern.value == "*" {
        return true;
    }
    let known: Vec<&str> = author.tools.iter().map(|it| it.plan.name.as_str()).collect();
    let message = if pattern.ends_with('*') {
        format!("`{name}` has no tool that `{}` covers", **pattern)
    } else {
        format!("`{name}` has no tool `{}`", **pattern)
    };
    let problem = Problem::error(Code::PB0203, message).at(source, &pattern.span, "no such tool");
    notes.add(match names::near(pattern, known.iter().copied()) {
        Some(near) => problem.near(source, &pattern.span, near),
        None if known.is_empty() => problem.help(format!("`{}` lists no tools", author.title())),
        None => problem.help(format!("`{}` has: {}", author.title(), known.join(", "))),
    });
    false
}

/// The operator's word on effects, the most specific pattern first.
pub(crate) fn effects(
    name: &str,
    plugin: &Plugin,
    author: Option<&Author>,
    source: &Source,
    notes: &mut Notes,
) -> Vec<(String, Effect)> {
    let Some(map) = &plugin.effects else { return Vec::new() };
    let mut rules: Vec<(&At<String>, &At<Effect>)> = Vec::new();
    for (pattern, effect) in &map.0 {
        if !is_pattern(pattern, "the name of a tool", names::tool, source, notes) {
            continue;
        }
        let Some(author) = author else {
            rules.push((pattern, effect));
            continue;
        };
        if tool_exists(name, pattern, author, source, notes) {
            rules.push((pattern, effect));
        }
    }
    // A name beats a pattern, and a longer pattern beats a shorter one.
    rules.sort_by_key(|(pattern, _)| (pattern.ends_with('*'), std::cmp::Reverse(pattern.len())));
    for listed in author.iter().flat_map(|it| &it.tools) {
        let rule = rules.iter().find(|(pattern, _)| names::covers(pattern, &listed.plan.name));
        let Some((pattern, effect)) = rule.filter(|(_, it)| it.value < listed.plan.effect) else {
            continue;
        };
        weaker(&listed.plan, pattern, effect, author, &listed.name_at, source, notes);
    }
    rules.into_iter().map(|(pattern, effect)| (pattern.value.clone(), effect.value)).collect()
}

/// Calling a tool harmless that its author does not is legal, and said aloud.
fn weaker(
    tool: &ToolPlan,
    pattern: &At<String>,
    effect: &At<Effect>,
    author: Option<&Author>,
    name_at: &Span,
    source: &Source,
    notes: &mut Notes,
) {
    let (said, is) = (effect.as_str(), tool.effect.as_str());
    let message = format!("`{}` is `{is}` by its author and `{said}` by this file", tool.name);
    let mut problem = Problem::warning(Code::PB0207, message).at(
        source,
        &effect.span,
        format!("calls are approved as `{said}`"),
    );
    if let Some(author) = author {
        problem = problem.also(&author.source, name_at, "the author's word");
    }
    if pattern.ends_with('*') {
        problem =
            problem.help(format!("`{}` covers it: write an exact name to spare it", **pattern));
    }
    notes.add(problem);
}

/// What is asked for and not granted, each with the author's reason. Not a fault:
/// a plugin may do less.
pub(crate) fn not_granted(author: &Author, grant: Option<&Grant>, secrets: &[&str]) -> Vec<String> {
    let Some(asks) = author.asks() else { return Vec::new() };
    let texts = |list: fn(&Grant) -> &Option<Vec<At<String>>>| -> Vec<&str> {
        grant.and_then(|it| list(it).as_ref()).into_iter().flatten().map(|it| it.as_str()).collect()
    };
    let (host, env) = (texts(|it| &it.host), texts(|it| &it.env));
    let net = grant.and_then(|it| it.net.as_ref()).map_or(&[][..], GrantNet::words);
    let fs: Vec<&GrantFs> = grant.and_then(|it| it.fs.as_ref()).into_iter().flatten().collect();
    let mut open = Vec::new();
    let mut add = |kind: &str, what: &str, why: &Option<At<String>>| {
        let why = why.as_ref().map(|why| format!(" ({})", why.value)).unwrap_or_default();
        open.push(format!("{kind} {what}{why}"));
    };
    for it in asks.net.iter().flatten().filter(|ask| !net.iter().any(|it| covers_host(it, &ask.to)))
    {
        add("net", &it.to, &it.why);
    }
    let is_open = |ask: &&AskFs| !fs.iter().any(|it| names::is_below(&it.path, &ask.path));
    for it in asks.fs.iter().flatten().filter(is_open) {
        add("fs", &it.path, &it.why);
    }
    let is_open = |ask: &&AskHost| !host.iter().any(|it| names::covers(it, &ask.call));
    for it in asks.host.iter().flatten().filter(is_open) {
        add("host", &it.call, &it.why);
    }
    let has = |name: &str| env.contains(&name) || ENV_ALWAYS.contains(&name);
    for it in asks.env.iter().flatten().filter(|it| !has(&it.name)) {
        add("env", &it.name, &it.why);
    }
    // One that it cannot do without is an error of its own.
    let is_open = |ask: &&AskSecret| {
        ask.optional.as_ref().is_some_and(|it| it.value) && !secrets.contains(&ask.name.as_str())
    };
    for it in asks.secret.iter().flatten().filter(is_open) {
        add("secret", &it.name, &it.why);
    }
    open
}
