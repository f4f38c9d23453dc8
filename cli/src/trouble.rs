//! Why a command did not do what was asked, and what to do next.

use std::fmt;

use plugbay_supervisor::{
    CallError, LoadError, NoSuchPlugin, NotReady, Ran, Reason, RetryAdvice, State,
    manifest::{Code, Problem, Report, Severity},
};
use serde_json::{Map, Value, json};

use crate::{exit::Exit, render::facts::short};

/// The outcome of a command.
pub(crate) type Outcome<T = Exit> = Result<T, Trouble>;

/// How many of a plugin's last lines are shown.
const LAST_LINES: usize = 12;
/// How much of what a plugin printed where it should not is shown.
const FOUND_MAX: usize = 100;

/// What went wrong: one sentence, what is known besides, and what to do.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) exit: Exit,
    /// The page that explains it.
    pub(crate) code: Option<&'static str>,
    /// Empty if everything has been said already.
    pub(crate) message: String,
    pub(crate) notes: Vec<String>,
    /// The end of the plugin's stderr. Confidential: for the terminal only.
    pub(crate) last_words: Box<str>,
    pub(crate) help: Vec<String>,
    /// What is only for programs.
    more: Option<Box<Map<String, Value>>>,
}

impl Trouble {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            code: None,
            message: message.into(),
            notes: Vec::new(),
            last_words: Box::default(),
            help: Vec::new(),
            more: None,
        }
    }

    /// Something with a page of its own, which also decides how the command ends.
    pub(crate) fn coded(code: &'static str, message: impl Into<String>) -> Self {
        let exit = Code::parse(code).map_or(Exit::Bad, Exit::of);
        Self { code: Some(code), ..Self::new(exit, message) }
    }

    /// As [`Self::coded`] if there is a page.
    fn maybe_coded(code: Option<&'static str>, message: impl Into<String>) -> Self {
        match code {
            Some(code) => Self::coded(code, message),
            None => Self::new(Exit::Bad, message),
        }
    }

    /// Ends the command without a word, because all has been said.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// How the plugin is that took no call.
    pub(crate) fn state(&self) -> Option<State> {
        serde_json::from_value(self.more.as_ref()?.get("state")?.clone()).ok()
    }

    /// Something that is only for programs.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.more.get_or_insert_default().insert(key.to_owned(), value);
        self
    }

    /// For programs: whether the tool ran, and what to do with the same call.
    fn about_the_call(self, ran: Ran, retry: RetryAdvice) -> Self {
        let (word, after) = match retry {
            RetryAdvice::Never => ("never", None),
            RetryAdvice::After(after) => ("safe", Some(after)),
            RetryAdvice::IfIdempotent => ("if_idempotent", None),
        };
        let this = self.with("ran", json!(ran)).with("retry", json!(word));
        match after.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)) {
            Some(after) => this.with("retry_after_ms", json!(after)),
            None => this,
        }
    }

    /// The end of what a plugin wrote to stderr, unless some are there already.
    pub(crate) fn last_words(mut self, words: &str) -> Self {
        if self.last_words.is_empty() {
            self.last_words = words.trim_end().into();
        }
        self
    }

    /// What is known about a plugin's end or state.
    fn reason(mut self, reason: &Reason) -> Self {
        if let Some(found) = reason.private() {
            let more = if found.chars().nth(FOUND_MAX).is_some() { "…" } else { "" };
            let found: String = found.chars().take(FOUND_MAX).collect();
            let what = match reason.innermost() {
                Reason::NotAFrame { .. } => "it printed",
                Reason::StateTooLarge { .. } => "in its state folder,",
                _ => "it said",
            };
            self.notes.push(format!("{what} {found:?}{more}"));
        }
        match advice(reason.innermost()) {
            Some(help) => self.help(help),
            None => self,
        }
    }

    /// The first fault of a report, and the others beside it.
    pub(crate) fn of_report(report: &Report) -> Self {
        let mut faults = report.problems.iter().filter(|it| it.severity == Severity::Error);
        let Some(first) = faults.next() else { return Self::new(Exit::Bad, "something is wrong") };
        let trouble = Self::from(first.clone());
        faults.fold(trouble, |it, fault| it.note(fault.to_string()))
    }

    /// All of it, for another plugbay to show. With what is only for the terminal.
    pub(crate) fn to_wire(&self) -> Value {
        let mut wire = self.to_json()["error"].take();
        wire["last_words"] = json!(self.last_words);
        wire
    }

    /// What [`Self::to_wire`] made of one.
    pub(crate) fn from_wire(mut wire: Value) -> Self {
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let texts = |it: &Value| it.as_array().into_iter().flatten().map(text).collect();
        let mut trouble =
            Self::new(Exit::from_number(wire["exit"].as_u64()), text(&wire["message"]));
        trouble.code = wire["code"].as_str().and_then(Code::parse).map(Code::as_str);
        trouble.notes = texts(&wire["notes"]);
        trouble.help = texts(&wire["help"]);
        trouble.last_words = text(&wire["last_words"]).into();
        for known in ["exit", "message", "code", "notes", "help", "last_words"] {
            wire.as_object_mut().and_then(|it| it.remove(known));
        }
        trouble.more = match wire {
            Value::Object(more) if !more.is_empty() => Some(Box::new(more)),
            _ => None,
        };
        trouble
    }

    /// For programs. Nothing that a plugin wrote to stderr is in it.
    pub(crate) fn to_json(&self) -> Value {
        let mut error = json!({
            "code": self.code,
            "message": self.message,
            "notes": self.notes,
            "help": self.help,
            "exit": self.exit as u8,
        });
        for (key, value) in self.more.iter().flat_map(|it| &**it) {
            error[key] = value.clone();
        }
        json!({ "error": error })
    }
}

/// Without the last words, and without a colour: `render` adds those.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The lines of a plugin's last words that are worth showing.
pub(crate) fn last_lines(words: &str) -> Vec<&str> {
    let lines: Vec<&str> = words.lines().map(str::trim_end).filter(|it| !it.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].to_vec()
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        let message = match &error {
            // What to mend is the reason; the state is its effect.
            CallError::Inactive { plugin, reason, .. } if reason.code().is_some() => {
                format!("{plugin} {reason}")
            }
            // Each problem gets a line of its own.
            CallError::BadArguments { tool, .. } => format!("the arguments do not fit {tool}"),
            error => error.to_string(),
        };
        let code = match &error {
            CallError::Inactive { reason, .. } => reason.code().unwrap_or(error.code()),
            _ => error.code(),
        };
        let mut trouble = Self::coded(code, message).about_the_call(error.ran(), error.retry());
        match &error {
            CallError::BadArguments { problems, .. } => trouble.notes.clone_from(problems),
            CallError::Inactive { state, reason, after, .. } => {
                trouble = trouble.reason(reason).with("state", json!(state));
                if let (State::Backoff, Some(after)) = (state, after) {
                    let after = short(*after);
                    let note = format!("that was before this call; it is started again in {after}");
                    trouble = trouble.note(note);
                }
            }
            CallError::Lost { reason, last_words, .. } => {
                trouble = trouble.reason(reason).last_words(&last_words.0);
            }
            _ => {}
        }
        let ran = match error.ran() {
            // What was refused before anybody looked at the tool needs no such word.
            _ if matches!(
                error,
                CallError::NotFound { .. }
                    | CallError::BadArguments { .. }
                    | CallError::Denied { .. }
            ) =>
            {
                return trouble;
            }
            Ran::No => "the tool did not run",
            Ran::Yes => "the tool ran",
            Ran::Unknown => "nobody knows whether the tool ran",
        };
        let next = match error.retry() {
            RetryAdvice::Never => "",
            RetryAdvice::After(_) => "; calling again is safe",
            RetryAdvice::IfIdempotent => "; call again only if running twice does no harm",
        };
        trouble.note(format!("{ran}{next}"))
    }
}

impl From<NotReady> for Trouble {
    fn from(error: NotReady) -> Self {
        let message = error.to_string();
        match error {
            NotReady::NoSuchPlugin(_) => Self::new(Exit::NotFound, message),
            NotReady::Down { reason, last_words, .. } => {
                let trouble = Self::maybe_coded(reason.code(), message).reason(&reason);
                trouble.last_words(&last_words.0)
            }
        }
    }
}

impl From<NoSuchPlugin> for Trouble {
    fn from(error: NoSuchPlugin) -> Self {
        Self::new(Exit::NotFound, error.to_string()).help("`plugbay ps` shows all")
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        let trouble = Self::coded(problem.code.as_str(), problem.message);
        let suggestion = problem.suggestion.map(|it| it.title);
        problem.help.into_iter().chain(suggestion).fold(trouble, Self::help)
    }
}

impl From<LoadError> for Trouble {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Command(problem) => (*problem).into(),
            error => Self::new(Exit::Bad, error.to_string()),
        }
    }
}

impl From<plugbay_supervisor::Refused> for Trouble {
    fn from(refused: plugbay_supervisor::Refused) -> Self {
        Self::new(Exit::Bad, refused.to_string())
    }
}

/// A plugin that went wrong once its call was over.
pub(crate) fn afterwards(plugin: &str, reason: &Reason) -> Trouble {
    let message = format!("{plugin} {reason}, after its answer");
    Trouble::maybe_coded(reason.code(), message).reason(reason)
}

/// What to do about it, if a sentence can say that.
pub(crate) fn advice(reason: &Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::NotAFrame { .. } => "stdout is the wire: let it print to stderr instead",
        Reason::NoHello { part: Some(_), .. } => {
            "its header declares more bytes than came: a wrong length, or a missing flush"
        }
        Reason::NoHello { alive: true, .. } => {
            "a plugin answers the HELLO on its stdin; is this program a plugin?"
        }
        Reason::Echo => {
            "a plugin answers with a HELLO of its own; is this program a plugin? \
             `plugbay new` writes one that works"
        }
        Reason::VersionUnsupported { supported } if supported.is_empty() => {
            "is this program a plugin? `plugbay new` writes one that works"
        }
        Reason::Exited { active: false, .. } | Reason::NoHello { .. } => {
            "a plugin stays and answers the HELLO on its stdin; is this program a plugin?"
        }
        Reason::SpawnFailed { error, .. } if error.contains("xec format") => {
            "a script needs a first line such as #!/usr/bin/env python3"
        }
        Reason::StateTooLarge { .. } => "make room in its state folder, or raise limits.state",
        Reason::NotVerified { .. } => {
            "if the file's change is wanted, write the digest that `plugbay check --digests` prints"
        }
        Reason::HelperLost => {
            "the pid that plugbay shows is this helper's; `plugbay stop` and `restart` end a plugin in \
             good order"
        }
        _ => return None,
    })
}

/// A plugin that cannot be called at all, in words for a note.
pub(crate) fn off(name: &str, state: State, reason: &Reason) -> String {
    format!("plugin {name} is {state}: it {reason}")
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use plugbay_supervisor::Private;

    use super::*;

    fn inactive(state: State, reason: Reason, after: Option<u64>) -> Trouble {
        let after = after.map(Duration::from_millis);
        let (plugin, reason) = ("geo".into(), Arc::new(reason));
        CallError::Inactive { plugin, state, reason, after }.into()
    }

    #[test]
    fn an_end_before_the_call_is_told_as_one() {
        let died = || Reason::Exited { code: 3, active: true };
        let trouble = inactive(State::Backoff, died(), Some(400));
        assert_eq!(trouble.message, "geo exited with status 3");
        assert_eq!(
            trouble.notes,
            [
                "that was before this call; it is started again in 400 ms",
                "the tool did not run; calling again is safe",
            ]
        );
        assert_eq!(trouble.state(), Some(State::Backoff));
        let wire = Trouble::from_wire(trouble.to_wire());
        assert_eq!(wire.state(), Some(State::Backoff), "also at the other side");
    }

    #[test]
    fn what_was_measured_is_not_what_the_plugin_said() {
        let full = || Reason::StateTooLarge {
            used: 2 << 20,
            limit: 1 << 20,
            more: None,
            most: Private("big has 2MiB".into()),
        };
        let twice =
            Reason::Quarantined { deaths: 1, within: Duration::ZERO, last: Box::new(full()) };
        for reason in [full(), twice] {
            let trouble = inactive(State::Quarantined, reason, None);
            assert_eq!(trouble.notes[0], "in its state folder, \"big has 2MiB\"");
            assert!(trouble.help[0].contains("make room"), "{trouble:?}");
        }
    }
}
