//! Scopes, and calls that a plugin makes.

use std::time::Duration;

use crate::{
    check::{Check, Need, must},
    codec::{CALL, END},
    list, map,
    session::{GRACE, code, refusal},
    value::Value,
};

const REVERSE: &[Need] = &[Need::Tck("reverse")];

pub(super) const CHECKS: &[Check] = &[
    must("SC-01", "calls its host and uses the answer", &["R-RV-01", "R-SC-05"], REVERSE, |c| {
        let mut s = c.active()?;
        let args = map! {"x": list![1, "two"]};
        let result =
            s.ask("tck.reverse", map! {"method": "host.tck.echo", "args": args.clone(), "n": 3})?;
        let due = map! {"results": list![map! {"ok": args.clone()}, map! {"ok": args.clone()}, map! {"ok": args}]};
        s.holds(result == due, &due.to_string(), result)?;
        let named = map! {"method": "host.tck.named", "args": map! {"name": "a_1"}};
        let result = s.ask("tck.reverse", named)?;
        let due = map! {"results": list![map! {"ok": map! {"name": "a_1"}}]};
        s.holds(result == due, &due.to_string(), result)
    }),
    must("SC-02", "survives a host that refuses", &["R-SC-06", "R-ER-04"], REVERSE, |c| {
        let mut s = c.active()?;
        let result = s.ask("tck.reverse", map! {"method": "host.tck.deny"})?;
        let errors = result.list("results").to_vec();
        let seen = errors.first().and_then(|it| it.get("err")).and_then(|err| err.str("code"));
        s.holds(seen == Some("permission_denied"), "permission_denied as the result", &result)?;
        let named = map! {"method": "host.tck.named", "args": map! {"name": "b"}};
        let result = s.ask("tck.reverse", named)?;
        let seen = result
            .list("results")
            .first()
            .and_then(|it| it.get("err"))
            .and_then(|err| err.str("reason"));
        s.holds(seen == Some("pb.scope_denied"), "pb.scope_denied as the result", &result)?;
        s.lives()
    }),
    must(
        "SC-03",
        "calls nothing that no scope of its authority has",
        &["R-SC-07", "R-TK-03"],
        REVERSE,
        |c| {
            let mut s = c.active()?;
            let wants = [
                "host.tck.echo",
                "host.tck.wait",
                "host.tck.deny",
                "host.tck.named[a_*]",
                "host.background",
            ];
            let seen = &c.profile().wants;
            s.holds(seen == &wants, "the five wants of a fixture", seen.join(" "))?;
            let id = s.call("tck.reverse", map! {"method": "host.tool.call"});
            s.refused(id, &refusal("permission_denied", "pb.scope_denied", "no"))?;
            s.none("CALL", |got| got.kind == CALL)
        },
    ),
    must("SC-04", "is narrowed by the scopes of a call", &["R-SC-05", "R-SC-08"], REVERSE, |c| {
        let mut s = c.active()?;
        let call =
            |scopes: Value| map! {"method": "tck.reverse", "deadline": 60_000, "scopes": scopes};
        let echo = map! {"method": "host.tck.echo"};
        let id = s.call_head(call(list!["host.tck.wait"]), &echo);
        s.refused(id, &code("permission_denied"))?;
        let id = s.call_head(call(list![]), &echo);
        s.refused(id, &code("permission_denied"))?;
        let id = s.call_head(call(list!["host.tck.echo"]), &echo);
        s.ok(id)?;
        let state = s.state()?;
        let seen =
            state.get("last").and_then(|last| last.get("scopes")).cloned().unwrap_or(Value::Nil);
        s.holds(seen == list!["host.tck.echo"], "the scopes of the call", seen)
    }),
    must("SC-05", "names the call that it serves", &["R-RV-01", "R-RV-03"], REVERSE, |c| {
        let mut s = c.active()?;
        let id = s.call("tck.reverse", map! {"method": "host.tck.echo", "n": 4, "parallel": 2});
        s.end(id)?;
        for _ in 0..4 {
            let call = s.expect("CALL", GRACE, |got| got.kind == CALL)?;
            let parent = call.head.get("parent").cloned().unwrap_or(Value::Nil);
            s.same(&call, "parent", &Value::from(id), &parent)?;
        }
        Ok(())
    }),
    must("SC-06", "ends a call after what it called for it", &["R-RV-04"], REVERSE, |c| {
        let mut s = c.active()?;
        s.serve(false);
        let id = s.call("tck.reverse", map! {"method": "host.tck.echo", "n": 2, "parallel": 2});
        let first = s.expect("CALL", GRACE, |got| got.kind == CALL)?;
        let second = s.expect("a second CALL", GRACE, |got| got.kind == CALL)?;
        s.answer(second.id, ());
        // A fence shows that the answer was read; what waits for it is to go on.
        s.linger(Duration::from_millis(150))?;
        s.none("END", |got| got.is(END, id))?;
        s.answer(first.id, ());
        s.ok(id).map(|_| ())
    }),
    must(
        "SC-07",
        "works with fewer scopes, or says which it needs",
        &["R-SC-09", "R-LC-02"],
        REVERSE,
        |c| {
            let mut s = c.ready()?;
            let need = map! {"need": list!["host.tck.echo", "host.tck.wait"]};
            let end = s.activate(map! {"config": need.clone(), "grant": list!["host.tck.wait"]})?;
            s.is_refusal(&end, &refusal("failed_precondition", "pb.missing_scope", "no"))?;
            let value = end.value();
            let seen = value.get("data").map(|data| data.strings("scopes")).unwrap_or_default();
            s.holds(seen == ["host.tck.echo"], "data.scopes with host.tck.echo", &value)?;
            let grant = list!["host.tck.wait", "host.tck.echo"];
            let end = s.activate(map! {"config": need, "grant": grant})?;
            s.is_ok(&end)
        },
    ),
    must(
        "SC-08",
        "forgets scopes that it is not granted again",
        &["R-LC-04", "R-SC-07"],
        REVERSE,
        |c| {
            let mut s = c.active()?;
            s.ask("tck.reverse", map! {"method": "host.tck.echo"})?;
            s.deactivate()?;
            let end = s.activate(map! {"grant": list!["host.tck.wait"]})?;
            s.is_ok(&end)?;
            let id = s.call("tck.reverse", map! {"method": "host.tck.echo"});
            s.refused(id, &refusal("permission_denied", "pb.scope_denied", "no")).map(|_| ())
        },
    ),
    must(
        "SC-09",
        "works in the background only if it may",
        &["R-SC-05", "R-SC-07"],
        REVERSE,
        |c| {
            let mut s = c.ready()?;
            let end = s.activate(map! {"grant": list!["host.tck.echo"]})?;
            s.is_ok(&end)?;
            let detach = map! {"method": "host.tck.echo", "detach": true};
            let id = s.call("tck.reverse", &detach);
            s.refused(id, &refusal("permission_denied", "pb.scope_denied", "no"))?;
            s.deactivate()?;
            let end = s.activate(map! {"grant": list!["host.tck.echo", "host.background"]})?;
            s.is_ok(&end)?;
            let id = s.call("tck.reverse", &detach);
            s.ok(id)?;
            let call = s.expect("CALL in the background", GRACE, |got| got.kind == CALL)?;
            s.holds(!call.head.has("parent"), "no parent", &call.head)
        },
    ),
    must(
        "SC-10",
        "keeps secrets and configuration to itself",
        &["R-HD-13", "R-TK-09", "R-PR-04"],
        &[Need::Tck("state")],
        |c| {
            let mut s = c.ready()?;
            let (in_config, in_secrets) = (s.canary(true), s.canary(true));
            let body =
                map! {"config": map! {"grease": in_config}, "secrets": map! {"key": in_secrets}};
            let end = s.activate(body)?;
            s.is_ok(&end)?;
            let state = s.state()?;
            s.holds(state.strings("secrets") == ["key"], "the name of the secret", &state)?;
            if c.profile().has("tck", "note") {
                s.ask("tck.note", map! {"topic": "log", "lvl": "info"})?;
            }
            if c.profile().has("tck", "fail") {
                let id = s.call("tck.fail", map! {"throw": true});
                s.end(id)?;
            }
            s.deactivate()?;
            s.goodbye()
        },
    ),
];
