//! What a plugin needs of its machine.

use std::time::Duration;

use crate::{
    check::{Check, Need, Stop, inconclusive, must, should},
    map,
    session::{GRACE, Session},
    value::Value,
};

const ECHO: &[Need] = &[Need::Tck("echo")];
const SLEEP: &[Need] = &[Need::Tck("sleep")];

/// Descriptors and threads that a process has.
fn holds_open(s: &Session) -> Result<(usize, usize), Stop> {
    let count =
        |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", s.pid())).map(Iterator::count);
    match (count("fd"), count("task")) {
        (Ok(fds), Ok(threads)) => Ok((fds, threads)),
        _ => Err(inconclusive("this system does not tell what a process has open")),
    }
}

/// Processor time that a process has used, in clock ticks of which there are 100 in a second.
pub(super) fn ticks(s: &Session) -> Result<u64, Stop> {
    let unseen = || inconclusive("this system does not tell the processor time of a process");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", s.pid())).map_err(|_| unseen())?;
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).ok_or_else(unseen)?;
    let fields: Vec<u64> =
        after_name.split_whitespace().map(|it| it.parse().unwrap_or(0)).collect();
    Ok(fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0))
}

fn echoes(s: &mut Session, n: u32, at_once: u32) -> Result<(), Stop> {
    let said = map! {"text": "x".repeat(1000)};
    let mut left = n;
    while left > 0 {
        let ids: Vec<u32> = (0..at_once.min(left)).map(|_| s.call("tck.echo", &said)).collect();
        left -= u32::try_from(ids.len()).unwrap_or(left);
        for id in ids {
            let end = s.end_within(id, GRACE)?;
            s.is_ok(&end)?;
        }
    }
    Ok(())
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "RS-01",
        "needs no more memory after ten thousand calls",
        &["R-CN-04", "R-CA-07"],
        ECHO,
        |c| {
            let mut s = c.active()?;
            let at_once = c.profile().calls.clamp(1, 16);
            echoes(&mut s, 2000, at_once)?;
            let before = c.memory(&s)?;
            echoes(&mut s, 10_000, at_once)?;
            let grown = c.memory(&s)?.saturating_sub(before);
            s.holds(grown < 8 << 20, "less than 8 MiB more", format!("{grown} B more"))
        },
    ),
    must("RS-02", "leaks no descriptor and no thread", &["R-CN-04", "R-LC-13"], SLEEP, |c| {
        let mut s = c.active()?;
        let round = |s: &mut Session, n: u32| -> Result<(), Stop> {
            for i in 0..n {
                let id = s.call("tck.sleep", map! {"ms": 1});
                // Of those, few have begun.
                if i % 2 == 0 {
                    s.cancel(id);
                }
                s.end(id)?;
            }
            Ok(())
        };
        round(&mut s, 100)?;
        let before = holds_open(&s)?;
        round(&mut s, 1000)?;
        let after = holds_open(&s)?;
        let fine = after.0 <= before.0 + 4 && after.1 <= before.1 + 4;
        s.holds(
            fine,
            &format!("about {} descriptors and {} threads", before.0, before.1),
            format!("{} and {}", after.0, after.1),
        )
    }),
    should("RS-03", "rests when there is nothing to do", &["R-LC-08"], &[Need::Active], |c| {
        let mut s = c.active()?;
        super::serves(c, &mut s)?;
        s.linger(Duration::from_millis(300))?;
        let before = ticks(&s)?;
        s.linger(Duration::from_secs(3))?;
        let used = ticks(&s)? - before;
        s.holds(used <= 6, "at most 60 ms of processor time in 3 s", format!("{} ms", used * 10))
    }),
    must(
        "RS-04",
        "holds no more than its windows and frames",
        &["R-ST-10", "R-FR-06"],
        &[Need::Tck("sink")],
        |c| {
            let mut s = c.active()?;
            let (window, frame) = (u64::from(c.profile().window), u64::from(c.profile().frame));
            let n = c.profile().calls.min(8);
            let before = c.memory(&s)?;
            let ids: Vec<u32> =
                (0..n).map(|_| s.call_in("tck.sink", map! {"hold_ms": 1200})).collect();
            let bytes = Value::from(vec![3_u8; 8000]);
            for id in &ids {
                while s.credit_left(*id) > 0 {
                    s.item(*id, &bytes);
                }
            }
            s.linger(Duration::from_millis(600))?;
            let grown = c.memory(&s)?.saturating_sub(before);
            let most = u64::from(n) * (window + frame) * 2 + (16 << 20);
            s.holds(grown <= most, &format!("at most {most} B more"), format!("{grown} B more"))?;
            for id in ids {
                s.end_input(id);
                s.ok(id)?;
            }
            Ok(())
        },
    ),
    must(
        "RS-05",
        "leaks nothing over many activations",
        &["R-LC-13", "R-LC-04"],
        &[Need::Active],
        |c| {
            let mut s = c.active()?;
            let mut before = (0, 0);
            for round in 0..25 {
                s.deactivate()?;
                let body = c.activation(&mut s);
                let end = s.activate(body)?;
                s.is_ok(&end)?;
                if round == 4 {
                    before = holds_open(&s)?;
                }
            }
            let after = holds_open(&s)?;
            let fine = after.0 <= before.0 + 4 && after.1 <= before.1 + 4;
            s.holds(
                fine,
                &format!("about {} descriptors and {} threads", before.0, before.1),
                format!("{} and {}", after.0, after.1),
            )
        },
    ),
    must(
        "RS-06",
        "keeps nothing of streams that are over",
        &["R-ST-10", "R-CN-04"],
        &[Need::Tck("emit")],
        |c| {
            let mut s = c.active()?;
            let round = |s: &mut Session, n: u32| -> Result<(), Stop> {
                for _ in 0..n {
                    let id = s.call("tck.emit", map! {"n": 20, "size": 2000});
                    let (_, end) = s.collect(id)?;
                    s.is_ok(&end)?;
                }
                Ok(())
            };
            round(&mut s, 40)?;
            let before = c.memory(&s)?;
            round(&mut s, 300)?;
            let grown = c.memory(&s)?.saturating_sub(before);
            s.holds(grown < 8 << 20, "less than 8 MiB more", format!("{grown} B more"))
        },
    ),
];
