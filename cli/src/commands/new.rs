//! `plugbay new`: a plugin that works at once.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    args::{Lang, New},
    exit::Exit,
    render::{GOOD, PLAIN, Screen, Status},
    trouble::{Outcome, Trouble},
};

/// One file of a template: real, apart from the name of the plugin.
struct File {
    path: &'static str,
    text: &'static str,
    is_program: bool,
}

/// What templates have where the plugin's name will be.
const NAME: &str = "plugin-name";
const RUST: [File; 4] = [
    file("Cargo.toml", include_str!("../../templates/rust/Cargo.toml.in")),
    file("plugin.toml", include_str!("../../templates/rust/plugin.toml")),
    file("src/main.rs", include_str!("../../templates/rust/main.rs")),
    file(".gitignore", "/target\n"),
];
const PYTHON: [File; 2] = [
    file("plugin.toml", include_str!("../../templates/python/plugin.toml")),
    File {
        is_program: true,
        ..file("plugin-name.py", include_str!("../../templates/python/plugin.py"))
    },
];

const fn file(path: &'static str, text: &'static str) -> File {
    File { path, text, is_program: false }
}

pub(super) fn new(args: &New, screen: &Screen) -> Outcome {
    let name = args.name.as_str();
    check(name, args.lang).map_err(|(why, help)| {
        let trouble = Trouble::usage(format!("{name:?} cannot be a plugin's name: {why}"));
        help.into_iter().fold(trouble, Trouble::help)
    })?;
    if args.sdk_path.is_some() && args.lang != Lang::Rust {
        return Err(Trouble::usage(
            "--sdk-path is for --lang rust: the Python plugin needs no SDK",
        ));
    }
    let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from(name));
    let shown = dir.display().to_string();
    let is_taken = match fs::read_dir(&dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    if is_taken {
        return Err(Trouble::new(Exit::Bad, format!("`{shown}` is there already"))
            .note("nothing was written: `plugbay new` never overwrites")
            .help("choose another name, or another folder with --dir"));
    }
    let sdk = sdk(args.sdk_path.as_deref())?;
    let files: &[File] = if args.lang == Lang::Rust { &RUST } else { &PYTHON };
    for file in files {
        let fill = |text: &str| text.replace(NAME, name).replace("\"SDK\"", &sdk);
        let path = dir.join(fill(file.path));
        write(&path, &fill(file.text), file.is_program).map_err(|error| {
            Trouble::new(Exit::Bad, format!("cannot write `{}`: {error}", path.display()))
        })?;
    }
    screen.status(&Status::new(GOOD, "Created", format!("plugin {name} in {shown}/")));
    let shown = if shown.contains(' ') { format!("'{shown}'") } else { shown };
    let build = match args.lang {
        Lang::Rust => vec![
            format!("cd {shown} && cargo test && cargo build"),
            "plugbay call greet who=Ada".into(),
        ],
        Lang::Python => vec![format!("cd {shown} && plugbay call greet who=Ada")],
    };
    for step in build {
        screen.status(&Status::new(PLAIN, "Next", step));
    }
    if args.lang == Lang::Rust && args.sdk_path.is_none() {
        let note =
            "the SDK comes from crates.io; until it is published, name its folder with --sdk-path";
        screen.status(&Status::new(PLAIN, "Note", note.to_owned()));
    }
    Ok(Exit::Fine)
}

/// Whether the name can be a folder, a crate and the last part of an id.
fn check(name: &str, lang: Lang) -> Result<(), (String, Option<String>)> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let bad = name.chars().find(|&c| !is_inner(c));
    let fault = match (name.chars().next(), bad) {
        (None, _) => "expected a letter, found nothing".to_owned(),
        (_, Some(c)) => format!("expected a to z, digits and `-`, found {c:?}"),
        (Some(c), _) if !c.is_ascii_lowercase() => format!("expected a letter first, found {c:?}"),
        _ if 40 < name.len() => format!("expected at most 40 characters, found {}", name.len()),
        _ if name.ends_with('-') => "expected a letter or a digit last, found '-'".to_owned(),
        _ if lang == Lang::Rust && NO_CRATE.contains(&name) => {
            "the name means something to Rust".to_owned()
        }
        _ => return Ok(()),
    };
    let kept = name.to_ascii_lowercase().replace(['_', ' ', '.'], "-");
    let kept = kept.trim_start_matches(|c: char| !c.is_ascii_lowercase()).trim_end_matches('-');
    let near = Some(kept).filter(|it| *it != name && check(it, lang).is_ok());
    Err((fault, near.map(|it| format!("did you mean `{it}`?"))))
}

/// Names that cargo refuses for a crate with a program in it.
const NO_CRATE: [&str; 54] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "type",
    "unsafe",
    "use",
    "where",
    "while",
];

/// The SDK as a dependency.
fn sdk(path: Option<&Path>) -> Outcome<String> {
    let Some(path) = path else {
        return Ok(format!("{:?}", env!("CARGO_PKG_VERSION")));
    };
    let full = fs::canonicalize(path).ok().filter(|it| it.join("Cargo.toml").is_file());
    let full = full.as_deref().and_then(Path::to_str).ok_or_else(|| {
        let message = format!("--sdk-path: there is no crate in `{}`", path.display());
        Trouble::new(Exit::NotFound, message)
            .help("name the folder sdk-rust of plugbay's repository")
    })?;
    Ok(format!("{{ path = {full:?} }}"))
}

fn write(path: &Path, text: &str, is_program: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::File::create_new(path)?;
    file.write_all(text.as_bytes())?;
    if is_program {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata()?.permissions().mode();
        // Whoever may read it may run it.
        file.set_permissions(fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_serve_as_folder_crate_and_id() {
        for name in ["a", "my-plugin", "notes2"] {
            assert_eq!(check(name, Lang::Rust), Ok(()), "{name}");
        }
        #[rustfmt::skip]
        let table = [
            ("",          "found nothing",      None),
            ("My_Plugin", "found 'M'",          Some("did you mean `my-plugin`?")),
            ("2fa",       "a letter first",     Some("did you mean `fa`?")),
            ("a/b",       "found '/'",          None),
            ("../x",      "found '.'",          Some("did you mean `x`?")),
            ("-x",        "a letter first",     Some("did you mean `x`?")),
            ("x-",        "last",               Some("did you mean `x`?")),
            ("é",         "found 'é'",          None),
            ("test",      "to Rust",            None),
        ];
        for (name, why, help) in table {
            let (fault, near) = check(name, Lang::Rust).unwrap_err();
            assert!(fault.contains(why), "{name}: {fault}");
            assert_eq!(near.as_deref(), help, "{name}");
        }
        assert!(check(&"x".repeat(41), Lang::Python).is_err());
        assert_eq!(check("test", Lang::Python), Ok(()));
    }

    /// The template and the tutorial are one program; only what it is called differs.
    #[test]
    fn the_python_template_is_the_plugin_of_the_tutorial() {
        let tutorial = include_str!("../../../sdk-spec/tutorial/greet.py");
        let template = PYTHON[1].text.replace(NAME, "greet");
        assert_eq!(template, tutorial);
    }
}
