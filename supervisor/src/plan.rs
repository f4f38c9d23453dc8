//! What to run and under which rules, as plain data.
//!
//! A plan is what manifests become once they have been checked, and what an
//! embedder builds in code. Mechanism never reads a file, an environment
//! variable or a default of its own: every number an operator may want
//! differently is a field here, and every default stands in one place with the
//! sentence that motivates it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use crate::{manifest::names::covers, peer::Peer};

/// Everything one supervisor runs.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The plugins, in the order of the file.
    pub plugins: Vec<PluginPlan>,
    /// Bounds on all of them together.
    pub ceilings: Ceilings,
}

/// Bounds on all plugins of one supervisor together, each of which may be promised more: they
/// are met when the plugins use that much, and not when they may. They hold those that have a
/// sandbox; without a number there is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Memory, in bytes; at the bound the system ends the plugin that uses the most.
    pub memory_bytes: Option<u64>,
    /// Processor time per time, in percent of one core; at the bound all wait for the next period,
    /// a tenth of a second.
    pub cpu_percent: Option<u32>,
    /// Processes and threads; at the bound nobody can start one.
    pub processes: Option<u32>,
}

impl Ceilings {
    /// These, and `others` where these have no bound.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            cpu_percent: self.cpu_percent.or(others.cpu_percent),
            processes: self.processes.or(others.processes),
        }
    }
}

/// One plugin: how to start it, what it offers, what it is granted.
#[derive(Clone, Debug)]
pub struct PluginPlan {
    /// The operator's name for it (`[plugins.NAME]`); unique in a plan.
    pub name: String,
    /// Program and arguments. The program is an absolute path: it is never
    /// looked up again, and never run by a shell.
    pub command: Vec<String>,
    /// The directory it runs in; absolute.
    pub dir: PathBuf,
    /// What the file that is run must be; it is compared at each start, and what was
    /// compared is what runs.
    pub digest: Option<Digest>,
    /// The whole environment of the process; nothing else is inherited.
    pub env: BTreeMap<String, String>,
    /// The plugin's own id and version, where a `plugin.toml` names them. The
    /// handshake must then agree.
    pub identity: Option<(String, String)>,
    /// The tools it may put into the registry. Empty with [`Self::discover`]:
    /// then they are learnt from its first handshake.
    pub tools: Vec<ToolPlan>,
    /// Whether tools that only the handshake names may be listed. True for a
    /// bare command line, false for a manifest: there, the file is the law.
    pub discover: bool,
    /// Put before each tool's name, with `_` between (`geo` + `lookup` =
    /// `geo_lookup`).
    pub prefix: Option<String>,
    /// Which of its tools are granted: exact names, or a trailing `*`.
    pub grant_tools: Vec<String>,
    /// What calls to its tools do, in the operator's word: a name, or a start and
    /// `*`. The first that covers a tool wins over what the plugin itself says,
    /// also for tools learnt from a handshake.
    pub effects: Vec<(String, Effect)>,
    /// Scopes (names of reverse methods) it asked for and was granted.
    pub grant_scopes: Vec<String>,
    /// Handed over in `plugin.activate`.
    pub config: Value,
    /// Secrets, handed over in `plugin.activate` and nowhere else.
    pub secrets: BTreeMap<String, Secret>,
    /// Bounds.
    pub limits: Limits,
    /// How far it is closed in.
    pub sandbox: Sandbox,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// What to do after a death.
    pub restart: Restart,
    /// When to start and when to let go.
    pub idle: Idle,
    /// Who decides on calls by effect.
    pub approve: Approve,
    /// Whether it runs at all (`enabled = false` lists it as disabled).
    pub enabled: bool,
    /// What was written in the manifest and cannot be enforced here, in words
    /// for the operator. Shown wherever the plugin is shown.
    pub degraded: Vec<String>,
}

/// What a file must be to be run. `Display` is the word of manifests: `sha256:` and 64 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// SHA-256 of its content.
    pub sha256: [u8; 32],
    /// Which word of the command names it: 0 is the program, another what an interpreter
    /// is to run, which is seen from [`PluginPlan::dir`].
    pub word: usize,
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.sha256.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A secret value. It can be handed over and not be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// One tool as the registry will list it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolPlan {
    /// The plugin's own name for it.
    pub name: String,
    /// One or two sentences for the model.
    pub description: String,
    /// JSON Schema 2020-12 of the arguments; the root is an object.
    pub input_schema: Value,
    /// JSON Schema 2020-12 of `data` in the result, if promised.
    pub output_schema: Option<Value>,
    /// What a call does to the world.
    pub effect: Effect,
    /// Whether a call that may have run may be sent again.
    pub idempotent: bool,
}

/// What a call does to the world. Unknown means [`Effect::Write`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Looks, and changes nothing.
    Read,
    /// Prepares a change that somebody else must confirm.
    Draft,
    /// Changes something.
    #[default]
    Write,
}

impl Effect {
    /// The word used in manifests, on the wire and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Draft => "draft",
            Self::Write => "write",
        }
    }
}

/// How far a plugin is closed in, and what it may reach nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// How far.
    pub level: Level,
    /// What to do where this machine cannot hold it to something.
    pub if_missing: IfMissing,
    /// Items that it runs without, whatever [`Self::if_missing`] says.
    pub prefer: Vec<Item>,
    /// Whether its `/tmp` is its own, and empty at each start.
    pub private_tmp: bool,
    /// Files and folders it may reach, beside its own folder and the system's programs
    /// and libraries, which it may read.
    pub files: Vec<FileGrant>,
    /// What it may connect to.
    pub network: Network,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            level: Level::None,
            if_missing: IfMissing::Refuse,
            prefer: Vec::new(),
            private_tmp: true,
            files: Vec::new(),
            network: Network::None,
        }
    }
}

/// How far a plugin is closed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Not at all: it can do what the host's user can.
    #[default]
    None,
    /// Files, network, other processes and dangerous system calls are out of its reach.
    Standard,
    /// The same, and of the system calls only those that ordinary programs need; and
    /// every wall stands twice where the system has two kinds.
    Strict,
}

impl Level {
    /// The word in manifests and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::Strict => "strict",
        }
    }
}

/// What to do where a machine cannot hold a plugin to something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfMissing {
    /// The plugin does not run.
    #[default]
    Refuse,
    /// It runs, and what it lacks is shown wherever it is shown.
    Warn,
}

/// Something that a plugin is held to, and that a machine may be unable to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Whatever it starts ends with it.
    Tree,
    /// It reaches no file that it was not granted.
    Files,
    /// It reaches no network that it was not granted.
    Network,
    /// It makes no dangerous system call.
    Calls,
    /// `limits.memory` and `host.memory`.
    Memory,
    /// `limits.cpu` and `host.cpu`.
    Cpu,
    /// `limits.processes` and `host.processes`.
    Processes,
}

impl Item {
    /// What it means, to follow a plugin's name.
    pub fn about(self) -> &'static str {
        match self {
            Self::Tree => "whatever it starts ends with it, and with plugbay",
            Self::Files => "it reaches no file that it was not granted",
            Self::Network => "it reaches no network that it was not granted",
            Self::Calls => "it makes no dangerous system call",
            Self::Memory => {
                "limits.memory holds, for all its processes, and host.memory for all plugins"
            }
            Self::Cpu => "limits.cpu holds, and host.cpu for all plugins",
            Self::Processes => "limits.processes holds, and host.processes for all plugins",
        }
    }

    /// The word in manifests and in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Files => "files",
            Self::Network => "network",
            Self::Calls => "calls",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Processes => "processes",
        }
    }
}

/// The variable that names the folder which is kept for a plugin.
pub const STATE: &str = "PLUGBAY_STATE";

/// A file or folder that a plugin may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileGrant {
    /// Absolute. It must be there when the plugin starts.
    pub path: PathBuf,
    /// Whether it may change it, or only read and execute.
    pub write: bool,
    /// Whether it is made, a folder for its owner alone, if it is not there.
    pub make: bool,
}

/// What a plugin may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Nothing, not even this machine.
    #[default]
    None,
    /// These hosts, by way of a proxy that the plugin finds in `HTTPS_PROXY` and its kin.
    Hosts(Vec<Peer>),
    /// Everything that the host can.
    All,
}

/// Bounds. Those of the system's resources hold from [`Level::Standard`] on; without a
/// number there is no bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Memory of all its processes together, in bytes; what is in its `/tmp` counts.
    pub memory_bytes: Option<u64>,
    /// Processor time per time, in percent of one core.
    pub cpu_percent: Option<u32>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// Open files of each process.
    pub open_files: Option<u32>,
    /// The largest file it may write, in bytes.
    pub file_bytes: Option<u64>,
    /// What it may keep in its state folder, in bytes. Measured from time to time, at every
    /// [`Level`]: a plugin that keeps more is ended, and not started again before an operator
    /// resumes it.
    pub state_bytes: Option<u64>,
    /// Largest frame accepted from the plugin, in bytes. One frame is at most
    /// in memory twice, so this times two bounds the read side.
    pub frame_bytes: u32,
    /// Largest result handed to the caller, in bytes of MessagePack.
    pub result_bytes: usize,
    /// Calls running in the plugin at once (and never more than the plugin
    /// itself announces).
    pub concurrency: usize,
    /// Calls waiting for a slot; more are refused at once.
    pub queue: usize,
    /// Calls per minute, if bounded.
    pub calls_per_minute: Option<u32>,
    /// Bytes of stderr kept for `why`, and the rate above which bytes are
    /// counted and dropped (per second).
    pub stderr_tail_bytes: usize,
    /// See [`Self::stderr_tail_bytes`].
    pub stderr_bytes_per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            cpu_percent: None,
            processes: None,
            open_files: None,
            file_bytes: None,
            state_bytes: None,
            frame_bytes: 1 << 20,
            // A model reads about 64 k tokens from this; more is not a result, it is a file.
            result_bytes: 256 << 10,
            concurrency: 8,
            queue: 32,
            calls_per_minute: None,
            stderr_tail_bytes: 64 << 10,
            stderr_bytes_per_second: 64 << 10,
        }
    }
}

/// Budgets, all of them finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Spawn to handshake done.
    pub hello: Duration,
    /// `plugin.activate` sent to answered.
    pub activate: Duration,
    /// Silence: no frame for this call in this time.
    pub call_idle: Duration,
    /// A call's total, however chatty the plugin is.
    pub call: Duration,
    /// CANCEL sent to END received; after it the plugin counts as stuck.
    pub cancel_grace: Duration,
    /// `plugin.deactivate` sent to answered.
    pub drain: Duration,
    /// CLOSE sent to process gone.
    pub exit_grace: Duration,
    /// stdin closed to process gone.
    pub eof_grace: Duration,
    /// SIGTERM to process gone; SIGKILL follows.
    pub term_grace: Duration,
    /// Silence on the whole connection before a PING is sent.
    pub ping_after: Duration,
    /// PING sent to any byte received.
    pub ping_dead: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            activate: Duration::from_secs(30),
            call_idle: Duration::from_secs(30),
            call: Duration::from_secs(600),
            cancel_grace: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            exit_grace: Duration::from_secs(5),
            eof_grace: Duration::from_secs(1),
            term_grace: Duration::from_secs(2),
            ping_after: Duration::from_secs(10),
            ping_dead: Duration::from_secs(20),
        }
    }
}

/// What to do after a death.
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// Which deaths are followed by a new start.
    pub when: RestartWhen,
    /// The first wait; it doubles.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// How much of each wait is random: `0.2` is plus or minus 20 %.
    pub jitter: f64,
    /// Deaths forgiven within [`Self::within`]; one more and the plugin is
    /// quarantined until an operator resumes it.
    pub budget: u32,
    /// See [`Self::budget`].
    pub within: Duration,
    /// Active for this long resets the wait and the budget.
    pub healthy: Duration,
}

/// Which deaths are followed by a new start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartWhen {
    /// None: the next call wakes it, or nothing does.
    Never,
    /// Those that nobody asked for.
    OnFailure,
    /// Every one but a stop by the operator.
    Always,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            when: RestartWhen::OnFailure,
            first: Duration::from_millis(250),
            max: Duration::from_secs(30),
            jitter: 0.2,
            budget: 5,
            within: Duration::from_secs(600),
            healthy: Duration::from_secs(30),
        }
    }
}

/// When to start and when to let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Whether it starts with the supervisor or with its first call.
    pub start_at_boot: bool,
    /// Stopped after this long without a call; `None` never.
    pub stop_after: Option<Duration>,
}

impl Default for Idle {
    fn default() -> Self {
        Self { start_at_boot: false, stop_after: Some(Duration::from_secs(300)) }
    }
}

/// Who decides on calls, by effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approve {
    /// For tools that only look.
    pub read: Approval,
    /// For tools that prepare.
    pub draft: Approval,
    /// For tools that change.
    pub write: Approval,
}

impl Default for Approve {
    fn default() -> Self {
        Self { read: Approval::Allow, draft: Approval::Allow, write: Approval::Ask }
    }
}

impl Approve {
    /// The rule for one effect.
    pub fn rule(&self, effect: Effect) -> Approval {
        match effect {
            Effect::Read => self.read,
            Effect::Draft => self.draft,
            Effect::Write => self.write,
        }
    }
}

/// One such decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Goes ahead.
    Allow,
    /// Somebody is asked; without anybody to ask it is denied.
    Ask,
    /// Never.
    Deny,
}

impl PluginPlan {
    /// The folder that is kept for it, if it has one.
    pub(crate) fn state(&self) -> Option<&Path> {
        self.env.get(STATE).map(Path::new)
    }

    /// Whether a tool, by the plugin's own name for it, is granted.
    pub(crate) fn grants(&self, tool: &str) -> bool {
        self.grant_tools.iter().any(|pattern| covers(pattern, tool))
    }

    /// A plan for one program under the default rules: no scope, no secret, the
    /// tools it names itself, no effect beyond what the caller may do.
    pub fn new(name: impl Into<String>, command: Vec<String>, dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            command,
            dir: dir.into(),
            digest: None,
            env: BTreeMap::new(),
            identity: None,
            tools: Vec::new(),
            discover: true,
            prefix: None,
            grant_tools: vec!["*".into()],
            effects: Vec::new(),
            grant_scopes: Vec::new(),
            config: Value::Object(serde_json::Map::new()),
            secrets: BTreeMap::new(),
            limits: Limits::default(),
            sandbox: Sandbox::default(),
            timeouts: Timeouts::default(),
            restart: Restart::default(),
            idle: Idle::default(),
            approve: Approve::default(),
            enabled: true,
            degraded: Vec::new(),
        }
    }
}
