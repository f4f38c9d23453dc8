//! What a tool answers, and how its return value becomes that.

use std::{
    any::{Any, TypeId},
    borrow::Cow,
};

use bytes::Bytes;
use plugbay_protocol::{
    Code, Fault,
    contract::{Block, ToolResult},
};
use serde::Serialize;
use serde_json::Value;

use crate::{Error, body};

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

    /// Both, one after the other; texts that meet become one.
    pub(crate) fn join(mut self, more: Self) -> Self {
        for block in more.0.content {
            match (self.0.content.last_mut(), block) {
                (Some(Block::Text { text }), Block::Text { text: more }) => text.push_str(&more),
                (_, block) => self.0.content.push(block),
            }
        }
        self.0.data = more.0.data.or(self.0.data);
        self.0.is_error |= more.0.is_error;
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

/// What the types mean that are more than data.
enum Meant<T> {
    Text(String),
    Reply(Reply),
    Data(T),
}

#[inline]
fn meant<T: Serialize + 'static>(value: T) -> Meant<T> {
    let mut slot = Some(value);
    // The comparisons are made by the compiler.
    if let Some(text) = take::<String>(&mut slot) {
        return Meant::Text(text);
    }
    if let Some(text) = take::<&'static str>(&mut slot) {
        return Meant::Text(text.to_owned());
    }
    if let Some(text) = take::<Cow<'static, str>>(&mut slot) {
        return Meant::Text(text.into_owned());
    }
    if let Some(reply) = take::<Reply>(&mut slot) {
        return Meant::Reply(reply);
    }
    if let Some(content) = take::<Vec<Block>>(&mut slot) {
        return Meant::Reply(Reply(ToolResult { content, ..ToolResult::default() }));
    }
    if let Some(block) = take::<Block>(&mut slot) {
        return Meant::Reply(Reply::new().block(block));
    }
    match slot.filter(|_| TypeId::of::<T>() != TypeId::of::<()>()) {
        Some(value) => Meant::Data(value),
        None => Meant::Reply(Reply::new()),
    }
}

fn of_value<T: Serialize + 'static>(value: T) -> Outcome {
    let value = match meant(value) {
        Meant::Text(text) => return Ok(of_text(text)),
        Meant::Reply(reply) => return of_reply(&reply),
        Meant::Data(value) => value,
    };
    let text = serde_json::to_string(&value).map_err(not_encodable)?;
    let mut out = Vec::with_capacity(2 * text.len() + 64);
    out.extend_from_slice(TEXT_AND_DATA);
    body::append(&mut out, &text).map_err(not_encodable)?;
    out.extend_from_slice(b"\xa4data");
    body::append_any(&mut out, &value).map_err(not_encodable)?;
    Ok(out.into())
}

/// A part of an answer, for people who watch.
pub(crate) fn preview<T: Serialize + 'static>(value: T) -> Result<Reply, Fault> {
    match meant(value) {
        Meant::Text(text) => Ok(Reply::text(text)),
        Meant::Reply(Reply(ToolResult { content, .. })) => {
            Ok(Reply(ToolResult { content, ..ToolResult::default() }))
        }
        Meant::Data(value) => serde_json::to_string(&value).map(Reply::text).map_err(not_encodable),
    }
}

/// What comes before the text of `{content: [{type: "text", text}]}`.
const ONLY_TEXT: &[u8] = b"\x81\xa7content\x91\x82\xa4type\xa4text\xa4text";
/// The same where `data` follows.
const TEXT_AND_DATA: &[u8] = b"\x82\xa7content\x91\x82\xa4type\xa4text\xa4text";

fn take<T: 'static>(slot: &mut dyn Any) -> Option<T> {
    slot.downcast_mut::<Option<T>>().and_then(Option::take)
}

/// Texts up to this size are copied; a longer one stays where it is and moves over a
/// little, so that it costs no second buffer.
const COPY_MAX: usize = 16 << 10;

fn of_text(text: String) -> Bytes {
    let (marker, used) = match text.len() {
        n @ 0..0x20 => ([0xa0 | n as u8, 0, 0, 0, 0], 1),
        n @ 0x20..0x100 => ([0xd9, n as u8, 0, 0, 0], 2),
        n @ 0x100..0x1_0000 => ([0xda, (n >> 8) as u8, n as u8, 0, 0], 3),
        n => {
            // Four GiB fit no frame, so what a longer text would say is never sent.
            let [a, b, c, d] = u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
            ([0xdb, a, b, c, d], 5)
        }
    };
    let marker = &marker[..used];
    if text.len() <= COPY_MAX {
        return [ONLY_TEXT, marker, text.as_bytes()].concat().into();
    }
    let mut out = text.into_bytes();
    out.splice(0..0, ONLY_TEXT.iter().chain(marker).copied());
    out.into()
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

pub(crate) fn not_encodable(why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Internal).message(&format!("the result cannot be encoded: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_by_hand_is_what_a_library_writes() {
        for len in [0, 1, 31, 32, 33, 255, 256, COPY_MAX, COPY_MAX + 1, 65_535, 65_536, 1 << 20] {
            let text = "x".repeat(len);
            let plain = body::encode(&Reply::text(text.as_str()), 0).unwrap();
            assert_eq!(of_text(text), plain, "{len}");
        }
        let data = vec![1, 2, 3];
        let plain = body::encode(&Reply::text("[1,2,3]").data(data.clone().into()), 0).unwrap();
        assert_eq!(outcome(Ok(data)), Ok(plain));
    }
}
