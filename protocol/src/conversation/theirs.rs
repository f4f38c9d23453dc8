//! The calls that the peer makes: they arrive, are given up, and are answered.

use bytes::Bytes;

use super::{Conversation, Role};
use crate::{
    call::{CallState, Received},
    codec::heads,
    credit::{Inflow, Outflow},
    error::{Fault, Misuse, Violation},
    event::{Event, Incoming},
    frame::{CallId, CancelReason, Code, Kind, Note, Retry},
    gate::{self, Stage, Step},
};

/// One open call of the peer's.
#[derive(Debug)]
pub(super) struct Theirs {
    pub(super) state: CallState,
    /// Which lifecycle step it is, if it is one.
    step: Option<Step>,
    /// The items of ours.
    pub(super) output: Outflow,
    /// The items of the caller's.
    pub(super) input: Inflow,
}

impl Conversation {
    /// Answers a call of the peer's. Only a plugin has any, at this level.
    ///
    /// # Errors
    /// [`Misuse::TooLarge`]: the peer could not take the result, so the call was
    /// ended with `resource_exhausted`, `pb.frame_limit` instead. Any other:
    /// nothing was sent.
    pub fn end(&mut self, id: CallId, outcome: Result<Bytes, Fault>) -> Result<(), Misuse> {
        let call = self.theirs.get(id.0).ok_or(Misuse::NoSuchCall)?;
        let step = call.step;
        if step == Some(Step::Deactivate) && outcome.is_ok() && 1 < self.theirs.len() {
            return Err(Misuse::CallsOpen);
        }
        let max = self.peer.frame;
        let pushed = match &outcome {
            Ok(body) => self.outbox.push(Kind::End, id.0, body, max, heads::empty),
            Err(fault) => self
                .outbox
                .push(Kind::End, id.0, &fault.body, max, |head| heads::fault(head, fault)),
        };
        self.close_theirs(id, outcome.is_ok() && pushed.is_ok());
        pushed.map(drop).map_err(|size| {
            let fault = Fault::new(Code::ResourceExhausted).because("pb.frame_limit");
            self.reply_end(id, &fault);
            Misuse::TooLarge { size, max }
        })
    }

    /// Sends a note, as a plugin. Lossy by nature: before the handshake and after the
    /// end, and about a call of the host's that is not open, it goes nowhere.
    pub fn note(&mut self, id: Option<CallId>, note: &Note) {
        let open = id.is_none_or(|id| self.theirs.contains(id.0));
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

    pub(super) fn called(&mut self, call: Incoming) -> Result<(), Violation> {
        // The peer's parity, never used before, increasing. [R-CA-02]
        let frame = if call.input { Received::CallIn } else { Received::Call };
        self.about(call.id, frame)?;
        if self.role == Role::Host {
            return Err(Violation::State {
                kind: "CALL",
                why: "the feature \"reverse\" is not in use",
            });
        }
        if let Err(fault) = self.admit(&call.method) {
            self.theirs.use_up(call.id.0);
            return self.owe(|this| this.reply_end(call.id, &fault));
        }
        let step = Step::of(&call.method);
        match step {
            Some(step) => self.stage = step.begins(self.stage),
            None => self.work += 1,
        }
        let entry = Theirs {
            state: CallState::begins(call.input),
            step,
            output: Outflow::new(self.peer.window),
            input: Inflow::new(self.mine.limits.window),
        };
        self.theirs.insert(call.id.0, entry);
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

    pub(super) fn cancelled(&mut self, id: CallId, next: CallState, reason: CancelReason) {
        if let Some(call) = self.theirs.get_mut(id.0) {
            call.state = next;
            self.events.push_back(Event::CancelRequested { id, reason });
        }
    }

    fn reply_end(&mut self, id: CallId, fault: &Fault) {
        self.push(Kind::End, id.0, &fault.body, |head| heads::fault(head, fault));
    }

    /// Takes a call of theirs out of the books.
    fn close_theirs(&mut self, id: CallId, ok: bool) {
        let Some(call) = self.theirs.remove(id.0) else { return };
        self.leave(call.step, ok);
    }

    /// A call in the plugin has left the books. The one place where a slot is freed.
    /// \[R-CN-04\]
    pub(super) fn leave(&mut self, step: Option<Step>, ok: bool) {
        match step {
            Some(step) => self.stage = step.ends(self.stage, ok),
            None => self.work -= 1,
        }
    }
}
