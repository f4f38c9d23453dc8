//! One conversation, from HELLO to the end, for either end of it.
//!
//! Bytes and the time go in; events, bytes and a deadline come out. Host and
//! plugin run the same machine and differ in who speaks first and in the parity
//! of their ids, so they cannot disagree about the rules.
//!
//! ```text
//!   pipe ──▶ buffer() · received(now) ──▶ poll() ──▶ your code
//!   pipe ◀── outbox()                 ◀── call() · cancel() · item() · end_input()   our calls
//!                                         end() · item() · note()                    theirs
//!                                         taken() · close()
//!   clock ─▶ tick(now)                ──▶ deadline()
//! ```
//!
//! Here is what concerns the connection; [`ours`] and [`theirs`] are the calls of
//! either direction, [`streams`] what flows in them, [`reverse`] how a plugin's calls hang
//! on its host's, and [`ending`] the end of all.

mod ending;
mod ours;
mod reverse;
mod streams;
mod theirs;

use alloc::{collections::VecDeque, format, string::String, vec::Vec};

use bytes::{BufMut, Bytes, BytesMut};

use self::{ours::Ours, theirs::Theirs};
use crate::{
    call::{CallState, Received, Side, Verdict},
    codec::{Decoder, HELLO_MAX, Outbox, heads},
    error::{Close, Violation},
    event::{Event, Over},
    frame::{CallId, Frame, HelloHead, Kind},
    gate::Stage,
    hello::{Announce, Features, Limits, Welcome, choose_version},
    msgpack::Writer,
    open::OpenCalls,
    time::Tick,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Host,
    Plugin,
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
    /// Calls that we have made and that are not closed.
    ours: OpenCalls<Ours>,
    /// Calls that the peer has made and that are not closed.
    theirs: OpenCalls<Theirs>,
    /// Of the calls in the plugin those that are not lifecycle steps.
    work: usize,
    /// Where the protocol's own replies end that the peer has not taken yet, as
    /// `outbox.queued()` gave it.
    owed: VecDeque<u64>,
    /// What the plugin may call at its host, as scopes.
    grant: Vec<String>,
    /// No later than the next [`Ours::wake`]; recomputed when it is reached.
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
        Self {
            role,
            stage: Stage::Greeting,
            mine,
            peer: Limits::FLOOR,
            features: Features::NONE,
            decoder: Decoder::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            ours: OpenCalls::default(),
            theirs: OpenCalls::default(),
            work: 0,
            owed: VecDeque::new(),
            grant: Vec::new(),
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

    /// Calls that the plugin works on now, lifecycle steps not counted. Given-up calls
    /// count until their END.
    pub fn open_calls(&self) -> usize {
        self.work
    }

    /// Calls of the plugin's that the host works on now. Given-up calls count until their
    /// END. A plugin is idle when there are none of either.
    pub fn reverse_calls(&self) -> usize {
        match self.role {
            Role::Host => self.theirs.len(),
            Role::Plugin => self.ours.len(),
        }
    }

    /// Whether any call is open, in either direction, lifecycle steps included.
    pub fn has_open(&self) -> bool {
        !self.ours.is_empty() || !self.theirs.is_empty()
    }

    /// Whether the whole CALL of ours has left. Until it has, the peer cannot have run it.
    pub fn is_sent(&self, id: CallId) -> bool {
        self.ours.get(id.0).is_some_and(|call| call.queued_until <= self.outbox.written())
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
        if self.over {
            return;
        }
        if self.stage == Stage::Greeting && self.role == Role::Host {
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

    /// When [`Self::tick`] is due. May be too early, never too late. Whatever is done with
    /// the conversation may bring it forward, so look again after each turn.
    pub fn deadline(&self) -> Option<Tick> {
        if self.over {
            return None;
        }
        match self.stage {
            Stage::Greeting if self.role == Role::Host => {
                Some(self.started.after(self.mine.patience.hello_ms))
            }
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

    // ── Within ─────────────────────────────────────────────────────────────────

    /// Queues a frame that always fits, or a note, which may be lost.
    fn push(&mut self, kind: Kind, id: u32, body: &Bytes, head: impl FnOnce(&mut Writer<'_>)) {
        // Replies, CANCEL, PING and CLOSE are far below the floor of `limits.frame`.
        let _size = self.outbox.push(kind, id, body, self.peer.frame, head);
    }

    /// Queues HELLO, whose size no limit of the peer's governs. \[R-FR-10\]
    ///
    /// One that is too large is our own caller's mistake. The peer is told, since
    /// a HELLO that never comes would tell it nothing.
    fn greet(&mut self, body: &Bytes, head: impl FnOnce(&mut Writer<'_>)) -> bool {
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
            Frame::Call(call) => self.called(call, now),
            Frame::Item { id, body, size } => self.item_came(id, body, size, now),
            Frame::Credit { id, n } => self.credit_came(id, n, now),
            Frame::End { id, outcome } => match self.about(id, Received::End)? {
                Verdict::Accept(CallState::Closed) => self.ended(id, outcome),
                Verdict::Accept(next) => {
                    self.input_ended(id, next);
                    Ok(())
                }
                _ => Ok(()),
            },
            Frame::Cancel { id, reason } => {
                if let Verdict::Accept(next) = self.about(id, Received::Cancel)? {
                    self.cancelled(id, next, reason, now);
                }
                Ok(())
            }
            Frame::Note { id, note } => {
                // About a call, or the plugin.
                let id = (id.0 != 0).then_some(id);
                if let Some(id) = id {
                    let Verdict::Accept(_) = self.about(id, Received::Note)? else { return Ok(()) };
                    self.spoke(id, now);
                }
                // A host has nothing to say in notes. [R-NO-07]
                if let (Role::Host, Some(note)) = (self.role, note) {
                    self.events.push_back(Event::Note { id, note });
                }
                Ok(())
            }
        }
    }

    /// Which end of a call we are: whoever has the parity of its id is the caller.
    fn side(&self, id: CallId) -> Side {
        if (id.0 % 2 == 1) == (self.role == Role::Host) { Side::Caller } else { Side::Callee }
    }

    /// Consults the call table. What breaks a rule comes back as an error.
    #[inline]
    fn about(&self, id: CallId, frame: Received) -> Result<Verdict, Violation> {
        let side = self.side(id);
        let (open, last) = match side {
            Side::Caller => (self.ours.get(id.0).map(|call| call.state), self.ours.last()),
            Side::Callee => (self.theirs.get(id.0).map(|call| call.state), self.theirs.last()),
        };
        let state = match open {
            Some(state) => state,
            None if id.0 <= last => CallState::Closed,
            None => CallState::Unused,
        };
        match state.receive(side, frame, self.features) {
            fine @ (Verdict::Accept(_) | Verdict::Drop | Verdict::Ignore) if id.0 != 0 => Ok(fine),
            verdict => Err(self.broken(id, frame, (side, state), verdict)),
        }
    }

    /// Which rule a frame about a call breaks.
    #[cold]
    fn broken(
        &self,
        id: CallId,
        frame: Received,
        (side, state): (Side, CallState),
        verdict: Verdict,
    ) -> Violation {
        let kind = frame.kind().as_str();
        if id.0 != 0 && verdict == Verdict::BadState {
            let why = match frame.needs(side) {
                needs if self.features.contains(needs) => match frame {
                    Received::Cancel => "only the caller may cancel",
                    _ => "the call does not expect it",
                },
                Features::STREAM => "the feature \"stream\" is not in use",
                _ => "the feature \"stream.in\" is not in use",
            };
            return Violation::State { kind, why };
        }
        let why = match (side, state) {
            _ if id.0 == 0 => "id 0 is the connection",
            (Side::Caller, _) if frame.kind() == Kind::Call => "that parity is ours",
            (_, CallState::Unused) => "that id was never opened",
            _ => "ids only ever increase",
        };
        Violation::Id { kind, id: id.0, why }
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
            let fits = |(needs, _): &&(Features, Bytes)| self.features.contains(*needs);
            let other = self.mine.manifests.iter().find(fits).map(|(_, manifest)| manifest);
            let manifest = other.unwrap_or(&self.mine.manifest).clone();
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

    /// When a PING is due, or when the one that was sent has waited long enough.
    ///
    /// A peer without `async` reads nothing while it works, so it is not asked
    /// while a call is open. \[R-TO-06\]
    fn ping_at(&self) -> Option<Tick> {
        let deaf = !self.features.contains(Features::ASYNC) && !self.ours.is_empty();
        if self.role == Role::Plugin || deaf || self.stage == Stage::Closed {
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
}

fn earliest(a: Option<Tick>, b: Option<Tick>) -> Option<Tick> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
