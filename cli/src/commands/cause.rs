//! Why a call has no answer, with everything that is known about it.

use std::time::Duration;

use plugbay_supervisor::{
    Budget, CallError, Caller, NotReady, PluginStatus, Reason, State, Supervisor, ToolInfo,
};

use crate::{
    source::Source,
    trouble::{Trouble, off},
    usage,
};

/// How many tools are named in an error.
const LISTED_MAX: usize = 12;

pub(crate) fn interrupted() -> Trouble {
    Trouble::coded("PB0506", "interrupted: the call was cancelled")
}

pub(crate) fn bad_arguments(source: &Source, tool: &ToolInfo, wrong: Vec<String>) -> Trouble {
    let problems = CallError::BadArguments { tool: tool.name.clone(), problems: wrong };
    Trouble::from(problems).help(how(source, tool))
}

pub(crate) fn how(source: &Source, tool: &ToolInfo) -> String {
    format!("write: {}", usage::call(source, &tool.name, &tool.input_schema))
}

pub(crate) fn failed(
    supervisor: &Supervisor,
    tool: &ToolInfo,
    mut error: CallError,
    total: Option<Duration>,
) -> Trouble {
    if let (CallError::TimedOut { budget: Budget::Deadline, waited, .. }, Some(total)) =
        (&mut error, total)
    {
        // The whole of what was asked for, also if a part of it went into the start.
        *waited = total;
    }
    let trouble = Trouble::from(error);
    let status = tool.plugin.as_deref().and_then(|name| supervisor.plugin(name).ok());
    match status {
        Some(PluginStatus { last_words, .. }) => trouble.last_words(&last_words.0),
        None => trouble,
    }
}

/// The time was over before any call could be made.
pub(crate) fn never_ready(supervisor: &Supervisor, total: Duration) -> Trouble {
    let starting = supervisor.plugins().into_iter().filter(|it| it.state != State::Active);
    let starting: Vec<PluginStatus> = starting.collect();
    let names: Vec<&str> = starting.iter().map(|it| it.name.as_str()).collect();
    let message = format!("{} was not ready within {total:?}", names.join(", "));
    let trouble = Trouble::coded("PB0505", message);
    let note = |trouble: Trouble, it: &PluginStatus| {
        trouble.note(match &it.reason {
            Reason::StartingUp { greeted: false } => {
                format!("{} has not answered the HELLO on its stdin", it.name)
            }
            Reason::StartingUp { greeted: true } => {
                format!("{} said HELLO and has not answered plugin.activate", it.name)
            }
            reason => off(&it.name, it.state, reason),
        })
    };
    let trouble = starting.iter().fold(trouble, note).note("the tool did not run");
    let words = starting.first().map_or("", |it| &it.last_words.0);
    trouble.last_words(words)
}

pub(crate) fn no_tool(
    supervisor: &Supervisor,
    error: CallError,
    mut down: Vec<NotReady>,
) -> Trouble {
    let plugins = supervisor.plugins();
    // With one program there is one cause, and that there is no such tool is its effect.
    if plugins.len() == 1
        && let Some(only) = down.pop()
    {
        return only.into();
    }
    let tools = supervisor.registry().tools(&Caller::trusted("cli"));
    let names: Vec<&str> = tools.iter().map(|it| it.name.as_str()).collect();
    let is_explained = match &error {
        CallError::NotFound { near, withheld, .. } => near.is_some() || withheld.is_some(),
        _ => true,
    };
    let mut trouble = Trouble::from(error);
    if !is_explained && !names.is_empty() && names.len() <= LISTED_MAX {
        trouble = trouble.note(format!("there are: {}", names.join(", ")));
    }
    trouble = down.iter().fold(trouble, |it, down| it.note(down.to_string()));
    let is_off = |it: &&PluginStatus| matches!(it.state, State::Invalid | State::Disabled);
    let off =
        |trouble: Trouble, it: &PluginStatus| trouble.note(off(&it.name, it.state, &it.reason));
    plugins.iter().filter(is_off).fold(trouble, off)
}
