//! What is tried on bytes from anywhere.
//!
//! The bodies of the fuzz targets, as plain functions that panic when something
//! does not hold. They are the checks of the protocol's property tests: a finding
//! of one can be replayed in the other.

#[path = "../../protocol/tests/conversation/script.rs"]
mod script;
#[path = "../../protocol/tests/conversation/stream.rs"]
mod stream;

/// The longest input that is worth a try: two of the smallest frame limits.
pub const INPUT_MAX: usize = 128 << 10;

/// What is tried.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 2] = [("decode", decode), ("pair", pair)];

/// Bytes that claim to be a stream of frames: cut in any way they mean the same,
/// and they harm neither a decoder nor either end of a conversation in any state.
///
/// The first four bytes say how the rest is cut.
pub fn decode(data: &[u8]) {
    if let Some((sizes, data)) = data.split_first_chunk::<4>() {
        stream::check(data, sizes);
    }
}

/// Bytes that tell two ends what to do and the wire between them how to behave:
/// the ends never disagree, and every call ends exactly once.
pub fn pair(data: &[u8]) {
    script::play(data);
}
