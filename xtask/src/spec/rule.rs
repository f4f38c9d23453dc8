//! A rule: one sentence that obliges somebody, with its id.

/// What a line of a page obliges somebody to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) id: String,
    /// How much: `MUST`, `MUST NOT`, `SHOULD`, `SHOULD NOT` or `MAY`.
    pub(super) keyword: &'static str,
    /// The sentence, without links.
    pub(super) text: String,
}

/// The words that oblige somebody. The longer ones come first.
const KEYWORDS: &[&str] = &["MUST NOT", "MUST", "SHOULD NOT", "SHOULD", "MAY"];

/// The rule in a line, if there is one.
///
/// # Errors
/// It obliges somebody and is not one sentence with one id.
pub(super) fn rule(line: &str) -> Result<Option<Rule>, String> {
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
    // `X ⇒ code` is a MUST.
    let keyword = KEYWORDS.iter().find(|keyword| bare.contains(**keyword)).unwrap_or(&"MUST");
    Ok(Some(Rule { id: id.to_owned(), keyword, text: without_links(text) }))
}

/// `[words](target)` becomes `words`.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else { break };
        // A bracket that is no link, such as an id, may stand before one that is.
        let (kept, words) = words.rsplit_once('[').map_or(("", words), |(a, b)| (a, b));
        plain.push_str(before);
        if !kept.is_empty() {
            plain.extend(["[", kept]);
        }
        plain.push_str(words);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

/// Every rule id in a line.
pub(super) fn ids(line: &str) -> impl Iterator<Item = &str> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_is_one_sentence_with_one_id() {
        let found = |line| rule(line).map(|it| it.map(|it| (it.id, it.keyword)));
        let some = |id: &str, keyword| Ok(Some((id.to_owned(), keyword)));
        assert_eq!(found("Nothing here obliges anybody."), Ok(None));
        assert_eq!(found("- **[R-FR-01]** A frame MUST be whole."), some("R-FR-01", "MUST"));
        assert_eq!(found("- **[R-FR-01]** It MUST NOT be cut."), some("R-FR-01", "MUST NOT"));
        assert_eq!(found("- **[R-FR-01]** It SHOULD be whole."), some("R-FR-01", "SHOULD"));
        assert_eq!(found("- **[R-FR-04]** A gap ⇒ `protocol_error`."), some("R-FR-04", "MUST"));
        assert_eq!(found("`MUST` is a word of BCP 14."), Ok(None));
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
    fn ids_are_found() {
        let found: Vec<_> = ids(r"see [R-FR-03], \[R-HD-11\], XR-AA-01 and R-x").collect();
        assert_eq!(found, ["R-FR-03", "R-HD-11"]);
    }

    #[test]
    fn links_become_words() {
        assert_eq!(without_links("as [2.4](02.md#24) says."), "as 2.4 says.");
        assert_eq!(without_links("[R-GT-05] and [a](b)."), "[R-GT-05] and a.");
        assert_eq!(without_links("`[scope]` and [R-GT-05]."), "`[scope]` and [R-GT-05].");
    }
}
