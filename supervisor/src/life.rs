//! The life of a plugin, as a table: states × events → effects.
//!
//! The machine performs nothing; the [keeper](crate::keeper) obeys it. The table
//! stands as text in `sdk-spec/tables/life.txt` and the test below compares them.

/// Where a plugin is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// No process. A call wakes it.
    Dormant,
    /// A process, and no HELLO yet.
    Greeting,
    /// `plugin.activate` is being answered.
    Activating,
    /// Open for calls.
    Active,
    /// `plugin.deactivate` is being answered.
    Draining(Then),
    /// On the ladder: the process is being ended, or has ended and is being cleared away.
    Stopping(Then),
    /// Waiting before the next start.
    Backoff,
    /// Died too often; until the operator resumes it.
    Quarantined,
    /// Stopped by the operator or by shutdown; until resumed.
    Stopped,
}

/// What follows once the process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Sleep until a call comes.
    Dormant,
    /// Start again at once.
    Start,
    /// Wait, then start again.
    Backoff,
    /// Stay down.
    Stopped,
    /// Stay down, and say why.
    Quarantined,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A call or the operator wants it up.
    Wanted,
    /// A HELLO that fits the manifest.
    Greeted,
    /// `plugin.activate` succeeded.
    Activated,
    /// The idle clock ran out while nothing was open.
    Quiet,
    /// `plugin.deactivate` with `if_idle` was refused: there is work after all.
    Busy,
    /// `plugin.deactivate` succeeded.
    Deactivated,
    /// `plugin.deactivate` failed otherwise, or took too long.
    DrainFailed,
    /// The plugin asked to be replaced.
    Retire,
    /// The plugin may no longer be used, and its other calls may finish first.
    Unfit(Then),
    /// The plugin died, broke the protocol or could not be started; what its
    /// restart rule makes of that.
    Died(Then),
    /// The operator wants it down.
    Stop,
    /// The operator wants a new process.
    Restart,
    /// The process is gone and cleared away.
    Gone,
    /// The wait is over.
    Waited,
    /// The operator lifts a stop or a quarantine.
    Resume,
}

/// What the keeper must do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// Start a process and shake hands.
    Spawn,
    /// Call `plugin.activate`.
    Activate,
    /// Let calls through.
    OpenGate,
    /// Shut the gate and call `plugin.deactivate {if_idle: true}`.
    DrainIfIdle,
    /// Shut the gate and call `plugin.deactivate`.
    Drain,
    /// Shut the gate and climb the stop ladder.
    Climb,
    /// Arm the wait before the next start.
    Wait,
}

impl Life {
    /// Consumes the old state. `None` means that the event changes nothing here.
    pub(crate) fn step(self, event: Event) -> Option<(Self, Effect)> {
        use Life::{
            Activating, Active, Backoff, Dormant, Draining, Greeting, Quarantined, Stopped,
            Stopping,
        };
        Some(match (self, event) {
            (Dormant, Event::Wanted | Event::Restart) => (Greeting, Effect::Spawn),
            (Dormant | Backoff | Quarantined, Event::Stop) => (Stopped, Effect::None),
            (Backoff, Event::Waited | Event::Restart | Event::Resume) => (Greeting, Effect::Spawn),
            (Quarantined | Stopped, Event::Resume) => (Dormant, Effect::None),
            (Quarantined | Stopped, Event::Restart) => (Greeting, Effect::Spawn),

            (Greeting, Event::Greeted) => (Activating, Effect::Activate),
            (Activating, Event::Activated) => (Active, Effect::OpenGate),
            (Greeting | Activating, Event::Stop) => (Stopping(Then::Stopped), Effect::Climb),
            (Greeting | Activating, Event::Restart) => (Stopping(Then::Start), Effect::Climb),

            (Active, Event::Quiet) => (Draining(Then::Dormant), Effect::DrainIfIdle),
            (Active, Event::Retire) => (Draining(Then::Dormant), Effect::Drain),
            (Active, Event::Unfit(then)) => (Draining(then), Effect::Drain),
            (Active, Event::Stop) => (Draining(Then::Stopped), Effect::Drain),
            (Active, Event::Restart) => (Draining(Then::Start), Effect::Drain),

            // There was work after all: whatever wanted it up is served by this process.
            (Draining(Then::Dormant | Then::Start), Event::Busy) => (Active, Effect::OpenGate),
            (Draining(then), Event::Deactivated | Event::DrainFailed | Event::Busy) => {
                (Stopping(then), Effect::Climb)
            }

            // A call that comes while it goes to sleep wakes it again, once it is gone.
            (Draining(Then::Dormant), Event::Wanted) => (Draining(Then::Start), Effect::None),
            (Stopping(Then::Dormant), Event::Wanted) => (Stopping(Then::Start), Effect::None),
            (Draining(_), Event::Stop) => (Draining(Then::Stopped), Effect::None),
            (Stopping(_), Event::Stop) => (Stopping(Then::Stopped), Effect::None),
            (Draining(_), Event::Restart) => (Draining(Then::Start), Effect::None),
            (Stopping(_), Event::Restart) => (Stopping(Then::Start), Effect::None),
            (Draining(Then::Stopped), Event::Resume) => (Draining(Then::Start), Effect::None),
            (Stopping(Then::Stopped | Then::Quarantined), Event::Resume) => {
                (Stopping(Then::Start), Effect::None)
            }

            // Death is possible wherever there is a process. One that was to stay down stays down.
            (Greeting | Activating | Active, Event::Died(then)) => (Stopping(then), Effect::Climb),
            (Draining(Then::Stopped), Event::Died(_)) => (Stopping(Then::Stopped), Effect::Climb),
            (Draining(_), Event::Died(then)) => (Stopping(then), Effect::Climb),

            (Stopping(Then::Dormant), Event::Gone) => (Dormant, Effect::None),
            (Stopping(Then::Start), Event::Gone) => (Greeting, Effect::Spawn),
            (Stopping(Then::Backoff), Event::Gone) => (Backoff, Effect::Wait),
            (Stopping(Then::Stopped), Event::Gone) => (Stopped, Effect::None),
            (Stopping(Then::Quarantined), Event::Gone) => (Quarantined, Effect::None),

            _ => return None,
        })
    }

    /// Whether a call may wait here for the plugin to become active.
    pub(crate) fn wakes(self) -> bool {
        matches!(
            self,
            Self::Dormant
                | Self::Greeting
                | Self::Activating
                | Self::Active
                | Self::Draining(Then::Dormant | Then::Start)
                | Self::Stopping(Then::Dormant | Then::Start)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THENS: [Then; 5] =
        [Then::Dormant, Then::Start, Then::Backoff, Then::Stopped, Then::Quarantined];

    fn lives() -> Vec<Life> {
        let mut all = vec![Life::Dormant, Life::Greeting, Life::Activating, Life::Active];
        all.extend(THENS.map(Life::Draining));
        all.extend(THENS.map(Life::Stopping));
        all.extend([Life::Backoff, Life::Quarantined, Life::Stopped]);
        all
    }

    fn events() -> Vec<Event> {
        let mut all = vec![
            Event::Wanted,
            Event::Greeted,
            Event::Activated,
            Event::Quiet,
            Event::Busy,
            Event::Deactivated,
            Event::DrainFailed,
            Event::Retire,
        ];
        all.extend([Then::Dormant, Then::Backoff, Then::Quarantined].map(Event::Unfit));
        all.extend([Then::Dormant, Then::Backoff, Then::Quarantined].map(Event::Died));
        all.extend([Event::Stop, Event::Restart, Event::Gone, Event::Waited, Event::Resume]);
        all
    }

    /// Every legal cell. What is not listed changes nothing, so the list is the whole machine.
    #[test]
    fn the_table_is_the_spec() {
        let mut table = String::new();
        for life in lives() {
            for event in events() {
                if let Some((next, effect)) = life.step(event) {
                    table += &format!("{life:?} + {event:?} = {next:?}, {effect:?}\n");
                }
            }
        }
        let spec = include_str!("../../sdk-spec/tables/life.txt");
        let spec: String =
            spec.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
        assert_eq!(table, spec, "sdk-spec/tables/life.txt and life.rs must change together");
    }

    /// From every state with a process, each way down ends in a state without one.
    #[test]
    fn every_stop_ends() {
        for life in lives() {
            let Some((mut next, _)) = life.step(Event::Stop) else { continue };
            for event in [Event::Deactivated, Event::Gone] {
                next = next.step(event).map_or(next, |(next, _)| next);
            }
            assert_eq!(next, Life::Stopped, "from {life:?}");
        }
    }
}
