//! Tools as a table, and one by one in full.

use clap::builder::styling::Style;
use plugbay_supervisor::ToolInfo;

use super::one_line;
use crate::{
    source::Source,
    usage::{self, Argument},
};

/// How much of a description is shown in the table.
const ABOUT_MAX: usize = 72;

/// One line for each tool.
pub(crate) fn table(tools: &[ToolInfo]) -> String {
    let head = ["TOOL", "EFFECT", "PLUGIN", "DESCRIPTION"].map(str::to_owned);
    let row = |tool: &ToolInfo| {
        [
            tool.name.clone(),
            tool.effect.as_str().to_owned(),
            tool.plugin.clone().unwrap_or_else(|| "-".into()),
            about(&tool.description),
        ]
    };
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(tools.iter().map(row)).collect();
    columns(&rows)
}

/// Rows below each other; the last column is as wide as it is.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    styled(rows, |_, _| None)
}

/// The same with a style for some of the cells, by row and column.
pub(crate) fn styled<const N: usize>(
    rows: &[[String; N]],
    style: impl Fn(usize, usize) -> Option<Style>,
) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let line = |(at, row): (usize, &[String; N])| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let pad = width - cell.chars().count();
            match style(at, column) {
                Some(style) => format!("{style}{cell}{style:#}{:pad$}", ""),
                None => format!("{cell}{:pad$}", ""),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().enumerate().map(line).collect()
}

/// The first sentence, or as much of it as fits.
fn about(description: &str) -> String {
    let text = one_line(description);
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    match text[..end].char_indices().nth(ABOUT_MAX) {
        Some((at, _)) => format!("{}…", text[..at].trim_end()),
        None => text[..end].to_owned(),
    }
}

/// Everything about each tool: its words for the model, how to call it, and what
/// stands between it and its limits.
///
/// `degraded` says of a plugin what of its limits is not enforced.
pub(crate) fn long(
    tools: &[ToolInfo],
    degraded: impl Fn(&str) -> Vec<String>,
    source: &Source,
) -> String {
    let block = |tool: &ToolInfo| {
        let degraded = tool.plugin.as_deref().map(&degraded);
        block(tool, &degraded.unwrap_or_default(), source)
    };
    tools.iter().map(block).collect::<Vec<String>>().join("\n")
}

fn block(tool: &ToolInfo, degraded: &[String], source: &Source) -> String {
    let ToolInfo { name, effect, .. } = tool;
    let again = if tool.idempotent { ", may be repeated" } else { "" };
    let plugin = tool.plugin.as_deref().unwrap_or("-");
    let mut text = format!("{name}\n    {}\n", one_line(&tool.description));
    text.push_str(&format!("    {}\n", usage::call(source, name, &tool.input_schema)));
    let row = |it: Argument| {
        let needed = if it.is_required { "needed" } else { "" };
        [
            format!("      {}", one_line(&it.name)),
            one_line(&it.kind),
            needed.to_owned(),
            one_line(&it.about),
        ]
    };
    let rows: Vec<[String; 4]> =
        usage::arguments(&tool.input_schema).into_iter().map(row).collect();
    text.push_str(&columns(&rows));
    text.push_str(&format!(
        "    effect {}{again}; plugin {plugin} is {}\n",
        effect.as_str(),
        tool.state
    ));
    for degraded in degraded {
        text.push_str(&format!("    not enforced: {}\n", one_line(degraded)));
    }
    text
}

#[cfg(test)]
mod tests {
    use plugbay_supervisor::{Effect, State};
    use serde_json::json;

    use super::*;

    fn tool(name: &str, description: &str) -> ToolInfo {
        ToolInfo {
            name: name.into(),
            description: description.into(),
            input_schema: json!({
                "required": ["who"],
                "properties": { "who": { "type": "string", "description": "Whom." }, "n": { "type": "integer" } },
            }),
            output_schema: None,
            effect: Effect::Read,
            idempotent: true,
            state: State::Dormant,
            plugin: Some("greeter".into()),
            generation: 1,
        }
    }

    #[test]
    fn a_table_lines_up() {
        let tools = [tool("greet", "Greets. And more."), tool("é", &"long ".repeat(30))];
        let expected = format!(
            "TOOL   EFFECT  PLUGIN   DESCRIPTION
greet  read    greeter  Greets.
é      read    greeter  {}…\n",
            "long ".repeat(15)[..ABOUT_MAX].trim_end()
        );
        assert_eq!(table(&tools), expected);
    }

    #[test]
    fn a_tool_in_full() {
        let expected = "greet
    Greets.
    plugbay call --config plugins/ greet who=TEXT [n=INTEGER]
      who  TEXT     needed  Whom.
      n    INTEGER
    effect read, may be repeated; plugin greeter is dormant
";
        let source = Source { config: Some("plugins/".into()), ..Source::default() };
        assert_eq!(long(&[tool("greet", "Greets.\n")], |_| Vec::new(), &source), expected);
    }
}
