//! What an author tells the suite about a plugin: `tck.toml`.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

/// The whole file; all of it can be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How to activate it.
    pub activate: Activate,
    /// Calls with a known outcome.
    pub sample: Vec<Sample>,
    /// More environment for the plugin.
    pub env: BTreeMap<String, String>,
}

/// What goes into `plugin.activate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Activate {
    pub config: Option<serde_json::Value>,
    /// The scopes to grant; all that it wants if absent.
    pub grant: Option<Vec<String>>,
    pub secrets: BTreeMap<String, String>,
}

/// One call whose outcome is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub method: String,
    /// The body.
    #[serde(default)]
    pub args: serde_json::Value,
    /// `ok`, or the code of the error that is due.
    #[serde(default = "ok")]
    pub expect: String,
    /// What it is good for, such as `fails` or `long`: the words of tck/README.md.
    #[serde(default)]
    pub uses: Vec<String>,
    /// The entry it is for, if the body does not name it.
    pub entry: Option<String>,
}

fn ok() -> String {
    "ok".into()
}

impl Settings {
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_how_to_activate_and_what_to_call() {
        let text = r#"
            [activate]
            config = {root = "data"}
            grant = ["host.tool.call"]
            [[sample]]
            method = "tool.call"
            args = {name = "greet", args = {who = "Ada"}}
            [[sample]]
            method = "tool.call"
            args = {name = "none"}
            expect = "not_found"
        "#;
        let settings: Settings = toml::from_str(text).unwrap();
        assert_eq!(settings.sample.len(), 2);
        assert_eq!(settings.sample[0].entry(), Some("greet"));
        assert_eq!(settings.sample[1].expect, "not_found");
        assert!(toml::from_str::<Settings>("[activat]").is_err());
    }
}
