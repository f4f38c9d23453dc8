//! What happens while somebody waits for one answer.

use std::convert::Infallible;

use plugbay_supervisor::{Fact, PluginStatus, Supervisor};

use super::tools_of;
use crate::{
    args::Call,
    follow::News,
    render::{PLAIN, Screen, Status, Volume, facts},
    trouble::{Trouble, afterwards},
};

/// Keeps what an error needs.
pub(super) struct Ear<'a> {
    supervisor: &'a Supervisor,
    screen: &'a Screen,
    args: &'a Call,
    /// How a plugin died.
    pub(super) ended: Option<Trouble>,
}

impl<'a> Ear<'a> {
    pub(super) fn new(supervisor: &'a Supervisor, screen: &'a Screen, args: &'a Call) -> Self {
        Self { supervisor, screen, args, ended: None }
    }

    /// What becomes of the budgets that were asked for, if the plugin sees none.
    fn budgets(&self) -> Option<String> {
        let plugin = self.supervisor.registry().tool(&self.args.tool)?.plugin?;
        let PluginStatus { features, .. } = self.supervisor.plugin(&plugin).ok()?;
        if features.contains(&"async") {
            return None;
        }
        let but = match (self.args.timeout, self.args.idle) {
            (None, None) => return None,
            (Some(_), None) => "sees no deadline: when --timeout is over, its process is ended",
            (None, Some(_)) => "cannot report progress: --idle bounds its whole call",
            (Some(_), Some(_)) => {
                "cannot report progress: --timeout bounds its whole call, and --idle nothing"
            }
        };
        Some(format!("{plugin} is of level L0 and {but}"))
    }

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
        match &fact {
            Fact::Exited { plugin, reason, .. } if reason.code().is_some() => {
                self.ended = Some(afterwards(plugin, reason));
            }
            // There is one call, so this is said once.
            Fact::CallStarted { .. } => {
                if let Some(text) = self.budgets() {
                    self.screen.status(&Status::new(PLAIN, "Note", text));
                }
            }
            _ => {}
        }
        if let Some((_, status)) = facts::line(&fact, |it| tools_of(self.supervisor, it))
            && is_loud
        {
            self.screen.status(&status);
        }
        Ok(())
    }
}
