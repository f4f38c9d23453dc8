//! What goes over the control socket: one request, then lines of reply. All of it is JSON,
//! one value a line; `docs/control.md` says it in prose.

use plugbay_supervisor::{PluginStatus, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of this protocol. Keys may be added within one.
pub(crate) const VERSION: u32 = 1;
/// The longest request, in bytes: a tool's arguments are part of it.
pub(crate) const REQUEST_MAX: u64 = 16 << 20;

/// What a client asks for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// All plugins, as they are.
    Ps,
    /// Everything that is known about one.
    Why { plugin: String },
    /// What plugins have said on stderr and what happened to them, the newest last.
    Logs {
        plugin: Option<String>,
        /// How many of those that are kept.
        #[serde(default)]
        lines: Option<usize>,
        /// Whether to go on with what follows.
        #[serde(default)]
        follow: bool,
    },
    /// A new process, and wait until it is ready.
    Restart { plugin: String },
    /// Down until it is resumed, and wait until it is.
    Stop { plugin: String },
    /// Lift a stop or a quarantine.
    Resume { plugin: String },
    /// The limits and timeouts of one plugin.
    Limits { plugin: String },
    /// Change some of them: pairs of key and value.
    SetLimits { plugin: String, set: Vec<(String, String)> },
    /// The bounds on all plugins together.
    Ceilings,
    /// Change some of them: pairs of key and value.
    SetCeilings { set: Vec<(String, String)> },
    /// All tools.
    Tools,
    /// One tool.
    Find { tool: String, deadline_ms: Option<u64> },
    /// Call one tool.
    Call { tool: String, args: Map<String, Value>, deadline_ms: Option<u64>, idle_ms: Option<u64> },
}

/// One line of a reply.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line of every connection, before anything is asked.
    Hello(Hello),
    /// One of many.
    Item(Value),
    /// The answer. Last.
    End(Value),
    /// Why there is none. Last.
    Error(Value),
}

/// Who answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Hello {
    /// The version of this protocol.
    pub(crate) control: u32,
    /// That of the program.
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// What it runs, in words.
    pub(crate) from: String,
}

impl Hello {
    /// Who we are, and what we run.
    pub(crate) fn new(from: &str) -> Self {
        Self {
            control: VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            from: from.into(),
        }
    }
}

/// One plugin, as it is looked at.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Look {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) state: State,
    pub(crate) reason: Said,
    pub(crate) pid: Option<u32>,
    pub(crate) since: u64,
    pub(crate) until: Option<u64>,
    pub(crate) up_since: Option<u64>,
    pub(crate) starts: u64,
    /// Running or waiting now.
    pub(crate) calls: usize,
    pub(crate) degraded: Vec<String>,
    /// Calls that have ended since the daemon began.
    pub(crate) calls_ended: u64,
    /// Resident memory of its process group, in bytes.
    pub(crate) memory: Option<u64>,
}

impl Look {
    /// Whether a call may go ahead or wake it.
    pub(crate) fn takes_calls(&self) -> bool {
        matches!(self.state, State::Dormant | State::Starting | State::Active | State::Draining)
    }

    /// What a client is sent.
    pub(crate) fn of(status: &PluginStatus, calls_ended: u64, memory: Option<u64>) -> Value {
        let mut value = serde_json::json!(status);
        value["calls_ended"] = calls_ended.into();
        value["memory"] = memory.into();
        value
    }
}

/// One limit or budget of time, as it is shown.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Bound {
    pub(crate) key: String,
    pub(crate) value: String,
    /// `default`, `manifest` or `changed`.
    pub(crate) from: String,
    /// What it was before it was changed.
    pub(crate) was: Option<String>,
    /// Whether a change of it holds from the next call on, and not only from the next process.
    pub(crate) at_once: bool,
    /// What the system holds the process to that runs, if it bounds such a thing.
    #[serde(default)]
    pub(crate) holds: Option<String>,
    /// What that process uses now.
    #[serde(default)]
    pub(crate) used: Option<String>,
    /// Why the value does not hold before the next process.
    #[serde(default)]
    pub(crate) refused: Option<String>,
    /// Of a bound on all plugins together: what the limits of each add up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) promised: Option<String>,
}

/// A reason, as it is said.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Said {
    pub(crate) code: Option<String>,
    pub(crate) text: String,
}

/// How one process ended.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct End {
    pub(crate) at_ms: u64,
    pub(crate) pid: u32,
    /// How long it had lived.
    pub(crate) lived_ms: Option<u64>,
    pub(crate) code: Option<String>,
    pub(crate) text: String,
    /// What it printed or said that is the reason, if that is known.
    pub(crate) private: Option<String>,
    /// What it was doing when it did not answer, if that is why it was ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<serde_json::Value>,
    pub(crate) rung: Option<String>,
    /// The last lines of its stderr.
    pub(crate) words: Vec<String>,
}

/// One thing that is worth a line in the log.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    pub(crate) at_ms: u64,
    pub(crate) plugin: String,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// What it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// A line of the plugin's stderr.
    Stderr(String),
    /// Something that happened to the plugin.
    Event(String),
    /// So many records came faster than they were taken.
    Missed(u64),
}
