//! `call` and `tools` through a plugbay that runs the same plugins already.

use std::time::{Duration, Instant};

use plugbay_supervisor::{Progress, State, ToolInfo};
use serde::Deserialize;
use serde_json::Value;

use super::{
    call::{Answer, lists_all},
    cannot_listen,
    cause::{bad_arguments, how, interrupted},
    look::{nothing, read},
};
use crate::{
    args::{self, Attach, Target},
    asked::Asked,
    control::{Client, Look, Request, attachable},
    render::{PLAIN, Screen, Status, Volume},
    signals::Signals,
    trouble::{Outcome, Trouble},
    values,
};

/// The plugbay to use, if one is to be used.
async fn client(target: &Target, attach: &Attach) -> Outcome<Option<Client>> {
    if attach.no_attach {
        return Ok(None);
    }
    // Who names it, or insists, is told if there is none.
    if attach.attach || target.control.is_some() {
        return Client::find(target).await.map(Some);
    }
    // One that is there and cannot be used is no reason not to go on alone.
    Ok(attachable(target).await.unwrap_or(None))
}

fn say(client: &Client, screen: &Screen) {
    if screen.volume == Volume::Loud {
        let (pid, from) = (client.hello.pid, &client.hello.from);
        let text = format!("to plugbay with pid {pid}, which runs {from}");
        screen.status(&Status::new(PLAIN, "Attached", text));
    }
}

/// All tools of a plugbay that runs.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) tools: Vec<ToolInfo>,
    pub(super) plugins: Vec<Look>,
    /// Why some plugins would not say theirs.
    pub(super) down: Vec<Trouble>,
}

/// Lists them; `None` if no plugbay runs that could be used.
pub(super) async fn tools(args: &args::Tools, screen: &Screen) -> Outcome<Option<Listed>> {
    let Some(client) = client(&args.target, &args.attach).await? else { return Ok(None) };
    say(&client, screen);
    let mut known = client.ask(&Request::Tools, nothing).await?;
    let down = known["down"].as_array().into_iter().flatten();
    let down = down.map(|it| Trouble::from_wire(it.clone())).collect();
    let tools = read(known["tools"].take())?;
    Ok(Some(Listed { tools, plugins: read(known["plugins"].take())?, down }))
}

/// What comes before the answer.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Item {
    Progress(Option<Told>),
    Waiting(String),
    Note(String),
}

/// How far a call has come.
#[derive(Deserialize)]
struct Told {
    n: Option<u64>,
    total: Option<u64>,
    unit: Option<String>,
    message: Option<String>,
}

/// Calls one tool; `None` if no plugbay runs that could be used.
pub(super) async fn call(args: &args::Call, screen: &Screen) -> Outcome<Option<Answer>> {
    let Some(client) = client(&args.target, &args.attach).await? else { return Ok(None) };
    say(&client, screen);
    let asked = Asked::read(args)?;
    let mut signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    tokio::select! {
        answer = answer(client, asked, args, screen) => answer.map(Some),
        // Closing the connection cancels the call.
        () = signals.next() => Err(interrupted()),
    }
}

async fn answer(
    client: Client,
    asked: Asked,
    args: &args::Call,
    screen: &Screen,
) -> Outcome<Answer> {
    let source = &args.target.source;
    let began = Instant::now();
    let ms = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    // One connection, one request.
    let (find, client) = (client.again().await?, client);
    let request = Request::Find { tool: args.tool.clone(), deadline_ms: args.timeout.map(ms) };
    let found = find.ask(&request, nothing).await.map_err(|it| lists_all(it, args))?;
    let tool = read::<ToolInfo>(found["tool"].clone())?;
    let object = values::arguments(&tool.input_schema, asked.base, &asked.given)
        .map_err(|wrong| bad_arguments(source, &tool, wrong))?;
    let request = Request::Call {
        tool: args.tool.clone(),
        args: object,
        // What was spent on learning the tools is spent.
        deadline_ms: args.timeout.map(|total| ms(total.saturating_sub(began.elapsed()))),
        idle_ms: args.idle.map(ms),
    };
    let show = |item: Value| {
        // One of a kind that is not known means nothing to us.
        match serde_json::from_value(item) {
            Ok(Item::Progress(Some(Told { n, total, unit, message }))) => {
                screen.progress(&Progress { n, total, unit, message });
            }
            Ok(Item::Waiting(text)) => screen.waiting(&text),
            Ok(Item::Note(text)) => screen.status(&Status::new(PLAIN, "Note", text)),
            Ok(Item::Progress(None)) | Err(_) => {}
        }
        Ok(())
    };
    let mut answer = client.ask(&request, show).await.map_err(|it| {
        match (it.code, it.state(), &tool.plugin) {
            (Some("PB0402"), ..) => it.help(how(source, &tool)),
            (_, Some(State::Stopped), Some(plugin)) => {
                it.help(format!("`{} {plugin}` lifts it", source.command("resume")))
            }
            // Whatever the code is: nothing else starts it again.
            (_, Some(State::Quarantined), Some(plugin)) => {
                it.help(format!("once that is mended: `{} {plugin}`", source.command("resume")))
            }
            _ => it,
        }
    })?;
    let output = answer["output"].take();
    let is_error = output["is_error"] == true;
    Ok(Answer { text: answer["text"].as_str().unwrap_or_default().into(), json: output, is_error })
}
