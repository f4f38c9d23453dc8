//! Write plugbay plugins in Rust: a tool is a function.
//!
//! ```no_run
//! use std::{process::ExitCode, sync::Arc, time::Duration};
//!
//! use plugbay_sdk::{
//!     Activation, Context, Effect, Error, Plugin, Tool,
//!     schemars::{self, JsonSchema},
//! };
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Greet {
//!     /// Whom to greet.
//!     who: String,
//! }
//!
//! // An async tool. Dropped at its await when its caller cancels.
//! async fn greet(ctx: Context<Greeter>, args: Greet) -> Result<String, Error> {
//!     ctx.progress(0, 1, "thinking of a greeting");
//!     tokio::time::sleep(Duration::from_millis(10)).await;
//!     Ok(format!("{}, {}", ctx.state().greeting, args.who))
//! }
//!
//! // A plain tool. It may block, and looks now and then whether it is still wanted.
//! fn count(ctx: Context<Greeter>, (): ()) -> Result<usize, Error> {
//!     let mut lines = 0;
//!     for _ in std::fs::read_to_string("greeted.txt")?.lines() {
//!         ctx.check()?;
//!         lines += 1;
//!     }
//!     Ok(lines)
//! }
//!
//! // What the operator configures, and what every call can use.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Greeter {
//!     greeting: String,
//! }
//!
//! fn main() -> ExitCode {
//!     Plugin::new("acme.hello", "1.0.0")
//!         .on_activate(async |activation: Arc<Activation>| activation.config::<Greeter>())
//!         .tool(Tool::new("greet", greet).describe("Greets somebody.").effect(Effect::Read))
//!         .tool(Tool::plain("count", count).describe("Counts greetings.").effect(Effect::Read))
//!         .run()
//! }
//! ```
//!
//! # What the SDK takes care of
//!
//! - **The pipes.** Stdin and stdout carry frames, so they are taken away first: whatever
//!   is printed afterwards, by the plugin or by a child of it, lands in stderr.
//! - **Exactly one answer for each call**, whether the tool returns, fails, panics, is
//!   cancelled or runs out of time. A panic is `internal`, and its text goes to stderr only.
//! - **Cancel and deadline.** An async tool is polled once more and then dropped; a plain
//!   one is told, and holds its place until it returns.
//! - **The lifecycle.** Deactivation waits for the open calls. When the host goes away,
//!   everything is cancelled and the process ends within half a second.
//! - **Limits.** No more calls than [`Plugin::concurrency`] and no larger frames than
//!   [`Plugin::frame_limit`]; a host that reads nothing costs no memory without bound.
//!
//! One thing it cannot: a host may also bound the silence within a call. A tool that works
//! for long says so with [`Context::progress`].
//!
//! # Streams, and calls of the host
//!
//! An [`Entry`] is anything but a tool: a model, a memory, an agent runtime. Its [`Method`]s may
//! return a [`Stream`], whose items wait for credit, take the caller's [`Input`], and call the
//! host with [`Context::call`], which is one await. What a plugin would call there it says with
//! [`Plugin::wants`].
//!
//! # Tests
//!
//! [`testing::Host`] runs a plugin in memory, in virtual time if you like.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod activation;
mod ask;
mod background;
mod body;
mod call;
mod context;
mod engine;
mod entry;
mod error;
mod input;
mod plugin;
mod reply;
mod stdio;
pub mod testing;
#[cfg(test)]
mod tests;
mod tool;
mod wire;

pub use bytes;
pub use futures_core::Stream;
pub use plugbay_protocol::{Code, Features, Retry, Trace, contract::Block};
pub use schemars;

pub use self::{
    activation::Activation,
    ask::{HostCall, HostError},
    background::{Background, Retire},
    body::{FromBody, IntoBody, Raw},
    context::{Context, Level},
    entry::{Entry, Method},
    error::Error,
    input::Input,
    plugin::Plugin,
    reply::Reply,
    tool::{Effect, Tool},
};
