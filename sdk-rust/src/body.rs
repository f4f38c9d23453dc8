//! MessagePack bodies to the author's types and back.
//!
//! Arguments are decoded straight from the wire: a detour through JSON values
//! would lose bytes. Both directions call themselves human readable, because
//! what the caller holds is JSON: an IP address is a string there, and not four
//! numbers.

use std::{any::TypeId, fmt};

use bytes::Bytes;
use plugbay_protocol::{Code, Fault, check_body};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// What can be read from a body: any type that derives `Deserialize`, and [`Raw`].
///
/// Bytes are `#[serde(with = "serde_bytes")]`; a field that may be absent or nil is an
/// `Option`.
pub trait FromBody: Sized {
    /// Whether arguments of this type need not be a map.
    #[doc(hidden)]
    const ANY: bool = false;

    /// Reads one value.
    ///
    /// # Errors
    /// What does not fit, in words for whoever sent it.
    fn from_body(body: Bytes) -> Result<Self, String>;
}

/// What can be sent as a body: any type that derives `Serialize`, and [`Raw`].
pub trait IntoBody: Sized {
    /// Writes one value.
    ///
    /// # Errors
    /// It has no form on the wire.
    fn into_body(self) -> Result<Bytes, String>;

    /// The same as a result, where nothing is the empty map.
    #[doc(hidden)]
    fn into_result(self) -> Result<Bytes, String> {
        self.into_body()
    }
}

/// A body as it is on the wire: one MessagePack value, or nothing. For whoever passes
/// bodies on, byte for byte. A debug print shows only its length.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Raw(pub Bytes);

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({} bytes)", self.0.len())
    }
}

impl<T: DeserializeOwned + 'static> FromBody for T {
    fn from_body(body: Bytes) -> Result<Self, String> {
        // `()` is nil to serde, and nothing, or a map of which nothing is read, to others.
        let is_unit = TypeId::of::<T>() == TypeId::of::<()>();
        if body.is_empty() {
            return decode(if is_unit { NIL } else { EMPTY_MAP });
        }
        check_body(&body).map_err(|why| why.to_string())?;
        decode(if is_unit && is_map(&body) { NIL } else { &body })
    }
}

impl FromBody for Raw {
    const ANY: bool = true;

    fn from_body(body: Bytes) -> Result<Self, String> {
        check_body(&body).map_err(|why| why.to_string())?;
        Ok(Self(body))
    }
}

impl<T: Serialize> IntoBody for T {
    fn into_body(self) -> Result<Bytes, String> {
        let mut out = Vec::with_capacity(128);
        append_any(&mut out, &self)?;
        Ok(out.into())
    }

    fn into_result(self) -> Result<Bytes, String> {
        let body = self.into_body()?;
        Ok(if body == NIL { Bytes::from_static(EMPTY_MAP) } else { body })
    }
}

impl IntoBody for Raw {
    fn into_body(self) -> Result<Bytes, String> {
        check_body(&self.0).map_err(|why| why.to_string())?;
        Ok(self.0)
    }
}

pub(crate) const EMPTY_MAP: &[u8] = &[0x80];
const NIL: &[u8] = &[0xc0];

/// Whether a body that has been checked is a map.
pub(crate) fn is_map(body: &[u8]) -> bool {
    matches!(body.first(), Some(0x80..=0x8f | 0xde | 0xdf))
}

/// The arguments of a method. Nothing is the empty map. \[R-HD-12\] \[R-HD-16\]
pub(crate) fn arguments<A: FromBody>(body: Bytes) -> Result<A, Fault> {
    if !A::ANY && !body.is_empty() && !is_map(&body) {
        return Err(bad_body("expected a map"));
    }
    A::from_body(body).map_err(bad_body)
}

/// Encodes with field names, as the wire wants it.
///
/// # Errors
/// The value's own `Serialize` refuses.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T, room: usize) -> Result<Bytes, String> {
    let mut out = Vec::with_capacity(room);
    append(&mut out, value)?;
    Ok(out.into())
}

/// The same, after what is there already.
pub(crate) fn append<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), String> {
    let mut to = rmp_serde::Serializer::new(out).with_struct_map().with_human_readable();
    value.serialize(&mut to).map_err(|e| e.to_string())
}

/// Like [`append`], for a value of any type: where its shape is not allowed on the wire
/// (a map whose keys are numbers, say), it takes the shape that it has in JSON.
///
/// # Errors
/// The value has no JSON form either.
pub(crate) fn append_any<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), String> {
    let start = out.len();
    if append(out, value).is_ok() && check_body(&out[start..]).is_ok() {
        return Ok(());
    }
    out.truncate(start);
    append(out, &serde_json::to_value(value).map_err(|e| e.to_string())?)
}

/// Decodes a value that has been checked to be one.
///
/// # Errors
/// Which part of it does not fit, in words for the caller.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let reader = || rmp_serde::Deserializer::from_read_ref(bytes).with_human_readable();
    T::deserialize(&mut reader()).or_else(|error| {
        // Once more, the long way round, for what only JSON's rules allow (a map whose keys
        // are numbers) and for an error that names the place. Only a failed call pays for it.
        let Ok(json) = Value::deserialize(&mut reader()) else { return Err(error.to_string()) };
        serde_path_to_error::deserialize(json).map_err(|e| match e.path().iter().next() {
            Some(_) => format!("{}: {}", e.path(), e.inner()),
            None => e.into_inner().to_string(),
        })
    })
}

/// The fault for a body that is not MessagePack, or not a map. \[R-HD-12\]
pub(crate) fn bad_body(why: impl fmt::Display) -> Fault {
    Fault::new(Code::InvalidArgument).because("pb.bad_body").message(&format!("the body: {why}"))
}
