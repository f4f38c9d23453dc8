//! Frames and MessagePack, written from the spec alone and with blocking reads.
//!
//! Encoding is permissive: it writes whatever it is told, the impossible
//! included, because half of its users want to break a rule. Decoding is strict:
//! it refuses what the spec refuses, so that a host that breaks a rule is found
//! out by a fixture that behaves.

use std::{
    fmt,
    io::{self, Read},
};

/// The first byte of every frame.
pub const MAGIC: u8 = 0xC1;
/// Bytes before the head.
pub const HEADER: usize = 12;
/// What the body's offset is a multiple of.
pub const ALIGN: usize = 16;
/// The largest integer a head may hold: 2^53 − 1.
pub const INTEGER_MAX: i128 = (1 << 53) - 1;
/// How deep a head may nest.
pub const HEAD_DEPTH: usize = 8;
/// How deep a body may nest before it is refused.
pub const BODY_DEPTH: usize = 128;

/// Type bytes of the frames, by their names in the spec.
pub mod kind {
    /// Opens the conversation.
    pub const HELLO: u8 = 0x01;
    /// Ends it.
    pub const CLOSE: u8 = 0x02;
    /// Asks for a PONG.
    pub const PING: u8 = 0x03;
    /// Copies the PING's body.
    pub const PONG: u8 = 0x04;
    /// Starts a call.
    pub const CALL: u8 = 0x10;
    /// One element of a stream.
    pub const ITEM: u8 = 0x11;
    /// Ends a call.
    pub const END: u8 = 0x12;
    /// Asks the callee to end early.
    pub const CANCEL: u8 = 0x13;
    /// Lets a stream go on.
    pub const CREDIT: u8 = 0x14;
    /// Nice to know.
    pub const NOTE: u8 = 0x90;

    /// Whether the spec gives a type a meaning.
    pub fn is_known(kind: u8) -> bool {
        matches!(kind, HELLO..=PONG | CALL..=CREDIT | NOTE)
    }
}

/// One MessagePack value.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// `nil`, which in a head means absent.
    Nil,
    /// A boolean.
    Bool(bool),
    /// Any integer of up to 64 bits.
    Int(i128),
    /// A float.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes.
    Bin(Vec<u8>),
    /// A sequence.
    Array(Vec<Value>),
    /// A map, in the order of the wire, duplicates included.
    Map(Vec<(Value, Value)>),
    /// Bytes that go out as they are, valid or not. Never decoded.
    Raw(Vec<u8>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Bool(b) => b.fmt(f),
            Self::Int(n) => n.fmt(f),
            Self::Float(x) => x.fmt(f),
            Self::Str(s) => s.fmt(f),
            Self::Bin(b) => write!(f, "bin[{}]", b.len()),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Map(pairs) => f.debug_map().entries(pairs.iter().map(|(k, v)| (k, v))).finish(),
            Self::Raw(b) => write!(f, "raw[{}]", b.len()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Self::Array(items)
    }
}

macro_rules! from_integer {
    ($($ty:ty)*) => {$(
        impl From<$ty> for Value {
            fn from(n: $ty) -> Self {
                Self::Int(n as i128)
            }
        }
    )*};
}
from_integer!(u8 u16 u32 u64 usize i32 i64 i128);

/// A map with string keys: `map([("a", 1.into())])`.
pub fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// The empty map, which is the shortest head.
pub fn empty() -> Value {
    Value::Map(Vec::new())
}

impl Value {
    /// What a map holds under `key`; nil counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Self::Map(pairs) = self else { return None };
        let found = pairs.iter().find(|(k, _)| matches!(k, Self::Str(text) if text == key));
        found.map(|(_, value)| value).filter(|value| **value != Self::Nil)
    }

    /// Its text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    /// Its number, if it is an integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        if let Self::Int(n) = self { u64::try_from(*n).ok() } else { None }
    }

    /// Its truth, if it is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = self { Some(*b) } else { None }
    }

    /// Adds one pair, if it is a map.
    pub fn put(&mut self, key: &str, value: impl Into<Value>) {
        if let Self::Map(pairs) = self {
            pairs.push((key.into(), value.into()));
        }
    }

    /// Its bytes in the shortest encoding.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_in(Width::Shortest)
    }

    /// Its bytes in the encoding asked for.
    pub fn bytes_in(&self, width: Width) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(width, &mut out);
        out
    }

    fn encode(&self, width: Width, out: &mut Vec<u8>) {
        let all = width == Width::All;
        match self {
            Self::Nil => out.push(0xC0),
            Self::Bool(b) => out.push(0xC2 + u8::from(*b)),
            Self::Int(n) => encode_integer(*n, width, out),
            Self::Float(x) => {
                out.push(0xCB);
                out.extend(x.to_be_bytes());
            }
            Self::Str(text) => {
                let short = (31, 0xA0);
                length(text.len(), Some(short), [Some(0xD9), Some(0xDA), Some(0xDB)], all, out);
                out.extend(text.as_bytes());
            }
            Self::Bin(bytes) => {
                length(bytes.len(), None, [Some(0xC4), Some(0xC5), Some(0xC6)], all, out);
                out.extend(bytes);
            }
            Self::Array(items) => {
                length(items.len(), Some((15, 0x90)), [None, Some(0xDC), Some(0xDD)], all, out);
                items.iter().for_each(|item| item.encode(width, out));
            }
            Self::Map(pairs) => {
                length(pairs.len(), Some((15, 0x80)), [None, Some(0xDE), Some(0xDF)], all, out);
                for (key, value) in pairs {
                    key.encode(width, out);
                    value.encode(width, out);
                }
            }
            Self::Raw(bytes) => out.extend(bytes),
        }
    }

    /// Reads exactly one value that fills `bytes`, and refuses what neither a
    /// head nor a body may hold.
    pub fn decode(bytes: &[u8], depth: usize) -> Result<Self, Malformed> {
        let mut rest = bytes;
        let value = decode(&mut rest, depth)?;
        if rest.is_empty() { Ok(value) } else { Err(Malformed("trailing bytes")) }
    }
}

/// How wide numbers and lengths are written. All of them mean the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// As short as can be.
    #[default]
    Shortest,
    /// Every integer as a 64-bit unsigned one.
    U64,
    /// Every integer as a 64-bit signed one.
    I64,
    /// As [`Width::U64`], and every string, array and map with a 32-bit length.
    All,
}

fn encode_integer(n: i128, width: Width, out: &mut Vec<u8>) {
    let wide = matches!(width, Width::U64 | Width::All);
    match n {
        _ if width == Width::I64 && i64::try_from(n).is_ok() => {
            out.push(0xD3);
            out.extend((n as i64).to_be_bytes());
        }
        0.. if wide || n > i128::from(u32::MAX) => {
            out.push(0xCF);
            out.extend((n as u64).to_be_bytes());
        }
        0..=0x7F => out.push(n as u8),
        0x80..=0xFF => out.extend([0xCC, n as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend((n as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend((n as u32).to_be_bytes());
        }
        -32..=-1 => out.push(n as i8 as u8),
        _ => {
            out.push(0xD3);
            out.extend((n as i64).to_be_bytes());
        }
    }
}

/// A length behind its marker: fixed, 8, 16 or 32 bits.
fn length(
    len: usize,
    fixed: Option<(usize, u8)>,
    markers: [Option<u8>; 3],
    widest: bool,
    out: &mut Vec<u8>,
) {
    match (fixed, markers) {
        (Some((max, marker)), _) if !widest && len <= max => out.push(marker | len as u8),
        (_, [Some(marker), ..]) if !widest && len <= 0xFF => out.extend([marker, len as u8]),
        (_, [_, Some(marker), _]) if !widest && len <= 0xFFFF => {
            out.push(marker);
            out.extend((len as u16).to_be_bytes());
        }
        (_, [.., marker]) => {
            out.extend(marker);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

/// Why bytes are not what a head or a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], Malformed> {
    let (taken, left) = rest.split_at_checked(n).ok_or(Malformed("bytes end too early"))?;
    *rest = left;
    Ok(taken)
}

fn unsigned(rest: &mut &[u8], n: usize) -> Result<u64, Malformed> {
    Ok(take(rest, n)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn decode(rest: &mut &[u8], depth: usize) -> Result<Value, Malformed> {
    let marker = take(rest, 1)?[0];
    Ok(match marker {
        0x00..=0x7F => Value::Int(marker.into()),
        0xE0..=0xFF => Value::Int((marker as i8).into()),
        0x80..=0x8F => pairs(rest, u64::from(marker & 0x0F), depth)?,
        0x90..=0x9F => items(rest, u64::from(marker & 0x0F), depth)?,
        0xA0..=0xBF => text(rest, u64::from(marker & 0x1F))?,
        0xC0 => Value::Nil,
        0xC2 | 0xC3 => Value::Bool(marker == 0xC3),
        0xC4..=0xC6 => {
            let len = unsigned(rest, 1 << (marker - 0xC4))?;
            Value::Bin(take(rest, len as usize)?.to_vec())
        }
        0xCA => Value::Float(f32::from_bits(unsigned(rest, 4)? as u32).into()),
        0xCB => Value::Float(f64::from_bits(unsigned(rest, 8)?)),
        0xCC..=0xCF => Value::Int(unsigned(rest, 1 << (marker - 0xCC))?.into()),
        0xD0 => Value::Int((unsigned(rest, 1)? as i8).into()),
        0xD1 => Value::Int((unsigned(rest, 2)? as i16).into()),
        0xD2 => Value::Int((unsigned(rest, 4)? as i32).into()),
        0xD3 => Value::Int((unsigned(rest, 8)? as i64).into()),
        0xD9..=0xDB => {
            let len = unsigned(rest, 1 << (marker - 0xD9))?;
            text(rest, len)?
        }
        0xDC | 0xDD => {
            let len = unsigned(rest, 2 << (marker - 0xDC))?;
            items(rest, len, depth)?
        }
        0xDE | 0xDF => {
            let len = unsigned(rest, 2 << (marker - 0xDE))?;
            pairs(rest, len, depth)?
        }
        0xC7..=0xC9 | 0xD4..=0xD8 => return Err(Malformed("an extension type")),
        0xC1 => return Err(Malformed("the byte that MessagePack never uses")),
    })
}

fn text(rest: &mut &[u8], len: u64) -> Result<Value, Malformed> {
    let bytes = take(rest, len as usize)?.to_vec();
    String::from_utf8(bytes).map(Value::Str).map_err(|_| Malformed("text that is not UTF-8"))
}

fn items(rest: &mut &[u8], len: u64, depth: usize) -> Result<Value, Malformed> {
    let depth = depth.checked_sub(1).ok_or(Malformed("nested too deeply"))?;
    // Collects one by one: the declared length is never believed.
    (0..len).map(|_| decode(rest, depth)).collect::<Result<_, _>>().map(Value::Array)
}

fn pairs(rest: &mut &[u8], len: u64, depth: usize) -> Result<Value, Malformed> {
    let depth = depth.checked_sub(1).ok_or(Malformed("nested too deeply"))?;
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for _ in 0..len {
        let key = decode(rest, depth)?;
        if !matches!(key, Value::Str(_)) {
            return Err(Malformed("a key that is not a string"));
        }
        pairs.push((key, decode(rest, depth)?));
    }
    Ok(Value::Map(pairs))
}

/// One frame, as bytes that need not make sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The type byte.
    pub kind: u8,
    /// Which call, or 0.
    pub id: u32,
    /// The head.
    pub head: Value,
    /// The body, still encoded; empty if there is none.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame without a body.
    pub fn new(kind: u8, id: u32, head: Value) -> Self {
        Self { kind, id, head, body: Vec::new() }
    }

    /// The same frame with a body.
    pub fn with(self, body: &Value) -> Self {
        Self { body: body.bytes(), ..self }
    }

    /// Its bytes, gap included.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_in(Width::Shortest)
    }

    /// Its bytes, with the head in the encoding asked for.
    pub fn bytes_in(&self, width: Width) -> Vec<u8> {
        let head = self.head.bytes_in(width);
        let mut out = header(self.kind, head.len() as u16, self.id, self.body.len() as u32);
        out.extend(&head);
        if !self.body.is_empty() {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            out.extend(&self.body);
        }
        out
    }
}

/// The first twelve bytes of a frame.
pub fn header(kind: u8, head_len: u16, id: u32, body_len: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    out.extend([MAGIC, kind]);
    out.extend(head_len.to_be_bytes());
    out.extend(id.to_be_bytes());
    out.extend(body_len.to_be_bytes());
    out
}

/// The size of a frame as limits count it: header, head, gap and body.
pub fn size(head_len: usize, body_len: usize) -> usize {
    let head_end = HEADER + head_len;
    if body_len == 0 { head_end } else { head_end.next_multiple_of(ALIGN) + body_len }
}

/// Why no further frame can be read.
#[derive(Debug)]
pub enum Broken {
    /// The peer broke a rule: the CLOSE code it earns, and the rule in words.
    Rule(&'static str, String),
    /// The bytes ended within a frame.
    Cut,
    /// The pipe failed.
    Pipe(io::Error),
}

/// Reads one whole frame; `None` at a clean end of the pipe. `limit` is the
/// largest frame the reader accepts, by type. Rules are applied in the order of
/// \[R-FR-15\]; the head of a type that may be skipped is not read and comes back
/// as nil.
pub fn read(pipe: &mut impl Read, limit: impl Fn(u8) -> usize) -> Result<Option<Frame>, Broken> {
    let mut header = [0; HEADER];
    let got = fill(pipe, &mut header[..1])?;
    if got == 0 {
        return Ok(None);
    }
    if header[0] != MAGIC {
        let why = format!("expected byte c1 at the start of a frame, found {:02x}", header[0]);
        return Err(Broken::Rule("protocol_error", why));
    }
    whole(pipe, &mut header[1..])?;
    let kind = header[1];
    let head_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let size = size(head_len, body_len);
    let limit = limit(kind);
    if size > limit {
        let why = format!("expected a frame of at most {limit} bytes, found {size}");
        return Err(Broken::Rule("frame_too_large", why));
    }
    let known = kind::is_known(kind);
    if !known && kind < 0x80 {
        let why = format!("expected a type of frame that is known, found {kind:02x}");
        return Err(Broken::Rule("unsupported_frame", why));
    }
    if head_len == 0 {
        return Err(Broken::Rule("protocol_error", "expected a head, found none".into()));
    }
    let mut rest = vec![0; size - HEADER];
    whole(pipe, &mut rest)?;
    let body = rest.split_off(rest.len() - body_len);
    let gap = rest.split_off(head_len);
    if gap.iter().any(|byte| *byte != 0) {
        let why = "expected zero bytes between head and body".into();
        return Err(Broken::Rule("protocol_error", why));
    }
    if kind <= kind::PONG && id != 0 {
        let why = format!("expected id 0 in a frame of the connection, found {id}");
        return Err(Broken::Rule("protocol_error", why));
    }
    let head = if known { head(&rest)? } else { Value::Nil };
    Ok(Some(Frame { kind, id, head, body }))
}

/// Decodes a head and applies every rule that holds for all heads.
fn head(bytes: &[u8]) -> Result<Value, Broken> {
    let rule = |why| Broken::Rule("protocol_error", format!("bad head: {why}"));
    let head = Value::decode(bytes, HEAD_DEPTH).map_err(|Malformed(why)| rule(why))?;
    if !matches!(head, Value::Map(_)) {
        return Err(rule("not a map"));
    }
    sound(&head).map_err(rule)?;
    Ok(head)
}

fn sound(value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Int(n) if *n > INTEGER_MAX => Err("an integer beyond 2^53 - 1"),
        Value::Array(items) => items.iter().try_for_each(sound),
        Value::Map(pairs) => {
            for (at, (key, value)) in pairs.iter().enumerate() {
                if pairs[..at].iter().any(|(earlier, _)| earlier == key) {
                    return Err("a key that occurs twice");
                }
                sound(value)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn whole(pipe: &mut impl Read, buf: &mut [u8]) -> Result<(), Broken> {
    if fill(pipe, buf)? == buf.len() { Ok(()) } else { Err(Broken::Cut) }
}

/// Reads until `buf` is full or the pipe ends.
fn fill(pipe: &mut impl Read, buf: &mut [u8]) -> Result<usize, Broken> {
    let mut got = 0;
    while got < buf.len() {
        match pipe.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::Pipe(error)),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: fn(u8) -> usize = |_| 1 << 20;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("two digits")
        };
        digits.chunks(2).map(byte).collect()
    }

    /// Bytes written by hand from the spec; the gap is between the bars.
    fn golden() -> Vec<(&'static str, Frame)> {
        let args = map([("who", "Ada".into())]);
        let block = map([("type", "text".into()), ("text", "hello, Ada".into())]);
        let limits =
            map([("frame", 1_048_576.into()), ("window", 262_144.into()), ("calls", 8.into())]);
        let fault = map([("code", "cancelled".into()), ("retry", "no".into())]);
        vec![
            (
                "c1 03 0001 00000000 00000008 80 | 000000 | 0102030405060708",
                Frame { body: vec![1, 2, 3, 4, 5, 6, 7, 8], ..Frame::new(kind::PING, 0, empty()) },
            ),
            (
                "c1 10 001e 00000003 0000001a
                 82 a66d6574686f64 a9746f6f6c2e63616c6c a8646561646c696e65 cd7530
                 | 000000000000 |
                 82 a46e616d65 a56772656574 a461726773 81 a377686f a3416461",
                Frame::new(
                    kind::CALL,
                    3,
                    map([("method", "tool.call".into()), ("deadline", 30_000.into())]),
                )
                .with(&map([("name", "greet".into()), ("args", args)])),
            ),
            (
                "c1 12 0001 00000003 00000025 80 | 000000 |
                 81 a7636f6e74656e74 91 82 a474797065 a474657874 a474657874
                 aa68656c6c6f2c20416461",
                Frame::new(kind::END, 3, empty()).with(&map([("content", vec![block].into())])),
            ),
            (
                "c1 12 001e 00000005 00000000
                 81 a3657272 82 a4636f6465 a963616e63656c6c6564 a57265747279 a26e6f",
                Frame::new(kind::END, 5, map([("err", fault)])),
            ),
            (
                "c1 11 0001 00000007 0000000d 80 | 000000 | 82 a174 a474657874 a164 a24869",
                Frame::new(kind::ITEM, 7, empty())
                    .with(&map([("t", "text".into()), ("d", "Hi".into())])),
            ),
            (
                "c1 14 0008 00000007 00000000 81 a16e ce00010000",
                Frame::new(kind::CREDIT, 7, map([("n", 65_536.into())])),
            ),
            (
                "c1 13 000d 00000007 00000000 81 a6726561736f6e a475736572",
                Frame::new(kind::CANCEL, 7, map([("reason", "user".into())])),
            ),
            (
                "c1 01 003c 00000000 00000000
                 83 a876657273696f6e73 9101 a86665617475726573 90 a66c696d697473
                 83 a56672616d65 ce00100000 a677696e646f77 ce00040000 a563616c6c73 08",
                Frame::new(
                    kind::HELLO,
                    0,
                    map([
                        ("versions", vec![1.into()].into()),
                        ("features", Value::Array(vec![])),
                        ("limits", limits),
                    ]),
                ),
            ),
        ]
    }

    #[test]
    fn frames_have_the_bytes_of_the_spec_in_both_directions() {
        for (bytes, frame) in golden() {
            let bytes = hex(bytes);
            assert_eq!(frame.bytes(), bytes, "{frame:?}");
            let read = read(&mut &bytes[..], ANY).expect("valid").expect("one frame");
            assert_eq!(read, frame);
        }
    }

    #[test]
    fn the_body_starts_at_a_multiple_of_sixteen_whatever_the_head() {
        for len in 0..40 {
            let head = map([("k", "x".repeat(len).into())]);
            let frame = Frame::new(kind::NOTE, 0, head.clone()).with(&Value::Bool(true));
            let bytes = frame.bytes();
            let at = bytes.len() - 1;
            assert_eq!(at % 16, 0, "head of {} bytes", head.bytes().len());
            assert_eq!(bytes[at], 0xC3);
            assert!(bytes[12 + head.bytes().len()..at].iter().all(|byte| *byte == 0));
            assert_eq!(bytes.len(), size(head.bytes().len(), 1));
        }
    }

    #[test]
    fn every_width_means_the_same() {
        let value = map([
            ("small", 5.into()),
            ("byte", 200.into()),
            ("short", 60_000.into()),
            ("word", 4_000_000_000_u32.into()),
            ("long", (1_u64 << 50).into()),
            ("minus", (-7).into()),
            ("low", (-40_000).into()),
            ("list", vec![Value::Nil, true.into(), Value::Float(0.5)].into()),
            ("bin", Value::Bin(vec![0, 255])),
        ]);
        for width in [Width::Shortest, Width::U64, Width::I64, Width::All] {
            let bytes = value.bytes_in(width);
            assert_eq!(Value::decode(&bytes, 8), Ok(value.clone()), "{width:?}");
        }
        assert_eq!(Value::Int(1).bytes_in(Width::U64), hex("cf 00000000 00000001"));
        assert_eq!(Value::Int(1).bytes_in(Width::I64), hex("d3 00000000 00000001"));
        assert_eq!(empty().bytes_in(Width::All), hex("df 00000000"));
        assert_eq!(Value::from("a").bytes_in(Width::All), hex("db 00000001 61"));
    }

    fn refused(bytes: &[u8]) -> (&'static str, String) {
        match read(&mut &bytes[..], ANY) {
            Err(Broken::Rule(code, why)) => (code, why),
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    #[test]
    fn what_a_head_may_not_be_is_refused() {
        let framed = |head: &str| {
            let head = hex(head);
            let mut bytes = header(kind::NOTE, head.len() as u16, 0, 0);
            bytes.extend(head);
            bytes
        };
        for (head, why) in [
            ("82 a16e01 a16e02", "a key that occurs twice"),
            ("90", "not a map"),
            ("c0", "not a map"),
            ("07", "not a map"),
            ("80 00", "trailing bytes"),
            ("81 a16e d40100", "an extension type"),
            ("81 a16e a1ff", "text that is not UTF-8"),
            ("81 01 02", "a key that is not a string"),
            ("81 a16e cf0020000000000000", "an integer beyond 2^53 - 1"),
            ("81 a16e 9191919191919191", "nested too deeply"),
            ("8f a16e 01", "bytes end too early"),
            ("dfffffffff", "bytes end too early"),
            ("c1", "the byte that MessagePack never uses"),
        ] {
            let (code, found) = refused(&framed(head));
            assert_eq!((code, found.as_str()), ("protocol_error", &*format!("bad head: {why}")));
        }
        // Eight levels are allowed: the map and seven arrays in it.
        read(&mut &framed("81 a16e 91919191919190")[..], ANY).expect("depth 8 is fine");
        read(&mut &framed("81 a16e cf001fffffffffffff")[..], ANY).expect("2^53 - 1 is fine");
    }

    #[test]
    fn what_a_frame_may_not_be_is_refused_from_the_header_alone() {
        assert_eq!(refused(&hex("68")).0, "protocol_error");
        assert_eq!(refused(&header(kind::NOTE, 1, 0, u32::MAX)).0, "frame_too_large");
        assert_eq!(refused(&header(kind::NOTE, 0, 0, 0)).0, "protocol_error");
        assert_eq!(refused(&header(0x3F, 0, 0, 0)).0, "unsupported_frame");
        assert_eq!(refused(&header(0x3F, 1, 0, u32::MAX)).0, "frame_too_large");
        assert_eq!(refused(&hex("c1 04 0001 00000007 00000000 80")).0, "protocol_error");
        let exact = (1 << 20) - 16;
        assert_eq!(refused(&header(kind::NOTE, 1, 0, exact + 1)).0, "frame_too_large");
        let bytes = header(kind::NOTE, 1, 0, exact);
        assert!(matches!(read(&mut &bytes[..], ANY), Err(Broken::Cut)));
        assert_eq!(
            refused(&hex("c1 03 0001 00000000 00000001 80 | 000100 | 07")),
            ("protocol_error", "expected zero bytes between head and body".into())
        );
    }

    #[test]
    fn the_head_of_a_type_that_may_be_skipped_is_not_read() {
        let bytes = hex("c1 e7 0001 ffffffff 00000001 c1 | 000000 | c1");
        let frame = read(&mut &bytes[..], ANY).expect("skipped").expect("one frame");
        assert_eq!((frame.kind, frame.head, frame.body), (0xE7, Value::Nil, vec![0xC1]));
    }

    #[test]
    fn a_limit_may_depend_on_the_type() {
        let limit = |kind| if kind == kind::HELLO { 16 } else { 13 };
        let hello = Frame::new(kind::HELLO, 0, map([("a", 1.into())])).bytes();
        assert!(matches!(read(&mut &hello[..], limit), Ok(Some(_))));
        let note = Frame::new(kind::NOTE, 0, map([("a", 1.into())])).bytes();
        let refusal = read(&mut &note[..], limit);
        assert!(matches!(refusal, Err(Broken::Rule("frame_too_large", _))), "{refusal:?}");
    }
}
