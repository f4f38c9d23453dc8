//! The bodies of the standard methods, as plain data.
//!
//! These are the spec's nouns and have no behaviour. They are serialised as
//! maps with string keys (`rmp_serde::to_vec_named`); this crate never encodes
//! or decodes them itself, because a conversation does not look into bodies.

use alloc::{
    borrow::{Cow, ToOwned},
    collections::BTreeMap,
    string::String,
    vec::Vec,
};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;

use crate::msgpack::{self, Writer};

/// What a plugin offers and wants: the body of its HELLO.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// What it offers.
    #[serde(default)]
    pub provides: Vec<Provide>,
    /// The scopes it would use.
    #[serde(default)]
    pub wants: Vec<String>,
}

/// One thing a plugin offers. Fields that a kind does not have stay empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provide {
    /// `tool`, or a kind that this version passes over.
    pub kind: String,
    /// Unique within its kind.
    pub name: String,
    /// One or two sentences for the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// JSON Schema 2020-12 of the arguments.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input_schema: Value,
    /// JSON Schema 2020-12 of `data` in the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// `read`, `draft` or `write`; anything else counts as `write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Whether a call that may have run may be sent again.
    #[serde(default)]
    pub idempotent: bool,
}

/// Arguments of `plugin.activate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activate {
    /// The scopes granted.
    #[serde(default)]
    pub grant: Vec<String>,
    /// The operator's configuration.
    #[serde(default)]
    pub config: Value,
    /// Secrets by name. They exist here and nowhere else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
}

/// Result of `plugin.activate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activated {
    /// What is offered under this configuration; absent: as in HELLO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provides: Option<Vec<Provide>>,
}

/// Arguments of `plugin.deactivate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deactivate {
    /// Refuse with `pb.busy` instead of draining if there is work.
    #[serde(default)]
    pub if_idle: bool,
}

/// Arguments of `tool.call`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool's own name.
    pub name: String,
    /// Its arguments: an object.
    #[serde(default)]
    pub args: Value,
}

/// Result of `tool.call`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// What the model sees.
    #[serde(default)]
    pub content: Vec<Block>,
    /// The same for programs, if the tool promises a schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The tool did its work and the work failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_error: bool,
}

/// One piece of content.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Block {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// A picture.
    Image {
        /// Its media type.
        mime: String,
        /// Its bytes.
        #[serde(with = "serde_bytes")]
        bin: Vec<u8>,
    },
    /// Any other file.
    File {
        /// Its media type.
        mime: String,
        /// Its bytes.
        #[serde(with = "serde_bytes")]
        bin: Vec<u8>,
    },
    /// Something that lies elsewhere.
    Ref {
        /// Where.
        uri: String,
    },
    /// A type this version does not know; tolerated. \[R-EX-04\]
    Unknown,
}

impl<'de> Deserialize<'de> for Block {
    /// By hand, because a derived one keeps every field in an intermediate value
    /// until it has seen `type`. Blocks are on the path of every result.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            text: Option<String>,
            mime: Option<String>,
            #[serde(default, with = "serde_bytes")]
            bin: Option<Vec<u8>>,
            uri: Option<String>,
        }
        let Fields { r#type, text, mime, bin, uri } = Fields::deserialize(deserializer)?;
        let missing = D::Error::missing_field;
        Ok(match &*r#type {
            "text" => Self::Text { text: text.ok_or_else(|| missing("text"))? },
            "image" | "file" => {
                let mime = mime.ok_or_else(|| missing("mime"))?;
                let bin = bin.ok_or_else(|| missing("bin"))?;
                match &*r#type {
                    "image" => Self::Image { mime, bin },
                    _ => Self::File { mime, bin },
                }
            }
            "ref" => Self::Ref { uri: uri.ok_or_else(|| missing("uri"))? },
            _ => Self::Unknown,
        })
    }
}

/// The longest message put into a body of a fault or a note, in bytes.
pub const MESSAGE_MAX: usize = 4 << 10;

/// The body `{msg: text}`, cut at a character to [`MESSAGE_MAX`].
pub fn message(text: &str) -> Bytes {
    let mut body = BytesMut::with_capacity(text.len().min(MESSAGE_MAX) + 8);
    let mut writer = Writer(&mut body);
    writer.map(1);
    writer.pair_str("msg", &text[..text.floor_char_boundary(MESSAGE_MAX)]);
    body.freeze()
}

/// The `msg` in a body, if it is a map that has one.
pub fn read_message(body: &[u8]) -> Option<String> {
    msgpack::body_str(body, "msg").map(ToOwned::to_owned)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(b: &bool) -> bool {
    !*b
}
