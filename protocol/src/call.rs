//! The life of one call, as a table.
//!
//! The table is the law: `sdk-spec/tables/call.txt` and `stream.txt` are the same
//! table as text, without and with streams, and the tests below compare them. The
//! asymmetry is deliberate: late frames from the caller are a race that nobody can
//! avoid, late frames from the callee can only be a bug.

use crate::{frame::Kind, hello::Features};

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
    /// Running, and more of its input may come from the caller.
    OpenIn,
    /// Running, and told to end.
    Cancelling,
    /// The same, with its input not over.
    CancellingIn,
    /// Over: the callee's END has passed.
    Closed,
}

/// A frame that arrives for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// CALL.
    Call,
    /// CALL with `in`.
    CallIn,
    /// ITEM.
    Item,
    /// END.
    End,
    /// CANCEL.
    Cancel,
    /// CREDIT.
    Credit,
    /// NOTE.
    Note,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Pass it on; the call is now in this state.
    Accept(CallState),
    /// Count what it costs and pass it to nobody.
    Drop,
    /// Nothing: a race that must be harmless.
    Ignore,
    /// The peer broke a rule about ids: CLOSE `bad_id`.
    BadId,
    /// The peer broke a rule about order: CLOSE `bad_state`.
    BadState,
}

impl Received {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Call | Self::CallIn => Kind::Call,
            Self::Item => Kind::Item,
            Self::End => Kind::End,
            Self::Cancel => Kind::Cancel,
            Self::Credit => Kind::Credit,
            Self::Note => Kind::Note,
        }
    }

    /// The feature that the frame belongs to when `side` reads it. \[R-CA-11\] \[R-ST-16\]
    pub(crate) fn needs(self, side: Side) -> Features {
        match (self, side) {
            (Self::Item, Side::Caller) | (Self::Credit, Side::Callee) => Features::STREAM,
            (Self::Item, Side::Callee) | (Self::Credit, Side::Caller) => Features::STREAM_IN,
            (Self::CallIn, Side::Callee) => Features::STREAM_IN,
            _ => Features::NONE,
        }
    }
}

impl CallState {
    /// The state of a call that begins, with input or without.
    pub(crate) fn begins(input: bool) -> Self {
        if input { Self::OpenIn } else { Self::Open }
    }

    /// Whether its input is not over.
    pub(crate) fn has_input(self) -> bool {
        matches!(self, Self::OpenIn | Self::CancellingIn)
    }

    /// Whether its caller has given it up.
    pub(crate) fn is_given_up(self) -> bool {
        matches!(self, Self::Cancelling | Self::CancellingIn)
    }

    /// The same call, given up.
    pub(crate) fn give_up(self) -> Self {
        match self {
            Self::Open => Self::Cancelling,
            Self::OpenIn => Self::CancellingIn,
            other => other,
        }
    }

    /// The same call, its input over.
    pub(crate) fn end_input(self) -> Self {
        match self {
            Self::OpenIn => Self::Open,
            Self::CancellingIn => Self::Cancelling,
            other => other,
        }
    }

    /// What a frame means for a call in this state, when these features are in use.
    /// \[R-CA-10\]
    pub(crate) fn receive(self, side: Side, frame: Received, features: Features) -> Verdict {
        use CallState::{Cancelling, CancellingIn, Closed, Open, OpenIn, Unused};
        use Received as F;
        use Side::{Callee, Caller};
        use Verdict::{Accept, BadId, BadState, Drop, Ignore};
        let agreed = || features.contains(frame.needs(side));
        match (side, self, frame) {
            // The callee's END is the one event that closes a call.
            (Caller, Open | OpenIn | Cancelling | CancellingIn, F::End) => Accept(Closed),
            (Caller, Closed, F::End) => BadState,
            (_, Unused, F::End) => BadId,
            // A caller's ends its input, if there is one.
            (Callee, OpenIn | CancellingIn, F::End) => Accept(self.end_input()),
            (Callee, Open | Cancelling, F::End) => BadState,
            (Callee, Closed, F::End) => Ignore,

            (Callee, Unused, F::Call) => Accept(Open),
            (Callee, Unused, F::CallIn) if !agreed() => BadState,
            (Callee, Unused, F::CallIn) => Accept(OpenIn),
            (_, _, F::Call | F::CallIn) => BadId,

            (_, _, F::Item | F::Credit) if !agreed() => BadState,
            (_, Unused, F::Item) => BadId,
            (Caller, Open | OpenIn, F::Item) => Accept(self),
            (Caller, Cancelling | CancellingIn, F::Item) => Drop,
            (Caller, Closed, F::Item) => BadState,
            (Callee, OpenIn | CancellingIn, F::Item) => Accept(self),
            (Callee, Open | Cancelling, F::Item) => BadState,
            (Callee, Closed, F::Item) => Ignore,

            (Callee, Open | OpenIn | Cancelling | CancellingIn, F::Credit) => Accept(self),
            // A caller whose input is over needs none.
            (Caller, OpenIn | CancellingIn, F::Credit) => Accept(self),
            (_, _, F::Credit) => Ignore,

            (Callee, Open | OpenIn, F::Cancel) => Accept(self.give_up()),
            (Callee, _, F::Cancel) => Ignore,
            (Caller, _, F::Cancel) => BadState,

            (Caller, Open | OpenIn, F::Note) => Accept(self),
            (_, _, F::Note) => Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{format, string::String, vec::Vec};

    use super::*;

    const STATES: [CallState; 6] = [
        CallState::Unused,
        CallState::Open,
        CallState::OpenIn,
        CallState::Cancelling,
        CallState::CancellingIn,
        CallState::Closed,
    ];
    const FRAMES: [Received; 7] = [
        Received::Call,
        Received::CallIn,
        Received::Item,
        Received::End,
        Received::Cancel,
        Received::Credit,
        Received::Note,
    ];

    /// The table as the spec writes it.
    fn table(features: Features, keep: impl Fn(CallState, Received) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        for side in [Side::Caller, Side::Callee] {
            for state in STATES {
                for frame in FRAMES.into_iter().filter(|frame| keep(state, *frame)) {
                    let verdict = match state.receive(side, frame, features) {
                        Verdict::Accept(next) => format!("accept, {next:?}"),
                        Verdict::Drop => format!("drop, {state:?}"),
                        Verdict::Ignore => "ignore".into(),
                        Verdict::BadId => "CLOSE bad_id".into(),
                        Verdict::BadState => "CLOSE bad_state".into(),
                    };
                    let input = if frame == Received::CallIn { " in" } else { "" };
                    let frame = frame.kind().as_str();
                    lines.push(format!("{side:?} {state:?} + {frame}{input} = {verdict}"));
                }
            }
        }
        lines
    }

    fn lines(spec: &str) -> Vec<&str> {
        spec.lines().filter(|line| !line.starts_with('#')).collect()
    }

    /// Without streams no call has an input.
    fn plain(state: CallState, frame: Received) -> bool {
        !matches!(state, CallState::OpenIn | CallState::CancellingIn) && frame != Received::CallIn
    }

    #[test]
    fn the_table_without_streams_is_the_spec() {
        let spec = lines(include_str!("../../sdk-spec/tables/call.txt"));
        assert_eq!(table(Features::ASYNC, plain), spec, "call.txt and call.rs change together");
        assert_eq!(table(Features::NONE.union(Features::REVERSE), plain), spec);
    }

    #[test]
    fn the_table_with_streams_is_the_spec() {
        let spec = lines(include_str!("../../sdk-spec/tables/stream.txt"));
        let both = Features::STREAM.union(Features::STREAM_IN);
        let table = table(both, |_, _| true);
        assert_eq!(table, spec, "stream.txt and call.rs change together");
    }

    /// Whose feature is not in use is answered as in call.txt, line by line.
    #[test]
    fn each_way_of_streaming_has_a_feature_of_its_own() {
        let without = table(Features::NONE, plain);
        let with = table(Features::STREAM.union(Features::STREAM_IN), plain);
        for (one, belongs) in [
            (Features::STREAM, ["Caller", "+ ITEM", "Callee", "+ CREDIT"]),
            (Features::STREAM_IN, ["Callee", "+ ITEM", "Caller", "+ CREDIT"]),
        ] {
            let [side, frame, other, answer] = belongs;
            for ((found, none), both) in table(one, plain).iter().zip(&without).zip(&with) {
                let its = found.starts_with(side) && found.contains(frame)
                    || found.starts_with(other) && found.contains(answer);
                assert_eq!(found, if its { both } else { none });
            }
        }
        for (features, verdict) in [
            (Features::STREAM, Verdict::BadState),
            (Features::STREAM_IN, Verdict::Accept(CallState::OpenIn)),
        ] {
            let found = CallState::Unused.receive(Side::Callee, Received::CallIn, features);
            assert_eq!(found, verdict);
        }
    }
}
