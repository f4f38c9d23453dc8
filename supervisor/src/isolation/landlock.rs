//! The same view once more, as a Landlock ruleset: it holds also where a mount has a
//! hole, and it keeps signals and abstract sockets inside.

use plugbay_shim::Script;

use super::{
    Ability, Lack,
    view::{Access, Shown},
};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
/// What can be granted on something that is no folder.
const ON_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

/// The rights that a version of Landlock knows. What it does not know it does not
/// restrict, and a right that is unknown would be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    files: u64,
    network: u64,
    scopes: u64,
}

fn known(version: u32) -> Known {
    let files = match version {
        0 => 0,
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    // TCP by bind and connect; abstract sockets and signals.
    Known {
        files,
        network: if 4 <= version { 0b11 } else { 0 },
        scopes: if SCOPED_FROM <= version { 0b11 } else { 0 },
    }
}

/// From this version on it keeps abstract sockets and signals inside.
pub(super) const SCOPED_FROM: u32 = 6;

/// Whether it does.
pub(super) fn scopes(version: &Ability<u32>) -> Ability {
    match version {
        Ok(version) if SCOPED_FROM <= *version => Ok(()),
        Ok(version) => Err(Lack {
            cause: format!("Landlock has version {version} here, and {SCOPED_FROM} can do it"),
            fix: "boot a kernel from 6.12 on".to_owned(),
        }),
        Err(lack) => Err(lack.clone()),
    }
}

/// Writes the ruleset; `at_origin` where there is no view, and a thing is at its place in
/// the host. Where there is one, all that is in it may be read, so that is one rule.
pub(crate) fn write(
    view: &[Shown],
    version: u32,
    shuts_network: bool,
    at_origin: bool,
    script: &mut Script,
) {
    let known = known(version);
    script.landlock(known.files, if shuts_network { known.network } else { 0 }, known.scopes);
    if !at_origin {
        script.allow(READ & known.files, "/");
    }
    let is_said = |it: &&Shown| {
        at_origin || !matches!(it, Shown::Host { access: Access::Read, .. } | Shown::Processes)
    };
    for shown in view.iter().filter(is_said) {
        let (rights, is_folder) = match shown {
            Shown::Host { access: Access::Read, is_folder, .. } => (READ, *is_folder),
            Shown::Host { access: Access::Write, is_folder, .. } => (u64::MAX, *is_folder),
            // Where it cannot be mounted, the host's folder would be in its place.
            Shown::Memory { .. } if at_origin => continue,
            Shown::Memory { .. } => (u64::MAX, true),
            Shown::Device { .. } => (READ_FILE | WRITE_FILE | IOCTL_DEV, false),
            Shown::Processes => (READ_FILE | READ_DIR, true),
            // It is what it points at that counts; and ours may be read with all the rest.
            Shown::Link { .. } | Shown::Text { .. } | Shown::Program { .. } => continue,
        };
        let path = match shown {
            Shown::Host { from, .. } if at_origin => from,
            _ => shown.path(),
        };
        let rights = rights & known.files & if is_folder { u64::MAX } else { ON_FILES };
        script.allow(rights, &path.to_string_lossy());
    }
    script.enforce();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_knows_what_came_before_and_its_own() {
        let table = [
            (1, 0x1fff, 0, 0),
            (2, 0x3fff, 0, 0),
            (3, 0x7fff, 0, 0),
            (4, 0x7fff, 3, 0),
            (5, 0xffff, 3, 0),
            (6, 0xffff, 3, 3),
            (9, 0xffff, 3, 3),
        ];
        for (version, files, network, scopes) in table {
            assert_eq!(known(version), Known { files, network, scopes }, "{version}");
        }
    }
}
