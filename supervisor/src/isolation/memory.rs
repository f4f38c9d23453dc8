//! Files in memory that nobody can change any more: what is run from them is what was put
//! there.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use super::helper::LOW;

/// An empty one, to be written, to be [sealed], and then to be read or executed.
pub(crate) fn file(name: &CStr) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Says that it is meant to be executed; kernels before 6.3 do not know the word.
    let executable = MFdFlags::from_bits_retain(0x10);
    let made = match memfd_create(name, flags | executable) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        made => made,
    };
    Ok(made?.into())
}

/// The same, for good.
pub(crate) fn sealed(file: File) -> io::Result<OwnedFd> {
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    high(file.into())
}

/// The same descriptor under a number that is not low.
pub(super) fn high(fd: OwnedFd) -> io::Result<OwnedFd> {
    let mut copies = vec![fd];
    // Each copy has the lowest number that is free; those that are not wanted are closed
    // once one is.
    loop {
        match copies.pop() {
            Some(fd) if LOW <= fd.as_raw_fd() => return Ok(fd),
            Some(fd) => {
                let next = fd.as_fd().try_clone_to_owned()?;
                copies.extend([fd, next]);
            }
            None => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}
