//! All checks, one file for each group.

use std::time::Duration;

use crate::{
    case::{Case, HANDSHAKE, hello},
    check::{Check, Verdict},
    codec::HELLO,
    session::{Session, code},
    value::Value,
};

mod ba;
mod bm;
mod bp;
mod bt;
mod bx;
mod by;
mod ca;
mod cn;
mod co;
mod dr;
mod er;
mod fr;
mod hs;
mod ig;
mod lc;
mod no;
mod rb;
mod rg;
mod rs;
mod sc;
mod st;
mod to;

/// The groups in the order in which they are told: letters, what they are about, checks.
pub const GROUPS: &[(&str, &str, &[Check])] = &[
    ("HS", "the handshake", hs::CHECKS),
    ("FR", "framing and encoding", fr::CHECKS),
    ("LC", "the lifecycle", lc::CHECKS),
    ("IG", "the inactive gate", ig::CHECKS),
    ("RG", "what is provided", rg::CHECKS),
    ("CA", "calls", ca::CHECKS),
    ("CO", "concurrency", co::CHECKS),
    ("TO", "budgets and signs of life", to::CHECKS),
    ("CN", "cancellation", cn::CHECKS),
    ("ST", "streams", st::CHECKS),
    ("SC", "scopes and reverse calls", sc::CHECKS),
    ("ER", "errors", er::CHECKS),
    ("DR", "drain and idle stop", dr::CHECKS),
    ("RB", "robustness", rb::CHECKS),
    ("RS", "resources", rs::CHECKS),
    ("NO", "notes and traces", no::CHECKS),
    ("BT", "contract tool", bt::CHECKS),
    ("BM", "contract model", bm::CHECKS),
    ("BP", "contract policy", bp::CHECKS),
    ("BY", "contract memory", by::CHECKS),
    ("BX", "contract sandbox", bx::CHECKS),
    ("BA", "contract runtime", ba::CHECKS),
];

/// Every check, in order.
pub fn all() -> impl Iterator<Item = &'static Check> {
    GROUPS.iter().flat_map(|(.., checks)| checks.iter())
}

/// The check with this id.
pub fn find(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id.eq_ignore_ascii_case(id))
}

/// What a plugin of any kind can be called with: a method for each kind it provides.
pub(crate) fn methods(case: &Case<'_>) -> Vec<String> {
    let mut methods = Vec::new();
    for entry in &case.profile().provides {
        let name = entry.str("name").unwrap_or("");
        let method = match entry.str("kind").unwrap_or("") {
            "tool" => "tool.call".to_owned(),
            "model" => "model.generate".to_owned(),
            "policy" => "policy.check".to_owned(),
            "memory" => "memory.search".to_owned(),
            "sandbox" => "sandbox.open".to_owned(),
            "runtime" => "session.open".to_owned(),
            "tck" => format!("tck.{name}"),
            _ => continue,
        };
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    methods
}

/// It serves a call: `tck.echo` comes back, or what it does not know is refused.
pub(crate) fn serves(case: &Case<'_>, session: &mut Session) -> Verdict {
    if case.profile().has("tck", "echo") {
        return session.lives();
    }
    let id = session.call("grease.nothing", ());
    session.refused(id, &code("unimplemented")).map(|_| ())
}

/// It provides nothing of this kind to a host that offers only these features.
pub(crate) fn leaves_out(case: &mut Case<'_>, kind: &str, features: Value) -> Verdict {
    let mut session = case.greet(&hello().with("features", features))?;
    let got = session.expect("HELLO", HANDSHAKE, |got| got.kind == HELLO)?;
    let manifest = got.value();
    let entries = manifest.list("provides");
    let found = entries.iter().find(|entry| entry.str("kind") == Some(kind));
    match found {
        None => Ok(()),
        Some(entry) => Err(session.differs(&got, format!("no {kind}"), entry.to_string())),
    }
}

/// Waits until so many calls of a fixture have begun: a CANCEL that comes before that may end
/// a call that never ran.
pub(crate) fn begun(session: &mut Session, calls: i128) -> Verdict {
    let tries = 400;
    for _ in 0..tries {
        if session.state_int("calls_started")? >= calls {
            return Ok(());
        }
        session.linger(Duration::from_millis(5))?;
    }
    session.holds(false, &format!("{calls} calls that have begun"), "fewer")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_in_their_group() {
        let mut seen = BTreeSet::new();
        for (group, _, checks) in GROUPS {
            for check in *checks {
                assert!(seen.insert(check.id), "{} stands twice", check.id);
                assert_eq!(check.group(), *group, "{}", check.id);
                assert!(!check.rules.is_empty(), "{} judges a rule", check.id);
            }
        }
        for id in crate::monitor::WATCHED {
            assert!(find(id).is_some(), "{id} is watched and is no check");
        }
    }
}
