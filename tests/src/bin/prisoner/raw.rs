//! System calls that no library makes.
#![allow(unsafe_code)]

use std::{
    env,
    ffi::CString,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::{Command, ExitCode},
};

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SigHandler, Signal},
};

/// Runs a program for which `unshare` fails, as in many containers.
pub(crate) fn restrict_if_asked() -> Option<ExitCode> {
    let mut words = env::args().skip(1);
    if words.next()? != "--restrict" {
        return None;
    }
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        code(0x20, 0, 0, 0),
        code(0x15, 0, 1, u32::try_from(libc::SYS_unshare).unwrap_or(0)),
        code(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        code(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions outlive the calls, which only read them.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if installed != 0 {
        eprintln!("plugbay-prisoner: cannot restrict: {}", Errno::last());
        return Some(ExitCode::FAILURE);
    }
    nix::unistd::alarm::cancel();
    let error = Command::new(words.next().unwrap_or_default()).args(words).exec();
    eprintln!("plugbay-prisoner: cannot run it: {error}");
    Some(ExitCode::FAILURE)
}

/// One system call with arguments that are no pointers, or null.
pub(crate) fn call(number: i64, args: [u64; 4]) -> Result<i64, Errno> {
    // SAFETY: no argument is a pointer to memory of ours, so the call reads and writes
    // none of it; what else it does is what is being tried.
    Errno::result(unsafe { libc::syscall(number, args[0], args[1], args[2], args[3]) })
}

/// Lets a signal pass without effect.
pub(crate) fn ignore(signal: Signal) -> Result<(), Errno> {
    handle(signal, SigHandler::SigIgn)
}

/// Lets a signal do what it does by itself.
pub(crate) fn restore(signal: Signal) -> Result<(), Errno> {
    handle(signal, SigHandler::SigDfl)
}

fn handle(signal: Signal, how: SigHandler) -> Result<(), Errno> {
    // SAFETY: no handler is installed.
    unsafe { nix::sys::signal::signal(signal, how) }.map(drop)
}

/// Address space without memory behind it.
pub(crate) fn reserve(bytes: u64) -> Result<(), Errno> {
    map(bytes, libc::MAP_NORESERVE).map(drop)
}

/// Memory that cannot be put away.
pub(crate) fn lock(bytes: u64) -> Result<(), Errno> {
    let at = map(bytes, 0)?;
    // SAFETY: this very range was mapped, and is for ever.
    Errno::result(unsafe { libc::mlock(at, size(bytes)) }).map(drop)
}

fn map(bytes: u64, flags: libc::c_int) -> Result<*mut libc::c_void, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where nothing was.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size(bytes), access, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(at) }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Writes an extended attribute of a file that cannot be opened.
pub(crate) fn set_attribute(path: &Path) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let (name, value) = (c"user.plugbay", b"x");
    // SAFETY: both texts end with a zero, and the value has the length that is given.
    let set = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    Errno::result(set).map(drop)
}

/// A call by the rules of 32-bit programs. Where there is none, it is the end.
#[cfg(target_arch = "x86_64")]
pub(crate) fn call_32(number: u32) -> i32 {
    let result: i32;
    // SAFETY: `getpid` under its old number; it has no arguments. The kernel saves all
    // registers but the result.
    unsafe {
        std::arch::asm!(
            "int 0x80", inlateout("eax") number => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

/// Data with a TCP segment that begins a connection, which is how some walls are passed.
pub(crate) fn fast_open(port: u16) -> Result<(), Errno> {
    let [a, b] = port.to_be_bytes();
    let address: [u8; 16] = [2, 0, a, b, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: no pointer is given.
    let socket = Errno::result(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) })?;
    // SAFETY: the pointers are to live arrays, with their lengths.
    Errno::result(unsafe {
        libc::sendto(
            socket,
            b"out".as_ptr().cast(),
            3,
            libc::MSG_FASTOPEN,
            address.as_ptr().cast(),
            16,
        )
    })
    .map(drop)
}
