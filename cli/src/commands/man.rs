//! `plugbay man`: the manual, from the same source as `--help`.

use std::{fs, io};

use clap::CommandFactory;
use clap_mangen::Man as Page;

use crate::{
    args::{Cli, Man},
    exit::Exit,
    render::{GOOD, Screen, Status},
    trouble::{Outcome, Trouble},
};

pub(super) fn man(args: &Man, screen: &Screen) -> Outcome {
    let pages = pages().map_err(|error| cannot("make the page", &error))?;
    let Some(dir) = &args.dir else {
        let main = pages.first().map_or("", |(_, page)| page);
        return screen.data(main).map(|()| Exit::Fine);
    };
    let shown = dir.display();
    fs::create_dir_all(dir).map_err(|error| cannot(&format!("create `{shown}`"), &error))?;
    for (name, page) in &pages {
        let path = dir.join(name);
        fs::write(&path, page)
            .map_err(|error| cannot(&format!("write `{}`", path.display()), &error))?;
    }
    screen.status(&Status::new(GOOD, "Wrote", format!("{} pages into {shown}", pages.len())));
    Ok(Exit::Fine)
}

/// Every page with its file's name, the main one first.
fn pages() -> io::Result<Vec<(String, String)>> {
    let mut cli = Cli::command();
    cli.build();
    let subcommands = cli.get_subcommands().filter(|it| !it.is_hide_set()).cloned();
    let all: Vec<clap::Command> = std::iter::once(cli.clone()).chain(subcommands).collect();
    let page = |command: clap::Command| {
        let page = Page::new(command);
        let mut text = Vec::new();
        page.render(&mut text)?;
        Ok((page.get_filename(), String::from_utf8_lossy(&text).into_owned()))
    };
    all.into_iter().map(page).collect()
}

fn cannot(what: &str, error: &io::Error) -> Trouble {
    Trouble::new(Exit::Bad, format!("cannot {what}: {error}"))
}
