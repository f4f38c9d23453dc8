//! `plugbay limits`: what bounds a plugin that runs, and changing it.

use serde::Deserialize;

use super::look::{nothing, read};
use crate::{
    args::{SetLimits, ShowLimits},
    control::{Bound, Client, Request},
    exit::Exit,
    render::{GOOD, PLAIN, Screen, Status, WARN, running},
    trouble::{Outcome, Trouble},
};

/// What a plugbay says of one plugin.
#[derive(Debug, Deserialize)]
struct Known {
    bounds: Vec<Bound>,
    calls: usize,
    degraded: Vec<String>,
}

/// What a plugbay says of all plugins together.
#[derive(Debug, Deserialize)]
struct Host {
    bounds: Vec<Bound>,
}

/// The same after a change, of one plugin or of all.
#[derive(Debug, Deserialize)]
struct Changed {
    bounds: Vec<Bound>,
    #[serde(default)]
    degraded: Vec<String>,
}

pub(super) async fn show(args: &ShowLimits, screen: &Screen) -> Outcome {
    let client = Client::find(&args.target).await?;
    let request = match &args.name {
        Some(plugin) => Request::Limits { plugin: plugin.clone() },
        None => Request::Ceilings,
    };
    let known = client.ask(&request, nothing).await?;
    if args.json {
        return screen.json(&known).map(|()| Exit::Fine);
    }
    if args.host {
        let Host { bounds } = read(known)?;
        return screen.data(&running::ceilings(&bounds)).map(|()| Exit::Fine);
    }
    let Known { bounds, calls, degraded } = read(known)?;
    screen.data(&running::limits(&bounds, calls))?;
    for text in degraded {
        screen.status(&Status::new(WARN, "Unenforced", text));
    }
    Ok(Exit::Fine)
}

pub(super) async fn set(args: &SetLimits, screen: &Screen) -> Outcome {
    // Without a plugin the first word is a change, too.
    let first = args.host.then_some(&args.name).into_iter();
    let changes = first.chain(&args.changes).map(|it| change(it, args.host));
    let changes = changes.collect::<Outcome<Vec<_>>>()?;
    let asked: Vec<String> = changes.iter().map(|(key, _)| key.clone()).collect();
    let client = Client::find(&args.target).await?;
    let before = client.again().await?;
    let (look, order) = match args.host {
        true => (Request::Ceilings, Request::SetCeilings { set: changes }),
        false => {
            let plugin = args.name.clone();
            let look = Request::Limits { plugin: plugin.clone() };
            (look, Request::SetLimits { plugin, set: changes })
        }
    };
    let before = before.ask(&look, nothing).await?;
    let known = client.ask(&order, nothing).await?;
    if args.json {
        return screen.json(&known).map(|()| Exit::Fine);
    }
    let (before, after): (Host, Changed) = (read(before)?, read(known)?);
    let pairs = before.bounds.iter().zip(&after.bounds);
    let changed: Vec<(&Bound, &Bound)> =
        pairs.filter(|(old, new)| old.value != new.value).collect();
    for (old, new) in &changed {
        let when = match (new.at_once, &new.holds, &new.refused) {
            (_, _, Some(why)) => format!("from its next process on: {why}"),
            (true, Some(_), None) => "at once".to_owned(),
            (true, None, None) if args.host => "from the first plugin on".to_owned(),
            (true, None, None) => "from the next call on".to_owned(),
            (false, _, None) => "from its next process on".to_owned(),
        };
        let text = format!("{} {} -> {}, {when}", new.key, old.value, new.value);
        screen.status(&Status::new(GOOD, "Set", text));
    }
    // A plugin is held to it as little as before, whatever it is.
    let is_held = |it: &Bound| !after.degraded.iter().any(|text| is_about(text, &it.key));
    for text in &after.degraded {
        if changed.iter().any(|(_, new)| is_about(text, &new.key)) {
            screen.status(&Status::new(WARN, "Unenforced", text.clone()));
        }
    }
    // Of all plugins, what is refused has no next process to wait for.
    let is_asked = |it: &&Bound| args.host && it.refused.is_some() && asked.contains(&it.key);
    let refused: Vec<&Bound> = after.bounds.iter().filter(is_asked).collect();
    for it in &refused {
        let why = it.refused.as_deref().unwrap_or_default();
        let value = if it.value == "-" { "unset" } else { &it.value };
        let text = format!("{} stays {value}: {why}", it.key);
        screen.status(&Status::new(WARN, "Refused", text));
    }
    if !refused.is_empty() {
        return Ok(Exit::Bad);
    }
    if changed.is_empty() {
        screen.status(&Status::new(PLAIN, "Unchanged", "all of it was so already"));
    } else if changed.iter().any(|(_, new)| !new.at_once && is_held(new)) {
        let restart = args.target.source.command("restart");
        let text = format!("`{restart} {}` gives it another process", args.name);
        screen.status(&Status::new(PLAIN, "Help", text));
    }
    Ok(Exit::Fine)
}

/// Whether a line about what is not enforced is about this limit.
fn is_about(text: &str, key: &str) -> bool {
    text.strip_prefix(key).is_some_and(|rest| rest.starts_with(" is not enforced"))
}

/// `queue=64` as key and value.
fn change(word: &str, of_all: bool) -> Outcome<(String, String)> {
    match word.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => {
            Err(Trouble::usage(format!("expected KEY=VALUE, found {word:?}")).help(match of_all {
                true => "such as memory=4GiB, cpu=150% or processes=256, and no plugin",
                false => "such as queue=64, calls=120/min or call=45s",
            }))
        }
    }
}
