//! A call as an agent loop makes it, and what comes back.

use std::{fmt, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use plugbay_protocol::contract::{self, Block};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Number, Value};

use crate::{
    link::{OnProgress, Progress},
    manifest::names::covers,
};

/// One call of one tool.
///
/// ```
/// use std::time::Duration;
/// use plugbay_supervisor::Call;
/// use serde_json::json;
///
/// let call = Call::new("greet", json!({ "who": "Ada" }))
///     .deadline(Duration::from_secs(5))
///     .on_progress(|progress| eprintln!("{progress:?}"));
/// ```
#[derive(Clone)]
pub struct Call {
    pub(crate) tool: String,
    pub(crate) args: Value,
    pub(crate) deadline: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) on_progress: Option<OnProgress>,
}

impl Call {
    /// Calls `tool`, by its registry name, with an object of arguments.
    pub fn new(tool: impl Into<String>, args: Value) -> Self {
        Self { tool: tool.into(), args, deadline: None, idle: None, on_progress: None }
    }

    /// The registry name of the tool.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Bounds the whole call, waiting included. Otherwise the plugin's
    /// `timeouts.call_max` does.
    #[must_use]
    pub fn deadline(mut self, budget: Duration) -> Self {
        self.deadline = Some(budget);
        self
    }

    /// Bounds the plugin's silence. Otherwise the plugin's `timeouts.call` does.
    #[must_use]
    pub fn idle(mut self, budget: Duration) -> Self {
        self.idle = Some(budget);
        self
    }

    /// Is told about progress. It runs on the connection's task and must not block.
    #[must_use]
    pub fn on_progress(mut self, told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(told));
        self
    }
}

impl fmt::Debug for Call {
    /// Without the arguments, which are the tenant's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// What a tool gave back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// What the model sees.
    pub content: Vec<Block>,
    /// The same for programs, if the tool gives it. Binary values in it are
    /// base64 strings.
    pub data: Option<Value>,
    /// The tool did its work and the work failed; the content says how.
    pub is_error: bool,
}

impl Output {
    /// A result of one text.
    pub fn text_of(text: impl Into<String>) -> Self {
        Self { content: vec![Block::Text { text: text.into() }], ..Self::default() }
    }

    /// All texts, one below the other; other blocks are named.
    pub fn text(&self) -> String {
        let lines = self.content.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.clone()),
            Block::Image { mime, bin } => Some(format!("[image {mime}, {} bytes]", bin.len())),
            Block::File { mime, bin } => Some(format!("[file {mime}, {} bytes]", bin.len())),
            Block::Ref { uri } => Some(format!("[{uri}]")),
            Block::Unknown => None,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// As JSON: `{content, data?, is_error}`, binary values in base64.
    pub fn to_json(&self) -> Value {
        let block = |block: &Block| match block {
            Block::Text { text } => serde_json::json!({ "type": "text", "text": text }),
            Block::Image { mime, bin } => {
                serde_json::json!({ "type": "image", "mime": mime, "base64": BASE64_STANDARD.encode(bin) })
            }
            Block::File { mime, bin } => {
                serde_json::json!({ "type": "file", "mime": mime, "base64": BASE64_STANDARD.encode(bin) })
            }
            Block::Ref { uri } => serde_json::json!({ "type": "ref", "uri": uri }),
            Block::Unknown => serde_json::json!({ "type": "unknown" }),
        };
        let mut out = Map::new();
        out.insert("content".into(), self.content.iter().map(block).collect());
        if let Some(data) = &self.data {
            out.insert("data".into(), data.clone());
        }
        out.insert("is_error".into(), self.is_error.into());
        Value::Object(out)
    }

    /// Reads the body of an END of `tool.call`.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            content: Vec<Block>,
            #[serde(default)]
            data: Option<Json>,
            #[serde(default)]
            is_error: bool,
        }
        if let Some(text) = contract::only_text(body) {
            return Ok(Self::text_of(text));
        }
        // The reader would take a list for the fields in their order.
        if !matches!(body.first(), None | Some(0x80..=0x8F | 0xDE | 0xDF)) {
            return Err("it is no map".into());
        }
        let mut reader = rmp_serde::Deserializer::from_read_ref(body);
        // The spec's own bound; far from where the stack would end. [R-HD-11]
        reader.set_max_depth(BODY_DEPTH_MAX);
        let wire = Wire::deserialize(&mut reader).map_err(|error| shape(&error))?;
        // The reader does not say where it stands, but it says when there is no more.
        match de::IgnoredAny::deserialize(&mut reader) {
            Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => {}
            _ => return Err("bytes follow the value".into()),
        }
        let data = wire.data.map(|json| json.0).filter(|data| !data.is_null());
        Ok(Self { content: wire.content, data, is_error: wire.is_error })
    }
}

/// How deep a result may nest. \[R-HD-11\]
const BODY_DEPTH_MAX: usize = 128;

/// What is wrong with a body, without quoting any of it.
fn shape(error: &rmp_serde::decode::Error) -> String {
    match error {
        rmp_serde::decode::Error::InvalidMarkerRead(_)
        | rmp_serde::decode::Error::InvalidDataRead(_) => "it ends too early".into(),
        _ => "it is not {content: [block], data?, is_error?}".into(),
    }
}

/// Any MessagePack value as JSON. Binary becomes base64; what JSON cannot hold
/// (NaN, infinity) becomes null.
pub(crate) struct Json(pub(crate) Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> de::Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any MessagePack value but an extension")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Number::from_f64(n).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(BASE64_STANDARD.encode(bytes).into())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Json(value))) = pairs.next_entry::<String, _>()? {
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// Who calls, and what it may use. Empty by default, like every right here.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(crate) name: Arc<str>,
    allowed: Vec<String>,
    pub(crate) trusted: bool,
}

impl Caller {
    /// A caller that may use nothing yet; see [`Self::allow`].
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), allowed: Vec::new(), trusted: false }
    }

    /// A caller that may use every tool and whose call is its own approval: a
    /// person at a terminal, not a model.
    pub fn trusted(name: &str) -> Self {
        Self { name: name.into(), allowed: vec!["*".into()], trusted: true }
    }

    /// Lets it use the tools that match: an exact name, or a trailing `*`.
    #[must_use]
    pub fn allow(mut self, pattern: &str) -> Self {
        self.allowed.push(pattern.to_owned());
        self
    }

    /// Whether it may use this tool.
    pub fn may_use(&self, tool: &str) -> bool {
        self.allowed.iter().any(|pattern| covers(pattern, tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_may_use_nothing_until_it_is_allowed() {
        let caller = Caller::new("planner");
        assert!(!caller.may_use("search_docs"));
        let caller = caller.allow("search_*").allow("clock");
        assert!(caller.may_use("search_docs") && caller.may_use("clock"));
        assert!(!caller.may_use("clocks"));
    }

    #[test]
    fn binary_data_becomes_base64() {
        let body = b"\x82\xa7content\x90\xa4data\x82\xa1a\xc4\x02hi\xa1b\xcb\x7f\xf8\0\0\0\0\0\0";
        let output = Output::decode(body).unwrap();
        assert_eq!(output.data, Some(serde_json::json!({ "a": "aGk=", "b": null })));
    }

    #[test]
    fn nothing_may_follow_a_result() {
        let follows = |byte| [&b"\x81\xa7content\x90"[..], &[byte]].concat();
        assert_eq!(Output::decode(&follows(0xc0)).unwrap_err(), "bytes follow the value");
        assert_eq!(Output::decode(&follows(0xc1)).unwrap_err(), "bytes follow the value");
        assert_eq!(Output::decode(b"\x81\xa7content\x90"), Ok(Output::default()));
        assert!(Output::decode(b"\x80").is_err(), "content is what a result is made of");
    }

    #[test]
    fn a_result_may_not_nest_without_end() {
        let nested = [&b"\x81\xa4data"[..], &[0x91; 100_000], b"\xc0"].concat();
        assert!(Output::decode(&nested).is_err());
    }

    #[test]
    fn a_broken_result_is_named_and_not_quoted() {
        assert_eq!(Output::decode(b"\x81\xa7content").unwrap_err(), "it ends too early");
        let wrong = b"\x81\xa7content\xa6secret";
        assert_eq!(
            Output::decode(wrong).unwrap_err(),
            "it is not {content: [block], data?, is_error?}"
        );
    }
}
