//! `plugbay doctor`: what this machine can enforce.

use plugbay_supervisor::{
    isolation::{Finding, Lack, Machine},
    plan::Level,
};
use serde_json::json;

use crate::{
    args::Doctor,
    exit::Exit,
    render::{BAD, GOOD, Screen, tools::styled},
    trouble::Outcome,
};

const LEVELS: [Level; 2] = [Level::Standard, Level::Strict];

pub(super) fn doctor(args: &Doctor, screen: &Screen) -> Outcome {
    let machine = Machine::here();
    let findings = machine.findings();
    let missing = LEVELS.map(|level| machine.missing(level));
    if args.json {
        let levels = LEVELS.iter().zip(&missing);
        let levels = levels.map(|(level, missing)| json!({ "level": level, "missing": missing }));
        screen.json(&json!({
            "user": if machine.is_ordinary_user { "ordinary" } else { "root" },
            "levels": levels.collect::<Vec<_>>(),
            "walls": findings,
        }))?;
    } else {
        let levels = LEVELS.iter().zip(&missing).map(|(level, missing)| {
            let words: Vec<&str> = missing.iter().map(|it| it.as_str()).collect();
            match words.as_slice() {
                [] => format!("level {}: everything can be enforced\n", level.as_str()),
                words => format!("level {}: all but {}\n", level.as_str(), words.join(", ")),
            }
        });
        screen.data(&format!("{}\n{}", levels.collect::<String>(), walls(&findings)))?;
    }
    Ok(if missing[0].is_empty() { Exit::Fine } else { Exit::Bad })
}

/// A line for each wall, and below it why it is not there.
fn walls(findings: &[Finding]) -> String {
    let row = |it: &Finding| {
        let answer = if it.lack.is_none() { "yes" } else { "no" };
        [answer, it.item.as_str(), &it.wall, it.about].map(str::to_owned)
    };
    let rows: Vec<[String; 4]> = findings.iter().map(row).collect();
    let style = |row: usize, column: usize| match (column, &findings[row].lack) {
        (0, None) => Some(GOOD),
        (0, Some(_)) => Some(BAD),
        _ => None,
    };
    let table = styled(&rows, style);
    let lines = table.lines().zip(findings).map(|(line, it)| match &it.lack {
        Some(Lack { cause, fix }) => format!("{line}\n     why: {cause}\n     fix: {fix}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use plugbay_supervisor::plan::Item;

    use super::*;

    #[test]
    fn what_is_missing_says_why_and_what_helps() {
        let finding = |item: Item, wall: &str, lack| Finding {
            item,
            wall: wall.to_owned(),
            about: item.about(),
            from: Level::Standard,
            lack,
        };
        let lack = Lack { cause: "cannot do it".into(), fix: "do this".into() };
        let text = walls(&[
            finding(Item::Tree, "PID namespace", None),
            finding(Item::Memory, "cgroup", Some(lack)),
        ]);
        let plain = anstream::adapter::strip_str(&text).to_string();
        let lines: Vec<&str> = plain.lines().map(str::trim).collect();
        assert!(lines[0].starts_with("yes  tree    PID namespace  whatever"), "{plain}");
        assert!(lines[1].starts_with("no   memory  cgroup         limits.memory"), "{plain}");
        assert_eq!(lines[2..], ["why: cannot do it", "fix: do this"]);
    }
}
