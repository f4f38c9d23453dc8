//! What a call has instead of a result.

use std::{fmt, sync::Arc, time::Duration};

use plugbay_protocol::{Budget, Code, Fault, Retry};

use crate::{plan::Effect, reason::Reason, status::State};

/// Whether the tool ran, which is not the same as whether the call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ran {
    /// It certainly did not.
    No,
    /// It did.
    Yes,
    /// Nobody can tell: the answer was lost.
    Unknown,
}

/// What to do next with the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// The same call fails the same way.
    Never,
    /// It did not run; another try is safe after this long.
    After(Duration),
    /// It may have run: only if running twice does no harm.
    IfIdempotent,
}

/// Why a call has no result. One variant for each thing a caller may do next.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No such tool.
    #[error("no tool is called {name:?}{}", not_found(near.as_deref(), withheld.as_deref()))]
    NotFound {
        /// What was asked for.
        name: String,
        /// The nearest name this caller may use.
        near: Option<String>,
        /// Why a tool of this name, which a plugin has, is not listed.
        withheld: Option<String>,
    },
    /// A rule forbids it.
    #[error("{tool} may not be called: {rule}")]
    Denied {
        /// The tool.
        tool: String,
        /// Which rule.
        rule: Rule,
    },
    /// The plugin takes no calls now.
    #[error("{plugin} takes no calls: it is {state} and {reason}")]
    Inactive {
        /// The plugin.
        plugin: Arc<str>,
        /// Its state.
        state: State,
        /// Why.
        reason: Arc<Reason>,
        /// When it may be back, if it comes back by itself.
        after: Option<Duration>,
    },
    /// Too much is running or waiting already.
    #[error("{plugin} is busy: {why}")]
    Busy {
        /// The plugin.
        plugin: Arc<str>,
        /// Which bound.
        why: String,
        /// When to try again.
        after: Duration,
    },
    /// It could only wait for the calls that led to it, which wait for it.
    #[error("{plugin} has no slot left but those of the calls that led to this one")]
    WouldDeadlock {
        /// The plugin.
        plugin: Arc<str>,
    },
    /// The arguments do not fit the tool's schema.
    #[error("the arguments do not fit {tool}: {}", problems.join("; "))]
    BadArguments {
        /// The tool.
        tool: String,
        /// One for each thing that is wrong, with its place.
        problems: Vec<String>,
    },
    /// The plugin answered that the call failed.
    #[error("{plugin} answered {}{}{}", fault.code.as_str(), fault.reason.as_ref().map_or(String::new(), |r| format!(" ({r})")), fault.text().map_or(String::new(), |text| format!(": {text}")))]
    Failed {
        /// The plugin.
        plugin: Arc<str>,
        /// What it said.
        fault: Fault,
    },
    /// A budget was spent.
    #[error("{plugin} {}", timed_out(*budget, *waited))]
    TimedOut {
        /// The plugin.
        plugin: Arc<str>,
        /// Which budget.
        budget: Budget,
        /// How large it was.
        waited: Duration,
        /// Whether it ran.
        ran: Ran,
    },
    /// The plugin died or was stopped during the call, or could not be started for it.
    #[error("{plugin} {reason}")]
    Lost {
        /// The plugin.
        plugin: Arc<str>,
        /// Why.
        reason: Arc<Reason>,
        /// The end of its stderr, for the operator's eyes.
        last_words: crate::reason::Private,
        /// Whether it ran.
        ran: Ran,
    },
    /// The result is not what the protocol or the tool's schema promises.
    #[error("{plugin} gave a result that cannot be used: {why}")]
    BadResult {
        /// The plugin.
        plugin: Arc<str>,
        /// What is wrong with it.
        why: String,
        /// Whether it is only too large.
        too_large: bool,
    },
}

/// A reason beats a guess.
fn not_found(near: Option<&str>, withheld: Option<&str>) -> String {
    match (withheld, near) {
        (Some(why), _) => format!(": {why}"),
        (None, Some(near)) => format!("; the nearest name is {near:?}"),
        (None, None) => String::new(),
    }
}

fn timed_out(budget: Budget, waited: Duration) -> String {
    match budget {
        Budget::Deadline => format!("did not finish within {waited:?}"),
        Budget::Idle => format!("was silent for {waited:?}"),
    }
}

/// The rule that forbids a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// This caller may not use this tool.
    Caller {
        /// Who asked.
        caller: String,
    },
    /// The manifest denies every call with this effect.
    Effect {
        /// What the tool does.
        effect: Effect,
    },
    /// A call with this effect needs a yes, and nobody said it.
    NotApproved {
        /// What the tool does.
        effect: Effect,
    },
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller { caller } => write!(f, "{caller:?} is not allowed to use it"),
            Self::Effect { effect } => {
                write!(f, "the manifest denies calls with effect {:?}", effect.as_str())
            }
            Self::NotApproved { effect } => {
                write!(
                    f,
                    "calls with effect {:?} need approval and nobody gave it",
                    effect.as_str()
                )
            }
        }
    }
}

/// A fault as it may be shown: a reason that is none by the spec is left out,
/// because it may hold anything. \[R-ER-05\]
pub(crate) fn presentable(mut fault: Fault) -> Fault {
    fault.reason = fault.reason.filter(|reason| is_reason(reason));
    fault
}

/// `^[a-z0-9]+(\.[a-z0-9_]+)+$`, and no longer than a line.
fn is_reason(text: &str) -> bool {
    let mut parts = text.split('.');
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let first = parts.next().is_some_and(|it| !it.is_empty() && it.bytes().all(plain));
    let word = |it: &str| !it.is_empty() && it.bytes().all(|byte| plain(byte) || byte == b'_');
    let mut rest = parts.peekable();
    first && rest.peek().is_some() && rest.all(word) && text.len() <= REASON_MAX
}

/// The longest reason that is shown, in bytes.
const REASON_MAX: usize = 128;

impl CallError {
    /// Whether the tool ran.
    pub fn ran(&self) -> Ran {
        match self {
            Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Inactive { .. }
            | Self::Busy { .. }
            | Self::WouldDeadlock { .. }
            | Self::BadArguments { .. } => Ran::No,
            // Only `safe` promises that nothing of it ran. [R-ER-11] [R-ER-12]
            Self::Failed { fault, .. } => match fault.retry {
                Retry::Safe => Ran::No,
                Retry::Maybe => Ran::Unknown,
                Retry::No => Ran::Yes,
            },
            Self::TimedOut { ran, .. } | Self::Lost { ran, .. } => *ran,
            Self::BadResult { .. } => Ran::Yes,
        }
    }

    /// What to do next with the same call.
    pub fn retry(&self) -> RetryAdvice {
        match self {
            Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::WouldDeadlock { .. }
            | Self::BadArguments { .. }
            | Self::BadResult { .. } => RetryAdvice::Never,
            Self::Inactive { after: None, .. } => RetryAdvice::Never,
            Self::Inactive { after: Some(after), .. } | Self::Busy { after, .. } => {
                RetryAdvice::After(*after)
            }
            Self::Failed { fault, .. } => match fault.retry {
                Retry::No => RetryAdvice::Never,
                Retry::Safe => {
                    RetryAdvice::After(Duration::from_millis(fault.after.unwrap_or_default()))
                }
                Retry::Maybe => RetryAdvice::IfIdempotent,
            },
            Self::Lost { reason, .. } if reason.is_permanent() => RetryAdvice::Never,
            Self::TimedOut { ran, .. } | Self::Lost { ran, .. } => match ran {
                Ran::No => RetryAdvice::After(Duration::from_secs(1)),
                Ran::Yes | Ran::Unknown => RetryAdvice::IfIdempotent,
            },
        }
    }

    /// The code whose page explains it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "PB0403",
            Self::Denied { rule: Rule::Caller { .. }, .. } => "PB0501",
            Self::Denied { .. } => "PB0502",
            Self::Inactive { state: State::Quarantined, .. } => "PB0509",
            Self::Inactive { .. } => "PB0503",
            Self::Busy { .. } => "PB0504",
            Self::WouldDeadlock { .. } => "PB0515",
            Self::BadArguments { .. } => "PB0402",
            Self::Failed { .. } => "PB0508",
            Self::TimedOut { .. } => "PB0505",
            Self::Lost { reason, .. } => reason.code().unwrap_or("PB0507"),
            Self::BadResult { too_large: true, .. } => "PB0412",
            Self::BadResult { .. } => "PB0411",
        }
    }

    /// One or two sentences for a language model: what happened, whether it ran,
    /// what to do. No name of a process, no advice to try what cannot work.
    pub fn for_model(&self) -> String {
        let what = match self {
            Self::NotFound { name, near: Some(near), .. } => {
                return format!("There is no tool named {name}. Did you mean {near}?");
            }
            Self::NotFound { name, near: None, .. } => {
                return format!("There is no tool named {name}.");
            }
            Self::Denied { tool, .. } => {
                return format!("You are not allowed to use {tool}. Do not try it again.");
            }
            Self::BadArguments { problems, .. } => {
                return format!(
                    "The arguments are wrong: {}. Correct them and call again.",
                    problems.join("; ")
                );
            }
            Self::Inactive { after: None, .. } => {
                return "This tool is not available. Go on without it.".into();
            }
            Self::Inactive { .. } => "This tool is not available right now.".to_owned(),
            Self::Busy { .. } => "This tool is busy.".to_owned(),
            Self::WouldDeadlock { .. } => {
                return "This tool is waiting for you. Go on without calling it again.".into();
            }
            Self::Failed { fault, .. } => match fault.text() {
                Some(text) => format!("The tool failed: {}.", text.trim_end_matches('.')),
                None => format!("The tool failed: {}.", fault.code.as_str().replace('_', " ")),
            },
            Self::TimedOut { waited, .. } => format!("The tool did not answer within {waited:?}."),
            Self::Lost { .. } => "The tool stopped working during this call.".to_owned(),
            Self::BadResult { too_large: true, .. } => {
                return "The tool ran and its result is too large to show. Ask for less.".into();
            }
            Self::BadResult { .. } => {
                return "The tool ran and its result cannot be read. Do not repeat the call."
                    .into();
            }
        };
        let next = match (self.ran(), self.retry()) {
            (Ran::No, RetryAdvice::After(after)) if after.is_zero() => {
                "It did not run. You may call it again.".to_owned()
            }
            (Ran::No, RetryAdvice::After(after)) => {
                format!("It did not run. You may call it again after {}.", seconds(after))
            }
            (Ran::No, _) => "It did not run.".to_owned(),
            (Ran::Unknown, _) => {
                "Nobody knows whether it ran: check before you call it again.".to_owned()
            }
            (Ran::Yes, _) => String::new(),
        };
        format!("{what} {next}").trim_end().to_owned()
    }
}

impl From<&CallError> for Fault {
    /// As the answer to a plugin that made the call.
    fn from(error: &CallError) -> Self {
        let retry = match (error.ran(), error.retry()) {
            (_, RetryAdvice::Never) => Retry::No,
            (Ran::No, RetryAdvice::After(_)) => Retry::Safe,
            (_, RetryAdvice::After(_) | RetryAdvice::IfIdempotent) => Retry::Maybe,
        };
        let fault = |code| Self::new(code).retry(retry).message(&error.for_model());
        match error {
            CallError::NotFound { .. } => fault(Code::NotFound).because("pb.unknown_tool"),
            CallError::Denied { .. } => fault(Code::PermissionDenied),
            CallError::Inactive { .. } | CallError::Lost { .. } => fault(Code::Unavailable),
            CallError::Busy { after, .. } => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                Self { after: Some(ms), ..fault(Code::ResourceExhausted) }
            }
            CallError::WouldDeadlock { .. } => {
                fault(Code::ResourceExhausted).because("pb.would_deadlock")
            }
            CallError::BadArguments { .. } => fault(Code::InvalidArgument).because("pb.bad_args"),
            CallError::Failed { fault, .. } => fault.clone(),
            CallError::TimedOut { .. } => fault(Code::DeadlineExceeded),
            CallError::BadResult { .. } => fault(Code::Internal),
        }
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        0 | 1 => "a second".into(),
        n => format!("{n} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_dotted_words_and_nothing_else() {
        for good in ["pb.busy", "acme.quota_used_up", "a1.b.c_2"] {
            assert!(is_reason(good), "{good}");
        }
        let long = format!("a.{}", "b".repeat(127));
        for bad in ["", "pb", "pb.", ".pb", "pb..x", "Pb.x", "p_b.x", "pb.x y", "pb.x\n", &long] {
            assert!(!is_reason(bad), "{bad:?}");
        }
    }
}
