//! Cgroups: bounds on memory, processor time and processes, and what they have counted.
//!
//! Each supervisor has a folder of its own beside its own cgroup, and in it one for each
//! plugin. Both versions are served, also side by side, as many systems have them.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use super::machine::{Ability, Lack};
use crate::plan::Limits;

const FOLDER: &str = "plugbay-";
/// Over which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;

/// One kind of bound, as it is called in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Processes,
}

const CONTROLLERS: [(Controller, &str); 3] =
    [(Controller::Memory, "memory"), (Controller::Cpu, "cpu"), (Controller::Processes, "pids")];

/// What cgroups can bound here, and where.
#[derive(Clone, Debug)]
pub struct Cgroups {
    /// `limits.memory`.
    pub memory: Ability,
    /// `limits.cpu`.
    pub cpu: Ability,
    /// `limits.processes`.
    pub processes: Ability,
    /// That all in one can be ended in one step.
    pub kill: Ability,
    hierarchies: Vec<Hierarchy>,
}

/// One tree of cgroups in which we may make some.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Our own cgroup, where the supervisor's folder is made.
    own: PathBuf,
    is_v2: bool,
    controllers: Vec<Controller>,
}

/// Tries what can be bound, and removes what an earlier supervisor has left because
/// nobody could.
pub(super) fn probe() -> Cgroups {
    let mut hierarchies = Vec::new();
    let mut found = [(); 3].map(|()| Err(no_hierarchy()));
    let mut kill = Err(no_hierarchy());
    for mut it in mounted() {
        sweep(&it.own);
        match it.try_out() {
            Ok(()) => {
                let index = |controller| CONTROLLERS.iter().position(|(it, _)| *it == controller);
                it.controllers.iter().filter_map(|it| index(*it)).for_each(|at| found[at] = Ok(()));
                if it.is_v2 {
                    kill = Ok(());
                }
                hierarchies.push(it);
            }
            Err(lack) => {
                for (at, (controller, _)) in CONTROLLERS.iter().enumerate() {
                    if it.controllers.contains(controller) && found[at].is_err() {
                        found[at] = Err(lack.clone());
                    }
                }
                if it.is_v2 {
                    kill = Err(lack);
                }
            }
        }
    }
    let [memory, cpu, processes] = found;
    Cgroups { memory, cpu, processes, kill, hierarchies }
}

fn no_hierarchy() -> Lack {
    Lack {
        cause: "no mounted cgroup has this controller".to_owned(),
        fix: "mount cgroup2 with the controllers memory, cpu and pids".to_owned(),
    }
}

/// The hierarchies that are mounted, and our own place in each.
fn mounted() -> Vec<Hierarchy> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (places, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in mounts.lines() {
        // Number, parent, device, root, where, options…, `-`, type, source, options.
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let fields: Vec<&str> = mount.split(' ').collect();
        let (Some(root), Some(at)) = (fields.get(3), fields.get(4)) else { continue };
        let mut system = system.split(' ');
        let (kind, options) = (system.next().unwrap_or(""), system.nth(1).unwrap_or(""));
        let is_v2 = kind == "cgroup2";
        if !is_v2 && kind != "cgroup" {
            continue;
        }
        let place = places.lines().find_map(|line| {
            // Number, controllers, path.
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_it = match is_v2 {
                true => controllers.is_empty(),
                false => {
                    !controllers.is_empty()
                        && controllers
                            .split(',')
                            .all(|it| options.split(',').any(|option| option == it))
                }
            };
            is_it.then_some(path)
        });
        let Some(place) = place else { continue };
        // A container sees a part of the tree, of which its root is the start.
        let below = place.strip_prefix(root.trim_end_matches('/')).unwrap_or(place);
        let own = Path::new(at).join(below.trim_start_matches('/'));
        let names = match is_v2 {
            true => read_or_empty(&own.join("cgroup.controllers")),
            false => options.replace(',', " "),
        };
        let has = |name: &str| names.split_whitespace().any(|it| it == name);
        let controllers = CONTROLLERS.iter().filter(|(_, name)| has(name)).map(|(it, _)| *it);
        let hierarchy = Hierarchy { own, is_v2, controllers: controllers.collect() };
        if (is_v2 || !hierarchy.controllers.is_empty()) && !found.contains(&hierarchy) {
            found.push(hierarchy);
        }
    }
    found
}

fn read_or_empty(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Removes the empty folders of supervisors that are gone.
fn sweep(own: &Path) {
    let entries = fs::read_dir(own).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|it| it.strip_prefix(FOLDER)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let inner = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            // What is not empty is still somebody's.
            inner.for_each(|it| drop(fs::remove_dir(it.path())));
            fs::remove_dir(entry.path()).ok();
        }
    }
}

impl Hierarchy {
    /// The folder of this supervisor.
    fn folder(&self) -> PathBuf {
        self.own.join(format!("{FOLDER}{}", std::process::id()))
    }

    /// Makes a cgroup, bounds it, and removes it.
    fn try_out(&mut self) -> Result<(), Lack> {
        let at = |what: String| {
            let fix = match self.is_v2 {
                true => {
                    "run plugbay as a systemd service with `Delegate=yes`, or under \
                         `systemd-run --user --scope -p Delegate=yes`"
                }
                false => "run as root, or where this cgroup may be written",
            };
            move |error: io::Error| Lack {
                cause: format!("cannot {what}: {error}"),
                fix: fix.to_owned(),
            }
        };
        if self.is_v2 {
            self.delegate()
                .map_err(at(format!("hand on controllers in {}", self.own.display())))?;
        }
        let bounds = Limits {
            memory_bytes: Some(64 << 20),
            cpu_percent: Some(50),
            processes: Some(16),
            ..Limits::default()
        };
        let cage = Cage { places: vec![self.place("probe")] };
        let made =
            cage.make(&bounds).map_err(at(format!("make a cgroup in {}", self.own.display())));
        cage.remove();
        made
    }

    /// Lets our folder have the controllers that we have. Version 2 wants that no
    /// process is in a cgroup that hands them on, so we move into one of our own, if we
    /// are alone.
    fn delegate(&self) -> io::Result<()> {
        let control = self.own.join("cgroup.subtree_control");
        let names = self.names();
        if names.is_empty() || self.hands_on(&self.own) {
            return Ok(());
        }
        match put(&control, &names) {
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                let pid = std::process::id().to_string();
                let inside = read_or_empty(&self.own.join("cgroup.procs"));
                if inside.lines().any(|it| it != pid) {
                    return Err(error);
                }
                let leaf = self.own.join("supervisor");
                make_folder(&leaf)?;
                put(&leaf.join("cgroup.procs"), pid)?;
                put(&control, &names)
            }
            done => done,
        }
    }

    fn hands_on(&self, folder: &Path) -> bool {
        let enabled = read_or_empty(&folder.join("cgroup.subtree_control"));
        let has = |name: &str| enabled.split_whitespace().any(|it| it == name);
        CONTROLLERS.iter().filter(|(it, _)| self.controllers.contains(it)).all(|(_, it)| has(it))
    }

    /// As they are written to hand them on.
    fn names(&self) -> String {
        let own = CONTROLLERS.iter().filter(|(it, _)| self.controllers.contains(it));
        own.map(|(_, name)| format!("+{name} ")).collect()
    }

    fn place(&self, name: &str) -> Place {
        Place {
            hierarchy: self.clone(),
            folder: self.folder().join(name),
            controllers: self.controllers.clone(),
        }
    }
}

impl Cgroups {
    /// Cgroups for one plugin: those that its bounds need, and the one that can be killed.
    pub(crate) fn cage(&self, plugin: &str, limits: &Limits) -> Cage {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{plugin}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let needs = |controller: &Controller| match controller {
            Controller::Memory => limits.memory_bytes.is_some(),
            Controller::Cpu => limits.cpu_percent.is_some(),
            Controller::Processes => limits.processes.is_some(),
        };
        let places = self.hierarchies.iter().filter_map(|hierarchy| {
            let mut place = hierarchy.place(&name);
            place.controllers.retain(needs);
            (hierarchy.is_v2 || !place.controllers.is_empty()).then_some(place)
        });
        Cage { places: places.collect() }
    }
}

/// The cgroups of one plugin.
#[derive(Debug)]
pub(crate) struct Cage {
    places: Vec<Place>,
}

/// One of them.
#[derive(Debug)]
struct Place {
    hierarchy: Hierarchy,
    folder: PathBuf,
    /// What is bounded here.
    controllers: Vec<Controller>,
}

/// What the kernel has counted in a cage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Processes that were killed because memory was spent.
    pub(crate) killed: u64,
    /// Forks that were refused.
    pub(crate) refused: u64,
}

impl Counters {
    /// What has come since.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            killed: self.killed.saturating_sub(before.killed),
            refused: self.refused.saturating_sub(before.refused),
        }
    }
}

impl Cage {
    /// Makes the cgroups, or finds them made, and sets their bounds.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn make(&self, limits: &Limits) -> io::Result<()> {
        self.places.iter().try_for_each(|place| {
            place.make()?;
            place.bound(limits)
        })
    }

    /// The folders to enter.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|it| it.folder.as_path())
    }

    /// The folders to remove in the end, inner ones first.
    pub(crate) fn leftovers(&self) -> impl Iterator<Item = PathBuf> {
        let own = self.places.iter().map(|it| it.folder.clone());
        own.chain(self.places.iter().map(|it| it.hierarchy.folder()))
    }

    /// Ends everything inside, where the kernel can do that in one step.
    pub(crate) fn kill(&self) {
        for place in self.places.iter().filter(|it| it.hierarchy.is_v2) {
            // Fails on a kernel before 5.14, which leaves it to the helper.
            put(&place.folder.join("cgroup.kill"), "1").ok();
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for place in &self.places {
            let count = |file: &str, key: &str| {
                let text = read_or_empty(&place.folder.join(file));
                let value = text
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
                value.unwrap_or(0)
            };
            for controller in &place.controllers {
                match controller {
                    Controller::Memory if place.hierarchy.is_v2 => {
                        counters.killed += count("memory.events", "oom_kill");
                    }
                    Controller::Memory => {
                        counters.killed += count("memory.oom_control", "oom_kill")
                    }
                    Controller::Processes => counters.refused += count("pids.events", "max"),
                    Controller::Cpu => {}
                }
            }
        }
        counters
    }

    /// Removes the cgroups; what is still inhabited stays.
    pub(crate) fn remove(&self) {
        // The folder of the supervisor is removed by whoever removes the last in it.
        self.leftovers().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Place {
    fn make(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        let above = self.hierarchy.folder();
        // The one above goes with the last plugin, so it may go between the two.
        for _ in 0..100 {
            make_folder(&above)?;
            let names = self.hierarchy.names();
            if self.hierarchy.is_v2 && !names.is_empty() && !self.hierarchy.hands_on(&above) {
                match put(&above.join("cgroup.subtree_control"), names) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    done => done?,
                }
            }
            match make_folder(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn bound(&self, limits: &Limits) -> io::Result<()> {
        for controller in &self.controllers {
            match (controller, self.hierarchy.is_v2) {
                (Controller::Memory, true) => {
                    let Some(bytes) = limits.memory_bytes else { continue };
                    self.set("memory.max", bytes)?;
                    // Without swap in the kernel there is nothing to bound.
                    self.set_if_there("memory.swap.max", 0)?;
                    self.set_if_there("memory.oom.group", 1)?;
                }
                (Controller::Memory, false) => {
                    let Some(bytes) = limits.memory_bytes else { continue };
                    // The sum with swap must never be less than memory alone.
                    if self.set("memory.limit_in_bytes", bytes).is_err() {
                        self.set_if_there("memory.memsw.limit_in_bytes", bytes)?;
                        self.set("memory.limit_in_bytes", bytes)?;
                    }
                    self.set_if_there("memory.memsw.limit_in_bytes", bytes)?;
                }
                (Controller::Processes, _) => {
                    let Some(processes) = limits.processes else { continue };
                    self.set("pids.max", processes.into())?;
                }
                (Controller::Cpu, is_v2) => {
                    let Some(percent) = limits.cpu_percent else { continue };
                    let quota = u64::from(percent) * PERIOD / 100;
                    if is_v2 {
                        put(&self.folder.join("cpu.max"), format!("{quota} {PERIOD}"))?;
                    } else {
                        self.set("cpu.cfs_period_us", PERIOD)?;
                        self.set("cpu.cfs_quota_us", quota)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        put(&self.folder.join(file), value.to_string())
    }

    fn set_if_there(&self, file: &str, value: u64) -> io::Result<()> {
        match self.set(file, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Writes a file of the kernel's, which is there or is not.
fn put(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.write_all(text.as_ref())
}

fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}
