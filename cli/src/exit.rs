//! How the program ends: its exit codes, and what happens when it has a fault.

use std::{
    panic::{self, UnwindSafe},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use std::io::Write;

use plugbay_supervisor::manifest::Code;

/// The exit codes, which stay as they are. They are in `--help` and in the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All is well.
    Fine = 0,
    /// What was asked about is bad: the call failed, the check failed.
    Bad = 1,
    /// The command line or an argument is wrong.
    Usage = 2,
    /// A rule refuses it.
    Refused = 3,
    /// There is no such file, program, tool or code.
    NotFound = 4,
    /// No running plugbay can be reached.
    NoDaemon = 5,
    /// A budget was spent.
    TimedOut = 6,
    /// plugbay's own fault.
    OurFault = 70,
    /// A signal ended it before its end.
    Interrupted = 130,
}

impl Exit {
    const ALL: [Self; 9] = [
        Self::Fine,
        Self::Bad,
        Self::Usage,
        Self::Refused,
        Self::NotFound,
        Self::NoDaemon,
        Self::TimedOut,
        Self::OurFault,
        Self::Interrupted,
    ];

    /// As another plugbay gave it.
    pub(crate) fn from_number(number: Option<u64>) -> Self {
        let known = Self::ALL.into_iter().find(|it| Some(u64::from(*it as u8)) == number);
        known.unwrap_or(Self::Bad)
    }

    /// The one rule: the code of an error decides, whichever command meets it and at
    /// whichever stage.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::PB0402 => Self::Usage,
            Code::PB0501 | Code::PB0502 => Self::Refused,
            Code::PB0110 | Code::PB0120 | Code::PB0403 => Self::NotFound,
            Code::PB0401 | Code::PB0426 | Code::PB0505 => Self::TimedOut,
            Code::PB0506 => Self::Interrupted,
            Code::PB0901 => Self::OurFault,
            _ => Self::Bad,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Whether any thread or task has panicked.
static FAULT: AtomicBool = AtomicBool::new(false);

/// Runs the program. A panic anywhere is told as what it is, a fault of ours, and
/// ends in exit code 70; until then everything is cleared away as usual.
pub(crate) fn guarded(run: impl FnOnce() -> Exit + UnwindSafe) -> Exit {
    panic::set_hook(Box::new(|info| {
        FAULT.store(true, Ordering::Relaxed);
        let what = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map_or(String::new(), |at| format!(" at {at}"));
        // A second panic in here would end the program at once.
        write!(
            std::io::stderr(),
            "error[PB0901]: plugbay hit a fault of its own{place}: {what}\n   \
             = version {}\n   \
             = `plugbay explain PB0901` says what to do\n",
            env!("CARGO_PKG_VERSION"),
        )
        .ok();
    }));
    let exit = panic::catch_unwind(run).unwrap_or(Exit::OurFault);
    if FAULT.load(Ordering::Relaxed) { Exit::OurFault } else { exit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the hook and the mark belong to the whole process.
    #[test]
    fn a_panic_anywhere_ends_in_70() {
        assert_eq!(guarded(|| Exit::Fine), Exit::Fine);
        let elsewhere = || {
            std::thread::spawn(|| panic!("on purpose")).join().unwrap_err();
            Exit::Fine
        };
        assert_eq!(guarded(elsewhere), Exit::OurFault);
        assert_eq!(guarded(|| panic!("on purpose")), Exit::OurFault);
        // Gives the other tests their usual hook back.
        drop(panic::take_hook());
    }
}
