//! What a check is, and how it ends.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::case::Case;

/// One thing that the spec promises, tried.
#[derive(Debug)]
pub struct Check {
    /// Permanent: never changed, never used again.
    pub id: &'static str,
    /// What is sent and what is expected, in one line.
    pub title: &'static str,
    /// The rules of the spec that it judges, such as `R-HS-01`.
    pub rules: &'static [&'static str],
    pub level: Level,
    /// What the subject must have declared; without, the check does not apply.
    pub needs: &'static [Need],
    pub run: fn(&mut Case<'_>) -> Verdict,
}

/// A check of a MUST.
pub const fn must(
    id: &'static str,
    title: &'static str,
    rules: &'static [&'static str],
    needs: &'static [Need],
    run: fn(&mut Case<'_>) -> Verdict,
) -> Check {
    Check { id, title, rules, level: Level::Must, needs, run }
}

/// A check of a SHOULD.
pub const fn should(
    id: &'static str,
    title: &'static str,
    rules: &'static [&'static str],
    needs: &'static [Need],
    run: fn(&mut Case<'_>) -> Verdict,
) -> Check {
    Check { id, title, rules, level: Level::Should, needs, run }
}

/// How binding the rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Must,
    /// A failure is a warning, unless `--strict`.
    Should,
}

/// What a subject says that it has: in its HELLO, and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A feature, such as `async`.
    Feature(&'static str),
    /// A method of the fixture contract, such as `sleep`.
    Tck(&'static str),
    /// An entry of this kind, such as `tool`.
    Kind(&'static str),
    /// An entry of this kind with this name, of which contract tck says what it does.
    Entry(&'static str, &'static str),
    /// At least so many calls at once.
    Calls(u32),
    /// A sample of this method in the settings file with this word in its `uses` (any,
    /// if the word is empty), or a fixture that brings such an entry (`tck_…`) itself.
    Sample(&'static str, &'static str),
    /// That it can be activated: with the settings given, it answers END without error.
    Active,
}

/// How a subject is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Any plugin: what can be seen without its help.
    Plugin,
    /// A fixture with the contract `tck`: everything.
    Sdk,
    /// A supervisor, on the plugins of the zoo.
    Host,
}

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Feature(name) => write!(f, "feature {name}"),
            Self::Tck(name) => write!(f, "tck.{name}"),
            Self::Kind(kind) => write!(f, "an entry of kind {kind}"),
            Self::Entry(kind, name) => write!(f, "the {kind} {name} of contract tck"),
            Self::Calls(n) => write!(f, "{n} calls at once"),
            Self::Sample(method, "") => write!(f, "a sample of {method}"),
            Self::Sample(method, word) => write!(f, "a sample of {method} with uses {word:?}"),
            Self::Active => f.write_str("that it can be activated"),
        }
    }
}

impl Check {
    /// The modes in which it can apply, by what it needs.
    pub fn modes(&self) -> BTreeSet<Mode> {
        let needs_fixture = self.needs.iter().any(|need| matches!(need, Need::Tck(_)));
        let modes = if needs_fixture { vec![Mode::Sdk] } else { vec![Mode::Plugin, Mode::Sdk] };
        modes.into_iter().collect()
    }

    /// The letters of the id.
    pub fn group(&self) -> &'static str {
        self.id.split('-').next().unwrap_or(self.id)
    }
}

/// `Ok` is a pass.
pub type Verdict = Result<(), Stop>;

/// Why a check did not pass.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The subject broke the rule.
    Fail(Failure),
    /// What has to work first did not, and that is for another check to judge.
    Blocked(Failure),
    /// It does not apply, as the subject shows only now.
    Skip(String),
    /// It can be said neither way.
    Inconclusive(String),
    /// Our own fault.
    Fault(String),
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// What was due and what came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Failure {
    pub expected: String,
    pub seen: String,
    /// In which of the check's conversations, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<usize>,
    /// Which entry of its transcript is the first that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<usize>,
}

impl Stop {
    /// The same, as the business of another check.
    #[must_use]
    pub fn blocks(self) -> Self {
        match self {
            Self::Fail(failure) => Self::Blocked(failure),
            other => other,
        }
    }
}

/// A failure that is about no frame in particular.
pub fn fail(expected: impl Into<String>, seen: impl Into<String>) -> Stop {
    Stop::Fail(Failure { expected: expected.into(), seen: seen.into(), ..Failure::default() })
}

/// The check does not apply.
pub fn skip(why: impl Into<String>) -> Stop {
    Stop::Skip(why.into())
}

/// Nothing can be said, such as when the machine was too slow to tell.
pub fn inconclusive(why: impl Into<String>) -> Stop {
    Stop::Inconclusive(why.into())
}
