//! `key=value` words.

use std::collections::BTreeMap;

/// The words behind the mode.
#[derive(Debug, Default)]
pub(crate) struct Args(BTreeMap<String, String>);

impl Args {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let pair = |word: String| match word.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(format!("expected key=value, found {word:?}")),
        };
        words.map(pair).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.get(key).unwrap_or(default)
    }

    /// A number; one that is not a number ends the process, because a test that
    /// misspells its fault must not pass as if there were none.
    pub(crate) fn number(&self, key: &str, default: u64) -> u64 {
        let Some(text) = self.get(key) else { return default };
        text.parse().unwrap_or_else(|_| self.wrong(key, "a number"))
    }

    /// Ends the process over a value that is none of the expected ones.
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> ! {
        eprintln!("plugbay-hostile: expected {key}= {expected}, found {:?}", self.get(key));
        std::process::exit(2)
    }
}
