//! `plugbay call`: one tool, one answer.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{
    Budget, Call, CallError, Caller, NotReady, Output, PluginStatus, Progress, Reason, State,
    Supervisor, ToolInfo,
};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{cannot_listen, discover, tools_of, undiscovered};
use crate::{
    args::{self, Form},
    asked::Asked,
    exit::Exit,
    follow::{Follow, News},
    render::{PLAIN, Screen, Status, Volume, facts},
    signals::Signals,
    source::Found,
    trouble::{Outcome, Trouble, off},
    usage, values,
};

/// How long a cancelled call may take to end before its plugin is ended under it.
const INTERRUPT_GRACE: Duration = Duration::from_millis(500);
/// After this long, whoever waits for a process to end is told so.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many tools are named in an error.
const LISTED_MAX: usize = 12;

pub(super) async fn call(args: &args::Call, screen: &Screen) -> Outcome {
    // Everything is read before anything is started.
    let asked = Asked::read(args)?;
    let mut signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let Found { loaded, .. } = args.source.find()?;
    if screen.volume == Volume::Loud || loaded.plan.plugins.is_empty() {
        screen.report(&loaded.report);
    }
    if loaded.plan.plugins.is_empty() && loaded.report.has_errors() {
        return Err(Trouble::silent(Exit::Bad));
    }
    let unknown = undiscovered(&loaded.plan.plugins);
    let supervisor = Supervisor::builder().loaded(loaded).start()?;
    let mut follow = Follow::new(&supervisor);
    let (told, progress) = watch::channel(None);

    let work = answer(&supervisor, &unknown, args, asked, told);
    let outcome = tokio::select! {
        outcome = work => outcome,
        never = follow.all(|news| show(news, &supervisor, screen)) => match never {},
        never = watch_progress(progress, screen) => match never {},
        () = signals.next() => Err(interrupted()),
    };
    let Ok(()) = follow.rest(|news| show(news, &supervisor, screen));

    let exit = give(outcome, args.output, screen);
    let drain = if matches!(exit, Ok(Exit::Fine)) { PATIENCE } else { INTERRUPT_GRACE };
    put_away(supervisor, drain, &mut signals, screen).await;
    exit
}

/// Finds the tool, types the arguments, calls.
async fn answer(
    supervisor: &Supervisor,
    unknown: &[String],
    args: &args::Call,
    asked: Asked,
    told: watch::Sender<Option<Progress>>,
) -> Outcome<Output> {
    let began = Instant::now();
    let registry = supervisor.registry();
    let tool = match registry.tool(&args.tool) {
        Some(tool) => tool,
        None => learn(supervisor, unknown, args).await?,
    };
    let object = values::arguments(&tool.input_schema, asked.base, &asked.given)
        .map_err(|wrong| bad_arguments(&tool, wrong))?;
    let mut call = Call::new(&tool.name, Value::Object(object))
        // Nobody who looks at progress is no reason to stop.
        .on_progress(move |progress| drop(told.send(Some(progress))));
    if let Some(total) = args.timeout {
        // What was spent on learning the tools is spent.
        call = call.deadline(total.saturating_sub(began.elapsed()));
    }
    if let Some(idle) = args.idle {
        call = call.idle(idle);
    }
    let result = registry.call(&Caller::trusted("cli"), call).await;
    result.map_err(|error| failed(supervisor, &tool, error, args.timeout))
}

/// Starts the plugins whose tools no manifest names, to find this one.
async fn learn(
    supervisor: &Supervisor,
    unknown: &[String],
    args: &args::Call,
) -> Outcome<ToolInfo> {
    let learning = discover(supervisor, unknown);
    let down = match args.timeout {
        Some(total) => {
            timeout(total, learning).await.map_err(|_| never_ready(supervisor, total))?
        }
        None => learning.await,
    };
    match supervisor.registry().tool(&args.tool) {
        Some(tool) => Ok(tool),
        None => Err(no_tool(supervisor, &args.tool, down)),
    }
}

fn show(news: News, supervisor: &Supervisor, screen: &Screen) -> Result<(), Infallible> {
    match news {
        News::Line(line) if screen.volume == Volume::Loud => screen.line(&line),
        News::Event(event) if screen.volume == Volume::Loud => {
            if let Some((_, status)) = facts::line(&event.fact, |it| tools_of(supervisor, it)) {
                screen.status(&status);
            }
        }
        _ => {}
    }
    Ok(())
}

async fn watch_progress(
    mut progress: watch::Receiver<Option<Progress>>,
    screen: &Screen,
) -> Infallible {
    while progress.changed().await.is_ok() {
        if let Some(progress) = &*progress.borrow_and_update() {
            screen.progress(progress);
        }
    }
    std::future::pending().await
}

/// Prints the answer or the error.
fn give(outcome: Outcome<Output>, form: Form, screen: &Screen) -> Outcome {
    match (outcome, form) {
        (Ok(output), Form::Json) => {
            screen.json(&output.to_json())?;
            Ok(if output.is_error { Exit::Bad } else { Exit::Fine })
        }
        // Like any program that fails, it says so on stderr and gives no data.
        (Ok(output), Form::Text) if output.is_error => {
            Err(Trouble::new(Exit::Bad, format!("the tool failed: {}", output.text())))
        }
        (Ok(output), Form::Text) => screen.answer(&output.text()).map(|()| Exit::Fine),
        (Err(trouble), Form::Json) => {
            screen.trouble(&trouble);
            screen.json(&trouble.to_json())?;
            Ok(trouble.exit)
        }
        (Err(trouble), Form::Text) => {
            screen.trouble(&trouble);
            Ok(trouble.exit)
        }
    }
}

/// Ends every process, and then the wait: for the stop ladder's own time, or until a
/// signal says that it is too long.
async fn put_away(supervisor: Supervisor, drain: Duration, signals: &mut Signals, screen: &Screen) {
    let shutdown = supervisor.shutdown_within(drain);
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return,
        () = signals.next() => return,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    let left = supervisor.plugins().into_iter().filter(|it| it.pid.is_some());
    let left: Vec<String> = left.map(|it| it.name).collect();
    let text = format!("for {} to end; Ctrl-C ends it at once", left.join(", "));
    screen.status(&Status::new(PLAIN, "Waiting", text));
    tokio::select! {
        () = &mut shutdown => {}
        () = signals.next() => {}
    }
}

fn interrupted() -> Trouble {
    Trouble::new(Exit::Interrupted, "interrupted: the call was cancelled").code("PB0506")
}

fn bad_arguments(tool: &ToolInfo, wrong: Vec<String>) -> Trouble {
    let problems = CallError::BadArguments { tool: tool.name.clone(), problems: wrong };
    Trouble::from(problems).help(how(tool))
}

fn how(tool: &ToolInfo) -> String {
    format!("write: {}", usage::line(&format!("plugbay call {}", tool.name), &tool.input_schema))
}

fn failed(
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
    let explains_itself = matches!(error, CallError::BadArguments { .. });
    let trouble = Trouble::from(error);
    let status = tool.plugin.as_deref().and_then(|name| supervisor.plugin(name).ok());
    match status {
        _ if explains_itself => trouble.help(how(tool)),
        Some(PluginStatus { last_words, .. }) => trouble.last_words(&last_words.0),
        None => trouble,
    }
}

/// The time was over before any call could be made.
fn never_ready(supervisor: &Supervisor, total: Duration) -> Trouble {
    let starting = supervisor.plugins().into_iter().filter(|it| it.state != State::Active);
    let starting: Vec<PluginStatus> = starting.collect();
    let names: Vec<&str> = starting.iter().map(|it| it.name.as_str()).collect();
    let message = format!("{} was not ready within {total:?}", names.join(", "));
    let trouble = Trouble::new(Exit::TimedOut, message).code("PB0505");
    let note = |trouble: Trouble, it: &PluginStatus| {
        trouble.note(match (&it.reason, &it.id) {
            (Reason::StartingUp, None) => {
                format!("{} has not answered the HELLO on its stdin", it.name)
            }
            (Reason::StartingUp, Some(_)) => {
                format!("{} said HELLO and has not answered plugin.activate", it.name)
            }
            (reason, _) => off(&it.name, it.state, reason),
        })
    };
    let trouble = starting.iter().fold(trouble, note).note("the tool did not run");
    let words = starting.first().map_or("", |it| &it.last_words.0);
    trouble.last_words(words)
}

fn no_tool(supervisor: &Supervisor, name: &str, mut down: Vec<NotReady>) -> Trouble {
    let plugins = supervisor.plugins();
    // With one program there is one cause, and that there is no such tool is its effect.
    if plugins.len() == 1
        && let Some(only) = down.pop()
    {
        return only.into();
    }
    let tools = supervisor.registry().tools(&Caller::trusted("cli"));
    let names: Vec<&str> = tools.iter().map(|it| it.name.as_str()).collect();
    let near = plugbay_supervisor::manifest::names::near(name, names.iter().copied());
    let error = CallError::NotFound { name: name.to_owned(), near: near.map(str::to_owned) };
    let mut trouble = Trouble::from(error);
    if near.is_none() && !names.is_empty() && names.len() <= LISTED_MAX {
        trouble = trouble.note(format!("there are: {}", names.join(", ")));
    }
    trouble = down.iter().fold(trouble, |it, down| it.note(down.to_string()));
    let is_off = |it: &&PluginStatus| matches!(it.state, State::Invalid | State::Disabled);
    trouble = plugins
        .iter()
        .filter(is_off)
        .fold(trouble, |trouble, it| trouble.note(off(&it.name, it.state, &it.reason)));
    trouble.help("`plugbay tools`, with the same --config or --plugin, lists all")
}
