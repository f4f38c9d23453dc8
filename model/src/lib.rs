//! The law of plugbay's protocol as small machines that know nothing of bytes, clocks or
//! processes, so that every order of events can be tried.
//!
//! What a frame means is not written here a second time: it is read from
//! `sdk-spec/tables`, the text that the implementation is compared with as well. What is
//! written here is what a side may *do*, and that is what is being checked: that whatever both sides
//! do within the rules, in whatever order it arrives, every call ends once, nobody has to
//! treat a frame as a violation, and nobody waits for ever.
//!
//! - [`call`]: one call with a stream each way, credit, cancellation, pipes that fill up
//!   and a connection that can break.
//! - [`reverse`]: a call, the call it makes back, and the cascade of a cancel.
//! - [`idle`]: a host that stops a plugin nobody uses, while calls arrive.
//! - [`life`]: a plugin's life in its host, with crashes and an operator.
//!
//! Each has *faults*: rules left out, one at a time. The tests show that each of them is
//! found, so that a check which finds nothing means something.

pub mod call;
pub mod idle;
pub mod life;
pub mod reverse;
pub mod table;

/// What the checks of all machines do.
#[cfg(test)]
mod check {
    use std::{fmt::Debug, hash::Hash};

    use stateright::{Checker, Model};

    /// Tries everything. Every property must hold, and what is said to happen must happen.
    pub(crate) fn holds<M>(name: &str, model: M)
    where
        M: Model + Send + Sync + 'static,
        M::State: Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
        M::Action: Debug + PartialEq + Clone,
    {
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
        checker.assert_properties();
    }

    /// Tries everything until `property` is broken, as it must be. What led to it is printed.
    pub(crate) fn breaks<M>(name: &str, model: M, property: &'static str)
    where
        M: Model + Send + Sync + 'static,
        M::State: Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
        M::Action: Debug + PartialEq + Clone,
    {
        // One thread, so that what it finds is among the shortest.
        let checker = model.checker().spawn_bfs().join();
        let found = checker.discovery(property);
        let path = found.unwrap_or_else(|| panic!("{name}: {property:?} holds all the same"));
        println!("{name} breaks {property:?} by {:?}", path.into_actions());
    }
}
