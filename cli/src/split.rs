//! A command line as one text becomes a program with arguments, and a name.

/// Splits as a shell would, quotes and backslashes included, and does nothing else
/// that a shell does.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(crate) fn words(line: &str) -> Result<Vec<String>, String> {
    match shlex::split(line) {
        Some(words) if words.is_empty() => Err("expected a program, found nothing".into()),
        Some(words) => Ok(words),
        None => Err("a quote is opened and not closed, or the text ends in a backslash".into()),
    }
}

/// A word that suggests a shell where there is none. Only whole words: within one,
/// such characters may be meant.
pub(crate) fn shell_word(words: &[String]) -> Option<&str> {
    let is_shell = |word: &&String| {
        ["|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>"].contains(&word.as_str())
    };
    words.iter().skip(1).find(is_shell).map(String::as_str)
}

/// Programs that run another one, whose name says more.
const RUNNERS: [&str; 16] = [
    "python", "python3", "node", "deno", "bun", "ruby", "perl", "php", "lua", "sh", "bash", "env",
    "uv", "npx", "java", "run",
];

/// What to call a plugin that has a command line and no manifest: after its program
/// or script, in the characters that a plugin's name may have.
pub(crate) fn name(words: &[String]) -> String {
    let mut stems = words
        .iter()
        .filter(|word| !word.starts_with('-') && !word.contains(['=', ' ', '(', '\n']))
        .map(|word| stem(word));
    let name = stems.find(|stem| !stem.is_empty() && !RUNNERS.contains(&stem.as_str()));
    name.or_else(|| words.first().map(|word| stem(word)))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "plugin".into())
}

/// The file's name without its ending, as far as it may be part of a name.
fn stem(word: &str) -> String {
    let file = word.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
    let letters = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let name: String = letters.skip_while(|c| !c.is_ascii_alphabetic()).take(64).collect();
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_mean_what_they_mean_in_a_shell() {
        #[rustfmt::skip]
        let table: [(&str, &[&str]); 7] = [
            ("./my-plugin --flag",         &["./my-plugin", "--flag"]),
            ("  a   b  ",                  &["a", "b"]),
            (r#"a "b c" 'd e' f\ g"#,      &["a", "b c", "d e", "f g"]),
            (r#"a "it's" 'say "x"'"#,      &["a", "it's", "say \"x\""]),
            ("a ''",                       &["a", ""]),
            ("a $HOME `x` * | b",          &["a", "$HOME", "`x`", "*", "|", "b"]),
            ("a b#c",                      &["a", "b#c"]),
        ];
        for (line, expected) in table {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_split_is_explained() {
        for (line, expected) in
            [("", "nothing"), ("  ", "nothing"), ("a 'b", "quote"), ("a \\", "backslash")]
        {
            assert!(words(line).unwrap_err().contains(expected), "{line}");
        }
    }

    #[test]
    fn a_shell_is_missed_only_where_one_was_meant() {
        let found = |line| shell_word(&words(line).unwrap()).map(str::to_owned);
        assert_eq!(found("a | b"), Some("|".into()));
        assert_eq!(found("a > log"), Some(">".into()));
        assert_eq!(found("a 'x | y' b>c"), None);
    }

    #[test]
    fn a_plugin_is_named_after_what_runs() {
        #[rustfmt::skip]
        let table = [
            ("./my-plugin --flag",             "my-plugin"),
            ("target/debug/examples/hello",    "hello"),
            ("python3 sdk/tutorial/greet.py",  "greet"),
            ("python3 -u greet.py --x",        "greet"),
            ("/usr/bin/env -S node a/b.mjs",   "b"),
            ("env A=1 ./x_y.sh",               "x-y"),
            ("python3",                        "python3"),
            ("python3 -c 'print(1)'",          "python3"),
            ("./_42nd.bin",                    "nd"),
            ("./42",                           "plugin"),
            ("./tool-1.2.3",                   "tool-1"),
        ];
        for (line, expected) in table {
            assert_eq!(name(&words(line).unwrap()), expected, "{line}");
        }
    }
}
