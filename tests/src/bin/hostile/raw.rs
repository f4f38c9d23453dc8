//! System calls that no safe library makes.
#![allow(unsafe_code)]

use std::io;

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SigHandler, Signal},
};

/// Forks a child that does nothing until its alarm, and waits in the kernel, out of
/// reach of all signals that do not kill, for it to become a program, which it never does.
pub(crate) fn wait_for_a_child_that_stays(seconds: u32) -> io::Result<()> {
    fork(libc::CLONE_VFORK, seconds).map(drop)
}

/// Forks a child that is not ours but our parent's, and does nothing until its alarm.
pub(crate) fn fork_a_sibling(seconds: u32) -> io::Result<i32> {
    fork(libc::CLONE_PARENT, seconds)
}

fn fork(flags: libc::c_int, seconds: u32) -> io::Result<i32> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: as `fork`: no memory is shared and no stack is given. The child calls only what
    // may be called after a fork of a process with threads, and never returns.
    unsafe {
        match Errno::result(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0))? {
            0 => {
                libc::alarm(seconds);
                loop {
                    libc::pause();
                }
            }
            pid => Ok(pid as i32),
        }
    }
}

/// Lets a signal do what it does by itself.
pub(crate) fn restore(signal: Signal) -> nix::Result<()> {
    // SAFETY: no handler is installed.
    unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }.map(drop)
}

/// Ends this thread alone, also if it is the first, which then is dead and stays.
pub(crate) fn end_this_thread() -> ! {
    // SAFETY: the other threads use nothing on this one's stack: what they share is counted.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}
