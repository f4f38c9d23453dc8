//! The other end of the floor: this same program, started again.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
};

use crate::frame::{Answer, Block, Call, Inbox, put_end};

/// The first argument of a child.
pub(crate) const CHILD: &str = "child-floor";

/// What a child does, as its second argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Returns 64 bytes for 64 bytes.
    Raw,
    /// Answers framed calls; what arrives together is answered together.
    Framed,
    /// Returns what it is sent, `u64` of length first, once it has it whole.
    Echo,
    /// Writes one byte and waits for the end of its stdin.
    FirstByte,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Framed => "framed",
            Self::Echo => "echo",
            Self::FirstByte => "first-byte",
        }
    }
}

/// Runs the child that the arguments ask for, if they do.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != CHILD {
        return None;
    }
    let role = args.next().unwrap_or_default();
    let roles = [Role::Raw, Role::Framed, Role::Echo, Role::FirstByte];
    let Some(role) = roles.into_iter().find(|known| known.word() == role) else {
        eprintln!("plugbay-bench: no child {role:?}");
        return Some(ExitCode::from(2));
    };
    let done = match role {
        Role::Raw => raw(),
        Role::Framed => framed(),
        Role::Echo => echo(),
        Role::FirstByte => first_byte(),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plugbay-bench: child {}: {error:#}", role.word());
            ExitCode::FAILURE
        }
    })
}

/// A handle on stdin or stdout without a buffer in between.
fn unbuffered(fd: impl std::os::fd::AsFd) -> io::Result<std::fs::File> {
    Ok(fd.as_fd().try_clone_to_owned()?.into())
}

/// Bytes of one raw message.
pub(crate) const RAW: usize = 64;

fn raw() -> anyhow::Result<()> {
    let (mut from, mut to) = (unbuffered(io::stdin())?, unbuffered(io::stdout())?);
    let mut bytes = [0; RAW];
    loop {
        match from.read_exact(&mut bytes) {
            Ok(()) => to.write_all(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn framed() -> anyhow::Result<()> {
    let (mut from, mut to) = (unbuffered(io::stdin())?, unbuffered(io::stdout())?);
    let mut inbox = Inbox::new(64 << 10);
    let mut answers = Vec::new();
    while inbox.fill(&mut from)? {
        while let Some(frame) = inbox.next() {
            let call: Call<'_> = rmp_serde::from_slice(frame.body)?;
            anyhow::ensure!(call.name == "add", "no tool {:?}", call.name);
            let sum = call.args.a.wrapping_add(call.args.b);
            let block = Block { kind: "text".into(), text: sum.to_string() };
            put_end(&mut answers, frame.id, &Answer { content: [block], data: sum })?;
        }
        to.write_all(&answers)?;
        answers.clear();
    }
    Ok(())
}

fn echo() -> anyhow::Result<()> {
    let (mut from, mut to) = (unbuffered(io::stdin())?, unbuffered(io::stdout())?);
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::try_from(u64::from_be_bytes(len))?];
    loop {
        match from.read_exact(&mut bytes) {
            Ok(()) => to.write_all(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn first_byte() -> anyhow::Result<()> {
    unbuffered(io::stdout())?.write_all(b"!")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
