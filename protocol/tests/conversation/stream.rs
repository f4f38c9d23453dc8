//! Feeds bytes, in one piece and in many, to everything that reads bytes, and
//! checks that it makes no difference and does no harm.
//!
//! Shared by the property tests and the fuzz targets, like [`crate::script`].

use plugbay_protocol::*;

/// What was declared so far cannot have cost more than this: twice what arrived,
/// and the usual buffer.
fn most(received: usize) -> usize {
    2 * received + (64 << 10)
}

/// Reads the bytes in pieces of these sizes, over and over.
fn decode(data: &[u8], sizes: &[u8], ready: bool) -> (Vec<Raw>, Option<Violation>) {
    let mut decoder = Decoder::new();
    if ready {
        decoder.set_frame_max(1 << 20);
    }
    let mut frames = Vec::new();
    let mut broken = None;
    let mut received = 0;
    for piece in pieces(data, sizes) {
        decoder.buffer().extend_from_slice(piece);
        received += piece.len();
        loop {
            match decoder.frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(violation) => {
                    let first = broken.get_or_insert(violation.clone());
                    assert_eq!(*first, violation, "a violation is told for ever");
                    break;
                }
            }
        }
        let capacity = decoder.buffer().capacity();
        assert!(capacity <= most(received), "{capacity} bytes for {received}");
    }
    if broken.is_none() {
        let end = decoder.end();
        assert_eq!(end.is_ok(), decoder.pending().is_empty());
        broken = end.err();
    }
    (frames, broken.map(plain))
}

/// The pieces that the sizes cut the bytes into; without sizes, one.
fn pieces<'a>(mut data: &'a [u8], sizes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let size = sizes.next().map_or(data.len(), |size| usize::from(*size).max(1));
        let (piece, rest) = data.split_at(size.min(data.len()));
        data = rest;
        Some(piece)
    })
}

/// How much of stray bytes is kept depends on how they arrive, and nothing else does.
fn plain(violation: Violation) -> Violation {
    match violation {
        Violation::NotAFrame { found } => {
            assert!(!found.is_empty() && found.len() <= Violation::PREFIX);
            Violation::NotAFrame { found: Vec::new() }
        }
        other => other,
    }
}

/// What one end tells and writes.
fn converse(mut end: Conversation, data: &[u8], sizes: &[u8]) -> (Vec<Event>, Vec<u8>) {
    let mut written = Vec::new();
    let mut told = Vec::new();
    for piece in pieces(data, sizes) {
        end.buffer().extend_from_slice(piece);
        end.received(Tick(7));
        told.extend(std::iter::from_fn(|| end.poll()));
    }
    end.eof();
    told.extend(std::iter::from_fn(|| end.poll()));
    written.extend_from_slice(&end.outbox().take());
    let overs = told.iter().filter(|event| matches!(event, Event::Over(_))).count();
    assert_eq!(overs, 1);
    let last = told.last_mut().expect("there is an end");
    let Event::Over(over) = last else { panic!("{last:?} after the end") };
    if let Over::Broken(violation) = over {
        *over = Over::Broken(plain(violation.clone()));
    }
    assert_eq!((end.stage(), end.open_calls(), end.deadline()), (Stage::Closed, 0, None));
    (told, written)
}

/// How far two ends have come together, at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Far {
    Greeting,
    Ready,
    /// The plugin is active and has a call; with every feature also one of its own for it,
    /// and both have an input.
    Busy,
}

fn pair(far: Far, features: Features) -> (Conversation, Conversation) {
    let announce = Announce { features, ..Announce::default() };
    let mut host = Conversation::host(announce.clone(), Tick(0));
    let mut plugin = Conversation::plugin(announce, Tick(0));
    let carry = |from: &mut Conversation, to: &mut Conversation| {
        to.buffer().extend_from_slice(&from.outbox().take());
        to.received(Tick(0));
    };
    let all = features == Features::ALL;
    for end in [&mut host, &mut plugin] {
        end.grant(vec!["host.x".to_owned(), "host.background".to_owned()]);
    }
    if Far::Ready <= far {
        carry(&mut host, &mut plugin);
        carry(&mut plugin, &mut host);
    }
    if Far::Busy <= far {
        let call = |method| Outgoing { method, ..Outgoing::default() };
        let id = host.call(&call("plugin.activate"), Tick(0)).expect("it is ready");
        carry(&mut host, &mut plugin);
        plugin.end(id, Ok(Default::default())).expect("it was called");
        carry(&mut plugin, &mut host);
        let open = Outgoing { input: all, ..call("tool.call") };
        let parent = Some(host.call(&open, Tick(0)).expect("it is active"));
        carry(&mut host, &mut plugin);
        if all {
            let reverse = Outgoing { input: true, parent, ..call("host.x") };
            plugin.call(&reverse, Tick(0)).expect("it is granted");
            carry(&mut plugin, &mut host);
        }
    }
    for end in [&mut host, &mut plugin] {
        while end.poll().is_some() {}
        if far != Far::Greeting {
            end.outbox().take();
        }
    }
    (host, plugin)
}

/// Checks everything that can be checked on bytes from anywhere. The sizes say how
/// they are cut.
///
/// # Panics
/// If something does not hold.
pub fn check(data: &[u8], sizes: &[u8]) {
    for ready in [false, true] {
        let whole = decode(data, &[], ready);
        assert_eq!(decode(data, sizes, ready), whole);
        assert_eq!(decode(data, &[1], ready), whole);
        lossless(data, &whole.0);
    }
    for far in [Far::Greeting, Far::Ready, Far::Busy] {
        for features in [Features::ASYNC, Features::ALL] {
            let ((host, plugin), (other_host, other_plugin)) =
                (pair(far, features), pair(far, features));
            assert_eq!(converse(host, data, &[]), converse(other_host, data, sizes));
            assert_eq!(converse(plugin, data, &[]), converse(other_plugin, data, sizes));
        }
    }
    let body = check_body(data);
    let fields = body_fields(data, ["name", "args"]);
    if let Ok(fields) = fields {
        assert_eq!(body, Ok(()), "fields of a body that is none");
        for value in fields.into_iter().flatten() {
            assert_eq!(check_body(value), Ok(()));
        }
    }
}

/// The frames are the bytes, but for those that were skipped.
fn lossless(mut data: &[u8], frames: &[Raw]) {
    for frame in frames {
        loop {
            let (size, body_at) = size_of(data);
            let (one, rest) = data.split_at(size);
            data = rest;
            if Kind::from_byte(one[1]).is_none() {
                continue;
            }
            assert_eq!(one[1], frame.kind as u8);
            assert_eq!(one[4..8], frame.id.to_be_bytes());
            assert_eq!(one[12..12 + frame.head.len()], frame.head);
            assert!(one[12 + frame.head.len()..body_at].iter().all(|gap| *gap == 0));
            assert_eq!(one[body_at..], frame.body);
            break;
        }
    }
}

/// The size of the first frame and where its body starts, worked out as the spec
/// words it.
fn size_of(data: &[u8]) -> (usize, usize) {
    let head = usize::from(data[2]) << 8 | usize::from(data[3]);
    let body = data[8..12].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let body_at = if body == 0 { 12 + head } else { (12 + head).div_ceil(16) * 16 };
    (body_at + body, body_at)
}
