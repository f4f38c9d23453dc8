//! System calls: which a plugin may make, as a program of classic BPF.
//!
//! The kernel runs a filter once for each number when it is installed, to learn which
//! calls are always allowed. So what counts is how long the way to one number is: the
//! numbers become ranges, and the ranges a binary search.

use nix::libc;

use super::syscalls::{ABSENT, ALLOWED, ALLOWED_OLD, DENIED};
use crate::plan::{Level, Network};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    /// It fails with this error.
    Fail(i32),
    /// The argument decides.
    Look(&'static Look),
    /// A socket within the machine, or one of TCP.
    Connection,
}

/// A look at one argument, of which only the lower half counts.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    argument: u32,
    rule: Rule,
    /// The error where the rule does not hold.
    error: i32,
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    /// It is one of these.
    OneOf(&'static [u32]),
    /// It is none of these.
    NoneOf(&'static [u32]),
    /// None of these bits is set.
    Without(u32),
}

const CLONE: Look = Look {
    argument: 0,
    // New namespaces, and children that are not ours to reap.
    rule: Rule::Without(
        (libc::CLONE_NEWNS
            | libc::CLONE_NEWCGROUP
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_PARENT)
            .cast_unsigned(),
    ),
    error: libc::EPERM,
};
/// Only within the machine, by a path or between its own processes.
const LOCAL_SOCKET: Look =
    Look { argument: 0, rule: Rule::OneOf(&[libc::AF_UNIX.cast_unsigned()]), error: libc::EACCES };
const ANY_SOCKET: Look = Look {
    argument: 0,
    rule: Rule::OneOf(&[
        libc::AF_UNIX.cast_unsigned(),
        libc::AF_INET.cast_unsigned(),
        libc::AF_INET6.cast_unsigned(),
        // Names and routes are looked up through it.
        libc::AF_NETLINK.cast_unsigned(),
    ]),
    error: libc::EACCES,
};
/// Typing into the operator's terminal.
const IOCTL: Look = Look {
    argument: 1,
    rule: Rule::NoneOf(&[libc::TIOCSTI as u32, libc::TIOCLINUX as u32]),
    error: libc::EPERM,
};

/// The filter for one plugin, as the kernel takes it.
pub(crate) fn program(network: &Network, level: Level) -> Vec<u8> {
    let mut table: Vec<(u32, Verdict)> = Vec::new();
    let mut say = |numbers: &[libc::c_long], verdict| {
        table.extend(numbers.iter().filter_map(|it| Some((u32::try_from(*it).ok()?, verdict))));
    };
    let default = match level {
        Level::Strict => {
            say(ALLOWED, Verdict::Allow);
            say(ALLOWED_OLD, Verdict::Allow);
            Verdict::Fail(libc::ENOSYS)
        }
        Level::Standard | Level::None => {
            say(ABSENT, Verdict::Fail(libc::ENOSYS));
            Verdict::Allow
        }
    };
    say(DENIED, Verdict::Fail(libc::EPERM));
    say(&[libc::SYS_clone], Verdict::Look(&CLONE));
    say(&[libc::SYS_ioctl], Verdict::Look(&IOCTL));
    let sockets = match network {
        Network::None => Verdict::Look(&LOCAL_SOCKET),
        // What the proxy is reached by, and nothing that could go around it.
        Network::Hosts(_) => Verdict::Connection,
        Network::All => Verdict::Look(&ANY_SOCKET),
    };
    say(&[libc::SYS_socket], sockets);
    assemble(table, default)
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
/// Numbers from here on are another architecture's under the same name.
const X32: u32 = 0x4000_0000;

/// One instruction: code, jump if true, jump if false, operand.
type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// Where in the data of a call its number, its architecture and its arguments lie.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

fn assemble(mut table: Vec<(u32, Verdict)>, default: Verdict) -> Vec<u8> {
    table.sort_by_key(|(number, _)| *number);
    let mut ranges: Vec<(u32, Verdict)> = vec![(0, default)];
    for (number, verdict) in table {
        // The range before it ends here, and the default goes on behind it.
        match ranges.last_mut() {
            Some(last) if last.0 == number => last.1 = verdict,
            _ => ranges.push((number, verdict)),
        }
        ranges.push((number + 1, default));
    }
    ranges.dedup_by_key(|(_, verdict)| *verdict);
    let mut code = vec![
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (IF_EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
    ];
    if cfg!(target_arch = "x86_64") {
        code.push((IF_AT_LEAST, 0, 1, X32));
        code.push((RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    }
    code.extend(search(&ranges));
    code.into_iter().flat_map(bytes).collect()
}

fn bytes((code, yes, no, operand): Instruction) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&code.to_ne_bytes());
    bytes[2] = yes;
    bytes[3] = no;
    bytes[4..].copy_from_slice(&operand.to_ne_bytes());
    bytes
}

/// Each range goes from its number to the next one's.
fn search(ranges: &[(u32, Verdict)]) -> Vec<Instruction> {
    if let [(_, verdict)] = ranges {
        return leaf(*verdict);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (lower, upper_code) = (search(lower), search(upper));
    let at = upper.first().map_or(0, |(number, _)| *number);
    let mut code = match u8::try_from(lower.len()) {
        Ok(length) => vec![(IF_AT_LEAST, length, 0, at)],
        // A conditional jump does not reach so far.
        Err(_) => vec![(IF_AT_LEAST, 0, 1, at), (JUMP, 0, 0, lower.len() as u32)],
    };
    code.extend(lower);
    code.extend(upper_code);
    code
}

fn leaf(verdict: Verdict) -> Vec<Instruction> {
    const ALLOW: Instruction = (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
    let fail = |error: i32| (RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | error.cast_unsigned());
    let look = match verdict {
        Verdict::Allow => return vec![ALLOW],
        Verdict::Fail(error) => return vec![fail(error)],
        Verdict::Connection => return connection(),
        Verdict::Look(look) => look,
    };
    let mut code = vec![(LOAD, 0, 0, ARGUMENTS_AT + 8 * look.argument)];
    let (values, hit, miss) = match look.rule {
        Rule::OneOf(values) => (values, ALLOW, fail(look.error)),
        Rule::NoneOf(values) => (values, fail(look.error), ALLOW),
        Rule::Without(bits) => {
            code.extend([(IF_ANY_BIT, 0, 1, bits), fail(look.error), ALLOW]);
            return code;
        }
    };
    for value in values {
        code.extend([(IF_EQUAL, 0, 1, *value), hit]);
    }
    code.push(miss);
    code
}

/// A look at all three arguments of `socket`: family, type and protocol.
fn connection() -> Vec<Instruction> {
    /// The rest of the type are flags.
    const TYPE: u32 = 0xF;
    let argument = |number: u32| (LOAD, 0, 0, ARGUMENTS_AT + 8 * number);
    let word = i32::cast_unsigned;
    let last = 10;
    // Each jump counts the instructions that it leaves out: to the refusal, which is `last`,
    // or to the permission behind it.
    vec![
        argument(0),
        (IF_EQUAL, last - 1, 0, word(libc::AF_UNIX)),
        (IF_EQUAL, 1, 0, word(libc::AF_INET)),
        (IF_EQUAL, 0, last - 4, word(libc::AF_INET6)),
        argument(1),
        (AND, 0, 0, TYPE),
        (IF_EQUAL, 0, last - 7, word(libc::SOCK_STREAM)),
        argument(2),
        (IF_EQUAL, last - 8, 0, 0),
        (IF_EQUAL, 1, 0, word(libc::IPPROTO_TCP)),
        (RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | word(libc::EACCES)),
        (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's machine, as far as our programs need it: what becomes of a call.
    fn run(program: &[u8], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_ne_bytes());
        data.extend(architecture.to_ne_bytes());
        data.extend([0; 8]);
        arguments.iter().for_each(|it| data.extend(it.to_ne_bytes()));
        let word = |from: &[u8], at: usize| {
            u32::from_ne_bytes(from[at..at + 4].try_into().expect("four bytes"))
        };
        let (mut at, mut value) = (0, 0);
        loop {
            let it = &program[8 * at..8 * at + 8];
            let (code, operand) = (u16::from_ne_bytes([it[0], it[1]]), word(it, 4));
            at += 1;
            let is = match code {
                LOAD => {
                    value = word(&data, operand as usize);
                    continue;
                }
                JUMP => {
                    at += operand as usize;
                    continue;
                }
                AND => {
                    value &= operand;
                    continue;
                }
                RETURN => return operand,
                IF_EQUAL => value == operand,
                IF_AT_LEAST => operand <= value,
                IF_ANY_BIT => value & operand != 0,
                code => panic!("an instruction {code:#x}"),
            };
            at += usize::from(if is { it[2] } else { it[3] });
        }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    fn fails(error: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | error.cast_unsigned()
    }

    fn call(program: &[u8], number: libc::c_long, arguments: [u64; 6]) -> u32 {
        run(program, ARCHITECTURE, u32::try_from(number).expect("a number"), arguments)
    }

    #[test]
    fn a_search_finds_the_verdict_of_every_number() {
        let numbers = [0, 1, 2, 5, 100, 101, 435, 436, 1000];
        let table = numbers.map(|it| (it, Verdict::Fail(it as i32 + 1))).to_vec();
        let program = assemble(table, Verdict::Allow);
        for number in 0..1100 {
            let expected = match numbers.contains(&number) {
                true => fails(number as i32 + 1),
                false => ALLOW,
            };
            assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), expected, "{number}");
        }
    }

    #[test]
    fn jumps_that_are_too_far_are_taken_in_two() {
        let table = (0..600).map(|it| (2 * it, Verdict::Fail(1))).collect();
        let program = assemble(table, Verdict::Allow);
        for number in 0..1300 {
            let is_failing = number < 1200 && number % 2 == 0;
            let expected = if is_failing { fails(1) } else { ALLOW };
            assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), expected, "{number}");
        }
    }

    #[test]
    fn what_breaks_out_fails_and_what_programs_need_does_not() {
        for level in [Level::Standard, Level::Strict] {
            let program = program(&Network::None, level);
            for denied in DENIED {
                assert_eq!(call(&program, *denied, [0; 6]), fails(libc::EPERM), "{denied}");
            }
            for absent in ABSENT {
                assert_eq!(call(&program, *absent, [0; 6]), fails(libc::ENOSYS), "{absent}");
            }
            for allowed in ALLOWED.iter().chain(ALLOWED_OLD) {
                assert_eq!(call(&program, *allowed, [0; 6]), ALLOW, "{allowed}");
            }
            // One that no kernel has yet.
            let unknown = call(&program, 0x3FFF_FFF0, [0; 6]);
            let is_strict = level == Level::Strict;
            assert_eq!(unknown, if is_strict { fails(libc::ENOSYS) } else { ALLOW });
        }
    }

    #[test]
    fn another_architecture_is_the_end() {
        let program = program(&Network::All, Level::Standard);
        // i386, whose numbers mean other calls.
        assert_eq!(run(&program, 0x4000_0003, 1, [0; 6]), KILL);
        if cfg!(target_arch = "x86_64") {
            for number in [0, 39, 101, 547] {
                assert_eq!(run(&program, ARCHITECTURE, X32 | number, [0; 6]), KILL, "{number}");
            }
        }
    }

    #[test]
    fn arguments_decide_where_the_number_does_not() {
        let (none, all) =
            (program(&Network::None, Level::Strict), program(&Network::All, Level::Strict));
        let socket = |program: &[u8], family: i32| {
            call(program, libc::SYS_socket, [family.cast_unsigned().into(), 1, 0, 0, 0, 0])
        };
        assert_eq!(socket(&none, libc::AF_UNIX), ALLOW);
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_VSOCK] {
            assert_eq!(socket(&none, family), fails(libc::EACCES), "{family}");
        }
        assert_eq!(socket(&all, libc::AF_INET), ALLOW);
        assert_eq!(socket(&all, libc::AF_PACKET), fails(libc::EACCES));
        // The upper half of an argument is not looked at by the kernel either.
        let high = [u64::from(libc::AF_INET.cast_unsigned()) | 1 << 32, 1, 0, 0, 0, 0];
        assert_eq!(call(&none, libc::SYS_socket, high), fails(libc::EACCES));

        let listed = program(&Network::Hosts(Vec::new()), Level::Strict);
        let socket = |family: i32, kind: i32, protocol: i32| {
            let [a, b, c] = [family, kind, protocol].map(|it| it.cast_unsigned().into());
            call(&listed, libc::SYS_socket, [a, b, c, 0, 0, 0])
        };
        let (stream, flags) = (libc::SOCK_STREAM, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, stream, 0), ALLOW);
            assert_eq!(socket(family, stream | flags, libc::IPPROTO_TCP), ALLOW);
            for (kind, protocol) in [
                (stream, libc::IPPROTO_MPTCP),
                (stream, libc::IPPROTO_SCTP),
                (libc::SOCK_DGRAM | flags, 0),
                (libc::SOCK_RAW, libc::IPPROTO_TCP),
                (libc::SOCK_SEQPACKET, 0),
            ] {
                assert_eq!(
                    socket(family, kind, protocol),
                    fails(libc::EACCES),
                    "{kind} {protocol}"
                );
            }
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0), ALLOW);
        for family in [libc::AF_NETLINK, libc::AF_VSOCK, libc::AF_PACKET] {
            assert_eq!(socket(family, stream, 0), fails(libc::EACCES), "{family}");
        }

        let clone = |flags: i32| {
            call(&none, libc::SYS_clone, [flags.cast_unsigned().into(), 0, 0, 0, 0, 0])
        };
        assert_eq!(clone(libc::SIGCHLD | libc::CLONE_VM | libc::CLONE_VFORK), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_PARENT] {
            assert_eq!(clone(libc::SIGCHLD | flag), fails(libc::EPERM), "{flag:#x}");
        }
        let ioctl = |request: u64| call(&none, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
        assert_eq!(ioctl(libc::FIONREAD), ALLOW);
        assert_eq!(ioctl(libc::TIOCSTI), fails(libc::EPERM));
    }
}
