//! The ten frames and what their heads say.
//!
//! A head becomes a type once, here; behind this file nobody looks a field up by
//! name. Unknown keys are ignored and nil counts as absent, as the spec wants it.

use alloc::{borrow::Cow, borrow::ToOwned, boxed::Box, string::String, sync::Arc, vec::Vec};

use bytes::Bytes;

use crate::{
    codec::layout,
    error::{Close, Fault, Violation},
    event::{Details, Incoming, Trace},
    hello::{Features, Identity, Limits},
    msgpack::{Fields, INTEGER_MAX, Malformed, Value, leading_integer},
};

/// The type byte of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Opens a conversation, once from each side.
    Hello = 0x01,
    /// Ends it.
    Close = 0x02,
    /// Asks whether the reader is alive.
    Ping = 0x03,
    /// Says that it is, and that everything before was read.
    Pong = 0x04,
    /// Starts a call.
    Call = 0x10,
    /// One element of a stream.
    Item = 0x11,
    /// Ends a call.
    End = 0x12,
    /// Asks the callee to end a call early.
    Cancel = 0x13,
    /// Lets the sender of a stream go on.
    Credit = 0x14,
    /// Something nice to know, which may be lost.
    Note = 0x90,
}

impl Kind {
    /// The kind a type byte names, if this version knows it.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 => Self::Hello,
            0x02 => Self::Close,
            0x03 => Self::Ping,
            0x04 => Self::Pong,
            0x10 => Self::Call,
            0x11 => Self::Item,
            0x12 => Self::End,
            0x13 => Self::Cancel,
            0x14 => Self::Credit,
            0x90 => Self::Note,
            _ => return None,
        })
    }

    /// The name in the spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::Close => "CLOSE",
            Self::Ping => "PING",
            Self::Pong => "PONG",
            Self::Call => "CALL",
            Self::Item => "ITEM",
            Self::End => "END",
            Self::Cancel => "CANCEL",
            Self::Credit => "CREDIT",
            Self::Note => "NOTE",
        }
    }

    /// Whether frames of this kind belong to the connection and carry id 0.
    fn is_connection(self) -> bool {
        matches!(self, Self::Hello | Self::Close | Self::Ping | Self::Pong)
    }
}

/// Which call. Odd ids are the host's, even ones the plugin's; 0 is the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u32);

impl core::fmt::Display for CallId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The closed set of error codes. \[R-ER-03\]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The caller cancelled.
    Cancelled,
    /// A budget is spent.
    DeadlineExceeded,
    /// The arguments are wrong in every state.
    InvalidArgument,
    /// What the call names does not exist.
    NotFound,
    /// It exists already, or changed meanwhile.
    Conflict,
    /// A scope or a policy forbids it.
    PermissionDenied,
    /// Not in this state.
    FailedPrecondition,
    /// A limit or a quota is used up.
    ResourceExhausted,
    /// Not now.
    Unavailable,
    /// No such method.
    Unimplemented,
    /// A bug.
    Internal,
    /// Whatever this version does not recognise.
    Unknown,
}

impl Code {
    const ALL: [(Self, &'static str); 12] = [
        (Self::Cancelled, "cancelled"),
        (Self::DeadlineExceeded, "deadline_exceeded"),
        (Self::InvalidArgument, "invalid_argument"),
        (Self::NotFound, "not_found"),
        (Self::Conflict, "conflict"),
        (Self::PermissionDenied, "permission_denied"),
        (Self::FailedPrecondition, "failed_precondition"),
        (Self::ResourceExhausted, "resource_exhausted"),
        (Self::Unavailable, "unavailable"),
        (Self::Unimplemented, "unimplemented"),
        (Self::Internal, "internal"),
        (Self::Unknown, "unknown"),
    ];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Reads the word; one that is not in the set counts as `unknown`. \[R-ER-04\]
    pub fn parse(text: &str) -> Self {
        let found = Self::ALL.iter().find(|(_, word)| *word == text);
        found.map_or(Self::Unknown, |(code, _)| *code)
    }
}

/// Whether the same call may be sent again. \[R-ER-06\]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It would fail again.
    #[default]
    No,
    /// It was not started.
    Safe,
    /// It may have run: only if that does no harm.
    Maybe,
}

impl Retry {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Safe => "safe",
            Self::Maybe => "maybe",
        }
    }

    /// Reads the word; an unknown one counts as `no`.
    pub fn parse(text: &str) -> Self {
        match text {
            "safe" => Self::Safe,
            "maybe" => Self::Maybe,
            _ => Self::No,
        }
    }
}

/// Why a caller gives a call up. Any other word means the same as `user`. \[R-CN-02\]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// Whoever asked no longer wants it.
    User,
    /// The total budget is spent.
    Deadline,
    /// It was silent for too long.
    Idle,
    /// The call it belongs to was cancelled.
    Parent,
    /// The host is going down.
    Shutdown,
}

impl CancelReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Deadline => "deadline",
            Self::Idle => "idle",
            Self::Parent => "parent",
            Self::Shutdown => "shutdown",
        }
    }

    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("deadline") => Self::Deadline,
            Some("idle") => Self::Idle,
            Some("parent") => Self::Parent,
            Some("shutdown") => Self::Shutdown,
            _ => Self::User,
        }
    }
}

/// How much a log note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For whoever is looking for a bug.
    Debug,
    /// Something happened.
    Info,
    /// Something is odd.
    Warn,
    /// Something is broken.
    Error,
}

impl Level {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "debug" => Self::Debug,
            "warn" => Self::Warn,
            "error" => Self::Error,
            _ => Self::Info,
        }
    }
}

/// A note, by topic. What is to be ignored never gets this far. \[R-NO-01\]
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// How far a call has come. The body may hold `{msg}`.
    Progress {
        /// Done so far; never less than before.
        n: Option<u64>,
        /// Of how many.
        total: Option<u64>,
        /// Of what.
        unit: Option<String>,
        /// `{msg?}` or empty.
        body: Bytes,
    },
    /// A line for the log. The event name is loggable, the body is not.
    Log {
        /// How much it matters.
        level: Level,
        /// A constant of the author's, never data.
        event: String,
        /// `{msg?, fields?}` or empty.
        body: Bytes,
    },
    /// The plugin asks to be drained and replaced.
    Retire {
        /// `memory`, `upgrade`, `max_calls`, `error` or another word.
        reason: String,
    },
}

/// A frame whose head has become a type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    /// Boxed: it comes once, and the others are moved often.
    Hello(Box<HelloHead>, Bytes),
    Close {
        code: Close,
        supported: Vec<u64>,
        body: Bytes,
    },
    Ping(Bytes),
    Pong,
    Call(Incoming),
    Item {
        id: CallId,
        body: Bytes,
        /// Of the whole frame.
        size: u32,
    },
    End {
        id: CallId,
        outcome: Result<Bytes, Fault>,
    },
    Cancel {
        id: CallId,
        reason: CancelReason,
    },
    Credit {
        id: CallId,
        n: u64,
    },
    Note {
        id: CallId,
        note: Option<Note>,
    },
}

/// What a HELLO head says, for either side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HelloHead {
    /// The versions offered by a host.
    pub(crate) versions: Vec<u64>,
    /// The version chosen by a plugin.
    pub(crate) version: Option<u64>,
    pub(crate) features: Features,
    pub(crate) limits: Limits,
    pub(crate) peer: Identity,
}

/// The methods that are written so often that they are not worth an allocation.
pub(crate) mod method {
    pub(crate) const ACTIVATE: &str = "plugin.activate";
    pub(crate) const DEACTIVATE: &str = "plugin.deactivate";
    pub(crate) const TOOL_CALL: &str = "tool.call";
}

fn intern(method: &str) -> Cow<'static, str> {
    [method::TOOL_CALL, method::ACTIVATE, method::DEACTIVATE]
        .into_iter()
        .find(|known| *known == method)
        .map_or_else(|| Cow::Owned(method.to_owned()), Cow::Borrowed)
}

impl Frame {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Hello(..) => Kind::Hello,
            Self::Close { .. } => Kind::Close,
            Self::Ping(_) => Kind::Ping,
            Self::Pong => Kind::Pong,
            Self::Call(_) => Kind::Call,
            Self::Item { .. } => Kind::Item,
            Self::End { .. } => Kind::End,
            Self::Cancel { .. } => Kind::Cancel,
            Self::Credit { .. } => Kind::Credit,
            Self::Note { .. } => Kind::Note,
        }
    }

    /// Reads a decoded frame. The body is passed on unread.
    pub(crate) fn read(kind: Kind, id: u32, head: &[u8], body: Bytes) -> Result<Self, Violation> {
        let name = kind.as_str();
        if kind.is_connection() && id != 0 {
            return Err(Violation::FrameId { kind: name, id });
        }
        if kind == Kind::End && head == EMPTY_MAP {
            // How nearly every call ends.
            return Ok(Self::End { id: CallId(id), outcome: Ok(body) });
        }
        if kind == Kind::Call
            && let Some((deadline, idle)) = usual_call(head)
        {
            let method = Cow::Borrowed(method::TOOL_CALL);
            return Ok(Self::Call(Incoming {
                id: CallId(id),
                method,
                deadline,
                idle,
                input: false,
                parent: None,
                details: None,
                body,
            }));
        }
        let malformed = |why| Violation::Head { kind: name, why };
        // Within a limit that is a u32.
        let size = layout(head.len(), body.len()).0 as u32;
        if kind == Kind::Item && head == EMPTY_MAP {
            return Ok(Self::Item { id: CallId(id), body, size });
        }
        let fields = Fields::parse(head).map_err(malformed)?;
        Self::typed(kind, CallId(id), &fields, body, size).map_err(malformed)
    }

    fn typed(
        kind: Kind,
        id: CallId,
        head: &Fields<'_>,
        body: Bytes,
        size: u32,
    ) -> Result<Self, Malformed> {
        Ok(match kind {
            Kind::Hello => Self::Hello(Box::new(HelloHead::read(head)?), body),
            Kind::Close => Self::Close {
                code: Close::parse(head.str("code")?.ok_or(Malformed::Missing("code"))?),
                supported: integers(head, "supported")?,
                body,
            },
            Kind::Ping if PING_BODY_MAX < body.len() => return Err(Malformed::Range("body")),
            Kind::Ping => Self::Ping(body),
            Kind::Pong => Self::Pong,
            Kind::Call => Self::Call(Incoming {
                id,
                method: intern(head.str("method")?.ok_or(Malformed::Missing("method"))?),
                deadline: head.integer("deadline", INTEGER_MAX)?,
                idle: head.integer("idle", INTEGER_MAX)?,
                input: head.bool("in")?.unwrap_or_default(),
                parent: head.integer("parent", u32::MAX.into())?.map(|id| CallId(id as u32)),
                details: Details::read(head)?,
                body,
            }),
            Kind::Item => Self::Item { id, body, size },
            Kind::End => Self::End { id, outcome: outcome(head, body)? },
            Kind::Cancel => Self::Cancel { id, reason: CancelReason::parse(head.str("reason")?) },
            Kind::Credit => {
                let n = head.integer("n", INTEGER_MAX)?.ok_or(Malformed::Missing("n"))?;
                Self::Credit { id, n }
            }
            Kind::Note => Self::Note { id, note: Note::read(head, body)? },
        })
    }
}

/// The budgets in the head of a CALL that looks as this crate writes it for a tool: these
/// keys in this order. Any other head, a faulty one too, is left to [`Fields`].
fn usual_call(head: &[u8]) -> Option<(Option<u64>, Option<u64>)> {
    let (&pairs, rest) = head.split_first()?;
    let rest = rest.strip_prefix(USUAL_METHOD)?;
    let (deadline, rest) = leading_integer(rest, b"\xa8deadline")?;
    let (idle, rest) = leading_integer(rest, b"\xa4idle")?;
    let count = 1 + u8::from(deadline.is_some()) + u8::from(idle.is_some());
    (rest.is_empty() && pairs == 0x80 | count).then_some((deadline, idle))
}

/// The method of nearly every call, as the first pair of a head.
pub(crate) const USUAL_METHOD: &[u8] = b"\xa6method\xa9tool.call";

/// A head without fields, in its shortest form.
const EMPTY_MAP: [u8; 1] = [0x80];

/// The longest PING body. \[R-TO-07\]
pub(crate) const PING_BODY_MAX: usize = 64;

impl HelloHead {
    fn read(head: &Fields<'_>) -> Result<Self, Malformed> {
        let limits = head.map("limits")?.ok_or(Malformed::Missing("limits"))?;
        let limit = |name, max| limits.integer(name, max)?.ok_or(Malformed::Missing(name));
        let features = head.items("features")?.filter_map(|item| match item {
            Value::Str(name) => core::str::from_utf8(name).ok().and_then(Features::named),
            _ => None,
        });
        Ok(Self {
            versions: integers(head, "versions")?,
            version: head.integer("version", u16::MAX.into())?,
            features: features.fold(Features::NONE, Features::union),
            limits: Limits {
                frame: limit("frame", u32::MAX.into())? as u32,
                window: limit("window", u32::MAX.into())? as u32,
                calls: limit("calls", u16::MAX.into())? as u16,
            },
            peer: match (head.map("plugin")?, head.map("host")?) {
                (Some(who), _) | (None, Some(who)) => Identity {
                    name: who.str("name")?.unwrap_or_default().to_owned(),
                    version: who.str("version")?.unwrap_or_default().to_owned(),
                    sdk: who.str("sdk")?.map(ToOwned::to_owned),
                },
                (None, None) => Identity::default(),
            },
        })
    }
}

impl Details {
    fn read(head: &Fields<'_>) -> Result<Option<Arc<Self>>, Malformed> {
        let text = |value| match value {
            Value::Str(text) => core::str::from_utf8(text).ok().map(ToOwned::to_owned),
            _ => None,
        };
        let scopes = head.list("scopes")?.map(|scopes| scopes.filter_map(text).collect());
        let key = head.str("key")?.map(ToOwned::to_owned);
        let attempt = head.integer("attempt", u8::MAX.into())?.unwrap_or_default() as u8;
        let details = Self { scopes, key, attempt, trace: Trace::read(head) };
        Ok((details != Self::default()).then(|| Arc::new(details)))
    }
}

impl Trace {
    /// What is not valid, in type or form, is ignored. \[R-CA-13\]
    fn read(head: &Fields<'_>) -> Option<Self> {
        let trace = head.map("trace").ok()??;
        let parent = trace.str("tp").ok()?.filter(|parent| Self::is_valid(parent))?;
        let state = trace.str("ts").ok()?;
        Some(Self { parent: parent.to_owned(), state: state.map(ToOwned::to_owned) })
    }
}

impl Note {
    /// `None` is a note to ignore: what it says is nothing that its topic can say.
    fn read(head: &Fields<'_>, body: Bytes) -> Result<Option<Self>, Malformed> {
        let topic = head.str("topic")?.ok_or(Malformed::Missing("topic"))?;
        Ok(Self::about(topic, head, body).unwrap_or_default())
    }

    fn about(topic: &str, head: &Fields<'_>, body: Bytes) -> Result<Option<Self>, Malformed> {
        Ok(Some(match topic {
            "progress" => Self::Progress {
                n: head.integer("n", INTEGER_MAX)?,
                total: head.integer("total", INTEGER_MAX)?,
                unit: head.str("unit")?.map(ToOwned::to_owned),
                body,
            },
            "log" => Self::Log {
                level: Level::parse(head.str("lvl")?.unwrap_or("info")),
                event: head.str("event")?.unwrap_or_default().to_owned(),
                body,
            },
            "retire" => Self::Retire { reason: head.str("reason")?.unwrap_or_default().to_owned() },
            _ => return Ok(None),
        }))
    }
}

/// Reads the list leniently in one respect: an entry that is no small integer
/// (a GREASE version, say) is passed over.
fn integers(head: &Fields<'_>, name: &'static str) -> Result<Vec<u64>, Malformed> {
    let numbers = head.items(name)?.filter_map(|item| match item {
        Value::Integer(n) => Some(n),
        _ => None,
    });
    Ok(numbers.collect())
}

fn outcome(head: &Fields<'_>, body: Bytes) -> Result<Result<Bytes, Fault>, Malformed> {
    let Some(err) = head.map("err")? else { return Ok(Ok(body)) };
    Ok(Err(Fault {
        code: Code::parse(err.str("code")?.ok_or(Malformed::Missing("code"))?),
        reason: err.str("reason")?.map(|reason| Cow::Owned(reason.to_owned())),
        retry: Retry::parse(err.str("retry")?.unwrap_or("no")),
        after: err.integer("after", INTEGER_MAX)?,
        body,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short way and the long way read the same, in the usual heads and in all
    /// that are one byte away from them.
    #[test]
    fn a_usual_head_is_read_as_any_other() {
        let heads: [&[u8]; 5] = [
            b"\x81\xa6method\xa9tool.call",
            b"\x82\xa6method\xa9tool.call\xa8deadline\x05",
            b"\x82\xa6method\xa9tool.call\xa4idle\xcd\x75\x30",
            b"\x83\xa6method\xa9tool.call\xa8deadline\xcd\x75\x30\xa4idle\x07",
            b"\x82\xa6method\xa9tool.call\xa8deadline\xcf\x00\x1f\xff\xff\xff\xff\xff\xff",
        ];
        let mut usual = 0;
        for head in heads {
            let mut near: Vec<Vec<u8>> = Vec::from([head.to_vec()]);
            for at in 0..head.len() {
                near.push(head[..at].to_vec());
                near.extend((0..=255).map(|byte| {
                    let mut other = head.to_vec();
                    other[at] = byte;
                    other
                }));
            }
            near.push([head, b"\xc0"].concat());
            assert!(usual_call(head).is_some());
            for head in near {
                let Some((deadline, idle)) = usual_call(&head) else { continue };
                usual += 1;
                let long = Frame::typed(
                    Kind::Call,
                    CallId(1),
                    &Fields::parse(&head).unwrap(),
                    Bytes::new(),
                    0,
                );
                let short = Incoming {
                    id: CallId(1),
                    method: Cow::Borrowed(method::TOOL_CALL),
                    deadline,
                    idle,
                    input: false,
                    parent: None,
                    details: None,
                    body: Bytes::new(),
                };
                assert_eq!(long, Ok(Frame::Call(short)), "{head:x?}");
            }
        }
        assert!(1_000 < usual, "{usual}");
    }
}
