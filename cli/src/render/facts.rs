//! Facts as status lines for people and as objects for programs.

use std::time::{Duration, SystemTime};

use plugbay_supervisor::{Event, Fact, Level, Ran, Reason, State};
use serde_json::{Value, json};

use super::{BAD, GOOD, PLAIN, Status, Volume, WARN};

/// What a fact looks like, and at which volume it is worth a line. `tools` are
/// those of a plugin that has become active.
pub(crate) fn line(
    fact: &Fact,
    tools: impl FnOnce(&str) -> Vec<String>,
) -> Option<(Volume, Status)> {
    let normal = |style, verb, text: String| Some((Volume::Normal, Status::new(style, verb, text)));
    let loud = |style, verb, text: String| Some((Volume::Loud, Status::new(style, verb, text)));
    match fact {
        Fact::Spawned { plugin, pid } => normal(GOOD, "Starting", format!("{plugin} (pid {pid})")),
        Fact::Greeted { plugin, id, version, took } => {
            loud(GOOD, "Hello", format!("{plugin} is {id} {version} ({})", short(*took)))
        }
        Fact::Became { plugin, state, reason } => became(plugin, *state, reason, tools),
        Fact::Remains {
            plugin,
            left_behind,
            refused,
            refused_to_all,
            killed,
            cpu,
            resident_bytes,
            ..
        } => {
            let all = [
                (u64::from(*left_behind), "processes that it had left behind were ended"),
                (*refused, "forks were refused by limits.processes"),
                (*refused_to_all, "forks were refused by host.processes"),
                (*killed, "of its processes killed because memory was spent"),
            ];
            let words = all.iter().filter(|(count, _)| 0 < *count);
            let words: Vec<_> = words.map(|(count, what)| format!("{count} {what}")).collect();
            match words.as_slice() {
                [] => loud(
                    PLAIN,
                    "Used",
                    format!(
                        "{plugin}: {} of processor time, {}",
                        short(*cpu),
                        bytes(*resident_bytes)
                    ),
                ),
                words => normal(WARN, "Found", format!("{plugin}: {}", words.join(", "))),
            }
        }
        Fact::Exited { plugin, pid, reason, rung } => {
            let rung = rung.map_or(String::new(), |rung| format!(", after {rung}"));
            // An operator's terminal is where a plugin's own words belong.
            let words: Option<String> = reason.private().map(|it| it.chars().take(60).collect());
            let words = words.map_or(String::new(), |it| format!(": {it:?}"));
            let text = format!("{plugin} {reason}{words}{} (pid {pid}{rung})", code(reason));
            if reason.code().is_some() {
                normal(BAD, "Ended", text)
            } else {
                loud(PLAIN, "Ended", text)
            }
        }
        Fact::Waiting { plugin, delay, deaths } => {
            let times = if *deaths == 1 { "once".into() } else { format!("{deaths} times") };
            let text = format!("{} before {plugin} starts again (it died {times})", short(*delay));
            normal(WARN, "Waiting", text)
        }
        Fact::CallStarted { call, tool, caller } => {
            loud(PLAIN, "Calling", format!("{tool} for {caller} (call {call})"))
        }
        Fact::CallEnded { call, tool, outcome, ran, took, .. } => {
            let ran = match ran {
                Ran::Yes => "",
                Ran::No => ", did not run",
                Ran::Unknown => ", may have run",
            };
            let style = if *outcome == "ok" { GOOD } else { WARN };
            loud(style, "Called", format!("{tool}: {outcome}{ran} (call {call}, {})", short(*took)))
        }
        Fact::CallDropped { call, tool } => {
            loud(WARN, "Cancelled", format!("{tool} (call {call}): its caller gave it up"))
        }
        Fact::Log { plugin, level, event } => {
            let style = if matches!(level, Level::Warn | Level::Error) { WARN } else { PLAIN };
            loud(style, "Log", format!("{plugin}: {} {event}", level.as_str()))
        }
        Fact::Dropped { plugin, what, count } => {
            let much = match *what {
                "stderr bytes" => format!("{} of {plugin}'s stderr", bytes(*count)),
                what => format!("{count} {what} of {plugin}"),
            };
            normal(WARN, "Dropped", format!("{much}: more than its rate allows"))
        }
        Fact::Refused { plugin, why, .. } => normal(WARN, "Refused", format!("{plugin}: {why}")),
        Fact::Withheld { tool, plugin, why } => {
            normal(WARN, "Withheld", format!("tool {tool} of {plugin}: {why}"))
        }
        Fact::Missed { count } => {
            normal(WARN, "Missed", format!("{count} events: too many at once"))
        }
        _ => None,
    }
}

/// A size as people say it.
pub(crate) fn bytes(count: u64) -> String {
    let mut size = count as f64;
    let mut unit = None;
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, Some(larger));
    }
    match unit {
        None => format!("{count} bytes"),
        Some(unit) if size < 10.0 => format!("{size:.1} {unit}"),
        Some(unit) => format!("{size:.0} {unit}"),
    }
}

fn became(
    plugin: &str,
    state: State,
    reason: &Reason,
    tools: impl FnOnce(&str) -> Vec<String>,
) -> Option<(Volume, Status)> {
    let (volume, style, verb) = match state {
        State::Active => {
            let tools = tools(plugin);
            let count = match tools.len() {
                1 => "1 tool".to_owned(),
                n => format!("{n} tools"),
            };
            let list =
                if tools.is_empty() { String::new() } else { format!(": {}", tools.join(", ")) };
            let status = Status::new(GOOD, "Ready", format!("{plugin}, {count}{list}"));
            return Some((Volume::Normal, status));
        }
        // The process's start and the wait have lines of their own.
        State::Starting | State::Backoff => return None,
        State::Dormant => (Volume::Normal, PLAIN, "Dormant"),
        State::Draining => (Volume::Loud, PLAIN, "Draining"),
        State::Stopping => (Volume::Loud, PLAIN, "Stopping"),
        State::Quarantined => (Volume::Normal, BAD, "Quarantined"),
        // Whoever ends everything is told of the end of everything.
        State::Stopped if *reason == Reason::Shutdown => (Volume::Loud, PLAIN, "Stopped"),
        State::Stopped => (Volume::Normal, PLAIN, "Stopped"),
        State::Disabled => (Volume::Normal, PLAIN, "Disabled"),
        State::Invalid => (Volume::Normal, BAD, "Invalid"),
    };
    Some((volume, Status::new(style, verb, format!("{plugin} {reason}{}", code(reason)))))
}

fn code(reason: &Reason) -> String {
    reason.code().map_or(String::new(), |code| format!(" [{code}]"))
}

/// One event for a program. No body, argument, result or line of stderr is in it.
pub(crate) fn to_json(event: &Event) -> Value {
    let (word, mut body) = match &event.fact {
        Fact::Spawned { plugin, pid } => ("spawned", json!({ "plugin": &**plugin, "pid": pid })),
        Fact::Greeted { plugin, id, version, took } => (
            "greeted",
            json!({ "plugin": &**plugin, "id": id, "version": version, "took_ms": ms(*took) }),
        ),
        Fact::Became { plugin, state, reason } => {
            ("became", json!({ "plugin": &**plugin, "state": state, "reason": &**reason }))
        }
        Fact::Remains {
            plugin,
            pid,
            left_behind,
            refused,
            refused_to_all,
            killed,
            cpu,
            resident_bytes,
        } => (
            "remains",
            json!({
                "plugin": &**plugin, "pid": pid, "left_behind": left_behind,
                "forks_refused": refused, "forks_refused_to_all": refused_to_all, "killed_for_memory": killed,
                "cpu_ms": ms(*cpu), "resident_bytes": resident_bytes,
            }),
        ),
        Fact::Exited { plugin, pid, reason, rung } => (
            "exited",
            json!({ "plugin": &**plugin, "pid": pid, "reason": &**reason, "rung": rung }),
        ),
        Fact::Waiting { plugin, delay, deaths } => {
            ("waiting", json!({ "plugin": &**plugin, "delay_ms": ms(*delay), "deaths": deaths }))
        }
        Fact::CallStarted { call, tool, caller } => {
            ("call_started", json!({ "call": call, "tool": &**tool, "caller": &**caller }))
        }
        Fact::CallEnded { call, tool, caller, outcome, ran, took } => (
            "call_ended",
            json!({
                "call": call, "tool": &**tool, "caller": &**caller,
                "outcome": outcome, "ran": ran, "took_ms": ms(*took),
            }),
        ),
        Fact::CallDropped { call, tool } => {
            ("call_dropped", json!({ "call": call, "tool": &**tool }))
        }
        Fact::Log { plugin, level, event } => {
            ("log", json!({ "plugin": &**plugin, "level": level.as_str(), "event": event }))
        }
        Fact::Dropped { plugin, what, count } => {
            ("dropped", json!({ "plugin": &**plugin, "what": what, "count": count }))
        }
        Fact::Refused { plugin, to, why } => {
            ("refused", json!({ "plugin": &**plugin, "to": to, "why": why }))
        }
        Fact::Withheld { tool, plugin, why } => {
            ("withheld", json!({ "plugin": &**plugin, "tool": tool, "why": why }))
        }
        Fact::Missed { count } => ("missed", json!({ "count": count })),
        _ => ("other", json!({})),
    };
    body["fact"] = word.into();
    body["seq"] = event.seq.into();
    let at = event.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    body["at_ms"] = ms(at).into();
    body
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time with as many digits as anybody reads.
pub(crate) fn short(time: Duration) -> String {
    match time.as_millis() {
        0 => format!("{} µs", time.as_micros()),
        ms @ 1..10_000 => format!("{ms} ms"),
        ms => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn became(state: State, reason: Reason) -> Fact {
        Fact::Became { plugin: "geo".into(), state, reason: Arc::new(reason) }
    }

    #[test]
    fn facts_read_as_sentences() {
        let exited = Reason::Exited { code: 3, active: true };
        let (plugin, tool): (Arc<str>, Arc<str>) = ("geo".into(), "lookup".into());
        let quarantined = Reason::Quarantined {
            deaths: 5,
            within: Duration::from_secs(600),
            last: Box::new(exited.clone()),
        };
        #[rustfmt::skip]
        let table = [
            (Fact::Spawned { plugin: Arc::clone(&plugin), pid: 7 }, "Starting geo (pid 7)"),
            (became(State::Active, Reason::Running), "Ready geo, 2 tools: lookup, near"),
            (became(State::Dormant, Reason::IdleStop), "Dormant geo was stopped because nobody used it; a call wakes it"),
            (became(State::Quarantined, quarantined), "Quarantined geo is quarantined after 5 deaths within 600s; the last time it exited with status 3 [PB0509]"),
            (Fact::Exited { plugin: Arc::clone(&plugin), pid: 7, reason: Arc::new(exited), rung: None }, "Ended geo exited with status 3 [PB0507] (pid 7)"),
            (Fact::Waiting { plugin: Arc::clone(&plugin), delay: Duration::from_millis(250), deaths: 1 }, "Waiting 250 ms before geo starts again (it died once)"),
            (Fact::CallEnded { call: 1, tool, caller: "cli".into(), outcome: "PB0505", ran: Ran::Unknown, took: Duration::from_secs(30) }, "Called lookup: PB0505, may have run (call 1, 30 s)"),
            (Fact::Refused { plugin: Arc::clone(&plugin), to: "a:1".into(), why: "a:1 was not granted".into() }, "Refused geo: a:1 was not granted"),
            (Fact::Withheld { tool: "x".into(), plugin, why: "it is taken".into() }, "Withheld tool x of geo: it is taken"),
        ];
        for (fact, expected) in table {
            let (_, status) = line(&fact, |_| vec!["lookup".into(), "near".into()]).unwrap();
            assert_eq!(format!("{} {}", status.verb, status.text), expected);
            assert!(status.verb.len() < super::super::VERB_WIDTH);
        }
    }

    #[test]
    fn a_start_and_a_wait_have_one_line_each() {
        assert_eq!(
            line(&became(State::Starting, Reason::StartingUp { greeted: false }), |_| vec![]),
            None
        );
        assert_eq!(line(&became(State::Backoff, Reason::StdoutEnded), |_| vec![]), None);
    }

    #[test]
    fn sizes_are_said_in_the_unit_that_fits() {
        let table =
            [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (862_050_626, "822 MiB")];
        for (count, expected) in table {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn programs_get_every_event_with_its_number() {
        let reason = Reason::Exited { code: 3, active: true };
        let fact = became(State::Dormant, reason);
        let event = Event { seq: 9, at: SystemTime::UNIX_EPOCH + Duration::from_millis(5), fact };
        let expected = json!({
            "seq": 9, "at_ms": 5, "fact": "became", "plugin": "geo", "state": "dormant",
            "reason": { "kind": "exited", "code": "PB0507", "text": "exited with status 3" },
        });
        assert_eq!(to_json(&event), expected);
    }
}
