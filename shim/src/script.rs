//! Writing a script.

use crate::wire::{MAY_BE_MISSING, MAY_NOT_FIT, Op};

/// A script, and what each of its operations is for, in words for an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    bytes: Vec<u8>,
    steps: Vec<String>,
}

/// What is mounted at a place, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounted<'a> {
    /// Flags of `mount`.
    pub flags: u64,
    /// The type of the file system, or nothing.
    pub kind: &'a str,
    /// Its options.
    pub options: &'a str,
}

/// An operand.
enum Operand<'a> {
    Word(u64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

use Operand::{Bytes, Text, Word};

impl Script {
    /// As the helper reads it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What an operation is for, to say what failed.
    pub fn step(&self, number: u32) -> Option<&str> {
        self.steps.get(usize::try_from(number).ok()?).map(String::as_str)
    }

    /// [`Op::Session`].
    pub fn session(&mut self) {
        self.add(Op::Session, "begin a session", &[]);
    }

    /// [`Op::Lifeline`].
    pub fn lifeline(&mut self, supervisor: u32) {
        self.add(Op::Lifeline, "watch the supervisor", &[Word(supervisor.into())]);
    }

    /// [`Op::Cgroup`].
    pub fn cgroup(&mut self, is_v2: bool, folder: &str) {
        let operands = [Word(is_v2.into()), Text(folder)];
        self.add(Op::Cgroup, format!("open the cgroup {folder}"), &operands);
    }

    /// [`Op::Sweep`].
    pub fn sweep(&mut self, is_shared: bool, folder: &str) {
        let operands = [Word(is_shared.into()), Text(folder)];
        self.add(Op::Sweep, format!("remember {folder}"), &operands);
    }

    /// [`Op::Unshare`]; `what` names the namespaces.
    pub fn unshare(&mut self, flags: u64, what: &str) {
        self.add(Op::Unshare, format!("make {what}"), &[Word(flags)]);
    }

    /// [`Op::Write`].
    pub fn write(&mut self, path: &str, content: &str) {
        self.write_unless(0, path, content);
    }

    /// The same, where a kernel may not have the file.
    pub fn write_if_there(&mut self, path: &str, content: &str) {
        self.write_unless(MAY_BE_MISSING, path, content);
    }

    /// The same, where a kernel may also find that it does not fit what is there by then.
    pub fn write_if_it_fits(&mut self, may_be_missing: bool, path: &str, content: &str) {
        let missing = if may_be_missing { MAY_BE_MISSING } else { 0 };
        self.write_unless(MAY_NOT_FIT | missing, path, content);
    }

    fn write_unless(&mut self, flags: u64, path: &str, content: &str) {
        let operands = [Word(flags), Text(path), Bytes(content.as_bytes())];
        self.add(Op::Write, format!("write {path}"), &operands);
    }

    /// [`Op::Remove`].
    pub fn remove(&mut self, folder: &str) {
        self.add(Op::Remove, format!("remove {folder}"), &[Text(folder)]);
    }

    /// [`Op::Listen`].
    pub fn listen(&mut self, port: u16) {
        self.add(
            Op::Listen,
            format!("listen at port {port} of its own network"),
            &[Word(port.into())],
        );
    }

    /// [`Op::Init`].
    pub fn init(&mut self) {
        self.add(Op::Init, "become process 1", &[]);
    }

    /// [`Op::Mount`].
    pub fn mount(&mut self, at: &str, it: Mounted<'_>) {
        let what = match it.kind {
            "" => format!("change the mount at {at}"),
            kind => format!("mount {kind} at {at}"),
        };
        let source = if it.kind.is_empty() { "none" } else { it.kind };
        let operands = [Word(it.flags), Text(source), Text(at), Text(it.kind), Text(it.options)];
        self.add(Op::Mount, what, &operands);
    }

    /// [`Op::Pivot`].
    pub fn pivot(&mut self, folder: &str) {
        self.add(Op::Pivot, "change the root", &[Text(folder)]);
    }

    /// [`Op::Folder`].
    pub fn folder(&mut self, mode: u32, path: &str) {
        let what = format!("make the folder {path}");
        self.add(Op::Folder, what, &[Word(mode.into()), Text(path)]);
    }

    /// [`Op::FolderIn`].
    pub fn folder_in(&mut self, mode: u32, above: &str, path: &str) {
        let operands = [Word(mode.into()), Text(above), Text(path)];
        self.add(Op::FolderIn, format!("make the folder {path}"), &operands);
    }

    /// [`Op::File`].
    pub fn file(&mut self, path: &str) {
        self.add(Op::File, format!("make the file {path}"), &[Text(path)]);
    }

    /// [`Op::Symlink`].
    pub fn symlink(&mut self, says: &str, path: &str) {
        self.add(Op::Symlink, format!("make the link {path}"), &[Text(says), Text(path)]);
    }

    /// [`Op::Bind`].
    pub fn bind(&mut self, attributes: u64, with_below: bool, of: &str, at: &str) {
        let operands = [Word(attributes), Word(with_below.into()), Text(of), Text(at)];
        self.add(Op::Bind, format!("show {of}"), &operands);
    }

    /// [`Op::Forget`].
    pub fn forget(&mut self) {
        self.add(Op::Forget, "let go of the old root", &[]);
    }

    /// [`Op::Main`].
    pub fn main(&mut self) {
        self.add(Op::Main, "fork", &[]);
    }

    /// [`Op::Join`].
    pub fn join(&mut self) {
        self.add(Op::Join, "enter the cgroups", &[]);
    }

    /// [`Op::Limit`]; `what` names the resource.
    pub fn limit(&mut self, resource: u64, soft: u64, hard: u64, what: &str) {
        let operands = [Word(resource), Word(soft), Word(hard)];
        self.add(Op::Limit, format!("limit {what}"), &operands);
    }

    /// [`Op::NoCapabilities`].
    pub fn no_capabilities(&mut self) {
        self.add(Op::NoCapabilities, "give up capabilities", &[]);
    }

    /// [`Op::NoNewPrivileges`].
    pub fn no_new_privileges(&mut self) {
        self.add(Op::NoNewPrivileges, "rule out new privileges", &[]);
    }

    /// [`Op::Landlock`].
    pub fn landlock(&mut self, files: u64, network: u64, scopes: u64) {
        let operands = [Word(files), Word(network), Word(scopes)];
        self.add(Op::Landlock, "begin a Landlock ruleset", &operands);
    }

    /// [`Op::Allow`].
    pub fn allow(&mut self, rights: u64, below: &str) {
        self.add(Op::Allow, format!("allow access to {below}"), &[Word(rights), Text(below)]);
    }

    /// [`Op::Enforce`].
    pub fn enforce(&mut self) {
        self.add(Op::Enforce, "enforce the Landlock ruleset", &[]);
    }

    /// [`Op::Filter`]: instructions of classic BPF, eight bytes each.
    pub fn filter(&mut self, instructions: &[u8]) {
        self.add(Op::Filter, "filter system calls", &[Bytes(instructions)]);
    }

    /// [`Op::Directory`].
    pub fn directory(&mut self, path: &str) {
        self.add(Op::Directory, format!("enter {path}"), &[Text(path)]);
    }

    /// [`Op::Copy`].
    pub fn copy(&mut self, path: &str) {
        self.add(Op::Copy, format!("put the program at {path}"), &[Text(path)]);
    }

    /// [`Op::ExecProgram`]; `name` is what it is called.
    pub fn exec_program(&mut self, name: &str) {
        self.add(Op::ExecProgram, format!("execute {name}"), &[]);
    }

    /// [`Op::Exec`].
    pub fn exec(&mut self, path: &str) {
        self.add(Op::Exec, format!("execute {path}"), &[Text(path)]);
    }

    /// [`Op::Done`].
    pub fn done(&mut self) {
        self.add(Op::Done, "end", &[]);
    }

    /// [`Op::AskLandlock`].
    pub fn ask_landlock(&mut self) {
        self.add(Op::AskLandlock, "ask for Landlock", &[]);
    }

    fn add(&mut self, op: Op, what: impl Into<String>, operands: &[Operand<'_>]) {
        self.bytes.extend((op as u32).to_ne_bytes());
        let length_at = self.bytes.len();
        self.bytes.extend([0; 4]);
        for operand in operands {
            match *operand {
                Word(word) => self.bytes.extend(word.to_ne_bytes()),
                Text(text) => self.counted(text.as_bytes(), &[0]),
                Bytes(bytes) => self.counted(bytes, &[]),
            }
        }
        let length = self.bytes.len() - length_at - 4;
        // A script has kilobytes; one of four gigabytes would be cut and then refused.
        let length = u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes();
        self.bytes[length_at..length_at + 4].copy_from_slice(&length);
        self.steps.push(what.into());
    }

    fn counted(&mut self, bytes: &[u8], end: &[u8]) {
        self.bytes.extend(((bytes.len() + end.len()) as u64).to_ne_bytes());
        self.bytes.extend(bytes);
        self.bytes.extend(end);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_its_number_its_length_and_padded_operands() {
        let mut script = Script::default();
        script.folder(0o755, "/abcdefg");
        let mut expected = Vec::new();
        expected.extend(9_u32.to_ne_bytes());
        expected.extend(32_u32.to_ne_bytes());
        expected.extend(0o755_u64.to_ne_bytes());
        expected.extend(9_u64.to_ne_bytes());
        expected.extend(b"/abcdefg\0\0\0\0\0\0\0\0");
        assert_eq!(script.bytes(), expected);
        assert_eq!(script.step(0), Some("make the folder /abcdefg"));
        assert_eq!(script.step(1), None);
    }
}
