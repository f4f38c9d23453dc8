//! `plugbay ps`, `why` and `logs`: looking at a plugbay that runs.

use serde_json::{Value, json};

use crate::{
    args::{Logs, Ps, Why},
    control::{Client, Look, Record, Request},
    exit::Exit,
    render::{PLAIN, Screen, Status, WARN, one_line, running},
    trouble::{Outcome, Trouble},
};

/// How wide names are in a log of all plugins.
const LOG_NAME_WIDTH: usize = 12;

pub(super) async fn ps(args: &Ps, screen: &Screen) -> Outcome {
    let is_named = args.target.control.is_some() || args.target.source.is_named();
    let mut clients = if is_named { Vec::new() } else { Client::all().await };
    if clients.is_empty() {
        clients.push(Client::find(&args.target).await?);
    }
    show(clients, args.json, screen).await
}

/// Shows all plugins of each.
pub(super) async fn show(clients: Vec<Client>, is_json: bool, screen: &Screen) -> Outcome {
    let is_alone = clients.len() == 1;
    let mut all = Vec::new();
    for client in clients {
        let hello = client.hello.clone();
        let plugins = client.ask(&Request::Ps, nothing).await?["plugins"].take();
        if is_json {
            all.push(json!({
                "from": hello.from, "pid": hello.pid, "version": hello.version, "plugins": plugins,
            }));
            continue;
        }
        let plugins = read::<Vec<Look>>(plugins)?;
        if !is_alone {
            screen.data(&format!("{} (pid {})", one_line(&hello.from), hello.pid))?;
        }
        screen.data(&running::table(&plugins))?;
        for it in plugins.iter().filter(|it| !it.degraded.is_empty()) {
            let text = running::unenforced(it);
            screen.status(&Status::new(WARN, "Unenforced", text));
        }
        let able = plugins.iter().filter(|it| it.takes_calls()).count();
        let (count, pid, from) = (plugins.len(), hello.pid, hello.from);
        let text = format!("{able} of {count} can take calls; plugbay with pid {pid} runs {from}");
        screen.status(&Status::new(PLAIN, "Serving", text));
    }
    match is_json {
        true => screen.json(&json!(all)).map(|()| Exit::Fine),
        false => Ok(Exit::Fine),
    }
}

pub(super) async fn why(args: &Why, screen: &Screen) -> Outcome {
    let client = Client::find(&args.target).await?;
    let request = Request::Why { plugin: args.name.clone() };
    let known = client.ask(&request, nothing).await?;
    match args.json {
        true => screen.json(&known)?,
        false => screen.data(&running::page(&read(known)?, &args.target.source))?,
    }
    Ok(Exit::Fine)
}

pub(super) async fn logs(args: &Logs, screen: &Screen) -> Outcome {
    let client = Client::find(&args.target).await?;
    let request =
        Request::Logs { plugin: args.name.clone(), lines: args.lines, follow: args.follow };
    // Names line up as long as they are not longer than most.
    let width = args.name.as_ref().map_or(LOG_NAME_WIDTH, |it| it.chars().count());
    let show = |value: Value| match args.json {
        true => screen.data(&value.to_string()),
        false => screen.data(&running::record(&read::<Record>(value)?, width)),
    };
    client.ask(&request, show).await?;
    Ok(Exit::Fine)
}

/// For requests that have no items.
pub(super) fn nothing(_: Value) -> Outcome<()> {
    Ok(())
}

/// What a plugbay of the same protocol says has the shape that we know.
pub(super) fn read<T: serde::de::DeserializeOwned>(value: Value) -> Outcome<T> {
    serde_json::from_value(value).map_err(|error| {
        Trouble::new(Exit::NoDaemon, format!("the running plugbay answers something else: {error}"))
            .help("is it of another version? `plugbay ps --json` shows which")
    })
}
