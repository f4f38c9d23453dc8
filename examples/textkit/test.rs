//! The plain Python plugin, as a host meets it.

use std::path::Path;

use plugbay_supervisor::{Call, CallError, Caller, Registry, Supervisor};
use serde_json::{Value, json};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/textkit");

async fn text(registry: &Registry, tool: &str, args: Value) -> Result<String, CallError> {
    let output = registry.call(&Caller::trusted("test"), Call::new(tool, args)).await?;
    let failed = if output.is_error { "failed: " } else { "" };
    Ok(format!("{failed}{}", output.text()))
}

#[tokio::test]
async fn every_tool_does_its_work() {
    let (supervisor, report) = Supervisor::from_folder(FOLDER).unwrap();
    assert!(!report.has_errors(), "{}", report.render(false));
    let registry = supervisor.registry();

    let counted = text(&registry, "count_words", json!({"text": "To be, or\nnot to be", "top": 2}));
    let wanted = "2 lines, 6 words, 19 characters\n     2  to\n     2  be";
    assert_eq!(counted.await.unwrap(), wanted);

    let csv = "name,n\n\"a,b\",1\nc,\n";
    let summary = text(&registry, "csv_summary", json!({ "csv": csv })).await.unwrap();
    let wanted = "2 rows\n\
        name: values 2, empty 0, different 2, kind text, smallest a,b, largest c\n\
        n: values 1, empty 1, different 1, kind number, smallest 1.0, largest 1.0, mean 1.0";
    assert_eq!(summary, wanted);
    let ragged = text(&registry, "csv_summary", json!({"csv": "a;b\n1", "delimiter": ";"})).await;
    assert_eq!(ragged.unwrap(), "failed: row 2 has 1 values, and there are 2 columns");

    let diff = text(&registry, "diff", json!({"before": "a\nb\nc", "after": "a\nB\nc"})).await;
    let wanted = "--- before\n+++ after\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c";
    assert_eq!(diff.unwrap(), wanted);
    let same = text(&registry, "diff", json!({"before": "a", "after": "a"})).await;
    assert_eq!(same.unwrap(), "no difference");

    supervisor.shutdown().await;
}

/// `plugin.toml` is what a host lists; the handshake is what the program says.
#[tokio::test]
async fn the_manifest_agrees() {
    let program = Path::new(FOLDER).join("textkit.py").display().to_string();
    let (listed, _) = Supervisor::from_folder(FOLDER).unwrap();
    let bare = Supervisor::from_command("textkit", &[program]).unwrap();
    bare.ready("textkit").await.unwrap();
    let tools = |supervisor: &Supervisor| {
        let tools = supervisor.registry().tools(&Caller::trusted("test"));
        let face = tools.into_iter().map(|tool| {
            let words = (tool.name.to_string(), tool.description.to_string());
            (words, tool.input_schema.clone(), tool.effect, tool.idempotent)
        });
        face.collect::<Vec<_>>()
    };
    assert_eq!(tools(&listed), tools(&bare));
    assert_eq!(tools(&bare).len(), 3);
    listed.shutdown().await;
    bare.shutdown().await;
}
