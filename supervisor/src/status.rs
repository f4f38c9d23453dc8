//! What is known about a plugin right now.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    life::{Life, Then},
    link::Link,
    reason::{Private, Reason},
};

/// The state of a plugin, in the operator's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No process; a call wakes it.
    Dormant,
    /// On its way up.
    Starting,
    /// Open for calls.
    Active,
    /// Its last calls are running; no new ones.
    Draining,
    /// Its process is being ended.
    Stopping,
    /// Waiting before the next start.
    Backoff,
    /// Died too often, or in a way that another start would repeat.
    Quarantined,
    /// Stopped by the operator.
    Stopped,
    /// Off in the manifest.
    Disabled,
    /// Its manifest has faults.
    Invalid,
}

impl State {
    /// The word in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dormant => "dormant",
            Self::Starting => "starting",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Backoff => "backoff",
            Self::Quarantined => "quarantined",
            Self::Stopped => "stopped",
            Self::Disabled => "disabled",
            Self::Invalid => "invalid",
        }
    }

    pub(crate) fn of(life: Life) -> Self {
        match life {
            Life::Dormant => Self::Dormant,
            Life::Greeting | Life::Activating => Self::Starting,
            Life::Active => Self::Active,
            Life::Draining(_) => Self::Draining,
            Life::Stopping(Then::Start) => Self::Starting,
            Life::Stopping(_) => Self::Stopping,
            Life::Backoff => Self::Backoff,
            Life::Quarantined => Self::Quarantined,
            Life::Stopped => Self::Stopped,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A snapshot of one plugin for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct PluginStatus {
    /// The operator's name.
    pub name: String,
    /// Its own id and version, once known.
    pub id: Option<String>,
    /// See [`Self::id`].
    pub version: Option<String>,
    /// Where it is in its life.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// The process, if there is one.
    pub pid: Option<u32>,
    /// Since when it is in this state.
    #[serde(serialize_with = "epoch_ms")]
    pub since: SystemTime,
    /// When this state ends at the latest, if it does so by itself: the time for HELLO, for
    /// activation or for draining is over, or a backoff is.
    #[serde(serialize_with = "maybe_epoch_ms")]
    pub until: Option<SystemTime>,
    /// Since when the process runs, if there is one.
    #[serde(serialize_with = "maybe_epoch_ms")]
    pub up_since: Option<SystemTime>,
    /// How its last process ended, if one has.
    pub last_end: Option<Reason>,
    /// Which optional parts of the protocol both sides use; empty unless it is up. Without
    /// `async` it works on one call at a time and sees neither deadline nor cancellation.
    pub features: Vec<&'static str>,
    /// Processes started so far.
    pub starts: u64,
    /// Deaths that the restart budget still remembers.
    pub deaths: u32,
    /// Calls running in it or waiting for it.
    pub calls: usize,
    /// What was asked for and cannot be enforced here.
    pub degraded: Vec<String>,
    /// The end of its process's stderr, or of the last one's if none runs; confidential.
    #[serde(skip)]
    pub last_words: Private,
}

#[expect(clippy::ref_option, reason = "the signature is serde's")]
fn maybe_epoch_ms<S: serde::Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => epoch_ms(time, serializer),
        None => serializer.serialize_none(),
    }
}

fn epoch_ms<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let ms = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    serializer.serialize_u64(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// How long somebody waits to learn why a process has ended.
const VERDICT_GRACE: Duration = Duration::from_secs(4);

/// The condition in which it is known how a start ended; `None` if that takes longer
/// than anybody would wait.
pub(crate) async fn told(
    condition: &mut watch::Receiver<Arc<Condition>>,
    run: u64,
) -> Option<Arc<Condition>> {
    let known = condition.wait_for(|now| run < now.starts || now.end.run == run);
    Some(Arc::clone(&*timeout(VERDICT_GRACE, known).await.ok()?.ok()?))
}

/// How the last process that ended did so. Kept, since the next one may run by the time
/// that somebody asks.
#[derive(Debug)]
pub(crate) struct End {
    /// Which start it was, from 1; 0 if none has ended.
    pub(crate) run: u64,
    pub(crate) reason: Arc<Reason>,
    pub(crate) last_words: Private,
}

impl End {
    /// Nothing has run yet; why.
    pub(crate) fn none(reason: Arc<Reason>) -> Self {
        Self { run: 0, reason, last_words: Private::default() }
    }
}

/// What the keeper publishes and calls read.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) life: Life,
    /// Whether it can run at all.
    pub(crate) off: Option<Off>,
    pub(crate) reason: Arc<Reason>,
    pub(crate) since: SystemTime,
    /// When the state ends by itself, if it does.
    pub(crate) until: Option<Instant>,
    pub(crate) up_since: Option<SystemTime>,
    pub(crate) link: Option<Link>,
    pub(crate) pid: Option<u32>,
    pub(crate) starts: u64,
    pub(crate) end: Arc<End>,
    pub(crate) deaths: u32,
    pub(crate) peer: Option<(String, String)>,
}

impl Condition {
    pub(crate) fn state(&self) -> State {
        match self.off {
            None => State::of(self.life),
            Some(Off::Disabled) => State::Disabled,
            Some(Off::Invalid(_)) => State::Invalid,
        }
    }

    /// The last start that whoever comes now has nothing to do with.
    pub(crate) fn before(&self) -> u64 {
        if self.dies() { self.starts } else { self.end.run }
    }

    /// Whether start number `before`'s successor has died and no other follows by
    /// itself: whoever waited for it is told, and does not start one after the other.
    pub(crate) fn is_dead_since(&self, before: u64) -> bool {
        self.life == Life::Dormant && before < self.end.run && self.end.reason.code().is_some()
    }

    /// Whether an order for a start later than `after` comes too late: it was given when that
    /// one was on its way or up, which has died since. Who gave it is told of that, and
    /// another process would run for nobody.
    pub(crate) fn is_past(&self, after: u64) -> bool {
        self.is_dead_since(after) || self.dies() && after < self.starts
    }

    /// Whether it is going down to sleep because it died, so that who waited for it
    /// must not ask for another start.
    pub(crate) fn dies(&self) -> bool {
        matches!(self.life, Life::Draining(Then::Dormant) | Life::Stopping(Then::Dormant))
            && self.reason.code().is_some()
    }

    /// Whether it has died and the last word on why is still to come.
    pub(crate) fn is_dying(&self) -> bool {
        self.end.run < self.starts && self.reason.code().is_some()
    }

    /// Whether a call may wait for the plugin to become active.
    pub(crate) fn wakes(&self) -> bool {
        self.off.is_none() && self.life.wakes()
    }
}

/// Why a plugin has no keeper.
#[derive(Clone, Debug)]
pub(crate) enum Off {
    /// The manifest says so.
    Disabled,
    /// The manifest has faults; the first of them.
    Invalid(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plugin that has been started so often, and whose last explained end was that of this start.
    fn condition(life: Life, starts: u64, ended: u64, reason: Reason) -> Condition {
        let reason = Arc::new(reason);
        let end = End { run: ended, reason: Arc::clone(&reason), last_words: Private::default() };
        Condition {
            life,
            off: None,
            reason,
            since: SystemTime::UNIX_EPOCH,
            until: None,
            up_since: None,
            link: None,
            pid: None,
            starts,
            end: Arc::new(end),
            deaths: 0,
            peer: None,
        }
    }

    #[test]
    fn an_order_is_past_if_the_start_it_waited_for_has_died() {
        let dead = || Reason::Internal { what: "a test".into() };
        let dies = condition(Life::Stopping(Then::Dormant), 3, 2, dead());
        let died = condition(Life::Dormant, 3, 3, dead());
        for now in [&dies, &died] {
            assert!(now.is_past(2), "given while it was up");
            assert!(!now.is_past(3), "given when it was dead already");
        }
        let sleepy = condition(Life::Stopping(Then::Dormant), 3, 2, Reason::IdleStop);
        let asleep = condition(Life::Dormant, 3, 3, Reason::IdleStop);
        let starts = condition(Life::Greeting, 3, 2, Reason::StartingUp { greeted: false });
        for now in [&sleepy, &asleep, &starts] {
            assert!(!now.is_past(2), "nothing died");
        }
    }
}
