//! Who is judged: what the subject says about itself, or why it is no subject.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use crate::{
    case::{HANDSHAKE, hello},
    check::Stop,
    codec::{CLOSE, Frame, HELLO},
    map,
    process::{Process, Program},
    session::{Session, Shared},
    settings::Settings,
    transcript::show_bytes,
    value::Value,
};

/// What a subject said when it was first spoken to.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub name: String,
    pub version: String,
    pub sdk: Option<String>,
    pub features: BTreeSet<String>,
    pub frame: u32,
    pub window: u32,
    pub calls: u32,
    pub provides: Vec<Value>,
    pub wants: Vec<String>,
    /// Why it cannot be activated with the settings given, if it cannot.
    pub inactive: Option<String>,
}

impl Profile {
    /// The kinds of what it provides.
    pub fn kinds(&self) -> BTreeSet<String> {
        self.provides.iter().filter_map(|entry| entry.str("kind")).map(str::to_owned).collect()
    }

    /// Whether it provides this.
    pub fn has(&self, kind: &str, name: &str) -> bool {
        self.provides.iter().any(|it| it.str("kind") == Some(kind) && it.str("name") == Some(name))
    }

    /// Which level of the ladder its features make.
    pub fn level(&self) -> &'static str {
        let has = |feature: &str| self.features.contains(feature);
        match (has("async"), has("stream"), has("reverse"), has("stream.in")) {
            (true, true, true, true) => "L4",
            (true, true, true, false) => "L3",
            (true, true, false, _) => "L2",
            (true, false, ..) => "L1",
            (false, ..) => "L0",
        }
    }
}

/// Nothing could be measured: what was seen, and what may help.
#[derive(Clone, Debug)]
pub struct Unfit {
    pub seen: String,
    pub help: &'static str,
    /// The last of what it wrote to stderr.
    pub stderr: String,
    pub interrupted: bool,
}

const SPEAK: &str = "a plugin answers the host's HELLO on its stdout with one of its own; is this program a plugin?";

/// Starts the subject and shakes hands.
///
/// # Errors
/// It cannot be started, or what it does is no handshake.
pub fn probe(
    program: &Program,
    settings: &Settings,
    scale: f64,
    interrupted: &Arc<AtomicBool>,
) -> Result<Profile, Unfit> {
    let unfit = |seen: String, help, stderr| Unfit { seen, help, stderr, interrupted: false };
    let process = Process::start(program, true).map_err(|error| {
        let why = format!("it cannot be started: {error}");
        unfit(why, "a script needs a first line such as #!/usr/bin/env python3", String::new())
    })?;
    let shared = Shared {
        conversations: Rc::new(RefCell::new(Vec::new())),
        until: Instant::now() + Duration::from_secs(30).mul_f64(scale),
        scale,
        whole: false,
        interrupted: Arc::clone(interrupted),
    };
    let mut session = Session::new(shared, process, true);
    session.send(&Frame::new(HELLO, 0, &hello(), ()));
    let got = session.until("HELLO", HANDSHAKE, |s| {
        let first = s.take(|got| got.kind == HELLO || got.kind == CLOSE);
        first.map(Ok).or_else(|| s.foreign().map(Err))
    });
    let head = match got {
        Ok(Ok(got)) if got.kind == HELLO && got.head.has("version") => got,
        Ok(Ok(got)) if got.kind == HELLO && got.head.has("versions") => {
            let seen = "it sent our own HELLO back: it repeats what it reads".into();
            return Err(unfit(seen, SPEAK, session.stderr()));
        }
        Ok(Ok(got)) => {
            let seen = format!("it answered our HELLO with {got}");
            return Err(unfit(seen, "see section 2.1 of the spec", session.stderr()));
        }
        Ok(Err(bytes)) => {
            let seen =
                format!("it wrote {} where a frame was due", show_bytes(&bytes, bytes.len()));
            let help = "only frames belong on stdout; words for people belong on stderr";
            return Err(unfit(seen, help, session.stderr()));
        }
        Err(Stop::Interrupted) => {
            return Err(Unfit {
                interrupted: true,
                ..unfit("interrupted".into(), "", String::new())
            });
        }
        Err(_) => {
            let seen = match session.exited() {
                Some(exit) => format!("it {exit} and had not said HELLO"),
                None if session.is_over() => "it closed its stdout and had not said HELLO".into(),
                None => {
                    let waited = session.scaled(HANDSHAKE).as_secs();
                    let part = match session.unread() {
                        0 => String::new(),
                        n => format!(", but for {n} bytes that begin like one"),
                    };
                    format!("it lives and has not said HELLO in {waited} s{part}")
                }
            };
            return Err(unfit(seen, SPEAK, session.stderr()));
        }
    };
    let manifest = head.value();
    let who = |key: &str| head.head.get("plugin").and_then(|it| it.str(key)).map(str::to_owned);
    let limit = |key: &str| head.head.get("limits").and_then(|it| it.int(key)).unwrap_or(0);
    let limit = |key: &str| u32::try_from(limit(key)).unwrap_or(u32::MAX);
    let mut profile = Profile {
        name: who("name").unwrap_or_default(),
        version: who("version").unwrap_or_default(),
        sdk: who("sdk"),
        features: head.head.strings("features").into_iter().collect(),
        frame: limit("frame"),
        window: limit("window"),
        calls: limit("calls"),
        provides: manifest.list("provides").to_vec(),
        wants: manifest.strings("wants"),
        inactive: None,
    };
    let grant = settings.activate.grant.clone().unwrap_or_else(|| profile.wants.clone());
    let secrets = settings.activate.secrets.iter();
    let secrets = secrets.map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect();
    let mut body = map! {"grant": grant, "secrets": Value::Map(secrets)};
    if let Some(config) = &settings.activate.config {
        body = body.with("config", Value::from_json(config));
    }
    profile.inactive = match session.activate(body) {
        Ok(end) => end.err().map(|err| {
            let told = end.value().str("msg").map(|text| format!(": {text}")).unwrap_or_default();
            format!("{err}{told}")
        }),
        Err(Stop::Fail(failure)) => Some(failure.seen),
        Err(_) => Some("it was not answered".into()),
    };
    Ok(profile)
}
