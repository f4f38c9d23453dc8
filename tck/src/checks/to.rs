//! Budgets, and signs of life.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::{
    check::{Check, Need, must, should},
    codec::{CALL, END, Frame, NOTE, PING, PONG},
    map,
    session::{GRACE, INACTIVE, code},
    value::Value,
};

const ASYNC: &[Need] = &[Need::Tck("sleep"), Need::Feature("async")];
const STATE: &[Need] = &[Need::Tck("state")];

pub(super) const CHECKS: &[Check] = &[
    should("TO-01", "stops a call whose deadline is spent", &["R-TO-09"], ASYNC, |c| {
        let mut s = c.active()?;
        let head = map! {"method": "tck.sleep", "deadline": 100};
        let id = s.call_head(head, map! {"ms": 20_000});
        s.refused(id, &code("deadline_exceeded")).map(|_| ())
    }),
    must("TO-02", "sees budgets, key and attempt of a call", &["R-TO-01", "R-TO-02"], STATE, |c| {
        let mut s = c.active()?;
        let head = map! {"method": "tck.echo", "deadline": 60_000, "idle": 30_000, "key": "k-7", "attempt": 2};
        let id = s.call_head(head.clone(), ());
        s.ok(id)?;
        let state = s.state()?;
        let last = state.get("last").cloned().unwrap_or(Value::Nil);
        for key in ["method", "deadline", "idle", "key", "attempt"] {
            let (due, seen) = (head.get(key), last.get(key));
            s.holds(due == seen, &format!("`last` with {key}"), &last)?;
        }
        Ok(())
    }),
    must(
        "TO-03",
        "answers a call of a millisecond once",
        &["R-CA-01", "R-TO-01"],
        &[Need::Tck("echo")],
        |c| {
            let mut s = c.active()?;
            for deadline in [0, 1] {
                let id = s.call_head(map! {"method": "tck.echo", "deadline": deadline}, ());
                let end = s.end(id)?;
                if let Some(err) = end.err() {
                    let late = err.str("code") == Some("deadline_exceeded");
                    s.holds(late, "a result or deadline_exceeded", err)?;
                }
            }
            s.lives()
        },
    ),
    must("TO-04", "serves a call without budgets", &["R-TO-01", "R-HD-04"], &[Need::Active], |c| {
        let mut s = c.active()?;
        let id = s.call_head(map! {"method": "grease.nothing"}, ());
        s.refused(id, &code("unimplemented"))?;
        if c.profile().has("tck", "sleep") {
            let id = s.call_head(map! {"method": "tck.sleep"}, map! {"ms": 60});
            s.ok(id)?;
        }
        Ok(())
    }),
    must(
        "TO-05",
        "gives a reverse call no more time than is left",
        &["R-RV-05"],
        &[Need::Tck("reverse"), Need::Tck("sleep")],
        |c| {
            let mut s = c.active()?;
            for asked in [None, Some(600_000)] {
                let mut args = map! {"method": "host.tck.echo"};
                if let Some(ms) = asked {
                    args = args.with("deadline", ms);
                }
                let id = s.call_head(map! {"method": "tck.reverse", "deadline": 20_000}, args);
                let call = s.expect("CALL for the parent", GRACE, |got| got.kind == CALL)?;
                s.ok(id)?;
                let given = call.head.int("deadline");
                let fine =
                    given.is_none_or(|ms| ms <= 20_000) && (asked.is_none() || given.is_some());
                if !fine {
                    return Err(s.differs(
                        &call,
                        "a deadline of at most 20000",
                        call.head.to_string(),
                    ));
                }
            }
            Ok(())
        },
    ),
    must("TO-06", "answers PING with a PONG that says the same", &["R-TO-11"], &[], |c| {
        let mut s = c.ready()?;
        for body in [Vec::new(), vec![0; 64], b"\xc1\xff not MessagePack".to_vec()] {
            s.ping(body.clone());
            let got = s.expect("PONG", GRACE, |got| got.kind == PONG)?;
            s.holds(got.body == body, "the body of the PING", crate::value::hex(&got.body))?;
        }
        s.ping(vec![0; 65]);
        s.closes("protocol_error").map(|_| ())
    }),
    must(
        "TO-07",
        "answers PING while a call computes",
        &["R-TO-13"],
        &[Need::Tck("spin"), Need::Feature("async")],
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.spin", map! {"ms": 1500});
            // A fence would show that the call was read; it is to have begun.
            s.linger(Duration::from_millis(150))?;
            let pong = s.fence()?;
            let end = s.end_within(id, Duration::from_secs(20))?;
            s.is_ok(&end)?;
            s.before(&pong, &end)
        },
    ),
    must("TO-08", "answers PING after what it refused before it", &["R-TO-12"], &[], |c| {
        let mut s = c.ready()?;
        let head = map! {"method": "grease.nothing", "deadline": 9000};
        let ids: Vec<u32> = (0..8).map(|_| s.next_id()).collect();
        let mut frames = Vec::new();
        for id in &ids {
            frames.push(Frame::new(CALL, *id, &head, ()));
        }
        frames.push(Frame::new(PING, 0, &Value::map(), vec![1_u8]));
        s.send_all(&frames);
        let pong = s.expect("PONG", GRACE, |got| got.kind == PONG)?;
        for id in ids {
            let end = s.refused(id, &INACTIVE)?;
            s.before(&end, &pong)?;
        }
        Ok(())
    }),
    must("TO-09", "ignores a PONG that nobody asked for", &["R-TO-11"], &[], |c| {
        let mut s = c.ready()?;
        s.send(&Frame::new(PONG, 0, &Value::map(), vec![9_u8; 9]));
        s.fence_silent()
    }),
    must("TO-10", "answers a thousand PINGs in order", &["R-TO-11", "R-TO-08"], &[], |c| {
        let mut s = c.ready()?;
        for from in (0..1000_u32).step_by(250) {
            let ping = |n: u32| Frame::new(PING, 0, &Value::map(), n.to_be_bytes().to_vec());
            s.send_all(&(from..from + 250).map(ping).collect::<Vec<_>>());
            for n in from..from + 250 {
                let got = s.expect(&format!("PONG {n}"), GRACE, |got| got.kind == PONG)?;
                let seen = crate::value::hex(&got.body);
                s.holds(got.body == n.to_be_bytes(), &format!("PONG {n} in order"), seen)?;
            }
        }
        Ok(())
    }),
    should("TO-11", "tells of its progress twice in the idle budget", &["R-TO-10"], ASYNC, |c| {
        let mut s = c.active()?;
        let head = map! {"method": "tck.sleep", "deadline": 60_000, "idle": 1000};
        let id = s.call_head(head, map! {"ms": 2600});
        let mut last = Instant::now();
        // Half a second is due; the rest is for a machine that is busy.
        let most = s.scaled(Duration::from_millis(900));
        loop {
            let got =
                s.expect("NOTE progress or END", GRACE, |got| got.is(NOTE, id) || got.is(END, id))?;
            let silence = got.at.duration_since(last);
            s.holds(
                silence <= most,
                "a sign at least each half of idle",
                format!("{} ms of silence", silence.as_millis()),
            )?;
            last = got.at;
            if got.kind == END {
                return s.is_ok(&got);
            }
        }
    }),
    must(
        "TO-12",
        "goes on after it was stopped for a while",
        &["R-TO-03", "R-TO-15"],
        &[Need::Active],
        |c| {
            let mut s = c.active()?;
            s.signal(Signal::SIGSTOP);
            s.linger(Duration::from_secs(1))?;
            s.signal(Signal::SIGCONT);
            super::serves(c, &mut s)?;
            // What it makes of the signal may come later.
            s.linger(Duration::from_millis(300))?;
            super::serves(c, &mut s)
        },
    ),
];
