//! Runs plugins as processes of their own and offers their tools to an agent loop.
//!
//! A [`Supervisor`] keeps every plugin of a [`plan`](plan::Plan): it starts each
//! on its first call, restarts it when it dies, lets it sleep when nobody needs
//! it, and leaves nothing behind. Its [`Registry`] lists the plugins' tools beside
//! [local functions](LocalTool) and calls them; every call ends exactly once,
//! within its budget, and an error says what happened, whether the tool ran, and
//! what to do next.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body;
mod breaker;
mod call;
mod digest;
mod disk;
mod errand;
mod error;
mod fact;
mod gate;
mod hang;
pub mod isolation;
mod keeper;
mod launch;
mod life;
mod link;
mod local;
pub mod manifest;
mod peer;
pub mod plan;
mod reason;
mod registry;
mod service;
mod status;
mod stderr;
mod stop;
mod stream;
mod supervisor;

pub use plugbay_protocol::{Budget, Close, Code, Fault, Level, Violation, contract::Block};

pub use self::{
    call::{Call, Caller, Output},
    digest::digest_of,
    error::{CallError, Ran, RetryAdvice, Rule},
    fact::{Event, Events, Fact},
    hang::{Doing, Seen},
    link::Progress,
    local::{LocalResult, LocalTool},
    peer::Peer,
    plan::{Approval, Effect, Plan, PluginPlan, ToolPlan},
    reason::{DigestFault, Private, Reason},
    registry::{Approver, EntryInfo, Question, Refused, Registry, ToolInfo},
    service::ServiceCall,
    status::{PluginStatus, State},
    stderr::StderrLine,
    stream::{Input, Item, NotTaken, Reply, Request},
    supervisor::{Builder, LoadError, NoSuchPlugin, NotReady, Supervisor},
};
