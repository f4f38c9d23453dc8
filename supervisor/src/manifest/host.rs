//! `plugbay.toml`: which plugins run, and what each is granted and limited to.
//!
//! It belongs to the operator. The comments on keys are also the descriptions in
//! the JSON Schema, so editors show them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;
use toml::de::DeValue;

use super::{
    codes::Code,
    names,
    plugin::{Access, Wire},
    read::{At, Map, Node, Read, Reader, in_order, keys, words},
    report::Problem,
    secrets::{self, SecretSource},
    shape,
    units::{BytesPerSecond, PerMinute, Percent, Size, Time, TimeOrNever},
};
use crate::plan::{Approval, Effect, IfMissing, Item, Level, RestartWhen};

keys! {
    /// Which plugins run, and what each is granted and limited to.
    struct HostFile {
        /// The version of this format: 1.
        manifest: shape::One,
        /// What holds for all plugins together.
        host: Option<Host>,
        /// What holds for each plugin that does not say otherwise.
        defaults: Option<Defaults>,
        /// The plugins, each under the name the operator gives it.
        plugins: Option<Plugins>,
    }

    /// What holds for all plugins together.
    struct Host {
        /// Where `${state}` of each plugin is.
        state_dir: Option<At<String>>,
        /// Memory of all plugins together, such as `2GiB`.
        memory: Option<At<Size>>,
        /// Processor time of all plugins together, such as `150%` of one core.
        cpu: Option<At<Percent>>,
        /// Processes of all plugins together.
        processes: Option<At<u32>>,
        /// The socket on which a running supervisor answers.
        control: Option<At<String>>,
    }

    /// What holds for each plugin that does not say otherwise.
    struct Defaults {
        /// Bounds.
        limits: Option<Limits>,
        /// Budgets of time.
        timeouts: Option<Timeouts>,
        /// What to do after a death.
        restart: Option<Restart>,
        /// When to start and when to let go.
        idle: Option<Idle>,
        /// How far it is closed in.
        sandbox: Option<Sandbox>,
        /// Who decides on calls, by effect.
        approve: Option<Approve>,
    }

    /// One plugin. It has `from` or `command`.
    #[derive(Default)]
    struct Plugin {
        /// A folder with a `plugin.toml`, relative to this file.
        from: Option<At<String>>,
        /// Without a `plugin.toml`: the program and its arguments. A program with a
        /// `/` is relative to this file, another is looked up in `PATH` once.
        command: Option<At<Vec<At<String>>>>,
        /// With `command`: what it speaks on stdin and stdout.
        wire: Option<At<Wire>>,
        /// `sha256:` and 64 digits: what its program must be or, of a command such as
        /// `["python3", "plugin.py"]`, the file that the interpreter is to run.
        digest: Option<At<String>>,
        /// Put before the names of its tools: `geo` makes `lookup` `geo_lookup`.
        prefix: Option<At<String>>,
        /// Whether it runs; true if it is not said.
        enabled: Option<At<bool>>,
        /// What it may do and use, out of what it asks for.
        grant: Option<At<Grant>>,
        /// Where its secrets come from.
        secrets: Option<Map<At<SecretSource>>>,
        /// Handed to the plugin when it is activated: any table.
        config: Option<At<Config>>,
        /// What calls to its tools do, where the operator knows better: a tool's
        /// name, or a start and `*`, and `read`, `draft` or `write`.
        effects: Option<Map<At<Effect>>>,
        /// Bounds.
        limits: Option<Limits>,
        /// Budgets of time.
        timeouts: Option<Timeouts>,
        /// What to do after a death.
        restart: Option<Restart>,
        /// When to start and when to let go.
        idle: Option<Idle>,
        /// How far it is closed in.
        sandbox: Option<Sandbox>,
        /// Who decides on calls, by effect.
        approve: Option<Approve>,
    }

    /// What a plugin may do and use, out of what it asks for.
    struct Grant {
        /// Tools that are listed: names, or a start and `*`. All of them if it is
        /// not said.
        tools: Option<Vec<At<String>>>,
        /// Hosts it may connect to: a host and a port each, such as
        /// `["api.example.org:443", "*.example.org:443"]`. Or `"all"`.
        net: Option<GrantNet>,
        /// Files and folders it may open, beside its own folder and the system's programs,
        /// which it may read.
        fs: Option<Vec<GrantFs>>,
        /// What it may ask the host to do: names, or a start and `*`.
        host: Option<Vec<At<String>>>,
        /// Environment variables it gets beside PATH, HOME, LANG, LC_ALL, TZ and
        /// TMPDIR.
        env: Option<Vec<At<String>>>,
    }

    /// A file or folder it may open.
    struct GrantFs {
        /// An absolute path, or one below `${state}`, a folder that is kept for this
        /// plugin, or `${workspace}`, the folder of this file.
        path: At<String>,
        /// What it may do there.
        access: At<Access>,
    }

    /// Bounds of one plugin.
    struct Limits {
        /// Memory of the process and its children, such as `256MiB`.
        memory: Option<At<Size>>,
        /// Processor time, such as `100%` of one core.
        cpu: Option<At<Percent>>,
        /// Processes and threads.
        processes: Option<At<u32>>,
        /// Open files of each process.
        open_files: Option<At<u32>>,
        /// The largest file it may write, such as `100MiB`.
        file: Option<At<Size>>,
        /// What it may keep in `${state}`, such as `100MiB`. Measured from time to time.
        state: Option<At<Size>>,
        /// The largest frame accepted, such as `1MiB`; at least `64KiB`.
        frame: Option<At<Size>>,
        /// The largest result handed on, such as `256KiB`.
        result: Option<At<Size>>,
        /// What to do with a larger result.
        overflow: Option<At<Overflow>>,
        /// Calls running at once.
        concurrency: Option<At<u32>>,
        /// Calls waiting; more are refused at once.
        queue: Option<At<u32>>,
        /// Calls per minute, such as `120/min`.
        calls: Option<At<PerMinute>>,
        /// Kept of what it writes to stderr, such as `64KiB/s`; the rest is counted
        /// and dropped.
        stderr: Option<At<BytesPerSecond>>,
    }

    /// Budgets of time of one plugin.
    struct Timeouts {
        /// From spawn to handshake done.
        start: Option<At<Time>>,
        /// From `plugin.activate` to its answer.
        activate: Option<At<Time>>,
        /// Silence within one call: no frame for it in this time.
        call: Option<At<Time>>,
        /// One call in total, however chatty the plugin is.
        call_max: Option<At<Time>>,
        /// From a cancel to the call's end; then the plugin counts as stuck.
        cancel: Option<At<Time>>,
        /// From `plugin.deactivate` to its answer.
        drain: Option<At<Time>>,
        /// From the goodbye to SIGKILL. Five eighths of it wait for the plugin to
        /// go by itself, one eighth after stdin is closed, a quarter after SIGTERM.
        stop: Option<At<Time>>,
    }

    /// What to do after a death.
    struct Restart {
        /// Which deaths are followed by a new start.
        when: Option<At<RestartWhen>>,
        /// The first wait; it doubles.
        first: Option<At<Time>>,
        /// The longest wait.
        max: Option<At<Time>>,
        /// How much of each wait is random, from 0 to 1.
        jitter: Option<At<f64>>,
        /// Deaths forgiven; one more and the plugin is quarantined.
        budget: Option<At<Budget>>,
        /// Active for this long resets the wait and the budget.
        healthy: Option<At<Time>>,
    }

    /// Deaths forgiven within a time.
    struct Budget {
        /// How many.
        restarts: At<u32>,
        /// Within which time.
        within: At<Time>,
    }

    /// When to start and when to let go.
    struct Idle {
        /// With the supervisor, or with its first call.
        start: Option<At<StartAt>>,
        /// Stopped after this long without a call, or `never`.
        stop: Option<At<TimeOrNever>>,
    }

    /// How far a plugin is closed in.
    struct Sandbox {
        /// How far: `none`, `standard` or `strict`.
        level: Option<At<Level>>,
        /// What to do where something that is written cannot be enforced here: `refuse`,
        /// if it is not said.
        if_missing: Option<At<IfMissing>>,
        /// What the plugin may run without, whatever `if_missing` says.
        prefer: Option<Vec<At<Item>>>,
        /// A folder for temporary files that no other process sees.
        private_tmp: Option<At<bool>>,
    }

    /// Who decides on calls, by effect.
    struct Approve {
        /// For tools that only look.
        read: Option<At<Approval>>,
        /// For tools that prepare a change.
        draft: Option<At<Approval>>,
        /// For tools that change something.
        write: Option<At<Approval>>,
    }
}

/// What to do with a result over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    Offload,
    Truncate,
    Fail,
}

/// What a plugin's process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAt {
    Call,
    Boot,
}

words! {
    Overflow as "Overflow" { Offload = "offload", Truncate = "truncate", Fail = "fail", }
    StartAt as "StartAt" { Call = "on-call", Boot = "at-boot", }
    Level as "Level" { None = "none", Standard = "standard", Strict = "strict", }
    IfMissing as "IfMissing" { Refuse = "refuse", Warn = "warn", }
    Item as "Item" {
        Tree = "tree", Files = "files", Network = "network", Calls = "calls", Memory = "memory",
        Cpu = "cpu", Processes = "processes",
    }
    RestartWhen as "RestartWhen" {
        Never = "never", OnFailure = "on-failure", Always = "always",
    }
    Approval as "Approval" { Allow = "allow", Ask = "ask", Deny = "deny", }
}

/// The table of plugins. A faulty one does not take the others with it.
#[derive(Clone, Debug)]
pub(crate) struct Plugins(pub(crate) Vec<(At<String>, Option<At<Plugin>>)>);

impl Read for Plugins {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Table(table) = node.get_ref() else {
            reader.wrong_type(node, "a table for each plugin, such as [plugins.geocode]");
            return None;
        };
        let entries = in_order(table).into_iter().map(|(key, value)| {
            let name = At::new(key.get_ref().to_string(), key.span());
            reader.plugin = Some(name.value.clone());
            let plugin = reader.named(&name.clone(), |reader| At::read(value, reader));
            reader.plugin = None;
            (name, plugin)
        });
        Some(Self(entries.collect()))
    }
}

impl JsonSchema for Plugins {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Plugins".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let plugin = generator.subschema_for::<Plugin>();
        schemars::json_schema!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,63}$" },
            "additionalProperties": plugin,
        })
    }
}

/// Hosts that may be connected to.
#[derive(Clone, Debug)]
pub(crate) enum GrantNet {
    /// Every one; the word where it stands.
    All(At<String>),
    Hosts(Vec<At<String>>),
}

impl GrantNet {
    pub(crate) fn words(&self) -> &[At<String>] {
        match self {
            Self::All(word) => std::slice::from_ref(word),
            Self::Hosts(hosts) => hosts,
        }
    }
}

impl Read for GrantNet {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        match node.get_ref() {
            DeValue::String(word) if &**word == names::ALL_HOSTS => {
                At::read(node, reader).map(Self::All)
            }
            _ => Vec::read(node, reader).map(Self::Hosts),
        }
    }
}

impl JsonSchema for GrantNet {
    fn schema_name() -> Cow<'static, str> {
        "GrantNet".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                { "const": names::ALL_HOSTS, "description": "Every host." },
                {
                    "type": "array",
                    "items": { "type": "string" },
                    "description": "A host and a port each; `*.` stands for the start of a name.",
                },
            ],
        })
    }
}

/// Any table, as JSON.
#[derive(Clone, Debug)]
pub(crate) struct Config(pub(crate) Value);

impl Read for Config {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        if !node.get_ref().is_table() {
            reader.wrong_type(node, "a table");
            return None;
        }
        let mut found = Vec::new();
        secrets::literals(node, "", &mut |key, span| found.push((key.to_owned(), span)));
        for (key, span) in found {
            let message = format!("the setting `{key}` looks like a secret");
            let problem = Problem::warning(Code::PB0310, message);
            reader.note(
                problem
                    .at(reader.source, &span, "settings are shown and logged (not shown here)")
                    .help("move it under [plugins.NAME.secrets] as a reference"),
            );
        }
        shape::json(node, reader).map(Self)
    }
}

impl JsonSchema for Config {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Config".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "object" })
    }
}
