//! The state gate of a plugin: whether a call may reach its code. \[R-GT-01\]
//!
//! A pure decision that is made before a body is decoded. The host makes its own,
//! so a refusal here means a race or a wrong host.

use crate::{
    error::Fault,
    frame::{Code, Retry, method},
};

/// Where a plugin is in its life, as plugin and host agree on it by the order of
/// frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No HELLO yet.
    Greeting,
    /// Shaken hands, and not active.
    Ready,
    /// `plugin.activate` is being worked on.
    Activating,
    /// Open for calls.
    Active,
    /// `plugin.deactivate` is being worked on.
    Draining,
    /// CLOSE has passed, or the stream has ended.
    Closed,
}

/// A step of the lifecycle. It is a call like any other, and moves the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Activate,
    Deactivate,
    /// A method of the lifecycle that this version does not have.
    Unknown,
}

impl Step {
    pub(crate) fn of(call: &str) -> Option<Self> {
        match call {
            method::ACTIVATE => Some(Self::Activate),
            method::DEACTIVATE => Some(Self::Deactivate),
            _ if is_lifecycle(call) => Some(Self::Unknown),
            _ => None,
        }
    }

    /// Where the plugin is while it works on it. \[R-LC-03\]
    pub(crate) fn begins(self, from: Stage) -> Stage {
        match self {
            Self::Activate => Stage::Activating,
            Self::Deactivate => Stage::Draining,
            Self::Unknown => from,
        }
    }

    /// Where it leads, by its outcome. \[R-LC-03\]
    pub(crate) fn ends(self, from: Stage, ok: bool) -> Stage {
        match (self, ok) {
            (Self::Activate, true) | (Self::Deactivate, false) => Stage::Active,
            (Self::Activate, false) | (Self::Deactivate, true) => Stage::Ready,
            (Self::Unknown, _) => from,
        }
    }
}

/// Decides whether a CALL may start, by stage and method alone.
///
/// # Errors
/// The fault to answer with. Nothing has run, so another try is safe wherever
/// one could help.
pub(crate) fn admit(stage: Stage, call: &str) -> Result<(), Fault> {
    let inactive =
        || Fault::new(Code::FailedPrecondition).because("pb.inactive").retry(Retry::Safe);
    match (stage, call) {
        (Stage::Ready, method::ACTIVATE) | (Stage::Active, method::DEACTIVATE) => Ok(()),
        (Stage::Active, method::ACTIVATE) => {
            Err(Fault::new(Code::FailedPrecondition).because("pb.already_active"))
        }
        (Stage::Active, _) => Ok(()),
        (Stage::Draining, _) => {
            Err(Fault::new(Code::Unavailable).because("pb.draining").retry(Retry::Safe))
        }
        _ => Err(inactive()),
    }
}

/// Whether a method belongs to the lifecycle, and so is exempt from the limit on calls.
pub(crate) fn is_lifecycle(call: &str) -> bool {
    call.starts_with("plugin.")
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{format, string::String};

    use super::*;

    #[test]
    fn the_table_is_the_spec() {
        let mut table = String::new();
        for stage in [Stage::Ready, Stage::Activating, Stage::Active, Stage::Draining] {
            for call in [method::ACTIVATE, method::DEACTIVATE, method::TOOL_CALL] {
                let verdict = match admit(stage, call) {
                    Ok(()) => "run".into(),
                    Err(fault) => format!(
                        "END {} {} retry {}",
                        fault.code.as_str(),
                        fault.reason.unwrap_or_default(),
                        fault.retry.as_str()
                    ),
                };
                table += &format!("{stage:?} + {call} = {verdict}\n");
            }
        }
        let spec = include_str!("../../sdk-spec/tables/gate.txt");
        let spec: String =
            spec.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
        assert_eq!(table, spec, "sdk-spec/tables/gate.txt and gate.rs must change together");
    }
}
