//! What holds in every conversation, whatever it is about: watched on all traffic of
//! all checks, and told under the id of the check that the rule belongs to.
//!
//! What we have sent counts from the moment we send it and what the plugin says from
//! the moment we read it, so a frame that crossed another is never taken for a fault.

mod schema;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use serde::Serialize;

use crate::{
    codec::{self, CALL, CANCEL, CLOSE, CREDIT, Cutter, END, Frame, HELLO, ITEM, NOTE, PING, PONG},
    scope,
    value::{self, BODY, HEAD, Value},
};

/// A rule was broken, whatever the check was about.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// The check that the rule belongs to.
    pub check: &'static str,
    pub expected: String,
    pub seen: String,
    /// Which entry of the transcript shows it.
    pub entry: usize,
}

/// The checks whose rules are watched everywhere.
pub const WATCHED: &[&str] = &[
    "CA-05", "CA-06", "CA-13", "CN-13", "DR-02", "ER-01", "ER-02", "ER-03", "ER-08", "FR-20",
    "HS-02", "HS-03", "HS-11", "IG-06", "LC-11", "NO-01", "NO-02", "NO-05", "NO-06", "RB-08",
    "SC-03", "SC-05", "SC-06", "SC-10", "ST-03", "TO-06",
];

/// What a plugin can be in, as far as frames tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Greeting,
    Ready,
    Activating,
    Active,
    Draining,
}

/// A call of ours.
#[derive(Debug)]
struct Call {
    method: String,
    open: bool,
    /// What it may still send, in bytes.
    credit: i128,
    scopes: Option<Vec<String>>,
    detached: bool,
    progress: Option<i128>,
    notes: u32,
    begun: Instant,
}

/// A call of the plugin's.
#[derive(Debug)]
struct Reverse {
    parent: Option<u32>,
    open: bool,
}

/// A text that must stay where it was put.
#[derive(Clone, Debug)]
pub struct Canary {
    pub text: String,
    /// Whether it is a secret, which stderr must not show either [R-TK-09].
    pub secret: bool,
}

/// One conversation, watched.
#[derive(Debug)]
pub struct Monitor {
    phase: Phase,
    /// The call that is a lifecycle step under way.
    step: Option<u32>,
    greeted: bool,
    /// The features that both sides named.
    used: BTreeSet<String>,
    offered: BTreeSet<String>,
    window: i128,
    frame: usize,
    wants: Vec<String>,
    grant: Vec<String>,
    asked: Vec<String>,
    calls: BTreeMap<u32, Call>,
    reverses: BTreeMap<u32, Reverse>,
    highest: u32,
    pings: VecDeque<Vec<u8>>,
    closed: bool,
    /// All that we send, cut into frames; it ends with our first wrong byte.
    outgoing: Option<Cutter>,
    canaries: Vec<Canary>,
    stderr_tail: Vec<u8>,
    pub violations: Vec<Violation>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self {
            phase: Phase::Greeting,
            step: None,
            greeted: false,
            used: BTreeSet::new(),
            offered: BTreeSet::new(),
            window: 0,
            frame: usize::MAX,
            wants: Vec::new(),
            grant: Vec::new(),
            asked: Vec::new(),
            calls: BTreeMap::new(),
            reverses: BTreeMap::new(),
            highest: 0,
            pings: VecDeque::new(),
            closed: false,
            outgoing: Some(Cutter::default()),
            canaries: Vec::new(),
            stderr_tail: Vec::new(),
            violations: Vec::new(),
        }
    }
}

impl Monitor {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether both sides named this feature.
    pub fn uses(&self, feature: &str) -> bool {
        self.used.contains(feature)
    }

    /// Watches for a text in places where it must not be.
    pub fn guard(&mut self, canary: Canary) {
        self.canaries.push(canary);
    }

    /// Whether authority covers a call of the plugin's [R-SC-05].
    pub fn covers(&self, method: &str, name: Option<&str>, parent: Option<u32>) -> bool {
        let covered =
            |scopes: &[String]| scopes.iter().any(|scope| scope::covers(scope, method, name));
        let narrowed = parent.and_then(|id| self.calls.get(&id)?.scopes.as_deref());
        covered(&self.grant)
            && narrowed.is_none_or(covered)
            && (parent.is_some() || self.grant.iter().any(|scope| scope == "host.background"))
    }

    /// The calls of ours that are open.
    pub fn open_calls(&self) -> Vec<u32> {
        self.calls.iter().filter(|(_, call)| call.open).map(|(id, _)| *id).collect()
    }

    /// What a call of ours may still send, as far as we can tell.
    pub fn credit_of(&self, id: u32) -> i128 {
        self.calls.get(&id).map_or(0, |call| call.credit)
    }

    /// Whether a call of the plugin's waits for our END.
    pub fn is_reverse_open(&self, id: u32) -> bool {
        self.reverses.get(&id).is_some_and(|reverse| reverse.open)
    }

    /// The calls of the plugin's that wait for our END.
    pub fn open_reverses(&self) -> Vec<u32> {
        self.reverses.iter().filter(|(_, each)| each.open).map(|(id, _)| *id).collect()
    }

    fn told(&mut self, check: &'static str, entry: usize, expected: &str, seen: impl Into<String>) {
        if self.violations.iter().all(|each| each.check != check) {
            let (expected, seen) = (expected.to_owned(), seen.into());
            self.violations.push(Violation { check, expected, seen, entry });
        }
    }

    /// Judges one thing: tells if it is not `good`.
    fn rule(
        &mut self,
        check: &'static str,
        entry: usize,
        good: bool,
        expected: &str,
        seen: impl FnOnce() -> String,
    ) {
        if !good {
            self.told(check, entry, expected, seen());
        }
    }

    // What we say.

    /// Takes the bytes that we send.
    pub fn sent(&mut self, bytes: &[u8]) {
        let Some(mut cutter) = self.outgoing.take() else { return };
        cutter.push(bytes);
        loop {
            match cutter.take() {
                Ok(Some(frame)) => self.sent_frame(&frame),
                Ok(None) => break self.outgoing = Some(cutter),
                Err(_) => break,
            }
        }
    }

    fn sent_frame(&mut self, frame: &Frame) {
        let Ok(head) = value::unpack(&frame.head, HEAD) else { return };
        let body = || value::unpack(&frame.body, BODY).unwrap_or(Value::Nil);
        match frame.kind {
            HELLO if !self.greeted => {
                self.greeted = true;
                self.offered = head.strings("features").into_iter().collect();
                let limit = |name| head.get("limits").and_then(|limits| limits.int(name));
                self.window = limit("window").unwrap_or(0);
                self.frame = limit("frame").unwrap_or(i128::from(u32::MAX)) as usize;
            }
            PING => self.pings.push_back(frame.body.clone()),
            CALL => self.sent_call(frame.id, &head, &body()),
            CREDIT => {
                if let (Some(call), Some(n)) = (self.calls.get_mut(&frame.id), head.int("n")) {
                    call.credit += n;
                }
            }
            END => {
                if let Some(reverse) = self.reverses.get_mut(&frame.id) {
                    reverse.open = false;
                }
            }
            _ => {}
        }
    }

    fn sent_call(&mut self, id: u32, head: &Value, body: &Value) {
        let method = head.str("method").unwrap_or("").to_owned();
        match (self.phase, method.as_str()) {
            (Phase::Ready, "plugin.activate") => {
                (self.phase, self.step) = (Phase::Activating, Some(id));
                self.asked = body.strings("grant");
                self.grant.clone_from(&self.asked);
            }
            (Phase::Active, "plugin.deactivate") => {
                (self.phase, self.step) = (Phase::Draining, Some(id));
            }
            _ => {}
        }
        self.calls.entry(id).or_insert(Call {
            detached: method == "tck.reverse" && body.get("detach").is_some(),
            method,
            open: true,
            credit: self.window,
            scopes: head.has("scopes").then(|| head.strings("scopes")),
            progress: None,
            notes: 0,
            begun: Instant::now(),
        });
    }

    // What the plugin says.

    /// Bytes on stdout that are no frame.
    pub fn foreign(&mut self, bytes: &[u8], entry: usize) {
        let check = if self.phase == Phase::Greeting { "HS-02" } else { "RB-08" };
        let seen = crate::transcript::show_bytes(bytes, bytes.len());
        self.told(check, entry, "nothing but frames on stdout [R-PR-06]", seen);
    }

    /// What was written to stderr.
    pub fn stderr(&mut self, bytes: &[u8], entry: usize) {
        if self.canaries.is_empty() {
            return;
        }
        self.stderr_tail.extend_from_slice(bytes);
        let found =
            self.canaries.iter().any(|each| each.secret && holds(&self.stderr_tail, &each.text));
        self.rule("SC-10", entry, !found, "no secret in stderr [R-TK-09]", || {
            "a secret in stderr".into()
        });
        let keep = self.stderr_tail.len().saturating_sub(256);
        self.stderr_tail.drain(..keep);
    }

    /// The process is gone and others of its group are not.
    pub fn ended(&mut self, entry: usize, left_behind: bool) {
        let seen = || "processes of its group that still live".into();
        self.rule("LC-11", entry, !left_behind, "no process left behind [R-PR-14]", seen);
    }

    /// Takes a frame that was read.
    pub fn read(&mut self, frame: &Frame, head: &Result<Value, String>, entry: usize) {
        let name = codec::name(frame.kind);
        // Who is spoken to out of turn may say so.
        let in_turn = self.greeted || frame.kind == CLOSE;
        self.rule("HS-03", entry, in_turn, "nothing before the host's HELLO [R-HS-02]", || {
            name.clone()
        });
        self.rule("ER-08", entry, !self.closed, "nothing after CLOSE [R-LC-11]", || name.clone());
        let polite = !self.is_mirror(frame);
        let fault = schema::fault(frame, head, self.frame, polite);
        self.rule(
            "FR-20",
            entry,
            fault.is_none(),
            "a frame as section 1 of the spec describes it",
            || format!("{name} #{}: {}", frame.id, fault.unwrap_or_default()),
        );
        let Ok(head) = head else { return };
        self.heads_are_clean(frame, head, entry);
        match frame.kind {
            HELLO => self.read_hello(frame, head),
            CLOSE => self.closed = true,
            PONG => self.read_pong(frame, entry),
            CALL => self.read_call(frame, head, entry),
            ITEM => self.read_item(frame, entry),
            END => self.read_end(frame, head, entry),
            CANCEL => {
                let good = self.reverses.contains_key(&frame.id);
                let expected = "CANCEL only for calls that it made itself [R-CA-10]";
                self.rule("CN-13", entry, good, expected, || format!("CANCEL #{}", frame.id));
            }
            CREDIT => {
                self.feature("stream.in", frame, entry);
                self.about_open_call(frame, entry);
            }
            NOTE => self.read_note(frame, head, entry),
            _ => {}
        }
    }

    /// Whether a body is only handed back, so that its form is ours.
    fn is_mirror(&self, frame: &Frame) -> bool {
        let method = self.calls.get(&frame.id).map(|call| call.method.as_str());
        matches!((frame.kind, method), (END, Some("tck.echo")) | (ITEM, Some("tck.pipe")))
    }

    fn heads_are_clean(&mut self, frame: &Frame, head: &Value, entry: usize) {
        for Canary { text, secret } in self.canaries.clone() {
            let check = if secret { "SC-10" } else { "NO-05" };
            let noted = secret && frame.kind == NOTE && holds(&frame.body, &text);
            let good = !noted && !holds(&frame.head, &text);
            let expected =
                "no argument, config or secret in a head [R-HD-13], no secret in a NOTE [R-TK-09]";
            self.rule(check, entry, good, expected, || {
                format!("{} with {text:?}", codec::name(frame.kind))
            });
        }
        if let Some(err) = head.get("err") {
            self.error_is_clean(err, entry);
        }
    }

    fn error_is_clean(&mut self, err: &Value, entry: usize) {
        let code = err.str("code").unwrap_or("");
        let good = schema::CODES.contains(&code);
        self.rule("ER-01", entry, good, "one of the twelve codes [R-ER-03]", || code.to_owned());
        if let Some(reason) = err.str("reason") {
            let good = schema::is_reason(reason) && schema::may_say(reason, code, err.str("retry"));
            let expected = "a reason of the form and use that R-ER-05 and R-ER-08 give it";
            self.rule("ER-02", entry, good, expected, || err.to_string());
        }
        let words = ["msg", "message", "detail", "data"].iter().find(|key| err.has(key));
        self.rule(
            "ER-03",
            entry,
            words.is_none(),
            "words for people in the body only [R-ER-09]",
            || err.to_string(),
        );
    }

    fn read_hello(&mut self, frame: &Frame, head: &Value) {
        if self.phase != Phase::Greeting {
            return;
        }
        self.phase = Phase::Ready;
        let named: BTreeSet<String> = head.strings("features").into_iter().collect();
        self.used = named.intersection(&self.offered).cloned().collect();
        self.wants = value::unpack(&frame.body, BODY).unwrap_or(Value::Nil).strings("wants");
    }

    fn read_pong(&mut self, frame: &Frame, entry: usize) {
        let Some(due) = self.pings.front().cloned() else { return };
        let expected = format!("PONG with the body of its PING, {}", value::hex(&due));
        let seen = || value::hex(&frame.body);
        self.rule("TO-06", entry, frame.body == due, &expected, seen);
        // One answer that fits a later PING skips those before it.
        let at = self.pings.iter().position(|each| *each == frame.body).unwrap_or(0);
        self.pings.drain(..=at);
    }

    fn feature(&mut self, feature: &str, frame: &Frame, entry: usize) {
        let expected = format!("no use of {feature}, which was not agreed on [R-HS-09]");
        let good = self.uses(feature);
        self.rule("HS-11", entry, good, &expected, || {
            format!("{} #{}", codec::name(frame.kind), frame.id)
        });
    }

    /// A frame of the callee about a call: the call must be there and open.
    fn about_open_call(&mut self, frame: &Frame, entry: usize) {
        let good = self.calls.get(&frame.id).is_some_and(|call| call.open);
        let expected = "frames about open calls only, none after END [R-CA-05]";
        let check = if self.calls.contains_key(&frame.id) { "CA-06" } else { "CA-05" };
        self.rule(check, entry, good, expected, || {
            format!("{} #{}", codec::name(frame.kind), frame.id)
        });
    }

    fn read_call(&mut self, frame: &Frame, head: &Value, entry: usize) {
        self.feature("reverse", frame, entry);
        let id = frame.id;
        let good = id != 0 && id.is_multiple_of(2) && id > self.highest;
        let expected = format!("an even id above {} [R-CA-02]", self.highest);
        self.rule("CA-13", entry, good, &expected, || id.to_string());
        self.highest = self.highest.max(id);
        let good = !matches!(self.phase, Phase::Greeting | Phase::Ready);
        self.rule("IG-06", entry, good, "no CALL while Ready [R-RV-03]", || format!("CALL #{id}"));
        let method = head.str("method").unwrap_or("").to_owned();
        let parent = head.int("parent").and_then(|id| u32::try_from(id).ok());
        let narrowed = parent.and_then(|id| self.calls.get(&id)?.scopes.clone());
        let holds =
            |scopes: &[String]| scopes.iter().any(|each| scope::method(each) == Some(&method));
        let good =
            holds(&self.wants) && holds(&self.grant) && narrowed.as_deref().is_none_or(holds);
        let expected = "a method that a scope of its authority has [R-SC-07]";
        self.rule("SC-03", entry, good, expected, || method.clone());
        let good = match parent {
            Some(id) => self.calls.get(&id).is_some_and(|call| call.open),
            // Only detached work has none; what is no fixture may know better.
            None => {
                !method.starts_with("host.tck.") || self.calls.values().any(|call| call.detached)
            }
        };
        let expected = "the open call that it serves as `parent` [R-RV-01] [R-RV-03]";
        self.rule("SC-05", entry, good, expected, || head.to_string());
        self.reverses.insert(id, Reverse { parent, open: true });
    }

    fn read_item(&mut self, frame: &Frame, entry: usize) {
        self.feature("stream", frame, entry);
        self.about_open_call(frame, entry);
        let Some(call) = self.calls.get_mut(&frame.id) else { return };
        let credit = call.credit;
        call.credit -= frame.size() as i128;
        let expected = "an ITEM only while the credit is above 0 [R-ST-01]";
        self.rule("ST-03", entry, credit > 0, expected, || {
            format!("ITEM #{} at credit {credit}", frame.id)
        });
    }

    fn read_end(&mut self, frame: &Frame, head: &Value, entry: usize) {
        let id = frame.id;
        let is_ok = !head.has("err");
        let open = self.calls.get(&id).is_some_and(|call| call.open);
        self.rule("CA-05", entry, open, "one END for each call [R-CA-01]", || {
            format!("END #{id} for no open call")
        });
        let child = self.reverses.iter().find(|(_, each)| each.open && each.parent == Some(id));
        let child = child.map(|(id, _)| *id);
        if self.uses("reverse") {
            let expected = "END of a call after its reverse calls are closed [R-RV-04]";
            let seen = || format!("END #{id} while #{} is open", child.unwrap_or_default());
            self.rule("SC-06", entry, child.is_none(), expected, seen);
        }
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.open) else { return };
        call.open = false;
        if self.step.take_if(|step| *step == id).is_none() {
            return;
        }
        match self.phase {
            Phase::Activating => {
                self.phase = if is_ok { Phase::Active } else { Phase::Ready };
                self.grant = if is_ok { std::mem::take(&mut self.asked) } else { Vec::new() };
            }
            Phase::Draining => {
                self.phase = if is_ok { Phase::Ready } else { Phase::Active };
                if is_ok {
                    self.grant.clear();
                    // What we called after the step crossed it, and is refused.
                    let before = self.open_calls().into_iter().filter(|open| *open < id);
                    let open: Vec<u32> = before.chain(self.open_reverses()).collect();
                    let expected =
                        "no call open in either direction at END ok of plugin.deactivate [R-LC-09]";
                    self.rule("DR-02", entry, open.is_empty(), expected, || {
                        format!("open: {open:?}")
                    });
                }
            }
            _ => {}
        }
    }

    fn read_note(&mut self, frame: &Frame, head: &Value, entry: usize) {
        let topic = head.str("topic").unwrap_or("");
        let call = self.calls.get_mut(&frame.id);
        let open = call.as_ref().is_some_and(|call| call.open);
        let good = match topic {
            "progress" => open,
            "retire" => frame.id == 0,
            _ => frame.id == 0 || open,
        };
        let mut counts = None;
        if let Some(call) = call.filter(|_| topic == "progress") {
            call.notes += 1;
            let allowed = 10 * (2 + call.begun.elapsed().as_secs());
            let before = call.progress;
            call.progress = head.int("n").or(before);
            counts = Some((
                before.is_none_or(|n| Some(n) <= call.progress),
                u64::from(call.notes) <= allowed,
            ));
        }
        let expected = "the id of an open call, or 0, as its topic wants [section 3.6]";
        self.rule("NO-01", entry, good, expected, || format!("NOTE #{} {topic}", frame.id));
        if let Some((rises, is_slow)) = counts {
            self.rule("NO-02", entry, rises, "an n that does not decrease [R-NO-04]", || {
                head.to_string()
            });
            let expected = "at most 10 progress notes per second and call [R-NO-05]";
            self.rule("NO-06", entry, is_slow, expected, || "more".into());
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
