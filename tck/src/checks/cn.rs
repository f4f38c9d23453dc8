//! Cancellation.

use std::time::Duration;

use crate::{
    check::{Check, Need, Stop, must, should},
    codec::{CALL, CANCEL, END, Frame, ITEM},
    map,
    session::{GRACE, Got, Session, code},
    value::Value,
};

const SLEEP: &[Need] = &[Need::Tck("sleep")];
const ASYNC: &[Need] = &[Need::Tck("sleep"), Need::Feature("async")];
const EMIT: &[Need] = &[Need::Tck("emit"), Need::Feature("async")];

/// END of a call that was cancelled: `cancelled`, or what was under way.
fn ends(s: &mut Session, id: u32) -> Result<Got, Stop> {
    let end = s.end(id)?;
    let code = end.err().and_then(|err| err.str("code")).unwrap_or("ok").to_owned();
    let fine = code == "ok" || code == "cancelled";
    if fine { Ok(end) } else { Err(s.differs(&end, "END `cancelled`, or the result", code)) }
}

pub(super) const CHECKS: &[Check] = &[
    must("CN-01", "answers a call that is cancelled", &["R-CN-01", "R-CA-01"], ASYNC, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.sleep", map! {"ms": 20_000});
        super::begun(&mut s, 1)?;
        s.cancel(id);
        s.refused(id, &code("cancelled"))?;
        s.fence()?;
        s.none("second END", |got| got.is(END, id))
    }),
    must("CN-02", "answers once to two CANCELs", &["R-CN-03", "R-CA-01"], SLEEP, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.sleep", map! {"ms": 300});
        s.cancel(id);
        s.cancel(id);
        ends(&mut s, id)?;
        s.cancel(id);
        s.fence()?;
        s.none("second END", |got| got.is(END, id))
    }),
    must("CN-03", "ignores CANCEL after END", &["R-CN-03"], &[Need::Active], |c| {
        let mut s = c.active()?;
        let id = s.call("grease.nothing", ());
        s.end(id)?;
        s.cancel(id);
        s.fence_silent()?;
        super::serves(c, &mut s)
    }),
    must("CN-04", "ignores CANCEL of a call that never was", &["R-CN-03", "R-CA-10"], &[], |c| {
        let mut s = c.ready()?;
        s.cancel(4001);
        s.fence_silent()
    }),
    must(
        "CN-05",
        "answers a call whose CANCEL comes with it",
        &["R-CN-01", "R-CA-01"],
        SLEEP,
        |c| {
            let mut s = c.active()?;
            for _ in 0..20 {
                let id = s.next_id();
                let head = map! {"method": "tck.sleep", "deadline": 60_000};
                let call = Frame::new(CALL, id, &head, map! {"ms": 30});
                s.send_all(&[call, Frame::new(CANCEL, id, &map! {"reason": "user"}, ())]);
                ends(&mut s, id)?;
            }
            s.fence()?;
            s.none("second END", |got| got.kind == END)
        },
    ),
    must("CN-06", "loses no END in five hundred races", &["R-CN-01", "R-CA-01"], SLEEP, |c| {
        let mut s = c.active()?;
        for _ in 0..500 {
            let id = s.call("tck.sleep", map! {"ms": c.rng.u32(0..3)});
            match c.rng.u32(0..4) {
                0 => {}
                1 => s.fence().map(|_| ())?,
                n => s.linger(Duration::from_micros(u64::from(n) * 400))?,
            }
            s.cancel(id);
            ends(&mut s, id)?;
        }
        s.fence()?;
        s.none("second END", |got| got.kind == END)
    }),
    must(
        "CN-07",
        "lets work that cannot be stopped end as it does",
        &["R-CN-01", "R-CN-04"],
        &[Need::Tck("stubborn")],
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.stubborn", map! {"ms": 500});
            if s.uses("async") {
                super::begun(&mut s, 1)?;
            } else {
                s.linger(Duration::from_millis(150))?;
            }
            s.cancel(id);
            s.ok(id)?;
            s.lives()
        },
    ),
    must("CN-08", "stops a stream that is cancelled", &["R-CN-01", "R-ST-15"], EMIT, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.emit", map! {"size": 100, "gap_ms": 1});
        for item in s.items(id, 5)? {
            s.credit(id, item.size as u64);
        }
        s.cancel(id);
        loop {
            let got = s.expect("ITEM or END", GRACE, |got| got.is(ITEM, id) || got.is(END, id))?;
            if got.kind == END {
                s.is_refusal(&got, &code("cancelled"))?;
                break;
            }
            s.credit(id, got.size as u64);
        }
        s.fence()?;
        s.none("item after END", |got| got.is(ITEM, id))
    }),
    must(
        "CN-09",
        "ends a stream that is cancelled without credit",
        &["R-ST-07", "R-ST-15"],
        EMIT,
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.emit", map! {"size": 4000});
            // The window is used up, and nothing more is given.
            s.until("the credit to be used up", GRACE, |s| {
                (s.monitor.credit_of(id) <= 0).then_some(())
            })?;
            s.cancel(id);
            s.refused(id, &code("cancelled")).map(|_| ())
        },
    ),
    must(
        "CN-10",
        "cancels what it called for a call that is cancelled",
        &["R-RV-07", "R-RV-04"],
        &[Need::Tck("reverse"), Need::Feature("async")],
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.reverse", map! {"method": "host.tck.wait"});
            let child = s.expect("CALL host.tck.wait", GRACE, |got| got.kind == CALL)?;
            s.cancel(id);
            let cancel =
                s.expect("CANCEL of the reverse call", GRACE, |got| got.is(CANCEL, child.id))?;
            let end = s.refused(id, &code("cancelled"))?;
            s.before(&cancel, &end)
        },
    ),
    should("CN-11", "ends a call soon after its CANCEL", &["R-CN-06"], ASYNC, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.sleep", map! {"ms": 20_000});
        super::begun(&mut s, 1)?;
        s.cancel(id);
        // 250 ms are due; the rest is for a machine that is busy.
        s.end_within(id, Duration::from_millis(900)).map(|_| ())
    }),
    must("CN-12", "keeps nothing of calls that were cancelled", &["R-CN-04"], ASYNC, |c| {
        let mut s = c.active()?;
        let n = c.profile().calls.min(16);
        for _ in 0..5 {
            let ids: Vec<u32> = (0..n).map(|_| s.call("tck.sleep", map! {"ms": 20_000})).collect();
            for id in &ids {
                s.cancel(*id);
            }
            for id in ids {
                ends(&mut s, id)?;
            }
        }
        let state = s.ask("tck.state", Value::map())?;
        let open = state.int("open_calls").unwrap_or(-1);
        s.holds(open <= 1, "no call left open", open)
    }),
    must(
        "CN-13",
        "cancels only calls of its own",
        &["R-CA-10"],
        &[Need::Tck("reverse"), Need::Feature("async")],
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.reverse", map! {"method": "host.tck.wait", "n": 3, "parallel": 3});
            for _ in 0..3 {
                s.expect("CALL host.tck.wait", GRACE, |got| got.kind == CALL)?;
            }
            s.cancel(id);
            s.refused(id, &code("cancelled"))?;
            s.none("CANCEL of a call of ours", |got| got.kind == CANCEL && got.id % 2 == 1)
        },
    ),
];
