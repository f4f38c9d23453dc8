//! A supervisor under test, with everything it says written down.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use plugbay_supervisor::{
    Call, CallError, Caller, Event, Fact, Output, Ran, Reason, Registry, RetryAdvice, State,
    Supervisor,
};
use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::world::patience;

/// Seconds, longer than anything takes on a busy machine; it only turns a hang into a failure.
const HANGS: Duration = Duration::from_secs(60);

/// Awaits what must come.
pub(crate) async fn within<T>(what: &str, it: impl Future<Output = T>) -> T {
    let hangs = patience(HANGS);
    match timeout(hangs, it).await {
        Ok(value) => value,
        Err(_) => panic!("waited {hangs:?} in vain for {what}"),
    }
}

/// Waits until something holds that no event tells.
pub(crate) async fn holds(what: &str, mut it: impl FnMut() -> bool) {
    within(what, async {
        while !it() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// How a call ended.
pub(crate) type Answer = Result<Output, CallError>;

/// A supervisor, its registry, and its facts so far.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    supervisor: Supervisor,
    pub(crate) registry: Registry,
    facts: Arc<Facts>,
}

impl Deref for Stage {
    type Target = Supervisor;

    fn deref(&self) -> &Supervisor {
        &self.supervisor
    }
}

/// Everything a supervisor has said, and what its callers saw.
#[derive(Debug)]
struct Facts {
    said: Mutex<Vec<Event>>,
    news: watch::Sender<usize>,
    calls: Mutex<Calls>,
    /// Calls to tools that no entry has: the supervisor says nothing of these.
    unknown: AtomicUsize,
}

/// What became of the calls a test made.
#[derive(Debug, Default)]
struct Calls {
    made: usize,
    ended: usize,
    dropped: usize,
}

/// One call as its caller sees it: it ends or is dropped.
struct Counted<'a> {
    facts: &'a Facts,
    ended: bool,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.facts.calls);
        match self.ended {
            true => calls.ended += 1,
            false => calls.dropped += 1,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// Listens before anything can happen: a supervisor's tasks run only once the
    /// test waits, or not before this on another thread says anything we need.
    pub(crate) fn new(supervisor: Supervisor) -> Self {
        let facts = Arc::new(Facts {
            said: Mutex::default(),
            news: watch::Sender::new(0),
            calls: Mutex::default(),
            unknown: AtomicUsize::new(0),
        });
        let registry = supervisor.registry();
        Self { supervisor, registry, facts }
    }

    /// Begins to write down what the supervisor says.
    pub(crate) fn record(&self) -> Record {
        let mut events = self.supervisor.events();
        let facts = Arc::clone(&self.facts);
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                lock(&facts.said).push(event);
                facts.news.send_modify(|count| *count += 1);
            }
        });
        Record { facts: Arc::clone(&self.facts), task }
    }

    /// Calls a tool as somebody who may do everything.
    pub(crate) async fn call(&self, tool: &str, args: Value) -> Answer {
        self.send(&Caller::trusted("test"), Call::new(tool, args)).await
    }

    /// Calls, and counts. Fails if the call does not end.
    pub(crate) async fn send(&self, caller: &Caller, call: Call) -> Answer {
        let tool = call.tool().to_owned();
        let mut counted = Counted { facts: &self.facts, ended: false };
        lock(&self.facts.calls).made += 1;
        let what = format!("the end of a call of {tool}");
        let answer = within(&what, self.registry.call(caller, call)).await;
        if matches!(answer, Err(CallError::NotFound { .. })) {
            self.facts.unknown.fetch_add(1, Ordering::Relaxed);
        }
        counted.ended = true;
        answer
    }

    /// Accounts for calls that a test makes through the registry itself, because they
    /// outlive the stage: they end, too.
    pub(crate) fn uncounted(&self, calls: usize) {
        let mut counted = lock(&self.facts.calls);
        counted.made += calls;
        counted.ended += calls;
    }

    /// The same on a task of its own.
    pub(crate) fn spawn(&self, tool: &str, args: Value) -> JoinHandle<Answer> {
        let (stage, tool) = (self.clone(), tool.to_owned());
        tokio::spawn(async move { stage.call(&tool, args).await })
    }

    /// The first fact, past or future, that `pick` takes.
    pub(crate) async fn fact<T>(&self, what: &str, mut pick: impl FnMut(&Fact) -> Option<T>) -> T {
        let mut news = self.facts.news.subscribe();
        let mut seen = 0;
        let look = async {
            loop {
                news.borrow_and_update();
                {
                    let said = lock(&self.facts.said);
                    for event in said.iter().skip(seen) {
                        if let Some(found) = pick(&event.fact) {
                            return found;
                        }
                    }
                    seen = seen.max(said.len());
                }
                news.changed().await.expect("the facts are ours");
            }
        };
        within(what, look).await
    }

    /// All facts so far that `pick` takes.
    pub(crate) fn facts<T>(&self, pick: impl FnMut(&Fact) -> Option<T>) -> Vec<T> {
        lock(&self.facts.said).iter().map(|event| &event.fact).filter_map(pick).collect()
    }

    /// Waits until a plugin is in a state; it must not have left it again.
    pub(crate) async fn until(&self, plugin: &str, state: State) {
        let mut news = self.facts.news.subscribe();
        let look = async {
            while self.state(plugin) != state {
                news.changed().await.expect("the facts are ours");
            }
        };
        within(&format!("{plugin} to be {state}"), look).await;
    }

    /// Waits until a process of this plugin has ended: why, and by which rung.
    pub(crate) async fn exit(&self, plugin: &str) -> (Arc<Reason>, Option<&'static str>) {
        let what = format!("the end of {plugin}");
        let exit = self.fact(&what, |fact| match fact {
            Fact::Exited { plugin: who, reason, rung, .. } if **who == *plugin => {
                Some((Arc::clone(reason), *rung))
            }
            _ => None,
        });
        exit.await
    }

    /// How many calls run in a plugin or wait for it.
    pub(crate) fn inside(&self, plugin: &str) -> usize {
        self.plugin(plugin).expect("it is in the plan").calls
    }

    /// Waits until a call has been sent, whichever.
    pub(crate) async fn a_call_starts(&self) {
        let starts = |fact: &Fact| matches!(fact, Fact::CallStarted { .. }).then_some(());
        self.fact("a call to start", starts).await;
    }

    /// What the fixture says of itself, by its tool `state`.
    pub(crate) async fn ask_state(&self) -> Value {
        let answer = self.call("state", Value::Object(Default::default())).await;
        answer.expect("it answers").data.expect("data")
    }

    /// How many processes of a plugin have ended.
    pub(crate) fn exits(&self, name: &str) -> usize {
        let ended = |fact: &Fact| match fact {
            Fact::Exited { plugin, .. } if **plugin == *name => Some(()),
            _ => None,
        };
        self.facts(ended).len()
    }

    /// What a plugin is now.
    pub(crate) fn state(&self, plugin: &str) -> State {
        self.plugin(plugin).expect("it is in the plan").state
    }

    /// How many processes were started for it.
    pub(crate) fn starts(&self, plugin: &str) -> u64 {
        self.plugin(plugin).expect("it is in the plan").starts
    }

    /// Wakes it and waits until it is active.
    pub(crate) async fn up(&self, plugin: &str) {
        within("a plugin to be ready", self.ready(plugin)).await.expect("it comes up");
    }

    /// Stops it and waits until it is down.
    pub(crate) async fn down(&self, plugin: &str) {
        within("a plugin to be down", self.stop(plugin)).await.expect("it is in the plan");
    }

    /// Ends everything and waits until it is gone.
    pub(crate) async fn end(&self) {
        within("the shutdown", self.shutdown()).await;
    }
}

/// An answer in a few words, for tables: what it is, whether it ran, what to do.
pub(crate) fn brief(answer: &Answer) -> String {
    let error = match answer {
        Ok(output) if output.is_error => return "tool error".into(),
        Ok(_) => return "ok".into(),
        Err(error) => error,
    };
    let what = match error {
        CallError::NotFound { .. } => "not found".into(),
        CallError::Denied { .. } => "denied".into(),
        CallError::Inactive { state, reason, .. } => format!("inactive {state} {}", reason.kind()),
        CallError::Busy { .. } => "busy".into(),
        CallError::BadArguments { .. } => "bad arguments".into(),
        CallError::Failed { fault, .. } => {
            let reason = fault.reason.as_deref().unwrap_or("-");
            format!("failed {} {reason}", fault.code.as_str())
        }
        CallError::TimedOut { budget, .. } => format!("timed out {budget:?}").to_lowercase(),
        CallError::Lost { reason, .. } => format!("lost {}", reason.kind()),
        CallError::BadResult { too_large: true, .. } => "result too large".into(),
        CallError::BadResult { .. } => "bad result".into(),
        _ => "an error this test does not know".into(),
    };
    let ran = match error.ran() {
        Ran::No => "not run",
        Ran::Yes => "run",
        Ran::Unknown => "may have run",
    };
    let retry = match error.retry() {
        RetryAdvice::Never => "never again",
        RetryAdvice::After(_) => "again",
        RetryAdvice::IfIdempotent => "again if idempotent",
    };
    format!("{what}, {ran}, {retry}")
}

/// The facts of one supervisor, to be checked when it is gone.
#[derive(Debug)]
pub(crate) struct Record {
    facts: Arc<Facts>,
    task: JoinHandle<()>,
}

impl Record {
    /// Waits until nobody is left who could say anything, and checks that the
    /// facts agree with each other and with what the callers saw.
    pub(crate) async fn check(self) {
        let gone = "the supervisor, its tasks and its registry to be gone";
        within(gone, self.task).await.expect("it only listens");
        let said = lock(&self.facts.said);
        let (mut started, mut over) = (BTreeSet::new(), BTreeMap::new());
        let mut next = None;
        let mut processes = BTreeSet::new();
        // Requests and what plugins call through us are not counted by the stage.
        let mut others = BTreeSet::new();
        for event in said.iter() {
            let seq = event.seq;
            assert_eq!(*next.get_or_insert(seq), seq, "numbers without a gap");
            next = Some(seq + 1);
            match &event.fact {
                Fact::CallStarted { call, .. } => {
                    assert!(started.insert(*call), "call {call} started twice");
                    assert!(!over.contains_key(call), "call {call} started after its end");
                }
                Fact::CallEnded { call, tool, caller, .. } => {
                    if tool.contains('/') || caller.starts_with("plugin ") {
                        others.insert(*call);
                    }
                    assert_eq!(over.insert(*call, "ended"), None, "call {call} ended twice");
                }
                Fact::CallDropped { call, tool } => {
                    if tool.contains('/') {
                        others.insert(*call);
                    }
                    assert_eq!(over.insert(*call, "dropped"), None, "call {call} ended twice");
                }
                Fact::Spawned { plugin, pid } => {
                    assert!(
                        processes.insert((plugin.clone(), *pid)),
                        "{plugin} has two processes {pid}"
                    );
                }
                Fact::Exited { plugin, pid, .. } => {
                    assert!(
                        processes.remove(&(plugin.clone(), *pid)),
                        "{plugin}: {pid} ended, and had not been started"
                    );
                }
                Fact::Missed { count } => panic!("{count} facts were missed"),
                _ => {}
            }
        }
        assert!(started.iter().all(|call| over.contains_key(call)), "a call has no end");
        over.retain(|call, _| !others.contains(call));
        let calls = lock(&self.facts.calls);
        assert_eq!(calls.made, calls.ended + calls.dropped, "{calls:?}");
        let ended = over.values().filter(|how| **how == "ended").count();
        let unknown = self.facts.unknown.load(Ordering::Relaxed);
        assert_eq!(ended, calls.ended - unknown, "{calls:?}");
        // A future that is dropped before it was polled made no call.
        assert!(over.len() - ended <= calls.dropped, "{calls:?}");
    }
}
