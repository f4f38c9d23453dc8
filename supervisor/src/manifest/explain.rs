//! `plugbay explain`: the page behind each code.

use super::codes::Code;

/// The page for a code such as `PB0204` (case does not matter): what it means,
/// an example that triggers it, and how to fix it, as Markdown.
pub fn page(code: &str) -> Option<&'static str> {
    Code::parse(code).map(Code::page)
}

/// Every code with its title, in order.
pub fn index() -> impl Iterator<Item = (Code, &'static str)> {
    Code::ALL.iter().map(|&code| (code, code.title()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn a_page_is_found_whatever_the_case() {
        assert!(page("pb0204").is_some_and(|it| it.starts_with("# PB0204: ")));
        assert_eq!(page("PB9999"), None);
        assert_eq!(page(""), None);
    }

    #[test]
    fn every_page_has_the_same_parts() {
        for &code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# {code}: ")), "{code} has no title");
            for part in ["\n## An example\n", "\n## How to fix it\n"] {
                assert!(page.contains(part), "{code} has no part {part:?}");
            }
            assert!(page.ends_with('\n') && 300 < page.len(), "{code} says too little");
            assert!(!code.title().ends_with('.'), "{code}: a title is no sentence");
        }
    }

    #[test]
    fn the_folder_and_the_list_agree() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manifest/explain");
        let pages: BTreeSet<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().replace(".md", ""))
            .collect();
        let codes: BTreeSet<String> = Code::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(pages, codes);
    }

    /// Codes are also written as plain text, in the engine and in the pages.
    #[test]
    fn every_code_that_is_written_anywhere_has_a_page() {
        let mut seen = BTreeSet::new();
        for folder in ["src", "../cli/src", "../docs", "../sdk-rust/src", "../sdk-spec"] {
            collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut seen);
        }
        assert!(seen.contains("PB0204"), "the search itself works");
        for code in seen.iter().filter(|code| code.as_str() != "PB9999") {
            assert!(page(code).is_some(), "{code} has no page");
        }
    }

    fn collect(path: &Path, seen: &mut BTreeSet<String>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                collect(&entry.unwrap().path(), seen);
            }
        } else if let Ok(text) = fs::read_to_string(path) {
            for (at, _) in text.match_indices("PB") {
                if let Some(code) = text.get(at..at + 6)
                    && code[2..].bytes().all(|b| b.is_ascii_digit())
                {
                    seen.insert(code.to_owned());
                }
            }
        }
    }
}
