//! Why a command did not do what was asked, and what to do next.

use std::fmt;

use plugbay_supervisor::{
    CallError, LoadError, NotReady, Ran, Reason, RetryAdvice, State,
    manifest::{Code, Problem},
};
use serde_json::{Value, json};

use crate::exit::Exit;

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
    /// For programs: whether the tool ran and what to do with the same call.
    pub(crate) call: Option<Box<(Ran, RetryAdvice)>>,
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
            call: None,
        }
    }

    /// Ends the command without a word, because all has been said.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
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
            let what = match reason {
                Reason::NotAFrame { .. } => "it printed",
                _ => "it said",
            };
            self.notes.push(format!("{what} {found:?}{more}"));
        }
        let help = match reason {
            Reason::NotAFrame { .. } => "stdout is the wire: let it print to stderr instead",
            Reason::NoHello { alive: true, .. } => {
                "a plugin answers the HELLO on its stdin; is this program a plugin?"
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
            _ => return self,
        };
        self.help(help)
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
        if let Some((ran, retry)) = self.call.as_deref().copied() {
            error["ran"] = json!(ran);
            error["retry"] = match retry {
                RetryAdvice::Never => json!("never"),
                RetryAdvice::After(_) => json!("safe"),
                RetryAdvice::IfIdempotent => json!("if_idempotent"),
            };
            if let RetryAdvice::After(after) = retry {
                error["retry_after_ms"] =
                    json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            }
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
        let exit = match &error {
            CallError::NotFound { .. } => Exit::NotFound,
            CallError::Denied { .. } => Exit::Refused,
            CallError::BadArguments { .. } => Exit::Usage,
            CallError::TimedOut { .. } => Exit::TimedOut,
            _ => Exit::Bad,
        };
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
        let mut trouble = Self::new(exit, message).code(code);
        trouble.call = Some(Box::new((error.ran(), error.retry())));
        match &error {
            CallError::BadArguments { problems, .. } => trouble.notes.clone_from(problems),
            CallError::Inactive { reason, .. } => trouble = trouble.reason(reason),
            CallError::Lost { reason, last_words, .. } => {
                trouble = trouble.reason(reason).last_words(&last_words.0);
            }
            _ => {}
        }
        let ran = match error.ran() {
            _ if matches!(exit, Exit::NotFound | Exit::Usage | Exit::Refused) => return trouble,
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
                let trouble = Self::new(Exit::Bad, message).reason(&reason);
                let trouble = trouble.last_words(&last_words.0);
                match reason.code() {
                    Some(code) => trouble.code(code),
                    None => trouble,
                }
            }
        }
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        let exit = match problem.code {
            Code::PB0110 | Code::PB0120 => Exit::NotFound,
            _ => Exit::Bad,
        };
        let trouble = Self::new(exit, problem.message).code(problem.code.as_str());
        problem.help.into_iter().fold(trouble, Self::help)
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
    let trouble = Trouble::new(Exit::Bad, message).reason(reason);
    match reason.code() {
        Some(code) => trouble.code(code),
        None => trouble,
    }
}

/// A plugin that cannot be called at all, in words for a note.
pub(crate) fn off(name: &str, state: State, reason: &Reason) -> String {
    format!("plugin {name} is {state}: it {reason}")
}
