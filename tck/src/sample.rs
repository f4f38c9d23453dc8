//! What the contracts are tried with: the author's samples, and those for the entries
//! `tck_…` that a fixture can bring, of which the suite knows what they do.

use std::sync::LazyLock;

use crate::{
    case::Subject,
    settings::{Sample, Settings},
    value::Value,
};

/// Samples for the entries of contract tck, "With bridges"; also what a settings file
/// can look like.
static OWN: LazyLock<Settings> = LazyLock::new(|| {
    toml::from_str(include_str!("bridges.toml")).expect("bridges.toml is part of this program")
});

/// All samples of a method, those of the suite's own first. They lack in `uses` what
/// is not asked for: an empty word asks for all.
pub fn samples<'a>(subject: &'a Subject, method: &str, word: &str) -> Vec<&'a Sample> {
    let own = OWN
        .sample
        .iter()
        .filter(|it| it.entry().is_some_and(|name| subject.profile.has(kind_of(&it.method), name)));
    let all = own.chain(&subject.settings.sample).filter(|it| it.method == method);
    all.filter(|it| word.is_empty() || it.uses.iter().any(|use_| use_ == word)).collect()
}

/// The kind of entry that has this method.
pub fn kind_of(method: &str) -> &str {
    match method.split('.').next().unwrap_or(method) {
        "session" => "runtime",
        kind => kind,
    }
}

impl Sample {
    /// The entry it is for, as far as that is said.
    pub fn entry(&self) -> Option<&str> {
        let named = || self.args.get("name").or_else(|| self.args.get("model"));
        self.entry.as_deref().or_else(|| named().and_then(|name| name.as_str()))
    }

    /// The body of the call.
    pub fn body(&self) -> Value {
        Value::from_json(&self.args)
    }

    /// Whether the call is to succeed.
    pub fn is_ok(&self) -> bool {
        self.expect == "ok"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_of_our_own_names_an_entry_of_contract_tck() {
        let law = include_str!("../../sdk-spec/contracts/tck.md");
        assert!(!OWN.sample.is_empty());
        for sample in &OWN.sample {
            let entry = sample.entry().unwrap();
            let row = format!("| {} `{entry}` |", kind_of(&sample.method));
            assert!(law.contains(&row), "{row}");
        }
    }
}
