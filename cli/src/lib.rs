//! Run plugins as processes of their own and call their tools from an agent loop.
//!
//! This crate is the `plugbay` command and, as a library, the supervisor for
//! embedders: everything of [`plugbay_supervisor`] under a shorter name.
//!
//! ```no_run
//! use plugbay::{Call, Caller, Supervisor};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (supervisor, report) = Supervisor::from_file("plugbay.toml")?;
//! eprint!("{}", report.render(true));
//!
//! // What the model may use, and what it is told about it.
//! let model = Caller::new("model").allow("greet").allow("search_*");
//! let registry = supervisor.registry();
//! for tool in registry.tools(&model) {
//!     println!("{}: {} {}", tool.name, tool.description, tool.input_schema);
//! }
//!
//! // A call wakes its plugin. Dropping the future cancels the call.
//! match registry.call(&model, Call::new("greet", json!({ "who": "Ada" }))).await {
//!     Ok(output) => println!("{}", output.text()),
//!     Err(error) => println!("{} [{}]", error.for_model(), error.code()),
//! }
//! supervisor.shutdown().await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use plugbay_supervisor::*;
