//! The registry: what an agent loop sees and calls.
//!
//! Reads take an immutable snapshot; changes swap it whole. Names are protected:
//! a local tool's name cannot be taken, and where two plugins want one name,
//! neither gets it. Entries stay listed whatever their plugin's state: while it
//! sleeps, and also while it is stopped or quarantined. What an agent sees does not
//! change because a plugin is ill, its calls are told why, and no other plugin comes
//! into its names meanwhile.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroU32,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{FutureExt, future::BoxFuture};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use jsonschema::Validator;
use plugbay_protocol::{Budget, Failure, Features, Outgoing, Retry};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    body,
    call::{Call, Caller, Output},
    error::{CallError, Ran, Rule, presentable},
    fact::{Fact, Facts},
    gate::{self, House, Place, Refusal, Snapshot},
    keeper::Order,
    life::Life,
    link::{Link, NotSent, Pending, Waiter},
    local::LocalTool,
    manifest::{names, schema_holds},
    plan::{Approval, Approve, Effect, Limits, PluginPlan, Timeouts, ToolPlan},
    reason::Private,
    status::{Condition, State, told},
    stderr::{LastWords, last_words},
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
    pub(crate) tail: LastWords,
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

    /// Calls that may be running or waiting at once.
    fn inside_max(&self) -> usize {
        self.limits.concurrency + self.limits.queue
    }
}

impl Cell {
    pub(crate) fn last_words(&self) -> Private {
        last_words(&self.tail, LAST_WORDS_MAX)
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
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.0.table.load().listed().map(|entry| entry.name.clone()).collect::<Vec<_>>();
        f.debug_tuple("Registry").field(&names).finish()
    }
}

impl Registry {
    pub(crate) fn new(facts: Facts, approver: Option<Approver>, approval_wait: Duration) -> Self {
        Self(Arc::new(Inner {
            table: ArcSwap::default(),
            changing: Mutex::new(()),
            generation: AtomicU64::new(1),
            calls: AtomicU64::new(1),
            facts,
            approver,
            approval_wait,
        }))
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
            let rule = Rule::Caller { caller: caller.name.to_string() };
            return Err(CallError::Denied { tool: name.to_owned(), rule });
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
        let mut seen = Seen::start(&self.0, &entry.name, caller);
        let result = self.checked_call(&entry, caller, &mut call, &mut seen).await;
        seen.end(&result);
        result
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
        seen: &mut Seen<'_>,
    ) -> Result<Output, CallError> {
        let approval = entry.approval();
        self.admit(entry, caller, call, approval)?;
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
                let full = || busy(cell, Refusal::Full);
                let place = cell.house.enter(bounds.inside_max()).ok_or_else(full)?;
                let errand = Errand { entry, cell, bounds, call, began };
                errand.run(place, seen).await
            }
        }
    }

    fn admit(
        &self,
        entry: &Entry,
        caller: &Caller,
        call: &Call,
        approval: Approval,
    ) -> Result<(), CallError> {
        let cell = entry.owner();
        // Only a refusal needs more of it than this.
        let asleep = cell.and_then(|cell| {
            let condition = cell.condition.borrow();
            (!condition.wakes()).then(|| Arc::clone(&condition))
        });
        let bounds = cell.map(|cell| cell.bounds.load());
        let snapshot = Snapshot {
            caller: &caller.name,
            allowed: caller.may_use(&entry.name),
            effect: entry.tool.effect,
            approval,
            can_ask: caller.trusted || self.0.approver.is_some(),
            wakes: asleep.is_none(),
            inside: cell.map_or(0, |cell| cell.house.inside()),
            inside_max: bounds.as_ref().map_or(usize::MAX, |it| it.inside_max()),
            rate: None,
        };
        let problems = || problems(&entry.arguments, &call.args);
        // The rate is asked only once the rest is well: a refused call costs nothing of it.
        let rate = bounds.as_ref().and_then(|it| it.rate.as_ref());
        let allowed = gate::admit(snapshot, Vec::new).and_then(|()| {
            let wait = rate.and_then(|rate| {
                let clock = governor::clock::DefaultClock::default();
                rate.check().err().map(|not_until| not_until.wait_time_from(clock.now()))
            });
            gate::admit(Snapshot { rate: wait, ..snapshot }, problems)
        });
        allowed.map_err(|refusal| match (refusal, cell, asleep) {
            (Refusal::Denied(rule), ..) => CallError::Denied { tool: entry.name.to_string(), rule },
            (Refusal::Inactive, Some(cell), Some(condition)) => inactive(cell, &condition),
            (Refusal::BadArguments(problems), ..) => {
                CallError::BadArguments { tool: entry.name.to_string(), problems }
            }
            (refusal, Some(cell), _) => busy(cell, refusal),
            // A local tool is always active and never full.
            (_, None, _) => {
                CallError::NotFound { name: entry.name.to_string(), near: None, withheld: None }
            }
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

fn inactive(cell: &Cell, condition: &Condition) -> CallError {
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

fn busy(cell: &Cell, refusal: Refusal) -> CallError {
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
    let budget = call.deadline.unwrap_or(crate::plan::Timeouts::default().call);
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

/// A call that is on the wire, and the start of the process that has it.
type Sent = (u64, Pending);

/// One call on its way to a plugin.
struct Errand<'a> {
    entry: &'a Entry,
    cell: &'a Arc<Cell>,
    /// Those that held when it began.
    bounds: Arc<Bounds>,
    call: &'a Call,
    began: Instant,
}

impl Errand<'_> {
    /// Wakes the plugin if need be, waits for a slot, sends, and waits for the answer.
    async fn run(self, place: Place, seen: &mut Seen<'_>) -> Result<Output, CallError> {
        let total = self.call.deadline.unwrap_or(self.bounds.timeouts.call);
        let until = self.began + total;
        let mut place = Some(place);
        let mut resends = 0;
        loop {
            let sent = match self.send_now(&mut place, until, resends) {
                Some(sent) => sent,
                None => timeout_at(until, self.send(&mut place, until))
                    .await
                    .unwrap_or_else(|_| Err(self.timed_out(Budget::Deadline, total, Ran::No))),
            };
            let (run, pending) = sent?;
            if resends == 0 {
                seen.started();
            }
            let answer = pending.await;
            match answer {
                Ok(body) => return self.read(&body),
                Err(Failure::Expired { budget, ms, sent }) => {
                    let ran = if sent { Ran::Unknown } else { Ran::No };
                    let (budget, waited) = self.spent(budget, Duration::from_millis(ms), total);
                    return Err(self.timed_out(budget, waited, ran));
                }
                Err(Failure::Lost { sent }) => return Err(self.lost(run, sent).await),
                // It crossed a drain on the wire and did not start: the next process takes it.
                Err(Failure::Fault(fault))
                    if fault.retry == Retry::Safe
                        && resends < RESENDS_MAX
                        && matches!(
                            fault.reason.as_deref(),
                            Some("pb.draining" | "pb.inactive")
                        ) =>
                {
                    resends += 1;
                    let full = || busy(self.cell, Refusal::Full);
                    let max = self.bounds.inside_max();
                    place = Some(self.cell.house.enter(max).ok_or_else(full)?);
                    // Its state is about to change; without this we would ask again at once.
                    tokio::time::sleep(Duration::from_millis(fault.after.unwrap_or(10))).await;
                }
                Err(Failure::Fault(fault)) => {
                    let fault = presentable(fault);
                    return Err(CallError::Failed { plugin: self.plugin(), fault });
                }
            }
        }
    }

    fn plugin(&self) -> Arc<str> {
        Arc::clone(&self.cell.name)
    }

    fn timed_out(&self, budget: Budget, waited: Duration, ran: Ran) -> CallError {
        CallError::TimedOut { plugin: self.plugin(), budget, waited, ran }
    }

    /// Sends the call if the plugin is up and has a slot free: the usual case, and
    /// one that needs no further look at the clock and no waiting.
    fn send_now(
        &self,
        place: &mut Option<Place>,
        until: Instant,
        resends: u32,
    ) -> Option<Result<Sent, CallError>> {
        let now = self.cell.condition.borrow();
        let link = now.link.as_ref().filter(|_| now.life == Life::Active && resends == 0)?;
        let permit = link.slot_now()?;
        self.send_on(&now, link, permit, place, (self.began, until))
    }

    /// Sends the call to the process that is up, waking one if none is.
    async fn send(&self, place: &mut Option<Place>, until: Instant) -> Result<Sent, CallError> {
        let mut condition = self.cell.condition.subscribe();
        // A start that fails after we came is ours to report, an old failure is not.
        let mut waited = false;
        let before = condition.borrow().before();
        loop {
            let now = Arc::clone(&condition.borrow_and_update());
            if now.is_dead_since(before) {
                return Err(self.not_started(&now));
            }
            if let (Life::Active, Some(link)) = (now.life, &now.link)
                && let Some(permit) = link.slot().await
            {
                let span = (Instant::now(), until);
                if let Some(sent) = self.send_on(&now, link, permit, place, span) {
                    return sent;
                }
            } else if !now.wakes() {
                return Err(match waited {
                    // It is going down, and why is not known yet.
                    true if now.is_dying() => self.lost(now.starts, false).await,
                    true => self.not_started(&now),
                    false => inactive(self.cell, &now),
                });
            }
            // Said in every state that may wait: a dormant plugin starts, one that is
            // going to sleep starts again. Fails only if the keeper is gone.
            let wanted = now.dies() || self.cell.orders.send(Order::Want).is_ok();
            if !wanted || condition.changed().await.is_err() {
                // The keeper's last word came before it went.
                let last = Arc::clone(&condition.borrow());
                return Err(inactive(self.cell, &last));
            }
            waited = true;
        }
    }

    /// Sends the call on one connection; the span is from now until its deadline.
    /// `None` if the connection takes no more calls.
    fn send_on(
        &self,
        condition: &Condition,
        link: &Link,
        permit: OwnedSemaphorePermit,
        place: &mut Option<Place>,
        (now, until): (Instant, Instant),
    ) -> Option<Result<Sent, CallError>> {
        let left = until.saturating_duration_since(now);
        let (deadline, idle) = self.budgets(link.features(), left);
        let outgoing = Outgoing {
            method: "tool.call",
            deadline: Some(deadline),
            idle,
            body: body::call(&self.entry.opening, &self.call.args),
            ..Outgoing::default()
        };
        let waiter = Waiter {
            on_progress: self.call.on_progress.clone(),
            permit: Some(permit),
            place: place.take(),
        };
        match link.call(&outgoing, waiter, now) {
            Ok(pending) => Some(Ok((condition.starts, pending))),
            Err((NotSent::Closed, waiter)) => {
                *place = waiter.place;
                None
            }
            Err((NotSent::TooLarge { size, max }, _)) => {
                let why = format!("the call takes {size} bytes and the plugin accepts {max}");
                let tool = self.entry.name.to_string();
                Some(Err(CallError::BadArguments { tool, problems: vec![why] }))
            }
        }
    }

    /// The deadline and the silence budget for the head, in milliseconds from now.
    ///
    /// A plugin without `async` cannot report while it works, so for it silence is
    /// the whole call. \[R-TO-05\]
    fn budgets(&self, features: Features, left: Duration) -> (u64, Option<u64>) {
        let idle = self.call.idle.unwrap_or(self.bounds.timeouts.call_idle);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        match (features.contains(Features::ASYNC), self.call.deadline) {
            (true, _) if idle < left => (ms(left), Some(ms(idle))),
            (true, _) | (false, Some(_)) => (ms(left), None),
            (false, None) => (ms(left.min(idle)), None),
        }
    }

    /// Which budget was spent, and how large it was. What went out as the deadline to
    /// a plugin without `async` may have been the silence budget.
    fn spent(&self, budget: Budget, sent: Duration, total: Duration) -> (Budget, Duration) {
        let idle = self.call.idle.unwrap_or(self.bounds.timeouts.call_idle);
        match budget {
            Budget::Idle => (Budget::Idle, sent),
            Budget::Deadline if self.call.deadline.is_none() && sent == idle && idle < total => {
                (Budget::Idle, idle)
            }
            Budget::Deadline => (Budget::Deadline, total),
        }
    }

    fn not_started(&self, now: &Condition) -> CallError {
        CallError::Lost {
            plugin: self.plugin(),
            reason: Arc::clone(&now.reason),
            last_words: self.cell.last_words(),
            ran: Ran::No,
        }
    }

    /// The plugin died under the call. Its keeper is finding out why; that takes as
    /// long as the stop ladder, and we wait for a part of it.
    async fn lost(&self, run: u64, sent: bool) -> CallError {
        let mut condition = self.cell.condition.subscribe();
        let reason = match told(&mut condition, run).await {
            Some(now) => Arc::clone(&now.reason_of_end),
            None => Arc::clone(&self.cell.condition.borrow().reason),
        };
        CallError::Lost {
            plugin: self.plugin(),
            reason,
            last_words: self.cell.last_words(),
            ran: if sent { Ran::Unknown } else { Ran::No },
        }
    }

    fn read(&self, body: &[u8]) -> Result<Output, CallError> {
        let bad = |why, too_large| CallError::BadResult { plugin: self.plugin(), why, too_large };
        let max = self.bounds.limits.result_bytes;
        if max < body.len() {
            return Err(bad(
                format!("{} bytes, where at most {max} are allowed", body.len()),
                true,
            ));
        }
        let output = body::result(body).map_err(|why| bad(why, false))?;
        if let (Some(promised), false) = (&self.entry.result, output.is_error)
            && !output.data.as_ref().is_some_and(|data| promised.is_valid(data))
        {
            return Err(bad("its data does not fit the tool's output schema".into(), false));
        }
        Ok(output)
    }
}

/// Tells the facts of one call: started, and then exactly one of ended and dropped.
struct Seen<'a> {
    registry: &'a Inner,
    call: u64,
    tool: &'a Arc<str>,
    caller: &'a Caller,
    began: Instant,
    heard: bool,
    ended: bool,
}

impl<'a> Seen<'a> {
    fn start(registry: &'a Inner, tool: &'a Arc<str>, caller: &'a Caller) -> Self {
        let call = registry.calls.fetch_add(1, Ordering::Relaxed);
        let heard = registry.facts.heard();
        Self { registry, call, tool, caller, began: Instant::now(), heard, ended: false }
    }

    fn started(&self) {
        if self.heard {
            let (tool, caller) = (Arc::clone(self.tool), Arc::clone(&self.caller.name));
            self.registry.facts.say(Fact::CallStarted { call: self.call, tool, caller });
        }
    }

    fn end(&mut self, result: &Result<Output, CallError>) {
        self.ended = true;
        if !self.heard {
            return;
        }
        let (outcome, ran) = match result {
            Ok(output) if output.is_error => ("tool_error", Ran::Yes),
            Ok(_) => ("ok", Ran::Yes),
            Err(error) => (error.code(), error.ran()),
        };
        self.registry.facts.say(Fact::CallEnded {
            call: self.call,
            tool: Arc::clone(self.tool),
            caller: Arc::clone(&self.caller.name),
            outcome,
            ran,
            took: self.began.elapsed(),
        });
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        if self.heard && !self.ended {
            let tool = Arc::clone(self.tool);
            self.registry.facts.say(Fact::CallDropped { call: self.call, tool });
        }
    }
}
