//! What a plugin provides.

use std::collections::BTreeSet;

use crate::{
    case::{HANDSHAKE, hello},
    check::{Check, Need, Stop, must, should},
    codec::HELLO,
    list, map,
    session::{Session, code, refusal},
    value::Value,
};

const ACTIVE: &[Need] = &[Need::Active];

/// The entries in HELLO, as kind and name.
fn names(entries: &[Value]) -> Vec<(String, String)> {
    let field = |entry: &Value, key: &str| entry.str(key).unwrap_or("").to_owned();
    entries.iter().map(|entry| (field(entry, "kind"), field(entry, "name"))).collect()
}

/// What a new process says that it provides.
fn provides(s: &mut Session) -> Result<Value, Stop> {
    let got = s.expect("HELLO", HANDSHAKE, |got| got.kind == HELLO)?;
    Ok(got.value().get("provides").cloned().unwrap_or(Value::Nil))
}

fn is_name(name: &str) -> bool {
    let mut letters = name.bytes();
    let first = letters.next().is_some_and(|it| it.is_ascii_alphabetic());
    first
        && name.len() <= 64
        && letters.all(|it| it.is_ascii_alphanumeric() || it == b'_' || it == b'-')
}

/// The first reference in a schema that leads out of it.
fn outside(schema: &serde_json::Value) -> Option<String> {
    match schema {
        serde_json::Value::Object(map) => map.iter().find_map(|(key, value)| match value {
            serde_json::Value::String(to)
                if (key == "$ref" || key == "$dynamicRef") && !to.starts_with('#') =>
            {
                Some(to.clone())
            }
            other => outside(other),
        }),
        serde_json::Value::Array(items) => items.iter().find_map(outside),
        _ => None,
    }
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "RG-01",
        "provides entries with names that are allowed and unique",
        &["R-HS-10"],
        &[],
        |c| {
            let mut s = c.greet(&hello())?;
            let entries = provides(&mut s)?;
            let names = names(entries.as_list().unwrap_or(&[]));
            s.holds(!names.is_empty(), "at least one entry in provides", "none")?;
            let mut seen = BTreeSet::new();
            for (kind, name) in names {
                s.holds(
                    is_name(&name),
                    "a name of the form that R-HS-10 gives it",
                    format!("{name:?}"),
                )?;
                let fresh = seen.insert((kind.clone(), name.clone()));
                s.holds(fresh, "each name once in its kind", format!("{kind} {name:?} twice"))?;
            }
            Ok(())
        },
    ),
    must(
        "RG-02",
        "provides and wants in HELLO what the settings say",
        &["R-HS-12", "R-LC-05"],
        ACTIVE,
        |c| {
            // What activation offers can only be less than HELLO did.
            let mut s = c.ready()?;
            let body = c.activation(&mut s);
            let end = s.activate(body)?;
            s.is_ok(&end)?;
            let value = end.value();
            let Some(offered) = value.get("provides").and_then(Value::as_list) else {
                return Ok(());
            };
            let all = names(&c.profile().provides);
            for name in names(offered) {
                s.holds(
                    all.contains(&name),
                    "entries out of those in HELLO",
                    format!("{} {}", name.0, name.1),
                )?;
            }
            Ok(())
        },
    ),
    must("RG-03", "has the methods of what it provides", &["R-GT-07", "R-TK-01"], ACTIVE, |c| {
        let mut s = c.active()?;
        for method in super::methods(c) {
            let id = s.call(&method, vec![0xc1_u8]);
            let end = s.end(id)?;
            let seen = end.err().and_then(|err| err.str("code")).unwrap_or("ok").to_owned();
            if seen == "unimplemented" {
                return Err(s.differs(&end, format!("{method} to be there"), seen));
            }
        }
        Ok(())
    }),
    must(
        "RG-04",
        "has no methods of what it does not provide",
        &["R-GT-07", "R-TK-02"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            let kinds = c.profile().kinds();
            let methods = [
                ("tool", "tool.call"),
                ("model", "model.generate"),
                ("policy", "policy.check"),
                ("memory", "memory.search"),
                ("sandbox", "sandbox.open"),
                ("runtime", "session.open"),
            ];
            for (kind, method) in methods {
                if !kinds.contains(kind) {
                    let id = s.call(method, ());
                    s.refused(id, &code("unimplemented"))?;
                }
            }
            super::serves(c, &mut s)?;
            if c.profile().has("tck", "sleep") {
                let mut s = c.active_as(map! {"config": map! {"provides": list!["e*"]}})?;
                let id = s.call("tck.sleep", map! {"ms": 0});
                s.refused(id, &refusal("unimplemented", "pb.unknown_method", "no"))?;
                s.lives()?;
            }
            Ok(())
        },
    ),
    must(
        "RG-05",
        "has schemas that are whole and for objects",
        &["R-TL-01", "R-TL-02"],
        &[Need::Kind("tool")],
        |c| {
            let s = c.ready()?;
            for tool in c.entries("tool") {
                let name = tool.str("name").unwrap_or("");
                for key in ["input_schema", "output_schema"] {
                    let Some(schema) = tool.get(key) else {
                        s.holds(
                            key == "output_schema",
                            "an input_schema",
                            format!("none in {name}"),
                        )?;
                        continue;
                    };
                    let json = schema.to_json();
                    let is_object = json["type"] == "object";
                    s.holds(
                        is_object,
                        "a schema with type object at its root",
                        format!("{key} of {name}: {json}"),
                    )?;
                    let outside = outside(&json);
                    s.holds(
                        outside.is_none(),
                        "no reference out of the schema",
                        outside.unwrap_or_default(),
                    )?;
                    if let Err(error) = jsonschema::draft202012::new(&json) {
                        return Err(s.failure(
                            "a JSON Schema 2020-12",
                            format!("{key} of {name}: {error}"),
                            None,
                        ));
                    }
                }
            }
            Ok(())
        },
    ),
    must(
        "RG-06",
        "provides the same under the same configuration",
        &["R-LC-07", "R-LC-06"],
        ACTIVE,
        |c| {
            let mut s = c.ready()?;
            let mut told = Vec::new();
            for _ in 0..2 {
                let body = c.activation(&mut s);
                let end = s.activate(body)?;
                s.is_ok(&end)?;
                told.push(end.value().get("provides").cloned().unwrap_or(Value::Nil));
                s.deactivate()?;
            }
            s.holds(told[0] == told[1], "the same provides twice", "two that differ")
        },
    ),
    should("RG-07", "provides the same in the same order at every start", &["R-LC-07"], &[], |c| {
        let mut first = c.greet(&hello())?;
        let first = provides(&mut first)?;
        let mut s = c.greet(&hello())?;
        let second = provides(&mut s)?;
        s.holds(first == second, "the same provides twice", "two that differ")
    }),
];
