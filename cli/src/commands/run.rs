//! `plugbay run`: supervise until told to stop.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use plugbay_supervisor::{
    Caller, Fact, PluginStatus, State, Supervisor, manifest::bounds, plan::Idle,
};
use serde_json::json;
use tokio::{net::UnixListener, task::JoinSet};

use super::{cannot_listen, tools_of, undiscovered, waits::Waits};
use crate::{
    args::Run,
    control::{Hello, Journal, Key, Place, Service, is_ours, serve},
    exit::Exit,
    follow::{Follow, News},
    notify::Notify,
    render::{self, GOOD, PLAIN, Screen, Status, Volume, facts, hush::Hush},
    signals::Signals,
    source::Found,
    trouble::{Outcome, Trouble},
};

/// How long a count of what was not shown may wait to be said.
const COUNT_PAUSE: Duration = Duration::from_millis(500);

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
    // Before anything is started: there may be another one.
    let control = control(args, screen)?;
    let unknown = undiscovered(&loaded.plan.plugins);
    let at_boot = loaded.plan.plugins.iter().filter(|it| it.idle.start_at_boot);
    let at_boot: Vec<String> = at_boot.map(|it| it.name.clone()).collect();
    let first = loaded.plan.plugins.iter().map(|it| (it.name.clone(), bounds(it))).collect();
    let builder = Supervisor::builder().loaded(loaded);
    let mut follow = Follow::new(&builder);
    let for_journal = control.is_some().then(|| Follow::new(&builder));
    let supervisor = builder.start()?;
    // Held until the end, which takes the socket away and ends the connections.
    let counter = control.zip(for_journal).map(|((place, listener), follow)| {
        let service = Service {
            supervisor: supervisor.clone(),
            journal: Arc::new(Journal::new()),
            hello: Hello::new(&from),
            unknown,
            first,
            ceilings: supervisor.ceilings(),
            may: is_ours,
            changing: Arc::default(),
        };
        Counter::open(place, listener, follow, service)
    });
    greet(&supervisor, &from, &at_boot, screen);
    if let (Some(counter), Volume::Loud) = (&counter, screen.volume) {
        let text = format!("other commands come to {}", counter.place.socket().display());
        screen.status(&Status::new(PLAIN, "Listening", text));
    }
    let notify = Notify::new();
    notify.ready();

    let hush = Hush::default();
    let mut desk = Desk { supervisor: &supervisor, args, screen, hush, notify: &notify };
    let waits = Waits::new(&supervisor, screen);
    tokio::select! {
        stop = desk.watch(&mut follow) => {
            notify.stopping();
            supervisor.shutdown().await;
            desk.rest(&mut follow).ok();
            return Err(stop);
        }
        never = waits.talk() => match never {},
        never = notify.live() => match never {},
        () = signals.next() => {}
    }

    notify.stopping();
    let running = supervisor.plugins().iter().filter(|it| it.pid.is_some()).count();
    if 0 < running {
        let plugins = if running == 1 { "1 plugin".into() } else { format!("{running} plugins") };
        let text = format!("{plugins}; once more ends them at once");
        screen.status(&Status::new(PLAIN, "Stopping", text));
    }
    tokio::select! {
        // Whoever reads our stdout may be gone already: the plugins are ended all the same.
        () = async {
            let (shutdown, news) = (supervisor.shutdown(), desk.watch(&mut follow));
            tokio::pin!(shutdown);
            tokio::select! {
                () = &mut shutdown => {}
                _ = news => shutdown.await,
            }
        } => {}
        () = signals.next() => return Ok(Exit::Interrupted),
    }
    // A stdout that is gone by now is no trouble.
    desk.rest(&mut follow).ok();
    screen.status(&Status::new(GOOD, "Stopped", "every plugin has ended"));
    Ok(Exit::Fine)
}

/// A place for the other commands to come to. Without one, the plugins run all the same,
/// unless it was asked for or another plugbay has it.
fn control(args: &Run, screen: &Screen) -> Outcome<Option<(Place, UnixListener)>> {
    let take = |socket| {
        let (place, listener) = Place::take(socket)?;
        let listener = UnixListener::from_std(listener).map_err(|error| {
            Trouble::coded("PB0901", format!("cannot listen on the control socket: {error}"))
        })?;
        Ok((place, listener))
    };
    if let Some(socket) = &args.control {
        return take(socket.clone()).map(Some);
    }
    match Key::of(&args.source).and_then(|key| take(key.socket())) {
        Ok(control) => Ok(Some(control)),
        Err(trouble) if trouble.exit == Exit::Refused => Err(trouble),
        Err(trouble) => {
            let text = format!("`plugbay ps` and the others cannot look at this: {trouble}");
            screen.status(&Status::new(render::WARN, "Unattended", text));
            Ok(None)
        }
    }
}

/// Where other commands are answered. Dropping it ends that.
struct Counter {
    #[expect(dead_code, reason = "it is held, and ends the connections")]
    answering: JoinSet<Infallible>,
    place: Place,
}

impl Counter {
    fn open(place: Place, listener: UnixListener, follow: Follow, service: Service) -> Self {
        let (journal, supervisor) = (Arc::clone(&service.journal), service.supervisor.clone());
        let mut answering = JoinSet::new();
        answering.spawn(async move { journal.keep(follow, supervisor).await });
        answering.spawn(serve(listener, Arc::new(service)));
        Self { answering, place }
    }
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

/// Where news comes in and is shown.
struct Desk<'a> {
    supervisor: &'a Supervisor,
    args: &'a Run,
    screen: &'a Screen,
    hush: Hush,
    notify: &'a Notify,
}

impl Desk<'_> {
    /// Shows what happens, until there is a reason to stop.
    async fn watch(&mut self, follow: &mut Follow) -> Trouble {
        loop {
            tokio::select! {
                news = follow.next() => {
                    let is_event = matches!(news, News::Event(_));
                    let over = is_event && !self.args.stay && is_over(self.supervisor);
                    if is_event {
                        self.notify.status(|| summary(&self.supervisor.plugins()));
                    }
                    if let Err(trouble) = self.show(news) {
                        return trouble;
                    }
                    if over {
                        return Trouble::new(Exit::Bad, "no plugin is left that could take a call")
                            .help("with --stay it goes on, for `plugbay why` and `plugbay resume`");
                    }
                }
                // Counts of what was not shown do not wait for the next line.
                () = tokio::time::sleep(COUNT_PAUSE) => {
                    let due = self.hush.due(Instant::now());
                    due.iter().for_each(|it| self.screen.shown(it));
                }
            }
        }
    }

    /// Shows what has happened already.
    fn rest(&mut self, follow: &mut Follow) -> Outcome<()> {
        let shown = follow.rest(|news| self.show(news));
        self.hush.rest().iter().for_each(|it| self.screen.shown(it));
        shown
    }

    /// Shows one piece of news.
    fn show(&mut self, news: News) -> Outcome<()> {
        let event = match news {
            News::Line(line) => {
                match self.screen.volume {
                    Volume::Quiet => {}
                    Volume::Normal => {
                        let shown = self.hush.line(&line, Instant::now());
                        shown.iter().for_each(|it| self.screen.shown(it));
                    }
                    Volume::Loud => self.screen.line(&line),
                }
                return Ok(());
            }
            News::LinesMissed(n) => {
                let text = format!("{n} lines of stderr: too many at once");
                self.screen.status(&Status::new(render::WARN, "Missed", text));
                return Ok(());
            }
            News::Event(event) => event,
        };
        if let Fact::Spawned { plugin, .. } | Fact::Exited { plugin, .. } = &event.fact {
            self.hush.anew(plugin).iter().for_each(|it| self.screen.shown(it));
        }
        if self.args.json {
            self.screen.data(&json!(facts::to_json(&event)).to_string())?;
        } else if let Some((volume, status)) =
            facts::line(&event.fact, |it| tools_of(self.supervisor, it))
            && volume <= self.screen.volume
        {
            self.screen.status(&status);
        }
        Ok(())
    }
}

/// How all plugins are, in one line.
fn summary(plugins: &[PluginStatus]) -> String {
    let mut states: Vec<(State, usize)> = Vec::new();
    for it in plugins {
        match states.iter_mut().find(|(state, _)| *state == it.state) {
            Some((_, count)) => *count += 1,
            None => states.push((it.state, 1)),
        }
    }
    let states: Vec<String> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let ill = plugins.iter().find(|it| it.state == State::Quarantined);
    let ill = ill.map_or(String::new(), |it| format!(" ({} {})", it.name, it.reason));
    format!("{} plugins: {}{ill}", plugins.len(), states.join(", "))
}

/// Whether every plugin is down and none comes back by itself.
fn is_over(supervisor: &Supervisor) -> bool {
    let is_down = |it: &PluginStatus| {
        matches!(it.state, State::Quarantined | State::Disabled | State::Invalid)
    };
    supervisor.plugins().iter().all(is_down)
}
