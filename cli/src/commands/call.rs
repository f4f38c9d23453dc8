//! `plugbay call`: one tool, one answer.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{
    Call, Caller, Output, Progress, Supervisor, ToolInfo,
    manifest::{Loaded, Problem, Severity},
};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    cannot_listen,
    cause::{bad_arguments, failed, interrupted, never_ready, no_tool},
    discover,
    ear::Ear,
    put_away, undiscovered,
    waits::Waits,
};
use crate::{
    args::{self, Form},
    asked::Asked,
    exit::Exit,
    follow::Follow,
    render::{Screen, Volume},
    signals::Signals,
    trouble::{Outcome, Trouble},
    values,
};

/// How long a cancelled call may take to end before its plugin is ended under it.
const INTERRUPT_GRACE: Duration = Duration::from_millis(500);
/// Its own call is over, so that only calls nobody waits for could be running.
const SHUTDOWN_DRAIN: Duration = Duration::from_secs(1);

pub(super) async fn call(args: &args::Call, screen: &Screen) -> Outcome {
    match prepared(args, screen) {
        Ok((asked, loaded, signals)) => called(args, screen, asked, loaded, signals).await,
        // Whoever reads JSON reads this too.
        Err(trouble) => give(Err(trouble), args.output, screen),
    }
}

/// Everything that can be found out before anything is started.
fn prepared(args: &args::Call, screen: &Screen) -> Outcome<(Asked, Loaded, Signals)> {
    let asked = Asked::read(args)?;
    let signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let found = args.source.find()?;
    if screen.volume == Volume::Loud || found.loaded.plan.plugins.is_empty() {
        screen.report(&found.loaded.report);
    }
    found.check()?;
    Ok((asked, found.loaded, signals))
}

async fn called(
    args: &args::Call,
    screen: &Screen,
    asked: Asked,
    loaded: Loaded,
    mut signals: Signals,
) -> Outcome {
    let unknown = undiscovered(&loaded.plan.plugins);
    // What the manifest has against the tool, which is then not even granted.
    let faulty = loaded.report.problems.iter().filter(|it| it.severity == Severity::Error);
    let faulty = faulty.filter(|it| it.tool.as_ref() == Some(&args.tool)).map(Problem::to_string);
    let faulty: Vec<String> = faulty.collect();
    let builder = Supervisor::builder().loaded(loaded);
    let mut follow = Follow::new(&builder);
    let supervisor = match builder.start() {
        Ok(supervisor) => supervisor,
        Err(refused) => return give(Err(refused.into()), args.output, screen),
    };
    let (told, progress) = watch::channel(None);

    let mut ear = Ear::new(&supervisor, screen, args);
    let waits = Waits::new(&supervisor, screen);
    let work = answer(&waits, &unknown, args, asked, told);
    let outcome = tokio::select! {
        outcome = work => outcome,
        never = follow.all(|news| ear.hear(news)) => match never {},
        never = watch_progress(progress, &waits) => match never {},
        never = waits.talk() => match never {},
        () = signals.next() => Err(interrupted()),
    };
    let Ok(()) = follow.rest(|news| ear.hear(news));

    let is_answered = outcome.is_ok();
    let outcome = outcome.map_err(|trouble| faulty.into_iter().fold(trouble, Trouble::note));
    let exit = give(outcome, args.output, screen);
    // A death from here on is one after the answer.
    ear.ended = None;
    let drain = if is_answered { SHUTDOWN_DRAIN } else { INTERRUPT_GRACE };
    put_away(&supervisor, drain, &mut signals, screen).await;
    let Ok(()) = follow.rest(|news| ear.hear(news));
    match ear.ended {
        Some(trouble) if is_answered => Err(trouble),
        _ => exit,
    }
}

/// Finds the tool, types the arguments, calls.
async fn answer(
    waits: &Waits<'_>,
    unknown: &[String],
    args: &args::Call,
    asked: Asked,
    told: watch::Sender<Option<Progress>>,
) -> Outcome<Output> {
    let began = Instant::now();
    let supervisor = waits.supervisor;
    let registry = supervisor.registry();
    let tool = match registry.tool(&args.tool) {
        Some(tool) => tool,
        None => learn(supervisor, unknown, args).await?,
    };
    let object = values::arguments(&tool.input_schema, asked.base, &asked.given)
        .map_err(|wrong| bad_arguments(&args.source, &tool, wrong))?;
    let mut call = Call::new(&tool.name, Value::Object(object))
        // Nobody who looks at progress is no reason to stop.
        .on_progress(move |progress| drop(told.send(Some(progress))));
    // What was spent on learning the tools is spent.
    let total = args.timeout.map(|total| total.saturating_sub(began.elapsed()));
    if let Some(total) = total {
        call = call.deadline(total);
    }
    if let Some(idle) = args.idle {
        call = call.idle(idle);
    }
    waits.call.set(Some((began.into_std(), total)));
    let result = registry.call(&Caller::trusted("cli"), call).await;
    result.map_err(|error| failed(supervisor, &tool, error, args))
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
    let found = supervisor.registry().find(&Caller::trusted("cli"), &args.tool);
    found.map_err(|error| no_tool(supervisor, args, error, down))
}

async fn watch_progress(
    mut progress: watch::Receiver<Option<Progress>>,
    waits: &Waits<'_>,
) -> Infallible {
    while progress.changed().await.is_ok() {
        if let Some(progress) = &*progress.borrow_and_update() {
            waits.heard.set(Some(std::time::Instant::now()));
            waits.screen.progress(progress);
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
