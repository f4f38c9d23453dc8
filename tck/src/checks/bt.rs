//! The contract tool.

use serde_json::Value as Json;

use crate::{
    case::{Case, hello},
    check::{Check, Need, Stop, must, should, skip},
    list, map,
    session::{Got, Session, code, refusal},
    value::Value,
};

const TOOL: &[Need] = &[Need::Active, Need::Kind("tool")];
const SAMPLE: &[Need] = &[Need::Active, Need::Sample("tool.call", "")];
const FAILS: &[Need] = &[Need::Active, Need::Sample("tool.call", "fails")];
const PREVIEWS: &[Need] =
    &[Need::Active, Need::Sample("tool.call", "previews"), Need::Feature("stream")];

/// A head that offers all but streams.
fn without_streams() -> Value {
    hello().with("features", list!["async", "reverse"])
}

/// That what stands under `content` is a list of blocks.
pub(super) fn are_blocks(s: &Session, got: &Got, content: Option<&Value>) -> Result<(), Stop> {
    let Some(blocks) = content.and_then(Value::as_list) else {
        let seen = content.map_or("nothing", Value::type_name);
        return Err(s.differs(got, "content, an array of blocks", seen));
    };
    for block in blocks {
        let bytes = || {
            block.str("mime").is_some() && block.get("bin").is_some_and(|it| it.as_bin().is_some())
        };
        let good = match block.str("type") {
            Some("text") => block.str("text").is_some(),
            Some("image" | "file") => bytes(),
            Some("ref") => block.str("uri").is_some(),
            Some(_) => true,
            None => false,
        };
        if !good {
            return Err(s.differs(got, "a block as contract tool describes it", block.to_string()));
        }
    }
    Ok(())
}

/// The text in blocks.
pub(super) fn text_of(blocks: Option<&Value>) -> String {
    let blocks = blocks.and_then(Value::as_list).unwrap_or(&[]);
    blocks.iter().filter_map(|block| block.str("text")).collect()
}

/// The entry of the tool that a body calls.
fn tool_of<'a>(c: &Case<'a>, body: &Value) -> Option<&'a Value> {
    let name = body.str("name")?;
    c.entries("tool").into_iter().find(|tool| tool.str("name") == Some(name))
}

/// The schema under this key of an entry, ready to judge.
fn schema(entry: &Value, key: &str) -> Option<jsonschema::Validator> {
    jsonschema::draft202012::new(&entry.get(key)?.to_json()).ok()
}

/// What a tool requires.
fn required(tool: &Value) -> Vec<String> {
    tool.get("input_schema").map(|schema| schema.strings("required")).unwrap_or_default()
}

/// A call with a `key`.
fn keyed(s: &mut Session, body: &Value, key: &str) -> u32 {
    s.call_head(map! {"method": "tool.call", "deadline": 60_000, "key": key}, body)
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "BT-01",
        "answers with blocks, and each sample as it says",
        &["R-TL-08", "R-TL-11"],
        SAMPLE,
        |c| {
            let mut s = c.active()?;
            for sample in c.samples("tool.call", "") {
                let id = s.call("tool.call", sample.body());
                let (_, end) = s.collect(id)?;
                if !sample.is_ok() {
                    let seen = end.err().and_then(|err| err.str("code")).unwrap_or("ok");
                    s.same(&end, "the code of the error", &sample.expect.as_str(), &seen)?;
                    continue;
                }
                s.is_ok(&end)?;
                are_blocks(&s, &end, end.value().get("content"))?;
            }
            Ok(())
        },
    ),
    must("BT-02", "does not know a tool that it does not provide", &["R-TL-07"], TOOL, |c| {
        let mut s = c.active()?;
        for name in ["tck_no_such_tool", "", "tool.call"] {
            let id = s.call("tool.call", map! {"name": name, "args": map! {}});
            s.refused(id, &code("not_found"))?;
        }
        super::serves(c, &mut s)
    }),
    must(
        "BT-03",
        "refuses arguments that lack what it requires",
        &["R-TL-06", "R-TL-08"],
        TOOL,
        |c| {
            let mut s = c.active()?;
            let due = refusal("invalid_argument", "pb.bad_args", "no");
            let mut tried = 0;
            for tool in c.entries("tool").into_iter().filter(|tool| !required(tool).is_empty()) {
                let name = tool.str("name").unwrap_or("");
                for body in [map! {"name": name}, map! {"name": name, "args": map! {}}] {
                    let id = s.call("tool.call", body);
                    s.refused(id, &due)?;
                }
                tried += 1;
            }
            for sample in c.samples("tool.call", "").into_iter().filter(|sample| sample.is_ok()) {
                let body = sample.body();
                for missing in tool_of(c, &body).map(required).unwrap_or_default() {
                    let args = body.get("args").cloned().unwrap_or(Value::map()).without(&missing);
                    let id = s.call("tool.call", body.clone().with("args", args));
                    s.refused(id, &due)?;
                }
            }
            if tried == 0 { Err(skip("no tool has an argument that it requires")) } else { Ok(()) }
        },
    ),
    must("BT-04", "returns the data that its output_schema promises", &["R-TL-09"], SAMPLE, |c| {
        let mut s = c.active()?;
        let mut tried = 0;
        for sample in c.samples("tool.call", "").into_iter().filter(|sample| sample.is_ok()) {
            let body = sample.body();
            let Some(schema) = tool_of(c, &body).and_then(|tool| schema(tool, "output_schema"))
            else {
                continue;
            };
            let id = s.call("tool.call", body);
            let (_, end) = s.collect(id)?;
            let value = end.value();
            if end.err().is_some() || value.get("is_error").and_then(Value::as_bool) == Some(true) {
                continue;
            }
            tried += 1;
            let data = value.get("data").map_or(Json::Null, Value::to_json);
            if let Err(error) = schema.validate(&data) {
                return Err(s.differs(&end, "data as output_schema says", error.to_string()));
            }
        }
        if tried == 0 {
            Err(skip("no sample succeeds with a tool that has an output_schema"))
        } else {
            Ok(())
        }
    }),
    must("BT-05", "tells a failure of the work as a result", &["R-ER-16"], FAILS, |c| {
        let mut s = c.active()?;
        for sample in c.samples("tool.call", "fails") {
            let id = s.call("tool.call", sample.body());
            let (_, end) = s.collect(id)?;
            s.is_ok(&end)?;
            let seen = end.value().get("is_error").cloned().unwrap_or(Value::Nil);
            s.same(&end, "is_error", &Value::from(true), &seen)?;
        }
        Ok(())
    }),
    must(
        "BT-06",
        "returns all of the result, whether it showed previews or not",
        &["R-TL-12"],
        PREVIEWS,
        |c| {
            for sample in c.samples("tool.call", "previews") {
                let mut s = c.active()?;
                let id = s.call("tool.call", sample.body());
                let (items, end) = s.collect(id)?;
                s.is_ok(&end)?;
                s.holds(!items.is_empty(), "a preview, as the sample says", "none")?;
                for item in &items {
                    are_blocks(&s, item, item.value().get("content"))?;
                }
                let mut s = c.active_with(&without_streams())?;
                let id = s.call("tool.call", sample.body());
                let whole = s.ok(id)?;
                s.same(&end, "what it returns without previews", &whole, &end.value())?;
            }
            Ok(())
        },
    ),
    should("BT-07", "does nothing twice for the same key", &["R-TL-13", "R-TL-04"], SAMPLE, |c| {
        let mut s = c.active()?;
        let mut tried = 0;
        for sample in c.samples("tool.call", "").into_iter().filter(|sample| sample.is_ok()) {
            let body = sample.body();
            let declared =
                tool_of(c, &body).and_then(|tool| tool.get("idempotent")).and_then(Value::as_bool);
            if declared != Some(true) {
                continue;
            }
            tried += 1;
            let mut told = Vec::new();
            for key in ["first", "first", "second"] {
                let id = keyed(&mut s, &body, &format!("tck-{key}-{tried}"));
                let (_, end) = s.collect(id)?;
                s.is_ok(&end)?;
                told.push(end);
            }
            s.same(&told[1], "the answer to the same key", &told[0].value(), &told[1].value())?;
            let count = |at: usize| text_of(told[at].value().get("content")).parse::<u64>().ok();
            if sample.uses.iter().any(|it| it == "counts") {
                let due = count(0).map(|n| n + 1);
                let seen = text_of(told[2].value().get("content"));
                s.holds(
                    due.is_some() && count(2) == due,
                    "a count of one more for another key",
                    seen,
                )?;
            }
        }
        if tried == 0 {
            Err(skip("no sample is of a tool that is declared idempotent"))
        } else {
            Ok(())
        }
    }),
];
