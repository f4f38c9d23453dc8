//! A host in memory, for the unit tests of a plugin.
//!
//! It speaks the same protocol as a real one, through the same state machine, without a
//! process or a pipe. With `#[tokio::test(start_paused = true)]` time is virtual, so that
//! deadlines and progress are tested in no time and without luck.
//!
//! ```
//! use plugbay_sdk::{Context, Error, Plugin, Tool, testing::Host};
//! use serde_json::json;
//!
//! async fn double(_: Context, args: std::collections::HashMap<String, i64>) -> Result<i64, Error> {
//!     Ok(2 * args.get("n").ok_or_else(|| Error::invalid("there is no n"))?)
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! // In a #[tokio::test]:
//! let host = Host::start(Plugin::new("acme.math", "1.0.0").tool(Tool::new("double", double))).await;
//! assert_eq!(host.call("double", json!({"n": 21})).await?.text(), "42");
//! assert!(host.call("double", json!({})).await.is_err());
//! # Ok::<(), plugbay_sdk::testing::Failed>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
pub use plugbay_protocol::contract::Provide;
use plugbay_protocol::{
    Announce, CallId, CancelReason, Close, Code, Conversation, Decoder, Event, Failure, Fault,
    Features, Identity, Kind, Misuse, Note, Outgoing, Over, Raw, Retry, Tick, body_fields,
    contract::{Block, Manifest, read_message},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, Sleep},
};

use crate::{Level, Plugin, activation::optional, body, engine::Engine, error::show, wire::Wire};

/// A host with one plugin. Dropping it ends the conversation, and with it whatever the
/// plugin is still doing.
pub struct Host {
    desk: Arc<Desk>,
    pump: tokio::task::JoinHandle<()>,
}

impl Host {
    /// Shakes hands with the plugin. It is not active yet.
    ///
    /// # Panics
    /// If the plugin cannot be offered as it is, or outside a tokio runtime.
    pub fn new<S: Send + Sync + 'static>(plugin: Plugin<S>) -> Self {
        Self::open(plugin, true)
    }

    pub(crate) fn open<S: Send + Sync + 'static>(plugin: Plugin<S>, at_once: bool) -> Self {
        let engine = match plugin.engine(at_once) {
            Ok(engine) => engine,
            Err(problems) => panic!("{}", problems.join("\n")),
        };
        let wire = Arc::clone(&engine.wire);
        let started = Instant::now();
        let announce = Announce {
            identity: Identity::new("testing", env!("CARGO_PKG_VERSION")),
            features: Features::ASYNC,
            ..Announce::default()
        };
        let state = State {
            conversation: Conversation::host(announce, Tick(0)),
            tap: Decoder::new(),
            frames: Vec::new(),
            waiting: BTreeMap::new(),
            manifest: Manifest::default(),
            logs: Vec::new(),
            over: None,
            sleeping: None,
        };
        let desk = Arc::new(Desk { started, wire, state: Mutex::new(state) });
        let mut pump = Pump {
            desk: Arc::clone(&desk),
            engine,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        };
        // Everything that needs no waiting happens now, so that the tools are known.
        while pump.carry() {}
        Self { desk, pump: tokio::spawn(pump) }
    }

    /// Shakes hands with the plugin and activates it without any configuration.
    ///
    /// # Panics
    /// As [`Self::new`], and if the plugin refuses.
    pub async fn start<S: Send + Sync + 'static>(plugin: Plugin<S>) -> Self {
        let host = Self::new(plugin);
        match host.activate(serde_json::json!({})).await {
            Ok(()) => host,
            Err(failed) => panic!("the plugin does not start: {failed}"),
        }
    }

    /// Activates the plugin with this configuration.
    ///
    /// # Errors
    /// What [`Plugin::on_activate`] says, or that the plugin is active already.
    pub async fn activate(&self, config: impl Serialize) -> Result<(), Failed> {
        self.activate_with(config, &[]).await
    }

    /// Activates the plugin with this configuration and these secrets.
    ///
    /// # Errors
    /// As [`Self::activate`].
    pub async fn activate_with(
        &self,
        config: impl Serialize,
        secrets: &[(&str, &str)],
    ) -> Result<(), Failed> {
        #[derive(Serialize)]
        struct Activate<'a, T> {
            grant: [&'a str; 0],
            config: T,
            secrets: BTreeMap<&'a str, &'a str>,
        }
        let secrets = secrets.iter().copied().collect();
        self.lifecycle("plugin.activate", &Activate { grant: [], config, secrets }).await
    }

    /// Lets the open calls finish and deactivates the plugin.
    ///
    /// # Errors
    /// The plugin is not active.
    pub async fn deactivate(&self) -> Result<(), Failed> {
        self.lifecycle("plugin.deactivate", &BTreeMap::<&str, bool>::new()).await
    }

    /// Deactivates the plugin if it has nothing to do.
    ///
    /// # Errors
    /// It has: `pb.busy`, and it stays active.
    pub async fn deactivate_if_idle(&self) -> Result<(), Failed> {
        self.lifecycle("plugin.deactivate", &BTreeMap::from([("if_idle", true)])).await
    }

    /// What the plugin offers.
    pub fn tools(&self) -> Vec<Provide> {
        self.desk.lock().manifest.provides.clone()
    }

    /// Calls a tool: await it, or set budgets first, or [`Call::start`] it to watch and
    /// cancel. Arguments may be anything that serialises to a map.
    ///
    /// # Panics
    /// If the arguments cannot be serialised.
    pub fn call(&self, tool: &str, args: impl Serialize) -> Call<'_> {
        #[derive(Serialize)]
        struct ToolCall<'a, T> {
            name: &'a str,
            args: T,
        }
        let body = encoded(&ToolCall { name: tool, args });
        Call { host: self, method: "tool.call", deadline: None, idle: None, body }
    }

    /// What the plugin has logged since the last look.
    pub fn logs(&self) -> Vec<Log> {
        std::mem::take(&mut self.desk.lock().logs)
    }

    /// Says goodbye, as a host does when it goes down. Open calls are lost.
    pub fn close(&self) {
        let mut state = self.desk.lock();
        state.conversation.close(Close::Ok, None);
        state.events();
        state.wake();
    }

    async fn lifecycle(&self, method: &'static str, body: &impl Serialize) -> Result<(), Failed> {
        let body = encoded(body);
        Call { host: self, method, deadline: None, idle: None, body }.start().end().await.map(drop)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.pump.abort();
        self.desk.wire.give_all_up();
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("stage", &self.desk.lock().conversation.stage()).finish()
    }
}

/// A call that has not been made yet.
#[must_use = "a call is made when it is awaited or started"]
#[derive(Debug)]
pub struct Call<'a> {
    host: &'a Host,
    method: &'static str,
    deadline: Option<Duration>,
    idle: Option<Duration>,
    body: Bytes,
}

impl Call<'_> {
    /// Its total budget.
    pub fn deadline(mut self, budget: Duration) -> Self {
        self.deadline = Some(budget);
        self
    }

    /// The longest silence.
    pub fn idle(mut self, budget: Duration) -> Self {
        self.idle = Some(budget);
        self
    }

    /// Makes it.
    pub fn start(self) -> Running {
        let desk = Arc::clone(&self.host.desk);
        let (end, outcome) = oneshot::channel();
        let (tell, progress) = mpsc::unbounded_channel();
        let ms = |budget: Duration| u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        let call = Outgoing {
            method: self.method,
            deadline: self.deadline.map(ms),
            idle: self.idle.map(ms),
            body: self.body,
            ..Outgoing::default()
        };
        let now = desk.now();
        let mut state = desk.lock();
        let id = match state.conversation.call(&call, now) {
            Ok(id) => {
                state.waiting.insert(id, Waiting { end, tell });
                state.wake();
                Some(id)
            }
            Err(misuse) => {
                // Nobody else has the other end yet.
                let _received = end.send(Err(Failed::misuse(misuse)));
                None
            }
        };
        drop(state);
        Running { desk, id, outcome, progress }
    }
}

impl IntoFuture for Call<'_> {
    type Output = Result<Output, Failed>;
    type IntoFuture = Running;

    fn into_future(self) -> Running {
        self.start()
    }
}

/// A call under way. Await it for its outcome; dropping it cancels.
#[derive(Debug)]
pub struct Running {
    desk: Arc<Desk>,
    id: Option<CallId>,
    outcome: oneshot::Receiver<Result<Bytes, Failed>>,
    progress: mpsc::UnboundedReceiver<Progress>,
}

impl Running {
    /// Gives the call up. Its outcome is what the plugin makes of that.
    pub fn cancel(&self) {
        if let Some(id) = self.id {
            let now = self.desk.now();
            let mut state = self.desk.lock();
            state.conversation.cancel(id, CancelReason::User, now);
            state.wake();
        }
    }

    /// The next progress; `None` once the call has ended.
    pub async fn progress(&mut self) -> Option<Progress> {
        self.progress.recv().await
    }

    async fn end(mut self) -> Result<Bytes, Failed> {
        std::future::poll_fn(|cx| self.poll_end(cx)).await
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Failed>> {
        Pin::new(&mut self.outcome)
            .poll(cx)
            .map(|outcome| outcome.unwrap_or_else(|_| panic!("{}", self.desk.lock().epitaph())))
    }
}

impl Future for Running {
    type Output = Result<Output, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_end(cx).map(|outcome| Ok(Output::read(outcome?)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What the model sees.
    pub content: Vec<Block>,
    /// Whether the tool did its work and the work failed.
    pub is_error: bool,
    data: Option<Bytes>,
}

impl Output {
    fn read(body: Bytes) -> Self {
        #[derive(Deserialize)]
        struct Plain {
            #[serde(default)]
            content: Vec<Block>,
            #[serde(default)]
            is_error: bool,
        }
        let parts = body::decode::<Plain>(&body).and_then(|plain| {
            let [data] = body_fields(&body, ["data"]).map_err(|e| e.to_string())?;
            Ok((plain, data.map(|data| body.slice_ref(data))))
        });
        match parts {
            Ok((Plain { content, is_error }, data)) => Self { content, is_error, data },
            Err(why) => panic!("the tool's answer is none: {why}"),
        }
    }

    /// All text in it.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The answer as data, if it has any.
    ///
    /// # Panics
    /// If it is of another type.
    pub fn data<T: DeserializeOwned>(&self) -> Option<T> {
        self.data.as_ref().map(|data| match body::decode(data) {
            Ok(value) => value,
            Err(why) => panic!("the tool's data: {why}"),
        })
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// One of the closed set.
    pub code: Code,
    /// The exact condition.
    pub reason: Option<String>,
    /// Whether it may be sent again.
    pub retry: Retry,
    /// Words for the caller.
    pub message: Option<String>,
}

impl Failed {
    fn fault(fault: Fault) -> Self {
        let message = fault.text();
        let Fault { code, reason, retry, .. } = fault;
        Self { code, reason: reason.map(Into::into), retry, message }
    }

    fn misuse(misuse: Misuse) -> Self {
        let (code, reason, retry) = match misuse {
            Misuse::NotActive => (Code::FailedPrecondition, "pb.inactive", Retry::Safe),
            Misuse::Full { .. } => (Code::ResourceExhausted, "pb.too_many_calls", Retry::Safe),
            _ => (Code::InvalidArgument, "pb.frame_limit", Retry::No),
        };
        let message = Some(misuse.to_string());
        Self { code, reason: Some(reason.into()), retry, message }
    }

    /// As it stands on the wire, for calls whose outcome the host no longer wanted.
    fn read(head: &[u8], body: &[u8]) -> Option<Self> {
        let [err] = body_fields(head, ["err"]).ok()?;
        let [code, reason, retry] = body_fields(err?, ["code", "reason", "retry"]).ok()?;
        let word = |value: Option<&[u8]>| optional::<Option<String>>(value).ok().flatten();
        Some(Self {
            code: Code::parse(&word(code)?),
            reason: word(reason),
            retry: word(retry).map_or(Retry::No, |word| Retry::parse(&word)),
            message: read_message(body),
        })
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.code, self.reason.as_deref(), self.message.as_deref())
    }
}

impl std::error::Error for Failed {}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Done so far.
    pub n: Option<u64>,
    /// Of how many.
    pub total: Option<u64>,
    /// A word about it.
    pub message: Option<String>,
}

/// A line of the plugin's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How much it matters.
    pub level: Level,
    /// The constant that names it.
    pub event: String,
    /// Words.
    pub message: Option<String>,
}

/// What the handles and the pump share.
#[derive(Debug)]
struct Desk {
    started: Instant,
    wire: Arc<Wire>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    conversation: Conversation,
    /// Reads the plugin's frames once more, for what a conversation does not tell.
    tap: Decoder,
    /// The ENDs so far.
    frames: Vec<Raw>,
    waiting: BTreeMap<CallId, Waiting>,
    manifest: Manifest,
    logs: Vec<Log>,
    over: Option<Over>,
    sleeping: Option<Waker>,
}

#[derive(Debug)]
struct Waiting {
    end: oneshot::Sender<Result<Bytes, Failed>>,
    tell: mpsc::UnboundedSender<Progress>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Tick {
        let ms = self.started.elapsed().as_millis();
        Tick(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.sleeping.take() {
            waker.wake();
        }
    }

    /// Works off what the conversation has to say.
    fn events(&mut self) {
        while let Some(event) = self.conversation.poll() {
            match event {
                Event::Hello(welcome) => match body::decode(&welcome.manifest) {
                    Ok(manifest) => self.manifest = manifest,
                    Err(why) => panic!("the plugin's manifest: {why}"),
                },
                Event::Ended { id, outcome } => self.ended(id, outcome),
                Event::Released { id } => self.released(id),
                Event::Note { id: Some(id), note: Note::Progress { n, total, body, .. } } => {
                    if let Some(waiting) = self.waiting.get(&id) {
                        let message = read_message(&body);
                        // Whoever does not watch has no ear for it.
                        let _heard = waiting.tell.send(Progress { n, total, message });
                    }
                }
                Event::Note { note: Note::Log { level, event, body }, .. } => {
                    self.logs.push(Log { level, event, message: read_message(&body) });
                }
                Event::Over(over) => {
                    self.over = Some(over);
                    self.waiting.clear();
                }
                _ => {}
            }
        }
    }

    fn ended(&mut self, id: CallId, outcome: Result<Bytes, Failure>) {
        let Some(waiting) = self.waiting.remove(&id) else { return };
        let plain = |code, message: String| Failed {
            code,
            reason: None,
            retry: Retry::Maybe,
            message: Some(message),
        };
        let outcome = outcome.map_err(|failure| match failure {
            Failure::Fault(fault) => Failed::fault(fault),
            Failure::Expired { budget, ms, .. } => {
                plain(Code::DeadlineExceeded, format!("{budget:?} of {ms} ms"))
            }
            Failure::Lost { .. } => plain(Code::Unavailable, "the conversation is over".into()),
        });
        // A test that no longer waits has dropped its end.
        let _heard = waiting.end.send(outcome);
    }

    /// A call that was given up: its END says what the plugin made of that.
    fn released(&mut self, id: CallId) {
        let Some(waiting) = self.waiting.remove(&id) else { return };
        let end = self.frames.iter().rev().find(|frame| frame.id == id.0);
        let outcome = match end {
            Some(Raw { head, body, .. }) => match Failed::read(head, body) {
                Some(failed) => Err(failed),
                None => Ok(body.clone()),
            },
            None => Err(Failed::fault(Fault::new(Code::Cancelled))),
        };
        let _heard = waiting.end.send(outcome);
    }

    fn epitaph(&self) -> String {
        match &self.over {
            Some(Over::Broken(violation)) => format!("the plugin broke the protocol: {violation}"),
            over => format!("the conversation is over: {over:?}"),
        }
    }
}

/// Carries bytes between the two conversations, and the time to them.
struct Pump<S> {
    desk: Arc<Desk>,
    engine: Engine<S>,
    timer: Pin<Box<Sleep>>,
}

impl<S: Send + Sync + 'static> Pump<S> {
    /// One round. True if anything moved.
    fn carry(&mut self) -> bool {
        let now = self.desk.now();
        let to_plugin = {
            let mut state = self.desk.lock();
            state.conversation.tick(now);
            state.events();
            state.conversation.outbox().take()
        };
        let to_host = {
            let mut inner = self.desk.wire.lock();
            inner.send_late(Instant::now());
            if !to_plugin.is_empty() {
                inner.conversation.buffer().extend_from_slice(&to_plugin);
                inner.conversation.received(self.desk.wire.tick(Instant::now()));
            }
            inner.conversation.tick(self.desk.wire.tick(Instant::now()));
            drop(inner);
            // The author's code runs here, with no lock held.
            self.engine.turn(Instant::now());
            let mut inner = self.desk.wire.lock();
            inner.stirred = false;
            let to_host = inner.conversation.outbox().take();
            self.desk.wire.relieve(&mut inner);
            to_host
        };
        if !to_host.is_empty() {
            let mut state = self.desk.lock();
            state.tap.buffer().extend_from_slice(&to_host);
            while let Ok(Some(frame)) = state.tap.frame() {
                if frame.kind == Kind::End {
                    state.frames.push(frame);
                }
            }
            state.conversation.buffer().extend_from_slice(&to_host);
            state.conversation.received(now);
            state.events();
        }
        !to_plugin.is_empty() || !to_host.is_empty()
    }

    /// When time alone changes something.
    fn due(&self) -> Option<Instant> {
        let host = self.desk.lock().conversation.deadline();
        let host = host.map(|Tick(ms)| self.desk.started + Duration::from_millis(ms));
        host.into_iter().chain(self.desk.wire.lock().next_late()).min()
    }
}

impl<S> Drop for Pump<S> {
    /// Nothing moves without a pump, so whoever waits should not wait for ever.
    fn drop(&mut self) {
        self.desk.lock().waiting.clear();
    }
}

impl<S: Send + Sync + 'static> Future for Pump<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.desk.wire.lock().awake();
        loop {
            while this.carry() {}
            let Some(due) = this.due() else { break };
            this.timer.as_mut().reset(due);
            if this.timer.as_mut().poll(cx).is_pending() {
                break;
            }
        }
        this.desk.lock().sleeping = Some(cx.waker().clone());
        let mut inner = this.desk.wire.lock();
        inner.sleep(cx.waker());
        if !inner.conversation.outbox().is_empty() {
            // Somebody answered between the last look and going to sleep.
            cx.waker().wake_by_ref();
        }
        drop(inner);
        if !this.desk.lock().conversation.outbox().is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

fn encoded(value: &impl Serialize) -> Bytes {
    match body::encode(value, 256) {
        Ok(body) => body,
        Err(why) => panic!("expected something that serialises: {why}"),
    }
}

#[cfg(test)]
impl Host {
    /// The codes of all ENDs of the calls of tools and lifecycle so far, in order; `ok`
    /// for those that succeeded.
    pub(crate) fn ends(&self) -> Vec<(u32, String)> {
        let state = self.desk.lock();
        let end = |frame: &Raw| {
            let failed = Failed::read(&frame.head, &frame.body);
            (frame.id, failed.map_or("ok".into(), |failed| failed.code.as_str().to_owned()))
        };
        state.frames.iter().map(end).collect()
    }

    /// Calls with a body of the test's making.
    pub(crate) fn call_raw(&self, method: &'static str, body: &[u8]) -> Call<'_> {
        let body = Bytes::copy_from_slice(body);
        Call { host: self, method, deadline: None, idle: None, body }
    }
}
