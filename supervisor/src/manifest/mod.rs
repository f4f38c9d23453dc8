//! Manifests: `plugin.toml` (what a plugin is and asks for) and `plugbay.toml`
//! (what an operator grants and limits), read, checked and joined into a
//! [`Plan`].
//!
//! All problems are found in one run and reported with their places. A fault in
//! one plugin's table or file makes that plugin invalid and the others run; a
//! fault elsewhere in the operator's file concerns all of them.
//!
//! ```text
//! source  the text, lines and columns, what must not be quoted
//! read    spanned TOML into structs, going on after each fault
//! plugin, host, units, shape, names   what the two files may say
//! tools, secrets, resolve             what they point at on this machine
//! author, grants, settings, degrade   one file checked, and two compared
//! operator, load                      from a path to a plan
//! codes, explain, report, schema      what people and editors see
//! ```

mod adjust;
mod author;
mod codes;
mod degrade;
pub mod explain;
mod grants;
mod host;
mod load;
pub mod names;
mod operator;
mod plugin;
mod read;
mod report;
mod resolve;
pub mod schema;
mod secrets;
mod settings;
mod shape;
mod source;
mod tools;
mod units;

use std::path::Path;

pub(crate) use self::units::bytes_in_words;
pub use self::{
    adjust::{Bound, adjust, adjust_ceilings, bounds, ceilings},
    codes::Code,
    report::{Place, Problem, Report, Severity, Suggestion},
    resolve::{ENV_ALWAYS, Surroundings},
    tools::schema_holds,
};
use crate::{
    digest_of,
    plan::{IfMissing, Item, Level, Plan, PluginPlan},
};

/// What a load gives: the plugins that can run, those that cannot, and why.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The plugins that can run, in the order of the file.
    pub plan: Plan,
    /// Those that cannot.
    pub invalid: Vec<Invalid>,
    /// Everything that was found.
    pub report: Report,
}

/// A plugin that cannot run as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The operator's name for it.
    pub name: String,
    /// The first reason, in a sentence; the report has all of them.
    pub why: String,
}

impl Loaded {
    /// Compares the files that have a digest with it, as they are now, looks whether granted
    /// paths are there, and reports the plugins that would not be started. Reads each file that
    /// has a digest whole.
    pub fn compare(&mut self) {
        for plan in &self.plan.plugins {
            let sandbox = &plan.sandbox;
            let waived =
                sandbox.if_missing == IfMissing::Warn || sandbox.prefer.contains(&Item::Files);
            let shown = sandbox.files.iter().filter(|it| !it.make && !waived);
            for grant in shown.filter(|_| sandbox.level != Level::None) {
                let Err(error) = std::fs::canonicalize(&grant.path) else { continue };
                let (name, path) = (&plan.name, grant.path.display());
                let message = format!("`{name}` would not be started: cannot show {path}: {error}");
                let help = "create it, or correct the grant";
                self.report.add(Problem::error(Code::PB0511, message).help(help));
            }
            let Some(due) = plan.digest else { continue };
            let (file, found) = match digest_of(plan) {
                Ok((_, found)) if found == due => continue,
                Ok((file, found)) => (file, format!("its digest is {found}, and {due} is due")),
                Err((file, error)) => (file, error.to_string()),
            };
            let message =
                format!("`{}` would not be started: {}: {found}", plan.name, file.display());
            let help =
                "if the change is wanted, take the line that `plugbay check --digests` prints";
            self.report.add(Problem::error(Code::PB0518, message).help(help));
        }
    }
}

/// Loads an operator's `plugbay.toml`, or one plugin's `plugin.toml` under the
/// rules of [`load_folder`]. Faults are in the report; a file that cannot be read
/// is one of them.
pub fn load_file(path: impl AsRef<Path>) -> Loaded {
    load_file_with(path, &Surroundings::here())
}

/// [`load_file`] with another environment.
pub fn load_file_with(path: impl AsRef<Path>, around: &Surroundings) -> Loaded {
    let mut load = load::Load::new(around);
    load.file(path.as_ref());
    load.finish()
}

/// Loads a folder with a `plugin.toml`, or each plugin in a folder of folders,
/// under safe rules: the tools are listed, and nothing else that a plugin asks
/// for is granted. A plugin is named after the last part of its id.
pub fn load_folder(path: impl AsRef<Path>) -> Loaded {
    load_folder_with(path, &Surroundings::here())
}

/// [`load_folder`] with another environment.
pub fn load_folder_with(path: impl AsRef<Path>, around: &Surroundings) -> Loaded {
    let mut load = load::Load::new(around);
    load.folder(path.as_ref());
    load.finish()
}

/// [`load_file`] from text. `name` is shown in problems; relative paths in the
/// text start at `dir`.
pub fn load_text(name: &str, text: &str, dir: &Path, around: &Surroundings) -> Loaded {
    let mut load = load::Load::new(around);
    load.text(name, text, dir);
    load.finish()
}

/// A plan for a bare command line: the program is found, the environment is what
/// every plugin gets, the tools are learnt from its handshake, and nothing else is
/// granted. It runs in the current folder. No shell is involved.
#[expect(clippy::result_large_err, reason = "the plan beside it is larger")]
pub fn command(name: &str, argv: &[String]) -> Result<PluginPlan, Problem> {
    let dir = std::env::current_dir().map_err(|err| {
        Problem::error(Code::PB0110, format!("cannot tell the current folder: {err}"))
    })?;
    command_with(name, argv, &dir, &Surroundings::here())
}

/// [`command`] in another folder and environment.
#[expect(clippy::result_large_err, reason = "the plan beside it is larger")]
pub fn command_with(
    name: &str,
    argv: &[String],
    dir: &Path,
    around: &Surroundings,
) -> Result<PluginPlan, Problem> {
    let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    if let Err(expected) = names::tool(name) {
        let message = format!("`{name}` cannot be the name of a plugin: {expected}");
        return Err(Problem::error(Code::PB0107, message));
    }
    let first = argv.first().map_or("", String::as_str);
    let path = resolve::program(first, dir, around)
        .map_err(|it| Problem::error(it.code, it.message).help(it.help).plugin(name))?;
    let Ok(path) = path.into_os_string().into_string() else {
        let message = "the program's path is not UTF-8";
        return Err(Problem::error(Code::PB0120, message).plugin(name));
    };
    let command = std::iter::once(path).chain(argv.iter().skip(1).cloned()).collect();
    let mut plan = PluginPlan::new(name, command, dir);
    plan.env = around.environment([]);
    Ok(plan)
}
