//! JSON Schemas of the two files, for editors: made from the structs that read them.

use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

use super::{host::HostFile, plugin::PluginFile};

/// The schema of `plugin.toml`.
pub fn plugin() -> Value {
    schema::<PluginFile>("plugin.toml of plugbay, version 1")
}

/// The schema of `plugbay.toml`.
pub fn host() -> Value {
    schema::<HostFile>("plugbay.toml of plugbay, version 1")
}

fn schema<T: schemars::JsonSchema>(title: &str) -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with_transform(RecursiveTransform(without_null))
        .with_transform(RecursiveTransform(unwrapped));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    // `manifest` may be absent while it is read, so that its own problem is told.
    if let Some(Value::Array(required)) = schema.get_mut("required")
        && !required.contains(&"manifest".into())
    {
        required.insert(0, "manifest".into());
    }
    schema.to_value()
}

/// TOML has no null: an optional key is absent.
fn without_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|it| it != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|it| it != &serde_json::json!({ "type": "null" }));
    }
    // Widths of Rust integers mean nothing to an editor.
    schema.remove("format");
}

/// A choice of one is that one.
fn unwrapped(schema: &mut Schema) {
    let Some(Value::Array(choices)) = schema.get("anyOf") else { return };
    if let [Value::Object(only)] = choices.as_slice() {
        let only = only.clone();
        schema.remove("anyOf");
        for (key, value) in only {
            if schema.get(&key).is_none() {
                schema.insert(key, value);
            }
        }
    }
}
