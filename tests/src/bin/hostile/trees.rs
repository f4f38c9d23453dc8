//! Modes that start processes and threads which are hard to find, to count or to end.

use std::{process, sync::Arc, sync::mpsc, thread};

use plugbay_tests::wire::{Frame, empty, kind};

use crate::{
    faults::{Mode, fault},
    kin,
    plugin::{Flow, Plugin, Point, Scene},
    raw,
};

/// All of them.
pub(crate) const MODES: &[Mode] = &[
    fault(
        "kin",
        Point::Active,
        "starts n=1 processes; way=plain, group, session, daemon, stopped or hopper; holds=all, stdout, stderr or none; leave=1: and exits with code=0",
        start_kin,
    ),
    fault(
        "bomb",
        Point::Active,
        "starts a process that starts others like itself, as many as it may",
        |p, _| {
            start(p, "bomb");
            Flow::Go
        },
    ),
    fault("threads", Point::Active, "starts as many threads as it may, and lets them go", threads),
    fault(
        "vfork",
        Point::Active,
        "waits in the kernel for a child that never becomes a program",
        |p, _| {
            p.pen.flush();
            if let Err(error) = raw::wait_for_a_child_that_stays(life(p)) {
                eprintln!("plugbay-hostile: cannot wait in the kernel: {error}");
            }
            Flow::Go
        },
    ),
    fault("sibling", Point::Active, "starts a process that is its parent's child", |p, _| {
        match raw::fork_a_sibling(life(p)) {
            Ok(pid) => p.trace(&format!("sibling {pid}")),
            Err(error) => eprintln!("plugbay-hostile: cannot start a sibling: {error}"),
        }
        Flow::Go
    }),
    fault("leaderless", Point::Active, "its first thread ends and the others live on", |p, _| {
        p.pen.flush();
        raw::end_this_thread()
    }),
    fault(
        "interleave",
        Point::Active,
        "another process writes to stdout too: half a frame between two of ours",
        |p, _| {
            p.pen.flush();
            match kin::start(p, "half", "stdout", 0) {
                Ok(mut child) => drop(child.wait()),
                Err(error) => fail(&error),
            }
            p.send(&Frame::new(kind::PING, 0, empty()));
            Flow::Go
        },
    ),
];

fn life(plugin: &Plugin) -> u32 {
    u32::try_from(plugin.args.number("life", 60)).unwrap_or(u32::MAX)
}

fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("plugbay-hostile: cannot start a process: {error}");
    process::exit(1)
}

fn start(plugin: &Plugin, way: &str) {
    let holds = plugin.args.text("holds", "all");
    match kin::start(plugin, way, holds, plugin.args.number("life", 60)) {
        Ok(child) => plugin.trace(&format!("grandchild {}", child.id())),
        Err(error) => fail(&error),
    }
}

fn start_kin(plugin: &Arc<Plugin>, _: Scene) -> Flow {
    let args = &plugin.args;
    for _ in 0..args.number("n", 1) {
        start(plugin, args.text("way", "plain"));
    }
    if args.number("leave", 0) == 1 {
        plugin.pen.flush();
        process::exit(args.number("code", 0) as i32)
    }
    Flow::Go
}

fn threads(plugin: &Arc<Plugin>, _: Scene) -> Flow {
    let (hold, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let mut started = Vec::new();
    let refused = loop {
        let held = Arc::clone(&held);
        // Each waits for its turn to wait, and all are let go by the end of the sender.
        let wait = move || crate::plugin::lock(&held).recv().is_err();
        match thread::Builder::new().stack_size(64 << 10).spawn(wait) {
            Ok(thread) if started.len() < 4096 => started.push(thread),
            Ok(thread) => {
                started.push(thread);
                break false;
            }
            Err(_) => break true,
        }
    };
    drop(hold);
    let count = started.len();
    started.into_iter().for_each(|it| drop(it.join()));
    plugin.trace(&format!("threads {count} refused {refused}"));
    Flow::Go
}
