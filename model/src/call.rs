//! One call with a stream each way.

use crate::table::{At, Side, Verdict, receive};

/// The size of every item's frame, and the window of both sides. Two items go out before
/// the credit is used up, the second one on more than there is \[R-ST-03\].
pub const ITEM: i8 = 2;
/// See [`ITEM`].
pub const WINDOW: i8 = 3;

/// What travels. CREDIT carries its `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    Call { input: bool },
    Item,
    End,
    Cancel,
    Credit(i8),
}

impl Frame {
    fn name(self) -> &'static str {
        match self {
            Self::Call { input: true } => "CALL in",
            Self::Call { input: false } => "CALL",
            Self::Item => "ITEM",
            Self::End => "END",
            Self::Cancel => "CANCEL",
            Self::Credit(_) => "CREDIT",
        }
    }
}

/// When whoever receives items takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// At some time or other.
    Sometime,
    /// Only once the call is over; a callee: never.
    Late,
}

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The callee says nothing more once it has read CANCEL. Against \[R-CN-01\].
    NoReplyAfterCancel,
    /// The callee waits for credit before it sends END. Against \[R-ST-07\].
    EndNeedsCredit,
    /// The callee may end a call twice. Against \[R-CA-01\].
    DoubleEnd,
    /// Who cannot write does not read. Against \[R-FR-14\].
    ReaderWaitsForWriter,
    /// A caller that has cancelled forgets to count what it drops. Against \[R-ST-14\].
    DropsUncounted,
    /// Items go out without regard to credit. Against \[R-ST-01\].
    NoRegardForCredit,
    /// The callee sends what it still has after its END. Against \[R-CA-05\].
    ItemsAfterEnd,
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the caller streams too.
    pub input: bool,
    /// How many items each side has: caller, callee.
    pub items: [u8; 2],
    /// How they are taken.
    pub takes: Takes,
    /// Whether the caller may give up, by its user or its budget.
    pub cancels: bool,
    /// Whether the connection may break.
    pub crashes: bool,
    /// Frames that a pipe holds.
    pub pipe: usize,
    /// The rule that is left out.
    pub fault: Option<Fault>,
}

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub at: At,
    /// Items it has not sent.
    pub left: u8,
    /// What it may send.
    pub credit: i8,
    /// What the other may still send, as far as this one can tell.
    pub allows: i8,
    /// Items that came and were not taken.
    pub held: u8,
    /// Credit to give for items that were taken.
    pub owes: i8,
    /// Caller: outcomes told to its user. Callee: ENDs sent.
    pub ends: u8,
}

/// Both sides and what is between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub caller: End,
    pub callee: End,
    pub to_caller: Vec<Frame>,
    pub to_callee: Vec<Frame>,
    /// The frame that broke the conversation, who read it, and the code of the CLOSE.
    pub violation: Option<(Side, Frame, &'static str)>,
    /// The connection is gone.
    pub lost: bool,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Send(Side, Frame),
    Read(Side),
    /// An item that came is used.
    Take(Side),
    /// The connection breaks.
    Crash,
}

impl State {
    fn end(&self, side: Side) -> &End {
        match side {
            Side::Caller => &self.caller,
            Side::Callee => &self.callee,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Caller => &mut self.caller,
            Side::Callee => &mut self.callee,
        }
    }

    /// What `side` will read.
    fn inbox(&self, side: Side) -> &Vec<Frame> {
        match side {
            Side::Caller => &self.to_caller,
            Side::Callee => &self.to_callee,
        }
    }

    fn inbox_mut(&mut self, side: Side) -> &mut Vec<Frame> {
        match side {
            Side::Caller => &mut self.to_caller,
            Side::Callee => &mut self.to_callee,
        }
    }

    /// Nothing is left to be done about the call.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lost || (self.caller.at == At::Closed && self.callee.at == At::Closed)
    }

    /// What sender and receiver of a stream think of its credit differs by just what is
    /// on its way. Asked while both still count.
    #[must_use]
    pub fn credit_is_whole(&self) -> bool {
        let counts = |sender: Side| {
            let (from, to) = (self.end(sender), self.end(sender.other()));
            let is_counted = match sender {
                Side::Caller => from.at.has_input() && to.at.has_input(),
                Side::Callee => from.at.is_open() && to.at.is_open(),
            };
            let items = self.inbox(sender.other()).iter().filter(|it| **it == Frame::Item).count();
            let credit = self.inbox(sender).iter().map(|it| match it {
                Frame::Credit(n) => *n,
                _ => 0,
            });
            let items = i8::try_from(items).unwrap_or(i8::MAX);
            !is_counted || from.credit == to.allows - credit.sum::<i8>() - ITEM * items
        };
        self.lost || counts(Side::Caller) && counts(Side::Callee)
    }

    /// No receiver holds more than its window and one frame \[R-ST-10\].
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let most = u8::try_from((WINDOW + ITEM) / ITEM).unwrap_or(u8::MAX);
        self.caller.held <= most && self.callee.held <= most
    }
}

impl Config {
    /// Before the CALL.
    #[must_use]
    pub fn start(&self) -> State {
        let end = |left| End {
            at: At::Unused,
            left,
            credit: WINDOW,
            allows: WINDOW,
            held: 0,
            owes: 0,
            ends: 0,
        };
        State {
            caller: end(if self.input { self.items[0] } else { 0 }),
            callee: end(self.items[1]),
            to_caller: Vec::new(),
            to_callee: Vec::new(),
            violation: None,
            lost: false,
        }
    }

    /// All that the rules allow now.
    #[must_use]
    pub fn actions(&self, state: &State) -> Vec<Action> {
        let mut all = Vec::new();
        if state.violation.is_some() || state.lost {
            return all;
        }
        for side in [Side::Caller, Side::Callee] {
            let mut wants = Vec::new();
            match side {
                Side::Caller => self.caller_sends(state, &mut wants),
                Side::Callee => self.callee_sends(state, &mut wants),
            }
            let has_room = state.inbox(side.other()).len() < self.pipe;
            let is_stuck = !has_room && !wants.is_empty();
            if has_room {
                all.extend(wants.into_iter().map(|frame| Action::Send(side, frame)));
            }
            let waits = is_stuck && self.fault == Some(Fault::ReaderWaitsForWriter);
            if !state.inbox(side).is_empty() && !waits {
                all.push(Action::Read(side));
            }
            let end = state.end(side);
            let may_take = match (self.takes, side) {
                (Takes::Sometime, _) => true,
                (Takes::Late, Side::Caller) => end.at == At::Closed,
                (Takes::Late, Side::Callee) => false,
            };
            if 0 < end.held && may_take {
                all.push(Action::Take(side));
            }
        }
        if self.crashes && state.caller.at != At::Unused && !state.is_over() {
            all.push(Action::Crash);
        }
        all
    }

    fn caller_sends(&self, state: &State, wants: &mut Vec<Frame>) {
        let caller = &state.caller;
        if caller.at == At::Unused {
            wants.push(Frame::Call { input: self.input });
        }
        if caller.at == At::OpenIn {
            if 0 < caller.left && self.has_credit(caller) {
                wants.push(Frame::Item);
            }
            // It may stop early.
            wants.push(Frame::End);
        }
        if matches!(caller.at, At::Open | At::OpenIn) && self.cancels {
            wants.push(Frame::Cancel);
        }
        if 0 < caller.owes && caller.at.is_open() {
            wants.push(Frame::Credit(caller.owes));
        }
    }

    fn callee_sends(&self, state: &State, wants: &mut Vec<Frame>) {
        let callee = &state.callee;
        let may_speak = callee.at.is_open()
            && !(callee.at.is_cancelled() && self.fault == Some(Fault::NoReplyAfterCancel));
        if may_speak && 0 < callee.left && self.has_credit(callee) {
            wants.push(Frame::Item);
        }
        let end_may_go = self.fault != Some(Fault::EndNeedsCredit) || 0 < callee.credit;
        // It may fail at any time, whatever is left.
        if may_speak && end_may_go {
            wants.push(Frame::End);
        }
        if may_speak && 0 < callee.owes && callee.at.has_input() {
            wants.push(Frame::Credit(callee.owes));
        }
        if callee.at == At::Closed {
            match self.fault {
                Some(Fault::DoubleEnd) if callee.ends < 2 => wants.push(Frame::End),
                Some(Fault::ItemsAfterEnd) if 0 < callee.left => wants.push(Frame::Item),
                _ => {}
            }
        }
    }

    fn has_credit(&self, end: &End) -> bool {
        0 < end.credit || self.fault == Some(Fault::NoRegardForCredit)
    }

    /// What comes of it.
    #[must_use]
    pub fn next(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Send(side, frame) => {
                let end = next.end_mut(side);
                match (side, frame) {
                    (_, Frame::Call { input }) => {
                        end.at = if input { At::OpenIn } else { At::Open }
                    }
                    (_, Frame::Item) => {
                        end.left -= 1;
                        end.credit -= ITEM;
                    }
                    (Side::Caller, Frame::End) => end.at = At::Open,
                    (Side::Callee, Frame::End) => {
                        end.at = At::Closed;
                        end.held = 0;
                        end.ends += 1;
                    }
                    (_, Frame::Cancel) => {
                        end.at = if end.at.has_input() { At::CancellingIn } else { At::Cancelling };
                        end.ends += 1;
                        // What came is dropped, and counted.
                        end.owes += ITEM * i8::try_from(end.held).unwrap_or(i8::MAX);
                        end.held = 0;
                    }
                    (_, Frame::Credit(n)) => {
                        end.owes -= n;
                        end.allows += n;
                    }
                }
                next.inbox_mut(side.other()).push(frame);
            }
            Action::Read(side) => {
                let frame = next.inbox_mut(side).remove(0);
                self.read(&mut next, side, frame);
            }
            Action::Take(side) => {
                let end = next.end_mut(side);
                end.held -= 1;
                if end.at.is_open() {
                    end.owes += ITEM;
                }
            }
            Action::Crash => {
                next.lost = true;
                next.to_caller.clear();
                next.to_callee.clear();
                if matches!(next.caller.at, At::Open | At::OpenIn) {
                    // Lost, and told so.
                    next.caller.ends += 1;
                }
                next.caller.at = At::Closed;
                next.callee.at = At::Closed;
            }
        }
        next
    }

    fn read(&self, state: &mut State, side: Side, frame: Frame) {
        let was = state.end(side).at;
        let verdict = receive(side, was, frame.name());
        let pays = !(self.fault == Some(Fault::DropsUncounted) && verdict == Verdict::Drop);
        if let Verdict::Close(code) = verdict {
            state.violation = Some((side, frame, code));
            return;
        }
        let end = state.end_mut(side);
        if frame == Frame::Item && verdict != Verdict::Ignore && pays {
            if end.allows <= 0 {
                state.violation = Some((side, frame, "flow_error"));
                return;
            }
            end.allows -= ITEM;
        }
        match (verdict, frame) {
            (Verdict::Drop, Frame::Item) if pays => end.owes += ITEM,
            (Verdict::Accept(at), _) => {
                end.at = at;
                match frame {
                    Frame::Item => end.held += 1,
                    Frame::Credit(n) => end.credit += n,
                    Frame::End if side == Side::Caller && !was.is_cancelled() => end.ends += 1,
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Model, Property};

    use super::*;
    use crate::check::{breaks, holds};

    const ENDS: &str = "every call ends";
    const ONCE: &str = "no call ends twice";
    const PEACE: &str = "no frame is a violation";
    const CREDIT: &str = "credit is neither lost nor made";
    const BOUND: &str = "a receiver holds a window and one frame at most";

    impl Model for Config {
        type State = State;
        type Action = Action;

        fn init_states(&self) -> Vec<State> {
            vec![self.start()]
        }

        fn actions(&self, state: &State, actions: &mut Vec<Action>) {
            actions.extend(Config::actions(self, state));
        }

        fn next_state(&self, state: &State, action: Action) -> Option<State> {
            Some(self.next(state, action))
        }

        fn properties(&self) -> Vec<Property<Self>> {
            let mut all = vec![
                // Every action uses up something, so whoever can go on comes to an end.
                Property::always(ENDS, |model: &Self, state: &State| {
                    let can_go_on = !model.actions(state).is_empty();
                    can_go_on || state.violation.is_some() || state.is_over()
                }),
                Property::always(ONCE, |_, state: &State| match state.caller.at {
                    At::Closed => state.caller.ends == 1,
                    at if at.is_cancelled() => state.caller.ends == 1,
                    _ => state.caller.ends == 0,
                }),
                Property::always(PEACE, |_, state: &State| state.violation.is_none()),
                Property::always(CREDIT, |_, state: &State| state.credit_is_whole()),
                Property::always(BOUND, |_, state: &State| state.is_bounded()),
                Property::sometimes("a result comes", |_, state: &State| {
                    state.caller.at == At::Closed && state.callee.ends == 1
                }),
            ];
            if 2 <= self.items[1] {
                all.push(Property::sometimes("credit is overdrawn", |_, state: &State| {
                    state.callee.credit < 0
                }));
            }
            if self.cancels {
                all.push(Property::sometimes("a cancel crosses the answer", |_, state: &State| {
                    state.callee.at == At::Closed && state.to_callee.contains(&Frame::Cancel)
                }));
            }
            if self.input {
                all.push(Property::sometimes(
                    "an answer cuts off the input",
                    |_, state: &State| {
                        state.callee.at == At::Closed && state.caller.at == At::OpenIn
                    },
                ));
            }
            all
        }
    }

    const ALL: Config = Config {
        input: true,
        items: [3, 3],
        takes: Takes::Sometime,
        cancels: true,
        crashes: true,
        pipe: 2,
        fault: None,
    };

    #[test]
    fn a_call_with_streams_both_ways_keeps_all_promises() {
        holds("call", ALL);
        holds("call, nothing taken before its end", Config { takes: Takes::Late, ..ALL });
        holds("call, pipes that hold one frame", Config { pipe: 1, ..ALL });
        holds("call, never cancelled", Config { cancels: false, ..ALL });
        holds("call without input", Config { input: false, items: [0, 4], pipe: 3, ..ALL });
        holds("call without streams", Config { input: false, items: [0, 0], ..ALL });
    }

    #[test]
    fn each_rule_is_needed() {
        let with = |fault| Config { fault: Some(fault), crashes: false, ..ALL };
        breaks("no reply after CANCEL", with(Fault::NoReplyAfterCancel), ENDS);
        let late = Config { takes: Takes::Late, cancels: false, items: [0, 2], ..ALL };
        let needs = Config { fault: Some(Fault::EndNeedsCredit), crashes: false, ..late };
        breaks("END needs credit", needs, ENDS);
        breaks("double END", with(Fault::DoubleEnd), PEACE);
        let tight = Config { pipe: 1, cancels: false, ..with(Fault::ReaderWaitsForWriter) };
        breaks("the reader waits for the writer", tight, ENDS);
        breaks("what is dropped is not counted", with(Fault::DropsUncounted), CREDIT);
        breaks("no regard for credit", with(Fault::NoRegardForCredit), PEACE);
        breaks("items after END", with(Fault::ItemsAfterEnd), PEACE);
    }
}
