//! Paths that came from somebody else, kept inside a folder.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

/// The real path of `asked` below `root`, which is a real path itself.
///
/// Neither `..` nor an absolute path nor a symbolic link leads out: the path is
/// resolved first, and must still be below the folder then. What lies outside is
/// not told from what does not exist.
///
/// # Errors
/// It does not exist below the folder, or cannot be looked at.
pub(crate) fn resolve(root: &Path, asked: &Path) -> io::Result<PathBuf> {
    let nothing_there = || {
        let name = asked.display();
        io::Error::new(io::ErrorKind::NotFound, format!("{name} is not in the folder"))
    };
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !asked.components().all(inside) {
        return Err(nothing_there());
    }
    match root.join(asked).canonicalize() {
        Ok(real) if real.starts_with(root) => Ok(real),
        _ => Err(nothing_there()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_way_leads_out() {
        let box_ = tempfile::tempdir().unwrap();
        let base = box_.path().canonicalize().unwrap();
        let root = base.join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("sub/in.txt"), "in").unwrap();
        fs::write(base.join("out.txt"), "out").unwrap();
        std::os::unix::fs::symlink(base.join("out.txt"), root.join("file-link")).unwrap();
        std::os::unix::fs::symlink(&base, root.join("folder-link")).unwrap();
        std::os::unix::fs::symlink("sub/in.txt", root.join("good-link")).unwrap();

        for inside in ["sub/in.txt", "./sub/./in.txt", "good-link", "sub"] {
            assert!(resolve(&root, Path::new(inside)).unwrap().starts_with(&root), "{inside}");
        }
        let absolute = base.join("out.txt");
        for outside in [
            "../out.txt",
            "sub/../../out.txt",
            "file-link",
            "folder-link/out.txt",
            absolute.to_str().unwrap(),
            "nothing",
        ] {
            let error = resolve(&root, Path::new(outside)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{outside}");
            assert!(error.to_string().ends_with("is not in the folder"), "{error}");
        }
    }
}
