//! Why a thing is as it is: one type for errors, events, status and `why`.
//!
//! A reason is decided from evidence (our own ledger of kills, the exit status,
//! the conversation's end) and never guessed from one signal number.

use std::{fmt, time::Duration};

use nix::libc;
use plugbay_protocol::{Close, Code, Violation};
use serde::Serialize;

use crate::{disk::rounded, hang::Seen, manifest::bytes_in_words, plan::Item};

/// Bytes that belong to a tenant or come from a plugin's stderr. They can be
/// moved and shown to an operator, and not be printed by accident.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Private(pub String);

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[private]")
    }
}

/// What keeps a file from being run as the one that its digest stands for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestFault {
    /// It is another file.
    #[error("is not the file that was looked at: its digest is {found}, and {expected} is due")]
    Differs {
        /// As in the manifest.
        expected: String,
        /// What would accept it there.
        found: String,
    },
    /// It cannot be read.
    #[error("has a digest and cannot be read: {error}")]
    Unreadable {
        /// What the system said.
        error: String,
    },
    /// It is a folder, a pipe or another thing without a content.
    #[error("has a digest and is no file")]
    NotAFile,
    /// Too large to be kept in memory.
    #[error("has a digest and is larger than {}, the most that is held to one", bytes_in_words(*limit))]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// A script is opened by its interpreter, by its name, and anybody may have put another
    /// file there since.
    #[error(
        "has a digest and is a script, which is held to it only in a view of the file system of \
         its own: give the plugin the level standard or strict, on a machine that can hold it to \
         `files`"
    )]
    NeedsView,
    /// Its folder has to stay as it is.
    #[error("has a digest and lies in {folder}, which the plugin was granted to change")]
    MayBeChanged {
        /// What was granted.
        folder: String,
    },
}

/// Why a plugin is in the state it is in.
///
/// `Display` is one sentence without a full stop, fit to follow the plugin's name
/// ("greeter *wrote text where a frame was due*"). It never contains what a
/// plugin printed: see [`Reason::private`] for that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing has happened yet.
    NotStarted,
    /// It answers calls.
    Running,
    /// It is on its way up.
    StartingUp {
        /// Whether hands have been shaken, so that `plugin.activate` is what it works on.
        greeted: bool,
    },
    /// Nobody has used it for a while; a call wakes it.
    IdleStop,
    /// The operator stopped it.
    StoppedByOperator,
    /// The operator asked for a new start.
    RestartedByOperator,
    /// The operator lifted a stop or a quarantine.
    ResumedByOperator,
    /// The supervisor is going down.
    Shutdown,
    /// The manifest says `enabled = false`.
    Disabled,
    /// Its manifest has faults.
    Invalid {
        /// The first of them.
        why: String,
    },
    /// It asked to be replaced; its own word for why.
    Retired {
        /// `memory`, `upgrade`, `max_calls`, `error` or another word.
        word: String,
    },
    /// The operating system would not start the program.
    SpawnFailed {
        /// The program.
        program: String,
        /// What the system said.
        error: String,
        /// Whether something that it needs to run is not there: itself, its interpreter or
        /// its folder.
        missing: bool,
        /// Whether the system was only short of something, so that it may work next time.
        passing: bool,
    },
    /// A wall around it could not be built, so it was not started.
    SetupFailed {
        /// What was being done.
        step: String,
        /// What the system said.
        error: String,
        /// Whether the system was only short of something, so that it may work next time.
        passing: bool,
    },
    /// This machine lacks a wall that its plan requires.
    NotIsolated {
        /// What it cannot be held to.
        item: Item,
        /// Why not.
        cause: String,
        /// What the operator can do.
        fix: String,
    },
    /// What is to be run is not what its digest says, or cannot be held to it.
    NotVerified {
        /// The file, as the command names it.
        file: String,
        /// What is wrong.
        fault: DigestFault,
    },
    /// No HELLO in time.
    NoHello {
        /// How long we waited.
        waited: Duration,
        /// Whether the process was still there.
        alive: bool,
        /// The bytes of its HELLO that came, and how many it should have had.
        part: Option<(usize, u64)>,
        /// What it was doing, if we looked.
        seen: Option<Seen>,
    },
    /// It sent our own HELLO back.
    Echo,
    /// Text, or other bytes, where a frame was due.
    NotAFrame {
        /// The first of them.
        found: Private,
        /// Whether hands had been shaken.
        greeted: bool,
    },
    /// It broke the protocol in another way.
    Violation {
        /// Which rule.
        violation: Violation,
    },
    /// It said CLOSE with an error.
    ClosedWith {
        /// Its code.
        code: Close,
        /// Its words.
        message: Private,
    },
    /// No protocol version in common.
    VersionUnsupported {
        /// What it speaks.
        supported: Vec<u64>,
    },
    /// What it says of itself differs from its manifest, or cannot be accepted.
    ManifestDiffers {
        /// In what.
        what: String,
    },
    /// `plugin.activate` failed.
    ActivateFailed {
        /// Its code.
        code: Code,
        /// The exact condition, if it named one.
        reason: Option<String>,
        /// Its words.
        message: Private,
    },
    /// `plugin.activate` was not answered in time.
    ActivateTimeout {
        /// How long we waited.
        waited: Duration,
        /// What it was doing, if we looked.
        seen: Option<Seen>,
    },
    /// A cancelled call was not ended within the grace.
    CallStuck {
        /// The grace.
        waited: Duration,
        /// What it was doing, if we looked.
        seen: Option<Seen>,
    },
    /// Not one byte after a PING.
    Silent {
        /// How long.
        waited: Duration,
        /// What it was doing, if we looked.
        seen: Option<Seen>,
    },
    /// Its stdout has ended, and how its process ends is not known yet.
    StdoutEnded,
    /// It closed its stdout and went on living.
    ClosedStdout,
    /// It closed its stdin and went on living.
    ClosedStdin,
    /// It exited by itself.
    Exited {
        /// Its status.
        code: i32,
        /// Whether it had been active.
        active: bool,
    },
    /// A signal that we did not send ended it.
    Signalled {
        /// The signal.
        signal: i32,
        /// Whether it dumped core.
        core: bool,
    },
    /// The system ended it because memory was spent: its own, that of all plugins, or, if
    /// neither bound was met, that of the whole machine.
    OutOfMemory {
        /// What it may have, in bytes, if it had that.
        limit: Option<u64>,
        /// What all plugins together may have, in bytes, if they had that. With both, the
        /// system has not told which of the two was the end.
        ceiling: Option<u64>,
    },
    /// The system ended it because it wrote a file that was too large.
    FileTooLarge {
        /// What was allowed, in bytes; `None` if it set that bound itself.
        limit: Option<u64>,
    },
    /// It keeps more in its state folder than it may.
    StateTooLarge {
        /// What was found, in bytes.
        used: u64,
        /// What is allowed, in bytes.
        limit: u64,
        /// Why there may be more, if not all was measured.
        more: Option<String>,
        /// What takes the most.
        most: Private,
    },
    /// The system ended it because it had used up the processor time that it may have in all.
    CpuTimeSpent,
    /// The system ended it because it made a system call that no program here makes.
    ForbiddenCall,
    /// The process that kept it was ended by somebody else, and it with it.
    HelperLost,
    /// Somebody else collected its exit status.
    StatusLost,
    /// It died more often than its budget forgives. Holds the last death.
    Quarantined {
        /// Deaths counted.
        deaths: u32,
        /// Within this time.
        within: Duration,
        /// The last one.
        last: Box<Reason>,
    },
    /// SIGKILL did not end it in time.
    Unkillable {
        /// How long ago the signal was sent.
        waited: Duration,
        /// What it was doing, if we looked.
        seen: Option<Seen>,
    },
    /// The supervisor itself failed; a fault of ours.
    Internal {
        /// What failed.
        what: String,
    },
}

impl Reason {
    /// A stable word for it, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Running => "running",
            Self::StartingUp { .. } => "starting",
            Self::IdleStop => "idle_stop",
            Self::StoppedByOperator => "stopped",
            Self::RestartedByOperator => "restarted",
            Self::ResumedByOperator => "resumed",
            Self::Shutdown => "shutdown",
            Self::Disabled => "disabled",
            Self::Invalid { .. } => "invalid",
            Self::Retired { .. } => "retired",
            Self::SpawnFailed { .. } => "spawn_failed",
            Self::SetupFailed { .. } => "setup_failed",
            Self::NotIsolated { .. } => "not_isolated",
            Self::NotVerified { .. } => "not_verified",
            Self::NoHello { .. } => "no_hello",
            Self::Echo => "echo",
            Self::NotAFrame { .. } => "not_a_frame",
            Self::Violation { .. } => "violation",
            Self::ClosedWith { .. } => "closed",
            Self::VersionUnsupported { .. } => "version_unsupported",
            Self::ManifestDiffers { .. } => "manifest_differs",
            Self::ActivateFailed { .. } => "activate_failed",
            Self::ActivateTimeout { .. } => "activate_timeout",
            Self::CallStuck { .. } => "call_stuck",
            Self::Silent { .. } => "silent",
            Self::StdoutEnded => "stdout_ended",
            Self::ClosedStdout => "closed_stdout",
            Self::ClosedStdin => "closed_stdin",
            Self::Exited { .. } => "exited",
            Self::Signalled { signal, .. } => match Ending::of(*signal) {
                Ending::Fault => "crashed",
                Ending::Order => "killed",
                Ending::Other => "signalled",
            },
            Self::OutOfMemory { limit: None, ceiling: Some(_) } => "host_out_of_memory",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::FileTooLarge { .. } => "file_too_large",
            Self::StateTooLarge { .. } => "state_too_large",
            Self::CpuTimeSpent => "cpu_time_spent",
            Self::ForbiddenCall => "forbidden_call",
            Self::HelperLost => "helper_lost",
            Self::StatusLost => "status_lost",
            Self::Quarantined { .. } => "quarantined",
            Self::Unkillable { .. } => "unkillable",
            Self::Internal { .. } => "internal",
        }
    }

    /// The code whose page explains it, if it is something to mend.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::SpawnFailed { missing: true, .. } => "PB0120",
            Self::SpawnFailed { .. } => "PB0510",
            Self::SetupFailed { .. } => "PB0511",
            Self::NotIsolated { .. } => "PB0512",
            Self::NotVerified { .. } => "PB0518",
            Self::NoHello { alive: true, .. } => "PB0401",
            Self::NotAFrame { .. } => "PB0421",
            Self::Echo | Self::Violation { .. } | Self::ClosedWith { .. } => "PB0422",
            Self::VersionUnsupported { .. } => "PB0423",
            Self::ManifestDiffers { .. } => "PB0424",
            Self::ActivateFailed { .. } => "PB0425",
            Self::ActivateTimeout { .. } => "PB0426",
            Self::OutOfMemory { limit: None, ceiling: Some(_) } => "PB0516",
            Self::OutOfMemory { .. } | Self::FileTooLarge { .. } | Self::CpuTimeSpent => "PB0513",
            Self::StateTooLarge { .. } => "PB0517",
            Self::ForbiddenCall => "PB0514",
            Self::Quarantined { .. } => "PB0509",
            Self::Internal { .. } => "PB0901",
            Self::NoHello { alive: false, .. }
            | Self::CallStuck { .. }
            | Self::Silent { .. }
            | Self::StdoutEnded
            | Self::ClosedStdout
            | Self::ClosedStdin
            | Self::Exited { .. }
            | Self::Signalled { .. }
            | Self::HelperLost
            | Self::StatusLost
            | Self::Unkillable { .. } => "PB0507",
            _ => return None,
        })
    }

    /// Whether a new start would end the same way, so that none is tried.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Echo
                | Self::VersionUnsupported { .. }
                | Self::ManifestDiffers { .. }
                | Self::Unkillable { .. }
                | Self::NotIsolated { .. }
                | Self::NotVerified { .. }
                | Self::SpawnFailed { passing: false, .. }
                | Self::SetupFailed { passing: false, .. }
                | Self::ForbiddenCall
                | Self::StateTooLarge { .. }
                // With wrong arguments, by the table of R-PR-05.
                | Self::Exited { code: 2, active: false }
                | Self::ActivateFailed { code: Code::InvalidArgument | Code::PermissionDenied, .. }
        )
    }

    /// What a signal that nobody here has sent means: for some there is a limit that the
    /// system enforces by them. `file_limit` is that of `limits.file`, in bytes.
    pub(crate) fn of_signal(signal: i32, core: bool, file_limit: Option<u64>) -> Self {
        match signal {
            libc::SIGXFSZ => Self::FileTooLarge { limit: file_limit },
            libc::SIGXCPU => Self::CpuTimeSpent,
            _ => Self::Signalled { signal, core },
        }
    }

    /// Whether it means a plugin that does not answer, so that it is worth a look what it
    /// does instead.
    pub(crate) fn is_hang(&self) -> bool {
        matches!(
            self,
            Self::NoHello { alive: true, .. }
                | Self::ActivateTimeout { .. }
                | Self::CallStuck { .. }
                | Self::Silent { .. }
        )
    }

    /// The same, with what it was seen to do.
    pub(crate) fn with(mut self, found: Option<Seen>) -> Self {
        if let Self::NoHello { seen, .. }
        | Self::ActivateTimeout { seen, .. }
        | Self::CallStuck { seen, .. }
        | Self::Silent { seen, .. }
        | Self::Unkillable { seen, .. } = &mut self
        {
            *seen = seen.take().or(found);
        }
        self
    }

    /// What it was seen to do while it did not answer.
    pub fn seen(&self) -> Option<&Seen> {
        match self {
            Self::NoHello { seen, .. }
            | Self::ActivateTimeout { seen, .. }
            | Self::CallStuck { seen, .. }
            | Self::Silent { seen, .. }
            | Self::Unkillable { seen, .. } => seen.as_ref(),
            Self::Quarantined { last, .. } => last.seen(),
            _ => None,
        }
    }

    /// The reason behind a quarantine, or the reason itself.
    pub fn innermost(&self) -> &Self {
        match self {
            Self::Quarantined { last, .. } => last,
            reason => reason,
        }
    }

    /// What the plugin printed or said, for the operator's eyes only.
    pub fn private(&self) -> Option<&str> {
        let text = match self {
            Self::NotAFrame { found, .. } => found,
            Self::ClosedWith { message, .. } | Self::ActivateFailed { message, .. } => message,
            Self::StateTooLarge { most, .. } => most,
            Self::Quarantined { last, .. } => return last.private(),
            _ => return None,
        };
        Some(&text.0).filter(|text| !text.is_empty()).map(String::as_str)
    }
}

/// What kind of signal ended a process.
enum Ending {
    /// The system's answer to a fault of the program, or the program's own to one.
    Fault,
    /// What people and programs send to end others.
    Order,
    Other,
}

impl Ending {
    fn of(signal: i32) -> Self {
        match signal {
            libc::SIGILL
            | libc::SIGTRAP
            | libc::SIGABRT
            | libc::SIGBUS
            | libc::SIGFPE
            | libc::SIGSEGV
            | libc::SIGSYS => Self::Fault,
            libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGKILL | libc::SIGTERM => {
                Self::Order
            }
            _ => Self::Other,
        }
    }
}

/// `; it was busy`, or nothing.
fn also(seen: &Option<Seen>) -> String {
    seen.as_ref().map_or(String::new(), |seen| format!("; it {seen}"))
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => write!(f, "has not been started yet; a call wakes it"),
            Self::Running => write!(f, "is running"),
            Self::StartingUp { greeted: false } => write!(f, "has not said HELLO yet"),
            Self::StartingUp { greeted: true } => write!(f, "is being activated"),
            Self::IdleStop => write!(f, "was stopped because nobody used it; a call wakes it"),
            Self::StoppedByOperator => write!(f, "was stopped by the operator"),
            Self::RestartedByOperator => write!(f, "was restarted by the operator"),
            Self::ResumedByOperator => write!(f, "was resumed by the operator; a call wakes it"),
            Self::Shutdown => write!(f, "was stopped because the supervisor is going down"),
            Self::Disabled => write!(f, "is disabled in the manifest"),
            Self::Invalid { why } => write!(f, "has a faulty manifest: {why}"),
            Self::Retired { word } => write!(f, "asked to be replaced ({word})"),
            Self::SpawnFailed { program, error, .. } => {
                write!(f, "could not be started: {program}: {error}")
            }
            Self::SetupFailed { step, error, .. } => {
                write!(f, "could not be closed in: cannot {step}: {error}")
            }
            Self::NotIsolated { item, cause, fix } => {
                let item = item.as_str();
                write!(f, "cannot be held to `{item}` on this machine: {cause}; to mend it, {fix}")
            }
            Self::NotVerified { file, fault } => write!(f, "was not started: {file} {fault}"),
            Self::NoHello { waited, alive: true, part: None, seen } => {
                write!(f, "did not say HELLO within {waited:?} and was stopped{}", also(seen))
            }
            Self::NoHello { waited, alive: true, part: Some((came, due)), seen } => {
                write!(
                    f,
                    "sent {came} of the {due} bytes of its HELLO within {waited:?} and was \
                     stopped{}",
                    also(seen)
                )
            }
            Self::NoHello { alive: false, .. } => {
                write!(f, "closed its stdout before it said HELLO")
            }
            Self::Echo => write!(f, "sends back what it reads, our HELLO to begin with"),
            Self::NotAFrame { greeted: false, .. } => {
                write!(
                    f,
                    "wrote text or other bytes to stdout before its HELLO; stdout carries frames only"
                )
            }
            Self::NotAFrame { greeted: true, .. } => {
                write!(
                    f,
                    "wrote text or other bytes to stdout between frames; stdout carries frames only"
                )
            }
            Self::Violation { violation } => write!(f, "broke the protocol: {violation}"),
            Self::ClosedWith { code: Close::Ok, .. } => {
                write!(f, "said CLOSE ok on its own, which is for its host to say")
            }
            Self::ClosedWith { code, .. } => {
                write!(f, "ended the conversation with CLOSE {}", code.as_str())
            }
            Self::VersionUnsupported { supported } if supported.is_empty() => {
                write!(f, "speaks no version of the protocol that we speak (we speak 1)")
            }
            Self::VersionUnsupported { supported } => {
                write!(f, "speaks version {supported:?} of the protocol; we speak 1")
            }
            Self::ManifestDiffers { what } => write!(f, "was turned away: {what}"),
            Self::ActivateFailed { code, reason, .. } => {
                write!(f, "refused to be activated: {}", code.as_str())?;
                reason.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
            }
            Self::ActivateTimeout { waited, seen } => {
                write!(f, "did not answer plugin.activate within {waited:?}{}", also(seen))
            }
            Self::CallStuck { waited, seen } => {
                write!(
                    f,
                    "did not end a cancelled call within {waited:?} and was stopped{}",
                    also(seen)
                )
            }
            Self::Silent { waited, seen } => {
                write!(f, "showed no sign of life for {waited:?}{}", also(seen))
            }
            Self::StdoutEnded => write!(f, "has ended its stdout"),
            Self::ClosedStdout => write!(f, "closed its stdout and went on living"),
            Self::ClosedStdin => write!(f, "closed its stdin and went on living"),
            Self::Exited { code, active: true } => write!(f, "exited with status {code}"),
            Self::Exited { code, active: false } => {
                write!(f, "exited with status {code} before it was ready")
            }
            Self::Signalled { signal, core } => {
                let name = nix::sys::signal::Signal::try_from(*signal)
                    .map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string());
                let sender = match Ending::of(*signal) {
                    Ending::Order => ", which plugbay did not send",
                    Ending::Fault | Ending::Other => "",
                };
                let core = if *core { " and dumped core" } else { "" };
                write!(f, "was ended by {name}{sender}{core}")
            }
            Self::OutOfMemory { limit: None, ceiling: Some(ceiling) } => {
                write!(
                    f,
                    "was ended because all plugins together used the {} that they may",
                    bytes_in_words(*ceiling)
                )
            }
            Self::OutOfMemory { limit: Some(limit), ceiling: Some(ceiling) } => {
                write!(
                    f,
                    "used its limit of {} of memory, or all plugins together the {} that they \
                     may, and was ended",
                    bytes_in_words(*limit),
                    bytes_in_words(*ceiling)
                )
            }
            Self::OutOfMemory { limit: Some(limit), ceiling: None } => {
                write!(
                    f,
                    "used more memory than its limit of {} and was ended",
                    bytes_in_words(*limit)
                )
            }
            Self::OutOfMemory { limit: None, ceiling: None } => {
                write!(f, "was ended because the machine had no memory left")
            }
            Self::FileTooLarge { limit: Some(limit) } => {
                write!(
                    f,
                    "wrote a file larger than its limit of {} and was ended",
                    bytes_in_words(*limit)
                )
            }
            Self::FileTooLarge { limit: None } => write!(f, "wrote a file that was too large"),
            Self::StateTooLarge { used, limit, more: None, .. } => {
                write!(
                    f,
                    "keeps {} in its state folder, where its limit is {}",
                    rounded(*used),
                    bytes_in_words(*limit)
                )
            }
            Self::StateTooLarge { limit, more: Some(more), .. } => {
                write!(
                    f,
                    "keeps {more} in its state folder, which is no way to be within its limit of {}",
                    bytes_in_words(*limit)
                )
            }
            Self::CpuTimeSpent => write!(f, "used up its processor time and was ended"),
            Self::ForbiddenCall => {
                write!(f, "made a system call of another kind of machine and was ended")
            }
            Self::HelperLost => write!(f, "was ended with the helper that kept it"),
            Self::StatusLost => write!(f, "is gone, and something else collected its exit status"),
            Self::Quarantined { deaths, within, last } => {
                let s = if *deaths == 1 { "" } else { "s" };
                write!(
                    f,
                    "is quarantined after {deaths} death{s} within {within:?}; the last time it {last}"
                )
            }
            Self::Unkillable { waited, seen } => {
                write!(f, "is still there {waited:?} after SIGKILL{}", also(seen))
            }
            Self::Internal { what } => write!(f, "met a fault of plugbay's own: {what}"),
        }
    }
}

impl Serialize for Reason {
    /// `{kind, code, text}`, and `seen` of a plugin that did not answer; nothing private.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let seen = self.seen();
        let mut out = serializer.serialize_struct("Reason", 3 + usize::from(seen.is_some()))?;
        out.serialize_field("kind", self.kind())?;
        out.serialize_field("code", &self.code())?;
        out.serialize_field("text", &self.to_string())?;
        if let Some(seen) = seen {
            out.serialize_field("seen", seen)?;
        }
        out.end()
    }
}
