//! The keeper: the one task that owns a plugin's life.
//!
//! It waits for whatever comes first, tells the [life table](crate::life), and
//! does what the table says. The table decides, the keeper only obeys; nothing
//! else starts or stops the plugin's process.

use std::{
    future::pending,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use plugbay_protocol::{
    Announce, Close, Failure, Features, Identity, Limits, Outgoing, Over, Patience, Violation,
    Welcome,
    contract::{Activate, Activated, Deactivate, Manifest, Provide},
    scope::may_be_granted,
};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    body::{decode, encode},
    breaker::Breaker,
    digest::{Program, Reader},
    disk::keep_watch,
    error::presentable,
    fact::{Fact, Facts},
    hang,
    isolation::{Enclosure, Held},
    launch::{Exit, Process, launch},
    life::{Effect, Event, Life, Then},
    link::{Link, News},
    manifest::names::covers,
    plan::{self, PluginPlan, RestartWhen, ToolPlan},
    reason::{DigestFault, Private, Reason},
    registry::{Cell, NOT_GRANTED, Registry},
    status::{Condition, End},
    stderr::{Drain, StderrLine},
    stop::{Climbed, climb, ladder},
};

/// What somebody wants of a plugin.
#[derive(Debug)]
pub(crate) enum Order {
    /// A call needs a start later than this one.
    Want(u64),
    /// The operator wants it down. The sender is dropped once it is, or once a later
    /// order wants it up again.
    Stop(oneshot::Sender<()>),
    /// The operator wants a new process.
    Restart,
    /// The operator lifts a stop or a quarantine.
    Resume,
    /// The supervisor is going down; drain for no longer than this.
    Shutdown(Duration),
    /// The process that runs is to be held to the bounds that are set now.
    Hold(oneshot::Sender<Vec<Held>>),
    /// The same, and nobody waits for what holds.
    HoldAgain,
    /// Somebody wants to know that all orders before this one have been heeded.
    Heed(oneshot::Sender<()>),
}

/// How long output may still arrive from a process that has ended. Longer only if
/// somebody else holds its end of the pipe.
const LINGER: Duration = Duration::from_millis(500);
/// More tools than any model can read.
const TOOLS_MAX: usize = 1024;

/// One process, from its start until it is cleared away.
struct Run {
    link: Link,
    news: mpsc::UnboundedReceiver<News>,
    #[expect(dead_code, reason = "it is held, and ends with the run")]
    io: Task,
    /// Reads stderr. Away on the ladder with the process, whose last words it takes.
    stderr: Option<Task>,
    /// Away on the ladder while that is being climbed.
    process: Option<Process>,
    pid: u32,
    started: Instant,
    up_since: SystemTime,
    active_since: Option<Instant>,
    provides: Vec<Provide>,
    /// The scopes it would use.
    wants: Vec<String>,
    /// Its word for why it wants to be replaced, until that can be done, and whether it
    /// asked as soon as it was up.
    retiring: Option<(String, bool)>,
    /// Why it is being let go, if it is; what comes later does not change that.
    asked: Option<Arc<Reason>>,
    /// Whether it has answered `plugin.deactivate` with success.
    let_go: bool,
    /// How the process ended, if it did so before the conversation.
    exit: Option<Exit>,
    /// When to stop waiting for the rest of its output.
    linger_until: Option<Instant>,
    /// Why it is being ended, if we know already.
    verdict: Option<Reason>,
    /// How the conversation ended.
    over: Option<Over>,
    /// Looks at its state folder, if it has one, and says why it may not go on.
    disk: Option<BoxFuture<'static, Reason>>,
    /// What it keeps there, as far as that is known.
    kept: watch::Receiver<Option<u64>>,
}

/// A task that ends when nobody holds it any more.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Keeper {
    /// The supervisor was dropped without a shutdown, or we failed. Whoever calls or
    /// waits is told, now that nobody is left who could end it for them.
    fn drop(&mut self) {
        if self.going_down && self.life == Life::Stopped {
            return;
        }
        let reason = Arc::new(match std::thread::panicking() {
            true => Reason::Internal { what: "the plugin's keeper failed".into() },
            false => Reason::Shutdown,
        });
        if let Some(run) = self.run.take() {
            run.link.abandon();
        }
        // With it goes a process that is on the ladder.
        self.step = None;
        self.life = Life::Stopped;
        self.ends(Arc::clone(&reason), self.cell.last_words());
        self.reason = reason;
        self.publish();
    }
}

/// What a step of the keeper came to.
enum Done {
    Verified(Result<Option<Arc<Program>>, Reason>),
    Activated(Result<Bytes, Failure>),
    Deactivated(Result<Bytes, Failure>),
    Climbed(Box<(Climbed, Process)>),
}

/// Everything that can wake the keeper. The list is closed.
enum Turn {
    Order(Option<Order>),
    News(Option<News>),
    Exited(Exit),
    Full(Reason),
    Done(Done),
    Timer,
}

pub(crate) struct Keeper {
    cell: Arc<Cell>,
    plan: Arc<PluginPlan>,
    registry: Registry,
    facts: Facts,
    lines: broadcast::Sender<StderrLine>,
    orders: mpsc::UnboundedReceiver<Order>,
    enclosure: Enclosure,
    life: Life,
    run: Option<Run>,
    step: Option<BoxFuture<'static, Done>>,
    breaker: Breaker,
    /// Why the state is what it is.
    reason: Arc<Reason>,
    /// When a backoff ends.
    until: Option<Instant>,
    /// How long the next one lasts.
    backoff: Duration,
    /// Not before this is idleness looked at again.
    idle_from: Option<Instant>,
    drain_budget: Duration,
    /// When a drain that was begun with a larger budget is broken off.
    drain_until: Option<Instant>,
    /// Who waits for it to be down.
    waiting: Vec<oneshot::Sender<()>>,
    restart_asked: bool,
    going_down: bool,
    /// Compares the program with its digest.
    reader: Reader,
    starts: u64,
    end: Arc<End>,
    peer: Option<(String, String)>,
}

impl Keeper {
    pub(crate) fn new(
        cell: Arc<Cell>,
        registry: Registry,
        facts: Facts,
        lines: broadcast::Sender<StderrLine>,
        orders: mpsc::UnboundedReceiver<Order>,
        enclosure: Enclosure,
    ) -> Self {
        let plan = Arc::clone(&cell.plan);
        let reason = Arc::new(Reason::NotStarted);
        Self {
            drain_budget: plan.timeouts.drain,
            cell,
            plan,
            registry,
            facts,
            lines,
            orders,
            enclosure,
            life: Life::Dormant,
            run: None,
            step: None,
            breaker: Breaker::default(),
            end: Arc::new(End::none(Arc::clone(&reason))),
            reason,
            until: None,
            backoff: Duration::ZERO,
            idle_from: None,
            drain_until: None,
            waiting: Vec::new(),
            restart_asked: false,
            going_down: false,
            reader: Reader::default(),
            starts: 0,
            peer: None,
        }
    }

    /// Keeps the plugin until the supervisor goes down.
    pub(crate) async fn keep(mut self) {
        if self.plan.idle.start_at_boot {
            self.event(Event::Wanted, Reason::StartingUp { greeted: false });
        }
        while !(self.going_down && self.life == Life::Stopped) {
            let turn = self.wait().await;
            self.act(turn);
            if !matches!(self.life, Life::Draining(Then::Stopped) | Life::Stopping(Then::Stopped)) {
                self.waiting.clear();
            }
        }
    }

    // ── Waiting ────────────────────────────────────────────────────────────────

    async fn wait(&mut self) -> Turn {
        let timer = self.timer();
        let (news, process, disk) = match &mut self.run {
            Some(run) => {
                let process = run.process.as_mut().filter(|_| run.exit.is_none());
                (Some(&mut run.news), process, run.disk.as_mut())
            }
            None => (None, None, None),
        };
        // Each arm is cancel safe and none decides anything.
        tokio::select! {
            biased;
            // A step's answer first: the conversation may have ended right after it.
            done = finish(self.step.as_mut()) => Turn::Done(done),
            news = recv(news) => Turn::News(news),
            exit = exited(process) => Turn::Exited(exit),
            reason = full(disk) => Turn::Full(reason),
            order = self.orders.recv() => Turn::Order(order),
            () = alarm(timer) => Turn::Timer,
        }
    }

    /// The next moment at which time alone changes something.
    fn timer(&self) -> Option<Instant> {
        let linger = self.run.as_ref().and_then(|run| run.linger_until);
        let state = match self.life {
            Life::Backoff => self.until,
            Life::Active => match (self.idle_at(), self.retire_at()) {
                (Some(idle), Some(retire)) => Some(idle.min(retire)),
                (idle, retire) => idle.or(retire),
            },
            Life::Draining(_) => self.drain_until,
            _ => None,
        };
        match (linger, state) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When to look whether the plugin is idle.
    fn idle_at(&self) -> Option<Instant> {
        let (stop_after, run) = (self.plan.idle.stop_after?, self.run.as_ref()?);
        // While calls are open, no earlier than if the last of them ended now.
        let since = run.link.quiet_since().unwrap_or_else(Instant::now);
        let at = since + stop_after;
        Some(self.idle_from.map_or(at, |from| at.max(from)))
    }

    /// When a plugin that asked to be replaced is, if it did: not before it has lived for
    /// as long as a first backoff takes, so that it cannot be started for ever.
    fn retire_at(&self) -> Option<Instant> {
        let run = self.run.as_ref().filter(|run| run.retiring.is_some())?;
        Some(run.active_since? + self.plan.restart.first)
    }

    // ── Acting ─────────────────────────────────────────────────────────────────

    fn act(&mut self, turn: Turn) {
        match turn {
            Turn::Order(order) => self.order(order),
            Turn::News(Some(News::Hello(welcome))) => self.greeted(welcome),
            Turn::News(Some(News::Retire(word))) => {
                let first = self.plan.restart.first;
                if let Some(run) = &mut self.run {
                    let young = run.active_since.is_none_or(|it| it.elapsed() < first);
                    run.retiring = Some((word, young));
                }
                self.retire();
            }
            Turn::News(Some(News::Deaf)) => self.verdict(Reason::ClosedStdin),
            Turn::News(Some(News::Stuck)) => {
                let reason =
                    Reason::CallStuck { waited: self.plan.timeouts.cancel_grace, seen: None };
                self.unfit(reason);
            }
            Turn::News(Some(News::Over(over))) => self.over(over),
            // The I/O task is gone without a word: aborted, or it panicked.
            Turn::News(None) => {
                let what = "the connection's task ended".into();
                self.verdict(Reason::Internal { what });
                self.over(Over::Eof);
            }
            Turn::Exited(exit) => {
                if let Some(run) = &mut self.run {
                    // What it said last may still be in the pipe.
                    run.exit = Some(exit);
                    run.linger_until = Some(Instant::now() + LINGER);
                }
            }
            Turn::Full(reason) => {
                if let Some(run) = &mut self.run {
                    run.disk = None;
                }
                // One that is being ended anyway is ended for what it was.
                if !matches!(self.life, Life::Stopping(_)) {
                    self.died(reason);
                }
            }
            Turn::Done(Done::Verified(outcome)) => {
                self.step = None;
                self.spawn(outcome);
            }
            Turn::Done(Done::Activated(outcome)) => {
                self.step = None;
                self.activated(outcome);
            }
            Turn::Done(Done::Deactivated(outcome)) => {
                self.step = None;
                self.deactivated(outcome);
            }
            Turn::Done(Done::Climbed(climbed)) => {
                self.step = None;
                let (climbed, process) = *climbed;
                self.gone(climbed, process);
            }
            Turn::Timer => self.timed(),
        }
    }

    fn order(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Want(after)) => {
                if !self.cell.condition.borrow().is_past(after) {
                    self.event(Event::Wanted, Reason::StartingUp { greeted: false });
                }
            }
            Some(Order::Stop(waits)) => {
                self.waiting.push(waits);
                self.event(Event::Stop, Reason::StoppedByOperator);
            }
            Some(Order::Restart) => {
                self.breaker.reset();
                self.restart_asked = true;
                self.event(Event::Restart, Reason::RestartedByOperator);
            }
            Some(Order::Resume) => {
                self.breaker.reset();
                self.event(Event::Resume, Reason::ResumedByOperator);
            }
            // Fails only if nobody waits any more.
            Some(Order::Heed(waits)) => drop(waits.send(())),
            Some(Order::HoldAgain) => {
                // First: what changes from now on is another order.
                self.cell.holds_again.swap(false, Ordering::AcqRel);
                let limits = &self.cell.bounds.load().limits;
                if let Some(process) = self.run.as_mut().and_then(|run| run.process.as_mut()) {
                    process.hold(limits);
                }
            }
            Some(Order::Hold(answer)) => {
                let limits = &self.cell.bounds.load().limits;
                let process = self.run.as_mut().and_then(|run| run.process.as_mut());
                let mut held = process.map_or_else(Vec::new, |it| it.hold(limits));
                let kept = self.run.as_ref().filter(|run| run.disk.is_some());
                if let (Some(run), Some(_)) = (kept, limits.state_bytes) {
                    let (limit, used) = (limits.state_bytes, *run.kept.borrow());
                    held.push(Held { key: "state", limit, used, refused: None });
                }
                // Fails only if nobody waits any more.
                drop(answer.send(held));
            }
            Some(Order::Shutdown(budget)) => {
                self.going_down = true;
                self.drain_budget = budget.min(self.drain_budget);
                if let Life::Draining(_) = self.life {
                    // Begun with more patience than there is now.
                    let until = Instant::now() + budget;
                    self.drain_until = Some(self.drain_until.map_or(until, |it| it.min(until)));
                }
                self.event(Event::Stop, Reason::Shutdown);
            }
            // Every handle is gone; so is the reason to live.
            None => {
                self.going_down = true;
                self.event(Event::Stop, Reason::Shutdown);
            }
        }
    }

    fn timed(&mut self) {
        let now = Instant::now();
        if let Some(run) = &mut self.run
            && run.linger_until.is_some_and(|at| at <= now)
        {
            // Somebody outside the group holds the pipe; the plugin itself is gone.
            run.linger_until = None;
            run.link.abandon();
            return self.over(Over::Eof);
        }
        match self.life {
            Life::Backoff if self.until.is_some_and(|at| at <= now) => {
                self.event(Event::Waited, Reason::StartingUp { greeted: false });
            }
            Life::Active => {
                self.retire();
                self.fall_asleep(now);
            }
            Life::Draining(_) if self.drain_until.is_some_and(|at| at <= now) => {
                self.step = None;
                self.drain_failed();
            }
            _ => {}
        }
    }

    /// The idle clock has run out, it seems.
    fn fall_asleep(&mut self, now: Instant) {
        let due = self.life == Life::Active && self.idle_at().is_some_and(|at| at <= now);
        let Some(run) = self.run.as_ref().filter(|_| due) else { return };
        // Deciding and shutting are one step under the link's lock.
        if run.link.quiesce() {
            self.event(Event::Quiet, Reason::IdleStop);
        }
    }

    /// Tells the table and obeys it.
    fn event(&mut self, event: Event, reason: Reason) {
        let Some((next, effect)) = self.life.step(event) else { return };
        let told = next != self.life;
        self.life = next;
        if !matches!(next, Life::Draining(_)) {
            self.drain_until = None;
        }
        if told {
            self.reason = Arc::new(reason);
            self.remember();
        }
        match effect {
            Effect::None => {}
            Effect::Spawn => return self.start(),
            Effect::Activate => self.activate(),
            Effect::OpenGate => {
                if let Some(run) = &mut self.run {
                    run.active_since.get_or_insert_with(Instant::now);
                    run.link.reopen();
                }
            }
            Effect::DrainIfIdle => self.drain(true),
            Effect::Drain => self.drain(false),
            Effect::Climb if self.run.is_none() => return self.not_begun(),
            Effect::Climb => self.climb(),
            Effect::Wait => {}
        }
        if told {
            self.publish();
        }
        if self.life == Life::Active {
            self.retire();
        }
    }

    /// Keeps the reason for which a process is let go, for its end.
    fn remember(&mut self) {
        let Some(run) = &mut self.run else { return };
        match self.life {
            Life::Draining(_) | Life::Stopping(_) => {
                run.asked.get_or_insert_with(|| Arc::clone(&self.reason));
            }
            _ => run.asked = None,
        }
    }

    /// Replaces a plugin that asked for it, once it is old enough; until then it goes on
    /// serving. \[R-NO-06\]
    fn retire(&mut self) {
        let due = self.retire_at().is_some_and(|at| at <= Instant::now());
        let Some(run) = self.run.as_mut().filter(|_| due && self.life == Life::Active) else {
            return;
        };
        let Some((word, young)) = run.retiring.take() else { return };
        let reason = Reason::Retired { word };
        // Who asks each time as soon as it is up spends the patience there is.
        if young && self.sentence(&reason) == Then::Quarantined {
            let reason = self.epitaph(Then::Quarantined, reason);
            return self.event(Event::Unfit(Then::Quarantined), reason);
        }
        self.event(Event::Retire, reason);
    }

    fn publish(&self) {
        let shown = match self.life {
            Life::Active => Arc::new(Reason::Running),
            _ => Arc::clone(&self.reason),
        };
        let condition = Condition {
            life: self.life,
            off: None,
            reason: Arc::clone(&shown),
            since: SystemTime::now(),
            until: self.state_ends(),
            up_since: self.run.as_ref().map(|run| run.up_since),
            link: self.run.as_ref().map(|run| run.link.clone()),
            pid: self.run.as_ref().map(|run| run.pid),
            starts: self.starts,
            end: Arc::clone(&self.end),
            deaths: self.breaker.deaths(),
            peer: self.peer.clone(),
        };
        let state = condition.state();
        let before = self.cell.condition.send_replace(Arc::new(condition));
        // One state of ours may be several of the table's.
        if before.state() != state || before.reason.kind() != shown.kind() {
            self.facts.say(Fact::Became { plugin: self.name(), state, reason: shown });
        }
    }

    /// When the state that begins now ends at the latest, if it does so by itself.
    fn state_ends(&self) -> Option<Instant> {
        let (now, timeouts) = (Instant::now(), &self.plan.timeouts);
        match self.life {
            Life::Greeting => Some(now + timeouts.hello),
            Life::Activating => Some(now + timeouts.activate),
            Life::Draining(_) => Some(now + self.drain_budget),
            Life::Backoff => self.until,
            _ => None,
        }
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(&self.cell.name)
    }

    // ── Up ─────────────────────────────────────────────────────────────────────

    /// Starts a process, once its program has been compared with its digest, if it has one.
    fn start(&mut self) {
        self.restart_asked = false;
        self.until = None;
        self.starts += 1;
        self.reason = Arc::new(Reason::StartingUp { greeted: false });
        let Some(digest) = self.plan.digest else { return self.spawn(Ok(None)) };
        let reading = self.reader.verify(Arc::clone(&self.plan), self.enclosure.verified.clone());
        let budget = self.plan.timeouts.hello;
        let file = self.plan.command.get(digest.word).cloned().unwrap_or_default();
        self.step = Some(Box::pin(async move {
            // Late: a file system that does not answer.
            let late = |_| {
                let fault = DigestFault::Unreadable { error: format!("not within {budget:?}") };
                Err(Reason::NotVerified { file, fault })
            };
            Done::Verified(timeout(budget, reading).await.unwrap_or_else(late))
        }));
        self.publish();
    }

    /// Its program was still being read: there is no process to end.
    fn not_begun(&mut self) {
        self.step = None;
        self.ends(Arc::clone(&self.reason), Private::default());
        self.land();
    }

    /// Starts it, unless its program is not what was due.
    fn spawn(&mut self, verified: Result<Option<Arc<Program>>, Reason>) {
        let bounds = self.cell.bounds.load();
        if (&bounds.limits, &bounds.timeouts) != (&self.plan.limits, &self.plan.timeouts) {
            let (limits, timeouts) = (bounds.limits.clone(), bounds.timeouts.clone());
            self.plan = Arc::new(PluginPlan { limits, timeouts, ..(*self.plan).clone() });
            self.drain_budget = self.plan.timeouts.drain;
        }
        let launched = verified.and_then(|verified| {
            self.enclosure.verified = verified;
            launch(&self.plan, &self.enclosure)
        });
        let launched = match launched {
            Ok(launched) => launched,
            Err(reason) => return self.not_spawned(reason),
        };
        let pid = launched.process.pid();
        self.facts.say(Fact::Spawned { plugin: self.name(), pid });
        let announce = announce(&self.plan);
        let (link, news, io) = Link::connect(
            self.name(),
            self.facts.clone(),
            announce,
            self.registry.services(),
            launched.stdin,
            launched.stdout,
        );
        *self.cell.tail.lock().unwrap_or_else(PoisonError::into_inner) =
            crate::stderr::Tail::new(self.plan.limits.stderr_tail_bytes);
        let drain = Drain {
            plugin: self.name(),
            tail: Arc::clone(&self.cell.tail),
            bytes_per_second: self.plan.limits.stderr_bytes_per_second,
            facts: self.facts.clone(),
            lines: self.lines.clone(),
        };
        let (tells, kept) = watch::channel(None);
        let disk = self.plan.state().map(|_| keep_watch(Arc::clone(&self.cell), tells).boxed());
        let io = Task(tokio::spawn(io));
        let stderr = Some(Task(tokio::spawn(drain.run(launched.stderr))));
        self.run = Some(Run {
            link,
            news,
            io,
            stderr,
            process: Some(launched.process),
            pid,
            started: Instant::now(),
            up_since: SystemTime::now(),
            active_since: None,
            provides: Vec::new(),
            wants: Vec::new(),
            retiring: None,
            asked: None,
            let_go: false,
            exit: None,
            linger_until: None,
            verdict: None,
            over: None,
            disk,
            kept,
        });
        self.publish();
    }

    /// There is no process, so there is nothing to climb down from.
    fn not_spawned(&mut self, reason: Reason) {
        let then = self.sentence(&reason);
        self.life = Life::Stopping(then);
        self.ends(Arc::new(reason.clone()), Private::default());
        self.reason = Arc::new(self.epitaph(then, reason));
        self.land();
    }

    fn greeted(&mut self, welcome: Welcome) {
        let started = self.run.as_ref().map_or_else(Instant::now, |run| run.started);
        let peer = &welcome.peer;
        self.facts.say(Fact::Greeted {
            plugin: self.name(),
            id: peer.name.clone(),
            version: peer.version.clone(),
            took: started.elapsed(),
        });
        self.peer = Some((peer.name.clone(), peer.version.clone()));
        match check_hello(&self.plan, &welcome) {
            Ok(manifest) => {
                if let Some(run) = &mut self.run {
                    (run.provides, run.wants) = (manifest.provides, manifest.wants);
                    let limits = &self.cell.bounds.load().limits;
                    let are_others = *limits != self.plan.limits;
                    let process = run.process.as_mut();
                    if process.is_some_and(|it| it.settle(limits, are_others)) {
                        self.registry.hold_plugins();
                    }
                }
                self.event(Event::Greeted, Reason::StartingUp { greeted: true });
            }
            Err(what) => self.reject(Reason::ManifestDiffers { what }, Close::ManifestRejected),
        }
    }

    fn activate(&mut self) {
        let Some(run) = &self.run else { return };
        // What it does not want it is not granted, whatever the operator says. [R-SC-04]
        let granted = self.plan.grant_scopes.iter();
        let grant: Vec<String> =
            granted.filter(|it| may_be_granted(&run.wants, it)).cloned().collect();
        run.link.grant(grant.clone());
        let body = encode(&Activate {
            grant,
            config: self.plan.config.clone(),
            secrets: self.plan.secrets.iter().map(|(k, v)| (k.clone(), v.0.clone())).collect(),
        });
        let budget = self.plan.timeouts.activate;
        // Not before it is known that it keeps no more than it may.
        let known = run.disk.as_ref().map(|_| run.kept.clone());
        self.call_step("plugin.activate", body, budget, known, Done::Activated);
    }

    fn activated(&mut self, outcome: Result<Bytes, Failure>) {
        match outcome {
            Ok(body) => match decode::<Option<Activated>>(&body) {
                Ok(activated) => self.open(activated.unwrap_or_default()),
                Err(what) => {
                    let what = format!("the result of plugin.activate cannot be read: {what}");
                    self.reject(Reason::ManifestDiffers { what }, Close::ManifestRejected);
                }
            },
            Err(Failure::Fault(fault)) => {
                let fault = presentable(fault);
                let message = Private(fault.text().unwrap_or_default());
                let reason = fault.reason.map(std::borrow::Cow::into_owned);
                self.reject(
                    Reason::ActivateFailed { code: fault.code, reason, message },
                    Close::Ok,
                );
            }
            Err(Failure::Expired { .. }) => {
                let waited = self.plan.timeouts.activate;
                self.reject(Reason::ActivateTimeout { waited, seen: None }, Close::Timeout);
            }
            // The end of the conversation comes as news of its own.
            Err(Failure::Lost { .. }) => {}
        }
    }

    /// The registry first, then the gate, then the news that it is open.
    fn open(&mut self, activated: Activated) {
        let Some(run) = &mut self.run else { return };
        if let Some(narrowed) = activated.provides {
            run.provides.retain(|it| {
                narrowed.iter().any(|kept| kept.kind == it.kind && kept.name == it.name)
            });
        }
        self.cell.provides.store(Arc::new(run.provides.clone()));
        let peer = run.link.peer_calls();
        run.link.open(self.plan.limits.concurrency.min(peer).max(1));
        let tools = listed(&self.plan, &run.provides);
        let unlisted = unlisted(&self.plan, &run.provides);
        self.registry.set_tools(&self.cell, &tools, &unlisted);
        self.event(Event::Activated, Reason::Running);
    }

    // ── Down ───────────────────────────────────────────────────────────────────

    fn drain(&mut self, if_idle: bool) {
        if let Some(run) = &self.run {
            run.link.refuse();
        }
        let body = encode(&Deactivate { if_idle });
        self.call_step("plugin.deactivate", body, self.drain_budget, None, Done::Deactivated);
    }

    fn deactivated(&mut self, outcome: Result<Bytes, Failure>) {
        match outcome {
            Ok(_) => {
                if let Some(run) = &mut self.run {
                    run.let_go = true;
                }
                self.event(Event::Deactivated, (*self.reason).clone());
            }
            Err(Failure::Fault(fault)) if fault.reason.as_deref() == Some("pb.busy") => {
                // Looked at again after as long a pause as it takes to be idle.
                self.idle_from = self.plan.idle.stop_after.map(|after| Instant::now() + after);
                self.event(Event::Busy, Reason::Running);
                if self.restart_asked && self.life == Life::Active {
                    self.event(Event::Restart, Reason::RestartedByOperator);
                }
            }
            Err(Failure::Lost { .. }) => {}
            Err(Failure::Fault(_) | Failure::Expired { .. }) => self.drain_failed(),
        }
    }

    fn drain_failed(&mut self) {
        if let Some(run) = &self.run {
            run.link.cancel_all();
        }
        self.event(Event::DrainFailed, (*self.reason).clone());
    }

    /// It may finish what it is doing and is then ended.
    fn unfit(&mut self, reason: Reason) {
        if self.life != Life::Active {
            return;
        }
        let then = self.sentence(&reason);
        self.verdict(reason.clone());
        // One cancelled call is stuck; the others get the grace again, not the whole drain.
        self.drain_budget = self.drain_budget.min(self.plan.timeouts.cancel_grace);
        let reason = self.epitaph(then, reason);
        self.event(Event::Unfit(then), reason);
    }

    /// It may not go on, and we say so.
    fn reject(&mut self, reason: Reason, close: Close) {
        if let Some(run) = &self.run {
            run.link.close(close);
        }
        self.died(reason);
    }

    fn verdict(&mut self, reason: Reason) {
        if let Some(run) = &mut self.run {
            run.verdict.get_or_insert(reason);
        }
    }

    fn over(&mut self, over: Over) {
        let Some(run) = &mut self.run else { return };
        if run.over.is_some() {
            return;
        }
        run.linger_until = None;
        let active = run.active_since.is_some();
        let reason = provisional(&over, active, &self.plan.timeouts);
        run.over = Some(over);
        match self.life {
            // We are ending it already, and this is how it goes.
            Life::Stopping(_) => {}
            _ => self.died(reason),
        }
    }

    fn died(&mut self, reason: Reason) {
        self.verdict(reason);
        let reason = self.run.as_ref().and_then(|run| run.verdict.clone());
        let reason = reason.unwrap_or(Reason::StatusLost);
        let then = match self.life {
            Life::Draining(then) => then,
            _ => self.sentence(&reason),
        };
        let reason = self.epitaph(then, reason);
        self.event(Event::Died(then), reason);
    }

    /// What a death leads to, by the restart rule.
    fn sentence(&mut self, reason: &Reason) -> Then {
        let rule = self.plan.restart.clone();
        let healthy = self.run.as_ref().and_then(|run| run.active_since);
        if healthy.is_some_and(|since| rule.healthy <= since.elapsed()) {
            self.breaker.reset();
        }
        let wait = self.breaker.forgive(&rule, Instant::now(), fastrand::f64());
        if reason.is_permanent() {
            return Then::Quarantined;
        }
        match (wait, rule.when) {
            (None, _) => Then::Quarantined,
            (Some(_), RestartWhen::Never) => Then::Dormant,
            (Some(wait), _) => {
                self.backoff = wait;
                Then::Backoff
            }
        }
    }

    /// The reason to show for a state that a death led to.
    fn epitaph(&self, then: Then, last: Reason) -> Reason {
        match then {
            Then::Quarantined if !last.is_permanent() => Reason::Quarantined {
                deaths: self.breaker.deaths(),
                within: self.plan.restart.within,
                last: Box::new(last),
            },
            _ => last,
        }
    }

    fn climb(&mut self) {
        let Some(run) = &mut self.run else { return };
        let link = run.link.clone();
        link.refuse();
        let Some(mut process) = run.process.take() else { return };
        let stderr = run.stderr.take();
        if let Some(exit) = run.exit.take() {
            // It is gone already; only the clearing is left.
            link.abandon();
            let climbed = Climbed { exit: Some(exit), rung: None, seen: None };
            self.step = Some(Box::pin(async move {
                last_words(stderr).await;
                Done::Climbed(Box::new((climbed, process)))
            }));
            return;
        }
        // Who broke the rules, or has left the conversation, gets no long grace.
        let polite = run.over.is_none() && run.verdict.is_none();
        let rungs = ladder(&self.plan.timeouts, polite);
        // A stdout that ends is usually a process that ends, a moment later. Only if
        // we wait for that can its own end be told from one that we bring about.
        let ended = matches!(run.over, Some(Over::Eof | Over::Broken(Violation::Truncated { .. })));
        let leaving = if ended { LINGER } else { Duration::ZERO };
        let is_hang = run.verdict.as_ref().is_some_and(Reason::is_hang);
        self.step = Some(Box::pin(async move {
            let before = if is_hang { process.look() } else { None };
            let leaving = if before.is_some() { hang::PAUSE } else { leaving };
            let climbed = climb(&mut process, &link, leaving, &rungs, before).await;
            last_words(stderr).await;
            Done::Climbed(Box::new((climbed, process)))
        }));
    }

    /// The process is gone, or cannot be ended.
    fn gone(&mut self, climbed: Climbed, mut process: Process) {
        let Some(run) = self.run.take() else { return };
        run.link.abandon();
        let reason = explain(&run, &climbed, run.asked.as_ref().unwrap_or(&self.reason));
        let mut reason = reason.with(climbed.seen.clone());
        // It may have set the bounds on all to old ones, and have ended before it greeted.
        if process.settle(&self.cell.bounds.load().limits, false) {
            self.registry.hold_plugins();
        }
        if let Some(it) = process.remains() {
            self.facts.say(Fact::Remains {
                plugin: self.name(),
                pid: run.pid,
                left_behind: it.left_behind,
                refused: it.refused,
                refused_to_all: it.refused_to_all,
                killed: it.killed,
                cpu: it.cpu,
                resident_bytes: it.resident_bytes,
            });
        }
        if climbed.exit.is_none() {
            reason = Reason::Unkillable { waited: crate::stop::KILL_BUDGET, seen: climbed.seen };
            self.life = Life::Stopping(Then::Quarantined);
            // Somebody has to reap it, should the kernel ever let go.
            tokio::spawn(async move { process.wait().await });
        }
        if reason.is_permanent() && self.life == Life::Stopping(Then::Backoff) {
            // That another start would repeat it is known only now.
            self.life = Life::Stopping(Then::Quarantined);
        }
        let pid = run.pid;
        let reason = Arc::new(reason);
        self.facts.say(Fact::Exited {
            plugin: self.name(),
            pid,
            reason: Arc::clone(&reason),
            rung: climbed.rung,
        });
        self.ends(Arc::clone(&reason), self.cell.last_words());
        drop(run);
        // A state that a death led to is explained by the death as we now know it.
        if let Life::Stopping(then @ (Then::Backoff | Then::Quarantined)) = self.life {
            self.reason = Arc::new(self.epitaph(then, (*reason).clone()));
        } else if self.plan.restart.when == RestartWhen::Never && self.reason.code().is_some() {
            self.reason = reason;
        }
        self.drain_budget = self.plan.timeouts.drain;
        self.land();
    }

    fn ends(&mut self, reason: Arc<Reason>, last_words: Private) {
        self.end = Arc::new(End { run: self.starts, reason, last_words });
    }

    /// From `Stopping` to wherever the table says.
    fn land(&mut self) {
        if self.life == Life::Stopping(Then::Backoff) {
            // From here on: the ladder takes time of its own.
            self.until = Some(Instant::now() + self.backoff);
            let (delay, deaths) = (self.backoff, self.breaker.deaths());
            self.facts.say(Fact::Waiting { plugin: self.name(), delay, deaths });
        }
        let reason = (*self.reason).clone();
        self.event(Event::Gone, reason);
    }

    fn call_step(
        &mut self,
        method: &'static str,
        body: Bytes,
        budget: Duration,
        after: Option<watch::Receiver<Option<u64>>>,
        done: fn(Result<Bytes, Failure>) -> Done,
    ) {
        let Some(run) = &self.run else { return };
        let deadline = Some(u64::try_from(budget.as_millis()).unwrap_or(u64::MAX));
        let call = Outgoing { method, deadline, body, ..Outgoing::default() };
        let link = run.link.clone();
        let step = move || -> BoxFuture<'static, Done> {
            match link.step(&call) {
                Ok(pending) => Box::pin(async move { done(pending.await) }),
                // The conversation is over, and the news of it is on its way.
                Err(_) => Box::pin(pending()),
            }
        };
        self.step = Some(match after {
            None => step(),
            Some(mut after) => Box::pin(async move {
                // Fails only if the watch has ended, and that is news of its own.
                let is_known = after.wait_for(Option::is_some).await.is_ok();
                if is_known { step().await } else { pending().await }
            }),
        });
    }
}

/// Waits until all that a dead process has written to stderr is read, or until it is
/// clear that somebody else holds its end of the pipe.
async fn last_words(stderr: Option<Task>) {
    if let Some(mut task) = stderr {
        // Late, or ended: it is over either way.
        timeout(LINGER, &mut task.0).await.ok();
    }
}

async fn recv(news: Option<&mut mpsc::UnboundedReceiver<News>>) -> Option<News> {
    match news {
        Some(news) if !(news.is_closed() && news.is_empty()) => news.recv().await,
        _ => pending().await,
    }
}

async fn finish(step: Option<&mut BoxFuture<'static, Done>>) -> Done {
    match step {
        Some(step) => step.await,
        None => pending().await,
    }
}

async fn full(disk: Option<&mut BoxFuture<'static, Reason>>) -> Reason {
    match disk {
        Some(disk) => disk.await,
        None => pending().await,
    }
}

async fn exited(process: Option<&mut Process>) -> Exit {
    match process {
        Some(process) => process.wait().await,
        None => pending().await,
    }
}

async fn alarm(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

fn announce(plan: &PluginPlan) -> Announce {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let timeouts = &plan.timeouts;
    Announce {
        identity: Identity::new("plugbay", env!("CARGO_PKG_VERSION")),
        limits: Limits {
            frame: plan.limits.frame_bytes.max(Limits::FLOOR.frame),
            ..Limits::default()
        },
        features: Features::ALL,
        manifest: Bytes::new(),
        manifests: Vec::new(),
        patience: Patience {
            hello_ms: ms(timeouts.hello),
            ping_after_ms: ms(timeouts.ping_after),
            ping_dead_ms: ms(timeouts.ping_dead),
            cancel_grace_ms: ms(timeouts.cancel_grace),
        },
    }
}

/// Whether the handshake fits the plan. What it provides and wants, if so.
fn check_hello(plan: &PluginPlan, welcome: &Welcome) -> Result<Manifest, String> {
    let manifest = decode::<Option<Manifest>>(&welcome.manifest)
        .map_err(|what| format!("the manifest in its HELLO cannot be read: {what}"))?
        .unwrap_or_default();
    if let Some((id, version)) = &plan.identity {
        let peer = &welcome.peer;
        if (&peer.name, &peer.version) != (id, version) {
            return Err(format!(
                "it says it is {} {}, and plugin.toml says {id} {version}",
                peer.name, peer.version
            ));
        }
    }
    if TOOLS_MAX < manifest.provides.len() {
        return Err(format!(
            "it provides {} things, at most {TOOLS_MAX} are accepted",
            manifest.provides.len()
        ));
    }
    let mut seen = std::collections::HashSet::new();
    for it in &manifest.provides {
        if !seen.insert((&it.kind, &it.name)) {
            return Err(format!("it provides {} {:?} twice", it.kind, it.name));
        }
        let declared = plan.discover || plan.tools.iter().any(|tool| tool.name == it.name);
        if it.kind == "tool" && !declared {
            return Err(format!(
                "it provides the tool {:?}, which plugin.toml does not name",
                it.name
            ));
        }
    }
    Ok(manifest)
}

/// The tools to list: granted, and truly provided.
fn listed(plan: &PluginPlan, provides: &[Provide]) -> Vec<ToolPlan> {
    let provided = |name: &str| provides.iter().find(|it| it.kind == "tool" && it.name == name);
    if plan.discover {
        let tools = provides.iter().filter(|it| it.kind == "tool" && plan.grants(&it.name));
        return tools.map(|it| discovered(plan, it)).collect();
    }
    // Where a manifest names the tools, its words count and not the handshake's.
    plan.tools
        .iter()
        .filter(|tool| plan.grants(&tool.name) && provided(&tool.name).is_some())
        .cloned()
        .collect()
}

/// The other tools that the plugin has, and why they are not listed.
fn unlisted<'a>(plan: &'a PluginPlan, provides: &'a [Provide]) -> Vec<(&'a str, &'static str)> {
    let tools = || provides.iter().filter(|it| it.kind == "tool").map(|it| it.name.as_str());
    let denied = tools().filter(|name| !plan.grants(name)).map(|name| (name, NOT_GRANTED));
    let named = plan.tools.iter().map(|it| it.name.as_str()).filter(|_| !plan.discover);
    let missing = named.filter(|name| plan.grants(name) && !tools().any(|it| it == *name));
    denied.chain(missing.map(|name| (name, "it does not provide it now"))).collect()
}

fn discovered(plan: &PluginPlan, it: &Provide) -> ToolPlan {
    let decided = plan.effects.iter().find(|(pattern, _)| covers(pattern, &it.name));
    ToolPlan {
        name: it.name.clone(),
        description: it.description.clone(),
        input_schema: it.input_schema.clone(),
        output_schema: it.output_schema.clone(),
        effect: match (decided, it.effect.as_deref()) {
            (Some((_, effect)), _) => *effect,
            (None, Some("read")) => plan::Effect::Read,
            (None, Some("draft")) => plan::Effect::Draft,
            (None, _) => plan::Effect::Write,
        },
        idempotent: it.idempotent,
    }
}

/// Why the conversation ended, as far as it tells by itself.
fn provisional(over: &Over, active: bool, timeouts: &plan::Timeouts) -> Reason {
    match over {
        Over::Eof => Reason::StdoutEnded,
        Over::Closed { code: Close::VersionUnsupported, supported, .. } => {
            Reason::VersionUnsupported { supported: supported.clone() }
        }
        Over::Closed { code, message, .. } => Reason::ClosedWith {
            code: *code,
            message: Private(message.clone().unwrap_or_default()),
        },
        Over::Broken(violation) => match violation {
            Violation::NotAFrame { found } => Reason::NotAFrame {
                found: Private(String::from_utf8_lossy(found).into_owned()),
                greeted: active,
            },
            // The budget, not the millisecond at which its end was noticed.
            Violation::NoHello { part, .. } => {
                Reason::NoHello { waited: timeouts.hello, alive: true, part: *part, seen: None }
            }
            Violation::Echo => Reason::Echo,
            Violation::Silent { silent_ms } => {
                Reason::Silent { waited: Duration::from_millis(*silent_ms), seen: None }
            }
            Violation::Version { theirs } => {
                Reason::VersionUnsupported { supported: theirs.clone() }
            }
            violation => Reason::Violation { violation: violation.clone() },
        },
    }
}

/// How a process ended, from all the evidence: our verdict, the conversation's
/// end, the exit status, and the rung that was needed.
fn explain(run: &Run, climbed: &Climbed, asked: &Reason) -> Reason {
    let active = run.active_since.is_some();
    // What never ran did nothing that could be the reason.
    if let Some(Exit::NotStarted(reason)) = &climbed.exit {
        return reason.clone();
    }
    // It was told to go, said yes, and goes: nothing else is the reason.
    if run.let_go && run.verdict.is_none() {
        return asked.clone();
    }
    // Only an end of the stream leaves open why; everything else was decided by us
    // or said by the plugin.
    let halved =
        matches!(run.verdict, Some(Reason::Violation { violation: Violation::Truncated { .. } }));
    let open = match (&run.verdict, &run.over) {
        (None, None) => return asked.clone(),
        (None, Some(Over::Eof)) | (Some(Reason::StdoutEnded), _) => true,
        _ => halved,
    };
    match (climbed.exit.clone(), climbed.rung) {
        // Up to this rung we have sent no signal.
        (Some(Exit::Signal { signal, core }), None | Some("eof")) if open => {
            Reason::of_signal(signal, core, None)
        }
        (Some(Exit::Ended(reason)), None | Some("eof")) if open => reason,
        // Half a frame says more than a clean exit does.
        (Some(Exit::Code(code)), None) if open && !(halved && code == 0) => {
            Reason::Exited { code, active }
        }
        (Some(Exit::Lost), None) if open => Reason::StatusLost,
        _ => match &run.verdict {
            None => asked.clone(),
            Some(Reason::StdoutEnded) if active => Reason::ClosedStdout,
            Some(Reason::StdoutEnded) => Reason::NoHello {
                waited: run.started.elapsed(),
                alive: false,
                part: None,
                seen: None,
            },
            Some(verdict) => verdict.clone(),
        },
    }
}
