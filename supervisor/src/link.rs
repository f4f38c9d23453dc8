//! One plugin's connection: the conversation, both pipe ends, and who waits for
//! which answer.
//!
//! Callers encode straight into the shared outbox. The first of them writes it
//! inline; while calls are in flight the I/O task takes whatever has gathered in
//! one write. The lock is held for encoding, decoding and one non-blocking write,
//! never across an await. Reading never waits for writing.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    io::{self, IoSlice},
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use nix::{
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use plugbay_protocol::{
    Announce, CallId, CancelReason, Close, Code, Conversation, Event, Failure, Fault, Features,
    Incoming, Misuse, Note, Outgoing, Over, Stage, Tick, Welcome, contract,
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    runtime::{Handle, RuntimeFlavor},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use crate::{
    fact::{Fact, Facts},
    gate::Place,
    service::{Origin, Services, service_call},
    stream::Outlet,
};

/// Bodies from this size on are worth a larger pipe.
const LARGE_BODY: usize = 128 << 10;
/// What the pipe is asked to hold then. Ordinary users get a limited number of
/// these, so a refusal is fine.
const LARGE_PIPE: i32 = 1 << 20;
/// How long answers may still arrive from a plugin that no longer reads.
const DEAF_GRACE: Duration = Duration::from_secs(1);
/// Log notes passed on per second and plugin; more are counted.
const LOGS_PER_SECOND: u32 = 100;
/// What rates are counted by.
const SECOND: Duration = Duration::from_secs(1);
/// The longest event name, or reason to retire, passed on, in bytes.
const WORD_MAX: usize = 64;

/// How far a call has come, as its plugin says.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Done so far.
    pub n: Option<u64>,
    /// Of how many.
    pub total: Option<u64>,
    /// Of what.
    pub unit: Option<String>,
    /// In words.
    pub message: Option<String>,
}

/// Told about progress. Runs on the connection's task: it must not block.
pub(crate) type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What the keeper must know.
#[derive(Debug)]
pub(crate) enum News {
    Hello(Welcome),
    Stuck,
    Retire(String),
    /// It reads no more, and has gone on living for a while.
    Deaf,
    /// The conversation is over. Last.
    Over(Over),
}

/// What a call waits with.
#[derive(Default)]
pub(crate) struct Waiter {
    pub(crate) on_progress: Option<OnProgress>,
    /// Proof of a running call. It lives here and not in the caller's future, so
    /// it is given back when the plugin has answered and not when the caller leaves.
    #[expect(dead_code, reason = "it is held, not read")]
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// The same for the plugin's count of calls in the house.
    pub(crate) place: Option<Place>,
    /// Where its items go; without one they are dropped.
    pub(crate) outlet: Option<Outlet>,
    /// On whose behalf it is made.
    pub(crate) origin: Option<Arc<Origin>>,
}

struct Waiting {
    reply: oneshot::Sender<Result<Bytes, Failure>>,
    waiter: Waiter,
}

/// Hashes an id to itself: ids are our own count, so nobody can make them collide.
#[derive(Default)]
struct OwnId(u64);

impl Hasher for OwnId {
    fn finish(&self) -> u64 {
        // Spread, because the table looks at the highest bits too.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("an id is one u32")
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = id.into();
    }
}

/// A handle on a connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Wakes the I/O task: there is something to write, an earlier deadline, or the end.
    wake: Notify,
    /// As many permits as calls may run. Closed when the conversation is over.
    slots: Arc<Semaphore>,
    features: OnceLock<Features>,
    epoch: Instant,
    plugin: Arc<str>,
    facts: Facts,
    services: Services,
}

struct State {
    conversation: Conversation,
    waiting: HashMap<CallId, Waiting, BuildHasherDefault<OwnId>>,
    /// The services that work for the plugin now. \[R-RV-09\] bounds them.
    serving: HashMap<CallId, AbortHandle, BuildHasherDefault<OwnId>>,
    /// How many calls may run at once.
    width: usize,
    stdin: Option<Arc<pipe::Sender>>,
    accepting: bool,
    /// What the I/O task sleeps until.
    armed: Tick,
    /// Since when no call is open.
    quiet_since: Instant,
    /// When to give up on a plugin that closed its stdin.
    deaf_until: Option<Instant>,
    large: bool,
    retiring: bool,
    logs: Logs,
    /// How many answers came together last. After several, several callers are about
    /// to call again.
    company: usize,
    /// Whether the I/O task has been woken and has not looked yet.
    woken: bool,
}

/// Log notes in the current second.
struct Logs {
    second: Instant,
    passed: u32,
    dropped: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.0.plugin)
    }
}

/// Why a call was not sent. Nothing of it has left.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSent {
    /// This connection takes no more calls; another may.
    #[error("the connection takes no more calls")]
    Closed,
    /// The arguments make a frame larger than the plugin accepts.
    #[error("the call takes {size} bytes and the plugin accepts {max}")]
    TooLarge { size: usize, max: u32 },
    /// The plugin has not agreed on a feature that the call needs.
    #[error("it takes no items: it did not agree on {0:?}")]
    NotAgreed(&'static str),
}

impl Link {
    /// Starts talking. Returns the handle, the news for the keeper, and the I/O
    /// task, which the keeper owns.
    pub(crate) fn connect(
        plugin: Arc<str>,
        facts: Facts,
        announce: Announce,
        services: Services,
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
    ) -> (Self, mpsc::UnboundedReceiver<News>, impl Future<Output = ()> + Send) {
        let now = Instant::now();
        let state = State {
            conversation: Conversation::host(announce, Tick(0)),
            waiting: HashMap::default(),
            serving: HashMap::default(),
            width: 0,
            stdin: Some(Arc::new(stdin)),
            accepting: false,
            armed: Tick(0),
            quiet_since: now,
            deaf_until: None,
            large: false,
            retiring: false,
            logs: Logs { second: now, passed: 0, dropped: 0 },
            company: 0,
            woken: false,
        };
        let link = Self(Arc::new(Shared {
            state: Mutex::new(state),
            wake: Notify::new(),
            slots: Arc::new(Semaphore::new(0)),
            features: OnceLock::new(),
            epoch: now,
            plugin,
            facts,
            services,
        }));
        // Unbounded and small: HELLO, one retirement, one Stuck for each call, one end.
        let (news, inbox) = mpsc::unbounded_channel();
        let io = link.clone().run(stdout, news);
        (link, inbox, io)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of ours under the lock is a bug that must not take other calls along.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Tick {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Tick {
        let since = now.saturating_duration_since(self.0.epoch);
        Tick(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// What both sides use; known once the gate is open.
    pub(crate) fn features(&self) -> Features {
        self.0.features.get().copied().unwrap_or_default()
    }

    /// How many calls the plugin accepts at once.
    pub(crate) fn peer_calls(&self) -> usize {
        self.lock().conversation.peer_limits().calls.into()
    }

    /// Lets calls through, `width` at once.
    pub(crate) fn open(&self, width: usize) {
        let mut state = self.lock();
        state.accepting = true;
        state.width = width;
        self.0.features.get_or_init(|| state.conversation.features());
        drop(state);
        self.0.slots.add_permits(width);
    }

    /// Lets calls through again after [`Self::quiesce`] or [`Self::refuse`].
    pub(crate) fn reopen(&self) {
        self.lock().accepting = true;
    }

    /// Takes no more calls. Those that are running go on.
    pub(crate) fn refuse(&self) {
        self.lock().accepting = false;
    }

    /// Takes no more calls, if none is open either way: the decision and the shutting are one
    /// step, so no call can slip in between. \[R-LC-15\]
    pub(crate) fn quiesce(&self) -> bool {
        let mut state = self.lock();
        let quiet = state.is_quiet();
        if quiet {
            state.accepting = false;
        }
        quiet
    }

    /// Since when no call has been open; `None` while one is.
    pub(crate) fn quiet_since(&self) -> Option<Instant> {
        let state = self.lock();
        state.is_quiet().then_some(state.quiet_since)
    }

    /// A slot, if one is free and nobody waits for one.
    pub(crate) fn slot_now(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.slots).try_acquire_owned().ok()
    }

    /// Waits for a slot. `None` if the conversation ended first.
    pub(crate) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.slots).acquire_owned().await.ok()
    }

    /// A call for a tool: only while calls are let through.
    ///
    /// # Errors
    /// Why not, and the waiter back.
    pub(crate) fn call(
        &self,
        call: &Outgoing<'_>,
        waiter: Waiter,
        now: Instant,
    ) -> Result<Pending, (NotSent, Waiter)> {
        let state = self.lock();
        if !state.accepting {
            return Err((NotSent::Closed, waiter));
        }
        self.send(state, call, waiter, now)
    }

    /// A lifecycle step, which needs no slot and no open gate.
    pub(crate) fn step(&self, call: &Outgoing<'_>) -> Result<Pending, NotSent> {
        self.send(self.lock(), call, Waiter::default(), Instant::now()).map_err(|(why, _)| why)
    }

    fn send(
        &self,
        mut state: MutexGuard<'_, State>,
        call: &Outgoing<'_>,
        waiter: Waiter,
        now: Instant,
    ) -> Result<Pending, (NotSent, Waiter)> {
        // The next millisecond, so that no budget ends early.
        let tick = self.at(now + Duration::from_micros(999));
        let id = match state.conversation.call(call, tick) {
            Ok(id) => id,
            Err(Misuse::TooLarge { size, max }) => {
                return Err((NotSent::TooLarge { size, max }, waiter));
            }
            Err(Misuse::NotAgreed(feature)) => {
                return Err((NotSent::NotAgreed(feature), waiter));
            }
            Err(_) => return Err((NotSent::Closed, waiter)),
        };
        let (reply, answer) = oneshot::channel();
        state.waiting.insert(id, Waiting { reply, waiter });
        if LARGE_BODY <= call.body.len() {
            state.grow_pipe();
        }
        // Alone, the shortest way is to write at once. In company, the I/O task
        // writes for all.
        if state.waiting.len() == 1 && state.company <= 1 {
            state.flush();
        }
        self.wake(&mut state);
        Ok(Pending { link: self.clone(), id, answer, done: false })
    }

    /// Wakes the I/O task if there is something for it to do.
    fn wake(&self, state: &mut State) {
        let earlier = state.conversation.deadline().is_some_and(|at| at < state.armed);
        let due = earlier || !state.conversation.outbox().is_empty();
        if due && !std::mem::replace(&mut state.woken, true) {
            self.0.wake.notify_one();
        }
    }

    /// What the plugin may call from now on, said before it is activated.
    pub(crate) fn grant(&self, scopes: Vec<String>) {
        self.lock().conversation.grant(scopes);
    }

    /// Whether a call that these have led to could only wait for them. \[R-RV-10\]
    pub(crate) fn would_deadlock(&self, ancestors: &[(Self, CallId)]) -> bool {
        let here = ancestors.iter().filter(|(link, _)| Arc::ptr_eq(&link.0, &self.0));
        let here: Vec<CallId> = here.map(|(_, id)| *id).collect();
        let state = self.lock();
        state.conversation.would_deadlock(&here, state.width)
    }

    /// Sends one item of a call's input.
    ///
    /// # Errors
    /// [`Misuse`]; nothing was sent.
    pub(crate) fn item(&self, id: CallId, body: &Bytes) -> Result<(), Misuse> {
        let mut state = self.lock();
        state.conversation.item(id, body)?;
        state.flush();
        self.wake(&mut state);
        Ok(())
    }

    /// Says that there are no more of them.
    pub(crate) fn end_input(&self, id: CallId) {
        let mut state = self.lock();
        state.conversation.end_input(id);
        state.flush();
        self.wake(&mut state);
    }

    /// An item of this size has been used.
    fn taken(&self, id: CallId, size: u32) {
        let mut state = self.lock();
        state.conversation.taken(id, size);
        state.flush();
        self.wake(&mut state);
    }

    /// Answers a call of the plugin's, unless that has been done meanwhile.
    fn answer(&self, id: CallId, outcome: Result<Bytes, Fault>) {
        let mut state = self.lock();
        state.serving.remove(&id);
        // One too large has been answered with a fault; one that is gone needs no answer.
        state.conversation.end(id, outcome).ok();
        state.rest();
        state.flush();
        self.wake(&mut state);
    }

    fn cancel(&self, id: CallId) {
        let mut state = self.lock();
        let now = self.now();
        state.conversation.cancel(id, CancelReason::User, now);
        // At once, so that no service begins with work whose caller has gone. Nothing else
        // is left to be told between two turns. [R-RV-08]
        self.settle(state, None);
        self.0.wake.notify_one();
    }

    /// Gives up every call that is still open, for a shutdown that will not wait.
    pub(crate) fn cancel_all(&self) {
        let mut state = self.lock();
        let now = self.now();
        let ids: Vec<CallId> = state.waiting.keys().copied().collect();
        for id in ids {
            state.conversation.cancel(id, CancelReason::Shutdown, now);
        }
        state.flush();
        self.0.wake.notify_one();
    }

    /// Says CLOSE; open calls are lost. False if the conversation is over already.
    pub(crate) fn close(&self, code: Close) -> bool {
        let mut state = self.lock();
        state.accepting = false;
        let said = state.conversation.stage() != Stage::Closed;
        state.conversation.close(code, None);
        self.settle(state, None);
        self.0.wake.notify_one();
        said
    }

    /// Closes the plugin's stdin. What is unwritten is lost.
    pub(crate) fn sever(&self) {
        let mut state = self.lock();
        state.accepting = false;
        state.stdin = None;
        drop(state);
        self.0.slots.close();
        self.0.wake.notify_one();
    }

    /// Bytes that the plugin's stdin has not taken yet.
    pub(crate) fn unwritten(&self) -> u64 {
        self.lock().conversation.outbox().len()
    }

    /// The conversation ends here for us, whatever the plugin still does.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.accepting = false;
        state.stdin = None;
        state.conversation.eof();
        self.settle(state, None);
        self.0.slots.close();
    }

    /// Hands out everything that the conversation has to tell, then writes what it
    /// wants written. The end of the conversation is returned.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        news: Option<&mpsc::UnboundedSender<News>>,
    ) -> Option<Over> {
        let mut progress = Vec::new();
        let mut over = None;
        let mut ended = 0;
        let mut rested = false;
        let tell = |it| {
            if let Some(news) = news {
                // Fails only if the keeper is gone, and then nobody needs to know.
                news.send(it).ok();
            }
        };
        while let Some(event) = state.conversation.poll() {
            match event {
                Event::Hello(welcome) => tell(News::Hello(welcome)),
                Event::Ended { id, outcome } => {
                    if !progress.is_empty() {
                        // An answer comes after the progress that came before it.
                        drop(state);
                        tell_all(&mut progress);
                        state = self.lock();
                    }
                    ended += 1;
                    state.ended(id, outcome);
                    rested = true;
                }
                Event::Released { id } => {
                    state.waiting.remove(&id);
                    rested = true;
                }
                Event::Stuck { .. } => tell(News::Stuck),
                Event::Note { id: Some(id), note: Note::Progress { n, total, unit, body } } => {
                    let waiting = state.waiting.get(&id);
                    if let Some(told) = waiting.and_then(|it| it.waiter.on_progress.clone()) {
                        let message = contract::read_message(&body);
                        progress.push((told, Progress { n, total, unit, message }));
                    }
                }
                Event::Note { note: Note::Log { level, event, .. }, .. } => {
                    let now = Instant::now();
                    self.say_dropped(state.logs.turn(now));
                    if state.logs.admit() {
                        let (plugin, event) = (Arc::clone(&self.0.plugin), word(&event));
                        self.0.facts.say(Fact::Log { plugin, level, event });
                    }
                }
                Event::Note { note: Note::Retire { reason }, .. } => {
                    // Said once; more of it would only fill the keeper's inbox.
                    if !std::mem::replace(&mut state.retiring, true) {
                        tell(News::Retire(word(&reason)));
                    }
                }
                Event::Item { id, body, size } => state.item(id, body, size),
                Event::Credit { id } => {
                    let waiting = state.waiting.get(&id);
                    if let Some(outlet) = waiting.and_then(|it| it.waiter.outlet.as_ref()) {
                        outlet.credit.notify_one();
                    }
                }
                Event::Called(call) => self.serve(&mut state, call),
                Event::CancelRequested { id, .. } => {
                    state.stop_serving(id);
                    // Fails only if it has been answered, and then it is over.
                    state.conversation.end(id, Err(Fault::new(Code::Cancelled))).ok();
                    rested = true;
                }
                Event::Withdrawn { id } => {
                    state.stop_serving(id);
                    rested = true;
                }
                // Of no use to anybody here. No service takes items.
                Event::Note { .. } | Event::InputEnded { .. } => {}
                Event::Over(it) => {
                    state.serving.drain().for_each(|(_, work)| work.abort());
                    over = Some(it);
                }
            }
        }
        if 0 < ended {
            state.company = ended;
        }
        if rested {
            state.rest();
        }
        state.flush();
        drop(state);
        tell_all(&mut progress);
        over
    }

    /// Works on a call of the plugin's, in a task of its own: it may take long, and must
    /// not hold up the connection. It cannot answer before the lock is free.
    fn serve(&self, state: &mut State, call: Incoming) {
        let id = call.id;
        let parent = call.parent.and_then(|id| state.waiting.get(&id).map(|it| (id, it)));
        let origin = parent.and_then(|(_, it)| it.waiter.origin.as_ref());
        let caller = origin.map(|it| Arc::clone(&it.caller));
        let above = origin.into_iter().flat_map(|it| it.ancestors.iter().cloned());
        let ancestors = above.chain(parent.map(|(id, _)| (self.clone(), id))).collect();
        let call = service_call(&self.0.plugin, call, caller, ancestors);
        let (link, services) = (self.clone(), self.0.services.clone());
        let work = tokio::spawn(async move {
            let outcome = services.serve(call).await;
            link.answer(id, outcome);
        });
        state.serving.insert(id, work.abort_handle());
    }

    /// The I/O task. Ends with the conversation.
    async fn run(self, mut stdout: pipe::Receiver, news: mpsc::UnboundedSender<News>) {
        // On several threads callers are still adding to the batch when this task
        // wakes; one more turn lets them, and saves most of the writes.
        let crowded = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        let mut buffer = self.lock().conversation.take_buffer();
        let mut sleep = pin!(sleep_until(self.0.epoch));
        let over = loop {
            let stdin = {
                let mut state = self.lock();
                state.woken = false;
                let wake_at = self.arm(&mut state);
                if wake_at < sleep.deadline() || sleep.is_elapsed() {
                    sleep.as_mut().reset(wake_at);
                }
                let unwritten = !state.conversation.outbox().is_empty();
                state.stdin.clone().filter(|_| unwritten)
            };
            // Waiting. Each arm is cancel safe and none touches the conversation.
            let turn = tokio::select! {
                biased;
                read = stdout.read_buf(&mut buffer) => Turn::Read(read),
                () = self.0.wake.notified() => Turn::Woken,
                writable = writable(stdin.as_deref()) => Turn::Writable(writable),
                () = &mut sleep => Turn::Tick,
            };
            drop(stdin);
            if crowded && matches!(turn, Turn::Woken) {
                tokio::task::yield_now().await;
            }
            let turn = match turn {
                // What has come counts before the time that has passed: whoever was stopped
                // himself, or had no turn, knows of neither.
                Turn::Tick if is_readable(&stdout) => {
                    Turn::Read(stdout.read_buf(&mut buffer).await)
                }
                turn => turn,
            };
            // Acting. No await from here on, so each turn is whole.
            let mut state = self.lock();
            let now = self.now();
            match turn {
                Turn::Read(Ok(n)) if 0 < n => {
                    state.conversation.put_buffer(buffer);
                    state.conversation.received(now);
                    if state.armed <= now {
                        // Who writes without a pause does not stop the clock.
                        state.conversation.tick(now);
                    }
                    buffer = state.conversation.take_buffer();
                }
                Turn::Read(_) => {
                    state.conversation.put_buffer(std::mem::take(&mut buffer));
                    state.conversation.eof();
                }
                Turn::Writable(Err(_)) => state.deaf(),
                Turn::Tick => {
                    // It may have to say how much of a frame has come.
                    state.conversation.put_buffer(buffer);
                    state.conversation.tick(now);
                    buffer = state.conversation.take_buffer();
                    self.say_dropped(state.logs.turn(Instant::now()));
                    if state.deaf_until.is_some_and(|at| at <= Instant::now()) {
                        // Fails only if the keeper is gone.
                        news.send(News::Deaf).ok();
                        state.conversation.eof();
                    }
                }
                Turn::Woken | Turn::Writable(Ok(())) => {}
            }
            if let Some(over) = self.settle(state, Some(&news)) {
                break over;
            }
        };
        let mut state = self.lock();
        state.accepting = false;
        self.say_dropped(std::mem::take(&mut state.logs.dropped));
        drop(state);
        self.0.slots.close();
        // Fails only if the keeper is gone.
        news.send(News::Over(over)).ok();
    }

    /// Log notes that were not passed on are counted in a fact.
    fn say_dropped(&self, count: u64) {
        if 0 < count {
            let plugin = Arc::clone(&self.0.plugin);
            self.0.facts.say(Fact::Dropped { plugin, what: "log lines", count });
        }
    }

    /// Notes and returns when the I/O task must wake by itself.
    fn arm(&self, state: &mut State) -> Instant {
        let never = Tick(u64::from(u32::MAX));
        state.armed = state.conversation.deadline().unwrap_or(never);
        let at = self.0.epoch + Duration::from_millis(state.armed.0.min(never.0));
        let at = state.deaf_until.map_or(at, |deaf| at.min(deaf));
        if state.logs.dropped == 0 { at } else { at.min(state.logs.second + SECOND) }
    }
}

/// Tells callers about progress. What they do with it is theirs: it never runs under
/// our lock, and a panic in it is no fault of the plugin's.
fn tell_all(progress: &mut Vec<(OnProgress, Progress)>) {
    for (told, progress) in progress.drain(..) {
        // The panic hook has said what there is to say.
        catch_unwind(AssertUnwindSafe(|| told(progress))).ok();
    }
}

/// Everything that can wake the I/O task. The list is closed.
enum Turn {
    Read(io::Result<usize>),
    Writable(io::Result<()>),
    Woken,
    Tick,
}

/// Whether something has come, or the end, by the kernel's own word: the runtime may not
/// have heard of it yet.
fn is_readable(stdout: &pipe::Receiver) -> bool {
    let mut wanted = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut wanted, PollTimeout::ZERO), Ok(1..))
}

/// Waits for room in the pipe; without anything to write, for ever.
async fn writable(stdin: Option<&pipe::Sender>) -> io::Result<()> {
    match stdin {
        Some(stdin) => stdin.writable().await,
        None => std::future::pending().await,
    }
}

impl State {
    /// Writes as much as the pipe takes without waiting.
    fn flush(&mut self) {
        let outbox = self.conversation.outbox();
        while !outbox.is_empty() {
            let Some(stdin) = &self.stdin else { return };
            let (pieces, count) = outbox.pieces::<16>();
            let written = match count {
                1 => stdin.try_write(pieces[0]),
                _ => stdin.try_write_vectored(&pieces.map(IoSlice::new)[..count]),
            };
            match written {
                Ok(n) => outbox.advance(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.deaf(),
            }
        }
    }

    /// The plugin reads no more. What it has already said still counts.
    fn deaf(&mut self) {
        self.stdin = None;
        self.accepting = false;
        self.deaf_until = Some(Instant::now() + DEAF_GRACE);
    }

    /// Hands an item to whoever waits for it. They come faster than they are read by no
    /// more than the credit that reading gives.
    fn item(&mut self, id: CallId, body: Bytes, size: u32) {
        let Some(waiting) = self.waiting.get(&id) else { return };
        let outlet = waiting.waiter.outlet.as_ref();
        // Nobody wants them: they are paid for, so that the plugin can go on.
        if outlet.is_none_or(|outlet| outlet.items.send((body, size)).is_err()) {
            self.conversation.taken(id, size);
        }
    }

    fn stop_serving(&mut self, id: CallId) {
        if let Some(work) = self.serving.remove(&id) {
            work.abort();
        }
    }

    fn ended(&mut self, id: CallId, outcome: Result<Bytes, Failure>) {
        match outcome {
            // Answered to the caller, and still running in the plugin: the slot stays.
            Err(Failure::Expired { .. }) => {
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    waiting.waiter.outlet = None;
                    let (spare, _) = oneshot::channel();
                    // Fails only if the caller has left.
                    std::mem::replace(&mut waiting.reply, spare).send(outcome).ok();
                }
            }
            outcome => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    waiting.reply.send(outcome).ok();
                }
            }
        }
    }

    /// Whether nothing is open, lifecycle steps not counted. What the plugin asks of us
    /// while nobody asks anything of it is work too.
    fn is_quiet(&self) -> bool {
        self.conversation.open_calls() == 0 && self.conversation.reverse_calls() == 0
    }

    /// Notes since when nothing is open.
    fn rest(&mut self) {
        if self.is_quiet() {
            self.quiet_since = Instant::now();
        }
    }

    fn grow_pipe(&mut self) {
        if let (false, Some(stdin)) = (self.large, &self.stdin) {
            self.large = true;
            #[cfg(target_os = "linux")]
            fcntl(&**stdin, FcntlArg::F_SETPIPE_SZ(LARGE_PIPE)).ok();
        }
    }
}

impl Logs {
    /// Begins the next second if it is time. How many were dropped in the one before.
    fn turn(&mut self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.second) < SECOND {
            return 0;
        }
        (self.second, self.passed) = (now, 0);
        std::mem::take(&mut self.dropped)
    }

    /// Whether one more may pass in this second.
    fn admit(&mut self) -> bool {
        let passes = self.passed < LOGS_PER_SECOND;
        if passes {
            self.passed += 1;
        } else {
            self.dropped += 1;
        }
        passes
    }
}

/// A word that a plugin chose, as it may be shown: short, and nothing in it steers a
/// terminal.
fn word(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(WORD_MAX)];
    cut.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}

/// A call that has been sent. Dropping it before its answer cancels it.
#[derive(Debug)]
pub(crate) struct Pending {
    link: Link,
    id: CallId,
    answer: oneshot::Receiver<Result<Bytes, Failure>>,
    done: bool,
}

impl Pending {
    /// Where the call runs.
    pub(crate) fn place(&self) -> (Link, CallId) {
        (self.link.clone(), self.id)
    }

    /// An item of this size has been used.
    pub(crate) fn taken(&self, size: u32) {
        self.link.taken(self.id, size);
    }
}

impl Future for Pending {
    type Output = Result<Bytes, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.done = true;
        // The conversation answers every call, so a lost sender can only mean that
        // the link itself was dropped.
        Poll::Ready(answer.unwrap_or(Err(Failure::Lost { sent: true })))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            self.link.cancel(self.id);
        }
    }
}
