//! Scopes, as far as the place of the host needs them.

/// The method that a scope names; `None` if it has another form [R-SC-01].
pub fn method(scope: &str) -> Option<&str> {
    parts(scope).map(|(method, _)| method)
}

/// Whether a scope covers a call of `method` about `name` [R-SC-02].
pub fn covers(scope: &str, called: &str, name: Option<&str>) -> bool {
    parts(scope).is_some_and(|(method, glob)| {
        method == called && glob.is_none_or(|glob| name.is_some_and(|name| matches(glob, name)))
    })
}

fn parts(scope: &str) -> Option<(&str, Option<&str>)> {
    let (method, glob) = match scope.strip_suffix(']') {
        Some(rest) => rest.split_once('[').map(|(method, glob)| (method, Some(glob)))?,
        None => (scope, None),
    };
    let is_word = |word: &str| {
        word.bytes().enumerate().all(|(i, byte)| match byte {
            b'a'..=b'z' => true,
            b'0'..=b'9' | b'_' => i > 0,
            _ => false,
        }) && !word.is_empty()
    };
    let is_glob = |glob: &str| {
        (1..=128).contains(&glob.len())
            && glob.bytes().all(|b| (0x21..=0x7E).contains(&b) && b != b'[' && b != b']')
    };
    let words = method.split('.').count() > 1 && method.split('.').all(is_word);
    (words && glob.is_none_or(is_glob)).then_some((method, glob))
}

/// Whether a glob matches the whole name, `*` any run of characters [R-SC-03].
pub fn matches(glob: &str, name: &str) -> bool {
    let Some((first, rest)) = glob.split_once('*') else { return glob == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or("");
    for piece in pieces {
        match name.find(piece) {
            Some(at) => name = &name[at + piece.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_cover_what_the_spec_says() {
        assert!(covers("host.tck.echo", "host.tck.echo", None));
        assert!(covers("host.tck.named[a_*]", "host.tck.named", Some("a_b")));
        assert!(!covers("host.tck.named[a_*]", "host.tck.named", Some("b_a_")));
        assert!(!covers("host.tck.named[a_*]", "host.tck.named", None));
        for malformed in [
            "host",
            "Host.x",
            "host.x[",
            "host.x[]",
            "host.x[a b]",
            "host.x[a]]",
            "host..x",
            "host.1x",
        ] {
            assert_eq!(method(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn globs_match_whole_names() {
        let cases = [
            ("*", ""),
            ("a*", "a"),
            ("a*c", "abc"),
            ("*b*", "abc"),
            ("a*b*c", "axbxc"),
            ("abc", "abc"),
        ];
        assert!(cases.iter().all(|(glob, name)| matches(glob, name)));
        let cases = [("a*c", "ab"), ("a", "ab"), ("a*a", "a"), ("*b", "abc"), ("a*b*c", "acb")];
        assert!(!cases.iter().any(|(glob, name)| matches(glob, name)));
    }
}
