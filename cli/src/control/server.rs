//! The daemon's side: who may connect, what is asked, what is answered. One connection, one
//! request; whoever closes the connection gives up what was asked.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use plugbay_supervisor::{
    Call, Caller, PluginPlan, PluginStatus, Progress, Reason, State, Supervisor,
    isolation::Held,
    manifest,
    plan::{Ceilings, Limits},
};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{broadcast::error::RecvError, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Journal,
    prospect::prospect,
    wire::{Bound, Hello, Line, Look, REQUEST_MAX, Record, Request, What},
};
use crate::{
    commands::{cause, discover, ear, learn, waits},
    exit::Exit,
    memory::resident,
    trouble::{Outcome, Trouble, advice},
};

/// Connections at once. A person has a few, a script that went wrong has many.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to say what it wants.
const ASK_MAX: Duration = Duration::from_secs(10);
/// How often a client that waits is told what for.
const TALK_PAUSE: Duration = Duration::from_secs(1);

/// What the connections share.
pub(crate) struct Service {
    pub(crate) supervisor: Supervisor,
    pub(crate) journal: Arc<Journal>,
    pub(crate) hello: Hello,
    /// The plugins whose tools are only known once they run.
    pub(crate) unknown: Vec<String>,
    /// The bounds that each plugin began with.
    pub(crate) first: HashMap<String, Vec<manifest::Bound>>,
    /// Those on all plugins together, likewise.
    pub(crate) ceilings: Ceilings,
    /// Whether a user may connect, by its id.
    pub(crate) may: fn(u32) -> bool,
    /// Held while the bounds on all plugins are changed: of two changes the second begins with what
    /// the first has left.
    pub(crate) changing: Arc<Mutex<()>>,
}

/// A bound as it is set, with what the system holds of it.
fn shown(now: manifest::Bound, held: &[Held], from: &str, was: Option<String>) -> Bound {
    let held = held.iter().find(|it| it.key == now.key);
    let words = |number| in_words(now.key, number);
    Bound {
        at_once: now.at_once || held.is_some_and(|it| it.refused.is_none()),
        holds: held.and_then(|it| it.limit).map(words),
        used: held.and_then(|it| it.used).map(words),
        refused: held.and_then(|it| it.refused.clone()),
        key: now.key.into(),
        value: now.value,
        from: from.into(),
        was,
        promised: None,
    }
}

/// A number of what a key bounds.
fn in_words(key: &str, number: u64) -> String {
    match key {
        "memory" | "state" | "file" => crate::render::facts::bytes(number),
        "cpu" => format!("{number}%"),
        _ => number.to_string(),
    }
}

/// Whether it is our own user, or root, who may do anything anyway.
pub(crate) fn is_ours(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// Answers whoever connects. Dropping it ends all connections.
pub(crate) async fn serve(listener: UnixListener, service: Arc<Service>) -> Infallible {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                // Closing is an answer, too: the client says that nobody is there for it.
                Ok(_) if CONNECTIONS_MAX <= open.len() => {}
                Ok((stream, _)) => {
                    open.spawn(connection(stream, Arc::clone(&service)));
                }
                // Out of descriptors, most likely. At once, it would be the same again.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

async fn connection(stream: UnixStream, service: Arc<Service>) {
    // Who cannot be told from others is one of them.
    let user = stream.peer_cred().ok().map(|it| it.uid());
    let (read, write) = stream.into_split();
    let (mut read, mut out) = (BufReader::new(read), Out(write));
    if !user.is_some_and(service.may) {
        let trouble = Trouble::new(Exit::Refused, "this socket is for another user");
        out.line(&Line::Error(trouble.to_wire())).await;
        return;
    }
    out.line(&Line::Hello(service.hello.clone())).await;
    let answer = match ask(&mut read).await {
        Err(trouble) => Err(trouble),
        Ok(request) => tokio::select! {
            answer = service.answer(request, &mut out) => answer,
            // Nobody is left to be answered.
            () = gone(&mut read) => return,
        },
    };
    out.line(&match answer {
        Ok(value) => Line::End(value),
        Err(trouble) => Line::Error(trouble.to_wire()),
    })
    .await;
}

/// Reads the one request of a connection.
async fn ask(read: &mut BufReader<OwnedReadHalf>) -> Outcome<Request> {
    let mut line = Vec::new();
    let mut limited = read.take(REQUEST_MAX);
    match timeout(ASK_MAX, limited.read_until(b'\n', &mut line)).await {
        Err(_) => return Err(Trouble::usage(format!("nothing was asked within {ASK_MAX:?}"))),
        Ok(Err(error)) => return Err(Trouble::usage(format!("cannot read the request: {error}"))),
        Ok(Ok(_)) => {}
    }
    if !line.ends_with(b"\n") {
        let why = match line.len() as u64 {
            REQUEST_MAX => format!("the request is longer than {REQUEST_MAX} bytes"),
            _ => "the request has no end: it is one line of JSON".into(),
        };
        return Err(Trouble::usage(why));
    }
    serde_json::from_slice(&line)
        .map_err(|error| Trouble::usage(format!("this is no request: {error}")))
}

/// Waits until the client has closed its side; what it still says is of no interest.
async fn gone(read: &mut BufReader<OwnedReadHalf>) {
    while let Ok(some) = read.fill_buf().await {
        match some.len() {
            0 => return,
            len => read.consume(len),
        }
    }
}

/// Where replies go.
struct Out(OwnedWriteHalf);

impl Out {
    /// Whether it could be said; whoever is gone is found out elsewhere.
    async fn line(&mut self, line: &Line) -> bool {
        // Plain data always becomes JSON.
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        self.0.write_all(&text).await.is_ok()
    }

    async fn item(&mut self, value: Value) -> bool {
        self.line(&Line::Item(value)).await
    }
}

impl Service {
    async fn answer(&self, request: Request, out: &mut Out) -> Outcome<Value> {
        match request {
            Request::Ps => Ok(json!({ "plugins": self.all() })),
            Request::Why { plugin } => self.why(&plugin),
            Request::Logs { plugin, lines, follow } => self.logs(plugin, lines, follow, out).await,
            Request::Restart { plugin } => {
                self.can_be_ordered(&plugin)?;
                self.supervisor.restart(&plugin)?;
                self.supervisor.ready(&plugin).await?;
                self.one(&plugin)
            }
            Request::Stop { plugin } => {
                self.can_be_ordered(&plugin)?;
                self.supervisor.stop(&plugin).await?;
                self.one(&plugin)
            }
            Request::Resume { plugin } => {
                self.can_be_ordered(&plugin)?;
                self.supervisor.resume(&plugin)?;
                self.supervisor.heeded(&plugin).await?;
                self.one(&plugin)
            }
            Request::Limits { plugin } => self.limits(&plugin).await,
            Request::SetLimits { plugin, set } => {
                self.can_be_ordered(&plugin)?;
                let plan = manifest::adjust(&self.supervisor.plan(&plugin)?, &set)
                    .map_err(|report| Trouble::of_report(&report))?;
                self.supervisor.set_bounds(&plugin, plan.limits, plan.timeouts)?;
                self.limits(&plugin).await
            }
            Request::Ceilings => self.ceilings(None).await,
            Request::SetCeilings { set } => self.ceilings(Some(set)).await,
            Request::Tools => self.tools().await,
            Request::Find { tool, deadline_ms } => {
                let total = deadline_ms.map(Duration::from_millis);
                let tool = learn(&self.supervisor, &self.unknown, &tool, total).await?;
                Ok(json!({ "tool": tool }))
            }
            Request::Call { tool, args, deadline_ms, idle_ms } => {
                let [total, idle] = [deadline_ms, idle_ms].map(|it| it.map(Duration::from_millis));
                self.call(tool, args, total, idle, out).await
            }
        }
    }

    fn all(&self) -> Vec<Value> {
        let plugins = self.supervisor.plugins();
        let pids: Vec<u32> = plugins.iter().filter_map(|it| it.pid).collect();
        let memory = resident(&pids);
        let look = |it: &PluginStatus| {
            let memory = it.pid.and_then(|pid| memory.get(&pid).copied());
            Look::of(it, self.journal.calls(&it.name), memory)
        };
        plugins.iter().map(look).collect()
    }

    fn look(&self, status: &PluginStatus) -> Value {
        let memory = status.pid.and_then(|pid| resident(&[pid]).remove(&pid));
        Look::of(status, self.journal.calls(&status.name), memory)
    }

    fn one(&self, plugin: &str) -> Outcome<Value> {
        Ok(json!({ "plugin": self.look(&self.supervisor.plugin(plugin)?) }))
    }

    /// Whether there is anything that an order could move.
    fn can_be_ordered(&self, plugin: &str) -> Outcome<()> {
        let PluginStatus { name, state, reason, .. } = self.supervisor.plugin(plugin)?;
        if !matches!(state, State::Disabled | State::Invalid) {
            return Ok(());
        }
        Err(Trouble::coded("PB0503", format!("{name} cannot be started or stopped: it {reason}"))
            .help("change the manifest, and start `plugbay run` again"))
    }

    fn why(&self, plugin: &str) -> Outcome<Value> {
        let status = self.supervisor.plugin(plugin)?;
        let plan = self.supervisor.plan(plugin)?;
        let (ends, words) = self.journal.ends(plugin);
        // What to do about how it is, or else about how it ended last.
        let is_bad = status.reason.code().is_some();
        let cause = if is_bad { Some(&status.reason) } else { status.last_end.as_ref() };
        let help: Vec<&str> = cause.map(Reason::innermost).and_then(advice).into_iter().collect();
        Ok(json!({
            "plugin": self.look(&status),
            "last_end": ends.last(),
            "ends": ends,
            "words": words,
            "next": prospect(&status, &plan.restart, plan.idle.stop_after),
            "help": help,
        }))
    }

    async fn limits(&self, plugin: &str) -> Outcome<Value> {
        let status = self.supervisor.plugin(plugin)?;
        let held = self.supervisor.hold(plugin).await?;
        let plan = self.supervisor.plan(plugin)?;
        let mut usual = PluginPlan::new("", Vec::new(), "/");
        // Which bounds there are depends on it.
        usual.sandbox.level = plan.sandbox.level;
        let usual = manifest::bounds(&usual);
        let first = self.first.get(plugin).unwrap_or(&usual);
        let value = |of: &[manifest::Bound], key| {
            of.iter().find(|it| it.key == key).map(|it| it.value.clone())
        };
        let bound = |now: manifest::Bound| {
            let was = value(first, now.key).filter(|it| *it != now.value);
            let from = match () {
                () if was.is_some() => "changed",
                () if value(&usual, now.key).as_ref() != Some(&now.value) => "manifest",
                () => "default",
            };
            shown(now, &held, from, was)
        };
        let bounds: Vec<Bound> = manifest::bounds(&plan).into_iter().map(bound).collect();
        Ok(json!({
            "plugin": status.name, "bounds": bounds, "calls": status.calls,
            "degraded": status.degraded,
        }))
    }

    /// The bounds on all plugins together, after some have been changed if there are changes.
    async fn ceilings(&self, changes: Option<Vec<(String, String)>>) -> Outcome<Value> {
        let (supervisor, changing) = (self.supervisor.clone(), Arc::clone(&self.changing));
        let change = move || {
            let _one = changing.lock().unwrap_or_else(PoisonError::into_inner);
            let adjust = |it: Vec<_>| manifest::adjust_ceilings(supervisor.ceilings(), &it);
            let others = changes.map(adjust).transpose();
            let others = others.map_err(|report| Trouble::of_report(&report))?;
            Outcome::Ok(supervisor.hold_all(others))
        };
        // It may have to wait for memory.
        let held = tokio::task::spawn_blocking(change).await.unwrap_or_else(|_| Ok(Vec::new()))?;
        let now = self.supervisor.ceilings();
        let names: Vec<String> = self.supervisor.plugins().into_iter().map(|it| it.name).collect();
        let mut limits = Vec::new();
        for name in &names {
            limits.push(self.supervisor.plan(name)?.limits);
        }
        // Of those that have a limit.
        let promised = |key: &str| -> u64 {
            let of = |it: &Limits| match key {
                "memory" => it.memory_bytes.unwrap_or(0),
                "cpu" => it.cpu_percent.map_or(0, u64::from),
                _ => it.processes.map_or(0, u64::from),
            };
            limits.iter().map(of).fold(0, u64::saturating_add)
        };
        let bound = |(now, first): (manifest::Bound, manifest::Bound)| {
            let promised = Some(in_words(now.key, promised(now.key)));
            let was = Some(first.value).filter(|it| *it != now.value);
            let from = match () {
                () if was.is_some() => "changed",
                () if now.value == "-" => "default",
                () => "manifest",
            };
            Bound { promised, ..shown(now, &held, from, was) }
        };
        let bounds = manifest::ceilings(now).into_iter().zip(manifest::ceilings(self.ceilings));
        Ok(json!({ "bounds": bounds.map(bound).collect::<Vec<Bound>>() }))
    }

    async fn logs(
        &self,
        plugin: Option<String>,
        lines: Option<usize>,
        follow: bool,
        out: &mut Out,
    ) -> Outcome<Value> {
        if let Some(plugin) = &plugin {
            self.supervisor.plugin(plugin)?;
        }
        let (records, mut stream) = self.journal.read(plugin.as_deref(), lines);
        for record in records {
            out.item(json!(record)).await;
        }
        if !follow {
            return Ok(json!({}));
        }
        loop {
            let record = match stream.recv().await {
                Ok(record) => record,
                Err(RecvError::Lagged(count)) => Record {
                    at_ms: waits::epoch_ms(SystemTime::now()),
                    plugin: plugin.clone().unwrap_or_default(),
                    what: What::Missed(count),
                },
                // The journal ends with us.
                Err(RecvError::Closed) => return Ok(json!({})),
            };
            let wanted = plugin.as_ref().is_none_or(|it| *it == record.plugin);
            if wanted && !out.item(json!(record)).await {
                // Nobody is left to read it.
                return Ok(json!({}));
            }
        }
    }

    async fn tools(&self) -> Outcome<Value> {
        let down = discover(&self.supervisor, &self.unknown).await;
        let down: Vec<Value> = down.into_iter().map(|it| Trouble::from(it).to_wire()).collect();
        let tools = self.supervisor.registry().tools(&Caller::trusted("cli"));
        Ok(json!({ "tools": tools, "plugins": self.all(), "down": down }))
    }

    async fn call(
        &self,
        tool: String,
        args: Map<String, Value>,
        total: Option<Duration>,
        idle: Option<Duration>,
        out: &mut Out,
    ) -> Outcome<Value> {
        let caller = Caller::trusted("cli");
        let registry = self.supervisor.registry();
        let info = registry.find(&caller, &tool)?;
        let (told, mut progress) = watch::channel(None);
        let mut call = Call::new(&tool, Value::Object(args))
            // Nobody who looks at progress is no reason to stop.
            .on_progress(move |progress| drop(told.send(Some(progress))));
        if let Some(total) = total {
            call = call.deadline(total);
        }
        if let Some(idle) = idle {
            call = call.idle(idle);
        }
        let began = Instant::now();
        let work = registry.call(&caller, call);
        tokio::pin!(work);
        let result = loop {
            tokio::select! {
                biased;
                result = &mut work => break result,
                Ok(()) = progress.changed() => {
                    let progress = progress.borrow_and_update().as_ref().map(progress_json);
                    out.item(json!({ "progress": progress })).await;
                }
                () = sleep(TALK_PAUSE) => {
                    let status = info.plugin.as_deref().map(|it| self.supervisor.plugin(it));
                    let status: Vec<PluginStatus> = status.into_iter().flatten().collect();
                    let text = waits::up(&status, SystemTime::now())
                        .or_else(|| waits::answer(began.elapsed(), total));
                    if let Some(text) = text {
                        out.item(json!({ "waiting": text })).await;
                    }
                }
            }
        };
        if let Some(note) = ear::budgets(&self.supervisor, &tool, total, idle) {
            out.item(json!({ "note": note })).await;
        }
        match result {
            Ok(output) => Ok(json!({ "output": output.to_json(), "text": output.text() })),
            Err(error) => Err(cause::failed(&self.supervisor, &info, error, total)),
        }
    }
}

fn progress_json(progress: &Progress) -> Value {
    let Progress { n, total, unit, message } = progress;
    json!({ "n": n, "total": total, "unit": unit, "message": message })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plugbay_supervisor::{isolation::Machine, plan::Plan};
    use tokio::io::AsyncReadExt;

    use super::*;

    /// A daemon without a plugin, for users that pass.
    fn open(dir: &Path, may: fn(u32) -> bool) -> JoinSet<Infallible> {
        open_for(dir, may, Supervisor::builder().start().unwrap())
    }

    fn open_for(dir: &Path, may: fn(u32) -> bool, supervisor: Supervisor) -> JoinSet<Infallible> {
        let service = Service {
            supervisor,
            journal: Arc::new(Journal::new()),
            hello: Hello::new("a test"),
            unknown: Vec::new(),
            first: HashMap::new(),
            ceilings: Ceilings::default(),
            may,
            changing: Arc::default(),
        };
        let mut all = JoinSet::new();
        all.spawn(serve(UnixListener::bind(dir.join("s")).unwrap(), Arc::new(service)));
        all
    }

    /// Sends this and reads all that comes.
    async fn say(dir: &Path, text: &[u8]) -> Vec<Value> {
        let mut stream = UnixStream::connect(dir.join("s")).await.unwrap();
        // Whoever is refused at once may be refused before this is written.
        stream.write_all(text).await.ok();
        let mut all = Vec::new();
        // What was not read of ours ends it with an error, after all that was said.
        stream.read_to_end(&mut all).await.ok();
        let all = String::from_utf8(all).unwrap();
        all.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn another_user_is_told_so_and_learns_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let _open = open(dir.path(), |_| false);
        let lines = say(dir.path(), b"{\"op\":\"ps\"}\n").await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["error"]["message"], "this socket is for another user");
    }

    #[tokio::test]
    async fn two_who_change_ceilings_at_once_undo_nothing_of_each_other() {
        let cgroups = &Machine::here().cgroups;
        if let Err(lack) = cgroups.memory.as_ref().and(cgroups.processes.as_ref()) {
            eprintln!("skipped: {}", lack.cause);
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut ceilings = Ceilings::default();
        (ceilings.memory_bytes, ceilings.processes) = (Some(1 << 30), Some(1));
        let all = Plan { plugins: Vec::new(), ceilings };
        let _open = open_for(dir.path(), is_ours, Supervisor::builder().plan(all).start().unwrap());
        let change = async |key: &str, unit: &str| {
            for number in 1..=200 {
                let value = format!("{number}{unit}");
                let order = json!({ "op": "set_ceilings", "set": [[key, value]] });
                say(dir.path(), format!("{order}\n").as_bytes()).await;
                let lines = say(dir.path(), b"{\"op\":\"ceilings\"}\n").await;
                let bounds = lines[1]["end"]["bounds"].as_array().unwrap();
                let now = bounds.iter().find(|it| it["key"] == key).unwrap();
                assert_eq!(now["value"], value, "{key}");
            }
        };
        tokio::join!(change("memory", "MiB"), change("processes", ""));
    }

    #[test]
    fn our_user_and_root_may_and_nobody_else() {
        let own = nix::unistd::geteuid().as_raw();
        assert!(is_ours(own) && is_ours(0));
        assert!(!is_ours(own + 1) && !is_ours(u32::MAX));
    }

    #[tokio::test]
    async fn what_is_no_request_is_told_so_and_the_next_one_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let _open = open(dir.path(), is_ours);
        let long =
            [b"{\"op\":\"why\",\"plugin\":\"", &vec![b'x'; REQUEST_MAX as usize][..]].concat();
        let wrong: [(&[u8], &str); 6] = [
            (b"hello\n", "this is no request: "),
            (b"{}\n", "missing field `op`"),
            (b"{\"op\":\"fly\"}\n", "unknown variant `fly`"),
            (b"{\"op\":\"why\"}\n", "missing field `plugin`"),
            (b"{\"op\":\"why\",\"plugin\":\"x\"}\n", "no plugin is called \"x\""),
            (&long, "longer than"),
        ];
        for (text, expected) in wrong {
            let lines = say(dir.path(), text).await;
            assert_eq!(lines[0]["hello"]["control"], 1);
            let message = lines[1]["error"]["message"].as_str().unwrap();
            assert!(message.contains(expected), "{message}");
            assert_eq!(lines.len(), 2);
        }
        let lines = say(dir.path(), b"{\"op\":\"ps\",\"more\":1}\n").await;
        assert_eq!(lines[1], json!({ "end": { "plugins": [] } }));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_sent_away_and_crowds_are_not_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let _open = open(dir.path(), is_ours);
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream =
                BufReader::new(UnixStream::connect(dir.path().join("s")).await.unwrap());
            stream.read_line(&mut String::new()).await.unwrap();
            idle.push(stream);
        }
        assert!(say(dir.path(), b"").await.is_empty(), "one too many");
        let mut last = String::new();
        idle[0].read_to_string(&mut last).await.unwrap();
        assert!(last.contains("nothing was asked within 10s"), "{last}");
        drop(idle);
        // Their tasks end as they are polled.
        while say(dir.path(), b"{\"op\":\"ps\"}\n").await.len() != 2 {}
    }
}
