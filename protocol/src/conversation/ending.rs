//! The end of a conversation, and of everything that is open in it.

use alloc::vec::Vec;

use bytes::Bytes;

use super::{Conversation, Role, ours::Ours};
use crate::{
    codec::heads,
    error::{Close, Violation},
    event::{Event, Failure, Over},
    frame::{CallId, Kind},
    gate::Stage,
    open::OpenCalls,
};

impl Conversation {
    /// Says CLOSE. Nothing is sent after it; open calls are lost. \[R-LC-11\]
    pub fn close(&mut self, code: Close, message: Option<&str>) {
        if self.stage == Stage::Closed {
            return;
        }
        let body = message.map(crate::contract::message).unwrap_or_default();
        self.say_close(code, None, &body);
    }

    /// The peer broke the rules: say so once, and stop.
    pub(super) fn break_off(&mut self, violation: Violation) {
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
        let unsent = self.ours.iter().map(|(_, call)| call.queued_from).find(|at| written <= *at);
        match (self.role, unsent) {
            (_, None) => {}
            (Role::Host, Some(from)) => self.outbox.withdraw(from, self.outbox.queued()),
            (Role::Plugin, Some(_)) => self.withdraw_unsent(),
        }
        self.push(Kind::Close, 0, body, |head| heads::close(head, code, id));
        self.stage = Stage::Closed;
        match self.role {
            Role::Host => self.lose_calls(|call| call.queued_from < written),
            Role::Plugin => self.lose_calls(|call| call.leaves(written)),
        }
    }

    /// The same for a plugin, whose answers still leave: the CALLs alone are taken back,
    /// the last first, so that those before it stay where they are.
    fn withdraw_unsent(&mut self) {
        let written = self.outbox.written();
        let unsent = self.ours.iter().filter(|(_, call)| !call.leaves(written));
        let spans = unsent.map(|(_, call)| (call.queued_from, call.queued_until));
        for (from, until) in spans.collect::<Vec<_>>().into_iter().rev() {
            self.outbox.withdraw(from, until);
        }
    }

    pub(super) fn finish(&mut self, over: Over) {
        if self.over {
            return;
        }
        self.over = true;
        self.stage = Stage::Closed;
        let written = self.outbox.written();
        match self.role {
            // A plugin's answers still leave: its host may only have closed one of two
            // pipes.
            Role::Plugin => {
                self.withdraw_unsent();
                self.lose_calls(|call| call.leaves(written));
            }
            Role::Host => {
                if !matches!(over, Over::Broken(_)) {
                    // The plugin wants no more.
                    self.outbox.withdraw(written, self.outbox.queued());
                }
                self.lose_calls(|call| call.queued_until <= written);
            }
        }
        self.events.push_back(Event::Over(over));
    }

    /// Every call that is still open ends here, so that each ends exactly once.
    fn lose_calls(&mut self, sent: impl Fn(&Ours) -> bool) {
        self.theirs = OpenCalls::default();
        for (id, call) in core::mem::take(&mut self.ours) {
            let id = CallId(id);
            self.events.push_back(match call.state.is_given_up() {
                true => Event::Released { id },
                false => Event::Ended { id, outcome: Err(Failure::Lost { sent: sent(&call) }) },
            });
        }
        self.work = 0;
        self.wake_calls = None;
    }
}
