//! Walls around plugins, built by the [helper](plugbay_shim) before the program runs.
//!
//! Policy is here and mechanism there: `machine` learns what this system can do, `walls`
//! chooses what one plugin gets and writes it down as a script, and the helper carries
//! that out. What cannot be had and is not waived is a refusal, never a silence.

mod cgroup;
mod filter;
pub(crate) mod helper;
mod landlock;
mod machine;
mod namespaces;
mod runtime;
mod syscalls;
mod view;
mod walls;

pub use cgroup::Cgroups;
pub use machine::{Ability, Lack, Machine};

pub use walls::Finding;
pub(crate) use walls::{Remains, Walls, degraded};

use helper::Helper;

use std::sync::Arc;

use crate::{plan::PluginPlan, reason::Reason};

/// What stays for one plugin from start to start.
#[derive(Debug)]
pub(crate) struct Enclosure {
    helper: Arc<Helper>,
}

impl Enclosure {
    pub(crate) fn new(helper: Arc<Helper>) -> Self {
        Self { helper }
    }

    pub(crate) fn helper(&self) -> &Helper {
        &self.helper
    }

    /// The walls for the next start.
    ///
    /// # Errors
    /// Why they cannot stand.
    pub(crate) fn walls(&self, plan: &PluginPlan) -> Result<Walls, Reason> {
        Walls::new(plan, Machine::here())
    }
}
