//! The handshake.

use std::time::Duration;

use crate::{
    case::{CALLS, FRAME, HANDSHAKE, WINDOW, hello, limits},
    check::{Check, must, should},
    codec::{CALL, Frame, HELLO, NOTE},
    list, map,
    process::Exit,
    session::{GRACE, Got},
    value::Value,
};

fn is_hello(got: &Got) -> bool {
    got.kind == HELLO
}

pub(super) const CHECKS: &[Check] = &[
    must("HS-01", "answers HELLO with HELLO", &["R-HS-04", "R-FR-09", "R-HD-09"], &[], |c| {
        let mut s = c.greet(&hello())?;
        let got = s.until("a first frame", HANDSHAKE, |s| s.take(|_| true))?;
        let is_right = is_hello(&got) && got.id == 0 && got.head.int("version").is_some();
        if is_right {
            return Ok(());
        }
        Err(s.differs(&got, "HELLO #0 with a version as the first frame", got.to_string()))
    }),
    must("HS-02", "writes nothing but frames to stdout", &["R-PR-06", "R-FR-07"], &[], |c| {
        let mut s = c.ready()?;
        // Nobody has to know this topic, and a word about that belongs to stderr.
        s.send(&Frame::new(NOTE, 0, &map! {"topic": "grease.words"}, ()));
        s.fence()?;
        s.holds(s.foreign().is_none(), "frames only", "other bytes")
    }),
    must("HS-03", "waits for the host's HELLO before it writes anything", &["R-HS-02"], &[], |c| {
        let mut s = c.spawn()?;
        // Until it rests: an interpreter takes its time to start.
        let mut used = None;
        for _ in 0..20 {
            s.linger(Duration::from_millis(300))?;
            let now = super::rs::ticks(&s).ok();
            if now == used {
                break;
            }
            used = now;
        }
        s.none("frame before HELLO", |_| true)?;
        let silent = s.unread() == 0 && s.foreign().is_none();
        s.holds(silent, "no bytes before the host's HELLO", "some")?;
        s.send(&Frame::new(HELLO, 0, &hello(), ()));
        s.expect("HELLO", HANDSHAKE, is_hello).map(|_| ())
    }),
    must("HS-04", "chooses a version that both speak", &["R-HS-04", "R-EX-03"], &[], |c| {
        let mut s = c.greet(&hello().with("versions", list![1, 2570, "grease"]))?;
        let got = s.expect("HELLO", HANDSHAKE, is_hello)?;
        s.same(&got, "the version", &Value::from(1), got.head.get("version").unwrap_or(&Value::Nil))
    }),
    must("HS-05", "closes if there is no version in common", &["R-HS-05", "R-PR-05"], &[], |c| {
        let mut s = c.greet(&hello().with("versions", list![2570]))?;
        let close = s.closes("version_unsupported")?;
        let supported = close.head.list("supported").contains(&Value::from(1));
        if !supported {
            return Err(s.differs(&close, "`supported` with 1 in it", close.head.to_string()));
        }
        s.exits_with(1, Duration::from_secs(2))?;
        let mut s = c.greet(&hello().without("versions"))?;
        s.closes("version_unsupported").map(|_| ())
    }),
    must("HS-06", "uses only features that were offered", &["R-HS-08", "R-EX-03"], &[], |c| {
        let offered = list!["grease.x", "async", 7, "grease.y"];
        let mut s = c.greet(&hello().with("features", offered))?;
        let got = s.expect("HELLO", HANDSHAKE, is_hello)?;
        let named = got.head.strings("features");
        match named.iter().find(|name| *name != "async") {
            None => Ok(()),
            Some(name) => Err(s.differs(&got, "features out of those offered that it knows", name)),
        }
    }),
    must("HS-07", "ignores what it does not know in HELLO", &["R-EX-04", "R-HS-09"], &[], |c| {
        let host = map! {"name": "x", "grease_it": 1};
        let head = hello().with("grease_q", map! {"a": list![1]}).with("host", host);
        let more = limits(FRAME, WINDOW, CALLS).with("grease_l", 1);
        let mut s = c.greet(&head.with("limits", more))?;
        s.expect("HELLO", HANDSHAKE, is_hello).map(|_| ())
    }),
    must("HS-08", "closes if CALL comes before HELLO", &["R-HS-03"], &[], |c| {
        let mut s = c.spawn()?;
        s.send(&Frame::new(CALL, 1, &map! {"method": "plugin.activate", "deadline": 9000}, ()));
        s.closes("bad_state").map(|_| ())
    }),
    must("HS-09", "closes at a second HELLO", &["R-HS-07"], &[], |c| {
        let mut s = c.ready()?;
        s.send(&Frame::new(HELLO, 0, &hello(), ()));
        s.closes("bad_state").map(|_| ())
    }),
    must(
        "HS-10",
        "announces limits above the floors, and refuses lower ones",
        &["R-HS-06"],
        &[],
        |c| {
            let mut s = c.greet(&hello())?;
            let got = s.expect("HELLO", HANDSHAKE, is_hello)?;
            let limit = |key: &str| got.head.get("limits").and_then(|it| it.int(key)).unwrap_or(-1);
            let fine = limit("frame") >= 65_536 && limit("window") >= 16_384 && limit("calls") >= 1;
            if !fine {
                let seen = got.head.get("limits").unwrap_or(&Value::Nil).to_string();
                return Err(s.differs(
                    &got,
                    "frame from 65536, window from 16384, calls from 1",
                    seen,
                ));
            }
            let low = [(65_535, WINDOW, CALLS), (FRAME, 16_383, CALLS), (FRAME, WINDOW, 0)];
            for (frame, window, calls) in low {
                let mut s = c.greet(&hello().with("limits", limits(frame, window, calls)))?;
                s.closes("protocol_error")?;
            }
            Ok(())
        },
    ),
    must("HS-11", "never uses a feature that was not offered", &["R-HS-09", "R-HS-08"], &[], |c| {
        let mut s = c.ready_with(&hello().with("features", list![]))?;
        let body = c.activation(&mut s);
        s.activate(body)?;
        for method in super::methods(c) {
            let id = s.call(&method, ());
            s.end(id)?;
        }
        s.fence()?;
        Ok(())
    }),
    must(
        "HS-12",
        "ends if nobody says HELLO and stdin is over",
        &["R-PR-12", "R-PR-05"],
        &[],
        |c| {
            let mut s = c.spawn()?;
            s.half_close();
            s.exits_with(0, GRACE)?;
            s.none("frame", |_| true)
        },
    ),
    should("HS-13", "tells who starts it by hand what it is", &["R-PR-01"], &[], |c| {
        let mut s = c.spawn_by_hand()?;
        let exit = s.exits(GRACE)?;
        s.holds(exit == Exit::Code(2), "exit code 2", exit)?;
        let silent = s.unread() == 0 && s.foreign().is_none() && s.inbox().is_empty();
        s.holds(silent, "nothing on stdout", "something")?;
        let words = s.stderr();
        s.holds(!words.trim().is_empty(), "a sentence on stderr", "none")
    }),
    should("HS-14", "answers HELLO within a second", &["R-HS-13"], &[], |c| {
        let mut s = c.greet(&hello())?;
        s.expect("HELLO", Duration::from_secs(1), is_hello).map(|_| ())
    }),
];
