//! Reads a TOML document into plain structs and goes on after each fault.
//!
//! Serde stops at the first error. A file that people edit deserves all of them
//! at once, each with its place, so the structs of [`super::plugin`] and
//! [`super::host`] are read from `toml`'s spanned document by the trait here.
//! [`keys!`] writes the struct, its reader and its JSON Schema from one list of
//! keys; none of the three can know a key that the others do not.

use std::{borrow::Cow, ops::Deref};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    codes::Code,
    names,
    report::Problem,
    source::{Source, Span},
};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

impl<T> At<T> {
    pub(crate) fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

pub(crate) type Node<'a> = Spanned<DeValue<'a>>;

/// What can be read from a TOML value. `None` means that a problem was noted.
pub(crate) trait Read: Sized {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self>;

    /// What it is when its key is absent; `None` makes the key required.
    fn absent() -> Option<Self> {
        None
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(crate) struct Reader<'s> {
    pub(crate) source: &'s Source,
    pub(crate) problems: Vec<Problem>,
    /// Whose table is being read; problems are then that plugin's alone.
    pub(crate) plugin: Option<String>,
    /// The key being read, for messages.
    key: String,
    /// Keys that were probably meant by unknown ones, with their tables: they
    /// are not missing as well.
    meant: Vec<(usize, String)>,
}

impl<'s> Reader<'s> {
    pub(crate) fn new(source: &'s Source) -> Self {
        Self { source, problems: Vec::new(), plugin: None, key: String::new(), meant: Vec::new() }
    }

    pub(crate) fn note(&mut self, mut problem: Problem) {
        if problem.plugin.is_none() {
            problem.plugin.clone_from(&self.plugin);
        }
        self.problems.push(problem);
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The table with only known keys; the others are noted.
    pub(crate) fn table<'a, 'n>(
        &mut self,
        node: &'a Node<'n>,
        keys: &[&str],
    ) -> Option<&'a DeTable<'n>> {
        let DeValue::Table(table) = node.get_ref() else {
            let example = keys.first().copied().unwrap_or("key");
            self.wrong_type(node, &format!("a table, such as {{ {example} = … }}"));
            return None;
        };
        for (key, _) in table.iter() {
            if !keys.contains(&&**key.get_ref()) {
                self.unknown_key(key.get_ref(), &key.span(), keys);
                let near = names::near(key.get_ref(), keys.iter().copied());
                self.meant.extend(near.map(|it| (node.span().start, it.to_owned())));
            }
        }
        Some(table)
    }

    /// Reads one key of a table.
    pub(crate) fn field<T: Read>(
        &mut self,
        table: &DeTable<'_>,
        key: &'static str,
        span: Span,
    ) -> Option<T> {
        let outer = std::mem::replace(&mut self.key, key.to_owned());
        let value = match table.get(key) {
            Some(node) => T::read(node, self),
            None => {
                let absent = T::absent();
                if absent.is_none() && !self.meant.contains(&(span.start, key.to_owned())) {
                    self.missing(key, &outer, &span);
                }
                absent
            }
        };
        self.key = outer;
        value
    }

    /// Reads under another name for messages.
    pub(crate) fn named<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.key, key.to_owned());
        let value = read(self);
        self.key = outer;
        value
    }

    fn missing(&mut self, key: &str, table: &str, span: &Span) {
        let place = if table.is_empty() { "this file".into() } else { format!("`{table}`") };
        let mut problem = Problem::error(Code::PB0105, format!("{place} lacks the key `{key}`"))
            .at(self.source, span, format!("has no `{key}`"));
        if let Some(example) = example(table, key) {
            problem = problem.help(format!("write, for example: {example}"));
        }
        self.note(problem);
    }

    pub(crate) fn unknown_key(&mut self, key: &str, span: &Span, keys: &[&str]) {
        let problem = Problem::error(Code::PB0102, format!("unknown key `{key}`")).at(
            self.source,
            span,
            "nothing reads this key",
        );
        let problem = match (names::near(key, keys.iter().copied()), elsewhere(key)) {
            (Some(near), _) => problem.near(self.source, span, near),
            (None, Some(hint)) => problem.help(hint),
            (None, None) => problem.help(format!("known here: {}", keys.join(", "))),
        };
        self.note(problem);
    }

    /// Notes that the value is of another type than `expected`, which reads
    /// like "a whole number, such as 8".
    pub(crate) fn wrong_type(&mut self, node: &Node<'_>, expected: &str) {
        self.wrong_type_near(node, expected, None);
    }

    /// The same, with what was probably meant.
    fn wrong_type_near(&mut self, node: &Node<'_>, expected: &str, near: Option<String>) {
        let found = match node.get_ref() {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a decimal number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let span = node.span();
        let message = format!("`{}` expects {expected}, found {found}", self.key);
        let label = format!("this is {found}");
        let mut problem = Problem::error(Code::PB0104, message).at(self.source, &span, label);
        if let Some(near) = near {
            problem = problem.suggest(self.source, &span, &near, "write it as");
        }
        self.note(problem);
    }
}

/// One text as a list: a command line at its spaces, anything else as one item.
fn as_list(text: &str, key: &str) -> String {
    let words: Vec<String> = match key {
        "command" if !text.contains(['"', '\'', '\\']) => {
            text.split_whitespace().map(|word| format!("\"{word}\"")).collect()
        }
        _ => vec![format!("{text:?}")],
    };
    format!("[{}]", words.join(", "))
}

/// A line that shows how a required key is written.
fn example(table: &str, key: &str) -> Option<&'static str> {
    Some(match (table, key) {
        (_, "plugin") => "[plugin] with id = \"acme.geocode\" and version = \"1.0.0\"",
        (_, "run") => "[run] with command = [\"bin/geocode\"]",
        (_, "command") => "command = [\"bin/geocode\"]",
        (_, "id") => "id = \"acme.geocode\"",
        (_, "version") => "version = \"1.0.0\"",
        (_, "kind") => "kind = \"tool\"",
        ("secret", "name") => "name = \"GEOCODE_KEY\"",
        ("env", "name") => "name = \"LANG\"",
        (_, "name") => "name = \"lookup\"",
        (_, "to") => "to = \"api.example.org:443\"",
        (_, "path") => "path = \"${state}\"",
        (_, "access") => "access = \"read\"",
        (_, "call") => "call = \"kv.get\"",
        (_, "restarts") => "budget = { restarts = 5, within = \"10m\" }",
        (_, "within") => "budget = { restarts = 5, within = \"10m\" }",
        _ => return None,
    })
}

/// Keys that people bring from other formats or write one table too high.
fn elsewhere(key: &str) -> Option<&'static str> {
    Some(match key {
        "args" | "arguments" => "arguments go into `command`, after the program",
        "cwd" | "dir" | "workdir" => "a plugin runs in the folder of its plugin.toml",
        "env" | "environment" => {
            "values are not set here: grant names under [plugins.NAME.grant], env = [\"NAME\"]; \
             settings go under [plugins.NAME.config]"
        }
        "timeout" => "budgets have a table: [plugins.NAME.timeouts] with call = \"30s\"",
        "memory" | "cpu" | "processes" | "concurrency" | "queue" => {
            "limits have a table: [plugins.NAME.limits]"
        }
        "permissions" | "allow" | "scopes" | "grants" => {
            "rights have a table: [asks] in plugin.toml, [plugins.NAME.grant] in plugbay.toml"
        }
        "net" | "fs" | "host" | "tools" => "rights have a table: [plugins.NAME.grant]",
        "mcpServers" | "mcp_servers" | "servers" => "each plugin has a table: [plugins.NAME]",
        "value" => "a secret is named, not written: { file = \"…\" } or { env = \"NAME\" }",
        "url" => "a plugin is a program on this machine: name it with `from` or `command`",
        _ => return None,
    })
}

impl<T: Read> Read for Option<T> {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        T::read(node, reader).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Read> Read for At<T> {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        T::read(node, reader).map(|value| Self::new(value, node.span()))
    }
}

/// A list; its faulty items are noted and left out.
impl<T: Read> Read for Vec<T> {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Array(items) = node.get_ref() else {
            let list = node.get_ref().as_str().map(|text| as_list(text, reader.key()));
            reader.wrong_type_near(node, "a list in [ ]", list);
            return None;
        };
        let key = reader.key.clone();
        let mut read = Vec::new();
        for (n, item) in items.iter().enumerate() {
            let item = reader.named(&format!("{key}[{n}]"), |reader| T::read(item, reader));
            read.extend(item);
        }
        Some(read)
    }
}

impl Read for String {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        match node.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => {
                reader.wrong_type(node, "text in quotes");
                None
            }
        }
    }
}

impl Read for bool {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        match node.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            other => {
                let near = match other.as_str() {
                    Some("true" | "yes" | "on") => Some("true".to_owned()),
                    Some("false" | "no" | "off") => Some("false".to_owned()),
                    _ => None,
                };
                reader.wrong_type_near(node, "true or false, without quotes", near);
                None
            }
        }
    }
}

impl Read for u32 {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Integer(digits) = node.get_ref() else {
            let near = node.get_ref().as_str().and_then(|text| text.parse::<Self>().ok());
            let near = near.map(|number| number.to_string());
            reader.wrong_type_near(node, "a whole number without quotes, such as 8", near);
            return None;
        };
        let value = Self::from_str_radix(digits.as_str(), digits.radix()).ok();
        if value.is_none() {
            let message =
                format!("`{}` expects a whole number from 0 to {}", reader.key(), Self::MAX);
            let problem = Problem::error(Code::PB0111, message);
            reader.note(problem.at(reader.source, &node.span(), "not in this range"));
        }
        value
    }
}

impl Read for f64 {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let value = match node.get_ref() {
            DeValue::Float(text) => text.as_str().parse().ok(),
            DeValue::Integer(digits) => digits.as_str().parse().ok(),
            _ => None,
        };
        if value.is_none() {
            reader.wrong_type(node, "a number without quotes, such as 0.2");
        }
        value
    }
}

/// A table whose keys are the writer's own, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Map<T>(pub(crate) Vec<(At<String>, T)>);

impl<T: Read> Read for Map<T> {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Table(table) = node.get_ref() else {
            reader.wrong_type(node, "a table of names");
            return None;
        };
        let mut entries = Vec::new();
        for (key, value) in in_order(table) {
            let name = At::new(key.get_ref().to_string(), key.span());
            let read = reader.named(&name.clone(), |reader| T::read(value, reader));
            entries.extend(read.map(|value| (name, value)));
        }
        Some(Self(entries))
    }
}

/// The entries of a table as they stand in the file.
pub(crate) fn in_order<'a, 'n>(
    table: &'a DeTable<'n>,
) -> Vec<(&'a Spanned<Cow<'n, str>>, &'a Node<'n>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for Map<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("MapOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        schemars::json_schema!({ "type": "object", "additionalProperties": value })
    }
}

/// A table with fixed keys: the struct, its reader and its schema.
macro_rules! keys {
    ($(
        $(#[$about:meta])*
        struct $name:ident {
            $($(#[$about_key:meta])* $key:ident: $type:ty,)*
        }
    )*) => { $(
        $(#[$about])*
        #[derive(Clone, Debug, schemars::JsonSchema)]
        #[schemars(deny_unknown_fields)]
        #[allow(dead_code, reason = "some keys are only checked, and shown by editors")]
        pub(crate) struct $name {
            $($(#[$about_key])* pub(crate) $key: $type,)*
        }

        impl $crate::manifest::read::Read for $name {
            fn read(
                node: &$crate::manifest::read::Node<'_>,
                reader: &mut $crate::manifest::read::Reader<'_>,
            ) -> Option<Self> {
                const KEYS: &[&str] = &[$(stringify!($key)),*];
                let table = reader.table(node, KEYS)?;
                // Every key is read, whatever became of those before it. A faulty
                // optional key counts as absent, so that what follows is checked too.
                $(let $key = reader
                    .field(table, stringify!($key), node.span())
                    .or_else(<$type as $crate::manifest::read::Read>::absent);)*
                Some(Self { $($key: $key?,)* })
            }
        }
    )* };
}

/// A value out of a few words: reading, the schema, and the words themselves.
macro_rules! words {
    ($(
        $(#[$about:meta])*
        $type:ty as $title:literal { $($variant:ident = $word:literal,)* }
    )*) => { $(
        impl $crate::manifest::read::Read for $type {
            fn read(
                node: &$crate::manifest::read::Node<'_>,
                reader: &mut $crate::manifest::read::Reader<'_>,
            ) -> Option<Self> {
                match $crate::manifest::read::word(node, reader, &[$($word),*])? {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $title.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($word),*] })
            }
        }
    )* };
}

pub(crate) use {keys, words};

/// One of a few words, or a problem that lists them.
pub(crate) fn word(
    node: &Node<'_>,
    reader: &mut Reader<'_>,
    words: &[&'static str],
) -> Option<&'static str> {
    let quoted: Vec<String> = words.iter().map(|it| format!("\"{it}\"")).collect();
    let list = match quoted.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => quoted.join(""),
    };
    let DeValue::String(text) = node.get_ref() else {
        reader.wrong_type(node, &list);
        return None;
    };
    let found = words.iter().copied().find(|it| it == text);
    if found.is_none() {
        let message = format!("`{}` expects {list}, found \"{text}\"", reader.key());
        let mut problem = Problem::error(Code::PB0108, message).at(
            reader.source,
            &node.span(),
            "not one of these",
        );
        if let Some(near) = names::near(text, words.iter().copied()) {
            problem = problem.near(reader.source, &node.span(), near);
        }
        reader.note(problem);
    }
    found
}
