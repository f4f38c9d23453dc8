//! Faults, sorted by whose they are.
//!
//! A [`Violation`] is the peer's: the connection ends, with one CLOSE code for
//! each. A [`Misuse`] is our own caller's: nothing was sent. A [`Fault`] is an
//! answer: the call failed, the conversation goes on.

use alloc::{borrow::Cow, string::String, vec::Vec};

use bytes::Bytes;

use crate::{
    frame::{Code, Retry},
    msgpack::Malformed,
};

/// What the peer did that the spec forbids. Exactly one CLOSE code belongs to
/// each; see [`Violation::close`]. \[R-ER-01\]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes where a frame was due. Carries the first of them, at most
    /// [`Violation::PREFIX`]: usually a stray print, which is the best diagnosis.
    #[error("expected a frame, which starts with the byte c1, found other bytes")]
    NotAFrame {
        /// The bytes, for the operator's eyes.
        found: Vec<u8>,
    },
    /// A critical frame type this version does not know.
    #[error("frame type {0:#04x} is unknown and may not be ignored")]
    UnknownFrame(u8),
    /// A frame larger than the limit we announced.
    #[error("a frame of {size} bytes, where at most {max} were announced")]
    FrameTooLarge {
        /// The whole frame, as its header declares it.
        size: u64,
        /// Our limit.
        max: u32,
    },
    /// A byte between head and body is not zero.
    #[error("the gap before the body is not zero")]
    Gap,
    /// The head breaks the rules for heads.
    #[error("the head of {kind} is malformed: {why}")]
    Head {
        /// The frame's name.
        kind: &'static str,
        /// What is wrong.
        why: Malformed,
    },
    /// A frame that has no id carries one, or the reverse.
    #[error("{kind} with id {id}")]
    FrameId {
        /// The frame's name.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// An id that is zero, has the wrong parity, was used before or was never opened.
    #[error("{kind} with id {id}: {why}")]
    Id {
        /// The frame's name.
        kind: &'static str,
        /// The id.
        id: u32,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A frame that is not allowed now.
    #[error("{kind} is not allowed here: {why}")]
    State {
        /// The frame's name.
        kind: &'static str,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// A rule about the credit of streams is broken.
    #[error("{kind} breaks the flow: {why}")]
    Flow {
        /// The frame's name.
        kind: &'static str,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The versions have nothing in common.
    #[error("no protocol version in common")]
    Version {
        /// What the peer offered or chose.
        theirs: Vec<u64>,
    },
    /// Our own HELLO, sent back: whoever is there gives back what it reads.
    #[error("it sent our own HELLO back")]
    Echo,
    /// Announced limits below the floor.
    #[error("the limit {0:?} is below the floor that every peer must accept")]
    Floor(&'static str),
    /// More replies owed than we are willing to remember.
    #[error("it keeps asking without reading the answers")]
    Calm,
    /// Not one byte for too long after a PING.
    #[error("no sign of life for {silent_ms} ms")]
    Silent {
        /// How long.
        silent_ms: u64,
    },
    /// No HELLO in time.
    #[error("no HELLO within {waited_ms} ms")]
    NoHello {
        /// How long we waited.
        waited_ms: u64,
        /// The bytes of it that arrived, and how many it should have had, as far as its
        /// header tells; `None` if none arrived.
        part: Option<(usize, u64)>,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame, after {got} of {due} bytes")]
    Truncated {
        /// Bytes of the frame that arrived.
        got: usize,
        /// Bytes it should have had, as far as the header tells.
        due: u64,
    },
}

impl Violation {
    /// How many stray bytes are kept for diagnosis.
    pub const PREFIX: usize = 256;

    /// The CLOSE code that the spec gives this violation.
    pub fn close(&self) -> Close {
        match self {
            Self::NotAFrame { .. }
            | Self::Gap
            | Self::Head { .. }
            | Self::FrameId { .. }
            | Self::Floor(_)
            | Self::Truncated { .. } => Close::ProtocolError,
            Self::UnknownFrame(_) => Close::UnsupportedFrame,
            Self::FrameTooLarge { .. } => Close::FrameTooLarge,
            Self::Id { .. } => Close::BadId,
            Self::State { .. } => Close::BadState,
            Self::Flow { .. } => Close::FlowError,
            Self::Version { .. } | Self::Echo => Close::VersionUnsupported,
            Self::Calm => Close::Calm,
            Self::Silent { .. } | Self::NoHello { .. } => Close::Timeout,
        }
    }
}

/// What our own caller did that the state does not allow. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A host names no parent, and a plugin no scopes. \[R-RV-12\]
    #[error("this end of the conversation may not say that")]
    WrongEnd,
    /// No scope of the plugin's authority has this method, or it may do nothing without a
    /// parent. \[R-SC-07\]
    #[error("no scope that was granted covers the call")]
    NotGranted,
    /// No handshake yet, the gate is shut, or the conversation is over.
    #[error("the plugin is not in a state to be called")]
    NotActive,
    /// As many calls are open as the peer accepts.
    #[error("the peer accepts {max} calls at once and all are open")]
    Full {
        /// The peer's `limits.calls`.
        max: u16,
    },
    /// The frame would be larger than the peer accepts.
    #[error("a frame of {size} bytes, where the peer accepts {max}")]
    TooLarge {
        /// The whole frame.
        size: usize,
        /// The peer's `limits.frame`.
        max: u32,
    },
    /// No such call is open.
    #[error("no such call is open")]
    NoSuchCall,
    /// The two ends have not agreed on the feature that this needs. \[R-HS-09\]
    #[error("the feature {0:?} is not in use")]
    NotAgreed(&'static str),
    /// The call has no input, or its input is over.
    #[error("the call takes no items from its caller")]
    NoInput,
    /// The stream has no credit. [`Event::Credit`](crate::Event::Credit) tells when it has
    /// some again; until then hold the item and stop what makes them. \[R-ST-09\]
    #[error("the stream has no credit")]
    NoCredit,
    /// A call may not be answered while calls for it are open, and `plugin.deactivate` not
    /// with success while any call is. \[R-RV-04\] \[R-LC-09\]
    #[error("other calls are still open")]
    CallsOpen,
    /// Every id has been used; the connection must be replaced. \[R-CA-03\]
    #[error("the ids of this conversation are used up")]
    IdsUsedUp,
}

/// A failed answer, as it travels in END: the head part is loggable, the body
/// belongs to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One of the closed set.
    pub code: Code,
    /// The exact condition, dotted, such as `pb.inactive`.
    pub reason: Option<Cow<'static, str>>,
    /// Whether the same call may be sent again.
    pub retry: Retry,
    /// Not before this many milliseconds.
    pub after: Option<u64>,
    /// `{msg?, data?}` as MessagePack, or empty.
    pub body: Bytes,
}

impl Fault {
    /// A fault that should not be retried.
    pub fn new(code: Code) -> Self {
        Self { code, reason: None, retry: Retry::No, after: None, body: Bytes::new() }
    }

    /// Names the exact condition.
    #[must_use]
    pub fn because(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Says whether the call may be sent again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Puts one sentence for the caller into the body.
    #[must_use]
    pub fn message(mut self, text: &str) -> Self {
        self.body = crate::contract::message(text);
        self
    }

    /// The sentence in the body, if there is one.
    pub fn text(&self) -> Option<String> {
        crate::contract::read_message(&self.body)
    }
}

/// Why a connection ends, as CLOSE says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Nothing is wrong.
    Ok,
    /// No version in common.
    VersionUnsupported,
    /// The bytes are not what the spec describes.
    ProtocolError,
    /// Over the announced limit.
    FrameTooLarge,
    /// An unknown critical frame.
    UnsupportedFrame,
    /// An id rule was broken.
    BadId,
    /// A frame came where it is not allowed.
    BadState,
    /// Credit was overdrawn.
    FlowError,
    /// The handshake does not fit the manifest.
    ManifestRejected,
    /// Too much asked and too little read.
    Calm,
    /// Too long without a sign of life.
    Timeout,
    /// A fault of the closing side.
    Internal,
}

impl Close {
    const ALL: [(Self, &'static str); 12] = [
        (Self::Ok, "ok"),
        (Self::VersionUnsupported, "version_unsupported"),
        (Self::ProtocolError, "protocol_error"),
        (Self::FrameTooLarge, "frame_too_large"),
        (Self::UnsupportedFrame, "unsupported_frame"),
        (Self::BadId, "bad_id"),
        (Self::BadState, "bad_state"),
        (Self::FlowError, "flow_error"),
        (Self::ManifestRejected, "manifest_rejected"),
        (Self::Calm, "calm"),
        (Self::Timeout, "timeout"),
        (Self::Internal, "internal"),
    ];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Reads the word; an unknown one counts as `internal`. \[R-EX-05\]
    pub fn parse(text: &str) -> Self {
        let found = Self::ALL.iter().find(|(_, word)| *word == text);
        found.map_or(Self::Internal, |(close, _)| *close)
    }
}
