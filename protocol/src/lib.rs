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
//!
//! # Streams
//!
//! With [`Features::STREAM`] a callee may send items before its end, and with
//! [`Features::STREAM_IN`] a caller too, if its call says so. Neither end has a queue for
//! them: who sends is refused for want of credit and holds what it has, and who receives
//! says what it has used.
//!
//! ```
//! # use plugbay_protocol::*;
//! # let now = Tick(0);
//! # let announce = || Announce { features: Features::ALL, ..Announce::default() };
//! # let mut host = Conversation::host(announce(), now);
//! # let mut plugin = Conversation::plugin(announce(), now);
//! # let mut carry = |from: &mut Conversation, to: &mut Conversation| {
//! #     to.buffer().extend_from_slice(&from.outbox().take());
//! #     to.received(now);
//! # };
//! # carry(&mut host, &mut plugin);
//! # carry(&mut plugin, &mut host);
//! # host.call(&Outgoing { method: "plugin.activate", ..Outgoing::default() }, now)?;
//! # carry(&mut host, &mut plugin);
//! # plugin.end(CallId(1), Ok(Default::default()))?;
//! # carry(&mut plugin, &mut host);
//! # let id = host.call(&Outgoing { method: "tool.call", ..Outgoing::default() }, now)?;
//! # carry(&mut host, &mut plugin);
//! # while host.poll().is_some() {}
//! # while plugin.poll().is_some() {}
//! // Both ends have announced streams, and `id` is a call that the plugin works on.
//! let element = bytes::Bytes::from(vec![0xc0; 100_000]);
//! let mut sent = 0;
//! while plugin.item(id, &element).is_ok() {
//!     sent += 1;
//! }
//! assert_eq!(plugin.item(id, &element), Err(Misuse::NoCredit));
//! carry(&mut plugin, &mut host);
//! while let Some(Event::Item { id, body, size }) = host.poll() {
//!     // … use it, and then:
//!     host.taken(id, size);
//! }
//! carry(&mut host, &mut plugin);
//! assert_eq!(plugin.poll(), Some(Event::Credit { id }));
//! plugin.item(id, &element)?;
//! # Ok::<(), Misuse>(())
//! ```
//!
//! # Reverse calls
//!
//! With [`Features::REVERSE`] a plugin's [`Conversation::call`] calls its host, for one of
//! the host's calls or in the background. Both ends are told what is granted
//! ([`Conversation::grant`]), and a host hears only of calls that [`scope`]s cover.
//!
//! ```
//! # use plugbay_protocol::*;
//! # let now = Tick(0);
//! # let announce = || Announce { features: Features::ALL, ..Announce::default() };
//! # let mut host = Conversation::host(announce(), now);
//! # let mut plugin = Conversation::plugin(announce(), now);
//! # let mut carry = |from: &mut Conversation, to: &mut Conversation| {
//! #     to.buffer().extend_from_slice(&from.outbox().take());
//! #     to.received(now);
//! # };
//! # carry(&mut host, &mut plugin);
//! # carry(&mut plugin, &mut host);
//! # host.call(&Outgoing { method: "plugin.activate", ..Outgoing::default() }, now)?;
//! # carry(&mut host, &mut plugin);
//! # plugin.end(CallId(1), Ok(Default::default()))?;
//! # carry(&mut plugin, &mut host);
//! # let id = host.call(&Outgoing { method: "tool.call", ..Outgoing::default() }, now)?;
//! # carry(&mut host, &mut plugin);
//! # while host.poll().is_some() {}
//! # while plugin.poll().is_some() {}
//! host.grant(vec!["host.kv.get[user_*]".into()]);
//! plugin.grant(vec!["host.kv.get[user_*]".into()]);
//! let body = bytes::Bytes::from_static(b"\x81\xa4name\xa6user_7");
//! let call = Outgoing { method: "host.kv.get", parent: Some(id), body, ..Outgoing::default() };
//! let asked = plugin.call(&call, now)?;
//! assert_eq!(plugin.end(id, Ok(Default::default())), Err(Misuse::CallsOpen));
//! carry(&mut plugin, &mut host);
//! let Some(Event::Called(incoming)) = host.poll() else { panic!() };
//! assert_eq!((incoming.id, incoming.parent), (asked, Some(id)));
//! host.end(asked, Ok(Default::default()))?;
//! carry(&mut host, &mut plugin);
//! assert_eq!(plugin.poll(), Some(Event::Ended { id: asked, outcome: Ok(Default::default()) }));
//! plugin.end(id, Ok(Default::default()))?;
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
    msgpack::{Malformed, body_fields, check_body, read_str},
    time::Tick,
};
