//! A plugin that tries the walls: one tool, and a deed for each way out. It reports what
//! the system said, and nothing it does harms anybody if it works.
//!
//! `plugbay-prisoner --restrict PROGRAM…` runs a program as on a machine that allows
//! nobody a namespace.
//!
//! No process of it outlives its alarm.

mod deeds;
mod raw;

use std::process::ExitCode;

use plugbay_sdk::{
    Context, Effect, Error, Plugin, Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;

/// What is to be tried.
#[derive(Deserialize, JsonSchema)]
struct Try {
    deed: String,
    #[serde(default)]
    what: String,
    #[serde(default)]
    number: u64,
}

fn attempt(_: Context, args: Try) -> Result<String, Error> {
    Ok(deeds::attempt(&args.deed, &args.what, args.number))
}

fn main() -> ExitCode {
    nix::unistd::alarm::set(60);
    if let Some(code) = deeds::run_if_asked().or_else(raw::restrict_if_asked) {
        return code;
    }
    let tool = Tool::plain("try", attempt).effect(Effect::Read);
    Plugin::new("test.prisoner", "1.0.0").concurrency(4).tool(tool).run()
}
