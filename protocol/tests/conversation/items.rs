//! Streams: items, credit and input. [R-ST]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

const ID: CallId = CallId(3);
/// The smallest window, which both ends of these tests have.
const WINDOW: usize = 16_384;
/// What an ITEM without a body costs.
const BARE: usize = 13;

fn small() -> Announce {
    Announce { limits: Limits { calls: 4, ..Limits::FLOOR }, ..streaming() }
}

/// A pair with streams that has come this far; the call has an input if asked.
fn pair(at: At, input: bool) -> Pair {
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
fn items(events: &[Event]) -> Vec<(usize, u32)> {
    let item = |event: &Event| match event {
        Event::Item { id: ID, body, size } => Some((body.len(), *size)),
        _ => None,
    };
    events.iter().filter_map(item).collect()
}

fn item(id: u32, len: usize) -> Vec<u8> {
    frame(0x11, id, json!({}), &blob(len))
}

fn credit(id: u32, n: u64) -> Vec<u8> {
    frame(0x14, id, json!({ "n": n }), b"")
}

/// The credit that an end has given, and in how many frames.
fn given(by: &mut Conversation) -> (u64, usize) {
    let all = written(by).into_iter().filter(|(kind, ..)| *kind == "CREDIT");
    all.fold((0, 0), |(sum, count), (.., head, _)| (sum + head["n"].as_u64().unwrap(), count + 1))
}

/// Who receives the items of a stream, in each direction.
const BOTH: [Who; 2] = [Who::Host, Who::Plugin];

fn ends(pair: &mut Pair, receiver: Who) -> (&mut Conversation, &mut Conversation) {
    match receiver {
        Who::Host => (&mut pair.plugin, &mut pair.host),
        Who::Plugin => (&mut pair.host, &mut pair.plugin),
    }
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

fn name(event: &Event) -> &'static str {
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
fn one_item_may_overdraw_the_credit_and_the_next_may_not_be_sent() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, _) = ends(&mut pair, receiver);
        assert_eq!(sender.item(ID, &blob(WINDOW - 16 - 1)), Ok(()), "credit of 1 is left");
        assert_eq!(sender.item(ID, &blob(40_000)), Ok(()), "and that is above 0");
        let queued = sender.outbox().queued();
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
        assert_eq!(sender.outbox().queued(), queued);
        pair.flow();
        let told = events(ends(&mut pair, receiver).1);
        assert_eq!(items(&told), [(16_367, 16_383), (40_000, 40_016)]);
    }
}

#[test]
fn every_item_costs_its_whole_frame() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, _) = ends(&mut pair, receiver);
        let mut sent = 0;
        while sender.item(ID, &blob(0)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, WINDOW.div_ceil(BARE));
        // Header, head, gap and body.
        let mut pair = self::pair(At::Open, true);
        let (sender, _) = ends(&mut pair, receiver);
        assert_eq!(sender.item(ID, &blob(WINDOW - 16)), Ok(()));
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
    }
}

#[test]
fn a_stream_starts_with_the_window_of_whoever_receives_it() {
    let window = |window| Announce { limits: Limits { window, ..Limits::FLOOR }, ..small() };
    let mut pair = Pair::with(window(50_000), window(20_000), At::Active);
    let call = Outgoing { method: "tool.call", input: true, ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    pair.reach_plugin();
    for (receiver, window) in [(Who::Host, 50_000), (Who::Plugin, 20_000)] {
        let (sender, _) = ends(&mut pair, receiver);
        assert_eq!(sender.item(ID, &blob(window - 17)), Ok(()));
        assert_eq!(sender.item(ID, &blob(0)), Ok(()));
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
    }
    pair.flow();
    assert_eq!((pair.host.stage(), pair.plugin.stage()), (Stage::Active, Stage::Active));
    for end in [&mut pair.host, &mut pair.plugin] {
        events(end);
        feed(end, &item(3, 0), Tick(1_000));
        is_broken(end, Close::FlowError);
    }
}

#[test]
fn an_item_without_credit_breaks_the_flow() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (_, end) = ends(&mut pair, receiver);
        feed(end, &item(3, WINDOW - 16), Tick(1_000));
        assert_eq!(items(&events(end)).len(), 1);
        feed(end, &item(3, 0), Tick(1_000));
        let found = is_broken(end, Close::FlowError);
        assert!(matches!(found, Violation::Flow { kind: "ITEM", .. }), "{found}");
    }
}

#[test]
fn an_item_with_a_credit_of_1_is_fine_whatever_its_size_and_head() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (_, end) = ends(&mut pair, receiver);
        // A head with a key that nobody knows counts in the size.
        feed(end, &frame(0x11, 3, json!({"x": "y"}), &blob(WINDOW - 33)), Tick(1_000));
        feed(end, &item(3, 40_000), Tick(1_000));
        assert_eq!(items(&events(end)), [(16_351, 16_383), (40_000, 40_016)]);
        feed(end, &item(3, 0), Tick(1_000));
        is_broken(end, Close::FlowError);
    }
}

#[test]
fn credit_lets_the_sender_go_on_and_is_told_when_there_was_none() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, _) = ends(&mut pair, receiver);
        feed(sender, &credit(3, 5), Tick(1_000));
        assert_eq!(events(sender), [], "it has never been without");
        sender.item(ID, &blob(WINDOW - 16 + 5 + 10)).unwrap();
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
        feed(sender, &credit(3, 10), Tick(1_000));
        assert_eq!(events(sender), [], "it is 0 now");
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
        feed(sender, &credit(3, 1), Tick(1_000));
        assert_eq!(events(sender), [Event::Credit { id: ID }]);
        assert_eq!(sender.item(ID, &blob(0)), Ok(()));
        assert_eq!(sender.item(ID, &blob(0)), Err(Misuse::NoCredit));
    }
}

#[test]
fn credit_of_nothing_or_beyond_2_to_the_31_breaks_the_flow() {
    let room = (1 << 31) - 1 - WINDOW as u64;
    for receiver in BOTH {
        for (n, fine) in [(0, false), (room + 1, false), ((1 << 53) - 1, false), (room, true)] {
            let mut pair = pair(At::Open, true);
            let (sender, _) = ends(&mut pair, receiver);
            feed(sender, &credit(3, n), Tick(1_000));
            if fine {
                assert_eq!(events(sender), []);
                sender.item(ID, &blob(0)).unwrap();
                feed(sender, &credit(3, BARE as u64 + 1), Tick(1_000));
            }
            let found = is_broken(sender, Close::FlowError);
            assert!(matches!(found, Violation::Flow { kind: "CREDIT", .. }), "{found}");
        }
    }
}

#[test]
fn credit_has_to_say_how_much() {
    for head in [json!({}), json!({"n": null}), json!({"n": "1"}), json!({"n": -1})] {
        let mut pair = pair(At::Open, true);
        feed(&mut pair.plugin, &frame(0x14, 3, head, b""), Tick(1_000));
        is_broken(&mut pair.plugin, Close::ProtocolError);
    }
}

#[test]
fn credit_is_given_for_what_was_taken_a_quarter_of_the_window_at_a_time() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, end) = ends(&mut pair, receiver);
        (0..8).for_each(|_| sender.item(ID, &blob(1_024 - 16)).unwrap());
        let bytes = sender.outbox().take();
        feed(end, &bytes, Tick(1_000));
        let told = items(&events(end));
        assert_eq!(told, [(1_008, 1_024); 8]);
        let mut gifts = vec![];
        for (_, size) in told {
            end.taken(ID, size);
            gifts.push(given(end));
        }
        let none = (0, 0);
        assert_eq!(gifts, [none, none, none, (4_096, 1), none, none, none, (4_096, 1)]);
    }
}

#[test]
fn nobody_can_take_more_than_has_come() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, end) = ends(&mut pair, receiver);
        end.taken(ID, u32::MAX);
        assert!(end.outbox().is_empty());
        sender.item(ID, &blob(5_000)).unwrap();
        let bytes = sender.outbox().take();
        feed(end, &bytes, Tick(1_000));
        end.taken(ID, u32::MAX);
        assert_eq!(given(end), (5_016, 1));
        end.taken(ID, u32::MAX);
        assert!(end.outbox().is_empty());
    }
}

#[test]
fn items_that_nobody_takes_stop_their_sender() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let mut sent = 0;
        while ends(&mut pair, receiver).0.item(ID, &blob(1_008)).is_ok() {
            sent += 1;
            pair.flow();
        }
        assert_eq!(sent, 16);
        let (_, end) = ends(&mut pair, receiver);
        assert_eq!(items(&events(end)).len(), 16);
    }
}

/// A window at its largest holds more than credit can be raised to.
#[test]
fn the_largest_window_works_too() {
    let large =
        Announce { limits: Limits { frame: u32::MAX, window: u32::MAX, calls: 4 }, ..streaming() };
    let mut pair = Pair::with(large.clone(), large, At::Open);
    pair.plugin.item(ID, &blob(3)).unwrap();
    pair.flow();
    let told = items(&pair.host_events());
    pair.host.taken(ID, told[0].1);
    pair.flow();
    assert_eq!((pair.host.stage(), pair.plugin.stage()), (Stage::Active, Stage::Active));
}

#[test]
fn an_item_that_does_not_fit_a_frame_costs_nothing() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (sender, _) = ends(&mut pair, receiver);
        let found = sender.item(ID, &blob(65_536 - 15));
        assert_eq!(found, Err(Misuse::TooLarge { size: 65_537, max: 65_536 }));
        assert!(sender.outbox().is_empty());
        assert_eq!(sender.item(ID, &blob(65_536 - 16)), Ok(()));
    }
}

#[test]
fn nothing_but_items_waits_for_credit() {
    let mut pair = pair(At::Open, true);
    let other = pair.call("tool.call");
    pair.plugin.item(ID, &blob(60_000)).unwrap();
    pair.host.item(ID, &blob(60_000)).unwrap();
    assert_eq!(pair.plugin.item(ID, &blob(1)), Err(Misuse::NoCredit));
    // Another call is not held up, and what else is said of this one neither.
    pair.plugin.item(other, &blob(5)).unwrap();
    pair.plugin.end(other, Ok(blob(1))).unwrap();
    let note = Note::Progress { n: None, total: None, unit: None, body: blob(0) };
    pair.plugin.note(Some(ID), &note);
    pair.plugin.end(ID, Ok(blob(2))).unwrap();
    pair.flow();
    let told: Vec<&str> = pair.host_events().iter().map(name).collect();
    assert_eq!(told, ["Item", "Item", "Ended", "Note", "Ended"]);
    assert_eq!((pair.host.open_calls(), pair.plugin.open_calls()), (0, 0));
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
fn no_credit_is_given_for_an_input_that_is_over() {
    let mut pair = pair(At::Open, true);
    pair.host.item(ID, &blob(10_000)).unwrap();
    pair.host.end_input(ID);
    pair.reach_plugin();
    pair.plugin.taken(ID, 10_016);
    assert!(pair.plugin.outbox().is_empty());
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

/// Another way to say what the property tests say, over a long time: the sums are exact.
#[test]
fn a_hundred_windows_pass_without_a_byte_lost() {
    for receiver in BOTH {
        let mut pair = pair(At::Open, true);
        let (mut sent, mut got, mut at) = (0, 0, 0_usize);
        while got < 100 * WINDOW {
            at += 1;
            let body = blob(at * 37 % 5_000);
            let (sender, _) = ends(&mut pair, receiver);
            if sender.item(ID, &body).is_ok() {
                sent += body.len();
                if at % 3 != 0 {
                    continue;
                }
            }
            pair.flow();
            let (_, end) = ends(&mut pair, receiver);
            for (len, size) in items(&events(end)) {
                got += len;
                end.taken(ID, size);
            }
            assert_eq!(sent, got);
            pair.flow();
            events(ends(&mut pair, receiver).0);
        }
    }
}
