//! The tables of the law, as text.

use std::{collections::HashMap, sync::OnceLock};

/// `tables/stream.txt`: what a frame about a call means to who reads it.
const STREAM: &str = include_str!("../../sdk-spec/tables/stream.txt");
/// `tables/life.txt`: what an event means to a plugin's life.
const LIFE: &str = include_str!("../../sdk-spec/tables/life.txt");
/// `tables/gate.txt`: what a plugin does with a call, by its stage.
const GATE: &str = include_str!("../../sdk-spec/tables/gate.txt");

/// Which side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Caller,
    Callee,
}

impl Side {
    /// The one at the other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Caller => Self::Callee,
            Self::Callee => Self::Caller,
        }
    }
}

/// How far a call has come, for one side. The names are those of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Unused,
    Open,
    /// The caller's input is not over.
    OpenIn,
    Cancelling,
    CancellingIn,
    Closed,
}

impl At {
    const ALL: [Self; 6] = [
        Self::Unused,
        Self::Open,
        Self::OpenIn,
        Self::Cancelling,
        Self::CancellingIn,
        Self::Closed,
    ];

    /// Open, cancelled or not \[R-CA-07\].
    #[must_use]
    pub fn is_open(self) -> bool {
        !matches!(self, Self::Unused | Self::Closed)
    }

    /// Whether the call is open and has been given up.
    #[must_use]
    pub fn is_cancelled(self) -> bool {
        matches!(self, Self::Cancelling | Self::CancellingIn)
    }

    /// Whether the caller may still have items.
    #[must_use]
    pub fn has_input(self) -> bool {
        matches!(self, Self::OpenIn | Self::CancellingIn)
    }

    fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|at| format!("{at:?}") == name);
        found.unwrap_or_else(|| panic!("the table has a state {name:?}"))
    }
}

/// What a frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It counts, and leads there.
    Accept(At),
    /// It counts for credit and for nothing else.
    Drop,
    /// As if it had not come.
    Ignore,
    /// The end of the conversation, with this code.
    Close(&'static str),
}

/// What `frame`, as the table names it, means to `side` of a call that is `at`. \[R-CA-10\]
///
/// # Panics
/// If the table has no such line.
#[must_use]
pub fn receive(side: Side, at: At, frame: &'static str) -> Verdict {
    type Lines = HashMap<(String, At, &'static str), Verdict>;
    static TABLE: OnceLock<Lines> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let line = |(from, to): (&'static str, &'static str)| {
            let (state, frame) = from.split_once(" + ").expect("state + frame");
            let (side, at) = state.split_once(' ').expect("side state");
            let verdict = match to.split_once([' ', ',']) {
                None if to == "ignore" => Verdict::Ignore,
                Some(("CLOSE", code)) => Verdict::Close(code),
                Some(("accept", next)) => Verdict::Accept(At::named(next.trim())),
                Some(("drop", _)) => Verdict::Drop,
                _ => panic!("the table says {to:?}"),
            };
            ((side.to_owned(), At::named(at), frame), verdict)
        };
        rules(STREAM).map(line).collect()
    });
    let found = table.get(&(format!("{side:?}"), at, frame));
    *found.unwrap_or_else(|| panic!("no line for {side:?} {at:?} + {frame}"))
}

/// Where a plugin's life goes from `state` with `event`, and the effect of that. `None`
/// if nothing changes.
#[must_use]
pub fn live(state: &str, event: &str) -> Option<(&'static str, &'static str)> {
    type Lines = HashMap<(&'static str, &'static str), (&'static str, &'static str)>;
    static TABLE: OnceLock<Lines> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let line = |(from, to): (&'static str, &'static str)| {
            let from = from.split_once(" + ").expect("state + event");
            (from, to.split_once(", ").expect("state, effect"))
        };
        rules(LIFE).map(line).collect()
    });
    table.get(&(state, event)).copied()
}

/// What a plugin at `stage` does with a call of `method`, as the table says it. Every method but the
/// two of the lifecycle is treated as `tool.call` is. \[R-GT-01\]
///
/// # Panics
/// If the table has no such line.
#[must_use]
pub fn gate(stage: &str, method: &str) -> &'static str {
    let found = rules(GATE).find(|(from, _)| from.split_once(" + ") == Some((stage, method)));
    found.unwrap_or_else(|| panic!("no line for {stage} + {method}")).1
}

/// The lines of a table that are no comments, at their equals sign.
fn rules(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(" = ").expect("a line has an equals sign"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read() {
        use Side::{Callee, Caller};
        assert_eq!(receive(Caller, At::Open, "END"), Verdict::Accept(At::Closed));
        assert_eq!(receive(Callee, At::Unused, "CALL in"), Verdict::Accept(At::OpenIn));
        assert_eq!(receive(Caller, At::Cancelling, "ITEM"), Verdict::Drop);
        assert_eq!(receive(Callee, At::Closed, "CANCEL"), Verdict::Ignore);
        assert_eq!(receive(Caller, At::Closed, "END"), Verdict::Close("bad_state"));
        assert_eq!(live("Dormant", "Wanted"), Some(("Greeting", "Spawn")));
        assert_eq!(live("Stopped", "Wanted"), None);
        assert_eq!(gate("Active", "tool.call"), "run");
    }
}
