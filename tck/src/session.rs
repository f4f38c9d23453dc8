//! One conversation with one process: the language in which checks are written.
//!
//! Sending never fails and never waits. What the plugin says is read while something
//! is waited for, goes through the monitor, and lies in the inbox until somebody takes
//! it. An expectation that is not met says what was due and what came instead.

mod expect;
mod serve;

pub use expect::{
    ALREADY_ACTIVE, BAD_BODY, DRAINING, GRACE, INACTIVE, PROMPT, Refusal, UNIMPLEMENTED, code,
    refusal,
};

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{
    check::{Failure, Stop},
    codec::{self, Body, CALL, CANCEL, CLOSE, CREDIT, Cutter, END, Frame, ITEM, PING, PONG},
    map,
    monitor::{Canary, Monitor, Phase, Violation},
    process::{Exit, Process},
    transcript::{Deed, Side, Transcript},
    value::{self, HEAD, Value},
    walk::Walk,
};

/// A frame of the plugin's.
#[derive(Clone, Debug)]
pub struct Got {
    /// Which entry of the transcript it is; later frames have higher numbers.
    pub entry: usize,
    pub kind: u8,
    pub id: u32,
    /// Nil if it cannot be decoded, of which the monitor has told.
    pub head: Value,
    pub body: Vec<u8>,
    /// Bytes of the whole frame.
    pub size: usize,
    /// When it was read.
    pub at: Instant,
}

impl Got {
    /// The body as a value; nothing is the empty map [R-HD-16].
    pub fn value(&self) -> Value {
        if self.body.is_empty() {
            return Value::map();
        }
        value::unpack(&self.body, value::BODY).unwrap_or(Value::Nil)
    }

    /// The error of an END.
    pub fn err(&self) -> Option<&Value> {
        self.head.get("err")
    }

    pub fn is(&self, kind: u8, id: u32) -> bool {
        self.kind == kind && self.id == id
    }
}

/// The frame in one line, without its body.
impl std::fmt::Display for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} #{} {}", codec::name(self.kind), self.id, self.head)?;
        if self.body.is_empty() {
            Ok(())
        } else {
            write!(f, " and a body of {} B", self.body.len())
        }
    }
}

/// What is left of a conversation once it is over.
#[derive(Debug, Default)]
pub struct Conversation {
    pub transcript: Transcript,
    pub violations: Vec<Violation>,
    /// The last of what it wrote to stderr.
    pub stderr: String,
    /// How its process ended, if it did so by itself.
    pub exit: Option<Exit>,
    /// Started by a host, and not by hand.
    pub cookie: bool,
    /// The random walk that it was, if it was one.
    pub walk: Option<Walk>,
}

/// What all conversations of a check share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub conversations: Rc<RefCell<Vec<Conversation>>>,
    /// When the check must be over.
    pub until: Instant,
    /// What every wait is multiplied with.
    pub scale: f64,
    /// Transcripts are whole, to be recorded.
    pub whole: bool,
    pub interrupted: Arc<AtomicBool>,
}

/// One conversation. Dropping it ends the process, whatever it does.
#[derive(Debug)]
pub struct Session {
    shared: Shared,
    number: usize,
    process: Process,
    cutter: Cutter,
    pub(crate) transcript: Transcript,
    pub(crate) monitor: Monitor,
    inbox: Vec<Got>,
    stderr: Vec<u8>,
    /// Nothing more can be read: the stream broke, or it is over.
    over: bool,
    /// What stood on stdout where a frame was due.
    foreign: Option<Vec<u8>>,
    reading: bool,
    /// The calls of `host.tck.wait` that are open.
    pub(crate) waits: BTreeSet<u32>,
    serving: bool,
    deny: Value,
    next_id: u32,
    pings: u64,
    /// What we may still send on the streams of our calls, in bytes.
    credit: BTreeMap<u32, i128>,
    window: i128,
    told_exit: bool,
    cookie: bool,
    pub(crate) walk: Option<Walk>,
}

/// How much of stderr is kept.
const STDERR_KEPT: usize = 1 << 14;
/// More than this in one frame is no frame.
const FRAME_MAX: usize = 1 << 26;

/// The budget of every call that names none [R-TO-04], in milliseconds.
const DEADLINE: u32 = 60_000;

impl Session {
    pub(crate) fn new(shared: Shared, process: Process, cookie: bool) -> Self {
        let mut conversations = shared.conversations.borrow_mut();
        let number = conversations.len();
        conversations.push(Conversation::default());
        drop(conversations);
        let transcript = if shared.whole { Transcript::whole() } else { Transcript::new() };
        Self {
            shared,
            number,
            process,
            cutter: Cutter::default(),
            transcript,
            monitor: Monitor::default(),
            inbox: Vec::new(),
            stderr: Vec::new(),
            over: false,
            foreign: None,
            reading: true,
            waits: BTreeSet::new(),
            serving: true,
            deny: map! {"code": "permission_denied", "retry": "no"},
            next_id: 1,
            pings: 0,
            credit: BTreeMap::new(),
            window: 0,
            told_exit: false,
            cookie,
            walk: None,
        }
    }

    // Saying things.

    /// Sends a frame.
    pub fn send(&mut self, frame: &Frame) -> usize {
        if frame.kind == ITEM {
            *self.credit.entry(frame.id).or_insert(self.window) -= frame.size() as i128;
        }
        let entry = self.transcript.frame(Side::Host, frame);
        let bytes = frame.bytes();
        self.monitor.sent(&bytes);
        self.process.write(&bytes);
        entry
    }

    /// Sends several frames with one write.
    pub fn send_all(&mut self, frames: &[Frame]) {
        let mut bytes = Vec::new();
        for frame in frames {
            self.transcript.frame(Side::Host, frame);
            bytes.extend(frame.bytes());
        }
        self.monitor.sent(&bytes);
        self.process.write(&bytes);
    }

    /// Sends bytes as they are, wrong ones too.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.transcript.bytes(Side::Host, bytes);
        self.monitor.sent(bytes);
        self.process.write(bytes);
    }

    /// The next id of a call of ours: 1, 3, 5 and so on.
    pub fn next_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        id
    }

    /// Goes on with this id, which must be odd and above all used so far.
    pub fn skip_to(&mut self, id: u32) {
        self.next_id = id;
    }

    /// Calls a method and returns the id of the call.
    pub fn call(&mut self, method: &str, body: impl Body) -> u32 {
        self.call_head(map! {"method": method, "deadline": DEADLINE}, body)
    }

    /// Calls with a head of one's own, which must hold `method`.
    pub fn call_head(&mut self, head: Value, body: impl Body) -> u32 {
        let id = self.next_id();
        self.send(&Frame::new(CALL, id, &head, body));
        id
    }

    /// Calls with an input, [`Session::item`] and [`Session::end_input`].
    pub fn call_in(&mut self, method: &str, body: impl Body) -> u32 {
        self.call_head(map! {"method": method, "deadline": DEADLINE, "in": true}, body)
    }

    pub fn cancel(&mut self, id: u32) {
        self.send(&Frame::new(CANCEL, id, &map! {"reason": "user"}, ()));
    }

    /// Gives credit for `n` more bytes of items.
    pub fn credit(&mut self, id: u32, n: u64) {
        self.send(&Frame::new(CREDIT, id, &map! {"n": n}, ()));
    }

    /// Sends an item, whether there is credit or not; see [`Session::feed`].
    pub fn item(&mut self, id: u32, body: impl Body) {
        self.send(&Frame::new(ITEM, id, &Value::map(), body));
    }

    pub fn end_input(&mut self, id: u32) {
        self.send(&Frame::new(END, id, &Value::map(), ()));
    }

    pub fn ping(&mut self, body: impl Body) {
        self.send(&Frame::new(PING, 0, &Value::map(), body));
    }

    pub fn close(&mut self, code: &str) {
        self.send(&Frame::new(CLOSE, 0, &map! {"code": code}, ()));
    }

    /// Closes stdin once all is written: the end of the stream for the plugin.
    pub fn half_close(&mut self) {
        self.transcript.deed(Side::Host, Deed::CloseStdin);
        self.process.close_stdin();
    }

    /// Closes our end of the plugin's stdout: it speaks to nobody.
    pub fn close_stdout(&mut self) {
        self.transcript.deed(Side::Host, Deed::CloseStdout);
        self.process.close_stdout();
        self.over = true;
    }

    pub fn signal(&mut self, signal: Signal) {
        self.transcript.deed(Side::Host, Deed::Signal(signal as i32));
        self.process.signal(signal);
    }

    /// Stops reading stdout, until [`Session::resume_reading`].
    pub fn pause_reading(&mut self) {
        self.transcript.deed(Side::Host, Deed::StopReading);
        self.reading = false;
    }

    pub fn resume_reading(&mut self) {
        self.transcript.deed(Side::Host, Deed::ReadAgain);
        self.reading = true;
    }

    /// Whether calls of the plugin's are answered as contract tck says (the default),
    /// or left for the check.
    pub fn serve(&mut self, serving: bool) {
        self.serving = serving;
    }

    /// The `err` with which `host.tck.deny` is answered from now on.
    pub fn deny_with(&mut self, err: Value) {
        self.deny = err;
    }

    /// Ends a call of the plugin's well.
    pub fn answer(&mut self, id: u32, body: impl Body) {
        self.send(&Frame::new(END, id, &Value::map(), body));
    }

    /// Ends a call of the plugin's with an `err`.
    pub fn refuse(&mut self, id: u32, err: Value) {
        self.send(&Frame::new(END, id, &map! {"err": err}, ()));
    }

    /// A text that has never been anywhere; from now on it must stay out of heads, and
    /// if it is secret, out of NOTEs and stderr too.
    pub fn canary(&mut self, secret: bool) -> String {
        let text = format!("canary-{:016x}", fastrand::u64(..));
        self.monitor.guard(Canary { text: text.clone(), secret });
        text
    }

    // Looking.

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn phase(&self) -> Phase {
        self.monitor.phase()
    }

    /// Whether both sides named this feature.
    pub fn uses(&self, feature: &str) -> bool {
        self.monitor.uses(feature)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Bytes of resident memory, where the system tells.
    pub fn memory(&self) -> Option<u64> {
        self.status("VmRSS:")
    }

    /// The most bytes that were ever resident, where the system tells.
    pub fn peak(&self) -> Option<u64> {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        let kib: u64 = line.trim().split(' ').next()?.parse().ok()?;
        Some(kib << 10)
    }

    /// All that lies in the inbox.
    pub fn inbox(&self) -> &[Got] {
        &self.inbox
    }

    /// The last of what was written to stderr.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// How the process ended, if it has.
    pub fn exited(&mut self) -> Option<Exit> {
        self.process.exit()
    }

    /// What stood on stdout where a frame was due.
    pub fn foreign(&self) -> Option<Vec<u8>> {
        self.foreign.clone()
    }

    /// Bytes that have come and are no whole frame yet.
    pub fn unread(&self) -> usize {
        self.cutter.rest().len()
    }

    /// Whether nothing more can be read from stdout.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// What we may send as items of this call, in bytes, below 0 if overdrawn.
    pub fn credit_left(&self, id: u32) -> i128 {
        self.credit.get(&id).copied().unwrap_or(self.window)
    }

    /// Bytes that we have sent and that the pipe has not taken.
    pub fn unsent(&self) -> usize {
        self.process.unsent()
    }

    /// A wait in the time of the subject's machine.
    pub fn scaled(&self, wait: Duration) -> Duration {
        wait.mul_f64(self.shared.scale)
    }

    /// Notes something beside the wire in the transcript.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.transcript.event(Side::Host, text);
    }

    // Hearing.

    /// Looks at the pipes once, for at most `wait`. True if anything moved.
    ///
    /// # Errors
    /// If the check shall not go on.
    pub(crate) fn pump(&mut self, wait: Duration) -> Result<bool, Stop> {
        if self.shared.interrupted.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        if Instant::now() > self.shared.until {
            return Err(self.failure("the check to be over within its budget", "it is not", None));
        }
        let turn = self.process.turn(wait, self.reading);
        if !turn.stderr.is_empty() {
            let entry = self.transcript.event(Side::Plugin, stderr_event(&turn.stderr));
            self.monitor.stderr(&turn.stderr, entry);
            self.stderr.extend_from_slice(&turn.stderr);
            let cut = self.stderr.len().saturating_sub(STDERR_KEPT);
            self.stderr.drain(..cut);
        }
        if !turn.stdout.is_empty() && !self.over {
            self.cutter.push(&turn.stdout);
            self.cut();
        }
        if !self.over && !self.process.is_stdout_open() {
            self.over = true;
            self.transcript.deed(Side::Plugin, Deed::Over(self.cutter.rest().len()));
        }
        Ok(turn.moved)
    }

    fn cut(&mut self) {
        loop {
            match self.cutter.take() {
                Ok(Some(frame)) => self.read(&frame),
                Ok(None) if self.cutter.rest().len() > FRAME_MAX => {
                    let rest = self.cutter.rest().to_vec();
                    break self.broken(&rest);
                }
                Ok(None) => break,
                Err(foreign) => break self.broken(&foreign.bytes),
            }
        }
    }

    fn broken(&mut self, bytes: &[u8]) {
        let entry = self.transcript.bytes(Side::Plugin, bytes);
        self.monitor.foreign(bytes, entry);
        self.foreign = Some(bytes.to_vec());
        self.over = true;
    }

    fn read(&mut self, frame: &Frame) {
        let entry = self.transcript.frame(Side::Plugin, frame);
        let head = value::unpack(&frame.head, HEAD);
        self.monitor.read(frame, &head, entry);
        let head = head.unwrap_or(Value::Nil);
        let (kind, id, size) = (frame.kind, frame.id, frame.size());
        let got = Got { entry, kind, id, head, body: frame.body.clone(), size, at: Instant::now() };
        match kind {
            codec::HELLO if self.window == 0 => {
                self.window =
                    got.head.get("limits").and_then(|limits| limits.int("window")).unwrap_or(0);
            }
            PING => {
                self.send(&Frame::new(PONG, 0, &Value::map(), frame.body.clone()));
            }
            CREDIT => {
                *self.credit.entry(id).or_insert(self.window) += got.head.int("n").unwrap_or(0);
            }
            CALL | CANCEL if self.serving => self.serve_frame(&got),
            // To be skipped [R-EX-01]; before HELLO there is nothing to skip.
            0x80.. if kind != codec::NOTE && self.window != 0 => return,
            _ => {}
        }
        self.inbox.push(got);
    }

    pub(crate) fn failure(
        &self,
        expected: impl Into<String>,
        seen: impl Into<String>,
        entry: Option<usize>,
    ) -> Stop {
        let (expected, seen) = (expected.into(), seen.into());
        Stop::Fail(Failure { expected, seen, conversation: Some(self.number), entry })
    }
}

fn stderr_event(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned();
    format!("stderr, {} B: {}", bytes.len(), text.trim_end())
}

impl Drop for Session {
    fn drop(&mut self) {
        // What is there already belongs to the conversation; it may tell of a fault.
        for _ in 0..64 {
            if self.over || !self.reading || !self.pump(Duration::ZERO).unwrap_or(false) {
                break;
            }
        }
        let exit = self.process.exit();
        if let Some(exit) = exit.filter(|_| !self.told_exit) {
            self.transcript.event(Side::Plugin, exit.to_string());
        }
        self.process.kill();
        let conversation = Conversation {
            transcript: std::mem::take(&mut self.transcript),
            violations: std::mem::take(&mut self.monitor.violations),
            stderr: self.stderr(),
            exit,
            cookie: self.cookie,
            walk: self.walk.take(),
        };
        self.shared.conversations.borrow_mut()[self.number] = conversation;
    }
}
