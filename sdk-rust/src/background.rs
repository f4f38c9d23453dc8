//! What a plugin does for no call in particular.

use std::{fmt, sync::Arc};

use plugbay_protocol::{Level, Note, contract, scope};

use crate::{Error, HostCall, IntoBody, ask::Caller, ask::is_granted, engine::Guarded, wire::Wire};

/// A plugin's hand on its host outside of any call, from
/// [`Activation::background`](crate::Activation::background). Cheap to clone.
///
/// It works until the activation it comes from ends. A plugin with work open is not idle:
/// its host does not stop it, and a deactivation waits.
#[derive(Clone)]
pub struct Background {
    pub(crate) wire: Arc<Wire>,
    pub(crate) epoch: u64,
    pub(crate) grant: Arc<[String]>,
}

/// Why a plugin asks to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retire {
    /// It holds more memory than it should.
    Memory,
    /// There is a newer version of it.
    Upgrade,
    /// It has served as many calls as it wants to.
    MaxCalls,
    /// Something in it is broken.
    Error,
}

impl Background {
    /// Calls the host in the background, for which `host.background` has to be granted as
    /// well as the method. What is done for a call is called from its
    /// [`Context::call`](crate::Context::call). \[R-RV-01\]
    pub fn call<R>(&self, method: &str, args: impl IntoBody) -> HostCall<R> {
        Caller::Nobody(Arc::clone(&self.wire)).ask(method, args)
    }

    /// Whether a background call of this method can be made: no scope that was granted
    /// has it otherwise. \[R-SC-07\]
    pub fn may_call(&self, method: &str) -> bool {
        is_granted(&self.grant, None, method) && is_granted(&self.grant, None, scope::BACKGROUND)
    }

    /// Runs something that has an end. Dropped when the host goes away, or when the
    /// activation fails from which it comes. Work without an end looks at
    /// [`Self::draining`], or the plugin is never deactivated.
    ///
    /// # Errors
    /// The activation is over.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        let task = self.wire.begin().map_err(Error::precondition)?;
        let mut work = Guarded::new(async move {
            work.await;
            Ok(bytes::Bytes::new())
        });
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = task.given_up() => work.abandon(),
                // What a panic said is on stderr, and nobody waits for more.
                _outcome = &mut work => {}
            }
        });
        Ok(())
    }

    /// Waits until the plugin is being deactivated, or its host has gone.
    pub async fn draining(&self) {
        self.wire.draining(self.epoch).await;
    }

    /// Writes a line to the host's log; as [`Context::log`](crate::Context::log), about the
    /// plugin as a whole.
    pub fn log(&self, level: Level, event: &'static str, message: &str) {
        let body = contract::message(message);
        self.wire.note(None, &Note::Log { level, event: event.into(), body });
    }

    /// Asks the host to drain this plugin and start it anew. It goes on serving until
    /// then. \[R-NO-06\]
    pub fn retire(&self, reason: Retire) {
        let reason = match reason {
            Retire::Memory => "memory",
            Retire::Upgrade => "upgrade",
            Retire::MaxCalls => "max_calls",
            Retire::Error => "error",
        };
        self.wire.note(None, &Note::Retire { reason: reason.into() });
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}
