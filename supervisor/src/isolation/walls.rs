//! The walls around one plugin: which of them its plan asks for, whether this machine
//! has them, and how they are built.

use std::{
    io, os::unix::process::ExitStatusExt, path::Path, process::ExitStatus, sync::Arc,
    time::Duration,
};

use nix::{errno::Errno, libc};
use plugbay_shim::Script;
use serde::Serialize;

use super::{
    Lack, Machine,
    cgroup::{Cage, Ceiling, Held},
    filter,
    helper::Evidence,
    landlock,
    namespaces::Namespaces,
    proxy,
    rlimits::{self, Behind, Kind},
    view::{self, NoView, Shown, Wanted},
};
use crate::{
    digest::Program as Verified,
    launch::{Exit, is_passing, spawn_failed},
    peer::Peer,
    plan::{Ceilings, IfMissing, Item, Level, Limits, Network, PluginPlan, STATE},
    reason::{DigestFault, Reason},
};

/// What each folder in memory may hold, where memory has no bound.
const MEMORY_FOLDER: u64 = 64 << 20;
/// Signals waiting, message queues, locked memory: what costs the kernel memory and
/// plugins have no need of.
const SMALL: &[(libc::__rlimit_resource_t, u64, &str)] = &[
    (libc::RLIMIT_CORE, 0, "core files"),
    (libc::RLIMIT_MEMLOCK, 64 << 10, "locked memory"),
    (libc::RLIMIT_MSGQUEUE, 64 << 10, "message queues"),
];

/// What is used of what the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    namespaces: Namespaces,
    /// The version.
    landlock: Option<u32>,
    filter: bool,
    /// A cgroup only to be killed.
    cgroup_kill: bool,
    /// What stands in for cgroups where there are none: less, but something.
    data_limit: bool,
    process_limit: bool,
}

/// Something that the plan asks for and the machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Missing {
    item: Item,
    lack: Lack,
    /// What happens instead.
    instead: &'static str,
    /// It is said, and never a reason to refuse the plugin.
    is_note: bool,
}

const ABSTRACT: &str = "it reaches local sockets of other programs that have a name and no file";

/// Which walls a plan gets on a machine, and what is missing.
fn choose(plan: &PluginPlan, ceilings: Ceilings, machine: &Machine) -> (Used, Vec<Missing>) {
    let strict = plan.sandbox.level == Level::Strict;
    let mut missing = Vec::new();
    let mut has = |item, ability: &super::Ability, instead| match ability {
        Ok(()) => true,
        Err(lack) => {
            missing.push(Missing { item, lack: lack.clone(), instead, is_note: false });
            false
        }
    };
    let processes = has(
        Item::Tree,
        &machine.processes,
        "processes that it starts are ended one by one, and those of the same user may stop that",
    );
    let files = has(
        Item::Files,
        &machine.files,
        match machine.landlock {
            Ok(_) => {
                "it may change the owner, mode and times of files that it cannot open, and has no \
                 folder for temporary files"
            }
            Err(_) => "it opens every file that its user can",
        },
    );
    let closed = plan.sandbox.network == Network::None;
    // A network of its own, whose only way out is the proxy: nothing else holds it to a list.
    let listed = matches!(plan.sandbox.network, Network::Hosts(_));
    let filter = has(Item::Calls, &machine.calls, "it may make every system call");
    // The filter shuts all sockets but local ones, and Landlock those of them that have a name
    // and no file. A network of its own shuts both, and takes half a millisecond.
    let is_scoped = machine.landlock.as_ref().is_ok_and(|it| landlock::SCOPED_FROM <= *it);
    let network = (listed || closed && (strict || !filter || !is_scoped))
        && has(
            Item::Network,
            &machine.network,
            match (closed && filter, is_scoped) {
                (false, _) => "it reaches every host that its user can",
                (true, false) => ABSTRACT,
                (true, true) => "one wall keeps it from the network, where strict has two",
            },
        );
    let cgroups = &machine.cgroups;
    let limits = &plan.limits;
    if limits.memory_bytes.or(ceilings.memory_bytes).is_some() {
        has(Item::Memory, &cgroups.memory, "only its private data is bounded, in each process");
    }
    if limits.cpu_percent.or(ceilings.cpu_percent).is_some() {
        has(Item::Cpu, &cgroups.cpu, "it takes what processor time it gets");
    }
    // In a user namespace of its own, a plugin's processes are counted alone.
    let process_limit = cgroups.processes.is_err() && machine.is_ordinary_user && processes;
    // All plugins together are not.
    if limits.processes.is_some() && !process_limit || ceilings.processes.is_some() {
        let ability = &cgroups.processes;
        if limits.processes.is_some() && process_limit {
            let of_all = |lack: &Lack| Lack {
                cause: format!("for host.processes, {}", lack.cause),
                fix: lack.fix.clone(),
            };
            let ability = ability.as_ref().copied().map_err(of_all);
            let instead = "its own limit holds, and all plugins together start as many as their \
                           user can";
            has(Item::Processes, &ability, instead);
        } else {
            has(Item::Processes, ability, "it starts as many processes as its user can");
        }
    }
    let is_open = !closed && !network;
    if let (true, false, Err(lack)) = (is_open, is_scoped, landlock::scopes(&machine.landlock)) {
        // Not what the operator has refused, so no reason to refuse the plugin.
        missing.push(Missing { item: Item::Network, lack, instead: ABSTRACT, is_note: true });
    }
    let namespaces = Namespaces {
        user: machine.is_ordinary_user && (processes || files || network),
        processes,
        files,
        // The filter shuts these, too.
        messages: files && (strict || !filter),
        network,
    };
    let used = Used {
        namespaces,
        landlock: machine.landlock.as_ref().ok().copied(),
        filter,
        // The end of a PID namespace is the end of all in it.
        cgroup_kill: strict || !processes,
        data_limit: cgroups.memory.is_err(),
        process_limit,
    };
    (used, missing)
}

/// One wall, and whether this machine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it holds a plugin to.
    pub item: Item,
    /// What it is.
    pub wall: String,
    /// What it holds a plugin to, or all of them, in words.
    pub about: &'static str,
    /// Which levels build it.
    pub from: Level,
    /// Why it cannot be had here, if it cannot.
    #[serde(flatten)]
    pub lack: Option<Lack>,
}

impl Machine {
    /// Every wall there is, in the order in which they matter.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |item, wall: &str, from, lack: Option<&Lack>| Finding {
            item,
            wall: wall.to_owned(),
            about: item.about(),
            from,
            lack: lack.cloned(),
        };
        let (standard, strict) = (Level::Standard, Level::Strict);
        let landlock = self
            .landlock
            .as_ref()
            .map_or("Landlock".to_owned(), |version| format!("Landlock, version {version}"));
        let cgroups = &self.cgroups;
        let mut processes = match (&cgroups.processes, self.is_ordinary_user, &self.processes) {
            (Err(_), true, Ok(())) => {
                finding(Item::Processes, "count of a user namespace", standard, None)
            }
            (lack, ..) => finding(Item::Processes, "cgroup", standard, lack.as_ref().err()),
        };
        let mut all = vec![
            finding(Item::Tree, "PID namespace", standard, self.processes.as_ref().err()),
            finding(Item::Tree, "cgroup", strict, cgroups.kill.as_ref().err()),
            finding(Item::Files, "view of the file system", standard, self.files.as_ref().err()),
            finding(Item::Files, &landlock, standard, self.landlock.as_ref().err()),
            finding(Item::Network, "filter of system calls", standard, self.calls.as_ref().err()),
            finding(
                Item::Network,
                "network namespace, also for lists of hosts",
                strict,
                self.network.as_ref().err(),
            ),
            finding(Item::Calls, "filter of system calls", standard, self.calls.as_ref().err()),
            finding(Item::Memory, "cgroup", standard, cgroups.memory.as_ref().err()),
            finding(Item::Cpu, "cgroup", standard, cgroups.cpu.as_ref().err()),
        ];
        // The stand-in counts each plugin for itself.
        if let (false, Err(lack)) = (processes.lack.is_some(), &cgroups.processes) {
            processes.about = "limits.processes holds";
            all.push(processes);
            let wall = "cgroup, for all plugins together";
            let together = finding(Item::Processes, wall, standard, Some(lack));
            all.push(Finding { about: "host.processes holds for all plugins", ..together });
        } else {
            all.push(processes);
        }
        all
    }

    /// What cannot be enforced here of a level with all limits; see [`Self::findings`] for
    /// why.
    pub fn missing(&self, level: Level) -> Vec<Item> {
        let mut plan = PluginPlan::new("any", Vec::new(), "/");
        plan.sandbox.level = level;
        let limits = &mut plan.limits;
        (limits.memory_bytes, limits.cpu_percent, limits.processes) = (Some(1), Some(1), Some(1));
        choose(&plan, Ceilings::default(), self).1.into_iter().map(|it| it.item).collect()
    }
}

/// What of a plan cannot be held here and is done without, in words for the operator;
/// or why the plugin cannot run here.
///
/// # Errors
/// [`Reason::NotIsolated`]: the first thing that is required and missing.
pub(crate) fn degraded(
    plan: &PluginPlan,
    ceilings: Ceilings,
    machine: &Machine,
) -> Result<Vec<String>, Reason> {
    if plan.sandbox.level == Level::None {
        return Ok(Vec::new());
    }
    let (_, missing) = choose(plan, ceilings, machine);
    let waived = |it: &Missing| {
        it.is_note
            || plan.sandbox.if_missing == IfMissing::Warn
            || plan.sandbox.prefer.contains(&it.item)
    };
    if let Some(Missing { item, lack, .. }) = missing.iter().find(|it| !waived(it)) {
        return Err(Reason::NotIsolated {
            item: *item,
            cause: lack.cause.clone(),
            fix: lack.fix.clone(),
        });
    }
    let words = missing.iter().map(|it| {
        format!("{} is not enforced: {} ({})", it.item.as_str(), it.instead, it.lack.cause)
    });
    Ok(words.collect())
}

/// What was found when a plugin behind walls had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remains {
    /// Processes that were still there when its first one had ended.
    pub(crate) left_behind: u32,
    /// Forks that were refused because it had as many processes as it may.
    pub(crate) refused: u64,
    /// Forks that were refused because all plugins together had as many as they may.
    pub(crate) refused_to_all: u64,
    /// Processes of it that were killed because its memory was spent.
    pub(crate) killed: u64,
    /// Processor time of its first process and of the children that this waited for.
    pub(crate) cpu: Duration,
    /// The most memory that one of these had resident, in bytes.
    pub(crate) resident_bytes: u64,
}

/// The walls around one start of a plugin.
#[derive(Debug)]
pub(crate) struct Walls {
    script: Script,
    /// What its program is called, for what is said of it.
    program: String,
    env: Vec<(&'static str, String)>,
    /// What the proxy leads to; nothing if there is none.
    granted: Vec<Peer>,
    cage: Cage,
    guards: usize,
    ceiling: Arc<Ceiling>,
    /// Its bounds, in bytes.
    memory: Option<u64>,
    file_size: Option<u64>,
    open_files: Option<u64>,
    /// Whether it keeps something, and nothing but its state.
    keeps_only: bool,
}

impl Walls {
    /// Looks at the files that are to be shown, and writes the script.
    ///
    /// # Errors
    /// [`Reason::NotIsolated`], or [`Reason::SetupFailed`] with what the system said.
    pub(crate) fn new(
        plan: &PluginPlan,
        ceiling: &Arc<Ceiling>,
        machine: &Machine,
        verified: Option<&Verified>,
    ) -> Result<Self, Reason> {
        degraded(plan, ceiling.limits(), machine)?;
        let (used, _) = choose(plan, ceiling.limits(), machine);
        let program = plan.command.first().cloned().unwrap_or_default();
        let network = enforced(plan, used);
        let granted = match network {
            Network::Hosts(granted) => granted.clone(),
            Network::None | Network::All => Vec::new(),
        };
        let refused = |fault| Reason::NotVerified {
            file: verified.map_or_else(String::new, |it| it.path().display().to_string()),
            fault,
        };
        if !used.namespaces.files && verified.is_some_and(Verified::is_script) {
            return Err(refused(DigestFault::NeedsView));
        }
        let shown = view::view(&Wanted {
            program: Path::new(&program),
            // Without a view it is run from memory.
            verified: verified.filter(|_| used.namespaces.files),
            search: plan.env.get("PATH").map_or("", String::as_str),
            dir: &plan.dir,
            private_tmp: plan.sandbox.private_tmp,
            network,
            files: &plan.sandbox.files,
        });
        let shown = shown.map_err(|none| match none {
            // The same words as without walls.
            NoView::Missing(path, error) if path == Path::new(&program) => {
                spawn_failed(&program, &error)
            }
            NoView::Missing(path, error) => failed(&format!("show {}", path.display()), &error),
            NoView::MayBeChanged(folder) => {
                refused(DigestFault::MayBeChanged { folder: folder.display().to_string() })
            }
        })?;
        let cage = &machine.cgroups;
        let cage = cage.cage(&plan.name, &plan.limits, ceiling, used.cgroup_kill);
        Ok(Self {
            script: script(plan, used, &shown, &cage, verified),
            guards: if used.namespaces.processes { 2 } else { 1 },
            program,
            env: env(plan, network),
            granted,
            memory: plan.limits.memory_bytes,
            file_size: file_size(&plan.limits, keeps_only(plan)),
            open_files: plan.limits.open_files.map(u64::from),
            keeps_only: keeps_only(plan),
            ceiling: Arc::clone(ceiling),
            cage,
        })
    }

    /// Holds it to what was changed while they were being built: the ceilings, and also its limits
    /// if these `are_others`. Says whether it was the ceilings.
    pub(crate) fn settle(&mut self, limits: &Limits, are_others: bool, guard: Option<u32>) -> bool {
        let of_all = self.cage.settle(&self.ceiling);
        if of_all || are_others {
            self.hold(limits, guard);
        }
        of_all
    }

    /// Holds the plugin that runs behind them to other limits, and says what holds. Without a
    /// `guard` it runs no more.
    pub(crate) fn hold(&mut self, limits: &Limits, guard: Option<u32>) -> Vec<Held> {
        // What has ended is in nobody's way any more.
        let Some(guard) = guard else { return Vec::new() };
        let mut held = self.cage.hold(limits);
        if held.iter().any(|it| it.key == "memory" && it.refused.is_none()) {
            // What it is said to have gone over, should it.
            self.memory = limits.memory_bytes;
        }
        let behind = Behind { guard, guards: self.guards, cage: &self.cage };
        let (files, size) = (limits.open_files.map(u64::from), file_size(limits, self.keeps_only));
        held.extend(rlimits::hold(Kind::OpenFiles, behind, &mut self.open_files, files));
        held.extend(rlimits::hold(Kind::FileSize, behind, &mut self.file_size, size));
        held
    }

    pub(crate) fn script(&self) -> &Script {
        &self.script
    }

    /// The hosts that a proxy has to lead to.
    pub(crate) fn granted(&self) -> &[Peer] {
        &self.granted
    }

    /// Variables that mean something else behind walls.
    pub(crate) fn env(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// How the plugin ended, from what the helper and the kernel have said of it. A
    /// signal's number alone says nothing: the kernel, the plugin and we send the same.
    pub(crate) fn explain(&self, evidence: &Evidence) -> (Exit, Remains) {
        // Whatever the helper could not end, it does not leave to itself.
        self.cage.kill();
        if let Some((step, error)) = evidence.failed {
            let reason = self.not_started(step, Errno::from_raw(error));
            return (Exit::NotStarted(reason), Remains::default());
        }
        let counted = self.cage.counters();
        let mut remains = Remains {
            left_behind: evidence.left.unwrap_or(0),
            refused: counted.refused,
            refused_to_all: counted.refused_to_all,
            killed: counted.killed,
            ..Remains::default()
        };
        let Some(main) = evidence.main else {
            return (Exit::Ended(Reason::HelperLost), remains);
        };
        remains.cpu = Duration::from_micros(main.cpu_micros);
        remains.resident_bytes = main.resident_kib << 10;
        let exit = match Exit::of(ExitStatus::from_raw(main.status)) {
            Exit::Signal { signal: libc::SIGKILL, .. } if 0 < counted.killed => {
                let (own, all) = counted.memory_met;
                let limit = self.memory.filter(|_| own);
                let ceiling = self.ceiling.limits().memory_bytes.filter(|_| all);
                Exit::Ended(Reason::OutOfMemory { limit, ceiling })
            }
            Exit::Signal { signal: libc::SIGSYS, .. } => Exit::Ended(Reason::ForbiddenCall),
            Exit::Signal { signal, core } => {
                Exit::Ended(Reason::of_signal(signal, core, self.file_size))
            }
            exit => exit,
        };
        (exit, remains)
    }

    /// It has ended, and what there was to be read of it has been.
    pub(crate) fn release(&self) {
        self.cage.release(&self.ceiling);
    }

    /// How many of the helper's processes lie between the supervisor and the plugin.
    pub(crate) fn guards(&self) -> usize {
        self.guards
    }

    /// How often the plugin was held up so far by its limit of processor time, and by that of all
    /// plugins together.
    pub(crate) fn held_up(&self) -> (u64, u64) {
        self.cage.counters().held_up
    }

    fn not_started(&self, step: u32, errno: Errno) -> Reason {
        let step = self.script.step(step).unwrap_or("take a step");
        let error = io::Error::from(errno);
        match step.starts_with("execute ") {
            true => spawn_failed(&self.program, &error),
            // At its ceiling, the system does not always take the ceiling itself once more.
            false if self.cage.is_of_all(step) => failed(step, &io::Error::from(Errno::EAGAIN)),
            false => failed(step, &error),
        }
    }
}

fn failed(step: &str, error: &io::Error) -> Reason {
    let passing = is_passing(error);
    Reason::SetupFailed { step: step.to_owned(), error: error.to_string(), passing }
}

/// What the plugin may connect to, as far as these walls can tell one host from another.
fn enforced(plan: &PluginPlan, used: Used) -> &Network {
    match &plan.sandbox.network {
        // An empty list is nothing, and needs no proxy.
        Network::Hosts(granted) if granted.is_empty() => &Network::None,
        Network::Hosts(_) if !used.namespaces.network => &Network::All,
        network => network,
    }
}

fn env(plan: &PluginPlan, network: &Network) -> Vec<(&'static str, String)> {
    let mut env = Vec::new();
    if plan.sandbox.private_tmp {
        // What is kept, if anything is; the host's user has another home.
        let home = plan.env.get(STATE).map_or("/tmp", String::as_str);
        env.extend([("HOME", home.to_owned()), ("TMPDIR", "/tmp".to_owned())]);
    }
    if let Network::Hosts(_) = network {
        env.extend(proxy::env());
    }
    env
}

/// The largest file it may write. Without a limit of its own, one file alone is kept from being
/// larger than all that it may keep, if it can write nowhere else but into memory.
fn file_size(limits: &Limits, keeps_only: bool) -> Option<u64> {
    let memory = limits.memory_bytes.unwrap_or(MEMORY_FOLDER);
    let kept = limits.state_bytes.filter(|_| keeps_only);
    limits.file_bytes.or(kept.map(|it| it.max(memory)))
}

/// Whether it keeps something, and nothing but its state.
fn keeps_only(plan: &PluginPlan) -> bool {
    plan.state().is_some() && plan.sandbox.files.iter().all(|it| it.make || !it.write)
}

/// From the helper's first step to the program's.
fn script(
    plan: &PluginPlan,
    used: Used,
    shown: &[Shown],
    cage: &Cage,
    verified: Option<&Verified>,
) -> Script {
    let limits = &plan.limits;
    let network = enforced(plan, used);
    let mut script = Script::default();
    script.lifeline(std::process::id());
    script.session();
    cage.write(limits, &mut script);
    used.namespaces.write(&mut script);
    if let Network::Hosts(_) = network {
        script.listen(proxy::PORT);
    }
    if used.namespaces.files {
        view::write(shown, limits.memory_bytes.unwrap_or(MEMORY_FOLDER), &mut script);
    }
    script.main();
    script.session();
    script.join();
    for (resource, value, what) in SMALL {
        script.limit((*resource).into(), *value, *value, what);
    }
    if let Some(files) = limits.open_files {
        script.limit(libc::RLIMIT_NOFILE.into(), files.into(), files.into(), "open files");
    }
    if let Some(bytes) = limits.memory_bytes.filter(|_| used.data_limit) {
        script.limit(libc::RLIMIT_DATA.into(), bytes, bytes, "private data");
    }
    if let Some(processes) = limits.processes.filter(|_| used.process_limit) {
        // Both guards count, too.
        let all = u64::from(processes) + 2;
        script.limit(libc::RLIMIT_NPROC.into(), all, all, "processes");
    }
    if let Some(bytes) = file_size(limits, keeps_only(plan)) {
        script.limit(libc::RLIMIT_FSIZE.into(), bytes, bytes, "the size of files");
    }
    script.directory(&plan.dir.to_string_lossy());
    script.no_capabilities();
    script.no_new_privileges();
    if let Some(version) = used.landlock {
        let closed = *network == Network::None;
        landlock::write(shown, version, closed, !used.namespaces.files, &mut script);
    }
    if used.filter {
        script.filter(&filter::program(network, plan.sandbox.level));
    }
    let program = plan.command.first().map_or("", String::as_str);
    match verified.filter(|it| it.is_first()) {
        None => script.exec(program),
        // By its real path: on another, somebody might have changed where a link leads.
        Some(it) if used.namespaces.files => script.exec(&it.path().to_string_lossy()),
        Some(_) => script.exec_program(program),
    }
    script
}
