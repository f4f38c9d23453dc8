//! Holds a recorded conversation again: the host's side as it was, the plugin's compared.
//!
//! A frame of the host's is sent once all frames of the plugin's have come that had come before it.
//! What the plugin says about different calls may come in another order; NOTE, PING and CREDIT may
//! come or not.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::{
    check::Stop,
    codec::{self, CALL, CREDIT, Cutter, Frame, HELLO, NOTE, PING, PONG},
    process::{Process, Program},
    record::{Recording, Said},
    session::{GRACE, Got, PROMPT, Session, Shared},
    transcript::{Deed, Line, Side, show_bytes},
    value::{self, HEAD},
    vectors::unhex,
};

/// What came of it.
#[derive(Debug)]
pub struct Replayed {
    /// Where the plugin did something else first.
    pub difference: Option<Difference>,
    /// The conversation as it went now.
    pub lines: Vec<Line>,
}

/// What was recorded, and what is so now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The line of the conversation, counted from 1 after the one that begins it; none if it is about
    /// what came after the last.
    pub line: Option<usize>,
    pub recorded: String,
    pub seen: String,
}

/// Holds it again with a new process.
///
/// # Errors
/// A fault if it cannot be started or was not recorded whole; interruption.
pub fn replay(
    program: &Program,
    recording: &Recording,
    scale: f64,
    interrupted: &Arc<AtomicBool>,
) -> Result<Replayed, Stop> {
    let head = &recording.head;
    let host_cut = recording.entries.iter().position(|it| it.side == Side::Host && it.cut > 0);
    if let Some(at) = host_cut {
        let why = format!("line {} was too large to be recorded whole", at + 1);
        return Err(Stop::Fault(why));
    }
    let process = Process::start(program, head.cookie)
        .map_err(|error| Stop::Fault(format!("the subject cannot be started: {error}")))?;
    let shared = Shared {
        conversations: Rc::new(RefCell::new(Vec::new())),
        // As long as it took, and what each frame may take longer.
        until: Instant::now()
            + (Duration::from_micros(head.end_us) + Duration::from_secs(60)).mul_f64(scale),
        scale,
        whole: false,
        interrupted: Arc::clone(interrupted),
    };
    let conversations = Rc::clone(&shared.conversations);
    let mut session = Session::new(shared, process, head.cookie);
    session.serve(false);
    let difference = hold(&mut session, recording);
    drop(session);
    let lines = conversations.borrow().iter().flat_map(|it| it.transcript.lines()).collect();
    Ok(Replayed { difference: difference?, lines })
}

fn hold(s: &mut Session, recording: &Recording) -> Result<Option<Difference>, Stop> {
    // PING is answered by the session, as it was then.
    let mut pings = 0_usize;
    for (at, entry) in recording.entries.iter().enumerate() {
        let malformed = || Stop::Fault(format!("line {} is no frame", at + 1));
        let differs = |recorded: String, seen: String| {
            Ok(Some(Difference { line: Some(at + 1), recorded, seen }))
        };
        match (entry.side, &entry.said) {
            (_, Said::Event(_)) => {}
            (Side::Host, Said::Frame(hex)) => {
                let frame = read(hex).ok_or_else(malformed)?;
                if frame.kind == PONG && pings > 0 {
                    pings -= 1;
                } else {
                    s.send(&frame);
                }
            }
            (Side::Host, Said::Bytes(hex)) => s.raw(&unhex(hex).ok_or_else(malformed)?),
            (Side::Host, Said::Deed(deed)) => act(s, *deed),
            (Side::Plugin, Said::Frame(_)) if entry.cut > 0 => {}
            (Side::Plugin, Said::Frame(hex)) => {
                let due = read(hex).ok_or_else(malformed)?;
                pings += usize::from(due.kind == PING);
                if is_ambient(due.kind) {
                    continue;
                }
                let told = format!("{} #{}", codec::name(due.kind), due.id);
                let got = match s.expect(&told, PROMPT, |got| got.is(due.kind, due.id)) {
                    Ok(got) => got,
                    Err(stop) => return differs(told, missed(stop)?),
                };
                if let Some((recorded, seen)) = compare(&due, &got) {
                    return differs(recorded, seen);
                }
            }
            (Side::Plugin, Said::Bytes(hex)) => {
                let due = unhex(hex).ok_or_else(malformed)?;
                let told = format!("{} where a frame was due", show_bytes(&due, due.len()));
                let got = s.until(&told, PROMPT, |s| s.foreign());
                if let Err(stop) = got {
                    return differs(told, missed(stop)?);
                }
            }
            (Side::Plugin, Said::Deed(deed)) => {
                let told = format!("it {deed}");
                if let Err(stop) = s.until(&told, PROMPT, |s| s.is_over().then_some(())) {
                    return differs(told, missed(stop)?);
                }
            }
        }
    }
    end(s, recording)
}

/// What comes after the last line, in the time that was waited then, and how the process ends.
fn end(s: &mut Session, recording: &Recording) -> Result<Option<Difference>, Stop> {
    let differs = |recorded: &str, seen: String| {
        Ok(Some(Difference { line: None, recorded: recorded.to_owned(), seen }))
    };
    let last = recording.entries.last().map_or(0, |entry| entry.at_us);
    let waited = Duration::from_micros(recording.head.end_us.saturating_sub(last));
    let until = Instant::now() + waited;
    let more = loop {
        if let Some(got) = s.take(|got| !is_ambient(got.kind)) {
            break Some(got);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || s.is_over() && s.exited().is_some() {
            break None;
        }
        s.pump(left)?;
    };
    if let Some(got) = more {
        return differs("nothing more", got.to_string());
    }
    let exited = |exit: Option<&String>| {
        exit.map_or_else(|| "the process lives".to_owned(), |exit| format!("the process {exit}"))
    };
    let exit = match &recording.head.exit {
        Some(_) => match s.exits(GRACE) {
            Ok(exit) => Some(exit.to_string()),
            Err(stop) => missed(stop).map(|_| None)?,
        },
        None => s.exited().map(|exit| exit.to_string()),
    };
    if exit == recording.head.exit {
        return Ok(None);
    }
    differs(&exited(recording.head.exit.as_ref()), exited(exit.as_ref()))
}

fn read(hex: &str) -> Option<Frame> {
    let mut cutter = Cutter::default();
    cutter.push(&unhex(hex)?);
    cutter.take().ok().flatten().filter(|_| cutter.rest().is_empty())
}

fn is_ambient(kind: u8) -> bool {
    matches!(kind, NOTE | PING | CREDIT)
}

fn act(s: &mut Session, deed: Deed) {
    match deed {
        Deed::CloseStdin => s.half_close(),
        Deed::CloseStdout => s.close_stdout(),
        Deed::Signal(number) => {
            if let Ok(signal) = Signal::try_from(number) {
                s.signal(signal);
            }
        }
        Deed::StopReading => s.pause_reading(),
        Deed::ReadAgain => s.resume_reading(),
        // The plugin's, which is waited for.
        Deed::Over(_) => {}
    }
}

/// What was seen instead; what is no failure of an expectation goes on.
fn missed(stop: Stop) -> Result<String, Stop> {
    match stop {
        Stop::Fail(failure) => Ok(failure.seen),
        other => Err(other),
    }
}

/// What differs between a frame then and one now. A call of the plugin's has a trace of its own each
/// time, so of its head only what it calls counts.
fn compare(due: &Frame, got: &Got) -> Option<(String, String)> {
    let name = format!("{} #{}", codec::name(due.kind), due.id);
    let was = value::unpack(&due.head, HEAD).unwrap_or(value::Value::Nil);
    let (mut then, mut now) = (was.to_json(), got.head.to_json());
    if due.kind == CALL {
        for head in [&mut then, &mut now] {
            if let Some(entries) = head.as_object_mut() {
                entries.retain(|key, _| key == "method" || key == "parent");
            }
        }
    }
    if then != now {
        return Some((format!("{name} {was}"), format!("{name} {}", got.head)));
    }
    // What a plugin provides may be told in any words; the checks judge it.
    if due.kind != HELLO && due.body != got.body {
        let body = |bytes: &[u8]| match value::unpack(bytes, value::BODY) {
            Ok(value) => value.to_string(),
            Err(_) => show_bytes(bytes, bytes.len()),
        };
        let told = |bytes: &[u8]| format!("{name} with the body {}", body(bytes));
        return Some((told(&due.body), told(&got.body)));
    }
    None
}
