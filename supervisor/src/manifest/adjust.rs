//! A change of limits while a plugin runs, under the rules of a manifest.

use serde::Serialize;

use super::{
    codes::Code,
    host::HostFile,
    load::{as_node, open},
    read::{Read, Reader},
    report::{Notes, Problem, Report},
    settings::{self, Layer, Layers},
    source::Source,
    units::{bytes_in_words, in_words},
};
use crate::plan::{Ceilings, Level, PluginPlan};

/// What the change is called where something is wrong with it.
const NAME: &str = "the change";
/// The keys of `[limits]` that hold for every plugin.
const LIMITS: [&str; 7] = ["frame", "result", "concurrency", "queue", "calls", "stderr", "state"];
/// The keys of `[timeouts]`.
const TIMEOUTS: [&str; 7] = ["start", "activate", "call", "call_max", "cancel", "drain", "stop"];
/// The keys of `[limits]` that only a sandbox enforces.
const SYSTEM: [&str; 5] = ["memory", "cpu", "processes", "open_files", "file"];
/// The keys of `[host]` that bound all plugins together, and the others.
const CEILINGS: [&str; 3] = ["memory", "cpu", "processes"];
const FIXED: [&str; 2] = ["state_dir", "control"];
/// That one that nothing holds a plugin to yet.
const UNENFORCED: [&str; 1] = ["overflow"];

/// The bounds on all plugins together with others in place of some: pairs of a key of `[host]`
/// and a value, such as `memory` and `4GiB`.
///
/// # Errors
/// All that is wrong with them, as with a manifest.
pub fn adjust_ceilings(
    ceilings: Ceilings,
    changes: &[(String, String)],
) -> Result<Ceilings, Report> {
    let mut report = Report::default();
    let text = format!("manifest = 1\n[host]\n{}", lines(changes));
    let mut adjusted = ceilings;
    read(&text, &mut report, |file, source, notes| {
        if let Some(host) = &file.host {
            settings::check_host(host, source, notes);
            adjusted = settings::ceilings(host).or(ceilings);
        }
    });
    for (key, _) in changes.iter().filter(|(key, _)| FIXED.contains(&key.as_str())) {
        let message = format!("`{key}` does not change while plugbay runs");
        let known = CEILINGS.join(", ");
        report.add(
            Problem::error(Code::PB0701, message).help(format!("these can be changed: {known}")),
        );
    }
    if report.has_errors() { Err(report) } else { Ok(adjusted) }
}

/// All that [`adjust_ceilings`] can change, as they are.
pub fn ceilings(now: Ceilings) -> Vec<Bound> {
    let none = || "-".to_owned();
    let memory = now.memory_bytes.map_or_else(none, bytes_in_words);
    let cpu = now.cpu_percent.map_or_else(none, |it| format!("{it}%"));
    let processes = now.processes.map_or_else(none, |it| it.to_string());
    let all = CEILINGS.into_iter().zip([memory, cpu, processes]);
    all.map(|(key, value)| Bound { key, value, at_once: true }).collect()
}

/// Reads changes as the manifest that they would be, and has them `taken` over.
fn read(text: &str, report: &mut Report, taken: impl FnOnce(&HostFile, &Source, &mut Notes)) {
    let mut source = Source::new(NAME, text);
    match open(&mut source, text) {
        Err(problems) => problems.into_iter().for_each(|it| report.add(it)),
        Ok(table) => {
            let mut reader = Reader::new(&source);
            let file = HostFile::read(&as_node(table), &mut reader);
            let mut notes = Notes::default();
            if let Some(file) = &file {
                taken(file, &source, &mut notes);
            }
            reader.problems.into_iter().chain(notes.problems).for_each(|it| report.add(it));
        }
    }
    report.sources.push(source);
}

/// One line for each, as in a manifest.
fn lines(changes: &[(String, String)]) -> String {
    changes.iter().map(|(key, value)| line(key, value)).collect()
}

fn line(key: &str, value: &str) -> String {
    let value = match value.parse::<i64>() {
        Ok(number) => number.to_string(),
        Err(_) => toml::Value::String(value.to_owned()).to_string(),
    };
    format!("{} = {value}\n", toml::Value::String(key.to_owned()))
}

/// The plan with other limits and timeouts: pairs of a manifest's key and value, such as
/// `queue` and `64` or `call` and `45s`.
///
/// # Errors
/// All that is wrong with them, as with a manifest.
pub fn adjust(plan: &PluginPlan, changes: &[(String, String)]) -> Result<PluginPlan, Report> {
    let mut tables = [String::new(), String::new()];
    for (key, value) in changes {
        // A key that is neither is told so, with the nearest name, by the reader.
        let table = &mut tables[usize::from(TIMEOUTS.contains(&key.as_str()))];
        table.push_str(&line(key, value));
    }
    let [limits, timeouts] = tables;
    let text = format!("manifest = 1\n[defaults.limits]\n{limits}[defaults.timeouts]\n{timeouts}");
    let mut report = Report::default();
    let mut adjusted = plan.clone();
    read(&text, &mut report, |file, source, notes| {
        let layer = Layer::defaults(file.defaults.as_ref());
        let layers = Layers { upper: layer, lower: Layer::default() };
        settings::check(layer, source, notes);
        settings::check_pairs(layers, false, source, notes);
        settings::apply(layers, &mut adjusted);
    });
    let is_bare = plan.sandbox.level == Level::None;
    let is_idle = |key: &str| UNENFORCED.contains(&key) || is_bare && SYSTEM.contains(&key);
    for (key, _) in changes.iter().filter(|(key, _)| is_idle(key)) {
        let message = format!("`{key}` is not enforced here, so that changing it changes nothing");
        let system: &[&str] = if is_bare { &[] } else { &SYSTEM };
        let known = [&LIMITS[..], system, &TIMEOUTS].concat().join(", ");
        report.add(
            Problem::error(Code::PB0701, message).help(format!("these can be changed: {known}")),
        );
    }
    let (result, frame) = (adjusted.limits.result_bytes as u64, adjusted.limits.frame_bytes.into());
    if frame < result {
        let [result, frame] = [result, frame].map(bytes_in_words);
        let message = format!("`result` would be {result}, and `frame` is only {frame}");
        report.add(
            Problem::error(Code::PB0112, message)
                .help("a result comes in one frame, so it is never larger than a frame"),
        );
    }
    if report.has_errors() { Err(report) } else { Ok(adjusted) }
}

/// One limit or budget of time, in the words of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// The key, such as `call_max`.
    pub key: &'static str,
    /// The value, such as `10m`; `-` where there is no bound.
    pub value: String,
    /// Whether a change holds from the next call on, and not only from the next process on.
    pub at_once: bool,
}

/// All that [`adjust`] can change, as they are in a plan.
pub fn bounds(plan: &PluginPlan) -> Vec<Bound> {
    let (limits, times) = (&plan.limits, &plan.timeouts);
    let bytes = |n: usize| bytes_in_words(n as u64);
    let rate = limits.calls_per_minute.map_or("-".into(), |it| format!("{it}/min"));
    let number = |it: Option<u32>| it.map_or("-".into(), |it| it.to_string());
    let size = |it: Option<u64>| it.map_or("-".into(), bytes_in_words);
    let system = [
        ("memory", size(limits.memory_bytes), false),
        ("cpu", limits.cpu_percent.map_or("-".into(), |it| format!("{it}%")), false),
        ("processes", number(limits.processes), false),
        ("open_files", number(limits.open_files), false),
        ("file", size(limits.file_bytes), false),
    ];
    let system = if plan.sandbox.level == Level::None { &[][..] } else { &system };
    let stop = times.exit_grace + times.eof_grace + times.term_grace;
    let own = [
        ("frame", bytes(limits.frame_bytes as usize), false),
        ("result", bytes(limits.result_bytes), true),
        ("concurrency", limits.concurrency.to_string(), false),
        ("queue", limits.queue.to_string(), true),
        ("calls", rate, true),
        ("stderr", format!("{}/s", bytes_in_words(limits.stderr_bytes_per_second)), false),
        ("state", size(limits.state_bytes), true),
    ];
    let time = [
        ("start", in_words(times.hello), false),
        ("activate", in_words(times.activate), false),
        ("call", in_words(times.call_idle), true),
        ("call_max", in_words(times.call), true),
        ("cancel", in_words(times.cancel_grace), false),
        ("drain", in_words(times.drain), false),
        ("stop", in_words(stop), false),
    ];
    let all = own.iter().chain(system).chain(&time).cloned();
    all.map(|(key, value, at_once)| Bound { key, value, at_once }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn change(pairs: &[(&str, &str)]) -> Result<PluginPlan, String> {
        let plan = PluginPlan::new("p", vec!["/bin/true".into()], "/");
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        adjust(&plan, &pairs).map_err(|it| it.render(false))
    }

    #[test]
    fn what_is_changed_is_changed_and_nothing_else() {
        let seconds = Duration::from_secs;
        let plan = change(&[("queue", "64"), ("calls", "120/min"), ("call", "45s")]).unwrap();
        let before = change(&[]).unwrap();
        assert_eq!((plan.limits.queue, plan.limits.calls_per_minute), (64, Some(120)));
        assert_eq!((plan.timeouts.call_idle, plan.timeouts.call), (seconds(45), seconds(600)));
        assert_eq!(plan.limits.concurrency, before.limits.concurrency);
        assert_eq!(plan.timeouts.hello, before.timeouts.hello);
        let all: Vec<(&str, &str)> = [("frame", "2MiB"), ("result", "2MiB"), ("concurrency", "2")]
            .into_iter()
            .chain([("stderr", "1KiB/s"), ("stop", "16s"), ("call_max", "1m")])
            .collect();
        let plan = change(&all).unwrap();
        assert_eq!((plan.limits.frame_bytes, plan.limits.result_bytes), (2 << 20, 2 << 20));
        assert_eq!(plan.timeouts.exit_grace, seconds(10));
        assert_eq!((plan.timeouts.call_idle, plan.timeouts.call), (seconds(30), seconds(60)));
    }

    /// Whatever is shown can be written, and means the same.
    #[test]
    fn every_bound_can_be_set_to_what_it_is() {
        let pairs = [("calls", "120/min"), ("stop", "16s"), ("call", "45s"), ("state", "64MiB")];
        let plan = change(&pairs).unwrap();
        let all = bounds(&plan);
        let keys: Vec<&str> = all.iter().map(|it| it.key).collect();
        assert_eq!(keys, [&LIMITS[..], &TIMEOUTS].concat());
        let mut closed = plan.clone();
        closed.sandbox.level = Level::Standard;
        let changes = [("memory", "64MiB"), ("cpu", "50%"), ("processes", "8")];
        let others = [("open_files", "64"), ("file", "1MiB")];
        let changes = changes.into_iter().chain(others);
        let changes: Vec<_> = changes.map(|(key, value)| (key.into(), value.into())).collect();
        let closed = bounds(&adjust(&closed, &changes).unwrap());
        let pairs: Vec<(String, String)> =
            closed.iter().map(|it| (it.key.into(), it.value.clone())).collect();
        assert!(changes.iter().all(|it| pairs.contains(it)), "{pairs:?}");
        for bound in &all {
            let again = adjust(&plan, &[(bound.key.into(), bound.value.clone())]).unwrap();
            assert_eq!(bounds(&again), all, "{bound:?}");
        }
    }

    #[test]
    fn bounds_on_all_plugins_are_changed_by_the_same_rules() {
        let before = Ceilings { memory_bytes: Some(1 << 30), ..Ceilings::default() };
        let change = |key: &str, value: &str| {
            adjust_ceilings(before, &[(key.into(), value.into())]).map_err(|it| it.render(false))
        };
        let after = change("processes", "512").unwrap();
        assert_eq!(after, Ceilings { processes: Some(512), ..before });
        let shown: Vec<_> = ceilings(after).into_iter().map(|it| (it.key, it.value)).collect();
        let set = [("memory", "1GiB"), ("cpu", "-"), ("processes", "512")];
        assert_eq!(shown, set.map(|(key, value)| (key, value.to_owned())));
        let after = change("cpu", "150%").unwrap();
        assert_eq!(after, Ceilings { cpu_percent: Some(150), ..before });
        for (key, value, expected) in [
            ("memory", "1KiB", "at least 1MiB"),
            ("memory", "4", "error[PB0103]"),
            ("cpu", "0%", "at least 1%"),
            ("memroy", "4GiB", "did you mean `memory`?"),
            ("state_dir", "/", "`state_dir` does not change while plugbay runs"),
            ("a\n[plugins", "1", "error[PB0101]"),
        ] {
            let report = change(key, value).unwrap_err();
            assert!(report.contains(expected), "{key}: no {expected:?} in {report}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_as_in_a_manifest() {
        for (pairs, expected) in [
            (&[("queu", "1")][..], "did you mean `queue`?"),
            (&[("queue", "99999")], "at most 65535"),
            (&[("queue", "many")], "error[PB0104]"),
            (&[("call", "45")], "error[PB0103]"),
            (&[("call", "10s"), ("call_max", "5s")], "`call_max` is only 5s"),
            (&[("result", "4MiB")], "`frame` is only 1MiB"),
            (&[("memory", "1GiB")], "`memory` is not enforced here"),
            (&[("queue", "1"), ("queue", "2")], "error[PB01"),
            (&[("a\nb = 1", "1")], "error[PB0101]"),
            (&[("call", "\"]\n[x")], "error[PB0103]"),
        ] {
            let report = change(pairs).unwrap_err();
            assert!(report.contains(expected), "{pairs:?}: no {expected:?} in {report}");
        }
    }
}
