//! What a story knows of both ends, apart from what they say.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use plugbay_protocol::*;

/// What every stream starts with.
pub(super) const WINDOW: u32 = 16_384;

/// The body that belongs to a call: recognisable, and the same at both ends.
pub(super) fn body(id: u32, len: usize) -> Bytes {
    (0..len).map(|at| (id as usize * 31 + at * 7) as u8).collect::<Vec<u8>>().into()
}

/// What the script consists of. Past its end everything is 0.
pub(super) struct Script<'a>(pub(super) &'a [u8]);

impl Script<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Mostly small, at times large.
    pub(super) fn size(&mut self) -> usize {
        let n = usize::from(self.byte());
        match self.byte() % 4 {
            0 => n % 8,
            1 => n,
            2 => n * 16,
            _ => n * 256,
        }
    }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Host,
    Plugin,
}

impl Who {
    pub(super) const BOTH: [Self; 2] = [Self::Host, Self::Plugin];

    pub(super) fn other(self) -> Self {
        Self::BOTH[1 - self as usize]
    }

    /// Whose call it is.
    pub(super) fn caller(id: CallId) -> Self {
        if id.0 % 2 == 1 { Self::Host } else { Self::Plugin }
    }
}

/// What the test knows about a call that an end has made.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Counts as work: no lifecycle step.
    pub(super) work: bool,
    /// The call of the other end that it serves.
    pub(super) parent: Option<CallId>,
    pub(super) deadline: Option<Tick>,
    /// Given up, by us or with its parent.
    pub(super) cancelled: bool,
    pub(super) ended: bool,
    pub(super) expired: bool,
    pub(super) released: bool,
    pub(super) stuck: bool,
    /// Told as never sent: may not be run, now or later.
    pub(super) unsent: bool,
    /// Items of ours may follow.
    pub(super) input: bool,
}

impl Known {
    /// Whether its items are told.
    pub(super) fn wants_items(&self) -> bool {
        !self.cancelled && !self.ended
    }

    pub(super) fn is_open(&self) -> bool {
        !self.released && (!self.ended || self.expired)
    }
}

/// One way in one call, as both ends of it know it.
#[derive(Default)]
pub(super) struct Stream {
    /// Sent and not told yet.
    pub(super) sent: VecDeque<Bytes>,
    /// Told and not taken yet.
    pub(super) held: VecDeque<u32>,
    /// The sender was refused for want of credit, and not told of any since.
    pub(super) starved: bool,
    /// No more is told of it.
    pub(super) over: bool,
}

impl Stream {
    pub(super) fn told(&mut self, body: &Bytes, size: u32, fair: bool) {
        assert!(!self.over, "an item after the end of its stream");
        assert!(self.held.iter().sum::<u32>() < WINDOW, "more than a window and one item");
        self.held.push_back(size);
        let sent = self.sent.pop_front();
        assert!(!fair || sent.as_ref() == Some(body), "what comes out is what went in");
    }
}

/// One direction of the wire.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) bytes: VecDeque<u8>,
    /// Something that no peer would write was put on it, or it was cut.
    pub(super) spoiled: bool,
}

impl Wire {
    pub(super) fn take_from(&mut self, from: &mut Conversation, most: usize) {
        let outbox = from.outbox();
        let mut left = most;
        while 0 < left && !outbox.is_empty() {
            let (pieces, count) = outbox.pieces::<2>();
            let mut moved = 0;
            for piece in &pieces[..count] {
                let some = piece.len().min(left);
                self.bytes.extend(&piece[..some]);
                (moved, left) = (moved + some, left - some);
            }
            outbox.advance(moved);
        }
    }

    pub(super) fn give_to(&mut self, to: &mut Conversation, most: usize, now: Tick) {
        let some: Vec<u8> = self.bytes.drain(..most.min(self.bytes.len())).collect();
        if !some.is_empty() {
            to.buffer().extend_from_slice(&some);
            to.received(now);
        }
    }
}

/// One end, and what is on its way from there.
pub(super) struct End {
    pub(super) talk: Conversation,
    pub(super) wire: Wire,
    /// Calls of the other end that are worked on here, and whether each counts as work.
    pub(super) running: BTreeMap<CallId, bool>,
    pub(super) over: bool,
}
