//! `plugbay explain`: the page behind a code.

use plugbay_supervisor::manifest::{Code, explain as pages};
use serde_json::json;

use crate::{
    args::Explain,
    exit::Exit,
    render::{Screen, tools::columns},
    trouble::{Outcome, Trouble},
};

pub(super) fn explain(args: &Explain, screen: &Screen) -> Outcome {
    if args.list {
        return list(args.json, screen);
    }
    let word = args.code.as_deref().ok_or_else(|| {
        Trouble::usage("expected a code, found nothing")
            .help("the code stands in the error: `plugbay explain PB0421`")
            .help("`plugbay explain --list` shows all")
    })?;
    let code = find(word).ok_or_else(|| {
        Trouble::new(Exit::NotFound, format!("there is no code {word:?}"))
            .help("codes look like PB0421; `plugbay explain --list` shows all")
    })?;
    let exit = Exit::of(code);
    if args.json {
        screen.json(&json!({
            "code": code, "title": code.title(), "page": code.page(), "exit": exit as u8,
        }))?;
    } else {
        screen.page(&format!("{}\n{}", code.page(), ending(exit)))?;
    }
    Ok(Exit::Fine)
}

/// The last words of each page.
fn ending(exit: Exit) -> String {
    let check = if exit == Exit::Bad { "" } else { " (`check` ends with 1 for any error)" };
    format!(
        "A command that fails for this ends with exit code {}{check}. `plugbay explain --list` \
         shows all codes.\n",
        exit as u8
    )
}

fn list(is_json: bool, screen: &Screen) -> Outcome {
    if is_json {
        let all = pages::index().map(|(code, title)| json!({ "code": code, "title": title }));
        screen.json(&all.collect())?;
    } else {
        let rows = pages::index().map(|(code, title)| [code.to_string(), title.to_owned()]);
        screen.data(&columns(&rows.collect::<Vec<_>>()))?;
    }
    Ok(Exit::Fine)
}

/// Finds a code as people write it: `PB0421`, `pb421`, `error[PB0421]`, `421`.
fn find(word: &str) -> Option<Code> {
    let digits: String = word.chars().filter(char::is_ascii_digit).collect();
    let letters: String = word.chars().filter(char::is_ascii_alphabetic).collect();
    let is_code = ["", "pb", "errorpb", "warningpb", "notepb"].contains(&&*letters.to_lowercase());
    Code::parse(&format!("PB{digits:0>4}")).filter(|_| is_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_as_people_write_it() {
        for word in ["PB0421", "pb0421", "0421", "421", "PB-0421", "error[PB0421]", "PB421:"] {
            assert_eq!(find(word), Some(Code::PB0421), "{word}");
        }
        for word in ["", "PB", "E0421", "PB9999", "greet"] {
            assert_eq!(find(word), None, "{word}");
        }
    }
}
