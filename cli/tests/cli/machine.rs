//! What this machine can enforce: told, and proven.

use std::{fs, os::unix::process::CommandExt, path::PathBuf};

use nix::unistd::geteuid;

use crate::stage::{end, plugbay, run, start};

#[test]
fn doctor_tells_all_walls_and_ends_as_they_stand() {
    let ended = run(["doctor", "--json"]);
    let json = ended.json();
    let missing = json["levels"][0]["missing"].as_array().expect("a list");
    assert_eq!(json["levels"][0]["level"], "standard");
    assert_eq!(ended.code, Some(i32::from(!missing.is_empty())));
    let walls = json["walls"].as_array().expect("a list");
    assert_eq!(walls.len(), 10);
    for wall in walls {
        assert_eq!(wall.get("cause").is_some(), wall.get("fix").is_some(), "{wall}");
    }
    let plain = run(["doctor"]);
    assert!(plain.stdout.starts_with("level standard: "), "{plain:#?}");
    assert_eq!(plain.code, ended.code);
}

#[test]
fn limits_test_proves_what_doctor_promises() {
    let doctor = run(["doctor", "--json"]).json();
    let missing = doctor["levels"][0]["missing"].as_array().expect("a list");
    let ended = run(["limits", "test", "--json"]);
    let json = ended.json();
    let limits = json["limits"].as_array().expect("a list");
    assert_eq!(limits.len(), 11);
    let walls = doctor["walls"].as_array().expect("a list");
    for limit in limits {
        let promised = match limit["limit"].as_str().and_then(|it| it.strip_prefix("host.")) {
            // Had everywhere: measured, in memory, and of our own.
            None if ["state", "tmp", "stderr"]
                .map(serde_json::Value::from)
                .contains(&limit["limit"]) =>
            {
                true
            }
            None => !missing.contains(&limit["limit"]),
            // All walls of that kind, since one of them is for one plugin only.
            Some(item) => !walls.iter().any(|it| it["item"] == item && it.get("cause").is_some()),
        };
        assert_eq!(limit["holds"], promised, "{limit}");
        // What cannot be had here is said, and is no failure.
        assert_eq!(limit["lack"].is_null(), promised, "{limit}");
    }
    assert_eq!(ended.code, Some(0));
}

/// A user without rights, who as a rule may not make cgroups.
#[test]
fn doctor_says_why_and_what_helps() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let mut command = plugbay(["doctor", "--json"]);
    // Where it was built, nobody may read it, perhaps.
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let copy: PathBuf = folder.path().join("plugbay");
    fs::copy(command.get_program(), &copy).expect("a file can be copied");
    let mut nobody = std::process::Command::new(copy);
    nobody.args(command.get_args()).uid(65_534).gid(65_534);
    nobody.stdin(std::process::Stdio::null());
    command = nobody;
    let json = end(start(command)).json();
    assert_eq!(json["user"], "ordinary");
    let walls = json["walls"].as_array().expect("a list");
    let lacking: Vec<_> = walls.iter().filter(|it| it.get("cause").is_some()).collect();
    for wall in &lacking {
        let cause = wall["cause"].as_str().expect("text");
        assert!(cause.starts_with("cannot ") || cause.starts_with("no "), "{wall}");
        assert!(!wall["fix"].as_str().expect("text").is_empty(), "{wall}");
    }
    let of_processes: Vec<_> = walls.iter().filter(|it| it["item"] == "processes").collect();
    if let [own, together] = of_processes.as_slice() {
        assert_eq!(own["about"], "limits.processes holds", "of one plugin only");
        assert_eq!(together["about"], "host.processes holds for all plugins");
    }
    if !PathBuf::from("/run/systemd/system").exists() {
        assert!(!lacking.is_empty(), "nobody handed a cgroup on");
    }
}
