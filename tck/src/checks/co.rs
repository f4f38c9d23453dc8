//! Many calls at once.

use std::time::Duration;

use crate::{
    check::{Check, Need, must},
    codec::END,
    map,
    session::{GRACE, Session, code, refusal},
    value::Value,
};

const SLEEP: &[Need] = &[Need::Tck("sleep"), Need::Feature("async"), Need::Calls(2)];
const STUBBORN: &[Need] = &[Need::Tck("stubborn"), Need::Feature("async"), Need::Calls(2)];

/// As many calls as it takes, each of this method for this long.
fn fill(s: &mut Session, n: u32, method: &str, ms: u32) -> Vec<u32> {
    (0..n).map(|_| s.call(method, map! {"ms": ms})).collect()
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "CO-01",
        "runs as many calls at once as it announces",
        &["R-CA-06", "R-CN-05"],
        SLEEP,
        |c| {
            let n = c.profile().calls.min(64);
            let mut s = c.active()?;
            let ids = fill(&mut s, n - 1, "tck.sleep", 20_000);
            // The last one finds a place to run while all others do.
            let last = s.call("tck.echo", ());
            s.ok(last)?;
            s.none("END of another", |got| got.kind == END)?;
            for id in ids.iter().rev() {
                s.cancel(*id);
            }
            for id in ids {
                s.refused(id, &code("cancelled"))?;
            }
            Ok(())
        },
    ),
    must("CO-02", "answers what is fast before what is slow", &["R-CA-04"], SLEEP, |c| {
        let mut s = c.active()?;
        let slow = s.call("tck.sleep", map! {"ms": 700});
        let fast = s.call("tck.echo", ());
        let first = s.end(fast)?;
        let then = s.end(slow)?;
        s.is_ok(&then)?;
        s.before(&first, &then)
    }),
    must(
        "CO-03",
        "refuses the call that is one too many, and no other",
        &["R-GT-05", "R-CA-06"],
        SLEEP,
        |c| {
            let n = c.profile().calls.min(256);
            let mut s = c.active()?;
            let ids = fill(&mut s, n, "tck.sleep", 20_000);
            let more = s.call("tck.echo", ());
            s.refused(more, &refusal("resource_exhausted", "pb.too_many_calls", "safe"))?;
            s.none("END of another", |got| got.kind == END)?;
            for id in &ids {
                s.cancel(*id);
            }
            for id in ids {
                s.end(id)?;
            }
            s.lives()
        },
    ),
    must("CO-04", "can be deactivated when all its slots are taken", &["R-GT-06"], SLEEP, |c| {
        let n = c.profile().calls.min(64);
        let mut s = c.active()?;
        let ids = fill(&mut s, n, "tck.sleep", 300);
        s.fence()?;
        let step = s.call("plugin.deactivate", ());
        for id in ids {
            s.ok(id)?;
        }
        s.ok(step).map(|_| ())
    }),
    must(
        "CO-05",
        "frees a slot by END and not by CANCEL",
        &["R-CN-04", "R-CA-07"],
        STUBBORN,
        |c| {
            let n = c.profile().calls.min(64);
            let mut s = c.active()?;
            let ids = fill(&mut s, n, "tck.stubborn", 900);
            s.fence()?;
            // All slots are taken, so nobody can be asked whether they run.
            s.linger(Duration::from_millis(150))?;
            for id in &ids {
                s.cancel(*id);
            }
            let more = s.call("tck.echo", ());
            let refused =
                s.refused(more, &refusal("resource_exhausted", "pb.too_many_calls", "safe"))?;
            for id in ids {
                let end = s.end(id)?;
                s.before(&refused, &end)?;
            }
            s.lives()
        },
    ),
    must(
        "CO-06",
        "keeps many streams apart",
        &["R-FR-12", "R-ST-13"],
        &[Need::Tck("emit"), Need::Feature("async"), Need::Calls(2)],
        |c| {
            let n = c.profile().calls.min(16);
            let mut s = c.active()?;
            let args = map! {"n": 20, "size": 700};
            let ids: Vec<u32> = (0..n).map(|_| s.call("tck.emit", &args)).collect();
            for id in ids {
                let (items, end) = s.collect(id)?;
                s.is_ok(&end)?;
                s.holds(items.len() == 20, "20 items", items.len())?;
                for (at, item) in items.iter().enumerate() {
                    let due = map! {"i": at, "d": vec![at as u8; 700]};
                    s.holds(item.value() == due, &format!("item {at} of #{id}"), item.value())?;
                }
            }
            Ok(())
        },
    ),
    must(
        "CO-07",
        "serves ten thousand calls in a row",
        &["R-CA-01", "R-CA-02"],
        &[Need::Tck("echo")],
        |c| {
            let mut s = c.active()?;
            let at_once = c.profile().calls.clamp(1, 16);
            let said = map! {"n": 1};
            let mut left: u32 = 10_000;
            while left > 0 {
                let ids: Vec<u32> =
                    (0..at_once.min(left)).map(|_| s.call("tck.echo", &said)).collect();
                for id in ids {
                    let end = s.end_within(id, GRACE)?;
                    s.is_ok(&end)?;
                    left -= 1;
                }
            }
            let state = s.ask("tck.state", Value::map())?;
            let open = state.int("open_calls").unwrap_or(-1);
            s.holds(open <= 1, "no call left open", open)
        },
    ),
];
