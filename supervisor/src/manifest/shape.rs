//! Small shapes that both files share: the version, JSON in TOML, and the parse.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Number, Value};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    codes::Code,
    read::{Node, Read, Reader},
    report::Problem,
    source::{Source, Span},
};

/// More text than any manifest has.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;

/// The version of the format, which is 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct One;

impl Read for One {
    fn read(_: &Node<'_>, _: &mut Reader<'_>) -> Option<Self> {
        // [`version`] has looked at it before anything else.
        Some(Self)
    }

    fn absent() -> Option<Self> {
        Some(Self)
    }
}

impl JsonSchema for One {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Version".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "integer", "const": 1 })
    }
}

/// Parses a file, or says everything that keeps it from being TOML.
pub(crate) fn parse<'t>(
    source: &Source,
    text: &'t str,
) -> Result<Spanned<DeTable<'t>>, Vec<Problem>> {
    let (table, faults) = DeTable::parse_recoverable(text);
    if faults.is_empty() {
        return Ok(table);
    }
    // The first few are real; those after a wrong quote are often its echo.
    const SHOWN_MAX: usize = 8;
    let problems = faults.iter().take(SHOWN_MAX).map(|fault| {
        let span = fault.span().unwrap_or(0..0);
        let duplicate = fault.message().contains("duplicate key");
        let message = if duplicate {
            let key = text.get(span.clone()).unwrap_or_default();
            format!("the key `{key}` is there twice")
        } else {
            format!("this is not TOML: {}", in_words(fault.message()))
        };
        let label = if duplicate { "the second one" } else { "here" };
        Problem::error(Code::PB0101, message).at(source, &visible(text, span), label)
    });
    Err(problems.collect())
}

/// The parser's sentence, in the words of this file's reader.
fn in_words(message: &str) -> &str {
    match message {
        "string values must be quoted, expected literal string" => "text must stand in quotes",
        "invalid basic string, expected `\"`" => "this text has no closing `\"`",
        "invalid literal string, expected `'`" => "this text has no closing `'`",
        other => other,
    }
}

/// An empty span made one character wide where a line has one.
fn visible(text: &str, span: Span) -> Span {
    if !span.is_empty() {
        return span;
    }
    match text.get(span.start..).and_then(|rest| rest.chars().next()) {
        Some(c) if c != '\n' && c != '\r' => span.start..span.start + c.len_utf8(),
        _ => span,
    }
}

/// Checks `manifest = 1`. A file of another version gets this one sentence and
/// no others, for its keys may mean something else.
pub(crate) fn version(source: &Source, table: &DeTable<'_>) -> Result<(), Box<Problem>> {
    let Some(node) = table.get("manifest") else {
        let problem = Problem::error(
            Code::PB0106,
            "this file does not say which version of the format it has",
        );
        let problem = problem.at(source, &(0..0), "the first line is a good place").suggest(
            source,
            &(0..0),
            "manifest = 1\n",
            "add a line",
        );
        return Err(Box::new(problem));
    };
    let number = match node.get_ref() {
        DeValue::Integer(digits) => Some(digits.to_string()),
        _ => None,
    };
    let problem = match number.as_deref() {
        Some("1") => return Ok(()),
        Some(number) => {
            let message = format!(
                "this file has version {number} of the format, and this plugbay knows version 1"
            );
            Problem::error(Code::PB0106, message)
                .at(source, &node.span(), "expected 1")
                .help("a newer plugbay may know it; within a version, keys keep their meaning")
        }
        None => Problem::error(Code::PB0106, "`manifest` expects the number 1")
            .at(source, &node.span(), "the version of the format")
            .suggest(source, &node.span(), "1", "write it without quotes"),
    };
    Err(Box::new(problem))
}

/// A TOML value as JSON. Dates become text.
pub(crate) fn json(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Value> {
    Some(match node.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Integer(digits) => {
            let Ok(number) = i64::from_str_radix(digits.as_str(), digits.radix()) else {
                out_of_range(node, reader, "this number does not fit 64 bits");
                return None;
            };
            Value::Number(number.into())
        }
        DeValue::Float(text) => {
            let number = text.as_str().parse().ok().and_then(Number::from_f64);
            let Some(number) = number else {
                out_of_range(node, reader, "JSON has no such number");
                return None;
            };
            Value::Number(number)
        }
        DeValue::Array(items) => {
            Value::Array(items.iter().filter_map(|item| json(item, reader)).collect())
        }
        DeValue::Table(table) => {
            let entries = table
                .iter()
                .filter_map(|(key, value)| Some((key.get_ref().to_string(), json(value, reader)?)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
    })
}

fn out_of_range(node: &Node<'_>, reader: &mut Reader<'_>, message: &str) {
    let problem = Problem::error(Code::PB0111, message);
    reader.note(problem.at(reader.source, &node.span(), "plugins are handed JSON"));
}
