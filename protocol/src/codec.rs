//! Bytes to frames and frames to bytes.
//!
//! ```text
//!  0      1      2             4                 8                 12
//! +------+------+-------------+-----------------+-----------------+
//! |  C1  | type | head_len u16|     id u32      |  body_len u32   |  big-endian
//! +------+------+-------------+-----------------+-----------------+
//! |  head: one MessagePack map, head_len bytes (1..=65535)        |
//! +---------------------------------------------------------------+
//! |  gap: zero bytes up to the next multiple of 16, if there is a |
//! |  body                                                         |
//! +---------------------------------------------------------------+
//! |  body: body_len bytes                                         |
//! +---------------------------------------------------------------+
//! ```
//!
//! The decoder decides from the header alone whether a frame is too large, and
//! its buffer grows with the bytes that arrive, never with a length that was
//! declared.

use alloc::{collections::VecDeque, vec::Vec};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    error::{Close, Fault, Violation},
    event::{Details, Outgoing},
    frame::{CallId, CancelReason, Frame, Kind, Note, USUAL_METHOD, method},
    hello::{Features, Identity, Limits, VERSION},
    msgpack::Writer,
};

/// The byte that every frame starts with. MessagePack never uses it and UTF-8
/// text cannot contain it, so nothing that is printed looks like a frame.
pub const MAGIC: u8 = 0xc1;
/// Length of the header.
pub const HEADER_LEN: usize = 12;
/// Bodies start at a multiple of this, counted from the frame's first byte.
pub const BODY_ALIGN: usize = 16;
/// The largest HELLO before limits are known. \[R-FR-10\]
pub(crate) const HELLO_MAX: u32 = 1 << 20;
/// The smallest reserve for a read.
const READ_MIN: usize = 16 << 10;
/// The usual capacity of the read buffer: what a pipe holds by default.
const READ_USUAL: usize = 64 << 10;
/// Bodies up to this size are copied out of the read buffer, so that a small
/// value kept by somebody does not keep 64 KiB alive.
const COPY_IN_MAX: usize = 2 << 10;
/// Frames that arrived together are copied together, up to this many bytes: one
/// allocation for a crowd of small bodies, and still a bound on what one of them keeps.
const COPY_TOGETHER_MAX: usize = 4 << 10;
/// Bodies up to this size are copied into the write buffer, so that many small
/// frames leave in one piece.
const COPY_OUT_MAX: usize = 16 << 10;

/// The size of a whole frame and where its body starts.
pub fn layout(head_len: usize, body_len: usize) -> (u64, usize) {
    let end_of_head = HEADER_LEN + head_len;
    match body_len {
        0 => (end_of_head as u64, end_of_head),
        n => {
            let body_at = end_of_head.next_multiple_of(BODY_ALIGN);
            (body_at as u64 + n as u64, body_at)
        }
    }
}

/// A whole frame of a known kind, its head still encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// What it is.
    pub kind: Kind,
    /// Its id, 0 for the connection.
    pub id: u32,
    /// The encoded map.
    pub head: Bytes,
    /// The body, or empty.
    pub body: Bytes,
}

/// Cuts a stream of bytes into frames.
///
/// Once it has returned an error it returns the same error for ever: there is no
/// resynchronising. \[R-FR-07\]
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: BytesMut,
    /// A copy of the first of them, from which small bodies are cut; empty between reads.
    copied: Bytes,
    /// The limit we announced, once HELLO is through.
    frame_max: Option<u32>,
    /// The largest frame that has arrived whole.
    largest: u64,
    broken: Option<Violation>,
}

impl Decoder {
    /// A decoder that expects HELLO first.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where to read to. There is always room; the reader appends what it got.
    ///
    /// The buffer is never more than twice what has truly arrived, with one
    /// exception: a frame no larger than one that has already arrived whole gets
    /// its room at once, so that large frames are copied while growing only once.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.copied = Bytes::new();
        let have = self.bytes.len();
        let due = Header::peek(&self.bytes).map_or(0, |it| layout(it.head_len, it.body_len).0);
        if (have as u64) < due && due <= self.largest {
            // Room for the rest and no more: growing now would copy what is there.
            self.bytes.reserve(due as usize - have);
        } else if self.bytes.capacity() - have < READ_MIN {
            self.bytes.reserve(have.max(READ_USUAL));
        }
        &mut self.bytes
    }

    pub(crate) fn put_buffer(&mut self, buffer: BytesMut) {
        self.copied = Bytes::new();
        self.bytes = buffer;
    }

    /// From now on frames up to our announced limit are accepted.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        self.frame_max = Some(frame_max);
    }

    /// Bytes that belong to no whole frame yet.
    pub fn pending(&self) -> &[u8] {
        &self.bytes
    }

    /// The next whole frame, `None` if more bytes are needed. Unknown frames that
    /// may be ignored are skipped. \[R-EX-01\]
    ///
    /// # Errors
    /// The stream is not what the spec describes. Sticky.
    pub fn frame(&mut self) -> Result<Option<Raw>, Violation> {
        self.next(|kind, id, head, body| {
            Ok(Raw { kind, id, head: Bytes::copy_from_slice(head), body })
        })
    }

    /// The same with its head read, without a copy of it.
    pub(crate) fn read(&mut self) -> Result<Option<Frame>, Violation> {
        self.next(Frame::read)
    }

    fn next<T>(
        &mut self,
        read: impl FnOnce(Kind, u32, &[u8], Bytes) -> Result<T, Violation>,
    ) -> Result<Option<T>, Violation> {
        if let Some(violation) = &self.broken {
            return Err(violation.clone());
        }
        let next = match self.cut() {
            Ok(None) => {
                // Nothing whole is left, so the copy has served.
                self.copied = Bytes::new();
                return Ok(None);
            }
            Err(violation) => Err(violation),
            Ok(Some(Cut { kind, id, end_of_head, body_at, end })) => {
                if end - body_at <= COPY_IN_MAX {
                    let body = self.copy_body(body_at, end);
                    let next = read(kind, id, &self.bytes[HEADER_LEN..end_of_head], body);
                    self.skip(end);
                    next
                } else {
                    self.copied = Bytes::new();
                    let mut frame = self.bytes.split_to(end);
                    let body = frame.split_off(body_at).freeze();
                    read(kind, id, &frame[HEADER_LEN..end_of_head], body)
                }
            }
        };
        match next {
            Ok(next) => Ok(Some(next)),
            Err(violation) => {
                self.broken = Some(violation.clone());
                Err(violation)
            }
        }
    }

    /// A small body at the front of the buffer, as one that keeps little else alive.
    fn copy_body(&mut self, body_at: usize, end: usize) -> Bytes {
        if body_at == end {
            return Bytes::new();
        }
        if self.copied.len() < end {
            let together = self.bytes.len().min(COPY_TOGETHER_MAX);
            if together < 2 * end {
                // It came alone, or nearly so.
                return Bytes::copy_from_slice(&self.bytes[body_at..end]);
            }
            self.copied = Bytes::copy_from_slice(&self.bytes[..together]);
        }
        self.copied.slice(body_at..end)
    }

    /// Forgets the first `n` bytes of the buffer.
    fn skip(&mut self, n: usize) {
        self.bytes.advance(n);
        self.copied.advance(n.min(self.copied.len()));
    }

    /// What to say about a stream that ended here.
    ///
    /// # Errors
    /// [`Violation::Truncated`] inside a frame.
    pub fn end(&self) -> Result<(), Violation> {
        match self.bytes.len() {
            0 => Ok(()),
            got => {
                let header = Header::peek(&self.bytes);
                let due = header.map_or(HEADER_LEN as u64, |h| layout(h.head_len, h.body_len).0);
                Err(Violation::Truncated { got, due })
            }
        }
    }

    /// Finds the next whole frame at the front of the buffer.
    fn cut(&mut self) -> Result<Option<Cut>, Violation> {
        loop {
            // The first byte alone tells noise from frames, so look at it at once.
            match self.bytes.first() {
                None => return Ok(None),
                Some(&MAGIC) => {}
                Some(_) => {
                    let found = &self.bytes[..self.bytes.len().min(Violation::PREFIX)];
                    return Err(Violation::NotAFrame { found: Vec::from(found) });
                }
            }
            let Some(Header { kind: byte, id, head_len, body_len }) = Header::peek(&self.bytes)
            else {
                return Ok(None);
            };
            let (size, body_at) = layout(head_len, body_len);
            let known = Kind::from_byte(byte);
            let max = match (self.frame_max, known) {
                (Some(max), _) => max,
                (None, Some(Kind::Hello)) => HELLO_MAX,
                (None, _) => Limits::FLOOR.frame,
            };
            if u64::from(max) < size {
                return Err(Violation::FrameTooLarge { size, max });
            }
            if known.is_none() && byte < 0x80 {
                return Err(Violation::UnknownFrame(byte));
            }
            if head_len == 0 {
                let kind = known.map_or("frame", Kind::as_str);
                return Err(Violation::Head { kind, why: crate::msgpack::Malformed::NotAMap });
            }
            // Within `max`, so it fits a `usize`.
            if (self.bytes.len() as u64) < size {
                return Ok(None);
            }
            self.largest = self.largest.max(size);
            let end_of_head = HEADER_LEN + head_len;
            if self.bytes[end_of_head..body_at].iter().any(|&byte| byte != 0) {
                return Err(Violation::Gap);
            }
            let end = body_at + body_len;
            let Some(kind) = known else {
                self.skip(end);
                continue;
            };
            return Ok(Some(Cut { kind, id, end_of_head, body_at, end }));
        }
    }
}

/// A whole frame at the front of the buffer: what it is, and where its parts lie.
struct Cut {
    kind: Kind,
    id: u32,
    end_of_head: usize,
    body_at: usize,
    end: usize,
}

/// The header's fields, read.
struct Header {
    kind: u8,
    id: u32,
    head_len: usize,
    body_len: usize,
}

impl Header {
    fn peek(bytes: &[u8]) -> Option<Self> {
        let [_, kind, h0, h1, i0, i1, i2, i3, b0, b1, b2, b3] =
            *bytes.first_chunk::<HEADER_LEN>()?;
        Some(Self {
            kind,
            id: u32::from_be_bytes([i0, i1, i2, i3]),
            head_len: usize::from(u16::from_be_bytes([h0, h1])),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
        })
    }
}

/// Frames on their way out.
///
/// Small frames gather in one buffer, large bodies stay where they are; together
/// they leave in as few writes as the pipe allows. Counts every byte that was
/// ever queued and ever written, which is how a call knows whether any of it
/// reached the peer.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Full pieces, oldest first.
    pieces: VecDeque<Bytes>,
    /// What is still being gathered, without what has left already: its room is
    /// used again, so a pipe that is never quite empty costs no memory.
    tail: BytesMut,
    queued: u64,
    written: u64,
}

impl Outbox {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.queued == self.written
    }

    /// Bytes waiting to be written.
    pub fn len(&self) -> u64 {
        self.queued - self.written
    }

    /// Bytes ever queued. A frame has left entirely once [`Self::written`] is at
    /// least what this was right after it was queued.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes ever written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Up to `N` pieces in order, for a vectored write.
    ///
    /// What of them was written has to be told with [`Self::advance`] before anything
    /// else is done with the conversation, which may take back what was not.
    pub fn pieces<const N: usize>(&self) -> ([&[u8]; N], usize) {
        let mut list: [&[u8]; N] = [&[]; N];
        let all = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
        let mut count = 0;
        for piece in all.filter(|piece| !piece.is_empty()).take(N) {
            list[count] = piece;
            count += 1;
        }
        (list, count)
    }

    /// Forgets the first `n` bytes, which have been written.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, mut n: usize) {
        assert!(n as u64 <= self.len(), "more bytes written than were queued");
        self.written += n as u64;
        while let Some(first) = self.pieces.front_mut() {
            if n < first.len() {
                first.advance(n);
                return;
            }
            n -= first.len();
            self.pieces.pop_front();
        }
        self.tail.advance(n);
    }

    /// Takes everything out as one piece. For tests and for transports in memory.
    pub fn take(&mut self) -> Bytes {
        let mut all = BytesMut::new();
        for piece in self.pieces.drain(..) {
            all.put(piece);
        }
        all.put(&self.tail[..]);
        self.tail.clear();
        self.written = self.queued;
        all.freeze()
    }

    /// Takes back the bytes between two positions, as [`Self::queued`] gave them.
    /// None of them may have been written. What was queued behind them moves up.
    pub(crate) fn withdraw(&mut self, from: u64, until: u64) {
        debug_assert!(self.written <= from && from <= until && until <= self.queued);
        // Within what waits in memory, so both fit a `usize`.
        let (mut from, mut until) =
            ((from - self.written) as usize, (until - self.written) as usize);
        self.queued -= (until - from) as u64;
        for piece in core::mem::take(&mut self.pieces) {
            let (head, tail) = (from.min(piece.len()), until.min(piece.len()));
            (from, until) = (from - head, until - tail);
            let kept = [piece.slice(..head), piece.slice(tail..)];
            self.pieces.extend(kept.into_iter().filter(|part| !part.is_empty()));
        }
        self.tail.copy_within(until.., from);
        self.tail.truncate(self.tail.len() - (until - from));
    }

    /// Queues a frame. `head` writes the encoded map. Returns the frame's size, or
    /// the size it would have had, with nothing queued, if that is more than `max`.
    pub(crate) fn push(
        &mut self,
        kind: Kind,
        id: u32,
        body: &Bytes,
        max: u32,
        head: impl FnOnce(&mut Writer<'_>),
    ) -> Result<usize, usize> {
        let start = self.tail.len();
        let [i0, i1, i2, i3] = id.to_be_bytes();
        let [b0, b1, b2, b3] = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.tail.put_slice(&[MAGIC, kind as u8, 0, 0, i0, i1, i2, i3, b0, b1, b2, b3]);
        head(&mut Writer(&mut self.tail));
        let head_len = self.tail.len() - start - HEADER_LEN;
        let (size, body_at) = layout(head_len, body.len());
        let fits = usize::from(u16::MAX) >= head_len && size <= u64::from(max);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if !fits {
            self.tail.truncate(start);
            return Err(size);
        }
        self.tail[start + 2..start + 4].copy_from_slice(&(head_len as u16).to_be_bytes());
        self.tail.put_bytes(0, start + body_at - self.tail.len());
        if body.len() <= COPY_OUT_MAX {
            self.tail.put_slice(body);
        } else {
            self.pieces.push_back(self.tail.split().freeze());
            self.pieces.push_back(body.clone());
        }
        self.queued += size as u64;
        Ok(size)
    }
}

/// The heads that this crate writes.
pub(crate) mod heads {
    use super::*;

    pub(crate) fn empty(head: &mut Writer<'_>) {
        head.map(0);
    }

    pub(crate) fn host_hello(
        head: &mut Writer<'_>,
        who: &Identity,
        features: Features,
        limits: Limits,
    ) {
        head.map(4);
        head.str("versions");
        head.array(1);
        head.integer(VERSION);
        hello_rest(head, "host", who, features, limits);
    }

    pub(crate) fn plugin_hello(
        head: &mut Writer<'_>,
        version: u64,
        who: &Identity,
        features: Features,
        limits: Limits,
    ) {
        head.map(4);
        head.pair_integer("version", version);
        hello_rest(head, "plugin", who, features, limits);
    }

    fn hello_rest(
        head: &mut Writer<'_>,
        side: &str,
        who: &Identity,
        features: Features,
        limits: Limits,
    ) {
        head.str("features");
        head.array(features.names().count());
        features.names().for_each(|name| head.str(name));
        head.str("limits");
        head.map(3);
        head.pair_integer("frame", limits.frame.into());
        head.pair_integer("window", limits.window.into());
        head.pair_integer("calls", limits.calls.into());
        head.str(side);
        head.map(2 + usize::from(who.sdk.is_some()));
        head.pair_str("name", &who.name);
        head.pair_str("version", &who.version);
        if let Some(sdk) = &who.sdk {
            head.pair_str("sdk", sdk);
        }
    }

    pub(crate) fn close(head: &mut Writer<'_>, code: Close, id: Option<CallId>) {
        let versions = code == Close::VersionUnsupported;
        head.map(1 + usize::from(versions) + usize::from(id.is_some()));
        head.pair_str("code", code.as_str());
        if versions {
            head.str("supported");
            head.array(1);
            head.integer(VERSION);
        }
        if let Some(id) = id {
            head.pair_integer("id", id.0.into());
        }
    }

    pub(crate) fn call(head: &mut Writer<'_>, call: &Outgoing<'_>) {
        let Outgoing { deadline, idle, input, parent, details, .. } = call;
        let some = [deadline.is_some(), idle.is_some(), *input, parent.is_some()];
        let some: usize = some.into_iter().map(usize::from).sum();
        head.map(1 + some + details.as_ref().map_or(0, |details| count(details)));
        match call.method {
            // The same in one piece, for nearly every call.
            method::TOOL_CALL => head.raw(USUAL_METHOD),
            method => head.pair_str("method", method),
        }
        if let Some(ms) = deadline {
            head.pair_integer("deadline", *ms);
        }
        if let Some(ms) = idle {
            head.pair_integer("idle", *ms);
        }
        if *input {
            head.str("in");
            head.bool(true);
        }
        if let Some(parent) = parent {
            head.pair_integer("parent", parent.0.into());
        }
        if let Some(details) = details {
            rest_of_call(head, details);
        }
    }

    /// How many fields these are.
    #[cold]
    fn count(Details { scopes, key, attempt, trace }: &Details) -> usize {
        let some = [scopes.is_some(), key.is_some(), *attempt != 0, trace.is_some()];
        some.into_iter().map(usize::from).sum()
    }

    #[cold]
    fn rest_of_call(head: &mut Writer<'_>, details: &Details) {
        let Details { scopes, key, attempt, trace } = details;
        if let Some(scopes) = scopes {
            head.str("scopes");
            head.array(scopes.len());
            scopes.iter().for_each(|scope| head.str(scope));
        }
        if let Some(key) = key {
            head.pair_str("key", key);
        }
        if *attempt != 0 {
            head.pair_integer("attempt", (*attempt).into());
        }
        if let Some(trace) = trace {
            head.str("trace");
            head.map(1 + usize::from(trace.state.is_some()));
            head.pair_str("tp", &trace.parent);
            if let Some(state) = &trace.state {
                head.pair_str("ts", state);
            }
        }
    }

    pub(crate) fn credit(head: &mut Writer<'_>, n: u64) {
        head.map(1);
        head.pair_integer("n", n);
    }

    pub(crate) fn fault(head: &mut Writer<'_>, fault: &Fault) {
        head.map(1);
        head.str("err");
        head.map(2 + usize::from(fault.reason.is_some()) + usize::from(fault.after.is_some()));
        head.pair_str("code", fault.code.as_str());
        if let Some(reason) = &fault.reason {
            head.pair_str("reason", reason);
        }
        head.pair_str("retry", fault.retry.as_str());
        if let Some(ms) = fault.after {
            head.pair_integer("after", ms);
        }
    }

    pub(crate) fn cancel(head: &mut Writer<'_>, reason: CancelReason) {
        head.map(1);
        head.pair_str("reason", reason.as_str());
    }

    pub(crate) fn note(head: &mut Writer<'_>, note: &Note) {
        match note {
            Note::Progress { n, total, unit, .. } => {
                let fields = [n.is_some(), total.is_some(), unit.is_some()];
                head.map(1 + fields.into_iter().filter(|&field| field).count());
                head.pair_str("topic", "progress");
                if let Some(n) = n {
                    head.pair_integer("n", *n);
                }
                if let Some(total) = total {
                    head.pair_integer("total", *total);
                }
                if let Some(unit) = unit {
                    head.pair_str("unit", unit);
                }
            }
            Note::Log { level, event, .. } => {
                head.map(3);
                head.pair_str("topic", "log");
                head.pair_str("lvl", level.as_str());
                head.pair_str("event", event);
            }
            Note::Retire { reason } => {
                head.map(2);
                head.pair_str("topic", "retire");
                head.pair_str("reason", reason);
            }
        }
    }
}
