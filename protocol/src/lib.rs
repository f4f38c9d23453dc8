//! The plugbay protocol, version 1: frames over two pipes and one state machine
//! for both ends of them.
//!
//! This crate performs nothing. It has no clock, no file, no socket and no task,
//! and the compiler sees to it: it is `no_std`. Whoever drives it brings bytes
//! and the time; see [`Conversation`]. What the rules are is written in
//! `sdk-spec/`; ids such as `[R-FR-03]` point there.
//!
//! ```
//! use plugbay_protocol::*;
//!
//! // Two ends, and a pipe in memory between them.
//! let now = Tick(0);
//! let mut host = Conversation::host(Announce::default(), now);
//! let mut plugin = Conversation::plugin(Announce::default(), now);
//! let mut carry = |from: &mut Conversation, to: &mut Conversation| {
//!     to.buffer().extend_from_slice(&from.outbox().take());
//!     to.received(now);
//! };
//! carry(&mut host, &mut plugin); // HELLO
//! carry(&mut plugin, &mut host); // HELLO
//! assert!(matches!(host.poll(), Some(Event::Hello(_))));
//!
//! let call = Outgoing { method: "plugin.activate", ..Outgoing::default() };
//! let id = host.call(&call, now)?;
//! carry(&mut host, &mut plugin);
//! assert!(matches!(plugin.poll(), Some(Event::Hello(_))));
//! let Some(Event::Called(incoming)) = plugin.poll() else { panic!() };
//! plugin.end(incoming.id, Ok(Default::default()))?;
//! carry(&mut plugin, &mut host);
//! assert_eq!(host.poll(), Some(Event::Ended { id, outcome: Ok(Default::default()) }));
//! assert_eq!(host.stage(), Stage::Active);
//! # Ok::<(), Misuse>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

mod call;
mod codec;
pub mod contract;
mod conversation;
mod credit;
mod error;
mod event;
mod frame;
mod gate;
mod hello;
mod msgpack;
mod open;
mod reverse;
pub mod scope;
mod time;

pub use self::{
    codec::{BODY_ALIGN, Decoder, HEADER_LEN, MAGIC, Outbox, Raw, layout},
    conversation::Conversation,
    error::{Close, Fault, Misuse, Violation},
    event::{Budget, Details, Event, Failure, Incoming, Outgoing, Over, Trace},
    frame::{CallId, CancelReason, Code, Kind, Level, Note, Retry},
    gate::Stage,
    hello::{Announce, Features, Identity, Limits, Patience, VERSION, Welcome},
    msgpack::{Malformed, body_fields, check_body},
    time::Tick,
};
