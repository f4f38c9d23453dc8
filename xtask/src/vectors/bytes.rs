//! Frames written down by hand.
//!
//! This file knows the layout of a frame and nothing else, and shares no code
//! with the protocol it serves to test. Heads and bodies are given byte for byte
//! in a notation that a person can check against the MessagePack page: hex
//! digits, and text in quotes.

/// Some bytes and what they are.
pub(crate) struct Piece {
    pub(crate) about: String,
    pub(crate) bytes: Vec<u8>,
}

/// Reads the notation: hex digits and `'text'`; spaces mean nothing.
///
/// # Panics
/// On anything else: every notation is a constant of this program.
pub(crate) fn bytes(notation: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Every second part stands in quotes.
    for (at, part) in notation.split('\'').enumerate() {
        if at % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let digits: Vec<u32> = part
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| c.to_digit(16).unwrap_or_else(|| panic!("{c:?} in {notation:?} is not hex")))
            .collect();
        assert!(digits.len().is_multiple_of(2), "half a byte in {notation:?}");
        bytes.extend(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8));
    }
    bytes
}

/// A frame to be written down, right unless told otherwise.
pub(crate) struct Frame {
    kind: u8,
    id: u32,
    head: String,
    body: String,
    head_len: Option<u16>,
    body_len: Option<u32>,
    gap: Option<(usize, u8)>,
    keep: usize,
}

/// A frame with a head and without a body.
pub(crate) fn frame(kind: u8, id: u32, head: impl Into<String>) -> Frame {
    Frame {
        kind,
        id,
        head: head.into(),
        body: String::new(),
        head_len: None,
        body_len: None,
        gap: None,
        keep: usize::MAX,
    }
}

impl Frame {
    pub(crate) fn body(mut self, notation: impl Into<String>) -> Self {
        self.body = notation.into();
        self
    }

    /// Declares another head length than the true one.
    pub(crate) fn head_len(mut self, declared: u16) -> Self {
        self.head_len = Some(declared);
        self
    }

    /// Declares another body length than the true one.
    pub(crate) fn body_len(mut self, declared: u32) -> Self {
        self.body_len = Some(declared);
        self
    }

    /// Spoils one byte of the gap.
    pub(crate) fn gap(mut self, at: usize, byte: u8) -> Self {
        self.gap = Some((at, byte));
        self
    }

    /// Ends the stream after this many bytes of the frame.
    pub(crate) fn cut(mut self, keep: usize) -> Self {
        self.keep = keep;
        self
    }

    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let (head, body) = (bytes(&self.head), bytes(&self.body));
        let head_len = self.head_len.unwrap_or(head.len() as u16);
        let body_len = self.body_len.unwrap_or(body.len() as u32);
        let mut header = vec![0xc1, self.kind];
        header.extend(head_len.to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(body_len.to_be_bytes());
        let end_of_head = 12 + head.len();
        let mut gap = match body.len() {
            0 => Vec::new(),
            _ => vec![0; (16 - end_of_head % 16) % 16],
        };
        if let Some((at, byte)) = self.gap {
            gap[at] = byte;
        }
        let name = match self.kind {
            0x01 => "HELLO",
            0x02 => "CLOSE",
            0x03 => "PING",
            0x04 => "PONG",
            0x10 => "CALL",
            0x11 => "ITEM",
            0x12 => "END",
            0x13 => "CANCEL",
            0x14 => "CREDIT",
            0x90 => "NOTE",
            _ => "unknown",
        };
        let pieces = [
            (format!("{name} #{}, head {head_len}, body {body_len}", self.id), header),
            (format!("head: {}", brief(&self.head)), head),
            (format!("gap, {end_of_head} up to {}", end_of_head + gap.len()), gap),
            (format!("body: {}", brief(&self.body)), body),
        ];
        let mut room = self.keep;
        let mut kept = Vec::new();
        for (about, mut bytes) in pieces {
            bytes.truncate(room);
            room -= bytes.len();
            if !bytes.is_empty() {
                kept.push(Piece { about, bytes });
            }
        }
        kept
    }
}

/// Bytes that are no frame.
pub(crate) fn stray(notation: &str) -> Vec<Piece> {
    vec![Piece { about: format!("stray: {}", brief(notation)), bytes: bytes(notation) }]
}

fn brief(notation: &str) -> String {
    // Long text explains itself, a long repetition does not need to.
    match notation.len() <= 40 || notation.contains('\'') {
        true => notation.split_whitespace().collect::<Vec<_>>().join(" "),
        false => format!("{} and so on", notation.chars().take(20).collect::<String>()),
    }
}

/// The text of a `.hex` file: 32 bytes a line, `#` begins a comment.
pub(crate) fn hex(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for piece in pieces {
        text += &format!("# {}\n", piece.about);
        for line in piece.bytes.chunks(32) {
            let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{}\n", line.join(" "));
        }
    }
    text
}

/// Reads such a text back.
pub(crate) fn read_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text
        .lines()
        .filter_map(|line| line.split('#').next())
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
        .map(|c| c.to_digit(16))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}
