//! Compiles the helper with the compiler that compiles this crate.
//!
//! It is a program and no library, and Cargo has no stable way to hand one crate's
//! program to another, so the compiler is called by hand. The helper needs no crate
//! but `core`, and a linker.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn main() {
    for source in ["src/wire.rs", "src/helper"] {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = PathBuf::from(variable("OUT_DIR")).join("helper");
    let (system, machine) = (variable("CARGO_CFG_TARGET_OS"), variable("CARGO_CFG_TARGET_ARCH"));
    let is_known = system == "linux" && ["x86_64", "aarch64"].iter().any(|it| machine == *it);
    match is_known {
        true => compile(&out),
        // Empty says that there is none.
        false => fs::write(&out, "").expect("the build folder can be written"),
    }
}

fn compile(out: &Path) {
    let usual = Linker::Usual.compile(out);
    if usual.status.success() {
        return;
    }
    // Without a linker for another machine, as for a mere check. The compiler brings one.
    let own = Linker::Own.compile(out);
    let said = [usual, own.clone()].map(|it| String::from_utf8_lossy(&it.stderr).into_owned());
    assert!(own.status.success(), "the helper does not compile:\n{}", said.join("\n"));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Linker {
    /// The one that links everything else.
    Usual,
    /// The compiler's own.
    Own,
}

impl Linker {
    fn compile(self, out: &Path) -> Output {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc.args(["--edition=2024", "--crate-name=plugbay_shim_helper", "--crate-type=bin"]);
        rustc.arg("--target").arg(variable("TARGET"));
        rustc.args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-Ccodegen-units=1"]);
        rustc.args(["-Cdebuginfo=0", "-Coverflow-checks=no", "-Clto=fat", "-Cembed-bitcode=yes"]);
        // Static and at a fixed place: the kernel maps a few pages and starts it, without a
        // loader and without relocations.
        rustc.args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"]);
        let words = ["--build-id=none", "noseparate-code", "norelro", "noexecstack"];
        let words = words.map(|it| if it.starts_with('-') { [it, ""] } else { ["-z", it] });
        for word in words.as_flattened().iter().filter(|it| !it.is_empty()) {
            match self {
                Self::Usual => rustc.arg(format!("-Clink-arg=-Wl,{word}")),
                Self::Own => rustc.arg(format!("-Clink-arg={word}")),
            };
        }
        match self {
            Self::Own => {
                rustc.args(["-Clinker=rust-lld", "-Clinker-flavor=ld.lld", "-Clink-arg=-static"]);
            }
            Self::Usual => {
                for word in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
                    rustc.arg(format!("-Clink-arg={word}"));
                }
                if variable("CARGO_CFG_TARGET_ENV") == "musl" {
                    // Or the compiler adds a C library of its own.
                    rustc.arg("-Clink-self-contained=no");
                }
                if let Some(linker) = env::var_os("RUSTC_LINKER") {
                    let mut word = OsString::from("-Clinker=");
                    word.push(linker);
                    rustc.arg(word);
                }
            }
        }
        rustc.arg("-o").arg(out).arg("src/helper/main.rs");
        rustc.output().expect("the compiler that compiles this can be started")
    }
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("Cargo sets {name}"))
}
