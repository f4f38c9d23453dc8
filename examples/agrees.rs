//! A plugin's `plugin.toml` is what a host lists, and its code is what runs. This
//! holds them together: `UPDATE_SCHEMAS=1 cargo test -p plugbay-examples` rewrites
//! the schema files, everything else is for the author to mend.

use std::{env, fs, path::Path};

use plugbay_sdk::testing::Provide;
use serde_json::Value;

/// Compares the tools of a plugin with the manifest in its folder.
pub(crate) fn with_manifest(folder: &str, tools: &[Provide]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let manifest = fs::read_to_string(folder.join("plugin.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let listed = manifest["provides"].as_array().unwrap();
    let names = |list: &mut dyn Iterator<Item = &str>| list.collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&mut listed.iter().map(|tool| tool["name"].as_str().unwrap())),
        names(&mut tools.iter().map(|tool| tool.name.as_str())),
    );
    for (listed, tool) in listed.iter().zip(tools) {
        let name = &tool.name;
        let text = |key: &str| listed.get(key).and_then(toml::Value::as_str);
        assert_eq!(text("description"), Some(tool.description.as_str()), "{name}");
        assert_eq!(text("effect"), tool.effect.as_deref(), "{name}");
        let idempotent = listed.get("idempotent").and_then(toml::Value::as_bool);
        assert_eq!(idempotent.unwrap_or(false), tool.idempotent, "{name}");
        let path = folder.join(text("input").unwrap());
        if env::var_os("UPDATE_SCHEMAS").is_some() {
            let schema = serde_json::to_string_pretty(&tool.input_schema).unwrap() + "\n";
            fs::write(&path, schema).unwrap();
        }
        let schema = fs::read_to_string(&path).unwrap();
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(schema, tool.input_schema, "{name}");
    }
}
