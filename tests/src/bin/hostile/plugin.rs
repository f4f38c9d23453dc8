//! A correct plugin of level L1, with points where a fault may strike.
//!
//! The main thread reads; each call runs on a thread of its own, or on the main
//! thread in serial modes (level L0). Every rule that a host can break is
//! checked here, so a test that passes with mode `good` also says something
//! about the host.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufReader, Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{self, ExitCode},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::{dup2, dup2_stdin, dup2_stdout, getpid},
};
use plugbay_tests::wire::{
    self, BODY_DEPTH, Broken, Frame, Malformed, Value, Width, empty, kind, map,
};

use crate::{
    args::Args,
    faults::Mode,
    kin,
    pen::{Pen, Style},
    tools,
};

/// A moment in the plugin's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before anything is read.
    Start,
    /// The host's HELLO is read, ours is not sent.
    Hello,
    /// Our HELLO is sent.
    Ready,
    /// `plugin.activate` is read and not answered.
    Activating,
    /// `plugin.activate` is answered.
    Active,
    /// A call is let in and not answered.
    Call,
    /// A CANCEL for an open call is read.
    Cancel,
    /// `plugin.deactivate` is read and not answered.
    Draining,
    /// `plugin.deactivate` is answered.
    Drained,
    /// CLOSE or the end of stdin is read.
    Closing,
}

impl Point {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Start, "start"),
        (Self::Hello, "hello"),
        (Self::Ready, "ready"),
        (Self::Activating, "activating"),
        (Self::Active, "active"),
        (Self::Call, "call"),
        (Self::Cancel, "cancel"),
        (Self::Draining, "draining"),
        (Self::Drained, "drained"),
        (Self::Closing, "closing"),
    ];

    fn read(args: &Args) -> Option<Self> {
        let text = args.get("at")?;
        let found = Self::ALL.iter().find(|(_, word)| *word == text);
        Some(found.map_or_else(|| args.wrong("at", "a point, see --help"), |(point, _)| *point))
    }
}

/// What the plugin does after a fault has struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// What it would have done anyway.
    Go,
    /// Nothing: the fault did it, or it stays undone.
    Done,
}

/// What the host has to do to end this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rung {
    /// CLOSE is enough, and so is the end of stdin.
    #[default]
    Close,
    /// Close its stdin.
    Eof,
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

/// How it behaves all the time, as opposed to what strikes at one point.
#[derive(Debug)]
pub(crate) struct Habits {
    /// Calls run on the reader thread; `async` is not announced.
    pub(crate) serial: bool,
    /// Whether a start without `PLUGBAY_PROTOCOL=1` is refused.
    pub(crate) cookie: bool,
    /// CANCEL is not passed on to the tools.
    pub(crate) deaf_to_cancel: bool,
    /// PING is not answered.
    pub(crate) no_pong: bool,
    /// How many `plugin.deactivate {if_idle}` are refused as busy.
    pub(crate) busy: u64,
    /// What ends the process.
    pub(crate) until: Rung,
    /// How bytes leave.
    pub(crate) style: Style,
    /// How numbers are written.
    pub(crate) width: Width,
    /// Everything that must be ignored is sent along with every frame.
    pub(crate) grease: bool,
    /// The status after CLOSE or the end of stdin, and how long until then.
    pub(crate) exit: (i32, Duration),
    /// The version announced.
    pub(crate) protocol: Value,
    /// Features announced without having been offered.
    pub(crate) features: Vec<Value>,
    /// The limits announced.
    pub(crate) limits: Value,
    /// The identity announced.
    pub(crate) identity: Value,
    /// The manifest announced.
    pub(crate) provides: Vec<Value>,
    /// The scopes it would use.
    pub(crate) wants: Vec<Value>,
    /// Concurrent calls let in.
    pub(crate) calls: usize,
    /// The largest frame accepted.
    pub(crate) frame: usize,
}

impl Habits {
    fn good(args: &Args) -> Self {
        let frame = args.number("frame", 1 << 20);
        let calls = args.number("calls", 64);
        Self {
            serial: false,
            cookie: true,
            deaf_to_cancel: false,
            no_pong: false,
            busy: 0,
            until: match args.text("until", "close") {
                "close" => Rung::Close,
                "eof" => Rung::Eof,
                "term" => Rung::Term,
                "kill" => Rung::Kill,
                _ => args.wrong("until", "close, eof, term or kill"),
            },
            style: Style::default(),
            width: Width::default(),
            grease: false,
            exit: (0, Duration::ZERO),
            protocol: 1.into(),
            features: Vec::new(),
            limits: limits(frame, 1 << 18, calls),
            identity: map([
                ("name", args.text("name", "plugbay.hostile").into()),
                ("version", args.text("version", "0.1.0").into()),
            ]),
            provides: tools::manifest(args.get("tools")),
            wants: args.text("wants", "host.kv.get").split(',').map(Value::from).collect(),
            calls: calls as usize,
            frame: frame as usize,
        }
    }
}

/// The `limits` of a HELLO.
pub(crate) fn limits(frame: u64, window: u64, calls: u64) -> Value {
    map([("frame", frame.into()), ("window", window.into()), ("calls", calls.into())])
}

/// Where the plugin stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the handshake.
    #[default]
    Init,
    /// Before activation, or after deactivation.
    Ready,
    /// Being activated.
    Activating,
    /// Open for calls.
    Active,
    /// Being deactivated.
    Draining,
}

/// What has happened so far; tool `state` tells it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) phase: Phase,
    pub(crate) open: BTreeMap<u32, Arc<Task>>,
    pub(crate) last_id: u32,
    pub(crate) activations: u64,
    pub(crate) calls: u64,
    pub(crate) refused: u64,
    pub(crate) peak: usize,
    pub(crate) cancels: u64,
    pub(crate) pings: u64,
    pub(crate) pongs: Vec<Vec<u8>>,
    pub(crate) busy_left: u64,
    pub(crate) activation: Option<Value>,
    pub(crate) hello: Option<Value>,
    pub(crate) host_frame: usize,
    pub(crate) features: Vec<Value>,
}

/// One open call.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: u32,
    pub(crate) head: Value,
    cancelled: Mutex<Option<String>>,
    woken: Condvar,
}

impl Task {
    /// Waits this long, or until the call is cancelled: then why.
    pub(crate) fn pause(&self, time: Duration) -> Option<String> {
        let end = Instant::now() + time;
        let mut cancelled = lock(&self.cancelled);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if cancelled.is_some() || left.is_zero() {
                return cancelled.clone();
            }
            let woken = self.woken.wait_timeout(cancelled, left);
            cancelled = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn cancel(&self, reason: &str) {
        *lock(&self.cancelled) = Some(reason.into());
        self.woken.notify_all();
    }
}

/// The pipe from the host. There is one descriptor of it and no other, so that
/// it can be closed by a fault (on the reader's own thread).
#[derive(Debug)]
pub(crate) struct Stdin(Mutex<OwnedFd>);

impl Stdin {
    /// A second handle, for a grandchild.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        lock(&self.0).try_clone()
    }

    /// Closes it, by putting something else in its place.
    pub(crate) fn close(&self) -> io::Result<()> {
        let null = File::open("/dev/null")?;
        Ok(dup2(null, &mut lock(&self.0))?)
    }
}

impl Read for &Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(&*lock(&self.0), buf)?)
    }
}

/// What a fault is told when it strikes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// The call at hand, or 0.
    pub(crate) id: u32,
}

/// One fault.
pub(crate) type Strike = fn(&Arc<Plugin>, Scene) -> Flow;

/// The whole plugin.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) args: Args,
    pub(crate) habits: Habits,
    pub(crate) pen: Arc<Pen>,
    pub(crate) stdin: Stdin,
    strike: Option<(Point, Strike)>,
    life: Mutex<Life>,
    drained: Condvar,
    trace: Option<File>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one mode to its end.
pub(crate) fn run(mode: &Mode, args: Args) -> ExitCode {
    let open = |path| OpenOptions::new().create(true).append(true).open(path);
    let file =
        |key| args.get(key).map(|path| open(path).unwrap_or_else(|_| args.wrong(key, "a file")));
    let trace = file("trace");
    let mut habits = Habits::good(&args);
    let mut strike = None;
    let lives = file("count").map_or(0, |mut file| {
        file.write_all(b".").and_then(|()| file.metadata()).map_or(0, |meta| meta.len())
    });
    if lives <= args.number("first", u64::MAX) {
        (mode.shape)(&args, &mut habits);
        let at = Point::read(&args).or(mode.at);
        strike = at.zip(mode.strike);
    }
    if habits.cookie && std::env::var_os("PLUGBAY_PROTOCOL").is_none_or(|value| value != "1") {
        eprintln!("This is a plugbay plugin for tests; plugbay starts it, not a shell.");
        return ExitCode::from(2);
    }
    if habits.until == Rung::Kill {
        kin::ignore_term();
    }
    let (stdin, stdout) = match take_stdio() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("plugbay-hostile: cannot take stdin and stdout: {error}");
            return ExitCode::FAILURE;
        }
    };
    let life = Life { busy_left: habits.busy, host_frame: 64 << 10, ..Life::default() };
    let pen = Pen::new(stdout, habits.style);
    let plugin = Plugin {
        args,
        habits,
        pen,
        stdin: Stdin(Mutex::new(stdin.into())),
        strike,
        life: Mutex::new(life),
        drained: Condvar::new(),
        trace,
    };
    Arc::new(plugin).serve()
}

/// Takes fd 0 and 1 away: whatever is printed by accident lands on stderr.
fn take_stdio() -> io::Result<(File, File)> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(std::io::stderr())?;
    Ok((stdin.into(), stdout.into()))
}

impl Plugin {
    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        lock(&self.life)
    }

    /// Appends a line to the trace file.
    pub(crate) fn trace(&self, event: &str) {
        let Some(mut file) = self.trace.as_ref() else { return };
        // One write per line: several processes may share the file.
        if let Err(error) = file.write_all(format!("{} {event}\n", getpid()).as_bytes()) {
            eprintln!("plugbay-hostile: cannot trace: {error}");
        }
    }

    fn reach(self: &Arc<Self>, point: Point, id: u32) -> Flow {
        match self.strike {
            Some((at, strike)) if at == point => {
                // What was said before the fault has been said.
                self.pen.flush();
                if let Some(text) = self.args.get("say") {
                    eprintln!("{text}");
                }
                self.trace("strike");
                strike(self, Scene { id })
            }
            _ => Flow::Go,
        }
    }

    /// Changes what can be changed of the pipes: their size, and that writing waits.
    pub(crate) fn meddle(&self) -> io::Result<()> {
        const PAGE: i32 = 4096;
        let (stdin, stdout) = (self.stdin.duplicate()?, self.pen.duplicate()?);
        fcntl(&stdin, FcntlArg::F_SETPIPE_SZ(PAGE))?;
        if let Some(stdout) = stdout {
            fcntl(&stdout, FcntlArg::F_SETPIPE_SZ(PAGE))?;
            fcntl(&stdout, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(())
    }

    /// Sends one frame as this mode sends frames.
    pub(crate) fn send(&self, frame: &Frame) {
        let bytes = frame.bytes_in(self.habits.width);
        if self.habits.grease && frame.kind != kind::HELLO {
            let greased = [self.grease(frame.id), bytes].concat();
            self.pen.write(&greased);
        } else {
            self.pen.write(&bytes);
        }
    }

    /// Frames that every host has to pass over.
    fn grease(&self, id: u32) -> Vec<u8> {
        let unknown = map([("topic", "grease.topic".into()), ("grease", Value::Nil)]);
        let level = map([
            ("topic", "log".into()),
            ("lvl", "grease".into()),
            ("event", "grease.event".into()),
            ("grease", vec![1.into(), empty()].into()),
        ]);
        let late = map([("topic", "progress".into()), ("n", 1.into()), ("grease", true.into())]);
        let body = Value::Bin(vec![0xC1; 40]);
        [
            Frame::new(0xE7, 0xFFFF_FFFF, empty()).with(&body),
            Frame::new(0x80, id, map([("grease", Value::Float(1.5))])),
            Frame::new(0xFF, 0, empty()),
            Frame::new(kind::NOTE, id, unknown).with(&body),
            Frame::new(kind::NOTE, 0, level),
            // Progress of a call that was never made.
            Frame::new(kind::NOTE, 0x7FFF_FFFF, late),
        ]
        .iter()
        .flat_map(|frame| frame.bytes_in(self.habits.width))
        .collect()
    }

    /// The body of a result as this mode sends them.
    pub(crate) fn result(&self, text: &str, data: Option<Value>) -> Value {
        let mut block = map([("type", "text".into()), ("text", text.into())]);
        let mut content = Vec::new();
        if self.habits.grease {
            block.put("grease", Value::Nil);
            content.push(map([("type", "grease".into()), ("grease", 1.into())]));
        }
        content.push(block);
        let mut result = map([("content", content.into())]);
        if let Some(data) = data {
            result.put("data", data);
        }
        if self.habits.grease {
            result.put("grease", Value::Bin(vec![1, 2, 3]));
        }
        result
    }

    /// Encodes a body as this mode encodes.
    pub(crate) fn body(&self, value: &Value) -> Vec<u8> {
        value.bytes_in(self.habits.width)
    }

    /// Ends a call and frees its slot, in this order for everybody who looks.
    pub(crate) fn end(&self, id: u32, body: &Value) {
        self.finish(id, empty(), self.body(body));
    }

    pub(crate) fn end_raw(&self, id: u32, body: Vec<u8>) {
        self.finish(id, empty(), body);
    }

    /// Ends a call with a fault.
    pub(crate) fn fail(&self, id: u32, fault: Fault<'_>) {
        let mut err = map([("code", fault.code.into())]);
        if let Some(reason) = fault.reason {
            err.put("reason", reason);
        }
        err.put("retry", fault.retry);
        if let Some(after) = fault.after {
            err.put("after", after);
        }
        if self.habits.grease {
            err.put("grease", Value::Nil);
        }
        let body = self.body(&map([("msg", fault.message.into())]));
        self.finish(id, map([("err", err)]), body);
    }

    fn finish(&self, id: u32, mut head: Value, body: Vec<u8>) {
        if self.habits.grease {
            head.put("grease", vec![Value::Nil]);
        }
        let frame = Frame { body, ..Frame::new(kind::END, id, head) };
        let mut life = self.life();
        let room = life.host_frame;
        life.open.remove(&id);
        // Under the lock, and only queued: the END of deactivate must come after this one, and a
        // call that arrives after this one must find the slot free.
        if frame.bytes_in(self.habits.width).len() > room {
            let err = map([
                ("code", "resource_exhausted".into()),
                ("reason", "pb.frame_limit".into()),
                ("retry", "no".into()),
            ]);
            let why = format!("the result does not fit into {room} bytes");
            let body = self.body(&map([("msg", why.into())]));
            self.send(&Frame { body, ..Frame::new(kind::END, id, map([("err", err)])) });
        } else {
            self.send(&frame);
        }
        self.trace(&format!("end {id}"));
        drop(life);
        self.drained.notify_all();
    }

    /// Sends progress for an open call.
    pub(crate) fn progress(&self, id: u32, n: u64, total: Option<u64>, message: &str) {
        let mut head =
            map([("topic", "progress".into()), ("n", n.into()), ("unit", "steps".into())]);
        if let Some(total) = total {
            head.put("total", total);
        }
        self.send(&Frame::new(kind::NOTE, id, head).with(&map([("msg", message.into())])));
    }

    /// Sends a line for the host's log.
    pub(crate) fn log(&self, level: &str, event: &str, message: &str) {
        let head = map([("topic", "log".into()), ("lvl", level.into()), ("event", event.into())]);
        self.send(&Frame::new(kind::NOTE, 0, head).with(&map([("msg", message.into())])));
    }

    fn serve(self: &Arc<Self>) -> ExitCode {
        self.trace("start");
        if self.reach(Point::Start, 0) == Flow::Done {
            kin::park();
        }
        let mut pipe = BufReader::with_capacity(64 << 10, &self.stdin);
        loop {
            let frame = self.habits.frame;
            let greeted = self.life().phase != Phase::Init;
            let limit = move |kind| match kind {
                _ if greeted => frame,
                kind::HELLO => 1 << 20,
                _ => 64 << 10,
            };
            match wire::read(&mut pipe, limit) {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => self.leave("eof", Rung::Eof, true),
                Err(Broken::Rule(code, why)) => self.accuse(code, &why),
                Err(Broken::Cut) => self.accuse("protocol_error", "stdin ended within a frame"),
                Err(Broken::Pipe(error)) => {
                    eprintln!("plugbay-hostile: stdin failed: {error}");
                    self.leave("eof", Rung::Eof, false);
                }
            }
        }
    }

    /// Leaves after CLOSE or the end of stdin, unless this mode does not.
    fn leave(self: &Arc<Self>, why: &str, rung: Rung, amicably: bool) {
        self.trace(why);
        let flow = self.reach(Point::Closing, 0);
        if flow == Flow::Go && self.habits.until <= rung {
            let (code, delay) = self.habits.exit;
            thread::sleep(delay);
            self.pen.flush();
            self.trace("exit");
            process::exit(if amicably { code } else { 1 });
        }
        if rung == Rung::Eof {
            kin::park();
        }
    }

    /// Tells the host which rule it broke, and dies of it.
    fn accuse(&self, code: &str, why: &str) -> ! {
        self.trace(&format!("accuse {code} {why}"));
        eprintln!("plugbay-hostile: the host broke a rule ({code}): {why}");
        let head = map([("code", code.into())]);
        self.send(&Frame::new(kind::CLOSE, 0, head).with(&map([("msg", why.into())])));
        self.pen.flush();
        process::exit(1)
    }

    /// Reports a host that breaks a rule which costs nobody the connection.
    pub(crate) fn doubt(&self, rule: &str, why: &str) {
        self.trace(&format!("doubt {rule} {why}"));
        eprintln!("plugbay-hostile: the host is careless ({rule}): {why}");
    }

    fn take(self: &Arc<Self>, frame: Frame) {
        let phase = self.life().phase;
        // Words that a head must or may hold, whatever the frame then means.
        match (
            frame.kind,
            frame.head.get("code"),
            frame.head.get("reason"),
            frame.head.get("topic"),
        ) {
            (kind::CLOSE, Some(Value::Str(_)), ..)
            | (kind::CANCEL, _, None | Some(Value::Str(_)), _)
            | (kind::NOTE, .., Some(Value::Str(_))) => {}
            (kind::CLOSE | kind::CANCEL | kind::NOTE, ..) => {
                self.accuse("protocol_error", "a field is missing or not a string");
            }
            _ => {}
        }
        match (frame.kind, phase) {
            (kind::HELLO, Phase::Init) => self.hello(frame),
            (kind::CLOSE, _) => {
                let code = frame.head.get("code").and_then(Value::as_str).unwrap_or("none");
                self.leave(&format!("close {code}"), Rung::Close, code == "ok");
            }
            (kind::HELLO, _) => self.accuse("bad_state", "a second HELLO"),
            (0x80.., Phase::Init) if frame.kind != kind::NOTE => {}
            (_, Phase::Init) => self.accuse("bad_state", "a frame before HELLO"),
            (kind::PING, _) => self.ping(frame),
            (kind::PONG, _) => self.life().pongs.push(frame.body),
            (kind::CALL, _) => self.call(frame),
            (kind::CANCEL, _) => self.cancel(frame),
            (kind::ITEM | kind::END | kind::CREDIT, _) if frame.id == 0 => {
                self.accuse("bad_id", "a frame about call 0");
            }
            (kind::ITEM | kind::CREDIT, _) => {
                self.accuse("bad_state", "a stream frame without the feature `stream`");
            }
            (kind::END, _) => self.end_of_input(frame.id),
            // Notes, and types that this version does not know.
            _ => {}
        }
    }

    /// An END from a caller, which at this level ends nothing.
    fn end_of_input(&self, id: u32) {
        let life = self.life();
        let (open, used) = (life.open.contains_key(&id), id <= life.last_id);
        drop(life);
        if open {
            self.accuse("bad_state", "an END for a call without input");
        }
        if !used || id.is_multiple_of(2) {
            self.accuse("bad_id", "an END for a call that was never made");
        }
    }

    fn hello(self: &Arc<Self>, frame: Frame) {
        self.trace("hello");
        let head = frame.head;
        if let Err(why) = self.greet(&head) {
            self.accuse("protocol_error", &why);
        }
        let one = |versions: &Vec<Value>| versions.contains(&1.into());
        if !matches!(head.get("versions"), Some(Value::Array(versions)) if one(versions)) {
            let close =
                map([("code", "version_unsupported".into()), ("supported", vec![1.into()].into())]);
            self.send(&Frame::new(kind::CLOSE, 0, close));
            self.pen.flush();
            process::exit(1);
        }
        if self.reach(Point::Hello, 0) == Flow::Done {
            return;
        }
        self.send_hello();
        self.life().phase = Phase::Ready;
        let _: Flow = self.reach(Point::Ready, 0);
    }

    /// Checks the host's HELLO and remembers what it says.
    fn greet(&self, head: &Value) -> Result<(), String> {
        let limits = head.get("limits").ok_or("expected `limits`, found none")?;
        let bound = |name: &str, floor: u64, most: u64| {
            let found = limits.get(name).and_then(Value::as_u64);
            let fitting = found.filter(|n| (floor..=most).contains(n));
            fitting.ok_or(format!("expected `{name}` from {floor} to {most}"))
        };
        let frame = bound("frame", 65_536, u32::MAX.into())?;
        bound("window", 16_384, u32::MAX.into())?;
        bound("calls", 1, u16::MAX.into())?;
        let offered: &[Value] = match head.get("features") {
            None => &[],
            Some(Value::Array(offered)) => offered,
            Some(_) => return Err("expected `features` to be a list".into()),
        };
        if head.get("host").is_some_and(|host| !matches!(host, Value::Map(_))) {
            return Err("expected `host` to be a map".into());
        }
        let mut life = self.life();
        if !self.habits.serial {
            life.features.extend(offered.iter().filter(|f| f.as_str() == Some("async")).cloned());
        }
        life.host_frame = frame as usize;
        life.hello = Some(head.clone());
        Ok(())
    }

    pub(crate) fn send_hello(&self) {
        let habits = &self.habits;
        let features = [self.life().features.clone(), habits.features.clone()].concat();
        let mut head = map([
            ("version", habits.protocol.clone()),
            ("features", features.into()),
            ("limits", habits.limits.clone()),
            ("plugin", habits.identity.clone()),
        ]);
        let mut manifest = map([
            ("provides", habits.provides.clone().into()),
            ("wants", habits.wants.clone().into()),
        ]);
        if habits.grease {
            head.put("grease", map([("deep", vec![vec![Value::Nil].into()].into())]));
            manifest.put("grease", vec![Value::Int(1)]);
        }
        let body = self.body(&manifest);
        self.send(&Frame { body, ..Frame::new(kind::HELLO, 0, head) });
    }

    fn ping(&self, frame: Frame) {
        if frame.body.len() > 64 {
            self.accuse("protocol_error", "a PING with more than 64 bytes");
        }
        self.life().pings += 1;
        if !self.habits.no_pong {
            self.send(&Frame { body: frame.body, ..Frame::new(kind::PONG, 0, empty()) });
        }
    }

    fn cancel(self: &Arc<Self>, frame: Frame) {
        if frame.id == 0 {
            self.accuse("bad_id", "a CANCEL for call 0");
        }
        if frame.id.is_multiple_of(2) {
            self.accuse("bad_state", "a CANCEL for a call of the plugin's own");
        }
        let task = self.life().open.get(&frame.id).cloned();
        let reason = frame.head.get("reason").and_then(Value::as_str).unwrap_or("user");
        self.trace(&format!("cancel {} {reason}", frame.id));
        // Unknown, closed, repeated: all of them are a race that nobody lost.
        let Some(task) = task else { return };
        self.life().cancels += 1;
        if self.reach(Point::Cancel, frame.id) == Flow::Go && !self.habits.deaf_to_cancel {
            task.cancel(reason);
        }
    }

    fn call(self: &Arc<Self>, frame: Frame) {
        let id = frame.id;
        let method = frame.head.get("method").and_then(Value::as_str).map(str::to_owned);
        let Some(method) = method else {
            self.accuse("protocol_error", "a CALL without a method");
        };
        self.trace(&format!("call {id} {method}"));
        if id.is_multiple_of(2) || id <= self.life().last_id {
            self.accuse("bad_id", &format!("call {id} is even or not higher than all before"));
        }
        self.life().last_id = id;
        self.budgets(&frame.head);
        if let Some(fault) = self.gate(&method) {
            self.life().refused += 1;
            return self.fail(id, fault);
        }
        // Only now, after every gate, is the body looked at.
        let decoded = match Value::decode(&frame.body, BODY_DEPTH) {
            Ok(body @ Value::Map(_)) => Ok(body),
            Ok(_) => Err(Malformed("not a map")),
            Err(_) if frame.body.is_empty() => Ok(empty()),
            Err(malformed) => Err(malformed),
        };
        let body = match decoded {
            Ok(body) => body,
            Err(Malformed(why)) => {
                let fault = Fault::new("invalid_argument", why).because("pb.bad_body");
                return self.fail(id, fault);
            }
        };
        match method.as_str() {
            "plugin.activate" => self.activate(id, body),
            "plugin.deactivate" => self.deactivate(id, &body),
            _ => self.start(id, frame.head, body),
        }
    }

    /// Checks the budgets of a call.
    fn budgets(&self, head: &Value) {
        let budget = |name| match head.get(name) {
            None => None,
            Some(Value::Int(ms @ 0..)) => Some(*ms),
            Some(_) => self.accuse("protocol_error", "a budget that is not a natural number"),
        };
        match (budget("deadline"), budget("idle")) {
            (None, None) => self.doubt("R-TO-04", "a call without a budget"),
            (deadline, Some(idle)) if self.habits.serial && deadline.is_none_or(|ms| idle < ms) => {
                self.doubt("R-TO-05", "an idle budget for a plugin that cannot report");
            }
            _ => {}
        }
    }

    /// The state gate, the limit, and the method, in this order.
    fn gate(&self, method: &str) -> Option<Fault<'static>> {
        let life = self.life();
        let (phase, open) = (life.phase, life.open.len());
        drop(life);
        let state = |message| Fault::new("failed_precondition", message);
        match (method, phase) {
            ("plugin.activate", Phase::Ready) | ("plugin.deactivate", Phase::Active) => None,
            ("plugin.activate", Phase::Active) => {
                Some(state("active already").because("pb.already_active"))
            }
            (_, Phase::Draining) => {
                self.doubt("R-LC-14", "a call to a plugin that drains");
                let fault = Fault::new("unavailable", "draining");
                Some(fault.because("pb.draining").retry("safe"))
            }
            (_, Phase::Init | Phase::Ready | Phase::Activating) => {
                self.doubt("R-GT-09", "a call to a plugin that is not active");
                Some(state("not active").because("pb.inactive").retry("safe"))
            }
            ("tool.call", Phase::Active) if open < self.habits.calls => None,
            (_, Phase::Active) if open >= self.habits.calls && !method.starts_with("plugin.") => {
                self.doubt("R-CA-06", "more calls at once than were announced");
                let fault = Fault::new("resource_exhausted", "too many calls at once");
                Some(fault.because("pb.too_many_calls").retry("safe"))
            }
            (_, Phase::Active) => {
                Some(Fault::new("unimplemented", "no such method").because("pb.unknown_method"))
            }
        }
    }

    fn activate(self: &Arc<Self>, id: u32, body: Value) {
        {
            let mut life = self.life();
            life.phase = Phase::Activating;
            life.activation = Some(body);
        }
        if self.reach(Point::Activating, id) == Flow::Done {
            return;
        }
        self.activated(id, &empty());
    }

    /// Answers `plugin.activate` and opens the gate.
    pub(crate) fn activated(self: &Arc<Self>, id: u32, body: &Value) {
        {
            let mut life = self.life();
            life.activations += 1;
            life.phase = Phase::Active;
        }
        self.end(id, body);
        let _: Flow = self.reach(Point::Active, 0);
    }

    fn deactivate(self: &Arc<Self>, id: u32, body: &Value) {
        let if_idle = body.get("if_idle").and_then(Value::as_bool) == Some(true);
        let busy = {
            let mut life = self.life();
            let feigned = if_idle && life.busy_left > 0;
            life.busy_left -= u64::from(feigned);
            let busy = feigned || (if_idle && !life.open.is_empty());
            if !busy {
                life.phase = Phase::Draining;
            }
            busy
        };
        if busy {
            let fault = Fault::new("failed_precondition", "there is work").because("pb.busy");
            return self.fail(id, fault.retry("safe"));
        }
        if self.reach(Point::Draining, id) == Flow::Done {
            return;
        }
        let plugin = Arc::clone(self);
        let drain = move || {
            let mut life = plugin.life();
            while !life.open.is_empty() {
                life = plugin.drained.wait(life).unwrap_or_else(PoisonError::into_inner);
            }
            life.phase = Phase::Ready;
            drop(life);
            plugin.end(id, &empty());
            let _: Flow = plugin.reach(Point::Drained, 0);
        };
        // The reader must stay free for the CANCELs that make the drain end.
        if self.habits.serial { drain() } else { drop(thread::spawn(drain)) }
    }

    fn start(self: &Arc<Self>, id: u32, head: Value, body: Value) {
        let task = Task { id, head, cancelled: Mutex::new(None), woken: Condvar::new() };
        let task = Arc::new(task);
        {
            let mut life = self.life();
            life.calls += 1;
            life.open.insert(id, Arc::clone(&task));
            life.peak = life.peak.max(life.open.len());
        }
        if self.reach(Point::Call, id) == Flow::Done {
            return;
        }
        if self.habits.serial {
            return tools::run(self, &task, &body);
        }
        let plugin = Arc::clone(self);
        drop(thread::spawn(move || tools::run(&plugin, &task, &body)));
    }
}

/// Why a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) code: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) retry: &'a str,
    pub(crate) after: Option<u64>,
    pub(crate) message: &'a str,
}

impl<'a> Fault<'a> {
    pub(crate) fn new(code: &'a str, message: &'a str) -> Self {
        Self { code, reason: None, retry: "no", after: None, message }
    }

    pub(crate) fn because(self, reason: &'a str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    pub(crate) fn retry(self, retry: &'a str) -> Self {
        Self { retry, ..self }
    }
}
