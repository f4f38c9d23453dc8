//! The `plugbay` command.
#![forbid(unsafe_code)]

mod args;
mod asked;
mod commands;
mod control;
mod duration;
mod exit;
mod follow;
mod memory;
mod notify;
mod render;
mod shape;
mod signals;
mod source;
mod split;
mod trouble;
mod usage;
mod values;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::{
    args::{Cli, Color},
    exit::Exit,
    render::Screen,
};

/// What the command alone says: where to begin.
const WELCOME: &str = "\
plugbay runs plugins as processes of their own and calls their tools.

  plugbay new my-plugin --lang python      begin a plugin that works at once
  plugbay call --config my-plugin greet who=Ada
                                           call its tool
  plugbay run                              supervise what ./plugbay.toml says
  plugbay --help                           everything else
";

fn main() -> ExitCode {
    exit::guarded(start).into()
}

fn start() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A stdout or stderr that is gone is no reason for another error.
            error.print().ok();
            return if error.use_stderr() { Exit::Usage } else { Exit::Fine };
        }
    };
    match cli.global.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    trace();
    let screen = Screen::new(cli.global.volume());
    let outcome = match cli.command {
        Some(command) => commands::command(command, &screen),
        None => commands::nothing(WELCOME, &screen),
    };
    outcome.unwrap_or_else(|trouble| {
        screen.trouble(&trouble);
        trouble.exit
    })
}

/// With RUST_LOG set, says on stderr what happens inside.
fn trace() {
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        let colors =
            anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colors);
        // Fails only if there is a subscriber already, and there is none.
        subscriber.with_writer(std::io::stderr).try_init().ok();
    }
}
