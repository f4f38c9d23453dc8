//! `plugbay call`: one tool, one answer.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{
    Call, Caller, Progress, Supervisor,
    manifest::{Loaded, Problem, Severity},
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::{
    attached, cannot_listen,
    cause::{bad_arguments, failed, how, interrupted},
    ear::Ear,
    learn, put_away, undiscovered,
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
    match attached::call(args, screen).await {
        Ok(None) => {}
        // Whoever reads JSON reads errors too.
        Ok(Some(answer)) => return give(Ok(answer), args.output, screen),
        Err(trouble) => return give(Err(trouble), args.output, screen),
    }
    match prepared(args, screen) {
        Ok((asked, loaded, signals)) => called(args, screen, asked, loaded, signals).await,
        Err(trouble) => give(Err(trouble), args.output, screen),
    }
}

/// Everything that can be found out before anything is started.
fn prepared(args: &args::Call, screen: &Screen) -> Outcome<(Asked, Loaded, Signals)> {
    let asked = Asked::read(args)?;
    let signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let found = args.target.source.find()?;
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
) -> Outcome<Answer> {
    let began = Instant::now();
    let supervisor = waits.supervisor;
    let registry = supervisor.registry();
    let tool = learn(supervisor, unknown, &args.tool, args.timeout).await;
    let tool = tool.map_err(|it| lists_all(it, args))?;
    let object = values::arguments(&tool.input_schema, asked.base, &asked.given)
        .map_err(|wrong| bad_arguments(&args.target.source, &tool, wrong))?;
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
    let output = result.map_err(|error| match failed(supervisor, &tool, error, args.timeout) {
        it if it.exit == Exit::Usage => it.help(how(&args.target.source, &tool)),
        it => it,
    })?;
    Ok(Answer { json: output.to_json(), text: output.text(), is_error: output.is_error })
}

/// Where to look for another tool.
pub(super) fn lists_all(trouble: Trouble, args: &args::Call) -> Trouble {
    match trouble.code {
        Some("PB0403") => {
            trouble.help(format!("`{}` lists all", args.target.source.command("tools")))
        }
        _ => trouble,
    }
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

/// What a tool gave back, from a plugin of our own or over the control socket.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Value,
    pub(super) text: String,
    pub(super) is_error: bool,
}

/// Prints the answer or the error.
pub(super) fn give(outcome: Outcome<Answer>, form: Form, screen: &Screen) -> Outcome {
    match (outcome, form) {
        (Ok(answer), Form::Json) => {
            screen.json(&answer.json)?;
            Ok(if answer.is_error { Exit::Bad } else { Exit::Fine })
        }
        // Like any program that fails, it says so on stderr and gives no data.
        (Ok(answer), Form::Text) if answer.is_error => {
            Err(Trouble::new(Exit::Bad, format!("the tool failed: {}", answer.text)))
        }
        (Ok(answer), Form::Text) => screen.answer(&answer.text).map(|()| Exit::Fine),
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
