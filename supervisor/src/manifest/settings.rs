//! Limits, timeouts and the other settings: what is possible, and which layer wins.
//!
//! Built-in defaults < `[defaults]` < the plugin's own tables, key by key.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    codes::Code,
    host::{Approve, Defaults, Host, Idle, Limits, Plugin, Restart, StartAt, Timeouts},
    read::At,
    report::{Notes, Problem},
    source::Source,
    units::{BytesPerSecond, PerMinute, Percent, Size, Time, bytes_in_words, in_words},
};
use crate::plan;

/// The tables of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layer<'a> {
    pub(crate) limits: Option<&'a Limits>,
    pub(crate) timeouts: Option<&'a Timeouts>,
    pub(crate) restart: Option<&'a Restart>,
    pub(crate) idle: Option<&'a Idle>,
    pub(crate) sandbox: Option<&'a super::host::Sandbox>,
    pub(crate) approve: Option<&'a Approve>,
}

impl<'a> Layer<'a> {
    pub(crate) fn defaults(of: Option<&'a Defaults>) -> Self {
        let Some(of) = of else { return Self::default() };
        Self {
            limits: of.limits.as_ref(),
            timeouts: of.timeouts.as_ref(),
            restart: of.restart.as_ref(),
            idle: of.idle.as_ref(),
            sandbox: of.sandbox.as_ref(),
            approve: of.approve.as_ref(),
        }
    }

    pub(crate) fn plugin(of: &'a Plugin) -> Self {
        Self {
            limits: of.limits.as_ref(),
            timeouts: of.timeouts.as_ref(),
            restart: of.restart.as_ref(),
            idle: of.idle.as_ref(),
            sandbox: of.sandbox.as_ref(),
            approve: of.approve.as_ref(),
        }
    }
}

/// Two layers; what the upper one says wins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layers<'a> {
    pub(crate) upper: Layer<'a>,
    pub(crate) lower: Layer<'a>,
}

/// The key of the upper table, or else of the lower one.
macro_rules! pick {
    ($layers:expr, $table:ident . $key:ident) => {
        $layers
            .upper
            .$table
            .and_then(|it| it.$key.as_ref())
            .or_else(|| $layers.lower.$table.and_then(|it| it.$key.as_ref()))
    };
}

pub(crate) use pick;

const DAY: Duration = Duration::from_secs(24 * 3_600);
const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=DAY;

/// Checks the numbers of one layer, each by itself.
pub(crate) fn check(layer: Layer<'_>, source: &Source, notes: &mut Notes) {
    let mut check = Check { source, notes };
    if let Some(it) = layer.limits {
        let size = |at: &Option<At<Size>>| at.as_ref().map(|it| At::new(it.0, it.span.clone()));
        check.number("frame", size(&it.frame), (64 << 10)..=(256 << 20), bytes_in_words);
        check.number("result", size(&it.result), (1 << 10)..=(256 << 20), bytes_in_words);
        check.number("file", size(&it.file), (1 << 10)..=u64::MAX, bytes_in_words);
        check.number("state", size(&it.state), (1 << 20)..=u64::MAX, bytes_in_words);
        check.number("memory", size(&it.memory), (1 << 20)..=u64::MAX, bytes_in_words);
        check.number("concurrency", wide(&it.concurrency), 1..=65_535, |it| it.to_string());
        check.number("queue", wide(&it.queue), 0..=65_535, |it| it.to_string());
        check.number("processes", wide(&it.processes), 1..=65_535, |it| it.to_string());
        check.number("open_files", wide(&it.open_files), 8..=1_048_576, |it| it.to_string());
        let calls = it.calls.as_ref().map(|it| At::new(u64::from(it.0), it.span.clone()));
        check.number("calls", calls, 1..=1_000_000, |it| format!("{it}/min"));
        let stderr = it.stderr.as_ref().map(|it| At::new(it.0, it.span.clone()));
        check.number("stderr", stderr, (1 << 10)..=(1 << 30), |it| {
            format!("{}/s", bytes_in_words(it))
        });
        check.percent("cpu", &it.cpu);
    }
    if let Some(it) = layer.timeouts {
        for (key, at) in [
            ("start", &it.start),
            ("activate", &it.activate),
            ("call", &it.call),
            ("call_max", &it.call_max),
            ("cancel", &it.cancel),
            ("drain", &it.drain),
            ("stop", &it.stop),
        ] {
            check.time(key, at, TIMES);
        }
    }
    if let Some(it) = layer.restart {
        check.time("first", &it.first, TIMES);
        check.time("max", &it.max, TIMES);
        check.time("healthy", &it.healthy, TIMES);
        if let Some(budget) = &it.budget {
            let restarts = At::new(u64::from(*budget.restarts), budget.restarts.span.clone());
            check.number("restarts", Some(restarts), 0..=1_000, |it| it.to_string());
            let within = At::new(budget.within.0, budget.within.span.clone());
            check.number("within", Some(within), TIMES, in_words);
        }
        check.number("jitter", it.jitter.clone(), 0.0..=1.0, |it| it.to_string());
    }
    if let Some(stop) = layer.idle.and_then(|it| it.stop.as_ref()) {
        let stop = stop.0.map(|time| At::new(time, stop.span.clone()));
        check.number("stop", stop, Duration::from_secs(1)..=30 * DAY, in_words);
    }
}

/// Checks the bounds on all plugins together.
pub(crate) fn check_host(host: &Host, source: &Source, notes: &mut Notes) {
    let mut check = Check { source, notes };
    let memory = host.memory.as_ref().map(|it| At::new(it.0, it.span.clone()));
    check.number("memory", memory, (1 << 20)..=u64::MAX, bytes_in_words);
    check.percent("cpu", &host.cpu);
    // As many as the kernel has numbers for.
    check.number("processes", wide(&host.processes), 1..=4_194_304, |it| it.to_string());
}

/// Those bounds.
pub(crate) fn ceilings(host: &Host) -> plan::Ceilings {
    plan::Ceilings {
        memory_bytes: host.memory.as_ref().map(|it| it.0),
        cpu_percent: host.cpu.as_ref().map(|it| it.0),
        processes: host.processes.as_ref().map(|it| it.value),
    }
}

fn wide(at: &Option<At<u32>>) -> Option<At<u64>> {
    at.as_ref().map(|it| At::new(u64::from(it.value), it.span.clone()))
}

struct Check<'a> {
    source: &'a Source,
    notes: &'a mut Notes,
}

impl Check<'_> {
    fn time(&mut self, key: &str, at: &Option<At<Time>>, range: RangeInclusive<Duration>) {
        self.number(key, at.as_ref().map(|it| At::new(it.0, it.span.clone())), range, in_words);
    }

    /// Of one core.
    fn percent(&mut self, key: &str, at: &Option<At<Percent>>) {
        let at = at.as_ref().map(|it| At::new(it.0, it.span.clone()));
        self.number(key, at, 1..=100_000, |it| format!("{it}%"));
    }

    fn number<T: PartialOrd + Copy>(
        &mut self,
        key: &str,
        at: Option<At<T>>,
        range: RangeInclusive<T>,
        words: impl Fn(T) -> String,
    ) {
        let Some(at) = at.filter(|it| !range.contains(&it.value)) else { return };
        let (low, high) = (words(*range.start()), words(*range.end()));
        let (bound, label) = if at.value < *range.start() {
            (format!("at least {low}"), format!("less than {low}"))
        } else if at.value > *range.end() {
            (format!("at most {high}"), format!("more than {high}"))
        } else {
            // Not a number, which is neither less nor more.
            (format!("a number from {low} to {high}"), "no such number".to_owned())
        };
        let message = format!("`{key}` expects {bound}, found {}", words(at.value));
        self.notes.add(Problem::error(Code::PB0111, message).at(self.source, &at.span, label));
    }
}

/// Checks numbers against each other. With `only_upper`, pairs that the lower
/// layer alone has said are left out: they have been checked once.
pub(crate) fn check_pairs(
    layers: Layers<'_>,
    only_upper: bool,
    source: &Source,
    notes: &mut Notes,
) {
    let mut pair = |small: Option<(&str, &At<Time>)>,
                    large: Option<(&str, &At<Time>)>,
                    why: &str| {
        let (Some((small_key, small)), Some((large_key, large))) = (small, large) else { return };
        if large.0 < small.0 {
            let message = format!(
                "`{small_key}` is {} and `{large_key}` is only {}",
                in_words(small.0),
                in_words(large.0)
            );
            notes.add(
                Problem::error(Code::PB0112, message)
                    .at(source, &small.span, "the longer one")
                    .also(source, &large.span, "should not be shorter")
                    .help(why),
            );
        }
    };
    let upper = layers.upper;
    if !only_upper || upper.timeouts.is_some_and(|it| it.call.is_some() || it.call_max.is_some()) {
        pair(
            pick!(layers, timeouts.call).map(|it| ("call", it)),
            pick!(layers, timeouts.call_max).map(|it| ("call_max", it)),
            "`call` bounds the silence within a call, `call_max` the call as a whole",
        );
    }
    if !only_upper || upper.restart.is_some_and(|it| it.first.is_some() || it.max.is_some()) {
        pair(
            pick!(layers, restart.first).map(|it| ("first", it)),
            pick!(layers, restart.max).map(|it| ("max", it)),
            "the wait before a restart grows from `first` to `max`",
        );
    }
    let is_new = upper.limits.is_some_and(|it| it.result.is_some() || it.frame.is_some());
    if let (Some(result), Some(frame)) = (pick!(layers, limits.result), pick!(layers, limits.frame))
        && frame.0 < result.0
        && (is_new || !only_upper)
    {
        let message = format!(
            "`result` is {} and `frame` is only {}",
            bytes_in_words(result.0),
            bytes_in_words(frame.0)
        );
        notes.add(
            Problem::error(Code::PB0112, message)
                .at(source, &result.span, "the larger one")
                .also(source, &frame.span, "should not be smaller")
                .help("a result comes in one frame, so it is never larger than a frame"),
        );
    }
}

/// Writes what the layers say into a plan that has the built-in defaults.
pub(crate) fn apply(layers: Layers<'_>, plan: &mut plan::PluginPlan) {
    let limits = &mut plan.limits;
    if let Some(Size(bytes)) = pick!(layers, limits.frame).map(|it| it.value) {
        limits.frame_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(Size(bytes)) = pick!(layers, limits.result).map(|it| it.value) {
        limits.result_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    set(&mut limits.concurrency, pick!(layers, limits.concurrency), |it| it as usize);
    set(&mut limits.queue, pick!(layers, limits.queue), |it| it as usize);
    set(&mut limits.calls_per_minute, pick!(layers, limits.calls), |PerMinute(it)| Some(it));
    set(&mut limits.memory_bytes, pick!(layers, limits.memory), |Size(it)| Some(it));
    set(&mut limits.cpu_percent, pick!(layers, limits.cpu), |Percent(it)| Some(it));
    set(&mut limits.processes, pick!(layers, limits.processes), Some);
    set(&mut limits.open_files, pick!(layers, limits.open_files), Some);
    set(&mut limits.file_bytes, pick!(layers, limits.file), |Size(it)| Some(it));
    set(&mut limits.state_bytes, pick!(layers, limits.state), |Size(it)| Some(it));
    let stderr = pick!(layers, limits.stderr);
    set(&mut limits.stderr_bytes_per_second, stderr, |BytesPerSecond(it)| it);

    let timeouts = &mut plan.timeouts;
    let time = |Time(it): Time| it;
    set(&mut timeouts.hello, pick!(layers, timeouts.start), time);
    set(&mut timeouts.activate, pick!(layers, timeouts.activate), time);
    set(&mut timeouts.call_idle, pick!(layers, timeouts.call), time);
    set(&mut timeouts.call, pick!(layers, timeouts.call_max), time);
    if pick!(layers, timeouts.call_max).is_some() {
        // Whoever writes only the total has not asked for a longer silence.
        timeouts.call_idle = timeouts.call_idle.min(timeouts.call);
    } else {
        // Nor who writes only the silence for a total below it.
        timeouts.call = timeouts.call.max(timeouts.call_idle);
    }
    set(&mut timeouts.cancel_grace, pick!(layers, timeouts.cancel), time);
    set(&mut timeouts.drain, pick!(layers, timeouts.drain), time);
    if let Some(Time(stop)) = pick!(layers, timeouts.stop).map(|it| it.value) {
        // In the proportion of the built-in 5 s, 1 s and 2 s.
        timeouts.exit_grace = stop * 5 / 8;
        timeouts.eof_grace = stop / 8;
        timeouts.term_grace = stop - timeouts.exit_grace - timeouts.eof_grace;
    }

    let restart = &mut plan.restart;
    set(&mut restart.when, pick!(layers, restart.when), |it| it);
    set(&mut restart.first, pick!(layers, restart.first), time);
    set(&mut restart.max, pick!(layers, restart.max), time);
    restart.max = restart.max.max(restart.first);
    set(&mut restart.jitter, pick!(layers, restart.jitter), |it| it);
    set(&mut restart.healthy, pick!(layers, restart.healthy), time);
    if let Some(budget) = pick!(layers, restart.budget) {
        restart.budget = budget.restarts.value;
        restart.within = budget.within.0;
    }

    set(&mut plan.idle.start_at_boot, pick!(layers, idle.start), |it| it == StartAt::Boot);
    set(&mut plan.idle.stop_after, pick!(layers, idle.stop), |it| it.0);

    let sandbox = &mut plan.sandbox;
    set(&mut sandbox.level, pick!(layers, sandbox.level), |it| it);
    set(&mut sandbox.if_missing, pick!(layers, sandbox.if_missing), |it| it);
    set(&mut sandbox.private_tmp, pick!(layers, sandbox.private_tmp), |it| it);
    if let Some(prefer) = pick!(layers, sandbox.prefer) {
        sandbox.prefer = prefer.iter().map(|it| it.value).collect();
    }

    set(&mut plan.approve.read, pick!(layers, approve.read), |it| it);
    set(&mut plan.approve.draft, pick!(layers, approve.draft), |it| it);
    set(&mut plan.approve.write, pick!(layers, approve.write), |it| it);
}

fn set<T, U: Copy>(place: &mut T, written: Option<&At<U>>, as_plan: impl FnOnce(U) -> T) {
    if let Some(written) = written {
        *place = as_plan(written.value);
    }
}

/// A share as it would be written.
pub(crate) fn percent(Percent(share): Percent) -> String {
    format!("{share}%")
}
