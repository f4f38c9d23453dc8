//! How much a plugin keeps in its state folder, and when to look again.
//!
//! Measured, and no wall: quotas of the file system need its administrator. What can be
//! written between two looks is bounded by their distance: a second, if the free space of the
//! file system shrinks by half of what the plugin may still have.

use std::{
    collections::HashSet,
    ffi::OsStr,
    io,
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat,
        statvfs, statx,
    },
    io::Errno,
};
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::{
    isolation::files_for,
    reason::{Private, Reason},
    registry::Cell,
};

/// How often the free space is looked at.
const PAUSE: Duration = Duration::from_secs(1);
/// Something is written: the folder is measured this long after it was.
const SOON: Duration = Duration::from_secs(10);
/// Nothing is, as it seems.
const LATE: Duration = Duration::from_secs(30);
/// Of its time, looking takes one part in so many, however many files there are.
const COST: u32 = 20;
/// More files than can be looked at in passing, whatever the limit is.
const FILES_MAX: u64 = 1_000_000;
/// Folders in folders; each costs a descriptor while it is looked at.
const DEPTH_MAX: usize = 64;
/// Folders that are measured at once, for all plugins of a process.
static AT_ONCE: Semaphore = Semaphore::const_new(4);

/// What was found in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The blocks of all files and folders, in bytes.
    pub(crate) bytes: u64,
    files: u64,
    /// The largest file, by its path in the folder, and its size.
    largest: Option<(PathBuf, u64)>,
    /// Why there may be more.
    beyond: Option<Beyond>,
}

/// What is not measured to the end, and so is more than allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Beyond {
    Files(u64),
    Depth,
    /// The plugin may have seen to that.
    Unreadable(PathBuf),
}

/// Measures a folder, up to so many files. Neither symbolic links nor mounts are followed, and
/// a file with several names in it counts once.
///
/// # Errors
/// The system is short of something, so that nothing is known.
fn measure(folder: &Path, files_max: u64) -> io::Result<Found> {
    let mut found = Found::default();
    // The operator may have a link there, which the plugin cannot change.
    let root = match open(CWD, folder.as_os_str(), OFlags::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(found),
        Err(Errno::ACCESS | Errno::NOTDIR) => {
            found.beyond = Some(Beyond::Unreadable(PathBuf::new()));
            return Ok(found);
        }
        Err(errno) => return Err(errno.into()),
    };
    let mut links = HashSet::new();
    // The folders that lead to where we are.
    let mut open_folders = vec![root];
    let mut path = PathBuf::new();
    loop {
        let depth = open_folders.len();
        let Some(current) = open_folders.last_mut() else { return Ok(found) };
        let entry = match current.read() {
            Some(entry) => entry?,
            None => {
                open_folders.pop();
                path.pop();
                continue;
            }
        };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let about = match look(current.fd()?, name) {
            Ok(about) => about,
            // It is gone by now.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        found.files += 1;
        if files_max < found.files {
            found.beyond = Some(Beyond::Files(files_max));
            return Ok(found);
        }
        let is_folder = FileType::from_raw_mode(about.stx_mode.into()) == FileType::Directory;
        if is_folder && about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            continue;
        }
        let id = (about.stx_dev_major, about.stx_dev_minor, about.stx_ino);
        if !is_folder && 1 < about.stx_nlink && !links.insert(id) {
            continue;
        }
        let bytes = about.stx_blocks.saturating_mul(512);
        found.bytes = found.bytes.saturating_add(bytes);
        if !is_folder {
            if found.largest.as_ref().is_none_or(|(_, largest)| *largest < bytes) {
                found.largest = Some((path.join(name), bytes));
            }
            continue;
        }
        if DEPTH_MAX <= depth {
            found.beyond = Some(Beyond::Depth);
            continue;
        }
        match open(current.fd()?, name, OFlags::NOFOLLOW) {
            Ok(below) => {
                path.push(name);
                open_folders.push(below);
            }
            // It is gone, or something else by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(Errno::ACCESS) => found.beyond = Some(Beyond::Unreadable(path.join(name))),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn open(at: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<Dir, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(openat(at, name, flags, Mode::empty())?)
}

fn look(at: BorrowedFd<'_>, name: &OsStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(at, name, flags, StatxFlags::BASIC_STATS)
}

impl Found {
    /// Why that is too much, if it is.
    fn verdict(&self, limit: u64) -> Option<Reason> {
        if self.bytes <= limit && self.beyond.is_none() {
            return None;
        }
        let more = self.beyond.as_ref().map(|it| match it {
            Beyond::Files(max) => format!("more than {max} files"),
            Beyond::Depth => format!("folders in each other more than {DEPTH_MAX} times"),
            Beyond::Unreadable(_) => "a folder that cannot be read".to_owned(),
        });
        let unreadable = match &self.beyond {
            Some(Beyond::Unreadable(path)) => Some(("cannot be read", path, None)),
            _ => None,
        };
        let largest = || self.largest.as_ref().map(|(path, bytes)| ("has", path, Some(*bytes)));
        let words = unreadable.or_else(largest).map(|(does, path, bytes)| {
            let size = bytes.map_or(String::new(), |it| format!(" {}", rounded(it)));
            format!("{} {does}{size}", path.display())
        });
        let most = Private(words.unwrap_or_default());
        Some(Reason::StateTooLarge { used: self.bytes, limit, more, most })
    }
}

/// A number of bytes that somebody wants to read, and not less.
pub(crate) fn rounded(bytes: u64) -> String {
    let unit = if bytes < 1 << 20 { 1 << 10 } else { 1 << 20 };
    crate::manifest::bytes_in_words(bytes.div_ceil(unit) * unit)
}

/// When a folder was measured, and what of it the next look depends on.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    took: Duration,
    used: u64,
    /// The most that was free in the file system since, in bytes: others make room, too.
    free: u64,
}

impl Last {
    /// Whether to measure again, by how much is free now.
    fn is_due(self, now: Instant, free: u64, limit: u64) -> bool {
        let (since, written) = (now.duration_since(self.at), self.free.saturating_sub(free));
        let room = limit.saturating_sub(self.used);
        let wait = match written {
            0 => LATE,
            _ if room <= written.saturating_mul(2) => Duration::ZERO,
            _ => SOON,
        };
        wait.max(self.took * COST) <= since
    }
}

/// Looks at a plugin's state folder again and again, for as long as that is within its limit.
/// Says what was found, each time; and in the end why the plugin is not to go on.
pub(crate) async fn keep_watch(cell: Arc<Cell>, told: watch::Sender<Option<u64>>) -> Reason {
    let Some(folder) = cell.plan.state().map(Path::to_owned) else {
        return std::future::pending().await;
    };
    let limit = || cell.bounds.load().limits.state_bytes;
    let first = cell.bounds.load().timeouts.activate;
    let mut last = None::<Last>;
    loop {
        if let Some(limit) = limit() {
            let step = step(&folder, limit, last);
            let (looked, found) = match last {
                Some(_) => step.await,
                // Nobody is let in before, so this one does not last for ever.
                None => match timeout(first, step).await {
                    Ok(done) => done,
                    Err(_) => return unmeasured(&folder, "the file system does not answer"),
                },
            };
            if let Some(reason) = found.as_ref().and_then(|it| it.verdict(limit)) {
                return reason;
            }
            last = looked;
        }
        if last.is_some() || limit().is_none() {
            // Fails only if nobody waits for that any more.
            told.send(last.map(|it| it.used).or(Some(0))).ok();
        }
        sleep(if limit().is_some() { PAUSE } else { SOON }).await;
    }
}

fn unmeasured(folder: &Path, why: &str) -> Reason {
    Reason::SetupFailed {
        step: format!("measure {}", folder.display()),
        error: why.to_owned(),
        passing: true,
    }
}

/// One look at the free space, and at the folder if that is due.
async fn step(folder: &Path, limit: u64, last: Option<Last>) -> (Option<Last>, Option<Found>) {
    let folder = folder.to_owned();
    let Ok(_permit) = AT_ONCE.acquire().await else { return (last, None) };
    let done = spawn_blocking(move || {
        let free = statvfs(&folder).map_or(0, |it| it.f_bavail.saturating_mul(it.f_frsize));
        let at = Instant::now();
        let last = last.map(|it| Last { free: free.max(it.free), ..it });
        if last.is_some_and(|it| !it.is_due(at, free, limit)) {
            return (last, None);
        }
        // Otherwise it is tried again at the next look.
        let Ok(found) = measure(&folder, files_for(limit).min(FILES_MAX)) else {
            return (last, None);
        };
        let (used, took) = (found.bytes, at.elapsed());
        (Some(Last { at, took, used, free }), Some(found))
    });
    done.await.unwrap_or((last, None))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::symlink,
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn write(path: &Path, bytes: u64) {
        fs::write(path, vec![1; usize::try_from(bytes).unwrap()]).unwrap();
        // What the file system has not placed yet it may not count.
        File::open(path).unwrap().sync_all().unwrap();
    }

    #[test]
    fn all_that_lies_in_a_folder_counts_and_nothing_that_only_seems_to() {
        let (kept, elsewhere) = (folder(), folder());
        let at = kept.path();
        assert_eq!(measure(&at.join("none"), 9).unwrap(), Found::default());
        fs::create_dir_all(at.join("a/b")).unwrap();
        write(&at.join("a/b/large"), 3 * MIB);
        write(&at.join("small"), MIB);
        let before = measure(at, 100).unwrap();
        assert!((4 * MIB..5 * MIB).contains(&before.bytes), "{before:?}");
        let (largest, bytes) = before.largest.clone().unwrap();
        assert_eq!(largest, Path::new("a/b/large"));
        assert!((3 * MIB..4 * MIB).contains(&bytes), "{bytes}");

        write(&elsewhere.path().join("huge"), 9 * MIB);
        symlink(elsewhere.path(), at.join("link")).unwrap();
        symlink(elsewhere.path().join("huge"), at.join("a/huge")).unwrap();
        fs::hard_link(at.join("a/b/large"), at.join("again")).unwrap();
        File::create(at.join("hole")).unwrap().set_len(1 << 40).unwrap();
        let after = measure(at, 100).unwrap();
        assert!(after.bytes < before.bytes + MIB, "{before:?} {after:?}");
        assert_eq!((after.files, after.beyond), (8, None));
        // The folder itself may be a link, the operator's.
        let link = elsewhere.path().join("state");
        symlink(at, &link).unwrap();
        assert_eq!(measure(&link, 100).unwrap().bytes, after.bytes);
    }

    #[test]
    fn a_folder_without_end_is_looked_at_for_so_long_and_no_longer() {
        let kept = folder();
        for n in 0..400 {
            File::create(kept.path().join(format!("{n}"))).unwrap();
        }
        let found = measure(kept.path(), 300).unwrap();
        assert_eq!((found.files, &found.beyond), (301, &Some(Beyond::Files(300))));
        let said = found.verdict(u64::MAX).unwrap().to_string();
        assert!(said.contains("keeps more than 300 files"), "{said}");
        assert_eq!(measure(kept.path(), 400).unwrap().verdict(MIB), None);

        let deep = folder();
        let path: PathBuf = (0..DEPTH_MAX).map(|_| "d").collect();
        fs::create_dir_all(deep.path().join(&path)).unwrap();
        let found = measure(deep.path(), 1000).unwrap();
        assert_eq!((found.files, found.beyond), (64, Some(Beyond::Depth)));
        fs::remove_dir(deep.path().join(&path)).unwrap();
        assert_eq!(measure(deep.path(), 1000).unwrap().beyond, None);
    }

    #[test]
    fn a_limit_is_met_by_more_and_not_by_as_much() {
        let largest = Some((PathBuf::from("cache/x"), 3 * MIB));
        let found = Found { bytes: 4 * MIB, files: 2, largest, beyond: None };
        assert_eq!(found.verdict(4 * MIB), None);
        let reason = found.verdict(4 * MIB - 1).unwrap();
        assert!(reason.to_string().starts_with("keeps 4MiB in its state folder"), "{reason}");
        assert_eq!(reason.private(), Some("cache/x has 3MiB"));
        assert!(reason.is_permanent(), "nobody makes room");
        let beyond = Some(Beyond::Unreadable("a".into()));
        let reason = Found { beyond, ..found }.verdict(u64::MAX).unwrap();
        assert!(reason.to_string().contains("a folder that cannot be read"), "{reason}");
        assert_eq!(reason.private(), Some("a cannot be read"));
    }

    #[test]
    fn the_more_is_written_the_sooner_is_looked_again() {
        let start = Instant::now();
        let last = Last { at: start, took: Duration::from_millis(5), used: 40, free: 1000 };
        for (after_ms, free, is_due) in [
            (1_000, 1000, false),
            (29_000, 1000, false),
            (30_000, 1000, true),
            // Something, and half of what it may still have.
            (9_000, 990, false),
            (10_000, 990, true),
            (1_000, 971, false),
            (1_000, 970, true),
            (1_000, 0, true),
            // Looking takes its time.
            (99, 0, false),
            // Others make room.
            (10_000, 1010, false),
        ] {
            let now = start + Duration::from_millis(after_ms);
            assert_eq!(last.is_due(now, free, 100), is_due, "{after_ms} ms, {free}");
        }
    }
}
