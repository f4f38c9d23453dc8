//! What this machine can enforce, learnt by doing it.
//!
//! Version numbers and settings do not tell: a container, a security module or a
//! sysctl may forbid what the kernel can. So the helper tries each wall once, in a
//! process that becomes nothing.

use std::{fs, io, os::fd::OwnedFd, path::Path, sync::OnceLock};

use nix::{errno::Errno, sys::wait::waitpid, unistd::Uid};
use plugbay_shim::Script;
use serde::Serialize;

use super::{
    cgroup::{self, Cgroups},
    filter,
    helper::{Evidence, Helper, Start, evidence_of},
    landlock,
    namespaces::Namespaces,
    proxy, view,
};
use crate::plan::{Level, Network};

/// Whether something can be done here, and if not, why and what helps.
pub type Ability<T = ()> = Result<T, Lack>;

/// Why something cannot be done here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lack {
    /// What was tried, and what the system said.
    pub cause: String,
    /// What an operator can do about it.
    pub fix: String,
}

/// What this machine can enforce for the user who runs this process.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Whether namespaces need a user namespace first, because the user is not root.
    pub is_ordinary_user: bool,
    /// A PID namespace, whose end is the end of all in it.
    pub processes: Ability,
    /// A view of the file system.
    pub files: Ability,
    /// The version of Landlock.
    pub landlock: Ability<u32>,
    /// A network namespace.
    pub network: Ability,
    /// A filter of system calls.
    pub calls: Ability,
    /// What cgroups can bound.
    pub cgroups: Cgroups,
}

impl Machine {
    /// This one. It is tried once in the life of a process, which takes some
    /// milliseconds.
    pub fn here() -> &'static Self {
        static HERE: OnceLock<Machine> = OnceLock::new();
        HERE.get_or_init(Self::probe)
    }

    fn probe() -> Self {
        let probe = Probe { helper: Helper::default(), user: !Uid::effective().is_root() };
        let with = |namespaces| Namespaces { user: probe.user, processes: true, ..namespaces };
        let namespaces = |it| probe.namespaces(with(it), |_| {});
        let files = Namespaces { files: true, ..Namespaces::default() };
        let network = Namespaces { network: true, ..Namespaces::default() };
        Self {
            is_ordinary_user: probe.user,
            processes: namespaces(Namespaces::default()),
            files: probe.namespaces(with(files), |script| {
                view::write(&view::smallest(), 4096, script);
            }),
            landlock: probe.landlock(),
            network: probe.namespaces(with(network), |script| script.listen(proxy::PORT)),
            calls: probe.calls(),
            cgroups: cgroup::probe(&probe),
        }
    }
}

/// The helper, as somebody who tries things.
pub(super) struct Probe {
    helper: Helper,
    user: bool,
}

impl Probe {
    /// What the helper says of a script; an error is its first that failed.
    pub(super) fn run(&self, write: impl FnOnce(&mut Script)) -> Result<Evidence, (String, Errno)> {
        let mut script = Script::default();
        script.lifeline(std::process::id());
        write(&mut script);
        script.done();
        let start = || -> io::Result<(bool, Evidence)> {
            let null = fs::File::options().read(true).write(true).open("/dev/null")?;
            let null = || null.try_clone().map(OwnedFd::from);
            let pipes = [null()?, null()?, null()?];
            let start = Start { script: &script, argv: &[], program: None, env: Vec::new(), pipes };
            let (pid, socket) = self.helper.start(start)?;
            let evidence = evidence_of(socket)?;
            // Fails where the host lets the system collect its children. What the helper says
            // of itself is enough.
            waitpid(pid, None).ok();
            Ok((evidence.left.is_some(), evidence))
        };
        match start() {
            Err(error) => Err(("run the helper from memory".to_owned(), errno(&error))),
            Ok((_, Evidence { failed: Some((step, errno)), .. })) => {
                let what = script.step(step).unwrap_or("take a step").to_owned();
                Err((what, Errno::from_raw(errno)))
            }
            Ok((false, _)) => Err(("take all steps".to_owned(), Errno::UnknownErrno)),
            Ok((true, evidence)) => Ok(evidence),
        }
    }

    fn namespaces(&self, namespaces: Namespaces, write: impl FnOnce(&mut Script)) -> Ability {
        let done = self.run(|script| {
            namespaces.write(script);
            write(script);
        });
        done.map(drop).map_err(|(what, errno)| Lack::new(&what, errno, fix_namespaces(self.user)))
    }

    fn landlock(&self) -> Ability<u32> {
        const FIX: &str = "boot a kernel from 5.13 on with Landlock in its list of security \
                           modules (lsm=landlock,…)";
        let lack = |(what, errno): (String, Errno)| Lack::new(&what, errno, FIX.to_owned());
        let evidence = self.run(Script::ask_landlock).map_err(lack)?;
        let version = evidence.answer.unwrap_or(0);
        let done = self.run(|script| {
            script.no_new_privileges();
            landlock::write(&view::smallest(), version, true, true, script);
        });
        done.map(|_| version).map_err(lack)
    }

    fn calls(&self) -> Ability {
        const FIX: &str = "boot a kernel with CONFIG_SECCOMP_FILTER; in a container, allow the \
                           system call `seccomp`";
        let done = self.run(|script| {
            script.no_new_privileges();
            script.filter(&filter::program(&Network::None, Level::Strict));
        });
        done.map(drop).map_err(|(what, errno)| Lack::new(&what, errno, FIX.to_owned()))
    }
}

impl Lack {
    pub(super) fn new(what: &str, errno: Errno, fix: String) -> Self {
        Self { cause: format!("cannot {what}: {}", errno.desc()), fix }
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// Who forbids namespaces, as far as it can be found out.
fn fix_namespaces(user: bool) -> String {
    let says = |path: &str, word: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(path)).is_ok_and(|it| it.trim() == word)
    };
    let fix = if says("user/max_user_namespaces", "0") {
        "sysctl user.max_user_namespaces=10000"
    } else if user && says("kernel/unprivileged_userns_clone", "0") {
        "sysctl kernel.unprivileged_userns_clone=1"
    } else if user && says("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "give this program an AppArmor profile with `userns,`, or \
         sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if user {
        "run as root, or in a container that allows unprivileged user namespaces"
    } else {
        "run outside of the container, or give it CAP_SYS_ADMIN and allow `unshare` and `mount`"
    };
    fix.to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::isolation::view::{Access, Shown};

    /// Somebody may change a path between our look at it and the mount.
    #[test]
    fn a_link_that_was_changed_after_it_was_looked_at_is_not_followed() {
        let machine = Machine::here();
        if let Err(lack) = &machine.files {
            return eprintln!("skipped: {}", lack.cause);
        }
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink("target", &link).unwrap();
        let probe = Probe { helper: Helper::default(), user: machine.is_ordinary_user };
        let namespaces = Namespaces {
            user: machine.is_ordinary_user,
            processes: true,
            files: true,
            ..Namespaces::default()
        };
        let show = |from: PathBuf| {
            let shown =
                Shown::Host { path: "/x".into(), from, access: Access::Read, is_folder: true };
            probe.run(|script| {
                namespaces.write(script);
                view::write(&[shown], 4096, script);
            })
        };
        assert!(show(target).is_ok());
        let (what, errno) = show(link.clone()).unwrap_err();
        assert_eq!((what, errno), (format!("show {}", link.display()), Errno::ELOOP));
    }

    /// What a probe says of a step that cannot be done.
    #[test]
    fn a_step_that_fails_is_named() {
        let probe = Probe { helper: Helper::default(), user: false };
        let failed = probe.run(|script| script.directory("/not/there"));
        assert_eq!(failed, Err(("enter /not/there".to_owned(), Errno::ENOENT)));
        assert_eq!(probe.run(|_| ()), Ok(Evidence { left: Some(0), ..Evidence::default() }));
    }
}
