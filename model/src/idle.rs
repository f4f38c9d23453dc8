//! A host that stops a plugin nobody uses, while calls arrive.
//!
//! Two processes: the host with its gate, and the plugin, of which there is one after the
//! other. No call may be lost between them \[R-LC-15\] \[R-LC-17\].

/// How many calls arrive.
pub const CALLS: usize = 3;

/// A rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The plugin exits by itself when it has nothing to do. Against \[R-LC-08\].
    SelfExit,
    /// The host asks the plugin to stop, and shuts its own gate a moment later. Against
    /// \[R-LC-15\].
    LateGate,
    /// A call that arrives while the plugin drains wakes nobody. Against \[R-LC-17\].
    ForgetsToWake,
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// How often the process may die without being asked.
    pub crashes: u8,
    /// How often the plugin may have work of its own that keeps it busy.
    pub own_work: u8,
    /// How often the host finds the time has come.
    pub stops: u8,
    /// The rule that is left out.
    pub fault: Option<Fault>,
}

/// What travels. The number is the call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    Activate,
    Activated,
    DeactivateIfIdle,
    Deactivated,
    Busy,
    Call(usize),
    Result(usize),
    /// The process is gone.
    Eof,
}

/// What the host is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Dormant,
    Starting,
    Active,
    Draining,
}

/// What the plugin's process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plugin {
    Gone,
    Ready,
    Active,
}

/// What has become of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    NotMade,
    /// In the host, behind the gate.
    Waits,
    /// On its way, or running.
    Sent,
    Done,
    /// The process died with it.
    Lost,
    /// The plugin did not run it, although the host had let it through.
    Refused,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub host: Host,
    pub gate_open: bool,
    pub plugin: Plugin,
    pub running: [bool; CALLS],
    /// How often each has been run.
    pub runs: [u8; CALLS],
    pub calls: [Call; CALLS],
    pub to_plugin: Vec<Frame>,
    pub to_host: Vec<Frame>,
    pub crashes: u8,
    pub own_work: u8,
    pub stops: u8,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Somebody calls.
    Arrive(usize),
    /// Nothing has been open for long enough.
    Quiet,
    /// Only with [`Fault::LateGate`].
    ShutGate,
    HostReads,
    PluginReads,
    /// The same, and the plugin finds that it has work of its own.
    PluginReadsBusy,
    /// A running call ends.
    Finish(usize),
    Crash,
    /// Only with [`Fault::SelfExit`].
    Exit,
}

impl State {
    fn is_quiet(&self) -> bool {
        !self.calls.iter().any(|it| matches!(it, Call::Sent | Call::Waits))
    }

    fn is_running(&self) -> bool {
        self.running.contains(&true)
    }

    /// Every call that was made has an outcome.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.calls.iter().any(|it| matches!(it, Call::Waits | Call::Sent))
    }

    fn spawn(&mut self) {
        self.host = Host::Starting;
        self.plugin = Plugin::Ready;
        self.to_plugin = vec![Frame::Activate];
        self.to_host.clear();
    }

    fn open_gate(&mut self) {
        self.host = Host::Active;
        self.gate_open = true;
        for (n, call) in self.calls.iter_mut().enumerate() {
            if *call == Call::Waits {
                *call = Call::Sent;
                self.to_plugin.push(Frame::Call(n));
            }
        }
    }

    fn die(&mut self) {
        self.plugin = Plugin::Gone;
        self.running = [false; CALLS];
        self.to_plugin.clear();
        self.to_host.push(Frame::Eof);
    }
}

impl Config {
    /// Before anybody has called.
    #[must_use]
    pub fn start(&self) -> State {
        State {
            host: Host::Dormant,
            gate_open: false,
            plugin: Plugin::Gone,
            running: [false; CALLS],
            runs: [0; CALLS],
            calls: [Call::NotMade; CALLS],
            to_plugin: Vec::new(),
            to_host: Vec::new(),
            crashes: self.crashes,
            own_work: self.own_work,
            stops: self.stops,
        }
    }

    /// All that can happen now.
    #[must_use]
    pub fn actions(&self, state: &State) -> Vec<Action> {
        let mut all = Vec::new();
        // Callers are alike, so they come in order.
        if let Some(n) = state.calls.iter().position(|it| *it == Call::NotMade) {
            all.push(Action::Arrive(n));
        }
        if state.host == Host::Active && state.gate_open && state.is_quiet() && 0 < state.stops {
            all.push(Action::Quiet);
        }
        if state.host == Host::Draining && state.gate_open {
            all.push(Action::ShutGate);
        }
        if !state.to_host.is_empty() {
            all.push(Action::HostReads);
        }
        let alive = state.plugin != Plugin::Gone;
        if let Some(first) = state.to_plugin.first().filter(|_| alive) {
            all.push(Action::PluginReads);
            if *first == Frame::DeactivateIfIdle && 0 < state.own_work {
                all.push(Action::PluginReadsBusy);
            }
        }
        let running = state.running.iter().enumerate().filter(|(_, running)| **running);
        all.extend(running.map(|(n, _)| Action::Finish(n)));
        if alive && 0 < state.crashes {
            all.push(Action::Crash);
        }
        let is_idle = state.plugin == Plugin::Active && !state.is_running();
        if self.fault == Some(Fault::SelfExit) && is_idle {
            all.push(Action::Exit);
        }
        all
    }

    /// What comes of it.
    #[must_use]
    pub fn next(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Arrive(n) if next.gate_open => {
                next.calls[n] = Call::Sent;
                next.to_plugin.push(Frame::Call(n));
            }
            Action::Arrive(n) => {
                next.calls[n] = Call::Waits;
                if next.host == Host::Dormant {
                    next.spawn();
                }
            }
            Action::Quiet => {
                next.stops -= 1;
                next.host = Host::Draining;
                next.gate_open = self.fault == Some(Fault::LateGate);
                next.to_plugin.push(Frame::DeactivateIfIdle);
            }
            Action::ShutGate => next.gate_open = false,
            Action::HostReads => {
                let frame = next.to_host.remove(0);
                self.host_reads(&mut next, frame);
            }
            Action::PluginReads => {
                let frame = next.to_plugin.remove(0);
                Self::plugin_reads(&mut next, frame);
            }
            Action::PluginReadsBusy => {
                next.own_work -= 1;
                next.to_plugin.remove(0);
                next.to_host.push(Frame::Busy);
            }
            Action::Finish(n) => {
                next.running[n] = false;
                next.to_host.push(Frame::Result(n));
            }
            Action::Crash => {
                next.crashes -= 1;
                next.die();
            }
            Action::Exit => next.die(),
        }
        next
    }

    fn plugin_reads(state: &mut State, frame: Frame) {
        match (frame, state.plugin) {
            (Frame::Activate, _) => {
                state.plugin = Plugin::Active;
                state.to_host.push(Frame::Activated);
            }
            (Frame::DeactivateIfIdle, _) if state.is_running() => state.to_host.push(Frame::Busy),
            (Frame::DeactivateIfIdle, _) => {
                state.plugin = Plugin::Ready;
                state.to_host.push(Frame::Deactivated);
            }
            (Frame::Call(n), Plugin::Active) => {
                state.running[n] = true;
                state.runs[n] += 1;
            }
            // The plugin's own gate [R-GT-02]. That it was needed is what counts here.
            (Frame::Call(n), _) => state.calls[n] = Call::Refused,
            (other, _) => unreachable!("{other:?} is not for a plugin"),
        }
    }

    fn host_reads(&self, state: &mut State, frame: Frame) {
        match frame {
            Frame::Activated | Frame::Busy => state.open_gate(),
            Frame::Deactivated => {
                // The process is stopped; what it still says is heard by nobody.
                state.plugin = Plugin::Gone;
                state.to_plugin.clear();
                state.to_host.clear();
                self.gone(state);
            }
            Frame::Eof => self.gone(state),
            Frame::Result(n) => state.calls[n] = Call::Done,
            other => unreachable!("{other:?} is not for a host"),
        }
    }

    fn gone(&self, state: &mut State) {
        let was_draining = state.host == Host::Draining;
        for call in &mut state.calls {
            if *call == Call::Sent {
                *call = Call::Lost;
            }
        }
        state.host = Host::Dormant;
        state.gate_open = false;
        let forgets = was_draining && self.fault == Some(Fault::ForgetsToWake);
        if state.calls.contains(&Call::Waits) && !forgets {
            state.spawn();
        }
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Model, Property};

    use super::*;
    use crate::check::{breaks, holds};

    const ENDS: &str = "every call ends";
    const KEPT: &str = "no call is lost unless its process died";
    const GATE: &str = "no call reaches a plugin that is not active";
    const ONCE: &str = "no call runs twice";

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
                Property::always(ENDS, |model: &Self, state: &State| {
                    !model.actions(state).is_empty() || state.is_settled()
                }),
                Property::always(KEPT, |model: &Self, state: &State| {
                    0 < model.crashes || !state.calls.contains(&Call::Lost)
                }),
                Property::always(GATE, |_, state: &State| !state.calls.contains(&Call::Refused)),
                Property::always(ONCE, |_, state: &State| state.runs.iter().all(|runs| *runs < 2)),
                Property::sometimes("a call waits for the end of a drain", |_, state: &State| {
                    state.host == Host::Draining && state.calls.contains(&Call::Waits)
                }),
                Property::sometimes(
                    "all calls are answered by two processes",
                    |_, state: &State| {
                        state.calls == [Call::Done; CALLS] && state.host == Host::Dormant
                    },
                ),
            ];
            if 0 < self.own_work {
                all.push(Property::sometimes(
                    "the plugin is busy after all",
                    |_, state: &State| state.to_host.contains(&Frame::Busy),
                ));
            }
            if 0 < self.crashes {
                all.push(Property::sometimes(
                    "a call dies with its process",
                    |_, state: &State| state.calls.contains(&Call::Lost),
                ));
            }
            all
        }
    }

    const ALL: Config = Config { crashes: 0, own_work: 1, stops: 3, fault: None };

    #[test]
    fn no_call_is_lost_between_a_host_and_a_plugin_that_nobody_uses() {
        holds("idle stop", ALL);
        holds("idle stop with crashes", Config { crashes: 2, ..ALL });
    }

    #[test]
    fn each_rule_is_needed() {
        let with = |fault| Config { own_work: 0, fault: Some(fault), ..ALL };
        breaks("the plugin exits when idle", with(Fault::SelfExit), KEPT);
        breaks("the gate is shut too late", with(Fault::LateGate), GATE);
        breaks("nobody wakes for who waits", with(Fault::ForgetsToWake), ENDS);
    }
}
