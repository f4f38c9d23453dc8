//! Write plugbay plugins in Rust: a tool is a function.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use plugbay_sdk::{Context, Effect, Error, Plugin, Tool, schemars::{self, JsonSchema}};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Greet {
//!     /// Whom to greet.
//!     who: String,
//! }
//!
//! async fn greet(_: Context, args: Greet) -> Result<String, Error> {
//!     Ok(format!("hello, {}", args.who))
//! }
//!
//! fn main() -> ExitCode {
//!     Plugin::new("acme.hello", "1.0.0")
//!         .tool(Tool::new("greet", greet).describe("Says hello.").effect(Effect::Read).idempotent())
//!         .run()
//! }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod activation;
mod body;
mod context;
mod engine;
mod error;
mod plugin;
mod reply;
mod stdio;
pub mod testing;
#[cfg(test)]
mod tests;
mod tool;
mod wire;

pub use plugbay_protocol::{Code, Retry, contract::Block};
pub use schemars;

pub use self::{
    activation::Activation,
    context::{Context, Level},
    error::Error,
    plugin::Plugin,
    reply::Reply,
    tool::{Effect, Tool},
};
