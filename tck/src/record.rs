//! A conversation as a file that can be held again: JSON, one object a line. A line with `check`
//! begins a conversation, the lines after it are what was said and done, in order.
//!
//! Unlike what is printed it is whole, so it may hold what is nobody's business.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    check::Failure,
    session::Conversation,
    transcript::{Deed, Side},
    walk::Walk,
};

/// What a line that begins a conversation says.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The form of the file, 1.
    pub record: u32,
    /// Which check it was that failed.
    pub check: String,
    /// Of the check, as the report tells it.
    pub seed: u64,
    /// Whether the plugin was told that a host had started it.
    pub cookie: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How the process ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    /// When it was over, in microseconds.
    pub end_us: u64,
    /// The steps, if it was a random walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk: Option<Walk>,
}

/// What one line after it says.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Entry {
    /// Microseconds since the process was started.
    pub at_us: u64,
    pub side: Side,
    #[serde(flatten)]
    pub said: Said,
    /// Bytes that were too many to be recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: usize,
}

// serde hands it over like this.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// A frame, as hex.
    Frame(String),
    /// Bytes that are no frame, or not one that was meant to be, as hex.
    Bytes(String),
    Deed(Deed),
    /// For people.
    Event(String),
}

/// One conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    pub head: Head,
    pub entries: Vec<Entry>,
}

impl Recording {
    pub fn of(
        check: &str,
        seed: u64,
        failure: Option<Failure>,
        conversation: &Conversation,
    ) -> Self {
        let (entries, end_us) = conversation.transcript.recorded();
        let head = Head {
            record: 1,
            check: check.to_owned(),
            seed,
            cookie: conversation.cookie,
            failure,
            exit: conversation.exit.map(|exit| exit.to_string()),
            end_us,
            walk: conversation.walk.clone(),
        };
        Self { head, entries }
    }

    /// The lines.
    pub fn text(&self) -> String {
        let line = |value: Result<String, serde_json::Error>| value.unwrap_or_default() + "\n";
        let mut text = line(serde_json::to_string(&self.head));
        for entry in &self.entries {
            text.push_str(&line(serde_json::to_string(entry)));
        }
        text
    }
}

/// Writes conversations where only the user can read them.
///
/// # Errors
/// What the system says.
pub fn save<'a>(path: &Path, all: impl Iterator<Item = &'a Recording>) -> io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut all = all;
    all.try_for_each(|recording| file.write_all(recording.text().as_bytes()))
}

/// Reads all conversations of a file.
///
/// # Errors
/// What is wrong, and in which line.
pub fn load(path: &Path) -> Result<Vec<Recording>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    text.and_then(|text| parse(&text)).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Recording>, String> {
    let mut all: Vec<Recording> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let wrong = |why: String| format!("line {}: {why}", at + 1);
        let value: serde_json::Value =
            serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        if value.get("record").is_some() {
            let head: Head =
                serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            if head.record != 1 {
                return Err(wrong(format!("a record of form {}, known is 1", head.record)));
            }
            all.push(Recording { head, entries: Vec::new() });
            continue;
        }
        let entry = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        match all.last_mut() {
            Some(recording) => recording.entries.push(entry),
            None => return Err(wrong("a conversation begins with a line that has record".into())),
        }
    }
    if all.is_empty() { Err("no conversation is recorded there".into()) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::Step;

    #[test]
    fn what_is_written_is_read_back() {
        let entry = |side, said| Entry { at_us: 7, side, said, cut: 0 };
        let recording = Recording {
            head: Head {
                record: 1,
                check: "RB-06".into(),
                seed: 5,
                cookie: true,
                failure: Some(Failure {
                    expected: "a".into(),
                    seen: "b\n".into(),
                    ..Failure::default()
                }),
                exit: None,
                end_us: 9,
                walk: Some(Walk {
                    calls: 8,
                    steps: vec![Step::Activate, Step::Cancel { call: 3 }],
                }),
            },
            entries: vec![
                entry(Side::Host, Said::Frame("c1".into())),
                entry(Side::Plugin, Said::Bytes("00".into())),
                entry(Side::Host, Said::Deed(Deed::Signal(15))),
                entry(Side::Plugin, Said::Deed(Deed::Over(3))),
                Entry { cut: 4, ..entry(Side::Host, Said::Event("words".into())) },
            ],
        };
        let twice = format!("{0}{0}", recording.text());
        assert_eq!(parse(&twice), Ok(vec![recording.clone(), recording]));
    }

    #[test]
    fn what_is_no_record_is_told_with_its_line() {
        let head = r#"{"record":1,"check":"A","seed":1,"cookie":true,"end_us":1}"#;
        for (text, why) in [
            (String::new(), "no conversation"),
            ("[]\n".into(), "line 1"),
            (r#"{"at_us":1,"side":"host","frame":"c1"}"#.into(), "begins with"),
            (head.replace(":1,\"check", ":2,\"check"), "form 2, known is 1"),
            (format!("{head}\n{{\"at_us\":1,\"side\":\"nobody\",\"frame\":\"c1\"}}"), "line 2"),
            (format!("{head}\n{{\"at_us\":1,\"side\":\"host\"}}"), "line 2"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
