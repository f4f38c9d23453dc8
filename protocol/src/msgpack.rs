//! The MessagePack that heads are made of, read and written strictly.
//!
//! Heads are on the path of every call and come from the peer, so this reader
//! borrows, allocates nothing, never recurses and refuses whatever the spec
//! refuses. Bodies are not its business, but for [`check_body`], which walks one
//! without decoding it. For anything richer use a real MessagePack library.

use alloc::vec::Vec;

use bytes::{BufMut, BytesMut};

/// The largest integer a head may carry: 2^53 - 1, so that every language can
/// hold it. \[R-HD-07\]
pub(crate) const INTEGER_MAX: u64 = (1 << 53) - 1;
/// How deep a head may nest. \[R-HD-06\]
const HEAD_DEPTH: usize = 8;
/// How deep a body may nest before a receiver refuses it. \[R-HD-11\]
const BODY_DEPTH: usize = 128;

/// Why bytes are not the MessagePack that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The value needs more bytes than there are.
    #[error("the value ends too early")]
    Short,
    /// Bytes follow the value.
    #[error("bytes follow the value")]
    Trailing,
    /// The head is not a map.
    #[error("the head is not a map")]
    NotAMap,
    /// A body that has to be a map is something else.
    #[error("the body is not a map")]
    BodyNotAMap,
    /// A map key is not a string.
    #[error("a key is not a string")]
    KeyNotAString,
    /// A map key stands twice.
    #[error("a key stands twice")]
    DuplicateKey,
    /// An extension type, or the byte that MessagePack never uses.
    #[error("an extension type or an unused marker")]
    Extension,
    /// A string that is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// Nested deeper than allowed.
    #[error("nested too deeply")]
    TooDeep,
    /// An integer beyond 2^53 - 1.
    #[error("an integer is larger than 2^53 - 1")]
    Integer,
    /// A field has another type than the spec gives it.
    #[error("the field {0:?} has the wrong type")]
    Field(&'static str),
    /// A field that the spec requires is absent.
    #[error("the field {0:?} is missing")]
    Missing(&'static str),
    /// A field whose value is outside its range.
    #[error("the field {0:?} is out of range")]
    Range(&'static str),
}

/// One value in a head, as far as heads need to tell values apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Bool(bool),
    Integer(u64),
    /// A negative integer or a float: valid, and of no use to any head field.
    Number,
    /// Valid UTF-8.
    Str(&'a [u8]),
    Bin,
    /// The items, still encoded, and how many there are.
    Array(&'a [u8], u32),
    /// The pairs, still encoded, and how many there are.
    Map(&'a [u8], u32),
}

/// What a marker byte announces.
enum Token<'a> {
    Nil,
    Bool(bool),
    Integer(u64),
    Number,
    Str(&'a [u8]),
    Bin,
    Array(u32),
    Map(u32),
}

/// A cursor over encoded values.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn unsigned(&mut self, width: usize) -> Result<u64, Malformed> {
        Ok(self.take(width)?.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    }

    /// A length field. On a 16-bit target a length beyond `usize` cannot be
    /// present in memory, so it reads as too short.
    fn length(&mut self, width: usize) -> Result<usize, Malformed> {
        usize::try_from(self.unsigned(width)?).map_err(|_| Malformed::Short)
    }

    fn signed(&mut self, width: usize) -> Result<Token<'a>, Malformed> {
        let raw = self.unsigned(width)?;
        let negative = raw >> (width * 8 - 1) == 1;
        Ok(if negative { Token::Number } else { Token::Integer(raw) })
    }

    #[inline]
    fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let (&marker, rest) = self.0.split_first().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(match marker {
            0x00..=0x7f => Token::Integer(marker.into()),
            0x80..=0x8f => Token::Map(u32::from(marker & 0x0f)),
            0x90..=0x9f => Token::Array(u32::from(marker & 0x0f)),
            0xa0..=0xbf => Token::Str(self.take(usize::from(marker & 0x1f))?),
            0xc0 => Token::Nil,
            0xc2 | 0xc3 => Token::Bool(marker == 0xc3),
            0xc4..=0xc6 => {
                let length = self.length(1 << (marker - 0xc4))?;
                self.take(length)?;
                Token::Bin
            }
            0xca => self.take(4).map(|_| Token::Number)?,
            0xcb => self.take(8).map(|_| Token::Number)?,
            0xcc..=0xcf => Token::Integer(self.unsigned(1 << (marker - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (marker - 0xd0))?,
            0xd9..=0xdb => {
                let length = self.length(1 << (marker - 0xd9))?;
                Token::Str(self.take(length)?)
            }
            0xdc | 0xdd => Token::Array(self.unsigned(2 << (marker - 0xdc))? as u32),
            0xde | 0xdf => Token::Map(self.unsigned(2 << (marker - 0xde))? as u32),
            0xe0..=0xff => Token::Number,
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => return Err(Malformed::Extension),
        })
    }

    /// Steps over one value of a body and checks what is in it: keys are
    /// strings, strings are UTF-8, nothing nests deeper than [`BODY_DEPTH`].
    ///
    /// A loop with a small stack of counters instead of recursion: the stack
    /// cannot overflow whatever arrives.
    fn skip(&mut self) -> Result<(), Malformed> {
        self.skip_within(BODY_DEPTH)
    }

    fn skip_within(&mut self, depth: usize) -> Result<(), Malformed> {
        if let Some(rest) = behind_flat(self.0) {
            self.0 = rest;
            return Ok(());
        }
        self.skip_long(depth)
    }

    fn skip_long(&mut self, depth: usize) -> Result<(), Malformed> {
        let mut open = Open::default();
        loop {
            let token = self.token()?;
            if open.key_due() && !matches!(token, Token::Str(_)) {
                return Err(Malformed::KeyNotAString);
            }
            match token {
                Token::Str(text) => check_utf8(text)?,
                Token::Array(n) => open.push(n.into(), false),
                Token::Map(n) => open.push(u64::from(n) * 2, true),
                _ => {}
            }
            if depth < open.depth {
                return Err(Malformed::TooDeep);
            }
            let empty = match token {
                Token::Array(n) | Token::Map(n) if n == 0 => true,
                Token::Array(_) | Token::Map(_) => continue,
                _ => false,
            };
            if empty {
                open.pop();
            }
            if open.value_done() {
                return Ok(());
            }
        }
    }

    /// The next value of a head, `depth` levels below its map. Containers come
    /// unopened, but everything in them is checked. The recursion ends at
    /// [`HEAD_DEPTH`].
    fn value(&mut self, depth: usize) -> Result<Value<'a>, Malformed> {
        let token = self.token()?;
        let items = self.0;
        Ok(match token {
            Token::Array(_) | Token::Map(_) if HEAD_DEPTH < depth => {
                return Err(Malformed::TooDeep);
            }
            Token::Array(count) => {
                for _ in 0..count {
                    self.value(depth + 1)?;
                }
                Value::Array(items, count)
            }
            Token::Map(count) => {
                self.pairs(count, depth)?;
                Value::Map(items, count)
            }
            Token::Nil => Value::Nil,
            Token::Bool(b) => Value::Bool(b),
            Token::Integer(n) if INTEGER_MAX < n => return Err(Malformed::Integer),
            Token::Integer(n) => Value::Integer(n),
            Token::Str(text) => {
                check_utf8(text)?;
                Value::Str(text)
            }
            Token::Bin => Value::Bin,
            Token::Number => Value::Number,
        })
    }

    /// Reads the `count` pairs of a map in a head, checks them, and steps behind
    /// them. The first few are returned: a head has a handful of fields, and what
    /// has been read once need not be read again.
    ///
    /// Duplicates are found by comparing each key with those before it. A head can
    /// hold 21,000 one-letter keys, so beyond the few the keys are sorted instead;
    /// the work stays bounded by the head.
    fn pairs(&mut self, count: u32, depth: usize) -> Result<Few<'a>, Malformed> {
        let mut few: Few<'_> = [(&[], Value::Nil); FEW];
        let mut many: Vec<&[u8]> = Vec::new();
        for seen in 0..count as usize {
            let Token::Str(key) = self.token()? else { return Err(Malformed::KeyNotAString) };
            check_utf8(key)?;
            if seen < FEW {
                if few[..seen].iter().any(|(known, _)| *known == key) {
                    return Err(Malformed::DuplicateKey);
                }
                few[seen] = (key, self.value(depth + 1)?);
            } else {
                many.push(key);
                self.value(depth + 1)?;
            }
        }
        if !many.is_empty() {
            many.extend(few.map(|(key, _)| key));
            many.sort_unstable();
            if many.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Malformed::DuplicateKey);
            }
        }
        Ok(few)
    }
}

/// What comes behind a value of the kind that most are: something short and simple, or a
/// small map of such things. Anything else, faulty or not, is left to [`Reader::skip`].
fn behind_flat(bytes: &[u8]) -> Option<&[u8]> {
    let (&marker, mut rest) = bytes.split_first()?;
    if !(0x80..0x90).contains(&marker) {
        return behind_simple(bytes);
    }
    for _ in 0x80..marker {
        if !matches!(rest, [0xa0..0xc0, ..]) {
            return None;
        }
        rest = behind_simple(behind_simple(rest)?)?;
    }
    Some(rest)
}

fn behind_simple(bytes: &[u8]) -> Option<&[u8]> {
    let (&marker, rest) = bytes.split_first()?;
    match marker {
        0xa0..0xc0 => {
            let (text, rest) = rest.split_at_checked(usize::from(marker & 0x1f))?;
            text.is_ascii().then_some(rest)
        }
        0..0x80 | 0xe0.. | 0xc0 | 0xc2 | 0xc3 => Some(rest),
        _ => None,
    }
}

/// The first pairs of a map, so that they need not be read again.
type Few<'a> = [(&'a [u8], Value<'a>); FEW];
/// How many that are.
const FEW: usize = 6;

/// The containers that are open on the way through a value: for each, how many
/// values are still due and whether it is a map. The usual few levels need no
/// allocation.
#[derive(Default)]
struct Open {
    depth: usize,
    /// `due << 1 | is_map`, outermost first.
    near: [u64; 8],
    far: Vec<u64>,
}

impl Open {
    fn push(&mut self, due: u64, map: bool) {
        let entry = due << 1 | u64::from(map);
        match self.near.get_mut(self.depth) {
            Some(slot) => *slot = entry,
            None => self.far.push(entry),
        }
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.far.truncate(self.depth.saturating_sub(self.near.len()));
    }

    fn last(&mut self) -> Option<&mut u64> {
        let at = self.depth.checked_sub(1)?;
        match at.checked_sub(self.near.len()) {
            Some(far) => self.far.get_mut(far),
            None => self.near.get_mut(at),
        }
    }

    /// Whether the next value is the key of a map: an even number of values is due.
    fn key_due(&mut self) -> bool {
        self.last().is_some_and(|entry| *entry & 0b11 == 0b01)
    }

    /// Counts a completed value, and with it every container that it completes.
    /// Whether nothing is open any more.
    fn value_done(&mut self) -> bool {
        while let Some(entry) = self.last() {
            *entry -= 2;
            if *entry >> 1 != 0 {
                return false;
            }
            self.pop();
        }
        true
    }
}

/// Most strings are ASCII, and that is cheaper to see.
fn check_utf8(text: &[u8]) -> Result<(), Malformed> {
    if text.is_ascii() { Ok(()) } else { utf8(text).map(drop) }
}

fn utf8(text: &[u8]) -> Result<&str, Malformed> {
    core::str::from_utf8(text).map_err(|_| Malformed::NotUtf8)
}

/// The fields of a map, found by name.
///
/// Everything was checked when the map was parsed, so looking a field up cannot
/// fail for a reason that lies elsewhere in the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    few: Few<'a>,
    /// All pairs, still encoded, and how many there are.
    all: &'a [u8],
    count: u32,
}

impl<'a> Fields<'a> {
    /// Parses a whole head. \[R-HD-01\] to \[R-HD-07\]
    pub(crate) fn parse(head: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(head);
        let Token::Map(count) = reader.token()? else { return Err(Malformed::NotAMap) };
        let all = reader.0;
        let few = reader.pairs(count, 1)?;
        if reader.0.is_empty() { Ok(Self { few, all, count }) } else { Err(Malformed::Trailing) }
    }

    /// A field; nil counts as absent. \[R-HD-04\]
    fn find(&self, name: &str) -> Option<Value<'a>> {
        let count = self.count as usize;
        let at_hand = self.few.iter().take(count).find(|(key, _)| *key == name.as_bytes());
        let found = match at_hand {
            Some((_, value)) => Some(*value),
            None if FEW < count => self.find_further(name),
            None => None,
        };
        found.filter(|value| *value != Value::Nil)
    }

    /// Looks through the pairs that are not at hand, if there are any.
    #[cold]
    fn find_further(&self, name: &str) -> Option<Value<'a>> {
        let mut reader = Reader(self.all);
        for at in 0..self.count as usize {
            let Ok(Value::Str(key)) = reader.value(1) else { return None };
            let value = reader.value(1).ok()?;
            if FEW <= at && key == name.as_bytes() {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn str(&self, name: &'static str) -> Result<Option<&'a str>, Malformed> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Str(text)) => utf8(text).map(Some),
            Some(_) => Err(Malformed::Field(name)),
        }
    }

    pub(crate) fn integer(&self, name: &'static str, max: u64) -> Result<Option<u64>, Malformed> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Integer(n)) if n <= max => Ok(Some(n)),
            Some(Value::Integer(_)) => Err(Malformed::Range(name)),
            Some(_) => Err(Malformed::Field(name)),
        }
    }

    pub(crate) fn bool(&self, name: &'static str) -> Result<Option<bool>, Malformed> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(Malformed::Field(name)),
        }
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<Option<Fields<'a>>, Malformed> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Map(all, count)) => {
                let few = Reader(all).pairs(count, 1)?;
                Ok(Some(Self { few, all, count }))
            }
            Some(_) => Err(Malformed::Field(name)),
        }
    }

    /// The items of an array.
    pub(crate) fn list(
        &self,
        name: &'static str,
    ) -> Result<Option<impl Iterator<Item = Value<'a>> + use<'a>>, Malformed> {
        let (bytes, count) = match self.find(name) {
            None => return Ok(None),
            Some(Value::Array(bytes, count)) => (bytes, count),
            Some(_) => return Err(Malformed::Field(name)),
        };
        let mut reader = Reader(bytes);
        Ok(Some((0..count).map_while(move |_| reader.value(1).ok())))
    }

    /// The same; empty if absent.
    pub(crate) fn items(
        &self,
        name: &'static str,
    ) -> Result<impl Iterator<Item = Value<'a>> + use<'a>, Malformed> {
        Ok(self.list(name)?.into_iter().flatten())
    }
}

/// Checks that a body is exactly one MessagePack value that the spec allows,
/// without decoding it. An empty body is fine. \[R-HD-10\] \[R-HD-11\]
///
/// # Errors
/// What is wrong with it. A receiver answers such a call with
/// `invalid_argument`; the connection lives on.
pub fn check_body(body: &[u8]) -> Result<(), Malformed> {
    if body.is_empty() {
        return Ok(());
    }
    let mut reader = Reader(body);
    reader.skip()?;
    if reader.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
}

/// The still encoded values under `keys` in a body that is a map. An empty body has
/// none. The whole body is checked as [`check_body`] does it, in the same pass, so
/// whatever decodes a value afterwards may recurse.
///
/// A callee whose arguments may hold anything, bytes included, takes them out this
/// way and decodes them straight into its own type. Of a key that stands twice, the
/// last counts. \[R-HD-20\]
///
/// # Errors
/// What is wrong with the body; also if it is not a map.
pub fn body_fields<'a, const N: usize>(
    body: &'a [u8],
    keys: [&str; N],
) -> Result<[Option<&'a [u8]>; N], Malformed> {
    let mut found = [None; N];
    if body.is_empty() {
        return Ok(found);
    }
    let mut reader = Reader(body);
    let Token::Map(count) = reader.token()? else { return Err(Malformed::BodyNotAMap) };
    for _ in 0..count {
        let Token::Str(name) = reader.token()? else { return Err(Malformed::KeyNotAString) };
        check_utf8(name)?;
        let rest = reader.0;
        reader.skip_within(BODY_DEPTH - 1)?;
        let Some(at) = keys.iter().position(|key| key.as_bytes() == name) else { continue };
        found[at] = Some(&rest[..rest.len() - reader.0.len()]);
    }
    if reader.0.is_empty() { Ok(found) } else { Err(Malformed::Trailing) }
}

/// The integer under `key`, if it comes first, and what comes behind it. `None` if
/// something else than an integer for a head follows the key.
pub(crate) fn leading_integer<'a>(bytes: &'a [u8], key: &[u8]) -> Option<(Option<u64>, &'a [u8])> {
    let Some(rest) = bytes.strip_prefix(key) else { return Some((None, bytes)) };
    let (n, rest) = match *rest {
        [n @ 0..0x80, ref rest @ ..] => (n.into(), rest),
        [0xcc, n, ref rest @ ..] => (n.into(), rest),
        [0xcd, a, b, ref rest @ ..] => (u16::from_be_bytes([a, b]).into(), rest),
        [0xce, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]).into(), rest),
        [0xcf, a, b, c, d, e, f, g, h, ref rest @ ..] => {
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), rest)
        }
        _ => return None,
    };
    (n <= INTEGER_MAX).then_some((Some(n), rest))
}

/// The string under `key` in a body that is a map, without decoding the rest.
pub(crate) fn body_str<'a>(body: &'a [u8], key: &str) -> Option<&'a str> {
    let [value] = body_fields(body, [key]).ok()?;
    read_str(value?)
}

/// The string that `value` is, and nothing after it.
pub fn read_str(value: &[u8]) -> Option<&str> {
    let mut reader = Reader(value);
    match reader.token() {
        Ok(Token::Str(text)) if reader.0.is_empty() => utf8(text).ok(),
        _ => None,
    }
}

/// Writes the values that heads are made of, in their shortest form.
#[derive(Debug)]
pub(crate) struct Writer<'a>(pub(crate) &'a mut BytesMut);

impl Writer<'_> {
    pub(crate) fn map(&mut self, pairs: usize) {
        debug_assert!(pairs < 16, "heads have a handful of fields");
        self.0.put_u8(0x80 | (pairs as u8 & 0x0f));
    }

    /// Something that is encoded already.
    pub(crate) fn raw(&mut self, encoded: &[u8]) {
        self.0.put_slice(encoded);
    }

    pub(crate) fn array(&mut self, items: usize) {
        match items {
            0..16 => self.0.put_u8(0x90 | items as u8),
            _ => {
                self.0.put_u8(0xdc);
                self.0.put_u16(u16::try_from(items).unwrap_or(u16::MAX));
            }
        }
    }

    pub(crate) fn str(&mut self, text: &str) {
        match text.len() {
            n @ 0..32 => self.0.put_u8(0xa0 | n as u8),
            n @ 32..256 => self.0.put_slice(&[0xd9, n as u8]),
            n => {
                self.0.put_u8(0xda);
                self.0.put_u16(u16::try_from(n).unwrap_or(u16::MAX));
            }
        }
        self.0.put_slice(text.as_bytes());
    }

    /// A number that a head cannot hold is written as the largest that it can: as a
    /// budget or a count it means the same. \[R-HD-07\]
    pub(crate) fn integer(&mut self, n: u64) {
        match n.min(INTEGER_MAX) {
            0..0x80 => self.0.put_u8(n as u8),
            0x80..0x100 => self.0.put_slice(&[0xcc, n as u8]),
            0x100..0x1_0000 => {
                self.0.put_u8(0xcd);
                self.0.put_u16(n as u16);
            }
            0x1_0000..0x1_0000_0000 => {
                self.0.put_u8(0xce);
                self.0.put_u32(n as u32);
            }
            n => {
                self.0.put_u8(0xcf);
                self.0.put_u64(n);
            }
        }
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.0.put_u8(0xc2 | u8::from(value));
    }

    pub(crate) fn pair_str(&mut self, key: &str, text: &str) {
        self.str(key);
        self.str(text);
    }

    pub(crate) fn pair_integer(&mut self, key: &str, n: u64) {
        self.str(key);
        self.integer(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_head_may_be() {
        #[rustfmt::skip]
        let table: [(&[u8], Result<(), Malformed>); 16] = [
            (b"\x80",                     Ok(())),
            (b"\x81\xa1a\x01",            Ok(())),
            (b"\xde\x00\x01\xd9\x01a\xcf\0\0\0\0\0\0\0\x01", Ok(())),
            (b"\x81\xa1a\x92\x81\xa1b\xc0\xc3", Ok(())),
            (b"",                         Err(Malformed::Short)),
            (b"\x90",                     Err(Malformed::NotAMap)),
            (b"\x07",                     Err(Malformed::NotAMap)),
            (b"\x80\x00",                 Err(Malformed::Trailing)),
            (b"\x81\xa1a",                Err(Malformed::Short)),
            (b"\x81\x01\x01",             Err(Malformed::KeyNotAString)),
            (b"\x82\xa1a\x01\xa1a\x02",   Err(Malformed::DuplicateKey)),
            (b"\x81\xa1a\xd4\x01\x00",    Err(Malformed::Extension)),
            (b"\x81\xa1a\xc1",            Err(Malformed::Extension)),
            (b"\x81\xa1a\xa1\xff",        Err(Malformed::NotUtf8)),
            (b"\x81\xa1a\xcf\xff\0\0\0\0\0\0\0", Err(Malformed::Integer)),
            (b"\xdf\xff\xff\xff\xff",     Err(Malformed::Short)),
        ];
        for (bytes, expected) in table {
            assert_eq!(Fields::parse(bytes).map(|_| ()), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn fields_of_a_body_come_out_encoded() {
        fn fields(body: &[u8]) -> Result<[Option<&[u8]>; 2], Malformed> {
            body_fields(body, ["name", "args"])
        }
        let args = &b"\x81\xa1b\xc4\x02\xff\xfe"[..];
        let body = [b"\x83\xa4args", args, b"\xa1x\x01\xa4name\xa1t"].concat();
        assert_eq!(fields(&body), Ok([Some(&b"\xa1t"[..]), Some(args)]));
        assert_eq!(fields(b"\x80"), Ok([None, None]));
        assert_eq!(fields(b""), Ok([None, None]));
        assert_eq!(fields(b"\x90"), Err(Malformed::BodyNotAMap));
        assert_eq!(fields(b"\x82\xa4name\x01\xa4name\x02"), Ok([Some(&b"\x02"[..]), None]));
        assert_eq!(fields(b"\x81\xa4name\xd4\x01\x00"), Err(Malformed::Extension));
        assert_eq!(fields(b"\x81\xa4name"), Err(Malformed::Short));
        assert_eq!(fields(b"\x80\x80"), Err(Malformed::Trailing));
        let nested = |n: usize| [&b"\x81\xa4args"[..], &alloc::vec![0x91; n], b"\xc0"].concat();
        assert!(fields(&nested(127)).is_ok());
        assert_eq!(fields(&nested(128)), Err(Malformed::TooDeep));
        assert_eq!(check_body(&nested(128)), Err(Malformed::TooDeep));
    }

    #[test]
    fn depth_is_bounded_and_never_recurses() {
        let nested = |n: usize| {
            let mut bytes = alloc::vec![0x91; n];
            bytes.push(0xc0);
            bytes
        };
        assert_eq!(check_body(&nested(128)), Ok(()));
        assert_eq!(check_body(&nested(129)), Err(Malformed::TooDeep));
        assert_eq!(check_body(&nested(1_000_000)), Err(Malformed::TooDeep));
        let head = |n| [&b"\x81\xa1a"[..], &nested(n)].concat();
        assert!(Fields::parse(&head(7)).is_ok());
        assert_eq!(Fields::parse(&head(8)).map(|_| ()), Err(Malformed::TooDeep));
    }

    /// The short way skips only what the long way skips, and as far: in what it is for and
    /// in all that is one byte away from it.
    #[test]
    fn a_flat_value_is_skipped_as_any_other() {
        let values: [&[u8]; 6] = [
            b"\x05",
            b"\xa3abc\x80",
            b"\x80\x80",
            b"\x81\xa4text\xabecho number\xc0",
            b"\x83\xa1a\xc3\xa1b\x7f\xa1c\xa1\x7f",
            b"\x81\xa1a\xe0\x91",
        ];
        let mut skipped = 0;
        for value in values {
            assert!(behind_flat(value).is_some());
            for at in 0..value.len() {
                assert!(behind_flat(&value[..at]).is_none_or(|rest| {
                    let mut reader = Reader(&value[..at]);
                    reader.skip_long(BODY_DEPTH) == Ok(()) && reader.0 == rest
                }));
                for byte in 0..=255 {
                    let mut other = value.to_vec();
                    other[at] = byte;
                    let Some(rest) = behind_flat(&other) else { continue };
                    skipped += 1;
                    let mut reader = Reader(&other);
                    assert_eq!(reader.skip_long(BODY_DEPTH), Ok(()), "{other:x?}");
                    assert_eq!(reader.0, rest, "{other:x?}");
                }
            }
        }
        assert!(1_000 < skipped, "{skipped}");
    }

    #[test]
    fn duplicates_are_refused_at_every_level() {
        let nested = b"\x81\xa1a\x91\x82\xa1b\x01\xa1b\x02";
        assert_eq!(Fields::parse(nested).map(|_| ()), Err(Malformed::DuplicateKey));
    }

    #[test]
    fn many_keys_are_checked_for_duplicates() {
        let head = |last: &[u8]| {
            let mut bytes = b"\xde\x00\x12".to_vec();
            for key in 0..17u8 {
                bytes.extend([0xa1, b'a' + key, 0xc0]);
            }
            bytes.extend([0xa1]);
            bytes.extend(last);
            bytes.push(0xc0);
            bytes
        };
        assert!(Fields::parse(&head(b"z")).is_ok());
        assert_eq!(Fields::parse(&head(b"a")).map(|_| ()), Err(Malformed::DuplicateKey));
        assert_eq!(Fields::parse(&head(b"q")).map(|_| ()), Err(Malformed::DuplicateKey));
    }

    #[test]
    fn nil_is_absent_and_unknown_keys_are_ignored() {
        let fields = Fields::parse(b"\x83\xa1a\xc0\xa1x\x92\x01\x02\xa1b\xcd\x01\x00").unwrap();
        assert_eq!(fields.integer("a", 9), Ok(None));
        assert_eq!(fields.integer("b", 999), Ok(Some(256)));
        assert_eq!(fields.integer("b", 9), Err(Malformed::Range("b")));
        assert_eq!(fields.str("b"), Err(Malformed::Field("b")));
    }

    #[test]
    fn a_body_is_one_value() {
        assert_eq!(check_body(b""), Ok(()));
        assert_eq!(check_body(b"\x81\xa1a\x90"), Ok(()));
        assert_eq!(check_body(b"\xc0\xc0"), Err(Malformed::Trailing));
        assert_eq!(check_body(b"\xdd\xff\xff\xff\xff"), Err(Malformed::Short));
        assert_eq!(check_body(b"\x82\xa1a\x90\xa1b\x80"), Ok(()));
        assert_eq!(check_body(b"\x81\x90\xa1b"), Err(Malformed::KeyNotAString));
        assert_eq!(check_body(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), Ok(()));
    }
}
