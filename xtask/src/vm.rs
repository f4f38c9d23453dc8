//! What this machine may lack: a guest with Debian's kernel, pure cgroup v2 and systemd, in
//! which the walls are tried and the unit file is started. QEMU in software: no rights needed
//! for it, and no `/dev/kvm`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use crate::demo::must;

/// The programs this needs, and Debian's packages that have them.
const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("cpio", "cpio"),
    ("strip", "binutils"),
];
const PACKAGES: &str = "systemd,systemd-sysv,dbus,procps,python3";
/// Takes the newest kernel for virtual machines, and nothing that would install it.
const KERNEL: &str = r#"set -e; cd "$(mktemp -d)"; trap 'rm -r "$PWD"' EXIT
name=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
apt-get download "$name"
dpkg-deb --fsys-tarfile ./linux-image-*.deb | tar -x -O --wildcards './boot/vmlinuz-*' > "$1""#;
/// The guest's root is its first file system, which cannot be pivoted away from; a mount of
/// itself can.
const INIT: &str = "#!/bin/sh
mount --bind / /mnt && cd /mnt && mount --move . / && exec chroot . /lib/systemd/systemd
";
const UNIT: &str = "[Unit]
DefaultDependencies=no
Requires=basic.target
After=basic.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh /guest.sh
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
";
/// plugbay is where it was built, and that may be below a folder that systemd clears.
const KEEP_TMP: &str = "d /tmp 1777 root root -\n";
const BOOT: &str = "console=ttyS0 quiet panic=-1 systemd.unit=guest.service systemd.show_status=false systemd.mask=tmp.mount";
/// Longer than the guest has ever taken on a loaded machine.
const MINUTES: &str = "40m";

/// Boots the guest and runs `guest.sh` in it; the arguments are scenarios, all without one.
pub(crate) fn run(root: &Path, scenarios: &[String]) -> Result<(), Vec<String>> {
    let missing: Vec<_> = TOOLS.iter().filter(|(program, _)| !is_there(program)).collect();
    if !missing.is_empty() {
        let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        return Err(vec![format!(
            "programs are missing; to have them: apt-get install --no-install-recommends {}",
            packages.join(" ")
        )]);
    }
    let root = root.canonicalize().map_err(|error| vec![error.to_string()])?;
    let place = root.join("target/vm");
    fs::create_dir_all(&place).map_err(|error| vec![format!("{}: {error}", place.display())])?;
    let (base, kernel) = (place.join("base.cpio"), place.join("vmlinuz"));
    // What it was made of; written once it is there, so that half of one is made again.
    let made_of = place.join("made-of.txt");
    if fs::read_to_string(&made_of).is_ok_and(|it| it == PACKAGES) {
        eprintln!("vm: the guest's system is there: {}", base.display());
    } else {
        eprintln!("vm: making the guest's system, once (one to two minutes)");
        system(&base, &kernel)?;
        fs::write(&made_of, PACKAGES).map_err(|error| vec![error.to_string()])?;
    }
    eprintln!("vm: building what is tried in it");
    let image = place.join("image.cpio");
    fs::copy(&base, &image).map_err(|error| vec![format!("{}: {error}", image.display())])?;
    overlay(&root, &place.join("overlay"), &image, scenarios)?;
    boot(&kernel, &image)
}

fn is_there(program: &str) -> bool {
    let which = format!("command -v {program}");
    let found = Command::new("sh").args(["-c", &which]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Debian's smallest system with systemd as an archive, and a kernel for it.
fn system(base: &Path, kernel: &Path) -> Result<(), Vec<String>> {
    let pack =
        format!("cd \"$1\" && find . -xdev | cpio -o -H newc --quiet > '{}'", base.display());
    let fetch = format!(
        "APT_CONFIG=$MMDEBSTRAP_APT_CONFIG sh -c '{}' sh '{}'",
        KERNEL.replace('\'', r"'\''"),
        kernel.display()
    );
    let mut make = Command::new("mmdebstrap");
    make.args(["--variant=minbase", "--quiet", "--format=null"])
        .arg(format!("--include={PACKAGES}"));
    for folder in ["doc", "man", "locale", "info"] {
        make.arg(format!("--dpkgopt=path-exclude=/usr/share/{folder}/*"));
    }
    make.args([
        "--customize-hook=useradd --root=\"$1\" --create-home tester",
        "--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/*_* \"$1\"/var/cache/apt/*",
    ]);
    make.arg(format!("--essential-hook={fetch}")).arg(format!("--customize-hook={pack}"));
    must(make.args(["bookworm", "/dev/null"]))
}

/// Adds to the image what this repository has built, each at its own place.
fn overlay(
    root: &Path,
    over: &Path,
    image: &Path,
    scenarios: &[String],
) -> Result<(), Vec<String>> {
    let failed = |error: std::io::Error| vec![format!("{}: {error}", over.display())];
    if over.exists() {
        fs::remove_dir_all(over).map_err(failed)?;
    }
    let programs = built(root, &["build", "--package=plugbay"])?;
    let plugbay = programs.last().ok_or_else(|| vec!["there is no plugbay".to_owned()])?;
    // The tests know where the programs are that they start; they are built with them.
    let tests = built(root, &["test", "--package=plugbay-tests", "--test=it", "--no-run"])?;
    let is_it = |it: &&PathBuf| it.parent().is_some_and(|it| it.ends_with("deps"));
    let it = tests.iter().find(is_it).ok_or_else(|| vec!["there are no tests".to_owned()])?;
    for program in [plugbay].into_iter().chain(&tests) {
        let at = inside(over, program);
        fs::create_dir_all(at.parent().unwrap_or(over)).map_err(failed)?;
        must(Command::new("strip").arg("-o").arg(&at).arg(program))?;
    }
    // The unit file, and a plugin that a test starts.
    for folder in ["cli/systemd", "sdk-spec/tutorial"].map(|it| root.join(it)) {
        let at = inside(over, &folder);
        fs::create_dir_all(at.parent().unwrap_or(over)).map_err(failed)?;
        must(Command::new("cp").arg("-r").arg(&folder).arg(&at))?;
    }
    let guest = format!(
        "PLUGBAY={}\nTESTS={}\nREPOSITORY={}\nSCENARIOS='{}'\n{}",
        plugbay.display(),
        it.display(),
        root.display(),
        scenarios.join(" "),
        include_str!("vm/guest.sh"),
    );
    for (path, text) in [
        ("init", INIT),
        ("guest.sh", &guest),
        ("etc/systemd/system/guest.service", UNIT),
        ("etc/tmpfiles.d/tmp.conf", KEEP_TMP),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ] {
        let at = over.join(path);
        fs::create_dir_all(at.parent().unwrap_or(over)).map_err(failed)?;
        fs::write(at, text).map_err(failed)?;
    }
    let pack = format!(
        "chmod +x init && chmod -R a+rX . && find . | cpio -o -H newc --quiet >> '{}'",
        image.display()
    );
    must(Command::new("sh").args(["-c", &pack]).current_dir(over))
}

/// The programs that a command of cargo's builds; where it put them.
fn built(root: &Path, command: &[&str]) -> Result<Vec<PathBuf>, Vec<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(command).arg("--message-format=json-render-diagnostics");
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| vec![error.to_string()])?;
    if !output.status.success() {
        return Err(vec![format!("{cargo:?}: {}", output.status)]);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let parsed = said.lines().filter_map(|it| serde_json::from_str::<serde_json::Value>(it).ok());
    Ok(parsed.filter_map(|it| it["executable"].as_str().map(PathBuf::from)).collect())
}

/// Where something of this machine is in a tree that becomes the guest's.
fn inside(over: &Path, path: &Path) -> PathBuf {
    over.join(path.strip_prefix("/").unwrap_or(path))
}

/// Runs the guest, shows what it says and judges by what it said last.
fn boot(kernel: &Path, image: &Path) -> Result<(), Vec<String>> {
    let began = Instant::now();
    let mut guest = Command::new("timeout");
    guest.args([MINUTES, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"]);
    guest.args(["-smp", "2", "-m", "3G", "-nographic", "-no-reboot"]);
    guest.arg("-kernel").arg(kernel).arg("-initrd").arg(image).args(["-append", BOOT]);
    let log = image.with_file_name("log.txt");
    let mut kept = File::create(&log).map_err(|error| vec![error.to_string()])?;
    let failed = |error: std::io::Error| vec![format!("the guest: {error}")];
    let mut guest = guest.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut verdicts = Verdicts::default();
    let console = guest.stdout.take().expect("it is piped");
    for line in BufReader::new(console).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(failed)?).trim_end().to_owned();
        writeln!(kept, "{line}").map_err(failed)?;
        verdicts.heard(&line);
        if verdicts.began {
            println!("{line}");
        }
    }
    guest.wait().map_err(failed)?;
    let seconds = began.elapsed().as_secs();
    println!(
        "vm: {} passed, {} failed, in {seconds} s",
        verdicts.passed.len(),
        verdicts.failed.len()
    );
    verdicts.told.iter().for_each(|it| println!("vm: {it}"));
    verdicts.problems().map_err(|mut problems| {
        problems.push(format!("all it said: {}", log.display()));
        problems
    })
}

/// What the guest has said of its scenarios: lines `== NAME` and `== NAME: STATUS`, and
/// `== end` when there are no more.
#[derive(Default)]
struct Verdicts {
    began: bool,
    ended: bool,
    passed: Vec<String>,
    failed: Vec<String>,
    /// What came of the cases, for each scenario that has some.
    told: Vec<String>,
    cases: Cases,
}

/// What a scenario has said of the numbered cases, each of which may have several parts.
#[derive(Default)]
struct Cases {
    parts: BTreeMap<u8, Vec<Part>>,
    /// What the harness said of each test.
    tests: BTreeMap<String, bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Right,
    Wrong,
    NotTried(String),
    /// What comes of this test.
    Test(String),
}

/// How many cases there are.
const CASES: usize = 94;

impl Cases {
    /// `VERDICT: case NUMBER (…): WHY, on RUNTIME`, and `test NAME ... ok`.
    fn heard(&mut self, line: &str) {
        if let Some((name, verdict)) =
            line.strip_prefix("test ").and_then(|it| it.split_once(" ... "))
        {
            self.tests.insert(name.to_owned(), verdict == "ok");
            return;
        }
        // In what a test says that fails it is behind other words.
        let verdicts = ["right", "wrong", "elsewhere", "not tried"];
        let found = verdicts.iter().find_map(|it| {
            let (_, rest) = line.split_once(&format!("{it}: case "))?;
            Some((*it, rest))
        });
        let Some((verdict, rest)) = found else { return };
        let Some((number, rest)) = rest.split_once(' ') else { return };
        let Ok(number) = number.parse() else { return };
        // As the test itself says it, with or without the runtime.
        let rest = rest.split(", on ").next().unwrap_or(rest);
        let why = rest.split_once("): ").map_or(rest, |(_, why)| why).to_owned();
        self.parts.entry(number).or_default().push(match verdict {
            "right" => Part::Right,
            "wrong" => Part::Wrong,
            "elsewhere" => Part::Test(why),
            _ => Part::NotTried(why),
        });
    }

    /// The total in words, and the numbers that are wrong or were never heard of.
    fn total(&self) -> (String, Vec<String>) {
        let (mut right, mut in_part, mut untried) = (0, Vec::new(), Vec::new());
        let mut bad = Vec::new();
        for (number, parts) in &self.parts {
            let verdict = |part: &Part| match part {
                Part::Right => Ok(true),
                Part::Wrong => Ok(false),
                Part::NotTried(why) => Err(why.clone()),
                Part::Test(name) => match self.tests.get(name) {
                    Some(is_right) => Ok(*is_right),
                    None => Err(format!("{name} was not run")),
                },
            };
            let verdicts: Vec<_> = parts.iter().map(verdict).collect();
            let lack = verdicts.iter().find_map(|it| it.as_ref().err());
            match lack {
                _ if verdicts.contains(&Ok(false)) => bad.push(format!("case {number} is wrong")),
                None => right += 1,
                Some(why) if verdicts.contains(&Ok(true)) => {
                    in_part.push(format!("{number} ({why})"));
                }
                Some(why) => untried.push(format!("{number} ({why})")),
            }
        }
        let list = |them: &[String]| match them {
            [] => "0".to_owned(),
            _ => format!("{}: {}", them.len(), them.join(", ")),
        };
        let told = format!(
            "{right} of {CASES} cases right, {} wrong, not tried in part {}, not tried {}",
            bad.len(),
            list(&in_part),
            list(&untried)
        );
        if self.parts.len() != CASES {
            bad.push(format!("{} of {CASES} cases were heard of", self.parts.len()));
        }
        (told, bad)
    }
}

impl Verdicts {
    fn heard(&mut self, line: &str) {
        let Some(said) = line.strip_prefix("== ") else { return self.cases.heard(line) };
        self.began = true;
        let Some((name, status)) = said.split_once(": ") else {
            self.ended |= said == "end";
            self.cases = Cases::default();
            return;
        };
        match status {
            "0" => self.passed.push(name.to_owned()),
            _ => self.failed.push(format!("{name}: status {status}")),
        }
        let cases = std::mem::take(&mut self.cases);
        // The scenarios that are for them must have them.
        if name.starts_with("cases") {
            let (told, bad) = cases.total();
            self.told.push(format!("{name}: {told}"));
            self.failed.extend(bad.into_iter().map(|it| format!("{name}: {it}")));
        }
    }

    fn problems(&self) -> Result<(), Vec<String>> {
        let mut problems = self.failed.clone();
        if !self.ended {
            problems.push("the guest did not come to its end".to_owned());
        } else if self.passed.is_empty() && self.failed.is_empty() {
            problems.push("no scenario has such a name".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(lines: &[&str]) -> Verdicts {
        let mut verdicts = Verdicts::default();
        lines.iter().for_each(|line| verdicts.heard(line));
        verdicts
    }

    #[test]
    fn a_guest_passes_when_it_came_to_its_end_and_all_passed() {
        let good = ["== unit", "talk", "== unit: 0", "== end"];
        verdicts(&good).problems().expect("all is well");
        assert_eq!(verdicts(&good[..3]).problems().expect_err("cut off").len(), 1);
        let bad = ["== unit: 1", "== root: 0", "== end"];
        assert_eq!(verdicts(&bad).problems().expect_err("one failed"), ["unit: status 1"]);
        verdicts(&["== end"]).problems().expect_err("nothing was tried");
        verdicts(&[]).problems().expect_err("it did not boot");
    }

    /// All cases in one part each, but for what is said of some.
    fn cases(others: &[(u8, &str)]) -> Verdicts {
        let mut lines = vec!["== cases".to_owned(), "test kills::all ... ok".to_owned()];
        lines.extend((1..=94).map(|number| {
            let other = others.iter().find(|(it, _)| *it == number);
            let verdict = other.map_or("right: case N (a word, standard), on one", |(_, it)| it);
            verdict.replace('N', &number.to_string())
        }));
        lines.extend(["== cases: 0", "== end"].map(str::to_owned));
        verdicts(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn a_case_that_is_wrong_or_missing_fails_and_one_that_was_not_tried_is_counted() {
        let good = cases(&[
            (34, "elsewhere: case N (killed, standard): kills::all, on one"),
            (33, "not tried: case N (frozen, standard): there is no loop, on one"),
        ]);
        good.problems().expect("none is wrong");
        assert_eq!(
            good.told,
            ["cases: 93 of 94 cases right, 0 wrong, not tried in part 0, \
              not tried 1: 33 (there is no loop)"]
        );
        let wrong = cases(&[(7, "on one: wrong: case N (a word, strict)")]);
        assert_eq!(wrong.problems().expect_err("one is"), ["cases: case 7 is wrong"]);
        let silent = cases(&[(7, "")]);
        let silent = silent.problems().expect_err("one is not there");
        assert_eq!(silent, ["cases: 93 of 94 cases were heard of"]);
        let elsewhere = cases(&[(7, "elsewhere: case N (killed, standard): kills::none")]);
        elsewhere.problems().expect("it is not wrong");
        assert!(elsewhere.told[0].ends_with("not tried 1: 7 (kills::none was not run)"));
    }
}
