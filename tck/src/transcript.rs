//! What was said, both ways, with the time: kept for every conversation and shown
//! for those that failed.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{
    codec::{self, Frame},
    value::{self, HEAD, Value, hex},
};

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The suite, in the place of the host.
    Host,
    /// The subject.
    Plugin,
}

#[derive(Clone, Debug)]
enum What {
    Frame(Frame),
    Bytes(Vec<u8>),
    Event(String),
}

#[derive(Clone, Debug)]
struct Entry {
    at: Duration,
    side: Side,
    what: What,
    size: usize,
}

/// One conversation while it goes on. Cheap to add to; bodies are cut.
#[derive(Clone, Debug)]
pub struct Transcript {
    begun: Instant,
    entries: Vec<Entry>,
    held: usize,
}

/// How much of one body or piece of bytes is kept.
const KEPT: usize = 1 << 12;
/// How much of all bodies is kept; of later ones only the size.
const KEPT_ALL: usize = 1 << 24;

/// One line of a transcript, for whoever shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Microseconds since the process was started.
    pub at_us: u64,
    pub side: Side,
    /// What the line is about, such as `CALL`, `bytes`, `stderr` or `event`.
    pub kind: String,
    /// The call, for a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The head, or its bytes as `{"$raw": hex}` if it cannot be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<serde_json::Value>,
    /// The head in diagnostic notation, or what happened if this is no frame.
    pub text: String,
    /// Bytes of the body.
    pub body_len: usize,
    /// The body in diagnostic notation. Confidential: shown only to who asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The bytes that were sent, as hex, for a replay; cut with `…` if they are many.
    #[serde(skip)]
    pub hex: String,
}

impl Transcript {
    pub fn new() -> Self {
        Self { begun: Instant::now(), entries: Vec::new(), held: 0 }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a frame and returns which entry it is.
    pub fn frame(&mut self, side: Side, frame: &Frame) -> usize {
        let keep = if self.held > KEPT_ALL { 0 } else { KEPT };
        let mut kept = frame.clone();
        kept.body.truncate(keep);
        self.held += kept.body.len();
        self.add(side, What::Frame(kept), frame.body.len())
    }

    /// Adds bytes that are no frame, or not one that was meant to be.
    pub fn bytes(&mut self, side: Side, bytes: &[u8]) -> usize {
        let kept = bytes[..bytes.len().min(KEPT)].to_vec();
        self.add(side, What::Bytes(kept), bytes.len())
    }

    /// Adds something that happened beside the wire.
    pub fn event(&mut self, side: Side, text: impl Into<String>) -> usize {
        self.add(side, What::Event(text.into()), 0)
    }

    fn add(&mut self, side: Side, what: What, size: usize) -> usize {
        self.entries.push(Entry { at: self.begun.elapsed(), side, what, size });
        self.entries.len() - 1
    }

    /// How often the plugin has said something so far.
    pub fn frames_of_plugin(&self) -> usize {
        let spoken =
            |entry: &&Entry| entry.side == Side::Plugin && matches!(entry.what, What::Frame(_));
        self.entries.iter().filter(spoken).count()
    }

    /// The whole as lines.
    pub fn lines(&self) -> Vec<Line> {
        self.entries.iter().map(line).collect()
    }
}

impl Default for Transcript {
    fn default() -> Self {
        Self::new()
    }
}

fn line(entry: &Entry) -> Line {
    let mut line = Line {
        at_us: entry.at.as_micros() as u64,
        side: entry.side,
        kind: "event".into(),
        id: None,
        head: None,
        text: String::new(),
        body_len: entry.size,
        body: None,
        hex: String::new(),
    };
    match &entry.what {
        What::Event(text) => line.text.clone_from(text),
        What::Bytes(bytes) => {
            line.kind = "bytes".into();
            line.text = show_bytes(bytes, entry.size);
            line.hex = cut_hex(bytes, entry.size);
        }
        What::Frame(frame) => {
            let head = value::unpack(&frame.head, HEAD).unwrap_or(Value::Raw(frame.head.clone()));
            line.kind = codec::name(frame.kind);
            line.id = Some(frame.id);
            line.text = head.to_string();
            line.head = Some(head.to_json());
            line.body = (entry.size > 0).then(|| show_body(frame, entry.size));
            line.hex = cut_hex(&frame.bytes(), frame.size() - frame.body.len() + entry.size);
        }
    }
    line
}

fn show_body(frame: &Frame, size: usize) -> String {
    let is_opaque = matches!(frame.kind, codec::PING | codec::PONG);
    if size == frame.body.len()
        && !is_opaque
        && let Ok(value) = value::unpack(&frame.body, value::BODY)
    {
        return value.to_string();
    }
    show_bytes(&frame.body, size)
}

fn cut_hex(bytes: &[u8], size: usize) -> String {
    format!("{}{}", hex(bytes), if bytes.len() < size { "…" } else { "" })
}

/// Bytes for people: hex, and as text where they are text.
pub fn show_bytes(bytes: &[u8], size: usize) -> String {
    let shown = &bytes[..bytes.len().min(48)];
    let more = if shown.len() < size { format!("… ({size} B)") } else { String::new() };
    let is_text =
        shown.iter().all(|byte| (0x20..0x7F).contains(byte) || b"\n\r\t\x1b".contains(byte));
    let text = if is_text && !shown.is_empty() {
        format!(" {:?}", String::from_utf8_lossy(shown))
    } else {
        String::new()
    };
    format!("h'{}'{more}{text}", hex(shown))
}
