//! A page of the spec: its prose, its links, and what stands between fences.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::schema::{By, Schemas};
use crate::vectors::bytes::read_hex;

pub(super) struct Page {
    pub(super) path: PathBuf,
    /// The path within the repository.
    pub(super) name: String,
    pub(super) text: String,
}

/// What stands between two fences.
pub(super) struct Block<'a> {
    pub(super) line: usize,
    pub(super) info: &'a str,
    pub(super) text: String,
}

impl Page {
    /// The lines outside of fences, with their numbers.
    pub(super) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            (!fenced && !fence).then_some((index + 1, line))
        })
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let mut lines = self.text.lines().enumerate();
        std::iter::from_fn(move || {
            let (index, info) =
                lines.find_map(|(index, line)| Some((index, line.strip_prefix("```")?)))?;
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = text.flat_map(|line| [line, "\n"]).collect();
            Some(Block { line: index + 1, info, text })
        })
    }

    pub(super) fn follow(&self, target: &str) -> Result<(), String> {
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
    pub(super) fn check(&self, spec: &Path, schemas: &Schemas) -> Result<(), String> {
        let (language, file) = self.info.split_once(' ').unwrap_or((self.info, ""));
        if language == "json" {
            let values = serde_json::Deserializer::from_str(&self.text).into_iter::<Value>();
            // What is shown is named, such as `tool.json#provide`.
            let named = file.split_once('#');
            return values.into_iter().try_for_each(|value| {
                let value = value.map_err(|why| format!("expected JSON: {why}"))?;
                named.map_or(Ok(()), |(file, name)| schemas.fits(By::Sender, file, name, &value))
            });
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

pub(super) fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The fragment that a heading answers to.
pub(super) fn slug(heading: &str) -> String {
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
    fn links_and_fragments_are_found() {
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
