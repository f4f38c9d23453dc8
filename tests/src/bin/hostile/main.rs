//! A plugin that misbehaves on request, in exactly one way at a time.
//!
//! `plugbay-hostile MODE [key=value…]`; `--list` prints the modes, `--help` the
//! keys. Without a fault it is a correct plugin of level L1 that also watches
//! its host: a host that breaks a rule of the spec gets a CLOSE with the code it
//! earns and one line on stderr ("the host broke a rule"); one that breaks a rule
//! without a code gets the line only ("the host is careless"). Both are events
//! in `trace=FILE`: `accuse CODE …` and `doubt RULE …`. The one liberty it takes:
//! it leaves deadlines to the host's clock, so that a test can tell who acted.
//!
//! No process of it outlives its alarm (`life=60` seconds), so that a broken
//! test run leaves nothing behind for long.

mod args;
mod faults;
mod kin;
mod pen;
mod plugin;
mod raw;
mod tools;
mod trees;

use std::process::ExitCode;

use args::Args;

const HELP: &str = "\
usage: plugbay-hostile MODE [key=value...]
       plugbay-hostile --list

Keys of every mode:
  at=POINT      where the fault strikes: start hello ready activating active call
                cancel draining drained closing
  say=TEXT      a line written to stderr just before the fault strikes
  first=N count=FILE
                only the first N processes that share FILE misbehave
  until=RUNG    what it takes to end the process: close (default), eof, term, kill
  life=SECONDS  the process kills itself after this long (60)
  trace=FILE    one line per event is appended: PID EVENT
  tools=A,B     provide only these tools
  wants=A,B     want these scopes (default: host.kv.get)
  name=, version=
                identity announced in HELLO
  frame=, calls=
                limits announced in HELLO";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_else(|| "--help".into());
    let args = match Args::parse(words) {
        Ok(args) => args,
        Err(why) => return usage(&why),
    };
    kin::bound_life(args.number("life", 60));
    match mode.as_str() {
        "--help" => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        "--list" => {
            for mode in faults::all() {
                println!("{:<20} {}", mode.name, mode.about);
            }
            ExitCode::SUCCESS
        }
        kin::GRANDCHILD => kin::grandchild(&args),
        kin::GUARDIAN => kin::guardian(&args),
        name => match faults::find(name) {
            Some(mode) => plugin::run(mode, args),
            None => usage(&format!("no mode {name:?}; --list shows them")),
        },
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("plugbay-hostile: {why}");
    ExitCode::from(2)
}
