//! Drain, idle stop and shutdown.

use std::time::Duration;

use crate::{
    check::{Check, Need, Stop, must},
    codec::{CALL, CANCEL, END, Frame},
    map,
    session::{DRAINING, GRACE, code, refusal},
    value::Value,
};

const SLEEP: &[Need] = &[Need::Tck("sleep"), Need::Feature("async"), Need::Calls(2)];
const REVERSE: &[Need] = &[Need::Tck("reverse"), Need::Feature("async")];
const ACTIVE: &[Need] = &[Need::Active];

pub(super) const CHECKS: &[Check] = &[
    must(
        "DR-01",
        "finishes what is open before it is deactivated",
        &["R-LC-09", "R-LC-03"],
        SLEEP,
        |c| {
            let mut s = c.active()?;
            let ids = [300, 600].map(|ms| s.call("tck.sleep", map! {"ms": ms}));
            s.fence()?;
            let step = s.call("plugin.deactivate", ());
            let done = s.end(step)?;
            s.is_ok(&done)?;
            for id in ids {
                let end = s.end(id)?;
                s.is_ok(&end)?;
                s.before(&end, &done)?;
            }
            Ok(())
        },
    ),
    must(
        "DR-02",
        "has nothing open in either direction when it is deactivated",
        &["R-LC-09", "R-RV-04"],
        REVERSE,
        |c| {
            let mut s = c.active()?;
            s.serve(false);
            let id = s.call("tck.reverse", map! {"method": "host.tck.echo"});
            let child = s.expect("CALL", GRACE, |got| got.kind == CALL)?;
            let step = s.call("plugin.deactivate", ());
            // A fence shows that the step was read; it is to have begun.
            s.linger(Duration::from_millis(150))?;
            s.none("END", |got| got.kind == END)?;
            s.answer(child.id, ());
            let end = s.end(id)?;
            let done = s.end(step)?;
            s.is_ok(&done)?;
            s.before(&end, &done)
        },
    ),
    must(
        "DR-03",
        "says that it is busy if it has work of its own",
        &["R-LC-10", "R-LC-23", "R-TK-10"],
        REVERSE,
        |c| {
            let mut s = c.active()?;
            s.ask("tck.reverse", map! {"method": "host.tck.wait", "detach": true})?;
            let child = s.expect("CALL in the background", GRACE, |got| got.kind == CALL)?;
            let step = s.call("plugin.deactivate", map! {"if_idle": true});
            s.refused(step, &refusal("failed_precondition", "pb.busy", "safe"))?;
            s.lives()?;
            s.answer(child.id, ());
            s.fence()?;
            s.deactivate().map(|_| ())
        },
    ),
    must("DR-04", "lets itself be stopped when it is idle", &["R-LC-10", "R-LC-03"], ACTIVE, |c| {
        let mut s = c.active()?;
        super::serves(c, &mut s)?;
        let step = s.call("plugin.deactivate", map! {"if_idle": true});
        s.ok(step)?;
        s.goodbye()
    }),
    must(
        "DR-05",
        "finishes a call of its own that crosses the deactivation",
        &["R-LC-09", "R-LC-10"],
        REVERSE,
        |c| {
            let mut s = c.active()?;
            s.ask("tck.reverse", map! {"method": "host.tck.wait", "detach": true})?;
            let step = s.call("plugin.deactivate", ());
            let child = s.expect("CALL in the background", GRACE, |got| got.kind == CALL)?;
            // A fence shows that the step was read; it is to have begun.
            s.linger(Duration::from_millis(150))?;
            s.none("END of the deactivation", |got| got.is(END, step))?;
            s.answer(child.id, ());
            s.ok(step).map(|_| ())
        },
    ),
    must("DR-06", "ends what is cancelled while it drains", &["R-CN-01", "R-LC-09"], SLEEP, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.sleep", map! {"ms": 20_000});
        s.fence()?;
        let step = s.call("plugin.deactivate", ());
        s.cancel(id);
        let end = s.refused(id, &code("cancelled"))?;
        let done = s.end(step)?;
        s.is_ok(&done)?;
        s.before(&end, &done)
    }),
    must("DR-07", "stays when nobody uses it", &["R-LC-08"], ACTIVE, |c| {
        let mut s = c.active()?;
        s.linger(Duration::from_secs(2))?;
        s.holds(s.foreign().is_none(), "silence", "bytes")?;
        super::serves(c, &mut s)
    }),
    must(
        "DR-08",
        "serves on after it has asked to be replaced",
        &["R-NO-06"],
        &[Need::Tck("note")],
        |c| {
            let mut s = c.active()?;
            s.ask("tck.note", map! {"topic": "retire", "reason": "memory"})?;
            s.expect("NOTE retire", GRACE, |got| got.head.str("topic") == Some("retire"))?;
            s.lives()?;
            s.deactivate()?;
            s.goodbye()
        },
    ),
    must(
        "DR-09",
        "loses no call around a deactivation",
        &["R-CA-01", "R-GT-04", "R-GT-02", "R-GT-08"],
        SLEEP,
        |c| {
            let mut s = c.active()?;
            let head = map! {"method": "tck.sleep", "deadline": 60_000};
            for _ in 0..10 {
                let before = c.rng.u32(0..8);
                let mut frames = Vec::new();
                let mut ids = Vec::new();
                let mut step = 0;
                for n in 0..10 {
                    if n == before {
                        step = s.next_id();
                        let body = map! {"if_idle": c.rng.bool()};
                        let step_head = map! {"method": "plugin.deactivate", "deadline": 60_000};
                        frames.push(Frame::new(CALL, step, &step_head, body));
                    }
                    let id = s.next_id();
                    frames.push(Frame::new(CALL, id, &head, map! {"ms": c.rng.u32(0..4)}));
                    ids.push(id);
                }
                s.send_all(&frames);
                for id in ids {
                    let end = s.end(id)?;
                    let retry = end.err().map(|err| err.str("retry").unwrap_or("no").to_owned());
                    let fine = retry.as_deref().is_none_or(|retry| retry == "safe");
                    s.holds(fine, "a result, or an error with retry safe", &end.head)?;
                }
                let done = s.end(step)?;
                if done.err().is_none() {
                    let body = c.activation(&mut s);
                    let end = s.activate(body).map_err(Stop::blocks)?;
                    s.is_ok(&end)?;
                }
            }
            s.fence()?;
            s.none("second END", |got| got.kind == END)
        },
    ),
    must(
        "DR-10",
        "disposes of what it opened",
        &["R-LC-13"],
        &[Need::Tck("stray"), Need::Tck("state")],
        |c| {
            let mut s = c.active()?;
            s.ask("tck.stray", map! {"text": "x", "via": "child", "stay": true})?;
            let open = s.state_int("children")?;
            s.holds(open == 1, "one child that stays", open)?;
            let step = s.call("plugin.deactivate", ());
            let late = s.call("tck.echo", ());
            s.ok(step)?;
            let end = s.end(late)?;
            let retry = end.err().and_then(|err| err.str("retry").map(str::to_owned));
            s.holds(
                retry.as_deref() == Some("safe"),
                &format!("{DRAINING}, or inactive"),
                &end.head,
            )?;
            let end = s.activate(Value::map())?;
            s.is_ok(&end)?;
            let open = s.state_int("children")?;
            s.holds(open == 0, "no child left", open)?;
            s.none("CANCEL", |got| got.kind == CANCEL)
        },
    ),
];
