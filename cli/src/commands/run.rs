//! `plugbay run`: supervise until told to stop.

use plugbay_supervisor::{Caller, PluginStatus, State, Supervisor, plan::Idle};
use serde_json::json;

use super::{cannot_listen, tools_of};
use crate::{
    args::Run,
    exit::Exit,
    follow::{Follow, News},
    render::{self, GOOD, PLAIN, Screen, Status, Volume, facts},
    signals::Signals,
    source::Found,
    trouble::{Outcome, Trouble},
};

pub(super) async fn run(args: &Run, screen: &Screen) -> Outcome {
    let mut signals = Signals::new().map_err(|it| cannot_listen(&it))?;
    let found = args.source.find()?;
    screen.report(&found.loaded.report);
    found.check()?;
    let Found { mut loaded, from } = found;
    // A program that was named on the command line is wanted now.
    let starts_now = args.start || args.source.plugin.is_some();
    for plugin in &mut loaded.plan.plugins {
        if starts_now {
            plugin.idle = Idle { start_at_boot: true, stop_after: None };
        }
    }
    let at_boot = loaded.plan.plugins.iter().filter(|it| it.idle.start_at_boot);
    let at_boot: Vec<String> = at_boot.map(|it| it.name.clone()).collect();
    let builder = Supervisor::builder().loaded(loaded);
    let mut follow = Follow::new(&builder);
    let supervisor = builder.start()?;
    greet(&supervisor, &from, &at_boot, screen);

    let mut show = |news| show(news, &supervisor, args, screen);
    tokio::select! {
        stop = follow.all(&mut show) => {
            supervisor.shutdown().await;
            follow.rest(&mut show).ok();
            return Err(stop);
        }
        () = signals.next() => {}
    }

    let running = supervisor.plugins().iter().filter(|it| it.pid.is_some()).count();
    if 0 < running {
        let plugins = if running == 1 { "1 plugin".into() } else { format!("{running} plugins") };
        let text = format!("{plugins}; once more ends them at once");
        screen.status(&Status::new(PLAIN, "Stopping", text));
    }
    tokio::select! {
        // Whoever reads our stdout may be gone already: the plugins are ended all the same.
        () = async {
            let (shutdown, news) = (supervisor.shutdown(), follow.all(&mut show));
            tokio::pin!(shutdown);
            tokio::select! {
                () = &mut shutdown => {}
                _ = news => shutdown.await,
            }
        } => {}
        () = signals.next() => return Ok(Exit::Interrupted),
    }
    // A stdout that is gone by now is no trouble.
    follow.rest(&mut show).ok();
    screen.status(&Status::new(GOOD, "Stopped", "every plugin has ended"));
    Ok(Exit::Fine)
}

/// Says what there is.
fn greet(supervisor: &Supervisor, from: &str, at_boot: &[String], screen: &Screen) {
    let plugins = supervisor.plugins();
    let tools = supervisor.registry().tools(&Caller::trusted("cli")).len();
    let count =
        |n: usize, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
    let tools = if tools == 0 { String::new() } else { format!(", {}", count(tools, "tool")) };
    let text = format!("{}{tools} from {from}; Ctrl-C ends", count(plugins.len(), "plugin"));
    screen.status(&Status::new(GOOD, "Running", text));
    let mut sleeps = false;
    for PluginStatus { name, state, reason, degraded, .. } in plugins {
        sleeps |= state == State::Dormant && !at_boot.contains(&name);
        let verb = match state {
            // Of the others, the next lines tell.
            State::Dormant if !at_boot.contains(&name) => "Dormant",
            State::Disabled => "Disabled",
            State::Invalid => "Invalid",
            _ => continue,
        };
        let style = if state == State::Invalid { render::BAD } else { PLAIN };
        screen.status(&Status::new(style, verb, format!("{name} {reason}")));
        if screen.volume == Volume::Loud {
            for text in degraded {
                screen.status(&Status::new(render::WARN, "Unenforced", format!("{name}: {text}")));
            }
        }
    }
    if sleeps {
        screen.status(&Status::new(PLAIN, "Help", "--start starts all of them now"));
    }
}

/// Shows one piece of news; an error is the reason to stop.
fn show(news: News, supervisor: &Supervisor, args: &Run, screen: &Screen) -> Outcome<()> {
    let event = match news {
        News::Line(line) => {
            if screen.volume != Volume::Quiet {
                screen.line(&line);
            }
            return Ok(());
        }
        News::LinesMissed(n) => {
            let text = format!("{n} lines of stderr: too many at once");
            screen.status(&Status::new(render::WARN, "Missed", text));
            return Ok(());
        }
        News::Event(event) => event,
    };
    if args.json {
        screen.data(&json!(facts::to_json(&event)).to_string())?;
    } else if let Some((volume, status)) = facts::line(&event.fact, |it| tools_of(supervisor, it))
        && volume <= screen.volume
    {
        screen.status(&status);
    }
    match is_over(supervisor) {
        true => Err(Trouble::new(Exit::Bad, "no plugin is left that could take a call")),
        false => Ok(()),
    }
}

/// Whether every plugin is down and none comes back by itself.
fn is_over(supervisor: &Supervisor) -> bool {
    let is_down = |it: &PluginStatus| {
        matches!(it.state, State::Quarantined | State::Disabled | State::Invalid)
    };
    supervisor.plugins().iter().all(is_down)
}
