//! `plugbay completions`: what a shell needs to complete commands and flags.

use clap::CommandFactory;

use crate::{
    args::{Cli, Completions},
    exit::Exit,
    render::Screen,
    trouble::Outcome,
};

pub(super) fn completions(args: &Completions, screen: &Screen) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plugbay", &mut script);
    screen.data(&String::from_utf8_lossy(&script)).map(|()| Exit::Fine)
}
