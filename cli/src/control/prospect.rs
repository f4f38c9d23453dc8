//! What will become of a plugin if nobody does anything.

use std::time::{Duration, SystemTime};

use plugbay_supervisor::{PluginStatus, Reason, State, plan::Restart};

/// One sentence, from how it is and from the rules it lives under.
pub(super) fn prospect(
    status: &PluginStatus,
    restart: &Restart,
    stop_after: Option<Duration>,
) -> String {
    let left = status.until.map(|it| it.duration_since(SystemTime::now()).unwrap_or_default());
    let left = left.map_or(String::new(), |it| format!(" within {} s", it.as_secs() + 1));
    match (status.state, &status.reason) {
        (State::Dormant, _) => "a call wakes it".into(),
        (State::Starting, Reason::StartingUp { greeted: true }) => {
            format!("it is ready{left}, or it is stopped")
        }
        (State::Starting, _) => format!("it says HELLO{left}, or it is stopped"),
        (State::Active, _) => match stop_after {
            Some(after) => format!("it serves calls, and is stopped after {after:?} without one"),
            None => "it serves calls".into(),
        },
        (State::Draining, _) => format!("its calls end{left}, and then its process"),
        (State::Stopping, _) => "its process ends".into(),
        (State::Backoff, _) => {
            let (deaths, budget) = (status.deaths, restart.budget);
            let within = restart.within;
            format!(
                "it is started again{left} (death {deaths} of the {budget} that are forgiven in \
                 {within:?})"
            )
        }
        (State::Quarantined, _) => "it stays down until somebody resumes it".into(),
        (State::Stopped, Reason::Shutdown) => "nothing: the supervisor is going down".into(),
        (State::Stopped, _) => "it stays down until somebody resumes or restarts it".into(),
        (State::Disabled | State::Invalid, _) => {
            "nothing, until the manifest is changed and read again".into()
        }
    }
}
