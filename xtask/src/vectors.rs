//! The vectors of `sdk-spec/vectors`: bytes with their meaning, and bytes with
//! the one fault they have.
//!
//! They are stated here by hand, written out as files for every language, and
//! tried on `plugbay-protocol` like on any other implementation.

pub(crate) mod bytes;
mod invalid;
mod judge;
mod valid;

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use self::bytes::Piece;

/// Who reads the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    Host,
    Plugin,
}

/// Where the receiver is before it reads them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Nothing was read yet. A host has sent its HELLO.
    Start,
    /// Hands are shaken.
    Ready,
    /// `plugin.activate` was call 1 and has ended.
    Active,
    /// And `tool.call` was sent as calls 3, 5 and 7, which are open. From L3 on call 5 has no
    /// scopes, and the plugin has made call 2 for call 3; from L4 on call 7 has an input.
    Open,
    /// And `plugin.deactivate` was sent as call 9.
    Draining,
}

/// Which features are in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// `async`, which shows in nothing that a serial plugin sees.
    L0,
    /// And `stream`.
    L2,
    /// And `reverse`.
    L3,
    /// And `stream.in`.
    L4,
}

/// Bytes that mean something.
pub(crate) struct Valid {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) receiver: Receiver,
    pub(crate) state: State,
    pub(crate) level: Level,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) frames: Vec<Meaning>,
    /// How an implementation comes to write exactly these bytes.
    pub(crate) remake: Option<fn() -> Vec<u8>>,
}

/// What a frame says.
pub(crate) struct Meaning {
    pub(crate) kind: &'static str,
    pub(crate) id: u32,
    pub(crate) head: Value,
    pub(crate) body: Body,
}

impl Meaning {
    /// The body, if JSON can say it.
    pub(crate) fn value(&self) -> Option<&Value> {
        match &self.body {
            Body::Value(value) => Some(value),
            Body::Empty | Body::Bytes(_) => None,
        }
    }
}

pub(crate) enum Body {
    Empty,
    Value(Value),
    /// Bytes that JSON cannot say.
    Bytes(Vec<u8>),
}

/// Bytes with one fault.
pub(crate) struct Invalid {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) receiver: Receiver,
    pub(crate) state: State,
    pub(crate) level: Level,
    pub(crate) pieces: Vec<Piece>,
    /// Whether the stream ends after the bytes.
    pub(crate) eof: bool,
    pub(crate) expect: Expect,
}

pub(crate) enum Expect {
    /// The conversation ends with this CLOSE code.
    Close(&'static str),
    /// The call ends with `invalid_argument`, `pb.bad_body`.
    BadBody,
    /// The call is refused at once with this code and reason.
    Refused(&'static str, &'static str),
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), Vec<String>> {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(vec!["usage: cargo xtask vectors [--check]".into()]),
    };
    let (valid, invalid) = (valid::all(), invalid::all());
    let folder = root.join("sdk-spec/vectors");
    let mut problems = Vec::new();

    let mut files = BTreeMap::new();
    for vector in &valid {
        files.insert(format!("valid/{}.hex", vector.name), bytes::hex(&vector.pieces));
        files.insert(format!("valid/{}.json", vector.name), valid_json(vector));
    }
    for vector in &invalid {
        files.insert(format!("invalid/{}.hex", vector.name), bytes::hex(&vector.pieces));
        files.insert(format!("invalid/{}.json", vector.name), invalid_json(vector));
    }
    if files.len() != 2 * (valid.len() + invalid.len()) {
        problems.push("two vectors have the same name".into());
    }
    let settle = if check { compare } else { write };
    if let Err(why) = settle(&folder, &files, &mut problems) {
        problems.push(format!("{}: {why}", folder.display()));
    }
    // The suite has them built in, and a crate can hold only what lies in its folder.
    let (suite, lines) = (root.join("tck/vectors.jsonl"), suite(&files));
    let settled = match check {
        true => fs::read_to_string(&suite).map(|found| found == lines),
        false => fs::write(&suite, &lines).map(|()| true),
    };
    match settled {
        Ok(true) => {}
        Ok(false) => {
            problems.push(format!("{}: differs, run cargo xtask vectors", suite.display()))
        }
        Err(why) => problems.push(format!("{}: {why}", suite.display())),
    }

    for vector in &valid {
        if let Err(why) = judge::valid(vector) {
            problems.push(format!("valid/{}: {why}", vector.name));
        }
    }
    for vector in &invalid {
        if let Err(why) = judge::invalid(vector) {
            problems.push(format!("invalid/{}: {why}", vector.name));
        }
    }
    if problems.is_empty() {
        println!("{} valid and {} invalid vectors hold", valid.len(), invalid.len());
        return Ok(());
    }
    Err(problems)
}

/// The invalid vectors and the rule that each breaks.
pub(crate) fn broken() -> impl Iterator<Item = (&'static str, &'static str)> {
    invalid::all().into_iter().map(|vector| (vector.name, vector.rule))
}

pub(crate) fn valid() -> Vec<Valid> {
    valid::all()
}

/// The heads of invalid vectors that have a wrong field: vector, receiver, frame, head.
pub(crate) fn wrong_fields() -> Vec<(&'static str, Receiver, &'static str, Value)> {
    let wrong = invalid::all().into_iter().filter(|vector| vector.rule == "R-HD-09");
    let with_head = wrong.filter_map(|vector| {
        let [header, head, ..] = &vector.pieces[..] else { return None };
        let kind = plugbay_protocol::Kind::from_byte(*header.bytes.get(1)?)?;
        let head = rmp_serde::from_slice(&head.bytes).ok()?;
        Some((vector.name, vector.receiver, kind.as_str(), head))
    });
    with_head.collect()
}

/// All vectors, one a line, with their names and bytes.
fn suite(files: &Files) -> String {
    let mut lines = String::new();
    for (name, text) in files {
        let Some(id) = name.strip_suffix(".json") else { continue };
        let bytes = files.get(&format!("{id}.hex")).and_then(|hex| bytes::read_hex(hex));
        let digits: String = bytes.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
        if let Ok(Value::Object(mut vector)) = serde_json::from_str(text) {
            vector.insert("id".into(), id.into());
            vector.insert("hex".into(), digits.into());
            lines.push_str(&format!("{}\n", Value::Object(vector)));
        }
    }
    lines
}

type Files = BTreeMap<String, String>;

fn write(folder: &Path, files: &Files, _: &mut Vec<String>) -> std::io::Result<()> {
    for kind in ["valid", "invalid"] {
        let folder = folder.join(kind);
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(folder)? {
            fs::remove_file(entry?.path())?;
        }
    }
    files.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

fn compare(folder: &Path, files: &Files, problems: &mut Vec<String>) -> std::io::Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(found) if found == *text => {}
            Ok(_) => problems.push(format!("{}: differs, run cargo xtask vectors", path.display())),
            Err(why) => problems.push(format!("{}: {why}", path.display())),
        }
    }
    for kind in ["valid", "invalid"] {
        for entry in fs::read_dir(folder.join(kind))? {
            let name = format!("{kind}/{}", entry?.file_name().to_string_lossy());
            if !files.contains_key(&name) {
                problems.push(format!("{}: no vector made it", folder.join(name).display()));
            }
        }
    }
    Ok(())
}

/// An object with its keys in the order given, one a line.
fn object(fields: &[(&str, String)]) -> String {
    let lines: Vec<String> =
        fields.iter().map(|(name, json)| format!("  {}: {json}", text(name))).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

fn text(words: &str) -> String {
    Value::from(words).to_string()
}

impl Receiver {
    fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Plugin => "plugin",
        }
    }
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::L0 => "L0",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::L4 => "L4",
        }
    }
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Ready => "ready",
            Self::Active => "active",
            Self::Open => "open",
            Self::Draining => "draining",
        }
    }
}

fn valid_json(vector: &Valid) -> String {
    let frames: Vec<String> = vector.frames.iter().map(frame_json).collect();
    let frames = match frames.len() {
        0 => "[]".into(),
        _ => format!("[\n    {}\n  ]", frames.join(",\n    ")),
    };
    object(&[
        ("about", text(vector.about)),
        ("receiver", text(vector.receiver.as_str())),
        ("state", text(vector.state.as_str())),
        ("level", text(vector.level.as_str())),
        ("canonical", vector.remake.is_some().to_string()),
        ("frames", frames),
    ])
}

fn frame_json(frame: &Meaning) -> String {
    let body = match &frame.body {
        Body::Empty => String::new(),
        Body::Value(value) => format!(", \"body\": {value}"),
        Body::Bytes(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(", \"body_hex\": \"{digits}\"")
        }
    };
    let kind = text(frame.kind);
    format!("{{\"type\": {kind}, \"id\": {}, \"head\": {}{body}}}", frame.id, frame.head)
}

fn invalid_json(vector: &Invalid) -> String {
    let expect = match vector.expect {
        Expect::Close(code) => format!("{{\"close\": {}}}", text(code)),
        Expect::BadBody => refused("invalid_argument", "pb.bad_body"),
        Expect::Refused(code, reason) => refused(code, reason),
    };
    object(&[
        ("about", text(vector.about)),
        ("rule", text(vector.rule)),
        ("receiver", text(vector.receiver.as_str())),
        ("state", text(vector.state.as_str())),
        ("level", text(vector.level.as_str())),
        ("eof", vector.eof.to_string()),
        ("expect", expect),
    ])
}

fn refused(code: &str, reason: &str) -> String {
    format!("{{\"end\": {{\"code\": {}, \"reason\": {}}}}}", text(code), text(reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_vectors_in_the_spec_are_these_and_hold() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(run(&root, &["--check".into()]), Ok(()));
    }

    #[test]
    fn a_vector_that_says_something_else_is_found_out() {
        let ping = |kind, id, head, body| Valid {
            name: "ping",
            about: "",
            receiver: Receiver::Plugin,
            state: State::Ready,
            level: Level::L0,
            pieces: bytes::frame(0x03, 0, "80").body("2a").pieces(),
            frames: vec![Meaning { kind, id, head, body }],
            remake: None,
        };
        let body = || Body::Bytes(vec![0x2a]);
        assert_eq!(judge::valid(&ping("PING", 0, json!({}), body())), Ok(()));
        for wrong in [
            ping("PONG", 0, json!({}), body()),
            ping("PING", 1, json!({}), body()),
            ping("PING", 0, json!({"a": 1}), body()),
            ping("PING", 0, json!({}), Body::Empty),
            Valid { state: State::Start, ..ping("PING", 0, json!({}), body()) },
            Valid { remake: Some(Vec::new), ..ping("PING", 0, json!({}), body()) },
        ] {
            assert!(judge::valid(&wrong).is_err());
        }

        let fault = |pieces, expect| Invalid {
            name: "fault",
            about: "",
            rule: "",
            receiver: Receiver::Plugin,
            state: State::Active,
            level: Level::L0,
            pieces,
            eof: false,
            expect,
        };
        let noise = || bytes::stray("0a");
        let good = || bytes::frame(0x10, 3, "81 a6'method' a1'x'").body("c0").pieces();
        assert_eq!(judge::invalid(&fault(noise(), Expect::Close("protocol_error"))), Ok(()));
        for wrong in [
            fault(noise(), Expect::Close("bad_id")),
            fault(noise(), Expect::BadBody),
            fault(good(), Expect::Refused("unavailable", "pb.draining")),
            fault(good(), Expect::Close("protocol_error")),
            fault(good(), Expect::BadBody),
        ] {
            assert!(judge::invalid(&wrong).is_err());
        }
    }

    #[test]
    fn hex_is_read_as_it_is_written() {
        let pieces = bytes::frame(0x03, 0, "80").body("'text' 00").pieces();
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes.clone()).collect();
        assert_eq!(all, *b"\xc1\x03\0\x01\0\0\0\0\0\0\0\x05\x80\0\0\0text\0");
        assert_eq!(bytes::read_hex(&bytes::hex(&pieces)), Some(all));
        assert_eq!(bytes::read_hex("0 # half"), None);
    }
}
