//! Lets this crate answer `plugbay-tck vectors`: a line of JSON in, a line of JSON out, as
//! `tck/VECTORS.md` describes them. Both ends: what a host reads and what a plugin reads.
//!
//! A conversation is brought into the state that a line names, reads the bytes, and what it
//! accepts or answers is told.

use std::io::{self, BufRead, Write};

use plugbay_protocol::{
    Announce, CallId, Conversation, Decoder, Details, Event, Features, Limits, Outgoing, Over, Raw,
    Tick, check_body,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Everything happens at once.
const NOW: Tick = Tick(0);

/// What a plugin may call in the vectors.
const GRANT: [&str; 2] = ["host.tool.call[fs_*]", "host.background"];

/// A map with `name`, in MessagePack.
const FS_READ: &[u8] = b"\x81\xa4name\xa7fs_read";

#[derive(Deserialize)]
struct Question {
    id: String,
    receiver: String,
    state: State,
    level: Level,
    eof: bool,
    hex: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Start,
    Ready,
    Active,
    Open,
    Draining,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Level {
    L0,
    L2,
    L3,
    L4,
}

fn announce(level: Level) -> Announce {
    let features = match level {
        Level::L0 => Features::ASYNC,
        Level::L2 => Features::ASYNC.union(Features::STREAM),
        Level::L3 => Features::ASYNC.union(Features::STREAM).union(Features::REVERSE),
        Level::L4 => Features::ALL,
    };
    let window = if level == Level::L0 { 1 << 18 } else { 1 << 14 };
    let limits = Limits { frame: 1 << 20, window, calls: 8 };
    Announce { features, limits, ..Announce::default() }
}

/// Moves what one end has written to the other.
fn carry(from: &mut Conversation, to: &mut Conversation) {
    feed(to, &from.outbox().take());
}

fn feed(to: &mut Conversation, bytes: &[u8]) {
    to.buffer().extend_from_slice(bytes);
    to.received(NOW);
}

/// A host and a plugin that have come to the state together, with nothing left to be sent.
fn pair(state: State, level: Level) -> Result<(Conversation, Conversation), String> {
    let announce = announce(level);
    let mut host = Conversation::host(announce.clone(), NOW);
    let mut plugin = Conversation::plugin(announce, NOW);
    let method = |method| Outgoing { method, ..Outgoing::default() };
    let call = |host: &mut Conversation, plugin: &mut Conversation, call: &Outgoing<'_>| {
        host.call(call, NOW).map_err(|why| format!("{}: {why}", call.method))?;
        carry(host, plugin);
        Ok::<_, String>(())
    };
    if State::Ready <= state {
        carry(&mut host, &mut plugin);
        carry(&mut plugin, &mut host);
    }
    if State::Active <= state {
        call(&mut host, &mut plugin, &method("plugin.activate"))?;
        while plugin.poll().is_some() {}
        for end in [&mut host, &mut plugin] {
            end.grant(GRANT.map(Into::into).to_vec());
        }
        plugin.end(CallId(1), Ok(Default::default())).map_err(|why| why.to_string())?;
        carry(&mut plugin, &mut host);
    }
    if State::Open <= state {
        let nothing = Details { scopes: Some(vec![]), ..Details::default() };
        let narrowed = (Level::L3 <= level).then(|| nothing.into());
        call(&mut host, &mut plugin, &method("tool.call"))?;
        call(&mut host, &mut plugin, &Outgoing { details: narrowed, ..method("tool.call") })?;
        let input = level == Level::L4;
        call(&mut host, &mut plugin, &Outgoing { input, ..method("tool.call") })?;
        if Level::L3 <= level {
            let (parent, body) = (Some(CallId(3)), FS_READ.into());
            let reverse = Outgoing { parent, body, ..method("host.tool.call") };
            plugin.call(&reverse, NOW).map_err(|why| why.to_string())?;
            carry(&mut plugin, &mut host);
        }
    }
    if State::Draining <= state {
        call(&mut host, &mut plugin, &method("plugin.deactivate"))?;
    }
    for end in [&mut host, &mut plugin] {
        while end.poll().is_some() {}
        end.outbox().take();
    }
    Ok((host, plugin))
}

fn answer(asked: &Question) -> Result<Value, String> {
    let bytes = unhex(&asked.hex).ok_or("hex is not hex")?;
    let (host, plugin) = pair(asked.state, asked.level)?;
    let mut receiver = if asked.receiver == "host" { host } else { plugin };
    feed(&mut receiver, &bytes);
    if asked.eof {
        receiver.eof();
    }
    while let Some(event) = receiver.poll() {
        match event {
            Event::Over(Over::Broken(why)) => return Ok(json!({ "close": why.close().as_str() })),
            // A body is for who runs the method to judge.
            Event::Called(call) if check_body(&call.body).is_err() => {
                return Ok(
                    json!({ "end": { "code": "invalid_argument", "reason": "pb.bad_body" } }),
                );
            }
            _ => {}
        }
    }
    for raw in frames(&receiver.outbox().take(), asked.state)? {
        let head = head(&raw)?;
        if raw.kind.as_str() == "END" && !head["err"].is_null() {
            let err = &head["err"];
            return Ok(json!({ "end": { "code": err["code"], "reason": err["reason"] } }));
        }
    }
    let frames = frames(&bytes, asked.state)?;
    let said: Result<Vec<Value>, String> = frames.iter().map(said).collect();
    Ok(json!({ "frames": said? }))
}

fn frames(bytes: &[u8], state: State) -> Result<Vec<Raw>, String> {
    let mut decoder = Decoder::new();
    if State::Start < state {
        decoder.set_frame_max(1 << 20);
    }
    decoder.buffer().extend_from_slice(bytes);
    let mut frames = Vec::new();
    while let Some(raw) = decoder.frame().map_err(|why| why.to_string())? {
        frames.push(raw);
    }
    Ok(frames)
}

fn head(raw: &Raw) -> Result<Value, String> {
    rmp_serde::from_slice(&raw.head).map_err(|why| why.to_string())
}

fn said(raw: &Raw) -> Result<Value, String> {
    let mut said = json!({ "type": raw.kind.as_str(), "id": raw.id, "head": head(raw)? });
    if !raw.body.is_empty() {
        let digits: String = raw.body.iter().map(|byte| format!("{byte:02x}")).collect();
        said["body_hex"] = digits.into();
    }
    Ok(said)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn main() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let asked: Question =
            serde_json::from_str(&line?).map_err(|why| io::Error::other(why.to_string()))?;
        let mut said = answer(&asked).map_err(io::Error::other)?;
        said["id"] = asked.id.into();
        let mut out = io::stdout().lock();
        writeln!(out, "{said}")?;
        out.flush()?;
    }
    Ok(())
}
