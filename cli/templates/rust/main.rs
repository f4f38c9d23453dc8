use std::process::ExitCode;

use plugbay_sdk::{
    Context, Effect, Error, Plugin, Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;

/// The arguments; the comments are what a model reads about them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Greet {
    /// Whom to greet.
    who: String,
}

async fn greet(_: Context, args: Greet) -> Result<String, Error> {
    if args.who.is_empty() {
        return Err(Error::invalid("who is empty"));
    }
    println!("a stray print is harmless: it lands in stderr");
    Ok(format!("hello, {}", args.who))
}

fn plugin() -> Plugin {
    let greet = Tool::new("greet", greet).describe("Greets somebody by name.").effect(Effect::Read);
    Plugin::new("example.plugin-name", env!("CARGO_PKG_VERSION")).tool(greet.idempotent())
}

fn main() -> ExitCode {
    plugin().run()
}

#[cfg(test)]
mod tests {
    use plugbay_sdk::testing::Host;
    use serde_json::json;

    use super::*;

    /// A host in memory: no process, and time that does not pass by itself.
    #[tokio::test(start_paused = true)]
    async fn greets_by_name() {
        let host = Host::start(plugin()).await;
        let answer = host.call("greet", json!({ "who": "Ada" })).await.unwrap();
        assert_eq!(answer.text(), "hello, Ada");
        assert!(host.call("greet", json!({ "who": "" })).await.is_err());
    }
}
