//! What a manifest needs from the machine: a program, and an environment.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use super::{
    codes::Code,
    names,
    read::At,
    report::Problem,
    source::{Source, Span},
};

/// The variables every plugin gets, where they are set.
pub const ENV_ALWAYS: [&str; 6] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// What manifests may look at besides files. Tests bring their own.
#[derive(Clone)]
pub struct Surroundings {
    /// The supervisor's environment; variables that are not UTF-8 are left out.
    pub env: BTreeMap<String, String>,
    /// As in `[run.on.OS]`: `linux`, `macos`, `windows`.
    pub os: String,
}

impl Surroundings {
    /// Those of this process.
    pub fn here() -> Self {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { env, os: std::env::consts::OS.to_owned() }
    }

    /// Where the state of all plugins lies if nobody says: what systemd gives, or else
    /// what is usual for a user.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let has = |name: &str| self.env.get(name).filter(|it| it.starts_with('/'));
        // Several folders are separated by colons.
        let given = has("STATE_DIRECTORY").and_then(|it| it.split(':').next()).map(PathBuf::from);
        let usual = || has("XDG_STATE_HOME").map(|it| Path::new(it).join("plugbay"));
        let home = || has("HOME").map(|it| Path::new(it).join(".local/state/plugbay"));
        given.or_else(usual).or_else(home)
    }

    /// The environment of a plugin: what every plugin gets, and what is granted.
    pub(crate) fn environment<'a>(
        &self,
        granted: impl IntoIterator<Item = &'a str>,
    ) -> BTreeMap<String, String> {
        let names = ENV_ALWAYS.into_iter().chain(granted);
        names.filter_map(|name| self.env.get_key_value(name)).map(own).collect()
    }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// The environment has secrets, so it does not print.
impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("os", &self.os).finish_non_exhaustive()
    }
}

/// Why a command cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoProgram {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) label: String,
    pub(crate) help: String,
    /// The word that was probably meant.
    pub(crate) near: Option<String>,
}

/// The absolute path of a program. With a `/` it is relative to `dir`; without
/// one it is looked up in `PATH`, now and never again.
pub(crate) fn program(word: &str, dir: &Path, around: &Surroundings) -> Result<PathBuf, NoProgram> {
    if word.is_empty() || word.contains('\0') {
        return Err(nothing_named());
    }
    if word.contains('/') {
        return in_folder(word, dir);
    }
    let path = around.env.get("PATH").map_or("", String::as_str);
    let mut not_executable = false;
    // A relative entry of PATH would depend on where plugbay was started.
    for folder in path.split(':').filter(|it| it.starts_with('/')) {
        let candidate = Path::new(folder).join(word);
        match fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && is_executable(&meta) => return Ok(candidate),
            Ok(meta) if meta.is_file() => not_executable = true,
            _ => {}
        }
    }
    if not_executable {
        return Err(cannot_execute(word, format!("`{word}` is in PATH and is not executable")));
    }
    let help = if dir.join(word).is_file() {
        format!("there is such a file here: write `./{word}` to mean it")
    } else if word.contains(' ') {
        "a command is a list, not a shell line: write [\"program\", \"argument\"]".to_owned()
    } else {
        "install it, or write its path".to_owned()
    };
    Err(NoProgram {
        code: Code::PB0120,
        message: format!("there is no program `{word}` in PATH"),
        label: "without a `/`, it is looked up in PATH".into(),
        help,
        near: None,
    })
}

fn nothing_named() -> NoProgram {
    NoProgram {
        code: Code::PB0120,
        message: "the command names no program".into(),
        label: "expected the program first".into(),
        help: "write, for example: command = [\"bin/geocode\"]".into(),
        near: None,
    }
}

fn in_folder(word: &str, dir: &Path) -> Result<PathBuf, NoProgram> {
    let path = dir.join(word);
    let not_found = |help: String, near: Option<String>| NoProgram {
        code: Code::PB0120,
        message: format!("there is no program `{word}`"),
        label: "no such file, seen from the folder of this manifest".into(),
        help,
        near,
    };
    match fs::metadata(&path) {
        Err(err) if err.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(cannot_execute(word, format!("plugbay may not look at `{word}`")))
        }
        Err(_) => {
            let near = beside(&path, word);
            Err(match &near {
                Some(it) => not_found(format!("did you mean `{it}`?"), near),
                None if word.contains(' ') => not_found(
                    "a command is a list, not a shell line: write [\"program\", \"argument\"]"
                        .into(),
                    None,
                ),
                None => not_found("build it, or correct the path".into(), None),
            })
        }
        Ok(meta) if meta.is_dir() => {
            Err(not_found("this is a folder: name a file in it".into(), None))
        }
        Ok(meta) if !is_executable(&meta) => {
            Err(cannot_execute(word, format!("`{word}` is not executable")))
        }
        Ok(_) => Ok(std::path::absolute(&path).unwrap_or(path)),
    }
}

fn cannot_execute(word: &str, message: String) -> NoProgram {
    NoProgram {
        code: Code::PB0121,
        message,
        label: "the file has no permission to be executed".into(),
        help: format!(
            "run `chmod +x {word}`, or name the interpreter: command = [\"python3\", \"{word}\"]"
        ),
        near: None,
    }
}

/// The word with its last part replaced by what is there and has a near name.
pub(crate) fn beside(path: &Path, word: &str) -> Option<String> {
    const LOOKED_AT_MAX: usize = 200;
    let last = path.file_name()?.to_str()?;
    let start = word.strip_suffix(last)?;
    let entries = fs::read_dir(path.parent()?).ok()?;
    let mut files: Vec<String> = entries
        .take(LOOKED_AT_MAX)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    files.sort();
    names::near(last, files.iter().map(String::as_str)).map(|near| format!("{start}{near}"))
}

#[cfg(unix)]
fn is_executable(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    true
}

/// The whole command with its program made absolute.
pub(crate) fn command(
    words: &At<Vec<At<String>>>,
    dir: &Path,
    around: &Surroundings,
    source: &Source,
) -> Result<Vec<String>, Box<Problem>> {
    let at = |span: &Span, fault: NoProgram| {
        let problem = Problem::error(fault.code, fault.message).at(source, span, fault.label);
        Box::new(match fault.near {
            Some(near) => problem.near(source, span, &near),
            None => problem.help(fault.help),
        })
    };
    let Some(first) = words.first() else { return Err(at(&words.span, nothing_named())) };
    let path = program(first, dir, around).map_err(|fault| at(&first.span, fault))?;
    let arguments = words.iter().skip(1).map(|it| it.value.clone());
    match path.into_os_string().into_string() {
        Ok(path) => Ok(std::iter::once(path).chain(arguments).collect()),
        Err(_) => {
            let problem = Problem::error(Code::PB0120, "the program's path is not UTF-8");
            let problem = problem.at(source, &first.span, "it lies below an oddly named folder");
            Err(Box::new(problem.help("move the plugin to a folder with a plain name")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(path: &str) -> Surroundings {
        let env = [("PATH", path), ("HOME", "/home/ada"), ("TOKEN", "x")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Surroundings { env, os: "linux".to_owned() }
    }

    #[test]
    fn the_environment_has_what_is_listed_and_no_more() {
        let plain = around("/bin").environment([]);
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["HOME", "PATH"]);
        let granted = around("/bin").environment(["TOKEN", "UNSET"]);
        assert_eq!(granted.keys().collect::<Vec<_>>(), ["HOME", "PATH", "TOKEN"]);
    }

    #[test]
    fn surroundings_do_not_print_the_environment() {
        let text = format!("{:?}", around("/secret-path"));
        assert!(!text.contains("secret-path"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn programs_are_looked_up_once_and_never_relative_to_path() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for (name, mode) in [("run", 0o755), ("plain", 0o644)] {
            fs::write(dir.join(name), "#!/bin/true\n").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = format!("relative:.::{}", dir.display());
        let code = |word: &str| program(word, dir, &around(&path)).map_err(|it| it.code);
        assert_eq!(code("run"), Ok(dir.join("run")));
        assert_eq!(code("./run"), Ok(dir.join("run")));
        assert_eq!(code("plain"), Err(Code::PB0121));
        assert_eq!(code("./plain"), Err(Code::PB0121));
        assert_eq!(code("./gone"), Err(Code::PB0120));
        assert_eq!(code("gone"), Err(Code::PB0120));
        assert_eq!(code(""), Err(Code::PB0120));
        assert_eq!(code("./"), Err(Code::PB0120));
        let here = program("run", dir, &around("relative")).unwrap_err();
        assert_eq!(here.help, "there is such a file here: write `./run` to mean it");
        let near = program("./rnu", dir, &around("")).unwrap_err();
        assert_eq!(near.near.as_deref(), Some("./run"));
    }
}
