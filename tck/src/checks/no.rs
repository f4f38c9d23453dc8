//! Notes and traces.

use std::time::Duration;

use crate::{
    check::{Check, Need, must, should},
    codec::{CALL, Frame, NOTE},
    map,
    session::{GRACE, code},
    value::Value,
};

const NOTES: &[Need] = &[Need::Tck("note")];

pub(super) const CHECKS: &[Check] = &[
    must(
        "NO-01",
        "sends notes about open calls only, or about itself",
        &["R-NO-01", "R-CA-05"],
        NOTES,
        |c| {
            let mut s = c.active()?;
            let id = s.call(
                "tck.note",
                map! {"topic": "log", "lvl": "warn", "event": "tck.event", "msg": "words"},
            );
            s.ok(id)?;
            // It may log of its own accord, too.
            let note = s.expect("NOTE log with lvl and event", GRACE, |got| {
                got.head.str("topic") == Some("log")
                    && got.head.str("lvl") == Some("warn")
                    && got.head.str("event") == Some("tck.event")
            })?;
            s.holds(note.id == id, "NOTE log of the call", &note)?;
            s.holds(
                note.value().str("msg") == Some("words"),
                "the words in the body",
                note.value(),
            )?;
            s.ask("tck.note", map! {"topic": "retire", "reason": "upgrade"})?;
            let note =
                s.expect("NOTE retire", GRACE, |got| got.head.str("topic") == Some("retire"))?;
            s.holds(
                note.id == 0 && note.head.str("reason") == Some("upgrade"),
                "NOTE #0 retire, reason upgrade",
                &note,
            )
        },
    ),
    must("NO-02", "never counts progress backwards", &["R-NO-04"], NOTES, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.note", map! {"topic": "progress", "count": 8});
        s.ok(id)?;
        let notes = s.inbox().iter().filter(|got| got.is(NOTE, id));
        let counts: Vec<i128> = notes.filter_map(|got| got.head.int("n")).collect();
        // Some may have been left out, to keep R-NO-05.
        let fine = !counts.is_empty() && counts.iter().all(|n| (1..=8).contains(n));
        s.holds(fine, "progress of 1 to 8", format!("{counts:?}"))
    }),
    must("NO-03", "ignores every note of the host", &["R-NO-07", "R-NO-01"], &[], |c| {
        let mut s = c.ready()?;
        for (id, topic) in [(0, "grease.x"), (0, "log"), (9, "progress"), (0, "retire")] {
            s.send(&Frame::new(NOTE, id, &map! {"topic": topic, "grease_n": "x"}, vec![0xc1_u8]));
        }
        // What a topic's fields are is the business of whoever wants the topic.
        s.send(&Frame::new(NOTE, 9, &map! {"topic": "progress", "n": "3"}, ()));
        s.fence_silent()
    }),
    must(
        "NO-04",
        "passes on the trace of a call, if it is one",
        &["R-RV-13", "R-CA-13"],
        &[Need::Tck("reverse")],
        |c| {
            let mut s = c.active()?;
            let call =
                |trace: Value| map! {"method": "tck.reverse", "deadline": 60_000, "trace": trace};
            let echo = map! {"method": "host.tck.echo"};
            let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
            let id =
                s.call_head(call(map! {"tp": format!("00-{trace_id}-00f067aa0ba902b7-01")}), &echo);
            let child = s.expect("CALL", GRACE, |got| got.kind == CALL)?;
            s.ok(id)?;
            let tp =
                child.head.get("trace").and_then(|trace| trace.str("tp")).unwrap_or("").to_owned();
            if tp.split('-').nth(1) != Some(trace_id) {
                return Err(s.differs(
                    &child,
                    format!("trace with id {trace_id}"),
                    child.head.to_string(),
                ));
            }
            let wrong = [
                Value::from(7),
                map! {"tp": "nonsense"},
                map! {"tp": 7},
                map! {"tp": format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32))},
            ];
            for trace in wrong {
                let id = s.call_head(call(trace), &echo);
                s.ok(id)?;
            }
            Ok(())
        },
    ),
    must("NO-05", "keeps arguments out of heads", &["R-HD-13", "R-NO-03"], &[Need::Active], |c| {
        let mut s = c.active()?;
        for method in super::methods(c) {
            let text = s.canary(false);
            let id = s.call(
                &method,
                map! {"name": text.clone(), "msg": text.clone(), "args": map! {"x": text}},
            );
            s.cancel(id);
            s.end(id)?;
        }
        let text = s.canary(false);
        let id = s.call("grease.nothing", map! {"x": text});
        s.refused(id, &code("unimplemented")).map(|_| ())
    }),
    should(
        "NO-06",
        "tells of its progress at most ten times a second",
        &["R-NO-05", "R-NO-08"],
        NOTES,
        |c| {
            let mut s = c.active()?;
            let id = s.call("tck.note", map! {"topic": "progress", "count": 400});
            let end = s.end_within(id, Duration::from_secs(45))?;
            s.is_ok(&end)
        },
    ),
];
