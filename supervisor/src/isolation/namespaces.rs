//! Namespaces: which of them one plugin gets, and how they are made.

use nix::{
    libc,
    unistd::{Gid, Uid},
};
use plugbay_shim::Script;

/// Which namespaces are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// One in which an ordinary user may make the others.
    pub(crate) user: bool,
    pub(crate) processes: bool,
    /// Mounts.
    pub(crate) files: bool,
    /// Shared memory, semaphores and messages of System V, and POSIX message queues.
    pub(crate) messages: bool,
    pub(crate) network: bool,
}

impl Namespaces {
    pub(crate) fn write(self, script: &mut Script) {
        let mut outer = 0;
        if self.user {
            outer |= libc::CLONE_NEWUSER;
        }
        if self.processes {
            outer |= libc::CLONE_NEWPID;
        }
        if outer != 0 {
            script.unshare(
                outer.cast_unsigned().into(),
                if self.user { "a user namespace" } else { "a PID namespace" },
            );
        }
        if self.user {
            // Everybody stays who they are. Groups cannot be changed, or one could be
            // left whose members have less.
            let (uid, gid) = (Uid::effective(), Gid::effective());
            script.write("/proc/self/setgroups", "deny");
            script.write("/proc/self/uid_map", &format!("{uid} {uid} 1"));
            script.write("/proc/self/gid_map", &format!("{gid} {gid} 1"));
        }
        if self.processes {
            script.init();
        }
        let mut inner = 0;
        let mut names = Vec::new();
        if self.files {
            inner |= libc::CLONE_NEWNS;
            names.push("a mount namespace");
        }
        if self.messages {
            inner |= libc::CLONE_NEWIPC;
            names.push("an IPC namespace");
        }
        if self.network {
            inner |= libc::CLONE_NEWNET;
            names.push("a network namespace");
        }
        if inner != 0 {
            script.unshare(inner.cast_unsigned().into(), &names.join(" and "));
        }
    }
}
