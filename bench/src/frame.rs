//! The frames of the floor: the layout of protocol 1, and nothing of its rules.
//!
//! The floor moves the same bytes as plugbay would, with as little work as the
//! bytes allow: it is what a hand-written pair of programs could do.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

const HEADER: usize = 12;
const CALL: u8 = 0x10;
const END: u8 = 0x12;

/// The body of a call of the tool `add`.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Call<'a> {
    pub(crate) name: &'a str,
    pub(crate) args: Add,
}

/// Its arguments.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Add {
    pub(crate) a: u64,
    pub(crate) b: u64,
}

/// The body of its result.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Answer {
    pub(crate) content: [Block; 1],
    pub(crate) data: u64,
}

/// A block of text.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Block {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: String,
}

#[derive(Serialize)]
struct CallHead {
    method: &'static str,
    deadline: u64,
}

#[derive(Serialize)]
struct EndHead {}

/// Appends a CALL with this body.
pub(crate) fn put_call(out: &mut Vec<u8>, id: u32, body: &impl Serialize) -> anyhow::Result<()> {
    put(out, CALL, id, &CallHead { method: "tool.call", deadline: 30_000 }, body)
}

/// Appends an END with this body.
pub(crate) fn put_end(out: &mut Vec<u8>, id: u32, body: &impl Serialize) -> anyhow::Result<()> {
    put(out, END, id, &EndHead {}, body)
}

fn put(
    out: &mut Vec<u8>,
    kind: u8,
    id: u32,
    head: &impl Serialize,
    body: &impl Serialize,
) -> anyhow::Result<()> {
    let start = out.len();
    out.resize(start + HEADER, 0);
    rmp_serde::encode::write_named(out, head)?;
    let head_len = u16::try_from(out.len() - start - HEADER)?;
    out.resize(start + (out.len() - start).next_multiple_of(16), 0);
    let body_at = out.len();
    rmp_serde::encode::write_named(out, body)?;
    let body_len = u32::try_from(out.len() - body_at)?;
    let header = &mut out[start..start + HEADER];
    header[..2].copy_from_slice(&[0xC1, kind]);
    header[2..4].copy_from_slice(&head_len.to_be_bytes());
    header[4..8].copy_from_slice(&id.to_be_bytes());
    header[8..].copy_from_slice(&body_len.to_be_bytes());
    Ok(())
}

/// One frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) id: u32,
    pub(crate) body: &'a [u8],
}

/// What has arrived and is not used yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity].into(), start: 0, end: 0 }
    }

    /// Reads once; false at the end of the pipe.
    pub(crate) fn fill(&mut self, pipe: &mut impl Read) -> io::Result<bool> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let n = pipe.read(&mut self.bytes[self.end..])?;
        self.end += n;
        Ok(n > 0)
    }

    /// The next frame that is there as a whole.
    pub(crate) fn next(&mut self) -> Option<Frame<'_>> {
        let bytes = &self.bytes[self.start..self.end];
        let header = bytes.first_chunk::<HEADER>()?;
        let head_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let body_at = match body_len {
            0 => HEADER + head_len,
            _ => (HEADER + head_len).next_multiple_of(16),
        };
        let body = bytes.get(body_at..body_at + body_len)?;
        self.start += body_at + body_len;
        Some(Frame { id, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = Vec::new();
        put_call(&mut bytes, 7, &Call { name: "add", args: Add { a: 1, b: 2 } }).expect("fits");
        let first = bytes.len();
        put_end(&mut bytes, 9, &5_u64).expect("fits");
        assert_eq!(bytes[..4], [0xC1, CALL, 0, 30], "the head of the spec's example");
        assert_eq!((first - bytes[11] as usize) % 16, 0, "the body is aligned");
        for cut in 1..bytes.len() {
            let mut inbox = Inbox::new(1024);
            let mut found = Vec::new();
            for mut part in [&bytes[..cut], &bytes[cut..]] {
                inbox.fill(&mut part).expect("a slice never fails");
                while let Some(frame) = inbox.next() {
                    found.push((frame.id, frame.body.to_vec()));
                }
            }
            assert_eq!(found.len(), 2, "cut at {cut}");
            let call: Call<'_> = rmp_serde::from_slice(&found[0].1).expect("a call");
            assert_eq!((found[0].0, call.name, call.args.b), (7, "add", 2));
            assert_eq!(found[1], (9, vec![5]));
        }
    }
}
