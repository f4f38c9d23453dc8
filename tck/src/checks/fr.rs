//! Frames, heads and bodies.

use std::time::Duration;

use crate::{
    case::{CALLS, WINDOW, hello, limits},
    check::{Check, Need, inconclusive, must},
    codec::{self, CALL, END, Frame, PING, PONG, body_at, header},
    map,
    session::{BAD_BODY, GRACE, Session, code},
    value::Value,
};

const ECHO: &[Need] = &[Need::Tck("echo")];
const ACTIVE: &[Need] = &[Need::Active];

/// A CALL of an unknown method with this head, in Ready: what judges heads comes before
/// what judges states.
fn with_head(s: &mut Session, head: Vec<u8>) {
    s.send(&Frame::of(CALL, 1, head, ()));
}

/// Lists in lists.
fn nested(depth: usize) -> Vec<u8> {
    let mut bytes = vec![0x91; depth - 1];
    bytes.push(0x90);
    bytes
}

pub(super) const CHECKS: &[Check] = &[
    must("FR-01", "reads frames however they are cut", &["R-FR-02"], &[], |c| {
        let mut s = c.ready()?;
        s.fence()?;
        let head = map! {"method": "grease.nothing", "deadline": 60_000};
        let bytes = Frame::new(CALL, s.next_id(), &head, map! {"x": "0123456789"}).bytes();
        let mut at = 0;
        for cut in [5, 11, 13, 20, bytes.len() - 1, bytes.len()] {
            s.raw(&bytes[at..cut]);
            s.flushed()?;
            s.linger(Duration::from_millis(20))?;
            at = cut;
        }
        s.end(1)?;
        s.fence().map(|_| ())
    }),
    must("FR-02", "reads many frames at once, in order", &["R-FR-02", "R-TO-11"], &[], |c| {
        let mut s = c.ready()?;
        let ping = |n: u8| Frame::new(PING, 0, &Value::map(), vec![b'p', n]);
        s.send_all(&(0..64).map(ping).collect::<Vec<_>>());
        for n in 0..64_u8 {
            let got = s.expect(&format!("PONG {n} of 64"), GRACE, |got| got.kind == PONG)?;
            if got.body != [b'p', n] {
                return Err(s.differs(&got, format!("PONG {n} in order"), codec::name(got.kind)));
            }
        }
        Ok(())
    }),
    must("FR-03", "accepts a frame without body", &["R-FR-01", "R-FR-03"], &[], |c| {
        let mut s = c.ready()?;
        s.ping(());
        let got = s.expect("PONG", GRACE, |got| got.kind == PONG)?;
        s.holds(got.body.is_empty(), "PONG without body", "one with")
    }),
    must("FR-04", "accepts a frame of just its limit", &["R-FR-05", "R-FR-13"], ECHO, |c| {
        let limit = c.profile().frame.max(codec_floor());
        let mut s = c.active_with(&hello().with("limits", limits(limit, WINDOW, CALLS)))?;
        let head = map! {"method": "tck.echo", "deadline": 60_000};
        let at = body_at(head.pack().len(), 1);
        let room = limit as usize - at;
        let marker = if room - 3 > 0xffff { 5 } else { 3 };
        let bytes = Value::from(vec![7_u8; room - marker]);
        let frame = Frame::new(CALL, s.next_id(), &head, &bytes);
        let id = frame.id;
        s.holds(frame.size() == limit as usize, "a frame of the limit", frame.size())?;
        s.send(&frame);
        let end = s.end(id)?;
        s.is_ok(&end)?;
        s.holds(end.body == frame.body, "the same bytes", "others")
    }),
    must(
        "FR-05",
        "closes at a frame over its limit as soon as the header is there",
        &["R-FR-05"],
        &[],
        |c| {
            let mut s = c.ready()?;
            s.fence()?;
            let limit = u64::from(c.profile().frame);
            s.raw(&header(CALL, 20, 1, limit - 31));
            s.closes("frame_too_large").map(|_| ())
        },
    ),
    must("FR-06", "reserves no memory on the word of a length", &["R-FR-06"], &[], |c| {
        let mut s = c.ready()?;
        s.fence()?;
        let before = c.peak(&s)?;
        s.raw(&header(CALL, 20, 1, u64::from(u32::MAX)));
        s.closes("frame_too_large")?;
        // One that has left already cannot be asked.
        let grown = s.peak().unwrap_or(before).saturating_sub(before);
        s.holds(grown < 16 << 20, "less than 16 MiB more", format!("{grown} B more"))
    }),
    must("FR-07", "closes at a byte that begins no frame", &["R-FR-07"], &[], |c| {
        let mut s = c.ready()?;
        s.fence()?;
        s.raw(b"h");
        s.closes("protocol_error").map(|_| ())
    }),
    must("FR-08", "closes at a head that is no map", &["R-FR-08", "R-HD-01"], &[], |c| {
        for head in [&b""[..], b"\x90", b"\x07", b"\xc0"] {
            let mut s = c.ready()?;
            with_head(&mut s, head.to_vec());
            s.closes("protocol_error")?;
        }
        Ok(())
    }),
    must(
        "FR-09",
        "closes at a key that stands twice in a head",
        &["R-HD-03", "R-HD-20"],
        &[],
        |c| {
            let mut s = c.ready()?;
            with_head(&mut s, map! {"method": "a.b", "x": 1, "x": 2}.pack());
            s.closes("protocol_error")?;
            let mut s = c.ready()?;
            with_head(&mut s, map! {"method": "a.b", "x": map! {"y": 1, "y": 1}}.pack());
            s.closes("protocol_error")?;
            // In a body it is fine, and the last one counts.
            if c.profile().has("tck", "sleep") {
                let mut s = c.active()?;
                s.ask("tck.sleep", map! {"ms": 60_000, "ms": 0})?;
            }
            Ok(())
        },
    ),
    must("FR-10", "closes at bytes after the map of a head", &["R-HD-01"], &[], |c| {
        let mut s = c.ready()?;
        let mut head = map! {"method": "a.b"}.pack();
        head.push(0xc0);
        with_head(&mut s, head);
        s.closes("protocol_error").map(|_| ())
    }),
    must("FR-11", "closes at a head that promises more than it holds", &["R-HD-01"], &[], |c| {
        for head in
            [&b"\xde\xff\xff"[..], b"\xdf\xff\xff\xff\xff", b"\x81\xa6method\xdb\xff\xff\xff\xff"]
        {
            let mut s = c.ready()?;
            with_head(&mut s, head.to_vec());
            s.closes("protocol_error")?;
        }
        Ok(())
    }),
    must("FR-12", "accepts markers of every width", &["R-HD-08"], ACTIVE, |c| {
        let mut s = c.active()?;
        let has_echo = c.profile().has("tck", "echo");
        let method = if has_echo { "tck.echo" } else { "grease.nothing" };
        let head = map! {"method": method, "deadline": 60_000, "attempt": 0};
        let body = map! {"n": 7, "text": "short", "list": list_of_two()}.pack_wide();
        let id = s.next_id();
        s.send(&Frame::of(CALL, id, head.pack_wide(), body.clone()));
        if !has_echo {
            return s.refused(id, &code("unimplemented")).map(|_| ());
        }
        let end = s.end(id)?;
        s.is_ok(&end)?;
        s.holds(end.body == body, "the same bytes", "others")
    }),
    must(
        "FR-13",
        "closes at what no head may hold",
        &["R-HD-02", "R-HD-05", "R-HD-06", "R-HD-07"],
        &[],
        |c| {
            let deep = [&b"\x82\xa6method\xa3a.b\xa1x"[..], &nested(8)].concat();
            let heads: [&[u8]; 7] = [
                b"\x82\xa6method\xa3a.b\xa1x\xa2\xff\xfe",
                b"\x82\xa6method\xa3a.b\xa1x\xd4\x01\x00",
                b"\x82\xa6method\xa3a.b\xa1x\xc1",
                b"\x82\xa6method\xa3a.b\x07\xc0",
                b"\x82\xa6method\xa3a.b\xa1x\xcf\x00\x20\x00\x00\x00\x00\x00\x00",
                b"\x81\xa6method\x07",
                &deep,
            ];
            for head in heads {
                let mut s = c.ready()?;
                with_head(&mut s, head.to_vec());
                s.closes("protocol_error")?;
            }
            Ok(())
        },
    ),
    must("FR-14", "skips frames of unknown types from 80 on", &["R-EX-01"], &[], |c| {
        let mut s = c.ready()?;
        for (kind, id) in [(0xE7, 0), (0x80, 4), (0xFF, 99)] {
            s.send(&Frame::of(kind, id, b"\xc1 no head".to_vec(), vec![1_u8; 1024]));
        }
        s.fence_silent()
    }),
    must("FR-15", "closes at a frame of an unknown type below 80", &["R-EX-02"], &[], |c| {
        let mut s = c.ready()?;
        s.send(&Frame::new(0x3F, 0, &Value::map(), ()));
        s.closes("unsupported_frame").map(|_| ())
    }),
    must(
        "FR-16",
        "hands back bytes and texts as they came",
        &["R-FR-01", "R-HD-10", "R-FR-04"],
        ECHO,
        |c| {
            let mut s = c.active()?;
            let all: Vec<u8> = (0..=255).collect();
            let said = map! {"bin": all, "text": "a\r\nb\u{2028}c\0d\u{1f600}\t"};
            let id = s.call("tck.echo", &said);
            let end = s.end(id)?;
            s.is_ok(&end)?;
            s.same(&end, "the body", &said, &end.value())?;
            s.holds(end.body == said.pack(), "the same bytes", "others")
        },
    ),
    must(
        "FR-17",
        "takes bodies as deep as they may be and refuses deeper ones",
        &["R-HD-11", "R-HD-12", "R-HD-17"],
        ECHO,
        |c| {
            let mut s = c.active()?;
            for depth in [32, 128] {
                let id = s.call("tck.echo", nested(depth));
                let end = s.end(id)?;
                s.is_ok(&end)?;
                s.holds(end.body == nested(depth), "the same bytes", "others")?;
            }
            for depth in [129, 10_000] {
                let id = s.call("tck.echo", nested(depth));
                s.refused(id, &BAD_BODY)?;
            }
            s.lives()
        },
    ),
    must("FR-18", "takes nil for absent", &["R-HD-04"], ACTIVE, |c| {
        let mut s = c.active()?;
        let head = map! {
            "method": "grease.nothing", "deadline": (), "idle": (), "in": (), "parent": (),
            "scopes": (), "key": (), "attempt": (), "trace": (), "grease": (),
        };
        let id = s.call_head(head.clone(), ());
        s.refused(id, &code("unimplemented"))?;
        if c.profile().has("tck", "echo") {
            let id = s.call_head(head.with("method", "tck.echo"), map! {"a": ()});
            s.ok(id)?;
        }
        Ok(())
    }),
    must(
        "FR-19",
        "closes and ends if the stream ends inside a frame",
        &["R-FR-11", "R-PR-05"],
        &[],
        |c| {
            let mut s = c.ready()?;
            s.fence()?;
            s.raw(&header(CALL, 20, 1, 0)[..9]);
            s.half_close();
            s.closes("protocol_error")?;
            s.exits_with(1, GRACE)
        },
    ),
    must(
        "FR-20",
        "every frame has the form that the spec gives it",
        &[
            "R-FR-01", "R-FR-04", "R-FR-13", "R-HD-01", "R-HD-03", "R-HD-09", "R-HD-10", "R-HD-15",
            "R-HD-17",
        ],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            s.fence()?;
            for method in super::methods(c) {
                let id = s.call(&method, vec![0xc1_u8]);
                let end = s.end(id)?;
                if end.kind != END {
                    return Err(inconclusive("no END"));
                }
            }
            s.goodbye()
        },
    ),
];

/// The smallest limit there is.
fn codec_floor() -> u32 {
    65_536
}

fn list_of_two() -> Value {
    Value::Array(vec![1.into(), "two".into()])
}
