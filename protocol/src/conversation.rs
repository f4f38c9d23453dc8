//! One conversation, from HELLO to the end, for either end of it.
//!
//! Bytes and the time go in; events, bytes and a deadline come out. Host and
//! plugin run the same machine and differ in who speaks first and in the parity
//! of their ids, so they cannot disagree about the rules.
//!
//! ```text
//!   pipe ──▶ buffer() · received(now) ──▶ poll() ──▶ your code
//!   pipe ◀── outbox()                 ◀── call() · cancel() · end() · note() · close()
//!   clock ─▶ tick(now)                ──▶ deadline()
//! ```

use alloc::{borrow::Cow, collections::VecDeque, format, string::String, vec::Vec};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    call::{CallState, Received, Side, Verdict},
    codec::{Decoder, HELLO_MAX, Outbox, heads},
    error::{Close, Fault, Misuse, Violation},
    frame::{CallId, CancelReason, Code, Frame, HelloHead, Kind, Note, Retry, method},
    gate::{self, Stage},
    hello::{Features, Identity, Limits, choose_version},
    open::OpenCalls,
    time::Tick,
};

/// What one end announces in its HELLO, and how patient it is.
#[derive(Clone, Debug, Default)]
pub struct Announce {
    /// Who we are.
    pub identity: Identity,
    /// What we accept. Anything below [`Limits::FLOOR`] is raised to it.
    pub limits: Limits,
    /// What we offer (host) or would use (plugin), out of [`Features::IMPLEMENTED`].
    pub features: Features,
    /// A plugin's manifest, as MessagePack; a host leaves it empty.
    pub manifest: Bytes,
    /// A host's patience; a plugin has no timers of its own.
    pub patience: Patience,
}

/// How long a host waits for what, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Start to HELLO.
    pub hello_ms: u64,
    /// Silence before a PING.
    pub ping_after_ms: u64,
    /// PING to any byte.
    pub ping_dead_ms: u64,
    /// CANCEL to END.
    pub cancel_grace_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            hello_ms: 10_000,
            ping_after_ms: 10_000,
            ping_dead_ms: 20_000,
            cancel_grace_ms: 5_000,
        }
    }
}

/// Something the driver has to know. In order, each told once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Hands are shaken.
    Hello(Welcome),
    /// To a plugin: a call to answer with [`Conversation::end`]. Gate and limit
    /// have been passed.
    Called(Incoming),
    /// To a plugin: the caller has given this call up. It still needs its end.
    CancelRequested {
        /// Which.
        id: CallId,
        /// Why.
        reason: CancelReason,
    },
    /// To a host: a call has its outcome. Told exactly once for each call that was
    /// not given up with [`Conversation::cancel`].
    Ended {
        /// Which.
        id: CallId,
        /// Its result, or why it has none.
        outcome: Result<Bytes, Failure>,
    },
    /// To a host: a call that was given up, or whose budget was spent, is truly
    /// over; its slot is free. Told exactly once for each of those.
    Released {
        /// Which.
        id: CallId,
    },
    /// To a host: a call that was given up has no END within the grace. \[R-CN-07\]
    Stuck {
        /// Which.
        id: CallId,
    },
    /// To a host: something nice to know.
    Note {
        /// About which call; `None` about the plugin.
        id: Option<CallId>,
        /// What.
        note: Note,
    },
    /// The conversation is over. Told exactly once, last.
    Over(Over),
}

/// How a conversation ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Over {
    /// The peer said CLOSE.
    Closed {
        /// Why.
        code: Close,
        /// The versions it speaks, with `version_unsupported`.
        supported: Vec<u64>,
        /// Its own words, confidential.
        message: Option<String>,
    },
    /// The stream ended between two frames.
    Eof,
    /// The peer broke the rules; our CLOSE is in the outbox.
    Broken(Violation),
}

/// What the peer announced.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// Who it is.
    pub peer: Identity,
    /// What it accepts.
    pub limits: Limits,
    /// What both sides use.
    pub features: Features,
    /// A plugin's manifest, as MessagePack.
    pub manifest: Bytes,
}

/// A call that arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// Which; give it back to [`Conversation::end`].
    pub id: CallId,
    /// What is called.
    pub method: Cow<'static, str>,
    /// Its total budget in milliseconds, from now.
    pub deadline: Option<u64>,
    /// The longest silence in milliseconds.
    pub idle: Option<u64>,
    /// The arguments, undecoded.
    pub body: Bytes,
}

/// A call to make.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// What is called.
    pub method: &'a str,
    /// Its total budget in milliseconds.
    pub deadline: Option<u64>,
    /// The longest silence in milliseconds.
    pub idle: Option<u64>,
    /// The arguments as MessagePack, or empty.
    pub body: Bytes,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The plugin said so.
    Fault(Fault),
    /// A budget was spent. Our clock decides. \[R-TO-03\]
    Expired {
        /// Which one.
        budget: Budget,
        /// How large it was, in milliseconds.
        ms: u64,
        /// Whether the CALL has left, or will. If not, it has not run and never will:
        /// what still waited was taken back. \[R-ER-11\]
        sent: bool,
    },
    /// The conversation ended first.
    Lost {
        /// Whether the CALL has left, or will. If not, it has not run and never will.
        sent: bool,
    },
}

/// The two budgets of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The whole of it.
    Deadline,
    /// Silence.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Host,
    Plugin,
}

/// One open call, from either end.
#[derive(Debug)]
struct Call {
    state: CallState,
    /// Which lifecycle step it is, if it is one.
    step: Option<Step>,
    /// Caller: what `outbox.queued()` was right before the CALL was queued.
    queued_from: u64,
    /// Caller: and right after.
    queued_until: u64,
    /// Caller: when the total budget is spent, and how large it was.
    deadline: Option<(Tick, u64)>,
    /// Caller: the silence budget, and since when it has been silent.
    idle: Option<(u64, Tick)>,
    /// Caller: when it counts as stuck, once given up.
    stuck_at: Option<Tick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Activate,
    Deactivate,
    /// A method of the lifecycle that this version does not have.
    Unknown,
}

impl Step {
    fn of(call: &str) -> Option<Self> {
        match call {
            method::ACTIVATE => Some(Self::Activate),
            method::DEACTIVATE => Some(Self::Deactivate),
            _ if gate::is_lifecycle(call) => Some(Self::Unknown),
            _ => None,
        }
    }

    /// Where the plugin is while it works on it. \[R-LC-03\]
    fn begins(self, from: Stage) -> Stage {
        match self {
            Self::Activate => Stage::Activating,
            Self::Deactivate => Stage::Draining,
            Self::Unknown => from,
        }
    }

    /// Where it leads, by its outcome. \[R-LC-03\]
    fn ends(self, from: Stage, ok: bool) -> Stage {
        match (self, ok) {
            (Self::Activate, true) | (Self::Deactivate, false) => Stage::Active,
            (Self::Activate, false) | (Self::Deactivate, true) => Stage::Ready,
            (Self::Unknown, _) => from,
        }
    }
}

impl Call {
    /// The next moment at which time alone changes this call.
    fn wake(&self) -> Option<Tick> {
        match self.state {
            CallState::Open => {
                let deadline = self.deadline.map(|(at, _)| at);
                earliest(deadline, self.idle.map(|(ms, since)| since.after(ms)))
            }
            _ => self.stuck_at,
        }
    }
}

/// The state machine of one connection.
#[derive(Debug)]
pub struct Conversation {
    role: Role,
    stage: Stage,
    mine: Announce,
    /// The peer's largest frame; the floor until it has spoken.
    peer: Limits,
    features: Features,
    decoder: Decoder,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// Calls that are not closed: ours on a host, the host's on a plugin.
    calls: OpenCalls<Call>,
    /// Those of `calls` that are not lifecycle steps.
    work: usize,
    /// The last id we used, or the peer used.
    last_id: u32,
    /// Where the protocol's own replies end that the peer has not taken yet, as
    /// `outbox.queued()` gave it.
    owed: VecDeque<u64>,
    /// No later than the next [`Call::wake`]; recomputed when it is reached.
    wake_calls: Option<Tick>,
    started: Tick,
    heard: Tick,
    pinged: Option<Tick>,
    pings: u64,
    over: bool,
}

/// Replies owed beyond four for each call the peer accepts, before it counts as
/// abuse. \[R-TO-08\]
const OWED_SLACK: usize = 1024;

impl Conversation {
    /// The host's end. Its HELLO is in the outbox at once. \[R-HS-01\]
    pub fn host(mine: Announce, now: Tick) -> Self {
        let mut this = Self::new(Role::Host, mine, now);
        let (who, features, limits) =
            (this.mine.identity.clone(), this.mine.features, this.mine.limits);
        this.greet(&Bytes::new(), |head| heads::host_hello(head, &who, features, limits));
        this
    }

    /// The plugin's end, silent until the host has spoken.
    pub fn plugin(mine: Announce, now: Tick) -> Self {
        Self::new(Role::Plugin, mine, now)
    }

    fn new(role: Role, mut mine: Announce, now: Tick) -> Self {
        mine.limits = mine.limits.at_least_floor();
        mine.features = mine.features.intersection(Features::IMPLEMENTED);
        Self {
            role,
            stage: Stage::Greeting,
            mine,
            peer: Limits::FLOOR,
            features: Features::NONE,
            decoder: Decoder::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            calls: OpenCalls::default(),
            work: 0,
            last_id: 0,
            owed: VecDeque::new(),
            wake_calls: None,
            started: now,
            heard: now,
            pinged: None,
            pings: 0,
            over: false,
        }
    }

    /// Where the plugin is in its life, as far as the frames so far tell.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What both sides use.
    pub fn features(&self) -> Features {
        self.features
    }

    /// What the peer accepts.
    pub fn peer_limits(&self) -> Limits {
        self.peer
    }

    /// Calls open now, lifecycle steps not counted. Given-up calls count until
    /// their END.
    pub fn open_calls(&self) -> usize {
        self.work
    }

    /// Whether any call is open, lifecycle steps included.
    pub fn has_open(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether the whole CALL has left us. Until it has, the peer cannot have run it.
    pub fn is_sent(&self, id: CallId) -> bool {
        self.calls.get(id.0).is_some_and(|call| call.queued_until <= self.outbox.written())
    }

    // ── In ─────────────────────────────────────────────────────────────────────

    /// Where to read to. There is always room.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.decoder.buffer()
    }

    /// Takes the buffer out, so that it can be read into while nobody holds the
    /// conversation. What it contains belongs to no whole frame yet.
    pub fn take_buffer(&mut self) -> BytesMut {
        core::mem::take(self.decoder.buffer())
    }

    /// Puts it back, with what was read appended. [`Self::received`] comes next.
    pub fn put_buffer(&mut self, buffer: BytesMut) {
        self.decoder.put_buffer(buffer);
    }

    /// Takes in what was read into [`Self::buffer`].
    pub fn received(&mut self, now: Tick) {
        self.heard = now;
        self.pinged = None;
        loop {
            if self.over || self.stage == Stage::Closed {
                // After CLOSE nothing counts but the end of the stream. \[R-LC-12\]
                self.decoder.buffer().clear();
                return;
            }
            let step = match self.decoder.read() {
                Ok(None) => return,
                Ok(Some(frame)) => self.frame(frame, now),
                Err(violation) => Err(violation),
            };
            if let Err(violation) = step {
                self.break_off(violation);
            }
        }
    }

    /// The stream has ended.
    pub fn eof(&mut self) {
        if self.stage == Stage::Closed {
            return self.finish(Over::Eof);
        }
        match self.decoder.end() {
            Ok(()) => self.finish(Over::Eof),
            Err(violation) => self.break_off(violation),
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Tick) {
        if self.over || self.role == Role::Plugin {
            return;
        }
        if self.stage == Stage::Greeting {
            let waited_ms = now.since(self.started);
            if self.mine.patience.hello_ms <= waited_ms {
                let part = match self.decoder.end() {
                    Err(Violation::Truncated { got, due }) => Some((got, due)),
                    _ => None,
                };
                self.break_off(Violation::NoHello { waited_ms, part });
            }
            return;
        }
        if self.wake_calls.is_some_and(|at| at <= now) {
            self.expire_calls(now);
        }
        if self.ping_at().is_some_and(|at| at <= now) {
            self.ping(now);
        }
    }

    /// When [`Self::tick`] is due. May be too early, never too late.
    pub fn deadline(&self) -> Option<Tick> {
        if self.over || self.role == Role::Plugin {
            return None;
        }
        match self.stage {
            Stage::Greeting => Some(self.started.after(self.mine.patience.hello_ms)),
            _ => earliest(self.wake_calls, self.ping_at()),
        }
    }

    // ── Out ────────────────────────────────────────────────────────────────────

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes for the peer.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Starts a call. Only a host can, at this level.
    ///
    /// # Errors
    /// [`Misuse`]; nothing was sent.
    pub fn call(&mut self, call: &Outgoing<'_>, now: Tick) -> Result<CallId, Misuse> {
        if self.role == Role::Plugin {
            return Err(Misuse::WrongEnd);
        }
        gate::admit(self.stage, call.method).map_err(|_| Misuse::NotActive)?;
        let step = Step::of(call.method);
        let max = self.peer.calls;
        if step.is_none() && usize::from(max) <= self.work {
            return Err(Misuse::Full { max });
        }
        // Odd ids, up to where an i32 ends: some languages have nothing larger.
        let id = match self.last_id {
            0 => 1,
            last => last.checked_add(2).filter(|&id| id < 1 << 31).ok_or(Misuse::IdsUsedUp)?,
        };
        let queued_from = self.outbox.queued();
        self.outbox
            .push(Kind::Call, id, &call.body, self.peer.frame, |head| {
                heads::call(head, call.method, call.deadline, call.idle);
            })
            .map_err(|size| Misuse::TooLarge { size, max: self.peer.frame })?;
        self.last_id = id;
        match step {
            Some(step) => self.stage = step.begins(self.stage),
            None => self.work += 1,
        }
        let entry = Call {
            state: CallState::Open,
            step,
            queued_from,
            queued_until: self.outbox.queued(),
            deadline: call.deadline.map(|ms| (now.after(ms), ms)),
            idle: call.idle.map(|ms| (ms, now)),
            stuck_at: None,
        };
        self.wake_calls = earliest(self.wake_calls, entry.wake());
        self.calls.insert(id, entry);
        Ok(CallId(id))
    }

    /// Gives a call up. Its slot stays taken until the peer's END, which is then
    /// told as [`Event::Released`]. A CALL of which nothing has left is taken back
    /// and released at once. A call that is over, or already given up, is left
    /// alone. \[R-CN-01\]
    pub fn cancel(&mut self, id: CallId, reason: CancelReason, now: Tick) {
        let Some(call) = self.calls.get_mut(id.0) else { return };
        if self.role == Role::Plugin || call.state != CallState::Open {
            return;
        }
        if self.outbox.written() <= call.queued_from {
            return self.take_back(id);
        }
        call.state = CallState::Cancelling;
        let stuck_at = now.after(self.mine.patience.cancel_grace_ms);
        call.stuck_at = Some(stuck_at);
        self.wake_calls = earliest(self.wake_calls, Some(stuck_at));
        self.push(Kind::Cancel, id.0, &Bytes::new(), |head| heads::cancel(head, reason));
    }

    /// Answers a call. Only a plugin can, at this level.
    ///
    /// # Errors
    /// [`Misuse::TooLarge`]: the peer could not take the result, so the call was
    /// ended with `resource_exhausted`, `pb.frame_limit` instead. Any other:
    /// nothing was sent.
    pub fn end(&mut self, id: CallId, outcome: Result<Bytes, Fault>) -> Result<(), Misuse> {
        if self.role == Role::Host {
            return Err(Misuse::WrongEnd);
        }
        let call = self.calls.get(id.0).ok_or(Misuse::NoSuchCall)?;
        let step = call.step;
        if step == Some(Step::Deactivate) && outcome.is_ok() && 1 < self.calls.len() {
            return Err(Misuse::CallsOpen);
        }
        let max = self.peer.frame;
        let pushed = match &outcome {
            Ok(body) => self.outbox.push(Kind::End, id.0, body, max, heads::empty),
            Err(fault) => self
                .outbox
                .push(Kind::End, id.0, &fault.body, max, |head| heads::fault(head, fault)),
        };
        self.close_call(id, outcome.is_ok() && pushed.is_ok());
        pushed.map(drop).map_err(|size| {
            let fault = Fault::new(Code::ResourceExhausted).because("pb.frame_limit");
            self.reply_end(id, &fault);
            Misuse::TooLarge { size, max }
        })
    }

    /// Sends a note. Lossy by nature: before the handshake and after the end, and
    /// about a call that is not open, it goes nowhere.
    pub fn note(&mut self, id: Option<CallId>, note: &Note) {
        let open = id.is_none_or(|id| self.calls.contains(id.0));
        if !open || self.stage == Stage::Greeting || self.stage == Stage::Closed {
            return;
        }
        let empty = Bytes::new();
        let body = match note {
            Note::Progress { body, .. } | Note::Log { body, .. } => body,
            Note::Retire { .. } => &empty,
        };
        self.push(Kind::Note, id.map_or(0, |id| id.0), body, |head| heads::note(head, note));
    }

    /// Says CLOSE. Nothing is sent after it; open calls are lost. \[R-LC-11\]
    pub fn close(&mut self, code: Close, message: Option<&str>) {
        if self.stage == Stage::Closed {
            return;
        }
        let body = message.map(crate::contract::message).unwrap_or_default();
        self.say_close(code, None, &body);
    }

    // ── Within ─────────────────────────────────────────────────────────────────

    /// Queues a frame that always fits, or a note, which may be lost.
    fn push(
        &mut self,
        kind: Kind,
        id: u32,
        body: &Bytes,
        head: impl FnOnce(&mut crate::msgpack::Writer<'_>),
    ) {
        // Replies, CANCEL, PING and CLOSE are far below the floor of `limits.frame`.
        let _size = self.outbox.push(kind, id, body, self.peer.frame, head);
    }

    /// Queues HELLO, whose size no limit of the peer's governs. \[R-FR-10\]
    ///
    /// One that is too large is our own caller's mistake. The peer is told, since
    /// a HELLO that never comes would tell it nothing.
    fn greet(&mut self, body: &Bytes, head: impl FnOnce(&mut crate::msgpack::Writer<'_>)) -> bool {
        let greeted = self.outbox.push(Kind::Hello, 0, body, HELLO_MAX, head);
        if let Err(size) = greeted {
            let text = format!("its HELLO would have {size} bytes, where {HELLO_MAX} are allowed");
            self.close(Close::Internal, Some(&text));
        }
        greeted.is_ok()
    }

    fn frame(&mut self, frame: Frame, now: Tick) -> Result<(), Violation> {
        if self.stage == Stage::Greeting && !matches!(frame, Frame::Hello(..) | Frame::Close { .. })
        {
            let why = "HELLO comes first";
            return Err(Violation::State { kind: frame.kind().as_str(), why });
        }
        match frame {
            Frame::Hello(head, body) => self.hello(*head, body),
            Frame::Close { code, supported, body } => {
                let message = crate::contract::read_message(&body);
                self.finish(Over::Closed { code, supported, message });
                Ok(())
            }
            Frame::Ping(body) => self.owe(|this| this.push(Kind::Pong, 0, &body, heads::empty)),
            Frame::Pong => Ok(()),
            Frame::Call { id, method, deadline, idle, body } => {
                self.called(Incoming { id, method, deadline, idle, body })
            }
            Frame::Item { id } => self.about(id, Received::Item).map(drop),
            Frame::Credit { id } => self.about(id, Received::Credit).map(drop),
            Frame::End { id, outcome } => {
                if self.about(id, Received::End)?.is_some() {
                    self.ended(id, outcome)?;
                }
                Ok(())
            }
            Frame::Cancel { id, reason } => {
                if let Some(next) = self.about(id, Received::Cancel)? {
                    if let Some(call) = self.calls.get_mut(id.0) {
                        call.state = next;
                    }
                    self.events.push_back(Event::CancelRequested { id, reason });
                }
                Ok(())
            }
            Frame::Note { id: CallId(0), note } => {
                // About the plugin; a host has nothing to say in notes.
                if let (Role::Host, Some(note)) = (self.role, note) {
                    self.events.push_back(Event::Note { id: None, note });
                }
                Ok(())
            }
            Frame::Note { id, note } => {
                if self.about(id, Received::Note)?.is_some() {
                    if let Some((_, since)) = self.calls.get_mut(id.0).and_then(|c| c.idle.as_mut())
                    {
                        *since = now;
                    }
                    if let Some(note) = note {
                        self.events.push_back(Event::Note { id: Some(id), note });
                    }
                }
                Ok(())
            }
        }
    }

    /// Consults the call table. `Some` if the frame counts; the state it leads to.
    fn about(&self, id: CallId, frame: Received) -> Result<Option<CallState>, Violation> {
        let kind = match frame {
            Received::Call => Kind::Call,
            Received::Item => Kind::Item,
            Received::End => Kind::End,
            Received::Cancel => Kind::Cancel,
            Received::Credit => Kind::Credit,
            Received::Note => Kind::Note,
        };
        let kind = kind.as_str();
        if id.0 == 0 {
            return Err(Violation::Id { kind, id: 0, why: "id 0 is the connection" });
        }
        let ours = (id.0 % 2 == 1) == (self.role == Role::Host);
        let side = if ours { Side::Caller } else { Side::Callee };
        // At this level only hosts call, so one counter and one map serve both ends.
        let used = id.0 % 2 == 1 && id.0 <= self.last_id;
        let state = match self.calls.get(id.0) {
            Some(call) => call.state,
            None if used => CallState::Closed,
            None => CallState::Unused,
        };
        match state.receive(side, frame) {
            Verdict::Accept(next) => Ok(Some(next)),
            Verdict::Ignore => Ok(None),
            Verdict::BadId => {
                let why = match (side, state) {
                    (Side::Caller, _) if frame == Received::Call => "that parity is ours",
                    (_, CallState::Unused) => "that id was never opened",
                    _ => "ids only ever increase",
                };
                Err(Violation::Id { kind, id: id.0, why })
            }
            Verdict::BadState => {
                let why = match frame {
                    Received::Item | Received::Credit => "the feature \"stream\" is not in use",
                    Received::Cancel => "only the caller may cancel",
                    _ => "the call does not expect it",
                };
                Err(Violation::State { kind, why })
            }
        }
    }

    fn hello(&mut self, head: HelloHead, body: Bytes) -> Result<(), Violation> {
        if self.stage != Stage::Greeting {
            return Err(Violation::State { kind: "HELLO", why: "hands are shaken already" });
        }
        let version = match self.role {
            Role::Plugin => choose_version(&head.versions)?,
            // A host offers and a plugin chooses. An offer in our own name is no plugin of
            // another version, which is what the rule below would make of it.
            Role::Host if head.version.is_none() && self.is_own(&head) => {
                return Err(Violation::Echo);
            }
            Role::Host => choose_version(&Vec::from_iter(head.version))?,
        };
        head.limits.check()?;
        self.peer = head.limits;
        self.features = self.mine.features.intersection(head.features);
        self.decoder.set_frame_max(self.mine.limits.frame);
        self.stage = Stage::Ready;
        if self.role == Role::Plugin {
            let (who, limits, features) =
                (self.mine.identity.clone(), self.mine.limits, self.features);
            let manifest = self.mine.manifest.clone();
            let greeted = self.greet(&manifest, |head| {
                heads::plugin_hello(head, version, &who, features, limits);
            });
            if !greeted {
                return Ok(());
            }
        }
        self.events.push_back(Event::Hello(Welcome {
            peer: head.peer,
            limits: head.limits,
            features: self.features,
            manifest: body,
        }));
        Ok(())
    }

    /// Whether a HELLO is the one that we have sent, as a host.
    fn is_own(&self, head: &HelloHead) -> bool {
        !head.versions.is_empty() && head.peer == self.mine.identity
    }

    fn called(&mut self, call: Incoming) -> Result<(), Violation> {
        // The peer's parity, never used before, increasing. [R-CA-02]
        self.about(call.id, Received::Call)?;
        if self.role == Role::Host {
            return Err(Violation::State {
                kind: "CALL",
                why: "the feature \"reverse\" is not in use",
            });
        }
        self.last_id = call.id.0;
        if let Err(fault) = self.admit(&call.method) {
            return self.owe(|this| this.reply_end(call.id, &fault));
        }
        let step = Step::of(&call.method);
        match step {
            Some(step) => self.stage = step.begins(self.stage),
            None => self.work += 1,
        }
        let entry = Call {
            state: CallState::Open,
            step,
            queued_from: 0,
            queued_until: 0,
            deadline: None,
            idle: None,
            stuck_at: None,
        };
        self.calls.insert(call.id.0, entry);
        self.events.push_back(Event::Called(call));
        Ok(())
    }

    /// Gate, then limit, in this order. \[R-GT-01\] \[R-CA-07\]
    fn admit(&self, call: &str) -> Result<(), Fault> {
        gate::admit(self.stage, call)?;
        if Step::of(call).is_none() && usize::from(self.mine.limits.calls) <= self.work {
            let busy = Fault::new(Code::ResourceExhausted).because("pb.too_many_calls");
            return Err(busy.retry(Retry::Safe));
        }
        // An unknown lifecycle method is answered here: it is no business of the author's.
        if Step::of(call) == Some(Step::Unknown) {
            return Err(Fault::new(Code::Unimplemented).because("pb.unknown_method"));
        }
        Ok(())
    }

    fn ended(&mut self, id: CallId, outcome: Result<Bytes, Fault>) -> Result<(), Violation> {
        let Some(call) = self.calls.get(id.0) else { return Ok(()) };
        if call.step == Some(Step::Deactivate) && outcome.is_ok() && 1 < self.calls.len() {
            let why = "plugin.deactivate ended before its calls had";
            return Err(Violation::State { kind: "END", why });
        }
        let given_up = call.state == CallState::Cancelling;
        self.close_call(id, outcome.is_ok());
        self.events.push_back(match given_up {
            true => Event::Released { id },
            false => Event::Ended { id, outcome: outcome.map_err(Failure::Fault) },
        });
        Ok(())
    }

    /// Takes a call out of the books. The one place where a slot is freed. \[R-CN-04\]
    fn close_call(&mut self, id: CallId, ok: bool) {
        let Some(call) = self.calls.remove(id.0) else { return };
        match call.step {
            Some(step) => self.stage = step.ends(self.stage, ok),
            None => self.work -= 1,
        }
    }

    fn reply_end(&mut self, id: CallId, fault: &Fault) {
        self.push(Kind::End, id.0, &fault.body, |head| heads::fault(head, fault));
    }

    /// Queues a reply that the protocol itself makes us send, unless the peer has
    /// left too many of them untaken. \[R-TO-08\]
    fn owe(&mut self, reply: impl FnOnce(&mut Self)) -> Result<(), Violation> {
        let taken = self.outbox.written();
        while self.owed.front().is_some_and(|end| *end <= taken) {
            self.owed.pop_front();
        }
        if OWED_SLACK + 4 * usize::from(self.mine.limits.calls) <= self.owed.len() {
            return Err(Violation::Calm);
        }
        reply(self);
        self.owed.push_back(self.outbox.queued());
        Ok(())
    }

    /// Takes a CALL of ours back of which nothing has left: it never was.
    fn take_back(&mut self, id: CallId) {
        let Some(call) = self.calls.get(id.0) else { return };
        let (from, until) = (call.queued_from, call.queued_until);
        self.outbox.withdraw(from, until);
        // What was queued behind it has moved up.
        let size = until - from;
        for (_, later) in self.calls.iter_mut().filter(|(later, _)| id.0 < *later) {
            later.queued_from -= size;
            later.queued_until -= size;
        }
        self.owed.iter_mut().filter(|end| until < **end).for_each(|end| *end -= size);
        self.close_call(id, false);
        self.events.push_back(Event::Released { id });
    }

    fn expire_calls(&mut self, now: Tick) {
        let mut spent = Vec::new();
        let mut next = None;
        let written = self.outbox.written();
        for (id, call) in self.calls.iter_mut() {
            match call.state {
                CallState::Open => {
                    let sent = call.queued_from < written;
                    let deadline = call.deadline.filter(|&(at, _)| at <= now);
                    let idle = call.idle.filter(|&(ms, since)| since.after(ms) <= now);
                    match (deadline, idle) {
                        (Some((_, ms)), _) => spent.push((id, Budget::Deadline, ms, sent)),
                        (None, Some((ms, _))) => spent.push((id, Budget::Idle, ms, sent)),
                        (None, None) => next = earliest(next, call.wake()),
                    }
                }
                _ if call.stuck_at.is_some_and(|at| at <= now) => {
                    call.stuck_at = None;
                    self.events.push_back(Event::Stuck { id: CallId(id) });
                }
                _ => next = earliest(next, call.wake()),
            }
        }
        self.wake_calls = next;
        for (id, budget, ms, sent) in spent {
            let reason = match budget {
                Budget::Deadline => CancelReason::Deadline,
                Budget::Idle => CancelReason::Idle,
            };
            let failure = Failure::Expired { budget, ms, sent };
            self.events.push_back(Event::Ended { id: CallId(id), outcome: Err(failure) });
            self.cancel(CallId(id), reason, now);
        }
    }

    /// When a PING is due, or when the one that was sent has waited long enough.
    ///
    /// A peer without `async` reads nothing while it works, so it is not asked
    /// while a call is open. \[R-TO-06\]
    fn ping_at(&self) -> Option<Tick> {
        let deaf = !self.features.contains(Features::ASYNC) && self.has_open();
        if deaf || self.stage == Stage::Closed {
            return None;
        }
        Some(match self.pinged {
            None => self.heard.after(self.mine.patience.ping_after_ms),
            Some(at) => at.after(self.mine.patience.ping_dead_ms),
        })
    }

    fn ping(&mut self, now: Tick) {
        match self.pinged {
            Some(_) => self.break_off(Violation::Silent { silent_ms: now.since(self.heard) }),
            None => {
                self.pinged = Some(now);
                self.pings += 1;
                let mut body = BytesMut::with_capacity(8);
                body.put_u64(self.pings);
                self.push(Kind::Ping, 0, &body.freeze(), heads::empty);
            }
        }
    }

    /// The peer broke the rules: say so once, and stop.
    fn break_off(&mut self, violation: Violation) {
        if self.over {
            return;
        }
        if self.stage != Stage::Closed {
            let id = match violation {
                Violation::Id { id, .. } | Violation::FrameId { id, .. } if id != 0 => {
                    Some(CallId(id))
                }
                _ => None,
            };
            self.say_close(violation.close(), id, &Bytes::new());
        }
        self.finish(Over::Broken(violation));
    }

    /// Queues CLOSE as the last frame; open calls are lost.
    ///
    /// A CALL of which nothing has left must not run any more, now that its caller
    /// hears that it did not. What waits behind it is about calls that are over.
    fn say_close(&mut self, code: Close, id: Option<CallId>, body: &Bytes) {
        let written = self.outbox.written();
        let unsent = self.calls.values().map(|call| call.queued_from).find(|at| written <= *at);
        if let (Role::Host, Some(from)) = (self.role, unsent) {
            self.outbox.withdraw(from, self.outbox.queued());
        }
        self.push(Kind::Close, 0, body, |head| heads::close(head, code, id));
        self.stage = Stage::Closed;
        self.lose_calls(|call| call.queued_from < written);
    }

    fn finish(&mut self, over: Over) {
        if self.over {
            return;
        }
        self.over = true;
        self.stage = Stage::Closed;
        let written = self.outbox.written();
        if self.role == Role::Host && !matches!(over, Over::Broken(_)) {
            // The plugin wants no more. A plugin's answers still leave: its host may
            // only have closed one of two pipes.
            self.outbox.withdraw(written, self.outbox.queued());
        }
        self.lose_calls(|call| call.queued_until <= written);
        self.events.push_back(Event::Over(over));
    }

    /// Every call that is still open ends here, so that each ends exactly once.
    fn lose_calls(&mut self, sent: impl Fn(&Call) -> bool) {
        for (id, call) in core::mem::take(&mut self.calls) {
            let id = CallId(id);
            if self.role == Role::Plugin {
                continue;
            }
            self.events.push_back(match call.state {
                CallState::Cancelling => Event::Released { id },
                _ => Event::Ended { id, outcome: Err(Failure::Lost { sent: sent(&call) }) },
            });
        }
        self.work = 0;
        self.wake_calls = None;
    }
}

fn earliest(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reaching the last id would take a billion calls, so this test starts there.
    #[test]
    fn the_last_id_is_the_largest_odd_one_below_2_to_the_31() {
        let now = Tick(0);
        let mut host = Conversation::host(Announce::default(), now);
        (host.stage, host.peer.calls) = (Stage::Active, 2);
        host.last_id = (1 << 31) - 3;
        let call = Outgoing { method: method::TOOL_CALL, ..Outgoing::default() };
        assert_eq!(host.call(&call, now), Ok(CallId((1 << 31) - 1)));
        assert_eq!(host.call(&call, now), Err(Misuse::IdsUsedUp));
        assert_eq!(host.open_calls(), 1);
    }
}
