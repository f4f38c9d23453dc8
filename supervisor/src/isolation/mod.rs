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
pub(crate) mod memory;
mod namespaces;
mod proxy;
mod request;
mod rlimits;
mod runtime;
mod syscalls;
mod view;
mod walls;

pub(crate) use cgroup::Ceiling;
pub use cgroup::{Cgroups, Held};
pub use machine::{Ability, Lack, Machine};

pub(crate) use view::files_for;
pub use walls::Finding;
pub(crate) use walls::{Remains, Walls, degraded};

use helper::Helper;
use proxy::Proxy;

use std::sync::Arc;

use crate::{digest::Program, fact::Facts, plan::PluginPlan, reason::Reason};

/// What stays for one plugin from start to start.
#[derive(Debug)]
pub(crate) struct Enclosure {
    helper: Arc<Helper>,
    /// Where it is said what the plugin was refused.
    facts: Facts,
    /// What all plugins together are held to.
    ceiling: Arc<Ceiling>,
    /// What its program was when it was last compared with its digest.
    pub(crate) verified: Option<Arc<Program>>,
}

impl Enclosure {
    pub(crate) fn new(helper: Arc<Helper>, facts: Facts, ceiling: Arc<Ceiling>) -> Self {
        Self { helper, facts, ceiling, verified: None }
    }

    pub(crate) fn helper(&self) -> &Helper {
        &self.helper
    }

    /// The walls for the next start.
    ///
    /// # Errors
    /// Why they cannot stand.
    pub(crate) fn walls(&self, plan: &PluginPlan) -> Result<Walls, Reason> {
        Walls::new(plan, &self.ceiling, Machine::here(), self.verified.as_deref())
    }

    /// The way out of walls that have one.
    pub(crate) fn proxy(&self, plan: &PluginPlan, walls: &Walls) -> Option<Proxy> {
        let granted = walls.granted().to_vec();
        let proxy = || Proxy::new(plan.name.as_str().into(), granted, self.facts.clone());
        (!walls.granted().is_empty()).then(proxy)
    }
}
