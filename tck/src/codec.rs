//! Frames: twelve bytes of header, a head, a gap and a body.

use crate::value::Value;

/// Frame types, as in the registry of the spec.
pub const HELLO: u8 = 0x01;
pub const CLOSE: u8 = 0x02;
pub const PING: u8 = 0x03;
pub const PONG: u8 = 0x04;
pub const CALL: u8 = 0x10;
pub const ITEM: u8 = 0x11;
pub const END: u8 = 0x12;
pub const CANCEL: u8 = 0x13;
pub const CREDIT: u8 = 0x14;
pub const NOTE: u8 = 0x90;

/// What a frame of this type is called.
pub fn name(kind: u8) -> String {
    let known = match kind {
        HELLO => "HELLO",
        CLOSE => "CLOSE",
        PING => "PING",
        PONG => "PONG",
        CALL => "CALL",
        ITEM => "ITEM",
        END => "END",
        CANCEL => "CANCEL",
        CREDIT => "CREDIT",
        NOTE => "NOTE",
        _ => return format!("type {kind:02X}"),
    };
    known.to_owned()
}

/// One frame, as its bytes say it. Head and body are MessagePack that nobody has judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub id: u32,
    pub head: Vec<u8>,
    /// Not zero if the sender filled the gap, which [R-FR-04] forbids.
    pub gap: Vec<u8>,
    pub body: Vec<u8>,
}

/// What can stand as a body: nothing, a value, or bytes as they are.
pub trait Body {
    fn into_bytes(self) -> Vec<u8>;
}

impl Body for Value {
    fn into_bytes(self) -> Vec<u8> {
        self.pack()
    }
}

impl Body for &Value {
    fn into_bytes(self) -> Vec<u8> {
        self.pack()
    }
}

/// Nothing.
impl Body for () {
    fn into_bytes(self) -> Vec<u8> {
        Vec::new()
    }
}

/// Bytes that are sent as they are.
impl Body for Vec<u8> {
    fn into_bytes(self) -> Vec<u8> {
        self
    }
}

/// Bytes that are sent as they are.
impl Body for &[u8] {
    fn into_bytes(self) -> Vec<u8> {
        self.to_vec()
    }
}

/// The twelve bytes, of whatever they are given: also lengths that nothing follows.
pub fn header(kind: u8, head_len: usize, id: u32, body_len: u64) -> Vec<u8> {
    let mut bytes = vec![0xC1, kind];
    bytes.extend((head_len as u16).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend((body_len as u32).to_be_bytes());
    bytes
}

/// Where the body begins, counted from the frame's first byte [R-FR-03].
pub fn body_at(head_len: usize, body_len: usize) -> usize {
    let at = 12 + head_len;
    if body_len == 0 { at } else { at.div_ceil(16) * 16 }
}

impl Frame {
    pub fn new(kind: u8, id: u32, head: &Value, body: impl Body) -> Self {
        Self::of(kind, id, head.pack(), body)
    }

    /// With a head of bytes as they are.
    pub fn of(kind: u8, id: u32, head: Vec<u8>, body: impl Body) -> Self {
        let body = body.into_bytes();
        let gap = vec![0; body_at(head.len(), body.len()) - 12 - head.len()];
        Self { kind, id, head, gap, body }
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = header(self.kind, self.head.len(), self.id, self.body.len() as u64);
        bytes.extend(&self.head);
        bytes.extend(&self.gap);
        bytes.extend(&self.body);
        bytes
    }

    /// The same for a frame whose body was cut, and had `body_len` bytes.
    pub fn bytes_of(&self, body_len: usize) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
        bytes
    }

    /// Bytes on the wire, gap included.
    pub fn size(&self) -> usize {
        12 + self.head.len() + self.gap.len() + self.body.len()
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct Cutter {
    buffer: Vec<u8>,
    at: usize,
}

/// Where a frame was due there was something else; nothing can be read after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// What was found, as far as it had arrived.
    pub bytes: Vec<u8>,
}

impl Cutter {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, if all of it is there.
    ///
    /// # Errors
    /// [`Foreign`] if what comes next is no frame.
    pub fn take(&mut self) -> Result<Option<Frame>, Foreign> {
        let rest = self.rest();
        if rest.first().is_some_and(|byte| *byte != 0xC1) {
            return Err(Foreign { bytes: rest.to_vec() });
        }
        let Some(&[_, kind, h1, h0, i3, i2, i1, i0, b3, b2, b1, b0]) = rest.first_chunk() else {
            return Ok(None);
        };
        let head_len = usize::from(u16::from_be_bytes([h1, h0]));
        let body_len = u32::from_be_bytes([b3, b2, b1, b0]) as usize;
        let body_at = body_at(head_len, body_len);
        let Some(bytes) = rest.get(..body_at + body_len) else { return Ok(None) };
        let frame = Frame {
            kind,
            id: u32::from_be_bytes([i3, i2, i1, i0]),
            head: bytes[12..12 + head_len].to_vec(),
            gap: bytes[12 + head_len..body_at].to_vec(),
            body: bytes[body_at..].to_vec(),
        };
        self.at += frame.size();
        Ok(Some(frame))
    }

    /// What has arrived and is not a whole frame yet.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;

    #[test]
    fn the_bytes_are_those_of_the_spec() {
        let end = Frame::new(END, 3, &Value::map(), map! {"n": 3});
        let expected =
            [0xC1, 0x12, 0, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0x80, 0, 0, 0, 0x81, 0xA1, b'n', 3];
        assert_eq!(end.bytes(), expected);
        assert_eq!((end.size(), body_at(4, 1), body_at(5, 1), body_at(5, 0)), (20, 16, 32, 17));
    }

    #[test]
    fn frames_come_out_however_the_bytes_come_in() {
        let frames = [
            Frame::new(PING, 0, &Value::map(), vec![7_u8; 9]),
            Frame::new(CLOSE, 0, &map! {"code": "ok"}, ()),
            Frame::new(CALL, 1, &map! {"method": "a.b"}, map! {"x": "y"}),
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        for step in 1..bytes.len() {
            let (mut cutter, mut found) = (Cutter::default(), Vec::new());
            for chunk in bytes.chunks(step) {
                cutter.push(chunk);
                while let Ok(Some(frame)) = cutter.take() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "in steps of {step}");
            assert!(cutter.rest().is_empty());
        }
    }

    #[test]
    fn what_is_no_frame_is_kept() {
        let mut cutter = Cutter::default();
        cutter.push(b"hello\n");
        assert_eq!(cutter.take(), Err(Foreign { bytes: b"hello\n".to_vec() }));
        let mut cutter = Cutter::default();
        cutter.push(&header(ITEM, 1, 3, 100));
        assert_eq!(cutter.take(), Ok(None));
        assert_eq!(cutter.rest().len(), 12);
    }
}
