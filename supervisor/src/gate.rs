//! May this call start? One pure decision over a snapshot, before any process is
//! woken.
//!
//! The order of refusals is part of the specification: Denied, Inactive, Busy,
//! BadArguments. Who has no right learns neither state nor load nor schema.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    error::Rule,
    plan::{Approval, Effect},
};

/// A photograph of everything the decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot<'a> {
    pub(crate) caller: &'a str,
    /// Whether the caller may use this tool at all.
    pub(crate) allowed: bool,
    pub(crate) effect: Effect,
    pub(crate) approval: Approval,
    /// Whether anybody can be asked, or the caller answers for itself.
    pub(crate) can_ask: bool,
    /// Whether the plugin is up or may be woken.
    pub(crate) wakes: bool,
    /// Calls running or waiting, and how many may be.
    pub(crate) inside: usize,
    pub(crate) inside_max: usize,
    /// How long until the rate allows one more.
    pub(crate) rate: Option<Duration>,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Denied(Rule),
    Inactive,
    Full,
    Rate(Duration),
    BadArguments(Vec<String>),
}

/// Decides. `problems` checks the arguments, last and only if all else is well.
pub(crate) fn admit(
    it: Snapshot<'_>,
    problems: impl FnOnce() -> Vec<String>,
) -> Result<(), Refusal> {
    if !it.allowed {
        return Err(Refusal::Denied(Rule::Caller { caller: it.caller.to_owned() }));
    }
    match it.approval {
        Approval::Deny => return Err(Refusal::Denied(Rule::Effect { effect: it.effect })),
        Approval::Ask if !it.can_ask => {
            return Err(Refusal::Denied(Rule::NotApproved { effect: it.effect }));
        }
        Approval::Ask | Approval::Allow => {}
    }
    if !it.wakes {
        return Err(Refusal::Inactive);
    }
    if it.inside_max <= it.inside {
        return Err(Refusal::Full);
    }
    if let Some(wait) = it.rate {
        return Err(Refusal::Rate(wait));
    }
    match problems() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Refusal::BadArguments(problems)),
    }
}

/// Counts the calls that are running in a plugin or waiting for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct House(Arc<AtomicUsize>);

/// One call's place in the house; given back by dropping it.
#[derive(Debug)]
#[must_use = "dropping a place gives it back"]
pub(crate) struct Place(Arc<AtomicUsize>);

impl House {
    pub(crate) fn inside(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Enters, if fewer than `max` are inside. The count and the check are one step,
    /// so many callers at once cannot all slip through.
    pub(crate) fn enter(&self, max: usize) -> Option<Place> {
        let add = |inside| if inside < max { Some(inside + 1) } else { None };
        let entered = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        entered.is_ok().then(|| Place(Arc::clone(&self.0)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Snapshot<'_> = Snapshot {
        caller: "planner",
        allowed: true,
        effect: Effect::Write,
        approval: Approval::Allow,
        can_ask: false,
        wakes: true,
        inside: 0,
        inside_max: 1,
        rate: None,
    };

    #[track_caller]
    fn check(snapshot: Snapshot<'_>, expected: Result<(), Refusal>) {
        let actual = admit(snapshot, || vec!["wrong".into()]);
        let expected = expected.and(Err(Refusal::BadArguments(vec!["wrong".into()])));
        assert_eq!(actual, expected);
    }

    #[test]
    fn the_order_of_refusals() {
        let caller = Rule::Caller { caller: "planner".into() };
        let mut it = Snapshot {
            allowed: false,
            approval: Approval::Deny,
            wakes: false,
            inside: 9,
            rate: Some(Duration::from_secs(1)),
            ..FINE
        };
        check(it, Err(Refusal::Denied(caller)));
        it.allowed = true;
        check(it, Err(Refusal::Denied(Rule::Effect { effect: Effect::Write })));
        it.approval = Approval::Ask;
        check(it, Err(Refusal::Denied(Rule::NotApproved { effect: Effect::Write })));
        it.can_ask = true;
        check(it, Err(Refusal::Inactive));
        it.wakes = true;
        check(it, Err(Refusal::Full));
        it.inside = 0;
        check(it, Err(Refusal::Rate(Duration::from_secs(1))));
        it.rate = None;
        check(it, Ok(()));
        assert_eq!(admit(it, Vec::new), Ok(()));
    }

    #[test]
    fn a_house_is_never_overfull() {
        let house = House::default();
        let first = house.enter(2);
        let second = house.enter(2);
        assert!(first.is_some() && second.is_some() && house.enter(2).is_none());
        drop(first);
        assert_eq!(house.inside(), 1);
        assert!(house.enter(2).is_some());
    }
}
