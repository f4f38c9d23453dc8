//! What a careless host does, by calls that no safe library makes.
#![allow(unsafe_code)]

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SigHandler, Signal, signal},
};

/// Lets the system collect every child that ends, so that nobody learns how it did.
pub(crate) fn ignore_children() {
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.expect("it may be ignored");
}

/// Forks, with every descriptor that this process has. The child does nothing until its
/// alarm, and is no child of the library that the test is about.
pub(crate) fn fork_and_stay(seconds: u32) -> i32 {
    // SAFETY: the child calls only what may be called after a fork of a process with
    // threads, and never returns.
    unsafe {
        match Errno::result(libc::fork()).expect("it may fork") {
            0 => {
                libc::alarm(seconds);
                loop {
                    libc::pause();
                }
            }
            child => child,
        }
    }
}
