//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{
    ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint,
    builder::styling::{AnsiColor, Styles},
};
use clap_complete::Shell;

use crate::{duration, render::Volume, source::Source};

/// Which running plugbay is meant.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Target {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The control socket of a plugbay that runs, if it is at a place of its own
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = "Plugins")]
    pub(crate) control: Option<PathBuf>,
}

/// Whether to use the processes of a plugbay that runs already.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Attach {
    /// Use the plugins of the `plugbay run` that runs the same, and fail without one [default:
    /// use them if there is one]
    #[arg(long, help_heading = "Plugins")]
    pub(crate) attach: bool,
    /// Start processes of our own in any case
    #[arg(long, conflicts_with_all = ["attach", "control"], help_heading = "Plugins")]
    pub(crate) no_attach: bool,
}

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "\
Exit codes:
   0  all is well
   1  what was asked about is bad: the call failed, the plugin died, the check found errors
   2  the command line or an argument is wrong
   3  a rule refused it
   4  there is no such file, program, tool, plugin or code
   5  no plugbay runs that could be asked
   6  a time ran out: until HELLO, until ready, until the answer
  70  plugbay's own fault
 130  interrupted
The code of the error decides, whichever command meets it: `plugbay explain CODE` says.";

/// Run plugins as processes of their own and call their tools
///
/// Data goes to stdout and everything else to stderr. `plugbay COMMAND --help` shows
/// examples.
#[derive(Debug, Parser)]
#[command(
    name = "plugbay", version, styles = STYLES, max_term_width = 100,
    after_help = EXIT_CODES, subcommand_required = false, disable_help_subcommand = true,
    propagate_version = false,
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Colours: never by default for a pipe or with NO_COLOR set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Output"
    )]
    pub(crate) color: Color,
    /// Show what plugins say on stderr and what happens to them
    #[arg(long, short, global = true, action = ArgAction::SetTrue, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
    /// Say nothing but errors
    #[arg(long, short, global = true, action = ArgAction::SetTrue, help_heading = "Output")]
    quiet: bool,
}

impl Global {
    pub(crate) fn volume(&self) -> Volume {
        match (self.quiet, self.verbose) {
            (true, _) => Volume::Quiet,
            (_, true) => Volume::Loud,
            _ => Volume::Normal,
        }
    }
}

/// When to colour.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Ps(Ps),
    Why(Why),
    Logs(Logs),
    #[command(visible_alias = "start")]
    Restart(Restart),
    Stop(Stop),
    Resume(Resume),
    #[command(subcommand)]
    Limits(Limits),
    Doctor(Doctor),
    Call(Call),
    Tools(Tools),
    Check(Check),
    New(New),
    Explain(Explain),
    Schema(Schema),
    Completions(Completions),
    Man(Man),
}

/// Supervise plugins until Ctrl-C
///
/// Plugins start with their first call, or at once where the manifest says so; all of them
/// at once with --start, and a program that --plugin names always. What is started by the
/// command line is not stopped for being idle. Ctrl-C or SIGTERM lets running calls finish
/// and ends the plugins; a second one ends them at once. Ends with 1 when no plugin is left
/// that could take a call, unless --stay is given.
///
/// While it runs, `ps`, `why`, `logs`, `restart`, `stop`, `resume` and `limits` look at it and steer
/// it, and `call` and `tools` use its processes. One plugbay runs the same plugins at a time.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay run                               what ./plugbay.toml says
  plugbay run --config plugins/ --start     all plugins in a folder, started at once
  plugbay run --plugin './my-plugin --flag'
  plugbay run --json | jq .fact             one event a line")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Start every plugin now and not with its first call
    #[arg(long)]
    pub(crate) start: bool,
    /// Stay when no plugin is left that could take a call, for somebody to look and resume
    #[arg(long)]
    pub(crate) stay: bool,
    /// Listen for other commands at this socket, in a folder that is only ours [default: one
    /// for these plugins in $XDG_RUNTIME_DIR/plugbay]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: Option<PathBuf>,
    /// Print every event as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show all plugins of a plugbay that runs
///
/// UP is how long its process has run, CALLS how many have ended and NOW how many are running
/// or waiting; MEMORY is what the process and its group have resident.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay ps                                of every plugbay that you run
  plugbay ps --config plugbay.toml          of the one that runs this
  plugbay ps --json | jq '.[].plugins[] | select(.state != \"active\").name'")]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print a JSON list: each plugbay with its plugins
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say why a plugin is as it is: the cause, the evidence, what is next and what to do
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay why search
  plugbay why search --json | jq .ends")]
pub(crate) struct Why {
    /// The plugin's name, as `plugbay ps` shows it
    #[arg(value_name = "PLUGIN")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what plugins said on stderr and what happened to them
///
/// The newest are last. A running plugbay keeps about 256 KiB of each plugin; times are UTC.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay logs search -f                    and what follows, until Ctrl-C
  plugbay logs -n 20                        the last 20 lines of all plugins
  plugbay logs --json | jq -r 'select(.stderr).stderr'")]
pub(crate) struct Logs {
    /// The plugin's name [default: all plugins]
    #[arg(value_name = "PLUGIN")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Go on with what follows
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// How many of the last lines [default: all that are kept]
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) lines: Option<usize>,
    /// Print each line as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Give a plugin a new process, and wait until it is ready
///
/// Its running calls may finish first. Lifts a stop or a quarantine.
#[derive(Args, Debug)]
pub(crate) struct Restart {
    #[command(flatten)]
    pub(crate) order: Order,
}

/// Stop a plugin, and wait until its process has ended
///
/// Its running calls may finish first. It stays down until `resume` or `restart`.
#[derive(Args, Debug)]
pub(crate) struct Stop {
    #[command(flatten)]
    pub(crate) order: Order,
}

/// Lift a stop or a quarantine; the next call wakes the plugin
#[derive(Args, Debug)]
pub(crate) struct Resume {
    #[command(flatten)]
    pub(crate) order: Order,
}

/// Show and change the limits of plugins that run
#[derive(Debug, Subcommand)]
pub(crate) enum Limits {
    Show(ShowLimits),
    Set(SetLimits),
    Test(TestLimits),
    #[command(hide = true)]
    Probe(ProbeLimits),
}

/// Prove on this machine that limits hold
///
/// Runs a program behind walls for each limit, lets it go over, and looks what becomes of it.
/// Ends with 1 if one does not hold. What cannot be had here is said with the reason; `plugbay
/// doctor` tells what helps.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay limits test
  plugbay limits test --json | jq '.limits[] | select(.lack)'")]
pub(crate) struct TestLimits {
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `limits test` runs behind the walls.
#[derive(Args, Debug)]
pub(crate) struct ProbeLimits {
    pub(crate) deed: String,
}

/// Tell what this machine can enforce, why not the rest, and what helps
///
/// Everything is tried, as the user who runs this. Ends with 1 if plugins with a sandbox of
/// level standard and all limits could not be held to something.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay doctor
  plugbay doctor --json | jq '.walls[] | select(.cause)'")]
pub(crate) struct Doctor {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the limits of a plugin, where they come from, and what is not enforced
///
/// FROM is `default` for a limit that is as usual, also where the manifest says so, `manifest` for
/// another one, and `changed` for one that was set since `plugbay run` began.
#[derive(Args, Debug)]
#[command(override_usage = "plugbay limits show [OPTIONS] <PLUGIN | --host>")]
#[command(after_help = "\
Examples:
  plugbay limits show search
  plugbay limits show search --json | jq '.bounds[] | select(.from == \"changed\")'
  plugbay limits show --host")]
pub(crate) struct ShowLimits {
    /// The plugin's name, as `plugbay ps` shows it
    #[arg(value_name = "PLUGIN", required_unless_present = "host", conflicts_with = "host")]
    pub(crate) name: Option<String>,
    /// The bounds on all plugins together
    #[arg(long)]
    pub(crate) host: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change limits of a plugin that runs, until `plugbay run` ends
///
/// The keys are those of [plugins.NAME.limits] and [plugins.NAME.timeouts] in plugbay.toml.
/// Those that bound calls hold from the next call on; those of the system (memory, cpu, processes,
/// open_files, file) at once, where it takes them; the others from the next process on.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay limits set search queue=64 call=45s
  plugbay limits set search frame=4MiB && plugbay restart search
  plugbay limits set --host memory=4GiB processes=512")]
pub(crate) struct SetLimits {
    /// The plugin's name, as `plugbay ps` shows it; not with --host
    #[arg(value_name = "PLUGIN")]
    pub(crate) name: String,
    /// What to change, such as queue=64, calls=120/min or call=45s
    #[arg(value_name = "KEY=VALUE", required_unless_present = "host")]
    pub(crate) changes: Vec<String>,
    /// Change the bounds on all plugins together: those of [host], memory, cpu and processes
    #[arg(long)]
    pub(crate) host: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print all limits as they are then, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an order needs.
#[derive(Args, Debug)]
pub(crate) struct Order {
    /// The plugin's name, as `plugbay ps` shows it
    #[arg(value_name = "PLUGIN")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print how the plugin is then, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Call one tool and print its answer
///
/// Uses the plugins of the `plugbay run` that runs the same, if there is one. Otherwise it
/// starts the plugin that has the tool, calls it, and ends the plugin. The answer's text goes
/// to stdout and everything else to stderr; with -o json the answer, or the error, is one
/// JSON object on stdout.
///
/// Arguments are typed by the tool's JSON Schema: `id=007` stays a text where the schema
/// wants one and `n=7` becomes a number where it wants that.
#[derive(Args, Debug)]
#[command(after_help = "\
Arguments:
  key=text        a value, typed by the schema       key=a key=b   a list
  key:=json       a value as JSON                    a.b=1         a part of an object
  key=@file       the contents of a file             key=@-        all of stdin
  key=@@text      a text that begins with @

Examples:
  plugbay call --plugin 'python3 greet.py' greet who=Ada
  plugbay call --config plugins/ search query='iron pot' limit=3
  plugbay call fetch --json '{\"source\": \"a.txt\"}' --timeout 30s --idle 10s
  git diff | plugbay call summarize text=@-")]
pub(crate) struct Call {
    /// The tool's name, as `plugbay tools` lists it
    pub(crate) tool: String,
    /// The arguments: key=value, key:=json, key=@file; more below
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// The arguments as one JSON object, or `-` to read it from stdin; key=value wins
    /// over what is in it
    #[arg(long = "json", visible_alias = "args", value_name = "OBJECT", value_hint = ValueHint::Other)]
    pub(crate) object: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Give up after this time in all, such as 30s [default: what the manifest says, or 10m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Give up when the plugin is silent for this time [default: what the manifest says, or 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) idle: Option<Duration>,
    /// What to print
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    pub(crate) output: Form,
}

/// What an answer is printed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Its text
    Text,
    /// All of it, as one JSON object
    Json,
}

/// List the tools
///
/// Starts only plugins whose tools no manifest names. Asks the `plugbay run` that runs the
/// same, if there is one.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay tools                             of ./plugbay.toml or ./plugin.toml
  plugbay tools --long --plugin 'python3 greet.py'
  plugbay tools --json | jq '.[].name'")]
pub(crate) struct Tools {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Show everything about each tool, and how to call it
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) long: bool,
    /// Print a JSON list, schemas included
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check manifests and show every problem in its place
///
/// Starts nothing. Ends with 1 if anything would not run as it is written; what this machine can
/// enforce is tried by `doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay check                             ./plugbay.toml or ./plugin.toml
  plugbay check my-plugin/                  a plugin's folder, or a folder of those
  plugbay check --json | jq '.problems[].code'")]
pub(crate) struct Check {
    /// A plugbay.toml, a plugin.toml or a folder
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// The same, as other commands have it
    #[arg(long, short, value_name = "PATH", hide = true, conflicts_with = "path")]
    pub(crate) config: Option<PathBuf>,
    /// Print the problems as JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the digest of each plugin's program on stdout, as a plugbay.toml has it
    #[arg(long, conflicts_with = "json")]
    pub(crate) digests: bool,
}

/// Begin a plugin that works at once
///
/// Writes a complete project: the plugin, its plugin.toml and, in Rust, a test. Never
/// overwrites anything.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay new my-plugin --lang python       one file, needs nothing but Python 3.8
  plugbay new my-plugin --lang rust         a crate with the SDK and a unit test")]
pub(crate) struct New {
    /// Its name: a to z, digits and `-`, a letter first
    pub(crate) name: String,
    /// The language
    #[arg(long, short, value_name = "rust|python")]
    pub(crate) lang: Lang,
    /// The folder to write [default: ./NAME]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    /// For Rust: take plugbay-sdk from this folder and not from crates.io
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) sdk_path: Option<PathBuf>,
}

/// A language that there is a template for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lang {
    Rust,
    Python,
}

/// Explain a code: what it means, an example, how to fix it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay explain PB0421
  plugbay explain --list")]
pub(crate) struct Explain {
    /// The code, such as PB0421 or 421
    pub(crate) code: Option<String>,
    /// List all codes
    #[arg(long, conflicts_with = "code")]
    pub(crate) list: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the JSON Schema of a manifest, for editors
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay schema plugin > plugin.schema.json
  plugbay schema host   > plugbay.schema.json")]
pub(crate) struct Schema {
    /// Which file
    pub(crate) file: SchemaOf,
}

/// The two manifests.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SchemaOf {
    /// plugin.toml, the author's
    #[value(alias = "plugin.toml")]
    Plugin,
    /// plugbay.toml, the operator's
    #[value(aliases = ["plugbay.toml", "plugbay"])]
    Host,
}

/// Print a shell's completion script
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay completions bash > ~/.local/share/bash-completion/completions/plugbay
  plugbay completions fish > ~/.config/fish/completions/plugbay.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the manual page, or write all of them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plugbay man | man -l -
  plugbay man --dir ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// Write a page for each command into this folder
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A unit that systemd accepts and that this program refuses would be found out late.
    #[test]
    fn the_unit_file_starts_us_with_options_that_there_are() {
        let unit = include_str!("../systemd/plugbay.service");
        let line = unit.lines().find_map(|it| it.strip_prefix("ExecStart=")).unwrap();
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Run(run)) = cli.command else { panic!("{line}") };
        assert!(run.stay && run.source.config.is_some());
        for setting in
            ["Type=notify", "Delegate=yes", "WatchdogSec=30", "RuntimeDirectoryMode=0700"]
        {
            assert!(unit.lines().any(|it| it == setting), "{setting}");
        }
    }
}
