//! What a daemon remembers of its plugins: the newest lines of stderr and events of each, its
//! last ends, and how many calls have ended. Bounded, whatever a plugin says.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use plugbay_supervisor::{Event, Fact, Supervisor};
use tokio::sync::broadcast;

use super::wire::{End, Record, What};
use crate::{
    follow::{Follow, News},
    render::{Volume, facts},
};

/// How much text of one plugin is kept, in bytes.
const KEPT_MAX: usize = 256 << 10;
/// How many of a plugin's ends are remembered.
const ENDS_MAX: usize = 8;
/// How many lines of stderr belong to an end.
const WORDS_MAX: usize = 12;
/// How far a reader may lag behind before it misses something.
const BEHIND_MAX: usize = 1024;

/// Whose a record is that is about no plugin in particular.
const NOBODY: &str = "-";

/// The memory of one daemon.
#[derive(Debug)]
pub(crate) struct Journal {
    pages: Mutex<Pages>,
    stream: broadcast::Sender<Record>,
}

#[derive(Debug, Default)]
struct Pages {
    plugins: HashMap<String, Kept>,
    /// How many records there have been, which is their order.
    count: u64,
    /// When the last one was.
    last_ms: u64,
}

/// What is kept of one plugin.
#[derive(Debug, Default)]
struct Kept {
    records: VecDeque<(u64, Record)>,
    bytes: usize,
    ends: VecDeque<End>,
    /// The last lines of the process that runs.
    words: VecDeque<String>,
    started: Option<SystemTime>,
    calls: u64,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { pages: Mutex::default(), stream: broadcast::Sender::new(BEHIND_MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what happens, for as long as the supervisor lives.
    pub(crate) async fn keep(&self, mut follow: Follow, supervisor: Supervisor) -> Infallible {
        follow
            .all(|news| {
                match news {
                    News::Line(line) => {
                        self.add(&line.plugin, SystemTime::now(), What::Stderr(line.line.0));
                    }
                    News::Event(event) => self.event(&event, &supervisor),
                    News::LinesMissed(n) => self.add(NOBODY, SystemTime::now(), What::Missed(n)),
                }
                Ok::<(), Infallible>(())
            })
            .await
    }

    fn event(&self, event: &Event, supervisor: &Supervisor) {
        match &event.fact {
            Fact::CallEnded { tool, .. } => {
                if let Some(plugin) = supervisor.registry().tool(tool).and_then(|it| it.plugin) {
                    self.lock().plugins.entry(plugin).or_default().calls += 1;
                }
            }
            Fact::Spawned { plugin, .. } => {
                let mut pages = self.lock();
                let kept = pages.plugins.entry(plugin.to_string()).or_default();
                kept.started = Some(event.at);
                kept.words.clear();
            }
            Fact::Exited { plugin, pid, reason, rung } => {
                let mut pages = self.lock();
                let kept = pages.plugins.entry(plugin.to_string()).or_default();
                let lived = kept.started.and_then(|it| event.at.duration_since(it).ok());
                let end = End {
                    at_ms: ms(event.at),
                    pid: *pid,
                    lived_ms: lived.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
                    code: reason.code().map(str::to_owned),
                    text: reason.to_string(),
                    private: reason.private().map(str::to_owned),
                    // Numbers and names of ours, which are always JSON.
                    seen: reason.seen().and_then(|it| serde_json::to_value(it).ok()),
                    rung: rung.map(str::to_owned),
                    words: kept.words.iter().cloned().collect(),
                };
                kept.ends.push_back(end);
                if ENDS_MAX < kept.ends.len() {
                    kept.ends.pop_front();
                }
            }
            Fact::Missed { count } => self.add(NOBODY, event.at, What::Missed(*count)),
            _ => {}
        }
        let Some(plugin) = event.fact.plugin() else { return };
        let tools = |plugin: &str| crate::commands::tools_of(supervisor, plugin);
        if let Some((volume, status)) = facts::line(&event.fact, tools)
            && (volume <= Volume::Normal || matches!(event.fact, Fact::Exited { .. }))
        {
            self.add(plugin, event.at, What::Event(format!("{} {}", status.verb, status.text)));
        }
    }

    fn add(&self, plugin: &str, at: SystemTime, what: What) {
        let mut pages = self.lock();
        // A line is heard a little after it was written and an event is not; what came first
        // stays first.
        pages.last_ms = pages.last_ms.max(ms(at));
        pages.count += 1;
        let (count, at_ms) = (pages.count, pages.last_ms);
        let record = Record { at_ms, plugin: plugin.to_owned(), what };
        let kept = pages.plugins.entry(plugin.to_owned()).or_default();
        if let What::Stderr(line) = &record.what {
            kept.words.push_back(line.clone());
            if WORDS_MAX < kept.words.len() {
                kept.words.pop_front();
            }
        }
        kept.bytes += size(&record);
        kept.records.push_back((count, record.clone()));
        while KEPT_MAX < kept.bytes {
            let Some((_, oldest)) = kept.records.pop_front() else { break };
            kept.bytes -= size(&oldest);
        }
        // Under the lock, so that whoever subscribes gets each record once. Fails only if
        // nobody listens.
        self.stream.send(record).ok();
    }

    /// The newest records, of one plugin or of all, and those that follow.
    pub(crate) fn read(
        &self,
        plugin: Option<&str>,
        lines: Option<usize>,
    ) -> (Vec<Record>, broadcast::Receiver<Record>) {
        let pages = self.lock();
        let wanted = pages.plugins.iter().filter(|(name, _)| plugin.is_none_or(|it| it == *name));
        let mut all: Vec<&(u64, Record)> = wanted.flat_map(|(_, kept)| &kept.records).collect();
        all.sort_by_key(|(count, _)| *count);
        let skip = lines.map_or(0, |lines| all.len().saturating_sub(lines));
        let newest = all[skip..].iter().map(|(_, record)| record.clone());
        (newest.collect(), self.stream.subscribe())
    }

    /// The ends of one plugin, the newest last, and the last words of the process that runs.
    pub(crate) fn ends(&self, plugin: &str) -> (Vec<End>, Vec<String>) {
        let pages = self.lock();
        let Some(kept) = pages.plugins.get(plugin) else { return Default::default() };
        (kept.ends.iter().cloned().collect(), kept.words.iter().cloned().collect())
    }

    /// How many calls of one plugin have ended.
    pub(crate) fn calls(&self, plugin: &str) -> u64 {
        self.lock().plugins.get(plugin).map_or(0, |kept| kept.calls)
    }
}

/// How much a record counts. A short line needs more than its bytes.
fn size(record: &Record) -> usize {
    let text = match &record.what {
        What::Stderr(text) | What::Event(text) => text.len(),
        What::Missed(_) => 0,
    };
    64 + text
}

fn ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn texts(journal: &Journal, plugin: Option<&str>, lines: Option<usize>) -> Vec<String> {
        let (records, _) = journal.read(plugin, lines);
        let text = |it: Record| match it.what {
            What::Stderr(text) | What::Event(text) => text,
            What::Missed(count) => count.to_string(),
        };
        records.into_iter().map(text).collect()
    }

    #[test]
    fn the_newest_is_kept_of_each_and_a_flood_takes_nothing_from_others() {
        let journal = Journal::new();
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        journal.add("quiet", at(1), What::Stderr("one".into()));
        for n in 0..100_000 {
            journal.add("loud", at(2), What::Stderr(format!("line {n:06}")));
        }
        journal.add("quiet", at(3), What::Stderr("two".into()));
        assert_eq!(texts(&journal, Some("quiet"), None), ["one", "two"]);
        let loud = texts(&journal, Some("loud"), None);
        assert_eq!(loud.last().unwrap(), "line 099999");
        assert!(loud.len() < KEPT_MAX / 64, "{}", loud.len());
        assert_eq!(texts(&journal, None, Some(2)), ["line 099999", "two"]);
        // The clock was put back, or a line was heard late: the order stays.
        journal.add("quiet", at(1), What::Stderr("three".into()));
        let (records, _) = journal.read(None, Some(2));
        assert_eq!(records.iter().map(|it| it.at_ms).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(texts(&journal, Some("nobody"), None), [""; 0]);
    }

    #[test]
    fn who_reads_gets_what_follows_and_is_told_what_it_missed() {
        let journal = Journal::new();
        let (before, mut after) = journal.read(None, None);
        assert!(before.is_empty());
        for n in 0..=BEHIND_MAX {
            journal.add("p", UNIX_EPOCH, What::Stderr(n.to_string()));
        }
        let lagged = broadcast::error::TryRecvError::Lagged(1);
        assert_eq!(after.try_recv().unwrap_err(), lagged);
        assert!(matches!(after.try_recv().unwrap().what, What::Stderr(text) if text == "1"));
    }
}
