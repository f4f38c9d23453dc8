//! The two that stay behind, and what makes them end the plugin: its own end, a
//! command, or the supervisor's death. None of it polls by time, and none of it trusts
//! a process number that could mean somebody else by now.

use super::{
    script::Text,
    steps::{SWEEPS_MAX, say},
    sys::{self, ECHILD, EINVAL, EOVERFLOW, ESRCH, Ended, Errno, Fd, PidFd, Result, Wanted},
    wire::{self, Command, Kind, Record},
};

/// How often it is tried again to end what is left or to remove a folder, with a
/// millisecond between. Only what the kernel cannot end takes so long.
const TRIES: u32 = 3000;
const EBUSY: Errno = Errno(16);

/// Whom a guard watches, and what it does when all is over.
#[derive(Default)]
pub(crate) struct Watch {
    supervisor: Option<PidFd>,
    /// The guard outside of the PID namespace, for the one inside.
    outer: Option<PidFd>,
    null: Option<Fd>,
    /// Another one of us cleans up.
    is_child: bool,
    /// With whether others use it, too.
    sweeps: [Option<(bool, Text)>; SWEEPS_MAX],
}

impl Watch {
    /// Begins to watch the supervisor, which must be our parent now.
    pub(crate) fn begin(&mut self, supervisor: i32) -> Result<()> {
        match sys::pidfd_open(sys::getppid()) {
            Ok(process) => self.supervisor = Some(process),
            Err(EINVAL | ESRCH) => sys::exit(0),
            Err(errno) => return Err(errno),
        }
        // Asked after the descriptor is ours: if it is still our parent, the descriptor
        // means it, and if it is not, it is gone.
        if sys::getppid() != supervisor {
            sys::exit(0);
        }
        self.null = Some(sys::open(c"/dev/null", sys::Open::Read)?);
        // A stopped guard sees nothing; its parent's death wakes it. (SIGKILL would end
        // this one too early: it has to end the plugin and to clean up.)
        sys::signal_on_death_of_parent(sys::SIGCONT)
    }

    pub(crate) fn sweep_later(&mut self, is_shared: bool, folder: Text) -> Result<()> {
        let free = self.sweeps.iter_mut().find(|it| it.is_none()).ok_or(EOVERFLOW)?;
        *free = Some((is_shared, folder));
        Ok(())
    }

    /// The end of a process that has become nothing.
    pub(crate) fn end(&self, code: i32) -> ! {
        if !self.is_child {
            self.sweep();
        }
        sys::exit(code)
    }

    /// Forks. The parent waits outside for the end of the child, which goes on as
    /// process 1 of a new PID namespace.
    pub(crate) fn become_two(&mut self) -> Result<()> {
        let outer = sys::pidfd_open(sys::getpid())?;
        match sys::fork()? {
            0 => {
                self.outer = Some(outer);
                self.is_child = true;
                // The parent may be dead by now, which only its descriptor tells.
                sys::signal_on_death_of_parent(sys::SIGKILL)?;
                sys::hide()
            }
            child => self.stay_outside(child),
        }
    }

    fn stay_outside(&self, child: i32) -> ! {
        self.let_go();
        let init = sys::pidfd_open(child).ok();
        let mut supervisor = self.supervisor;
        loop {
            let mut wanted = [Wanted::new(supervisor), Wanted::new(init)];
            let polled = sys::poll(&mut wanted, None);
            if wanted[1].is_ready() || polled.is_err() || init.is_none() {
                break;
            }
            if wanted[0].is_ready() {
                supervisor = None;
                // Whatever it does, and also if it is stopped.
                init.map(sys::pidfd_kill);
            }
        }
        // The kernel tells us once everything in the namespace is gone.
        let ended = sys::wait(child, false);
        self.sweep();
        let well = matches!(ended, Ok(Some(Ended { status: 0, .. })));
        sys::exit(i32::from(!well))
    }

    /// Gives up the plugin's pipes, which have to end with the plugin.
    fn let_go(&self) {
        for number in 0..=2 {
            match self.null {
                Some(null) => sys::replace(null, number).unwrap_or(()),
                None => sys::close(Fd(number)),
            }
        }
        sys::close(Fd(wire::SCRIPT));
        sys::close(Fd(wire::PROGRAM));
        sys::hide().ok();
    }

    /// Removes the folders of this plugin, once nobody reads in them any more. (To leave that
    /// to a supervisor that seems to live would not do: it may be killed before it comes to
    /// it.)
    fn sweep(&self) {
        if self.sweeps.iter().all(Option::is_none) {
            return;
        }
        say(Kind::Over, Record::default());
        loop {
            let mut wanted = [Wanted::new(self.supervisor), Wanted::new(Some(Fd(wire::CONTROL)))];
            let polled = sys::poll(&mut wanted, None);
            let [gone, told] = wanted.map(Wanted::is_ready);
            // A command that comes now is for what has ended.
            let is_shut = told && !matches!(sys::read(Fd(wire::CONTROL), &mut [0]), Ok(1));
            if polled.is_err() || gone || is_shut {
                break;
            }
        }
        for (is_shared, folder) in self.sweeps.iter().flatten() {
            for _ in 0..TRIES {
                match sys::remove_folder(folder) {
                    // The kernel needs a moment to see that it is empty. What is shared is empty
                    // with what was in it, or another one removes it.
                    Err(EBUSY) if !is_shared => sys::poll(&mut [], Some(1)).unwrap_or(()),
                    _ => break,
                }
            }
        }
    }
}

/// Forks. The child goes on to become the plugin, in that cgroup; the parent keeps it.
pub(crate) fn become_plugin(watch: &mut Watch, cgroup: Option<Fd>) -> Result<()> {
    let keeper = sys::getpid();
    sys::block_child_signal(true)?;
    let signals = sys::child_signals()?;
    if keeper != 1 {
        sys::become_subreaper()?;
    }
    let born = cgroup.map(sys::fork_inside);
    let is_inside = matches!(born, Some(Ok(_)));
    // A kernel or a container without that call.
    let child = born.and_then(Result::ok).map_or_else(sys::fork, Ok)?;
    match child {
        0 => {
            if let (false, Some(cgroup)) = (is_inside, cgroup) {
                let processes = sys::open_at(cgroup, c"cgroup.procs", sys::Open::Write)?;
                sys::write(processes, b"0")?;
            }
            watch.is_child = true;
            sys::signal_on_death_of_parent(sys::SIGKILL)?;
            if sys::getppid() != keeper {
                sys::exit(0);
            }
            sys::block_child_signal(false)
        }
        main => {
            watch.let_go();
            Keeper { main: Some(main), is_init: keeper == 1, left: 0 }.keep(watch, signals)
        }
    }
}

/// Whoever keeps the plugin: it reaps, and it ends.
struct Keeper {
    /// The plugin's first process, until it has been reaped.
    main: Option<i32>,
    is_init: bool,
    /// What was reaped after the first process.
    left: u32,
}

impl Keeper {
    fn keep(mut self, watch: &Watch, signals: Fd) -> ! {
        while self.main.is_some() && self.wait(watch, signals) {}
        if self.end_all() {
            say(Kind::TreeEmpty, Record { a: self.left, ..Record::default() });
        }
        if watch.outer.is_none() {
            watch.sweep();
        }
        sys::exit(0)
    }

    /// Waits for the next thing. Whether the plugin may live on.
    fn wait(&mut self, watch: &Watch, signals: Fd) -> bool {
        let mut wanted = [
            Wanted::new(Some(signals)),
            Wanted::new(Some(Fd(wire::CONTROL))),
            Wanted::new(watch.supervisor),
            Wanted::new(watch.outer),
        ];
        if sys::poll(&mut wanted, None).is_err() {
            return false;
        }
        let [child, control, supervisor, outer] = wanted.map(Wanted::is_ready);
        if child {
            let mut signal = [0; 128];
            // What it says is of no interest: several signals may have become one.
            sys::read(signals, &mut signal).ok();
            while self.main.is_some() && self.reap(true) {}
        }
        !supervisor && !outer && (!control || self.obey())
    }

    /// Takes one command. Whether the plugin may live on.
    fn obey(&self) -> bool {
        let mut byte = [0];
        let Ok(1) = sys::read(Fd(wire::CONTROL), &mut byte) else { return false };
        match (Command::of(byte[0]), self.main) {
            (Some(Command::Terminate), Some(main)) => {
                for signal in [sys::SIGTERM, sys::SIGCONT] {
                    // The group has its number until its first process is reaped, and
                    // before it has one of its own it is one process.
                    if sys::kill(-main, signal).is_err() {
                        sys::kill(main, signal).ok();
                    }
                }
                true
            }
            (Some(Command::Terminate), None) => true,
            (Some(Command::Kill) | None, _) => false,
        }
    }

    /// Reaps one child; false if none is there to be reaped.
    fn reap(&mut self, now: bool) -> bool {
        let Ok(Some(ended)) = sys::wait(-1, now) else { return false };
        if Some(ended.pid) == self.main {
            self.main = None;
            let words = [ended.user, ended.system, ended.resident_kib];
            say(Kind::MainExited, Record { a: ended.status, words, ..Record::default() });
        } else if self.main.is_none() {
            self.left += 1;
        }
        true
    }

    /// Ends everything and reaps it. Whether nothing is left.
    fn end_all(&mut self) -> bool {
        if self.is_init {
            // In one step for all of the namespace, whatever it does meanwhile.
            sys::kill(-1, sys::SIGKILL).ok();
            while self.reap(false) {}
            return true;
        }
        // Whoever loses its parent becomes our child, so this ends, unless somebody forks
        // faster than we look.
        for _ in 0..TRIES {
            kill_children(self.main);
            while self.reap(true) {}
            if matches!(sys::wait(-1, true), Err(ECHILD)) {
                return true;
            }
            sys::poll(&mut [], Some(1)).ok();
        }
        false
    }
}

/// Kills each child. Their numbers are theirs until we reap them.
fn kill_children(main: Option<i32>) {
    let Ok(list) = sys::open(c"/proc/thread-self/children", sys::Open::Read) else {
        // A kernel without this list: the first process, and its group.
        if let Some(main) = main {
            sys::kill(-main, sys::SIGKILL).ok();
            sys::kill(main, sys::SIGKILL).ok();
        }
        return;
    };
    let mut number = 0_i32;
    let mut bytes = [0; 512];
    while let Ok(n @ 1..) = sys::read(list, &mut bytes) {
        for byte in bytes.iter().take(n) {
            match byte {
                b'0'..=b'9' => {
                    number = number.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'))
                }
                _ => {
                    kill_child(number);
                    number = 0;
                }
            }
        }
    }
    kill_child(number);
    sys::close(list);
}

fn kill_child(pid: i32) {
    // 0, 1 and negative numbers mean others.
    if 1 < pid {
        sys::kill(pid, sys::SIGKILL).ok();
    }
}
