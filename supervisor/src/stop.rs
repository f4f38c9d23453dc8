//! The stop ladder: CLOSE, stdin EOF, SIGTERM to the group, SIGKILL to the group.
//!
//! The ladder is data and the climb is a loop. Each rung has a time budget of its
//! own and no rung waits on a pipe, so a plugin that does not read delays nothing.
//! (`plugin.deactivate`, the rung before the first, is a call like any other and
//! lies with the keeper.)

use std::time::Duration;

use plugbay_protocol::Close;
use tokio::time::timeout;

use crate::{
    hang::{self, Look, Seen},
    launch::{Exit, Process},
    link::Link,
    plan::Timeouts,
};

/// One rung: what is done, and how long it may take to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    pub(crate) name: &'static str,
    act: Act,
    pub(crate) budget: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Close,
    Eof,
    Term,
    Kill,
    /// Whoever keeps the plugin does not obey; it goes, and takes the plugin with it.
    KillHelper,
}

/// How long the kernel may take to end a process after SIGKILL before we say that
/// it cannot.
pub(crate) const KILL_BUDGET: Duration = Duration::from_secs(5);

/// The rungs for a plugin that may still answer (`polite`), or may not.
pub(crate) fn ladder(timeouts: &Timeouts, polite: bool) -> Vec<Rung> {
    let all = [
        Rung { name: "close", act: Act::Close, budget: timeouts.exit_grace },
        Rung { name: "eof", act: Act::Eof, budget: timeouts.eof_grace },
        Rung { name: "term", act: Act::Term, budget: timeouts.term_grace },
        Rung { name: "kill", act: Act::Kill, budget: KILL_BUDGET / 2 },
        Rung { name: "kill", act: Act::KillHelper, budget: KILL_BUDGET / 2 },
    ];
    // Who broke the protocol has been told CLOSE already and gets no long grace.
    all.into_iter().filter(|rung| polite || rung.act != Act::Close).collect()
}

/// How a climb ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Climbed {
    /// How the process ended; `None` if not even SIGKILL ended it.
    pub(crate) exit: Option<Exit>,
    /// The last rung that was needed; `None` if it was gone before the first.
    pub(crate) rung: Option<&'static str>,
    /// What it was doing before the first rung, or after the last.
    pub(crate) seen: Option<Seen>,
}

/// Climbs until the process is gone. One that is just `leaving` gets that long
/// before the first rung, and so does one that was looked at `before`, to be looked at
/// again.
pub(crate) async fn climb(
    process: &mut Process,
    link: &Link,
    leaving: Duration,
    rungs: &[Rung],
    before: Option<Look>,
) -> Climbed {
    // Asked of the link while it still knows.
    let see = |process: &Process, before: &Look| {
        hang::judge(before, process.look().as_ref(), link.unwritten())
    };
    if let Some(exit) = ended_within(leaving, process).await {
        // One look has to do.
        let seen = before.map(|before| hang::judge(&before, Some(&before), link.unwritten()));
        link.sever();
        return Climbed { exit: Some(exit), rung: None, seen };
    }
    let seen = before.map(|before| see(process, &before));
    for rung in rungs {
        match rung.act {
            // Nobody would hear it, and nobody would act on it.
            Act::Close if !link.close(Close::Ok) => continue,
            Act::Close => {}
            Act::Eof => link.sever(),
            Act::Term => process.terminate(),
            Act::Kill => process.kill(),
            Act::KillHelper => process.kill_helper(),
        }
        if let Some(exit) = ended_within(rung.budget, process).await {
            link.sever();
            return Climbed { exit: Some(exit), rung: Some(rung.name), seen };
        }
    }
    // Not even that has ended it: what keeps it is of more interest than what it did before.
    let seen = process.look().map(|last| see(process, &last)).or(seen);
    link.sever();
    Climbed { exit: None, rung: rungs.last().map(|rung| rung.name), seen }
}

/// How it has ended, if it has by then. Who lets the system collect all children is not told
/// of it, so the last look is ours.
async fn ended_within(time: Duration, process: &mut Process) -> Option<Exit> {
    let ended = timeout(time, process.wait()).await;
    ended.ok().or_else(|| process.ended())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rungs_in_order() {
        let names = |polite| {
            ladder(&Timeouts::default(), polite).iter().map(|rung| rung.name).collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["close", "eof", "term", "kill", "kill"]);
        assert_eq!(names(false), ["eof", "term", "kill", "kill"]);
    }
}
