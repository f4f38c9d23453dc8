//! What a plugin survives.

use std::time::Duration;

use crate::{
    case::{Case, hello},
    check::{Check, Need, Stop, must, should},
    codec::{self, CALL, CANCEL, CREDIT, END, Frame, HELLO, ITEM, NOTE, PING, PONG, header},
    list, map,
    process::Exit,
    session::{
        ALREADY_ACTIVE, BAD_BODY, DRAINING, GRACE, INACTIVE, PROMPT, Refusal, Session, code,
    },
    value::Value,
    walk::Walk,
};

const ECHO: &[Need] = &[Need::Tck("echo")];
const WALK: &[Need] = &[Need::Tck("sleep")];
const ACTIVE: &[Need] = &[Need::Active];
const STRAY: &[Need] = &[Need::Tck("stray")];
const ASYNC: &[Need] = &[Need::Tck("sleep"), Need::Feature("async"), Need::Calls(2)];

/// A short life in bytes: from the first CALL to CLOSE.
fn life(case: &Case<'_>) -> Vec<u8> {
    let call = |id: u32, method: &str, body: Value| {
        Frame::new(CALL, id, &map! {"method": method, "deadline": 60_000}, body).bytes()
    };
    let method = super::methods(case).into_iter().next().unwrap_or_else(|| "grease.x".into());
    [
        call(1, "plugin.activate", map! {"grant": list![], "config": ()}),
        call(3, &method, map! {"name": "x", "args": map! {"a": list![1, 2.5, "b"]}}),
        Frame::new(PING, 0, &Value::map(), vec![7_u8; 8]).bytes(),
        Frame::new(CANCEL, 3, &map! {"reason": "user"}, ()).bytes(),
        call(5, "plugin.deactivate", map! {"if_idle": false}),
        Frame::new(codec::CLOSE, 0, &map! {"code": "ok"}, ()).bytes(),
    ]
    .concat()
}

/// Whatever it was told, it ends by itself, and by no signal.
fn ends_by_itself(s: &mut Session) -> Result<(), Stop> {
    s.half_close();
    match s.exits(GRACE + Duration::from_secs(1))? {
        Exit::Code(0 | 1) => Ok(()),
        exit => {
            Err(s.failure("an end of its own, with exit code 0 or 1", format!("it {exit}"), None))
        }
    }
}

/// What a frame in a state is answered with.
enum Due {
    Refused(Refusal),
    Unimplemented,
    Nothing,
    Closes(&'static str),
}

pub(super) const CHECKS: &[Check] = &[
    must("RB-01", "survives noise", &["R-FR-07", "R-FR-15", "R-ER-01"], &[], |c| {
        for first in [0xC1_u8, 0x00] {
            let mut s = c.ready()?;
            let mut noise: Vec<u8> =
                std::iter::repeat_with(|| c.rng.u8(..)).take(1 << 20).collect();
            noise[0] = first;
            s.raw(&noise);
            ends_by_itself(&mut s)?;
        }
        Ok(())
    }),
    must("RB-02", "survives a bit that is wrong", &["R-FR-15", "R-ER-01", "R-HD-12"], &[], |c| {
        let bytes = life(c);
        for _ in 0..32 {
            let mut wrong = bytes.clone();
            let at = c.rng.usize(..wrong.len());
            wrong[at] ^= 1 << c.rng.u8(0..8);
            let mut s = c.ready()?;
            s.raw(&wrong);
            ends_by_itself(&mut s)?;
        }
        Ok(())
    }),
    must("RB-03", "closes at a field of another type", &["R-HD-09"], &[], |c| {
        let call = |key: &str, value: Value| {
            Frame::new(CALL, 1, &map! {"method": "a.b"}.with(key, value), ())
        };
        let frames = [
            call("method", 7.into()),
            call("method", ().into()),
            call("deadline", "soon".into()),
            call("deadline", (-1).into()),
            call("idle", 1.5.into()),
            call("in", 1.into()),
            call("scopes", "host.x".into()),
            call("key", 7.into()),
            call("attempt", 256.into()),
            Frame::new(CANCEL, 1, &map! {"reason": 7}, ()),
            Frame::new(CREDIT, 1, &map! {}, ()),
            Frame::new(END, 2, &map! {"err": map! {"reason": "no.code"}}, ()),
            Frame::new(NOTE, 0, &map! {}, ()),
            Frame::new(PING, 2, &map! {}, ()),
        ];
        for frame in frames {
            let mut s = c.ready()?;
            s.send(&frame);
            s.closes("protocol_error")?;
        }
        let mut s = c.greet(&hello().with("limits", 7))?;
        s.closes("protocol_error").map(|_| ())
    }),
    must("RB-04", "survives a stream that ends anywhere", &["R-FR-11", "R-PR-12"], &[], |c| {
        let bytes = life(c);
        let step = bytes.len() / 30 + 1;
        let from = c.rng.usize(..step);
        for end in (from..bytes.len()).step_by(step) {
            let mut s = c.ready()?;
            s.raw(&bytes[..end]);
            ends_by_itself(&mut s)?;
        }
        Ok(())
    }),
    must(
        "RB-05",
        "survives bodies that promise too much",
        &["R-HD-11", "R-HD-12", "R-FR-06"],
        ECHO,
        |c| {
            let mut s = c.active()?;
            let before = c.peak(&s)?;
            let deep = [vec![0x91; 60_000], vec![0x90]].concat();
            let bombs: [&[u8]; 6] = [
                b"\xdd\xff\xff\xff\xff",
                b"\xdf\xff\xff\xff\xff",
                b"\xdb\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xff",
                b"\x92\xdd\xff\xff\xff\xff\xc0",
                &deep,
            ];
            for bomb in bombs {
                let id = s.call("tck.echo", bomb);
                s.refused(id, &BAD_BODY)?;
            }
            s.lives()?;
            // What was given back meanwhile counts too.
            let grown = c.peak(&s)?.saturating_sub(before);
            s.holds(grown < 32 << 20, "less than 32 MiB more", format!("{grown} B more"))
        },
    ),
    must(
        "RB-06",
        "keeps its word on random walks",
        &["R-CA-01", "R-CA-10", "R-LC-03", "R-GT-01"],
        WALK,
        |c| {
            let calls = c.profile().calls.min(8) as usize;
            let walk = Walk::random(&mut c.rng, calls, 400);
            let mut s = c.ready()?;
            walk.run(&mut s)
        },
    ),
    must("RB-07", "goes on reading while nobody reads what it says", &["R-FR-14"], ASYNC, |c| {
        let mut s = c.active()?;
        s.pause_reading();
        let n = c.profile().calls.min(16);
        let size = (c.profile().frame as usize - 1000).min(256 << 10);
        let body = Value::from(vec![5_u8; size]);
        let ids: Vec<u32> = (0..n).map(|_| s.call("tck.echo", &body)).collect();
        s.flushed()?;
        s.resume_reading();
        for id in ids {
            let end = s.end_within(id, PROMPT)?;
            s.is_ok(&end)?;
            s.holds(end.body == body.pack(), "the same bytes", "others")?;
        }
        s.lives()
    }),
    must(
        "RB-08",
        "lets nothing stray onto its stdout",
        &["R-PR-06", "R-PR-07", "R-PR-08"],
        STRAY,
        |c| {
            for via in ["print", "child", "stderr"] {
                let mut s = c.active()?;
                let id =
                    s.call("tck.stray", map! {"text": "a stray line", "via": via, "bytes": 4000});
                s.ok(id)?;
                s.fence()?;
                s.holds(s.foreign().is_none(), "frames only", "other bytes")?;
                s.lives()?;
                s.until("the stray line on stderr", GRACE, |s| {
                    s.stderr().contains("a stray line").then_some(())
                })?;
            }
            Ok(())
        },
    ),
    must(
        "RB-09",
        "is not held up by what it writes to stderr",
        &["R-PR-09", "R-PR-10"],
        STRAY,
        |c| {
            let mut s = c.active()?;
            let flood = map! {"text": "x".repeat(100), "via": "stderr", "bytes": 10 << 20};
            let id = s.call("tck.stray", flood);
            let end = s.end_within(id, Duration::from_secs(30))?;
            s.is_ok(&end)?;
            s.lives()
        },
    ),
    should(
        "RB-10",
        "reacts in every state as the tables say",
        &["R-GT-01", "R-CA-10", "R-CA-11"],
        ASYNC,
        |c| {
            for state in ["Ready", "Activating", "Active", "Draining"] {
                for probe in [
                    "activate",
                    "deactivate",
                    "call",
                    "ping",
                    "pong",
                    "note",
                    "cancel",
                    "end",
                    "item",
                    "credit",
                ] {
                    let mut s = c.ready()?;
                    let mut pending = Vec::new();
                    if state == "Activating" {
                        pending.push(
                            s.call("plugin.activate", map! {"config": map! {"slow_ms": 300}}),
                        );
                    } else if state != "Ready" {
                        let end = s.activate(Value::map()).map_err(Stop::blocks)?;
                        s.is_ok(&end).map_err(Stop::blocks)?;
                    }
                    if state == "Draining" {
                        pending.push(s.call("tck.sleep", map! {"ms": 300}));
                        pending.push(s.call("plugin.deactivate", ()));
                    }
                    let (late, has_in) = (8001, s.uses("stream.in"));
                    let (id, due) = match probe {
                        "activate" => (s.call("plugin.activate", ()), state_of(state, probe)),
                        "deactivate" => (s.call("plugin.deactivate", ()), state_of(state, probe)),
                        "call" => (s.call("grease.x", ()), state_of(state, probe)),
                        "ping" => {
                            s.fence()?;
                            (0, Due::Nothing)
                        }
                        other => {
                            let (kind, head) = match other {
                                "pong" => (PONG, Value::map()),
                                "note" => (NOTE, map! {"topic": "grease.x"}),
                                "cancel" => (CANCEL, Value::map()),
                                "end" => (END, Value::map()),
                                "item" => (ITEM, Value::map()),
                                _ => (CREDIT, map! {"n": 1}),
                            };
                            let id = if matches!(kind, PONG | NOTE) { 0 } else { late };
                            s.send(&Frame::new(kind, id, &head, ()));
                            let has_out = s.uses("stream");
                            let due = match kind {
                                END => Due::Closes("bad_id"),
                                ITEM => Due::Closes(if has_in { "bad_id" } else { "bad_state" }),
                                CREDIT if !has_out => Due::Closes("bad_state"),
                                _ => Due::Nothing,
                            };
                            (0, due)
                        }
                    };
                    match due {
                        Due::Refused(refusal) => {
                            s.refused(id, &refusal)?;
                        }
                        Due::Unimplemented => {
                            s.refused(id, &code("unimplemented"))?;
                        }
                        Due::Closes(code) => {
                            s.closes(code)?;
                            continue;
                        }
                        Due::Nothing if id != 0 => {
                            let end = s.end(id)?;
                            s.is_ok(&end)?;
                        }
                        Due::Nothing => {}
                    }
                    for id in pending {
                        let end = s.end(id)?;
                        s.is_ok(&end)?;
                    }
                    s.fence()?;
                    s.none("HELLO or CLOSE", |got| matches!(got.kind, HELLO | codec::CLOSE))?;
                }
            }
            let mut s = c.ready()?;
            s.raw(&header(0x7F, 1, 0, 0));
            s.closes("unsupported_frame").map(|_| ())
        },
    ),
    must(
        "RB-11",
        "lives through all of this in one life",
        &["R-CA-08", "R-HD-12", "R-CN-03"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            for _ in 0..20 {
                let id = s.call("grease.x", vec![0xc1_u8]);
                s.refused(id, &code("unimplemented"))?;
                s.cancel(id);
                s.send(&Frame::new(0xE9, 7, &Value::map(), ()));
            }
            s.fence_silent()?;
            super::serves(c, &mut s)?;
            s.goodbye()
        },
    ),
];

/// What the gate says to a CALL [R-GT-01].
fn state_of(state: &str, probe: &str) -> Due {
    match (state, probe) {
        ("Ready", "activate") | ("Active", "deactivate") => Due::Nothing,
        ("Ready" | "Activating", _) => Due::Refused(INACTIVE),
        ("Active", "activate") => Due::Refused(ALREADY_ACTIVE),
        ("Active", _) => Due::Unimplemented,
        _ => Due::Refused(DRAINING),
    }
}
