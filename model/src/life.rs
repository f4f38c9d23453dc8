//! A plugin's life in its host, with crashes and an operator.
//!
//! Where it goes is what `tables/life.txt` says; what is here is which events the world can bring
//! about in which order, and what the effects do to the world.

use crate::table::live;

/// A line of the table left out, or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The state of the line.
    pub state: &'static str,
    /// And its event.
    pub event: &'static str,
    /// What it says instead; `None` if nothing changes.
    pub instead: Option<(&'static str, &'static str)>,
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// How often somebody calls while the plugin is not up.
    pub wanted: u8,
    /// How often the process dies unasked.
    pub deaths: u8,
    /// How often the host drains the plugin for a reason of its own.
    pub drains: u8,
    /// What an operator does, in any order, each once.
    pub orders: &'static [&'static str],
    /// The line that is left out.
    pub fault: Option<Fault>,
}

/// The plugin's life and the world around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub life: &'static str,
    /// There is a process, alive or not yet reaped.
    pub process: bool,
    /// The stop ladder is at work.
    pub climbing: bool,
    /// A deactivation has been sent and not been answered; with `if_idle` or without.
    pub drain: Option<bool>,
    /// Calls are let through.
    pub gate: bool,
    /// A call waits for the plugin.
    pub owed: bool,
    /// An operator wants it to be down.
    pub down: bool,
    /// An effect came that makes no sense in this world.
    pub absurd: Option<&'static str>,
    wanted: u8,
    deaths: u8,
    drains: u8,
    /// Orders that were not given yet, as bits.
    orders: u8,
}

const DEATHS: [&str; 3] = ["Died(Dormant)", "Died(Backoff)", "Died(Quarantined)"];
const DRAINS: [&str; 5] =
    ["Quiet", "Retire", "Unfit(Dormant)", "Unfit(Backoff)", "Unfit(Quarantined)"];

impl State {
    fn is(&self, life: &str) -> bool {
        self.life == life || self.life.starts_with(&format!("{life}("))
    }

    /// The process, the ladder and the drain are just where this state says.
    #[must_use]
    pub fn is_as_it_says(&self) -> bool {
        let has_process = ["Greeting", "Activating", "Active", "Draining", "Stopping"];
        self.process == has_process.iter().any(|it| self.is(it))
            && self.climbing == self.is("Stopping")
            && self.drain.is_some() == self.is("Draining")
            && (!self.gate || self.life == "Active")
    }
}

impl Config {
    /// Nobody has called yet.
    #[must_use]
    pub fn start(&self) -> State {
        State {
            life: "Dormant",
            process: false,
            climbing: false,
            drain: None,
            gate: false,
            owed: false,
            down: false,
            absurd: None,
            wanted: self.wanted,
            deaths: self.deaths,
            drains: self.drains,
            orders: (1 << self.orders.len()) - 1,
        }
    }

    /// The events that the world can bring about now.
    #[must_use]
    pub fn actions(&self, state: &State) -> Vec<&'static str> {
        let mut all = Vec::new();
        if state.absurd.is_some() {
            return all;
        }
        let takes_calls = state.life == "Active";
        if 0 < state.wanted && !takes_calls {
            all.push("Wanted");
        }
        let orders = self.orders.iter().enumerate();
        all.extend(orders.filter(|(n, _)| state.orders & 1 << n != 0).map(|(_, order)| *order));
        match state.life {
            "Greeting" => all.push("Greeted"),
            "Activating" => all.push("Activated"),
            "Active" if 0 < state.drains => all.extend(DRAINS),
            "Backoff" => all.push("Waited"),
            _ => {}
        }
        if state.process && !state.climbing && 0 < state.deaths {
            all.extend(DEATHS);
        }
        match state.drain {
            Some(true) => all.extend(["Busy", "Deactivated", "DrainFailed"]),
            Some(false) => all.extend(["Deactivated", "DrainFailed"]),
            None => {}
        }
        if state.climbing {
            all.push("Gone");
        }
        all
    }

    fn line(&self, state: &str, event: &str) -> Option<(&'static str, &'static str)> {
        match self.fault {
            Some(fault) if fault.state == state && fault.event == event => fault.instead,
            _ => live(state, event),
        }
    }

    /// What comes of it.
    #[must_use]
    pub fn next(&self, state: &State, event: &'static str) -> State {
        let mut next = state.clone();
        match event {
            "Wanted" => {
                next.wanted -= 1;
                // A plugin that is down or ill refuses, and the call is not kept waiting.
                next.owed |= !["Backoff", "Quarantined", "Stopped"].iter().any(|it| state.is(it))
                    && !["(Stopped)", "(Quarantined)", "(Backoff)"]
                        .iter()
                        .any(|it| state.life.ends_with(it));
            }
            "Stop" | "Restart" | "Resume" => {
                let mut orders = self.orders.iter().enumerate();
                let given = orders.find(|(n, it)| **it == event && next.orders & 1 << n != 0);
                next.orders &= !(1 << given.map_or(0, |(n, _)| n));
                next.down =
                    event == "Stop" || next.down && event == "Resume" && !state.is("Stopped");
            }
            "Gone" => next.process = false,
            "Busy" | "Deactivated" | "DrainFailed" => next.drain = None,
            _ if DEATHS.contains(&event) => {
                next.deaths -= 1;
                // A process that is dying answers no more, and who waits for it is told.
                next.drain = None;
                next.owed = false;
            }
            _ if DRAINS.contains(&event) => next.drains -= 1,
            _ => {}
        }
        if event == "Gone" {
            next.climbing = false;
        }
        let Some((life, effect)) = self.line(state.life, event) else { return next };
        next.life = life;
        next.gate &= life == "Active";
        if event == "Resume" || event == "Restart" {
            next.down = false;
        }
        let mut need = |fine: bool| {
            if !fine {
                next.absurd = Some(effect);
            }
        };
        match effect {
            "Spawn" => {
                need(!next.process);
                next.process = true;
            }
            "Activate" | "None" => {}
            "OpenGate" => {
                need(next.process && !next.climbing);
                next.gate = true;
                next.owed = false;
            }
            "Drain" | "DrainIfIdle" => {
                need(next.process && next.drain.is_none());
                next.drain = Some(effect == "DrainIfIdle");
            }
            "Climb" => {
                need(next.process && !next.climbing);
                next.climbing = true;
                next.drain = None;
            }
            "Wait" => need(!next.process),
            other => unreachable!("the table has an effect {other:?}"),
        }
        // Whoever waits hears of a life that ends badly.
        if ["Backoff", "Quarantined", "Stopped"].iter().any(|it| next.is(it))
            || ["(Stopped)", "(Quarantined)", "(Backoff)"].iter().any(|it| life.ends_with(it))
        {
            next.owed = false;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Model, Property};

    use super::*;
    use crate::check::{breaks, holds};

    const SENSE: &str = "every effect makes sense";
    const TRUTH: &str = "the world is as the state says";
    const WAKES: &str = "who waits is not forgotten";
    const OBEYS: &str = "a plugin that is to be down comes down";

    impl Model for Config {
        type State = State;
        type Action = &'static str;

        fn init_states(&self) -> Vec<State> {
            vec![self.start()]
        }

        fn actions(&self, state: &State, actions: &mut Vec<&'static str>) {
            actions.extend(Config::actions(self, state));
        }

        fn next_state(&self, state: &State, event: &'static str) -> Option<State> {
            Some(self.next(state, event))
        }

        fn properties(&self) -> Vec<Property<Self>> {
            vec![
                Property::always(SENSE, |_, state: &State| state.absurd.is_none()),
                Property::always(TRUTH, |_, state: &State| {
                    state.absurd.is_some() || state.is_as_it_says()
                }),
                // The world goes on by itself until it rests; who is then still owed waits for ever.
                Property::always(WAKES, |_, state: &State| state.life != "Dormant" || !state.owed),
                Property::always(OBEYS, |model: &Self, state: &State| {
                    !model.actions(state).is_empty() || !state.down || state.life == "Stopped"
                }),
                Property::sometimes("it is up", |_, state: &State| state.gate),
                Property::sometimes("it is woken out of a drain", |_, state: &State| {
                    state.life == "Draining(Start)"
                }),
                Property::sometimes("it rests in quarantine", |_, state: &State| {
                    state.life == "Quarantined"
                }),
            ]
        }
    }

    const ALL: Config = Config {
        wanted: 3,
        deaths: 3,
        drains: 2,
        orders: &["Stop", "Restart", "Resume"],
        fault: None,
    };

    #[test]
    fn a_life_keeps_its_promises() {
        holds("life", ALL);
        holds(
            "life with a restless operator",
            Config { orders: &["Stop", "Restart", "Resume", "Stop", "Restart"], ..ALL },
        );
    }

    #[test]
    fn each_line_is_needed() {
        let without =
            |state, event| Config { fault: Some(Fault { state, event, instead: None }), ..ALL };
        let instead = |state, event, to| Config {
            fault: Some(Fault { state, event, instead: Some(to) }),
            ..ALL
        };
        breaks("a wish in a drain is not heard", without("Draining(Dormant)", "Wanted"), WAKES);
        breaks("a stop in a drain is not heard", without("Draining(Start)", "Stop"), OBEYS);
        breaks(
            "a death is not cleaned up",
            instead("Active", "Died(Backoff)", ("Backoff", "Wait")),
            SENSE,
        );
        let early = instead("Stopping(Start)", "Restart", ("Greeting", "Spawn"));
        breaks("a start before the old process is gone", early, SENSE);
        let open = instead("Draining(Dormant)", "Busy", ("Draining(Dormant)", "OpenGate"));
        breaks("a gate that opens in a drain", open, TRUTH);
    }
}
