//! How much memory plugins use, as the system tells.

use std::{collections::HashMap, fs};

/// How many generations a process may be below its plugin's leader.
const DEPTH_MAX: usize = 64;

/// Resident memory of each process with all that belongs to it, in bytes: its group, and
/// what descends from it, whatever group that is in. Empty where there is no `/proc`.
pub(crate) fn resident(leaders: &[u32]) -> HashMap<u32, u64> {
    let mut all = HashMap::new();
    if leaders.is_empty() {
        return all;
    }
    let kin = kin();
    for &pid in kin.keys() {
        if let Some(leader) = leader(pid, &kin, leaders) {
            // A process may end while we look.
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            *all.entry(leader).or_default() += rss(&status).unwrap_or(0);
        }
    }
    all
}

/// Parent and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kin {
    parent: u32,
    group: u32,
}

/// Every process that we can see.
fn kin() -> HashMap<u32, Kin> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    let kin = |pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, read_stat(&stat)?))
    };
    pids.filter_map(kin).collect()
}

/// The leader that a process belongs to, if to any.
fn leader(pid: u32, kin: &HashMap<u32, Kin>, leaders: &[u32]) -> Option<u32> {
    let mut at = pid;
    for _ in 0..DEPTH_MAX {
        let Kin { parent, group } = *kin.get(&at)?;
        if let Some(leader) = [at, group].into_iter().find(|it| leaders.contains(it)) {
            return Some(leader);
        }
        at = parent;
    }
    None
}

/// Parent and group in a `stat` file. The name in parentheses may hold anything.
fn read_stat(stat: &str) -> Option<Kin> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(1);
    let mut number = || fields.next()?.parse().ok();
    Some(Kin { parent: number()?, group: number()? })
}

/// What a `status` file says is resident, in bytes.
fn rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        assert_eq!(read_stat("7 (a) b (c) S 1 42 7 0 -1"), Some(Kin { parent: 1, group: 42 }));
        assert_eq!(read_stat("7 (a"), None);
        assert_eq!(rss("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 << 10));
        assert_eq!(rss("Name:\tx\n"), None, "a process that ends has none");
    }

    #[test]
    fn who_belongs_to_a_leader_is_found_by_group_or_by_descent() {
        let kin = |rows: &[(u32, u32, u32)]| -> HashMap<u32, Kin> {
            rows.iter().map(|&(pid, parent, group)| (pid, Kin { parent, group })).collect()
        };
        // 10 leads; 11 is in its group, 12 is its child in a group of its own, 13 is an orphan
        // of its group, 20 is somebody else, 30 and 31 are each other's parent.
        let all =
            kin(&[(1, 0, 1), (10, 1, 10), (11, 10, 10), (12, 11, 12), (13, 1, 10), (20, 1, 20)]);
        for (pid, expected) in
            [(10, Some(10)), (11, Some(10)), (12, Some(10)), (13, Some(10)), (20, None), (99, None)]
        {
            assert_eq!(leader(pid, &all, &[10]), expected, "{pid}");
        }
        assert_eq!(leader(30, &kin(&[(30, 31, 30), (31, 30, 31)]), &[10]), None);
    }

    #[test]
    fn the_memory_of_a_real_process_and_its_child_is_summed_up() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo up; read line; kill $!"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut up).unwrap();
        let pid = child.id();
        let found = resident(&[pid, u32::MAX]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(found.len() == 1 && 64 << 10 < found[&pid], "{found:?}");
        assert!(resident(&[]).is_empty());
    }
}
