//! How to call a tool, from its schema.

use std::fmt::Write;

use serde_json::Value;

use crate::{
    shape::{Kinds, Shape},
    source::Source,
    values::plain,
};

/// One argument of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) is_required: bool,
    pub(crate) about: String,
}

/// The whole command line that calls a tool, with the plugins that it was looked for in.
pub(crate) fn call(source: &Source, tool: &str, schema: &Value) -> String {
    line(&format!("{} {tool}", source.command("call")), schema)
}

/// `greet who=TEXT [times=INTEGER]`: what must be given first, then what may be.
fn line(tool: &str, schema: &Value) -> String {
    let mut line = tool.to_owned();
    for Argument { name, kind, is_required, .. } in arguments(schema) {
        let word =
            if is_required { format!(" {name}={kind}") } else { format!(" [{name}={kind}]") };
        line.push_str(&word);
    }
    line
}

/// All arguments that the schema names; those that must be given come first.
pub(crate) fn arguments(schema: &Value) -> Vec<Argument> {
    let shape = Shape::of(schema);
    let argument = |name: &str| {
        let inner = shape.property(name);
        Argument {
            name: name.to_owned(),
            kind: inner.as_ref().map_or_else(|| "JSON".to_owned(), |it| kind(it, false)),
            is_required: shape.is_required(name),
            about: inner.as_ref().map(about).unwrap_or_default(),
        }
    };
    let mut all: Vec<Argument> = shape.names().into_iter().map(argument).collect();
    all.sort_by_key(|it| !it.is_required);
    all
}

/// What to write for a value. Inside a list, a list is just JSON, which also ends
/// this for a schema that refers to itself.
fn kind(shape: &Shape<'_>, is_item: bool) -> String {
    let choices = shape.choices().into_iter().filter(|it| !it.is_null()).map(plain);
    let mut words: Vec<String> = choices.collect();
    if words.is_empty() || shape.is_open_beside_choices() {
        let Kinds { text, integer, number, boolean, list, object } = shape.kinds();
        let item = || match is_item {
            true => "JSON".to_owned(),
            false => format!("{}…", kind(&shape.item(0), true)),
        };
        words.extend(text.then(|| "TEXT".to_owned()));
        words.extend((integer && !number).then(|| "INTEGER".to_owned()));
        words.extend(number.then(|| "NUMBER".to_owned()));
        words.extend(boolean.then(|| "true|false".to_owned()));
        words.extend((list && !text).then(item));
        words.extend(object.then(|| "JSON".to_owned()));
    }
    if words.is_empty() { "JSON".to_owned() } else { words.join("|") }
}

fn about(shape: &Shape<'_>) -> String {
    let text = shape.description().unwrap_or_default();
    let mut about = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(default) = shape.default() {
        let space = if about.is_empty() { "" } else { " " };
        // Writing into a String cannot fail.
        write!(about, "{space}[default: {}]", plain(default)).ok();
    }
    about
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_says_all_that_can_be_given() {
        let schema = json!({
            "type": "object",
            "required": ["who", "size"],
            "properties": {
                "a_flag": { "type": "boolean" },
                "who": { "type": "string", "description": "Whom\n to greet." },
                "times": { "type": ["integer", "null"], "default": 1, "description": "How often." },
                "size": { "enum": ["s", "m"] },
                "ratio": { "type": "number" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "rows": { "type": "array", "items": { "type": "object" } },
                "opts": { "type": "object" },
                "any": true,
                "at": { "anyOf": [{ "const": "now" }, { "type": "integer" }] },
                "grid": { "type": "array", "items": { "type": "array" } },
            },
        });
        let expected = "greet size=s|m who=TEXT [a_flag=true|false] [any=JSON] [at=now|INTEGER] \
                        [grid=JSON…] [opts=JSON] [ratio=NUMBER] [rows=JSON…] [tags=TEXT…] [times=INTEGER]";
        assert_eq!(sorted(&line("greet", &schema)), sorted(expected));
        assert!(
            line("greet", &schema).find("who=").unwrap()
                < line("greet", &schema).find("[").unwrap()
        );
        assert_eq!(line("now", &json!({ "type": "object" })), "now");
        let all = arguments(&schema);
        let about = |name: &str| all.iter().find(|it| it.name == name).unwrap().about.clone();
        assert_eq!(about("who"), "Whom to greet.");
        assert_eq!(about("times"), "How often. [default: 1]");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let many: Vec<_> = std::iter::repeat_n(json!({ "$ref": "#/$defs/a" }), 100).collect();
        let endless = json!({
            "properties": { "a": { "$ref": "#/$defs/a" } },
            "$defs": { "a": { "type": "array", "items": { "anyOf": many } } },
        });
        assert_eq!(line("x", &endless), "x [a=JSON…]");
    }

    fn sorted(line: &str) -> Vec<&str> {
        let mut words: Vec<&str> = line.split(' ').collect();
        words.sort_unstable();
        words
    }
}
