//! Plays a script of bytes on a host and a plugin and checks, after every step,
//! what must hold whatever happens.
//!
//! The bytes choose who does what and when the wire moves how much, so whoever can
//! make bytes can make a story: the property tests and the fuzz targets do. Both
//! ends keep the rules unless the script puts noise on the wire.

// The paths are said because the fuzz targets take this file from elsewhere.
#[path = "script/judge.rs"]
mod judge;
#[path = "script/model.rs"]
mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Index, IndexMut},
};

use bytes::Bytes;
use plugbay_protocol::*;

use self::model::*;

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

struct Play {
    ends: [End; 2],
    now: Tick,
    calls: BTreeMap<CallId, Known>,
    ever_run: BTreeSet<CallId>,
    /// By call and sender.
    streams: BTreeMap<(CallId, Who), Stream>,
    /// Nobody closes, cuts or spoils anything, so that the story becomes a long one.
    calm: bool,
    /// The host said CLOSE by itself.
    host_closed: bool,
    /// Patience ran out, which is nobody's fault here.
    timed_out: bool,
}

impl Index<Who> for Play {
    type Output = End;

    fn index(&self, who: Who) -> &End {
        &self.ends[who as usize]
    }
}

impl IndexMut<Who> for Play {
    fn index_mut(&mut self, who: Who) -> &mut End {
        &mut self.ends[who as usize]
    }
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
        let end = |mut talk: Conversation, grant: usize| {
            let all = ["host.x".to_owned(), scope::BACKGROUND.to_owned()];
            talk.grant(all[..grant].to_vec());
            End { talk, wire: Wire::default(), running: BTreeMap::new(), over: false }
        };
        let host = Announce { manifest: Bytes::new(), ..host };
        // Mostly both know of the same grant.
        let grants = match script.below(8) {
            0 => [0, 2],
            1 => [1, 1],
            2 => [2, 0],
            _ => [2, 2],
        };
        let mut play = Self {
            ends: [
                end(Conversation::host(host, now), grants[0]),
                end(Conversation::plugin(plugin, now), grants[1]),
            ],
            now,
            calls: BTreeMap::new(),
            ever_run: BTreeSet::new(),
            streams: BTreeMap::new(),
            calm: script.below(4) != 0,
            host_closed: false,
            timed_out: false,
        };
        // Most stories begin with an active plugin.
        if script.below(4) != 0 {
            play.flow();
            let activate = Outgoing { method: "plugin.activate", ..Outgoing::default() };
            play.call(Who::Host, &activate);
            play.flow();
            play.end(Who::Plugin, CallId(1), Ok(Bytes::new()));
            play.flow();
            play.check();
        }
        play
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() {
            0..20 => {
                let method = match script.below(16) {
                    0 => "plugin.activate",
                    1 => "plugin.deactivate",
                    2 => "plugin.x",
                    _ => "tool.call",
                };
                self.start(Who::Host, method, None, script);
            }
            20..36 => {
                let method = if script.below(8) == 0 { "host.y" } else { "host.x" };
                let at = script.below(self[Who::Plugin].running.len() + 2);
                let parent = self[Who::Plugin].running.keys().nth(at).copied();
                let parent = parent.or(at.is_multiple_of(2).then_some(CallId(77)));
                self.start(Who::Plugin, method, parent, script);
            }
            36..52 => {
                let id = match script.below(4) {
                    // Any at all, closed ones too.
                    0 => CallId(script.byte().into()),
                    _ => self.open_call(script).unwrap_or(CallId(u32::MAX)),
                };
                let open = self.calls.get(&id).is_some_and(Known::is_open);
                if let Some(call) = self.calls.get_mut(&id).filter(|_| open) {
                    call.cancelled |= !call.expired;
                }
                let now = self.now;
                self[Who::caller(id)].talk.cancel(id, CancelReason::User, now);
            }
            52..76 => {
                let who = if script.below(2) == 0 { Who::Host } else { Who::Plugin };
                let at = script.below(self[who].running.len());
                if let Some(id) = self[who].running.keys().nth(at).copied() {
                    let outcome = match script.below(4) {
                        0 => Err(Fault::new(Code::Cancelled)),
                        _ => Ok(body(id.0, script.size())),
                    };
                    self.end(who, id, outcome);
                }
            }
            76..80 => {
                let at = script.below(self[Who::Plugin].running.len() + 1);
                let id = self[Who::Plugin].running.keys().nth(at).copied();
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
                self[Who::Plugin].talk.note(id, &note);
            }
            80..108 => {
                if let Some(id) = self.open_call(script) {
                    let way = script.below(3) == 0;
                    let sender = if way { Who::caller(id) } else { Who::caller(id).other() };
                    self.item(sender, id, script.size()).ok();
                }
            }
            108..114 => {
                if let Some(id) = self.open_call(script) {
                    self.calls.entry(id).and_modify(|call| call.input = false);
                    self[Who::caller(id)].talk.end_input(id);
                }
            }
            114..136 => {
                let held = self.streams.iter_mut().filter(|(_, stream)| !stream.held.is_empty());
                let mut held: Vec<_> = held.collect();
                let at = script.below(held.len());
                if let Some(((id, sender), stream)) = held.get_mut(at) {
                    let (id, receiver) = (*id, sender.other());
                    let size = stream.held.pop_front().unwrap_or_default();
                    self[receiver].talk.taken(id, size);
                }
            }
            136..156 => self.write(Who::Host, script.size()),
            156..176 => self.read(Who::Plugin, script.size()),
            176..196 => self.write(Who::Plugin, script.size()),
            196..216 => self.read(Who::Host, script.size()),
            216..228 => {
                self.flow();
                self.goes_on();
            }
            228..244 => {
                self.now = self.now.after(script.size() as u64);
                for who in Who::BOTH {
                    let now = self.now;
                    self[who].talk.tick(now);
                    let next = self[who].talk.deadline();
                    assert!(next.is_none_or(|at| now < at), "it would never sleep");
                    self.hear();
                    if self[who].over || self[who].talk.stage() == Stage::Greeting {
                        continue;
                    }
                    for (id, call) in self.calls.iter().filter(|(id, _)| Who::caller(**id) == who) {
                        let due = call.deadline.is_some_and(|at| at <= self.now);
                        assert!(!due || call.cancelled || call.ended, "{id} did not expire");
                    }
                }
            }
            244.. if self.calm => {}
            244..248 => {
                let who = if script.below(2) == 0 { Who::Plugin } else { Who::Host };
                // Noise that begins like a frame goes deeper than plain noise.
                let len = script.below(40);
                let noise: Vec<u8> = (0..len).map(|_| script.byte()).collect();
                if !noise.is_empty() {
                    self[who.other()].wire.spoiled = true;
                    let now = self.now;
                    self[who].talk.buffer().extend_from_slice(&noise);
                    self[who].talk.received(now);
                }
            }
            248..250 => {
                self.host_closed = true;
                self[Who::Host].talk.close(Close::Ok, Some("enough"));
            }
            250 => self[Who::Plugin].talk.close(Close::Internal, None),
            251 => self.cut(Who::Host),
            252 => self.cut(Who::Plugin),
            _ => {}
        }
    }

    /// Some call that is open.
    fn open_call(&self, script: &mut Script<'_>) -> Option<CallId> {
        let open: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| call.is_open()).map(|(id, _)| *id).collect();
        open.get(script.below(open.len())).copied()
    }

    /// What an end has written leaves it.
    fn write(&mut self, from: Who, most: usize) {
        let End { talk, wire, .. } = &mut self[from];
        wire.take_from(talk, most);
    }

    /// And arrives.
    fn read(&mut self, to: Who, most: usize) {
        let now = self.now;
        let [host, plugin] = &mut self.ends;
        let (from, to) = match to {
            Who::Host => (plugin, host),
            Who::Plugin => (host, plugin),
        };
        from.wire.give_to(&mut to.talk, most, now);
    }

    /// What an end reads has ended.
    fn cut(&mut self, who: Who) {
        self[who.other()].wire.spoiled = true;
        self[who].talk.eof();
    }

    /// Whether an end has read nothing but what the other has written.
    fn is_fair(&self, reader: Who) -> bool {
        !self[reader.other()].wire.spoiled
    }

    fn is_alive(&self, who: Who) -> bool {
        self[who].talk.stage() != Stage::Closed
    }

    fn start(&mut self, who: Who, method: &str, parent: Option<CallId>, script: &mut Script<'_>) {
        let mut budget = || match script.below(3) {
            0 => None,
            1 => Some(script.byte().into()),
            _ => Some(u64::from(script.byte()) * 100),
        };
        let (deadline, idle) = (budget(), budget());
        let input = script.below(3) == 0;
        let body = body(self.next_id(who).0, script.size());
        let rest = Outgoing::default();
        self.call(who, &Outgoing { method, parent, deadline, idle, input, body, ..rest });
    }

    fn next_id(&self, who: Who) -> CallId {
        let last = self.calls.keys().rfind(|id| Who::caller(**id) == who);
        CallId(last.map_or(1 + who as u32, |id| id.0 + 2))
    }

    fn call(&mut self, who: Who, call: &Outgoing<'_>) {
        let (now, next) = (self.now, self.next_id(who));
        let talk = &mut self[who].talk;
        let queued = talk.outbox().queued();
        match talk.call(call, now) {
            Ok(id) => {
                assert_eq!(id, next, "ids increase by two");
                let known = Known {
                    work: !call.method.starts_with("plugin."),
                    parent: call.parent,
                    deadline: call.deadline.map(|ms| now.after(ms)),
                    input: call.input,
                    ..Known::default()
                };
                assert!(self.calls.insert(id, known).is_none());
            }
            Err(_) => assert_eq!(talk.outbox().queued(), queued, "nothing may be sent"),
        }
    }

    fn end(&mut self, who: Who, id: CallId, outcome: Result<Bytes, Fault>) {
        let ended = self[who].talk.end(id, outcome);
        let serves = |call: &Known| call.parent == Some(id) && call.is_open();
        let waits = who == Who::Plugin && self.calls.values().any(serves);
        match ended {
            Ok(()) | Err(Misuse::TooLarge { .. }) => {
                assert!(!waits, "{id} ended before what serves it");
                self[who].running.remove(&id);
            }
            Err(Misuse::CallsOpen) => {
                let talk = &self[who].talk;
                let others = self[who].running.len() + talk.reverse_calls();
                assert!(waits || who == Who::Plugin && 1 < others);
            }
            Err(Misuse::NoSuchCall) => assert!(!self.is_alive(who)),
            Err(other) => panic!("{other}"),
        }
    }

    /// One end sends an item, if it may.
    fn item(&mut self, sender: Who, id: CallId, len: usize) -> Result<(), Misuse> {
        let stream = self.streams.entry((id, sender)).or_default();
        let body = body(id.0 + stream.sent.len() as u32, len);
        let starved = stream.starved;
        let talk = &mut self[sender].talk;
        let queued = talk.outbox().queued();
        let sent = talk.item(id, &body);
        let nothing = talk.outbox().queued() == queued;
        assert_eq!(sent.is_err(), nothing, "{id}: {sent:?}");
        let call = &self.calls[&id];
        match sent {
            Ok(()) => assert!(!starved, "{id}: credit that nobody was told of"),
            Err(Misuse::NoCredit) => {}
            Err(Misuse::NotAgreed("stream")) => {
                assert!(!self[sender].talk.features().contains(Features::STREAM));
            }
            Err(Misuse::NoInput) => {
                assert!(!call.input || call.cancelled || call.ended, "{id}: {call:?}");
            }
            Err(Misuse::NoSuchCall) if Who::caller(id) == sender => assert!(!call.is_open()),
            Err(Misuse::NoSuchCall) => {
                let running = self[sender].running.contains_key(&id);
                assert!(!running || !self.is_alive(sender));
            }
            Err(other) => panic!("{other}"),
        }
        let stream = self.streams.entry((id, sender)).or_default();
        stream.starved |= sent == Err(Misuse::NoCredit);
        if sent.is_ok() {
            stream.sent.push_back(body);
        }
        sent
    }

    /// With nothing under way, who has had all items taken may send another.
    fn goes_on(&mut self) {
        let both =
            |has: fn(&Self, Who) -> bool, play: &Self| Who::BOTH.iter().all(|w| has(play, *w));
        if !both(Self::is_alive, self) || !both(Self::is_fair, self) {
            return;
        }
        for callee in Who::BOTH {
            for id in self[callee].running.keys().copied().collect::<Vec<_>>() {
                for sender in Who::BOTH {
                    if self.item(sender, id, 0) == Err(Misuse::NoCredit) {
                        let held = !self.streams[&(id, sender)].held.is_empty();
                        let dropped = sender == callee && !self.calls[&id].wants_items();
                        assert!(held && !dropped, "{id} hangs");
                    }
                }
            }
        }
    }

    /// Everything arrives, and everything that it causes.
    fn flow(&mut self) {
        loop {
            Who::BOTH.into_iter().for_each(|who| self.write(who, usize::MAX));
            if self.ends.iter().all(|end| end.wire.bytes.is_empty()) {
                break;
            }
            self.read(Who::Plugin, usize::MAX);
            self.hear();
            self.read(Who::Host, usize::MAX);
            self.hear();
        }
        self.hear();
        self.agree();
    }

    /// Brings every story to its end.
    fn finish(&mut self) {
        self.flow();
        // The plugin's calls first, then those that they served, and the newest last: a
        // deactivation ends after all others.
        for who in Who::BOTH {
            while let Some(id) = self[who].running.keys().next_back().copied() {
                let work = self[who].running.iter().find(|(_, work)| **work).map(|(id, _)| *id);
                let (id, before) = (work.unwrap_or(id), self[who].running.len());
                self.end(who, id, Ok(Bytes::new()));
                self.check();
                if self[who].running.len() == before {
                    // It waits for a host that is gone.
                    assert!(!self.is_alive(Who::Host) || !self.is_fair(Who::Plugin));
                    break;
                }
            }
            self.flow();
        }
        let fair = Who::BOTH.iter().all(|who| self.is_fair(*who));
        if fair && Who::BOTH.iter().all(|who| self.is_alive(*who)) {
            assert!(self.ends.iter().all(|end| !end.talk.has_open()), "{:?}", self.calls);
        }
        Who::BOTH.into_iter().for_each(|who| self.cut(who));
        self.check();
        assert!(self.ends.iter().all(|end| end.over));
        for (id, call) in &self.calls {
            let once = match (call.cancelled, call.expired) {
                (true, false) => call.released && !call.ended,
                (false, true) => call.released && call.ended,
                (false, false) => call.ended && !call.released,
                (true, true) => false,
            };
            assert!(once, "{id}: {call:?}");
        }
        assert!(self.ends.iter().all(|end| end.talk.deadline().is_none()));
    }
}
