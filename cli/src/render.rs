//! All output: data to stdout, talk to stderr, and nothing in either that could
//! steer a terminal.

pub(crate) mod facts;
pub(crate) mod hush;
mod page;
pub(crate) mod running;
pub(crate) mod tools;

use std::{
    cell::Cell,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::builder::styling::{AnsiColor, Style};
use plugbay_supervisor::{Progress, StderrLine, manifest::Report};
use serde_json::Value;

use self::hush::Shown;
use crate::{
    exit::Exit,
    trouble::{Outcome, Trouble, last_lines},
};

/// How wide a terminal is that does not say it.
const WIDTH: usize = 80;
/// How wide the verbs of status lines are.
const VERB_WIDTH: usize = 12;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const PLAIN: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Volume {
    /// Errors.
    Quiet,
    /// And what somebody who waits wants to know.
    Normal,
    /// And what plugins say and do.
    Loud,
}

/// One status line: a verb in a colour, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) style: Style,
    pub(crate) verb: &'static str,
    pub(crate) text: String,
}

impl Status {
    pub(crate) fn new(style: Style, verb: &'static str, text: impl Into<String>) -> Self {
        Self { style, verb, text: text.into() }
    }
}

/// Where a command talks and gives its data.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) volume: Volume,
    /// Whether the last line of the terminal is a progress line.
    is_dirty: Cell<bool>,
}

impl Screen {
    pub(crate) fn new(volume: Volume) -> Self {
        Self { volume, is_dirty: Cell::new(false) }
    }

    /// Says something on stderr. A stderr that is gone changes nothing.
    fn talk(&self, text: &str) {
        let clear = if self.is_dirty.replace(false) { "\r\x1b[K" } else { "" };
        let mut stderr = anstream::stderr().lock();
        write!(stderr, "{clear}{text}").and_then(|()| stderr.flush()).ok();
    }

    /// A status line, unless it should be quiet.
    pub(crate) fn status(&self, status: &Status) {
        if self.volume == Volume::Quiet {
            return;
        }
        let Status { style, verb, text } = status;
        self.talk(&format!("{style}{verb:>VERB_WIDTH$}{style:#} {}\n", one_line(text)));
    }

    /// One line of a plugin's stderr.
    pub(crate) fn line(&self, line: &StderrLine) {
        let (name, text) = (&*line.plugin, one_line(&line.line.0));
        self.talk(&format!("{DIM}{name:>VERB_WIDTH$} |{DIM:#} {text}\n"));
    }

    /// How far a call has come, on a line that is written over; only for a person
    /// who is watching.
    pub(crate) fn progress(&self, progress: &Progress) {
        if self.volume != Volume::Quiet && io::stderr().is_terminal() {
            self.passing("Progress", &progress_text(progress));
        }
    }

    /// What is waited for: on a line that is written over for a person who is watching,
    /// and on lines of its own for somebody who wants to hear everything.
    pub(crate) fn waiting(&self, text: &str) {
        match (self.volume, io::stderr().is_terminal()) {
            (Volume::Quiet, _) | (Volume::Normal, false) => {}
            (_, true) => self.passing("Waiting", text),
            (Volume::Loud, false) => self.status(&Status::new(PLAIN, "Waiting", text)),
        }
    }

    /// How often to say what is waited for; `None` if nobody wants to hear it.
    pub(crate) fn pause(&self) -> Option<Duration> {
        match (self.volume, io::stderr().is_terminal()) {
            (Volume::Quiet, _) | (Volume::Normal, false) => None,
            (_, true) => Some(Duration::from_secs(1)),
            (Volume::Loud, false) => Some(Duration::from_secs(2)),
        }
    }

    /// A status line that the next line takes the place of.
    fn passing(&self, verb: &str, text: &str) {
        let text: String = one_line(text).chars().take(66).collect();
        self.talk(&format!("\r{PLAIN}{verb:>VERB_WIDTH$}{PLAIN:#} {text}\x1b[K"));
        self.is_dirty.set(true);
    }

    /// What a plugin says on stderr, at the speed of a person.
    pub(crate) fn shown(&self, shown: &Shown) {
        let (name, text) = match shown {
            Shown::Line(name, text) => (name, one_line(text)),
            Shown::Again(name, 1) => (name, format!("{DIM}(the same once more){DIM:#}")),
            Shown::Again(name, count) => {
                (name, format!("{DIM}(the same {count} times more){DIM:#}"))
            }
            Shown::Hidden(name, count) => {
                (name, format!("{DIM}({count} lines are not shown; -v shows them){DIM:#}"))
            }
        };
        self.talk(&format!("{DIM}{name:>VERB_WIDTH$} |{DIM:#} {text}\n"));
    }

    /// Takes a progress line away.
    pub(crate) fn clear(&self) {
        if self.is_dirty.get() {
            self.talk("");
        }
    }

    /// What a manifest's check has found.
    pub(crate) fn report(&self, report: &Report) {
        self.talk(&report.render(true));
    }

    /// Why it did not work.
    pub(crate) fn trouble(&self, trouble: &Trouble) {
        if !trouble.message.is_empty() {
            self.talk(&trouble_text(trouble, self.volume < Volume::Loud));
        }
    }

    /// Gives data to stdout. A reader that has seen enough ends the command quietly.
    ///
    /// # Errors
    /// stdout is gone or full.
    pub(crate) fn data(&self, text: &str) -> Outcome<()> {
        self.clear();
        put(anstream::stdout().lock(), text)
    }

    /// A tool's answer: as it is for a program, made harmless for a terminal.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn answer(&self, text: &str) -> Outcome<()> {
        self.clear();
        let is_terminal = io::stdout().is_terminal();
        let text = if is_terminal { harmless(text) } else { text.to_owned() };
        // Not through `anstream`, which would take escape sequences out.
        put(io::stdout().lock(), &text)
    }

    /// A page of Markdown: as it is for a program, laid out for a person.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn page(&self, markdown: &str) -> Outcome<()> {
        let stdout = io::stdout();
        let is_for_a_person = match anstream::AutoStream::choice(&stdout) {
            anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => true,
            _ => stdout.is_terminal(),
        };
        if !is_for_a_person {
            return self.data(markdown);
        }
        let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0.into());
        self.data(&page::pretty(markdown, width))
    }

    /// Data for programs.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn json(&self, value: &Value) -> Outcome<()> {
        self.data(&format!("{value:#}"))
    }
}

fn put(mut stdout: impl Write, text: &str) -> Outcome<()> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let written = write!(stdout, "{text}{end}").and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Trouble::silent(Exit::Fine),
        _ => Trouble::new(Exit::Bad, format!("cannot write to stdout: {error}")),
    })
}

fn trouble_text(trouble: &Trouble, shows_last_words: bool) -> String {
    let code = trouble.code.map_or(String::new(), |code| format!("[{code}]"));
    let message = harmless(&trouble.message);
    let mut text = format!("{BAD}error{code}{BAD:#}{BOLD}: {message}{BOLD:#}\n");
    let mut point = |label: &str, it: &str| {
        let it = harmless(it).replace('\n', "\n     ");
        text.push_str(&format!("   {PLAIN}={PLAIN:#} {label}{it}\n"));
    };
    trouble.notes.iter().for_each(|note| point("", note));
    let lines = last_lines(&trouble.last_words);
    if shows_last_words && !lines.is_empty() {
        let lines: String = lines.iter().map(|it| format!("\n  | {}", one_line(it))).collect();
        point("", &format!("its last words on stderr:{lines}"));
    }
    let help = format!("{BOLD}help{BOLD:#}: ");
    trouble.help.iter().for_each(|it| point(&help, it));
    if let Some(code) = trouble.code {
        point("", &format!("`plugbay explain {code}` says more"));
    }
    text
}

fn progress_text(progress: &Progress) -> String {
    let unit = progress.unit.as_deref().map_or(String::new(), |unit| format!(" {unit}"));
    let count = match (progress.n, progress.total) {
        (Some(n), Some(total)) if 0 < total => {
            let percent = n.min(total) as f64 / total as f64 * 100.0;
            format!("{percent:.0} % ({n} of {total}{unit})")
        }
        (Some(n), _) => format!("{n}{unit}"),
        (None, _) => String::new(),
    };
    let message = progress.message.as_deref().unwrap_or_default();
    [count.as_str(), message].join(" ").trim().to_owned()
}

/// Text that moves no cursor and sets no colour, whoever wrote it.
pub(crate) fn harmless(text: &str) -> String {
    let harmless = |c: char| match c {
        '\n' | '\t' => c,
        // Bidirectional overrides reorder what a person reads.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.replace("\r\n", "\n").chars().map(harmless).collect()
}

/// Harmless, and on one line.
pub(crate) fn one_line(text: &str) -> String {
    harmless(text.trim_end()).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(trouble: &Trouble, shows_last_words: bool) -> String {
        anstream::adapter::strip_str(&trouble_text(trouble, shows_last_words)).to_string()
    }

    #[test]
    fn trouble_says_what_and_what_is_known_and_what_to_do() {
        let trouble = Trouble::coded("PB0507", "greet exited with status 3")
            .note("the tool did not run")
            .last_words("one\n\ntwo\x1b[31m\n")
            .help("look at it");
        let expected = "error[PB0507]: greet exited with status 3
   = the tool did not run
   = its last words on stderr:
       | one
       | two\u{fffd}[31m
   = help: look at it
   = `plugbay explain PB0507` says more
";
        assert_eq!(shown(&trouble, true), expected);
        assert!(!shown(&trouble, false).contains("last words"));
        assert_eq!(shown(&Trouble::usage("no"), true), "error: no\n");
    }

    #[test]
    fn progress_is_a_share_where_it_can_be() {
        let progress = |n, total, unit: Option<&str>, message: Option<&str>| {
            let (unit, message) = (unit.map(str::to_owned), message.map(str::to_owned));
            progress_text(&Progress { n, total, unit, message })
        };
        assert_eq!(progress(Some(1), Some(4), Some("files"), None), "25 % (1 of 4 files)");
        assert_eq!(progress(Some(9), Some(4), None, None), "100 % (9 of 4)");
        assert_eq!(progress(Some(9), Some(0), None, Some("going")), "9 going");
        assert_eq!(progress(None, None, None, Some("going")), "going");
    }

    #[test]
    fn text_cannot_steer_a_terminal() {
        assert_eq!(harmless("a\x1b[2J\r\nb\rc\td\u{202e}"), "a\u{fffd}[2J\nb\u{fffd}c\td\u{fffd}");
        assert_eq!(one_line("a\nb\n"), "a b");
    }
}
