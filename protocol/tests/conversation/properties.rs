//! What holds for every input.

use bytes::Bytes;
use plugbay_protocol::*;
use proptest::{collection::vec, prelude::*, sample::select};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::json;

use crate::{pair::*, script, stream};

/// Bytes that are frames, nearly frames, or noise.
fn wire() -> impl Strategy<Value = Vec<u8>> {
    let head = prop_oneof![
        Just(pack(&json!({}))),
        Just(pack(&json!({"method": "tool.call", "deadline": 5}))),
        Just(pack(&json!({"code": "ok"}))),
        Just(pack(&json!({"topic": "progress", "n": 1}))),
        Just(pack(&json!({"n": 9_000}))),
        Just(pack(&json!({"method": "tool.call", "in": true}))),
        Just(pack(&json!({"method": "host.x", "parent": 3}))),
        Just(pack(&json!({"err": {"code": "internal"}}))),
        Just(pack(&json!({"versions": [1], "version": 1,
            "limits": {"frame": 65536, "window": 16384, "calls": 1}}))),
        vec(any::<u8>(), 1..40),
    ];
    let kind = prop_oneof![
        8 => select(vec![0x01, 0x02, 0x03, 0x04, 0x10, 0x11, 0x12, 0x13, 0x14, 0x90]),
        1 => any::<u8>(),
    ];
    let id = prop_oneof![6 => 0..12u32, 1 => any::<u32>()];
    let body = prop_oneof![
        4 => Just(vec![]),
        4 => vec(any::<u8>(), 0..100),
        1 => vec(any::<u8>(), 2_000..5_000),
    ];
    let good =
        (kind, id, head, body).prop_map(|(kind, id, head, body)| raw(kind, id, &head, &body));
    let bent = (good.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |(mut bytes, at, byte)| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        },
    );
    let noise = vec(any::<u8>(), 0..30);
    let piece = prop_oneof![12 => good, 2 => bent, 1 => noise];
    vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// A value as a body may hold it, and how to write it.
#[derive(Clone, Debug, PartialEq)]
enum Any {
    Nil,
    Bool(bool),
    /// Integers of either sign; all widths mean the same.
    Integer(i128),
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Any>),
    Map(Vec<(String, Any)>),
}

fn any_value() -> impl Strategy<Value = Any> {
    let leaf = prop_oneof![
        Just(Any::Nil),
        any::<bool>().prop_map(Any::Bool),
        any::<i64>().prop_map(|n| Any::Integer(n.into())),
        any::<u64>().prop_map(|n| Any::Integer(n.into())),
        any::<f64>()
            .prop_filter("equal to itself", |x| !x.is_nan())
            .prop_map(|x| Any::Float(x.to_bits())),
        ".{0,40}".prop_map(Any::Text),
        vec(any::<u8>(), 0..40).prop_map(Any::Bytes),
    ];
    leaf.prop_recursive(6, 60, 20, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..20).prop_map(Any::List),
            vec((".{0,8}", inner), 0..20).prop_map(Any::Map),
        ]
    })
}

impl Any {
    /// Writes it with markers of random width.
    fn write(&self, to: &mut Vec<u8>, width: &mut impl FnMut() -> u8) {
        match self {
            Self::Nil => to.push(0xc0),
            Self::Bool(b) => to.push(0xc2 | u8::from(*b)),
            Self::Integer(n) => match (width() % 5, *n) {
                (0, 0..0x80) => to.push(*n as u8),
                (0, -32..0) => to.push(*n as i8 as u8),
                (1, -0x80..0x80) => to.extend([0xd0, *n as i8 as u8]),
                (2, 0..0x100) => to.extend([0xcc, *n as u8]),
                (3, 0..0x1_0000_0000) => {
                    to.push(0xce);
                    to.extend((*n as u32).to_be_bytes());
                }
                (_, 0..) => {
                    to.push(0xcf);
                    to.extend((*n as u64).to_be_bytes());
                }
                _ => {
                    to.push(0xd3);
                    to.extend((*n as i64).to_be_bytes());
                }
            },
            Self::Float(bits) => {
                to.push(0xcb);
                to.extend(bits.to_be_bytes());
            }
            Self::Text(text) => {
                Self::length(to, width(), text.len(), Some(0xa0), [0xd9, 0xda, 0xdb]);
                to.extend(text.as_bytes());
            }
            Self::Bytes(bytes) => {
                Self::length(to, width(), bytes.len(), None, [0xc4, 0xc5, 0xc6]);
                to.extend(bytes);
            }
            Self::List(items) => {
                Self::length(to, width(), items.len(), Some(0x90), [0, 0xdc, 0xdd]);
                items.iter().for_each(|item| item.write(to, width));
            }
            Self::Map(pairs) => {
                Self::length(to, width(), pairs.len(), Some(0x80), [0, 0xde, 0xdf]);
                for (key, value) in pairs {
                    Self::Text(key.clone()).write(to, width);
                    value.write(to, width);
                }
            }
        }
    }

    fn length(to: &mut Vec<u8>, width: u8, n: usize, fix: Option<u8>, markers: [u8; 3]) {
        match (width % 4, fix) {
            (0, Some(fix)) if n < 16 => to.push(fix | n as u8),
            (1, _) if markers[0] != 0 && n < 256 => to.extend([markers[0], n as u8]),
            (2, _) => {
                to.push(markers[1]);
                to.extend((n as u16).to_be_bytes());
            }
            _ => {
                to.push(markers[2]);
                to.extend((n as u32).to_be_bytes());
            }
        }
    }
}

/// Reads with rmp-serde, as strictly as the spec: text is text and keys are text.
impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Any;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value that a body may hold")
            }
            fn visit_unit<E: Error>(self) -> Result<Any, E> {
                Ok(Any::Nil)
            }
            fn visit_bool<E: Error>(self, b: bool) -> Result<Any, E> {
                Ok(Any::Bool(b))
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<Any, E> {
                Ok(Any::Integer(n.into()))
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Any, E> {
                Ok(Any::Integer(n.into()))
            }
            fn visit_f64<E: Error>(self, x: f64) -> Result<Any, E> {
                Ok(Any::Float(x.to_bits()))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Any, E> {
                Ok(Any::Text(text.to_owned()))
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Any, E> {
                Ok(Any::Bytes(bytes.to_vec()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Any, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Any::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key()? {
                    let Any::Text(key) = key else { return Err(A::Error::custom("no text")) };
                    pairs.push((key, map.next_value()?));
                }
                Ok(Any::Map(pairs))
            }
        }
        from.deserialize_any(Read)
    }
}

/// The value in these bytes, if they are one value and nothing more.
fn with_rmp(bytes: &[u8]) -> Option<Any> {
    let mut from = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    from.set_max_depth(200);
    let value = Any::deserialize(&mut from).ok()?;
    (from.position() == bytes.len() as u64).then_some(value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes_mean_the_same_however_they_are_cut(
        data in wire(), sizes in vec(1..60u8, 1..6)
    ) {
        stream::check(&data, &sizes);
    }

    #[test]
    fn every_story_keeps_the_invariants(story in vec(any::<u8>(), 0..3_000)) {
        script::play(&story);
    }

    #[test]
    fn a_well_formed_body_passes_and_is_read_the_same(
        value in any_value(), widths in vec(any::<u8>(), 1..20)
    ) {
        let mut widths = widths.into_iter().cycle();
        let mut bytes = Vec::new();
        value.write(&mut bytes, &mut || widths.next().unwrap());
        prop_assert_eq!(check_body(&bytes), Ok(()));
        prop_assert_eq!(with_rmp(&bytes), Some(value));
    }

    #[test]
    fn a_body_that_is_cut_or_goes_on_does_not_pass(
        value in any_value(), at in any::<prop::sample::Index>()
    ) {
        let mut bytes = Vec::new();
        value.write(&mut bytes, &mut || 0);
        let cut = at.index(bytes.len());
        if cut != 0 {
            prop_assert_eq!(check_body(&bytes[..cut]), Err(Malformed::Short));
        }
        bytes.push(0xc0);
        prop_assert_eq!(check_body(&bytes), Err(Malformed::Trailing));
    }

    #[test]
    fn rmp_serde_reads_whatever_passes(
        value in any_value(), bends in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = Vec::new();
        value.write(&mut bytes, &mut || 0);
        for (at, byte) in bends {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // The other way round does not hold: rmp-serde takes text that is not UTF-8.
        if check_body(&bytes).is_ok() {
            prop_assert!(with_rmp(&bytes).is_some(), "{:02x?}", bytes);
        }
    }

    #[test]
    fn every_call_and_every_end_is_read_as_it_was_written(
        method in "[a-z]{1,8}(\\.[a-z_]{1,300}){0,2}",
        deadline in proptest::option::of(0..1u64 << 53),
        idle in proptest::option::of(0..1u64 << 53),
        len in 0..40_000usize,
        fault in proptest::option::of((0..12usize, "[a-z]{1,9}\\.[a-z]{1,90}", 0..3usize)),
        chunk in 1..3_000usize,
        input: bool,
        scopes in proptest::option::of(vec("[a-z.*]{0,40}", 0..20)),
        key in proptest::option::of("\\PC{0,40}"),
        attempt: u8,
        trace in proptest::option::of((
            "00-[1-9a-f][0-9a-f]{31}-[1-9a-f][0-9a-f]{15}-0[01]",
            proptest::option::of("[a-z]{1,9}=[a-z0-9]{0,40}"),
        )),
    ) {
        let trace = trace.map(|(parent, state)| Trace { parent, state });
        prop_assume!(!method.starts_with("plugin."));
        let mut pair = Pair::with(streaming(), streaming(), At::Active);
        pair.chunk = chunk;
        let details = Details { scopes, key, attempt, trace };
        let details = (details != Details::default()).then(|| details.into());
        let call = Outgoing {
            method: &method, deadline, idle, input, parent: None, details, body: blob(len),
        };
        let id = pair.host.call(&call, pair.now).unwrap();
        pair.reach_plugin();
        let details = call.details;
        let expected = Incoming {
            id, method: method.into(), deadline, idle, input, parent: None, details,
            body: blob(len),
        };
        prop_assert_eq!(pair.plugin_events(), [Event::Called(expected)]);
        let codes = ["cancelled", "deadline_exceeded", "invalid_argument", "not_found",
            "conflict", "permission_denied", "failed_precondition", "resource_exhausted",
            "unavailable", "unimplemented", "internal", "unknown"];
        let outcome = match fault {
            None => Ok(blob(len)),
            Some((code, reason, retry)) => Err(Fault {
                after: deadline,
                body: blob(len),
                ..Fault::new(Code::parse(codes[code]))
                    .because(reason)
                    .retry([Retry::No, Retry::Safe, Retry::Maybe][retry])
            }),
        };
        pair.plugin.end(id, outcome.clone()).unwrap();
        pair.reach_host();
        let outcome = outcome.map_err(Failure::Fault);
        prop_assert_eq!(pair.host_events(), [Event::Ended { id, outcome }]);
    }

    #[test]
    fn every_note_is_read_as_it_was_written(
        kind in 0..3usize, n in proptest::option::of(0..1u64 << 53),
        total in proptest::option::of(0..1u64 << 53), text in ".{0,300}", len in 0..3_000usize,
        level in select(vec![Level::Debug, Level::Info, Level::Warn, Level::Error]),
    ) {
        let note = match kind {
            0 => Note::Progress { n, total, unit: n.map(|_| text), body: blob(len) },
            1 => Note::Log { level, event: text, body: blob(len) },
            _ => Note::Retire { reason: text },
        };
        let mut pair = Pair::at(At::Open);
        for id in [Some(CallId(3)), None] {
            pair.plugin.note(id, &note);
            pair.reach_host();
            prop_assert_eq!(pair.host_events(), [Event::Note { id, note: note.clone() }]);
        }
    }

    #[test]
    fn every_hello_is_read_as_it_was_written(
        name in ".{0,300}", version in ".{0,40}", sdk in proptest::option::of(".{0,40}"),
        frame in 65_536..=u32::MAX, window in 16_384..=u32::MAX, calls in 1..=u16::MAX,
        manifest in vec(any::<u8>(), 0..9_000), asynchronous: bool,
    ) {
        let announce = Announce {
            identity: Identity { sdk, ..Identity::new(name, version) },
            limits: Limits { frame, window, calls },
            features: if asynchronous { Features::ASYNC } else { Features::NONE },
            manifest: Bytes::from(manifest),
            ..Announce::default()
        };
        let mut pair = Pair::new(announce.clone(), announce.clone());
        pair.flow();
        let welcome = Welcome {
            peer: announce.identity,
            limits: announce.limits,
            features: announce.features,
            manifest: announce.manifest,
        };
        prop_assert_eq!(pair.host_events(), [Event::Hello(welcome)]);
    }
}

#[test]
fn memory_follows_what_arrives_and_not_what_is_declared() {
    let header = [0xc1, 0x12, 0xff, 0xff, 0, 0, 0, 3, 0x3f, 0xff, 0, 0];
    let mut decoder = Decoder::new();
    decoder.set_frame_max(u32::MAX);
    let mut received = 0;
    for piece in header.chunks(5).chain((0..300).map(|_| &[7; 4_321][..])) {
        decoder.buffer().extend_from_slice(piece);
        received += piece.len();
        assert_eq!(decoder.frame(), Ok(None));
        let capacity = decoder.buffer().capacity();
        assert!(capacity <= 2 * received + (64 << 10), "{capacity} bytes for {received}");
    }
}

#[test]
fn a_large_frame_does_not_make_the_buffer_grow_again_and_again() {
    let mut decoder = Decoder::new();
    decoder.set_frame_max(1 << 20);
    let bytes = frame(0x12, 3, json!({}), &blob(1 << 19));
    for _ in 0..100 {
        for piece in bytes.chunks(60_000) {
            decoder.buffer().extend_from_slice(piece);
            while decoder.frame().unwrap().is_some() {}
        }
        let capacity = decoder.buffer().capacity();
        assert!(capacity <= 4 << 19, "{capacity}");
    }
}

#[test]
fn bodies_nest_to_128_and_no_deeper_with_any_container() {
    for open in [&b"\x91"[..], b"\x81\xa1k", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\xa0"] {
        let nested = |n: usize| [&open.repeat(n), &b"\xc0"[..]].concat();
        assert_eq!(check_body(&nested(128)), Ok(()));
        assert_eq!(check_body(&nested(129)), Err(Malformed::TooDeep));
        assert_eq!(check_body(&nested(100_000)), Err(Malformed::TooDeep));
    }
    assert_eq!(check_body(&[0x90; 2]), Err(Malformed::Trailing));
    let empties = [&[0x91; 127][..], b"\x80"].concat();
    assert_eq!(check_body(&empties), Ok(()));
    let empties = [&[0x91; 128][..], b"\x80"].concat();
    assert_eq!(check_body(&empties), Err(Malformed::TooDeep));
}
