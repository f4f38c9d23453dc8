//! `plugin.toml`: who a plugin is, what it provides and what it asks for.
//!
//! It ships with the plugin and grants nothing. The comments on keys are also
//! the descriptions in the JSON Schema, so editors show them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;
use toml::de::DeValue;

use super::{
    read::{At, Map, Node, Read, Reader, keys, words},
    shape,
    units::{Size, Time},
};
use crate::plan::Effect;

keys! {
    /// What a plugin is, provides and asks for. Nothing in it grants anything.
    struct PluginFile {
        /// The version of this format: 1.
        manifest: shape::One,
        /// Who it is.
        plugin: At<Identity>,
        /// How it is started.
        run: At<Run>,
        /// What it offers. The registry is filled from here, so a plugin that has
        /// never been started is already listed.
        provides: Option<Vec<At<Provide>>>,
        /// What it asks for. Nothing is granted until an operator grants it.
        asks: Option<Asks>,
        /// What it needs to work well. An operator may set less.
        needs: Option<Needs>,
    }

    /// Who a plugin is.
    struct Identity {
        /// An owner and a name joined by a dot, such as `acme.geocode`; at most 64
        /// of `a` to `z`, digits, `-` and `.`.
        id: At<String>,
        /// A semantic version, such as `1.4.0`.
        version: At<String>,
        /// A name for people.
        title: Option<At<String>>,
        /// What it does, in a sentence.
        description: Option<At<String>>,
        /// An SPDX expression, such as `MIT OR Apache-2.0`.
        license: Option<At<String>>,
        /// Where to read more.
        homepage: Option<At<String>>,
        /// The major version of the frame protocol it was built for: `1`.
        protocol: Option<At<String>>,
    }

    /// How a plugin is started.
    struct Run {
        /// The program and its arguments; never a shell line. A program with a `/`
        /// is relative to this file, another is looked up in `PATH` once.
        command: At<Vec<At<String>>>,
        /// What it speaks on stdin and stdout.
        wire: Option<At<Wire>>,
        /// Another command for one operating system: `[run.on.windows]`.
        on: Option<Map<At<RunOn>>>,
    }

    /// The command for one operating system.
    struct RunOn {
        /// The program and its arguments.
        command: At<Vec<At<String>>>,
    }

    /// One thing a plugin offers.
    struct Provide {
        /// What kind of thing; this version offers tools.
        kind: At<Kind>,
        /// Its name: a letter, then up to 63 letters, digits, `_` or `-`.
        name: At<String>,
        /// What a call does to the world; `write` if it is not said.
        effect: Option<At<Effect>>,
        /// Whether a call may be repeated when nobody knows if it ran.
        idempotent: Option<At<bool>>,
        /// One or two sentences for the model that chooses a tool.
        description: Option<At<String>>,
        /// Other words people use for it.
        synonyms: Option<Vec<At<String>>>,
        /// JSON Schema 2020-12 of the arguments: a file, or the schema itself as a
        /// table. Its root is an object.
        input: Option<At<SchemaSource>>,
        /// JSON Schema 2020-12 of the result's data.
        output: Option<At<SchemaSource>>,
    }

    /// What a plugin asks for.
    struct Asks {
        /// Hosts it connects to.
        net: Option<Vec<AskNet>>,
        /// Files and folders it opens.
        fs: Option<Vec<AskFs>>,
        /// Things it wants the host to do.
        host: Option<Vec<AskHost>>,
        /// Environment variables it reads.
        env: Option<Vec<AskEnv>>,
        /// Secrets it needs.
        secret: Option<Vec<AskSecret>>,
    }

    /// A host it connects to.
    struct AskNet {
        /// A host and a port, such as `api.example.org:443` or `*.example.org:443`; or
        /// `all`, which means every host.
        to: At<String>,
        /// Why, for the operator who decides.
        why: Option<At<String>>,
    }

    /// A file or folder it opens.
    struct AskFs {
        /// An absolute path, or one below `${state}` or `${workspace}`.
        path: At<String>,
        /// What it does there.
        access: At<Access>,
        /// Why, for the operator who decides.
        why: Option<At<String>>,
    }

    /// A thing it wants the host to do.
    struct AskHost {
        /// The name of the host's method, such as `kv.get`.
        call: At<String>,
        /// Why, for the operator who decides.
        why: Option<At<String>>,
    }

    /// An environment variable it reads.
    struct AskEnv {
        /// The variable's name.
        name: At<String>,
        /// Why, for the operator who decides.
        why: Option<At<String>>,
    }

    /// A secret it needs.
    struct AskSecret {
        /// The name under which it is handed over at activation.
        name: At<String>,
        /// Why, for the operator who decides.
        why: Option<At<String>>,
        /// Whether the plugin works without it; false if it is not said.
        optional: Option<At<bool>>,
    }

    /// What it needs to work well.
    struct Needs {
        /// Memory, such as `96MiB`.
        memory: Option<At<Size>>,
        /// From its start to its handshake, such as `2s`.
        start: Option<At<Time>>,
        /// The longest silence within one call, such as `5s`.
        call: Option<At<Time>>,
    }
}

/// What a plugin speaks on stdin and stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Frames,
    Mcp,
}

/// What kind of thing is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tool,
    Model,
    Policy,
    Memory,
    Sandbox,
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

words! {
    Wire as "Wire" { Frames = "frames", Mcp = "mcp", }
    Kind as "Kind" {
        Tool = "tool", Model = "model", Policy = "policy", Memory = "memory", Sandbox = "sandbox",
    }
    Access as "Access" { Read = "read", ReadWrite = "read-write", }
    Effect as "Effect" { Read = "read", Draft = "draft", Write = "write", }
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Model => "model",
            Self::Policy => "policy",
            Self::Memory => "memory",
            Self::Sandbox => "sandbox",
        }
    }
}

impl Access {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadWrite => "read-write",
        }
    }

    /// Whether who may do this may also do `wanted`.
    pub(crate) fn covers(self, wanted: Self) -> bool {
        self == Self::ReadWrite || wanted == Self::Read
    }
}

/// A JSON Schema, or the file that has it.
#[derive(Clone, Debug)]
pub(crate) enum SchemaSource {
    /// Relative to the manifest.
    File(String),
    /// Written in place.
    Inline(Value),
}

impl Read for SchemaSource {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        match node.get_ref() {
            DeValue::String(path) => Some(Self::File(path.to_string())),
            DeValue::Table(_) => shape::json(node, reader).map(Self::Inline),
            _ => {
                reader.wrong_type(node, "the path of a JSON Schema, or the schema as a table");
                None
            }
        }
    }
}

impl JsonSchema for SchemaSource {
    fn schema_name() -> Cow<'static, str> {
        "SchemaSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "string", "description": "A file, relative to this one." },
                { "type": "object", "description": "The schema itself." },
            ],
        })
    }
}
