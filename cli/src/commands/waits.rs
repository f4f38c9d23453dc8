//! What somebody who waits wants to know: what for, and how long it may take.

use std::{
    cell::Cell,
    convert::Infallible,
    time::{Duration, Instant, SystemTime},
};

use plugbay_supervisor::{PluginStatus, Reason, State, Supervisor};

use crate::render::Screen;

/// What takes no longer is not worth a word.
const LONG: Duration = Duration::from_secs(2);

/// The one who waits.
#[derive(Debug)]
pub(super) struct Waits<'a> {
    pub(super) supervisor: &'a Supervisor,
    pub(super) screen: &'a Screen,
    /// Since when a call is running, and how long it may take, as far as that is known.
    pub(super) call: Cell<Option<(Instant, Option<Duration>)>>,
    /// When a plugin last said how far it has come, which says more than we could.
    pub(super) heard: Cell<Option<Instant>>,
}

impl<'a> Waits<'a> {
    pub(super) fn new(supervisor: &'a Supervisor, screen: &'a Screen) -> Self {
        Self { supervisor, screen, call: Cell::new(None), heard: Cell::new(None) }
    }

    /// Says it again and again, to who wants to hear it. Cancel safe.
    pub(super) async fn talk(&self) -> Infallible {
        let Some(pause) = self.screen.pause() else { return std::future::pending().await };
        loop {
            tokio::time::sleep(pause).await;
            if let Some(text) = self.text() {
                self.screen.waiting(&text);
            }
        }
    }

    fn text(&self) -> Option<String> {
        let up = up(&self.supervisor.plugins(), SystemTime::now());
        up.or_else(|| {
            let (since, total) = self.call.get()?;
            let silent = self.heard.get().is_none_or(|at| LONG <= at.elapsed());
            answer(since.elapsed(), total).filter(|_| silent)
        })
    }
}

/// How long an answer has been waited for, once that is long.
pub(crate) fn answer(waited: Duration, total: Option<Duration>) -> Option<String> {
    (LONG <= waited).then(|| format!("for the answer {}", times(waited, total)))
}

/// A moment as programs get it.
pub(crate) fn epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What the plugin that has been waited for longest is waited for.
pub(crate) fn up(plugins: &[PluginStatus], now: SystemTime) -> Option<String> {
    let waited = |it: &PluginStatus| now.duration_since(it.since).unwrap_or_default();
    let what = |it: &PluginStatus| match (it.state, &it.reason) {
        (State::Starting, Reason::StartingUp { greeted: false }) => Some("to say HELLO"),
        (State::Starting, Reason::StartingUp { greeted: true }) => Some("to be ready"),
        (State::Backoff, _) => Some("to be started again"),
        _ => None,
    };
    let all = plugins.iter().filter(|it| LONG <= waited(it));
    let all = all.filter_map(|it| Some((it, what(it)?, it.until?)));
    let (it, what, until) = all.max_by_key(|(it, ..)| waited(it))?;
    let total = until.duration_since(it.since).unwrap_or_default();
    Some(format!("for {} {what} {}", it.name, times(waited(it), Some(total))))
}

fn times(waited: Duration, total: Option<Duration>) -> String {
    let of = total.map_or(String::new(), |it| format!(" of {} s", it.as_secs_f64().round()));
    format!("({} s{of})", waited.as_secs())
}
