//! Calls.

use crate::{
    check::{Check, Need, must},
    codec::{CALL, CANCEL, CREDIT, END, Frame, ITEM, NOTE},
    map,
    session::{BAD_BODY, INACTIVE, code},
    value::Value,
};

const ACTIVE: &[Need] = &[Need::Active];
const ECHO: &[Need] = &[Need::Tck("echo")];

pub(super) const CHECKS: &[Check] = &[
    must("CA-01", "hands back what it was called with", &["R-CA-01", "R-HD-16"], ECHO, |c| {
        let mut s = c.active()?;
        let values = [
            map! {"a": 1, "b": Value::Array(vec![(-1).into(), 1.5.into(), true.into(), ().into()])},
            Value::from("text"),
            Value::from(u64::MAX),
            Value::Nil,
        ];
        for value in values {
            let id = s.call("tck.echo", &value);
            let end = s.end(id)?;
            s.is_ok(&end)?;
            s.holds(end.body == value.pack(), &format!("the body of {value}"), end.value())?;
        }
        let id = s.call("tck.echo", ());
        let end = s.end(id)?;
        s.is_ok(&end)?;
        s.holds(end.body.is_empty(), "no body", end.value())
    }),
    must("CA-02", "answers unimplemented to what it does not know", &["R-GT-07"], ACTIVE, |c| {
        let mut s = c.active()?;
        for method in ["grease.nothing", "plugin.grease", "a.b_c.d"] {
            let id = s.call(method, map! {"x": 1});
            s.refused(id, &code("unimplemented"))?;
        }
        super::serves(c, &mut s)
    }),
    must(
        "CA-03",
        "refuses a body that it cannot decode, and lives on",
        &["R-HD-10", "R-HD-12"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            let bodies: [&[u8]; 6] = [
                b"\xc1",
                b"\x81\xa1a",
                b"\xa2\xff\xfe",
                b"\xd4\x01\x00",
                b"\x80\x80",
                b"\x81\x07\x07",
            ];
            for method in super::methods(c).iter().take(3) {
                for body in bodies {
                    let id = s.call(method, body);
                    s.refused(id, &BAD_BODY)?;
                }
            }
            super::serves(c, &mut s)
        },
    ),
    must(
        "CA-04",
        "refuses a body that is not the map its method takes",
        &["R-HD-12", "R-TL-06"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            let has = |name: &str| c.profile().has("tck", name);
            if has("sleep") {
                for body in [list_body(), map! {"ms": "5"}, map! {"ms": -5}, map! {}] {
                    let id = s.call("tck.sleep", &body);
                    s.refused(id, &BAD_BODY)?;
                }
            }
            for tool in c.entries("tool") {
                let Some(name) = tool.str("name") else { continue };
                for args in [list_body(), Value::from("text")] {
                    let id = s.call("tool.call", map! {"name": name, "args": args});
                    s.refused(id, &code("invalid_argument"))?;
                }
                let id = s.call("tool.call", map! {"name": 7});
                s.refused(id, &BAD_BODY)?;
            }
            super::serves(c, &mut s)
        },
    ),
    must("CA-05", "answers every call with just one END", &["R-CA-01", "R-CA-05"], ACTIVE, |c| {
        let mut s = c.active()?;
        for method in super::methods(c) {
            let id = s.call(&method, vec![0xc1_u8]);
            s.end(id)?;
            s.fence()?;
            s.none("second END", |got| got.is(END, id))?;
        }
        super::serves(c, &mut s)?;
        s.fence().map(|_| ())
    }),
    must("CA-06", "says nothing about a call after its END", &["R-CA-05"], ACTIVE, |c| {
        let mut s = c.active()?;
        let mut ended = Vec::new();
        for name in ["echo", "emit", "note"] {
            if !c.profile().has("tck", name) {
                continue;
            }
            let args = map! {"n": 2, "topic": "progress", "count": 3};
            let id = s.call(&format!("tck.{name}"), args);
            s.end(id)?;
            ended.push(id);
        }
        super::serves(c, &mut s)?;
        s.fence()?;
        // Whatever came after END would be behind it in the inbox of the monitor too.
        s.none("frame about an ended call", |got| ended.contains(&got.id) && got.kind == END)
    }),
    must("CA-07", "takes ids with gaps", &["R-CA-02"], ACTIVE, |c| {
        let mut s = c.active()?;
        for id in [11, 101, 70_001, 2_147_483_001] {
            s.skip_to(id);
            super::serves(c, &mut s)?;
        }
        Ok(())
    }),
    must("CA-08", "closes at an id that was used or is too low", &["R-CA-02"], &[], |c| {
        for second in [9, 7] {
            let mut s = c.ready()?;
            let head = map! {"method": "grease.nothing", "deadline": 9000};
            s.send(&Frame::new(CALL, 9, &head, ()));
            s.refused(9, &INACTIVE)?;
            s.send(&Frame::new(CALL, second, &head, ()));
            s.closes("bad_id")?;
        }
        Ok(())
    }),
    must("CA-09", "closes at an id of its own parity, or 0", &["R-CA-02", "R-CA-12"], &[], |c| {
        for (kind, id) in [(CALL, 0), (CALL, 4), (END, 0), (CANCEL, 0), (CREDIT, 0), (ITEM, 0)] {
            let mut s = c.ready()?;
            let head = match kind {
                CALL => map! {"method": "grease.nothing", "deadline": 9000},
                CREDIT => map! {"n": 1},
                _ => Value::map(),
            };
            s.send(&Frame::new(kind, id, &head, ()));
            s.closes("bad_id")?;
        }
        Ok(())
    }),
    must(
        "CA-10",
        "ignores what it does not know in the head of a call",
        &["R-EX-04", "R-CA-13", "R-RV-12"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            let head = map! {
                "method": "grease.nothing", "deadline": 60_000, "grease_x": map! {"a": 1},
                "trace": 7, "parent": 2, "key": "k", "attempt": 3,
            };
            let id = s.call_head(head.clone(), ());
            s.refused(id, &code("unimplemented"))?;
            if c.profile().has("tck", "echo") {
                let id = s.call_head(head.with("method", "tck.echo"), ());
                s.ok(id)?;
            }
            Ok(())
        },
    ),
    must(
        "CA-11",
        "survives code that fails in a way nobody foresaw",
        &["R-CA-08"],
        &[Need::Tck("fail")],
        |c| {
            let mut s = c.active()?;
            for _ in 0..2 {
                let id = s.call("tck.fail", map! {"throw": true});
                s.refused(id, &code("internal"))?;
                s.lives()?;
            }
            Ok(())
        },
    ),
    must(
        "CA-12",
        "ignores what comes too late about a call",
        &["R-CA-10", "R-CN-03"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            let id = s.call("grease.nothing", ());
            s.end(id)?;
            s.cancel(id);
            s.send(&Frame::new(NOTE, id, &map! {"topic": "progress"}, ()));
            s.end_input(id);
            if s.uses("stream") {
                s.credit(id, 5);
            }
            if s.uses("stream.in") {
                s.item(id, map! {"late": true});
            }
            s.fence_silent()?;
            super::serves(c, &mut s)
        },
    ),
    must(
        "CA-13",
        "gives its own calls even ids that rise",
        &["R-CA-02"],
        &[Need::Tck("reverse")],
        |c| {
            let mut s = c.active()?;
            let args = map! {"method": "host.tck.echo", "n": 5, "parallel": 2};
            s.ask("tck.reverse", &args)?;
            s.ask("tck.reverse", args).map(|_| ())
        },
    ),
    must(
        "CA-14",
        "closes at ITEM or END of a call that never was",
        &["R-CA-10", "R-CA-11"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            s.end_input(9001);
            s.closes("bad_id")?;
            let mut s = c.active()?;
            s.item(9001, ());
            let due = if s.uses("stream.in") { "bad_id" } else { "bad_state" };
            s.closes(due)?;
            if s.uses("reverse") {
                let mut s = c.active()?;
                s.answer(9002, ());
                s.closes("bad_id")?;
            }
            Ok(())
        },
    ),
    must("CA-15", "minds the case of methods", &["R-GT-07"], ACTIVE, |c| {
        let mut s = c.active()?;
        for method in super::methods(c) {
            for other in [method.to_uppercase(), format!("{} ", method), format!("{method}\0")] {
                let id = s.call(&other, ());
                s.refused(id, &code("unimplemented"))?;
            }
        }
        Ok(())
    }),
];

fn list_body() -> Value {
    Value::Array(vec![1.into()])
}
