//! What a plugin that does not answer does instead: looked at before it is ended, because
//! afterwards nobody can.
//!
//! Two looks a moment apart: what it is in, and what processor time it and all that it has
//! started have used between them.

use std::{collections::VecDeque, fmt, fs, time::Duration};

use serde::Serialize;

/// Between the two looks: longer than a period of the limit of processor time.
pub(crate) const PAUSE: Duration = Duration::from_millis(150);
/// More processes of one plugin than this are not looked at.
const PROCESSES_MAX: usize = 256;
/// Used processor time is counted in these, a hundredth of a second each. One may be left
/// over from before.
const BUSY_TICKS: u64 = 2;
/// The longest name of a place in the kernel that is passed on, in bytes.
const PLACE_MAX: usize = 64;

/// What a process that does not answer was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// It, or what it has started, used processor time: a loop, or more work than it has
    /// time for.
    Busy,
    /// The same, and `limits.cpu` kept it from using more.
    Throttled,
    /// The same, and `host.cpu` kept all plugins together from using more.
    ThrottledWithAll,
    /// It waited for something: a lock, a pipe, another process, or time.
    Waiting,
    /// A signal or a debugger had stopped it.
    Stopped,
    /// It was in the kernel, where no signal reaches it.
    InKernel,
    /// It had ended, and nobody had collected it.
    Ended,
}

/// What was seen of a plugin that did not answer.
///
/// `Display` follows "it": "it *was busy*".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Seen {
    /// What its first process was doing.
    pub doing: Doing,
    /// Where in the kernel that waited, if the system tells.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Bytes that it was sent and that no longer went into its stdin, because it does not
    /// read.
    pub unread_bytes: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.doing {
            Doing::Busy => "was busy",
            Doing::Throttled => "was busy, and kept from more by its limit of processor time",
            Doing::ThrottledWithAll => {
                "was busy, and kept from more by host.cpu, the limit of all plugins together"
            }
            Doing::Waiting => "was waiting",
            Doing::Stopped => "was stopped by a signal",
            Doing::InKernel => "was in the kernel, where no signal reaches it",
            Doing::Ended => "had ended",
        })?;
        if let Some(place) = &self.place {
            write!(f, " (in {place})")?;
        }
        match self.unread_bytes {
            0 => Ok(()),
            bytes => write!(f, ", with {bytes} bytes that its stdin did not take"),
        }
    }
}

/// One look at a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The letter of its first process.
    state: char,
    /// Used by that and by all that it has started, in hundredths of a second.
    ticks: u64,
    /// How often its limit of processor time has held it up, and that of all plugins together
    /// any of them.
    pub(crate) held_up: (u64, u64),
    place: Option<String>,
}

/// Looks at a process and at all below it. `None` if it is gone.
pub(crate) fn look(pid: u32) -> Option<Look> {
    let ticks = stat(pid)?.ticks
        + below(pid, PROCESSES_MAX).into_iter().filter_map(stat).map(|it| it.ticks).sum::<u64>();
    let (state, thread) = thread(pid)?;
    let place = fs::read_to_string(format!("/proc/{thread}/wchan")).unwrap_or_default();
    let is_name = |it: &str| {
        it.len() <= PLACE_MAX && it.bytes().all(|it| it == b'_' || it.is_ascii_alphanumeric())
    };
    // `0` where it runs, or where we may not know.
    let place = Some(place).filter(|it| !it.is_empty() && it != "0" && is_name(it));
    Some(Look { state, ticks, held_up: (0, 0), place })
}

/// What two looks mean, the second of which found nothing if the process is gone.
pub(crate) fn judge(before: &Look, after: Option<&Look>, unread_bytes: u64) -> Seen {
    let Some(after) = after else {
        return Seen { doing: Doing::Ended, place: None, unread_bytes };
    };
    let used = after.ticks.saturating_sub(before.ticks);
    let doing = match after.state {
        'T' | 't' => Doing::Stopped,
        state if is_dead(state) => Doing::Ended,
        _ if before.held_up.0 < after.held_up.0 => Doing::Throttled,
        // Whoever waits is not held up with the others.
        state if before.held_up.1 < after.held_up.1 && (state == 'R' || BUSY_TICKS <= used) => {
            Doing::ThrottledWithAll
        }
        _ if BUSY_TICKS <= used => Doing::Busy,
        'D' => Doing::InKernel,
        // It may have had no turn on a machine with much to do.
        'R' if before.state == 'R' => Doing::Busy,
        _ => Doing::Waiting,
    };
    let waits = matches!(doing, Doing::Waiting | Doing::InKernel);
    Seen { doing, place: after.place.clone().filter(|_| waits), unread_bytes }
}

/// The first child of a process, as often as `depth` says: from a guard to the plugin.
pub(crate) fn first_below(pid: u32, depth: usize) -> Option<u32> {
    (0..depth).try_fold(pid, |pid, _| children(pid).into_iter().next())
}

/// A process that is not ours to wait for. Its number may mean another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: u32,
    started: u64,
}

impl Identity {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started: stat(pid)?.started })
    }

    /// Whether it has not ended, by all that can be seen.
    pub(crate) fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|it| it.started == self.started)
            && thread(self.pid).is_some_and(|(state, _)| !is_dead(state))
    }
}

/// All processes below one, as far as they can be found, but no more than `most`.
pub(crate) fn below(pid: u32, most: usize) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = VecDeque::from([pid]);
    while let Some(pid) = open.pop_front() {
        for child in children(pid) {
            if most <= found.len() {
                return found;
            }
            found.push(child);
            open.push_back(child);
        }
    }
    found
}

/// Who was started by any thread of a process, in the order of the threads.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let read = |thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    let numbers = |text: String| -> Vec<u32> {
        text.split_whitespace().filter_map(|it| it.parse().ok()).collect()
    };
    threads(pid).flat_map(|thread| numbers(read(thread).unwrap_or_default())).collect()
}

/// The thread that says most of a process, with its state: one that no signal reaches, or
/// else one that runs, or else the first that lives.
fn thread(pid: u32) -> Option<(char, u32)> {
    let mut all: Vec<_> = threads(pid).filter_map(|it| Some((stat(it)?.state, it))).collect();
    all.sort_by_key(|(state, thread)| (*state != 'D', *state != 'R', is_dead(*state), *thread));
    all.first().copied()
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    all.take(PROCESSES_MAX).filter_map(|it| it.file_name().to_str()?.parse().ok())
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    /// User and system time, in hundredths of a second.
    ticks: u64,
    /// When it began, in such ticks since the machine did.
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Stat> {
    // The name in parentheses may hold anything, parentheses included.
    let (_, rest) = stat.rsplit_once(") ")?;
    // The first of these is the third of the line.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at - 3)?.parse::<u64>().ok();
    let state = fields.first()?.chars().next()?;
    Some(Stat { state, ticks: number(14)? + number(15)?, started: number(22)? })
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn at(state: char, ticks: u64, held_up: u64) -> Look {
        with_all(state, ticks, (held_up, 0))
    }

    fn with_all(state: char, ticks: u64, held_up: (u64, u64)) -> Look {
        Look { state, ticks, held_up, place: Some("do_wait".into()) }
    }

    #[test]
    fn two_looks_tell_what_it_did() {
        for (before, after, doing, said) in [
            (at('S', 5, 0), at('S', 5, 0), Doing::Waiting, "was waiting (in do_wait)"),
            (at('S', 5, 0), at('S', 6, 0), Doing::Waiting, "was waiting (in do_wait)"),
            (at('R', 5, 0), at('R', 15, 0), Doing::Busy, "was busy"),
            // Others had the processor all the time.
            (at('R', 5, 0), at('R', 5, 0), Doing::Busy, "was busy"),
            (at('S', 5, 0), at('R', 5, 0), Doing::Waiting, "was waiting (in do_wait)"),
            // A child of it works.
            (at('S', 5, 0), at('S', 9, 0), Doing::Busy, "was busy"),
            (
                at('R', 5, 1),
                at('R', 6, 2),
                Doing::Throttled,
                "was busy, and kept from more by its limit of processor time",
            ),
            // The others were held up as well, and whoever waits was not.
            (
                with_all('R', 5, (0, 1)),
                with_all('R', 5, (0, 2)),
                Doing::ThrottledWithAll,
                "was busy, and kept from more by host.cpu, the limit of all plugins together",
            ),
            (
                with_all('R', 5, (1, 1)),
                with_all('R', 6, (2, 2)),
                Doing::Throttled,
                "was busy, and kept from more by its limit of processor time",
            ),
            (
                with_all('S', 5, (0, 1)),
                with_all('S', 6, (0, 2)),
                Doing::Waiting,
                "was waiting (in do_wait)",
            ),
            (at('S', 5, 0), at('T', 5, 0), Doing::Stopped, "was stopped by a signal"),
            (at('t', 5, 0), at('t', 5, 0), Doing::Stopped, "was stopped by a signal"),
            (
                at('D', 5, 0),
                at('D', 5, 0),
                Doing::InKernel,
                "was in the kernel, where no signal reaches it (in do_wait)",
            ),
            (at('S', 5, 0), at('Z', 5, 0), Doing::Ended, "had ended"),
        ] {
            let seen = judge(&before, Some(&after), 0);
            assert_eq!((seen.doing, seen.to_string().as_str()), (doing, said), "{after:?}");
        }
        let seen = judge(&at('S', 5, 0), None, 0);
        assert_eq!(seen.doing, Doing::Ended);
        let seen = judge(&at('S', 5, 0), Some(&at('S', 5, 0)), 70_000);
        assert!(seen.to_string().ends_with(", with 70000 bytes that its stdin did not take"));
    }

    #[test]
    fn a_name_with_anything_in_it_hides_no_field() {
        let rest = "S 4 5 6 7 8 9 10 11 12 13 700 11 16 17 18 19 20 21 4711 23";
        let stat = Stat { state: 'S', ticks: 711, started: 4711 };
        assert_eq!(parse(&format!("77 (a) R (b c) {rest}")), Some(stat));
        assert_eq!(parse("77 (a) S 1 2"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_process_and_what_it_started_are_found() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "sleep 60 & wait"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let own = std::process::id();
        let grandchild = loop {
            // The first child of this process may be another test's.
            if let Some(it) = first_below(child.id(), 1) {
                break it;
            }
        };
        assert!(below(own, 256).contains(&child.id()) && below(own, 256).contains(&grandchild));
        assert!(look(grandchild).is_some_and(|it| "SRD".contains(it.state)));
        // Looked at first: the child ends as soon as the grandchild has.
        let identity = Identity::of(child.id()).unwrap();
        assert!(
            identity.lives() && !Identity { started: identity.started + 1, ..identity }.lives()
        );
        let grandchild = nix::unistd::Pid::from_raw(grandchild.cast_signed());
        nix::sys::signal::kill(grandchild, nix::sys::signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert_eq!(look(child.id()), None);
        assert!(!identity.lives());
    }
}
