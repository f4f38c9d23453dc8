//! What happens while somebody waits for one answer.

use std::convert::Infallible;

use plugbay_supervisor::{Fact, Supervisor};

use super::tools_of;
use crate::{
    follow::News,
    render::{Screen, Volume, facts},
    trouble::{Trouble, afterwards},
};

/// Keeps what an error needs.
pub(super) struct Ear<'a> {
    pub(super) supervisor: &'a Supervisor,
    pub(super) screen: &'a Screen,
    /// How a plugin died.
    pub(super) ended: Option<Trouble>,
}

impl Ear<'_> {
    /// Takes one piece of news.
    pub(super) fn hear(&mut self, news: News) -> Result<(), Infallible> {
        let is_loud = self.screen.volume == Volume::Loud;
        let fact = match news {
            News::Event(event) => event.fact,
            News::Line(line) if is_loud => {
                self.screen.line(&line);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if let Fact::Exited { plugin, reason, .. } = &fact
            && reason.code().is_some()
        {
            self.ended = Some(afterwards(plugin, reason));
        }
        if let Some((_, status)) = facts::line(&fact, |it| tools_of(self.supervisor, it))
            && is_loud
        {
            self.screen.status(&status);
        }
        Ok(())
    }
}
