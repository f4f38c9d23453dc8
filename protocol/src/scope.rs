//! Scopes: what a plugin may call at its host. \[R-SC\]
//!
//! A scope is the name of a reverse method, narrowed or not: `host.tool.call`,
//! `host.tool.call[fs_*]`. A manifest wants them, `plugin.activate` grants them, a
//! CALL narrows them for itself. Everything here is a decision about text.

use alloc::string::String;

use crate::msgpack::body_str;

/// What a call without a parent needs besides its own method. No method itself.
pub const BACKGROUND: &str = "host.background";

/// The longest glob, in bytes.
const GLOB_MAX: usize = 128;

/// A scope that is well-formed. One that is not covers nothing. \[R-SC-01\]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The method, such as `host.tool.call`.
    pub method: &'a str,
    /// Which names it is narrowed to; `None`: it is not.
    pub glob: Option<&'a str>,
}

impl<'a> Scope<'a> {
    /// Reads a scope; `None` if it has another form.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (method, glob) = match text.split_once('[') {
            Some((method, rest)) => (method, Some(rest.strip_suffix(']')?)),
            None => (text, None),
        };
        let fine = method.contains('.')
            && method.split('.').all(is_word)
            && glob.is_none_or(|glob| {
                (1..=GLOB_MAX).contains(&glob.len()) && glob.bytes().all(is_in_glob)
            });
        fine.then_some(Self { method, glob })
    }

    /// Whether it covers a call of this method for this name. \[R-SC-02\]
    pub fn covers(self, method: &str, name: Option<&str>) -> bool {
        self.method == method
            && self.glob.is_none_or(|glob| name.is_some_and(|name| matches(glob, name)))
    }

    /// Whether a manifest that wants this may be granted the other. \[R-SC-04\]
    pub fn allows(self, granted: Scope<'_>) -> bool {
        self.covers(granted.method, granted.glob)
    }
}

/// Whether a manifest's `wants` allow that this scope is granted. \[R-SC-04\]
pub fn may_be_granted(wants: &[String], scope: &str) -> bool {
    let Some(scope) = Scope::parse(scope) else { return false };
    all(wants).any(|want| want.allows(scope))
}

/// Whether any of these scopes covers a call of this method with this body. \[R-SC-02\]
///
/// The body is looked into only if it matters, and is not decoded beyond that.
pub fn cover(scopes: &[String], method: &str, body: &[u8]) -> bool {
    let mut name = None;
    all(scopes).filter(|scope| scope.method == method).any(|scope| match scope.glob {
        None => true,
        Some(_) => scope.covers(method, *name.get_or_insert_with(|| body_str(body, key(method)))),
    })
}

/// Whether any of these scopes has this method, for whatever name. \[R-SC-07\]
pub fn name(scopes: &[String], method: &str) -> bool {
    all(scopes).any(|scope| scope.method == method)
}

fn all(scopes: &[String]) -> impl Iterator<Item = Scope<'_>> {
    scopes.iter().filter_map(|scope| Scope::parse(scope))
}

/// Where in its body a method says the name that globs are for: `name`, unless the
/// method's contract says otherwise. \[R-SC-02\]
fn key(method: &str) -> &'static str {
    match method {
        "host.approval.request" => "capability",
        _ => "name",
    }
}

fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

fn is_in_glob(c: u8) -> bool {
    c.is_ascii_graphic() && c != b'[' && c != b']'
}

/// Whether a glob matches the whole name: `*` any run of characters, every other
/// character itself. The parts between the stars are looked for one after another, so
/// the work is bounded by the name, whatever both are. \[R-SC-03\]
fn matches(glob: &str, name: &str) -> bool {
    let Some((first, rest)) = glob.split_once('*') else { return glob == name };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let within = name.strip_prefix(first).and_then(|name| name.strip_suffix(last));
    let Some(mut within) = within else { return false };
    middle.split('*').all(|part| match within.split_once(part) {
        // An empty pattern splits before the first character.
        Some((_, behind)) => {
            within = behind;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn list<const N: usize>(scopes: [&str; N]) -> Vec<String> {
        scopes.map(ToString::to_string).to_vec()
    }

    #[test]
    fn what_a_scope_may_be() {
        let long = "x".repeat(128);
        for (text, method, glob) in [
            ("host.tool.call", "host.tool.call", None),
            ("a.b", "a.b", None),
            ("acme.x_1.y2_", "acme.x_1.y2_", None),
            ("host.tool.call[fs_*]", "host.tool.call", Some("fs_*")),
            ("a.b[*]", "a.b", Some("*")),
            ("a.b[!Z\\^~]", "a.b", Some("!Z\\^~")),
            (&alloc::format!("a.b[{long}]"), "a.b", Some(&*long)),
        ] {
            assert_eq!(Scope::parse(text), Some(Scope { method, glob }), "{text}");
        }
        for text in [
            "",
            "a",
            "host",
            ".a",
            "a.",
            "a..b",
            "A.b",
            "a.B",
            "1.a",
            "a.1",
            "a._b",
            "a-b.c",
            "a.b ",
            " a.b",
            "a.b[",
            "a.b[]",
            "a.b]",
            "a.b[x]y",
            "a.b[x y]",
            "a.b[x[y]",
            "a.b[x]]",
            "a.b[\u{e9}]",
            "a.b[\t]",
            "a.b[x",
            "a[x]",
            "[x]",
            "*",
            "a.*",
            "\u{e9}.b",
        ] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
        assert_eq!(Scope::parse(&alloc::format!("a.b[{long}x]")), None);
    }

    #[test]
    fn a_glob_matches_the_whole_name() {
        for (glob, name, fits) in [
            ("fs_read", "fs_read", true),
            ("fs_read", "fs_reads", false),
            ("fs_read", "xfs_read", false),
            ("fs_*", "fs_read", true),
            ("fs_*", "fs_", true),
            ("fs_*", "xfs_", false),
            ("*", "", true),
            ("*", "anything at all \u{2702}", true),
            ("**", "", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab*", "ab", false),
            ("*ab*ab*", "abab", true),
            ("*a*", "bbb", false),
            ("a?c", "abc", false),
            ("a?c", "a?c", true),
            ("a.c", "abc", false),
            ("A*", "abc", false),
        ] {
            assert_eq!(matches(glob, name), fits, "{glob} {name}");
        }
    }

    /// The textbook's way, one character at a time.
    fn slowly(glob: &[u8], name: &[u8]) -> bool {
        match (glob, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                slowly(rest, name) || !name.is_empty() && slowly(glob, &name[1..])
            }
            ([a, glob @ ..], [b, name @ ..]) if a == b => slowly(glob, name),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_glob_means_what_the_textbook_says(glob in "[ab*]{1,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(matches(&glob, &name), slowly(glob.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn a_call_is_covered_by_its_method_and_name() {
        let scopes = list(["host.a[x_*]", "host.b", "nonsense", "host.b.c[", "host.a[y]"]);
        let body = |name: &str| {
            let mut body = b"\x82\xa4args\x80\xa4name".to_vec();
            body.push(0xa0 | name.len() as u8);
            body.extend(name.as_bytes());
            body
        };
        for (method, body, covered) in [
            ("host.a", &body("x_1")[..], true),
            ("host.a", &body("y"), true),
            ("host.a", &body("z"), false),
            ("host.a", b"", false),
            ("host.a", b"\x81\xa4name\x01", false),
            ("host.a", b"\xc1", false),
            // Of a name that stands twice the last counts.
            ("host.a", b"\x82\xa4name\xa1y\xa4name\xa1z", false),
            ("host.b", &body("z"), true),
            ("host.b", b"\xc1", true),
            ("host.b.c", b"", false),
            ("host", b"", false),
            ("nonsense", b"", false),
        ] {
            assert_eq!(cover(&scopes, method, body), covered, "{method} {body:x?}");
        }
        assert!(!cover(&[], "host.b", b""));
        let approval = list(["host.approval.request[fs.*]"]);
        let asks = |body: &[u8]| cover(&approval, "host.approval.request", body);
        assert!(asks(b"\x81\xaacapability\xa7fs.read"));
        assert!(!asks(b"\x81\xa4name\xa7fs.read"));
        assert!(name(&scopes, "host.a") && !name(&scopes, "host.c") && !name(&scopes, "nonsense"));
    }

    #[test]
    fn a_grant_holds_only_what_is_wanted() {
        let wants = list(["host.a[x_*]", "host.b", "host.c[*]", "nonsense"]);
        for (scope, fine) in [
            ("host.a[x_*]", true),
            ("host.a[x_1]", true),
            ("host.a[x_1*]", true),
            ("host.a[x*]", false),
            ("host.a[*]", false),
            ("host.a", false),
            ("host.b", true),
            ("host.b[anything]", true),
            ("host.c[anything*]", true),
            ("host.c", false),
            ("host.d", false),
            ("nonsense", false),
            ("host.b[", false),
        ] {
            assert_eq!(may_be_granted(&wants, scope), fine, "{scope}");
        }
    }
}
