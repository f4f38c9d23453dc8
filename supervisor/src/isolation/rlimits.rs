//! Resource limits, which each process has of its own and inherits: changed in all processes
//! of a plugin that runs.

use std::{fs, io};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Held, cgroup::Cage};
use crate::hang::{below, children};

/// More processes of one plugin than this are not bounded one by one.
const PROCESSES_MAX: usize = 4096;
/// How often all are looked at, while some are found that have the old limit: a process that was
/// started between the look and the change has it.
const LOOKS_MAX: usize = 64;
/// How many looks in a row find none. Without a cgroup one that changes its parent just then can
/// be overlooked.
const CLEAN_LOOKS: usize = 2;

/// A limit that can be changed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    OpenFiles,
    FileSize,
}

impl Kind {
    /// The key in a manifest.
    fn key(self) -> &'static str {
        match self {
            Self::OpenFiles => "open_files",
            Self::FileSize => "file",
        }
    }

    /// How its line begins in `/proc/PID/limits`.
    fn label(self) -> &'static str {
        match self {
            Self::OpenFiles => "Max open files ",
            Self::FileSize => "Max file size ",
        }
    }

    fn resource(self) -> Resource {
        match self {
            Self::OpenFiles => Resource::Nofile,
            Self::FileSize => Resource::Fsize,
        }
    }
}

/// A limit of one process: what it may use, and up to what it may raise that itself. `None` is
/// no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    soft: Option<u64>,
    hard: Option<u64>,
}

/// What a process gets in place of `now`, if anything, when what it was started with changes.
/// What it has taken from itself or from its children stays taken.
fn next(now: Pair, was: Option<u64>, wanted: u64) -> Option<Pair> {
    let least = |it: Option<u64>| Some(it.map_or(wanted, |it| it.min(wanted)));
    let is_ours = was.is_some() && now.hard == was;
    let hard = if is_ours { Some(wanted) } else { least(now.hard) };
    let soft = if now.soft == now.hard { hard } else { least(now.soft) };
    let then = Pair { soft, hard };
    (then != now).then_some(then)
}

/// Where a plugin's processes are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind<'a> {
    /// The helper's first process, whose number is ours.
    pub(super) guard: u32,
    /// How many of the helper's lie above the plugin.
    pub(super) guards: usize,
    pub(super) cage: &'a Cage,
}

impl Behind<'_> {
    /// All but the helper's, from which nobody inherits any more.
    fn processes(self) -> Vec<u32> {
        let Self { guard, guards, cage } = self;
        cage.processes().unwrap_or_else(|| match guards {
            1 => below(guard, PROCESSES_MAX),
            _ => children(guard).into_iter().flat_map(|init| below(init, PROCESSES_MAX)).collect(),
        })
    }
}

/// Holds all that runs behind walls to another limit, and says what holds. `was` is the one
/// that they were started with or held to; it is set to what holds then.
pub(super) fn hold(
    kind: Kind,
    behind: Behind<'_>,
    was: &mut Option<u64>,
    wanted: Option<u64>,
) -> Option<Held> {
    let refused = match (*was, wanted) {
        (None, None) => return None,
        (Some(_), None) => Err("a limit is not lifted while it runs".to_owned()),
        (before, Some(wanted)) if before == Some(wanted) => Ok(()),
        (before, Some(wanted)) => change(kind, || behind.processes(), before, wanted),
    };
    if refused.is_ok() {
        *was = wanted;
    }
    let used = match kind {
        Kind::OpenFiles => behind.processes().into_iter().filter_map(open_files).max(),
        Kind::FileSize => None,
    };
    Some(Held { key: kind.key(), limit: *was, used, refused: refused.err() })
}

fn change(
    kind: Kind,
    processes: impl Fn() -> Vec<u32>,
    was: Option<u64>,
    wanted: u64,
) -> Result<(), String> {
    let mut clean = 0;
    for _ in 0..LOOKS_MAX {
        let all = processes();
        if PROCESSES_MAX <= all.len() {
            return Err(format!("it has {PROCESSES_MAX} processes or more"));
        }
        let mut changed = false;
        for pid in all {
            // Numbers are given out in turn: this one does not come back in the meantime.
            let Some(then) = limits(pid, kind).and_then(|now| next(now, was, wanted)) else {
                continue;
            };
            match set(pid, kind, then) {
                Ok(()) => changed = true,
                Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(
                        "it cannot be raised for what runs already, which needs CAP_SYS_RESOURCE"
                            .to_owned(),
                    );
                }
                Err(error) => return Err(format!("cannot change it: {error}")),
            }
        }
        clean = if changed { 0 } else { clean + 1 };
        if clean == CLEAN_LOOKS {
            return Ok(());
        }
    }
    Err("it starts processes faster than they can be bounded".to_owned())
}

fn limits(pid: u32, kind: Kind) -> Option<Pair> {
    parse(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?, kind)
}

fn parse(text: &str, kind: Kind) -> Option<Pair> {
    let line = text.lines().find_map(|it| it.strip_prefix(kind.label()))?;
    let mut fields = line.split_whitespace();
    let mut field = || match fields.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Pair { soft: field()?, hard: field()? })
}

fn set(pid: u32, kind: Kind, Pair { soft, hard }: Pair) -> io::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed());
    // Without a number it would be ourselves.
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let limit = Rlimit { current: soft, maximum: hard };
    Ok(prlimit(Some(pid), kind.resource(), limit).map(drop)?)
}

fn open_files(pid: u32) -> Option<u64> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(soft: u64, hard: u64) -> Pair {
        Pair { soft: Some(soft), hard: Some(hard) }
    }

    #[test]
    fn a_process_gets_what_is_wanted_and_keeps_what_it_has_taken_from_itself() {
        for (now, was, wanted, then) in [
            // As it was started: up and down.
            (pair(64, 64), Some(64), 128, Some(pair(128, 128))),
            (pair(64, 64), Some(64), 32, Some(pair(32, 32))),
            // It had lowered the soft one itself, or both.
            (pair(16, 64), Some(64), 128, Some(pair(16, 128))),
            (pair(48, 64), Some(64), 32, Some(pair(32, 32))),
            (pair(16, 16), Some(64), 128, None),
            (pair(16, 16), Some(64), 8, Some(pair(8, 8))),
            // Changed at an earlier look.
            (pair(128, 128), Some(64), 128, None),
            (pair(32, 32), Some(64), 32, None),
            // A change that came half of the way.
            (pair(128, 128), Some(64), 96, Some(pair(96, 96))),
            // Started without one.
            (pair(1024, 4096), None, 64, Some(pair(64, 64))),
            (pair(64, 64), None, 128, None),
            (Pair { soft: None, hard: None }, None, 64, Some(pair(64, 64))),
        ] {
            assert_eq!(next(now, was, wanted), then, "{now:?} {was:?} {wanted}");
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max file size             unlimited            8388608              bytes     \n\
                    Max open files            64                   4096                 files     \n";
        assert_eq!(parse(text, Kind::OpenFiles), Some(pair(64, 4096)));
        let size = Pair { soft: None, hard: Some(8 << 20) };
        assert_eq!(parse(text, Kind::FileSize), Some(size));
        assert_eq!(parse("Max open files", Kind::OpenFiles), None);
        assert_eq!(parse("Max open files            many", Kind::OpenFiles), None);
        assert!(limits(std::process::id(), Kind::OpenFiles).is_some_and(|it| it.hard.is_some()));
    }

    #[test]
    fn whoever_is_started_meanwhile_is_bounded_too_and_who_never_ends_doing_so_is_told() {
        let shell = |command: &str| {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-c", command]).stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let child = shell("ulimit -n 64; read x");
        let pid = child.id();
        while limits(pid, Kind::OpenFiles) != Some(pair(64, 64)) {
            std::thread::yield_now();
        }
        // Nobody at the first look, and then one.
        let looks = std::cell::Cell::new(0);
        let late = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { vec![] } else { vec![pid] }
        };
        change(Kind::OpenFiles, late, Some(64), 32).unwrap();
        assert_eq!((looks.get(), limits(pid, Kind::OpenFiles)), (4, Some(pair(32, 32))));
        let many = || vec![pid; PROCESSES_MAX];
        let error = change(Kind::OpenFiles, many, Some(32), 16).unwrap_err();
        assert!(error.starts_with("it has 4096"), "{error}");
        // Another one at each look.
        let started = std::cell::RefCell::new(vec![child]);
        let again = || {
            started.borrow_mut().push(shell("read x"));
            started.borrow().iter().map(std::process::Child::id).collect()
        };
        let error = change(Kind::OpenFiles, again, Some(32), 16).unwrap_err();
        assert_eq!(error, "it starts processes faster than they can be bounded");
        for mut child in started.into_inner() {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
