//! What a program needs to run beside itself: the interpreter of a script, and the library
//! of an interpreter that is not the system's.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// A script whose interpreter is a script whose interpreter…
const DEPTH_MAX: usize = 4;
/// As much of a first line as the kernel reads.
const LINE_MAX: usize = 256;
/// What shows that `lib` beside `bin` is an interpreter's own library, and not just
/// anybody's.
const LIBRARIES: &[&str] = &["node_modules/npm", "ruby", "perl5", "jvm"];

/// All that is to be shown for a program. `search` is the PATH it will have, and `head` the
/// program's start if that is known better than its file says.
pub(crate) fn needs(program: &Path, search: &str, mut head: Option<&[u8]>) -> Vec<PathBuf> {
    let mut needs = Vec::new();
    let mut next = Some(program.to_owned());
    for _ in 0..DEPTH_MAX {
        let Some(path) = next.take() else { break };
        let Ok(real) = fs::canonicalize(&path) else { break };
        for it in [&path, &real] {
            needs.extend(library(it));
            needs.extend(managed(it));
        }
        next = match head.take() {
            Some(head) => interpreter(head, search),
            None => start(&real).and_then(|head| interpreter(&head, search)),
        };
        needs.extend([path, real]);
    }
    needs.sort();
    needs.dedup();
    needs
}

/// Of an interpreter in `PREFIX/bin`: what belongs to it of `PREFIX`, which may be
/// somebody's home.
fn library(program: &Path) -> Vec<PathBuf> {
    let prefix = program.parent().filter(|it| it.ends_with("bin")).and_then(Path::parent);
    let Some(prefix) = prefix else { return Vec::new() };
    let (lib, environment) = (prefix.join("lib"), prefix.join("pyvenv.cfg"));
    let is_python = || {
        let mut entries = fs::read_dir(&lib).into_iter().flatten().flatten();
        entries.any(|it| {
            it.file_name().to_string_lossy().starts_with("python3")
                && it.path().join("os.py").exists()
        })
    };
    let is_library = LIBRARIES.iter().any(|it| lib.join(it).exists()) || is_python();
    if !is_library && !environment.exists() {
        return Vec::new();
    }
    [prefix.join("bin"), lib, environment].into_iter().filter(|it| it.exists()).collect()
}

/// Of a program in `ROOT/shims`: the manager of versions that it asks.
fn managed(program: &Path) -> Option<PathBuf> {
    let root = program.parent().filter(|it| it.ends_with("shims"))?.parent()?;
    let is_manager = ["versions", "installs"].iter().any(|it| root.join(it).is_dir());
    is_manager.then(|| root.to_owned())
}

fn start(file: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    fs::File::open(file).ok()?.take(LINE_MAX as u64).read_to_end(&mut start).ok()?;
    Some(start)
}

/// Who runs a script, by its first line.
fn interpreter(start: &[u8], search: &str) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(first.into());
    }
    // `env -S python3 -u`, `env A=b python3`.
    let name = words.find(|it| !it.starts_with('-') && !it.contains('='))?;
    let folders = search.split(':').filter(|it| it.starts_with('/'));
    folders.map(|it| Path::new(it).join(name)).find(|it| it.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files and folders, and below which all of it is.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace("ROOT", root.path().to_str().unwrap())).unwrap();
        }
        root
    }

    fn shown(root: &tempfile::TempDir, program: &str, search: &str) -> Vec<String> {
        let at = root.path();
        let search = format!("relative:{}", at.join(search).display());
        let needs = needs(&at.join(program), &search, None);
        let text = |it: &PathBuf| it.strip_prefix(at).unwrap().display().to_string();
        needs.iter().map(text).collect()
    }

    #[test]
    fn a_program_needs_itself() {
        let root = tree(&[("bin/x", "\x7fELF"), ("lib/secret", ""), ("key", "")]);
        assert_eq!(shown(&root, "bin/x", "bin"), ["bin/x"]);
        assert_eq!(shown(&root, "bin/gone", "bin"), [""; 0]);
    }

    #[test]
    fn a_script_needs_its_interpreter_and_that_its_library() {
        let python = [("py/bin/python3", ""), ("py/lib/python3.11/os.py", ""), ("py/key", "")];
        let mut files = python.to_vec();
        files.push(("plugin/run", "#!/usr/bin/env -S python3 -u\n"));
        files.push(("plugin/direct", "#!ROOT/py/bin/python3\n"));
        let root = tree(&files);
        let all = ["plugin/run", "py/bin", "py/bin/python3", "py/lib"];
        assert_eq!(shown(&root, "plugin/run", "py/bin"), all);
        assert_eq!(shown(&root, "plugin/direct", "none")[1..], all[1..]);
        assert_eq!(shown(&root, "plugin/run", "none"), ["plugin/run"]);
    }

    #[test]
    fn a_manager_of_versions_is_needed_whole() {
        let root = tree(&[("m/shims/python3", "#!/bin/sh\n"), ("m/versions/3/bin/python3", "")]);
        let needs = needs(&root.path().join("m/shims/python3"), "", None);
        assert!(needs.contains(&root.path().join("m")), "{needs:?}");
        assert!(needs.contains(&"/bin/sh".into()), "{needs:?}");
        let root = tree(&[("home/shims/python3", ""), ("home/key", "")]);
        assert_eq!(shown(&root, "home/shims/python3", ""), ["home/shims/python3"]);
    }

    #[test]
    fn scripts_that_run_each_other_come_to_an_end() {
        let root = tree(&[("a", "#!ROOT/b\n"), ("b", "#!ROOT/a\n")]);
        assert_eq!(shown(&root, "a", ""), ["a", "b"]);
    }
}
