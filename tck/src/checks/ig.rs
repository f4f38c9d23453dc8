//! The gate of a plugin that is not active.

use std::time::Duration;

use crate::{
    check::{Check, Need, must},
    map,
    session::{DRAINING, INACTIVE},
    value::Value,
};

const ACTIVE: &[Need] = &[Need::Active];
const ASYNC: &[Need] = &[Need::Tck("sleep"), Need::Feature("async"), Need::Calls(2)];

pub(super) const CHECKS: &[Check] = &[
    must("IG-01", "refuses all it provides while it is Ready", &["R-GT-01", "R-GT-02"], &[], |c| {
        let mut s = c.ready()?;
        for method in super::methods(c) {
            let id = s.call(&method, ());
            s.refused(id, &INACTIVE)?;
        }
        Ok(())
    }),
    must("IG-02", "refuses it again after it was active", &["R-GT-02", "R-LC-03"], ACTIVE, |c| {
        let mut s = c.active()?;
        s.deactivate()?;
        for method in super::methods(c) {
            let id = s.call(&method, ());
            s.refused(id, &INACTIVE)?;
        }
        Ok(())
    }),
    must("IG-03", "refuses calls while it is being activated", &["R-GT-02"], ASYNC, |c| {
        let mut s = c.ready()?;
        let step = s.call("plugin.activate", map! {"config": map! {"slow_ms": 400}});
        let id = s.call("tck.echo", ());
        let end = s.refused(id, &INACTIVE)?;
        let done = s.end(step)?;
        s.is_ok(&done)?;
        s.before(&end, &done)
    }),
    must("IG-04", "refuses calls while it drains", &["R-GT-04"], ASYNC, |c| {
        let mut s = c.active()?;
        let slow = s.call("tck.sleep", map! {"ms": 400});
        s.fence()?;
        let step = s.call("plugin.deactivate", ());
        let id = s.call("tck.echo", ());
        s.refused(id, &DRAINING)?;
        s.ok(slow)?;
        s.ok(step).map(|_| ())
    }),
    must("IG-05", "answers PING in every state", &["R-TO-11", "R-TO-13"], ASYNC, |c| {
        let mut s = c.ready()?;
        s.fence()?;
        let step = s.call("plugin.activate", map! {"config": map! {"slow_ms": 400}});
        let pong = s.fence()?;
        let end = s.end(step)?;
        s.before(&pong, &end)?;
        let slow = s.call("tck.sleep", map! {"ms": 400});
        let step = s.call("plugin.deactivate", ());
        let pong = s.fence()?;
        s.end(slow)?;
        let end = s.end(step)?;
        s.before(&pong, &end)
    }),
    must("IG-06", "calls nobody while it is Ready", &["R-RV-03", "R-LC-01"], &[], |c| {
        let mut s = c.ready()?;
        s.linger(Duration::from_millis(500))?;
        s.fence()?;
        s.none("CALL", |got| got.kind == crate::codec::CALL)
    }),
    must(
        "IG-07",
        "runs nothing of a call that its gate refuses",
        &["R-GT-08"],
        &[Need::Tck("state")],
        |c| {
            let mut s = c.ready()?;
            for method in super::methods(c) {
                let id = s.call(&method, ());
                s.refused(id, &INACTIVE)?;
            }
            let end = s.activate(Value::map())?;
            s.is_ok(&end)?;
            let seen = s.state_int("calls_started")?;
            s.holds(seen == 0, "no call that has begun", seen)
        },
    ),
    must("IG-08", "refuses before it looks at the body", &["R-GT-01"], &[], |c| {
        let mut s = c.ready()?;
        for method in super::methods(c) {
            let id = s.call(&method, vec![0xc1_u8, 0xff]);
            s.refused(id, &INACTIVE)?;
        }
        Ok(())
    }),
    must("IG-09", "says that a refused call may be sent again", &["R-GT-02"], &[], |c| {
        let mut s = c.ready()?;
        let id = s.call("grease.nothing", ());
        let end = s.end(id)?;
        let retry = end.err().and_then(|err| err.get("retry")).cloned().unwrap_or(Value::Nil);
        s.same(&end, "retry", &Value::from("safe"), &retry)
    }),
];
