//! The supervisor: a plan in, a registry out, and a hand on every plugin's life.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use plugbay_protocol::Fault;
use serde::Serialize;
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    task::JoinHandle,
};

use crate::{
    fact::{Events, Facts},
    gate::House,
    isolation::{self, Ceiling, Enclosure, Held, Machine},
    keeper::{Keeper, Order},
    life::Life,
    local::LocalTool,
    manifest::{self, Invalid, Loaded, Problem, Report, names},
    plan::{Ceilings, Level, Limits, Plan, PluginPlan, Timeouts, ToolPlan},
    reason::{Private, Reason},
    registry::{Approver, Bounds, Cell, NOT_GRANTED, Question, Refused, Registry},
    service::{Service, ServiceCall, service},
    status::{Condition, End, Off, PluginStatus, State, told},
    stderr::{StderrLine, Tail},
};

/// How long a shutdown lets running calls finish, unless told otherwise.
const SHUTDOWN_DRAIN: Duration = Duration::from_secs(2);
/// How long an approver may think: as long as a call may take, because a person may have
/// to be found first.
const APPROVAL_WAIT: Duration = Duration::from_secs(600);
/// Lines of stderr a slow listener may lag behind.
const LINES_KEPT: usize = 1024;

/// Runs plugins. Cheap to clone; the plugins end when [`Self::shutdown`] is called
/// or the last clone is dropped.
///
/// Runs on the tokio runtime that it is started on, of either flavour.
#[derive(Clone, Debug)]
pub struct Supervisor(Arc<Inner>);

struct Inner {
    registry: Registry,
    facts: Facts,
    lines: broadcast::Sender<StderrLine>,
    cells: Vec<Arc<Cell>>,
    ceiling: Arc<Ceiling>,
    keepers: tokio::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    /// Without a shutdown there is nobody to wait; each process group is killed as
    /// its keeper is dropped.
    fn drop(&mut self) {
        let keepers = self.keepers.get_mut();
        keepers.iter().for_each(JoinHandle::abort);
    }
}

/// What a supervisor is built from, in code.
pub struct Builder {
    plan: Plan,
    invalid: Vec<Invalid>,
    locals: Vec<LocalTool>,
    approver: Option<Approver>,
    approval_wait: Duration,
    services: HashMap<String, Service>,
    facts: Facts,
    lines: broadcast::Sender<StderrLine>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            plan: Plan::default(),
            invalid: Vec::new(),
            locals: Vec::new(),
            approver: None,
            approval_wait: APPROVAL_WAIT,
            services: HashMap::new(),
            facts: Facts::new(),
            lines: broadcast::Sender::new(LINES_KEPT),
        }
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Builder {
    /// Adds all plugins of a plan, and its bounds on all of them; the last that are said hold.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plan.plugins.extend(plan.plugins);
        self.plan.ceilings = plan.ceilings.or(self.plan.ceilings);
        self
    }

    /// Adds everything a manifest holds. Plugins that cannot run are listed as
    /// invalid, with the reason, and the others run.
    #[must_use]
    pub fn loaded(mut self, loaded: Loaded) -> Self {
        self.invalid.extend(loaded.invalid);
        self.plan(loaded.plan)
    }

    /// Adds one plugin.
    #[must_use]
    pub fn plugin(mut self, plugin: PluginPlan) -> Self {
        self.plan.plugins.push(plugin);
        self
    }

    /// Adds a local tool, whose name no plugin can take.
    #[must_use]
    pub fn tool(mut self, tool: LocalTool) -> Self {
        self.locals.push(tool);
        self
    }

    /// Asks `approver` wherever a rule says `ask`. Without one, such calls are denied.
    #[must_use]
    pub fn approver<F>(mut self, approver: impl Fn(Question) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.approver = Some(Arc::new(move |question| Box::pin(approver(question))));
        self
    }

    /// How long an approver may think, ten minutes unless set; then its answer is no. The
    /// time is the caller's and not the tool's: no budget of the call begins before the yes.
    #[must_use]
    pub fn approval_wait(mut self, wait: Duration) -> Self {
        self.approval_wait = wait;
        self
    }

    /// Offers plugins a method to call, such as `host.kv.get`, in place of one of the same
    /// name. Only plugins that want it and were granted it get there. The future is dropped
    /// when the plugin gives the call up, and when it ends.
    ///
    /// ```
    /// use plugbay_supervisor::{Fault, ServiceCall, Supervisor};
    ///
    /// let builder = Supervisor::builder().service("host.time.now", async |_: ServiceCall| {
    ///     let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    ///     Ok::<_, Fault>(now.map_or(0, |it| it.as_secs()))
    /// });
    /// ```
    #[must_use]
    pub fn service<T, F>(
        mut self,
        method: &str,
        run: impl Fn(ServiceCall) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Serialize,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        self.services.insert(method.to_owned(), service(run));
        self
    }

    /// Everything that happens from the start on, the start included.
    pub fn events(&self) -> Events {
        self.facts.events()
    }

    /// Lines of the plugins' stderr from the start on; see [`Supervisor::stderr`].
    pub fn stderr(&self) -> broadcast::Receiver<StderrLine> {
        self.lines.subscribe()
    }

    /// Starts. Plugins that start at boot are on their way when this returns; the
    /// others wait for their first call.
    ///
    /// # Errors
    /// A local tool or a plugin has a name that is taken, or a local tool's schema
    /// is none.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<Supervisor, Refused> {
        let (facts, lines) = (self.facts, self.lines);
        let (approver, wait) = (self.approver, self.approval_wait);
        let registry = Registry::new(facts.clone(), approver, wait, self.services);
        for local in self.locals {
            registry.add(local)?;
        }
        let mut seen = std::collections::HashSet::new();
        let plugins = self.plan.plugins.iter().map(|plugin| &plugin.name);
        let mut all = plugins.chain(self.invalid.iter().map(|it| &it.name));
        if let Some(twice) = all.find(|name| !seen.insert(*name)) {
            let why = "two plugins have this name".into();
            return Err(Refused { name: twice.clone(), why });
        }
        let mut cells = Vec::new();
        let mut keepers = Vec::new();
        let helper = Arc::default();
        let ceiling = Arc::new(Ceiling::new(self.plan.ceilings));
        for mut plugin in self.plan.plugins {
            if plugin.enabled && plugin.sandbox.level != Level::None {
                // What is refused is refused when it starts, with its reason.
                let degraded = isolation::degraded(&plugin, ceiling.limits(), Machine::here());
                plugin.degraded.extend(degraded.into_iter().flatten());
            }
            let off = (!plugin.enabled).then_some(Off::Disabled);
            let (orders, inbox) = mpsc::unbounded_channel();
            let cell = Arc::new(cell(plugin, orders, off));
            if cell.plan.enabled {
                let (listed, unlisted) = declared(&cell.plan);
                registry.set_tools(&cell, &listed, &unlisted);
                let keeper = Keeper::new(
                    Arc::clone(&cell),
                    registry.clone(),
                    facts.clone(),
                    lines.clone(),
                    inbox,
                    Enclosure::new(Arc::clone(&helper), facts.clone(), Arc::clone(&ceiling)),
                );
                keepers.push(tokio::spawn(keeper.keep()));
            }
            cells.push(cell);
        }
        for Invalid { name, why } in self.invalid {
            let plan = PluginPlan::new(name, Vec::new(), "/");
            cells.push(Arc::new(cell(plan, mpsc::unbounded_channel().0, Some(Off::Invalid(why)))));
        }
        registry.set_plugins(cells.iter());
        let keepers = tokio::sync::Mutex::new(keepers);
        let inner = Inner { registry, facts, lines, cells, ceiling, keepers };
        Ok(Supervisor(Arc::new(inner)))
    }
}

fn cell(plan: PluginPlan, orders: mpsc::UnboundedSender<Order>, off: Option<Off>) -> Cell {
    let reason = Arc::new(match &off {
        None => Reason::NotStarted,
        Some(Off::Disabled) => Reason::Disabled,
        Some(Off::Invalid(why)) => Reason::Invalid { why: why.clone() },
    });
    Cell {
        name: plan.name.as_str().into(),
        condition: watch::Sender::new(Arc::new(Condition {
            life: Life::Dormant,
            off,
            reason: Arc::clone(&reason),
            since: SystemTime::now(),
            until: None,
            up_since: None,
            link: None,
            pid: None,
            starts: 0,
            end: Arc::new(End::none(reason)),
            deaths: 0,
            peer: plan.identity.clone(),
        })),
        orders,
        house: House::default(),
        provides: ArcSwap::default(),
        bounds: ArcSwap::from_pointee(Bounds::new(plan.limits.clone(), plan.timeouts.clone())),
        tail: Arc::new(Mutex::new(Tail::new(plan.limits.stderr_tail_bytes))),
        holds_again: AtomicBool::new(false),
        plan: Arc::new(plan),
    }
}

/// The tools that are known before any process runs, and those that are not granted.
fn declared(plan: &PluginPlan) -> (Vec<ToolPlan>, Vec<(&str, &'static str)>) {
    let (listed, unlisted): (Vec<&ToolPlan>, Vec<&ToolPlan>) =
        plan.tools.iter().partition(|tool| plan.grants(&tool.name));
    let unlisted = unlisted.into_iter().map(|it| (it.name.as_str(), NOT_GRANTED));
    (listed.into_iter().cloned().collect(), unlisted.collect())
}

/// No plugin has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no plugin is called {name:?}{}", near.as_ref().map_or(String::new(), |near| format!("; the nearest name is {near:?}")))]
pub struct NoSuchPlugin {
    /// What was asked for.
    pub name: String,
    /// The nearest name there is.
    pub near: Option<String>,
}

impl Supervisor {
    /// Builds one in code.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a plan as it is.
    ///
    /// # Errors
    /// Two plugins have one name.
    pub fn start(plan: Plan) -> Result<Self, Refused> {
        Self::builder().plan(plan).start()
    }

    /// Runs what an operator's `plugbay.toml`, or one `plugin.toml`, says. Plugins
    /// that cannot run are listed as invalid; the report says why.
    ///
    /// # Errors
    /// Nothing in the file can run.
    pub fn from_file(path: impl AsRef<Path>) -> Result<(Self, Report), LoadError> {
        Self::from_loaded(manifest::load_file(path.as_ref()))
    }

    /// Runs the plugin in a folder, or those in its sub-folders, under safe
    /// defaults: their tools are granted and nothing else is.
    ///
    /// # Errors
    /// Nothing in the folder can run.
    pub fn from_folder(path: impl AsRef<Path>) -> Result<(Self, Report), LoadError> {
        Self::from_loaded(manifest::load_folder(path.as_ref()))
    }

    /// Runs one program under safe defaults. Its tools are learnt when it starts,
    /// which [`Self::ready`] waits for.
    ///
    /// # Errors
    /// There is no such program.
    pub fn from_command(name: &str, argv: &[String]) -> Result<Self, LoadError> {
        let plugin =
            manifest::command(name, argv).map_err(|it| LoadError::Command(Box::new(it)))?;
        Self::builder().plugin(plugin).start().map_err(LoadError::Refused)
    }

    fn from_loaded(loaded: Loaded) -> Result<(Self, Report), LoadError> {
        if loaded.plan.plugins.is_empty() && loaded.report.has_errors() {
            return Err(LoadError::Manifest(Box::new(loaded.report)));
        }
        let report = loaded.report.clone();
        let supervisor = Self::builder().loaded(loaded).start().map_err(LoadError::Refused)?;
        Ok((supervisor, report))
    }

    /// What an agent loop calls.
    pub fn registry(&self) -> Registry {
        self.0.registry.clone()
    }

    /// Everything that happens from now on.
    pub fn events(&self) -> Events {
        self.0.facts.events()
    }

    /// Lines of the plugins' stderr from now on, within each plugin's rate. They
    /// are confidential.
    pub fn stderr(&self) -> broadcast::Receiver<StderrLine> {
        self.0.lines.subscribe()
    }

    /// All plugins, in the order of the plan.
    pub fn plugins(&self) -> Vec<PluginStatus> {
        self.0.cells.iter().map(|cell| status(cell)).collect()
    }

    /// One plugin.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn plugin(&self, name: &str) -> Result<PluginStatus, NoSuchPlugin> {
        self.cell(name).map(|cell| status(cell))
    }

    /// The rules that one plugin lives under, with the limits and timeouts that hold now.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn plan(&self, name: &str) -> Result<PluginPlan, NoSuchPlugin> {
        let cell = self.cell(name)?;
        let bounds = cell.bounds.load();
        let (limits, timeouts) = (bounds.limits.clone(), bounds.timeouts.clone());
        Ok(PluginPlan { limits, timeouts, ..(*cell.plan).clone() })
    }

    /// Changes the limits and timeouts of one plugin until the supervisor ends. Those that
    /// bound calls (queue, rate, result and the budgets of a call) hold from the next call
    /// on, the others from the next process on; or, if they are of the system, from
    /// [`Self::hold`] on, or from the end of a start that goes on just now.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn set_bounds(
        &self,
        name: &str,
        limits: Limits,
        timeouts: Timeouts,
    ) -> Result<(), NoSuchPlugin> {
        self.cell(name)?.bounds.store(Arc::new(Bounds::new(limits, timeouts)));
        Ok(())
    }

    /// Holds the processes of a plugin to its limits of the system and of its state as they
    /// are set now, as far as that can be done while it runs, and says what holds. Empty if
    /// none runs, or if it has no walls.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn hold(&self, name: &str) -> Result<Vec<Held>, NoSuchPlugin> {
        let (held, wait) = oneshot::channel();
        self.order(name, Order::Hold(held))?;
        // Fails only if the keeper is gone, and with it the process.
        Ok(wait.await.unwrap_or_default())
    }

    /// Bounds on all plugins together, as they are set now.
    pub fn ceilings(&self) -> Ceilings {
        self.0.ceiling.limits()
    }

    /// Sets bounds on all plugins together, if there are others to set, until the supervisor
    /// ends, and says what holds. What the system does not take stays as it was, and so does
    /// whether there is such a bound. Whoever runs is held to its own limits once more. Blocks while
    /// the system takes memory back.
    pub fn hold_all(&self, others: Option<Ceilings>) -> Vec<Held> {
        if self.ceilings() == Ceilings::default() && others.is_none_or(|it| it == self.ceilings()) {
            return Vec::new();
        }
        let held = Machine::here().cgroups.hold_all(&self.0.ceiling, others);
        if others.is_some() {
            // Where a limit of theirs was cut to the ceiling, it may have room now.
            self.0.registry.hold_plugins();
        }
        held
    }

    fn cell(&self, name: &str) -> Result<&Arc<Cell>, NoSuchPlugin> {
        let found = self.0.cells.iter().find(|cell| &*cell.name == name);
        found.ok_or_else(|| {
            let near = names::near(name, self.0.cells.iter().map(|cell| &*cell.name));
            NoSuchPlugin { name: name.to_owned(), near: near.map(str::to_owned) }
        })
    }

    /// Wakes a plugin and waits until it is active.
    ///
    /// # Errors
    /// [`NotReady`]: why it is not, and its last words.
    pub async fn ready(&self, name: &str) -> Result<(), NotReady> {
        let cell = self.cell(name).map_err(NotReady::NoSuchPlugin)?;
        // What was ordered before this, a resume for instance, comes before it.
        self.heeded(name).await.map_err(NotReady::NoSuchPlugin)?;
        let mut condition = cell.condition.subscribe();
        let before = condition.borrow().before();
        loop {
            let now = Arc::clone(&condition.borrow_and_update());
            let down = !now.wakes() || now.is_dead_since(before);
            if now.life == Life::Active {
                return Ok(());
            }
            let wants = || now.dies() || cell.orders.send(Order::Want(before)).is_ok();
            if down || !wants() || condition.changed().await.is_err() {
                // The keeper may have gone, and its last word came before that. If the
                // plugin is just going down, why is not known yet.
                let now = Arc::clone(&condition.borrow());
                // It may be on its way up again by then: the end that was waited for is told.
                let end = match now.is_dying() {
                    true => told(&mut condition, now.starts).await.map(|it| Arc::clone(&it.end)),
                    // Whichever state it led to, this is what was waited for.
                    false if before < now.end.run => Some(Arc::clone(&now.end)),
                    false => None,
                };
                let (reason, last_words) = match end {
                    Some(end) => (Arc::clone(&end.reason), end.last_words.clone()),
                    None => (Arc::clone(&now.reason), cell.last_words()),
                };
                return Err(NotReady::Down { plugin: name.to_owned(), reason, last_words });
            }
        }
    }

    /// Waits until the orders that a plugin has been given so far have been taken up, so
    /// that its status shows them.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn heeded(&self, name: &str) -> Result<(), NoSuchPlugin> {
        let (heeded, wait) = oneshot::channel();
        self.order(name, Order::Heed(heeded))?;
        // Fails only if the keeper is gone, and then there is nothing to wait for.
        wait.await.ok();
        Ok(())
    }

    /// Gives a plugin a new process: drained and ended if it runs, started in any case.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn restart(&self, name: &str) -> Result<(), NoSuchPlugin> {
        self.order(name, Order::Restart)
    }

    /// Lifts a stop or a quarantine; the next call wakes the plugin.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn resume(&self, name: &str) -> Result<(), NoSuchPlugin> {
        self.order(name, Order::Resume)
    }

    /// Drains a plugin, ends it, and waits until it is down, or until a later order
    /// wants it up again. It stays down until it is resumed or restarted.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn stop(&self, name: &str) -> Result<(), NoSuchPlugin> {
        let (waits, down) = oneshot::channel();
        self.order(name, Order::Stop(waits))?;
        // The keeper says nothing: it lets go of its end.
        down.await.ok();
        Ok(())
    }

    fn order(&self, name: &str, order: Order) -> Result<(), NoSuchPlugin> {
        // Fails only if its keeper is gone: disabled, or going down.
        self.cell(name)?.orders.send(order).ok();
        Ok(())
    }

    /// Drains and ends every plugin, all at once, and waits until all are gone.
    /// Running calls get two seconds; see [`Self::shutdown_within`].
    pub async fn shutdown(&self) {
        self.shutdown_within(SHUTDOWN_DRAIN).await;
    }

    /// As [`Self::shutdown`], with another time for running calls to finish. Ending
    /// the processes takes at most the rungs of the stop ladder on top.
    pub async fn shutdown_within(&self, drain: Duration) {
        for cell in &self.0.cells {
            // Fails only if its keeper is gone already.
            cell.orders.send(Order::Shutdown(drain)).ok();
        }
        // Whoever comes second waits for the first, and goes on where that gave up.
        let mut keepers = self.0.keepers.lock().await;
        while let Some(keeper) = keepers.last_mut() {
            // Fails only if a keeper panicked; its process was killed as it unwound.
            keeper.await.ok();
            keepers.pop();
        }
    }
}

fn status(cell: &Cell) -> PluginStatus {
    let now = Arc::clone(&cell.condition.borrow());
    PluginStatus {
        name: cell.name.to_string(),
        id: now.peer.as_ref().map(|(id, _)| id.clone()),
        version: now.peer.as_ref().map(|(_, version)| version.clone()),
        state: now.state(),
        reason: (*now.reason).clone(),
        pid: now.pid,
        since: now.since,
        until: now.until.map(|at| {
            SystemTime::now() + at.saturating_duration_since(tokio::time::Instant::now())
        }),
        up_since: now.up_since,
        last_end: (0 < now.end.run).then(|| (*now.end.reason).clone()),
        features: now.link.as_ref().map_or_else(Vec::new, |it| it.features().names().collect()),
        starts: now.starts,
        deaths: now.deaths,
        calls: cell.house.inside(),
        degraded: cell.plan.degraded.clone(),
        last_words: match now.end.run == now.starts {
            true => now.end.last_words.clone(),
            false => cell.last_words(),
        },
    }
}

/// Why there is nothing to run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The manifest's faults, all of them.
    #[error("{}", .0.render(false))]
    Manifest(Box<Report>),
    /// The command line's fault.
    #[error(transparent)]
    Command(Box<Problem>),
    /// Two things want one name.
    #[error(transparent)]
    Refused(Refused),
}

/// Why a plugin is not up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotReady {
    /// There is none of that name.
    #[error(transparent)]
    NoSuchPlugin(NoSuchPlugin),
    /// It would not come up, or may not.
    #[error("{plugin} {reason}")]
    Down {
        /// Which plugin.
        plugin: String,
        /// Why.
        reason: Arc<Reason>,
        /// The end of its stderr, for the operator's eyes.
        last_words: Private,
    },
}

impl PluginStatus {
    /// Whether a call may go ahead or wake it.
    pub fn takes_calls(&self) -> bool {
        matches!(self.state, State::Dormant | State::Starting | State::Active | State::Draining)
    }
}
