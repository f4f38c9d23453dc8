//! Carrying out a script, one operation after the other.

use core::ffi::c_char;

use super::{
    guard::{self, Watch},
    script::{Operands, Script, Text},
    sys::{self, EEXIST, EINVAL, ENOENT, EOVERFLOW, Errno, Fd, Open, Result},
    wire::{self, Kind, Op, Record},
};

/// What the program to be is given.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) argv: *const *const c_char,
    pub(crate) env: *const *const c_char,
}

/// Hierarchies of cgroups, the one of version 2 included.
const CGROUPS_MAX: usize = 8;
/// Folders to remove in the end: each cgroup, and the one above it.
pub(crate) const SWEEPS_MAX: usize = 2 * CGROUPS_MAX;
/// How often a folder is made in one that others remove. Each time another guard has to end
/// just then.
const FOLDER_TRIES: u32 = 1000;
/// Where the old root lies in the new one.
const OLD_ROOT: Text = c"/.old";

/// What earlier operations have left for later ones.
struct State {
    program: Program,
    watch: Watch,
    /// Of version 1: where to write that we enter.
    cgroups: [Option<Fd>; CGROUPS_MAX],
    /// Of version 2.
    birthplace: Option<Fd>,
    old_root: Option<Fd>,
    ruleset: Option<Fd>,
}

/// Does what the script says; the last operation does not return.
pub(crate) fn run(mut script: Script, program: Program) -> ! {
    let mut state = State {
        program,
        watch: Watch::default(),
        cgroups: [None; CGROUPS_MAX],
        birthplace: None,
        old_root: None,
        ruleset: None,
    };
    if let Err(errno) = begin() {
        state.fail(0, errno);
    }
    let mut step = 0;
    loop {
        let next = script.next().and_then(|(op, operands)| state.step(op, operands));
        if let Err(errno) = next {
            state.fail(step, errno);
        }
        step += 1;
    }
}

/// Before anything else: what was inherited by accident goes.
fn begin() -> Result<()> {
    sys::close_from(wire::PROGRAM + 1, false)?;
    sys::close_from(wire::CONTROL, true)?;
    sys::set_name(c"plugbay-shim")
}

pub(crate) fn say(kind: Kind, record: Record) {
    // Fails only if nobody listens any more.
    let record = Record { kind: kind as u32, ..record };
    sys::send(Fd(wire::CONTROL), &record.to_bytes()).ok();
}

impl State {
    fn fail(&self, step: u32, errno: Errno) -> ! {
        say(Kind::SetupFailed, Record { a: step, b: errno.0, ..Record::default() });
        self.watch.end(1)
    }

    fn step(&mut self, op: Op, mut with: Operands) -> Result<()> {
        match op {
            Op::Session => sys::setsid(),
            Op::Lifeline => self.watch.begin(with.word()? as i32),
            Op::Cgroup => {
                let is_v2 = with.word()? != 0;
                self.cgroup(is_v2, with.text()?)
            }
            Op::Sweep => {
                let is_shared = with.word()? != 0;
                self.watch.sweep_later(is_shared, with.text()?)
            }
            Op::Unshare => sys::unshare(with.word()?),
            Op::Write => {
                let flags = with.word()?;
                match write(with.text()?, with.bytes()?) {
                    Err(ENOENT) if flags & wire::MAY_BE_MISSING != 0 => Ok(()),
                    Err(EINVAL) if flags & wire::MAY_NOT_FIT != 0 => Ok(()),
                    written => written,
                }
            }
            Op::Remove => sys::remove_folder(with.text()?),
            Op::Listen => {
                let port = u16::try_from(with.word()?).map_err(|_| EINVAL)?;
                sys::start_loopback()?;
                let socket = sys::listen(port)?;
                let record = Record { kind: Kind::Listening as u32, ..Record::default() };
                let sent = sys::send_with(Fd(wire::CONTROL), &record.to_bytes(), socket);
                // It is the supervisor's alone.
                sys::close(socket);
                sent
            }
            Op::Init => self.watch.become_two(),
            Op::Mount => {
                let flags = with.word()?;
                let (of, at, kind) = (with.text()?, with.text()?, with.text()?);
                sys::mount(flags, of, at, kind, with.text()?)
            }
            Op::Pivot => self.pivot(with.text()?),
            Op::Folder => {
                let mode = with.word()?;
                unless_there(sys::make_folder(with.text()?, mode))
            }
            Op::FolderIn => {
                let mode = with.word()?;
                folder_in(mode, with.text()?, with.text()?)
            }
            Op::File => sys::open(with.text()?, Open::Create).map(sys::close),
            Op::Symlink => {
                let says = with.text()?;
                sys::symlink(says, with.text()?)
            }
            Op::Bind => {
                let (attributes, with_below) = (with.word()?, with.word()? != 0);
                let of = with.text()?;
                self.bind(attributes, with_below, of, with.text()?)
            }
            Op::Forget => {
                self.old_root.take().into_iter().for_each(sys::close);
                sys::unmount(OLD_ROOT)?;
                sys::remove_folder(OLD_ROOT)
            }
            Op::Main => guard::become_plugin(&mut self.watch, self.birthplace),
            Op::Join => {
                let mut cgroups = self.cgroups.iter().flatten();
                cgroups.try_for_each(|cgroup| sys::write(*cgroup, b"0"))
            }
            Op::Limit => sys::limit(with.word()?, with.word()?, with.word()?),
            Op::NoCapabilities => sys::drop_capabilities(),
            Op::NoNewPrivileges => sys::no_new_privileges(),
            Op::Landlock => {
                let rights = [with.word()?, with.word()?, with.word()?];
                self.ruleset = Some(sys::landlock(rights)?);
                Ok(())
            }
            Op::Allow => {
                let (rights, ruleset) = (with.word()?, self.ruleset.ok_or(EINVAL)?);
                let below = sys::open(with.text()?, Open::Path)?;
                let allowed = sys::landlock_allow(ruleset, rights, below);
                sys::close(below);
                allowed
            }
            Op::Enforce => sys::landlock_enforce(self.ruleset.ok_or(EINVAL)?),
            Op::Filter => sys::filter(with.bytes()?),
            Op::Directory => sys::change_directory(with.text()?),
            Op::Copy => copy(with.text()?),
            Op::Exec => self.exec(Some(with.text()?)),
            Op::ExecProgram => self.exec(None),
            Op::Done => {
                say(Kind::TreeEmpty, Record::default());
                self.watch.end(0)
            }
            Op::AskLandlock => {
                let version = sys::landlock_version()?;
                say(Kind::Answer, Record { a: version, ..Record::default() });
                Ok(())
            }
        }
    }

    /// Opened now, while the folder can be seen; entered later, by the plugin alone.
    fn cgroup(&mut self, is_v2: bool, folder: Text) -> Result<()> {
        let folder = sys::open(folder, Open::Folder)?;
        // To move one thread of ours is cheap. To move a process, which is all that version
        // 2 offers, takes milliseconds: there the plugin is born inside.
        if is_v2 {
            self.birthplace = Some(folder);
            return Ok(());
        }
        let tasks = sys::open_at(folder, c"tasks", Open::Write);
        sys::close(folder);
        let free = self.cgroups.iter_mut().find(|it| it.is_none()).ok_or(EOVERFLOW)?;
        *free = Some(tasks?);
        Ok(())
    }

    fn pivot(&mut self, new: Text) -> Result<()> {
        sys::change_directory(new)?;
        unless_there(sys::make_folder(c".old", 0o700))?;
        sys::pivot_root(c".", c".old")?;
        sys::change_directory(c"/")?;
        self.old_root = Some(sys::open(OLD_ROOT, Open::Folder)?);
        Ok(())
    }

    fn bind(&self, attributes: u64, with_below: bool, of: Text, at: Text) -> Result<()> {
        let of = sys::open_below(self.old_root.ok_or(EINVAL)?, of)?;
        let tree = sys::copy_tree(of, with_below);
        sys::close(of);
        let tree = tree?;
        // While it is nowhere: nobody sees it without its attributes.
        let attached = sys::set_attributes(tree, attributes).and_then(|()| sys::attach(tree, at));
        sys::close(tree);
        attached
    }

    /// A file in the view, or else the program that was handed over.
    fn exec(&self, path: Option<Text>) -> Result<()> {
        sys::close_from(wire::CONTROL, true)?;
        say(Kind::Started, Record::default());
        let Program { argv, env } = self.program;
        Err(match path {
            Some(path) => sys::exec(path, argv, env),
            None => sys::exec_file(Fd(wire::PROGRAM), argv, env),
        })
    }
}

/// Makes a folder and the one above it, which another guard may remove in between, for as long
/// as nothing is in it.
fn folder_in(mode: u64, above: Text, folder: Text) -> Result<()> {
    for _ in 0..FOLDER_TRIES {
        unless_there(sys::make_folder(above, mode))?;
        match unless_there(sys::make_folder(folder, mode)) {
            Err(ENOENT) => {}
            done => return done,
        }
    }
    Err(ENOENT)
}

fn copy(path: Text) -> Result<()> {
    let file = sys::open(path, Open::CreateProgram)?;
    let copied = sys::copy(Fd(wire::PROGRAM), file);
    // Or it could not be executed.
    sys::close(file);
    copied
}

fn write(path: Text, content: &[u8]) -> Result<()> {
    let file = sys::open(path, Open::Write)?;
    let written = sys::write(file, content);
    sys::close(file);
    written
}

fn unless_there(made: Result<()>) -> Result<()> {
    match made {
        Err(EEXIST) => Ok(()),
        made => made,
    }
}
