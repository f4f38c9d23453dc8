//! Checks that `sdk-spec` keeps the promises it makes about itself.
//!
//! - A sentence that obliges somebody is one rule with one id, and no id is given
//!   twice.
//! - An id that anybody cites, here or in the code, is the id of a rule.
//! - A link leads somewhere, and so does its fragment.
//! - Bytes that are shown are those of the vector they name; JSON that is shown is
//!   JSON; a program that is shown is the file it names.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::vectors::bytes::read_hex;

/// Where rule ids are cited.
const CITING: &[&str] = &[
    "sdk-spec",
    "protocol",
    "supervisor",
    "sdk-rust",
    "cli",
    "tests",
    "examples",
    "bench",
    "fuzz",
];

pub(crate) fn run(root: &Path, _: &[String]) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    let spec = root.join("sdk-spec");
    let mut pages = Vec::new();
    let mut citing = Vec::new();
    for folder in CITING {
        collect(&root.join(folder), &mut |path, text| {
            let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
            if path.extension().is_some_and(|ending| ending == "md") && path.starts_with(&spec) {
                pages.push(Page { path: path.to_owned(), name: name.clone(), text: text.clone() });
            }
            citing.push((name, text));
        });
    }

    let mut rules: BTreeMap<String, String> = BTreeMap::new();
    for page in &pages {
        for (number, line) in page.prose() {
            let at = format!("{}:{number}", page.name);
            match rule(line) {
                Ok(None) => {}
                Ok(Some(id)) => {
                    if let Some(first) = rules.insert(id.to_owned(), at.clone()) {
                        problems.push(format!("{at}: [{id}] stands at {first} already"));
                    }
                }
                Err(why) => problems.push(format!("{at}: {why}")),
            }
            for target in links(line) {
                if let Err(why) = page.follow(target) {
                    problems.push(format!("{at}: link to {target:?}: {why}"));
                }
            }
        }
        for block in page.blocks() {
            if let Err(why) = block.check(&spec) {
                problems.push(format!("{}:{}: {why}", page.name, block.line));
            }
        }
    }
    for (name, text) in &citing {
        for (number, line) in text.lines().enumerate() {
            for id in ids(line).filter(|id| !rules.contains_key(*id)) {
                problems.push(format!("{name}:{}: [{id}] is no rule", number + 1));
            }
        }
    }
    match pages.iter().find(|page| page.path == spec.join("TUTORIAL.md")) {
        Some(page) if page.blocks().any(|block| block.info == "python tutorial/greet.py") => {}
        _ => {
            problems.push("sdk-spec/TUTORIAL.md: expected a block python tutorial/greet.py".into())
        }
    }
    if problems.is_empty() {
        println!("{} rules on {} pages hold together", rules.len(), pages.len());
        return Ok(());
    }
    Err(problems)
}

/// Hands over every text file in a folder, in a fixed order.
fn collect(folder: &Path, take: &mut impl FnMut(&Path, String)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, take);
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            take(&path, text);
        }
    }
}

struct Page {
    path: PathBuf,
    name: String,
    text: String,
}

/// What stands between two fences.
struct Block<'a> {
    line: usize,
    info: &'a str,
    text: String,
}

impl Page {
    /// The lines outside of fences, with their numbers.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            (!fenced && !fence).then_some((index + 1, line))
        })
    }

    fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let mut lines = self.text.lines().enumerate();
        std::iter::from_fn(move || {
            let (index, info) =
                lines.find_map(|(index, line)| Some((index, line.strip_prefix("```")?)))?;
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = text.flat_map(|line| [line, "\n"]).collect();
            Some(Block { line: index + 1, info, text })
        })
    }

    fn follow(&self, target: &str) -> Result<(), String> {
        if target.contains("://") {
            return Ok(());
        }
        let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
        let folder = self.path.parent().unwrap_or(&self.path);
        let path = if file.is_empty() { self.path.clone() } else { folder.join(file) };
        let text = match path.is_dir() {
            true => String::new(),
            false => fs::read_to_string(&path).map_err(|why| why.to_string())?,
        };
        let page = Page { path, name: String::new(), text };
        let found = fragment.is_empty()
            || page.prose().any(|(_, line)| line.starts_with('#') && slug(line) == fragment);
        if found { Ok(()) } else { Err(format!("expected a heading for #{fragment}, found none")) }
    }
}

impl Block<'_> {
    fn check(&self, spec: &Path) -> Result<(), String> {
        let (language, file) = self.info.split_once(' ').unwrap_or((self.info, ""));
        if language == "json" {
            let values = serde_json::Deserializer::from_str(&self.text);
            let bad = values.into_iter::<serde_json::Value>().find_map(Result::err);
            return bad.map_or(Ok(()), |why| Err(format!("expected JSON: {why}")));
        }
        if file.is_empty() {
            return Ok(());
        }
        let found = fs::read_to_string(spec.join(file)).map_err(|why| format!("{file}: {why}"))?;
        let same = match language {
            "hex" => read_hex(&self.text).is_some() && read_hex(&self.text) == read_hex(&found),
            _ => self.text == found,
        };
        if same { Ok(()) } else { Err(format!("expected what is in {file}, found something else")) }
    }
}

/// The id of the rule in a line, if there is one.
///
/// # Errors
/// It obliges somebody and is not one sentence with one id.
fn rule(line: &str) -> Result<Option<&str>, String> {
    // What stands in backquotes is quoted.
    let bare: String = line.split('`').step_by(2).collect();
    let table = bare.starts_with('|');
    let words = bare.split(|c: char| !c.is_alphabetic());
    let duties = words.filter(|word| ["MUST", "SHOULD", "SHALL", "MAY"].contains(word)).count()
        + if table { 0 } else { bare.matches('⇒').count() };
    let Some((id, text)) = line.strip_prefix("- **[").and_then(|rest| rest.split_once("]** "))
    else {
        return match duties {
            0 => Ok(None),
            _ => Err("expected a rule id before a sentence that obliges somebody".into()),
        };
    };
    if ids(id).next() != Some(id) {
        return Err(format!("expected an id like R-FR-03, found {id:?}"));
    }
    if duties != 1 {
        return Err(format!("expected one MUST, SHOULD or ⇒ in [{id}], found {duties}"));
    }
    let sentences = text.matches(". ").count() + usize::from(text.ends_with('.'));
    if sentences != 1 {
        return Err(format!("expected [{id}] to be one sentence, found {sentences}"));
    }
    Ok(Some(id))
}

/// Every rule id in a line.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("R-").filter_map(|(at, _)| {
        let id = line.get(at..at + 7)?;
        let before = line[..at].chars().next_back();
        let [_, _, a, b, dash, c, d] = *id.as_bytes() else { return None };
        let shaped = a.is_ascii_uppercase()
            && b.is_ascii_uppercase()
            && dash == b'-'
            && c.is_ascii_digit()
            && d.is_ascii_digit();
        (shaped && !before.is_some_and(char::is_alphanumeric)).then_some(id)
    })
}

fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The fragment that a heading answers to.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_holds_together() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(run(&root, &[]), Ok(()));
    }

    #[test]
    fn a_duty_is_one_sentence_with_one_id() {
        assert_eq!(rule("Nothing here obliges anybody."), Ok(None));
        assert_eq!(rule("- **[R-FR-01]** A frame MUST be whole."), Ok(Some("R-FR-01")));
        assert_eq!(rule("- **[R-FR-04]** A gap of ones ⇒ `protocol_error`."), Ok(Some("R-FR-04")));
        assert_eq!(rule("`MUST` is a word of BCP 14."), Ok(None));
        for wrong in [
            "A frame MUST be whole.",
            "A gap of ones ⇒ `protocol_error`.",
            "- **[R-FR-1]** A frame MUST be whole.",
            "- **[R-FR-01]** A frame is whole.",
            "- **[R-FR-01]** A frame MUST be whole and MUST be small.",
            "- **[R-FR-01]** A frame MUST be whole. It is then read.",
            "- **[R-FR-01]** A frame MUST be whole",
        ] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_links_and_fragments_are_found() {
        let found: Vec<_> = ids(r"see [R-FR-03], \[R-HD-11\], XR-AA-01 and R-x").collect();
        assert_eq!(found, ["R-FR-03", "R-HD-11"]);
        assert_eq!(links("a [b](c.md#d) and [e](f)").collect::<Vec<_>>(), ["c.md#d", "f"]);
        assert_eq!(slug("## 2.2 Activation and deactivation"), "22-activation-and-deactivation");
    }

    #[test]
    fn blocks_and_prose_are_told_apart() {
        let text = "a\n```hex x.hex\nc1 # MUST\n```\nb\n```\nc\n```\n".to_owned();
        let page = Page { path: PathBuf::new(), name: String::new(), text };
        assert_eq!(page.prose().collect::<Vec<_>>(), [(1, "a"), (5, "b")]);
        let blocks: Vec<_> = page.blocks().map(|b| (b.line, b.info, b.text)).collect();
        assert_eq!(blocks, [(2, "hex x.hex", "c1 # MUST\n".into()), (6, "", "c\n".into())]);
    }
}
