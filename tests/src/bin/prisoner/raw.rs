//! System calls that no library makes.
#![allow(unsafe_code)]

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use nix::{errno::Errno, libc};

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
