//! What happened, said once.
//!
//! Every fact goes to `tracing` and to the event stream; logs, metrics and traces
//! are views of this one enum. No fact holds a body, an argument, a result or a
//! line of stderr.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use plugbay_protocol::Level;
use tokio::{sync::broadcast, time::Instant};

use crate::{
    error::{CallError, Ran},
    reason::Reason,
    status::State,
};

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fact {
    /// A process was started.
    Spawned {
        /// Which plugin.
        plugin: Arc<str>,
        /// Its process.
        pid: u32,
    },
    /// Hands were shaken.
    Greeted {
        /// Which plugin.
        plugin: Arc<str>,
        /// Its own id.
        id: String,
        /// Its own version.
        version: String,
        /// Since the process was started.
        took: Duration,
    },
    /// A plugin changed its state.
    Became {
        /// Which plugin.
        plugin: Arc<str>,
        /// The new state.
        state: State,
        /// Why.
        reason: Arc<Reason>,
    },
    /// What was found when a plugin behind walls had ended.
    Remains {
        /// Which plugin.
        plugin: Arc<str>,
        /// Its process.
        pid: u32,
        /// Processes that were still there when its first one had ended, and were ended.
        left_behind: u32,
        /// Forks that were refused because it had as many processes as it may.
        refused: u64,
        /// Forks that were refused while it ran because all plugins together had as many
        /// processes as they may. Cgroups of version 2 do not say whose, from Linux 6.11 on.
        refused_to_all: u64,
        /// Processes of it that were killed because its memory was spent.
        killed: u64,
        /// Processor time of its first process and of the children that this waited for.
        cpu: Duration,
        /// The most memory that one of these had resident, in bytes.
        resident_bytes: u64,
    },
    /// A process is gone and cleared away.
    Exited {
        /// Which plugin.
        plugin: Arc<str>,
        /// Its process.
        pid: u32,
        /// How it ended, from evidence.
        reason: Arc<Reason>,
        /// The last rung of the stop ladder that was needed, if any.
        rung: Option<&'static str>,
    },
    /// The next start waits.
    Waiting {
        /// Which plugin.
        plugin: Arc<str>,
        /// How long.
        delay: Duration,
        /// Deaths so far within the budget's window.
        deaths: u32,
    },
    /// A call was sent to a plugin or a local tool.
    CallStarted {
        /// Its number, unique in this supervisor.
        call: u64,
        /// Which tool, by its registry name.
        tool: Arc<str>,
        /// Who called.
        caller: Arc<str>,
    },
    /// A call ended, one way or another.
    CallEnded {
        /// Its number.
        call: u64,
        /// Which tool.
        tool: Arc<str>,
        /// Who called.
        caller: Arc<str>,
        /// `ok`, `tool_error`, or the code of the error.
        outcome: &'static str,
        /// Whether it ran.
        ran: Ran,
        /// From the caller's call to its answer.
        took: Duration,
    },
    /// A caller gave a call up.
    CallDropped {
        /// Its number.
        call: u64,
        /// Which tool.
        tool: Arc<str>,
    },
    /// A plugin's own log line, without its words.
    Log {
        /// Which plugin.
        plugin: Arc<str>,
        /// How much it matters.
        level: Level,
        /// The event's name, a constant of the author's.
        event: String,
    },
    /// Something was dropped because there was too much of it.
    Dropped {
        /// Which plugin.
        plugin: Arc<str>,
        /// What: `log lines`, `stderr bytes`, or `refused connections`, which were refused
        /// and not told one by one.
        what: &'static str,
        /// How many since this was last said.
        count: u64,
    },
    /// A plugin wanted to connect to a host and may not. Said once for each host and
    /// process.
    Refused {
        /// Which plugin.
        plugin: Arc<str>,
        /// The host and the port.
        to: String,
        /// Why, in words that name it.
        why: String,
    },
    /// A tool is not listed.
    Withheld {
        /// Its registry name.
        tool: String,
        /// Whose it is.
        plugin: Arc<str>,
        /// Why.
        why: String,
    },
    /// The reader of this stream was too slow and missed this many events.
    Missed {
        /// How many.
        count: u64,
    },
}

impl Fact {
    /// The plugin that it is about. A call is told by its tool.
    pub fn plugin(&self) -> Option<&Arc<str>> {
        match self {
            Self::Spawned { plugin, .. }
            | Self::Greeted { plugin, .. }
            | Self::Became { plugin, .. }
            | Self::Remains { plugin, .. }
            | Self::Exited { plugin, .. }
            | Self::Waiting { plugin, .. }
            | Self::Log { plugin, .. }
            | Self::Dropped { plugin, .. }
            | Self::Refused { plugin, .. }
            | Self::Withheld { plugin, .. } => Some(plugin),
            Self::CallStarted { .. }
            | Self::CallEnded { .. }
            | Self::CallDropped { .. }
            | Self::Missed { .. } => None,
        }
    }
}

/// A fact with its place in time.
#[derive(Clone, Debug)]
pub struct Event {
    /// Increases by one with each event; a gap is always announced by [`Fact::Missed`].
    pub seq: u64,
    /// When.
    pub at: SystemTime,
    /// What.
    pub fact: Fact,
}

/// How many events a reader may lag behind before it misses some.
const EVENTS_KEPT: usize = 4096;

/// Where facts are said.
#[derive(Clone, Debug)]
pub(crate) struct Facts(Arc<Said>);

#[derive(Debug)]
struct Said {
    stream: broadcast::Sender<Event>,
    /// The next event's number. Held while it is sent, so that the order of the
    /// numbers is the order of the stream.
    seq: Mutex<u64>,
    /// Readers of the stream. The sender counts them too, under a lock, and every
    /// call asks.
    readers: AtomicUsize,
}

impl Facts {
    pub(crate) fn new() -> Self {
        let stream = broadcast::Sender::new(EVENTS_KEPT);
        Self(Arc::new(Said { stream, seq: Mutex::new(0), readers: AtomicUsize::new(0) }))
    }

    /// Says a fact. Never waits.
    pub(crate) fn say(&self, fact: Fact) {
        trace(&fact);
        if 0 < self.0.readers.load(Ordering::Acquire) {
            let mut next = self.0.seq.lock().unwrap_or_else(PoisonError::into_inner);
            let event = Event { seq: *next, at: SystemTime::now(), fact };
            *next += 1;
            // Fails only if the last reader left meanwhile.
            self.0.stream.send(event).ok();
        }
    }

    /// Whether anybody would see it, for facts that cost something to make.
    pub(crate) fn heard(&self) -> bool {
        0 < self.0.readers.load(Ordering::Acquire) || tracing::enabled!(tracing::Level::DEBUG)
    }

    pub(crate) fn events(&self) -> Events {
        let next = self.0.seq.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = self.0.stream.subscribe();
        self.0.readers.fetch_add(1, Ordering::AcqRel);
        Events { stream, next: *next, said: Arc::downgrade(&self.0) }
    }
}

/// Tells the facts of one call: started, and then exactly one of ended and dropped.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) began: Instant,
    /// `None` if nobody listens.
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    facts: Facts,
    call: u64,
    tool: Arc<str>,
    caller: Arc<str>,
    ended: bool,
}

impl Seen {
    pub(crate) fn begin(facts: &Facts, call: u64, tool: &Arc<str>, caller: &Arc<str>) -> Self {
        let told = facts.heard().then(|| Told {
            facts: facts.clone(),
            call,
            tool: Arc::clone(tool),
            caller: Arc::clone(caller),
            ended: false,
        });
        Self { began: Instant::now(), told }
    }

    pub(crate) fn started(&self) {
        if let Some(Told { facts, call, tool, caller, .. }) = &self.told {
            let (tool, caller) = (Arc::clone(tool), Arc::clone(caller));
            facts.say(Fact::CallStarted { call: *call, tool, caller });
        }
    }

    /// With one word for what came of it, or the error.
    pub(crate) fn end(&mut self, outcome: Result<&'static str, &CallError>) {
        let Some(Told { facts, call, tool, caller, ended }) = &mut self.told else { return };
        *ended = true;
        let (outcome, ran) = match outcome {
            Ok(word) => (word, Ran::Yes),
            Err(error) => (error.code(), error.ran()),
        };
        facts.say(Fact::CallEnded {
            call: *call,
            tool: Arc::clone(tool),
            caller: Arc::clone(caller),
            outcome,
            ran,
            took: self.began.elapsed(),
        });
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.ended {
            let tool = Arc::clone(&self.tool);
            self.facts.say(Fact::CallDropped { call: self.call, tool });
        }
    }
}

/// A stream of events. It never drops silently: what a slow reader misses is
/// announced as [`Fact::Missed`].
#[derive(Debug)]
pub struct Events {
    stream: broadcast::Receiver<Event>,
    next: u64,
    /// Weak, so that a reader does not keep the stream open.
    said: Weak<Said>,
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(said) = self.said.upgrade() {
            said.readers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Events {
    /// The next event; `None` once the supervisor is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        match self.stream.recv().await {
            Ok(event) => {
                self.next = event.seq + 1;
                Some(event)
            }
            Err(broadcast::error::RecvError::Lagged(count)) => {
                // It stands in the place of the first that was missed.
                let seq = self.next;
                self.next += count;
                Some(Event { seq, at: SystemTime::now(), fact: Fact::Missed { count } })
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

fn trace(fact: &Fact) {
    use tracing::{debug, info, warn};
    match fact {
        Fact::Spawned { plugin, pid } => info!(plugin = &**plugin, pid, "spawned"),
        Fact::Greeted { plugin, id, version, took } => {
            info!(plugin = &**plugin, id, version, ?took, "greeted");
        }
        Fact::Became { plugin, state, reason } => {
            info!(plugin = &**plugin, state = state.as_str(), reason = reason.kind(), "became");
        }
        Fact::Exited { plugin, pid, reason, rung } => {
            info!(plugin = &**plugin, pid, reason = %reason, rung, "exited");
        }
        Fact::Remains {
            plugin,
            pid,
            left_behind,
            refused,
            refused_to_all,
            killed,
            cpu,
            resident_bytes,
        } => {
            info!(
                plugin = &**plugin,
                pid,
                left_behind,
                refused,
                refused_to_all,
                killed,
                ?cpu,
                resident_bytes,
                "what remained"
            );
        }
        Fact::Waiting { plugin, delay, deaths } => {
            warn!(plugin = &**plugin, ?delay, deaths, "waiting before the next start");
        }
        Fact::CallStarted { call, tool, caller } => {
            debug!(call, tool = &**tool, caller = &**caller, "call started");
        }
        Fact::CallEnded { call, tool, caller, outcome, ran, took } => {
            debug!(call, tool = &**tool, caller = &**caller, outcome, ?ran, ?took, "call ended");
        }
        Fact::CallDropped { call, tool } => debug!(call, tool = &**tool, "call dropped"),
        Fact::Log { plugin, level, event } => match level {
            Level::Debug => debug!(plugin = &**plugin, event, "plugin says"),
            Level::Info => info!(plugin = &**plugin, event, "plugin says"),
            Level::Warn | Level::Error => warn!(plugin = &**plugin, event, "plugin says"),
        },
        Fact::Dropped { plugin, what, count } => {
            warn!(plugin = &**plugin, count, "dropped {what}");
        }
        Fact::Refused { plugin, to, why } => {
            warn!(plugin = &**plugin, to, why, "connection refused");
        }
        Fact::Withheld { tool, plugin, why } => {
            warn!(plugin = &**plugin, tool, why, "tool withheld");
        }
        Fact::Missed { .. } => {}
    }
}
