//! Secrets: named by reference, read once, handed over, and never shown.

use std::{borrow::Cow, fs, io::Read as _, path::Path};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::de::{DeTable, DeValue};

use super::{
    codes::Code,
    read::{At, Node, Read, Reader},
    report::Problem,
    resolve::Surroundings,
    source::{Span, is_token},
};
use crate::plan::Secret;

/// Where a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretSource {
    /// The content of a file, relative to the manifest, without its last newline.
    File(At<String>),
    /// A variable in the supervisor's own environment.
    Env(At<String>),
    /// A file that systemd put into `$CREDENTIALS_DIRECTORY`.
    Credential(At<String>),
    /// Said wrongly, which has been noted: not missing as well.
    Faulty,
}

const KINDS: [&str; 3] = ["file", "env", "credential"];
const LATER: [&str; 3] = ["keyring", "exec", "as"];
const LIKE: &str =
    "{ file = \"/run/secrets/key\" }, { env = \"NAME\" } or { credential = \"name\" }";

impl Read for SecretSource {
    fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        Some(source(node, reader).unwrap_or(Self::Faulty))
    }
}

fn source(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<SecretSource> {
    let span = node.span();
    let table = match node.get_ref() {
        DeValue::Table(table) => table,
        DeValue::String(_) => {
            let message = format!("the secret `{}` is written into this file", reader.key());
            let problem = Problem::error(Code::PB0305, message);
            reader.note(
                problem
                    .at(reader.source, &span, "a value where a reference belongs (not shown)")
                    .help(format!("put it elsewhere and say where: {LIKE}")),
            );
            return None;
        }
        _ => {
            reader.wrong_type(node, &format!("a reference, such as {LIKE}"));
            return None;
        }
    };
    let mut found = Vec::new();
    for (key, value) in table.iter() {
        let name = &**key.get_ref();
        if KINDS.contains(&name) {
            let text = reader.named(name, |reader| At::<String>::read(value, reader))?;
            found.push((name.to_owned(), text));
        } else if LATER.contains(&name) {
            let message = format!("`{name}` is planned for secrets and does not work yet");
            let problem = Problem::error(Code::PB0114, message);
            reader.note(
                problem
                    .at(reader.source, &key.span(), "not in this version")
                    .help(format!("today a secret comes from {LIKE}")),
            );
            return None;
        } else {
            reader.unknown_key(name, &key.span(), &KINDS);
            return None;
        }
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some((kind, text)), None) => Some(match kind.as_str() {
            "file" => SecretSource::File(text),
            "env" => SecretSource::Env(text),
            _ => SecretSource::Credential(text),
        }),
        (first, _) => {
            let many = if first.is_some() { "more than one source" } else { "no source" };
            let message = format!("the secret `{}` has {many}", reader.key());
            let problem = Problem::error(Code::PB0304, message);
            reader.note(
                problem
                    .at(reader.source, &span, "expected exactly one")
                    .help(format!("write one of {LIKE}")),
            );
            None
        }
    }
}

impl JsonSchema for SecretSource {
    fn schema_name() -> Cow<'static, str> {
        "SecretSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "Where a secret comes from: exactly one of these.",
            "type": "object",
            "properties": {
                "file": {
                    "type": "string",
                    "description": "A file with nothing but the secret, relative to this one.",
                },
                "env": {
                    "type": "string",
                    "description": "A variable in the supervisor's own environment.",
                },
                "credential": {
                    "type": "string",
                    "description": "A systemd credential of the supervisor's service.",
                },
            },
            "additionalProperties": false,
            "minProperties": 1,
            "maxProperties": 1,
        })
    }
}

/// Larger is no secret, it is a file.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Reads a secret. The error says why it cannot be had and what to do, without
/// a byte of its value.
pub(crate) fn resolve(
    source: &SecretSource,
    dir: &Path,
    around: &Surroundings,
) -> Result<Option<Secret>, (String, String)> {
    let text = match source {
        SecretSource::Faulty => return Ok(None),
        SecretSource::File(path) => read_file(&dir.join(&**path), path)?,
        SecretSource::Env(name) => around.env.get(&**name).cloned().ok_or_else(|| {
            (
                format!("the variable `{}` is not set where plugbay runs", **name),
                "set it for the supervisor's process, or read the secret from a file".to_owned(),
            )
        })?,
        SecretSource::Credential(name) => {
            if name.is_empty() || name.contains('/') || name.starts_with('.') {
                let why = format!("`{}` is no name of a credential", **name);
                return Err((why, "write the ID as in LoadCredential=, without a path".to_owned()));
            }
            let Some(folder) = around.env.get("CREDENTIALS_DIRECTORY") else {
                return Err((
                    "no credentials here: CREDENTIALS_DIRECTORY is not set".to_owned(),
                    format!("run plugbay as a systemd service with LoadCredential={}:PATH", **name),
                ));
            };
            read_file(&Path::new(folder).join(&**name), name)?
        }
    };
    if text.is_empty() {
        let why = "it is empty".to_owned();
        return Err((why, "an empty secret is a mistake more often than a wish".to_owned()));
    }
    Ok(Some(Secret(text)))
}

fn read_file(path: &Path, shown: &str) -> Result<String, (String, String)> {
    let fail = |why: String, next: &str| Err((why, next.to_owned()));
    let file = match fs::metadata(path).and_then(|meta| {
        // A pipe or a terminal would keep the whole load waiting.
        if meta.is_file() {
            fs::File::open(path)
        } else {
            Err(std::io::ErrorKind::InvalidInput.into())
        }
    }) {
        Ok(file) => file,
        Err(err) => {
            let (why, next) = match err.kind() {
                std::io::ErrorKind::NotFound => ("there is no such file", "check the path"),
                std::io::ErrorKind::PermissionDenied => {
                    ("plugbay may not read it", "let the user that runs plugbay read it")
                }
                std::io::ErrorKind::InvalidInput => {
                    ("it is not a regular file", "name a file with nothing but the secret in it")
                }
                _ => ("it cannot be read", "check the disk and the path"),
            };
            return fail(format!("`{shown}`: {why}"), next);
        }
    };
    let mut bytes = Vec::new();
    if file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes).is_err() {
        return fail(format!("`{shown}`: it cannot be read"), "check the disk and the path");
    }
    if SECRET_BYTES_MAX < bytes.len() as u64 {
        return fail(
            format!("`{shown}`: it has more than 64 KiB"),
            "name a file with nothing but the secret in it",
        );
    }
    let Ok(mut text) = String::from_utf8(bytes) else {
        return fail(
            format!("`{shown}`: it is not UTF-8 text"),
            "encode it, as base64 for example",
        );
    };
    // Editors and `echo` end a file with a newline that is not part of the secret.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Whether a setting looks like a secret by its key or by its value.
pub(crate) fn looks_secret(key: &str, value: &str) -> bool {
    const WORDS: [&str; 6] = ["password", "passwd", "secret", "token", "api_key", "apikey"];
    let key = key.to_ascii_lowercase().replace('-', "_");
    is_token(value) || (8 <= value.len() && WORDS.iter().any(|it| key.ends_with(it)))
}

/// What of a file must not be quoted: literal values where references belong,
/// and settings that look like secrets. Looks at the broken parts of a broken
/// file as well.
pub(crate) fn to_hide(text: &str, root: &DeTable<'_>, faults: &[Problem]) -> Vec<Span> {
    let mut hidden = Vec::new();
    if let Some(DeValue::Table(plugins)) = root.get("plugins").map(|it| it.get_ref()) {
        for plugin in plugins.values() {
            let DeValue::Table(plugin) = plugin.get_ref() else { continue };
            if let Some(DeValue::Table(secrets)) = plugin.get("secrets").map(|it| it.get_ref()) {
                secrets.values().for_each(|value| hide_literals(value, &mut hidden));
            }
            if let Some(config) = plugin.get("config") {
                literals(config, "", &mut |_, span| hidden.push(span));
            }
        }
    }
    // In a broken line nothing tells the value from its key.
    for place in faults.iter().filter_map(|it| it.at.as_ref()) {
        let start = text[..place.span.start].rfind('\n').map_or(0, |it| it + 1);
        let end =
            text[place.span.start..].find('\n').map_or(text.len(), |it| place.span.start + it);
        let header = text[..end].lines().rev().find(|it| it.trim_start().starts_with('['));
        let is_secret = header.is_some_and(|it| it.contains("secret"))
            || text[start..end].to_ascii_lowercase().contains("secret");
        if let Some(equals) = text[start..end].find('=')
            && is_secret
        {
            hidden.push(start + equals + 1..end);
        }
    }
    hidden
}

fn hide_literals(node: &Node<'_>, hidden: &mut Vec<Span>) {
    match node.get_ref() {
        DeValue::Table(table) => {
            let literal = table.iter().filter(|(key, _)| !KINDS.contains(&&**key.get_ref()));
            literal.for_each(|(_, value)| hidden.push(value.span()));
        }
        _ => hidden.push(node.span()),
    }
}

/// Visits the settings that look like secrets.
pub(crate) fn literals(node: &Node<'_>, key: &str, found: &mut dyn FnMut(&str, Span)) {
    match node.get_ref() {
        DeValue::String(text) if looks_secret(key, text) => found(key, node.span()),
        DeValue::Array(items) => items.iter().for_each(|item| literals(item, key, found)),
        DeValue::Table(table) => {
            table.iter().for_each(|(key, value)| literals(value, key.get_ref(), found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret() {
        #[rustfmt::skip]
        let table = [
            ("password",    "correct horse", true),
            ("db-password", "correct horse", true),
            ("API_KEY",     "0123456789",    true),
            ("token",       "short",         false),
            ("tokenizer",   "cl100k_base",   false),
            ("model",       "ghp_0123456789abcdefghij", true),
            ("city",        "Oslo, Norway",  false),
        ];
        for (key, value, expected) in table {
            assert_eq!(looks_secret(key, value), expected, "{key} = {value}");
        }
    }
}
