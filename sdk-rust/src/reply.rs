//! What a tool answers, and how its return value becomes that.

use std::{any::Any, borrow::Cow};

use bytes::Bytes;
use plugbay_protocol::{
    Code, Fault,
    contract::{Block, ToolResult},
};
use serde::Serialize;
use serde_json::Value;

use crate::{Error, body, body::Data};

/// An answer put together by hand. Most tools simply return a value; see
/// [`Tool`](crate::Tool) for what becomes of it.
///
/// ```
/// use plugbay_sdk::{Block, Reply};
///
/// let pixels = vec![0x89, b'P', b'N', b'G'];
/// let reply = Reply::text("The chart you asked for:")
///     .block(Block::Image { mime: "image/png".into(), bin: pixels });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Reply(pub(crate) ToolResult);

impl Reply {
    /// An empty answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// One text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().block(Block::Text { text: text.into() })
    }

    /// Adds one piece of content.
    #[must_use]
    pub fn block(mut self, block: Block) -> Self {
        self.0.content.push(block);
        self
    }

    /// Sets the same answer as data, for programs.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.0.data = Some(data);
        self
    }

    /// Says that the tool did its work and the work failed.
    #[must_use]
    pub fn failed(mut self) -> Self {
        self.0.is_error = true;
        self
    }
}

/// How a call ends, encoded.
pub(crate) type Outcome = Result<Bytes, Fault>;

/// The result body of a tool that returned `result`.
pub(crate) fn outcome<T: Serialize + 'static>(result: Result<T, Error>) -> Outcome {
    match result {
        Ok(value) => of_value(value),
        Err(error) => of_reply(&error.into_reply()?),
    }
}

fn of_value<T: Serialize + 'static>(value: T) -> Outcome {
    let mut slot = Some(value);
    // Known types have a meaning of their own. The comparisons are made by the compiler.
    if let Some(text) = take::<String>(&mut slot) {
        return of_text(&text);
    }
    if let Some(text) = take::<&'static str>(&mut slot) {
        return of_text(text);
    }
    if let Some(text) = take::<Cow<'static, str>>(&mut slot) {
        return of_text(&text);
    }
    if take::<()>(&mut slot).is_some() {
        return of_reply(&Reply::new());
    }
    if let Some(reply) = take::<Reply>(&mut slot) {
        return of_reply(&reply);
    }
    if let Some(content) = take::<Vec<Block>>(&mut slot) {
        return of_reply(&Reply(ToolResult { content, ..ToolResult::default() }));
    }
    if let Some(block) = take::<Block>(&mut slot) {
        return of_reply(&Reply::new().block(block));
    }
    let Some(value) = slot else { return of_reply(&Reply::new()) };
    let text = serde_json::to_string(&value).map_err(not_encodable)?;
    let wrap = |data| WithData { content: [Text::new(&text)], data };
    body::encode_any(&value, wrap).map_err(not_encodable)
}

fn take<T: 'static>(slot: &mut dyn Any) -> Option<T> {
    slot.downcast_mut::<Option<T>>().and_then(Option::take)
}

fn of_text(text: &str) -> Outcome {
    let result = OnlyText { content: [Text::new(text)] };
    body::encode(&result, text.len() + 40).map_err(not_encodable)
}

fn of_reply(reply: &Reply) -> Outcome {
    let weight = |block: &Block| match block {
        Block::Text { text } => text.len() + 40,
        Block::Image { mime, bin } | Block::File { mime, bin } => mime.len() + bin.len() + 40,
        Block::Ref { uri } => uri.len() + 40,
        Block::Unknown => 40,
    };
    body::encode(reply, 64 + reply.0.content.iter().map(weight).sum::<usize>())
        .map_err(not_encodable)
}

fn not_encodable(why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Internal).message(&format!("the result cannot be encoded: {why}"))
}

/// A [`ToolResult`] that borrows.
#[derive(Serialize)]
struct OnlyText<'a> {
    content: [Text<'a>; 1],
}

/// A [`ToolResult`] that borrows.
#[derive(Serialize)]
struct WithData<'a, T> {
    content: [Text<'a>; 1],
    data: Data<'a, T>,
}

/// A [`Block::Text`] that borrows.
#[derive(Serialize)]
struct Text<'a> {
    r#type: &'static str,
    text: &'a str,
}

impl<'a> Text<'a> {
    fn new(text: &'a str) -> Self {
        Self { r#type: "text", text }
    }
}
