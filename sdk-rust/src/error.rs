//! What a tool returns when it does not succeed.

use std::{borrow::Cow, fmt, time::Duration};

use bytes::Bytes;
use plugbay_protocol::{Code, Fault, Retry, contract};

use crate::{HostError, IntoBody, Reply};

/// Why a tool did not do what was asked.
///
/// There are two kinds, and they are for different readers:
///
/// - **The work failed** ([`Error::tool`], and whatever `?` turns into one): the call
///   went through, and its result says, with `is_error`, what went wrong. The model
///   reads the text and can try something else. Any error type becomes this kind by
///   `?`, with the whole chain of causes as its text.
/// - **The call failed** (every other constructor): the call ends with a code, which
///   programs read. The text goes with it.
///
/// ```
/// use plugbay_sdk::Error;
///
/// fn parse(text: &str) -> Result<i64, Error> {
///     if text.is_empty() {
///         return Err(Error::invalid("expected a number, found nothing"));
///     }
///     Ok(text.parse()?) // the model reads "invalid digit found in string"
/// }
/// assert!(parse("").unwrap_err().code().is_some());
/// assert!(parse("x").unwrap_err().code().is_none());
/// ```
///
/// Like `anyhow::Error` this type is not itself a `std::error::Error`, or `?` could
/// not take all others. For an error type that is not one either, such as anyhow's:
/// `.map_err(Error::tool)`.
pub struct Error(Box<Inner>);

enum Inner {
    Tool(String),
    Fault {
        code: Code,
        reason: Option<Cow<'static, str>>,
        retry: Retry,
        after: Option<Duration>,
        message: String,
        /// For programs, as MessagePack.
        data: Option<Bytes>,
    },
}

impl Error {
    /// The tool did its work and the work failed. The model reads `message`.
    pub fn tool(message: impl fmt::Display) -> Self {
        Self(Box::new(Inner::Tool(chain(format!("{message:#}")))))
    }

    /// The call fails with this code. Should not be retried, unless [`Self::retry`]
    /// says otherwise.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        let retry = match code {
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => Retry::Maybe,
            _ => Retry::No,
        };
        Self(Box::new(Inner::Fault { code, reason: None, retry, after: None, message, data: None }))
    }

    /// The arguments are wrong, whatever the state of the world.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// What the arguments name does not exist.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// It exists already, or somebody else changed it meanwhile.
    pub fn conflict(message: impl fmt::Display) -> Self {
        Self::new(Code::Conflict, message)
    }

    /// It is forbidden.
    pub fn denied(message: impl fmt::Display) -> Self {
        Self::new(Code::PermissionDenied, message)
    }

    /// Not in this state: something else has to happen first.
    pub fn precondition(message: impl fmt::Display) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// A limit or a quota is used up.
    pub fn exhausted(message: impl fmt::Display) -> Self {
        Self::new(Code::ResourceExhausted, message)
    }

    /// Something this tool needs does not answer now; later it may.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// A bug in the plugin.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(Code::Internal, message)
    }

    /// The tool stopped because its caller no longer wants the result.
    pub fn cancelled() -> Self {
        Self::new(Code::Cancelled, "cancelled")
    }

    /// Names the exact condition for programs: a constant with a dot in it, such as
    /// `quota.daily`. It may be logged, so it never holds data. Anything else is left
    /// out, as is everything below `pb.` that a contract does not give to its plugins
    /// with this code. \[R-ER-08\]
    #[must_use]
    pub fn because(mut self, constant: &'static str) -> Self {
        if let Inner::Fault { reason, code, .. } = &mut *self.0
            && is_reason(constant, *code)
        {
            *reason = Some(constant.into());
        }
        self
    }

    /// Says whether the same call may be sent again.
    #[must_use]
    pub fn retry(mut self, advice: Retry) -> Self {
        if let Inner::Fault { retry, .. } = &mut *self.0 {
            *retry = advice;
        }
        self
    }

    /// Says that the call was not started and may be sent again after this time.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        if let Inner::Fault { retry, after, .. } = &mut *self.0 {
            (*retry, *after) = (Retry::Safe, Some(wait));
        }
        self
    }

    /// Adds what programs may want to know about it. What has no form on the wire is left out.
    #[must_use]
    pub fn data(mut self, value: impl IntoBody) -> Self {
        if let Inner::Fault { data, .. } = &mut *self.0 {
            *data = value.into_body().ok();
        }
        self
    }

    /// What the host said, as the end of the call.
    pub(crate) fn of_host(error: HostError, retry: Retry) -> Self {
        Self(Box::new(Inner::Fault {
            code: error.code,
            reason: error.reason.map(Cow::Owned),
            retry,
            after: error.after,
            message: error.message.unwrap_or_default(),
            data: error.data.map(|data| data.0),
        }))
    }

    /// The code the call fails with; `None` if the work failed and the call did not.
    pub fn code(&self) -> Option<Code> {
        match &*self.0 {
            Inner::Tool(_) => None,
            Inner::Fault { code, .. } => Some(*code),
        }
    }

    /// Splits it into what travels as a result and what travels as a fault.
    pub(crate) fn into_reply(self) -> Result<Reply, Fault> {
        match *self.0 {
            Inner::Tool(text) => Ok(Reply::text(text).failed()),
            Inner::Fault { code, reason, retry, after, message, data } => {
                let mut fault = Fault::new(code).retry(retry);
                fault.body = words(&message, data.as_deref());
                fault.reason = reason;
                fault.after = after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                Err(fault)
            }
        }
    }

    /// As a fault in any case, for callers to whom a result means success.
    pub(crate) fn into_fault(self, otherwise: Code) -> Fault {
        match *self.0 {
            Inner::Tool(text) => Fault::new(otherwise).message(&text),
            Inner::Fault { .. } => match self.into_reply() {
                Err(fault) => fault,
                Ok(_) => Fault::new(otherwise),
            },
        }
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            let words = next.to_string();
            // Many errors already repeat their cause in their own words.
            if !text.ends_with(&words) {
                text += ": ";
                text += &words;
            }
            cause = next.source();
        }
        Self(Box::new(Inner::Tool(chain(text))))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::Tool(text) => f.write_str(text),
            Inner::Fault { code, message, .. } => write!(f, "{}: {message}", code.as_str()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

/// An error of the wire as a sentence: its code, and what there is besides.
pub(crate) fn show(
    f: &mut fmt::Formatter<'_>,
    code: Code,
    reason: Option<&str>,
    message: Option<&str>,
) -> fmt::Result {
    f.write_str(code.as_str())?;
    if let Some(reason) = reason {
        write!(f, " ({reason})")?;
    }
    match message {
        Some(message) => write!(f, ": {message}"),
        None => Ok(()),
    }
}

/// The body of an error: what there is of words and data. \[R-ER-09\]
fn words(message: &str, data: Option<&[u8]>) -> Bytes {
    let Some(data) = data else {
        return if message.is_empty() { Bytes::new() } else { contract::message(message) };
    };
    let mut body = Vec::with_capacity(16 + message.len() + data.len());
    body.push(if message.is_empty() { 0x81 } else { 0x82 });
    if !message.is_empty() {
        // What follows the marker of a map with one pair.
        body.extend_from_slice(&contract::message(message)[1..]);
    }
    body.extend_from_slice(b"\xa4data");
    body.extend_from_slice(data);
    body.into()
}

/// An empty text would leave the model with nothing.
fn chain(text: String) -> String {
    if text.is_empty() { "the tool failed and did not say why".into() } else { text }
}

/// The reasons of the protocol's that a contract gives to its plugins, with their codes.
const OF_CONTRACTS: [(&str, Code); 23] = [
    ("pb.bad_args", Code::InvalidArgument),
    ("pb.bad_body", Code::InvalidArgument),
    ("pb.bad_credentials", Code::FailedPrecondition),
    ("pb.bad_file", Code::InvalidArgument),
    ("pb.bad_history", Code::InvalidArgument),
    ("pb.bad_path", Code::InvalidArgument),
    ("pb.cannot", Code::InvalidArgument),
    ("pb.full", Code::ResourceExhausted),
    ("pb.missing_scope", Code::FailedPrecondition),
    ("pb.no_such_file", Code::NotFound),
    ("pb.no_such_program", Code::NotFound),
    ("pb.rate_limited", Code::ResourceExhausted),
    ("pb.scope_denied", Code::PermissionDenied),
    ("pb.session_exists", Code::Conflict),
    ("pb.too_long", Code::InvalidArgument),
    ("pb.too_many_boxes", Code::ResourceExhausted),
    ("pb.turn_open", Code::FailedPrecondition),
    ("pb.unenforceable", Code::FailedPrecondition),
    ("pb.unknown_box", Code::NotFound),
    ("pb.unknown_entry", Code::NotFound),
    ("pb.unknown_hook", Code::Unimplemented),
    ("pb.unknown_model", Code::NotFound),
    ("pb.unknown_session", Code::NotFound),
];

fn is_reason(text: &str, code: Code) -> bool {
    let word = |word: &str, more: &str| {
        !word.is_empty()
            && word.bytes().all(|b| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || more.as_bytes().contains(&b)
            })
    };
    match text.split_once('.') {
        Some(("pb", _)) => OF_CONTRACTS.contains(&(text, code)),
        Some((first, rest)) => word(first, "") && rest.split('.').all(|part| word(part, "_")),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_dotted_constants() {
        for (text, ok) in [
            ("quota.daily", true),
            ("a.b_c.d1", true),
            ("quota", false),
            ("pb.inactive", false),
            ("Quota.daily", false),
            ("a_b.c", false),
            ("quota.", false),
            (".x", false),
            ("a b.c", false),
        ] {
            assert_eq!(is_reason(text, Code::Internal), ok, "{text}");
        }
    }

    /// Each of them stands in the registry of the spec, with its code.
    #[test]
    fn the_protocol_s_own_reasons_go_with_their_codes() {
        let registry = include_str!("../../sdk-spec/registry.md");
        for (reason, code) in OF_CONTRACTS {
            assert!(
                registry.contains(&format!("| `{reason}` | `{}` |", code.as_str())),
                "{reason}"
            );
            assert!(is_reason(reason, code) && !is_reason(reason, Code::Unknown), "{reason}");
        }
        assert!(!is_reason("pb.inactive", Code::FailedPrecondition));
    }

    #[test]
    fn a_foreign_error_brings_its_chain() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("reading the port")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Error::from(Outer("x".parse::<u8>().unwrap_err()));
        assert_eq!(error.to_string(), "reading the port: invalid digit found in string");
        assert_eq!(error.code(), None);
    }
}
