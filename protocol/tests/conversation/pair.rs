//! Two conversations and the wire between them.

use std::iter;

use bytes::Bytes;
use plugbay_protocol::*;
use serde_json::{Value, json};

/// What both ends announce unless a test says otherwise.
pub(crate) fn announce() -> Announce {
    Announce {
        identity: Identity::new("somebody", "1.2.3"),
        limits: Limits { frame: 1 << 20, window: 1 << 18, calls: 4 },
        features: Features::ASYNC,
        ..Announce::default()
    }
}

/// The same with streams in both directions.
pub(crate) fn streaming() -> Announce {
    let features = Features::ASYNC.union(Features::STREAM).union(Features::STREAM_IN);
    Announce { features, ..announce() }
}

/// How far two ends have come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    /// Nobody has read anything. The host's HELLO is written.
    Start,
    /// Hands are shaken.
    Ready,
    /// `plugin.activate` is call 1.
    Activating,
    /// And has ended.
    Active,
    /// And `tool.call` is call 3, which is open.
    Open,
    /// And has been cancelled.
    Cancelling,
    /// And `plugin.deactivate` is call 5.
    Draining,
}

/// A host, a plugin, and the time.
pub(crate) struct Pair {
    pub(crate) host: Conversation,
    pub(crate) plugin: Conversation,
    pub(crate) now: Tick,
    /// How many bytes each read returns at most.
    pub(crate) chunk: usize,
}

impl Pair {
    pub(crate) fn new(host: Announce, plugin: Announce) -> Self {
        let now = Tick(1_000);
        Self {
            host: Conversation::host(host, now),
            plugin: Conversation::plugin(plugin, now),
            now,
            chunk: usize::MAX,
        }
    }

    /// A pair of the usual kind that has come this far, with all events told and
    /// nothing on the wire.
    pub(crate) fn at(at: At) -> Self {
        Self::with(announce(), announce(), at)
    }

    pub(crate) fn with(host: Announce, plugin: Announce, at: At) -> Self {
        let mut pair = Self::new(host, plugin);
        if at == At::Start {
            return pair;
        }
        pair.flow();
        if At::Activating <= at {
            pair.call("plugin.activate");
        }
        if At::Active <= at {
            pair.plugin.end(CallId(1), Ok(Bytes::new())).unwrap();
            pair.flow();
        }
        if At::Open <= at {
            pair.call("tool.call");
        }
        if At::Cancelling <= at {
            pair.host.cancel(CallId(3), CancelReason::User, pair.now);
            pair.flow();
        }
        if At::Draining <= at {
            pair.call("plugin.deactivate");
        }
        events(&mut pair.host);
        events(&mut pair.plugin);
        pair
    }

    /// What the host has written arrives.
    pub(crate) fn reach_plugin(&mut self) {
        let bytes = self.host.outbox().take();
        bytes.chunks(self.chunk).for_each(|some| feed(&mut self.plugin, some, self.now));
    }

    /// What the plugin has written arrives.
    pub(crate) fn reach_host(&mut self) {
        let bytes = self.plugin.outbox().take();
        bytes.chunks(self.chunk).for_each(|some| feed(&mut self.host, some, self.now));
    }

    /// Everything arrives, and everything that it causes.
    pub(crate) fn flow(&mut self) {
        while !(self.host.outbox().is_empty() && self.plugin.outbox().is_empty()) {
            self.reach_plugin();
            self.reach_host();
        }
    }

    /// Queues a call without budgets and arguments.
    #[track_caller]
    pub(crate) fn start(&mut self, method: &str) -> CallId {
        self.host.call(&Outgoing { method, ..Outgoing::default() }, self.now).unwrap()
    }

    /// The same, and lets it arrive.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str) -> CallId {
        let id = self.start(method);
        self.reach_plugin();
        id
    }

    /// Time passes, and the host looks at its clock.
    pub(crate) fn wait(&mut self, ms: u64) {
        self.now = self.now.after(ms);
        self.host.tick(self.now);
    }

    pub(crate) fn host_events(&mut self) -> Vec<Event> {
        events(&mut self.host)
    }

    pub(crate) fn plugin_events(&mut self) -> Vec<Event> {
        events(&mut self.plugin)
    }

    /// One end of the pair.
    pub(crate) fn into_end(self, who: Who) -> Conversation {
        match who {
            Who::Host => self.host,
            Who::Plugin => self.plugin,
        }
    }
}

/// Whose end a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Host,
    Plugin,
}

pub(crate) fn feed(to: &mut Conversation, bytes: &[u8], now: Tick) {
    to.buffer().extend_from_slice(bytes);
    to.received(now);
}

pub(crate) fn events(of: &mut Conversation) -> Vec<Event> {
    iter::from_fn(|| of.poll()).collect()
}

/// A head or a body as MessagePack.
pub(crate) fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

/// A frame, put together without the crate that is tested.
pub(crate) fn raw(kind: u8, id: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xc1, kind];
    bytes.extend((head.len() as u16).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(head);
    if !body.is_empty() {
        bytes.resize(bytes.len().div_ceil(16) * 16, 0);
        bytes.extend(body);
    }
    bytes
}

pub(crate) fn frame(kind: u8, id: u32, head: Value, body: &[u8]) -> Vec<u8> {
    raw(kind, id, &pack(&head), body)
}

/// A CALL from a host.
pub(crate) fn call(id: u32, method: &str) -> Vec<u8> {
    frame(0x10, id, json!({ "method": method }), b"")
}

/// A PING without a body.
pub(crate) fn ping() -> Vec<u8> {
    frame(0x03, 0, json!({}), b"")
}

/// What was written, as frames: kind, id, head, body.
#[track_caller]
pub(crate) fn written(by: &mut Conversation) -> Vec<(&'static str, u32, Value, Vec<u8>)> {
    let mut decoder = Decoder::new();
    decoder.set_frame_max(u32::MAX);
    decoder.buffer().extend_from_slice(&by.outbox().take());
    let frames = iter::from_fn(|| decoder.frame().unwrap());
    let frames = frames
        .map(|raw| {
            let head = rmp_serde::from_slice(&raw.head).unwrap();
            (raw.kind.as_str(), raw.id, head, raw.body.to_vec())
        })
        .collect();
    assert_eq!(decoder.end(), Ok(()));
    frames
}

/// The bytes are refused with this CLOSE code, however they arrive; it is the last
/// thing that is said, and everything after it is ignored.
#[track_caller]
pub(crate) fn refuses(at: At, who: Who, bytes: &[u8], code: Close) -> Violation {
    let mut found = None;
    for step in [usize::MAX, 1] {
        let mut end = Pair::at(at).into_end(who);
        end.outbox().take();
        bytes.chunks(step).for_each(|some| feed(&mut end, some, Tick(1_000)));
        found = Some(is_broken(&mut end, code));
        feed(&mut end, &ping(), Tick(1_000));
        feed(&mut end, b"noise", Tick(1_000));
        end.tick(Tick(u64::MAX));
        end.eof();
        assert_eq!(events(&mut end), [], "something was told after the end");
        assert!(end.outbox().is_empty(), "something was written after CLOSE");
        assert_eq!(end.deadline(), None);
    }
    found.unwrap()
}

/// The conversation has broken with this CLOSE code, said last on the wire.
#[track_caller]
pub(crate) fn is_broken(end: &mut Conversation, code: Close) -> Violation {
    let told = events(end);
    let overs = told.iter().filter(|event| matches!(event, Event::Over(_))).count();
    let Some(Event::Over(Over::Broken(violation))) = told.last() else {
        panic!("expected a broken conversation, found {told:?}");
    };
    assert_eq!(overs, 1, "{told:?}");
    assert_eq!(violation.close(), code, "{violation}");
    let frames = written(end);
    let closes = frames.iter().filter(|(kind, ..)| *kind == "CLOSE").count();
    let Some(("CLOSE", 0, head, _)) = frames.last() else {
        panic!("expected CLOSE last, found {frames:?}");
    };
    assert_eq!((closes, &head["code"]), (1, &json!(code.as_str())));
    assert_eq!(end.stage(), Stage::Closed);
    violation.clone()
}

/// The bytes are harmless: the conversation goes on and answers a PING.
#[track_caller]
pub(crate) fn accepts(at: At, who: Who, bytes: &[u8]) -> Vec<Event> {
    let mut all = Vec::new();
    for step in [usize::MAX, 1] {
        let mut end = Pair::at(at).into_end(who);
        end.outbox().take();
        bytes.chunks(step).for_each(|some| feed(&mut end, some, Tick(1_000)));
        feed(&mut end, &ping(), Tick(1_000));
        all = events(&mut end);
        let frames = written(&mut end);
        assert_eq!(frames.last().map(|frame| frame.0), Some("PONG"), "{all:?}");
    }
    all
}

/// Plain bytes that are easy to recognise.
pub(crate) fn blob(len: usize) -> Bytes {
    (0..len).map(|at| (at * 7 % 251) as u8).collect::<Vec<u8>>().into()
}

/// The fault that a call ended with.
#[track_caller]
pub(crate) fn fault(event: &Event) -> &Fault {
    match event {
        Event::Ended { outcome: Err(Failure::Fault(fault)), .. } => fault,
        other => panic!("expected a fault, found {other:?}"),
    }
}
