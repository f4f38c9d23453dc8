//! What happens while somebody waits for one answer.

use std::{convert::Infallible, time::Duration};

use plugbay_supervisor::{Fact, PluginStatus, State, Supervisor};

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
                let Call { tool, timeout, idle, .. } = self.args;
                if let Some(text) = budgets(self.supervisor, tool, *timeout, *idle) {
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

/// What becomes of the budgets that were asked for, if the plugin is up and sees none.
pub(crate) fn budgets(
    supervisor: &Supervisor,
    tool: &str,
    total: Option<Duration>,
    idle: Option<Duration>,
) -> Option<String> {
    let plugin = supervisor.registry().tool(tool)?.plugin?;
    let PluginStatus { state, features, .. } = supervisor.plugin(&plugin).ok()?;
    if state != State::Active || features.contains(&"async") {
        return None;
    }
    let but = match (total, idle) {
        (None, None) => return None,
        (Some(_), None) => "sees no deadline: when --timeout is over, its process is ended",
        (None, Some(_)) => "cannot report progress: --idle bounds its whole call",
        (Some(_), Some(_)) => {
            "cannot report progress: --timeout bounds its whole call, and --idle nothing"
        }
    };
    Some(format!("{plugin} is of level L0 and {but}"))
}
