//! A page of Markdown on a terminal: the few forms that the pages of codes use.

use std::fmt::Write;

use clap::builder::styling::{AnsiColor, Style};

use super::{BOLD, DIM};

const CODE: Style = AnsiColor::Cyan.on_default();
/// Longer lines are hard to read, however wide the terminal is.
const WIDTH_MAX: usize = 100;
/// Narrower than this, a terminal wraps better than we do.
const WIDTH_MIN: usize = 30;

/// Headings in bold, code without its fences, paragraphs as wide as the terminal.
pub(crate) fn pretty(markdown: &str, width: usize) -> String {
    let width = width.clamp(WIDTH_MIN, WIDTH_MAX);
    let mut out = String::new();
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix('#') {
            let title = title.trim_start_matches('#').trim();
            push(&mut out, &format!("{BOLD}{title}{BOLD:#}"));
        } else if let Some(info) = line.strip_prefix("```") {
            // ```toml plugbay.toml: the second word is the file.
            if let Some(file) = info.split_whitespace().nth(1) {
                push(&mut out, &format!("    {DIM}{file}{DIM:#}"));
            }
            for line in lines.by_ref().take_while(|it| !it.starts_with("```")) {
                push(&mut out, &format!("    {line}"));
            }
        } else if line.starts_with('|') {
            let mut rows = vec![cells(line)];
            while let Some(row) = lines.next_if(|it| it.starts_with('|')) {
                rows.push(cells(row));
            }
            rows.retain(|row| !row.iter().all(|it| it.starts_with("---")));
            table(&rows).iter().for_each(|row| push(&mut out, row));
        } else if line.is_empty() {
            push(&mut out, "");
        } else {
            let mut words: Vec<&str> = line.split_whitespace().collect();
            let goes_on = |it: &&str| !it.is_empty() && !it.starts_with(['#', '`', '|', '-']);
            while let Some(more) = lines.next_if(goes_on) {
                words.extend(more.split_whitespace());
            }
            let hang = if line.starts_with("- ") { 2 } else { 0 };
            wrapped(&words, width, hang).iter().for_each(|line| push(&mut out, &coded(line)));
        }
    }
    out
}

fn push(out: &mut String, line: &str) {
    // Writing into a String cannot fail.
    writeln!(out, "{}", line.trim_end()).ok();
}

fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split('|').map(|it| it.trim().to_owned()).collect()
}

/// Rows below each other, without their lines.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let len = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |it| it.chars().count());
    let width = |at| rows.iter().map(|row| len(row, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(cell, width): (&String, &usize)| format!("{cell:<width$}");
        coded(&row.iter().zip(&widths).map(cell).collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

/// Lines of words; all but the first begin with `hang` spaces.
fn wrapped(words: &[&str], width: usize, hang: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words {
        // Backticks become a colour and take no room.
        let len = [&*line, word].map(|it| it.chars().filter(|c| *c != '`').count());
        if line.is_empty() {
            line.push_str(word);
        } else if len[0] + 1 + len[1] <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(std::mem::replace(&mut line, format!("{:hang$}{word}", "")));
        }
    }
    lines.push(line);
    lines
}

/// What stands between backticks, in a colour. A line that splits such a text has an
/// odd one, which stays as it is.
fn coded(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let is_odd = parts.len().is_multiple_of(2);
    let mut out = String::new();
    for (at, part) in parts.iter().enumerate() {
        match (at % 2, is_odd && at == parts.len() - 1) {
            (1, false) => out.push_str(&format!("{CODE}{part}{CODE:#}")),
            (1, true) => out.push_str(&format!("`{part}")),
            _ => out.push_str(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(markdown: &str, width: usize) -> String {
        anstream::adapter::strip_str(&pretty(markdown, width)).to_string()
    }

    #[test]
    fn a_page_reads_as_text() {
        let page = "\
# PB9999: a title

One paragraph of `code` and words,
in two lines.

- an item that goes on and
  on
- another

| a | b |
|---|---|
| `x` | longer |

## How to fix it

```toml plugbay.toml
manifest = 1

  # kept as it is
```

End.
";
        let expected = "\
PB9999: a title

One paragraph of code and words, in
two lines.

- an item that goes on and on
- another

a    b
x  longer

How to fix it

    plugbay.toml
    manifest = 1

      # kept as it is

End.
";
        assert_eq!(plain(page, 36), expected);
    }

    #[test]
    fn a_line_is_as_wide_as_the_terminal_within_reason() {
        let words = "word ".repeat(60);
        for (width, longest) in [(10, 30), (50, 50), (400, 100)] {
            let page = plain(&words, width);
            let found = page.lines().map(str::len).max().unwrap();
            assert!(found <= longest && longest - 5 < found, "{width}: {found}");
        }
    }

    #[test]
    fn an_odd_backtick_stays() {
        assert_eq!(anstream::adapter::strip_str(&coded("a `b` c `d")).to_string(), "a b c `d");
    }
}
