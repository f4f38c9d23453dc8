//! The smallest useful plugin. Build it with `cargo build -p plugbay-sdk --example hello`
//! and try `plugbay call --plugin target/debug/examples/hello greet who=Ada`.

use std::process::ExitCode;

use plugbay_sdk::{
    Context, Effect, Error, Plugin, Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct Greet {
    /// Whom to greet.
    who: String,
}

async fn greet(_: Context, args: Greet) -> Result<String, Error> {
    println!("this lands in stderr");
    Ok(format!("hello, {}", args.who))
}

fn main() -> ExitCode {
    let greet = Tool::new("greet", greet).describe("Greets somebody by name.").effect(Effect::Read);
    Plugin::new("example.hello", "1.0.0").tool(greet.idempotent()).run()
}
