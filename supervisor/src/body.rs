//! Bodies: of any kind, and the arguments and results of `tool.call`, which every call of
//! a tool passes twice, so both ways are written by hand as far as nearly all need it.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use plugbay_protocol::contract::Block;
use serde::{Deserialize, Deserializer, Serialize, de, de::DeserializeOwned};
use serde_json::{Map, Number, Value};

use crate::call::Output;

// ── Any ────────────────────────────────────────────────────────────────────────

/// Plain data as a body. What has no form in MessagePack becomes an empty one.
pub(crate) fn encode<T: Serialize + ?Sized>(body: &T) -> Bytes {
    Bytes::from(rmp_serde::to_vec_named(body).unwrap_or_default())
}

/// Reads a body; an empty one is nil. The error quotes nothing of it.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let body = if body.is_empty() { b"\xc0" } else { body };
    plugbay_protocol::check_body(body).map_err(|why| why.to_string())?;
    rmp_serde::from_slice(body).map_err(|_| "it has another shape than the spec gives it".into())
}

// ── Arguments ──────────────────────────────────────────────────────────────────

/// What every call of one tool begins with: all of `{name, args}` but the arguments.
pub(crate) fn opening(name: &str) -> Vec<u8> {
    let mut out = vec![0x82];
    put_str(&mut out, "name");
    put_str(&mut out, name);
    put_str(&mut out, "args");
    out
}

/// A whole call: the opening and the arguments, in a buffer of just this size.
pub(crate) fn call(opening: &[u8], args: &Value) -> Bytes {
    let mut body = Vec::with_capacity(opening.len() + value_len(args));
    body.extend_from_slice(opening);
    put(&mut body, args);
    debug_assert_eq!(body.len(), opening.len() + value_len(args));
    Bytes::from(body)
}

/// Appends a value in its shortest form.
fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(b) => out.push(0xc2 | u8::from(*b)),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => put_unsigned(out, n),
            (None, Some(n)) => put_negative(out, n),
            (None, None) => {
                out.push(0xcb);
                out.extend_from_slice(&n.as_f64().unwrap_or(f64::NAN).to_be_bytes());
            }
        },
        Value::String(text) => put_str(out, text),
        Value::Array(items) => {
            put_head(out, [0x90, 0xdc, 0xdd], items.len());
            items.iter().for_each(|item| put(out, item));
        }
        Value::Object(map) => {
            put_head(out, [0x80, 0xde, 0xdf], map.len());
            for (key, value) in map {
                put_str(out, key);
                put(out, value);
            }
        }
    }
}

fn put_unsigned(out: &mut Vec<u8>, n: u64) {
    match n {
        0..0x80 => out.push(n as u8),
        0x80..0x100 => out.extend_from_slice(&[0xcc, n as u8]),
        0x100..0x1_0000 => {
            out.push(0xcd);
            out.extend_from_slice(&(n as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(0xce);
            out.extend_from_slice(&(n as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&n.to_be_bytes());
        }
    }
}

fn put_negative(out: &mut Vec<u8>, n: i64) {
    match (i8::try_from(n), i16::try_from(n), i32::try_from(n)) {
        (Ok(n @ -32..), ..) => out.push(n as u8),
        (Ok(n), ..) => out.extend_from_slice(&[0xd0, n as u8]),
        (_, Ok(n), _) => {
            out.push(0xd1);
            out.extend_from_slice(&n.to_be_bytes());
        }
        (.., Ok(n)) => {
            out.push(0xd2);
            out.extend_from_slice(&n.to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&n.to_be_bytes());
        }
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    match text.len() {
        n @ 0..0x20 => out.push(0xa0 | n as u8),
        n @ 0x20..0x100 => out.extend_from_slice(&[0xd9, n as u8]),
        n => put_long_len(out, [0xda, 0xdb], n),
    }
    out.extend_from_slice(text.as_bytes());
}

/// The head of an array or a map: its short form and its two long ones.
fn put_head(out: &mut Vec<u8>, [short, two, four]: [u8; 3], count: usize) {
    match count {
        0..0x10 => out.push(short | count as u8),
        _ => put_long_len(out, [two, four], count),
    }
}

fn put_long_len(out: &mut Vec<u8>, [two, four]: [u8; 2], n: usize) {
    match u16::try_from(n) {
        Ok(n) => {
            out.push(two);
            out.extend_from_slice(&n.to_be_bytes());
        }
        Err(_) => {
            out.push(four);
            // Four GiB fit no frame, so what is longer is never sent.
            out.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
}

/// How many bytes a value takes as MessagePack.
fn value_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 1,
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => integer_len(n, 0x7f, 0xff, 0xffff, 0xffff_ffff),
            (None, Some(n)) => {
                // Of the negative ones, the distance from -1 decides.
                integer_len(n.unsigned_abs() - 1, 0x1f, 0x7f, 0x7fff, 0x7fff_ffff)
            }
            (None, None) => 9,
        },
        Value::String(text) => string_len(text),
        Value::Array(items) => head_len(items.len()) + items.iter().map(value_len).sum::<usize>(),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| string_len(key) + value_len(value));
            head_len(map.len()) + pairs.sum::<usize>()
        }
    }
}

fn integer_len(n: u64, fix: u64, one: u64, two: u64, four: u64) -> usize {
    match n {
        n if n <= fix => 1,
        n if n <= one => 2,
        n if n <= two => 3,
        n if n <= four => 5,
        _ => 9,
    }
}

fn string_len(text: &str) -> usize {
    let head = match text.len() {
        0..=0x1f => 1,
        0x20..=0xff => 2,
        0x100..=0xffff => 3,
        _ => 5,
    };
    head + text.len()
}

/// The head of an array or a map.
fn head_len(count: usize) -> usize {
    match count {
        0..=0x0f => 1,
        0x10..=0xffff => 3,
        _ => 5,
    }
}

// ── Results ────────────────────────────────────────────────────────────────────

/// Reads the body of an END.
///
/// # Errors
/// What is wrong with it, without quoting any of it.
pub(crate) fn result(body: &[u8]) -> Result<Output, String> {
    usual(body).map_or_else(|| any(body), Ok)
}

/// The result of a tool that says one text, and maybe the same as data, encoded as any
/// library would: these keys in this order. Every other body, a faulty one too, is left
/// to [`any`].
fn usual(body: &[u8]) -> Option<Output> {
    let (pairs, rest) = body.split_first()?;
    let rest = rest.strip_prefix(b"\xa7content\x91\x82\xa4type\xa4text\xa4text")?;
    let (text, rest) = split_str(rest)?;
    let data = match (pairs, rest) {
        (0x81, []) => Value::Null,
        (0x82, rest) => json(rest.strip_prefix(b"\xa4data")?)?,
        _ => return None,
    };
    let text = std::str::from_utf8(text).ok()?.to_owned();
    let data = Some(data).filter(|data| !data.is_null());
    Some(Output { content: vec![Block::Text { text }], data, is_error: false })
}

/// The bytes of a string and what comes behind it.
fn split_str(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match *bytes {
        [marker @ 0xa0..=0xbf, ref rest @ ..] => (usize::from(marker & 0x1f), rest),
        [0xd9, n, ref rest @ ..] => (n.into(), rest),
        [0xda, a, b, ref rest @ ..] => (u16::from_be_bytes([a, b]).into(), rest),
        [0xdb, a, b, c, d, ref rest @ ..] => {
            (usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len)
}

/// One whole value in a map, as JSON.
fn json(bytes: &[u8]) -> Option<Value> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(BODY_DEPTH_MAX - 1);
    let Json(value) = Json::deserialize(&mut reader).ok()?;
    is_done(&mut reader).then_some(value)
}

/// Any result.
fn any(body: &[u8]) -> Result<Output, String> {
    #[derive(Deserialize)]
    struct Wire {
        content: Vec<Block>,
        #[serde(default)]
        data: Option<Json>,
        #[serde(default)]
        is_error: bool,
    }
    // The reader would take a list for the fields in their order.
    if !matches!(body.first(), None | Some(0x80..=0x8F | 0xDE | 0xDF)) {
        return Err("it is no map".into());
    }
    let mut reader = rmp_serde::Deserializer::from_read_ref(body);
    // The spec's own bound; far from where the stack would end. [R-HD-11]
    reader.set_max_depth(BODY_DEPTH_MAX);
    let wire = Wire::deserialize(&mut reader).map_err(|error| shape(&error))?;
    if !is_done(&mut reader) {
        return Err("bytes follow the value".into());
    }
    let data = wire.data.map(|json| json.0).filter(|data| !data.is_null());
    Ok(Output { content: wire.content, data, is_error: wire.is_error })
}

type Reader<'a> = rmp_serde::Deserializer<rmp_serde::decode::ReadRefReader<'a, [u8]>>;

/// The reader does not say where it stands, but it says when there is no more.
fn is_done(reader: &mut Reader<'_>) -> bool {
    use rmp_serde::decode::Error::InvalidMarkerRead;
    matches!(de::IgnoredAny::deserialize(reader), Err(InvalidMarkerRead(_)))
}

/// How deep a result may nest. \[R-HD-11\]
const BODY_DEPTH_MAX: usize = 128;

/// What is wrong with a body, without quoting any of it.
fn shape(error: &rmp_serde::decode::Error) -> String {
    match error {
        rmp_serde::decode::Error::InvalidMarkerRead(_)
        | rmp_serde::decode::Error::InvalidDataRead(_) => "it ends too early".into(),
        _ => "it is not {content: [block], data?, is_error?}".into(),
    }
}

/// Any MessagePack value as JSON. Binary becomes base64; what JSON cannot hold
/// (NaN, infinity) becomes null.
pub(crate) struct Json(pub(crate) Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> de::Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any MessagePack value but an extension")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Number::from_f64(n).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(BASE64_STANDARD.encode(bytes).into())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Json(value))) = pairs.next_entry::<String, _>()? {
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn binary_data_becomes_base64() {
        let body = b"\x82\xa7content\x90\xa4data\x82\xa1a\xc4\x02hi\xa1b\xcb\x7f\xf8\0\0\0\0\0\0";
        let output = result(body).unwrap();
        assert_eq!(output.data, Some(serde_json::json!({ "a": "aGk=", "b": null })));
    }

    #[test]
    fn nothing_may_follow_a_result() {
        let follows = |byte| [&b"\x81\xa7content\x90"[..], &[byte]].concat();
        assert_eq!(result(&follows(0xc0)).unwrap_err(), "bytes follow the value");
        assert_eq!(result(&follows(0xc1)).unwrap_err(), "bytes follow the value");
        assert_eq!(result(b"\x81\xa7content\x90"), Ok(Output::default()));
        assert!(result(b"\x80").is_err(), "content is what a result is made of");
    }

    #[test]
    fn a_result_may_not_nest_without_end() {
        let nested = [&b"\x81\xa4data"[..], &[0x91; 100_000], b"\xc0"].concat();
        assert!(result(&nested).is_err());
    }

    #[test]
    fn a_broken_result_is_named_and_not_quoted() {
        assert_eq!(result(b"\x81\xa7content").unwrap_err(), "it ends too early");
        let wrong = b"\x81\xa7content\xa6secret";
        assert_eq!(result(wrong).unwrap_err(), "it is not {content: [block], data?, is_error?}");
    }

    /// The short way and the long way read the same, in the usual results and in all
    /// that are one byte away from them.
    #[test]
    fn a_usual_result_is_read_as_any_other() {
        const TEXT: &[u8] = b"\xa7content\x91\x82\xa4type\xa4text\xa4text";
        let text = |len: usize| rmp_serde::to_vec("x".repeat(len).as_str()).unwrap();
        let deep = |len: usize| [&vec![0x91; len][..], b"\x05"].concat();
        let mut usual_ones = vec![
            [b"\x81", TEXT, b"\xa0"].concat(),
            [b"\x81", TEXT, b"\xa6h\xc3\xa4llo"].concat(),
            [b"\x82", TEXT, b"\xa1a\xa4data\x82\xa1a\xc4\x02hi\xa1b\xcb\x7f\xf8\0\0\0\0\0\0"]
                .concat(),
            [b"\x82", TEXT, b"\xa1a\xa4data\xc0"].concat(),
        ];
        usual_ones.extend([31, 32, 255, 256, 300].map(|n| [b"\x81", TEXT, &text(n)].concat()));
        let mut read = 0;
        for body in usual_ones {
            let mut near = vec![body.clone(), [&body[..], b"\xc0"].concat()];
            for at in 0..body.len() {
                near.push(body[..at].to_vec());
                near.extend((0..=255).map(|byte| {
                    let mut other = body.clone();
                    other[at] = byte;
                    other
                }));
            }
            assert!(usual(&body).is_some(), "{body:x?}");
            for body in near {
                let Some(output) = usual(&body) else { continue };
                read += 1;
                assert_eq!(any(&body), Ok(output), "{body:x?}");
            }
        }
        assert!(1_000 < read, "{read}");
        for depth in 100..150 {
            let body = [b"\x82", TEXT, b"\xa1a\xa4data", &deep(depth)].concat();
            assert!(usual(&body).is_none_or(|it| any(&body) == Ok(it)), "{depth}");
        }
    }

    #[test]
    fn a_call_is_what_a_library_writes_and_as_long_as_foretold() {
        let numbers = [0_i64, 127, 128, 255, 256, 65_535, 65_536, 1 << 32, i64::MAX];
        let negative = [-1_i64, -32, -33, -128, -129, -32_768, -32_769, -(1 << 31), i64::MIN];
        let larger = [-(1_i64 << 31) - 1, 1 << 31, (1 << 32) - 1];
        let long = [31, 32, 255, 256, 65_535, 65_536].map(|n| "x".repeat(n));
        let lists = [15, 16, 65_535, 65_536].map(|n| vec![Value::Null; n]);
        let map: Map<_, _> = (0..16).map(|n| (n.to_string(), json!(n % 2 == 0))).collect();
        let args = json!({
            "a": numbers, "b": negative, "c": long, "d": lists, "e": map, "f": 1.5, "g": larger,
            "h": u64::MAX,
        });
        let name = "a".repeat(40);
        let body = call(&opening(&name), &args);
        let library = rmp_serde::to_vec_named(&Call { name: &name, args: &args }).unwrap();
        assert!(body == library, "they differ");
        assert_eq!(opening(&name).len() + value_len(&args), body.len());
    }

    #[derive(serde::Serialize)]
    struct Call<'a> {
        name: &'a str,
        args: &'a Value,
    }
}
