//! Bytes and frames. [R-FR] [R-EX]

use plugbay_protocol::*;
use serde_json::json;

use crate::pair::*;

const MIB: u32 = 1 << 20;

/// A CALL whose whole frame has this size.
fn call_of_size(size: usize) -> Vec<u8> {
    // Header 12, head 15, gap 5.
    let bytes = frame(0x10, 3, json!({"method": "t.call"}), &vec![0xc0; size - 32]);
    assert_eq!(bytes.len(), size);
    bytes
}

#[test]
fn the_body_starts_at_the_next_multiple_of_16() {
    let table = [
        // head, body, size, body at
        (1, 0, 13, 13),
        (4, 0, 16, 16),
        (4, 1, 17, 16),
        (5, 1, 33, 32),
        (3, 1, 17, 16),
        (20, 5, 37, 32),
        (65_535, 1, 65_553, 65_552),
    ];
    for (head, body, size, body_at) in table {
        assert_eq!(layout(head, body), (size, body_at), "head {head}, body {body}");
    }
}

#[test]
fn the_largest_lengths_that_a_header_can_hold_do_not_overflow() {
    let (size, body_at) = layout(65_535, u32::MAX as usize);
    assert_eq!((size, body_at), (65_552 + u64::from(u32::MAX), 65_552));
}

#[test]
fn what_we_write_is_laid_out_as_the_spec_says() {
    let mut pair = Pair::at(At::Active);
    for len in [0, 1, 15, 16, 17, 16_384, 16_385, 70_000] {
        let body = blob(len);
        let deadline = Some(700);
        let call = Outgoing { method: "a.b", deadline, body: body.clone(), ..Outgoing::default() };
        let id = pair.host.call(&call, pair.now).unwrap();
        let expected = frame(0x10, id.0, json!({"method": "a.b", "deadline": 700}), &body);
        // JSON objects are sorted by key, heads are not: compare what follows the head.
        let found = pair.host.outbox().take();
        assert_eq!(found.len(), expected.len(), "body {len}");
        assert_eq!(found[..12], expected[..12], "body {len}");
        assert_eq!(found[12 + 24..], expected[12 + 24..], "body {len}");
        feed(&mut pair.plugin, &found, pair.now);
        let Some(Event::Called(arrived)) = pair.plugin.poll() else { panic!("body {len}") };
        assert_eq!(arrived.body, body);
        pair.plugin.end(id, Ok(body.clone())).unwrap();
        pair.flow();
        assert_eq!(pair.host_events(), [Event::Ended { id, outcome: Ok(body) }]);
    }
}

#[test]
fn frames_arrive_whole_however_the_wire_cuts_them() {
    for chunk in [1, 2, 3, 11, 12, 13, 16, 1_000] {
        let mut pair = Pair::new(announce(), announce());
        pair.chunk = chunk;
        pair.flow();
        assert!(matches!(pair.host_events()[..], [Event::Hello(_)]), "pieces of {chunk}");
        let id = pair.call("plugin.activate");
        pair.plugin.end(id, Ok(blob(3_000))).unwrap();
        pair.flow();
        assert_eq!(pair.host_events(), [Event::Ended { id, outcome: Ok(blob(3_000)) }]);
    }
}

#[test]
fn many_frames_in_one_read_are_all_told() {
    let mut pair = Pair::at(At::Active);
    let ids = [(); 4].map(|()| pair.start("tool.call"));
    pair.reach_plugin();
    let told: Vec<CallId> = pair
        .plugin_events()
        .iter()
        .map(|event| match event {
            Event::Called(call) => call.id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ids);
}

#[test]
fn any_byte_but_the_magic_is_refused_at_once_and_kept_for_diagnosis() {
    for at in [At::Start, At::Ready, At::Active, At::Draining] {
        for who in [Who::Host, Who::Plugin] {
            refuses(at, who, b"\n", Close::ProtocolError);
            refuses(at, who, b"\0", Close::ProtocolError);
            refuses(at, who, b"\xc0", Close::ProtocolError);
        }
    }
    let mut host = Pair::at(At::Start).host;
    let banner = [&b"Server listening on 8080\n"[..], &[b'x'; 1_000]].concat();
    feed(&mut host, &banner, Tick(1_000));
    let Violation::NotAFrame { found } = is_broken(&mut host, Close::ProtocolError) else {
        panic!("another violation")
    };
    assert_eq!(found, banner[..Violation::PREFIX]);
}

#[test]
fn nothing_is_looked_for_behind_noise() {
    let bytes = [&b"x"[..], &call(3, "tool.call")].concat();
    let mut plugin = Pair::at(At::Active).plugin;
    feed(&mut plugin, &bytes, Tick(1_000));
    assert!(matches!(events(&mut plugin)[..], [Event::Over(Over::Broken(_))]));
}

#[test]
fn a_good_frame_before_noise_still_counts() {
    let bytes = [&call(3, "tool.call")[..], b"x"].concat();
    let mut plugin = Pair::at(At::Active).plugin;
    feed(&mut plugin, &bytes, Tick(1_000));
    assert!(matches!(
        events(&mut plugin)[..],
        [Event::Called(_), Event::Over(Over::Broken(Violation::NotAFrame { .. }))]
    ));
}

#[test]
fn a_frame_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
    let limit = MIB as usize;
    assert_eq!(accepts(At::Active, Who::Plugin, &call_of_size(limit)).len(), 1);
    let over = call_of_size(limit + 1);
    // The header alone decides.
    for bytes in [&over[..12], &over] {
        let found = refuses(At::Active, Who::Plugin, bytes, Close::FrameTooLarge);
        assert_eq!(found, Violation::FrameTooLarge { size: u64::from(MIB) + 1, max: MIB });
    }
}

#[test]
fn the_gap_counts_in_the_size() {
    // 12 + 15 + 1,048,549 are 1 MiB; the gap of 5 is what is too much.
    let header = [0xc1, 0x10, 0, 15, 0, 0, 0, 3];
    let bytes = [&header[..], &(MIB - 27).to_be_bytes()].concat();
    refuses(At::Active, Who::Plugin, &bytes, Close::FrameTooLarge);
}

#[test]
fn a_declared_length_of_4_gib_is_refused_from_the_header() {
    let bytes = [&[0xc1, 0x10, 0xff, 0xff, 0, 0, 0, 3][..], &[0xff; 4]].concat();
    let found = refuses(At::Active, Who::Plugin, &bytes, Close::FrameTooLarge);
    let size = 65_552 + u64::from(u32::MAX);
    assert_eq!(found, Violation::FrameTooLarge { size, max: MIB });
}

#[test]
fn the_limit_is_the_one_that_the_reader_announced() {
    let small = Announce { limits: Limits::FLOOR, ..announce() };
    let mut plugin = Pair::with(announce(), small, At::Active).plugin;
    feed(&mut plugin, &call_of_size(65_536), Tick(1_000));
    assert!(matches!(events(&mut plugin)[..], [Event::Called(_)]));
    let mut bytes = call_of_size(65_537);
    bytes[7] = 5;
    feed(&mut plugin, &bytes, Tick(1_000));
    is_broken(&mut plugin, Close::FrameTooLarge);
}

#[test]
fn before_hello_a_hello_may_have_1_mib_and_any_other_frame_64_kib() {
    let header = |kind: u8, size: u32| {
        // One byte of head and a body from byte 16 on.
        [&[0xc1, kind, 0, 1, 0, 0, 0, 0][..], &(size - 16).to_be_bytes(), b"\x80"].concat()
    };
    for who in [Who::Host, Who::Plugin] {
        for (kind, limit) in [(0x01, MIB), (0x02, 65_536), (0x03, 65_536), (0xe0, 65_536)] {
            refuses(At::Start, who, &header(kind, limit + 1), Close::FrameTooLarge);
            let mut end = Pair::at(At::Start).into_end(who);
            feed(&mut end, &header(kind, limit), Tick(1_000));
            assert_eq!(events(&mut end), [], "type {kind:#x}");
        }
    }
}

#[test]
fn a_hello_may_be_larger_than_the_limit_that_it_answers() {
    let host = Announce { limits: Limits::FLOOR, ..announce() };
    let plugin = Announce { manifest: blob(100_000), ..announce() };
    let mut pair = Pair::new(host, plugin);
    pair.flow();
    let [Event::Hello(welcome)] = &pair.host_events()[..] else { panic!("no HELLO") };
    assert_eq!(welcome.manifest, blob(100_000));
}

#[test]
fn a_plugin_whose_hello_cannot_be_sent_says_why() {
    let plugin = Announce { manifest: blob(MIB as usize), ..announce() };
    let mut pair = Pair::new(announce(), plugin);
    pair.flow();
    let [Event::Over(Over::Closed { code: Close::Internal, message: Some(message), .. })] =
        &pair.host_events()[..]
    else {
        panic!("another end")
    };
    assert!(message.contains("1048576"), "{message}");
    assert_eq!((pair.plugin_events(), pair.plugin.stage()), (vec![], Stage::Closed));
}

#[test]
fn a_host_whose_hello_cannot_be_sent_says_why() {
    let host = Announce { identity: Identity::new("x".repeat(70_000), "1"), ..announce() };
    let mut pair = Pair::new(host, announce());
    assert_eq!(pair.host.stage(), Stage::Closed);
    pair.flow();
    assert!(matches!(
        pair.plugin_events()[..],
        [Event::Over(Over::Closed { code: Close::Internal, .. })]
    ));
}

#[test]
fn a_gap_byte_that_is_not_zero_is_refused() {
    let good = frame(0x10, 3, json!({"method": "t.call"}), b"\xc0");
    for at in 27..32 {
        let mut bytes = good.clone();
        bytes[at] = 1;
        assert_eq!(
            refuses(At::Active, Who::Plugin, &bytes, Close::ProtocolError),
            Violation::Gap,
            "byte {at}"
        );
    }
}

#[test]
fn a_skipped_frame_must_have_a_good_gap_as_well() {
    let mut bytes = frame(0xe5, 0, json!({}), b"\xc0");
    bytes[14] = 1;
    assert_eq!(refuses(At::Active, Who::Plugin, &bytes, Close::ProtocolError), Violation::Gap);
}

#[test]
fn without_a_body_there_is_no_gap() {
    let bytes = [call(3, "tool.call"), call(5, "tool.call")].concat();
    assert_eq!(accepts(At::Active, Who::Plugin, &bytes).len(), 2);
}

#[test]
fn a_head_of_no_bytes_is_refused_from_the_header() {
    for kind in [0x01, 0x03, 0x10, 0x90, 0xe0] {
        let bytes = [&[0xc1, kind, 0, 0][..], &[0; 8]].concat();
        let found = refuses(At::Active, Who::Plugin, &bytes, Close::ProtocolError);
        assert!(matches!(found, Violation::Head { .. }), "{found}");
    }
}

#[test]
fn the_longest_head_is_read() {
    let head = json!({"method": "tool.call", "x": "y".repeat(65_535 - 23)});
    assert_eq!(pack(&head).len(), 65_535);
    assert_eq!(accepts(At::Active, Who::Plugin, &frame(0x10, 3, head, b"")).len(), 1);
}

#[test]
fn unknown_types_from_80_on_are_skipped_whole_and_others_refused() {
    for kind in [0x80, 0x8f, 0x91, 0xdf, 0xe0, 0xf0, 0xff] {
        for at in [At::Ready, At::Active, At::Draining] {
            let one = [raw(kind, 77, b"\x00", &blob(5_000)), raw(kind, 0, b"?", b"")].concat();
            assert_eq!(accepts(at, Who::Plugin, &one), [], "type {kind:#x}");
            assert_eq!(accepts(at, Who::Host, &one), [], "type {kind:#x}");
        }
    }
    for kind in [0x00, 0x05, 0x0f, 0x15, 0x7f] {
        let one = raw(kind, 0, b"\x80", b"");
        assert_eq!(
            refuses(At::Active, Who::Host, &one[..12], Close::UnsupportedFrame),
            Violation::UnknownFrame(kind)
        );
        refuses(At::Start, Who::Plugin, &one, Close::UnsupportedFrame);
    }
}

#[test]
fn skipped_frames_are_skipped_whole_however_they_arrive() {
    // Frames inside the body of one that is skipped are no frames.
    let inner = [call(3, "tool.call"), b"noise".to_vec()].concat();
    let bytes = [raw(0xe0, 0, b"\x80", &inner), call(5, "tool.call")].concat();
    for at in 1..bytes.len() {
        let mut plugin = Pair::at(At::Active).plugin;
        feed(&mut plugin, &bytes[..at], Tick(1_000));
        feed(&mut plugin, &bytes[at..], Tick(1_000));
        let told = events(&mut plugin);
        assert!(matches!(&told[..], [Event::Called(call)] if call.id.0 == 5), "{at}: {told:?}");
    }
}

#[test]
fn skipped_frames_may_come_before_hello() {
    let mut pair = Pair::new(announce(), announce());
    for end in [&mut pair.host, &mut pair.plugin] {
        feed(end, &raw(0xe3, 9, b"\x00", b"grease"), Tick(1_000));
        assert_eq!(events(end), []);
    }
    pair.flow();
    assert!(matches!(pair.host_events()[..], [Event::Hello(_)]));
}

#[test]
fn frames_of_the_connection_carry_id_0() {
    let hello = json!({"versions": [1], "version": 1,
                       "limits": {"frame": 65536, "window": 16384, "calls": 1}});
    for (kind, head) in
        [(0x01, hello), (0x02, json!({"code": "ok"})), (0x03, json!({})), (0x04, json!({}))]
    {
        let at = if kind == 0x01 { At::Start } else { At::Active };
        for who in [Who::Host, Who::Plugin] {
            let found = refuses(at, who, &frame(kind, 1, head.clone(), b""), Close::ProtocolError);
            assert!(matches!(found, Violation::FrameId { id: 1, .. }), "{found}");
        }
    }
}

#[test]
fn the_first_rule_broken_decides() {
    // Each breaks this rule and those after it. [R-FR-15]
    let mut gap = raw(0x03, 7, b"\xc1", b"x");
    gap[14] = 1;
    let table = [
        (b"xx\0\0".to_vec(), Close::ProtocolError),
        (vec![0xc1, 0x7f, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], Close::FrameTooLarge),
        (vec![0xc1, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], Close::UnsupportedFrame),
        (gap, Close::ProtocolError),
        (raw(0x03, 7, b"\xc1", b""), Close::ProtocolError),
        (raw(0x13, 0, b"\xc1", b""), Close::ProtocolError),
        // A state rule before an id rule.
        (frame(0x13, 0, json!({}), b""), Close::BadState),
    ];
    for (bytes, code) in table {
        refuses(At::Start, Who::Plugin, &bytes, code);
    }
    assert!(matches!(
        refuses(At::Start, Who::Plugin, &raw(0x03, 7, b"\xc1", b""), Close::ProtocolError),
        Violation::FrameId { .. }
    ));
}

#[test]
fn the_end_of_the_stream_inside_a_frame_is_told_with_both_sizes() {
    let whole = frame(0x12, 3, json!({}), &[0xc0; 100]);
    for (got, due) in [(1, 12), (11, 12), (12, 116), (115, 116)] {
        for stage in [At::Start, At::Ready, At::Open, At::Draining] {
            let mut host = Pair::at(stage).host;
            feed(&mut host, &whole[..got], Tick(1_000));
            assert_eq!(events(&mut host), []);
            host.eof();
            let found = is_broken_after_losing(&mut host, Close::ProtocolError);
            assert_eq!(found, Violation::Truncated { got, due });
        }
    }
}

/// Like [`is_broken`], with calls lost before.
fn is_broken_after_losing(end: &mut Conversation, code: Close) -> Violation {
    let told = events(end);
    let Some(Event::Over(Over::Broken(violation))) = told.last() else { panic!("{told:?}") };
    assert_eq!(violation.close(), code);
    assert_eq!(written(end).last().unwrap().0, "CLOSE");
    violation.clone()
}

#[test]
fn a_decoder_that_is_broken_stays_broken() {
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(b"!");
    let first = decoder.frame().unwrap_err();
    decoder.buffer().clear();
    decoder.buffer().extend_from_slice(&ping());
    assert_eq!(decoder.frame().unwrap_err(), first);
}

#[test]
fn a_small_body_does_not_keep_the_read_buffer_alive() {
    let mut decoder = Decoder::new();
    decoder.buffer().extend_from_slice(&frame(0x12, 3, json!({}), &blob(2_048)));
    let before = decoder.buffer().as_ptr() as usize;
    let body = decoder.frame().unwrap().unwrap().body;
    let buffer = before..before + (64 << 10);
    assert!(!buffer.contains(&(body.as_ptr() as usize)));
}

/// Small ones are copied together, so where one ends and the next begins is ours to get right.
#[test]
fn bodies_that_arrive_together_stay_apart_whatever_is_between_them() {
    let sizes = [1, 40, 0, 2_048, 700, 2_049, 30, 5_000, 17, 0, 900, 900, 900, 900, 900, 3];
    let body = |n: usize, of: usize| vec![of as u8; n];
    let mut decoder = Decoder::new();
    decoder.set_frame_max(MIB);
    for round in 0..3 {
        for (at, n) in sizes.into_iter().enumerate() {
            decoder.buffer().extend_from_slice(&frame(0x12, 3, json!({}), &body(n, at + round)));
            // Passed over.
            decoder.buffer().extend_from_slice(&frame(0xf0, 0, json!({}), &body(at, 0xff)));
        }
        let mut kept = Vec::new();
        while let Some(raw) = decoder.frame().unwrap() {
            kept.push(raw.body);
        }
        let expected: Vec<_> =
            sizes.into_iter().enumerate().map(|(at, n)| body(n, at + round)).collect();
        assert_eq!(kept, expected);
    }
}

#[test]
fn a_large_body_is_not_copied_out_of_the_read_buffer() {
    let mut decoder = Decoder::new();
    decoder.set_frame_max(MIB);
    decoder.buffer().extend_from_slice(&frame(0x12, 3, json!({}), &blob(4_096)));
    let before = decoder.buffer().as_ptr() as usize;
    let body = decoder.frame().unwrap().unwrap().body;
    assert_eq!(body.as_ptr() as usize, before + 16);
}

#[test]
fn a_large_body_is_not_copied_into_the_write_buffer() {
    let mut pair = Pair::at(At::Active);
    let body = blob(20_000);
    let call = Outgoing { method: "tool.call", body: body.clone(), ..Outgoing::default() };
    pair.host.call(&call, pair.now).unwrap();
    let (pieces, count) = pair.host.outbox().pieces::<4>();
    assert_eq!((count, pieces[1].as_ptr()), (2, body.as_ptr()));
}

#[test]
fn the_outbox_counts_what_it_takes_and_gives_in_any_portion() {
    let mut pair = Pair::at(At::Active);
    let before = pair.host.outbox().queued();
    let mut expected = Vec::new();
    for len in [10, 20_000, 0, 30_000] {
        let call = Outgoing { method: "tool.call", body: blob(len), ..Outgoing::default() };
        pair.host.call(&call, pair.now).unwrap();
    }
    let outbox = pair.host.outbox();
    let due = outbox.len();
    assert_eq!(outbox.queued() - before, due);
    for step in [1, 7, 500, 20_000].into_iter().cycle() {
        if outbox.is_empty() {
            break;
        }
        let (pieces, count) = outbox.pieces::<2>();
        let some = &pieces[..count].concat();
        let some = &some[..some.len().min(step)];
        expected.extend_from_slice(some);
        outbox.advance(some.len());
        assert_eq!(outbox.written() - before, expected.len() as u64);
    }
    assert_eq!(expected.len() as u64, due);
    feed(&mut pair.plugin, &expected, pair.now);
    assert_eq!(pair.plugin_events().len(), 4);
}

#[test]
fn an_outbox_that_is_never_quite_empty_does_not_grow() {
    let mut pair = Pair::at(At::Active);
    let address = |end: &mut Conversation| end.outbox().pieces::<1>().0[0].as_ptr() as usize;
    let mut lowest = usize::MAX;
    let mut highest = 0;
    feed(&mut pair.plugin, &ping(), pair.now);
    for _ in 0..100_000 {
        // One more PONG is queued before the last has left.
        feed(&mut pair.plugin, &ping(), pair.now);
        pair.plugin.outbox().advance(13);
        lowest = lowest.min(address(&mut pair.plugin));
        highest = highest.max(address(&mut pair.plugin));
    }
    assert_eq!(pair.plugin.outbox().len(), 13);
    assert!(highest - lowest < 64 << 10, "{} bytes for 13", highest - lowest);
}
