//! One file's text, where its lines begin, and what of it must not be shown.

use std::{ops::Range, sync::Arc};

use super::report::printable;

/// A stretch of a file, in bytes.
pub(crate) type Span = Range<usize>;

/// A file as it was read. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The path as the operator wrote it.
    pub(crate) name: Arc<str>,
    /// The text that problems may quote: the file with everything masked that
    /// looks like a secret. It is as long as the file, so spans fit both.
    pub(crate) shown: Arc<str>,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self { name: printable(name).into(), shown: masked(text).into() }
    }

    /// Hides more of the text.
    pub(crate) fn hide(&mut self, spans: &[Span]) {
        if !spans.is_empty() {
            self.shown = mask(&self.shown, spans).into();
        }
    }

    /// Line and column, both from 1; the column counts characters.
    pub(crate) fn line_column(&self, at: usize) -> (usize, usize) {
        let before = &self.shown[..self.floor(at)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }

    /// The same span, moved to where it can be sliced.
    pub(crate) fn clamp(&self, span: Span) -> Span {
        let start = self.floor(span.start);
        start..self.floor(span.end).max(start)
    }

    fn floor(&self, at: usize) -> usize {
        let mut at = at.min(self.shown.len());
        while !self.shown.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

/// The text with such words masked.
pub(crate) fn masked(text: &str) -> String {
    mask(text, &tokens(text))
}

/// Whether a text has the shape of a well-known kind of token or key.
pub(crate) fn is_token(word: &str) -> bool {
    const SHAPES: &[(&str, usize)] = &[
        ("sk-", 16),
        ("sk_live_", 16),
        ("ghp_", 20),
        ("gho_", 20),
        ("ghs_", 20),
        ("github_pat_", 20),
        ("glpat-", 16),
        ("xoxb-", 16),
        ("xoxp-", 16),
        ("AKIA", 20),
        ("AIza", 30),
        ("npm_", 20),
        ("hf_", 20),
        ("eyJ", 40),
        ("-----BEGIN", 10),
    ];
    SHAPES.iter().any(|&(start, len)| word.starts_with(start) && len <= word.len())
}

/// Where the text has such words.
fn tokens(text: &str) -> Vec<Span> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), '\n')]) {
        match (is_part(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                if is_token(&text[from..at]) {
                    found.push(from..at);
                }
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn mask(text: &str, spans: &[Span]) -> String {
    let mut masked = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let is_hidden = spans.iter().any(|span| span.contains(&at));
        if is_hidden && !matches!(c, '\n' | '\r' | '"' | '\'') {
            masked.extend(std::iter::repeat_n('*', c.len_utf8()));
        } else {
            masked.push(c);
        }
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        let source = Source::new("a.toml", "é = 1\nb = 2\n");
        #[rustfmt::skip]
        let table = [(0, (1, 1)), (2, (1, 2)), (1, (1, 1)), (7, (2, 1)), (11, (2, 5)), (999, (3, 1))];
        for (at, expected) in table {
            assert_eq!(source.line_column(at), expected, "{at}");
        }
    }

    #[test]
    fn a_token_is_masked_and_the_length_stays() {
        let text = "key = \"ghp_0123456789abcdefghij\" # ok\nid = 'ghp_short'\n";
        let source = Source::new("a.toml", text);
        assert_eq!(&*source.shown, "key = \"************************\" # ok\nid = 'ghp_short'\n");
        assert_eq!(source.shown.len(), text.len());
    }

    #[test]
    fn hiding_keeps_lines_and_widths() {
        let mut source = Source::new("a.toml", "x = \"pé\nss\"\n");
        source.hide(std::slice::from_ref(&(4..11)));
        assert_eq!(&*source.shown, "x = \"***\n**\"\n");
    }
}
