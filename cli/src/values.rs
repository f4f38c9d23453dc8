//! `key=value` words become arguments, each typed by the tool's schema.
//!
//! Pure: what a word refers to (a file, stdin) is read before.

use plugbay_supervisor::manifest::names::near;
use serde_json::{Map, Number, Value};

use crate::shape::Shape;

/// How much of a wrong value is shown.
const SHOWN_MAX: usize = 40;

/// One word as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The argument, or a path to a part of it: `a.b`.
    pub(crate) key: String,
    /// `:=` and not `=`: the value is JSON, whatever the schema says.
    pub(crate) is_json: bool,
    pub(crate) from: From,
}

/// Where the value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The word itself.
    Here(String),
    /// `@path`.
    File(String),
    /// `@-`.
    Stdin,
}

/// An argument whose value has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) key: String,
    pub(crate) is_json: bool,
    pub(crate) text: String,
}

/// Reads one word: `key=text`, `key:=json`, `key=@file`, `key=@-`, and `key=@@text`
/// for a text that begins with `@`.
pub(crate) fn word(word: &str) -> Result<Word, String> {
    let shown = shorten(word);
    let Some((key, value)) = word.split_once('=') else {
        return Err(format!(
            "expected key=value, found {shown:?}; `plugbay tools --long` shows how"
        ));
    };
    let (key, is_json) = key.strip_suffix(':').map_or((key, false), |key| (key, true));
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return Err(format!("expected the argument's name before the `=`, found {shown:?}"));
    }
    let from = match value.strip_prefix('@') {
        Some("-") => From::Stdin,
        Some("") => return Err(format!("expected a file's name after the `@` in {shown:?}")),
        Some(rest) if rest.starts_with('@') => From::Here(rest.to_owned()),
        Some(path) => From::File(path.to_owned()),
        None => From::Here(value.to_owned()),
    };
    Ok(Word { key: key.to_owned(), is_json, from })
}

/// Puts what was given into `base`, typed by the schema.
///
/// # Errors
/// Everything that is wrong, each in one sentence.
pub(crate) fn arguments(
    schema: &Value,
    base: Map<String, Value>,
    given: &[Given],
) -> Result<Map<String, Value>, Vec<String>> {
    let mut args = base;
    let mut wrong = Vec::new();
    let mut done: Vec<&str> = Vec::new();
    for Given { key, .. } in given {
        if done.contains(&key.as_str()) {
            continue;
        }
        done.push(key);
        let same: Vec<&Given> = given.iter().filter(|it| it.key == *key).collect();
        let put = locate(Shape::of(schema), key)
            .and_then(|(path, shape)| Ok((path, value(&shape, key, &same)?)))
            .and_then(|(path, value)| place(&mut args, &path, value, key));
        wrong.extend(put.err());
    }
    if wrong.is_empty() { Ok(args) } else { Err(wrong) }
}

/// Follows a key through the schema: the names on the way, and what is expected there.
fn locate<'a, 'k>(shape: Shape<'a>, key: &'k str) -> Result<(Vec<&'k str>, Shape<'a>), String> {
    let mut path = Vec::new();
    let (mut shape, mut rest) = (shape, key);
    loop {
        if let Some(found) = shape.property(rest) {
            path.push(rest);
            return Ok((path, found));
        }
        let (head, tail) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
        let Some(next) = shape.property(head).or_else(|| shape.others()) else {
            return Err(unknown(&shape, &path, head));
        };
        path.push(head);
        match tail {
            None => return Ok((path, next)),
            Some(tail) => (shape, rest) = (next, tail),
        }
    }
}

fn unknown(shape: &Shape<'_>, path: &[&str], name: &str) -> String {
    let names = shape.names();
    let at = path.iter().map(|it| format!("{it}.")).collect::<String>();
    let what = format!("there is no argument `{at}{}`", shorten(name));
    match (near(name, names.iter().copied()), names.as_slice()) {
        (Some(near), _) => format!("{what}; did you mean `{at}{near}`?"),
        (None, []) => format!("{what}; the tool takes none"),
        (None, names) => {
            let names: Vec<String> = names.iter().map(|it| format!("`{at}{it}`")).collect();
            format!("{what}; expected {}", names.join(", "))
        }
    }
}

/// All that was given for one key, as one value.
fn value(shape: &Shape<'_>, key: &str, given: &[&Given]) -> Result<Value, String> {
    let kinds = shape.kinds();
    let is_list = kinds.list && (1 < given.len() || !kinds.text);
    let at = |why: String| format!("`{key}`: {why}");
    match given {
        [only] if only.is_json => json(&only.text).map_err(at),
        // A whole list at once.
        [only] if is_list && only.text.trim_start().starts_with('[') => {
            json(&only.text).map_err(at)
        }
        [only] if !is_list => typed(shape, &only.text).map_err(at),
        many if is_list || kinds.is_open() => {
            let item = |(n, it): (usize, &&Given)| match it.is_json {
                true => json(&it.text),
                false => typed(&shape.item(n), &it.text),
            };
            let items = many.iter().enumerate().map(item);
            items.collect::<Result<Vec<_>, _>>().map(Value::Array).map_err(at)
        }
        many => Err(at(format!("expected one value, found {}", many.len()))),
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| {
        let (shown, at) = (shorten(text), error.column());
        format!("expected JSON, found {shown:?} (it breaks at character {at})")
    })
}

/// One text as the type that the schema wants.
fn typed(shape: &Shape<'_>, text: &str) -> Result<Value, String> {
    let kinds = shape.kinds();
    let choices = shape.choices();
    if let Some(choice) = choices.iter().find(|it| plain(it) == text) {
        return Ok((*choice).clone());
    }
    if !choices.is_empty() && !shape.is_open_beside_choices() {
        return Err(no_choice(&choices, text));
    }
    let open = kinds.is_open();
    if open || (kinds.text && (kinds.number || kinds.integer || kinds.boolean)) {
        // Both would do: what reads back the same is a number or a boolean, the rest is text.
        let reads_back = |it: &Value| {
            let written = it.to_string();
            written == text
        };
        let fits = serde_json::from_str::<Value>(text).ok().filter(|it| match it {
            Value::Bool(_) => (open || kinds.boolean) && reads_back(it),
            Value::Number(n) if n.is_f64() => (open || kinds.number) && reads_back(it),
            Value::Number(_) => (open || kinds.number || kinds.integer) && reads_back(it),
            Value::Array(_) | Value::Object(_) => open,
            _ => false,
        });
        return Ok(fits.unwrap_or_else(|| text.into()));
    }
    if kinds.text {
        return Ok(text.into());
    }
    let trimmed = text.trim();
    if kinds.boolean
        && let Ok(it) = trimmed.parse::<bool>()
    {
        return Ok(it.into());
    }
    if (kinds.integer || kinds.number)
        && let Some(it) = integer(trimmed)
    {
        return Ok(it.into());
    }
    if kinds.number
        && let Some(it) = trimmed.parse::<f64>().ok().and_then(Number::from_f64)
    {
        return Ok(it.into());
    }
    if kinds.object || kinds.list {
        match serde_json::from_str::<Value>(trimmed) {
            Ok(it) if it.is_object() && kinds.object || it.is_array() && kinds.list => {
                return Ok(it);
            }
            _ => {}
        }
    }
    let expected = [
        (kinds.boolean, "true or false"),
        (kinds.integer, "an integer"),
        (kinds.number, "a number"),
        (kinds.object, "an object, as JSON or as key.part=value"),
        (kinds.list, "a list, as JSON"),
    ];
    let expected: Vec<&str> = expected.iter().filter(|it| it.0).map(|it| it.1).collect();
    let digits = trimmed.trim_start_matches(['-', '+']);
    let is_huge = kinds.integer && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let more = if is_huge { ", which is too large for one" } else { "" };
    Err(format!("expected {}, found {:?}{more}", expected.join(" or "), shorten(text)))
}

fn integer(text: &str) -> Option<Number> {
    text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from)).ok()
}

fn no_choice(choices: &[&Value], text: &str) -> String {
    let words: Vec<String> = choices.iter().map(|it| plain(it)).collect();
    let shown: Vec<String> = words.iter().map(|it| format!("`{it}`")).collect();
    let hint = near(text, words.iter().map(String::as_str));
    let hint = hint.map_or(String::new(), |it| format!("; did you mean `{it}`?"));
    format!("expected one of {}, found {:?}{hint}", shown.join(", "), shorten(text))
}

/// A value as a person would type it.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn place(
    args: &mut Map<String, Value>,
    path: &[&str],
    value: Value,
    key: &str,
) -> Result<(), String> {
    let [way @ .., last] = path else { return Ok(()) };
    let mut table = args;
    for name in way {
        let next = table.entry(*name).or_insert_with(|| Value::Object(Map::new()));
        table = next
            .as_object_mut()
            .ok_or_else(|| format!("`{key}`: `{name}` has a value already that is no object"))?;
    }
    table.insert((*last).to_owned(), value);
    Ok(())
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["s"],
            "additionalProperties": false,
            "$defs": { "level": { "enum": ["low", "high"] } },
            "properties": {
                "s": { "type": "string" },
                "maybe": { "type": ["string", "null"] },
                "i": { "type": "integer" },
                "maybe_i": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                "n": { "type": "number" },
                "b": { "type": "boolean" },
                "either": { "type": ["string", "integer"] },
                "any": {},
                "list": { "type": "array", "items": { "type": "integer" } },
                "texts": { "type": "array", "items": { "type": "string" } },
                "one_or_many": { "anyOf": [
                    { "type": "string" }, { "type": "array", "items": { "type": "string" } },
                ] },
                "pair": { "type": "array", "prefixItems": [{ "type": "string" }, { "type": "integer" }] },
                "level": { "$ref": "#/$defs/level" },
                "digit": { "enum": [1, 2] },
                "word_or_n": { "anyOf": [{ "const": "auto" }, { "type": "integer" }] },
                "o": { "type": "object", "properties": {
                    "x": { "type": "integer" },
                    "deep": { "type": "object", "properties": { "y": { "type": "boolean" } } },
                } },
                "env": { "type": "object", "additionalProperties": { "type": "string" } },
                "dot.ted": { "type": "string" },
            },
        })
    }

    fn read(schema: &Value, words: &[&str]) -> Result<Value, Vec<String>> {
        let given: Vec<Given> = words
            .iter()
            .map(|it| match word(it).unwrap() {
                Word { key, is_json, from: From::Here(text) } => Given { key, is_json, text },
                other => panic!("{other:?}"),
            })
            .collect();
        arguments(schema, Map::new(), &given).map(Value::Object)
    }

    #[test]
    fn the_schema_says_which_type_a_value_has() {
        #[rustfmt::skip]
        let table: &[(&[&str], Value)] = &[
            (&["s=007"],                        json!({ "s": "007" })),
            (&["s=true"],                       json!({ "s": "true" })),
            (&["s="],                           json!({ "s": "" })),
            (&["s=a=b"],                        json!({ "s": "a=b" })),
            (&["s=[1]"],                        json!({ "s": "[1]" })),
            (&["s=@@home"],                     json!({ "s": "@home" })),
            (&["s= padded "],                   json!({ "s": " padded " })),
            (&["s=Ünïcode 😀"],                  json!({ "s": "Ünïcode 😀" })),
            (&["maybe=null"],                   json!({ "maybe": "null" })),
            (&["maybe:=null"],                  json!({ "maybe": null })),
            (&["i=7"],                          json!({ "i": 7 })),
            (&["i=-7"],                         json!({ "i": -7 })),
            (&["i=18446744073709551615"],       json!({ "i": 18_446_744_073_709_551_615u64 })),
            (&["i= 7\n"],                       json!({ "i": 7 })),
            (&["maybe_i=7"],                    json!({ "maybe_i": 7 })),
            (&["n=7"],                          json!({ "n": 7 })),
            (&["n=7.5"],                        json!({ "n": 7.5 })),
            (&["n=1e3"],                        json!({ "n": 1000.0 })),
            (&["b=true"],                       json!({ "b": true })),
            (&["b=false"],                      json!({ "b": false })),
            (&["either=7"],                     json!({ "either": 7 })),
            (&["either=007"],                   json!({ "either": "007" })),
            (&["either=7.5"],                   json!({ "either": "7.5" })),
            (&["either=true"],                  json!({ "either": "true" })),
            (&["any=7"],                        json!({ "any": 7 })),
            (&["any=x"],                        json!({ "any": "x" })),
            (&["any=[1,2]"],                    json!({ "any": [1, 2] })),
            (&["any=007"],                      json!({ "any": "007" })),
            (&["any=1", "any=x"],               json!({ "any": [1, "x"] })),
            (&["list=1"],                       json!({ "list": [1] })),
            (&["list=1", "list=2"],             json!({ "list": [1, 2] })),
            (&["list=[1,2]"],                   json!({ "list": [1, 2] })),
            (&["texts=a", "texts=007"],         json!({ "texts": ["a", "007"] })),
            (&["one_or_many=a"],                json!({ "one_or_many": "a" })),
            (&["one_or_many=a", "one_or_many=b"], json!({ "one_or_many": ["a", "b"] })),
            (&["pair=a", "pair=2"],             json!({ "pair": ["a", 2] })),
            (&["level=low"],                    json!({ "level": "low" })),
            (&["digit=1"],                      json!({ "digit": 1 })),
            (&["word_or_n=auto"],               json!({ "word_or_n": "auto" })),
            (&["word_or_n=3"],                  json!({ "word_or_n": 3 })),
            (&["o.x=1", "o.deep.y=true"],       json!({ "o": { "x": 1, "deep": { "y": true } } })),
            (&["o={\"x\":1}"],                  json!({ "o": { "x": 1 } })),
            (&["o:={\"x\":1}", "o.x=2"],        json!({ "o": { "x": 2 } })),
            (&["env.PATH=/bin"],                json!({ "env": { "PATH": "/bin" } })),
            (&["dot.ted=x"],                    json!({ "dot.ted": "x" })),
        ];
        for (words, expected) in table {
            assert_eq!(read(&schema(), words).as_ref(), Ok(expected), "{words:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_what_would() {
        #[rustfmt::skip]
        let table: &[(&[&str], &str)] = &[
            (&["i=abc"],              "`i`: expected an integer, found \"abc\""),
            (&["i=7.5"],              "`i`: expected an integer, found \"7.5\""),
            (&["i=99999999999999999999"], "`i`: expected an integer, found \"99999999999999999999\", which is too large for one"),
            (&["n=inf"],              "`n`: expected a number, found \"inf\""),
            (&["b=yes"],              "`b`: expected true or false, found \"yes\""),
            (&["list=x"],             "`list`: expected an integer, found \"x\""),
            (&["level=hihg"],         "`level`: expected one of `low`, `high`, found \"hihg\"; did you mean `high`?"),
            (&["digit=3"],            "`digit`: expected one of `1`, `2`, found \"3\""),
            (&["word_or_n=aut"],      "`word_or_n`: expected an integer, found \"aut\""),
            (&["s=a", "s=b"],         "`s`: expected one value, found 2"),
            (&["o=x"],                "`o`: expected an object, as JSON or as key.part=value, found \"x\""),
            (&["i:=seven"],           "`i`: expected JSON, found \"seven\" (it breaks at character 1)"),
            (&["o.z=1"],              "there is no argument `o.z`; expected `o.x`, `o.deep`"),
            (&["o.deepp.y=1"],        "there is no argument `o.deepp`; did you mean `o.deep`?"),
            (&["levle=low"],          "there is no argument `levle`; did you mean `level`?"),
            (&["o=[1]", "b=x"],       "`o`: expected an object, as JSON or as key.part=value, found \"[1]\"\n`b`: expected true or false, found \"x\""),
        ];
        for (words, expected) in table {
            let found = read(&schema(), words).unwrap_err().join("\n");
            let found = found.replace("`o.deep`, `o.x`", "`o.x`, `o.deep`");
            assert_eq!(&found, expected, "{words:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_wrong_unless_the_schema_welcomes_it() {
        let listed = json!({ "type": "object", "properties": { "who": { "type": "string" } } });
        let found = read(&listed, &["whoo=Ada"]).unwrap_err();
        assert_eq!(found, ["there is no argument `whoo`; did you mean `who`?"]);
        let open = json!({ "type": "object" });
        assert_eq!(read(&open, &["a=1", "b.c=x"]), Ok(json!({ "a": 1, "b": { "c": "x" } })));
        let said = json!({ "properties": { "a": {} }, "additionalProperties": true });
        assert_eq!(read(&said, &["b=1"]), Ok(json!({ "b": 1 })));
        let none = json!({ "type": "object", "properties": {} });
        let found = read(&none, &["b=1"]).unwrap_err();
        assert_eq!(found, ["there is no argument `b`; the tool takes none"]);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let endless = json!({ "$ref": "#", "anyOf": [{ "$ref": "#" }], "properties": { "a": { "$ref": "#" } } });
        assert_eq!(read(&endless, &["a.a.a:=1"]), Ok(json!({ "a": { "a": { "a": 1 } } })));
    }

    #[test]
    fn words_over_a_whole_object() {
        let base = json!({ "s": "old", "i": 1 }).as_object().unwrap().clone();
        let given = [Given { key: "s".into(), is_json: false, text: "new".into() }];
        let args = arguments(&schema(), base, &given);
        assert_eq!(args.map(Value::Object), Ok(json!({ "s": "new", "i": 1 })));
    }

    #[test]
    fn words_name_their_source() {
        let from = |text: &str| word(text).map(|it| (it.key, it.is_json, it.from));
        let here = |text: &str| From::Here(text.to_owned());
        assert_eq!(from("a=b"), Ok(("a".into(), false, here("b"))));
        assert_eq!(from("a:=1"), Ok(("a".into(), true, here("1"))));
        assert_eq!(from("a=:=b"), Ok(("a".into(), false, here(":=b"))));
        assert_eq!(from("a=@f.txt"), Ok(("a".into(), false, From::File("f.txt".into()))));
        assert_eq!(from("a:=@f.json"), Ok(("a".into(), true, From::File("f.json".into()))));
        assert_eq!(from("a=@-"), Ok(("a".into(), false, From::Stdin)));
        assert_eq!(from("a=@@b"), Ok(("a".into(), false, here("@b"))));
        for wrong in ["a", "", "=b", ":=b", "a..b=c", ".a=c", "a=@"] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }
}
