//! Judges a host: makes it run every plugin of the zoo beside a healthy one, and looks whether each
//! comes to the outcome that the spec names. `HOST.md` describes what the host's adapter is told and says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::take,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Map, Value as Json, json};

pub mod adapter;
pub mod tour;
pub mod zoo;

use self::{
    adapter::{Adapter, Answer, Event},
    tour::{Ask, Due, Step, Way, greeting, ms, refused, sleep, steps},
    zoo::{Animal, Zoo},
};
use crate::{
    check::{Stop, Verdict, fail},
    process::Program,
    run::{Outcome, each, seed_of},
};

/// How long an answer may take beyond the time that was set for it, before it is scaled.
const GRACE: Duration = Duration::from_secs(5);
/// How long a plugin may take to start, and what it is given to end, in milliseconds before they are scaled.
const START: u64 = 10_000;
const CANCEL: u64 = 700;
const STOP: u64 = 2000;
/// How long a whole ladder may take.
const LADDER: Duration = Duration::from_secs(15);

/// By which the processes of one plugin are found again, whatever they have become.
const MARK: &str = "PLUGBAY_TCK_MARK";
const WITNESS: &str = "PLUGBAY_TCK_WITNESS";

const SUBJECT: &str = "subject";
const SIBLING: &str = "sibling";

/// How it is judged.
#[derive(Clone, Debug)]
pub struct Terms {
    pub seed: u64,
    pub scale: f64,
    pub jobs: usize,
    pub interrupted: Arc<AtomicBool>,
}

/// What a host says of itself.
#[derive(Clone, Debug, Default)]
pub struct Name {
    pub name: String,
    pub version: String,
}

/// Asks an adapter who it is, with no plugin at all.
///
/// # Errors
/// What it did instead, and the last of what it wrote to stderr.
pub fn probe(adapter: &Program, terms: &Terms) -> Result<Name, (Stop, String)> {
    let mut line =
        Adapter::start(adapter, &terms.interrupted).map_err(|stop| (stop, String::new()))?;
    let told = introduce(&mut line, Vec::new(), terms)
        .and_then(|name| line.finish(GRACE.mul_f64(terms.scale)).map(|()| name));
    told.map_err(|stop| (stop, String::from_utf8_lossy(&line.stderr).into_owned()))
}

fn introduce(line: &mut Adapter, plugins: Vec<Json>, terms: &Terms) -> Result<Name, Stop> {
    let times = json!({
        "start": ms(START, terms.scale),
        "cancel": ms(CANCEL, terms.scale),
        "stop": ms(STOP, terms.scale),
    });
    let order =
        Map::from_iter([("plugins".to_owned(), plugins.into()), ("times".to_owned(), times)]);
    let id = line.order("host", order);
    let told = line.answer(id, GRACE.mul_f64(terms.scale) * 2)?;
    let value = told.outcome.map_err(|error| fail("an answer to host", error.code))?;
    let word = |key: &str| value.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    Ok(Name { name: word("name"), version: word("version") })
}

/// Tries a host on plugins and tells `heard` of each as it ends. The outcomes are in their order.
pub fn run(
    adapter: &Program,
    zoo: &Zoo,
    animals: &[&'static Animal],
    terms: &Terms,
    heard: &(dyn Fn(&Outcome) + Sync),
) -> Vec<Outcome> {
    each(animals, terms.jobs, &terms.interrupted, |animal| {
        let outcome = one(adapter, zoo, animal, terms);
        heard(&outcome);
        outcome
    })
}

/// Tries a host on one plugin.
fn one(adapter: &Program, zoo: &Zoo, animal: &'static Animal, terms: &Terms) -> Outcome {
    let seed = seed_of(animal.name, terms.seed);
    let begun = Instant::now();
    let mut outcome =
        Outcome::passed(animal.name, animal.about, animal.group(), animal.rules(), seed);
    let (verdict, said) = match Adapter::start(adapter, &terms.interrupted) {
        Ok(line) => {
            let mut visit = Visit::new(zoo, animal, terms, seed, line);
            let verdict = visit.pay();
            (verdict, Some((take(&mut visit.line.lines), take(&mut visit.line.stderr))))
        }
        Err(stop) => (Err(stop), None),
    };
    outcome.ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Err(stop) = verdict else { return outcome };
    outcome.stopped(match stop {
        // Whatever has to work first is a host's business too.
        Stop::Blocked(failure) => Stop::Fail(failure),
        stop => stop,
    });
    if let Some((lines, stderr)) = said {
        outcome.transcript = lines;
        outcome.stderr = String::from_utf8_lossy(&stderr).into_owned();
    }
    outcome
}

/// One host with one plugin and its sibling.
struct Visit<'a> {
    zoo: &'a Zoo,
    animal: &'static Animal,
    terms: &'a Terms,
    random: fastrand::Rng,
    line: Adapter,
    /// What the processes of this visit carry.
    mark: String,
    /// Events that are judged already.
    judged: usize,
    /// Ends of the subject.
    ends: usize,
    greetings: u32,
}

impl<'a> Visit<'a> {
    fn new(
        zoo: &'a Zoo,
        animal: &'static Animal,
        terms: &'a Terms,
        seed: u64,
        line: Adapter,
    ) -> Self {
        let mark = format!("{}-{}", std::process::id(), line.pid());
        let random = fastrand::Rng::with_seed(seed);
        Self { zoo, animal, terms, random, line, mark, judged: 0, ends: 0, greetings: 0 }
    }

    fn patience(&self) -> Duration {
        GRACE.mul_f64(self.terms.scale)
    }

    fn ladder(&self) -> Duration {
        LADDER.mul_f64(self.terms.scale)
    }

    fn plugin(&self, name: &str, book: &str, animal: &str) -> Json {
        let mut env = self.zoo.env();
        env.insert(MARK.into(), format!("{}-{name}", self.mark));
        env.insert(WITNESS.into(), self.zoo.file(&self.witness(name)).display().to_string());
        json!({
            "name": name,
            "argv": self.zoo.argv(book, animal),
            "env": env,
            "dir": self.zoo.path(),
            "grant": tour::GRANT,
        })
    }

    fn witness(&self, name: &str) -> String {
        format!("witness-{}-{name}", self.mark)
    }

    /// What the processes of a plugin have seen of their host.
    fn seen(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.zoo.file(&self.witness(name))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn pay(&mut self) -> Verdict {
        let plugins = vec![
            self.plugin(SUBJECT, self.animal.book, self.animal.name),
            self.plugin(SIBLING, "benign", "plain"),
        ];
        introduce(&mut self.line, plugins, self.terms)?;
        self.line.step("sibling");
        let sibling = self.line.order("start", named(SIBLING));
        self.line.answer(sibling, self.starting())?.outcome.map_err(|error| {
            fail("the healthy sibling to start", format!("the error {}", error.code))
        })?;
        self.greet()?;
        let ended = self.tour()?;
        self.stop(ended)?;
        self.line.step("end");
        self.greet()?;
        let id = self.line.order("stop", named(SIBLING));
        self.line.answer(id, self.ladder())?;
        self.blameless(SIBLING)?;
        self.line.finish(self.patience() + self.ladder())?;
        self.nothing_left(None)
    }

    fn starting(&self) -> Duration {
        Duration::from_millis(ms(START, self.terms.scale)) + self.patience()
    }

    /// Asks the sibling, which must answer whatever the subject does.
    fn greet(&mut self) -> Verdict {
        let (ask, id) = self.ask_sibling();
        self.sibling_answers(&ask, id)
    }

    fn ask_sibling(&mut self) -> (Ask, u64) {
        self.greetings += 1;
        let ask = greeting(&format!("sibling {}", self.greetings));
        let id = self.line.order("call", ask.order(SIBLING, self.terms.scale));
        (ask, id)
    }

    fn sibling_answers(&mut self, ask: &Ask, id: u64) -> Verdict {
        let expected = "the healthy sibling to answer meanwhile";
        let told = self.line.until(expected, self.patience(), |line| line.has(id).then_some(()));
        told.and_then(|()| self.line.answer(id, Duration::ZERO))
            .and_then(|answer| is_due(ask, &answer).map_err(|seen| fail(expected, seen)))
    }

    /// All steps, up to the one in which the subject ends. Says whether it has.
    fn tour(&mut self) -> Result<bool, Stop> {
        let due = self.animal.due;
        self.line.step("start");
        let id = self.line.order("start", named(SUBJECT));
        let (ask, sibling) = self.ask_sibling();
        self.sibling_answers(&ask, sibling)?;
        let started = self.line.answer(id, self.starting())?;
        let provides = match started.outcome {
            Ok(value) => value,
            Err(error) => {
                let is_due = self.may_end("start") || self.says("start", &error.code, None);
                if !is_due {
                    return Err(fail(
                        "the plugin to become active",
                        format!("the error {}", error.code),
                    ));
                }
                self.ends_in("start")?;
                self.again("start")?;
                return Ok(true);
            }
        };
        if due.at.as_deref() == Some("start") && !due.may {
            return Err(fail(
                "a start that fails, because of what the plugin does",
                "it is active",
            ));
        }
        let provides: BTreeSet<&str> =
            provides.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        if let Some(other) = provides.iter().find(|name| !tour::ENTRIES.contains(name)) {
            return Err(fail("nothing to be offered that may not be", other.to_string()));
        }
        let has = |name: &&'static str| provides.contains(format!("tck.{name}").as_str());
        for step in steps(&mut self.random) {
            if !step.needs.iter().all(&has) {
                continue;
            }
            self.walk(&step)?;
            if self.has_ended(step.name)? {
                self.again(step.name)?;
                return Ok(true);
            }
        }
        if due.at.as_deref() == Some("idle") {
            self.line.step("idle");
            self.ends_in("idle")?;
            self.again("idle")?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether the subject may come to its end in this step.
    fn may_end(&self, step: &str) -> bool {
        let due = self.animal.due;
        due.may || due.at.as_deref() == Some(step)
    }

    fn says(&self, step: &str, code: &str, reason: Option<&str>) -> bool {
        let said = self.animal.due.says.get(step);
        let whole = format!("{code} {}", reason.unwrap_or("-"));
        said.is_some_and(|all| all.iter().any(|it| it == code || *it == whole))
    }

    /// Makes the calls of one step, and the sibling's beside them.
    fn walk(&mut self, step: &Step) -> Verdict {
        self.line.step(step.name);
        let from = self.line.events.len();
        let scale = self.terms.scale;
        let ids: Vec<u64> = step
            .asks
            .iter()
            .map(|ask| self.line.order("call", ask.order(SUBJECT, scale)))
            .collect();
        let cancel = |line: &mut Adapter| {
            for id in &ids {
                line.order("cancel", Map::from_iter([("call".to_owned(), (*id).into())]));
            }
        };
        if step.way == Way::CancelAtOnce {
            cancel(&mut self.line);
        }
        let (ask, sibling) = self.ask_sibling();
        self.sibling_answers(&ask, sibling)?;
        if let Way::Cancel(time) = step.way {
            // The sibling is the clock, and shows that it is not held up.
            let rest = sleep(ms(time, scale));
            let id = self.line.order("call", rest.order(SIBLING, scale));
            self.sibling_answers(&rest, id)?;
        }
        let mut asks = step.asks.clone();
        if let Way::Cancel(_) = step.way {
            for (ask, id) in asks.iter_mut().zip(&ids) {
                if let Some(early) = ask.early.take().filter(|_| self.line.has(*id)) {
                    ask.due = early;
                }
            }
            cancel(&mut self.line);
        }
        for (ask, id) in asks.iter().zip(ids) {
            let within = match step.way {
                Way::Await => Duration::from_millis(ms(ask.deadline, scale)) + self.patience(),
                Way::Cancel(_) | Way::CancelAtOnce => self.patience(),
            };
            let answer = self.line.answer(id, within)?;
            self.call_ends(step, ask, &answer)?;
        }
        let served = self.line.events[from..].iter().filter_map(|event| match event {
            Event::Served { plugin, method } if plugin == SUBJECT => Some(method.as_str()),
            _ => None,
        });
        let mut allowed = BTreeMap::from_iter(step.served);
        for method in served {
            match allowed.get_mut(method) {
                Some(left) if *left > 0 => *left -= 1,
                _ => {
                    return Err(fail(
                        format!("no call of {method} to reach the service in step {}", step.name),
                        "one that did",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a call of a step ended as it may.
    fn call_ends(&self, step: &Step, ask: &Ask, answer: &Answer) -> Verdict {
        let Err(seen) = is_due(ask, answer) else { return Ok(()) };
        let allowed = match &answer.outcome {
            Ok(value) => {
                self.says(step.name, "ok", None)
                    || self.says(step.name, "refused", None) && all_refused(value)
            }
            Err(error) => {
                self.says(step.name, &error.code, error.reason.as_deref())
                    || self.may_end(step.name) && error.code == "unavailable"
            }
        };
        if allowed {
            return Ok(());
        }
        let mut expected =
            format!("{} to end {} in step {}", ask.method, shown(&ask.due), step.name);
        for said in self.animal.due.says.get(step.name).into_iter().flatten() {
            expected += &format!(", or {said}");
        }
        Err(fail(expected, seen))
    }

    /// The next end of the subject that is not judged yet.
    fn next_end(&mut self) -> Option<(String, String)> {
        while let Some(event) = self.line.events.get(self.judged) {
            self.judged += 1;
            if let Event::Ended { plugin, why, said } = event
                && plugin == SUBJECT
            {
                return Some((why.clone(), said.clone()));
            }
        }
        None
    }

    /// Whether the subject has ended in this step; waits for it where it must.
    fn has_ended(&mut self, step: &str) -> Result<bool, Stop> {
        let due = self.animal.due;
        if due.at.as_deref() == Some(step) && !due.may {
            self.ends_in(step)?;
            return Ok(true);
        }
        match self.next_end() {
            None => Ok(false),
            Some(end) if due.may => self.judge_end(step, &end).map(|()| true),
            Some((why, said)) => Err(fail(
                format!("the plugin to be left alone in step {step}"),
                format!("its end: {why}, {said}"),
            )),
        }
    }

    /// Waits for the end of the subject and judges it.
    fn ends_in(&mut self, step: &str) -> Verdict {
        let expected = format!("the plugin to be ended in step {step}");
        let within = self.patience() + self.ladder();
        let until = Instant::now() + within;
        let end = loop {
            if let Some(end) = self.next_end() {
                break end;
            }
            let judged = self.judged;
            let left = until.saturating_duration_since(Instant::now());
            self.line.until(&expected, left, |line| (line.events.len() > judged).then_some(()))?;
        };
        self.judge_end(step, &end)
    }

    fn judge_end(&mut self, step: &str, (why, said): &(String, String)) -> Verdict {
        let due = self.animal.due;
        self.ends += 1;
        if !due.ends.contains(why) {
            let expected =
                format!("the plugin to end in step {step} because of {}", due.ends.join(" or "));
            return Err(fail(expected, format!("{why}: {said}")));
        }
        if let Some(code) = &due.close {
            let seen = self.seen(SUBJECT);
            if !seen.contains(&format!("close {code}")) {
                let seen =
                    seen.into_iter().filter(|line| line.starts_with("close")).collect::<Vec<_>>();
                return Err(fail(
                    format!("the plugin to read CLOSE {code}"),
                    if seen.is_empty() { "no CLOSE".into() } else { seen.join(", ") },
                ));
            }
        }
        Ok(())
    }

    /// One more call after the end: of a new process, or refused.
    fn again(&mut self, at: &str) -> Verdict {
        self.line.step("again");
        let ask = greeting("again");
        let id = self.line.order("call", ask.order(SUBJECT, self.terms.scale));
        let within = Duration::from_millis(ms(ask.deadline, self.terms.scale)) + self.starting();
        let answer = self.line.answer(id, within)?;
        match &answer.outcome {
            Ok(_) if at == "start" && !self.animal.due.may => {
                Err(fail("a call after a start that failed to fail", "it ended well"))
            }
            Ok(_) => is_due(&ask, &answer).map_err(|seen| fail("the right result", seen)),
            Err(error) if error.code == "unavailable" || error.code == "failed_precondition" => {
                Ok(())
            }
            Err(error) => Err(fail(
                "a call after the end to be unavailable, or to be served by a new process",
                format!("the error {}", error.code),
            )),
        }
    }

    /// Stops the subject, in the middle of two calls if it runs: it must be gone then, and all that it started, and every end told.
    fn stop(&mut self, ended: bool) -> Verdict {
        self.line.step("stop");
        let scale = self.terms.scale;
        let asks: Vec<Ask> = if ended { Vec::new() } else { vec![sleep(80), sleep(160)] };
        let calls: Vec<u64> =
            asks.iter().map(|ask| self.line.order("call", ask.order(SUBJECT, scale))).collect();
        self.greet()?;
        let id = self.line.order("stop", named(SUBJECT));
        let answer = self.line.answer(id, self.ladder())?;
        for (ask, id) in asks.iter().zip(calls) {
            // Whether it is let finish is the host's to choose.
            let answer = self.line.answer(id, self.patience())?;
            is_due(ask, &answer).or_else(|seen| match answer.outcome {
                Err(error)
                    if ["unavailable", "cancelled", "failed_precondition"]
                        .contains(&&*error.code) =>
                {
                    Ok(())
                }
                _ => Err(fail(
                    "a call that its plugin is stopped under to end well or not at all",
                    seen,
                )),
            })?;
        }
        answer.outcome.map_err(|error| {
            fail("the plugin to be stopped", format!("the error {}", error.code))
        })?;
        let due = self.animal.due;
        while let Some(end) = self.next_end() {
            if due.at.as_deref() == Some("stop") && !ended {
                self.judge_end("stop", &end)?;
                continue;
            }
            self.ends += 1;
            let (why, said) = end;
            if why != "asked" && !((ended || due.may) && due.ends.contains(&why)) {
                return Err(fail(
                    "the plugin to end because it was asked to",
                    format!("{why}: {said}"),
                ));
            }
        }
        let started = self.seen(SUBJECT).iter().filter(|line| line.starts_with("start")).count();
        if self.ends != started {
            return Err(fail(
                format!("one end told of each of the {started} processes that were started"),
                format!("{} told", self.ends),
            ));
        }
        if !due.blames {
            self.blameless(SUBJECT)?;
        }
        self.nothing_left(Some(SUBJECT))
    }

    /// That a plugin has found nothing wrong with what its host sent.
    fn blameless(&self, name: &str) -> Verdict {
        match self.seen(name).iter().find(|line| line.starts_with("violation")) {
            Some(line) => {
                Err(fail(format!("the host to keep the rules towards the {name}"), line.clone()))
            }
            None => Ok(()),
        }
    }

    /// That no process is left of a plugin, or of all. Where there is no `/proc` nobody can tell.
    fn nothing_left(&self, name: Option<&str>) -> Verdict {
        let until = Instant::now() + self.patience();
        loop {
            let left = left(&self.mark, name, self.line.pid());
            if left.is_empty() {
                return Ok(());
            }
            // What was killed a moment ago is still being cleared away.
            if Instant::now() > until {
                let whose = name.unwrap_or("adapter");
                return Err(fail(
                    format!("nothing to be left of the {whose}"),
                    format!("{} processes: {}", left.len(), left.join(", ")),
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Visit<'_> {
    /// What a host has left behind is not left behind by us.
    fn drop(&mut self) {
        for pid in marked(|pair| pair.starts_with(format!("{MARK}={}-", self.mark).as_bytes())) {
            if let Ok(pid) = i32::try_from(pid) {
                // Fails only if it has just ended.
                kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
            }
        }
    }
}

fn named(plugin: &str) -> Map<String, Json> {
    Map::from_iter([("plugin".to_owned(), plugin.into())])
}

fn shown(due: &Due) -> String {
    match due {
        Due::Is(_) | Due::Well => "well".into(),
        Due::Fails(code, None) => format!("with {code}"),
        Due::Fails(code, Some(reason)) => format!("with {code} {reason}"),
    }
}

/// Whether an answer is what a plugin without fault would have led to, and what it is if not.
fn is_due(ask: &Ask, answer: &Answer) -> Result<(), String> {
    match (&ask.due, &answer.outcome) {
        (Due::Is(due), Ok(value)) if *due != wordless(value) => {
            return Err(format!("another result: {}", cut(value)));
        }
        (Due::Is(_) | Due::Well, Ok(_)) => {}
        (Due::Fails(code, reason), Err(error)) => {
            if *code != error.code || reason.is_some() && *reason != error.reason.as_deref() {
                return Err(format!(
                    "the error {} {}",
                    error.code,
                    error.reason.as_deref().unwrap_or("-")
                ));
            }
        }
        (Due::Fails(..), Ok(_)) => return Err("it ended well".into()),
        (_, Err(error)) => {
            return Err(format!(
                "the error {} {}",
                error.code,
                error.reason.as_deref().unwrap_or("-")
            ));
        }
    }
    // Of a call that was cancelled or timed out as many as came.
    let whole = !matches!(ask.due, Due::Fails("cancelled" | "deadline_exceeded", _));
    if whole && ask.items != answer.items {
        let at = ask.items.iter().zip(&answer.items).position(|(due, is)| due != is);
        return Err(match at {
            Some(at) => {
                format!("item {at} is {}, not {}", cut(&answer.items[at]), cut(&ask.items[at]))
            }
            None => format!("{} items, not {}", answer.items.len(), ask.items.len()),
        });
    }
    Ok(())
}

/// Whether each of the reverse calls that a call has made was refused.
fn all_refused(value: &Json) -> bool {
    let value = wordless(value);
    let results = value.get("results").and_then(Json::as_array);
    results.is_some_and(|all| {
        !all.is_empty() && all.iter().all(|it| it.get("err") == Some(&refused()))
    })
}

/// Without the words for people that a host may add to an error.
fn wordless(value: &Json) -> Json {
    let mut value = value.clone();
    for result in value.get_mut("results").and_then(Json::as_array_mut).into_iter().flatten() {
        result.as_object_mut().and_then(|it| it.remove("msg"));
    }
    value
}

fn cut(value: &Json) -> String {
    value.to_string().chars().take(120).collect()
}

/// The processes whose environment has such an entry. Where there is no `/proc` nobody can tell.
fn marked(is_ours: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    // What ends while it is looked at is not left.
    let environ = |pid: &u32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    pids().filter(|pid| environ(pid).split(|byte| *byte == 0).any(&is_ours)).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes that carry the mark of a plugin, or of all; and those that the adapter has not
/// waited for.
fn left(mark: &str, name: Option<&str>, adapter: u32) -> Vec<String> {
    let needle = format!("{MARK}={mark}-{}", name.unwrap_or_default());
    let lives = marked(|pair| match name {
        Some(_) => pair == needle.as_bytes(),
        None => pair.starts_with(needle.as_bytes()),
    });
    let parent = adapter.to_string();
    let is_zombie = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything, parentheses included.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut fields = rest.split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&parent)
    };
    let zombies = pids().filter(is_zombie).map(|pid| format!("{pid} was never waited for"));
    lives.into_iter().map(|pid| format!("{pid} lives")).chain(zombies).collect()
}
