//! The contract model.

use serde_json::Value as Json;

use super::bt::{are_blocks, text_of};
use crate::{
    case::{CALLS, FRAME, hello, limits},
    check::{Check, Need, Stop, must},
    codec::{ITEM, NOTE},
    list, map,
    session::{GRACE, Got, Session, code, refusal},
    settings::Sample,
    value::Value,
};

const MODEL: &[Need] = &[Need::Active, Need::Kind("model")];
const SAMPLE: &[Need] = &[Need::Active, Need::Sample("model.generate", "")];
const STREAMED: &[Need] =
    &[Need::Active, Need::Sample("model.generate", ""), Need::Feature("stream")];
const TOOLS: &[Need] =
    &[Need::Active, Need::Sample("model.generate", "tools"), Need::Feature("stream")];
const LONG: &[Need] = &[Need::Active, Need::Sample("model.generate", "long")];
const BUSY: &[Need] = &[Need::Active, Need::Sample("model.generate", "busy")];
const ENDLESS: &[Need] =
    &[Need::Active, Need::Entry("model", "tck_model"), Need::Feature("stream")];

/// The body that has the model of a fixture follow a script.
fn prompt(script: &str) -> Value {
    let content = list![map! {"type": "text", "text": script}];
    map! {"model": "tck_model", "messages": list![map! {"role": "user", "content": content}]}
}

/// The body of a sample with one more parameter.
fn with_param(sample: &Sample, key: &str, value: impl Into<Value>) -> Value {
    let body = sample.body();
    let params = body.get("params").cloned().unwrap_or(Value::map()).with(key, value);
    body.with("params", params)
}

/// That END of `model.generate` holds all that it must.
fn is_whole(s: &Session, end: &Got) -> Result<Value, Stop> {
    s.is_ok(end)?;
    let value = end.value();
    let counts = |key| value.get("usage").and_then(|usage| usage.int(key)).is_some();
    let message = value.get("message").cloned().unwrap_or(Value::Nil);
    let good = value.str("finish").is_some() && counts("in") && counts("out");
    if !good || message.str("role") != Some("assistant") {
        let due = "finish, usage with in and out, and a message of the assistant";
        return Err(s.differs(end, due, value.to_string()));
    }
    if message.has("content") {
        are_blocks(s, end, message.get("content"))?;
    }
    Ok(value)
}

/// The items of one kind.
fn deltas(items: &[Got], kind: &str) -> Vec<Value> {
    items.iter().map(Got::value).filter(|item| item.str("t") == Some(kind)).collect()
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "BM-01",
        "answers with a whole message, and each sample as it says",
        &["R-MO-01", "R-MO-08", "R-ER-16"],
        SAMPLE,
        |c| {
            let mut s = c.active()?;
            for sample in c.samples("model.generate", "") {
                let id = s.call("model.generate", sample.body());
                let (items, end) = s.collect(id)?;
                if !sample.is_ok() {
                    let seen = end.err().and_then(|err| err.str("code")).unwrap_or("ok");
                    s.same(&end, "the code of the error", &sample.expect.as_str(), &seen)?;
                    continue;
                }
                is_whole(&s, &end)?;
                let streams = s.uses("stream");
                s.holds(!streams || !items.is_empty(), "an ITEM before END", "none")?;
            }
            // Without items it says the same.
            let mut s = c.active_with(&hello().with("features", list!["async", "reverse"]))?;
            for sample in c.samples("model.generate", "").into_iter().filter(|it| it.is_ok()) {
                let id = s.call("model.generate", sample.body());
                let end = s.end(id)?;
                is_whole(&s, &end)?;
                s.none("ITEM without feature stream", |got| got.is(ITEM, id))?;
            }
            Ok(())
        },
    ),
    must("BM-02", "streams just the text of its message", &["R-MO-02"], STREAMED, |c| {
        let mut s = c.active()?;
        for sample in c.samples("model.generate", "").into_iter().filter(|it| it.is_ok()) {
            let id = s.call("model.generate", sample.body());
            let (items, end) = s.collect(id)?;
            s.is_ok(&end)?;
            let said: String =
                deltas(&items, "text").iter().filter_map(|item| item.str("d")).collect();
            let value = end.value();
            let due = text_of(value.get("message").and_then(|message| message.get("content")));
            s.same(&end, "the text of the message", &said, &due)?;
        }
        Ok(())
    }),
    must(
        "BM-03",
        "streams just the tool calls of its message",
        &["R-MO-03", "R-MO-04"],
        TOOLS,
        |c| {
            let mut s = c.active()?;
            for sample in c.samples("model.generate", "tools") {
                let id = s.call("model.generate", sample.body());
                let (items, end) = s.collect(id)?;
                let value = is_whole(&s, &end)?;
                let calls =
                    value.get("message").map(|it| it.list("tool_calls")).unwrap_or_default();
                s.holds(!calls.is_empty(), "tool calls, as the sample says", &value)?;
                let mut told: Vec<(Value, String)> = Vec::new();
                for item in items.iter().filter(|it| it.value().str("t") == Some("tool_call")) {
                    let value = item.value();
                    let at = value.int("i").and_then(|i| usize::try_from(i).ok());
                    let at = at.filter(|at| *at <= told.len());
                    let Some(at) = at else {
                        return Err(s.differs(item, "i, counted from 0", value.to_string()));
                    };
                    if at == told.len() {
                        told.push((value.clone(), String::new()));
                    }
                    told[at].1.push_str(value.str("d").unwrap_or(""));
                }
                s.same(&end, "how many tool calls it has", &told.len(), &calls.len())?;
                for (call, (first, args)) in calls.iter().zip(&told) {
                    for key in ["id", "name"] {
                        let of = |value: &Value| value.str(key).unwrap_or("nothing").to_owned();
                        s.same(&end, key, &of(first), &of(call))?;
                    }
                    let due = call.get("args").map_or(Json::Null, Value::to_json);
                    let seen = serde_json::from_str(args).unwrap_or(Json::Null);
                    s.holds(args.is_empty() || seen == due, &format!("pieces of {due}"), args)?;
                }
            }
            Ok(())
        },
    ),
    must("BM-04", "stops when it is cancelled", &["R-MO-06"], ENDLESS, |c| {
        let mut s = c.active()?;
        let id = s.call("model.generate", prompt("endless"));
        s.items(id, 3)?;
        s.cancel(id);
        let end = s.end_within(id, GRACE)?;
        s.is_refusal(&end, &code("cancelled"))?;
        s.fence()?;
        s.none("ITEM after END", |got| got.is(ITEM, id) && got.entry > end.entry)
    }),
    must("BM-05", "holds its upstream while nobody reads", &["R-MO-06"], ENDLESS, |c| {
        let mut s = c.active_with(&hello().with("limits", limits(FRAME, 16_384, CALLS)))?;
        let before = c.memory(&s)?;
        let id = s.call("model.generate", prompt("endless"));
        s.until("the credit to be used up", GRACE, |s| {
            (s.monitor.credit_of(id) <= 0).then_some(())
        })?;
        // What runs on does so now: no frame shows it, only its memory.
        s.linger(std::time::Duration::from_millis(500))?;
        let grown = c.memory(&s)?.saturating_sub(before);
        s.holds(grown < 16 << 20, "less than 16 MiB more", format!("{grown} B more"))?;
        s.cancel(id);
        s.end(id).map(|_| ())
    }),
    must("BM-06", "does not know a model that it does not provide", &["R-ER-16"], MODEL, |c| {
        let mut s = c.active()?;
        for model in ["tck_no_such_model", ""] {
            let id = s.call("model.generate", prompt("say no").with("model", model));
            s.refused(id, &refusal("not_found", "pb.unknown_model", "no"))?;
        }
        super::serves(c, &mut s)
    }),
    must("BM-07", "tolerates parameters that it does not know", &["R-MO-05"], SAMPLE, |c| {
        let mut s = c.active()?;
        for sample in c.samples("model.generate", "").into_iter().filter(|it| it.is_ok()) {
            let id = s.call("model.generate", with_param(sample, "tck_grease", true));
            let (_, end) = s.collect(id)?;
            s.is_ok(&end)?;
        }
        Ok(())
    }),
    must("BM-08", "says for how long its upstream wants no more", &["R-ER-16"], BUSY, |c| {
        let mut s = c.active()?;
        for sample in c.samples("model.generate", "busy") {
            let id = s.call("model.generate", sample.body());
            let end = s.refused(id, &refusal("resource_exhausted", "pb.rate_limited", "maybe"))?;
            let after = end.err().and_then(|err| err.int("after"));
            s.holds(after.is_some_and(|ms| ms > 0), "after, in milliseconds", &end)?;
        }
        Ok(())
    }),
    must("BM-09", "says that max_output cut it off", &["R-MO-07"], LONG, |c| {
        let mut s = c.active()?;
        for sample in c.samples("model.generate", "long") {
            let id = s.call("model.generate", with_param(sample, "max_output", 1));
            let (_, end) = s.collect(id)?;
            let value = is_whole(&s, &end)?;
            s.same(&end, "finish", &"length", &value.str("finish").unwrap_or("nothing"))?;
        }
        Ok(())
    }),
    must("BM-10", "shows nobody credentials or messages", &["R-MO-09"], MODEL, |c| {
        let mut s = c.ready()?;
        let text = |c: &mut crate::case::Case<'_>| format!("tck-secret-{:016x}", c.rng.u64(..));
        let (key, said) = (text(c), text(c));
        let activation = c.activation(&mut s);
        let secrets = activation.get("secrets").cloned().unwrap_or(Value::map());
        let end = s.activate(activation.with("secrets", secrets.with("tck_key", key.clone())))?;
        s.is_ok(&end).map_err(Stop::blocks)?;
        let model = c.entries("model").first().and_then(|entry| entry.str("name")).unwrap_or("");
        let ids = [model, "tck_no_such_model"].map(|model| {
            let script = format!("say {said}");
            s.call("model.generate", prompt(&script).with("model", model))
        });
        let shows = |text: &str| text.contains(&key) || text.contains(&said);
        let leaks = |got: &Got| {
            let is_note = got.kind == NOTE && shows(&String::from_utf8_lossy(&got.body));
            is_note || shows(&got.head.to_string())
        };
        for id in ids {
            let (items, end) = s.collect(id)?;
            if let Some(got) = items.iter().chain([&end]).find(|got| leaks(got)) {
                return Err(s.differs(got, "a head that does not show them", got.to_string()));
            }
        }
        s.fence()?;
        s.none("head or NOTE that shows them", leaks)?;
        s.close("ok");
        s.exits(GRACE)?;
        s.holds(!shows(&s.stderr()), "no credentials or messages in stderr", "some")
    }),
];
