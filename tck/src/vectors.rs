//! Judges a codec, or a whole receiver, by the vectors of the spec: it is told bytes and where they
//! are read, a line of JSON each, and says what they mean or why they are refused. `VECTORS.md`
//! describes both lines.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::{
    codec::{self, Cutter},
    process::{Process, Program},
    value::{self, hex},
};

/// The vectors of `sdk-spec/vectors`, one a line, as `cargo xtask vectors` writes them.
const ALL: &str = include_str!("../vectors.jsonl");

/// How long an answer may take, before it is scaled.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than this in one line is no answer.
const LINE_MAX: usize = 1 << 22;

/// Bytes with a meaning, or with one fault.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// Such as `invalid/gap-missing`.
    pub id: String,
    pub about: String,
    /// `host` or `plugin`.
    pub receiver: String,
    /// Where the receiver is, by `sdk-spec/vectors/README.md`.
    pub state: String,
    /// Which features are in use.
    pub level: String,
    pub hex: String,
    /// The stream ends after the bytes.
    #[serde(default)]
    pub eof: bool,
    /// plugbay writes the same with these bytes. Nobody else has to.
    #[serde(default)]
    pub canonical: bool,
    /// What valid bytes mean.
    pub frames: Option<Vec<Meaning>>,
    /// What invalid bytes break.
    pub rule: Option<String>,
    /// What comes of it.
    pub expect: Option<Refusal>,
}

/// A frame as JSON says it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: u32,
    pub head: Json,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub body: Option<Json>,
    /// The body's bytes, where JSON cannot say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_hex: Option<String>,
}

/// A body of nil is a body.
fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

/// How bytes are refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// The conversation ends with this code.
    Close(String),
    /// The call ends with this error, and the conversation goes on.
    End { code: String, reason: String },
}

/// What a program says of one vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It is this, frame by frame.
    Frames(Vec<Meaning>),
    /// It is this, written anew.
    Bytes(Vec<u8>),
    Refused(Refusal),
    /// The program is not what this vector is for.
    Skip(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    frames: Option<Vec<Meaning>>,
    hex: Option<String>,
    close: Option<String>,
    end: Option<End>,
    skip: Option<String>,
}

#[derive(Deserialize)]
struct End {
    code: String,
    reason: String,
}

/// All vectors, by id.
///
/// # Panics
/// Never: a test reads what is built in.
#[must_use]
pub fn all() -> Vec<Vector> {
    ALL.lines().map(|line| serde_json::from_str(line).expect("a vector")).collect()
}

impl Vector {
    /// Whether a codec alone can judge it, that knows nothing of calls: what is valid, and what
    /// breaks a rule about framing, heads and bodies.
    #[must_use]
    pub fn is_for_codecs(&self) -> bool {
        self.rule.as_ref().is_none_or(|rule| rule.starts_with("R-FR-") || rule.starts_with("R-HD-"))
    }

    /// What the program is told.
    fn question(&self) -> String {
        let (id, receiver, state) = (&self.id, &self.receiver, &self.state);
        let (level, eof, hex) = (&self.level, self.eof, &self.hex);
        let line = json!({ "id": id, "receiver": receiver, "state": state, "level": level, "eof": eof, "hex": hex });
        format!("{line}\n")
    }

    /// Whether the answer is right, and if not, what was due and what it says.
    ///
    /// # Errors
    /// What differs.
    pub fn judge(&self, answer: &Answer) -> Result<(), String> {
        match (&self.frames, &self.expect, answer) {
            (_, _, Answer::Skip(_)) => Ok(()),
            (Some(due), _, Answer::Frames(said)) => means(due, said),
            (Some(due), _, Answer::Bytes(bytes)) => means(due, &read(bytes)?),
            (Some(_), _, Answer::Refused(refusal)) => {
                Err(format!("expected it to be accepted, it is refused with {refusal}"))
            }
            (_, Some(due), Answer::Refused(said)) if due == said => Ok(()),
            (_, Some(due), Answer::Refused(said)) => {
                Err(format!("expected {due}, it is refused with {said}"))
            }
            (_, Some(due), _) => Err(format!("expected {due}, it is accepted")),
            (None, None, _) => Err("the vector says nothing".into()),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Close(code) => write!(f, "CLOSE {code}"),
            Self::End { code, reason } => write!(f, "END {code}, {reason}"),
        }
    }
}

/// That frames say what is due. Nil is as good as absent [R-HD-04], and GREASE may be forgotten.
fn means(due: &[Meaning], said: &[Meaning]) -> Result<(), String> {
    if due.len() != said.len() {
        return Err(format!("expected {} frames, it found {}", due.len(), said.len()));
    }
    for (due, said) in due.iter().zip(said) {
        let (who, is) = ((&due.kind, due.id), (&said.kind, said.id));
        if who != is {
            return Err(format!("expected {} #{}, it says {} #{}", who.0, who.1, is.0, is.1));
        }
        let (due_head, said_head) = (plain(&due.head), plain(&said.head));
        if due_head != said_head {
            return Err(format!("expected the head {due_head}, it says {said_head}"));
        }
        let (due_body, said_body) = (body(due)?, body(said)?);
        if due_body != said_body {
            return Err(format!("expected the body {due_body}, it says {said_body}"));
        }
    }
    Ok(())
}

/// Without what is nil and what is GREASE.
fn plain(head: &Json) -> Json {
    match head {
        Json::Object(entries) => {
            let kept = entries
                .iter()
                .filter(|(key, value)| !value.is_null() && !key.starts_with("grease"))
                .map(|(key, value)| (key.clone(), plain(value)));
            Json::Object(kept.collect())
        }
        other => other.clone(),
    }
}

/// A body in the form that both ways to say it have in common: what JSON can say as JSON, all else
/// as hex.
fn body(frame: &Meaning) -> Result<Json, String> {
    let value = match (&frame.body, &frame.body_hex) {
        (Some(_), Some(_)) => return Err("a frame has body or body_hex, not both".into()),
        (Some(value), None) => value.clone(),
        (None, None) => Json::Null,
        (None, Some(text)) => {
            let bytes = unhex(text).ok_or("body_hex is not hex")?;
            let is_value = !matches!(frame.kind.as_str(), "PING" | "PONG");
            let value = value::unpack(&bytes, value::BODY).ok().filter(|_| is_value);
            let as_json = value.map(|value| value.to_json());
            as_json.filter(can_say).unwrap_or_else(|| json!({ "$hex": hex(&bytes) }))
        }
    };
    Ok(json!({ "is": value, "has": frame.body.is_some() || frame.body_hex.is_some() }))
}

/// Whether JSON has said it all: our own escapes are not JSON's.
fn can_say(value: &Json) -> bool {
    match value {
        Json::Object(entries) => {
            entries.iter().all(|(key, value)| !key.starts_with('$') && can_say(value))
        }
        Json::Array(items) => items.iter().all(can_say),
        _ => true,
    }
}

/// Frames that were written anew, read by the suite's own codec.
fn read(bytes: &[u8]) -> Result<Vec<Meaning>, String> {
    let mut cutter = Cutter::default();
    cutter.push(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = cutter.take().map_err(|_| "what it wrote anew is no frame")? {
        if frame.gap.iter().any(|byte| *byte != 0) {
            return Err("it wrote a gap that is not zero".into());
        }
        let head = value::unpack(&frame.head, value::HEAD);
        let head = head.map_err(|why| format!("it wrote a head that is none: {why}"))?;
        let body_hex = (!frame.body.is_empty()).then(|| hex(&frame.body));
        let kind = codec::name(frame.kind);
        frames.push(Meaning { kind, id: frame.id, head: head.to_json(), body: None, body_hex });
    }
    if cutter.rest().is_empty() { Ok(frames) } else { Err("it wrote half a frame".into()) }
}

/// The bytes of hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| {
        let [high, low] = pair else { return None };
        let digit = |it: &u8| char::from(*it).to_digit(16);
        u8::try_from(digit(high)? << 4 | digit(low)?).ok()
    };
    digits.chunks(2).map(byte).collect()
}

/// Reads one line of the program's.
fn parse(line: &str) -> Result<(String, Answer), String> {
    let Line { id, frames, hex, close, end, skip } =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let end = end.map(|End { code, reason }| Refusal::End { code, reason });
    let bytes = match hex {
        Some(text) => Some(unhex(&text).ok_or("hex is not hex")?),
        None => None,
    };
    let mut answers = [
        frames.map(Answer::Frames),
        bytes.map(Answer::Bytes),
        close.map(Refusal::Close).or(end).map(Answer::Refused),
        skip.map(Answer::Skip),
    ]
    .into_iter()
    .flatten();
    match (answers.next(), answers.next()) {
        (Some(answer), None) => Ok((id, answer)),
        _ => Err("a line has one of frames, hex, close, end and skip".into()),
    }
}

/// How one vector went.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    pub status: Status,
    /// What was due and what was said, or why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Status {
    #[serde(rename = "pass")]
    Pass,
    #[serde(rename = "fail")]
    Fail,
    #[serde(rename = "n/a")]
    Skipped,
}

/// Nothing, or no more, could be judged.
#[derive(Clone, Debug)]
pub struct Lost {
    pub why: String,
    /// The last of what it wrote to stderr.
    pub stderr: String,
    pub interrupted: bool,
}

/// Asks a program about vectors, one after the other.
///
/// # Errors
/// [`Lost`], if it cannot be started, or says nothing that is an answer to the first of them. What
/// goes wrong later fails the vector that it went wrong with, and all after it.
pub fn ask(
    program: &Program,
    vectors: &[Vector],
    scale: f64,
    interrupted: &Arc<AtomicBool>,
) -> Result<Vec<Outcome>, Lost> {
    let process = Process::start(program, false);
    let process = process.map_err(|error| Lost {
        why: format!("it cannot be started: {error}"),
        stderr: String::new(),
        interrupted: false,
    })?;
    let mut dialogue = Dialogue { process, unread: Vec::new(), stderr: Vec::new() };
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(vectors.len());
    let mut broken: Option<String> = None;
    for vector in vectors {
        let mut outcome = Outcome {
            id: vector.id.clone(),
            rule: vector.rule.clone(),
            status: Status::Fail,
            reason: None,
        };
        if let Some(at) = &broken {
            outcome.reason = Some(format!("not asked, because of {at}"));
            outcomes.push(outcome);
            continue;
        }
        match dialogue.answer(vector, PATIENCE.mul_f64(scale), interrupted) {
            Ok(Answer::Skip(why)) => {
                outcome.status = Status::Skipped;
                outcome.reason = Some(why);
            }
            Ok(answer) => match vector.judge(&answer) {
                Ok(()) => outcome.status = Status::Pass,
                Err(why) => outcome.reason = Some(why),
            },
            Err(why) if outcomes.is_empty() || interrupted.load(Ordering::Relaxed) => {
                let stderr = String::from_utf8_lossy(&dialogue.stderr).into_owned();
                let interrupted = interrupted.load(Ordering::Relaxed);
                return Err(Lost { why, stderr, interrupted });
            }
            Err(why) => {
                broken = Some(vector.id.clone());
                outcome.reason = Some(why);
            }
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Lines each way with a program.
struct Dialogue {
    process: Process,
    unread: Vec<u8>,
    stderr: Vec<u8>,
}

impl Dialogue {
    fn answer(
        &mut self,
        vector: &Vector,
        patience: Duration,
        interrupted: &AtomicBool,
    ) -> Result<Answer, String> {
        self.process.write(vector.question().as_bytes());
        let line = self.line(patience, interrupted)?;
        let (id, answer) =
            parse(&line).map_err(|why| format!("it wrote a line that is no answer: {why}"))?;
        if id == vector.id {
            Ok(answer)
        } else {
            Err(format!("it answers {id:?}, which was not asked"))
        }
    }

    fn line(&mut self, patience: Duration, interrupted: &AtomicBool) -> Result<String, String> {
        let until = Instant::now() + patience;
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let rest = self.unread.split_off(end + 1);
                let line = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8(line).map_err(|_| "it wrote what is no text".into());
            }
            if self.unread.len() > LINE_MAX {
                return Err(format!("it wrote {} bytes and no end of a line", self.unread.len()));
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("it did not answer in {} s", patience.as_secs_f64()));
            }
            let turn = self.process.turn(left, true);
            self.unread.extend(turn.stdout);
            self.stderr.extend(turn.stderr);
            let cut = self.stderr.len().saturating_sub(1 << 14);
            self.stderr.drain(..cut);
            if !turn.moved && !self.process.is_stdout_open() {
                return Err(match self.process.exit() {
                    Some(exit) => format!("it {exit} instead of an answer"),
                    None => "it closed its stdout instead of an answer".into(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(vector: &Vector) -> Answer {
        match (&vector.frames, &vector.expect) {
            (Some(frames), _) => Answer::Frames(frames.clone()),
            (_, Some(refusal)) => Answer::Refused(refusal.clone()),
            _ => panic!("{} says nothing", vector.id),
        }
    }

    #[test]
    fn the_right_answer_passes_and_any_other_fails() {
        for vector in all() {
            let right = right(&vector);
            assert_eq!(vector.judge(&right), Ok(()), "{}", vector.id);
            let close = |code: &str| Answer::Refused(Refusal::Close(code.into()));
            let mut wrong = vec![
                close("internal"),
                Answer::Bytes(vec![0xC1]),
                Answer::Frames(vec![Meaning {
                    kind: "PING".into(),
                    id: 4,
                    head: json!({}),
                    body: None,
                    body_hex: None,
                }]),
            ];
            if let Answer::Frames(frames) = right {
                for at in 0..frames.len() {
                    let change = |change: fn(&mut Meaning)| {
                        let mut frames = frames.clone();
                        change(&mut frames[at]);
                        Answer::Frames(frames)
                    };
                    wrong.push(change(|it| it.id += 1));
                    wrong.push(change(|it| it.kind.push('X')));
                    wrong.push(change(|it| it.head["x"] = json!(1)));
                    wrong.push(change(|it| {
                        (it.body, it.body_hex) = (Some(json!({"q": [1]})), None)
                    }));
                    wrong.push(change(|it| (it.body, it.body_hex) = (None, Some("a177".into()))));
                    wrong.push(Answer::Frames(frames[..at].to_vec()));
                }
            }
            for wrong in wrong {
                assert!(vector.judge(&wrong).is_err(), "{} {wrong:?}", vector.id);
            }
        }
    }

    #[test]
    fn what_is_written_anew_is_read_by_the_suites_own_codec() {
        for vector in all().iter().filter(|it| it.frames.is_some() && !it.id.contains("skip-")) {
            let bytes = Answer::Bytes(unhex(&vector.hex).unwrap());
            assert_eq!(vector.judge(&bytes), Ok(()), "{}", vector.id);
        }
    }

    #[test]
    fn a_line_is_one_answer() {
        let parsed = |line: &str| parse(line).map(|(_, answer)| answer);
        let closes = Answer::Refused(Refusal::Close("bad_id".into()));
        assert_eq!(parsed(r#"{"id": "a", "close": "bad_id"}"#), Ok(closes));
        assert_eq!(parsed(r#"{"id": "a", "hex": "C10f"}"#), Ok(Answer::Bytes(vec![0xC1, 0x0F])));
        for wrong in [
            "",
            "[]",
            r#"{"id": "a"}"#,
            r#"{"close": "bad_id"}"#,
            r#"{"id": "a", "close": "x", "skip": "y"}"#,
            r#"{"id": "a", "hex": "c"}"#,
            r#"{"id": "a", "hex": "é1"}"#,
            r#"{"id": "a", "closes": "x"}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nil_is_a_body_and_nothing_is_none() {
        let of = |text: &str| body(&serde_json::from_str::<Meaning>(text).unwrap()).unwrap();
        let none = of(r#"{"type": "END", "id": 1, "head": {}}"#);
        let nil = of(r#"{"type": "END", "id": 1, "head": {}, "body": null}"#);
        assert_ne!(none, nil);
        assert_eq!(nil, of(r#"{"type": "END", "id": 1, "head": {}, "body_hex": "c0"}"#));
    }
}
