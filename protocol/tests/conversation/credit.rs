//! Credit: how far a stream may run ahead of whoever takes its items. [R-ST-01] to [R-ST-12]

use plugbay_protocol::*;
use serde_json::json;

use crate::{items::*, pair::*};

/// Who receives the items of a stream, in each direction.
const BOTH: [Who; 2] = [Who::Host, Who::Plugin];

fn ends(pair: &mut Pair, receiver: Who) -> (&mut Conversation, &mut Conversation) {
    match receiver {
        Who::Host => (&mut pair.plugin, &mut pair.host),
        Who::Plugin => (&mut pair.host, &mut pair.plugin),
    }
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
fn no_credit_is_given_for_an_input_that_is_over() {
    let mut pair = pair(At::Open, true);
    pair.host.item(ID, &blob(10_000)).unwrap();
    pair.host.end_input(ID);
    pair.reach_plugin();
    pair.plugin.taken(ID, 10_016);
    assert!(pair.plugin.outbox().is_empty());
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
