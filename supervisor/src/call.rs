//! A call as an agent loop makes it, and what comes back.

use std::{
    fmt::{self, Write},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use plugbay_protocol::{Details, contract::Block};
use serde_json::{Map, Value};

use crate::{
    link::{OnProgress, Progress},
    manifest::names::covers,
    service::Origin,
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
    pub(crate) terms: Terms,
}

/// What a caller may say about a call of any kind.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub(crate) deadline: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) details: Option<Arc<Details>>,
    /// On whose behalf, if a plugin makes it.
    pub(crate) origin: Option<Arc<Origin>>,
}

impl Terms {
    pub(crate) fn narrow(&mut self, scopes: impl IntoIterator<Item = impl Into<String>>) {
        let details = Arc::make_mut(self.details.get_or_insert_default());
        details.scopes = Some(scopes.into_iter().map(Into::into).collect());
    }
}

impl Call {
    /// Calls `tool`, by its registry name, with an object of arguments.
    pub fn new(tool: impl Into<String>, args: Value) -> Self {
        Self { tool: tool.into(), args, terms: Terms::default() }
    }

    /// The registry name of the tool.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Bounds the whole call, waiting included. Otherwise the plugin's
    /// `timeouts.call_max` does.
    #[must_use]
    pub fn deadline(mut self, budget: Duration) -> Self {
        self.terms.deadline = Some(budget);
        self
    }

    /// Bounds the plugin's silence. Otherwise the plugin's `timeouts.call` does.
    #[must_use]
    pub fn idle(mut self, budget: Duration) -> Self {
        self.terms.idle = Some(budget);
        self
    }

    /// Leaves the plugin, of all that it was granted, only these scopes while it works on
    /// this call; none of them leaves it nothing. \[R-SC-08\]
    #[must_use]
    pub fn scopes(mut self, scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.terms.narrow(scopes);
        self
    }

    /// Is told about progress. It runs on the connection's task and must not block.
    #[must_use]
    pub fn on_progress(mut self, told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.terms.on_progress = Some(Arc::new(told));
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
        let known = self.content.iter().filter(|block| **block != Block::Unknown);
        let mut lines = String::new();
        for (at, block) in known.enumerate() {
            if 0 < at {
                lines.push('\n');
            }
            // Writing into memory cannot fail.
            let _ok = match block {
                Block::Text { text } => lines.write_str(text),
                Block::Image { mime, bin } => write!(lines, "[image {mime}, {} bytes]", bin.len()),
                Block::File { mime, bin } => write!(lines, "[file {mime}, {} bytes]", bin.len()),
                Block::Ref { uri } => write!(lines, "[{uri}]"),
                Block::Unknown => Ok(()),
            };
        }
        lines
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
}
