//! A plugin's tools as its manifest lists them, each with a schema that holds.

use std::{fs, path::Path};

use serde_json::Value;

use super::{
    codes::Code,
    names,
    plugin::{Kind, Provide, SchemaSource},
    read::At,
    report::{Notes, Problem},
    source::{Source, Span},
};
use crate::plan::ToolPlan;

/// A tool and where its name stands.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) plan: ToolPlan,
    pub(crate) name_at: Span,
}

/// The tools out of `provides`. A tool whose schema does not hold is withheld;
/// the problem says so and the others are listed.
pub(crate) fn listed(
    provides: &[At<Provide>],
    dir: &Path,
    source: &Source,
    notes: &mut Notes,
) -> Vec<Listed> {
    let mut tools: Vec<Listed> = Vec::new();
    let mut seen: Vec<&At<String>> = Vec::new();
    for provide in provides {
        if *provide.kind != Kind::Tool {
            let kind = provide.kind.as_str();
            let message = format!("things of the kind `{kind}` are planned and not offered yet");
            notes.add(Problem::warning(Code::PB0114, message).at(
                source,
                &provide.kind.span,
                format!("`{}` stays out", *provide.name),
            ));
            continue;
        }
        if let Err(expected) = names::tool(&provide.name) {
            let name = &provide.name.value;
            let message = format!("`{name}` cannot be the name of a tool: {expected}");
            notes.add(
                Problem::error(Code::PB0107, message)
                    .at(source, &provide.name.span, "withheld: models accept no such name")
                    .tool(name),
            );
            continue;
        }
        if let Some(first) = seen.iter().find(|it| it.value == *provide.name) {
            let message = format!("two tools have the name `{}`", *provide.name);
            notes.add(
                Problem::error(Code::PB0113, message)
                    .at(source, &provide.name.span, "the second one")
                    .also(source, &first.span, "the first one")
                    .help("give each tool a name of its own"),
            );
            continue;
        }
        seen.push(&provide.name);
        if let Some(tool) = tool(provide, dir, source, notes) {
            tools.push(tool);
        }
    }
    tools
}

fn tool(provide: &At<Provide>, dir: &Path, source: &Source, notes: &mut Notes) -> Option<Listed> {
    let name = &provide.name.value;
    let lacks = |key: &str, help: &str| {
        Problem::error(Code::PB0105, format!("the tool `{name}` is withheld: it has no `{key}`"))
            .at(source, &provide.name.span, format!("lacks the key `{key}`"))
            .help(help)
            .tool(name)
    };
    let description = provide.description.as_ref().filter(|it| !it.trim().is_empty());
    if description.is_none() {
        notes.add(lacks(
            "description",
            "a model chooses by it: say in a sentence or two what it does",
        ));
    }
    if provide.input.is_none() {
        notes.add(lacks(
            "input",
            "name a JSON Schema, as input = \"schema/in.json\", \
             or write input = { type = \"object\" } for a tool without arguments",
        ));
    }
    let mut schema = |at: &At<SchemaSource>, root: Root| match check(at, dir, root) {
        Ok(schema) => Some(schema),
        Err((why, help)) => {
            let message = format!("the tool `{name}` is withheld: {why}");
            notes.add(
                Problem::error(Code::PB0122, message)
                    .at(source, &at.span, "expected a JSON Schema 2020-12")
                    .help(help)
                    .tool(name),
            );
            None
        }
    };
    let input = provide.input.as_ref().map(|it| schema(it, Root::Object));
    let output = provide.output.as_ref().map(|it| schema(it, Root::Any));
    if matches!(output, Some(None)) {
        return None;
    }
    let plan = ToolPlan {
        name: name.clone(),
        description: description?.value.clone(),
        input_schema: input??,
        output_schema: output.flatten(),
        effect: provide.effect.as_ref().map(|it| it.value).unwrap_or_default(),
        idempotent: provide.idempotent.as_ref().is_some_and(|it| it.value),
    };
    Some(Listed { plan, name_at: provide.name.span.clone() })
}

/// What the schema's root must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// Arguments are named.
    Object,
    /// A result may be anything.
    Any,
}

/// Larger is no schema that a model could read.
const SCHEMA_BYTES_MAX: u64 = 256 << 10;

/// The schema, or why it is none and what to do.
fn check(at: &At<SchemaSource>, dir: &Path, root: Root) -> Result<Value, (String, String)> {
    let schema = match &at.value {
        SchemaSource::Inline(schema) => schema.clone(),
        SchemaSource::File(path) => from_file(path, dir)?,
    };
    schema_holds(&schema, root == Root::Object)?;
    Ok(schema)
}

fn from_file(path: &str, dir: &Path) -> Result<Value, (String, String)> {
    let meta = fs::metadata(dir.join(path));
    match &meta {
        Ok(meta) if !meta.is_file() => {
            return Err((format!("`{path}` is not a file"), "name the file itself".into()));
        }
        Ok(meta) if SCHEMA_BYTES_MAX < meta.len() => {
            let why = format!("`{path}` has more than 256 KiB");
            return Err((why, "a model reads it whole: keep it short".into()));
        }
        _ => {}
    }
    let text = meta.and_then(|_| fs::read_to_string(dir.join(path))).map_err(|err| {
        let why = match err.kind() {
            std::io::ErrorKind::NotFound => "there is no such file",
            std::io::ErrorKind::PermissionDenied => "plugbay may not read it",
            std::io::ErrorKind::InvalidData => "it is not UTF-8 text",
            _ => "it cannot be read",
        };
        (format!("`{path}`: {why}"), "the path starts at the folder of this manifest".to_owned())
    })?;
    serde_json::from_str(&text).map_err(|err| {
        let why = format!("`{path}` is not JSON (line {}, column {})", err.line(), err.column());
        (why, "check the file with any JSON tool".to_owned())
    })
}

/// Whether a value is a JSON Schema 2020-12 that needs nothing from elsewhere,
/// and, for arguments, whether its root is an object. The error is why not, and
/// what to do.
pub fn schema_holds(schema: &Value, object_root: bool) -> Result<(), (String, String)> {
    const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
    if let Some(dialect) = schema.get("$schema")
        && dialect.as_str().map(|it| it.trim_end_matches('#')) != Some(DIALECT)
    {
        let why = "its `$schema` names another version than 2020-12".to_owned();
        return Err((why, format!("write \"$schema\": \"{DIALECT}\", or leave it out")));
    }
    if object_root && schema.get("type").and_then(Value::as_str) != Some("object") {
        return Err((
            "the root of its schema is not an object".into(),
            "arguments are named: write type = \"object\" with properties".into(),
        ));
    }
    if let Some(target) = remote(schema) {
        return Err((
            format!("its schema refers to `{target}`, outside of itself"),
            "copy the part into `$defs` and refer to \"#/$defs/…\"".into(),
        ));
    }
    if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
        let path = error.instance_path().to_string();
        let place = if path.is_empty() { "its root".to_owned() } else { format!("`{path}`") };
        return Err((
            format!("its schema is not valid at {place}"),
            format!("the rule says: {}", shorten(&error.masked_with("this").to_string())),
        ));
    }
    // A valid schema may still hold a pattern that is no regular expression.
    if let Err(error) = jsonschema::draft202012::options().offline().build(schema) {
        return Err((
            "its schema cannot be used".into(),
            format!("the reason is: {}", shorten(&error.to_string())),
        ));
    }
    Ok(())
}

/// The first reference that leaves the document.
fn remote(schema: &Value) -> Option<&str> {
    match schema {
        Value::Object(map) => map.iter().find_map(|(key, value)| match value {
            Value::String(target)
                if ["$ref", "$dynamicRef"].contains(&key.as_str()) && !target.starts_with('#') =>
            {
                Some(target.as_str())
            }
            // Examples and constants are data, whatever their keys are called.
            _ if ["const", "enum", "default", "examples"].contains(&key.as_str()) => None,
            _ => remote(value),
        }),
        Value::Array(items) => items.iter().find_map(remote),
        _ => None,
    }
}

fn shorten(text: &str) -> String {
    const KEPT: usize = 200;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(KEPT) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_that_hold() {
        for schema in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"$ref": {"type": "string"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}),
            json!({"type": "object", "properties": {"a": {"const": {"$ref": "http://x"}}}}),
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}),
        ] {
            assert_eq!(schema_holds(&schema, true), Ok(()), "{schema}");
        }
        assert_eq!(schema_holds(&json!({"type": "string"}), false), Ok(()));
    }

    #[test]
    fn schemas_that_do_not() {
        #[rustfmt::skip]
        let table = [
            (json!(true),                             "the root of its schema is not an object"),
            (json!({"type": ["object", "null"]}),     "the root of its schema is not an object"),
            (json!({"type": "object", "$ref": "other.json"}),
                                                      "its schema refers to `other.json`, outside of itself"),
            (json!({"type": "object", "required": "who"}),
                                                      "its schema is not valid at `/required`"),
            (json!({"type": "object", "$ref": "#/$defs/gone"}), "its schema cannot be used"),
            (json!({"type": "object", "patternProperties": {"(": {}}}),
                                                      "its schema cannot be used"),
            (json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}),
                                                      "its `$schema` names another version than 2020-12"),
        ];
        for (schema, why) in table {
            assert_eq!(schema_holds(&schema, true).unwrap_err().0, why, "{schema}");
        }
    }
}
