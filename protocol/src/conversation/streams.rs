//! What flows in a call before its end: items one way, credit the other.

use bytes::Bytes;

use super::Conversation;
use crate::{
    call::{CallState, Received, Side, Verdict},
    codec::heads,
    error::{Misuse, Violation},
    event::Event,
    frame::{CallId, Kind},
    hello::Features,
    time::Tick,
};

impl Conversation {
    /// Sends one element of a stream: of the result, for a call of the peer's; of the
    /// input, for a call of ours that was made with [`Outgoing::input`].
    ///
    /// Credit bounds how far a stream runs ahead of its receiver, and the receiver
    /// chooses how far that is. Whoever wants a bound of its own looks at the
    /// [`Outbox::len`] as well.
    ///
    /// [`Outgoing::input`]: crate::Outgoing::input
    /// [`Outbox::len`]: crate::Outbox::len
    ///
    /// # Errors
    /// [`Misuse::NoCredit`]: hold this item, and nothing but it, until
    /// [`Event::Credit`]. Any other: it can never be sent. Nothing was sent.
    pub fn item(&mut self, id: CallId, body: &Bytes) -> Result<(), Misuse> {
        let flow = match self.side(id) {
            Side::Caller => {
                let call = self.ours.get_mut(id.0).ok_or(Misuse::NoSuchCall)?;
                match call.state {
                    CallState::OpenIn => &mut call.input,
                    _ => return Err(Misuse::NoInput),
                }
            }
            Side::Callee => {
                let call = self.theirs.get_mut(id.0).ok_or(Misuse::NoSuchCall)?;
                if !self.features.contains(Features::STREAM) {
                    return Err(Misuse::NotAgreed("stream"));
                }
                &mut call.output
            }
        };
        if !flow.is_open() {
            return Err(Misuse::NoCredit);
        }
        let max = self.peer.frame;
        let size = self
            .outbox
            .push(Kind::Item, id.0, body, max, heads::empty)
            .map_err(|size| Misuse::TooLarge { size, max })?;
        flow.spend(size);
        self.followed(id);
        Ok(())
    }

    /// Says that the input of a call of ours is over. One that has none, that has ended
    /// or that was given up is left alone. \[R-ST-17\]
    pub fn end_input(&mut self, id: CallId) {
        if let Some(call) = self.ours.get_mut(id.0)
            && call.state == CallState::OpenIn
        {
            call.state = CallState::Open;
            self.push(Kind::End, id.0, &Bytes::new(), heads::empty);
            self.followed(id);
        }
    }

    /// A CALL of ours can be taken back alone only while nothing stands behind it.
    fn followed(&mut self, id: CallId) {
        if let Some(call) = self.ours.get_mut(id.0) {
            call.followed = true;
        }
    }

    /// Items of a stream that came with this size have been used, so as much more may
    /// come: CREDIT is sent once it is worth a frame. A call that is over, or was given
    /// up, is left alone. \[R-ST-11\] \[R-ST-12\]
    ///
    /// Do not call this for items that nobody takes: their sender then stops.
    /// \[R-ST-20\]
    pub fn taken(&mut self, id: CallId, size: u32) {
        let window = self.mine.limits.window;
        let gives = match self.side(id) {
            Side::Caller => self.ours.get_mut(id.0).and_then(|call| call.output.take(size, window)),
            Side::Callee => {
                let call = self.theirs.get_mut(id.0).filter(|call| call.state.has_input());
                call.and_then(|call| call.input.take(size, window))
            }
        };
        self.give(id, gives);
    }

    /// Sends credit. A callee that had none has the word again, so the silence of the
    /// call is counted anew. \[R-TO-17\]
    pub(super) fn give(&mut self, id: CallId, credit: Option<u64>) {
        let Some(n) = credit else { return };
        self.push(Kind::Credit, id.0, &Bytes::new(), |head| heads::credit(head, n));
        self.rewind(id);
    }

    pub(super) fn item_came(
        &mut self,
        id: CallId,
        body: Bytes,
        size: u32,
        now: Tick,
    ) -> Result<(), Violation> {
        let verdict = self.about(id, Received::Item)?;
        let window = self.mine.limits.window;
        let flow = match self.side(id) {
            Side::Caller => self.ours.get_mut(id.0).map(|call| &mut call.output),
            Side::Callee => self.theirs.get_mut(id.0).map(|call| &mut call.input),
        };
        let Some(flow) = flow else { return Ok(()) };
        flow.receive(size)?;
        match verdict {
            Verdict::Accept(_) => {
                self.spoke(id, now);
                self.events.push_back(Event::Item { id, body, size });
            }
            // Counted and paid for, so that a callee that has more to say before its END
            // is not left waiting. [R-ST-14]
            _ => {
                let gives = flow.take(size, window);
                self.give(id, gives);
            }
        }
        Ok(())
    }

    pub(super) fn credit_came(&mut self, id: CallId, n: u64, now: Tick) -> Result<(), Violation> {
        let verdict = self.about(id, Received::Credit)?;
        self.spoke(id, now);
        let Verdict::Accept(next) = verdict else { return Ok(()) };
        let side = self.side(id);
        let flow = match side {
            Side::Caller => self.ours.get_mut(id.0).map(|call| &mut call.input),
            Side::Callee => self.theirs.get_mut(id.0).map(|call| &mut call.output),
        };
        let goes_on = flow.map_or(Ok(false), |flow| flow.raise(n))?;
        // Whoever has given a call up sends nothing more into it.
        if goes_on && !(side == Side::Caller && next.is_given_up()) {
            self.events.push_back(Event::Credit { id });
        }
        Ok(())
    }

    pub(super) fn input_ended(&mut self, id: CallId, next: CallState) {
        if let Some(call) = self.theirs.get_mut(id.0) {
            call.state = next;
            self.events.push_back(Event::InputEnded { id });
        }
    }
}
