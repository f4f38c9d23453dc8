//! Tries vectors on `plugbay-protocol`.

use plugbay_protocol::{
    Announce, CallId, Conversation, Decoder, Details, Event, Features, Limits, Outgoing, Over, Raw,
    Tick, check_body,
};
use serde_json::Value;

use super::{
    Body, Expect, Invalid, Level, Meaning, Receiver, State, Valid,
    bytes::{Piece, bytes},
};

/// Everything happens at once.
pub(crate) const NOW: Tick = Tick(0);

/// A host and a plugin that have come to a state together.
pub(crate) struct Pair {
    pub(crate) host: Conversation,
    pub(crate) plugin: Conversation,
}

/// Moves what one end has written to the other.
pub(crate) fn carry(from: &mut Conversation, to: &mut Conversation) {
    feed(to, &from.outbox().take());
}

/// Lets a conversation read bytes.
pub(crate) fn feed(to: &mut Conversation, bytes: &[u8]) {
    to.buffer().extend_from_slice(bytes);
    to.received(NOW);
}

/// Calls, and lets the plugin read it.
fn call(pair: &mut Pair, call: &Outgoing<'_>) -> Result<(), String> {
    pair.host.call(call, NOW).map_err(|why| format!("{}: {why}", call.method))?;
    carry(&mut pair.host, &mut pair.plugin);
    Ok(())
}

/// The arguments of a reverse call that the grant covers.
pub(crate) const FS_READ: &str =
    "84 a7'session' a2's1' a4'call' a2'c1' a4'name' a7'fs_read' a4'args' 80";

/// What a plugin may call in the vectors.
const GRANT: [&str; 2] = ["host.tool.call[fs_*]", "host.background"];

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

/// Brings a pair to a state, as `sdk-spec/vectors/README.md` describes it.
pub(crate) fn pair(state: State, level: Level) -> Result<Pair, String> {
    let announce = announce(level);
    let (host, plugin) =
        (Conversation::host(announce.clone(), NOW), Conversation::plugin(announce, NOW));
    let mut pair = Pair { host, plugin };
    let method = |method| Outgoing { method, ..Outgoing::default() };
    if State::Ready <= state {
        carry(&mut pair.host, &mut pair.plugin);
        carry(&mut pair.plugin, &mut pair.host);
    }
    if State::Active <= state {
        call(&mut pair, &method("plugin.activate"))?;
        let called = std::iter::from_fn(|| pair.plugin.poll()).find_map(|event| match event {
            Event::Called(call) => Some(call.id),
            _ => None,
        });
        let id = called.ok_or("plugin.activate did not arrive")?;
        for end in [&mut pair.host, &mut pair.plugin] {
            end.grant(GRANT.map(Into::into).to_vec());
        }
        pair.plugin.end(id, Ok(Default::default())).map_err(|why| why.to_string())?;
        carry(&mut pair.plugin, &mut pair.host);
    }
    if State::Open <= state {
        let nothing = Details { scopes: Some(vec![]), ..Details::default() };
        let narrowed = (Level::L3 <= level).then(|| nothing.into());
        call(&mut pair, &method("tool.call"))?;
        call(&mut pair, &Outgoing { details: narrowed, ..method("tool.call") })?;
        call(&mut pair, &Outgoing { input: level == Level::L4, ..method("tool.call") })?;
        if Level::L3 <= level {
            let reverse = Outgoing {
                parent: Some(CallId(3)),
                body: bytes(FS_READ).into(),
                ..method("host.tool.call")
            };
            pair.plugin.call(&reverse, NOW).map_err(|why| why.to_string())?;
            carry(&mut pair.plugin, &mut pair.host);
        }
    }
    if State::Draining <= state {
        call(&mut pair, &method("plugin.deactivate"))?;
    }
    for end in [&mut pair.host, &mut pair.plugin] {
        while end.poll().is_some() {}
        if State::Start < state {
            end.outbox().take();
        }
    }
    Ok(pair)
}

fn receiver(pair: Pair, who: Receiver) -> Conversation {
    let mut receiver = match who {
        Receiver::Host => pair.host,
        Receiver::Plugin => pair.plugin,
    };
    receiver.outbox().take();
    receiver
}

fn joined(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect()
}

/// The vector means what it says, however it is cut, and is written the same way
/// by whoever means the same.
pub(crate) fn valid(vector: &Valid) -> Result<(), String> {
    let bytes = joined(&vector.pieces);
    for step in [bytes.len(), 1, 7] {
        let mut decoder = Decoder::new();
        if State::Start < vector.state {
            decoder.set_frame_max(1 << 20);
        }
        let mut frames = Vec::new();
        for chunk in bytes.chunks(step) {
            decoder.buffer().extend_from_slice(chunk);
            while let Some(raw) = decoder.frame().map_err(|why| why.to_string())? {
                frames.push(raw);
            }
        }
        decoder.end().map_err(|why| why.to_string())?;
        let (got, due) = (frames.len(), vector.frames.len());
        if got != due {
            return Err(format!("expected {due} frames, found {got} in pieces of {step}"));
        }
        frames.iter().zip(&vector.frames).try_for_each(|(raw, meaning)| same(raw, meaning))?;
    }
    let mut receiver = receiver(pair(vector.state, vector.level)?, vector.receiver);
    feed(&mut receiver, &bytes);
    while let Some(event) = receiver.poll() {
        if let Event::Over(Over::Broken(why)) = event {
            return Err(format!("expected a conversation that goes on, found: {why}"));
        }
    }
    match vector.remake {
        Some(remake) if remake() != bytes => {
            Err(format!("written as {:02x?}, stated as {bytes:02x?}", remake()))
        }
        _ => Ok(()),
    }
}

fn same(raw: &Raw, meaning: &Meaning) -> Result<(), String> {
    let (kind, id) = (raw.kind.as_str(), raw.id);
    if (kind, id) != (meaning.kind, meaning.id) {
        return Err(format!("expected {} #{}, found {kind} #{id}", meaning.kind, meaning.id));
    }
    let head: Value = rmp_serde::from_slice(&raw.head).map_err(|why| why.to_string())?;
    if head != meaning.head {
        return Err(format!("expected the head {}, found {head}", meaning.head));
    }
    let same = match &meaning.body {
        Body::Empty => raw.body.is_empty(),
        Body::Bytes(bytes) => raw.body == bytes[..],
        Body::Value(value) => {
            check_body(&raw.body).map_err(|why| why.to_string())?;
            let body: Value = rmp_serde::from_slice(&raw.body).map_err(|why| why.to_string())?;
            body == *value
        }
    };
    if same { Ok(()) } else { Err(format!("another body, {:02x?}", raw.body)) }
}

/// The fault has the outcome it is said to have, and no other.
pub(crate) fn invalid(vector: &Invalid) -> Result<(), String> {
    let bytes = joined(&vector.pieces);
    for step in [bytes.len(), 1] {
        let mut receiver = receiver(pair(vector.state, vector.level)?, vector.receiver);
        bytes.chunks(step).for_each(|chunk| feed(&mut receiver, chunk));
        if vector.eof {
            receiver.eof();
        }
        let events: Vec<Event> = std::iter::from_fn(|| receiver.poll()).collect();
        match vector.expect {
            Expect::Close(code) => closed(&mut receiver, &events, code)?,
            Expect::Refused(code, reason) => refused(&mut receiver, &events, code, reason)?,
            Expect::BadBody => {
                let [Event::Called(call)] = &events[..] else {
                    return Err(format!("expected one call, found {events:?}"));
                };
                if check_body(&call.body).is_ok() {
                    return Err("expected a body that cannot be decoded, found a good one".into());
                }
            }
        }
    }
    Ok(())
}

fn closed(receiver: &mut Conversation, events: &[Event], code: &str) -> Result<(), String> {
    let violation = events.iter().find_map(|event| match event {
        Event::Over(Over::Broken(why)) => Some(why),
        _ => None,
    });
    let violation = violation.ok_or_else(|| format!("expected CLOSE {code}, found {events:?}"))?;
    let said = violation.close().as_str();
    if said != code {
        return Err(format!("expected CLOSE {code}, found {said}: {violation}"));
    }
    let (kind, head) = last_written(receiver)?;
    if kind != "CLOSE" || head["code"] != code {
        return Err(format!("expected CLOSE {code} last, found {kind} {head}"));
    }
    Ok(())
}

fn refused(
    receiver: &mut Conversation,
    events: &[Event],
    code: &str,
    reason: &str,
) -> Result<(), String> {
    if let [first, ..] = events {
        return Err(format!("expected a refusal that nobody hears of, found {first:?}"));
    }
    let (kind, head) = last_written(receiver)?;
    let err = &head["err"];
    if kind != "END" || err["code"] != code || err["reason"] != reason {
        return Err(format!("expected END {code} {reason} last, found {kind} {head}"));
    }
    Ok(())
}

/// The last frame that waits to be sent: its type and head.
fn last_written(end: &mut Conversation) -> Result<(&'static str, Value), String> {
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(&end.outbox().take());
    let mut last = None;
    while let Some(raw) = decoder.frame().map_err(|why| why.to_string())? {
        last = Some(raw);
    }
    let last = last.ok_or("expected an answer to be written, found nothing")?;
    let head = rmp_serde::from_slice(&last.head).map_err(|why| why.to_string())?;
    Ok((last.kind.as_str(), head))
}
