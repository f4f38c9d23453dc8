//! Whether a plugin may call its host, as a table.
//!
//! The table is the law: `sdk-spec/tables/reverse.txt` is the same table as text, and
//! the test below compares them. Both ends consult it: the host to judge, the plugin
//! so that it is never judged.

use crate::{
    error::Fault,
    frame::{Code, Retry},
    gate::Stage,
};

/// The call that a reverse call names as the one it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// None: background work.
    Absent,
    /// A call of the host that has not ended, cancelled or not.
    Open,
    /// Any other id.
    Other,
}

impl Parent {
    /// By what the call names, and whether that is open.
    pub(crate) fn of(named: bool, open: bool) -> Self {
        match (named, open) {
            (false, _) => Self::Absent,
            (true, true) => Self::Open,
            (true, false) => Self::Other,
        }
    }
}

/// What becomes of a reverse call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is served, unless it is one too many or nobody knows its method.
    Run,
    /// It is refused. \[R-SC-06\]
    Deny,
    /// It breaks a rule: CLOSE `bad_state`. \[R-RV-03\]
    BadState,
}

/// Decides by the plugin's stage, the parent, and whether authority covers the call.
/// \[R-RV-02\]
pub(crate) fn judge(stage: Stage, parent: Parent, covered: impl FnOnce() -> bool) -> Verdict {
    let may_be = match (stage, parent) {
        (_, Parent::Other) => false,
        (Stage::Activating, parent) => parent == Parent::Open,
        (Stage::Active | Stage::Draining, _) => true,
        (Stage::Greeting | Stage::Ready | Stage::Closed, _) => false,
    };
    match may_be {
        false => Verdict::BadState,
        true if covered() => Verdict::Run,
        true => Verdict::Deny,
    }
}

/// What authority does not cover is answered with this. \[R-SC-06\]
pub(crate) fn denied() -> Fault {
    Fault::new(Code::PermissionDenied).because("pb.scope_denied")
}

/// What is one call too many is answered with this. \[R-GT-05\] \[R-RV-09\]
pub(crate) fn too_many() -> Fault {
    Fault::new(Code::ResourceExhausted).because("pb.too_many_calls").retry(Retry::Safe)
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
            for parent in [Parent::Absent, Parent::Open, Parent::Other] {
                for covered in [true, false] {
                    let verdict = match judge(stage, parent, || covered) {
                        Verdict::Run => "run".into(),
                        Verdict::BadState => "CLOSE bad_state".into(),
                        Verdict::Deny => end(&denied()),
                    };
                    let parent = format!("{parent:?}").to_lowercase();
                    let covered = if covered { "covered" } else { "uncovered" };
                    table += &format!("{stage:?} + {parent} + {covered} = {verdict}\n");
                }
            }
        }
        let spec = include_str!("../../sdk-spec/tables/reverse.txt");
        let lines = spec.lines().filter(|line| !line.starts_with('#'));
        let lines: String = lines.map(|line| format!("{line}\n")).collect();
        assert_eq!(table, lines, "sdk-spec/tables/reverse.txt and reverse.rs change together");
        assert!(spec.contains(&format!("#   {}, over the host's limit", end(&too_many()))));
    }

    fn end(fault: &Fault) -> String {
        let reason = fault.reason.as_deref().unwrap_or_default();
        format!("END {} {reason} retry {}", fault.code.as_str(), fault.retry.as_str())
    }
}
