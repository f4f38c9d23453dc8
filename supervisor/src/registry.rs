//! The registry: what an agent loop sees and calls.
//!
//! Reads take an immutable snapshot; changes swap it whole. Names are protected:
//! a local tool's name cannot be taken, and where two plugins want one name,
//! neither gets it. Entries stay listed whatever their plugin's state: while it
//! sleeps, and also while it is stopped or quarantined. What an agent sees does not
//! change because a plugin is ill, its calls are told why, and no other plugin comes
//! into its names meanwhile.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    num::NonZeroU32,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{FutureExt, future::BoxFuture};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use jsonschema::Validator;
use plugbay_protocol::{Budget, Failure, Retry, contract::Provide};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use crate::{
    body,
    call::{Call, Caller, Output, Terms},
    errand::{Budgets, Errand, What, failed},
    error::{CallError, Ran, Rule},
    fact::{Fact, Facts, Seen},
    gate::{self, House, Place, Refusal, Snapshot},
    keeper::Order,
    life::Life,
    local::LocalTool,
    manifest::{names, schema_holds},
    plan::{Approval, Approve, Effect, Limits, PluginPlan, Timeouts, ToolPlan},
    reason::{Private, Reason},
    service::{Origin, Service, Services, TOOL_CALL, tool_call},
    status::{Condition, State},
    stderr::{LastWords, last_words},
    stream::{Input, Opened, Outlet, Reply, Request},
};

/// How many problems of one call's arguments are told.
const PROBLEMS_MAX: usize = 8;
/// How much of the last words goes into an error.
pub(crate) const LAST_WORDS_MAX: usize = 2 << 10;
/// Why a tool is not listed that `grant.tools` leaves out.
pub(crate) const NOT_GRANTED: &str = "the operator does not grant it";
/// How often a call that was refused unrun is sent to the next process.
const RESENDS_MAX: u32 = 3;

/// What every part of the supervisor knows of one plugin.
pub(crate) struct Cell {
    pub(crate) name: Arc<str>,
    pub(crate) plan: Arc<PluginPlan>,
    pub(crate) condition: watch::Sender<Arc<Condition>>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    pub(crate) house: House,
    /// The bounds that hold now. The plan has those that held at first.
    pub(crate) bounds: ArcSwap<Bounds>,
    /// What it provides, tools included; empty until it was up for the first time.
    pub(crate) provides: ArcSwap<Vec<Provide>>,
    pub(crate) tail: LastWords,
    /// Whether its keeper has an [`Order::HoldAgain`] that it has not heeded yet.
    pub(crate) holds_again: AtomicBool,
}

/// What an operator can change while a plugin runs.
pub(crate) struct Bounds {
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    rate: Option<DefaultDirectRateLimiter>,
}

impl Bounds {
    pub(crate) fn new(limits: Limits, timeouts: Timeouts) -> Self {
        let rate = limits.calls_per_minute.and_then(NonZeroU32::new);
        let rate = rate.map(|rate| RateLimiter::direct(Quota::per_minute(rate)));
        Self { limits, timeouts, rate }
    }

    /// Takes one call off the rate, or says how long until it allows one more.
    fn rate_wait(&self) -> Option<Duration> {
        let refused = self.rate.as_ref()?.check().err()?;
        Some(refused.wait_time_from(governor::clock::DefaultClock::default().now()))
    }

    /// That a result is not too large.
    pub(crate) fn check_result(&self, cell: &Cell, body: &[u8]) -> Result<(), CallError> {
        let max = self.limits.result_bytes;
        if body.len() <= max {
            return Ok(());
        }
        let why = format!("{} bytes, where at most {max} are allowed", body.len());
        Err(CallError::BadResult { plugin: Arc::clone(&cell.name), why, too_large: true })
    }

    /// Calls that may be running or waiting at once.
    pub(crate) fn inside_max(&self) -> usize {
        self.limits.concurrency + self.limits.queue
    }
}

impl Cell {
    pub(crate) fn last_words(&self) -> Private {
        last_words(&self.tail, LAST_WORDS_MAX)
    }

    /// A place for one more call.
    ///
    /// # Errors
    /// [`CallError::Busy`]: there is none.
    fn enter(&self, bounds: &Bounds) -> Result<Place, CallError> {
        self.house.enter(bounds.inside_max()).ok_or_else(|| busy(self, Refusal::Full))
    }

    /// A call that ends because its plugin is gone.
    pub(crate) fn lost(&self, reason: Arc<Reason>, last_words: Private, ran: Ran) -> CallError {
        CallError::Lost { plugin: Arc::clone(&self.name), reason, last_words, ran }
    }
}

/// Whose tool an entry is.
enum Source {
    Plugin(Arc<Cell>),
    Local(LocalTool),
}

/// One tool, as listed.
struct Entry {
    name: Arc<str>,
    tool: ToolPlan,
    source: Source,
    arguments: Validator,
    result: Option<Validator>,
    /// What each call of it begins with; see [`body::opening`].
    opening: Vec<u8>,
    generation: u64,
}

impl Entry {
    fn owner(&self) -> Option<&Arc<Cell>> {
        match &self.source {
            Source::Plugin(cell) => Some(cell),
            Source::Local(_) => None,
        }
    }

    /// Whose it is, for a sentence.
    fn whose(&self) -> String {
        let plugin = |cell: &Arc<Cell>| format!("plugin {:?}", &*cell.name);
        self.owner().map_or_else(|| "a local tool".to_owned(), plugin)
    }

    fn approval(&self) -> Approval {
        match &self.source {
            Source::Plugin(cell) => cell.plan.approve.rule(self.tool.effect),
            Source::Local(local) => {
                local.approval.unwrap_or_else(|| Approve::default().rule(self.tool.effect))
            }
        }
    }
}

/// A tool as an agent loop sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// Its name; every model API accepts it.
    pub name: String,
    /// One or two sentences for the model.
    pub description: String,
    /// JSON Schema 2020-12 of the arguments.
    pub input_schema: Value,
    /// JSON Schema 2020-12 of `data` in the result, if promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// What a call does to the world.
    #[serde(with = "effect_word")]
    pub effect: Effect,
    /// Whether a call that may have run may be sent again.
    pub idempotent: bool,
    /// The state of its plugin; a local tool is always active.
    pub state: State,
    /// The plugin it belongs to; `None` for a local tool.
    pub plugin: Option<String>,
    /// Increases whenever the tool under this name changes.
    pub generation: u64,
}

/// Something else that a plugin provides, as listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryInfo {
    /// Its plugin.
    pub plugin: String,
    /// The contract, such as `model` or `memory`.
    pub kind: String,
    /// Its name, unique within plugin and kind.
    pub name: String,
    /// The state of its plugin.
    pub state: State,
}

mod effect_word {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Effect;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub(super) fn serialize<S: Serializer>(effect: &Effect, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(effect.as_str())
    }

    /// Unknown means the worst, as everywhere.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Effect, D::Error> {
        let word = String::deserialize(from)?;
        let known = [Effect::Read, Effect::Draft, Effect::Write];
        Ok(known.into_iter().find(|it| it.as_str() == word).unwrap_or_default())
    }
}

/// A question that needs a yes before a call goes ahead.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who wants to call.
    pub caller: String,
    /// Which tool.
    pub tool: String,
    /// What the tool does to the world.
    pub effect: Effect,
    /// With which arguments.
    pub args: Value,
}

/// Answers questions. An approver that panics or is dropped says no.
pub type Approver = Arc<dyn Fn(Question) -> BoxFuture<'static, bool> + Send + Sync>;

/// A name that is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be added: {why}")]
pub struct Refused {
    /// The name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// What a call is of, as far as the gate asks.
struct Wanted<'a> {
    name: &'a str,
    /// Its plugin; a local tool has none.
    cell: Option<&'a Cell>,
    effect: Effect,
    approval: Approval,
}

/// Everything that wants a name.
#[derive(Default)]
struct Table {
    /// All who want it, in order of arrival.
    wanted: BTreeMap<Arc<str>, Vec<Arc<Entry>>>,
    /// What plugins have and may not list, with the reason.
    withheld: BTreeMap<Arc<str>, Vec<Withheld>>,
}

/// Why one plugin does not get a name.
#[derive(Clone)]
struct Withheld {
    cell: Arc<Cell>,
    why: String,
}

impl Table {
    /// The entry under this name: a local tool's, or the one plugin's that wants it.
    fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        Self::winner(self.wanted.get(name)?)
    }

    fn winner(claims: &[Arc<Entry>]) -> Option<&Arc<Entry>> {
        let local = claims.iter().find(|entry| entry.owner().is_none());
        local.or(match claims {
            [only] => Some(only),
            _ => None,
        })
    }

    /// Why there is nothing under this name, if a plugin has a tool for it.
    fn why_not(&self, name: &str) -> Option<String> {
        if let Some(claims) = self.wanted.get(name) {
            let who: Vec<String> = claims.iter().map(|it| it.whose()).collect();
            return Some(format!("{} want this name, so neither gets it", who.join(" and ")));
        }
        let all = self.withheld.get(name)?.iter();
        let one =
            |it: &Withheld| format!("plugin {:?} may not offer it: {}", &*it.cell.name, it.why);
        Some(all.map(one).collect::<Vec<_>>().join("; "))
    }

    fn listed(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.wanted.values().filter_map(|claims| Self::winner(claims))
    }
}

/// A handle on the registry. Cheap to clone, lock-free to read.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    table: ArcSwap<Table>,
    /// Held while the table is rebuilt.
    changing: Mutex<()>,
    generation: AtomicU64,
    calls: AtomicU64,
    facts: Facts,
    approver: Option<Approver>,
    approval_wait: Duration,
    /// What plugins may call here.
    services: Services,
    /// All plugins by name, once they are known.
    plugins: OnceLock<BTreeMap<Arc<str>, Arc<Cell>>>,
}

/// A registry that does not keep it alive: what it holds may refer to it.
#[derive(Clone)]
pub(crate) struct WeakRegistry(Weak<Inner>);

impl WeakRegistry {
    pub(crate) fn upgrade(&self) -> Option<Registry> {
        self.0.upgrade().map(Registry)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.0.table.load().listed().map(|entry| entry.name.clone()).collect::<Vec<_>>();
        f.debug_tuple("Registry").field(&names).finish()
    }
}

impl Registry {
    pub(crate) fn new(
        facts: Facts,
        approver: Option<Approver>,
        approval_wait: Duration,
        mut services: HashMap<String, Service>,
    ) -> Self {
        Self(Arc::new_cyclic(|this| {
            let tools = || tool_call(WeakRegistry(Weak::clone(this)));
            services.entry(TOOL_CALL.to_owned()).or_insert_with(tools);
            Inner {
                table: ArcSwap::default(),
                changing: Mutex::new(()),
                generation: AtomicU64::new(1),
                calls: AtomicU64::new(1),
                facts,
                approver,
                approval_wait,
                services: Services::from(services),
                plugins: OnceLock::new(),
            }
        }))
    }

    pub(crate) fn services(&self) -> Services {
        self.0.services.clone()
    }

    /// Says which plugins there are. Once, before anybody calls.
    pub(crate) fn set_plugins<'a>(&self, cells: impl Iterator<Item = &'a Arc<Cell>>) {
        let plugins = cells.map(|cell| (Arc::clone(&cell.name), Arc::clone(cell)));
        self.0.plugins.get_or_init(|| plugins.collect());
    }

    /// Has every plugin that runs held to its limits once more.
    pub(crate) fn hold_plugins(&self) {
        for cell in self.0.plugins.get().into_iter().flat_map(BTreeMap::values) {
            // One that waits is enough.
            if !cell.holds_again.swap(true, Ordering::AcqRel) {
                // Fails only if its keeper is gone.
                cell.orders.send(Order::HoldAgain).ok();
            }
        }
    }

    /// The tools that this caller may use, in order of their names.
    pub fn tools(&self, caller: &Caller) -> Vec<ToolInfo> {
        let table = self.0.table.load();
        let allowed = table.listed().filter(|entry| caller.may_use(&entry.name));
        allowed.map(|entry| Self::info(entry)).collect()
    }

    /// One tool, if it is listed.
    pub fn tool(&self, name: &str) -> Option<ToolInfo> {
        self.0.table.load().get(name).map(|entry| Self::info(entry))
    }

    /// One tool that this caller may use, or what a call of it would be told.
    ///
    /// # Errors
    /// [`CallError::NotFound`], which also says why a tool of this name is withheld, or
    /// [`CallError::Denied`].
    pub fn find(&self, caller: &Caller, name: &str) -> Result<ToolInfo, CallError> {
        let entry = self.0.table.load().get(name).cloned();
        let Some(entry) = entry else { return Err(self.not_found(caller, name.to_owned())) };
        if !caller.may_use(name) {
            return Err(denied(caller, name));
        }
        Ok(Self::info(&entry))
    }

    fn info(entry: &Entry) -> ToolInfo {
        let tool = &entry.tool;
        ToolInfo {
            name: entry.name.to_string(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
            output_schema: tool.output_schema.clone(),
            effect: tool.effect,
            idempotent: tool.idempotent,
            state: entry.owner().map_or(State::Active, |cell| cell.condition.borrow().state()),
            plugin: entry.owner().map(|cell| cell.name.to_string()),
            generation: entry.generation,
        }
    }

    /// Adds a local tool. Its name is its own from now on.
    ///
    /// # Errors
    /// The name is taken or no portable name, or the schema is no JSON Schema.
    pub fn add(&self, local: LocalTool) -> Result<(), Refused> {
        let name: Arc<str> = local.tool.name.as_str().into();
        let refused = |why| Refused { name: name.to_string(), why };
        let tool = local.tool.clone();
        let entry = self.entry(Arc::clone(&name), tool, Source::Local(local)).map_err(refused)?;
        self.change(|table| {
            if let Some(other) = table.get(&name) {
                return Err(refused(format!("{} has that name", other.whose())));
            }
            table.wanted.entry(Arc::clone(&name)).or_default().push(Arc::new(entry));
            Ok(())
        })
    }

    /// Puts a plugin's tools in the place of those it had. The `unlisted` are those that
    /// it has besides, by its own names, and why they are not listed.
    pub(crate) fn set_tools(
        &self,
        cell: &Arc<Cell>,
        tools: &[ToolPlan],
        unlisted: &[(&str, &'static str)],
    ) {
        let full = |name: &str| -> Arc<str> {
            match &cell.plan.prefix {
                Some(prefix) => format!("{prefix}_{name}").into(),
                None => name.into(),
            }
        };
        let mut entries = Vec::new();
        let mut withheld: Vec<(Arc<str>, String)> =
            unlisted.iter().map(|(name, why)| (full(name), (*why).to_owned())).collect();
        for tool in tools {
            let name = full(&tool.name);
            // A plugin that comes back usually brings the same tools; compiling their
            // schemas takes longer than shaking hands.
            if let Some(same) = self.claim(&name, cell).filter(|entry| entry.tool == *tool) {
                entries.push(same);
                continue;
            }
            match self.entry(Arc::clone(&name), tool.clone(), Source::Plugin(Arc::clone(cell))) {
                Ok(entry) => entries.push(Arc::new(entry)),
                Err(why) => {
                    self.withhold(&name, cell, why.clone());
                    withheld.push((name, why));
                }
            }
        }
        self.change(|table| {
            let old = std::mem::take(&mut table.wanted);
            for (name, mut claims) in old {
                claims.retain(|it| !it.owner().is_some_and(|owner| Arc::ptr_eq(owner, cell)));
                if !claims.is_empty() {
                    table.wanted.insert(name, claims);
                }
            }
            table.withheld.retain(|_, all| {
                all.retain(|it| !Arc::ptr_eq(&it.cell, cell));
                !all.is_empty()
            });
            for (name, why) in withheld {
                let cell = Arc::clone(cell);
                table.withheld.entry(name).or_default().push(Withheld { cell, why });
            }
            for entry in entries {
                let claims = table.wanted.entry(Arc::clone(&entry.name)).or_default();
                if let Some(other) = claims.first() {
                    let why = format!("{} wants the same name", other.whose());
                    self.withhold(&entry.name, cell, why);
                }
                claims.push(entry);
            }
        });
    }

    /// The entry that this plugin has under a name, whether it is listed or not.
    fn claim(&self, name: &str, cell: &Arc<Cell>) -> Option<Arc<Entry>> {
        let table = self.0.table.load();
        let mut claims = table.wanted.get(name)?.iter();
        claims.find(|it| it.owner().is_some_and(|owner| Arc::ptr_eq(owner, cell))).cloned()
    }

    fn entry(&self, name: Arc<str>, tool: ToolPlan, source: Source) -> Result<Entry, String> {
        names::tool(&name).map_err(|why| format!("it is no tool's name: {why}"))?;
        let arguments = compile(&tool.input_schema, true)?;
        let result = tool.output_schema.as_ref().map(|it| compile(it, false)).transpose()?;
        // The same tool again keeps its generation, so that a prompt cache holds.
        let old = self.0.table.load();
        let same = old.get(&name).filter(|it| it.tool == tool).map(|it| it.generation);
        let generation = same.unwrap_or_else(|| self.0.generation.fetch_add(1, Ordering::Relaxed));
        let opening = body::opening(&tool.name);
        Ok(Entry { name, tool, source, arguments, result, opening, generation })
    }

    fn withhold(&self, name: &str, cell: &Cell, why: String) {
        let plugin = Arc::clone(&cell.name);
        self.0.facts.say(Fact::Withheld { tool: name.to_owned(), plugin, why });
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Table) -> T) -> T {
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.table.load();
        let mut table = Table { wanted: now.wanted.clone(), withheld: now.withheld.clone() };
        let result = edit(&mut table);
        self.0.table.store(Arc::new(table));
        result
    }

    /// Calls a tool. Dropping the future cancels the call; the plugin keeps the
    /// slot until it has truly ended.
    ///
    /// # Errors
    /// [`CallError`] says what happened, whether the tool ran, and what to do next.
    pub async fn call(&self, caller: &Caller, mut call: Call) -> Result<Output, CallError> {
        let entry = self.0.table.load().get(&call.tool).cloned();
        let Some(entry) = entry else { return Err(self.not_found(caller, call.tool)) };
        let mut seen = self.seen(&entry.name, caller);
        let result = self.checked_call(&entry, caller, &mut call, &mut seen).await;
        seen.end(match &result {
            Ok(output) if output.is_error => Ok("tool_error"),
            Ok(_) => Ok("ok"),
            Err(error) => Err(error),
        });
        result
    }

    /// What plugins provide besides tools, of those that this caller may call, by plugin. A
    /// plugin that was never up, and whose manifest does not say it, provides nothing yet.
    pub fn entries(&self, caller: &Caller) -> Vec<EntryInfo> {
        let plugins = self.0.plugins.get().into_iter().flatten();
        let entries = plugins.flat_map(|(plugin, cell)| {
            let state = cell.condition.borrow().state();
            let provides = Arc::clone(&cell.provides.load());
            let others = provides.iter().filter(|it| it.kind != "tool");
            let info = |it: &Provide| EntryInfo {
                plugin: plugin.to_string(),
                kind: it.kind.clone(),
                name: it.name.clone(),
                state,
            };
            others.map(info).collect::<Vec<_>>()
        });
        entries.filter(|it| caller.may_use(&format!("{}/{}", it.plugin, it.kind))).collect()
    }

    /// Calls a method of any contract but `tool`, with streams each way. It returns once
    /// the call is on its way; dropping the [`Reply`] cancels it. A caller is allowed by
    /// `plugin/method`, as in `notes/memory.*`.
    ///
    /// # Errors
    /// [`CallError`]: it was not sent. Everything later is the reply's to tell.
    pub async fn request(&self, caller: &Caller, request: Request) -> Result<Reply, CallError> {
        let name = request.name();
        let mut seen = self.seen(&name.as_str().into(), caller);
        match self.checked_request(caller, &name, &request, &seen).await {
            Ok(opened) => Ok(Reply::new(opened, seen)),
            Err(error) => {
                seen.end(Err(&error));
                Err(error)
            }
        }
    }

    async fn checked_request(
        &self,
        caller: &Caller,
        name: &str,
        request: &Request,
        seen: &Seen,
    ) -> Result<Opened, CallError> {
        // Who may not call it learns not even whether it is there.
        if !caller.may_use(name) {
            return Err(denied(caller, name));
        }
        let not_found = |withheld: Option<&str>, near: Option<&str>| CallError::NotFound {
            name: name.to_owned(),
            near: near.map(str::to_owned),
            withheld: withheld.map(str::to_owned),
        };
        // Tools have rules of their own, and a plugin's life is the supervisor's.
        if request.method.starts_with("tool.") || request.method.starts_with("plugin.") {
            return Err(not_found(Some("tools and the lifecycle are not called like this"), None));
        }
        let plugins = self.0.plugins.get();
        let cell = plugins.and_then(|all| all.get(request.plugin.as_str())).ok_or_else(|| {
            let names = plugins.into_iter().flat_map(|all| all.keys().map(|it| &**it));
            not_found(None, names::near(&request.plugin, names))
        })?;
        // Approval is about the effects of tools; who may call this is all that is asked of others.
        let (effect, approval) = (Effect::Read, Approval::Allow);
        self.admit(&Wanted { name, cell: Some(cell), effect, approval }, caller, Vec::new)?;
        let bounds = cell.bounds.load_full();
        let place = cell.enter(&bounds)?;
        let (outlet, items) = Outlet::new();
        let budgets = Budgets::new(bounds, &request.terms, seen.began);
        let origin = origin(cell, caller, &request.terms);
        let body = || request.body.clone();
        let what = What {
            name,
            method: &request.method,
            body: &body,
            terms: &request.terms,
            outlet: Some(&outlet),
            input: request.input,
            origin: origin.as_ref(),
        };
        let errand = Errand { cell, what, budgets };
        let (run, pending) = errand.send(place, false).await?;
        let input = request.input.then(|| Input::new(&pending, &outlet));
        let (cell, budgets) = (Arc::clone(cell), errand.budgets);
        Ok(Opened { cell, budgets, run, pending, items, input })
    }

    fn seen(&self, what: &Arc<str>, caller: &Caller) -> Seen {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
        Seen::begin(&self.0.facts, call, what, &caller.name)
    }

    fn not_found(&self, caller: &Caller, name: String) -> CallError {
        let table = self.0.table.load();
        let known = table.listed().map(|entry| &*entry.name).filter(|name| caller.may_use(name));
        let near = names::near(&name, known).map(str::to_owned);
        // Who may not use it is not told that it is there.
        let withheld = caller.may_use(&name).then(|| table.why_not(&name)).flatten();
        CallError::NotFound { name, near, withheld }
    }

    async fn checked_call(
        &self,
        entry: &Entry,
        caller: &Caller,
        call: &mut Call,
        seen: &mut Seen,
    ) -> Result<Output, CallError> {
        let approval = entry.approval();
        let wanted = Wanted {
            name: &entry.name,
            cell: entry.owner().map(|cell| &**cell),
            effect: entry.tool.effect,
            approval,
        };
        self.admit(&wanted, caller, || problems(&entry.arguments, &call.args))?;
        let mut began = seen.began;
        if approval == Approval::Ask && !caller.trusted {
            self.ask(entry, caller, call).await?;
            // Thinking was not the tool's work.
            began = Instant::now();
        }
        match &entry.source {
            Source::Local(local) => {
                seen.started();
                run_local(local, call).await
            }
            Source::Plugin(cell) => {
                let bounds = cell.bounds.load_full();
                let place = cell.enter(&bounds)?;
                let budgets = Budgets::new(bounds, &call.terms, began);
                call_tool(entry, cell, caller, call, budgets, place, seen).await
            }
        }
    }

    /// Decides whether a call may start.
    ///
    /// # Errors
    /// Why not. No process was woken.
    fn admit(
        &self,
        wanted: &Wanted<'_>,
        caller: &Caller,
        problems: impl FnOnce() -> Vec<String>,
    ) -> Result<(), CallError> {
        let cell = wanted.cell;
        // Only a refusal needs more of it than this.
        let asleep = cell.and_then(|cell| {
            let condition = cell.condition.borrow();
            (!condition.wakes()).then(|| Arc::clone(&condition))
        });
        let bounds = cell.map(|cell| cell.bounds.load());
        let snapshot = Snapshot {
            caller: &caller.name,
            allowed: caller.may_use(wanted.name),
            effect: wanted.effect,
            approval: wanted.approval,
            can_ask: caller.trusted || self.0.approver.is_some(),
            wakes: asleep.is_none(),
            inside: cell.map_or(0, |cell| cell.house.inside()),
            inside_max: bounds.as_ref().map_or(usize::MAX, |it| it.inside_max()),
            rate: None,
        };
        // The rate is asked only once the rest is well: a refused call costs nothing of it.
        let allowed = gate::admit(snapshot, Vec::new).and_then(|()| {
            let wait = bounds.as_ref().and_then(|it| it.rate_wait());
            gate::admit(Snapshot { rate: wait, ..snapshot }, problems)
        });
        let name = || wanted.name.to_owned();
        allowed.map_err(|refusal| match (refusal, cell, asleep) {
            (Refusal::Denied(rule), ..) => CallError::Denied { tool: name(), rule },
            (Refusal::Inactive, Some(cell), Some(condition)) => inactive(cell, &condition),
            (Refusal::BadArguments(problems), ..) => {
                CallError::BadArguments { tool: name(), problems }
            }
            (refusal, Some(cell), _) => busy(cell, refusal),
            // A local tool is always active and never full.
            (_, None, _) => CallError::NotFound { name: name(), near: None, withheld: None },
        })
    }

    async fn ask(&self, entry: &Entry, caller: &Caller, call: &Call) -> Result<(), CallError> {
        let effect = entry.tool.effect;
        let tool = entry.name.to_string();
        let question = Question {
            caller: caller.name.to_string(),
            tool: tool.clone(),
            effect,
            args: call.args.clone(),
        };
        let approved = match &self.0.approver {
            Some(approver) => {
                let asked = AssertUnwindSafe(async { approver(question).await });
                // Fails closed: a panic is a no, and so is an answer that does not come.
                let answer = timeout(self.0.approval_wait, asked.catch_unwind()).await;
                matches!(answer, Ok(Ok(true)))
            }
            None => false,
        };
        let denied = CallError::Denied { tool, rule: Rule::NotApproved { effect } };
        if approved { Ok(()) } else { Err(denied) }
    }
}

fn denied(caller: &Caller, name: &str) -> CallError {
    let rule = Rule::Caller { caller: caller.name.to_string() };
    CallError::Denied { tool: name.to_owned(), rule }
}

/// Compiles a schema that holds: JSON Schema 2020-12, nothing that would have to
/// be fetched, and for arguments an object at the root.
fn compile(schema: &Value, object_root: bool) -> Result<Validator, String> {
    schema_holds(schema, object_root).map_err(|(why, help)| format!("{why}; {help}"))?;
    jsonschema::draft202012::new(schema).map_err(|error| format!("its schema: {error}"))
}

fn problems(arguments: &Validator, args: &Value) -> Vec<String> {
    if arguments.is_valid(args) {
        return Vec::new();
    }
    let errors = arguments.iter_errors(args).take(PROBLEMS_MAX);
    let line = |error: jsonschema::ValidationError<'_>| {
        let at = error.instance_path().to_string();
        // The caller's own value may be long; the place and the rule are what help.
        let mut text = error.to_string();
        if 200 < text.len() {
            text = error.masked().to_string();
        }
        if at.is_empty() { text } else { format!("{at}: {text}") }
    };
    errors.map(line).collect()
}

pub(crate) fn inactive(cell: &Cell, condition: &Condition) -> CallError {
    CallError::Inactive {
        plugin: Arc::clone(&cell.name),
        state: condition.state(),
        reason: Arc::clone(&condition.reason),
        after: match condition.life {
            Life::Backoff => condition.until.map(|at| at.saturating_duration_since(Instant::now())),
            // On its way to a backoff of at least the first wait.
            Life::Stopping(crate::life::Then::Backoff)
            | Life::Draining(crate::life::Then::Backoff) => Some(cell.plan.restart.first),
            _ => None,
        },
    }
}

pub(crate) fn busy(cell: &Cell, refusal: Refusal) -> CallError {
    let bounds = cell.bounds.load();
    let limits = &bounds.limits;
    let (why, after) = match refusal {
        Refusal::Rate(wait) => (
            format!("{} calls a minute are allowed", limits.calls_per_minute.unwrap_or_default()),
            wait,
        ),
        _ => (
            format!(
                "{} calls run or may run at once and {} may wait",
                limits.concurrency, limits.queue
            ),
            Duration::from_secs(1),
        ),
    };
    CallError::Busy { plugin: Arc::clone(&cell.name), why, after }
}

async fn run_local(local: &LocalTool, call: &mut Call) -> Result<Output, CallError> {
    let plugin: Arc<str> = local.tool.name.as_str().into();
    let budget = call.terms.deadline.unwrap_or(crate::plan::Timeouts::default().call);
    let run = AssertUnwindSafe(async { (local.run)(call.args.take()).await }).catch_unwind();
    match tokio::time::timeout(budget, run).await {
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(text))) => Ok(Output { is_error: true, ..Output::text_of(text) }),
        Ok(Err(_panic)) => Err(CallError::Failed {
            plugin,
            fault: plugbay_protocol::Fault::new(plugbay_protocol::Code::Internal),
        }),
        Err(_elapsed) => Err(CallError::TimedOut {
            plugin,
            budget: Budget::Deadline,
            waited: budget,
            ran: Ran::Unknown,
        }),
    }
}

/// On whose behalf a plugin is called, if it may call back.
fn origin(cell: &Cell, caller: &Caller, terms: &Terms) -> Option<Arc<Origin>> {
    let new = || Arc::new(Origin { caller: Arc::clone(&caller.name), ancestors: Vec::new() });
    terms.origin.clone().or_else(|| (!cell.plan.grant_scopes.is_empty()).then(new))
}

/// Sends a call, waits for the answer and reads it. One that was refused unrun by a
/// process that is going down is sent to the next.
async fn call_tool(
    entry: &Entry,
    cell: &Arc<Cell>,
    caller: &Caller,
    call: &Call,
    budgets: Budgets,
    mut place: Place,
    seen: &mut Seen,
) -> Result<Output, CallError> {
    let body = || body::call(&entry.opening, &call.args);
    let origin = origin(cell, caller, &call.terms);
    let what = What {
        name: &entry.name,
        method: "tool.call",
        body: &body,
        terms: &call.terms,
        outlet: None,
        input: false,
        origin: origin.as_ref(),
    };
    let errand = Errand { cell, what, budgets };
    let mut resends = 0;
    loop {
        let (run, pending) = errand.send(place, 0 < resends).await?;
        if resends == 0 {
            seen.started();
        }
        match pending.await {
            Ok(body) => return read(entry, cell, &errand.budgets.bounds, &body),
            // It crossed a drain on the wire and did not start: the next process takes it.
            Err(Failure::Fault(fault))
                if fault.retry == Retry::Safe
                    && resends < RESENDS_MAX
                    && matches!(fault.reason.as_deref(), Some("pb.draining" | "pb.inactive")) =>
            {
                resends += 1;
                place = cell.enter(&errand.budgets.bounds)?;
                // Its state is about to change; without this we would ask again at once.
                tokio::time::sleep(Duration::from_millis(fault.after.unwrap_or(10))).await;
            }
            Err(failure) => return Err(failed(cell, &errand.budgets, run, failure).await),
        }
    }
}

fn read(entry: &Entry, cell: &Cell, bounds: &Bounds, body: &[u8]) -> Result<Output, CallError> {
    bounds.check_result(cell, body)?;
    let bad = |why| CallError::BadResult { plugin: Arc::clone(&cell.name), why, too_large: false };
    let output = body::result(body).map_err(bad)?;
    if let (Some(promised), false) = (&entry.result, output.is_error)
        && !output.data.as_ref().is_some_and(|data| promised.is_valid(data))
    {
        return Err(bad("its data does not fit the tool's output schema".into()));
    }
    Ok(output)
}
