//! `plugbay tools`: what there is to call.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{Caller, Event, Fact, Supervisor};
use serde_json::json;

use super::{cannot_listen, discover, put_away, undiscovered, waits::Waits};
use crate::{
    args::Tools,
    exit::Exit,
    follow::{Follow, News},
    render::{Screen, Volume, facts, tools},
    signals::Signals,
    trouble::{Outcome, Trouble},
};

pub(super) async fn tools(args: &Tools, screen: &Screen) -> Outcome {
    let mut signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let found = args.source.find()?;
    if found.loaded.report.has_errors() || screen.volume == Volume::Loud {
        screen.report(&found.loaded.report);
    }
    found.check()?;
    let loaded = found.loaded;
    let mut exit = if loaded.report.has_errors() { Exit::Bad } else { Exit::Fine };
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
    for error in down {
        let trouble = Trouble::from(error);
        screen.trouble(&trouble);
        exit = if exit == Exit::Fine { trouble.exit } else { Exit::Bad };
    }
    let tools = supervisor.registry().tools(&Caller::trusted("cli"));
    let given = if args.json {
        screen.json(&json!(tools))
    } else if args.long {
        screen.data(&tools::long(&tools, &supervisor.plugins(), &args.source))
    } else if tools.is_empty() {
        Ok(())
    } else {
        screen.data(&tools::table(&tools))
    };
    put_away(&supervisor, Duration::ZERO, &mut signals, screen).await;
    given.map(|()| exit)
}
