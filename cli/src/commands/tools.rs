//! `plugbay tools`: what there is to call.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{Caller, Event, Fact, Supervisor, ToolInfo};
use serde_json::json;

use super::{
    attached::{self, Listed},
    cannot_listen, discover, put_away, undiscovered,
    waits::Waits,
};
use crate::{
    args::Tools,
    exit::Exit,
    follow::{Follow, News},
    render::{Screen, Volume, facts, tools},
    signals::Signals,
    trouble::{Outcome, Trouble},
};

pub(super) async fn tools(args: &Tools, screen: &Screen) -> Outcome {
    if let Some(Listed { tools, plugins, down }) = attached::tools(args, screen).await? {
        let exit = troubles(down, Exit::Fine, screen);
        let degraded = |name: &str| {
            let found = plugins.iter().find(|it| it.name == name);
            found.map_or_else(Vec::new, |it| it.degraded.clone())
        };
        return give(args, &tools, degraded, screen).map(|()| exit);
    }
    let mut signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let found = args.target.source.find()?;
    if found.loaded.report.has_errors() || screen.volume == Volume::Loud {
        screen.report(&found.loaded.report);
    }
    found.check()?;
    let loaded = found.loaded;
    let exit = if loaded.report.has_errors() { Exit::Bad } else { Exit::Fine };
    let unknown = undiscovered(&loaded.plan.plugins);
    let builder = Supervisor::builder().loaded(loaded);
    let mut follow = Follow::new(&builder);
    let supervisor = builder.start()?;
    let waits = Waits::new(&supervisor, screen);
    let show = |news| {
        match news {
            News::Line(line) if screen.volume == Volume::Loud => screen.line(&line),
            // Why something is not in the list.
            News::Event(Event { fact: fact @ Fact::Withheld { .. }, .. }) => {
                if let Some((_, status)) = facts::line(&fact, |_| Vec::new()) {
                    screen.status(&status);
                }
            }
            _ => {}
        }
        Ok::<(), Infallible>(())
    };
    let down = tokio::select! {
        down = discover(&supervisor, &unknown) => down,
        never = follow.all(&show) => match never {},
        never = waits.talk() => match never {},
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    let Ok(()) = follow.rest(show);
    let exit = troubles(down.into_iter().map(Trouble::from), exit, screen);
    let tools = supervisor.registry().tools(&Caller::trusted("cli"));
    let degraded = |name: &str| supervisor.plugin(name).map_or(Vec::new(), |it| it.degraded);
    let given = give(args, &tools, degraded, screen);
    put_away(&supervisor, Duration::ZERO, &mut signals, screen).await;
    given.map(|()| exit)
}

/// Says why some plugins would not say their tools, and what that makes of the exit code.
fn troubles(all: impl IntoIterator<Item = Trouble>, exit: Exit, screen: &Screen) -> Exit {
    all.into_iter().fold(exit, |exit, trouble| {
        screen.trouble(&trouble);
        if exit == Exit::Fine { trouble.exit } else { Exit::Bad }
    })
}

/// Prints the list in the form that is asked for.
fn give(
    args: &Tools,
    all: &[ToolInfo],
    degraded: impl Fn(&str) -> Vec<String>,
    screen: &Screen,
) -> Outcome<()> {
    if args.json {
        screen.json(&json!(all))
    } else if args.long {
        screen.data(&tools::long(all, degraded, &args.target.source))
    } else if all.is_empty() {
        Ok(())
    } else {
        screen.data(&tools::table(all))
    }
}
