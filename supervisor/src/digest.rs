//! What runs is what somebody has looked at: the file that a digest stands for is read once,
//! into memory that nobody can change, compared there, and run from there.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use nix::{errno::Errno, libc};
use sha2::{Digest as _, Sha256};
use tokio::{sync::Mutex, task::spawn_blocking};

use crate::{
    isolation::memory,
    launch::spawn_failed,
    plan::{Digest, PluginPlan},
    reason::{DigestFault, Reason},
};

/// The largest file that is held to a digest: it is kept in memory while its supervisor runs.
pub(crate) const LARGEST: u64 = 512 << 20;
/// As much of a file's start as the kernel looks at to tell what it is.
const HEAD: usize = 256;
const ELF: &[u8] = b"\x7fELF";
/// What runs the file that its first argument names, in place of itself; and what looks
/// such a file up somewhere else, which no digest can stand for.
const INTERPRETERS: &[&str] = &[
    "python", "pypy", "node", "nodejs", "deno", "bun", "ruby", "perl", "php", "lua", "luajit",
    "tclsh", "sh", "bash", "dash", "zsh", "ksh", "java", "Rscript", "julia", "pwsh", "dotnet",
    "env", "busybox", "uv", "uvx", "npx", "npm", "pipx",
];

/// Which word of a command a digest stands for: the program, or else, where that is an
/// interpreter, the first argument that is no option.
pub(crate) fn word(command: &[String]) -> usize {
    let program = command.first().map_or("", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    let name = name.trim_end_matches(|it: char| it.is_ascii_digit() || it == '.');
    let argument = || command.iter().skip(1).position(|it| !it.starts_with('-'));
    match INTERPRETERS.contains(&name) {
        true => argument().map_or(0, |at| at + 1),
        false => 0,
    }
}

/// A file as it was when it was compared, in memory that nobody can change.
#[derive(Debug)]
pub(crate) struct Program {
    memory: OwnedFd,
    /// Where it really is.
    path: PathBuf,
    stamp: Stamp,
    head: Vec<u8>,
    digest: Digest,
}

/// By what a file is taken to be the one that was read before. (If it is another after all,
/// what was read then is run, which is what was asked for.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds of its last change, and of its owner's or its mode's.
    changed: [i64; 4],
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let changed = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        Self { device: meta.dev(), inode: meta.ino(), bytes: meta.len(), changed }
    }
}

impl Program {
    /// What is to be executed or copied. It is closed by exec.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// As much of its start as has a script's first line.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether it is the program itself, and not what an interpreter is to run.
    pub(crate) fn is_first(&self) -> bool {
        self.digest.word == 0
    }

    /// Whether something else has to open it by its name to run it.
    pub(crate) fn is_script(&self) -> bool {
        !self.is_first() || !self.head.starts_with(ELF)
    }

    /// The arguments of a command, with the file's real path in the place of another.
    pub(crate) fn argv(&self, command: &[String]) -> Vec<String> {
        let mut argv = command.to_vec();
        if let (false, Some(word)) = (self.is_first(), argv.get_mut(self.digest.word)) {
            *word = self.path.to_string_lossy().into_owned();
        }
        argv
    }
}

/// Reads for one plugin, one file at a time and never while it holds anybody up.
#[derive(Debug, Default)]
pub(crate) struct Reader(Arc<Mutex<()>>);

impl Reader {
    /// [`verify`], until it is dropped: then the thread that reads ends with the part it is at.
    /// One that the system does not let go is waited for by the next, so that they cannot pile up.
    pub(crate) fn verify(
        &self,
        plan: Arc<PluginPlan>,
        known: Option<Arc<Program>>,
    ) -> impl Future<Output = Result<Option<Arc<Program>>, Reason>> + Send + use<> {
        let turn = Arc::clone(&self.0);
        async move {
            let turn = turn.lock_owned().await;
            let wanted = Arc::new(());
            let asked = Arc::downgrade(&wanted);
            let read = spawn_blocking(move || {
                let read = verify(&plan, known, &asked);
                drop(turn);
                read
            });
            let read = read.await;
            drop(wanted);
            read.unwrap_or_else(|error| Err(Reason::Internal { what: error.to_string() }))
        }
    }
}

/// Reads the file that a plan's digest stands for, for as long as it is `wanted`, unless that
/// is `known` and unchanged, and compares it. `None` without a digest.
///
/// # Errors
/// [`Reason::NotVerified`], or [`Reason::SpawnFailed`] in the words of a start without one.
pub(crate) fn verify(
    plan: &PluginPlan,
    known: Option<Arc<Program>>,
    wanted: &Weak<()>,
) -> Result<Option<Arc<Program>>, Reason> {
    let Some(digest) = plan.digest else { return Ok(None) };
    let name = plan.command.get(digest.word).map_or("", String::as_str);
    let refused = |fault| Reason::NotVerified { file: name.to_owned(), fault };
    let failed = |error: io::Error| match digest.word {
        0 => spawn_failed(name, &error),
        _ => refused(DigestFault::Unreadable { error: error.to_string() }),
    };
    let (path, file, meta) = open(&plan.dir, name).map_err(failed)?;
    if !meta.is_file() {
        return Err(refused(DigestFault::NotAFile));
    }
    if digest.word == 0 && meta.mode() & 0o111 == 0 {
        return Err(failed(Errno::EACCES.into()));
    }
    let stamp = Stamp::of(&meta);
    if let Some(known) =
        known.filter(|it| (it.stamp, &it.path, it.digest) == (stamp, &path, digest))
    {
        return Ok(Some(known));
    }
    if LARGEST < meta.len() {
        return Err(refused(DigestFault::TooLarge { limit: LARGEST }));
    }
    let (mut to, mut hash, mut head) =
        (memory::file(c"plugbay-program").map_err(failed)?, Sha256::new(), Vec::new());
    let mut bytes = 0;
    each_part(file, |part| {
        if wanted.strong_count() == 0 {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        bytes += part.len() as u64;
        head.extend(part.iter().take(HEAD.saturating_sub(head.len())));
        hash.update(part);
        to.write_all(part)
    })
    .map_err(failed)?;
    let found = Digest { sha256: hash.finalize().into(), ..digest };
    if found != digest {
        let (expected, found) = (digest.to_string(), found.to_string());
        return Err(refused(DigestFault::Differs { expected, found }));
    }
    let memory = memory::sealed(to).map_err(failed)?;
    // As long as what was read, whatever the file's length was said to be.
    Ok(Some(Arc::new(Program { memory, path, stamp: Stamp { bytes, ..stamp }, head, digest })))
}

/// The digest of what a plan would run, and the file that it stands for.
///
/// # Errors
/// The file, and what the system said of it.
pub fn digest_of(plan: &PluginPlan) -> Result<(PathBuf, Digest), (PathBuf, io::Error)> {
    let word = plan.digest.map_or_else(|| word(&plan.command), |it| it.word);
    let name = plan.command.get(word).map_or("", String::as_str);
    let failed = |error| (plan.dir.join(name), error);
    let (path, file, meta) = open(&plan.dir, name).map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "this is no file")));
    }
    let mut hash = Sha256::new();
    each_part(file, |part| {
        hash.update(part);
        Ok(())
    })
    .map_err(failed)?;
    Ok((path, Digest { sha256: hash.finalize().into(), word }))
}

fn open(dir: &Path, name: &str) -> io::Result<(PathBuf, File, Metadata)> {
    let path = fs::canonicalize(dir.join(name))?;
    // Who is no file does not hold us up.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(&path)?;
    let meta = file.metadata()?;
    Ok((path, file, meta))
}

fn each_part(file: File, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    // It may grow while it is read.
    let mut rest = file.take(LARGEST + 1);
    let mut part = vec![0; 256 << 10];
    loop {
        match rest.read(&mut part) {
            Ok(0) if rest.limit() == 0 => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(0) => return Ok(()),
            Ok(n) => take(&part[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_digest_stands_for_the_program_or_for_what_an_interpreter_runs() {
        let table: &[(&str, usize)] = &[
            ("/opt/geocode", 0),
            ("/opt/geocode serve", 0),
            ("/usr/bin/python3.11 plugin.py", 1),
            ("/usr/bin/python3 -u plugin.py --quick", 2),
            ("/usr/bin/node /opt/tickets/index.js", 1),
            ("/bin/sh", 0),
            // Neither is a file, so that nothing is run.
            ("/usr/bin/python3 -m geocode", 2),
            ("/usr/bin/npx geocode", 1),
        ];
        for (command, expected) in table {
            let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(word(&command), *expected, "{command:?}");
        }
    }

    fn plan(dir: &Path, content: &str) -> PluginPlan {
        let program = dir.join("program");
        fs::write(&program, content).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut plan = PluginPlan::new("p", vec![program.to_str().unwrap().to_owned()], dir);
        plan.digest = Some(digest_of(&plan).unwrap().1);
        plan
    }

    /// By somebody who waits for it.
    pub(crate) fn verified(
        plan: &PluginPlan,
        known: Option<Arc<Program>>,
    ) -> Result<Option<Arc<Program>>, Reason> {
        let wanted = Arc::new(());
        verify(plan, known, &Arc::downgrade(&wanted))
    }

    #[test]
    fn a_file_that_nobody_waits_for_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path(), "abc");
        let Err(Reason::SpawnFailed { error, .. }) = verify(&plan, None, &Weak::new()) else {
            panic!("it was read")
        };
        assert!(error.contains("nobody waits"), "{error}");
    }

    fn read(program: &Program) -> String {
        let mut text = String::new();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program.memory()));
        File::open(path).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_digest_is_written_as_other_programs_write_it() {
        let dir = tempfile::tempdir().unwrap();
        // By sha256sum.
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(plan(dir.path(), "abc").digest.unwrap().to_string(), expected);
    }

    #[test]
    fn what_was_read_is_kept_until_the_file_changes_and_never_follows_it() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path(), "abc");
        let first = verified(&plan, None).unwrap().unwrap();
        let again = verified(&plan, Some(Arc::clone(&first))).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        fs::write(dir.path().join("program"), "xyz").unwrap();
        assert_eq!(read(&first), "abc");
        let memory = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&first.memory()));
        let opened = OpenOptions::new().write(true).open(memory);
        assert!(opened.and_then(|mut it| it.write_all(b"x")).is_err());
        let Err(Reason::NotVerified { fault: DigestFault::Differs { expected, found }, .. }) =
            verified(&plan, Some(first))
        else {
            panic!("it was taken")
        };
        assert_eq!(expected, plan.digest.unwrap().to_string());
        assert_eq!(found, digest_of(&plan).unwrap().1.to_string());
    }

    #[test]
    fn what_cannot_be_compared_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = plan(dir.path(), "abc");
        let kind = |plan: &PluginPlan| match verified(plan, None) {
            Err(Reason::NotVerified { fault, .. }) => format!("{fault:?}"),
            Err(reason) => reason.kind().to_owned(),
            Ok(_) => "taken".to_owned(),
        };
        let program = dir.path().join("program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(kind(&plan), "spawn_failed");
        fs::remove_file(&program).unwrap();
        assert_eq!(kind(&plan), "spawn_failed");
        fs::create_dir(&program).unwrap();
        assert_eq!(kind(&plan), "NotAFile");
        // Opened without a wait for somebody who writes to it.
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        plan.command = vec![pipe.to_str().unwrap().to_owned()];
        assert_eq!(kind(&plan), "NotAFile");
        let large = dir.path().join("large");
        let file = File::create(&large).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
        plan.command = vec![large.to_str().unwrap().to_owned()];
        assert_eq!(kind(&plan), format!("TooLarge {{ limit: {LARGEST} }}"));
        plan.command = vec!["/usr/bin/python3".to_owned(), "gone.py".to_owned()];
        plan.digest = plan.digest.map(|it| Digest { word: 1, ..it });
        assert!(kind(&plan).starts_with("Unreadable"), "{}", kind(&plan));
    }
}
