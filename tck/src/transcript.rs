//! What was said, both ways, with the time: kept for every conversation and shown
//! for those that failed.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    codec::{self, Frame},
    record::{Entry as Recorded, Said},
    value::{self, HEAD, Value, hex},
};

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
    Deed(Deed),
    Event(String),
}

/// What is done to the pipes and the process, beside bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// The host closes the plugin's stdin.
    CloseStdin,
    /// The host closes its end of the plugin's stdout.
    CloseStdout,
    /// The host sends this signal to the plugin's group.
    Signal(i32),
    StopReading,
    ReadAgain,
    /// The plugin closes its stdout, after so many bytes of a frame that is not whole.
    Over(usize),
}

impl std::fmt::Display for Deed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CloseStdin => f.write_str("closes the plugin's stdin"),
            Self::CloseStdout => f.write_str("closes its end of the plugin's stdout"),
            Self::Signal(number) => match nix::sys::signal::Signal::try_from(*number) {
                Ok(signal) => write!(f, "sends {signal}"),
                Err(_) => write!(f, "sends signal {number}"),
            },
            Self::StopReading => f.write_str("stops reading"),
            Self::ReadAgain => f.write_str("reads again"),
            Self::Over(0) => f.write_str("closes its stdout"),
            Self::Over(rest) => {
                write!(f, "closes its stdout inside a frame, after {rest} of its bytes")
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    at: Duration,
    side: Side,
    what: What,
    size: usize,
}

/// One conversation while it goes on. Cheap to add to; bodies are cut, unless it is to be recorded.
#[derive(Clone, Debug)]
pub struct Transcript {
    begun: Instant,
    entries: Vec<Entry>,
    held: usize,
    whole: bool,
}

/// How much of one body or piece of bytes is kept.
const KEPT: usize = 1 << 12;
/// How much of all bodies is kept; of later ones only the size.
const KEPT_ALL: usize = 1 << 24;
/// The same where bodies are kept whole.
const KEPT_WHOLE: usize = 1 << 26;

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
}

impl Transcript {
    pub fn new() -> Self {
        Self { begun: Instant::now(), entries: Vec::new(), held: 0, whole: false }
    }

    /// One that keeps bodies whole, so that the conversation can be held again.
    pub fn whole() -> Self {
        Self { whole: true, ..Self::new() }
    }

    /// How much of the next body is kept.
    fn room(&self) -> usize {
        match self.whole {
            true => KEPT_WHOLE.saturating_sub(self.held),
            false if self.held > KEPT_ALL => 0,
            false => KEPT,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a frame and returns which entry it is.
    pub fn frame(&mut self, side: Side, frame: &Frame) -> usize {
        let mut kept = frame.clone();
        kept.body.truncate(self.room());
        self.held += kept.body.len();
        self.add(side, What::Frame(kept), frame.body.len())
    }

    /// Adds bytes that are no frame, or not one that was meant to be.
    pub fn bytes(&mut self, side: Side, bytes: &[u8]) -> usize {
        let kept = bytes[..bytes.len().min(self.room())].to_vec();
        self.held += kept.len();
        self.add(side, What::Bytes(kept), bytes.len())
    }

    /// Adds something that was done to the pipes or the process.
    pub fn deed(&mut self, side: Side, deed: Deed) -> usize {
        self.add(side, What::Deed(deed), 0)
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

    /// The whole as it is recorded, and when it ended, in microseconds.
    pub fn recorded(&self) -> (Vec<Recorded>, u64) {
        let entries = self.entries.iter().map(|entry| Recorded {
            at_us: entry.at.as_micros() as u64,
            side: entry.side,
            said: match &entry.what {
                What::Frame(frame) => Said::Frame(hex(&frame.bytes_of(entry.size))),
                What::Bytes(bytes) => Said::Bytes(hex(bytes)),
                What::Deed(deed) => Said::Deed(*deed),
                What::Event(text) => Said::Event(text.clone()),
            },
            cut: match &entry.what {
                What::Frame(frame) => entry.size - frame.body.len(),
                What::Bytes(bytes) => entry.size - bytes.len(),
                What::Deed(_) | What::Event(_) => 0,
            },
        });
        (entries.collect(), self.begun.elapsed().as_micros() as u64)
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
    };
    match &entry.what {
        What::Event(text) => line.text.clone_from(text),
        What::Deed(deed) => line.text = deed.to_string(),
        What::Bytes(bytes) => {
            line.kind = "bytes".into();
            line.text = show_bytes(bytes, entry.size);
        }
        What::Frame(frame) => {
            let head = value::unpack(&frame.head, HEAD).unwrap_or(Value::Raw(frame.head.clone()));
            line.kind = codec::name(frame.kind);
            line.id = Some(frame.id);
            line.text = head.to_string();
            line.head = Some(head.to_json());
            line.body = (entry.size > 0).then(|| show_body(frame, entry.size));
        }
    }
    line
}

fn show_body(frame: &Frame, size: usize) -> String {
    let is_opaque = matches!(frame.kind, codec::PING | codec::PONG);
    if size == frame.body.len()
        && size <= KEPT
        && !is_opaque
        && let Ok(value) = value::unpack(&frame.body, value::BODY)
    {
        return value.to_string();
    }
    show_bytes(&frame.body, size)
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
