//! Calls of the plugin's, their parents and their scopes. [R-RV] [R-SC]

use plugbay_protocol::*;
use serde_json::{Value, json};

use crate::pair::*;

/// The call of the host that is open in most of these tests.
pub(crate) const PARENT: CallId = CallId(3);
/// The first call of the plugin's.
pub(crate) const ID: CallId = CallId(2);

pub(crate) fn both() -> Announce {
    Announce { features: Features::ALL, ..announce() }
}

pub(crate) fn scopes(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// A pair that has come this far, in which everything under `host.` that is used here
/// has been granted.
pub(crate) fn pair(at: At) -> Pair {
    granted(at, &["host.x", "host.named[a_*]", "host.background"])
}

pub(crate) fn granted(at: At, grant: &[&str]) -> Pair {
    let mut pair = Pair::with(both(), both(), at);
    pair.host.grant(scopes(grant));
    pair.plugin.grant(scopes(grant));
    pair
}

pub(crate) fn reverse(method: &str, parent: Option<CallId>) -> Outgoing<'_> {
    Outgoing { method, parent, ..Outgoing::default() }
}

/// The same, and lets it arrive.
#[track_caller]
pub(crate) fn call_host(pair: &mut Pair, parent: Option<CallId>) -> CallId {
    let id = pair.plugin.call(&reverse("host.x", parent), pair.now).unwrap();
    pair.reach_host();
    let told = pair.host_events();
    assert!(matches!(&told[..], [Event::Called(call)] if call.id == id), "{told:?}");
    id
}

/// A CALL from a plugin.
pub(crate) fn raw_call(id: u32, head: Value, body: &[u8]) -> Vec<u8> {
    frame(0x10, id, head, body)
}

pub(crate) fn x(id: u32, parent: Option<u32>) -> Vec<u8> {
    raw_call(id, json!({"method": "host.x", "parent": parent}), b"")
}

/// What a host answers at once: the head of its END, if it writes one.
pub(crate) fn answer(host: &mut Conversation, bytes: &[u8], now: Tick) -> Option<Value> {
    feed(host, bytes, now);
    let frames = written(host);
    let end = frames.into_iter().find(|(kind, ..)| *kind == "END");
    end.map(|(.., head, _)| head["err"].clone())
}

pub(crate) fn denied() -> Value {
    json!({"code": "permission_denied", "reason": "pb.scope_denied", "retry": "no"})
}

pub(crate) fn cancelled() -> Fault {
    Fault::new(Code::Cancelled)
}

/// Every line of the table, on conversations that are truly in that stage.
#[test]
fn both_ends_do_what_the_table_of_reverse_calls_says() {
    let spec = include_str!("../../../sdk-spec/tables/reverse.txt");
    let mut lines = 0;
    for line in spec.lines().filter(|line| !line.starts_with('#')) {
        let (left, verdict) = line.split_once(" = ").unwrap();
        let words: Vec<&str> = left.split(" + ").collect();
        let at = match words[0] {
            "Ready" => At::Ready,
            "Activating" => At::Activating,
            "Active" => At::Open,
            _ => At::Draining,
        };
        let open = match at {
            At::Activating => CallId(1),
            // Call 3 has been given up by then.
            At::Draining => CallId(5),
            _ => PARENT,
        };
        let parent = match words[1] {
            "absent" => None,
            "open" => Some(open),
            _ => Some(CallId(77)),
        };
        let method = if words[2] == "covered" { "host.x" } else { "host.y" };
        // In Ready no call is open, so an open parent is some other id there.
        let Pair { mut host, mut plugin, now, .. } = pair(at);
        let ours = plugin.call(&reverse(method, parent), now);
        let head = json!({"method": method, "parent": parent.map(|id| id.0)});
        let end = answer(&mut host, &raw_call(2, head, b""), now);
        match verdict {
            "run" => {
                let told = events(&mut host);
                assert!(matches!(told[..], [Event::Called(_)]), "{line}: {told:?}");
                assert_eq!((end, ours), (None, Ok(ID)), "{line}");
            }
            "CLOSE bad_state" => {
                assert_eq!(host.stage(), Stage::Closed, "{line}");
                let expected = match (parent, at) {
                    (Some(id), _) if id != open || at == At::Ready => Misuse::NoSuchCall,
                    _ => Misuse::NotActive,
                };
                assert_eq!(ours, Err(expected), "{line}");
            }
            _ => {
                let words: Vec<&str> = verdict.split(' ').collect();
                let expected = json!({"code": words[1], "reason": words[2], "retry": words[4]});
                assert_eq!((end, ours), (Some(expected), Err(Misuse::NotGranted)), "{line}");
                assert_eq!(events(&mut host), [], "it reaches nobody");
            }
        }
        lines += 1;
    }
    assert_eq!(lines, 24);
}

#[test]
fn a_reverse_call_goes_there_and_back() {
    let mut pair = pair(At::Open);
    let details = Details { key: Some("k".into()), ..Details::default() };
    let call = Outgoing {
        method: "host.x",
        parent: Some(PARENT),
        deadline: Some(500),
        idle: Some(100),
        details: Some(details.clone().into()),
        body: blob(5),
        ..Outgoing::default()
    };
    assert_eq!(pair.plugin.call(&call, pair.now), Ok(ID));
    assert_eq!((pair.plugin.reverse_calls(), pair.plugin.open_calls()), (1, 1));
    pair.reach_host();
    let expected = Incoming {
        id: ID,
        method: "host.x".into(),
        deadline: Some(500),
        idle: Some(100),
        input: false,
        parent: Some(PARENT),
        details: Some(details.into()),
        body: blob(5),
    };
    assert_eq!(pair.host_events(), [Event::Called(expected)]);
    assert_eq!((pair.host.reverse_calls(), pair.host.open_calls()), (1, 1));
    pair.host.end(ID, Ok(blob(7))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Ended { id: ID, outcome: Ok(blob(7)) }]);
    assert_eq!((pair.host.reverse_calls(), pair.plugin.reverse_calls()), (0, 0));
    assert_eq!(pair.host.end(ID, Ok(blob(7))), Err(Misuse::NoSuchCall));
    pair.plugin.end(PARENT, Ok(blob(1))).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Ended { id: PARENT, outcome: Ok(blob(1)) }]);
}

#[test]
fn ids_of_a_plugin_are_even_and_increase() {
    let mut pair = pair(At::Open);
    let ids = [(); 3].map(|()| call_host(&mut pair, None).0);
    assert_eq!(ids, [2, 4, 6]);
    for (id, code) in [(0, "bad_id"), (7, "bad_id"), (6, "bad_id"), (2, "bad_id"), (5, "bad_id")] {
        let mut host = self::pair(At::Open).host;
        feed(&mut host, &x(6, None), Tick(1_000));
        events(&mut host);
        feed(&mut host, &x(id, None), Tick(1_000));
        is_broken(&mut host, Close::parse(code));
    }
}

#[test]
fn without_the_feature_a_plugin_cannot_call() {
    let only = |features| Announce { features, ..announce() };
    for (host, plugin) in [(Features::ASYNC, Features::ALL), (Features::ALL, Features::ASYNC)] {
        let mut pair = Pair::with(only(host), only(plugin), At::Open);
        pair.plugin.grant(scopes(&["host.x"]));
        let found = pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now);
        assert_eq!(found, Err(Misuse::NotAgreed("reverse")));
        feed(&mut pair.host, &x(2, Some(3)), Tick(1_000));
        is_broken(&mut pair.host, Close::BadState);
    }
}

#[test]
fn a_plugins_clock_decides_about_its_own_calls() {
    let mut pair = pair(At::Open);
    let call = Outgoing { deadline: Some(1_000), ..reverse("host.x", Some(PARENT)) };
    pair.plugin.call(&call, pair.now).unwrap();
    pair.reach_host();
    pair.host_events();
    assert_eq!(pair.plugin.deadline(), Some(pair.now.after(1_000)));
    pair.now = pair.now.after(999);
    pair.plugin.tick(pair.now);
    assert_eq!(pair.plugin_events(), []);
    pair.now = pair.now.after(1);
    pair.plugin.tick(pair.now);
    let outcome = Err(Failure::Expired { budget: Budget::Deadline, ms: 1_000, sent: true });
    assert_eq!(pair.plugin_events(), [Event::Ended { id: ID, outcome }]);
    // A plugin does not wait for a grace: it has nobody to kill.
    assert_eq!(pair.plugin.deadline(), None);
    pair.reach_host();
    let told = [Event::CancelRequested { id: ID, reason: CancelReason::Deadline }];
    assert_eq!(pair.host_events(), told);
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Err(Misuse::CallsOpen));
    pair.host.end(ID, Err(cancelled())).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Released { id: ID }]);
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Ok(()));
}

#[test]
fn a_plugin_has_no_patience_of_its_own() {
    let mut pair = pair(At::Open);
    assert_eq!(pair.plugin.deadline(), None);
    pair.plugin.tick(Tick(u64::MAX));
    let mut fresh = Conversation::plugin(both(), Tick(0));
    assert_eq!(fresh.deadline(), None);
    fresh.tick(Tick(u64::MAX));
    assert!(fresh.outbox().is_empty() && pair.plugin.outbox().is_empty());
    assert_eq!((events(&mut fresh), pair.plugin_events()), (vec![], vec![]));
}

#[test]
fn a_plugin_gives_its_own_call_up() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    pair.plugin.cancel(id, CancelReason::User, pair.now);
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::CancelRequested { id, reason: CancelReason::User }]);
    pair.host.end(id, Err(cancelled())).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [Event::Released { id }]);
}

#[test]
fn reverse_calls_stream_both_ways() {
    let mut pair = pair(At::Open);
    let call = Outgoing { input: true, ..reverse("host.x", Some(PARENT)) };
    pair.plugin.call(&call, pair.now).unwrap();
    pair.plugin.item(ID, &blob(3)).unwrap();
    pair.plugin.end_input(ID);
    pair.reach_host();
    let item = |len| Event::Item { id: ID, body: blob(len), size: 16 + len as u32 };
    let told = pair.host_events();
    assert!(matches!(&told[0], Event::Called(call) if call.input));
    assert_eq!(told[1..], [item(3), Event::InputEnded { id: ID }]);
    pair.host.taken(ID, 19);
    pair.host.item(ID, &blob(4)).unwrap();
    pair.host.end(ID, Ok(blob(1))).unwrap();
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), [item(4), Event::Ended { id: ID, outcome: Ok(blob(1)) }]);
}

#[test]
fn a_reverse_call_stays_behind_the_items_that_were_sent_before_it() {
    let mut pair = pair(At::Open);
    pair.plugin.item(PARENT, &blob(3)).unwrap();
    pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
    pair.reach_host();
    assert!(matches!(pair.host_events()[..], [Event::Item { id: PARENT, .. }, Event::Called(_)]));
}

#[test]
fn a_plugin_that_is_told_notes_ignores_them() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    let progress = json!({"topic": "progress", "n": 1});
    feed(&mut pair.plugin, &frame(0x90, id.0, progress.clone(), b""), pair.now);
    feed(&mut pair.host, &frame(0x90, id.0, progress, b""), pair.now);
    assert_eq!((pair.plugin_events(), pair.host_events()), (vec![], vec![]));
    let note = Note::Progress { n: None, total: None, unit: None, body: blob(0) };
    pair.host.note(Some(id), &note);
    pair.host.note(None, &note);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn the_end_of_the_conversation_ends_the_plugins_calls_too() {
    let lost = |id, sent| Event::Ended { id, outcome: Err(Failure::Lost { sent }) };
    for close in [false, true] {
        let mut pair = pair(At::Open);
        let gone = call_host(&mut pair, Some(PARENT));
        let half = pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap();
        pair.plugin.outbox().advance(1);
        let [first, second] =
            [(); 2].map(|()| pair.plugin.call(&reverse("host.x", Some(PARENT)), pair.now).unwrap());
        let note = Note::Retire { reason: "x".into() };
        pair.plugin.note(None, &note);
        match close {
            true => pair.plugin.close(Close::Ok, None),
            false => pair.plugin.eof(),
        }
        let mut told = pair.plugin_events();
        if !close {
            assert_eq!(told.pop(), Some(Event::Over(Over::Eof)));
        }
        let expected =
            [lost(gone, true), lost(half, true), lost(first, false), lost(second, false)];
        assert_eq!(told, expected);
        // What is told as never sent is not.
        let rest = pair.plugin.outbox().take();
        let frames: Vec<u8> = [&[0xc1][..], &rest].concat();
        let mut decoder = Decoder::new();
        decoder.buffer().extend_from_slice(&frames);
        let kinds = std::iter::from_fn(|| decoder.frame().unwrap()).map(|raw| raw.kind);
        let mut expected = vec![Kind::Call, Kind::Note];
        expected.extend(close.then_some(Kind::Close));
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn the_hosts_work_is_over_with_the_conversation() {
    let mut pair = pair(At::Open);
    let id = call_host(&mut pair, Some(PARENT));
    pair.host.eof();
    let told = pair.host_events();
    assert!(matches!(told[..], [Event::Ended { id: PARENT, .. }, Event::Over(_)]), "{told:?}");
    assert_eq!((pair.host.reverse_calls(), pair.host.has_open()), (0, false));
    assert_eq!(pair.host.end(id, Ok(blob(0))), Err(Misuse::NoSuchCall));
}

#[test]
fn arguments_and_results_that_do_not_fit_fail_alone() {
    let small = Announce { limits: Limits { calls: 4, ..Limits::FLOOR }, ..both() };
    let mut pair = Pair::with(small.clone(), small, At::Open);
    pair.host.grant(scopes(&["host.x"]));
    pair.plugin.grant(scopes(&["host.x"]));
    let call = Outgoing { body: blob(70_000), ..reverse("host.x", Some(PARENT)) };
    let found = pair.plugin.call(&call, pair.now);
    assert!(matches!(found, Err(Misuse::TooLarge { .. })), "{found:?}");
    assert_eq!(pair.plugin.end(PARENT, Ok(blob(0))), Ok(()), "and nothing is open");
    let parent = pair.call("tool.call");
    pair.flow();
    pair.plugin_events();
    pair.host_events();
    let id = call_host(&mut pair, Some(parent));
    let found = pair.host.end(id, Ok(blob(70_000)));
    assert!(matches!(found, Err(Misuse::TooLarge { .. })), "{found:?}");
    pair.reach_plugin();
    let told = pair.plugin_events();
    assert_eq!(fault(&told[0]).reason.as_deref(), Some("pb.frame_limit"));
    assert_eq!(pair.plugin.end(parent, Ok(blob(0))), Ok(()));
}
