//! The calls that the peer makes: they arrive, are given up, and are answered.

use alloc::sync::Arc;

use bytes::Bytes;

use super::{Conversation, Role};
use crate::{
    call::{CallState, Received},
    codec::heads,
    credit::{Inflow, Outflow},
    error::{Fault, Misuse, Violation},
    event::{Details, Event, Incoming},
    frame::{CallId, CancelReason, Code, Kind, Note},
    gate::{self, Stage, Step},
    reverse,
    time::Tick,
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
    /// When its total budget is spent.
    pub(super) deadline: Option<Tick>,
    pub(super) details: Option<Arc<Details>>,
    /// On a host: the call of ours that it serves.
    pub(super) parent: Option<CallId>,
    /// On a plugin: how many open calls of ours serve it.
    pub(super) children: u32,
}

impl Conversation {
    /// Answers a call of the peer's.
    ///
    /// # Errors
    /// [`Misuse::TooLarge`]: the peer could not take the result, so the call was
    /// ended with `resource_exhausted`, `pb.frame_limit` instead. Any other:
    /// nothing was sent. [`Misuse::CallsOpen`]: a plugin ends its own calls for this one
    /// first, with [`Self::cancel`] if need be, and waits until they are closed.
    /// \[R-RV-04\]
    pub fn end(&mut self, id: CallId, outcome: Result<Bytes, Fault>) -> Result<(), Misuse> {
        let call = self.theirs.get(id.0).ok_or(Misuse::NoSuchCall)?;
        let last = call.step == Some(Step::Deactivate) && outcome.is_ok();
        if 0 < call.children || last && (1 < self.theirs.len() || !self.ours.is_empty()) {
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
        if !open
            || self.role == Role::Host
            || self.stage == Stage::Greeting
            || self.stage == Stage::Closed
        {
            return;
        }
        let empty = Bytes::new();
        let body = match note {
            Note::Progress { body, .. } | Note::Log { body, .. } => body,
            Note::Retire { .. } => &empty,
        };
        self.push(Kind::Note, id.map_or(0, |id| id.0), body, |head| heads::note(head, note));
    }

    pub(super) fn called(&mut self, mut call: Incoming, now: Tick) -> Result<(), Violation> {
        // The peer's parity, never used before, increasing. [R-CA-02]
        let frame = if call.input { Received::CallIn } else { Received::Call };
        self.about(call.id, frame)?;
        let step = match self.role {
            Role::Host => self.admit_reverse(&mut call, now)?.map(|()| None),
            Role::Plugin => {
                // Only a plugin's calls serve others. [R-RV-12]
                call.parent = None;
                self.admit(&call.method)
            }
        };
        let step = match step {
            Ok(step) => step,
            Err(fault) => return self.refuse(call.id, &fault),
        };
        match (self.role, step) {
            (Role::Plugin, Some(step)) => self.stage = step.begins(self.stage),
            (Role::Plugin, None) => self.work += 1,
            (Role::Host, _) => {}
        }
        let entry = Theirs {
            state: CallState::begins(call.input),
            step,
            output: Outflow::new(self.peer.window),
            input: Inflow::new(self.mine.limits.window),
            deadline: call.deadline.map(|ms| now.after(ms)),
            details: call.details.clone(),
            parent: call.parent,
            children: 0,
        };
        self.theirs.insert(call.id.0, entry);
        self.events.push_back(Event::Called(call));
        Ok(())
    }

    /// Answers a CALL at once. It was never open.
    #[cold]
    fn refuse(&mut self, id: CallId, fault: &Fault) -> Result<(), Violation> {
        self.theirs.use_up(id.0);
        self.owe(|this| this.reply_end(id, fault))
    }

    /// Gate, then limit, in this order. Which step of the lifecycle the call is, if it is
    /// one. \[R-GT-01\] \[R-CA-07\]
    fn admit(&self, call: &str) -> Result<Option<Step>, Fault> {
        gate::admit(self.stage, call)?;
        match Step::of(call) {
            None if usize::from(self.mine.limits.calls) <= self.work => Err(reverse::too_many()),
            // It is no business of the author's.
            Some(Step::Unknown) => {
                Err(Fault::new(Code::Unimplemented).because("pb.unknown_method"))
            }
            step => Ok(step),
        }
    }

    pub(super) fn cancelled(
        &mut self,
        id: CallId,
        next: CallState,
        reason: CancelReason,
        now: Tick,
    ) {
        let Some(call) = self.theirs.get_mut(id.0) else { return };
        call.state = next;
        let children = call.children;
        self.events.push_back(Event::CancelRequested { id, reason });
        if 0 < children {
            self.cancel_children(id, now);
        }
    }

    pub(super) fn reply_end(&mut self, id: CallId, fault: &Fault) {
        self.push(Kind::End, id.0, &fault.body, |head| heads::fault(head, fault));
    }

    /// Takes a call of theirs out of the books, which frees its slot. \[R-CN-04\]
    pub(super) fn close_theirs(&mut self, id: CallId, ok: bool) {
        let Some(call) = self.theirs.remove(id.0) else { return };
        match self.role {
            Role::Plugin => self.leave(call.step, ok),
            Role::Host => {
                let Some(id) = call.parent else { return };
                if let Some(parent) = self.ours.get_mut(id.0) {
                    parent.children -= 1;
                }
                // The plugin can go on with what this was for. [R-TO-17]
                self.rewind(id);
            }
        }
    }

    /// A call of the host's has left the books.
    pub(super) fn leave(&mut self, step: Option<Step>, ok: bool) {
        match step {
            Some(step) => self.stage = step.ends(self.stage, ok),
            None => self.work -= 1,
        }
    }
}
