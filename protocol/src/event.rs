//! What a conversation tells its driver, and what it is given to send.

use alloc::{borrow::Cow, string::String, sync::Arc, vec::Vec};

use bytes::Bytes;

use crate::{
    error::{Close, Fault, Violation},
    frame::{CallId, CancelReason, Note},
    hello::Welcome,
};

/// Something the driver has to know. In order, each told once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Hands are shaken.
    Hello(Welcome),
    /// To a callee: a call to answer with [`Conversation::end`]. Gate, limit and, on a
    /// host, authority have been passed. A method that nobody knows is the callee's to
    /// answer with `unimplemented`, `pb.unknown_method`. \[R-GT-07\]
    ///
    /// [`Conversation::end`]: crate::Conversation::end
    Called(Incoming),
    /// To a callee: the caller has given this call up. It still needs its end. What a
    /// plugin calls for it has been given up as well, as if by [`Conversation::cancel`].
    /// \[R-RV-07\]
    ///
    /// [`Conversation::cancel`]: crate::Conversation::cancel
    CancelRequested {
        /// Which.
        id: CallId,
        /// Why.
        reason: CancelReason,
    },
    /// To whoever a stream goes to: one element of it. To the caller those of the
    /// callee, before the end of the call; to the callee those of the input. Once it
    /// has been used, give its size to [`Conversation::taken`]: the sender may not send
    /// more than a window and one item beyond what has been taken. \[R-ST-13\]
    ///
    /// [`Conversation::taken`]: crate::Conversation::taken
    Item {
        /// Of which call.
        id: CallId,
        /// The element, undecoded.
        body: Bytes,
        /// What it costs of the stream's credit, in bytes: the size of its frame.
        size: u32,
    },
    /// To a callee: the input of this call is over. \[R-ST-18\]
    InputEnded {
        /// Which.
        id: CallId,
    },
    /// To whoever sends a stream: it had no credit and has some again. \[R-ST-04\]
    Credit {
        /// Of which call.
        id: CallId,
    },
    /// To a caller: a call has its outcome. Told exactly once for each call that was
    /// not given up, by whomever. One whose budget was spent keeps its slot until
    /// [`Event::Released`].
    Ended {
        /// Which.
        id: CallId,
        /// Its result, or why it has none.
        outcome: Result<Bytes, Failure>,
    },
    /// To a caller: a call that was given up, by whomever, or whose budget was spent, is
    /// truly over; its slot is free. Told exactly once for each of those.
    Released {
        /// Which.
        id: CallId,
    },
    /// To a host: a call of the plugin's served one that was given up, and so has been
    /// answered with `cancelled`. Whatever works on it should stop. \[R-RV-08\]
    Withdrawn {
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
    /// The conversation is over. Told exactly once, last. Calls of the peer's that are
    /// still being worked on need no end any more.
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

/// A call that arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// Which; give it back to [`Conversation::end`].
    ///
    /// [`Conversation::end`]: crate::Conversation::end
    pub id: CallId,
    /// What is called.
    pub method: Cow<'static, str>,
    /// Its total budget in milliseconds, from now; on a host, never above what is left of
    /// its parent's. \[R-RV-06\]
    pub deadline: Option<u64>,
    /// The longest silence in milliseconds.
    pub idle: Option<u64>,
    /// Whether items of the caller follow, until [`Event::InputEnded`]. A method that
    /// takes items treats a call without them as one with an empty input. \[R-ST-21\]
    pub input: bool,
    /// On a host: the call of the host that it serves, which is open; `None`: background
    /// work. \[R-RV-01\]
    pub parent: Option<CallId>,
    /// What few calls say about themselves; `None` if this one says none of it.
    pub details: Option<Arc<Details>>,
    /// The arguments, undecoded.
    pub body: Bytes,
}

/// The rarer fields in the head of a CALL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// What the call may do of what is granted; `None`: all of it, empty: nothing.
    /// \[R-SC-08\]
    pub scopes: Option<Vec<String>>,
    /// A random name of this piece of work, the same when it is sent again.
    pub key: Option<String>,
    /// How often it was sent before.
    pub attempt: u8,
    /// Whose trace it belongs to. One that is not valid is not here. \[R-CA-13\]
    pub trace: Option<Trace>,
}

/// Where a call stands in a distributed trace, as W3C Trace Context words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`.
    pub state: Option<String>,
}

impl Trace {
    /// Whether `traceparent` has the form of version 00: four fields of lower-case hex
    /// digits, neither id all zeros. Of a later version, the same part counts.
    pub(crate) fn is_valid(parent: &str) -> bool {
        let mut fields = parent.split('-');
        let mut field = |len| {
            let hex = |c: &u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
            fields.next().filter(|it| it.len() == len && it.as_bytes().iter().all(hex))
        };
        let (version, trace, span, flags) = (field(2), field(32), field(16), field(2));
        let some = |id: Option<&str>| id.is_some_and(|id| id.bytes().any(|c| c != b'0'));
        let first = version == Some("00");
        version.is_some_and(|it| it != "ff")
            && some(trace)
            && some(span)
            && flags.is_some()
            && (!first || fields.next().is_none())
    }
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
    /// Whether items of ours follow: [`Conversation::item`], and at last
    /// [`Conversation::end_input`].
    ///
    /// [`Conversation::item`]: crate::Conversation::item
    /// [`Conversation::end_input`]: crate::Conversation::end_input
    pub input: bool,
    /// A plugin's: the call of the host that it serves; `None`: background work, which
    /// needs a scope of its own. \[R-RV-01\] \[R-SC-05\]
    pub parent: Option<CallId>,
    /// What few calls say about themselves. Only a host's narrow with scopes.
    pub details: Option<Arc<Details>>,
    /// The arguments as MessagePack, or empty.
    pub body: Bytes,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The callee said so.
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
