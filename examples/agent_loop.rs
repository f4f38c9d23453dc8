//! An agent loop with plugins: a scripted model calls plugin tools and one local
//! function in parallel, meets every kind of refusal and failure, and goes on.
//!
//! ```console
//! $ cargo xtask demo
//! ```
//!
//! The loop is the part to copy: it lists tools for the model, runs what the model
//! asks for side by side, and gives the answer, or one honest sentence, back.

use std::{error::Error, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plugbay_supervisor::{
    Call, CallError, Caller, Effect, Fact, LocalTool, Output, Question, Registry, Supervisor,
};
use serde_json::{Value, json};

/// What the model asks for in one turn. A real one would come from an API.
struct Turn {
    thought: &'static str,
    calls: Vec<Call>,
    /// Something that happens in the outside world meanwhile.
    mishap: Option<&'static str>,
}

fn script() -> Vec<Turn> {
    let turn = |thought, calls: Vec<Call>| Turn { thought, calls, mishap: None };
    let count = || Call::new("count_words", json!({ "text": "to be or not to be" }));
    let stock = || Call::new("shop_query", json!({ "sql": "SELECT name, earned FROM revenue" }));
    let slow =
        |name: &str| Call::new("fetch", json!({ "source": "generate:10000000", "name": name }));
    vec![
        turn(
            "I look in the notes, ask the shop and add two numbers, all at once.",
            vec![
                Call::new("search", json!({ "query": "iron pot" })),
                Call::new("shop_tables", json!({})),
                count(),
                Call::new("add", json!({ "a": 19, "b": 23 })),
            ],
        ),
        turn(
            "I mistype a name and forget an argument, and learn what was wrong.",
            vec![Call::new("serch", json!({ "query": "tea" })), Call::new("search", json!({}))],
        ),
        turn(
            "I try something that nobody allowed me, and something that needs a yes.",
            vec![
                Call::new("shop_schema", json!({ "table": "items" })),
                Call::new("launch", json!({ "missiles": 1 })),
            ],
        ),
        turn(
            "I fetch something large, but have only half a second; what has arrived is kept.",
            vec![slow("late.bin").deadline(Duration::from_millis(500))],
        ),
        Turn {
            thought: "While I fetch, somebody kills the plugin under me.",
            calls: vec![slow("lost.bin"), count()],
            mishap: Some("fetcher"),
        },
        turn(
            "It was restarted, so I ask again, and for less.",
            vec![
                Call::new("fetch", json!({ "source": "generate:20000", "name": "small.bin" })),
                stock(),
            ],
        ),
    ]
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugbay.toml");
    let loaded = plugbay_supervisor::manifest::load_file(manifest);
    eprint!("{}", loaded.report.render(false));

    let number = json!({ "type": "number" });
    let two = json!({ "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"] });
    let add = LocalTool::new("add", "Adds two numbers.", two, async |args: Value| {
        let number = |name: &str| args[name].as_f64().unwrap_or_default();
        Ok(Output::text_of((number("a") + number("b")).to_string()))
    });
    let launch = json!({ "type": "object", "properties": { "missiles": { "type": "integer" } } });
    let launch =
        LocalTool::new("launch", "Launches.", launch, async |_| Ok(Output::text_of("whoosh")));
    let supervisor = Supervisor::builder()
        .loaded(loaded)
        .tool(add.effect(Effect::Read))
        .tool(launch.effect(Effect::Write))
        .approver(async |question: Question| {
            println!("      {} wants {}: no", question.caller, question.tool);
            false
        })
        .start()?;
    tell_what_happens(&supervisor);

    // The model's rights: everything it needs, and nothing else.
    let model = Caller::new("model");
    let model = ["search", "shop_query", "shop_tables", "count_words", "fetch", "add", "launch"]
        .into_iter()
        .fold(model, Caller::allow);
    let registry = supervisor.registry();
    println!("tools for the model, before any process runs:");
    for tool in registry.tools(&model) {
        println!("    {:<12} {:<6} {}", tool.name, tool.effect.as_str(), tool.description);
    }

    for turn in script() {
        println!("\n--- {}", turn.thought);
        let answers = run(&registry, &model, turn.calls);
        let (answers, ()) = tokio::join!(answers, mishap(&supervisor, turn.mishap));
        for (tool, answer) in answers {
            println!("    {tool}: {}", answer.replace('\n', "\n        "));
        }
        if let Some(plugin) = turn.mishap {
            // A real loop would go on; the demonstration waits for the restart.
            while supervisor.ready(plugin).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    println!("\n--- done; every plugin is drained and stopped");
    supervisor.shutdown().await;
    Ok(())
}

/// Runs one turn's calls side by side. This is all that an agent loop needs.
async fn run(registry: &Registry, caller: &Caller, calls: Vec<Call>) -> Vec<(String, String)> {
    let run = async |call: Call| {
        let tool = call.tool().to_owned();
        let answer = match registry.call(caller, call).await {
            Ok(output) => output.text(),
            // One sentence for the model: what happened, whether it ran, what to do.
            Err(error) => describe(&error),
        };
        (tool, answer)
    };
    futures::future::join_all(calls.into_iter().map(run)).await
}

fn describe(error: &CallError) -> String {
    format!("[{} ran={:?}] {}", error.code(), error.ran(), error.for_model())
}

/// Kills a plugin's process once it is at work, as a crash would.
async fn mishap(supervisor: &Supervisor, plugin: Option<&str>) {
    let Some(plugin) = plugin else { return };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pid = supervisor.plugin(plugin).ok().and_then(|status| status.pid);
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
}

/// Prints the supervisor's facts as they happen.
fn tell_what_happens(supervisor: &Supervisor) {
    let mut events = supervisor.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event.fact {
                Fact::Spawned { plugin, pid } => println!("  * {plugin}: spawned as {pid}"),
                Fact::Greeted { plugin, id, version, took } => {
                    println!("  * {plugin}: said hello as {id} {version} after {took:.1?}");
                }
                Fact::Became { plugin, state, reason } => {
                    println!("  * {plugin}: {state}, it {reason}")
                }
                Fact::Waiting { plugin, delay, .. } => {
                    println!("  * {plugin}: next start in {delay:.0?}");
                }
                _ => {}
            }
        }
    });
}
