//! What must hold in every story: while the ends tell, at any moment, and at rest.

use bytes::Bytes;
use plugbay_protocol::*;

use super::{Play, model::*};

impl Play {
    /// Takes in what both ends have to tell.
    pub(super) fn hear(&mut self) {
        for who in Who::BOTH {
            while let Some(event) = self[who].talk.poll() {
                assert!(!self[who].over, "{event:?} after the end");
                self.event(who, event);
            }
            if !self.is_alive(who) {
                self[who].running.clear();
            }
        }
    }

    fn event(&mut self, who: Who, event: Event) {
        let fair = self.is_fair(who);
        match event {
            Event::Hello(_) => {
                let calls = self.calls.keys().filter(|id| Who::caller(**id) == who);
                assert_eq!((calls.count(), self[who].running.len()), (0, 0));
            }
            Event::Called(call) => {
                assert_ne!(Who::caller(call.id), who);
                if let Some(parent) = call.parent {
                    let parent = &self.calls[&parent];
                    assert!(who == Who::Host && parent.is_open() && parent.wants_items());
                }
                let step = ["plugin.activate", "plugin.deactivate"].contains(&&*call.method);
                assert!(self[who].running.insert(call.id, !step).is_none());
                assert!(self.ever_run.insert(call.id), "{} ran twice", call.id);
                assert!(!fair || call.body == body(call.id.0, call.body.len()));
            }
            Event::CancelRequested { id, .. } => {
                assert!(self[who].running.contains_key(&id));
                // And with it what serves it.
                let serves = |call: &&mut Known| call.parent == Some(id) && call.is_open();
                if who == Who::Plugin {
                    for call in self.calls.values_mut().filter(serves) {
                        call.cancelled |= !call.expired;
                    }
                }
            }
            Event::Withdrawn { id } => {
                assert_eq!(who, Who::Host);
                assert!(self[who].running.remove(&id).is_some(), "{id}");
                // A plugin that is not fair may have made the call by itself.
                let parent = self.calls.get(&id).and_then(|call| call.parent);
                let parent = parent.map(|parent| &self.calls[&parent]);
                assert!(!fair || parent.is_some_and(|it| it.cancelled || it.expired));
            }
            Event::Item { id, body, size } => {
                self.is_mine(who, id);
                let stream = self.streams.entry((id, who.other())).or_default();
                stream.told(&body, size, fair);
            }
            Event::InputEnded { id } => {
                assert!(self[who].running.contains_key(&id));
                let stream = self.streams.entry((id, who.other())).or_default();
                assert!(!std::mem::replace(&mut stream.over, true), "{id}: over twice");
                assert!(!fair || stream.sent.is_empty(), "{id}: items lost");
            }
            Event::Credit { id } => {
                self.is_mine(who, id);
                self.streams.entry((id, who)).or_default().starved = false;
            }
            Event::Ended { id, outcome } => self.ended(who, id, outcome),
            Event::Released { id } => {
                let call = self.calls.get_mut(&id).expect("a call that was made");
                assert_eq!(Who::caller(id), who);
                assert!(call.cancelled != call.expired, "{id}: {call:?}");
                assert!(!call.released && call.ended == call.expired, "{id}: {call:?}");
                call.released = true;
            }
            Event::Stuck { id } => {
                let call = self.calls.get_mut(&id).expect("a call that was made");
                assert_eq!((Who::caller(id), who), (Who::Host, Who::Host));
                assert!(call.is_open() && (call.cancelled || call.expired), "{id}: {call:?}");
                assert!(!std::mem::replace(&mut call.stuck, true), "{id}: stuck twice");
            }
            Event::Note { id, .. } => {
                assert_eq!(who, Who::Host);
                let call = id.map(|id| &self.calls[&id]);
                assert!(call.is_none_or(|call| !call.released && call.wants_items()));
            }
            Event::Over(over) => {
                self[who].over = true;
                self.timed_out |= matches!(
                    over,
                    Over::Broken(Violation::Silent { .. } | Violation::NoHello { .. })
                );
                let kept = !matches!(over, Over::Broken(_)) || self.timed_out;
                assert!(kept || !fair, "{over:?}");
            }
        }
    }

    /// The end makes this call and still wants it, or works on it.
    fn is_mine(&self, who: Who, id: CallId) {
        if Who::caller(id) == who {
            let call = self.calls.get(&id).expect("a call that was made");
            assert!(call.wants_items(), "{id}: {call:?}");
        } else {
            assert!(self[who].running.contains_key(&id));
        }
    }

    fn ended(&mut self, who: Who, id: CallId, outcome: Result<Bytes, Failure>) {
        let fair = self.is_fair(who);
        let call = self.calls.get_mut(&id).expect("a call that was made");
        assert_eq!(Who::caller(id), who);
        assert!(!call.ended && !call.released && !call.cancelled, "{id}: {call:?}");
        call.ended = true;
        match outcome {
            Ok(bytes) if fair => {
                assert_eq!(bytes, body(id.0, bytes.len()));
                assert!(self.ever_run.contains(&id));
                let items = self.streams.get(&(id, who.other()));
                assert!(items.is_none_or(|it| it.sent.is_empty()), "{id}: items after the end");
            }
            Ok(_) | Err(Failure::Fault(_)) => {}
            Err(Failure::Expired { budget, sent, .. }) => {
                let due = call.deadline.is_some_and(|at| at <= self.now) || call.parent.is_some();
                assert!(budget == Budget::Idle || due, "{id}: {call:?}");
                (call.expired, call.unsent) = (true, !sent);
            }
            Err(Failure::Lost { sent }) => call.unsent = !sent,
        }
    }

    /// What holds at any moment.
    pub(super) fn check(&mut self) {
        self.hear();
        for who in Who::BOTH {
            let outbox = self[who].talk.outbox();
            assert_eq!(outbox.queued() - outbox.written(), outbox.len());
            let nothing = outbox.queued() == outbox.written();
            assert_eq!(outbox.is_empty(), nothing);
            let (pieces, count) = outbox.pieces::<64>();
            let waiting: usize = pieces[..count].iter().map(|piece| piece.len()).sum();
            assert!(count == 64 || waiting as u64 == outbox.len());

            let end = &self[who];
            let mine = self.calls.iter().filter(|(id, _)| Who::caller(**id) == who);
            let open = mine.clone().filter(|(_, call)| call.is_open());
            let work = open.clone().filter(|(_, call)| call.work).count();
            let running = end.running.values().filter(|work| **work).count();
            let (calls, served) = match who {
                Who::Host => (end.talk.open_calls(), end.talk.reverse_calls()),
                Who::Plugin => (end.talk.reverse_calls(), end.talk.open_calls()),
            };
            assert_eq!((calls, served), (work, running), "{who:?}");
            let busy = open.count() != 0 || !end.running.is_empty();
            assert_eq!(end.talk.has_open(), busy);
            assert!(calls <= end.talk.peer_limits().calls.into());
            if !self.is_alive(who) {
                assert!(mine.clone().all(|(_, call)| !call.is_open()), "{:?}", self.calls);
            } else if !end.over {
                let waiting = mine.filter(|(_, call)| !call.cancelled && !call.ended);
                let next = waiting.filter_map(|(_, call)| call.deadline).min();
                assert!(next.is_none_or(|at| end.talk.deadline().is_some_and(|told| told <= at)));
            }
        }
        for (id, call) in &self.calls {
            let fair = self.is_fair(Who::caller(*id).other());
            assert!(!fair || !call.unsent || !self.ever_run.contains(id), "{id} ran: {call:?}");
        }
    }

    /// What holds when nothing is under way: both ends know the same.
    pub(super) fn agree(&mut self) {
        let fair = Who::BOTH.iter().all(|who| self.is_fair(*who));
        let alive = Who::BOTH.iter().all(|who| self.is_alive(*who));
        if fair && alive {
            assert_eq!(self[Who::Host].talk.stage(), self[Who::Plugin].talk.stage());
            for who in Who::BOTH {
                let open = self
                    .calls
                    .iter()
                    .filter(|(id, call)| Who::caller(**id) == who && call.is_open());
                let running = &self[who.other()].running;
                assert!(open.map(|(id, _)| id).eq(running.keys()), "{:?} {running:?}", self.calls);
            }
        }
        if fair && !alive {
            let over = self.ends.iter().any(|end| end.over);
            assert!(self.host_closed || over || self.timed_out);
        }
    }
}
