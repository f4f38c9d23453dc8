//! The kernel, as far as the helper needs it: system calls by number, each wrapped
//! once. There is no C library here, and with it no lock, no allocator and no hidden
//! state that a fork could leave half done.
#![allow(unsafe_code)]

use core::{
    arch::asm,
    ffi::{CStr, c_char, c_void},
    ptr::{null, null_mut},
};

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u32);

pub(crate) const ENOENT: Errno = Errno(2);
pub(crate) const ESRCH: Errno = Errno(3);
pub(crate) const EINTR: Errno = Errno(4);
pub(crate) const ECHILD: Errno = Errno(10);
pub(crate) const EEXIST: Errno = Errno(17);
pub(crate) const EINVAL: Errno = Errno(22);
pub(crate) const EOVERFLOW: Errno = Errno(75);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const READ: usize = 0;
    pub(super) const CLOSE: usize = 3;
    pub(super) const MMAP: usize = 9;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const IOCTL: usize = 16;
    pub(super) const SOCKET: usize = 41;
    pub(super) const SENDFILE: usize = 40;
    pub(super) const SENDTO: usize = 44;
    pub(super) const SENDMSG: usize = 46;
    pub(super) const BIND: usize = 49;
    pub(super) const LISTEN: usize = 50;
    pub(super) const CLONE: usize = 56;
    pub(super) const EXECVE: usize = 59;
    pub(super) const WAIT4: usize = 61;
    pub(super) const KILL: usize = 62;
    pub(super) const CHDIR: usize = 80;
    pub(super) const GETPID: usize = 39;
    pub(super) const GETPPID: usize = 110;
    pub(super) const SETSID: usize = 112;
    pub(super) const CAPSET: usize = 126;
    pub(super) const PIVOT_ROOT: usize = 155;
    pub(super) const PRCTL: usize = 157;
    pub(super) const MOUNT: usize = 165;
    pub(super) const UMOUNT2: usize = 166;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const MKDIRAT: usize = 258;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const SYMLINKAT: usize = 266;
    pub(super) const PPOLL: usize = 271;
    pub(super) const EXECVEAT: usize = 322;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const SIGNALFD4: usize = 289;
    pub(super) const DUP3: usize = 292;
    pub(super) const PRLIMIT64: usize = 302;
    pub(super) const SECCOMP: usize = 317;
    pub(super) const WRITE: usize = 1;
    pub(super) const LSEEK: usize = 8;
}

/// Numbers of system calls.
#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const DUP3: usize = 24;
    pub(super) const IOCTL: usize = 29;
    pub(super) const SOCKET: usize = 198;
    pub(super) const BIND: usize = 200;
    pub(super) const LISTEN: usize = 201;
    pub(super) const SENDMSG: usize = 211;
    pub(super) const MKDIRAT: usize = 34;
    pub(super) const UNLINKAT: usize = 35;
    pub(super) const SYMLINKAT: usize = 36;
    pub(super) const UMOUNT2: usize = 39;
    pub(super) const MOUNT: usize = 40;
    pub(super) const PIVOT_ROOT: usize = 41;
    pub(super) const CHDIR: usize = 49;
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const LSEEK: usize = 62;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const SENDFILE: usize = 71;
    pub(super) const PPOLL: usize = 73;
    pub(super) const SIGNALFD4: usize = 74;
    pub(super) const CAPSET: usize = 91;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const UNSHARE: usize = 97;
    pub(super) const KILL: usize = 129;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const SETSID: usize = 157;
    pub(super) const PRCTL: usize = 167;
    pub(super) const GETPID: usize = 172;
    pub(super) const GETPPID: usize = 173;
    pub(super) const SENDTO: usize = 206;
    pub(super) const CLONE: usize = 220;
    pub(super) const EXECVE: usize = 221;
    pub(super) const MMAP: usize = 222;
    pub(super) const WAIT4: usize = 260;
    pub(super) const PRLIMIT64: usize = 261;
    pub(super) const SECCOMP: usize = 277;
    pub(super) const EXECVEAT: usize = 281;
}

/// Those that came after the architectures agreed.
mod new {
    pub(super) const PIDFD_SEND_SIGNAL: usize = 424;
    pub(super) const OPEN_TREE: usize = 428;
    pub(super) const MOVE_MOUNT: usize = 429;
    pub(super) const PIDFD_OPEN: usize = 434;
    pub(super) const CLONE3: usize = 435;
    pub(super) const CLOSE_RANGE: usize = 436;
    pub(super) const OPENAT2: usize = 437;
    pub(super) const MOUNT_SETATTR: usize = 442;
    pub(super) const LANDLOCK_CREATE_RULESET: usize = 444;
    pub(super) const LANDLOCK_ADD_RULE: usize = 445;
    pub(super) const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// One system call.
///
/// # Safety
/// What the call does with the memory it is given is up to its number; the caller
/// answers for the pointers.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the registers are those of the kernel's convention, and those that it
    // overwrites are named. The caller answers for the rest.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    done(result)
}

/// One system call.
///
/// # Safety
/// As for the other architecture.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: as for the other architecture.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    done(result)
}

fn done(result: isize) -> Result<usize> {
    match result {
        -4095..0 => Err(Errno(result.unsigned_abs() as u32)),
        _ => Ok(result as usize),
    }
}

/// The same for a call that takes no pointer, or only such as the wrapper made.
macro_rules! call {
    ($number:expr $(, $arg:expr)*) => {{
        let given = [$($arg as usize),*];
        let mut args = [0; 6];
        args[..given.len()].copy_from_slice(&given);
        // SAFETY: each pointer among the arguments is null, or comes from a reference
        // or a `CStr` that outlives the call, with a length that is its own.
        unsafe { call($number, args) }
    }};
}

const AT_FDCWD: isize = -100;

/// A file descriptor. It is closed by the end of the process, or by exec.
#[derive(Clone, Copy)]
pub(crate) struct Fd(pub(crate) i32);

/// A process as its descriptor, which never means another one.
pub(crate) type PidFd = Fd;

// ── Processes ──────────────────────────────────────────────────────────────────

pub(crate) fn exit(code: i32) -> ! {
    loop {
        // It does not return.
        call!(nr::EXIT_GROUP, code).ok();
    }
}

/// The child has the result 0.
pub(crate) fn fork() -> Result<i32> {
    const SIGCHLD: usize = 17;
    // No new stack: the child goes on with its copy of this one.
    call!(nr::CLONE, SIGCHLD).map(|pid| pid as i32)
}

/// The same, with the child in another cgroup (of version 2) from its first moment.
pub(crate) fn fork_inside(cgroup: Fd) -> Result<i32> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut args = [0_u64; 11];
    args[0] = CLONE_INTO_CGROUP;
    args[4] = SIGCHLD.cast_unsigned().into();
    args[10] = cgroup.0.cast_unsigned().into();
    call!(new::CLONE3, &raw const args, size_of_val(&args)).map(|pid| pid as i32)
}

pub(crate) fn getpid() -> i32 {
    call!(nr::GETPID).unwrap_or(0) as i32
}

pub(crate) fn getppid() -> i32 {
    call!(nr::GETPPID).unwrap_or(0) as i32
}

pub(crate) fn setsid() -> Result<()> {
    call!(nr::SETSID).map(drop)
}

pub(crate) fn unshare(flags: u64) -> Result<()> {
    call!(nr::UNSHARE, flags).map(drop)
}

pub(crate) fn pidfd_open(pid: i32) -> Result<PidFd> {
    call!(new::PIDFD_OPEN, pid).map(|fd| Fd(fd as i32))
}

pub(crate) fn pidfd_kill(process: PidFd) -> Result<()> {
    call!(new::PIDFD_SEND_SIGNAL, process.0, SIGKILL, 0, 0).map(drop)
}

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCHLD: i32 = 17;
pub(crate) const SIGCONT: i32 = 18;

pub(crate) fn kill(pid: i32, signal: i32) -> Result<()> {
    call!(nr::KILL, pid, signal).map(drop)
}

/// What the kernel says of a process that was waited for; times in microseconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ended {
    pub(crate) pid: i32,
    pub(crate) status: u32,
    pub(crate) user: u64,
    pub(crate) system: u64,
    pub(crate) resident_kib: u64,
}

/// Waits for a child, or for any with `-1`. `None` if none has ended and `now`.
pub(crate) fn wait(pid: i32, now: bool) -> Result<Option<Ended>> {
    const WNOHANG: usize = 1;
    /// Threads of ours do not exist, and children by clone count too.
    const WALL: usize = 0x4000_0000;
    let mut status = 0_u32;
    // Two times of two words, then the largest resident size and others.
    let mut usage = [0_u64; 18];
    let flags = WALL | if now { WNOHANG } else { 0 };
    let found = loop {
        match call!(nr::WAIT4, pid, &raw mut status, flags, &raw mut usage) {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    let micros = |at: usize| usage[at] * 1_000_000 + usage[at + 1];
    Ok((found != 0).then(|| Ended {
        pid: found as i32,
        status,
        user: micros(0),
        system: micros(2),
        resident_kib: usage[4],
    }))
}

/// Blocks SIGCHLD, which is read from a descriptor instead, or nothing.
pub(crate) fn block_child_signal(block: bool) -> Result<()> {
    const SIG_SETMASK: usize = 2;
    let set = if block { CHILD_SIGNAL } else { 0 };
    call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const set, 0, 8).map(drop)
}

const CHILD_SIGNAL: u64 = 1 << (SIGCHLD - 1);

pub(crate) fn child_signals() -> Result<Fd> {
    const CLOEXEC_NONBLOCK: usize = 0o2_000_000 | 0o4000;
    let set = CHILD_SIGNAL;
    call!(nr::SIGNALFD4, -1_isize, &raw const set, 8, CLOEXEC_NONBLOCK).map(|fd| Fd(fd as i32))
}

/// Runs a program in this process's place. The vectors are those that the process was
/// started with: they end with a null, and so do all their texts.
pub(crate) fn exec(path: &CStr, argv: *const *const c_char, env: *const *const c_char) -> Errno {
    call!(nr::EXECVE, path.as_ptr(), argv, env).err().unwrap_or(EINVAL)
}

/// The same for an open file, which is no script.
pub(crate) fn exec_file(file: Fd, argv: *const *const c_char, env: *const *const c_char) -> Errno {
    let done = call!(nr::EXECVEAT, file.0, c"".as_ptr(), argv, env, AT_EMPTY_PATH);
    done.err().unwrap_or(EINVAL)
}

// ── What a process may ─────────────────────────────────────────────────────────

fn prctl(option: usize, a: usize, b: usize) -> Result<usize> {
    call!(nr::PRCTL, option, a, b, 0, 0)
}

pub(crate) fn signal_on_death_of_parent(signal: i32) -> Result<()> {
    const PR_SET_PDEATHSIG: usize = 1;
    prctl(PR_SET_PDEATHSIG, signal as usize, 0).map(drop)
}

/// Nobody of the same user can look into this process or trace it.
pub(crate) fn hide() -> Result<()> {
    const PR_SET_DUMPABLE: usize = 4;
    prctl(PR_SET_DUMPABLE, 0, 0).map(drop)
}

pub(crate) fn set_name(name: &CStr) -> Result<()> {
    const PR_SET_NAME: usize = 15;
    prctl(PR_SET_NAME, name.as_ptr() as usize, 0).map(drop)
}

/// Becomes the parent of all that its children leave behind.
pub(crate) fn become_subreaper() -> Result<()> {
    const PR_SET_CHILD_SUBREAPER: usize = 36;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0).map(drop)
}

pub(crate) fn no_new_privileges() -> Result<()> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// Empties all five sets, and keeps root from winning any back by exec.
pub(crate) fn drop_capabilities() -> Result<()> {
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_SECUREBITS: usize = 28;
    const PR_CAP_AMBIENT: usize = 47;
    const CLEAR_ALL: usize = 4;
    /// NOROOT and NO_SETUID_FIXUP, each with its lock.
    const BITS: usize = 0b1111;
    const EPERM: Errno = Errno(1);
    const CAPABILITIES_MAX: usize = 64;
    for capability in 0..CAPABILITIES_MAX {
        match prctl(PR_CAPBSET_DROP, capability, 0) {
            Ok(_) => {}
            // The kernel has no more of them.
            Err(EINVAL) => break,
            // Without CAP_SETPCAP nothing can be dropped here, and no_new_privs is what holds.
            Err(EPERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    match prctl(PR_SET_SECUREBITS, BITS, 0) {
        Ok(_) | Err(EPERM) => {}
        Err(errno) => return Err(errno),
    }
    prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0)?;
    // Version 3 of the interface; of this process.
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    call!(nr::CAPSET, &raw const header, &raw const none).map(drop)
}

pub(crate) fn limit(resource: u64, soft: u64, hard: u64) -> Result<()> {
    let pair = [soft, hard];
    call!(nr::PRLIMIT64, 0, resource, &raw const pair, 0).map(drop)
}

pub(crate) fn landlock_version() -> Result<u32> {
    const VERSION: usize = 1;
    call!(new::LANDLOCK_CREATE_RULESET, 0, 0, VERSION).map(|version| version as u32)
}

/// A ruleset over file rights, network rights and scopes. Fields that are zero are left
/// out, because an older kernel does not know them.
pub(crate) fn landlock(rights: [u64; 3]) -> Result<Fd> {
    let words = rights.iter().rposition(|it| *it != 0).map_or(1, |last| last + 1);
    call!(new::LANDLOCK_CREATE_RULESET, &raw const rights, words * 8, 0).map(|fd| Fd(fd as i32))
}

pub(crate) fn landlock_allow(ruleset: Fd, rights: u64, below: Fd) -> Result<()> {
    const PATH_BENEATH: usize = 1;
    #[repr(C, packed)]
    struct Rule {
        rights: u64,
        below: i32,
    }
    let rule = Rule { rights, below: below.0 };
    call!(new::LANDLOCK_ADD_RULE, ruleset.0, PATH_BENEATH, &raw const rule, 0).map(drop)
}

pub(crate) fn landlock_enforce(ruleset: Fd) -> Result<()> {
    call!(new::LANDLOCK_RESTRICT_SELF, ruleset.0, 0).map(drop)
}

/// Installs a filter of classic BPF instructions, eight bytes each.
pub(crate) fn filter(instructions: &[u8]) -> Result<()> {
    const SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const u8,
    }
    let length = u16::try_from(instructions.len() / 8).map_err(|_| EOVERFLOW)?;
    let program = Program { length, instructions: instructions.as_ptr() };
    call!(nr::SECCOMP, SET_MODE_FILTER, 0, &raw const program).map(drop)
}

// ── Descriptors ────────────────────────────────────────────────────────────────

/// How a file is opened.
#[derive(Clone, Copy)]
pub(crate) enum Open {
    Read,
    Write,
    /// Neither: it is only named.
    Path,
    /// A folder, only named.
    Folder,
    /// Made if it is not there.
    Create,
    /// Made, to be executed, and an error if it is there.
    CreateProgram,
}

impl Open {
    fn flags(self) -> usize {
        const CLOEXEC: usize = 0o2_000_000;
        const PATH: usize = 0o10_000_000;
        #[cfg(target_arch = "x86_64")]
        const DIRECTORY: usize = 0o200_000;
        #[cfg(target_arch = "aarch64")]
        const DIRECTORY: usize = 0o40_000;
        CLOEXEC
            | match self {
                Self::Read => 0,
                Self::Write => 1,
                Self::Path => PATH,
                Self::Folder => PATH | DIRECTORY,
                Self::Create => 1 | 0o100,
                Self::CreateProgram => 1 | 0o100 | 0o200,
            }
    }

    /// The permissions of a file that is made.
    fn mode(self) -> usize {
        match self {
            Self::CreateProgram => 0o555,
            _ => 0o644,
        }
    }
}

pub(crate) fn open(path: &CStr, how: Open) -> Result<Fd> {
    open_at(Fd(AT_FDCWD as i32), path, how)
}

pub(crate) fn open_at(folder: Fd, path: &CStr, how: Open) -> Result<Fd> {
    let (flags, mode) = (how.flags(), how.mode());
    call!(nr::OPENAT, folder.0 as isize, path.as_ptr(), flags, mode).map(|fd| Fd(fd as i32))
}

/// Names something below a folder as if that were the root, and refuses a path with a
/// symbolic link in it.
pub(crate) fn open_below(root: Fd, path: &CStr) -> Result<Fd> {
    const RESOLVE_NO_SYMLINKS: u64 = 0x04;
    const RESOLVE_IN_ROOT: u64 = 0x10;
    let how = [Open::Path.flags() as u64, 0, RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT];
    let size = size_of_val(&how);
    call!(new::OPENAT2, root.0, path.as_ptr(), &raw const how, size).map(|fd| Fd(fd as i32))
}

pub(crate) fn write(to: Fd, bytes: &[u8]) -> Result<()> {
    // What is written here is taken whole or not at all.
    call!(nr::WRITE, to.0, bytes.as_ptr(), bytes.len()).map(drop)
}

/// All of a file, from its start, into another.
pub(crate) fn copy(from: Fd, to: Fd) -> Result<()> {
    // As much as the kernel copies at once.
    const PART: usize = 0x7fff_f000;
    let mut at = 0_u64;
    loop {
        match call!(nr::SENDFILE, to.0, from.0, &raw mut at, PART) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Bytes that were read; 0 at the end.
pub(crate) fn read(from: Fd, into: &mut [u8]) -> Result<usize> {
    call!(nr::READ, from.0, into.as_mut_ptr(), into.len())
}

/// Sends, and takes no harm from a peer that is gone.
pub(crate) fn send(to: Fd, bytes: &[u8]) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    call!(nr::SENDTO, to.0, bytes.as_ptr(), bytes.len(), MSG_NOSIGNAL, 0, 0).map(drop)
}

/// The same, with a descriptor, of which the peer gets a copy.
pub(crate) fn send_with(to: Fd, bytes: &[u8], fd: Fd) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    #[repr(C)]
    struct Part {
        start: *const u8,
        length: usize,
    }
    #[repr(C)]
    struct Rights {
        length: usize,
        level: i32,
        kind: i32,
        fd: i32,
        padding: u32,
    }
    #[repr(C)]
    struct Message {
        name: usize,
        name_length: usize,
        parts: *const Part,
        parts_count: usize,
        control: *const Rights,
        control_length: usize,
        flags: usize,
    }
    let part = Part { start: bytes.as_ptr(), length: bytes.len() };
    // The length leaves the padding out.
    let length = size_of::<Rights>() - size_of::<u32>();
    let rights = Rights { length, level: SOL_SOCKET, kind: SCM_RIGHTS, fd: fd.0, padding: 0 };
    let message = Message {
        name: 0,
        name_length: 0,
        parts: &raw const part,
        parts_count: 1,
        control: &raw const rights,
        control_length: size_of::<Rights>(),
        flags: 0,
    };
    call!(nr::SENDMSG, to.0, &raw const message, MSG_NOSIGNAL).map(drop)
}

// ── Network ────────────────────────────────────────────────────────────────────

const AF_INET: u16 = 2;

/// A TCP socket; children and the program to be do not inherit it.
fn tcp() -> Result<Fd> {
    const STREAM_CLOEXEC: usize = 1 | 0o2_000_000;
    call!(nr::SOCKET, AF_INET, STREAM_CLOEXEC, 0).map(|fd| Fd(fd as i32))
}

/// Lets a new network namespace reach itself.
pub(crate) fn start_loopback() -> Result<()> {
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: u16 = 1;
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let mut request = Request { name: [0; 16], flags: IFF_UP, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    let socket = tcp()?;
    let started = call!(nr::IOCTL, socket.0, SIOCSIFFLAGS, &raw const request).map(drop);
    close(socket);
    started
}

/// Listens at a port of 127.0.0.1.
pub(crate) fn listen(port: u16) -> Result<Fd> {
    const WAITING_MAX: usize = 128;
    #[repr(C)]
    struct Address {
        family: u16,
        port: [u8; 2],
        address: [u8; 4],
        zero: [u8; 8],
    }
    let port = port.to_be_bytes();
    let at = Address { family: AF_INET, port, address: [127, 0, 0, 1], zero: [0; 8] };
    let socket = tcp()?;
    call!(nr::BIND, socket.0, &raw const at, size_of_val(&at))?;
    call!(nr::LISTEN, socket.0, WAITING_MAX)?;
    Ok(socket)
}

pub(crate) fn close(fd: Fd) {
    // What cannot be closed is not open.
    call!(nr::CLOSE, fd.0).ok();
}

/// Closes all descriptors from `first` on, now or at the next exec.
pub(crate) fn close_from(first: i32, at_exec: bool) -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: usize = 4;
    let flags = if at_exec { CLOSE_RANGE_CLOEXEC } else { 0 };
    call!(new::CLOSE_RANGE, first, u32::MAX, flags).map(drop)
}

/// Makes `to` mean what `from` means.
pub(crate) fn replace(from: Fd, to: i32) -> Result<()> {
    call!(nr::DUP3, from.0, to, 0).map(drop)
}

/// The whole of a file, for the life of the process.
pub(crate) fn map(file: Fd) -> Result<&'static [u8]> {
    const SEEK_END: usize = 2;
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    let length = call!(nr::LSEEK, file.0, 0, SEEK_END)?;
    let start = call!(nr::MMAP, 0, length, PROT_READ, MAP_PRIVATE, file.0, 0)?;
    // SAFETY: the kernel has mapped that many bytes there, nobody unmaps them, and the
    // file is sealed, so that they neither change nor go away.
    Ok(unsafe { core::slice::from_raw_parts(start as *const u8, length) })
}

/// One descriptor to wait for.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wanted {
    fd: i32,
    events: i16,
    happened: i16,
}

impl Wanted {
    /// `None` is never ready.
    pub(crate) fn new(fd: Option<Fd>) -> Self {
        const POLLIN: i16 = 1;
        Self { fd: fd.map_or(-1, |fd| fd.0), events: POLLIN, happened: 0 }
    }

    /// Whether it can be read, or has come to its end.
    pub(crate) fn is_ready(self) -> bool {
        self.happened != 0
    }
}

/// Waits until one is ready, or for some milliseconds.
pub(crate) fn poll(wanted: &mut [Wanted], milliseconds: Option<u32>) -> Result<()> {
    let time = milliseconds.map(|ms| [u64::from(ms) / 1000, u64::from(ms) % 1000 * 1_000_000]);
    let time = time.as_ref().map_or(null(), |time| time.as_ptr());
    match call!(nr::PPOLL, wanted.as_mut_ptr(), wanted.len(), time, null_mut::<c_void>(), 8) {
        Ok(_) | Err(EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

// ── Files and mounts ───────────────────────────────────────────────────────────

pub(crate) fn make_folder(path: &CStr, mode: u64) -> Result<()> {
    call!(nr::MKDIRAT, AT_FDCWD, path.as_ptr(), mode).map(drop)
}

pub(crate) fn remove_folder(path: &CStr) -> Result<()> {
    const AT_REMOVEDIR: usize = 0x200;
    call!(nr::UNLINKAT, AT_FDCWD, path.as_ptr(), AT_REMOVEDIR).map(drop)
}

pub(crate) fn symlink(says: &CStr, path: &CStr) -> Result<()> {
    call!(nr::SYMLINKAT, says.as_ptr(), AT_FDCWD, path.as_ptr()).map(drop)
}

pub(crate) fn change_directory(path: &CStr) -> Result<()> {
    call!(nr::CHDIR, path.as_ptr()).map(drop)
}

pub(crate) fn mount(flags: u64, of: &CStr, at: &CStr, kind: &CStr, data: &CStr) -> Result<()> {
    call!(nr::MOUNT, of.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data.as_ptr()).map(drop)
}

pub(crate) fn pivot_root(new: &CStr, old: &CStr) -> Result<()> {
    call!(nr::PIVOT_ROOT, new.as_ptr(), old.as_ptr()).map(drop)
}

pub(crate) fn unmount(path: &CStr) -> Result<()> {
    const MNT_DETACH: usize = 2;
    call!(nr::UMOUNT2, path.as_ptr(), MNT_DETACH).map(drop)
}

const AT_EMPTY_PATH: usize = 0x1000;
const AT_RECURSIVE: usize = 0x8000;

/// A copy of what is mounted, which is nowhere yet.
pub(crate) fn copy_tree(of: Fd, with_below: bool) -> Result<Fd> {
    const OPEN_TREE_CLONE: usize = 1;
    const OPEN_TREE_CLOEXEC: usize = 0o2_000_000;
    let below = if with_below { AT_RECURSIVE } else { 0 };
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | below;
    call!(new::OPEN_TREE, of.0, c"".as_ptr(), flags).map(|fd| Fd(fd as i32))
}

/// Sets attributes on such a copy, all of it.
pub(crate) fn set_attributes(tree: Fd, attributes: u64) -> Result<()> {
    // Set, clear, propagation, user namespace.
    let how = [attributes, 0, 0, 0];
    let (flags, size) = (AT_EMPTY_PATH | AT_RECURSIVE, size_of_val(&how));
    call!(new::MOUNT_SETATTR, tree.0, c"".as_ptr(), flags, &raw const how, size).map(drop)
}

pub(crate) fn attach(tree: Fd, at: &CStr) -> Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
    let flags = MOVE_MOUNT_F_EMPTY_PATH;
    call!(new::MOVE_MOUNT, tree.0, c"".as_ptr(), AT_FDCWD, at.as_ptr(), flags).map(drop)
}
