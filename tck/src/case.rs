//! One run of one check: what it is tried on, and how conversations begin.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use crate::{
    check::{Mode, Stop, fail},
    codec::{Frame, HELLO},
    list, map,
    monitor::Canary,
    probe::Profile,
    process::{Process, Program},
    sample,
    session::{Conversation, PROMPT, Session, Shared},
    settings::{Sample, Settings},
    value::Value,
};

/// What all checks of a run have in common.
#[derive(Debug)]
pub struct Subject {
    pub program: Program,
    pub mode: Mode,
    pub settings: Settings,
    /// What the subject said about itself when it was first spoken to.
    pub profile: Profile,
    pub scale: f64,
    /// How long one check may take, before it is scaled.
    pub budget: Duration,
    /// Conversations are kept whole, to be recorded.
    pub record: bool,
    pub interrupted: Arc<AtomicBool>,
}

/// What a check is given.
#[derive(Debug)]
pub struct Case<'a> {
    pub subject: &'a Subject,
    /// Randomness that the seed repeats.
    pub rng: fastrand::Rng,
    shared: Shared,
}

fn untold() -> Stop {
    Stop::Inconclusive("this system does not tell the memory of a process".into())
}

/// The limits that the suite announces.
pub const FRAME: u32 = 1 << 20;
pub const WINDOW: u32 = 1 << 16;
pub const CALLS: u32 = 16;

/// How long the handshake may take [R-HS-11].
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// The head of the suite's HELLO: version 1, all features, generous limits.
pub fn hello() -> Value {
    map! {
        "versions": list![1],
        "features": list!["async", "stream", "reverse", "stream.in"],
        "limits": limits(FRAME, WINDOW, CALLS),
        "host": map! {"name": "plugbay-tck", "version": env!("CARGO_PKG_VERSION")},
    }
}

/// The `limits` of a HELLO.
pub fn limits(frame: u32, window: u32, calls: u32) -> Value {
    map! {"frame": frame, "window": window, "calls": calls}
}

impl<'a> Case<'a> {
    pub fn new(subject: &'a Subject, seed: u64) -> Self {
        let shared = Shared {
            conversations: Rc::new(RefCell::new(Vec::new())),
            until: Instant::now() + subject.budget.mul_f64(subject.scale),
            scale: subject.scale,
            whole: subject.record,
            interrupted: subject.interrupted.clone(),
        };
        Self { subject, rng: fastrand::Rng::with_seed(seed), shared }
    }

    /// All conversations so far; those that go on are empty.
    pub fn conversations(self) -> Vec<Conversation> {
        self.shared.conversations.take()
    }

    pub fn profile(&self) -> &'a Profile {
        &self.subject.profile
    }

    /// Starts the subject and says nothing.
    ///
    /// # Errors
    /// If it cannot be started, although it could be before.
    pub fn spawn(&mut self) -> Result<Session, Stop> {
        self.spawn_with(true)
    }

    /// Starts the subject as a person would, without `PLUGBAY_PROTOCOL`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn_by_hand(&mut self) -> Result<Session, Stop> {
        self.spawn_with(false)
    }

    fn spawn_with(&mut self, cookie: bool) -> Result<Session, Stop> {
        let started = Process::start(&self.subject.program, cookie);
        let process = started
            .map_err(|error| Stop::Fault(format!("the subject cannot be started: {error}")))?;
        Ok(Session::new(self.shared.clone(), process, cookie))
    }

    /// Starts it and sends this HELLO.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn greet(&mut self, head: &Value) -> Result<Session, Stop> {
        let mut session = self.spawn()?;
        session.send(&Frame::new(HELLO, 0, head, ()));
        Ok(session)
    }

    /// A session in Ready, after the usual HELLO.
    ///
    /// # Errors
    /// The check is blocked if there is no handshake.
    pub fn ready(&mut self) -> Result<Session, Stop> {
        self.ready_with(&hello())
    }

    /// A session in Ready, after this HELLO.
    ///
    /// # Errors
    /// The check is blocked if there is no handshake.
    pub fn ready_with(&mut self, head: &Value) -> Result<Session, Stop> {
        let mut session = self.greet(head)?;
        let got = session.expect("HELLO", HANDSHAKE, |got| got.kind == HELLO);
        got.map_err(Stop::blocks)?;
        Ok(session)
    }

    /// A session in Active, activated as the settings say.
    ///
    /// # Errors
    /// The check is blocked if it cannot be brought there.
    pub fn active(&mut self) -> Result<Session, Stop> {
        self.active_with(&hello())
    }

    /// A session in Active, after this HELLO.
    ///
    /// # Errors
    /// The check is blocked if it cannot be brought there.
    pub fn active_with(&mut self, head: &Value) -> Result<Session, Stop> {
        let mut session = self.ready_with(head)?;
        let body = self.activation(&mut session);
        let end = session.activate(body).map_err(Stop::blocks)?;
        session.is_ok(&end).map_err(Stop::blocks)?;
        Ok(session)
    }

    /// A session in Active that was activated with this body.
    ///
    /// # Errors
    /// The check is blocked if it cannot be brought there.
    pub fn active_as(&mut self, body: Value) -> Result<Session, Stop> {
        let mut session = self.ready()?;
        let end = session.activate(body).map_err(Stop::blocks)?;
        session.is_ok(&end).map_err(Stop::blocks)?;
        Ok(session)
    }

    /// The body of `plugin.activate` as the settings say: all that it wants is granted,
    /// its config is given. A secret that nobody asked for is in it, which the monitor
    /// looks for where it must not be.
    pub fn activation(&self, session: &mut Session) -> Value {
        let settings = &self.subject.settings.activate;
        let wants = || self.profile().wants.clone();
        let grant = settings.grant.clone().unwrap_or_else(wants);
        let mut secrets = Vec::new();
        for (name, value) in &settings.secrets {
            session.monitor.guard(Canary { text: value.clone(), secret: true });
            secrets.push((name.as_str().into(), value.as_str().into()));
        }
        if self.subject.mode == Mode::Sdk {
            secrets.push(("tck_canary".into(), session.canary(true).into()));
        }
        let mut body = map! {"grant": grant, "secrets": Value::Map(secrets)};
        if let Some(config) = &settings.config {
            body = body.with("config", Value::from_json(config));
        }
        body
    }

    /// The entries of this kind.
    pub fn entries(&self, kind: &str) -> Vec<&'a Value> {
        let provides = self.subject.profile.provides.iter();
        provides.filter(|entry| entry.str("kind") == Some(kind)).collect()
    }

    /// The samples of a method with this word in their `uses`; all, if it is empty.
    pub fn samples(&self, method: &str, word: &str) -> Vec<&'a Sample> {
        sample::samples(self.subject, method, word)
    }

    /// The longest that a reply may take which needs no work.
    pub fn prompt(&self) -> Duration {
        PROMPT.mul_f64(self.subject.scale)
    }

    /// Whether a machine lets us see the memory of a process.
    ///
    /// # Errors
    /// The check is inconclusive if it does not.
    pub fn memory(&self, session: &Session) -> Result<u64, Stop> {
        session.memory().ok_or_else(untold)
    }

    /// The most bytes that were ever resident.
    ///
    /// # Errors
    /// The check is inconclusive if the system does not tell.
    pub fn peak(&self, session: &Session) -> Result<u64, Stop> {
        session.peak().ok_or_else(untold)
    }

    /// That the subject provides at least one entry, and the first of them.
    ///
    /// # Errors
    /// If it provides none.
    pub fn first_entry(&self) -> Result<&'a Value, Stop> {
        let first = self.subject.profile.provides.first();
        first.ok_or_else(|| fail("at least one entry in provides", "none"))
    }
}
