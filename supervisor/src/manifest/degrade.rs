//! What is written and not enforced: never in silence.
//!
//! Two kinds: what this version cannot do, and what only a sandbox holds a plugin to that
//! has none. (What this *machine* cannot do is seen when the plugin starts.)

use super::{
    author::Author,
    codes::Code,
    host::{GrantNet, Host, HostFile, Overflow, Plugin},
    read::At,
    report::{Notes, Problem},
    settings::{Layers, pick},
    source::{Source, Span},
    units::{Size, bytes_in_words},
};
use crate::plan::{IfMissing, Level};

/// One key that is accepted and checked, and that nothing holds the plugin to.
#[derive(Clone, Debug)]
pub(crate) struct Unenforced {
    /// The key and its value, as in `limits.memory = 128MiB`.
    what: String,
    /// Where it is not.
    where_not: &'static str,
    /// What happens instead.
    instead: &'static str,
    at: Span,
}

/// Everything of that kind that holds for one plugin, in the order of the keys.
pub(crate) fn unenforced(
    host: Option<&Host>,
    plugin: &Plugin,
    layers: Layers<'_>,
    level: Level,
) -> Vec<Unenforced> {
    let mut found = Vec::new();
    let mut add = |what: String, at: &Span, where_not, instead: &'static str| {
        found.push(Unenforced { what, where_not, instead, at: at.clone() });
    };
    const VERSION: &str = "in this version";
    const BARE: &str = "without a sandbox";
    const NO_LIMIT: &str = "nothing stops the plugin there";
    if level == Level::None {
        for (key, at) in
            [("memory", pick!(layers, limits.memory)), ("file", pick!(layers, limits.file))]
        {
            if let Some(it) = at {
                add(format!("limits.{key} = {}", size(it)), &it.span, BARE, NO_LIMIT);
            }
        }
        if let Some(it) = pick!(layers, limits.cpu) {
            let share = super::settings::percent(it.value);
            add(format!("limits.cpu = {share}"), &it.span, BARE, NO_LIMIT);
        }
        for (key, at) in [
            ("processes", pick!(layers, limits.processes)),
            ("open_files", pick!(layers, limits.open_files)),
        ] {
            if let Some(it) = at {
                add(format!("limits.{key} = {}", it.value), &it.span, BARE, NO_LIMIT);
            }
        }
        if let Some(it) = pick!(layers, sandbox.private_tmp).filter(|it| it.value) {
            let instead = "the plugin sees the temporary files of others";
            add("sandbox.private_tmp = true".to_owned(), &it.span, BARE, instead);
        }
    }
    if let Some(it) = pick!(layers, limits.overflow) {
        let word = match it.value {
            Overflow::Offload => Some("offload"),
            Overflow::Truncate => Some("truncate"),
            Overflow::Fail => None,
        };
        if let Some(word) = word {
            let instead = "a result over the limit fails the call";
            add(format!("limits.overflow = {word}"), &it.span, VERSION, instead);
        }
    }
    if let Some(grant) = &plugin.grant {
        let hosts = grant.net.as_ref().map_or(&[][..], |it| match it {
            GrantNet::Hosts(hosts) => hosts,
            // It means what there is.
            GrantNet::All(_) => &[],
        });
        for it in hosts.iter().filter(|_| level == Level::None) {
            let instead = "the plugin reaches every host that its user can";
            add(format!("grant.net {}", it.value), &it.span, BARE, instead);
        }
        for it in grant.fs.iter().flatten().filter(|_| level == Level::None) {
            let instead = "the plugin opens every file that its user can";
            add(format!("grant.fs {}", it.path.value), &it.path.span, BARE, instead);
        }
    }
    let together = [
        host.and_then(|it| it.memory.as_ref()).map(|it| ("memory", size(it), &it.span)),
        host.and_then(|it| it.cpu.as_ref()).map(|it| ("cpu", format!("{}%", it.0), &it.span)),
        host.and_then(|it| it.processes.as_ref())
            .map(|it| ("processes", it.value.to_string(), &it.span)),
    ];
    for (key, value, at) in together.into_iter().flatten().filter(|_| level == Level::None) {
        let instead = "the plugin is not counted to the others";
        add(format!("host.{key} = {value}"), at, BARE, instead);
    }
    found
}

fn size(at: &At<Size>) -> String {
    bytes_in_words(at.0)
}

/// Where the operator has said that such a plugin is refused.
pub(crate) fn refuses<'a>(layers: Layers<'a>) -> Option<&'a Span> {
    pick!(layers, sandbox.if_missing).filter(|it| it.value == IfMissing::Refuse).map(|it| &it.span)
}

/// Says each of them: as a warning and a line for the plan, or as a refusal.
pub(crate) fn report(
    name: &str,
    found: Vec<Unenforced>,
    refuse: Option<&Span>,
    source: &Source,
    notes: &mut Notes,
) -> Vec<String> {
    for it in &found {
        notes.add(match refuse {
            Some(rule) => {
                let message =
                    format!("`{name}` is refused: {} is not enforced {}", it.what, it.where_not);
                Problem::error(Code::PB0702, message)
                    .at(source, &it.at, it.instead)
                    .also(source, rule, "this rule refuses it")
                    .help("remove the key, or write if_missing = \"warn\" to run without it")
            }
            // Without the plugin's name: what `[defaults]` says is said once.
            None => {
                let message = format!("{} is not enforced {}", it.what, it.where_not);
                Problem::warning(Code::PB0701, message).at(source, &it.at, it.instead)
            }
        });
    }
    found.into_iter().map(|it| format!("{} is not enforced: {}", it.what, it.instead)).collect()
}

/// Keys that are known and have no effect yet, beside those above.
pub(crate) fn later(file: &HostFile, source: &Source, notes: &mut Notes) {
    let Some(host) = &file.host else { return };
    if let Some(at) = &host.control {
        let message = "`control` is planned and has no effect yet";
        notes.add(Problem::warning(Code::PB0114, message).at(
            source,
            &at.span,
            "nothing reads this in this version",
        ));
    }
}

/// Whether the operator has said what the sandbox is.
pub(crate) fn says_level(layers: Layers<'_>) -> bool {
    pick!(layers, sandbox.level).is_some()
}

/// Said once: what it means that there is no sandbox.
pub(crate) fn no_sandbox() -> Problem {
    Problem::note(
        Code::PB0703,
        "plugins run without a sandbox: each can do what the user who runs plugbay can",
    )
    .help(
        "write level = \"standard\" under [defaults.sandbox] to close them in, or \"none\" to say \
         that you know",
    )
}

/// Warns where an operator sets less than the author says it needs.
pub(crate) fn needs(
    name: &str,
    author: &Author,
    layers: Layers<'_>,
    plan: &crate::plan::PluginPlan,
    source: &Source,
    notes: &mut Notes,
) {
    let Some(needs) = &author.file.needs else { return };
    let mut less = |key: &str, set: Option<&Span>, needed: (&Span, String), is: String| {
        let (needed_at, needed) = needed;
        let message = format!("`{name}` says it needs {key} = {needed}, and has {is}");
        let problem = Problem::warning(Code::PB0704, message);
        notes.add(match set {
            Some(set) => problem.at(source, set, "less than it needs").also(
                &author.source,
                needed_at,
                "the author's number",
            ),
            None => problem.at(&author.source, needed_at, "more than the default"),
        });
    };
    let words = super::units::in_words;
    if let Some(need) = needs.start.as_ref().filter(|it| plan.timeouts.hello < it.0) {
        let set = pick!(layers, timeouts.start).map(|it| &it.span);
        less("start", set, (&need.span, words(need.0)), words(plan.timeouts.hello));
    }
    if let Some(need) = needs.call.as_ref().filter(|it| plan.timeouts.call_idle < it.0) {
        let set = pick!(layers, timeouts.call).map(|it| &it.span);
        less("call", set, (&need.span, words(need.0)), words(plan.timeouts.call_idle));
    }
    if let (Some(need), Some(set)) = (&needs.memory, pick!(layers, limits.memory))
        && set.0 < need.0
    {
        less("memory", Some(&set.span), (&need.span, size(need)), size(set));
    }
}
