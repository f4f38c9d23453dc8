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

pub(super) async fn show(args: &ShowLimits, screen: &Screen) -> Outcome {
    let client = Client::find(&args.target).await?;
    let request = Request::Limits { plugin: args.name.clone() };
    let known = client.ask(&request, nothing).await?;
    if args.json {
        return screen.json(&known).map(|()| Exit::Fine);
    }
    let Known { bounds, calls, degraded } = read(known)?;
    screen.data(&running::limits(&bounds, calls))?;
    for text in degraded {
        screen.status(&Status::new(WARN, "Unenforced", text));
    }
    Ok(Exit::Fine)
}

pub(super) async fn set(args: &SetLimits, screen: &Screen) -> Outcome {
    let changes = args.changes.iter().map(|it| change(it)).collect::<Outcome<Vec<_>>>()?;
    let client = Client::find(&args.target).await?;
    let before = client.again().await?;
    let before = before.ask(&Request::Limits { plugin: args.name.clone() }, nothing).await?;
    let request = Request::SetLimits { plugin: args.name.clone(), set: changes };
    let known = client.ask(&request, nothing).await?;
    if args.json {
        return screen.json(&known).map(|()| Exit::Fine);
    }
    let (before, after): (Known, Known) = (read(before)?, read(known)?);
    let pairs = before.bounds.iter().zip(&after.bounds);
    let changed: Vec<(&Bound, &Bound)> =
        pairs.filter(|(old, new)| old.value != new.value).collect();
    for (old, new) in &changed {
        let when = match (new.at_once, &new.holds, &new.refused) {
            (_, _, Some(why)) => format!("from its next process on: {why}"),
            (true, Some(_), None) => "at once".to_owned(),
            (true, None, None) => "from the next call on".to_owned(),
            (false, _, None) => "from its next process on".to_owned(),
        };
        let text = format!("{} {} -> {}, {when}", new.key, old.value, new.value);
        screen.status(&Status::new(GOOD, "Set", text));
    }
    if changed.is_empty() {
        screen.status(&Status::new(PLAIN, "Unchanged", "all of it was so already"));
    } else if changed.iter().any(|(_, new)| !new.at_once) {
        let restart = args.target.source.command("restart");
        let text = format!("`{restart} {}` gives it another process", args.name);
        screen.status(&Status::new(PLAIN, "Help", text));
    }
    Ok(Exit::Fine)
}

/// `queue=64` as key and value.
fn change(word: &str) -> Outcome<(String, String)> {
    match word.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err(Trouble::usage(format!("expected KEY=VALUE, found {word:?}"))
            .help("such as queue=64, calls=120/min or call=45s")),
    }
}
