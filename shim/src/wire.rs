//! What a supervisor and the helper say to each other. Both are built from this file.
//!
//! The supervisor writes a *script*: operations, one after the other, which the helper
//! carries out and does not understand. All policy is on the supervisor's side. The
//! helper answers with *records*, and takes one-byte *commands*.
//!
//! An operation is its number and the length of its operands (`u32` each), then the
//! operands: words of eight bytes, and texts and byte strings, which are a word that
//! holds the length, the bytes, and zeros up to the next multiple of eight. A text ends
//! with a zero, which its length counts, so that the kernel can read it where it lies.

/// The helper's end of the socket pair: records out, commands in.
pub const CONTROL: i32 = 3;
/// The script, a file that nobody can change any more.
pub const SCRIPT: i32 = 4;
/// The program that is to be run, if it was looked at before: another such file. Otherwise
/// the script once more, so that nothing else has the number.
pub const PROGRAM: i32 = 5;

/// Of [`Op::Write`]: the file need not be there.
pub const MAY_BE_MISSING: u64 = 1;
/// Of [`Op::Write`]: the kernel may find that the content does not fit what is there by then.
pub const MAY_NOT_FIT: u64 = 2;

macro_rules! numbers {
    ($(#[$about:meta])* $name:ident: $of:ty { $($(#[$doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($of)]
        pub enum $name { $($(#[$doc])* $variant = $number,)* }

        impl $name {
            /// The one with that number.
            pub const fn of(number: $of) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbers! {
    /// One operation. The operands stand in brackets; `w` is a word, `t` a text, `b` bytes.
    Op: u32 {
        /// A session and group of its own. \[\]
        Session = 1,
        /// Watches the supervisor, from which nothing may survive: \[w: its pid\]. Ends
        /// quietly if the supervisor is gone already.
        Lifeline = 2,
        /// A cgroup that the plugin is to enter: \[w: 1 for version 2, t: its folder\].
        Cgroup = 3,
        /// New namespaces: \[w: flags of unshare\].
        Unshare = 4,
        /// Writes an existing file: \[w: [`MAY_BE_MISSING`] and [`MAY_NOT_FIT`], t: path, b: content\].
        Write = 5,
        /// Becomes two: this one waits, and the child goes on as process 1 of the new
        /// PID namespace. \[\]
        Init = 6,
        /// `mount`: \[w: flags, t: source, t: target, t: type, t: data\].
        Mount = 7,
        /// Makes a folder its root: \[t: the folder\]. The old root is `/.old` in it.
        Pivot = 8,
        /// Makes a folder; one that is there will do: \[w: mode, t: path\].
        Folder = 9,
        /// Makes an empty file; one that is there will do: \[t: path\].
        File = 10,
        /// Makes a symbolic link: \[t: what it says, t: where\].
        Symlink = 11,
        /// Mounts something of the old root in the new one: \[w: attributes of
        /// `mount_setattr`, w: 1 with what is mounted below, t: source in the old root,
        /// t: target\]. The source's path has no symbolic link.
        Bind = 12,
        /// Lets go of the old root. \[\]
        Forget = 13,
        /// Becomes two: this one keeps what the child leaves behind, and the child goes on
        /// to become the plugin. \[\]
        Main = 14,
        /// Enters the cgroups, if that has not been done by [`Op::Main`]. \[\]
        Join = 15,
        /// `prlimit`: \[w: resource, w: soft, w: hard\].
        Limit = 16,
        /// Gives up every capability, for good. \[\]
        NoCapabilities = 17,
        /// No exec can win a privilege any more. \[\]
        NoNewPrivileges = 18,
        /// Begins a Landlock ruleset: \[w: file rights, w: network rights, w: scopes\].
        Landlock = 19,
        /// Allows something below a path: \[w: file rights, t: path\].
        Allow = 20,
        /// Puts the ruleset into force. \[\]
        Enforce = 21,
        /// Puts a filter of system calls into force: \[b: instructions\].
        Filter = 22,
        /// Changes the working directory: \[t: path\].
        Directory = 23,
        /// Becomes the program, with the arguments and the environment that the helper
        /// was given: \[t: path\].
        Exec = 24,
        /// Ends well, without becoming a program, and says so by [`Kind::TreeEmpty`]. \[\]
        Done = 25,
        /// Reports the version of Landlock, as [`Kind::Answer`]. \[\]
        AskLandlock = 26,
        /// A folder to remove when all is over, see [`Kind::Over`]: \[w: 1 if others use it,
        /// too, and the last one removes it, t: the folder\].
        Sweep = 27,
        /// Removes an empty folder: \[t: the folder\].
        Remove = 28,
        /// In a network namespace of its own: starts the loopback device, listens at a TCP
        /// port of 127.0.0.1, and hands the listening socket over as [`Kind::Listening`].
        /// \[w: port\]
        Listen = 29,
        /// Makes a folder in another that others make and remove, too: \[w: mode, t: that
        /// one, t: the folder\]. Those that are there will do.
        FolderIn = 30,
        /// Makes a file of what [`PROGRAM`] holds, to be read and executed: \[t: path\].
        /// There must be none yet.
        Copy = 31,
        /// As [`Op::Exec`], of what [`PROGRAM`] holds. \[\]
        ExecProgram = 32,
    }
}

numbers! {
    /// What a record says.
    Kind: u32 {
        /// The walls stand, and the program is about to be executed.
        Started = 1,
        /// Operation `a` failed with error `b`.
        SetupFailed = 2,
        /// The program has ended: wait status `a`; `words` are its user and system time
        /// in microseconds and its largest resident size in KiB.
        MainExited = 3,
        /// Nothing of the plugin is left; `a` processes had been left behind by its main
        /// one.
        TreeEmpty = 4,
        /// What was asked for: `a`.
        Answer = 5,
        /// The descriptor that comes with it listens.
        Listening = 6,
        /// The speaker would end now. It waits for the supervisor to shut the socket, or to
        /// be gone, and then removes the folders of [`Op::Sweep`]. Not said without those.
        Over = 7,
    }
}

numbers! {
    /// What a supervisor may demand of whoever keeps the plugin.
    Command: u8 {
        /// SIGTERM to the plugin, and SIGCONT, without which a stopped one would not act.
        Terminate = 0x54,
        /// The end of the plugin and of all that it has started.
        Kill = 0x4B,
    }
}

/// Bytes of one record.
pub const RECORD_BYTES: usize = 40;

/// One record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// A [`Kind`].
    pub kind: u32,
    /// See [`Kind`].
    pub a: u32,
    /// See [`Kind`].
    pub b: u32,
    /// See [`Kind`].
    pub words: [u64; 3],
}

impl Record {
    /// As it is sent.
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..4].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.a.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.b.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.words[0].to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.words[1].to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.words[2].to_ne_bytes());
        bytes
    }

    /// As it was sent.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        let half = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let word = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(eight)
        };
        Self { kind: half(0), a: half(4), b: half(8), words: [word(16), word(24), word(32)] }
    }
}
