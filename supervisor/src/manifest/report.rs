//! Problems, and the two ways to show them: for a person and for a program.

use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Patch, Renderer, Snippet};
use serde::Serialize;

use super::{
    codes::Code,
    source::{self, Source, Span},
};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something will not run: a tool, a plugin, or all of them.
    Error,
    /// It runs, and not as written.
    Warning,
    /// Worth knowing.
    Note,
}

/// One stretch of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The path as the operator wrote it.
    pub file: String,
    /// First byte and the byte after the last.
    pub span: Span,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is said about it.
    pub label: String,
}

/// An edit that would repair it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// Such as ``did you mean `open_files`?``.
    pub title: String,
    /// The file to edit.
    pub file: String,
    /// What to replace, in bytes.
    pub span: Span,
    /// By what.
    pub replacement: String,
}

/// One thing that is wrong, where, why and what to do next.
///
/// It never holds the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// Looked up with `plugbay explain`.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub message: String,
    /// The plugin it concerns; none when it concerns the whole file.
    pub plugin: Option<String>,
    /// The tool it concerns: an error then withholds this tool and the plugin runs.
    pub tool: Option<String>,
    /// Where.
    pub at: Option<Place>,
    /// Other places that explain it, possibly in another file.
    pub also: Vec<Place>,
    /// What to do next.
    pub help: Option<String>,
    /// How to edit the file.
    pub suggestion: Option<Suggestion>,
}

impl Problem {
    pub(crate) fn new(code: Code, severity: Severity, message: impl AsRef<str>) -> Self {
        Self {
            code,
            severity,
            message: printable(message.as_ref()),
            plugin: None,
            tool: None,
            at: None,
            also: Vec::new(),
            help: None,
            suggestion: None,
        }
    }

    pub(crate) fn error(code: Code, message: impl AsRef<str>) -> Self {
        Self::new(code, Severity::Error, message)
    }

    pub(crate) fn warning(code: Code, message: impl AsRef<str>) -> Self {
        Self::new(code, Severity::Warning, message)
    }

    pub(crate) fn note(code: Code, message: impl AsRef<str>) -> Self {
        Self::new(code, Severity::Note, message)
    }

    pub(crate) fn at(mut self, source: &Source, span: &Span, label: impl AsRef<str>) -> Self {
        self.at = Some(Place::new(source, span, label.as_ref()));
        self
    }

    pub(crate) fn also(mut self, source: &Source, span: &Span, label: impl AsRef<str>) -> Self {
        self.also.push(Place::new(source, span, label.as_ref()));
        self
    }

    pub(crate) fn help(mut self, help: impl AsRef<str>) -> Self {
        self.help = Some(printable(help.as_ref()));
        self
    }

    pub(crate) fn suggest(
        mut self,
        source: &Source,
        span: &Span,
        replacement: &str,
        title: impl AsRef<str>,
    ) -> Self {
        self.suggestion = Some(Suggestion {
            title: printable(title.as_ref()),
            file: source.name.to_string(),
            span: source.clamp(span.clone()),
            replacement: printable(replacement),
        });
        self
    }

    /// Suggests the word that was probably meant, in the quotes that are there.
    pub(crate) fn near(self, source: &Source, span: &Span, near: &str) -> Self {
        let there = source.shown.get(span.start..).and_then(|it| it.chars().next());
        let quote = there.filter(|it| ['"', '\''].contains(it)).map(String::from);
        let quote = quote.unwrap_or_default();
        let replacement = format!("{quote}{near}{quote}");
        self.suggest(source, span, &replacement, format!("did you mean `{near}`?"))
    }

    pub(crate) fn plugin(mut self, plugin: &str) -> Self {
        self.plugin = Some(plugin.to_owned());
        self
    }

    pub(crate) fn tool(mut self, tool: &str) -> Self {
        self.tool = Some(tool.to_owned());
        self
    }
}

impl Place {
    fn new(source: &Source, span: &Span, label: &str) -> Self {
        let (line, column) = source.line_column(span.start);
        Self {
            file: source.name.to_string(),
            span: source.clamp(span.clone()),
            line,
            column,
            label: printable(label),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(place) = &self.at {
            write!(f, " ({}:{}:{})", place.file, place.line, place.column)?;
        }
        write!(f, " [{}]", self.code)
    }
}

impl std::error::Error for Problem {}

/// Everything that was found, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was found.
    pub problems: Vec<Problem>,
    pub(crate) sources: Vec<Source>,
}

impl Report {
    /// Whether anything will not run.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|it| it.severity == Severity::Error)
    }

    /// How many of one kind.
    pub fn count(&self, severity: Severity) -> usize {
        self.problems.iter().filter(|it| it.severity == severity).count()
    }

    /// For a person: one block a problem, with the lines it is about. Ends with
    /// a newline unless it is empty.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let blocks: Vec<String> =
            self.problems.iter().map(|it| renderer.render(&self.groups(it)) + "\n").collect();
        let text = blocks.join("\n");
        if color {
            return text;
        }
        text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// Puts the problems in the order in which a person meets them: file by file,
    /// line by line; first what has no place.
    pub(crate) fn sort(&mut self) {
        let file = |place: &Place| {
            self.sources.iter().position(|it| *it.name == *place.file).map(|at| at + 1)
        };
        self.problems.sort_by_key(|it| {
            it.at.as_ref().map_or((0, 0), |at| (file(at).unwrap_or_default(), at.span.start))
        });
    }

    /// For a program: `{"problems": […], "errors": n, "warnings": n}`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "problems": self.problems,
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
        })
    }

    /// One line: `2 errors, 1 warning`, or `no problems`.
    pub fn summary(&self) -> String {
        let counted = [(Severity::Error, "error"), (Severity::Warning, "warning")]
            .map(|(severity, word)| (self.count(severity), word));
        let words: Vec<String> = counted
            .iter()
            .filter(|(n, _)| 0 < *n)
            .map(|(n, word)| format!("{n} {word}{}", if *n == 1 { "" } else { "s" }))
            .collect();
        if words.is_empty() { "no problems".to_owned() } else { words.join(", ") }
    }

    /// Puts errors about one thing found twice (say, a `plugin.toml` that two
    /// plugins share) into the report once.
    pub(crate) fn add(&mut self, problem: Problem) {
        let is_known = self.problems.iter().any(|it| {
            (it.code, &it.message, &it.at) == (problem.code, &problem.message, &problem.at)
        });
        if !is_known {
            self.problems.push(problem);
        }
    }

    pub(crate) fn source(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|it| &*it.name == name)
    }

    fn groups<'a>(&'a self, problem: &'a Problem) -> Vec<Group<'a>> {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let title = level.primary_title(&problem.message).id(problem.code.as_str());
        let mut group = Group::with_title(title);
        let mut also: Vec<&Place> = problem.also.iter().collect();
        if let Some(place) = &problem.at {
            // Places in the same file share one picture of it.
            let (here, elsewhere) = also.into_iter().partition(|it| it.file == place.file);
            also = elsewhere;
            group = self.picture(group, place, here);
        }
        for place in also {
            group = self.picture(group, place, Vec::new());
        }
        let mut groups = vec![group];
        let patch = problem
            .suggestion
            .as_ref()
            .and_then(|it| self.source(&it.file).map(|source| (it, source)));
        match patch {
            Some((suggestion, source)) => {
                let snippet = Snippet::source(&*source.shown)
                    .patch(Patch::new(suggestion.span.clone(), &suggestion.replacement));
                groups.push(Level::HELP.secondary_title(&suggestion.title).element(snippet));
                if let Some(help) = &problem.help {
                    groups.push(Group::with_title(Level::HELP.secondary_title(help)));
                }
            }
            None => {
                if let Some(help) = &problem.help {
                    groups.push(Group::with_title(Level::HELP.secondary_title(help)));
                }
            }
        }
        groups
    }

    fn picture<'a>(
        &'a self,
        group: Group<'a>,
        place: &'a Place,
        context: Vec<&'a Place>,
    ) -> Group<'a> {
        let Some(source) = self.source(&place.file) else {
            return group.element(Origin::path(&place.file));
        };
        if source.shown.is_empty() {
            return group.element(Origin::path(&place.file));
        }
        let annotation = AnnotationKind::Primary.span(place.span.clone()).label(&place.label);
        let context = context
            .into_iter()
            .map(|it| AnnotationKind::Context.span(it.span.clone()).label(&it.label));
        group.element(
            Snippet::source(&*source.shown)
                .path(&place.file)
                .annotation(annotation)
                .annotations(context),
        )
    }
}

/// Problems on their way to a report, put to one plugin's name.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) problems: Vec<Problem>,
    plugin: Option<String>,
}

impl Notes {
    pub(crate) fn about(plugin: &str) -> Self {
        Self { problems: Vec::new(), plugin: Some(plugin.to_owned()) }
    }

    /// A warning where there is an error already would be its echo.
    pub(crate) fn add(&mut self, mut problem: Problem) {
        let is_echo = problem.severity == Severity::Warning
            && problem.at.is_some()
            && self.problems.iter().any(|it| {
                let (a, b) = (it.at.as_ref(), problem.at.as_ref());
                it.severity == Severity::Error
                    && a.map(|at| (&at.file, &at.span)) == b.map(|at| (&at.file, &at.span))
            });
        if is_echo {
            return;
        }
        if problem.plugin.is_none() {
            problem.plugin.clone_from(&self.plugin);
        }
        self.problems.push(problem);
    }

    /// Whether the plugin cannot run. A fault of one tool withholds the tool.
    pub(crate) fn is_fatal(&self) -> bool {
        self.problems.iter().any(|it| it.severity == Severity::Error && it.tool.is_none())
    }
}

/// Text that moves no cursor, sets no colour and holds no token, whoever wrote it.
pub(crate) fn printable(text: &str) -> String {
    const KEPT: usize = 2_000;
    let mut out = String::with_capacity(text.len().min(KEPT));
    for c in source::masked(text).chars() {
        if KEPT < out.len() {
            out.push('…');
            break;
        }
        match c {
            '\n' => out.push('\n'),
            // Bidirectional overrides reorder what a person reads.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\rc\u{202e}d\n"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\n");
        assert!(printable(&"x".repeat(10_000)).len() < 3_000);
        assert_eq!(printable("`ghp_0123456789abcdefghij`"), format!("`{}`", "*".repeat(24)));
    }

    #[test]
    fn colour_is_the_caller_s_choice() {
        let source = Source::new("a.toml", "x = 1\n");
        let problem = Problem::error(Code::PB0102, "unknown key `x`").at(&source, &(0..1), "here");
        let report = Report { problems: vec![problem], sources: vec![source] };
        assert!(!report.render(false).contains('\u{1b}'));
        assert!(report.render(true).contains("\u{1b}["));
        assert_eq!(report.summary(), "1 error");
        assert_eq!(Report::default().summary(), "no problems");
        assert_eq!(Report::default().render(false), "");
    }

    #[test]
    fn a_problem_in_one_line_says_where_and_which() {
        let source = Source::new("a.toml", "x = 1\n");
        let problem = Problem::error(Code::PB0102, "unknown key `x`").at(&source, &(0..1), "here");
        assert_eq!(problem.to_string(), "unknown key `x` (a.toml:1:1) [PB0102]");
    }
}
