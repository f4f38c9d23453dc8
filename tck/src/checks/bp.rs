//! The contract policy.

use std::time::{Duration, Instant};

use crate::{
    case::Case,
    check::{Check, Need, Stop, must, should},
    list, map,
    session::{BAD_BODY, Got, Session, refusal},
    value::Value,
};

const POLICY: &[Need] = &[Need::Active, Need::Kind("policy")];
const SAMPLE: &[Need] = &[Need::Active, Need::Sample("policy.check", "")];
const EDIT: &[Need] = &[Need::Active, Need::Sample("policy.check", "edit")];
const DECISIONS: &[&str] = &["allow", "deny", "ask", "edit"];
const HOOKS: &[&str] = &["model", "tool", "input", "output"];
/// How long a policy may think [R-PO-06].
const QUICK: Duration = Duration::from_millis(50);

/// The body that asks a policy about nothing in particular.
fn question(entry: &Value, hook: &str) -> Value {
    map! {
        "name": entry.str("name").unwrap_or(""), "hook": hook, "subject": map! {"user": "tck"},
        "action": "allow", "resource": map! {"kind": "tool", "name": "tck"}, "args": map! {},
    }
}

/// The first hook that a policy provides.
fn hook_of(entry: &Value) -> String {
    entry.strings("hooks").into_iter().next().unwrap_or_default()
}

/// The decision in a result, which must be one of the four.
fn decision(s: &Session, end: &Got) -> Result<String, Stop> {
    s.is_ok(end)?;
    let value = end.value();
    let seen = value.str("decision").unwrap_or("none");
    if DECISIONS.contains(&seen) {
        return Ok(seen.to_owned());
    }
    Err(s.differs(end, "a decision that is allow, deny, ask or edit", value.to_string()))
}

/// Asks and waits.
fn ask(s: &mut Session, body: &Value) -> Result<Got, Stop> {
    let id = s.call("policy.check", body);
    s.end(id)
}

/// Each sample that is to succeed, once.
fn bodies(c: &Case<'_>) -> Vec<Value> {
    let samples = c.samples("policy.check", "").into_iter();
    samples.filter(|sample| sample.is_ok()).map(|sample| sample.body()).collect()
}

pub(super) const CHECKS: &[Check] = &[
    must("BP-01", "decides in one of four ways, as each sample says", &["R-PO-08"], SAMPLE, |c| {
        let mut s = c.active()?;
        for sample in c.samples("policy.check", "") {
            let end = ask(&mut s, &sample.body())?;
            if !sample.is_ok() {
                let seen = end.err().and_then(|err| err.str("code")).unwrap_or("ok");
                s.same(&end, "the code of the error", &sample.expect.as_str(), &seen)?;
                continue;
            }
            let seen = decision(&s, &end)?;
            if let Some(due) = sample.uses.iter().find(|it| DECISIONS.contains(&it.as_str())) {
                s.same(&end, "the decision", due, &seen)?;
            }
        }
        Ok(())
    }),
    must(
        "BP-02",
        "decides nothing for a hook that it does not provide",
        &["R-PO-03"],
        POLICY,
        |c| {
            let mut s = c.active()?;
            let due = refusal("unimplemented", "pb.unknown_hook", "no");
            for entry in c.entries("policy") {
                let own = entry.strings("hooks");
                let foreign = HOOKS.iter().filter(|hook| !own.iter().any(|it| it == *hook));
                for hook in foreign.chain(&["tck_no_such_hook", ""]) {
                    let end = ask(&mut s, &question(entry, hook))?;
                    s.is_refusal(&end, &due)?;
                }
            }
            super::serves(c, &mut s)
        },
    ),
    must(
        "BP-03",
        "decides nothing about a question that is malformed",
        &["R-ER-16"],
        POLICY,
        |c| {
            let mut s = c.active()?;
            for entry in c.entries("policy") {
                let whole = question(entry, &hook_of(entry));
                let subjects = [
                    Value::from("Ada"),
                    map! {"user": 7},
                    map! {"tenant": list!["a"]},
                    map! {"roles": "admin"},
                    map! {"roles": list![7]},
                ];
                let wrong =
                    subjects.into_iter().map(|subject| whole.clone().with("subject", subject));
                let lacking = ["hook", "subject", "action", "resource"];
                let lacking = lacking.iter().map(|key| whole.clone().without(key));
                for body in wrong.chain(lacking) {
                    let end = ask(&mut s, &body)?;
                    s.is_refusal(&end, &BAD_BODY)?;
                }
            }
            super::serves(c, &mut s)
        },
    ),
    must("BP-04", "decides the same about the same", &["R-PO-02"], SAMPLE, |c| {
        let mut s = c.active()?;
        let bodies = bodies(c);
        let mut first = Vec::new();
        for body in &bodies {
            let end = ask(&mut s, body)?;
            s.is_ok(&end)?;
            first.push(end.value());
        }
        for _ in 0..4 {
            for (body, due) in bodies.iter().zip(&first) {
                let end = ask(&mut s, body)?;
                s.same(&end, "the same result as before", due, &end.value())?;
            }
        }
        Ok(())
    }),
    must("BP-05", "hands over what it has edited, in the same shape", &["R-PO-04"], EDIT, |c| {
        let mut s = c.active()?;
        for sample in c.samples("policy.check", "edit") {
            let body = sample.body();
            let end = ask(&mut s, &body)?;
            s.is_ok(&end)?;
            let value = end.value();
            let shape = |of: &Value| of.get("args").map_or("nothing", Value::type_name);
            s.same(&end, "the type of args", &shape(&body), &shape(&value))?;
            if sample.entry() == Some("tck_policy") {
                let args = body.get("args").cloned().unwrap_or(Value::Nil).with("edited", true);
                let seen = value.get("args").cloned().unwrap_or(Value::Nil);
                s.same(&end, "args", &args, &seen)?;
            }
        }
        Ok(())
    }),
    should(
        "BP-06",
        "decides within 50 ms, but for two in two hundred",
        &["R-PO-06"],
        SAMPLE,
        |c| {
            let mut s = c.active()?;
            let bodies = bodies(c);
            let within = s.scaled(QUICK);
            let mut slow = 0;
            for body in bodies.iter().cycle().take(200) {
                let asked = Instant::now();
                let end = ask(&mut s, body)?;
                slow += u32::from(end.at - asked > within);
                let expected = format!("an answer within {} ms", within.as_millis());
                s.holds(slow <= 2, &expected, format!("{} ms", (end.at - asked).as_millis()))?;
            }
            Ok(())
        },
    ),
];
