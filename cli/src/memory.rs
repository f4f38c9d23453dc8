//! How much memory plugins use, as the system tells.

use std::{collections::HashMap, fs};

/// Resident memory of each process group, in bytes, by its leader. Empty where there is no
/// `/proc`.
pub(crate) fn resident(leaders: &[u32]) -> HashMap<u32, u64> {
    let mut groups = HashMap::new();
    if leaders.is_empty() {
        return groups;
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|it| it.bytes().all(|b| b.is_ascii_digit())) else {
            continue;
        };
        // A process may end while we look.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some(group) = group(&stat).filter(|it| leaders.contains(it)) else { continue };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        *groups.entry(group).or_default() += rss(&status).unwrap_or(0);
    }
    groups
}

/// The process group in a `stat` file. The name in parentheses may hold anything.
fn group(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

/// What a `status` file says is resident, in bytes.
fn rss(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        assert_eq!(group("7 (a) b (c) S 1 42 7 0 -1"), Some(42));
        assert_eq!(group("7 (a"), None);
        assert_eq!(rss("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 << 10));
        assert_eq!(rss("Name:\tx\n"), None, "a process that ends has none");
    }

    #[test]
    fn a_group_of_several_is_summed_up() {
        use std::os::unix::process::CommandExt;
        let line = "sleep 60 & sleep 60 & read line";
        let mut child = std::process::Command::new("sh")
            .args(["-c", line])
            .process_group(0)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let found = resident(&[pid, u32::MAX]);
        nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(pid.cast_signed()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        child.wait().unwrap();
        assert!(found.len() == 1 && 64 << 10 < found[&pid], "{found:?}");
        assert!(resident(&[]).is_empty());
    }
}
