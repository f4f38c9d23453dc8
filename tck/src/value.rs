//! MessagePack as the suite sees it: one value type, a writer and a strict reader.
//!
//! The writer can say wrong things on purpose: a map keeps its keys as they are
//! given, twice if need be, and [`Value::Raw`] is written as it stands.

use std::fmt::{self, Write as _};

/// One MessagePack value. Maps are equal whatever the order of their keys.
#[derive(Clone, Debug)]
pub enum Value {
    Nil,
    Bool(bool),
    /// Any integer that MessagePack can say.
    Int(i128),
    Float(f64),
    Str(String),
    Bin(Vec<u8>),
    Array(Vec<Value>),
    /// In the order of the wire.
    Map(Vec<(Value, Value)>),
    /// Bytes that are written as they are; never read.
    Raw(Vec<u8>),
}

/// A map from literal keys: `map! {"method": "tck.sleep", "deadline": 1000}`.
#[macro_export]
macro_rules! map {
    ($($key:literal : $value:expr),* $(,)?) => {
        $crate::value::Value::Map(vec![
            $(($crate::value::Value::from($key), $crate::value::Value::from($value))),*
        ])
    };
}

/// An array: `list!["async", "stream"]`.
#[macro_export]
macro_rules! list {
    ($($value:expr),* $(,)?) => {
        $crate::value::Value::Array(vec![$($crate::value::Value::from($value)),*])
    };
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Bin(a), Self::Bin(b)) | (Self::Raw(a), Self::Raw(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => {
                let all_in =
                    |a: &[(Self, Self)], b: &[(Self, Self)]| a.iter().all(|it| b.contains(it));
                a.len() == b.len() && all_in(a, b) && all_in(b, a)
            }
            _ => false,
        }
    }
}

impl Value {
    /// The empty map, which is also what a method without arguments takes.
    pub fn map() -> Self {
        Self::Map(Vec::new())
    }

    /// The map with this key set, in place of what it held under it.
    #[must_use]
    pub fn with(self, key: &str, value: impl Into<Value>) -> Self {
        let Self::Map(mut entries) = self.without(key) else { return map! {} };
        entries.push((key.into(), value.into()));
        Self::Map(entries)
    }

    /// The map without this key; no map at all becomes the empty one.
    #[must_use]
    pub fn without(self, key: &str) -> Self {
        let Self::Map(mut entries) = self else { return Self::map() };
        entries.retain(|(each, _)| each.as_str() != Some(key));
        Self::Map(entries)
    }

    /// What stands under `key`; a nil is as good as nothing [R-HD-04].
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Self::Map(entries) = self else { return None };
        let found = entries.iter().rev().find(|(each, _)| each.as_str() == Some(key));
        found.map(|(_, value)| value).filter(|value| **value != Self::Nil)
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The string under `key`.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Self::as_str)
    }

    /// The integer under `key`.
    pub fn int(&self, key: &str) -> Option<i128> {
        self.get(key).and_then(Self::as_int)
    }

    /// The entries of the array under `key`; none if there is no such array.
    pub fn list(&self, key: &str) -> &[Value] {
        self.get(key).and_then(Self::as_list).unwrap_or(&[])
    }

    /// The strings in the array under `key`.
    pub fn strings(&self, key: &str) -> Vec<String> {
        self.list(key).iter().filter_map(|each| each.as_str().map(str::to_owned)).collect()
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(bool) => Some(*bool),
            _ => None,
        }
    }

    pub fn as_bin(&self) -> Option<&[u8]> {
        match self {
            Self::Bin(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&[(Value, Value)]> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Str(_) => "a string",
            Self::Bin(_) => "binary",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Raw(_) => "raw bytes",
        }
    }

    /// The shortest encoding.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.pack_into(&mut out);
        out
    }

    fn pack_into(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xC0),
            Self::Bool(bool) => out.push(if *bool { 0xC3 } else { 0xC2 }),
            Self::Int(int) => pack_int(out, *int),
            Self::Float(float) => {
                out.push(0xCB);
                out.extend(float.to_be_bytes());
            }
            Self::Str(text) => {
                pack_len(out, text.len(), Some((0xA0, 32)), [Some(0xD9), Some(0xDA), Some(0xDB)]);
                out.extend(text.as_bytes());
            }
            Self::Bin(bytes) => {
                pack_len(out, bytes.len(), None, [Some(0xC4), Some(0xC5), Some(0xC6)]);
                out.extend(bytes);
            }
            Self::Array(items) => {
                pack_len(out, items.len(), Some((0x90, 16)), [None, Some(0xDC), Some(0xDD)]);
                items.iter().for_each(|each| each.pack_into(out));
            }
            Self::Map(entries) => {
                pack_len(out, entries.len(), Some((0x80, 16)), [None, Some(0xDE), Some(0xDF)]);
                for (key, value) in entries {
                    key.pack_into(out);
                    value.pack_into(out);
                }
            }
            Self::Raw(bytes) => out.extend(bytes),
        }
    }

    /// The same value with the widest marker everywhere: what R-HD-08 makes every
    /// receiver accept.
    pub fn pack_wide(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.pack_wide_into(&mut out);
        out
    }

    fn pack_wide_into(&self, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, marker: u8, len: usize| {
            out.push(marker);
            out.extend((len as u32).to_be_bytes());
        };
        match self {
            Self::Int(int) if *int >= 0 => {
                out.push(0xCF);
                out.extend((*int as u64).to_be_bytes());
            }
            Self::Int(int) => {
                out.push(0xD3);
                out.extend((*int as i64).to_be_bytes());
            }
            Self::Str(text) => {
                head(out, 0xDB, text.len());
                out.extend(text.as_bytes());
            }
            Self::Bin(bytes) => {
                head(out, 0xC6, bytes.len());
                out.extend(bytes);
            }
            Self::Array(items) => {
                head(out, 0xDD, items.len());
                items.iter().for_each(|each| each.pack_wide_into(out));
            }
            Self::Map(entries) => {
                head(out, 0xDF, entries.len());
                for (key, value) in entries {
                    key.pack_wide_into(out);
                    value.pack_wide_into(out);
                }
            }
            _ => self.pack_into(out),
        }
    }

    /// As JSON, for reports: binary is `{"$bin": hex}`, and what JSON cannot say is text.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match self {
            Self::Nil => Json::Null,
            Self::Bool(bool) => Json::Bool(*bool),
            Self::Int(int) => match (i64::try_from(*int), u64::try_from(*int)) {
                (Ok(int), _) => int.into(),
                (_, Ok(int)) => int.into(),
                _ => int.to_string().into(),
            },
            Self::Float(float) => serde_json::Number::from_f64(*float)
                .map_or_else(|| float.to_string().into(), Json::Number),
            Self::Str(text) => text.clone().into(),
            Self::Bin(bytes) => serde_json::json!({ "$bin": hex(bytes) }),
            Self::Array(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(entries) => {
                let key = |key: &Value| match key {
                    Self::Str(text) => text.clone(),
                    other => other.to_string(),
                };
                Json::Object(entries.iter().map(|(k, v)| (key(k), v.to_json())).collect())
            }
            Self::Raw(bytes) => serde_json::json!({ "$raw": hex(bytes) }),
        }
    }

    /// From JSON, for what people write in settings.
    pub fn from_json(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match json {
            Json::Null => Self::Nil,
            Json::Bool(bool) => Self::Bool(*bool),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Self::Int(int.into()),
                (_, Some(int)) => Self::Int(int.into()),
                _ => Self::Float(number.as_f64().unwrap_or(0.0)),
            },
            Json::String(text) => Self::Str(text.clone()),
            Json::Array(items) => Self::Array(items.iter().map(Self::from_json).collect()),
            Json::Object(entries) => Self::Map(
                entries.iter().map(|(k, v)| (k.as_str().into(), Self::from_json(v))).collect(),
            ),
        }
    }
}

/// The shortest marker for a length; `markers` are for 1, 2 and 4 bytes of length.
fn pack_len(out: &mut Vec<u8>, len: usize, fixed: Option<(u8, usize)>, markers: [Option<u8>; 3]) {
    match (fixed, markers) {
        (Some((base, room)), _) if len < room => out.push(base | len as u8),
        (_, [Some(marker), ..]) if len < 1 << 8 => out.extend([marker, len as u8]),
        (_, [_, Some(marker), _]) if len < 1 << 16 => {
            out.push(marker);
            out.extend((len as u16).to_be_bytes());
        }
        (_, [_, _, marker]) => {
            out.push(marker.unwrap_or(0xC1));
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn pack_int(out: &mut Vec<u8>, int: i128) {
    match int {
        0..=0x7F => out.push(int as u8),
        -32..=-1 => out.push(int as i8 as u8),
        0x80..=0xFF => out.extend([0xCC, int as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend((int as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend((int as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xCF);
            out.extend((int as u64).to_be_bytes());
        }
        -0x80..=-33 => out.extend([0xD0, int as i8 as u8]),
        -0x8000..=-0x81 => {
            out.push(0xD1);
            out.extend((int as i16).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            out.push(0xD2);
            out.extend((int as i32).to_be_bytes());
        }
        _ => {
            out.push(0xD3);
            out.extend((int as i64).to_be_bytes());
        }
    }
}

/// How strictly bytes are read.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Containers inside one another, the outermost counted.
    pub depth: usize,
    /// The largest integer.
    pub most: i128,
    /// Whether a key may stand twice in one map.
    pub twins: bool,
}

/// Heads: [R-HD-03], [R-HD-06], [R-HD-07].
pub const HEAD: Rules = Rules { depth: 8, most: (1 << 53) - 1, twins: false };
/// Bodies as a receiver reads them: [R-HD-11], [R-HD-20].
pub const BODY: Rules = Rules { depth: 128, most: i128::MAX, twins: true };
/// Bodies as a sender may write them: [R-HD-15], [R-HD-17].
pub const POLITE: Rules = Rules { depth: 32, most: i128::MAX, twins: false };

/// Reads exactly one value.
///
/// # Errors
/// What is wrong, with the offset where it is.
pub fn unpack(bytes: &[u8], rules: Rules) -> Result<Value, String> {
    let mut reader = Reader { bytes, at: 0, rules };
    let value = reader.value(1)?;
    match bytes.len() - reader.at {
        0 => Ok(value),
        1 => Err(format!("a byte follows the value, at {}", reader.at)),
        n => Err(format!("{n} bytes follow the value, at {}", reader.at)),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    rules: Rules,
}

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8], String> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..n));
        let bytes = bytes.ok_or_else(|| format!("it ends too early, at {}", self.bytes.len()))?;
        self.at += n;
        Ok(bytes)
    }

    fn number(&mut self, width: usize) -> Result<u64, String> {
        Ok(self.take(width)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn signed(&mut self, width: usize) -> Result<i128, String> {
        let shift = 64 - 8 * width as u32;
        Ok(((self.number(width)? << shift) as i64 >> shift).into())
    }

    fn int(&self, int: i128, at: usize) -> Result<Value, String> {
        if int > self.rules.most {
            return Err(format!("an integer above 2^53 - 1, at {at}"));
        }
        Ok(Value::Int(int))
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        let at = self.at;
        let marker = self.take(1)?[0];
        match marker {
            0x00..=0x7F => self.int(marker.into(), at),
            0x80..=0x8F => self.entries(usize::from(marker & 15), depth, at),
            0x90..=0x9F => self.items(usize::from(marker & 15), depth, at),
            0xA0..=0xBF => self.string(usize::from(marker & 31), at),
            0xC0 => Ok(Value::Nil),
            0xC2 | 0xC3 => Ok(Value::Bool(marker == 0xC3)),
            0xC4..=0xC6 => {
                let n = self.number(1 << (marker - 0xC4))? as usize;
                Ok(Value::Bin(self.take(n)?.to_vec()))
            }
            0xCA => Ok(Value::Float(f32::from_bits(self.number(4)? as u32).into())),
            0xCB => Ok(Value::Float(f64::from_bits(self.number(8)?))),
            0xCC..=0xCF => {
                let int = self.number(1 << (marker - 0xCC))?;
                self.int(int.into(), at)
            }
            0xD0..=0xD3 => {
                let int = self.signed(1 << (marker - 0xD0))?;
                self.int(int, at)
            }
            0xD9..=0xDB => {
                let n = self.number(1 << (marker - 0xD9))? as usize;
                self.string(n, at)
            }
            0xDC | 0xDD => {
                let n = self.number(2 << (marker - 0xDC))? as usize;
                self.items(n, depth, at)
            }
            0xDE | 0xDF => {
                let n = self.number(2 << (marker - 0xDE))? as usize;
                self.entries(n, depth, at)
            }
            0xC1 => Err(format!("the byte C1, at {at}")),
            0xC7..=0xC9 | 0xD4..=0xD8 => Err(format!("an extension type, at {at}")),
            0xE0..=0xFF => self.int((marker as i8).into(), at),
        }
    }

    fn string(&mut self, n: usize, at: usize) -> Result<Value, String> {
        let text = std::str::from_utf8(self.take(n)?);
        text.map(Value::from).map_err(|_| format!("a string that is not UTF-8, at {at}"))
    }

    fn deeper(&self, depth: usize, at: usize) -> Result<usize, String> {
        if depth > self.rules.depth {
            return Err(format!(
                "more than {} containers inside one another, at {at}",
                self.rules.depth
            ));
        }
        Ok(depth + 1)
    }

    // A declared count reserves nothing: each item takes at least a byte.
    fn items(&mut self, n: usize, depth: usize, at: usize) -> Result<Value, String> {
        let inner = self.deeper(depth, at)?;
        let mut items = Vec::new();
        for _ in 0..n {
            items.push(self.value(inner)?);
        }
        Ok(Value::Array(items))
    }

    fn entries(&mut self, n: usize, depth: usize, at: usize) -> Result<Value, String> {
        let inner = self.deeper(depth, at)?;
        let mut entries: Vec<(Value, Value)> = Vec::new();
        for _ in 0..n {
            let at = self.at;
            let key = self.value(inner)?;
            if key.as_str().is_none() {
                return Err(format!("a key that is {} and not a string, at {at}", key.type_name()));
            }
            if !self.rules.twins && entries.iter().any(|(each, _)| *each == key) {
                return Err(format!("the key {key} stands twice, at {at}"));
            }
            entries.push((key, self.value(inner)?));
        }
        Ok(Value::Map(entries))
    }
}

/// Lower-case hex digits, two a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// How much of a string or binary a diagnostic shows.
const SHOWN: usize = 64;

/// Diagnostic notation: JSON's, with `h'..'` for binary, long content cut and its size said.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Bool(bool) => write!(f, "{bool}"),
            Self::Int(int) => write!(f, "{int}"),
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Str(text) if text.len() > SHOWN => {
                let cut =
                    text.char_indices().map(|(at, _)| at).take_while(|at| *at <= SHOWN).last();
                write!(f, "{:?}… ({} B)", &text[..cut.unwrap_or(0)], text.len())
            }
            Self::Str(text) => write!(f, "{text:?}"),
            Self::Bin(bytes) | Self::Raw(bytes) if bytes.len() > SHOWN / 2 => {
                write!(f, "h'{}…' ({} B)", hex(&bytes[..SHOWN / 2]), bytes.len())
            }
            Self::Bin(bytes) => write!(f, "h'{}'", hex(bytes)),
            Self::Raw(bytes) => write!(f, "raw'{}'", hex(bytes)),
            Self::Array(items) => {
                f.write_str("[")?;
                for (i, each) in items.iter().enumerate() {
                    write!(f, "{}{each}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    match key.as_str().filter(|key| is_word(key)) {
                        Some(word) => write!(f, "{word}: {value}")?,
                        None => write!(f, "{key}: {value}")?,
                    }
                }
                f.write_str("}")
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte))
}

macro_rules! from {
    ($($type:ty => |$value:ident| $make:expr),* $(,)?) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $make
            }
        })*
    };
}

from! {
    () => |_unit| Self::Nil,
    bool => |value| Self::Bool(value),
    u8 => |value| Self::Int(value.into()),
    u16 => |value| Self::Int(value.into()),
    i32 => |value| Self::Int(value.into()),
    u32 => |value| Self::Int(value.into()),
    i64 => |value| Self::Int(value.into()),
    u64 => |value| Self::Int(value.into()),
    usize => |value| Self::Int(value as i128),
    i128 => |value| Self::Int(value),
    f64 => |value| Self::Float(value),
    &str => |value| Self::Str(value.to_owned()),
    String => |value| Self::Str(value),
    &String => |value| Self::Str(value.clone()),
    Vec<u8> => |value| Self::Bin(value),
    &[u8] => |value| Self::Bin(value.to_vec()),
    Vec<Value> => |value| Self::Array(value),
    Vec<String> => |value| Self::Array(value.into_iter().map(Value::Str).collect()),
    &[&str] => |value| Self::Array(value.iter().map(|each| Value::from(*each)).collect()),
    &Value => |value| value.clone(),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> Vec<u8> {
        let mut bytes = vec![0x91; depth - 1];
        bytes.push(0x90);
        bytes
    }

    #[test]
    fn maps_are_equal_whatever_the_order_of_their_keys() {
        let nested = map! {"b": map! {"y": 2, "x": 1}, "a": 1};
        assert_eq!(map! {"a": 1, "b": map! {"x": 1, "y": 2}}, nested);
        assert_ne!(map! {"a": 1, "b": map! {"x": 1, "y": 3}}, nested);
        assert_ne!(map! {"a": 1}, map! {"a": 1, "b": 2});
        assert_ne!(map! {"a": 1, "a": 1}, map! {"a": 1, "a": 2});
        assert_ne!(list![1, 2], list![2, 1]);
    }

    #[test]
    fn what_is_written_is_read_back_short_or_wide() {
        let value = map! {
            "n": (), "t": true, "ints": list![0, 127, 128, 255, 256, 65535, 65536, 1_i64 << 40, -1, -32, -33, -129,
                -32769, -2_147_483_649_i64, i64::MIN, u64::MAX],
            "f": 1.5, "long": "ä".repeat(40_000), "b": vec![1_u8; 300], "m": map! {"x": list![Value::map()]},
        };
        assert_eq!(unpack(&value.pack(), BODY), Ok(value.clone()));
        assert_eq!(unpack(&value.pack_wide(), BODY), Ok(value));
    }

    #[test]
    fn each_fault_is_named() {
        let head = |bytes: &[u8]| unpack(bytes, HEAD).unwrap_err();
        assert_eq!(head(&[]), "it ends too early, at 0");
        assert_eq!(head(&[0x81, 0xA1]), "it ends too early, at 2");
        assert_eq!(head(&[0xDF, 0xFF, 0xFF, 0xFF, 0xFF]), "it ends too early, at 5");
        assert_eq!(head(&[0x80, 0x80]), "a byte follows the value, at 1");
        assert_eq!(head(&[0x81, 0x01, 0x01]), "a key that is an integer and not a string, at 1");
        assert_eq!(head(&[0x82, 0xA1, b'a', 1, 0xA1, b'a', 2]), "the key \"a\" stands twice, at 4");
        assert_eq!(head(&[0xC1]), "the byte C1, at 0");
        assert_eq!(head(&[0xD4, 1, 1]), "an extension type, at 0");
        assert_eq!(head(&[0xA1, 0xFF]), "a string that is not UTF-8, at 0");
        assert_eq!(head(&[0xCF, 0, 0x20, 0, 0, 0, 0, 0, 0]), "an integer above 2^53 - 1, at 0");
        assert!(head(&nested(9)).starts_with("more than 8 containers"));
        assert!(unpack(&nested(8), HEAD).is_ok());
        assert!(unpack(&nested(128), BODY).is_ok() && unpack(&nested(129), BODY).is_err());
        assert!(unpack(&[0x82, 0xA1, b'a', 1, 0xA1, b'a', 2], BODY).is_ok());
    }

    #[test]
    fn nil_is_absent_and_the_last_of_two_counts() {
        let value = map! {"a": 1, "b": (), "a": 2};
        assert_eq!((value.int("a"), value.get("b")), (Some(2), None));
        assert_eq!(value.with("a", 3).int("a"), Some(3));
    }

    #[test]
    fn diagnostics_are_short() {
        let value = map! {"a b": vec![0_u8; 100], "c": list![1, "x"]};
        let zeros = "00".repeat(32);
        assert_eq!(value.to_string(), format!("{{\"a b\": h'{zeros}…' (100 B), c: [1, \"x\"]}}"));
        assert!(Value::from("é".repeat(100)).to_string().len() < 100);
    }
}
