//! What may be a name, which pattern covers which name, and which is near.

use plugbay_protocol::scope::Scope;

use crate::peer::Peer;

/// Whether a pattern covers a name: the same text, or a trailing `*` for any
/// rest. There is no other wildcard, so that a person can check a grant by eye.
pub fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// The candidate that was probably meant.
pub fn near<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long input is no typing error, and the distance is quadratic.
    if 128 < word.len() {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '.'], "_");
    candidates
        .into_iter()
        .map(|it| (strsim::damerau_levenshtein(&plain(word), &plain(it)), it))
        .filter(|(distance, it)| *distance <= it.chars().count().min(word.chars().count()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, it)| it)
}

/// A tool's name, as every model API accepts it: 1 to 64 of `[A-Za-z0-9_-]`, a
/// letter first. The fault reads "expected …, found …".
pub(crate) fn tool(text: &str) -> Result<(), String> {
    let first = text.chars().next();
    match first {
        None => return Err("expected 1 to 64 characters, found none".into()),
        Some(c) if !c.is_ascii_alphabetic() => {
            return Err(format!("expected a letter first, found {c:?}"));
        }
        Some(_) => {}
    }
    if 64 < text.len() {
        return Err(format!("expected 1 to 64 characters, found {}", text.chars().count()));
    }
    characters(text, "letters, digits, `_` or `-`", |c| {
        c.is_ascii_alphanumeric() || "_-".contains(c)
    })
}

/// A plugin's id: two or more parts joined by dots, as `acme.geocode`.
pub(crate) fn id(text: &str) -> Result<(), String> {
    if 64 < text.len() {
        return Err(format!("expected at most 64 bytes, found {}", text.len()));
    }
    characters(text, "`a` to `z`, digits, `-` or `.`", |c| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c)
    })?;
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) {
        return Err("expected an owner and a name joined by a dot, as in `acme.geocode`".into());
    }
    Ok(())
}

/// A version: `1.4.0`, with what semver allows after it.
pub(crate) fn version(text: &str) -> Result<(), String> {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = core.split('.').collect();
    let is_number = |part: &&str| {
        part.len() <= 9 && part.parse::<u32>().is_ok_and(|it| it.to_string() == **part)
    };
    let is_rest =
        text[core.len()..].chars().all(|c| c.is_ascii_alphanumeric() || "-+.".contains(c));
    if parts.len() == 3 && parts.iter().all(is_number) && is_rest && text.len() <= 64 {
        Ok(())
    } else {
        Err("expected three numbers, as in `1.4.0` or `1.4.0-rc.1`".into())
    }
}

/// The name of an environment variable or of a secret.
pub(crate) fn variable(text: &str) -> Result<(), String> {
    if text.is_empty() || 128 < text.len() {
        return Err(format!("expected 1 to 128 characters, found {}", text.chars().count()));
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err("expected no digit first".into());
    }
    characters(text, "letters, digits or `_`", |c| c.is_ascii_alphanumeric() || c == '_')
}

/// A scope, the name of something the host does for a plugin, narrowed or not: `kv.get`,
/// `host.tool.call[fs_*]`.
pub(crate) fn scope(text: &str) -> Result<(), String> {
    if let Some((method, _)) = text.split_once('[') {
        scope(method)?;
        return match Scope::parse(text) {
            Some(_) => Ok(()),
            None => Err("expected one pattern of at most 128 printable characters in brackets at \
                         the end, as in `host.tool.call[fs_*]`"
                .into()),
        };
    }
    if 64 < text.len() {
        return Err(format!("expected at most 64 bytes, found {}", text.len()));
    }
    characters(text, "`a` to `z`, digits, `_` or `.`", |c| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c)
    })?;
    if text.split('.').count() < 2 || text.split('.').any(str::is_empty) {
        return Err("expected two or more words joined by dots, as in `kv.get`".into());
    }
    Ok(())
}

/// A host and a port, or `*.` and the end of a host's name: `api.example.org:443`.
pub(crate) fn host_port(text: &str) -> Result<(), String> {
    text.parse::<Peer>().map(drop)
}

/// The same, or the word for every host.
pub(crate) fn host_port_or_all(text: &str) -> Result<(), String> {
    match text {
        ALL_HOSTS => Ok(()),
        text => host_port(text),
    }
}

/// Every host: a word that nobody writes by accident.
pub(crate) const ALL_HOSTS: &str = "all";

/// A path that a grant may name: absolute, or below `${state}` or
/// `${workspace}`, and never upward.
pub(crate) fn granted_path(text: &str) -> Result<(), String> {
    if let Some(start) = text.find("${") {
        let name = text[start + 2..].split('}').next().unwrap_or_default();
        if start != 0 || !["state", "workspace"].contains(&name) {
            return Err(format!(
                "expected `${{state}}` or `${{workspace}}` at the start, found `${{{name}}}`"
            ));
        }
        let rest = &text[2 + name.len()..];
        if !rest.starts_with("}/") && rest != "}" {
            return Err(format!("expected a `/` or nothing after `${{{name}}}`"));
        }
    } else if !text.starts_with('/') {
        return Err("expected an absolute path, or one below `${state}` or `${workspace}`".into());
    }
    if text.split('/').any(|part| part == "..") {
        return Err("expected no `..`".into());
    }
    Ok(())
}

/// Whether `path` is `folder` or lies below it. Both by their text.
pub(crate) fn is_below(path: &str, folder: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        text.split('/').filter(|it| !it.is_empty() && *it != ".").map(str::to_owned).collect()
    };
    let (path, folder) = (parts(path), parts(folder));
    path.starts_with(&folder)
}

/// `sha256:` and 64 hexadecimal digits.
pub(crate) fn digest(text: &str) -> Result<(), String> {
    match text.strip_prefix("sha256:") {
        None => Err("expected `sha256:` first".into()),
        Some(hex) if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            Err(format!("expected 64 hexadecimal digits after `sha256:`, found {}", hex.len()))
        }
        Some(_) => Ok(()),
    }
}

/// Its bytes.
pub(crate) fn digest_bytes(text: &str) -> Option<[u8; 32]> {
    let hex = text.strip_prefix("sha256:")?;
    let mut bytes = [0; 32];
    if hex.len() != 2 * bytes.len() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn characters(text: &str, expected: &str, allowed: impl Fn(char) -> bool) -> Result<(), String> {
    match text.chars().enumerate().find(|&(_, c)| !allowed(c)) {
        Some((at, found)) => {
            Err(format!("expected {expected}, found {found:?} as character {}", at + 1))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_names() {
        #[rustfmt::skip]
        let table = [
            ("lookup",   "lookup",        true),
            ("lookup",   "lookup_2",      false),
            ("search_*", "search_web",    true),
            ("search_*", "search_",       true),
            ("search_*", "research_web",  false),
            ("*",        "anything",      true),
            ("a*b",      "axb",           false),
            ("",         "x",             false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(covers(pattern, name), expected, "{pattern} covers {name}");
        }
    }

    #[test]
    fn near_names() {
        let known = ["open_files", "memory", "stop", "start"];
        #[rustfmt::skip]
        let table = [
            ("openfiles",  Some("open_files")),
            ("open-files", Some("open_files")),
            ("Memory",     Some("memory")),
            ("memroy",     Some("memory")),
            ("network",    None),
            ("x",          None),
            ("",           None),
        ];
        for (word, expected) in table {
            assert_eq!(near(word, known), expected, "{word}");
        }
        assert_eq!(near(&"a".repeat(100_000), known), None);
    }

    #[test]
    fn tool_names() {
        let long = "a".repeat(65);
        #[rustfmt::skip]
        let table = [
            ("",        "expected 1 to 64 characters, found none"),
            ("9lives",  "expected a letter first, found '9'"),
            ("_x",      "expected a letter first, found '_'"),
            ("fs read", "expected letters, digits, `_` or `-`, found ' ' as character 3"),
            ("fs.read", "expected letters, digits, `_` or `-`, found '.' as character 3"),
            (&long,     "expected 1 to 64 characters, found 65"),
        ];
        for (text, expected) in table {
            assert_eq!(tool(text).unwrap_err(), expected);
        }
        for text in ["a", "fs_read", "Fs-Read9", &"a".repeat(64)] {
            assert_eq!(tool(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn other_names() {
        let hex = format!("sha256:{}", "0a".repeat(32));
        type Rule = fn(&str) -> Result<(), String>;
        #[rustfmt::skip]
        let table: &[(Rule, &[&str], &[&str])] = &[
            (id,        &["acme.geocode", "org.example.a-b"], &["geocode", "Acme.x", ".a", "a.", "a..b", ""]),
            (version,   &["1.4.0", "0.0.1-rc.1+5"],           &["1.4", "v1.4.0", "1.04.0", "1.4.0 ", "", "1.4.99999999999"]),
            (variable,  &["LANG", "_x", "A9"],                &["9A", "A-B", "", "A=B"]),
            (scope,     &["kv.get", "fs.read.text", "host.tool.call[fs_*]"],          &["kv", "kv.", "KV.get", "kv.*", "", "kv[a]", "kv.get[", "kv.get[]", "kv.get[a]b"]),
            (host_port, &["a.example:443", "*.a:1", "127.0.0.1:1", "[::1]:80", "localhost:8080"],
                        &["a.example", "*:443", "a*.b:1", "https://a:443", "a:0", "a:99999", ":1", "a b:1", "a..b:1"]),
            (granted_path, &["/tmp/x", "${state}", "${workspace}/a"],
                        &["x", "${home}", "a/${state}", "${state}x", "/a/../b", "${state"]),
            (digest,    &[&hex],                              &["sha256:00", "md5:00", ""]),
        ];
        for (rule, good, bad) in table {
            for text in *good {
                assert_eq!(rule(text), Ok(()), "{text}");
            }
            for text in *bad {
                assert!(rule(text).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn paths_below() {
        #[rustfmt::skip]
        let table = [
            ("/a/b",     "/a",       true),
            ("/a",       "/a/",      true),
            ("/ab",      "/a",       false),
            ("/",        "/a",       false),
            ("${state}", "${state}", true),
            ("${state}", "/a",       false),
        ];
        for (path, folder, expected) in table {
            assert_eq!(is_below(path, folder), expected, "{path} below {folder}");
        }
    }
}
