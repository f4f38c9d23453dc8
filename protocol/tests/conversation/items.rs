//! Streams: items, credit and input. [R-ST]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

pub(crate) const ID: CallId = CallId(3);
/// The smallest window, which both ends of these tests have.
pub(crate) const WINDOW: usize = 16_384;
/// What an ITEM without a body costs.
pub(crate) const BARE: usize = 13;

pub(crate) fn small() -> Announce {
    Announce { limits: Limits { calls: 4, ..Limits::FLOOR }, ..streaming() }
}

/// A pair with streams that has come this far; the call has an input if asked.
pub(crate) fn pair(at: At, input: bool) -> Pair {
    let mut pair = Pair::with(small(), small(), at.min(At::Active));
    if At::Open <= at {
        let call = Outgoing { method: "tool.call", input, ..Outgoing::default() };
        assert_eq!(pair.host.call(&call, pair.now), Ok(ID));
        pair.reach_plugin();
        pair.plugin_events();
    }
    if At::Cancelling <= at {
        pair.host.cancel(ID, CancelReason::User, pair.now);
        pair.flow();
        pair.plugin_events();
    }
    pair
}

/// The items among the events, as the sizes of their bodies and what they cost.
pub(crate) fn items(events: &[Event]) -> Vec<(usize, u32)> {
    let item = |event: &Event| match event {
        Event::Item { id: ID, body, size } => Some((body.len(), *size)),
        _ => None,
    };
    events.iter().filter_map(item).collect()
}

pub(crate) fn item(id: u32, len: usize) -> Vec<u8> {
    frame(0x11, id, json!({}), &blob(len))
}

pub(crate) fn credit(id: u32, n: u64) -> Vec<u8> {
    frame(0x14, id, json!({ "n": n }), b"")
}

/// The credit that an end has given, and in how many frames.
pub(crate) fn given(by: &mut Conversation) -> (u64, usize) {
    let all = written(by).into_iter().filter(|(kind, ..)| *kind == "CREDIT");
    all.fold((0, 0), |(sum, count), (.., head, _)| (sum + head["n"].as_u64().unwrap(), count + 1))
}

/// Every line of the table, on a conversation that is truly in that state.
#[test]
fn a_conversation_does_what_the_table_of_streams_says() {
    let spec = include_str!("../../../sdk-spec/tables/stream.txt");
    let mut lines = 0;
    for line in spec.lines().filter(|line| !line.starts_with('#')) {
        let (left, verdict) = line.split_once(" = ").unwrap();
        let (whose, what) = left.split_once(" + ").unwrap();
        let (side, state) = whose.split_once(' ').unwrap();
        let (at, input) = match state {
            "Unused" | "Closed" => (At::Active, false),
            "Open" => (At::Open, false),
            "OpenIn" => (At::Open, true),
            "Cancelling" => (At::Cancelling, false),
            _ => (At::Cancelling, true),
        };
        let id = if state == "Closed" { 1 } else { 3 };
        let bytes = match what {
            "CALL" => call(id, "tool.call"),
            "CALL in" => frame(0x10, id, json!({"method": "tool.call", "in": true}), b""),
            "ITEM" => item(id, 5),
            "END" => frame(0x12, id, json!({}), b""),
            "CANCEL" => frame(0x13, id, json!({}), b""),
            "CREDIT" => credit(id, 7),
            _ => frame(0x90, id, json!({"topic": "progress"}), b""),
        };
        let mut pair = pair(at, input);
        let (now, mut end) = match side {
            "Caller" => (pair.now, pair.host),
            _ => {
                if state.starts_with("Open") {
                    pair.plugin.outbox().take();
                }
                (pair.now, pair.plugin)
            }
        };
        events(&mut end);
        feed(&mut end, &bytes, now);
        if let Some(code) = verdict.strip_prefix("CLOSE ") {
            is_broken(&mut end, Close::parse(code));
        } else {
            let told = events(&mut end);
            let told: Vec<&str> = told.iter().map(name).collect();
            let expected = match (verdict.split(',').next().unwrap(), what) {
                ("ignore" | "drop", _) | ("accept", "CREDIT") => None,
                (_, "CALL" | "CALL in") => Some("Called"),
                (_, "ITEM") => Some("Item"),
                (_, "END") if side == "Callee" => Some("InputEnded"),
                (_, "END") if at == At::Cancelling => Some("Released"),
                (_, "END") => Some("Ended"),
                (_, "CANCEL") => Some("CancelRequested"),
                _ => Some("Note"),
            };
            assert_eq!(told, Vec::from_iter(expected), "{line}");
            feed(&mut end, &ping(), now);
            assert_eq!(written(&mut end).last().unwrap().0, "PONG", "{line}");
        }
        lines += 1;
    }
    assert_eq!(lines, 84);
}

pub(crate) fn name(event: &Event) -> &'static str {
    match event {
        Event::Called(_) => "Called",
        Event::Item { .. } => "Item",
        Event::InputEnded { .. } => "InputEnded",
        Event::Released { .. } => "Released",
        Event::Ended { .. } => "Ended",
        Event::CancelRequested { .. } => "CancelRequested",
        Event::Note { .. } => "Note",
        other => panic!("{other:?}"),
    }
}

#[test]
fn items_come_in_order_and_before_the_end_that_follows_them() {
    let mut pair = pair(At::Open, true);
    for len in [3, 0, 1_000] {
        pair.plugin.item(ID, &blob(len)).unwrap();
        pair.host.item(ID, &blob(len)).unwrap();
    }
    pair.plugin.end(ID, Ok(blob(9))).unwrap();
    pair.host.end_input(ID);
    pair.chunk = 7;
    let bodies = [3, 0, 1_000].map(blob);
    let sizes = [19, 13, 1_016];
    let expected: Vec<Event> = bodies
        .into_iter()
        .zip(sizes)
        .map(|(body, size)| Event::Item { id: ID, body, size })
        .collect();
    pair.reach_host();
    let mut told = pair.host_events();
    assert_eq!(told.pop(), Some(Event::Ended { id: ID, outcome: Ok(blob(9)) }));
    assert_eq!(told, expected);
    // The call is over for the plugin, so what was still to come of its input is nothing.
    pair.reach_plugin();
    assert_eq!(pair.plugin_events(), []);
}

#[test]
fn input_comes_in_order_and_ends_after_its_last_item() {
    let mut pair = pair(At::Open, true);
    pair.host.item(ID, &blob(3)).unwrap();
    pair.host.item(ID, &blob(4)).unwrap();
    pair.host.end_input(ID);
    assert_eq!(pair.host.item(ID, &blob(5)), Err(Misuse::NoInput));
    pair.host.end_input(ID);
    pair.chunk = 5;
    pair.reach_plugin();
    let item = |len| Event::Item { id: ID, body: blob(len), size: 16 + len as u32 };
    assert_eq!(pair.plugin_events(), [item(3), item(4), Event::InputEnded { id: ID }]);
    pair.plugin.end(ID, Ok(blob(1))).unwrap();
    pair.reach_host();
    assert_eq!(pair.host_events(), [Event::Ended { id: ID, outcome: Ok(blob(1)) }]);
    pair.host.end_input(ID);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn the_end_of_an_input_is_an_empty_map_without_a_body() {
    let mut pair = pair(At::Open, true);
    pair.host.end_input(ID);
    assert_eq!(written(&mut pair.host), [("END", 3, json!({}), vec![])]);
    // Whatever else a caller says in it means nothing.
    let end = frame(0x12, 3, json!({"err": {"code": "internal"}}), b"\xc0");
    feed(&mut pair.plugin, &end, pair.now);
    assert_eq!(pair.plugin_events(), [Event::InputEnded { id: ID }]);
}

#[test]
fn whether_items_follow_is_said_in_the_call() {
    for input in [false, true] {
        let mut pair = pair(At::Active, false);
        let call = Outgoing { method: "tool.call", input, ..Outgoing::default() };
        pair.host.call(&call, pair.now).unwrap();
        let expected = match input {
            true => json!({"method": "tool.call", "in": true}),
            false => json!({"method": "tool.call"}),
        };
        assert_eq!(written(&mut pair.host), [("CALL", 3, expected.clone(), vec![])]);
        feed(&mut pair.plugin, &frame(0x10, 3, expected, b""), pair.now);
        let told = pair.plugin_events();
        let [Event::Called(call)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(call.input, input);
    }
    let head = json!({"method": "tool.call", "in": false});
    let mut pair = pair(At::Active, false);
    feed(&mut pair.plugin, &frame(0x10, 3, head, b""), pair.now);
    assert!(matches!(&pair.plugin_events()[..], [Event::Called(call)] if !call.input));
}

#[test]
fn a_call_that_was_given_up_drops_its_items_and_pays_for_them() {
    let mut pair = pair(At::Open, false);
    pair.plugin.item(ID, &blob(WINDOW - 16)).unwrap();
    pair.reach_host();
    assert_eq!(items(&pair.host_events()).len(), 1);
    // What it held counts as taken from here on.
    pair.host.cancel(ID, CancelReason::User, pair.now);
    let frames = written(&mut pair.host);
    assert_eq!(frames[0].0, "CANCEL");
    assert_eq!((frames[1].0, &frames[1].2), ("CREDIT", &json!({"n": 16_384})));
    feed(&mut pair.plugin, &credit(3, 16_384), pair.now);
    assert_eq!(pair.plugin_events(), [Event::Credit { id: ID }]);
    // A callee that finishes what was under way is not left without credit.
    let mut sent = 0;
    while sent < 10 * WINDOW {
        pair.plugin.item(ID, &blob(1_008)).unwrap();
        sent += 1_024;
        pair.flow();
    }
    assert_eq!(pair.host_events(), []);
    pair.plugin.end(ID, Err(Fault::new(Code::Cancelled))).unwrap();
    pair.flow();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
    pair.host.taken(ID, 1_024);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn who_has_given_a_call_up_sends_nothing_more_into_it() {
    let mut pair = pair(At::Open, true);
    pair.host.item(ID, &blob(60_000)).unwrap();
    pair.host.cancel(ID, CancelReason::User, pair.now);
    pair.flow();
    assert_eq!(pair.host.item(ID, &blob(0)), Err(Misuse::NoInput));
    pair.host.end_input(ID);
    assert!(pair.host.outbox().is_empty());
    // The plugin may still take, and its credit is of no use to anybody.
    let told = pair.plugin_events();
    assert_eq!(items(&told).len(), 1);
    pair.plugin.taken(ID, 60_016);
    pair.reach_host();
    assert_eq!(pair.host_events(), []);
    pair.plugin.item(ID, &blob(1)).unwrap();
    pair.plugin.end(ID, Err(Fault::new(Code::Cancelled))).unwrap();
    pair.flow();
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
}

#[test]
fn without_the_feature_no_items_are_sent() {
    let only = |features| Announce { features, ..small() };
    let out = Features::ASYNC.union(Features::STREAM);
    let into = Features::ASYNC.union(Features::STREAM_IN);
    let mut pair = Pair::with(only(into), small(), At::Open);
    assert_eq!(pair.plugin.item(ID, &blob(1)), Err(Misuse::NotAgreed("stream")));
    assert_eq!(pair.host.item(ID, &blob(1)), Err(Misuse::NoInput));
    let mut pair = Pair::with(only(out), small(), At::Open);
    assert_eq!(pair.plugin.item(ID, &blob(1)), Ok(()));
    let call = Outgoing { method: "tool.call", input: true, ..Outgoing::default() };
    assert_eq!(pair.host.call(&call, pair.now), Err(Misuse::NotAgreed("stream.in")));
    assert!(pair.host.outbox().is_empty());
    assert_eq!(pair.host.item(CallId(5), &blob(1)), Err(Misuse::NoSuchCall));
    assert_eq!(pair.plugin.item(CallId(5), &blob(1)), Err(Misuse::NoSuchCall));
}

#[test]
fn what_belongs_to_a_feature_that_is_not_in_use_is_refused() {
    let only = |features| Announce { features, ..small() };
    let call_in = frame(0x10, 5, json!({"method": "tool.call", "in": true}), b"");
    for (features, who, bytes, fine) in [
        (Features::STREAM, Who::Host, item(3, 1), true),
        (Features::STREAM, Who::Plugin, credit(3, 1), true),
        (Features::STREAM, Who::Host, credit(3, 1), false),
        (Features::STREAM, Who::Plugin, item(3, 1), false),
        (Features::STREAM, Who::Plugin, call_in.clone(), false),
        (Features::STREAM_IN, Who::Host, credit(3, 1), true),
        (Features::STREAM_IN, Who::Plugin, call_in, true),
        (Features::STREAM_IN, Who::Host, item(3, 1), false),
        (Features::STREAM_IN, Who::Plugin, credit(3, 1), false),
    ] {
        let mut end = Pair::with(only(features), small(), At::Open).into_end(who);
        feed(&mut end, &bytes, Tick(1_000));
        match fine {
            true => assert_ne!(end.stage(), Stage::Closed, "{features:?} {who:?}"),
            false => drop(is_broken(&mut end, Close::BadState)),
        }
    }
    // The id is judged first.
    let used = frame(0x10, 3, json!({"method": "tool.call", "in": true}), b"");
    let mut end = Pair::with(only(Features::STREAM), small(), At::Open).plugin;
    feed(&mut end, &used, Tick(1_000));
    is_broken(&mut end, Close::BadId);
}

fn budget(deadline: Option<u64>, idle: Option<u64>) -> Pair {
    let mut pair = pair(At::Active, false);
    let call = Outgoing { method: "tool.call", deadline, idle, input: true, ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    pair.reach_plugin();
    pair.plugin_events();
    pair
}

fn expired(budget: Budget, ms: u64) -> Event {
    Event::Ended { id: ID, outcome: Err(Failure::Expired { budget, ms, sent: true }) }
}

#[test]
fn items_and_credit_from_the_callee_are_signs_of_life() {
    for what in ["item", "credit"] {
        let mut pair = budget(None, Some(1_000));
        for _ in 0..3 {
            pair.wait(900);
            match what {
                "item" => pair.plugin.item(ID, &blob(1)).unwrap(),
                _ => feed(&mut pair.host, &credit(3, 1), pair.now),
            }
            pair.reach_host();
        }
        pair.wait(999);
        assert!(!pair.host_events().contains(&expired(Budget::Idle, 1_000)), "{what}");
        pair.wait(1);
        assert_eq!(pair.host_events(), [expired(Budget::Idle, 1_000)], "{what}");
    }
}

#[test]
fn items_of_the_caller_are_no_sign_of_life() {
    let mut pair = budget(None, Some(1_000));
    pair.wait(900);
    pair.host.item(ID, &blob(1)).unwrap();
    pair.flow();
    pair.wait(100);
    assert_eq!(pair.host_events(), [expired(Budget::Idle, 1_000)]);
}

#[test]
fn silence_does_not_count_while_the_callee_has_no_credit() {
    let mut pair = budget(Some(60_000), Some(1_000));
    pair.wait(900);
    pair.plugin.item(ID, &blob(20_000)).unwrap();
    pair.reach_host();
    pair.wait(8_000);
    assert_eq!(items(&pair.host_events()), [(20_000, 20_016)]);
    assert!(pair.host.deadline().is_some_and(|at| pair.now < at), "there is nothing to do");
    // Once it may speak again, its silence counts from then on.
    pair.host.taken(ID, 20_016);
    assert_eq!(pair.host.deadline(), Some(Tick(0)), "to be looked at at once");
    pair.wait(0);
    assert_eq!(pair.host.deadline(), Some(pair.now.after(1_000)));
    pair.wait(999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [expired(Budget::Idle, 1_000)]);
}

#[test]
fn the_deadline_runs_without_credit_too() {
    let mut pair = budget(Some(5_000), Some(1_000));
    pair.plugin.item(ID, &blob(20_000)).unwrap();
    pair.reach_host();
    pair.host_events();
    pair.wait(4_999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    assert_eq!(pair.host_events(), [expired(Budget::Deadline, 5_000)]);
}

#[test]
fn a_call_whose_input_has_begun_is_not_taken_back() {
    for begin in [
        (|host: &mut Conversation| host.item(ID, &blob(3)).unwrap()) as fn(&mut Conversation),
        |host| host.end_input(ID),
    ] {
        let mut pair = pair(At::Active, false);
        let deadline = Some(10);
        let call = Outgoing { method: "tool.call", input: true, deadline, ..Outgoing::default() };
        pair.host.call(&call, pair.now).unwrap();
        begin(&mut pair.host);
        pair.wait(10);
        assert_eq!(pair.host_events(), [expired(Budget::Deadline, 10)]);
        pair.reach_plugin();
        let told: Vec<&str> = pair.plugin_events().iter().map(name).collect();
        assert_eq!((told.first(), told.last()), (Some(&"Called"), Some(&"CancelRequested")));
        assert_eq!(told.len(), 3);
    }
    // One that has not begun is.
    let mut pair = pair(At::Active, false);
    let call = Outgoing { method: "tool.call", input: true, ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    pair.host.cancel(ID, CancelReason::User, pair.now);
    assert_eq!(pair.host_events(), [Event::Released { id: ID }]);
    assert!(pair.host.outbox().is_empty());
}

#[test]
fn what_had_not_begun_to_leave_before_our_close_never_runs_with_its_input() {
    let mut pair = pair(At::Active, false);
    let call = Outgoing { method: "tool.call", input: true, ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    pair.host.item(ID, &blob(3)).unwrap();
    pair.host.close(Close::Ok, None);
    let lost = Event::Ended { id: ID, outcome: Err(Failure::Lost { sent: false }) };
    assert_eq!(pair.host_events(), [lost]);
    let frames = written(&mut pair.host);
    assert_eq!(frames.iter().map(|frame| frame.0).collect::<Vec<_>>(), ["CLOSE"]);
}

#[test]
fn streams_end_with_the_conversation() {
    let mut pair = pair(At::Open, true);
    pair.plugin.item(ID, &blob(3)).unwrap();
    pair.reach_host();
    pair.host.eof();
    let told: Vec<&str> =
        pair.host_events().iter().filter(|e| !matches!(e, Event::Over(_))).map(name).collect();
    assert_eq!(told, ["Item", "Ended"]);
    assert_eq!(pair.host.item(ID, &blob(1)), Err(Misuse::NoSuchCall));
    pair.plugin.eof();
    assert_eq!(pair.plugin.item(ID, &blob(1)), Err(Misuse::NoSuchCall));
    pair.host.taken(ID, 19);
    pair.plugin.taken(ID, 19);
    pair.host.end_input(ID);
}
