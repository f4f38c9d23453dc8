//! What runs: the table of all plugins, the page about one, the lines of a log.

use std::time::{Duration, SystemTime};

use clap::builder::styling::Style;
use plugbay_supervisor::State;
use serde::Deserialize;

use super::{
    BAD, BOLD, DIM, GOOD, PLAIN, WARN,
    facts::bytes,
    one_line,
    tools::{columns, styled},
};
use crate::{
    commands::waits::epoch_ms,
    control::{Bound, End, Look, Record, What},
    source::Source,
};

/// How many ends before the last one are told.
const BEFORE_MAX: usize = 5;

/// All plugins, a line each.
pub(crate) fn table(plugins: &[Look]) -> String {
    let now = epoch_ms(SystemTime::now());
    let head = ["PLUGIN", "STATE", "PID", "UP", "CALLS", "NOW", "MEMORY", "RESTARTS", "WHY"];
    let none = || "-".to_owned();
    let row = |it: &Look| {
        [
            one_line(&it.name),
            it.state.to_string(),
            it.pid.map_or_else(none, |it| it.to_string()),
            it.up_since.map_or_else(none, |it| age(now, it)),
            it.calls_ended.to_string(),
            it.calls.to_string(),
            it.memory.map_or_else(none, bytes),
            it.starts.saturating_sub(1).to_string(),
            why(it, now),
        ]
    };
    let rows: Vec<[String; 9]> =
        std::iter::once(head.map(str::to_owned)).chain(plugins.iter().map(row)).collect();
    let style = |row: usize, column: usize| match (row, column) {
        (0, _) => Some(DIM),
        (row, 1) => plugins.get(row - 1).map(|it| colour(it.state)),
        _ => None,
    };
    styled(&rows, style)
}

fn colour(state: State) -> Style {
    match state {
        State::Active => GOOD,
        State::Quarantined | State::Invalid => BAD,
        State::Backoff => WARN,
        _ => PLAIN,
    }
}

/// Nothing needs to be said of one that is well.
fn why(it: &Look, now: u64) -> String {
    let code = it.reason.code.as_ref().map_or(String::new(), |code| format!(" [{code}]"));
    match it.state {
        State::Active => "-".into(),
        State::Backoff => {
            let left = it.until.unwrap_or(now).saturating_sub(now);
            format!("{}{code}; next try in {}", one_line(&it.reason.text), short(ms(left)))
        }
        _ => format!("{}{code}", one_line(&it.reason.text)),
    }
}

/// What a plugin is not held to, in one line.
pub(crate) fn unenforced(it: &Look) -> String {
    let what = |text: &String| text.split(" is not enforced").next().map(one_line);
    let what: Vec<String> = it.degraded.iter().filter_map(what).collect();
    let name = one_line(&it.name);
    format!("{name}: {}; `plugbay why {name}` says more", what.join(", "))
}

/// All bounds of one plugin, a line each.
pub(crate) fn limits(bounds: &[Bound], calls: usize) -> String {
    let head = ["LIMIT", "SET", "FROM", "CHANGES HOLD", "NOW"].map(str::to_owned);
    let row = |it: &Bound| {
        let was = it.was.as_ref().map_or(String::new(), |was| format!(", was {}", one_line(was)));
        let hold = match (it.at_once, it.holds.is_some()) {
            (true, true) => "at once",
            (true, false) => "from the next call",
            (false, _) => "from the next process",
        };
        let now = match it.key.as_str() {
            "concurrency" => calls.to_string(),
            _ => held(it),
        };
        let from = format!("{}{was}", one_line(&it.from));
        [one_line(&it.key), one_line(&it.value), from, hold.into(), now]
    };
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(bounds.iter().map(row)).collect();
    styled(&rows, |row, _| (row == 0).then_some(DIM))
}

/// What is counted at this moment, and what holds.
fn held(it: &Bound) -> String {
    match (&it.used, &it.holds) {
        (Some(used), Some(holds)) => one_line(&format!("{used} of {holds}")),
        (None, Some(holds)) => one_line(&format!("held to {holds}")),
        _ => "-".into(),
    }
}

/// All bounds on all plugins together, a line each.
pub(crate) fn ceilings(bounds: &[Bound]) -> String {
    let head = ["LIMIT", "SET", "FROM", "PROMISED", "NOW"].map(str::to_owned);
    let row = |it: &Bound| {
        let was = it.was.as_ref().map_or(String::new(), |was| format!(", was {}", one_line(was)));
        let from = format!("{}{was}", one_line(&it.from));
        let promised = it.promised.as_deref().unwrap_or("-");
        [one_line(&it.key), one_line(&it.value), from, one_line(promised), held(it)]
    };
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(bounds.iter().map(row)).collect();
    styled(&rows, |row, _| (row == 0).then_some(DIM))
}

/// What is known about one plugin.
#[derive(Debug, Deserialize)]
pub(crate) struct Known {
    plugin: Look,
    ends: Vec<End>,
    /// The last lines of the process that runs.
    words: Vec<String>,
    next: String,
    help: Vec<String>,
}

/// One page, the cause first.
pub(crate) fn page(known: &Known, source: &Source) -> String {
    let now = epoch_ms(SystemTime::now());
    let it = &known.plugin;
    let name = one_line(&it.name);
    let who = match (&it.id, &it.version) {
        (Some(id), Some(version)) => format!(" ({} {})", one_line(id), one_line(version)),
        _ => String::new(),
    };
    let style = colour(it.state);
    let mut page = format!(
        "{BOLD}{name}{BOLD:#}{who} has been {style}{}{style:#} for {}: it {}\n\n",
        it.state,
        age(now, it.since),
        one_line(&it.reason.text)
    );
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut add = |label: &str, text: String| {
        // Only the first of several lines has the label.
        let is_new = !rows.iter().any(|row| row[0].trim() == label);
        let label = if is_new { format!("  {label}") } else { String::new() };
        rows.push([label, text]);
    };
    if let Some(end) = known.ends.last() {
        // An earlier process's end is no cause of what the plugin does now, nor of a later
        // refusal to start it.
        let is_cause = it.reason.code.is_some()
            && it.pid.is_none()
            && it.reason.text.ends_with(end.text.as_str());
        let label = if is_cause { "Cause" } else { "Last end" };
        let code = end.code.as_ref().map_or(String::new(), |code| format!(" [{code}]"));
        add(label, format!("it {}{code}, {} ago", one_line(&end.text), age(now, end.at_ms)));
        let lived =
            end.lived_ms.map_or(String::new(), |it| format!(" lived {} and", short(ms(it))));
        let how = match &end.rung {
            Some(rung) => {
                format!("was ended by us, on rung `{}` of the stop ladder", one_line(rung))
            }
            // By itself, by the system, or by somebody else: the cause says it if it is known.
            None => "ended unasked".into(),
        };
        add("Evidence", format!("process {}{lived} {how}", end.pid));
        if let Some(found) = &end.private {
            let found: String = found.chars().take(100).collect();
            let said = match end.code.as_deref() {
                Some("PB0517") => "in its state folder,",
                _ => "it printed or said",
            };
            add("Evidence", format!("{said} {found:?}"));
        }
        end.words.iter().for_each(|line| add("Last words", format!("| {}", one_line(line))));
        for end in known.ends.iter().rev().skip(1).take(BEFORE_MAX) {
            add("Before", format!("{} ago: it {}", age(now, end.at_ms), one_line(&end.text)));
        }
    }
    if let Some(pid) = it.pid {
        let up = it.up_since.map_or(String::new(), |it| format!(" for {}", age(now, it)));
        let memory = it.memory.map_or(String::new(), |it| format!(", {}", bytes(it)));
        let (ended, running) = (it.calls_ended, it.calls);
        add(
            "Process",
            format!("{pid} runs{up}{memory}; calls: {ended} ended, {running} running or waiting"),
        );
        known.words.iter().for_each(|line| add("Says", format!("| {}", one_line(line))));
    }
    it.degraded.iter().for_each(|line| add("Unenforced", one_line(line)));
    add("Next", one_line(&known.next));
    known.help.iter().for_each(|line| add("Fix it", one_line(line)));
    let command = |word: &str| format!("{} {name}", source.command(word));
    if matches!(it.state, State::Quarantined | State::Stopped) {
        add("Then", command("resume"));
    }
    add("See also", command("logs"));
    let mut codes = vec![known.ends.last().and_then(|it| it.code.as_ref())];
    codes.push(it.reason.code.as_ref());
    codes.dedup();
    for code in codes.into_iter().flatten() {
        add("See also", format!("plugbay explain {}", one_line(code)));
    }
    page.push_str(&columns(&rows));
    page
}

/// One line of a log. Names are as wide as the widest that is expected.
pub(crate) fn record(record: &Record, width: usize) -> String {
    let (hours, rest) = (record.at_ms / 3_600_000 % 24, record.at_ms % 3_600_000);
    let (minutes, seconds, ms) = (rest / 60_000, rest / 1000 % 60, rest % 1000);
    let time = format!("{DIM}{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z{DIM:#}");
    let name = one_line(&record.plugin);
    let text = match &record.what {
        What::Stderr(line) => format!("{DIM}|{DIM:#} {}", one_line(line)),
        What::Event(text) => format!("{DIM}*{DIM:#} {PLAIN}{}{PLAIN:#}", one_line(text)),
        What::Missed(count) => format!("{DIM}({count} lines were missed: too many at once){DIM:#}"),
    };
    format!("{time} {name:>width$} {text}")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How long ago something was.
fn age(now: u64, then: u64) -> String {
    short(ms(now.saturating_sub(then)))
}

/// A time as people read it: its two largest units.
fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds == 0 => format!("{} ms", time.as_millis()),
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(name: &str, state: &str, reason: serde_json::Value, up: Option<u64>) -> Look {
        let now = epoch_ms(SystemTime::now());
        let up = up.map(|it| now - it);
        serde_json::from_value(json!({
            "name": name, "id": "acme.geo", "version": "1.4.0", "state": state, "reason": reason,
            "pid": up.map(|_| 3120), "since": now - 125_000, "until": null, "up_since": up,
            "starts": 3, "deaths": 2, "calls": 1, "degraded": [], "calls_ended": 14,
            "memory": up.map(|_| 212_u64 << 20),
        }))
        .unwrap()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_table_of_what_runs() {
        let plugins = [
            look(
                "tickets",
                "active",
                json!({ "code": null, "text": "is running" }),
                Some(7_860_000),
            ),
            look("geo", "quarantined", json!({ "code": "PB0509", "text": "died" }), None),
        ];
        let expected = "\
PLUGIN   STATE        PID   UP          CALLS  NOW  MEMORY   RESTARTS  WHY
tickets  active       3120  2 h 11 min  14     1    212 MiB  2         -
geo      quarantined  -     -           14     1    -        2         died [PB0509]
";
        assert_eq!(plain(&table(&plugins)), expected);
    }

    #[test]
    fn a_page_has_the_cause_first_and_ends_with_what_to_do() {
        let now = epoch_ms(SystemTime::now());
        let end = |at: u64, text: &str| End {
            at_ms: now - at,
            pid: 40_817,
            lived_ms: Some(90_000),
            code: Some("PB0507".into()),
            text: text.into(),
            private: None,
            seen: None,
            rung: None,
            words: vec!["loading\u{1b}[2J".into(), "oh no".into()],
        };
        let reason = |code, text| json!({ "code": code, "text": text });
        let known = |state, reason, up| Known {
            plugin: look("geo", state, reason, up),
            ends: vec![end(300_000, "exited with status 1"), end(125_000, "was ended by SIGKILL")],
            words: vec![],
            next: "it stays down until somebody resumes it".into(),
            help: vec![],
        };
        let last = reason("PB0509", "is quarantined; it was ended by SIGKILL");
        let expected = "\
geo (acme.geo 1.4.0) has been quarantined for 2 min 5 s: it is quarantined; it was ended by SIGKILL

  Cause       it was ended by SIGKILL [PB0507], 2 min 5 s ago
  Evidence    process 40817 lived 1 min 30 s and ended unasked
  Last words  | loading\u{fffd}[2J
              | oh no
  Before      5 min 0 s ago: it exited with status 1
  Next        it stays down until somebody resumes it
  Then        plugbay resume --config a.toml geo
  See also    plugbay logs --config a.toml geo
              plugbay explain PB0507
              plugbay explain PB0509
";
        let source = Source { config: Some("a.toml".into()), ..Source::default() };
        assert_eq!(plain(&page(&known("quarantined", last, None), &source)), expected);

        // What another process died of is no cause of what this one does, nor of another refusal.
        for (state, text, up) in [
            ("stopping", "did not end a cancelled call", Some(1000)),
            ("stopping", "was ended by SIGKILL", Some(1000)),
            ("quarantined", "was not started: a.py is another file", None),
        ] {
            let page = plain(&page(&known(state, reason("PB0507", text), up), &source));
            assert!(page.contains("\n  Last end  ") && !page.contains("  Cause  "), "{page}");
        }
    }

    #[test]
    fn a_log_line_has_its_time_and_steers_no_terminal() {
        let line = |what| record(&Record { at_ms: 34_267_412, plugin: "geo".into(), what }, 5);
        assert_eq!(
            plain(&line(What::Stderr("a\u{1b}[2Jb".into()))),
            "09:31:07.412Z   geo | a\u{fffd}[2Jb"
        );
        assert_eq!(
            plain(&line(What::Event("Ready geo".into()))),
            "09:31:07.412Z   geo * Ready geo"
        );
        assert!(plain(&line(What::Missed(7))).ends_with("(7 lines were missed: too many at once)"));
    }
}
