//! A call of the host, and one that the plugin makes back while it works on it.

use crate::table::{At, Side, Verdict, receive};

/// Which of the two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The host's.
    Parent,
    /// The plugin's, for the parent.
    Child,
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Call,
    End,
    Cancel,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Call => "CALL",
            Self::End => "END",
            Self::Cancel => "CANCEL",
        }
    }
}

/// A frame and the call that it is about.
pub type Frame = (Which, Kind);

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    Host,
    Plugin,
}

impl Who {
    fn side(self, which: Which) -> Side {
        match (self, which) {
            (Self::Host, Which::Parent) | (Self::Plugin, Which::Child) => Side::Caller,
            _ => Side::Callee,
        }
    }
}

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The plugin ends the parent without waiting for the child. Against \[R-RV-04\].
    EndsBeforeChild,
    /// Neither does the plugin cancel the child of a call that is cancelled, nor the host
    /// end its work for it. Against \[R-RV-07\] and \[R-RV-08\].
    NoCascade,
    /// The plugin calls back for a call that it has ended. Against \[R-RV-03\].
    CallsForTheDead,
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the host's service comes to an end by itself, or only when cancelled.
    pub service_ends: bool,
    /// Whether the host may give up the parent.
    pub cancels: bool,
    /// The plugin leaves the cascade to the host, or the other way round. Either is enough
    /// for an end to come.
    pub cascade: [bool; 2],
    /// The rule that is left out.
    pub fault: Option<Fault>,
}

/// Where both calls are for one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    pub parent: At,
    pub child: At,
}

impl End {
    fn at(&mut self, which: Which) -> &mut At {
        match which {
            Which::Parent => &mut self.parent,
            Which::Child => &mut self.child,
        }
    }
}

/// Both sides and what is between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub host: End,
    pub plugin: End,
    pub to_host: Vec<Frame>,
    pub to_plugin: Vec<Frame>,
    /// The frame that broke the conversation, and who read it.
    pub violation: Option<(Who, Frame)>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Send(Who, Frame),
    Read(Who),
}

impl State {
    fn end_mut(&mut self, who: Who) -> &mut End {
        match who {
            Who::Host => &mut self.host,
            Who::Plugin => &mut self.plugin,
        }
    }

    fn inbox_mut(&mut self, who: Who) -> &mut Vec<Frame> {
        match who {
            Who::Host => &mut self.to_host,
            Who::Plugin => &mut self.to_plugin,
        }
    }

    fn send(&mut self, who: Who, frame: Frame) {
        let (which, kind) = frame;
        let at = self.end_mut(who).at(which);
        *at = match kind {
            Kind::Call => At::Open,
            Kind::End => At::Closed,
            Kind::Cancel => At::Cancelling,
        };
        let other = match who {
            Who::Host => Who::Plugin,
            Who::Plugin => Who::Host,
        };
        self.inbox_mut(other).push(frame);
    }

    /// Nothing is left to be done about either call.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.host.parent.is_open()
            && !self.plugin.parent.is_open()
            && !self.host.child.is_open()
            && !self.plugin.child.is_open()
            && self.host.parent == At::Closed
    }
}

impl Config {
    /// Before the CALL.
    #[must_use]
    pub fn start(&self) -> State {
        let end = End { parent: At::Unused, child: At::Unused };
        State {
            host: end,
            plugin: end,
            to_host: Vec::new(),
            to_plugin: Vec::new(),
            violation: None,
        }
    }

    /// All that the rules allow now.
    #[must_use]
    pub fn actions(&self, state: &State) -> Vec<Action> {
        use Kind::{Call, Cancel, End};
        use Which::{Child, Parent};
        let mut all = Vec::new();
        if state.violation.is_some() {
            return all;
        }
        let mut host = Vec::new();
        match state.host.parent {
            At::Unused => host.push((Parent, Call)),
            At::Open if self.cancels => host.push((Parent, Cancel)),
            _ => {}
        }
        let given_up = state.host.child == At::Cancelling;
        if state.host.child == At::Open && self.service_ends || given_up {
            host.push((Child, End));
        }
        let mut plugin = Vec::new();
        let parent = state.plugin.parent;
        let late = self.fault == Some(Fault::CallsForTheDead) && parent == At::Closed;
        if state.plugin.child == At::Unused && (parent == At::Open || late) {
            plugin.push((Child, Call));
        }
        if state.plugin.child == At::Open && parent == At::Cancelling && self.cascades(0) {
            plugin.push((Child, Cancel));
        }
        let waits = state.plugin.child.is_open() && self.fault != Some(Fault::EndsBeforeChild);
        if parent.is_open() && !waits {
            plugin.push((Parent, End));
        }
        all.extend(host.into_iter().map(|it| Action::Send(Who::Host, it)));
        all.extend(plugin.into_iter().map(|it| Action::Send(Who::Plugin, it)));
        if !state.to_host.is_empty() {
            all.push(Action::Read(Who::Host));
        }
        if !state.to_plugin.is_empty() {
            all.push(Action::Read(Who::Plugin));
        }
        all
    }

    /// Whether the plugin (0) or the host (1) carries a cancel on to the child.
    fn cascades(&self, who: usize) -> bool {
        self.cascade[who] && self.fault != Some(Fault::NoCascade)
    }

    /// What comes of it.
    #[must_use]
    pub fn next(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Send(who, frame) => {
                next.send(who, frame);
                let gives_up = (who, frame) == (Who::Host, (Which::Parent, Kind::Cancel));
                if gives_up && next.host.child == At::Open && self.cascades(1) {
                    // At once, in the same step [R-RV-08].
                    next.send(Who::Host, (Which::Child, Kind::End));
                }
            }
            Action::Read(who) => {
                let frame = next.inbox_mut(who).remove(0);
                self.read(&mut next, who, frame);
            }
        }
        next
    }

    fn read(&self, state: &mut State, who: Who, frame: Frame) {
        let (which, kind) = frame;
        let was = *state.end_mut(who).at(which);
        let parent = state.host.parent;
        let breaks = match frame {
            // [R-RV-03]: the parent must be open, cancelled or not.
            (Which::Child, Kind::Call) => !parent.is_open(),
            // [R-RV-04].
            (Which::Parent, Kind::End) => state.host.child.is_open(),
            _ => false,
        };
        match receive(who.side(which), was, kind.name()) {
            Verdict::Close(_) => state.violation = Some((who, frame)),
            _ if breaks => state.violation = Some((who, frame)),
            Verdict::Accept(at) => *state.end_mut(who).at(which) = at,
            Verdict::Drop | Verdict::Ignore => {}
        }
        let is_child = frame == (Which::Child, Kind::Call) && state.violation.is_none();
        if is_child && parent == At::Cancelling && self.cascades(1) {
            // It crossed the cancel: answered, and no service hears of it.
            state.send(Who::Host, (Which::Child, Kind::End));
        }
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Model, Property};

    use super::*;
    use crate::check::{breaks, holds};

    const ENDS: &str = "every call ends";
    const PEACE: &str = "no frame is a violation";

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
            vec![
                Property::always(ENDS, |model: &Self, state: &State| {
                    let can_go_on = !model.actions(state).is_empty();
                    can_go_on || state.violation.is_some() || state.is_over()
                }),
                Property::always(PEACE, |_, state: &State| state.violation.is_none()),
                Property::sometimes(
                    "the child is answered and the parent after it",
                    |_, state: &State| state.is_over() && state.host.child == At::Closed,
                ),
                Property::sometimes("a child crosses the cancel", |_, state: &State| {
                    state.host.parent == At::Cancelling
                        && state.to_host.contains(&(Which::Child, Kind::Call))
                }),
            ]
        }
    }

    const ALL: Config =
        Config { service_ends: true, cancels: true, cascade: [true, true], fault: None };

    #[test]
    fn a_call_and_the_call_it_makes_back_both_end() {
        holds("reverse", ALL);
        holds("reverse, a service that ends only when told", Config { service_ends: false, ..ALL });
        let one = |cascade| Config { service_ends: false, cascade, ..ALL };
        holds("reverse, only the plugin carries the cancel on", one([true, false]));
        holds("reverse, only the host carries the cancel on", one([false, true]));
    }

    #[test]
    fn each_rule_is_needed() {
        let with = |fault| Config { service_ends: false, fault: Some(fault), ..ALL };
        breaks("END before the child's", with(Fault::EndsBeforeChild), PEACE);
        breaks("no cascade", with(Fault::NoCascade), ENDS);
        breaks("a call for a parent that has ended", with(Fault::CallsForTheDead), PEACE);
    }
}
