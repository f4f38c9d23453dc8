//! `schema/`: the form of every head and body as JSON Schema, tried on its own
//! examples and on all that is shown elsewhere.

use std::{collections::BTreeMap, fs, path::Path};

use jsonschema::Registry;
use serde_json::{Value, json};

use crate::vectors::{self, Receiver};

/// What is asked of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Whoever reads it must not refuse it.
    Receiver,
    /// And whoever writes it may write it: `x-send` holds too.
    Sender,
}

impl By {
    /// Where the schemas of this kind are, so that references among them stay inside.
    fn base(self) -> &'static str {
        match self {
            Self::Receiver => "https://plugbay.invalid/receive/",
            Self::Sender => "https://plugbay.invalid/send/",
        }
    }
}

pub(super) struct Schemas {
    files: BTreeMap<String, Value>,
    registry: Registry<'static>,
}

impl Schemas {
    /// Reads a folder.
    ///
    /// # Errors
    /// A file is no JSON Schema 2020-12.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        let mut registry = Registry::new();
        for entry in fs::read_dir(folder).map_err(|why| why.to_string())? {
            let path = entry.map_err(|why| why.to_string())?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let wrong = |why: String| format!("schema/{name}: {why}");
            let text = fs::read_to_string(&path).map_err(|why| wrong(why.to_string()))?;
            let schema: Value =
                serde_json::from_str(&text).map_err(|why| wrong(why.to_string()))?;
            let valid = jsonschema::draft202012::meta::validate(&schema);
            valid.map_err(|why| wrong(why.to_string()))?;
            for by in [By::Receiver, By::Sender] {
                let mut schema = schema.clone();
                if by == By::Sender {
                    oblige_sender(&mut schema);
                }
                let added = registry.add(format!("{}{name}", by.base()), schema);
                registry = added.map_err(|why| wrong(why.to_string()))?;
            }
            files.insert(name, schema);
        }
        let registry = registry.prepare().map_err(|why| why.to_string())?;
        Ok(Self { files, registry })
    }

    fn definitions(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.files.iter().flat_map(|(file, schema)| {
            let definitions = schema["$defs"].as_object().into_iter().flatten();
            definitions.map(|(name, definition)| (file.as_str(), name.as_str(), definition))
        })
    }

    fn has(&self, file: &str, name: &str) -> bool {
        self.definitions().any(|(at, it, _)| (at, it) == (file, name))
    }

    /// That a value fits the definition `name` of a file.
    ///
    /// # Errors
    /// It does not, or there is no such definition.
    pub(super) fn fits(&self, by: By, file: &str, name: &str, value: &Value) -> Result<(), String> {
        let schema = json!({ "$ref": format!("{}{file}#/$defs/{name}", by.base()) });
        let options = jsonschema::draft202012::options().offline().with_registry(&self.registry);
        let validator = options.build(&schema).map_err(|why| why.to_string())?;
        let value = without_nil(value);
        validator.validate(&value).map_err(|why| format!("{}: {why}", why.instance_path()))
    }

    /// What is wrong with the schemas themselves, and with the vectors by them.
    pub(super) fn problems(&self, registry_page: &str) -> Vec<String> {
        let mut problems = Vec::new();
        for (file, name, definition) in self.definitions() {
            let wrong = |why: String| format!("schema/{file}: {name}: {why}");
            let examples = definition["examples"].as_array().map_or(&[][..], Vec::as_slice);
            if examples.is_empty() {
                problems.push(wrong("expected examples".into()));
            }
            for example in examples {
                for by in [By::Receiver, By::Sender] {
                    if let Err(why) = self.fits(by, file, name, example) {
                        problems.push(wrong(format!("{by:?}: example {example}: {why}")));
                    }
                }
            }
            let counter = definition["x-counterexamples"].as_array();
            let counter = counter.map_or(&[][..], Vec::as_slice);
            if counter.is_empty() && restricts(definition) {
                problems.push(wrong("expected x-counterexamples".into()));
            }
            for it in counter {
                // What only a sender must not do is of no use to show a receiver.
                let by = if self.is_sent_only(definition) { By::Sender } else { By::Receiver };
                if !it["why"].is_string() || self.fits(by, file, name, &it["value"]).is_ok() {
                    problems.push(wrong(format!("expected {it} to be refused")));
                }
            }
        }
        for method in methods(registry_page) {
            let file = file_of(method);
            for part in ["arguments", "result"] {
                if !self.has(&file, &format!("{method}.{part}")) {
                    problems.push(format!("schema/{file}: expected {method}.{part}"));
                }
            }
        }
        problems.extend(self.try_vectors());
        problems
    }

    fn is_sent_only(&self, definition: &Value) -> bool {
        let keys = definition.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        keys.filter(|key| !ANNOTATIONS.contains(key)).all(|key| key == "x-send")
    }

    /// What valid vectors say fits; what is invalid because of a field does not.
    fn try_vectors(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for vector in vectors::valid() {
            for frame in &vector.frames {
                let mut parts = vec![(head_of(frame.kind, vector.receiver), &frame.head)];
                if let (Some(name), Some(body)) =
                    (self.body_of(frame, vector.receiver), frame.value())
                {
                    parts.push((name, body));
                }
                for ((file, name), value) in parts {
                    if let Err(why) = self.fits(By::Receiver, &file, &name, value) {
                        problems.push(format!("valid/{}: {file} {name}: {why}", vector.name));
                    }
                }
            }
        }
        for (name, receiver, kind, head) in vectors::wrong_fields() {
            let (file, definition) = head_of(kind, receiver);
            if self.fits(By::Receiver, &file, &definition, &head).is_ok() {
                problems
                    .push(format!("invalid/{name}: {file} {definition} does not refuse {head}"));
            }
        }
        problems
    }

    /// The definition of a body, where it follows from the frame alone.
    fn body_of(&self, frame: &vectors::Meaning, receiver: Receiver) -> Option<(String, String)> {
        let (file, name) = match (frame.kind, receiver) {
            ("HELLO", Receiver::Host) => ("plugin.json".into(), "manifest".into()),
            ("CLOSE", _) => ("frames.json".into(), "close.body".into()),
            ("CALL", _) => {
                let method = frame.head["method"].as_str()?;
                (file_of(method), format!("{method}.arguments"))
            }
            ("END", _) if frame.head.get("err").is_some() => {
                ("frames.json".into(), "end.error.body".into())
            }
            ("NOTE", _) => {
                ("frames.json".into(), format!("note.{}.body", frame.head["topic"].as_str()?))
            }
            _ => return None,
        };
        self.has(&file, &name).then_some((file, name))
    }
}

/// What says nothing about a value.
const ANNOTATIONS: &[&str] = &["description", "examples", "x-counterexamples"];

fn restricts(definition: &Value) -> bool {
    let keys = definition.as_object().into_iter().flatten();
    keys.map(|(key, _)| key.as_str()).any(|key| !ANNOTATIONS.contains(&key))
}

/// The definition of a head. What a note's topic asks for is no reason to refuse it.
fn head_of(kind: &str, receiver: Receiver) -> (String, String) {
    let name = match (kind, receiver) {
        ("HELLO", Receiver::Plugin) => "hello.host".into(),
        ("HELLO", Receiver::Host) => "hello.plugin".into(),
        _ => kind.to_lowercase(),
    };
    ("frames.json".into(), name)
}

/// The file that has the bodies of a method.
fn file_of(method: &str) -> String {
    let name = match method.split('.').next() {
        Some("session" | "host") => "runtime",
        Some(first) => first,
        None => method,
    };
    format!("{name}.json")
}

/// The methods that the registry lists, but for those of the suite as host, whose bodies
/// can be anything.
fn methods(registry_page: &str) -> impl Iterator<Item = &str> {
    let section = registry_page.split("## Methods").nth(1).unwrap_or_default();
    let rows = section.split("\n## ").next().unwrap_or_default().lines();
    let first_cells = rows.filter(|row| row.contains("](")).filter_map(|row| row.split('|').nth(1));
    let words = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.filter(|word| !word.starts_with("host.tck."))
}

/// A field with nil is absent [R-HD-04].
fn without_nil(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nil(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nil).collect()),
        other => other.clone(),
    }
}

/// Makes `x-send` hold.
fn oblige_sender(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if let Some(more) = keys.remove("x-send") {
                let all = keys.entry("allOf").or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(more.clone()));
            }
            // Examples are no schemas, whatever they hold.
            let keys = keys.iter_mut().filter(|(key, _)| !ANNOTATIONS.contains(&key.as_str()));
            keys.for_each(|(_, value)| oblige_sender(value));
        }
        Value::Array(items) => items.iter_mut().for_each(oblige_sender),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(schema: &Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("frames.json"), schema.to_string()).unwrap();
        folder
    }

    #[test]
    fn examples_and_counterexamples_are_executed() {
        let schema = json!({"$defs": {
            "good": {"type": "string", "x-send": {"enum": ["a"]}, "examples": ["a"],
                     "x-counterexamples": [{"why": "a number", "value": 1}]},
            "wrong": {"type": "string", "examples": [1],
                      "x-counterexamples": [{"why": "it is none", "value": "a"}]},
            "unsent": {"type": "string", "x-send": {"enum": ["a"]}, "examples": ["b"],
                       "x-counterexamples": [{"why": "a number", "value": 1}]},
            "bare": {"type": "string"},
        }});
        let folder = folder(&schema);
        let found = Schemas::read(folder.path()).unwrap().problems("");
        let found: Vec<_> = found.iter().filter(|it| it.starts_with("schema/")).collect();
        for due in [
            "wrong: Receiver: example 1",
            "wrong: Sender: example 1",
            "wrong: expected {",
            "unsent: Sender: example \"b\"",
            "bare: expected examples",
            "bare: expected x-counterexamples",
        ] {
            assert!(found.iter().any(|it| it.contains(due)), "{due}: {found:#?}");
        }
        assert_eq!(found.len(), 6, "{found:#?}");
    }

    #[test]
    fn every_method_of_the_registry_needs_a_schema() {
        let page = "## Methods\n| `tool.call` | x | [a](b) |\n| `tool.` | | reserved |\n## Kinds\n| `c.d` | [e](f) |\n";
        assert_eq!(methods(page).collect::<Vec<_>>(), ["tool.call"]);
        let folder = folder(&json!({"$defs": {}}));
        let found = Schemas::read(folder.path()).unwrap().problems(page);
        assert!(found.contains(&"schema/tool.json: expected tool.call.result".to_owned()));
    }

    #[test]
    fn a_vector_that_its_schema_does_not_fit_is_found() {
        let closed = json!({"$defs": {"cancel": {"type": "object", "maxProperties": 0}}});
        let found = Schemas::read(folder(&closed).path()).unwrap().try_vectors();
        assert!(found.iter().any(|it| it.starts_with("valid/cancel: frames.json cancel")));
        let open = json!({"$defs": {"call": {}}});
        let found = Schemas::read(folder(&open).path()).unwrap().try_vectors();
        assert!(
            found.iter().any(|it| it.starts_with("invalid/call-without-method: ")),
            "{found:#?}"
        );
    }

    #[test]
    fn what_is_no_schema_is_told() {
        let folder = folder(&json!({"$defs": {"x": {"type": "strong"}}}));
        assert!(Schemas::read(folder.path()).is_err());
    }
}
