//! MessagePack bodies to the author's types and back.
//!
//! Arguments are decoded straight from the wire: a detour through JSON values
//! would lose bytes. Both directions call themselves human readable, because
//! what the caller holds is JSON: an IP address is a string there, and not four
//! numbers.

use bytes::Bytes;
use plugbay_protocol::{Code, Fault, check_body};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

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
pub(crate) fn bad_body(why: impl std::fmt::Display) -> Fault {
    Fault::new(Code::InvalidArgument).because("pb.bad_body").message(&format!("the body: {why}"))
}
