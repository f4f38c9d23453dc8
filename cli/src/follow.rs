//! What happens in a supervisor, as it happens: facts and lines of stderr.

use futures::FutureExt;
use plugbay_supervisor::{Builder, Event, Events, StderrLine};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::unconstrained,
};

/// One piece of news.
#[derive(Debug)]
pub(crate) enum News {
    Event(Event),
    Line(StderrLine),
    /// So many lines came faster than they could be shown.
    LinesMissed(u64),
}

/// Both streams of one supervisor.
#[derive(Debug)]
pub(crate) struct Follow {
    events: Events,
    lines: Receiver<StderrLine>,
}

impl Follow {
    /// From the start of what is being built, which is not missed either.
    pub(crate) fn new(builder: &Builder) -> Self {
        Self { events: builder.events(), lines: builder.stderr() }
    }

    /// Gives each piece of news to `show` until it says stop. Cancel safe.
    pub(crate) async fn all<E>(&mut self, mut show: impl FnMut(News) -> Result<(), E>) -> E {
        loop {
            if let Err(stop) = show(self.next().await) {
                return stop;
            }
        }
    }

    /// What has happened already and was not shown yet.
    pub(crate) fn rest<E>(&mut self, mut show: impl FnMut(News) -> Result<(), E>) -> Result<(), E> {
        // Unconstrained: otherwise tokio says "later" after a hundred at once.
        while let Some(news) = unconstrained(self.next()).now_or_never() {
            show(news)?;
        }
        Ok(())
    }

    /// The next piece of news. Cancel safe.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            tokio::select! {
                // A plugin's words come before the news of its end.
                biased;
                line = self.lines.recv() => match line {
                    Ok(line) => return News::Line(line),
                    Err(RecvError::Lagged(count)) => return News::LinesMissed(count),
                    Err(RecvError::Closed) => std::future::pending().await,
                },
                event = self.events.next() => match event {
                    Some(event) => return News::Event(event),
                    None => std::future::pending().await,
                },
            }
        }
    }
}
