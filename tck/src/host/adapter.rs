//! The line to a host: orders out, answers and events in, as `HOST.md` describes them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::{
    check::{Stop, fail},
    process::{Exit, Process, Program},
    transcript::{Line, Side},
};

/// More than this in one line is no answer.
const LINE_MAX: usize = 1 << 24;
/// What is shown of one line.
const SHOWN: usize = 160;

/// What a host answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub outcome: Result<Json, CallError>,
    pub items: Vec<Json>,
    /// When it came.
    pub at: Instant,
}

/// How a call failed, as the host's caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CallError {
    pub code: String,
    pub reason: Option<String>,
}

/// What a host told unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process of a plugin is gone.
    Ended { plugin: String, why: String, said: String },
    /// A reverse call has reached a service.
    Served { plugin: String, method: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    id: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    ok: Option<Json>,
    err: Option<CallError>,
    #[serde(default)]
    items: Vec<Json>,
    event: Option<String>,
    plugin: Option<String>,
    method: Option<String>,
    why: Option<String>,
    #[serde(default)]
    said: Option<String>,
}

/// Nil is an answer.
fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

/// The line itself, and all that came over it.
#[derive(Debug)]
pub struct Adapter {
    process: Process,
    begun: Instant,
    unread: Vec<u8>,
    last: u64,
    open: BTreeMap<u64, &'static str>,
    answers: BTreeMap<u64, Answer>,
    /// What came unasked, in its order.
    pub events: Vec<Event>,
    pub lines: Vec<Line>,
    pub stderr: Vec<u8>,
    interrupted: Arc<AtomicBool>,
}

impl Adapter {
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Program, interrupted: &Arc<AtomicBool>) -> Result<Self, Stop> {
        let process = Process::start(program, false);
        let process = process.map_err(|error| fail("the adapter to start", error.to_string()))?;
        Ok(Self {
            process,
            begun: Instant::now(),
            unread: Vec::new(),
            last: 0,
            open: BTreeMap::new(),
            answers: BTreeMap::new(),
            events: Vec::new(),
            lines: Vec::new(),
            stderr: Vec::new(),
            interrupted: Arc::clone(interrupted),
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn note(&mut self, side: Side, kind: &str, text: &str) {
        let shown: String = text.chars().take(SHOWN).collect();
        let more = if shown.len() < text.len() { "…" } else { "" };
        self.lines.push(Line {
            at_us: u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            side,
            kind: kind.into(),
            id: None,
            head: None,
            text: format!("{shown}{more}"),
            body_len: 0,
            body: None,
        });
    }

    /// Notes a step, so that a conversation can be read.
    pub fn step(&mut self, name: &str) {
        self.note(Side::Host, "step", &format!("step {name}"));
    }

    /// Gives an order. Its answer is awaited by the number that this returns.
    pub fn order(&mut self, what: &'static str, mut order: Map<String, Json>) -> u64 {
        self.last += 1;
        order.insert("id".into(), self.last.into());
        order.insert("do".into(), what.into());
        let line = Json::Object(order).to_string();
        self.note(Side::Host, "order", &line);
        self.process.write(line.as_bytes());
        self.process.write(b"\n");
        self.open.insert(self.last, what);
        self.last
    }

    /// Whether an order is answered.
    pub fn has(&self, id: u64) -> bool {
        self.answers.contains_key(&id)
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// None comes in time, or what comes is none.
    pub fn answer(&mut self, id: u64, within: Duration) -> Result<Answer, Stop> {
        let what = self.open.get(&id).copied().unwrap_or("nothing");
        self.until(&format!("an answer to order {id}, {what}"), within, |it| {
            it.answers.get(&id).cloned()
        })
    }

    /// Reads on until something has been told.
    ///
    /// # Errors
    /// It does not come in time, or the adapter is gone.
    pub fn until<T>(
        &mut self,
        expected: &str,
        within: Duration,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Stop> {
        let until = Instant::now() + within;
        loop {
            if let Some(it) = found(self) {
                return Ok(it);
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = within.as_secs_f64();
                return Err(fail(expected, format!("nothing of it in {seconds} s")));
            }
            if !self.read(left)? && !self.process.is_stdout_open() {
                let seen = match self.process.exit() {
                    Some(exit) => format!("the adapter {exit}"),
                    None => "the adapter closed its stdout".into(),
                };
                return Err(fail(expected, seen));
            }
        }
    }

    /// Reads what is there, for at most so long. False: nothing came.
    fn read(&mut self, wait: Duration) -> Result<bool, Stop> {
        let turn = self.process.turn(wait, true);
        self.stderr.extend(turn.stderr);
        let cut = self.stderr.len().saturating_sub(1 << 14);
        self.stderr.drain(..cut);
        self.unread.extend(turn.stdout);
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let rest = self.unread.split_off(end + 1);
            let line = std::mem::replace(&mut self.unread, rest);
            let line = String::from_utf8_lossy(&line);
            self.note(Side::Plugin, "answer", line.trim_end());
            self.told(line.trim_end())?;
        }
        if self.unread.len() > LINE_MAX {
            let seen = format!("{} bytes and no end of a line", self.unread.len());
            return Err(fail("lines of JSON", seen));
        }
        Ok(turn.moved)
    }

    fn told(&mut self, line: &str) -> Result<(), Stop> {
        let told: Told = serde_json::from_str(line)
            .map_err(|error| fail("a line as HOST.md describes it", format!("{error}")))?;
        match told {
            Told { event: Some(event), plugin: Some(plugin), method, why, said, .. } => {
                let said = said.unwrap_or_default();
                self.events.push(match (event.as_str(), why, method) {
                    ("ended", Some(why), _) => Event::Ended { plugin, why, said },
                    ("served", _, Some(method)) => Event::Served { plugin, method },
                    _ => return Err(fail("an event of HOST.md", event)),
                });
            }
            Told { id: Some(id), ok, err, items, .. } => {
                let outcome = match (ok, err) {
                    (Some(value), None) => Ok(value),
                    (None, Some(err)) => Err(err),
                    _ => {
                        return Err(fail("one of ok and err", format!("the answer to order {id}")));
                    }
                };
                if self.open.remove(&id).is_none() {
                    return Err(fail(
                        "one answer to each order",
                        format!("one more to order {id}"),
                    ));
                }
                self.answers.insert(id, Answer { outcome, items, at: Instant::now() });
            }
            _ => return Err(fail("a line with an id or an event", line)),
        }
        Ok(())
    }

    /// Lets go of it and waits until it is gone.
    ///
    /// # Errors
    /// It does not go in time, or not well.
    pub fn finish(&mut self, within: Duration) -> Result<(), Stop> {
        self.process.close_stdin();
        let until = Instant::now() + within;
        loop {
            let moved = self.read(Duration::from_millis(5))?;
            match self.process.exit() {
                Some(Exit::Code(0)) if !moved => break,
                Some(exit) if !moved => {
                    return Err(fail(
                        "the adapter to end with 0 when its stdin does",
                        format!("it {exit}"),
                    ));
                }
                _ => {}
            }
            if Instant::now() > until {
                let seen = format!("it is still there after {} s", within.as_secs_f64());
                return Err(fail("the adapter to end when its stdin does", seen));
            }
        }
        match self.open.first_key_value() {
            Some((id, what)) => {
                Err(fail(format!("an answer to order {id}, {what}"), "the end of the adapter"))
            }
            None => Ok(()),
        }
    }

    /// What it is still to answer does not matter any more.
    pub fn forget(&mut self, id: u64) {
        self.open.remove(&id);
    }
}
