//! Checks that `sdk-spec` keeps the promises it makes about itself.
//!
//! - A sentence that obliges somebody is one rule with one id, and no id is given
//!   twice.
//! - An id that anybody cites, here or in the code, is the id of a rule.
//! - A link leads somewhere, and so does its fragment.
//! - Bytes that are shown are those of the vector they name; JSON that is shown is
//!   JSON; a program that is shown is the file it names.
//! - [`schema`] fits its own examples, the JSON that pages show, and the vectors.
//! - [`requirements`] lists every rule, and [`trace`] what shows that it is kept.
//!
//! With `--write`, the parts of the last two that follow from the rest are written.

mod page;
mod requirements;
mod rule;
mod schema;
mod trace;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use self::{
    page::{Page, links, slug},
    rule::{Rule, ids, rule},
    schema::Schemas,
};

/// Where rule ids are cited.
const CITING: &[&str] = &[
    "sdk-spec",
    "protocol",
    "supervisor",
    "sdk-rust",
    "tck",
    "model",
    "cli",
    "tests",
    "examples",
    "bench",
    "fuzz",
];

/// A rule and where it stands.
struct Placed {
    rule: Rule,
    /// File and line, for whoever mends it.
    at: String,
    /// Page and heading within `sdk-spec`, as a link has them.
    place: String,
}

pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), Vec<String>> {
    let write = match arguments {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => return Err(vec!["usage: cargo xtask spec [--write]".into()]),
    };
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

    let mut problems = Vec::new();
    let schemas = Schemas::read(&spec.join("schema")).map_err(|why| vec![why])?;
    let registry = pages.iter().find(|page| page.path == spec.join("registry.md"));
    problems.extend(schemas.problems(registry.map_or("", |page| &page.text)));
    let mut rules = Vec::new();
    for page in &pages {
        rules.extend(read(page, &spec, &schemas, &mut problems));
    }
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for Placed { rule, at, .. } in &rules {
        if let Some(first) = known.insert(&rule.id, at) {
            problems.push(format!("{at}: [{}] stands at {first} already", rule.id));
        }
    }
    for (name, text) in &citing {
        for (number, line) in text.lines().enumerate() {
            for id in ids(line).filter(|id| !known.contains_key(id)) {
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
    // A file that follows from the pages cannot follow from wrong ones.
    if problems.is_empty() {
        let settled = settle(root, requirements::FILE, write, |found| {
            let text = requirements::settle(&rules, found)?;
            Ok((requirements::undecided(&text)?, text))
        });
        problems.extend(settled);
        let settled = settle(root, trace::FILE, write, |found| {
            let text = trace::settle(&rules, found)?;
            Ok((trace::gaps(&rules, &text, root)?, text))
        });
        problems.extend(settled);
    }
    if problems.is_empty() {
        println!("{} rules on {} pages hold together", rules.len(), pages.len());
        return Ok(());
    }
    Err(problems)
}

/// The rules of a page, and what is wrong with it.
fn read(page: &Page, spec: &Path, schemas: &Schemas, problems: &mut Vec<String>) -> Vec<Placed> {
    let mut rules = Vec::new();
    let mut heading = String::new();
    for (number, line) in page.prose() {
        let at = format!("{}:{number}", page.name);
        if line.starts_with('#') {
            heading = slug(line);
        }
        match rule(line) {
            Ok(None) => {}
            Ok(Some(rule)) => {
                let name = page.name.trim_start_matches("sdk-spec/");
                let place = format!("{name}#{heading}");
                rules.push(Placed { rule, at: at.clone(), place });
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
        if let Err(why) = block.check(spec, schemas) {
            problems.push(format!("{}:{}: {why}", page.name, block.line));
        }
    }
    rules
}

/// Compares a file with what it should say, or writes that; what is wrong with it then.
fn settle(
    root: &Path,
    name: &str,
    write: bool,
    say: impl FnOnce(&str) -> Result<(Vec<String>, String), String>,
) -> Vec<String> {
    let path = root.join(name);
    let act = || {
        let found = fs::read_to_string(&path).map_err(|why| why.to_string())?;
        let (mut problems, text) = say(&found)?;
        match write {
            true => fs::write(&path, text).map_err(|why| why.to_string())?,
            false if found != text => problems.push("differs, run cargo xtask spec --write".into()),
            false => {}
        }
        Ok(problems)
    };
    let problems = act().unwrap_or_else(|why: String| vec![why]);
    problems.into_iter().map(|why| format!("{name}: {why}")).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_holds_together() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(run(&root, &[]), Ok(()));
    }
}
