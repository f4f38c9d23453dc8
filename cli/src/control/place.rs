//! Where the socket is: a folder that nobody else can enter, a name that follows from what
//! is run, and a lock that lets one daemon have it.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use sha2::{Digest, Sha256};

use crate::{
    exit::Exit,
    source::Source,
    trouble::{Outcome, Trouble},
};

/// What a daemon runs, so that a client finds the one that runs the same.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// For people, and for the file's name.
    name: String,
    /// All that makes it another one.
    all: String,
}

impl Key {
    /// Follows from a manifest's own path, or from a program's folder and command line.
    ///
    /// # Errors
    /// There is no such manifest.
    pub(crate) fn of(source: &Source) -> Outcome<Self> {
        let cannot = |what: &Path, error: &io::Error| {
            Trouble::new(Exit::Bad, format!("cannot find `{}`: {error}", what.display()))
        };
        if let Some(line) = &source.plugin {
            let here = std::env::current_dir().map_err(|it| cannot(Path::new("."), &it))?;
            let all = format!("plugin\0{}\0{line}\0{}", here.display(), source.env.join("\0"));
            return Ok(Self { name: source.name(line)?, all });
        }
        let path = source.path()?;
        // A folder's own plugbay.toml is the same, whichever of the two is named.
        let file = path.join("plugbay.toml");
        let path = if file.is_file() { file } else { path };
        let path = fs::canonicalize(&path).map_err(|it| cannot(&path, &it))?;
        let folder = if path.is_dir() { Some(&*path) } else { path.parent() };
        let name = folder.and_then(Path::file_name).unwrap_or("root".as_ref());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            all: format!("config\0{}", path.display()),
        })
    }

    /// Where its socket is, if no other place was named.
    pub(crate) fn socket(&self) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = self.name.chars().map(plain).take(24).collect();
        let digest = Sha256::digest(self.all.as_bytes());
        let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        folder().join(format!("{name}-{hex}.sock"))
    }
}

/// The folder that all sockets of this user are in.
pub(crate) fn folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|it| it.is_absolute()) {
        Some(runtime) => runtime.join("plugbay"),
        None if geteuid().is_root() => PathBuf::from("/run/plugbay"),
        None => std::env::temp_dir().join(format!("plugbay-{}", geteuid())),
    }
}

/// The sockets in it, whether anybody listens or not.
pub(crate) fn sockets() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|it| it.path()).collect();
    all.retain(|it| it.extension().is_some_and(|it| it == "sock"));
    all.sort();
    all
}

/// A socket of our own. Dropping it takes the socket away.
#[derive(Debug)]
pub(crate) struct Place {
    socket: PathBuf,
    lock_path: PathBuf,
    /// Held, which is what makes it ours; the system lets go of it however we end.
    lock: File,
}

impl Place {
    /// Takes the place and listens there. One that was left by a daemon that was killed is
    /// taken over.
    ///
    /// # Errors
    /// Another daemon has it, or its folder is not private.
    pub(crate) fn take(socket: PathBuf) -> Outcome<(Self, UnixListener)> {
        let folder = match socket.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        private(&folder)?;
        let mut lock_path = socket.clone().into_os_string();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let lock = locked(&lock_path)?;
        let place = Self { socket, lock_path, lock };
        let cannot = |error: io::Error| {
            Trouble::new(
                Exit::Bad,
                format!("cannot listen on `{}`: {error}", place.socket.display()),
            )
            .help("another place can be named: --control PATH")
        };
        match fs::remove_file(&place.socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&place.socket).map_err(cannot)?;
        // The folder keeps others out already; this is for one that is opened later.
        fs::set_permissions(&place.socket, fs::Permissions::from_mode(0o600)).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        Ok((place, listener))
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Somebody may have taken them away already. The lock comes last: until then nobody
        // else can put a socket there.
        fs::remove_file(&self.socket).ok();
        fs::remove_file(&self.lock_path).ok();
        self.lock.unlock().ok();
    }
}

/// Sees to it that a folder is there and that nobody else can enter it.
fn private(folder: &Path) -> Outcome<()> {
    let shown = folder.display();
    let trouble = |why: String| {
        Trouble::new(Exit::Bad, format!("the folder of the control socket, `{shown}`, {why}"))
            .help("a private one can be named: --control FOLDER/NAME.sock")
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(trouble(format!("cannot be made: {error}")));
        }
        _ => {}
    }
    // Not through a link, which somebody else could turn elsewhere.
    let found = fs::symlink_metadata(folder).map_err(|it| trouble(format!("is gone: {it}")))?;
    if !found.is_dir() {
        return Err(trouble("is no folder".into()));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(trouble(format!("belongs to the user with id {}", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        return Err(trouble(format!("can be entered by others (mode {:o})", found.mode() & 0o777))
            .help(format!("or: chmod 700 '{shown}'")));
    }
    Ok(())
}

/// Takes the lock, and writes down who has it.
fn locked(path: &Path) -> Outcome<File> {
    let shown = path.display();
    let cannot =
        |error: io::Error| Trouble::new(Exit::Bad, format!("cannot lock `{shown}`: {error}"));
    loop {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Only for the message, and it may be written just now.
                file.read_to_string(&mut pid).ok();
                let pid =
                    pid.trim().parse::<u32>().map_or(String::new(), |it| format!(" (pid {it})"));
                let what = format!("another plugbay{pid} runs the same");
                return Err(Trouble::new(Exit::Refused, what)
                    .help("`plugbay ps` shows it")
                    .help("a second one needs a place of its own: --control PATH"));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        // Who had it before may have taken the file away meanwhile, and then this is a lock
        // that nobody else sees.
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let here = file.metadata().map_err(cannot)?;
        if !fs::metadata(path).is_ok_and(|there| same(&here, &there)) {
            continue;
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(cannot)?;
        return Ok(file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn one_daemon_has_a_place_and_the_next_one_can_take_what_a_dead_one_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/a.sock");
        let (place, listener) = Place::take(socket.clone()).unwrap();
        UnixStream::connect(&socket).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o700, 0o600));
        let trouble = Place::take(socket.clone()).unwrap_err();
        let who = format!("another plugbay (pid {}) runs the same", std::process::id());
        assert_eq!(trouble.message, who);
        // Killed: its files stay and its lock does not.
        place.lock.unlock().unwrap();
        std::mem::forget(place);
        drop(listener);
        let (place, _listener) = Place::take(socket.clone()).unwrap();
        UnixStream::connect(&socket).unwrap();
        drop(place);
        assert_eq!(fs::read_dir(socket.parent().unwrap()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("open");
        fs::create_dir(&folder).unwrap();
        let take = || Place::take(folder.join("a.sock"));
        for mode in [0o755, 0o710, 0o701] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let trouble = take().unwrap_err();
            assert!(trouble.message.contains("can be entered by others"), "{}", trouble.message);
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        drop(take().unwrap());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let trouble = Place::take(link.join("a.sock")).unwrap_err();
        assert!(trouble.message.ends_with("is no folder"), "{}", trouble.message);
        let far = dir.path().join("not/there/a.sock");
        assert!(Place::take(far).unwrap_err().message.contains("cannot be made"));
        let long = folder.join("x".repeat(200));
        assert!(Place::take(long).unwrap_err().message.contains("cannot listen"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn the_same_manifest_has_the_same_key_however_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plugbay.toml");
        fs::write(&file, "manifest = 1\n").unwrap();
        let key = |config: &Path| {
            Key::of(&Source { config: Some(config.to_owned()), ..Source::default() })
                .unwrap()
                .socket()
        };
        assert_eq!(key(&file), key(dir.path()));
        assert_eq!(key(&file), key(&dir.path().join("../").join(dir.path().file_name().unwrap())));
        let other = dir.path().join("other.toml");
        fs::write(&other, "manifest = 1\n").unwrap();
        assert_ne!(key(&file), key(&other));
        let plugin = |line: &str| {
            Key::of(&Source { plugin: Some(line.into()), ..Source::default() }).unwrap().socket()
        };
        assert_ne!(plugin("./greet a"), plugin("./greet b"));
        let name = plugin("./greet a").file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("greet-") && name.ends_with(".sock"), "{name}");
    }
}
