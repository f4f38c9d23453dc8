//! Streams and their credit.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::{
    case::{CALLS, FRAME, hello, limits},
    check::{Check, Need, Stop, must, should},
    codec::{CREDIT, END, ITEM},
    map,
    session::{GRACE, Session, code},
    value::{Value, hex},
};

const EMIT: &[Need] = &[Need::Tck("emit")];
const TWO: &[Need] = &[Need::Tck("emit"), Need::Feature("async"), Need::Calls(2)];
const SINK: &[Need] = &[Need::Tck("sink")];
const PIPE: &[Need] = &[Need::Tck("pipe")];
/// The smallest window that a receiver may have.
const SMALL: u32 = 16_384;

/// Our side with a window of this size.
fn with_window(window: u32) -> Value {
    hello().with("limits", limits(FRAME, window, CALLS))
}

/// Waits until the credit of a stream is used up, and that nothing more comes then.
fn stalls(s: &mut Session, id: u32) -> Result<(), Stop> {
    s.until("the credit to be used up", GRACE, |s| (s.monitor.credit_of(id) <= 0).then_some(()))?;
    let since = s.transcript.len();
    s.fence()?;
    s.none("ITEM without credit", |got| got.is(ITEM, id) && got.entry >= since)
}

/// Sends bytes as items of an input and returns their digest.
fn pour(s: &mut Session, id: u32, items: u32, size: usize) -> Result<String, Stop> {
    let mut digest = Sha256::new();
    for n in 0..items {
        let bytes = vec![n as u8; size];
        digest.update(&bytes);
        s.feed(id, Value::from(bytes))?;
    }
    s.end_input(id);
    Ok(hex(&digest.finalize()))
}

pub(super) const CHECKS: &[Check] = &[
    must("ST-01", "sends items in order and END after them", &["R-ST-13"], EMIT, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.emit", map! {"n": 30, "size": 9});
        let (items, end) = s.collect(id)?;
        s.is_ok(&end)?;
        s.holds(items.len() == 30, "30 items", items.len())?;
        for (at, item) in items.iter().enumerate() {
            let due = map! {"i": at, "d": vec![at as u8; 9]};
            s.same(item, "the item", &due, &item.value())?;
        }
        s.same(&end, "the result", &map! {"n": 30}, &end.value())
    }),
    must("ST-02", "ends a stream without items by END alone", &["R-ST-13"], EMIT, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.emit", map! {"n": 0});
        let (items, end) = s.collect(id)?;
        s.is_ok(&end)?;
        s.holds(items.is_empty(), "no item", items.len())
    }),
    must(
        "ST-03",
        "stops when its credit is used up",
        &["R-ST-01", "R-ST-02", "R-ST-03"],
        EMIT,
        |c| {
            for window in [SMALL, 65_536] {
                let mut s = c.active_with(&with_window(window))?;
                let id = s.call("tck.emit", map! {"size": 1000});
                stalls(&mut s, id)?;
                let sent: usize =
                    s.inbox().iter().filter(|got| got.is(ITEM, id)).map(|got| got.size).sum();
                let most = window as usize + 1100;
                s.holds(
                    sent >= window as usize && sent <= most,
                    "the window and at most one item more",
                    sent,
                )?;
                s.cancel(id);
                s.end(id)?;
            }
            Ok(())
        },
    ),
    must(
        "ST-04",
        "goes on for just as long as the credit it gets",
        &["R-ST-03", "R-ST-04"],
        EMIT,
        |c| {
            let mut s = c.active_with(&with_window(SMALL))?;
            let id = s.call("tck.emit", map! {"size": 300});
            stalls(&mut s, id)?;
            for _ in 0..60 {
                let n = c.rng.u64(1..3000);
                s.credit(id, n);
                stalls(&mut s, id)?;
            }
            s.cancel(id);
            s.end(id).map(|_| ())
        },
    ),
    must(
        "ST-05",
        "sends an item that is larger than the window",
        &["R-ST-03", "R-ST-01"],
        EMIT,
        |c| {
            let mut s = c.active_with(&with_window(SMALL))?;
            let id = s.call("tck.emit", map! {"n": 3, "size": 50_000});
            for n in 0..3_i128 {
                let item = s.items(id, 1)?.remove(0);
                s.fence()?;
                s.none("ITEM below zero", |got| got.is(ITEM, id))?;
                // One byte above what is owed is enough.
                let owed = -s.monitor.credit_of(id);
                s.holds(item.value().int("i") == Some(n), &format!("item {n}"), item.value())?;
                if n < 2 {
                    s.credit(id, u64::try_from(owed + 1).unwrap_or(1));
                }
            }
            s.ok(id).map(|_| ())
        },
    ),
    must("ST-06", "ends a stream whose last item used up the credit", &["R-ST-07"], EMIT, |c| {
        let mut s = c.active_with(&with_window(SMALL))?;
        let id = s.call("tck.emit", map! {"n": 1, "size": 20_000});
        s.items(id, 1)?;
        s.ok(id).map(|_| ())
    }),
    must("ST-07", "does not let one stream wait for another", &["R-ST-02", "R-ST-08"], TWO, |c| {
        let mut s = c.active_with(&with_window(SMALL))?;
        let stalled = s.call("tck.emit", map! {"size": 1000});
        stalls(&mut s, stalled)?;
        let id = s.call("tck.emit", map! {"n": 100, "size": 1000});
        let (items, end) = s.collect(id)?;
        s.is_ok(&end)?;
        s.holds(items.len() == 100, "100 items", items.len())?;
        s.cancel(stalled);
        s.end(stalled).map(|_| ())
    }),
    must(
        "ST-08",
        "goes on with everything else while a stream waits",
        &["R-ST-07", "R-ST-08"],
        TWO,
        |c| {
            let mut s = c.active_with(&with_window(SMALL))?;
            let id = s.call("tck.emit", map! {"size": 1000});
            stalls(&mut s, id)?;
            s.fence()?;
            s.lives()?;
            s.cancel(id);
            s.end(id).map(|_| ())
        },
    ),
    must(
        "ST-09",
        "ignores credit for calls that are over or never were",
        &["R-CA-10"],
        EMIT,
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.emit", map! {"n": 1});
            s.collect(id)?;
            s.credit(id, 10);
            s.credit(4001, 10);
            s.fence_silent()?;
            s.lives()
        },
    ),
    must(
        "ST-10",
        "closes at credit of nothing and at credit that overflows",
        &["R-ST-06"],
        EMIT,
        |c| {
            for grants in [vec![0], vec![(1 << 31) - 1, (1 << 31) - 1], vec![(1 << 53) - 1]] {
                let mut s = c.active_with(&with_window(SMALL))?;
                let id = s.call("tck.emit", map! {"size": 1000});
                stalls(&mut s, id)?;
                for n in grants {
                    s.credit(id, n);
                }
                s.expect("CLOSE flow_error", GRACE, |got| {
                    got.kind == crate::codec::CLOSE && got.head.str("code") == Some("flow_error")
                })?;
            }
            Ok(())
        },
    ),
    must(
        "ST-11",
        "gives credit for what it takes",
        &["R-ST-04", "R-ST-11", "R-ST-13"],
        SINK,
        |c| {
            let mut s = c.active()?;
            let id = s.call_in("tck.sink", ());
            let digest = pour(&mut s, id, 320, 32_768)?;
            let result = s.ok(id)?;
            let due = map! {"n": 320, "bytes": 320 * 32_768, "sha256": digest};
            s.holds(result == due, &format!("{due}"), result)
        },
    ),
    must(
        "ST-12",
        "closes at an item that it gave no credit for",
        &["R-ST-05", "R-ST-10"],
        SINK,
        |c| {
            let mut s = c.active()?;
            let id = s.call_in("tck.sink", map! {"hold_ms": 20_000});
            let window = c.profile().window as usize;
            let bytes = Value::from(vec![1_u8; 30_000]);
            for _ in 0..window / 30_000 + 3 {
                s.item(id, &bytes);
            }
            s.closes("flow_error").map(|_| ())
        },
    ),
    must(
        "ST-13",
        "closes at an item of a call without input",
        &["R-CA-10"],
        &[Need::Tck("sleep"), Need::Feature("stream.in"), Need::Feature("async")],
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.sleep", map! {"ms": 20_000});
            s.fence()?;
            s.item(id, ());
            s.closes("bad_state").map(|_| ())
        },
    ),
    must(
        "ST-14",
        "closes at an item after the end of the input",
        &["R-CA-10", "R-ST-18"],
        SINK,
        |c| {
            let mut s = c.active()?;
            let id = s.call_in("tck.sink", map! {"hold_ms": 20_000});
            s.end_input(id);
            s.fence()?;
            s.item(id, Value::from(vec![1_u8]));
            s.closes("bad_state").map(|_| ())
        },
    ),
    must(
        "ST-15",
        "ignores the rest of an input that it needs no more",
        &["R-ST-19", "R-CA-10"],
        SINK,
        |c| {
            let mut s = c.active()?;
            let id = s.call_in("tck.sink", map! {"stop_at": 1});
            for _ in 0..3 {
                s.item(id, Value::from(vec![1_u8; 10]));
            }
            let result = s.ok(id)?;
            s.holds(result.int("n") == Some(1), "one item taken", &result)?;
            s.item(id, Value::from(vec![1_u8; 10]));
            s.end_input(id);
            s.fence()?;
            s.lives()
        },
    ),
    must(
        "ST-16",
        "streams both ways at once under small windows",
        &["R-ST-08", "R-ST-13", "R-FR-14"],
        PIPE,
        |c| {
            let mut s = c.active_with(&with_window(SMALL))?;
            let id = s.call_in("tck.pipe", ());
            let total = 1000_usize;
            let body = |n: usize| map! {"n": n, "d": vec![n as u8; 200]};
            let (mut sent, mut came) = (0, 0);
            let until = Instant::now() + s.scaled(Duration::from_secs(40));
            while came < total {
                while sent < total && s.credit_left(id) > 0 {
                    s.item(id, body(sent));
                    sent += 1;
                    if sent == total {
                        s.end_input(id);
                    }
                }
                while let Some(item) = s.take(|got| got.is(ITEM, id)) {
                    s.same(&item, "the item", &body(came), &item.value())?;
                    came += 1;
                    s.credit(id, item.size as u64);
                }
                s.none("END before all items", |got| got.is(END, id) && came < total)?;
                s.holds(Instant::now() < until, "1000 items in time", came)?;
                s.pump(Duration::from_millis(20))?;
            }
            let result = s.ok(id)?;
            s.holds(result == map! {"n": total}, "{n: 1000}", result)
        },
    ),
    must("ST-17", "fails after the items that it had sent", &["R-ST-13", "R-ST-15"], EMIT, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.emit", map! {"n": 5, "fail_at": 2});
        let (items, end) = s.collect(id)?;
        s.holds(items.len() == 2, "two items", items.len())?;
        s.is_refusal(&end, &code("unavailable"))
    }),
    must(
        "ST-18",
        "holds no more than it may of what nobody takes",
        &["R-ST-09", "R-ST-10"],
        EMIT,
        |c| {
            let mut s = c.active_with(&with_window(SMALL))?;
            let before = c.memory(&s)?;
            let id = s.call("tck.emit", map! {"size": 100_000});
            s.linger(Duration::from_millis(1500))?;
            let grown = c.memory(&s)?.saturating_sub(before);
            s.holds(grown < 16 << 20, "less than 16 MiB more", format!("{grown} B more"))?;
            s.cancel(id);
            s.end(id).map(|_| ())
        },
    ),
    must("ST-19", "counts empty items too", &["R-ST-03"], EMIT, |c| {
        let mut s = c.active_with(&with_window(SMALL))?;
        let id = s.call("tck.emit", map! {});
        stalls(&mut s, id)?;
        let items = s.inbox().iter().filter(|got| got.is(ITEM, id));
        let sizes: Vec<usize> = items.map(|got| got.size).collect();
        // An empty map and nil make 17 bytes, if both have the shortest marker.
        let (sent, due) = (sizes.len(), SMALL as usize / sizes.first().unwrap_or(&17));
        s.holds((due..=due + 1).contains(&sent), &format!("about {due} items"), sent)?;
        s.cancel(id);
        s.end(id).map(|_| ())
    }),
    should("ST-20", "gathers the credit that it gives", &["R-ST-12"], SINK, |c| {
        let mut s = c.active()?;
        let id = s.call_in("tck.sink", ());
        // Two windows of a plugin whose window is large, so that it has to give some.
        let size = (c.profile().window / 300).clamp(1000, c.profile().frame / 2);
        pour(&mut s, id, 600, size as usize)?;
        s.ok(id)?;
        let grants = s.inbox().iter().filter(|got| got.is(CREDIT, id));
        let grants: Vec<i128> = grants.filter_map(|got| got.head.int("n")).collect();
        let all: i128 = grants.iter().sum();
        let mean = all / i128::try_from(grants.len().max(1)).unwrap_or(1);
        // What is given when all has been taken may be less.
        let due = i128::from(c.profile().window) / 8;
        s.holds(mean >= due, &format!("grants of at least {due} B on average"), mean)
    }),
    must(
        "ST-21",
        "takes a call without input for one whose input is empty",
        &["R-ST-21"],
        SINK,
        |c| {
            let mut s = c.active()?;
            let result = s.ask("tck.sink", map! {})?;
            s.holds(result.int("n") == Some(0), "the result of no items", &result)
        },
    ),
];
