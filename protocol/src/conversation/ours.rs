//! The calls that we make: they leave, are given up, run out of time, and end.

use alloc::{sync::Arc, vec::Vec};

use bytes::Bytes;

use super::{Conversation, Role, earliest};
use crate::{
    call::CallState,
    codec::heads,
    credit::{Inflow, Outflow},
    error::{Fault, Misuse, Violation},
    event::{Budget, Details, Event, Failure, Outgoing},
    frame::{CallId, CancelReason, Kind},
    gate::{self, Step},
    hello::Features,
    time::Tick,
};

/// One open call of ours.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) state: CallState,
    /// Which lifecycle step it is, if it is one.
    pub(super) step: Option<Step>,
    /// What `outbox.queued()` was right before the CALL was queued.
    pub(super) queued_from: u64,
    /// And right after.
    pub(super) queued_until: u64,
    /// Whether frames about it were queued behind the CALL.
    pub(super) followed: bool,
    /// When the total budget is spent, and how large it was.
    deadline: Option<(Tick, u64)>,
    /// The silence budget, and since when it has been silent; `None`: from the next
    /// tick on.
    idle: Option<(u64, Option<Tick>)>,
    /// When it counts as stuck, once given up.
    stuck_at: Option<Tick>,
    /// The items of the callee's.
    pub(super) output: Inflow,
    /// The items of ours.
    pub(super) input: Outflow,
    /// On a plugin: the call of theirs that it serves.
    pub(super) parent: Option<CallId>,
    /// On a host: how many open calls of theirs serve it.
    pub(super) children: u32,
    /// On a host they may say what it leaves of the grant.
    pub(super) details: Option<Arc<Details>>,
}

impl Ours {
    /// The next moment at which time alone changes this call.
    fn wake(&self) -> Option<Tick> {
        if self.state.is_given_up() {
            return self.stuck_at;
        }
        let silent = self.idle.filter(|_| !self.waits_for_us());
        let silent = silent.map(|(ms, since)| since.map_or(Tick(0), |since| since.after(ms)));
        earliest(self.deadline.map(|(at, _)| at), silent)
    }

    /// Whether the callee can say nothing because of us, so that its silence does not
    /// count. \[R-TO-17\]
    fn waits_for_us(&self) -> bool {
        0 < self.children || !self.output.is_open()
    }

    /// What is left of its total budget, in milliseconds.
    pub(super) fn left(&self, now: Tick) -> Option<u64> {
        self.deadline.map(|(at, _)| at.since(now))
    }

    /// Whether any of it has left, or will whatever happens.
    pub(super) fn leaves(&self, written: u64) -> bool {
        self.queued_from < written || self.followed
    }
}

impl Conversation {
    /// Starts a call. A plugin's is a reverse call; its total budget is cut to what is
    /// left of its parent's, and it belongs to its parent's trace if it names none.
    /// \[R-RV-05\] \[R-RV-13\]
    ///
    /// # Errors
    /// [`Misuse`]; nothing was sent.
    pub fn call(&mut self, call: &Outgoing<'_>, now: Tick) -> Result<CallId, Misuse> {
        let adjusted;
        let (call, step) = match self.role {
            Role::Host => (call, self.may_call_plugin(call)?),
            Role::Plugin => {
                adjusted = self.may_call_host(call, now)?;
                (&adjusted, None)
            }
        };
        if call.input && !self.features.contains(Features::STREAM_IN) {
            return Err(Misuse::NotAgreed("stream.in"));
        }
        // Odd ids for a host and even ones for a plugin, up to where an i32 ends: some
        // languages have nothing larger. [R-CA-03]
        let id = match (self.ours.last(), self.role) {
            (0, Role::Host) => 1,
            (0, Role::Plugin) => 2,
            (last, _) => last.checked_add(2).filter(|&id| id < 1 << 31).ok_or(Misuse::IdsUsedUp)?,
        };
        let queued_from = self.outbox.queued();
        self.outbox
            .push(Kind::Call, id, &call.body, self.peer.frame, |head| heads::call(head, call))
            .map_err(|size| Misuse::TooLarge { size, max: self.peer.frame })?;
        match (self.role, step) {
            (Role::Host, Some(step)) => self.stage = step.begins(self.stage),
            (Role::Host, None) => self.work += 1,
            (Role::Plugin, _) => {
                if let Some(parent) = call.parent.and_then(|id| self.theirs.get_mut(id.0)) {
                    parent.children += 1;
                }
            }
        }
        let entry = Ours {
            state: CallState::begins(call.input),
            step,
            queued_from,
            queued_until: self.outbox.queued(),
            followed: false,
            deadline: call.deadline.map(|ms| (now.after(ms), ms)),
            idle: call.idle.map(|ms| (ms, Some(now))),
            stuck_at: None,
            output: Inflow::new(self.mine.limits.window),
            input: Outflow::new(self.peer.window),
            parent: call.parent,
            children: 0,
            details: call.details.clone(),
        };
        self.wake_calls = earliest(self.wake_calls, entry.wake());
        self.ours.insert(id, entry);
        Ok(CallId(id))
    }

    /// Gate, then limit. Which step of the lifecycle the call is, if it is one.
    fn may_call_plugin(&self, call: &Outgoing<'_>) -> Result<Option<Step>, Misuse> {
        if call.parent.is_some() {
            return Err(Misuse::WrongEnd);
        }
        gate::admit(self.stage, call.method).map_err(|_| Misuse::NotActive)?;
        let step = Step::of(call.method);
        let max = self.peer.calls;
        if step.is_none() && usize::from(max) <= self.work {
            return Err(Misuse::Full { max });
        }
        Ok(step)
    }

    /// Gives a call of ours up. Its slot stays taken until the peer's END, which is then
    /// told as [`Event::Released`]. A CALL of which nothing has left is taken back
    /// and released at once. A call that is over, or already given up, is left
    /// alone. \[R-CN-01\]
    ///
    /// Its items are told no more, and those that were need not be [`taken`](Self::taken).
    pub fn cancel(&mut self, id: CallId, reason: CancelReason, now: Tick) {
        let Some(call) = self.ours.get_mut(id.0) else { return };
        if call.state.is_given_up() {
            return;
        }
        if !call.leaves(self.outbox.written()) {
            return self.take_back(id);
        }
        call.state = call.state.give_up();
        if self.role == Role::Host {
            // A plugin has nobody to replace its host with.
            call.stuck_at = Some(now.after(self.mine.patience.cancel_grace_ms));
        }
        let gives = call.output.take_all(self.mine.limits.window);
        let children = call.children;
        self.wake_calls = earliest(self.wake_calls, call.stuck_at);
        self.push(Kind::Cancel, id.0, &Bytes::new(), |head| heads::cancel(head, reason));
        self.give(id, gives);
        if 0 < children {
            self.withdraw_children(id);
        }
    }

    pub(super) fn ended(
        &mut self,
        id: CallId,
        outcome: Result<Bytes, Fault>,
    ) -> Result<(), Violation> {
        let Some(call) = self.ours.get(id.0) else { return Ok(()) };
        let bad_state = |why| Err(Violation::State { kind: "END", why });
        if 0 < call.children {
            return bad_state("calls of the plugin's for this one are open");
        }
        let last = call.step == Some(Step::Deactivate) && outcome.is_ok();
        if last && (1 < self.ours.len() || !self.theirs.is_empty()) {
            return bad_state("plugin.deactivate ended before its calls had");
        }
        let given_up = call.state.is_given_up();
        self.close_ours(id, outcome.is_ok());
        self.events.push_back(match given_up {
            true => Event::Released { id },
            false => Event::Ended { id, outcome: outcome.map_err(Failure::Fault) },
        });
        Ok(())
    }

    /// Takes a call of ours out of the books, which frees its slot. \[R-CN-04\]
    fn close_ours(&mut self, id: CallId, ok: bool) {
        let Some(call) = self.ours.remove(id.0) else { return };
        match self.role {
            Role::Host => self.leave(call.step, ok),
            Role::Plugin => {
                if let Some(parent) = call.parent.and_then(|id| self.theirs.get_mut(id.0)) {
                    parent.children -= 1;
                }
            }
        }
    }

    /// Takes a CALL of ours back of which nothing has left: it never was.
    fn take_back(&mut self, id: CallId) {
        let Some(call) = self.ours.get(id.0) else { return };
        let (from, until) = (call.queued_from, call.queued_until);
        self.outbox.withdraw(from, until);
        // What was queued behind it has moved up.
        let size = until - from;
        for (_, later) in self.ours.iter_mut().filter(|(later, _)| id.0 < *later) {
            later.queued_from -= size;
            later.queued_until -= size;
        }
        self.owed.iter_mut().filter(|end| until < **end).for_each(|end| *end -= size);
        self.close_ours(id, false);
        self.events.push_back(Event::Released { id });
    }

    /// The callee has said something about a call of ours. \[R-TO-02\]
    pub(super) fn spoke(&mut self, id: CallId, now: Tick) {
        if let Some((_, since)) = self.ours.get_mut(id.0).and_then(|call| call.idle.as_mut()) {
            *since = Some(now);
        }
    }

    /// The callee can go on: its silence is counted from the next tick, which is due
    /// at once. \[R-TO-17\]
    pub(super) fn rewind(&mut self, id: CallId) {
        let Some(call) = self.ours.get_mut(id.0) else { return };
        if let Some((_, since)) = &mut call.idle {
            *since = None;
            self.wake_calls = earliest(self.wake_calls, call.wake());
        }
    }

    pub(super) fn expire_calls(&mut self, now: Tick) {
        let mut spent = Vec::new();
        let mut next = None;
        let written = self.outbox.written();
        for (id, call) in self.ours.iter_mut() {
            if call.state.is_given_up() {
                if call.stuck_at.is_some_and(|at| at <= now) {
                    call.stuck_at = None;
                    self.events.push_back(Event::Stuck { id: CallId(id) });
                }
                next = earliest(next, call.wake());
                continue;
            }
            let silent = !call.waits_for_us();
            if let Some((_, since @ None)) = &mut call.idle
                && silent
            {
                *since = Some(now);
            }
            let deadline = call.deadline.filter(|&(at, _)| at <= now);
            let idle = call.idle.filter(|_| silent);
            let idle = idle.filter(|&(ms, since)| since.is_some_and(|it| it.after(ms) <= now));
            match (deadline, idle) {
                (Some((_, ms)), _) => spent.push((id, Budget::Deadline, ms, call.leaves(written))),
                (None, Some((ms, _))) => spent.push((id, Budget::Idle, ms, call.leaves(written))),
                (None, None) => next = earliest(next, call.wake()),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{frame::method, gate::Stage, hello::Announce};

    /// Reaching the last id would take a billion calls, so this test starts there.
    #[test]
    fn the_last_id_is_the_largest_odd_one_below_2_to_the_31() {
        let now = Tick(0);
        let mut host = Conversation::host(Announce::default(), now);
        (host.stage, host.peer.calls) = (Stage::Active, 2);
        host.ours.use_up((1 << 31) - 3);
        let call = Outgoing { method: method::TOOL_CALL, ..Outgoing::default() };
        assert_eq!(host.call(&call, now), Ok(CallId((1 << 31) - 1)));
        assert_eq!(host.call(&call, now), Err(Misuse::IdsUsedUp));
        assert_eq!(host.open_calls(), 1);
    }
}
