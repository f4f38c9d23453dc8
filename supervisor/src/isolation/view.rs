//! What a plugin sees of the file system: an empty root, and in it what programs need
//! to run, its own folder, and what it was granted. Everything else is not there.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

use nix::unistd::{Gid, Uid};
use plugbay_shim::{Mounted, Script};

use super::runtime;
use crate::{
    digest::Program,
    plan::{FileGrant, Network},
};

/// Folders of the system, to be read and executed.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"];
/// Of `/etc`, what programs read to run at all: libraries, certificates, time, names.
const ETC: &[&str] = &["ld.so.cache", "ssl", "pki", "alternatives", "localtime", "os-release"];
/// And what they need to find others.
const ETC_NETWORK: &[&str] =
    &["nsswitch.conf", "hosts", "host.conf", "resolv.conf", "gai.conf", "protocols", "services"];
const DEVICES: &[&str] = &["null", "zero", "random", "urandom"];

/// What somebody may do at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    Read,
    Write,
}

/// One thing in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// A file or folder of the host at its own path, or a file at another one's.
    Host { path: PathBuf, from: PathBuf, access: Access, is_folder: bool },
    /// A device.
    Device { path: PathBuf },
    /// An empty folder in memory.
    Memory { path: PathBuf, mode: u32 },
    /// A file of ours.
    Text { path: PathBuf, text: String },
    /// The program that was handed over, in the place of the host's file, and its size.
    Program { path: PathBuf, bytes: u64 },
    /// The processes of the plugin.
    Processes,
    /// A symbolic link.
    Link { path: PathBuf, says: PathBuf },
}

impl Shown {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Host { path, .. }
            | Self::Device { path }
            | Self::Memory { path, .. }
            | Self::Text { path, .. }
            | Self::Program { path, .. }
            | Self::Link { path, .. } => path,
            Self::Processes => Path::new("/proc"),
        }
    }
}

/// What is to be shown to one plugin, beside the system.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    /// Its program, and the PATH in which it looks for others.
    pub(crate) program: &'a Path,
    /// What of its command is in memory, if anything is.
    pub(crate) verified: Option<&'a Program>,
    pub(crate) search: &'a str,
    /// The folder it runs in.
    pub(crate) dir: &'a Path,
    pub(crate) private_tmp: bool,
    pub(crate) network: &'a Network,
    pub(crate) files: &'a [FileGrant],
}

/// Why there is no view.
#[derive(Debug)]
pub(crate) enum NoView {
    /// A path that should be shown, and what the system said of it.
    Missing(PathBuf, io::Error),
    /// The program is to stay as it is, and lies in a folder that may be changed.
    MayBeChanged(PathBuf),
}

/// The view, parents before children.
pub(crate) fn view(wanted: &Wanted<'_>) -> Result<Vec<Shown>, NoView> {
    // The same for all plugins, and it takes as long to look at as to mount.
    static SYSTEM: [OnceLock<Vec<Shown>>; 2] = [const { OnceLock::new() }; 2];
    let [local, network] = &SYSTEM;
    let mut view = View(match wanted.network {
        // The proxy looks names up.
        Network::None | Network::Hosts(_) => local.get_or_init(|| system(&[ETC])).clone(),
        Network::All => network.get_or_init(|| system(&[ETC, ETC_NETWORK])).clone(),
    });
    view.temporary(wanted.private_tmp);
    for grant in wanted.files {
        let access = if grant.write { Access::Write } else { Access::Read };
        view.host(&grant.path, access)?;
    }
    // Who runs in the root means no folder of its own.
    if wanted.dir.parent().is_some() {
        view.host(wanted.dir, Access::Read)?;
    }
    // Where it is asked for and where it really is, and what it cannot run without.
    let first = wanted.verified.filter(|it| it.is_first());
    let is_other = |path: &Path| first.is_none_or(|it| path != wanted.program && path != it.path());
    let needs = runtime::needs(wanted.program, wanted.search, first.map(Program::head));
    let needs = std::iter::once(wanted.program.to_owned()).chain(needs);
    for path in needs.filter(|it| is_other(it)) {
        view.host(&path, Access::Read)?;
    }
    if let Some(verified) = wanted.verified {
        view.verified(verified, wanted.dir)?;
    }
    Ok(view.sorted())
}

/// As little as shows that a view can be made.
pub(crate) fn smallest() -> Vec<Shown> {
    vec![
        Shown::Processes,
        Shown::Host {
            path: "/usr".into(),
            from: "/usr".into(),
            access: Access::Read,
            is_folder: true,
        },
    ]
}

struct View(Vec<Shown>);

/// What every plugin sees of the system. What this one does not have is left out.
fn system(etc: &[&[&str]]) -> Vec<Shown> {
    let mut view = View(Vec::new());
    for path in SYSTEM {
        view.optional(Path::new(path));
    }
    for name in etc.iter().flat_map(|it| it.iter()) {
        view.optional(&Path::new("/etc").join(name));
    }
    view.0.extend([Shown::Processes, users(), groups()]);
    let device = |name: &&str| Shown::Device { path: Path::new("/dev").join(name) };
    view.0.extend(DEVICES.iter().map(device).filter(|it| it.path().exists()));
    for (name, says) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let path = Path::new("/dev").join(name);
        view.0.push(Shown::Link { path, says: format!("/proc/self/fd{says}").into() });
    }
    view.0
}

/// Who it is: nobody else's name is its business, and a look-up may ask the network.
fn users() -> Shown {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    let text = format!(
        "plugin:x:{uid}:{gid}::/tmp:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
    );
    Shown::Text { path: "/etc/passwd".into(), text }
}

fn groups() -> Shown {
    let text = format!("plugin:x:{}:\nnogroup:x:65534:\n", Gid::effective());
    Shown::Text { path: "/etc/group".into(), text }
}

impl View {
    /// Where anybody may write, and where memory is shared.
    fn temporary(&mut self, is_private: bool) {
        let (tmp, shared) = (PathBuf::from("/tmp"), PathBuf::from("/dev/shm"));
        if is_private {
            self.0.push(Shown::Memory { path: tmp.clone(), mode: 0o1777 });
            self.0.push(Shown::Link { path: shared, says: tmp });
        } else {
            self.push(&tmp, tmp.clone(), Access::Write, true);
            self.0.push(Shown::Memory { path: shared, mode: 0o1777 });
        }
    }

    /// Something of the system, as it is: a link stays one.
    fn optional(&mut self, path: &Path) {
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        if !meta.is_symlink() {
            return self.push(path, path.into(), Access::Read, meta.is_dir());
        }
        let (Ok(says), Ok(real)) = (fs::read_link(path), fs::canonicalize(path)) else { return };
        match self.covers(&real, Access::Read) {
            true => self.0.push(Shown::Link { path: path.into(), says }),
            // Its target is elsewhere: the content stands in the link's place.
            false => self.push(path, real.clone(), Access::Read, real.is_dir()),
        }
    }

    fn host(&mut self, path: &Path, access: Access) -> Result<(), NoView> {
        let real = fs::canonicalize(path).map_err(|error| NoView::Missing(path.into(), error))?;
        let is_folder = real.is_dir();
        if !self.covers(path, access) {
            self.push(path, real, access, is_folder);
        }
        Ok(())
    }

    /// Puts a program that was handed over where it really is. No folder on the way there may
    /// be the host's, where others could put another in its place: it is ours, and what the
    /// host's has beside the way is shown in it.
    fn verified(&mut self, program: &Program, dir: &Path) -> Result<(), NoView> {
        let path = program.path();
        // What lies beside it is where it will look for it.
        if let Ok(real) = fs::canonicalize(dir)
            && path.starts_with(&real)
            && real.parent().is_some()
        {
            self.host(&real, Access::Read)?;
        }
        let mut entries = 0;
        while let Some(at) = self.0.iter().position(
            |it| matches!(it, Shown::Host { path: folder, .. } if path.starts_with(folder)),
        ) {
            let Shown::Host { path: folder, access, .. } = self.0.remove(at) else { break };
            // Otherwise it is the file itself, by itself.
            if folder == path {
                continue;
            }
            if access == Access::Write {
                return Err(NoView::MayBeChanged(folder));
            }
            let failed = |error| NoView::Missing(folder.clone(), error);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                entries += 1;
                if ENTRIES_MAX < entries {
                    let many = "there are too many files beside the program for its digest";
                    return Err(failed(io::Error::other(many)));
                }
                let (entry, kind) =
                    entry.and_then(|it| Ok((it.path(), it.file_type()?))).map_err(failed)?;
                if entry == path || self.0.iter().any(|it| it.path() == entry) {
                    continue;
                }
                match fs::read_link(&entry) {
                    Ok(says) => self.0.push(Shown::Link { path: entry, says }),
                    Err(_) => self.push(&entry.clone(), entry, access, kind.is_dir()),
                }
            }
        }
        self.0.push(Shown::Program { path: path.into(), bytes: program.bytes() });
        Ok(())
    }

    fn push(&mut self, path: &Path, from: PathBuf, access: Access, is_folder: bool) {
        // Of two words on one path the wider one counts.
        self.0.retain(|it| !matches!(it, Shown::Host { path: other, .. } if other == path));
        self.0.push(Shown::Host { path: path.into(), from, access, is_folder });
    }

    /// Whether something is in the view already, with that access or more.
    fn covers(&self, path: &Path, access: Access) -> bool {
        // The nearest one decides: a private /tmp hides what the host has below it.
        let above = self.0.iter().filter(|it| path.starts_with(it.path()));
        let nearest = above.max_by_key(|it| it.path().components().count());
        match nearest {
            Some(Shown::Host { path: at, from, access: is, .. }) => access <= *is && at == from,
            // What lies behind a link, `/bin/sh` where `/bin` is one, is where that leads.
            Some(Shown::Link { path: at, .. }) => fs::canonicalize(path)
                .is_ok_and(|real| !real.starts_with(at) && self.covers(&real, access)),
            _ => false,
        }
    }

    fn sorted(mut self) -> Vec<Shown> {
        self.0.sort_by_key(|it| it.path().components().count());
        self.0
    }
}

/// Bits of `mount`.
const MS_RDONLY: u64 = 1;
const MS_NOSUID: u64 = 2;
const MS_NODEV: u64 = 4;
const MS_NOEXEC: u64 = 8;
const MS_REMOUNT: u64 = 32;
const MS_BIND: u64 = 4096;
const MS_REC: u64 = 16384;
const MS_PRIVATE: u64 = 1 << 18;
/// Bits of `mount_setattr`, which are others.
const ATTR_RDONLY: u64 = 1;
const ATTR_NOSUID: u64 = 2;
const ATTR_NODEV: u64 = 4;
const ATTR_NOEXEC: u64 = 8;

/// Where the new root is mounted before it becomes one: any folder that is there.
const STAGE: &str = "/usr";
/// How many files and folders may lie beside a program that has a digest, and beside the
/// folders that it lies in, as far as they are shown: each is a mount.
const ENTRIES_MAX: usize = 4096;
/// What the new root holds beside a program: folders and small files.
const ROOT_BYTES: u64 = 1 << 20;
/// How many files a folder in memory may hold: one for so much of what it may hold at all.
const BYTES_PER_FILE: u64 = 4096;
const FILES_MIN: u64 = 256;

/// How many files may lie where so many bytes may.
pub(crate) fn files_for(bytes: u64) -> u64 {
    (bytes / BYTES_PER_FILE).max(FILES_MIN)
}

/// Writes the view: a new root, everything at its place, and the old root gone.
/// `memory_bytes` bounds each folder in memory.
pub(crate) fn write(view: &[Shown], memory_bytes: u64, script: &mut Script) {
    let bare = |flags| Mounted { flags, kind: "", options: "" };
    // Nothing that happens here is seen outside.
    script.mount("/", bare(MS_REC | MS_PRIVATE));
    let programs =
        view.iter().map(|it| if let Shown::Program { bytes, .. } = it { *bytes } else { 0 });
    let options = format!("mode=755,size={}", ROOT_BYTES + programs.sum::<u64>());
    let root = Mounted { flags: MS_NOSUID | MS_NODEV, kind: "tmpfs", options: &options };
    script.mount(STAGE, root);
    script.pivot(STAGE);
    let mut made: Vec<PathBuf> = Vec::new();
    let hosts = view.iter().filter(|it| matches!(it, Shown::Host { is_folder: true, .. }));
    let hosts: Vec<&Path> = hosts.map(Shown::path).collect();
    for shown in view {
        let path = shown.path();
        let text = path.to_string_lossy();
        // Below something of the host everything is there already.
        let is_ours = !hosts.iter().any(|host| *host != path && path.starts_with(host));
        if is_ours {
            parents(path, &mut made, script);
        }
        match shown {
            Shown::Link { says, .. } => script.symlink(&says.to_string_lossy(), &text),
            Shown::Text { text: content, .. } => {
                place(path, false, &mut made, script);
                script.write(&text, content);
            }
            Shown::Program { .. } => script.copy(&text),
            Shown::Host { from, access, is_folder, .. } => {
                if is_ours {
                    place(path, *is_folder, &mut made, script);
                }
                let read_only = if *access == Access::Read { ATTR_RDONLY } else { 0 };
                let attributes = ATTR_NOSUID | ATTR_NODEV | read_only;
                script.bind(attributes, true, &from.to_string_lossy(), &text);
            }
            Shown::Device { .. } => {
                place(path, false, &mut made, script);
                script.bind(ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC, false, &text, &text);
            }
            Shown::Memory { mode, .. } => {
                place(path, true, &mut made, script);
                // A file without content takes memory of the kernel's, too.
                let files = files_for(memory_bytes);
                let options = format!("mode={mode:o},size={memory_bytes},nr_inodes={files}");
                let flags = MS_NOSUID | MS_NODEV;
                script.mount(&text, Mounted { flags, kind: "tmpfs", options: &options });
            }
            Shown::Processes => {
                place(path, true, &mut made, script);
                // Root could change the machine through it.
                let flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
                script.mount(&text, Mounted { flags, kind: "proc", options: "" });
            }
        }
    }
    script.forget();
    script.mount("/", bare(MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV));
}

fn parents(path: &Path, made: &mut Vec<PathBuf>, script: &mut Script) {
    let mut at = PathBuf::new();
    for component in path.parent().into_iter().flat_map(Path::components) {
        at.push(component);
        if matches!(component, Component::Normal(_)) {
            place(&at, true, made, script);
        }
    }
}

fn place(path: &Path, is_folder: bool, made: &mut Vec<PathBuf>, script: &mut Script) {
    if made.iter().any(|it| it == path) {
        return;
    }
    made.push(path.to_owned());
    let text = path.to_string_lossy();
    match is_folder {
        true => script.folder(0o755, &text),
        false => script.file(&text),
    }
}
