//! A plugin's stderr at the speed of a person: repeats are counted, a flood is cut, and
//! whatever is not shown is said. The caller brings the time.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use plugbay_supervisor::StderrLine;

/// What rates are counted by, and how long a count may wait to be said.
const SECOND: Duration = Duration::from_secs(1);
/// Lines of one plugin that are shown in a second; nobody reads faster.
const LINES_MAX: u32 = 40;

/// Something to show.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Line(Arc<str>, String),
    /// The line before came so many times more.
    Again(Arc<str>, u64),
    /// So many lines are not shown.
    Hidden(Arc<str>, u64),
}

/// What has been shown of each plugin, and what has not.
#[derive(Debug, Default)]
pub(crate) struct Hush(HashMap<Arc<str>, Told>);

#[derive(Debug)]
struct Told {
    last: String,
    /// How often the last line came again.
    again: u64,
    second: Instant,
    shown: u32,
    hidden: u64,
}

impl Hush {
    /// One line has come.
    pub(crate) fn line(&mut self, line: &StderrLine, now: Instant) -> Vec<Shown> {
        let (plugin, text) = (&line.plugin, &line.line.0);
        let told = self.0.entry(Arc::clone(plugin)).or_insert_with(|| Told::new(now));
        let mut out = told.turn(plugin, now);
        if 0 < told.shown && told.hidden == 0 && told.last == *text {
            told.again += 1;
            return out;
        }
        if LINES_MAX <= told.shown {
            told.hidden += 1;
            return out;
        }
        out.extend(told.said(plugin));
        told.shown += 1;
        told.last.clone_from(text);
        out.push(Shown::Line(Arc::clone(plugin), text.clone()));
        out
    }

    /// What is due without another line, such as a count.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Shown> {
        self.0.iter_mut().flat_map(|(plugin, told)| told.turn(plugin, now)).collect()
    }

    /// The counts of one plugin, because its process ends or another begins. What that one
    /// says is news, whatever the one before has said.
    pub(crate) fn anew(&mut self, plugin: &str) -> Vec<Shown> {
        self.0.remove_entry(plugin).map_or_else(Vec::new, |(name, mut told)| told.said(&name))
    }

    /// All counts, because nothing follows.
    pub(crate) fn rest(&mut self) -> Vec<Shown> {
        self.0.iter_mut().flat_map(|(plugin, told)| told.said(plugin)).collect()
    }
}

impl Told {
    fn new(now: Instant) -> Self {
        Self { last: String::new(), again: 0, second: now, shown: 0, hidden: 0 }
    }

    /// Begins the next second if it is time, and says the counts of the one before.
    fn turn(&mut self, plugin: &Arc<str>, now: Instant) -> Vec<Shown> {
        if now.saturating_duration_since(self.second) < SECOND {
            return Vec::new();
        }
        // A line that goes on being repeated is not shown again each second.
        let repeats = 0 < self.again && self.hidden == 0;
        (self.second, self.shown) = (now, u32::from(repeats));
        self.said(plugin)
    }

    fn said(&mut self, plugin: &Arc<str>) -> Vec<Shown> {
        let again = (0 < self.again).then(|| Shown::Again(Arc::clone(plugin), self.again));
        let hidden = (0 < self.hidden).then(|| Shown::Hidden(Arc::clone(plugin), self.hidden));
        (self.again, self.hidden) = (0, 0);
        again.into_iter().chain(hidden).collect()
    }
}

#[cfg(test)]
mod tests {
    use plugbay_supervisor::Private;

    use super::*;

    fn shown(all: Vec<Shown>) -> Vec<String> {
        let one = |it| match it {
            Shown::Line(plugin, text) => format!("{plugin}: {text}"),
            Shown::Again(plugin, count) => format!("{plugin}: again {count}"),
            Shown::Hidden(plugin, count) => format!("{plugin}: hidden {count}"),
        };
        all.into_iter().map(one).collect()
    }

    fn say(hush: &mut Hush, text: &str, now: Instant) -> Vec<String> {
        shown(hush.line(&StderrLine { plugin: "p".into(), line: Private(text.into()) }, now))
    }

    #[test]
    fn a_repeated_line_is_shown_once_and_counted() {
        let (mut hush, now) = (Hush::default(), Instant::now());
        assert_eq!(say(&mut hush, "y", now), ["p: y"]);
        for _ in 0..1000 {
            assert_eq!(say(&mut hush, "y", now), [""; 0]);
        }
        assert_eq!(say(&mut hush, "n", now), ["p: again 1000", "p: n"]);
        assert_eq!(say(&mut hush, "n", now), [""; 0]);
        // It goes on, second after second.
        assert_eq!(say(&mut hush, "n", now + SECOND), ["p: again 1"]);
        assert_eq!(shown(hush.due(now + SECOND)), [""; 0]);
        assert_eq!(shown(hush.due(now + 2 * SECOND)), ["p: again 1"]);
        // A line that comes again after a pause is news.
        assert_eq!(say(&mut hush, "n", now + 3 * SECOND), ["p: n"]);
    }

    #[test]
    fn the_next_process_may_say_the_same() {
        let (mut hush, now) = (Hush::default(), Instant::now());
        assert_eq!(say(&mut hush, "no key", now), ["p: no key"]);
        assert_eq!(say(&mut hush, "no key", now), [""; 0]);
        assert_eq!(shown(hush.anew("p")), ["p: again 1"]);
        assert_eq!(shown(hush.anew("p")), [""; 0]);
        assert_eq!(say(&mut hush, "no key", now), ["p: no key"]);
    }

    #[test]
    fn a_flood_is_cut_and_counted_and_another_plugin_is_not() {
        let (mut hush, now) = (Hush::default(), Instant::now());
        let all: Vec<String> =
            (0..100).flat_map(|n| say(&mut hush, &format!("line {n}"), now)).collect();
        assert_eq!(all.len(), LINES_MAX as usize);
        let other = StderrLine { plugin: "q".into(), line: Private("hi".into()) };
        assert_eq!(shown(hush.line(&other, now)), ["q: hi"]);
        assert_eq!(say(&mut hush, "line 99", now + SECOND), ["p: hidden 60", "p: line 99"]);
        assert_eq!(say(&mut hush, "line 99", now + SECOND), [""; 0]);
        assert_eq!(shown(hush.rest()), ["p: again 1"]);
    }
}
