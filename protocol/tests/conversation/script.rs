//! Plays a script of bytes on a host and a plugin and checks, after every step,
//! what must hold whatever happens.
//!
//! The bytes choose who does what and when the wire moves how much, so whoever can
//! make bytes can make a story: the property tests and the fuzz targets do. Both
//! ends keep the rules unless the script puts noise on the wire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use plugbay_protocol::*;

/// What the script consists of. Past its end everything is 0.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Mostly small, at times large.
    fn size(&mut self) -> usize {
        let n = usize::from(self.byte());
        match self.byte() % 4 {
            0 => n % 8,
            1 => n,
            2 => n * 16,
            _ => n * 256,
        }
    }
}

/// What the test knows about a call that the host has made.
#[derive(Debug, Default)]
struct Known {
    /// Counts as work: no lifecycle step.
    work: bool,
    deadline: Option<Tick>,
    /// We said cancel.
    cancelled: bool,
    ended: bool,
    expired: bool,
    released: bool,
    stuck: bool,
    /// Told as never sent: may not be run, now or later.
    unsent: bool,
    /// Items of ours may follow.
    input: bool,
}

impl Known {
    /// Whether its items are told.
    fn wants_items(&self) -> bool {
        !self.cancelled && !self.ended
    }

    fn is_open(&self) -> bool {
        !self.released && (!self.ended || self.expired)
    }
}

/// One way in one call, as both ends of it know it.
#[derive(Default)]
struct Stream {
    /// Sent and not told yet.
    sent: VecDeque<Bytes>,
    /// Told and not taken yet.
    held: VecDeque<u32>,
    /// The sender was refused for want of credit, and not told of any since.
    starved: bool,
    /// No more is told of it.
    over: bool,
}

impl Stream {
    fn held(&self) -> u32 {
        self.held.iter().sum()
    }

    fn told(&mut self, body: &Bytes, size: u32, fair: bool, window: u32) {
        assert!(!self.over, "an item after the end of its stream");
        assert!(self.held() < window, "more than a window and one item");
        self.held.push_back(size);
        let sent = self.sent.pop_front();
        assert!(!fair || sent.as_ref() == Some(body), "what comes out is what went in");
    }
}

/// The ways in which items go.
#[derive(Clone, Copy)]
enum Way {
    /// From the plugin, which is called.
    Out,
    /// From the host, which calls.
    In,
}

/// One direction of the wire.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    /// Something that no peer would write was put on it, or it was cut.
    spoiled: bool,
}

impl Wire {
    fn take_from(&mut self, from: &mut Conversation, most: usize) {
        let outbox = from.outbox();
        let mut left = most;
        while 0 < left && !outbox.is_empty() {
            let (pieces, count) = outbox.pieces::<2>();
            let mut moved = 0;
            for piece in &pieces[..count] {
                let some = piece.len().min(left);
                self.bytes.extend(&piece[..some]);
                (moved, left) = (moved + some, left - some);
            }
            outbox.advance(moved);
        }
    }

    fn give_to(&mut self, to: &mut Conversation, most: usize, now: Tick) {
        let some: Vec<u8> = self.bytes.drain(..most.min(self.bytes.len())).collect();
        if !some.is_empty() {
            to.buffer().extend_from_slice(&some);
            to.received(now);
        }
    }
}

struct Play {
    host: Conversation,
    plugin: Conversation,
    to_plugin: Wire,
    to_host: Wire,
    now: Tick,
    calls: BTreeMap<CallId, Known>,
    /// Calls that the plugin works on, and whether each counts as work.
    running: BTreeMap<CallId, bool>,
    ever_run: BTreeSet<CallId>,
    outputs: BTreeMap<CallId, Stream>,
    inputs: BTreeMap<CallId, Stream>,
    host_over: bool,
    plugin_over: bool,
    /// The host said CLOSE by itself.
    host_closed: bool,
    /// Patience ran out, which is nobody's fault here.
    timed_out: bool,
}

/// What every stream starts with.
const WINDOW: u32 = 16_384;

/// The body that belongs to a call: recognisable, and the same at both ends.
fn body(id: u32, len: usize) -> Bytes {
    (0..len).map(|at| (id as usize * 31 + at * 7) as u8).collect::<Vec<u8>>().into()
}

/// Plays the script.
///
/// # Panics
/// If something does not hold.
pub fn play(script: &[u8]) {
    let mut script = Script(script);
    let mut play = Play::new(&mut script);
    while !script.0.is_empty() {
        play.step(&mut script);
        play.check();
    }
    play.finish();
}

impl Play {
    fn new(script: &mut Script<'_>) -> Self {
        let now = Tick(script.byte().into());
        let mut announce = || Announce {
            limits: Limits {
                frame: 65_536 << script.below(3),
                window: WINDOW,
                calls: 1 + script.below(4) as u16,
            },
            features: match script.below(8) {
                0 => Features::NONE,
                1 => Features::ASYNC,
                2 => Features::ASYNC.union(Features::STREAM),
                _ => Features::ALL,
            },
            manifest: body(0, script.size()),
            patience: match script.below(3) {
                0 => Patience::default(),
                _ => Patience {
                    hello_ms: u64::MAX,
                    ping_after_ms: 100,
                    ping_dead_ms: u64::MAX,
                    cancel_grace_ms: 50,
                },
            },
            ..Announce::default()
        };
        let (host, plugin) = (announce(), announce());
        let mut play = Self {
            host: Conversation::host(Announce { manifest: Bytes::new(), ..host }, now),
            plugin: Conversation::plugin(plugin, now),
            to_plugin: Wire::default(),
            to_host: Wire::default(),
            now,
            calls: BTreeMap::new(),
            running: BTreeMap::new(),
            ever_run: BTreeSet::new(),
            outputs: BTreeMap::new(),
            inputs: BTreeMap::new(),
            host_over: false,
            plugin_over: false,
            host_closed: false,
            timed_out: false,
        };
        // Most stories begin with an active plugin.
        if script.below(4) != 0 {
            play.flow();
            play.call("plugin.activate", [None; 2], false, 0);
            play.flow();
            play.end(CallId(1), Ok(Bytes::new()));
            play.flow();
            play.check();
        }
        play
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() {
            0..32 => {
                let method = match script.below(16) {
                    0 => "plugin.activate",
                    1 => "plugin.deactivate",
                    2 => "plugin.x",
                    _ => "tool.call",
                };
                let budget = |script: &mut Script<'_>| match script.below(3) {
                    0 => None,
                    1 => Some(script.byte().into()),
                    _ => Some(u64::from(script.byte()) * 100),
                };
                let (deadline, idle) = (budget(script), budget(script));
                let input = script.below(3) == 0;
                self.call(method, [deadline, idle], input, script.size());
            }
            32..48 => {
                let at = script.below(self.calls.len() + 1);
                let id = self.calls.keys().nth(at).copied().unwrap_or(CallId(u32::MAX));
                let open = self.calls.get(&id).is_some_and(Known::is_open);
                if let Some(call) = self.calls.get_mut(&id).filter(|_| open) {
                    call.cancelled |= !call.expired;
                }
                self.host.cancel(id, CancelReason::User, self.now);
            }
            48..72 => {
                let at = script.below(self.running.len());
                if let Some(id) = self.running.keys().nth(at).copied() {
                    let outcome = match script.below(4) {
                        0 => Err(Fault::new(Code::Cancelled)),
                        _ => Ok(body(id.0, script.size())),
                    };
                    self.end(id, outcome);
                }
            }
            72..76 => {
                let at = script.below(self.running.len() + 1);
                let id = self.running.keys().nth(at).copied();
                let note = match script.below(3) {
                    0 => Note::Retire { reason: "story".into() },
                    1 => {
                        Note::Log { level: Level::Info, event: "story".into(), body: Bytes::new() }
                    }
                    _ => Note::Progress {
                        n: Some(1),
                        total: None,
                        unit: None,
                        body: body(1, script.size()),
                    },
                };
                self.plugin.note(id, &note);
            }
            76..96 => {
                let at = script.below(self.running.len());
                if let Some(id) = self.running.keys().nth(at).copied() {
                    self.item(Way::Out, id, script.size());
                }
            }
            96..112 => {
                let at = script.below(self.calls.len());
                if let Some(id) = self.calls.keys().nth(at).copied() {
                    self.item(Way::In, id, script.size());
                }
            }
            112..116 => {
                let at = script.below(self.calls.len());
                if let Some((id, call)) = self.calls.iter_mut().nth(at) {
                    call.input = false;
                    self.host.end_input(*id);
                }
            }
            116..126 => self.take(Way::Out, script),
            126..136 => self.take(Way::In, script),
            136..156 => self.to_plugin.take_from(&mut self.host, script.size()),
            156..176 => self.to_plugin.give_to(&mut self.plugin, script.size(), self.now),
            176..196 => self.to_host.take_from(&mut self.plugin, script.size()),
            196..216 => self.to_host.give_to(&mut self.host, script.size(), self.now),
            216..228 => {
                self.flow();
                self.goes_on();
            }
            228..244 => {
                self.now = self.now.after(script.size() as u64);
                self.host.tick(self.now);
                self.plugin.tick(self.now);
                self.hear();
                if !self.host_over && self.host.stage() != Stage::Greeting {
                    for (id, call) in &self.calls {
                        let due = call.deadline.is_some_and(|at| at <= self.now);
                        assert!(!due || call.cancelled || call.ended, "{id} did not expire");
                    }
                }
            }
            244..248 => {
                let (wire, end) = match script.below(2) {
                    0 => (&mut self.to_plugin, &mut self.plugin),
                    _ => (&mut self.to_host, &mut self.host),
                };
                // Noise that begins like a frame goes deeper than plain noise.
                let len = script.below(40);
                let noise: Vec<u8> = (0..len).map(|_| script.byte()).collect();
                if !noise.is_empty() {
                    wire.spoiled = true;
                    end.buffer().extend_from_slice(&noise);
                    end.received(self.now);
                }
            }
            248..250 => {
                self.host_closed = true;
                self.host.close(Close::Ok, Some("enough"));
            }
            250 => self.plugin.close(Close::Internal, None),
            251 => {
                self.to_host.spoiled = true;
                self.host.eof();
            }
            252 => {
                self.to_plugin.spoiled = true;
                self.plugin.eof();
            }
            _ => {}
        }
    }

    fn call(&mut self, method: &str, budgets: [Option<u64>; 2], input: bool, len: usize) {
        let [deadline, idle] = budgets;
        let next = self.calls.keys().next_back().map_or(1, |id| id.0 + 2);
        let body = body(next, len);
        let call = Outgoing { method, deadline, idle, input, body, ..Outgoing::default() };
        let queued = self.host.outbox().queued();
        let work = self.host.open_calls();
        match self.host.call(&call, self.now) {
            Ok(id) => {
                assert_eq!(id.0, next, "ids increase by two");
                let known = Known {
                    work: self.host.open_calls() != work,
                    deadline: deadline.map(|ms| self.now.after(ms)),
                    input,
                    ..Known::default()
                };
                assert!(self.calls.insert(id, known).is_none());
            }
            Err(_) => assert_eq!(self.host.outbox().queued(), queued, "nothing may be sent"),
        }
    }

    fn end(&mut self, id: CallId, outcome: Result<Bytes, Fault>) {
        match self.plugin.end(id, outcome) {
            Ok(()) | Err(Misuse::TooLarge { .. }) => {
                self.running.remove(&id);
            }
            Err(Misuse::CallsOpen) => assert_ne!(self.plugin.open_calls(), 0),
            Err(Misuse::NoSuchCall) => assert_eq!(self.plugin.stage(), Stage::Closed),
            Err(other) => panic!("{other}"),
        }
    }

    /// One end sends an item, if it may.
    fn item(&mut self, way: Way, id: CallId, len: usize) {
        let (end, streams) = match way {
            Way::Out => (&mut self.plugin, &mut self.outputs),
            Way::In => (&mut self.host, &mut self.inputs),
        };
        let stream = streams.entry(id).or_default();
        let body = body(id.0 + stream.sent.len() as u32, len);
        let queued = end.outbox().queued();
        let sent = end.item(id, &body);
        match sent {
            Ok(()) => {
                assert!(!stream.starved, "{id}: credit that nobody was told of");
                stream.sent.push_back(body);
                return;
            }
            Err(Misuse::NoCredit) => stream.starved = true,
            Err(Misuse::NotAgreed("stream")) => {
                assert!(!end.features().contains(Features::STREAM));
            }
            Err(Misuse::NoInput) => {
                let call = &self.calls[&id];
                assert!(!call.input || call.cancelled || call.ended, "{id}: {call:?}");
            }
            Err(Misuse::NoSuchCall) => match way {
                Way::Out => assert_eq!(end.stage(), Stage::Closed),
                Way::In => assert!(!self.calls[&id].is_open()),
            },
            Err(other) => panic!("{other}"),
        }
        assert_eq!(end.outbox().queued(), queued, "nothing may be sent");
    }

    /// One end has used the oldest item of a stream.
    fn take(&mut self, way: Way, script: &mut Script<'_>) {
        let (end, streams) = match way {
            Way::Out => (&mut self.host, &mut self.outputs),
            Way::In => (&mut self.plugin, &mut self.inputs),
        };
        let at = script.below(streams.len());
        if let Some((id, stream)) = streams.iter_mut().nth(at)
            && let Some(size) = stream.held.pop_front()
        {
            end.taken(*id, size);
        }
    }

    /// With nothing under way, who has had all items taken may send another.
    fn goes_on(&mut self) {
        let alive = self.host.stage() != Stage::Closed && self.plugin.stage() != Stage::Closed;
        if !alive || self.to_plugin.spoiled || self.to_host.spoiled {
            return;
        }
        let ids: Vec<CallId> = self.running.keys().copied().collect();
        for id in ids {
            for way in [Way::Out, Way::In] {
                self.item(way, id, 0);
                let stream = match way {
                    Way::Out => &self.outputs[&id],
                    Way::In => &self.inputs[&id],
                };
                let dropped = matches!(way, Way::Out) && !self.calls[&id].wants_items();
                assert!(!stream.starved || !(stream.held.is_empty() || dropped), "{id} hangs");
            }
        }
    }

    /// Everything arrives, and everything that it causes.
    fn flow(&mut self) {
        loop {
            self.to_plugin.take_from(&mut self.host, usize::MAX);
            self.to_host.take_from(&mut self.plugin, usize::MAX);
            if self.to_plugin.bytes.is_empty() && self.to_host.bytes.is_empty() {
                break;
            }
            self.to_plugin.give_to(&mut self.plugin, usize::MAX, self.now);
            self.to_host.give_to(&mut self.host, usize::MAX, self.now);
            self.hear();
        }
        self.hear();
        self.agree();
    }

    /// Takes in what both ends have to tell.
    fn hear(&mut self) {
        while let Some(event) = self.host.poll() {
            assert!(!self.host_over, "{event:?} after the end");
            match event {
                Event::Hello(_) => assert!(self.calls.is_empty()),
                Event::Ended { id, outcome } => self.ended(id, outcome),
                Event::Released { id } => {
                    let call = self.calls.get_mut(&id).expect("a call that was made");
                    assert!(call.cancelled != call.expired, "{id}: {call:?}");
                    assert!(!call.released && call.ended == call.expired, "{id}: {call:?}");
                    call.released = true;
                }
                Event::Stuck { id } => {
                    let call = self.calls.get_mut(&id).expect("a call that was made");
                    assert!(call.is_open() && (call.cancelled || call.expired), "{id}: {call:?}");
                    assert!(!std::mem::replace(&mut call.stuck, true), "{id}: stuck twice");
                }
                Event::Note { id: Some(id), .. } => {
                    let call = self.calls.get(&id).expect("a call that was made");
                    assert!(!call.ended && !call.released && !call.cancelled, "{id}: {call:?}");
                }
                Event::Note { id: None, .. } => {}
                Event::Item { id, body, size } => {
                    let call = self.calls.get(&id).expect("a call that was made");
                    assert!(call.wants_items(), "{id}: {call:?}");
                    let stream = self.outputs.entry(id).or_default();
                    stream.told(&body, size, !self.to_host.spoiled, WINDOW);
                }
                Event::Credit { id } => {
                    let call = self.calls.get(&id).expect("a call that was made");
                    assert!(call.input && call.wants_items(), "{id}: {call:?}");
                    self.inputs.entry(id).or_default().starved = false;
                }
                Event::Over(over) => {
                    self.host_over = true;
                    self.timed_out |= matches!(
                        over,
                        Over::Broken(Violation::Silent { .. } | Violation::NoHello { .. })
                    );
                    let fair = !matches!(over, Over::Broken(_)) || self.timed_out;
                    assert!(fair || self.to_host.spoiled, "{over:?}");
                }
                Event::Called(_)
                | Event::CancelRequested { .. }
                | Event::InputEnded { .. }
                | Event::Withdrawn { .. } => panic!("{event:?}"),
            }
        }
        while let Some(event) = self.plugin.poll() {
            assert!(!self.plugin_over, "{event:?} after the end");
            match event {
                Event::Hello(_) => assert!(self.running.is_empty()),
                Event::Called(call) => {
                    let step = ["plugin.activate", "plugin.deactivate"].contains(&&*call.method);
                    assert!(self.running.insert(call.id, !step).is_none());
                    assert!(self.ever_run.insert(call.id), "{} ran twice", call.id);
                    if !self.to_plugin.spoiled {
                        assert_eq!(call.body, body(call.id.0, call.body.len()));
                    }
                }
                Event::CancelRequested { id, .. } => assert!(self.running.contains_key(&id)),
                Event::Item { id, body, size } => {
                    assert!(self.running.contains_key(&id));
                    let stream = self.inputs.entry(id).or_default();
                    stream.told(&body, size, !self.to_plugin.spoiled, WINDOW);
                }
                Event::InputEnded { id } => {
                    assert!(self.running.contains_key(&id));
                    let stream = self.inputs.entry(id).or_default();
                    assert!(!std::mem::replace(&mut stream.over, true), "{id}: over twice");
                    assert!(self.to_plugin.spoiled || stream.sent.is_empty(), "{id}: items lost");
                }
                Event::Credit { id } => {
                    assert!(self.running.contains_key(&id));
                    self.outputs.entry(id).or_default().starved = false;
                }
                Event::Over(over) => {
                    self.plugin_over = true;
                    self.running.clear();
                    let fair = !matches!(over, Over::Broken(_));
                    assert!(fair || self.to_plugin.spoiled, "{over:?}");
                }
                _ => panic!("{event:?}"),
            }
        }
        if self.plugin.stage() == Stage::Closed {
            self.running.clear();
        }
    }

    fn ended(&mut self, id: CallId, outcome: Result<Bytes, Failure>) {
        let call = self.calls.get_mut(&id).expect("a call that was made");
        assert!(!call.ended && !call.released && !call.cancelled, "{id}: {call:?}");
        call.ended = true;
        match outcome {
            Ok(bytes) if !self.to_host.spoiled => {
                assert_eq!(bytes, body(id.0, bytes.len()));
                assert!(self.ever_run.contains(&id));
                let items = self.outputs.get(&id);
                assert!(items.is_none_or(|it| it.sent.is_empty()), "{id}: items after the end");
            }
            Ok(_) | Err(Failure::Fault(_)) => {}
            Err(Failure::Expired { budget, sent, .. }) => {
                let due = call.deadline.is_some_and(|at| at <= self.now);
                assert!(budget == Budget::Idle || due, "{id}: {call:?}");
                (call.expired, call.unsent) = (true, !sent);
            }
            Err(Failure::Lost { sent }) => call.unsent = !sent,
        }
    }

    /// What holds at any moment.
    fn check(&mut self) {
        self.hear();
        for end in [&mut self.host, &mut self.plugin] {
            let outbox = end.outbox();
            assert_eq!(outbox.queued() - outbox.written(), outbox.len());
            let nothing = outbox.queued() == outbox.written();
            assert_eq!(outbox.is_empty(), nothing);
            let (pieces, count) = outbox.pieces::<64>();
            let waiting: usize = pieces[..count].iter().map(|piece| piece.len()).sum();
            assert!(count == 64 || waiting as u64 == outbox.len());
        }
        let open = self.calls.values().filter(|call| call.is_open());
        assert_eq!(self.host.open_calls(), open.clone().filter(|call| call.work).count());
        assert_eq!(self.host.has_open(), open.count() != 0);
        assert!(self.host.open_calls() <= self.host.peer_limits().calls.into());
        let work = self.running.values().filter(|work| **work).count();
        assert_eq!(self.plugin.open_calls(), work);
        if self.host.stage() == Stage::Closed {
            assert!(self.calls.values().all(|call| !call.is_open()), "{:?}", self.calls);
        }
        if !self.host_over && self.host.stage() != Stage::Closed {
            let waiting = self.calls.values().filter(|call| !call.cancelled && !call.ended);
            let next = waiting.filter_map(|call| call.deadline).min();
            assert!(next.is_none_or(|at| self.host.deadline().is_some_and(|told| told <= at)));
        }
        if !self.to_plugin.spoiled {
            for (id, call) in &self.calls {
                assert!(!call.unsent || !self.ever_run.contains(id), "{id} ran: {call:?}");
            }
        }
    }

    /// What holds when nothing is under way: both ends know the same.
    fn agree(&mut self) {
        let fair = !self.to_plugin.spoiled && !self.to_host.spoiled;
        let open = self.host.stage() != Stage::Closed && self.plugin.stage() != Stage::Closed;
        if fair && open {
            assert_eq!(self.host.stage(), self.plugin.stage());
            let told = self.calls.iter().filter(|(_, call)| call.is_open()).map(|(id, _)| id);
            assert!(told.eq(self.running.keys()), "{:?} {:?}", self.calls, self.running);
        }
        if fair && !open {
            assert!(self.host_closed || self.host_over || self.plugin_over || self.timed_out);
        }
    }

    /// Brings every story to its end.
    fn finish(&mut self) {
        self.flow();
        while let Some(id) = self.running.keys().next_back().copied() {
            // The newest last: a deactivation ends after all others.
            let work = self.running.iter().find(|(_, work)| **work).map(|(id, _)| *id);
            self.end(work.unwrap_or(id), Ok(Bytes::new()));
        }
        self.check();
        self.flow();
        let fair = !self.to_plugin.spoiled && !self.to_host.spoiled;
        if fair && self.plugin.stage() != Stage::Closed && self.host.stage() != Stage::Closed {
            assert!(!self.host.has_open(), "{:?}", self.calls);
        }
        self.to_host.spoiled = true;
        self.to_plugin.spoiled = true;
        self.host.eof();
        self.plugin.eof();
        self.check();
        assert!(self.host_over && self.plugin_over);
        for (id, call) in &self.calls {
            let once = match (call.cancelled, call.expired) {
                (true, false) => call.released && !call.ended,
                (false, true) => call.released && call.ended,
                (false, false) => call.ended && !call.released,
                (true, true) => false,
            };
            assert!(once, "{id}: {call:?}");
        }
        assert_eq!((self.host.deadline(), self.plugin.deadline()), (None, None));
    }
}
