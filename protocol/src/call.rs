//! The life of one call, as a table.
//!
//! The table is the law: `sdk-spec/tables/call.txt` is the same table as text,
//! and the test below compares them. The asymmetry is deliberate: late frames
//! from the caller are a race that nobody can avoid, late frames from the callee
//! can only be a bug.

/// Which end of the call we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// We sent the CALL.
    Caller,
    /// We received it.
    Callee,
}

/// Where a call is in its life, seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    /// Its id has not been used.
    Unused,
    /// Running.
    Open,
    /// Running, and told to end.
    Cancelling,
    /// Over: the callee's END has passed.
    Closed,
}

/// A frame that arrives for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// CALL.
    Call,
    /// ITEM, with `stream` not negotiated.
    Item,
    /// END.
    End,
    /// CANCEL.
    Cancel,
    /// CREDIT, with `stream` not negotiated.
    Credit,
    /// NOTE.
    Note,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Pass it on; the call is now in this state.
    Accept(CallState),
    /// Nothing: a race that must be harmless.
    Ignore,
    /// The peer broke a rule about ids: CLOSE `bad_id`.
    BadId,
    /// The peer broke a rule about order: CLOSE `bad_state`.
    BadState,
}

impl CallState {
    /// What a frame means for a call in this state. \[R-CA-10\]
    pub(crate) fn receive(self, side: Side, frame: Received) -> Verdict {
        use CallState::{Cancelling, Closed, Open, Unused};
        use Received as F;
        use Side::{Callee, Caller};
        use Verdict::{Accept, BadId, BadState, Ignore};
        match (side, self, frame) {
            (Callee, Unused, F::Call) => Accept(Open),
            (_, _, F::Call) => BadId,

            // The callee's END is the one event that closes a call.
            (Caller, Open | Cancelling, F::End) => Accept(Closed),
            (Caller, Closed, F::End) => BadState,
            (_, Unused, F::End) => BadId,
            // A caller's END ends its input, and without `stream.in` there is none.
            (Callee, Open | Cancelling, F::End) => BadState,
            (Callee, Closed, F::End) => Ignore,

            (Callee, Open, F::Cancel) => Accept(Cancelling),
            (Callee, _, F::Cancel) => Ignore,
            (Caller, _, F::Cancel) => BadState,

            (Caller, Open, F::Note) => Accept(Open),
            (_, _, F::Note) => Ignore,

            (_, _, F::Item | F::Credit) => BadState,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{format, string::String};

    use super::*;

    #[test]
    fn the_table_is_the_spec() {
        let mut table = String::new();
        for side in [Side::Caller, Side::Callee] {
            for state in
                [CallState::Unused, CallState::Open, CallState::Cancelling, CallState::Closed]
            {
                for frame in [
                    Received::Call,
                    Received::Item,
                    Received::End,
                    Received::Cancel,
                    Received::Credit,
                    Received::Note,
                ] {
                    let verdict = match state.receive(side, frame) {
                        Verdict::Accept(next) => format!("accept, {next:?}"),
                        Verdict::Ignore => "ignore".into(),
                        Verdict::BadId => "CLOSE bad_id".into(),
                        Verdict::BadState => "CLOSE bad_state".into(),
                    };
                    let frame = format!("{frame:?}").to_uppercase();
                    table += &format!("{side:?} {state:?} + {frame} = {verdict}\n");
                }
            }
        }
        let spec = include_str!("../../sdk-spec/tables/call.txt");
        let spec: String =
            spec.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
        assert_eq!(table, spec, "sdk-spec/tables/call.txt and call.rs must change together");
    }
}
