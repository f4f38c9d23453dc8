//! Errors.

use std::time::Duration;

use crate::{
    check::{Check, Need, must},
    codec::{CALL, Frame, HELLO},
    map,
    session::{GRACE, Refusal, code},
    value::Value,
};

const FAIL: &[Need] = &[Need::Tck("fail")];
const CODES: [&str; 12] = [
    "cancelled",
    "deadline_exceeded",
    "invalid_argument",
    "not_found",
    "conflict",
    "permission_denied",
    "failed_precondition",
    "resource_exhausted",
    "unavailable",
    "unimplemented",
    "internal",
    "unknown",
];

pub(super) const CHECKS: &[Check] = &[
    must("ER-01", "uses only the twelve codes", &["R-ER-03"], &[Need::Active], |c| {
        let mut s = c.active()?;
        for method in super::methods(c) {
            for body in [vec![0xc1], map! {"x": 1}.pack()] {
                let id = s.call(&method, body);
                s.cancel(id);
                s.end(id)?;
            }
        }
        let id = s.call("grease.nothing", ());
        s.refused(id, &code("unimplemented")).map(|_| ())
    }),
    must(
        "ER-02",
        "uses reasons as they are meant",
        &["R-ER-05", "R-ER-08"],
        &[Need::Active],
        |c| {
            let mut s = c.active()?;
            let body = c.activation(&mut s);
            s.activate(body)?;
            for method in super::methods(c) {
                let id = s.call(&method, vec![0xc1_u8]);
                s.end(id)?;
            }
            s.deactivate()?;
            let id = s.call("grease.nothing", ());
            s.end(id).map(|_| ())
        },
    ),
    must(
        "ER-03",
        "keeps words for people out of heads",
        &["R-ER-09", "R-HD-13"],
        &[Need::Active],
        |c| {
            let mut s = c.active()?;
            for method in super::methods(c) {
                let id = s.call(&method, vec![0xc1_u8]);
                s.end(id)?;
            }
            if c.profile().has("tck", "fail") {
                let text = s.canary(false);
                let id = s.call("tck.fail", map! {"code": "conflict", "msg": text.clone()});
                let end = s.end(id)?;
                s.holds(
                    end.value().str("msg") == Some(&text),
                    "the words in the body",
                    end.value(),
                )?;
            }
            Ok(())
        },
    ),
    must("ER-04", "says each error as it is", &["R-ER-03", "R-ER-05"], FAIL, |c| {
        let mut s = c.active()?;
        for each in CODES {
            let data = map! {"a": 1};
            let args = map! {
                "code": each, "reason": "tck.test_1", "retry": "maybe", "after": 1234, "msg": "words", "data": data.clone(),
            };
            let id = s.call("tck.fail", args);
            let due = Refusal { code: each, reason: Some("tck.test_1"), retry: Some("maybe") };
            let end = s.refused(id, &due)?;
            let after = end.err().and_then(|err| err.int("after"));
            s.holds(after == Some(1234), "after: 1234", &end.head)?;
            let body = end.value();
            let fine = body.str("msg") == Some("words") && body.get("data") == Some(&data);
            s.holds(fine, "msg and data in the body", body)?;
        }
        let id = s.call("tck.fail", map! {});
        s.refused(id, &code("internal")).map(|_| ())
    }),
    must(
        "ER-05",
        "takes an unknown code for unknown",
        &["R-ER-04", "R-ER-06"],
        &[Need::Tck("reverse")],
        |c| {
            let mut s = c.active()?;
            s.deny_with(map! {"code": "grease_q", "retry": "grease", "reason": "grease.x"});
            let result = s.ask("tck.reverse", map! {"method": "host.tck.deny"})?;
            let err = result
                .list("results")
                .first()
                .and_then(|it| it.get("err"))
                .cloned()
                .unwrap_or(Value::Nil);
            s.holds(err.str("code") == Some("unknown"), "code unknown", &result)?;
            let retry = err.str("retry").unwrap_or("no");
            s.holds(retry == "no", "retry no", &result)?;
            s.lives()
        },
    ),
    must(
        "ER-06",
        "ignores what it does not know in an error",
        &["R-EX-04", "R-HD-18", "R-ER-10"],
        &[Need::Tck("reverse")],
        |c| {
            let mut s = c.active()?;
            let deny = map! {"code": "conflict", "grease_k": map! {"a": 1}, "reason": "grease.some_reason", "retry": "maybe"};
            s.deny_with(deny);
            let result = s.ask("tck.reverse", map! {"method": "host.tck.deny"})?;
            let err = result
                .list("results")
                .first()
                .and_then(|it| it.get("err"))
                .cloned()
                .unwrap_or(Value::Nil);
            s.holds(err.str("code") == Some("conflict"), "code conflict", &result)?;
            s.lives()
        },
    ),
    must(
        "ER-07",
        "says `safe` only of what has not begun",
        &["R-ER-07", "R-GT-08"],
        &[Need::Tck("state"), Need::Tck("fail")],
        |c| {
            let mut s = c.active()?;
            let before = s.state_int("calls_started")?;
            let id = s.call("tck.fail", map! {"code": "unavailable", "retry": "safe"});
            s.refused(id, &Refusal { code: "unavailable", reason: None, retry: Some("safe") })?;
            let after = s.state_int("calls_started")?;
            s.holds(after == before, "a call that does not count", after)?;
            let id = s.call("tck.fail", map! {"code": "unavailable", "retry": "maybe"});
            s.end(id)?;
            let after = s.state_int("calls_started")?;
            s.holds(after == before + 1, "a call that counts", after)
        },
    ),
    must(
        "ER-08",
        "ends soon after its CLOSE, and says nothing more",
        &["R-LC-11", "R-LC-21", "R-ER-01", "R-PR-05"],
        &[Need::Active],
        |c| {
            let mut s = c.active()?;
            s.send(&Frame::new(HELLO, 0, &crate::case::hello(), ()));
            s.closes("bad_state")?;
            for _ in 0..5 {
                s.ping(());
                let id = s.next_id();
                s.send(&Frame::new(CALL, id, &map! {"method": "a.b", "deadline": 5}, ()));
            }
            s.exits_with(1, GRACE.min(Duration::from_secs(3)))
        },
    ),
];
