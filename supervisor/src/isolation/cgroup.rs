//! Cgroups: bounds on memory, processor time and processes, and what they have counted.
//!
//! Each start of a plugin has a cgroup of its own below the supervisor's. The helper makes
//! it, because the helper is there to remove it should the supervisor be killed. Both
//! versions are served, also side by side, as many systems have them.
//!
//! Where all plugins together are bounded, theirs lie in one more, which is there as long as one
//! of them is: each helper makes it if it must, and tries to remove it after its own.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::libc;
use plugbay_shim::Script;
use serde::Serialize;

use super::machine::{Ability, Lack, Probe};
use crate::{
    manifest::bytes_in_words,
    plan::{Ceilings, Limits},
};

/// How the names of our cgroups begin; the supervisor's number follows.
const FOLDER: &str = "plugbay-";
/// Over which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;

/// How often a bound is tried that does not fit what another has put there meanwhile.
const TRIES_MAX: usize = 64;

/// The largest page there is.
const PAGE: u64 = 64 << 10;

const QUOTA_V1: &str = "cpu.cfs_quota_us";
const MEMORY_V1: &str = "memory.limit_in_bytes";
const SWAP_V1: &str = "memory.memsw.limit_in_bytes";
const SWAP_V2: &str = "memory.swap.max";
/// Whoever is killed for memory is not killed alone.
const TOGETHER: &str = "memory.oom.group";

/// One kind of bound, as it is called in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Processes,
}

const CONTROLLERS: [(Controller, &str); 3] =
    [(Controller::Memory, "memory"), (Controller::Cpu, "cpu"), (Controller::Processes, "pids")];

/// A kernel that does not count swap has none to bound.
fn is_optional(file: &str) -> bool {
    [SWAP_V1, SWAP_V2, TOGETHER].contains(&file)
}

impl Controller {
    /// The key in a manifest.
    fn key(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Processes => "processes",
        }
    }

    /// What it is to be held to, in bytes, percent or processes.
    fn wanted(self, limits: &Limits) -> Option<u64> {
        match self {
            Self::Memory => limits.memory_bytes,
            Self::Cpu => limits.cpu_percent.map(u64::from),
            Self::Processes => limits.processes.map(u64::from),
        }
    }

    /// Files and what is written to them, in this order.
    fn bounds(self, is_v2: bool, limits: &Limits) -> Vec<(&'static str, String)> {
        let Some(wanted) = self.wanted(limits) else { return Vec::new() };
        let text = wanted.to_string();
        match (self, is_v2) {
            (Self::Processes, _) => vec![("pids.max", text)],
            (Self::Cpu, true) => {
                vec![("cpu.max", format!("{} {PERIOD}", wanted * PERIOD / 100))]
            }
            (Self::Cpu, false) => vec![
                ("cpu.cfs_period_us", PERIOD.to_string()),
                (QUOTA_V1, (wanted * PERIOD / 100).to_string()),
            ],
            (Self::Memory, true) => {
                vec![("memory.max", text), (SWAP_V2, "0".to_owned()), (TOGETHER, "1".to_owned())]
            }
            // The second counts both, so that there is no swap but for one page: the first has to
            // be met first, because recent kernels do not count how often the second is.
            (Self::Memory, false) => {
                let both = wanted.saturating_add(PAGE).to_string();
                vec![(MEMORY_V1, text), (SWAP_V1, both)]
            }
        }
    }
}

/// Bounds on all plugins of one supervisor together.
#[derive(Debug)]
pub(crate) struct Ceiling {
    /// What the cgroup is called that holds theirs.
    folder: String,
    limits: Mutex<Ceilings>,
    /// Held while processor time is taken from plugins for it.
    cutting: Mutex<()>,
}

impl Ceiling {
    pub(crate) fn new(limits: Ceilings) -> Self {
        Self { folder: folder("all"), limits: Mutex::new(limits), cutting: Mutex::default() }
    }

    /// What they are now.
    pub(crate) fn limits(&self) -> Ceilings {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, all: &Place, controller: Controller, limits: &Limits) -> Result<(), String> {
        let cuts = controller == Controller::Cpu;
        let _one = cuts.then(|| self.cutting.lock().unwrap_or_else(PoisonError::into_inner));
        all.change(controller, limits)
    }
}

/// The same in the words of one plugin's.
fn as_limits(ceilings: Ceilings) -> Limits {
    let Ceilings { memory_bytes, cpu_percent, processes } = ceilings;
    Limits { memory_bytes, cpu_percent, processes, ..Limits::default() }
}

/// A name that no other cgroup has: ours, and what it is for.
fn folder(of: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{FOLDER}{pid}-{number}-{of}")
}

/// A bound of the system on a plugin that runs, or on all of them, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The key in a manifest, such as `memory`.
    pub key: &'static str,
    /// What holds, in bytes, in percent of a core, in processes or in files: less than what was set
    /// where a cgroup above has less. `None` if nothing bounds it.
    pub limit: Option<u64>,
    /// What is used now, in the same unit, where that is counted.
    pub used: Option<u64>,
    /// Why what was set does not hold yet.
    pub refused: Option<String>,
}

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
pub(super) fn probe(probe: &Probe) -> Cgroups {
    let mut hierarchies = Vec::new();
    let mut found = [(); 3].map(|()| Err(no_hierarchy()));
    let mut kill = Err(no_hierarchy());
    for it in mounted() {
        sweep(&it.own);
        match it.try_out(probe) {
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

/// Removes the empty cgroups of supervisors that are gone.
fn sweep(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let numbers = name.to_str().and_then(|it| it.strip_prefix(FOLDER));
        let pid = numbers.and_then(|it| it.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // What is not empty is still somebody's.
            for below in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                fs::remove_dir(below.path()).ok();
            }
            fs::remove_dir(entry.path()).ok();
        }
    }
}

/// A process as `cgroup.procs` lists it, with its name.
fn named(pid: &str) -> (&str, String) {
    (pid, read_or_empty(&Path::new("/proc").join(pid).join("comm")).trim_end().to_owned())
}

/// Why a cgroup of version 2 with these processes besides us cannot hand on controllers. At most
/// three are named: a session may have hundreds.
fn crowded(others: &[(&str, String)]) -> String {
    const NAMED: usize = 3;
    let mut words: Vec<String> = others
        .iter()
        .take(NAMED)
        .map(|(pid, name)| match (*pid, name.as_str()) {
            // So the kernel lists what is in no PID namespace of ours.
            ("0", _) => "one that cannot be seen from here".to_owned(),
            (pid, "") => pid.to_owned(),
            // A process chooses its name, control characters too.
            (pid, name) => format!("{pid} ({})", name.escape_debug()),
        })
        .collect();
    if NAMED < others.len() {
        words.push(format!("{} more", others.len() - NAMED));
    }
    format!(
        "other processes are in this cgroup: {}; version 2 hands on controllers only where there \
         are none",
        words.join(", ")
    )
}

impl Hierarchy {
    /// Makes a cgroup, bounds it, and removes it.
    fn try_out(&self, probe: &Probe) -> Result<(), Lack> {
        let fix = match self.is_v2 {
            true => {
                "run plugbay as a systemd service with `Delegate=yes`, or under `systemd-run \
                 --user --scope -p Delegate=yes plugbay …`"
            }
            false => "run as root, or where this cgroup may be written",
        };
        if self.is_v2 {
            self.delegate().map_err(|error| Lack {
                cause: format!("cannot hand on controllers in {}: {error}", self.own.display()),
                fix: fix.to_owned(),
            })?;
        }
        let limits = Limits {
            memory_bytes: Some(64 << 20),
            cpu_percent: Some(50),
            processes: Some(16),
            ..Limits::default()
        };
        let place = self.place("probe", &Ceilings::default(), None);
        let done = probe.run(|script| {
            place.write(&limits, script);
            script.remove(&place.folder.to_string_lossy());
        });
        done.map(drop).map_err(|(what, errno)| {
            fs::remove_dir(&place.folder).ok();
            Lack::new(&what, errno, fix.to_owned())
        })
    }

    /// Lets the cgroups in ours have the controllers that it has. Version 2 wants that no
    /// process is in a cgroup that hands them on, so we move into one of our own, if we
    /// are alone.
    fn delegate(&self) -> io::Result<()> {
        let control = self.own.join("cgroup.subtree_control");
        let own = CONTROLLERS.iter().filter(|(it, _)| self.controllers.contains(it));
        let enabled = read_or_empty(&control);
        let is_on = |name: &str| enabled.split_whitespace().any(|it| it == name);
        let missing = own.filter(|(_, name)| !is_on(name));
        let names: String = missing.map(|(_, name)| format!("+{name} ")).collect();
        if names.is_empty() {
            return Ok(());
        }
        match put(&control, &names) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let pid = std::process::id().to_string();
                let inside = read_or_empty(&self.own.join("cgroup.procs"));
                let others: Vec<_> = inside.lines().filter(|it| *it != pid).map(named).collect();
                if !others.is_empty() {
                    return Err(io::Error::new(error.kind(), crowded(&others)));
                }
                let leaf = self.own.join("supervisor");
                match fs::create_dir(&leaf) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => put(&leaf.join("cgroup.procs"), &pid)?,
                }
                put(&control, &names)
            }
            done => done,
        }
    }

    /// A cgroup for a plugin: in the one for all, where they are bounded together.
    fn place(&self, plugin: &str, ceilings: &Ceilings, above: Option<&Ceiling>) -> Place {
        let above = above.and_then(|it| self.above(ceilings, it));
        let parent = above.as_ref().map_or(&self.own, |it| &it.place.folder);
        Place {
            folder: parent.join(folder(plugin)),
            is_v2: self.is_v2,
            is_for_all: false,
            controllers: self.controllers.clone(),
            above,
        }
    }

    /// The cgroup for all plugins, if it bounds something.
    fn above(&self, ceilings: &Ceilings, ceiling: &Ceiling) -> Option<Box<Above>> {
        let limits = as_limits(*ceilings);
        let wanted = |it: &Controller| it.wanted(&limits).is_some();
        let controllers: Vec<_> = self.controllers.iter().copied().filter(wanted).collect();
        if controllers.is_empty() {
            return None;
        }
        let own = CONTROLLERS.iter().filter(|(it, _)| self.controllers.contains(it));
        let hands_on = own.map(|(_, name)| format!("+{name} ")).collect();
        let folder = self.own.join(&ceiling.folder);
        let place = Place { folder, is_v2: self.is_v2, is_for_all: true, controllers, above: None };
        let before = CONTROLLERS.map(|(it, _)| place.met(it));
        Some(Box::new(Above { place, limits, hands_on, before }))
    }
}

/// Writes a file of the kernel's, which is there or is not.
fn put(path: &Path, text: &str) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.write_all(text.as_bytes())
}

impl Cgroups {
    /// Cgroups for one start of a plugin: those that its bounds need, and also the one that
    /// can be killed, if wanted.
    pub(crate) fn cage(
        &self,
        plugin: &str,
        limits: &Limits,
        ceiling: &Ceiling,
        to_kill: bool,
    ) -> Cage {
        let needs = |controller: &Controller| controller.wanted(limits).is_some();
        let ceilings = ceiling.limits();
        let places = self.hierarchies.iter().filter_map(|hierarchy| {
            let mut place = hierarchy.place(plugin, &ceilings, Some(ceiling));
            place.controllers.retain(needs);
            let is_needed = place.above.is_some() || !place.controllers.is_empty();
            (hierarchy.is_v2 && to_kill || is_needed).then_some(place)
        });
        Cage { places: places.collect() }
    }

    /// What holds of the bounds on all plugins together, after they have been set to others if
    /// there are some. What the system does not take stays as it was.
    pub(crate) fn hold_all(&self, ceiling: &Ceiling, others: Option<Ceilings>) -> Vec<Held> {
        let mut limits = ceiling.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, mut after) = (as_limits(*limits), *limits);
        let wanted = as_limits(others.unwrap_or(*limits));
        let mut held = |controller: Controller| {
            let above = self.hierarchies.iter().find_map(|it| {
                let above = it.above(&limits, ceiling)?;
                above.place.controllers.contains(&controller).then_some(above.place)
            });
            let refused = match (controller.wanted(&before), controller.wanted(&wanted), &above) {
                (None, None, _) => return None,
                (None, Some(_), _) => {
                    Err("no limit of this kind was set when plugbay started".to_owned())
                }
                (Some(_), None, _) => Err("a limit is not lifted while plugbay runs".to_owned()),
                (Some(_), Some(_), None) => Err("nothing here can enforce it".to_owned()),
                // It holds from the first plugin on.
                (Some(_), Some(_), Some(above)) if !above.folder.exists() => Ok(()),
                // Only looked at. What is set as it was may not hold as it should.
                (Some(_), Some(_), Some(_)) if others.is_none() => Ok(()),
                (Some(_), Some(_), Some(above)) => ceiling.change(above, controller, &wanted),
            };
            match (controller, &refused) {
                (_, Err(_)) => {}
                (Controller::Memory, _) => after.memory_bytes = wanted.memory_bytes,
                (Controller::Cpu, _) => after.cpu_percent = wanted.cpu_percent,
                (Controller::Processes, _) => after.processes = wanted.processes,
            }
            let above = above.as_ref().filter(|it| it.folder.exists());
            Some(Held {
                key: controller.key(),
                limit: above.and_then(|it| it.limit(controller)),
                used: above.and_then(|it| it.used(controller)),
                refused: refused.err(),
            })
        };
        let held = CONTROLLERS.into_iter().filter_map(|(it, _)| held(it)).collect();
        *limits = after;
        held
    }
}

/// The processor time that a cgroup has, in percent of a core; `None` if it has no bound of its own.
fn share(folder: &Path, is_v2: bool) -> Option<u64> {
    let read = |file| fs::read_to_string(folder.join(file)).ok();
    let text = match is_v2 {
        true => read("cpu.max")?,
        false => format!("{} {}", read(QUOTA_V1)?, read("cpu.cfs_period_us")?),
    };
    let mut numbers = text.split_whitespace().map(|it| it.parse::<u64>().ok());
    let (quota, period) = (numbers.next()??, numbers.next()??);
    (quota * 100).checked_div(period)
}

/// The least that it and those above it have, from the first on that is there.
fn least_share(folder: &Path, is_v2: bool) -> Option<u64> {
    let file = if is_v2 { "cpu.max" } else { QUOTA_V1 };
    let is_there = |it: &&Path| it.join(file).exists();
    let all = folder.ancestors().skip_while(|it| !is_there(it)).take_while(is_there);
    all.filter_map(|it| share(it, is_v2)).min()
}

/// The cgroups of one start of a plugin. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Cage {
    places: Vec<Place>,
}

/// One of them.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    is_v2: bool,
    /// Whether others are in it, too.
    is_for_all: bool,
    /// What is bounded here.
    controllers: Vec<Controller>,
    /// The one that it lies in, if that is for all plugins.
    above: Option<Box<Above>>,
}

/// The cgroup of all plugins together, as one of them sees it that is about to start.
#[derive(Debug)]
struct Above {
    place: Place,
    limits: Limits,
    /// Of version 2: which controllers those in it are given.
    hands_on: String,
    /// How often each of its bounds had been met by then.
    before: [u64; 3],
}

/// What the kernel has counted in a cage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Processes that were killed because memory was spent.
    pub(crate) killed: u64,
    /// Forks that were refused.
    pub(crate) refused: u64,
    /// Forks that were refused because all plugins together had as many processes as they may.
    /// Of version 2 from Linux 6.11 on: forks of any plugin.
    pub(crate) refused_to_all: u64,
    /// Periods in which there was no more processor time for it, by its own bound and by that of
    /// all plugins together.
    pub(crate) held_up: (u64, u64),
    /// Whether its own bound of memory was met, and that of all plugins together.
    pub(crate) memory_met: (bool, bool),
}

impl Cage {
    /// Writes how it is made, and that the plugin is to enter it.
    pub(crate) fn write(&self, limits: &Limits, script: &mut Script) {
        for place in &self.places {
            place.write(limits, script);
            script.cgroup(place.is_v2, &place.folder.to_string_lossy());
        }
    }

    /// All inside; `None` if there is no cgroup.
    pub(crate) fn processes(&self) -> Option<Vec<u32>> {
        let text = fs::read_to_string(self.places.first()?.folder.join("cgroup.procs")).ok()?;
        Some(text.lines().filter_map(|it| it.parse().ok()).collect())
    }

    /// Ends everything inside, where the kernel can do that in one step.
    pub(crate) fn kill(&self) {
        for place in self.places.iter().filter(|it| it.is_v2) {
            // Fails on a kernel before 5.14, which leaves it to the helper.
            put(&place.folder.join("cgroup.kill"), "1").ok();
        }
    }

    /// Takes the bounds of what has ended out of the way of the others'. A cgroup of version 1
    /// counts for those above it for some time after it was removed.
    pub(crate) fn release(&self, ceiling: &Ceiling) {
        // Nobody cuts it meanwhile.
        let _one = ceiling.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        for place in self.places.iter().filter(|it| !it.is_v2 && it.above.is_some()) {
            // It may have none, or be gone.
            put(&place.folder.join(QUOTA_V1), "-1").ok();
        }
    }

    /// Holds what runs inside to these limits as far as that can be done at once, and says
    /// what holds.
    pub(crate) fn hold(&self, limits: &Limits) -> Vec<Held> {
        let held = |(controller, _): &(Controller, &str)| {
            let (controller, wanted) = (*controller, controller.wanted(limits));
            let place = self.places.iter().find(|it| it.controllers.contains(&controller));
            let refused = match (place, wanted) {
                (None, None) => return None,
                (None, Some(_)) => Err("no limit of this kind was set when it started".to_owned()),
                (Some(_), None) => Err("a limit is not lifted while it runs".to_owned()),
                (Some(place), Some(_)) => place.change(controller, limits),
            };
            Some(Held {
                key: controller.key(),
                limit: place.and_then(|it| it.limit(controller)),
                used: place.and_then(|it| it.used(controller)),
                refused: refused.err(),
            })
        };
        CONTROLLERS.iter().filter_map(held).collect()
    }

    /// Holds all plugins together to what was changed while this one was being put in with them,
    /// which has set their bounds to what it knew. Says whether there was such a change.
    pub(crate) fn settle(&self, ceiling: &Ceiling) -> bool {
        // Nobody changes them meanwhile.
        let now = ceiling.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let now_of_all = as_limits(*now);
        let above = self.places.iter().filter_map(|it| it.above.as_deref());
        let changed = above.flat_map(|it| it.place.controllers.iter().map(move |on| (it, *on)));
        let changed = changed.filter(|(it, on)| on.wanted(&it.limits) != on.wanted(&now_of_all));
        changed.fold(false, |_, (it, on)| {
            // What the system does not take now it may take when it is asked again.
            ceiling.change(&it.place, on, &now_of_all).ok();
            true
        })
    }

    /// Whether a step is for what holds all plugins.
    pub(crate) fn is_of_all(&self, step: &str) -> bool {
        let is = |file: PathBuf| step == format!("write {}", file.display());
        self.places.iter().any(|place| {
            let Some(above) = &place.above else { return false };
            let files = above.place.bounds(&above.limits);
            files.iter().any(|(file, _)| is(above.place.folder.join(file)))
        })
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for place in &self.places {
            let above = place.above.as_deref();
            for (at, (controller, _)) in CONTROLLERS.iter().enumerate() {
                let is_own = place.controllers.contains(controller);
                let is_shared = above.is_some_and(|it| it.place.controllers.contains(controller));
                if !is_own && !is_shared {
                    continue;
                }
                let met = |it: &Above| it.place.met(*controller).saturating_sub(it.before[at]);
                let all = || above.filter(|_| is_shared).map_or(0, met);
                match controller {
                    Controller::Memory => {
                        counters.killed += match place.is_v2 {
                            true => place.count("memory.events", "oom_kill"),
                            false => place.count("memory.oom_control", "oom_kill"),
                        };
                        let own = is_own && 0 < place.met(*controller);
                        counters.memory_met = (own, 0 < all());
                    }
                    Controller::Processes => {
                        let refused = place.count("pids.events", "max");
                        // Most kernels count here whichever bound has refused it.
                        let by_all = is_shared && (!is_own || place.has_peaked() == Some(false));
                        match by_all {
                            true => counters.refused_to_all += refused.max(all()),
                            false => {
                                counters.refused += refused;
                                counters.refused_to_all += all();
                            }
                        }
                    }
                    Controller::Cpu => {
                        let own = if is_own { place.met(*controller) } else { 0 };
                        // Where its own bound is no less, that of all is what it meets.
                        let by_all = is_shared
                            && above.is_some_and(|it| {
                                share(&it.place.folder, it.place.is_v2)
                                    <= share(&place.folder, place.is_v2)
                            });
                        let (own, all) = if by_all { (0, own + all()) } else { (own, all()) };
                        counters.held_up.0 += own;
                        counters.held_up.1 += all;
                    }
                }
            }
        }
        counters
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // What was never made cannot be removed, and what is still inhabited stays.
        self.places.iter().for_each(|place| drop(fs::remove_dir(&place.folder)));
        for above in self.places.iter().filter_map(|it| it.above.as_ref()) {
            // It stays while another plugin is in it.
            fs::remove_dir(&above.place.folder).ok();
        }
    }
}

impl Place {
    /// Makes it and bounds it; it is removed should the supervisor be killed.
    fn write(&self, limits: &Limits, script: &mut Script) {
        let folder = self.folder.to_string_lossy();
        script.sweep(false, &folder);
        match &self.above {
            None => script.folder(0o755, &folder),
            Some(above) => {
                let parent = above.place.folder.to_string_lossy();
                script.sweep(true, &parent);
                // It is not removed while there is something in it.
                script.folder_in(0o755, &parent, &folder);
                if self.is_v2 {
                    script.write(&format!("{parent}/cgroup.subtree_control"), &above.hands_on);
                }
                above.place.write_bounds(&above.place.within(&above.limits, None), script);
            }
        }
        let all = self.above.as_ref().and_then(|it| it.limits.cpu_percent);
        self.write_bounds(&self.within(limits, all), script);
    }

    fn write_bounds(&self, limits: &Limits, script: &mut Script) {
        let is_shared = self.above.as_ref().is_some_and(|it| it.limits.cpu_percent.is_some());
        for (file, value) in self.bounds(limits) {
            let path = self.folder.join(file);
            let path = path.to_string_lossy();
            let is_optional = is_optional(file);
            // The bounds on all plugins together may be others by then. If these do not fit them,
            // what is there is the bound, or that of a cgroup above; and what is due is set when
            // the start is over.
            match file {
                MEMORY_V1 | SWAP_V1 if self.is_for_all => {
                    script.write_if_it_fits(is_optional, &path, &value);
                }
                QUOTA_V1 if self.is_for_all || is_shared => {
                    script.write_if_it_fits(is_optional, &path, &value);
                }
                _ if is_optional => script.write_if_there(&path, &value),
                _ => script.write(&path, &value),
            }
        }
    }

    /// Files and what is written to them, in this order.
    fn bounds(&self, limits: &Limits) -> Vec<(&'static str, String)> {
        self.controllers.iter().flat_map(|it| self.bounds_of(*it, limits)).collect()
    }

    fn bounds_of(&self, controller: Controller, limits: &Limits) -> Vec<(&'static str, String)> {
        let mut bounds = controller.bounds(self.is_v2, limits);
        // One plugin ends together, and not all of them.
        bounds.retain(|(file, _)| !self.is_for_all || *file != TOGETHER);
        bounds
    }

    /// How often the bound of this very cgroup was met.
    fn met(&self, controller: Controller) -> u64 {
        // From Linux 5.2 on; before, those below it are counted, too.
        let local = |file: &str, key| match self.folder.join(format!("{file}.local")).exists() {
            true => self.count(&format!("{file}.local"), key),
            false => self.count(file, key),
        };
        match (controller, self.is_v2) {
            (Controller::Memory, true) => local("memory.events", "oom"),
            // Also when something could be given back and nothing was killed.
            (Controller::Memory, false) => self.number("memory.failcnt").unwrap_or(0),
            (Controller::Processes, _) => local("pids.events", "max"),
            (Controller::Cpu, _) => self.count("cpu.stat", "nr_throttled"),
        }
    }

    /// The limits as this cgroup can have them. Version 1 takes no more processor time than those
    /// above it have, where version 2 takes it and holds the least of them. `all` is what the
    /// one for all plugins is about to have.
    fn within(&self, limits: &Limits, all: Option<u32>) -> Limits {
        let mut limits = limits.clone();
        if let (false, Some(wanted)) = (self.is_v2, limits.cpu_percent) {
            let above = self.folder.parent().and_then(|it| least_share(it, self.is_v2));
            let above = above.and_then(|it| u32::try_from(it).ok());
            let least = [above, all].into_iter().flatten().fold(wanted, u32::min);
            limits.cpu_percent = Some(least.max(1));
        }
        limits
    }

    /// The cgroups in this one.
    fn below(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|it| it.path()).filter(|it| it.is_dir())
    }

    /// Whether there have been as many processes as may be, where the kernel remembers that.
    fn has_peaked(&self) -> Option<bool> {
        let limit = self.number("pids.max")?;
        self.number("pids.peak").map(|peak| limit <= peak)
    }

    /// Bounds what runs already, as far as the kernel takes it.
    fn change(&self, controller: Controller, limits: &Limits) -> Result<(), String> {
        if let (Controller::Memory, true) = (controller, self.is_v2) {
            // The kernel would end it at once. What it can give back does not count.
            let wanted = limits.memory_bytes.unwrap_or(u64::MAX);
            let pages = ["active_file", "inactive_file"];
            let pages: u64 = pages.iter().map(|it| self.count("memory.stat", it)).sum();
            let used = self.used(controller).unwrap_or(0).saturating_sub(pages);
            if wanted < used {
                return Err(format!("it uses {} now", bytes_in_words(used)));
            }
        }
        let mut tries = 1;
        let done = loop {
            match self.put_all(controller, limits) {
                // It did not fit what somebody who starts has put there meanwhile.
                Err((_, Some(libc::EINVAL), _)) if !self.is_v2 && tries < TRIES_MAX => tries += 1,
                done => break done,
            }
        };
        done.or_else(|(file, errno, error)| match errno {
            // Whoever comes next makes it anew.
            Some(libc::ENOENT | libc::ENODEV) if self.is_for_all => Ok(()),
            Some(libc::ENOENT | libc::ENODEV) => Err("it starts or ends just now".to_owned()),
            Some(libc::EBUSY) => Err("it uses more now".to_owned()),
            _ => Err(format!("cannot write {file}: {error}")),
        })
    }

    /// One try of it. Fails with the file and what the system said.
    fn put_all(
        &self,
        controller: Controller,
        limits: &Limits,
    ) -> Result<(), (&'static str, Option<i32>, io::Error)> {
        let limits = &self.within(limits, None);
        let mut files = self.bounds_of(controller, limits);
        let more = |file, wanted: Option<u64>| self.number(file) < wanted;
        match (controller, self.is_v2) {
            // Of the two the first is never the larger one, also not for a moment.
            (Controller::Memory, false) if more(MEMORY_V1, limits.memory_bytes) => {
                files.reverse();
            }
            (Controller::Cpu, false) => {
                // No cgroup may have less than one in it, also not for a moment. Those that are
                // cut so are given more again by their keepers, who know what they may have.
                let most = limits.cpu_percent.map(u64::from);
                for it in self.below().filter(|it| most < share(it, self.is_v2)) {
                    // It may have ended by now; if it has not, the next step says so.
                    files.iter().for_each(|(file, value)| drop(put(&it.join(file), value)));
                }
            }
            _ => {}
        }
        for (file, value) in files {
            match put(&self.folder.join(file), &value) {
                Err(error) if is_optional(file) && error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(|error| (file, error.raw_os_error(), error))?,
            }
        }
        Ok(())
    }

    /// What holds: the least of its own bound and of those above.
    fn limit(&self, controller: Controller) -> Option<u64> {
        let above = |file: &'static str| {
            self.folder.ancestors().map_while(move |it| fs::read_to_string(it.join(file)).ok())
        };
        let first = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
        match (controller, self.is_v2) {
            (Controller::Memory, true) => above("memory.max").filter_map(|it| first(&it)).min(),
            (Controller::Memory, false) => {
                let bytes = self.count("memory.stat", "hierarchical_memory_limit");
                // Without a bound it says the largest number of pages.
                Some(bytes).filter(|it| *it < 1 << 62)
            }
            (Controller::Processes, _) => above("pids.max").filter_map(|it| first(&it)).min(),
            (Controller::Cpu, _) => least_share(&self.folder, self.is_v2),
        }
    }

    fn used(&self, controller: Controller) -> Option<u64> {
        self.number(match (controller, self.is_v2) {
            (Controller::Memory, true) => "memory.current",
            (Controller::Memory, false) => "memory.usage_in_bytes",
            (Controller::Processes, _) => "pids.current",
            (Controller::Cpu, _) => return None,
        })
    }

    /// A file that is one number.
    fn number(&self, file: &str) -> Option<u64> {
        read_or_empty(&self.folder.join(file)).trim().parse().ok()
    }

    /// One number of a file that has a line for each.
    fn count(&self, file: &str, key: &str) -> u64 {
        let text = read_or_empty(&self.folder.join(file));
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_the_way_of_controllers_is_named() {
        let of = |pid, name: &str| (pid, name.to_owned());
        for (others, named) in [
            (vec![of("7", "bash")], "7 (bash)"),
            (vec![of("7", "bash"), of("9", "")], "7 (bash), 9"),
            (vec![of("0", "")], "one that cannot be seen from here"),
            (vec![of("7", "a\n\u{1b}[2J")], "7 (a\\n\\u{1b}[2J)"),
            (vec![of("1", "a"), of("2", "b"), of("3", "c")], "1 (a), 2 (b), 3 (c)"),
            (
                vec![of("1", "a"), of("2", "b"), of("3", "c"), of("4", "d"), of("5", "e")],
                "1 (a), 2 (b), 3 (c), 2 more",
            ),
        ] {
            let expected = format!(
                "other processes are in this cgroup: {named}; version 2 hands on controllers only \
                 where there are none"
            );
            assert_eq!(crowded(&others), expected);
        }
    }

    /// Files as the kernel has them, where a container may have less than its machine.
    #[test]
    fn a_share_is_cut_to_what_those_above_have_where_nothing_else_is_taken() {
        let root = tempfile::tempdir().unwrap();
        for version in ["1", "2"] {
            let write = |folder: &str, quota: &str| {
                let folder = root.path().join(version).join(folder);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("cpu.max"), format!("{quota} 100000\n")).unwrap();
                let quota = quota.replace("max", "-1");
                fs::write(folder.join(QUOTA_V1), format!("{quota}\n")).unwrap();
                fs::write(folder.join("cpu.cfs_period_us"), "100000\n").unwrap();
            };
            write("pod", "40000");
            write("pod/own", "max");
            let is_v2 = version == "2";
            // The one for all is not there yet.
            let folder = root.path().join(version).join("pod/own/all/plugin");
            assert_eq!(least_share(&folder, is_v2), Some(40));
            let place = Place {
                folder,
                is_v2,
                is_for_all: false,
                controllers: vec![Controller::Cpu],
                above: None,
            };
            let cut = |wanted, all| {
                let limits = Limits { cpu_percent: wanted, ..Limits::default() };
                place.within(&limits, all).cpu_percent
            };
            let (most, least) = if is_v2 { (Some(80), Some(80)) } else { (Some(40), Some(20)) };
            assert_eq!(cut(Some(80), None), most);
            assert_eq!(cut(Some(80), Some(20)), least);
            assert_eq!((cut(Some(10), Some(20)), cut(None, Some(20))), (Some(10), None));
            write("pod/own/all", "20000");
            assert_eq!(cut(Some(80), None), least);
            assert_eq!(least_share(&place.folder, is_v2), Some(20));
        }
    }

    #[test]
    fn a_step_that_is_for_all_is_told_from_those_of_its_own() {
        let place = |folder: &str, is_v2, above| Place {
            folder: folder.into(),
            is_v2,
            is_for_all: above,
            controllers: vec![Controller::Cpu, Controller::Processes],
            above: None,
        };
        let (cpu_percent, processes) = (Some(50), Some(16));
        let limits = Limits { cpu_percent, processes, ..Limits::default() };
        for (is_v2, step, expected) in [
            (false, "write /all/pids.max", true),
            (false, "write /all/cpu.cfs_quota_us", true),
            (false, "write /all/p/cpu.cfs_quota_us", false),
            (false, "write /all/p/pids.max", false),
            (true, "write /all/cpu.max", true),
            (true, "write /all/p/cpu.max", false),
            (true, "mount /proc", false),
        ] {
            let above = Above {
                place: place("/all", is_v2, true),
                limits: limits.clone(),
                hands_on: String::new(),
                before: [0; 3],
            };
            let own = Place { above: Some(Box::new(above)), ..place("/all/p", is_v2, false) };
            assert_eq!(Cage { places: vec![own] }.is_of_all(step), expected, "{step}");
        }
        assert!(!Cage { places: vec![place("/p", false, false)] }.is_of_all("write /p/pids.max"));
    }

    #[test]
    fn a_process_is_named_as_the_system_names_it() {
        let own = std::process::id().to_string();
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(named(&own), (own.as_str(), name.trim_end().to_owned()));
        assert_eq!(named("0"), ("0", String::new()));
    }
}
