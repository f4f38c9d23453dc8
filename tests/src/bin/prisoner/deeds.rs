//! What is tried. Each deed answers `ok` with what it got, or the system's error.

use std::{
    env, fs,
    io::{self, Read, Write},
    net::{TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{PermissionsExt, chown, symlink},
            net::{SocketAddr, UnixStream},
        },
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
    },
    unistd::{Pid, getppid, setsid},
};

use crate::raw;

/// The mode of a process that a deed starts.
const CHILD: &str = "--child";

/// Runs what a deed starts, if the arguments ask for it.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut words = env::args().skip(1);
    if words.next()? != CHILD {
        return None;
    }
    let deed = words.next().unwrap_or_default();
    let number = words.next().and_then(|it| it.parse().ok()).unwrap_or(0);
    println!("{}", attempt(&deed, "", number));
    Some(ExitCode::SUCCESS)
}

pub(crate) fn attempt(deed: &str, what: &str, number: u64) -> String {
    match done(deed, what, number) {
        Ok(said) if said.is_empty() => "ok".to_owned(),
        Ok(said) => format!("ok {said}"),
        Err(error) => match error.raw_os_error() {
            Some(code) => format!("{:?}", Errno::from_raw(code)),
            None => error.to_string(),
        },
    }
}

fn done(deed: &str, what: &str, number: u64) -> io::Result<String> {
    let path = Path::new(what);
    let none = String::new();
    Ok(match deed {
        // Files.
        "read" => fs::read_to_string(path)?.chars().take(4000).collect(),
        "list" => names(path)?,
        "write" => fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?
            .write_all(b"written")
            .map(|()| none)?,
        // `PATH TEXT`, into a file that is there.
        "put" => {
            let (path, text) = what.split_once(' ').unwrap_or((what, ""));
            fs::File::options().write(true).open(path)?.write_all(text.as_bytes()).map(|()| none)?
        }
        "mode" => fs::set_permissions(path, fs::Permissions::from_mode(0o777)).map(|()| none)?,
        "owner" => chown(path, Some(nix::unistd::geteuid().as_raw()), None).map(|()| none)?,
        "time" => {
            let file = fs::File::open(path)?;
            file.set_modified(SystemTime::UNIX_EPOCH).map(|()| none)?
        }
        "remove" => fs::remove_file(path).map(|()| none)?,
        "move" => fs::rename(path, "/tmp/moved").map(|()| none)?,
        "link" => fs::hard_link(path, "/tmp/linked").map(|()| none)?,
        "attribute" => raw::set_attribute(path).map(|()| none)?,
        "by link" => {
            // Without walls another test's process may do the same in the same folder.
            let link = format!("/tmp/link-{}", std::process::id());
            symlink(path, &link)?;
            let read = fs::read_to_string(&link);
            fs::remove_file(&link)?;
            read?
        }
        "run" => run(Command::new(path))?,
        "run by the loader" => {
            let mut command = Command::new("/lib64/ld-linux-x86-64.so.2");
            command.arg(path).stderr(Stdio::null());
            run(command)?
        }
        "shell" => {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", what]);
            run(command)?
        }
        "run from memory" => {
            let file = nix::sys::memfd::memfd_create(c"x", nix::sys::memfd::MFdFlags::empty())?;
            fs::File::from(file.try_clone()?).write_all(&fs::read(env::current_exe()?)?)?;
            use std::os::fd::AsRawFd;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let mut command = Command::new(path);
            command.args([CHILD, "pid"]);
            run(command)?
        }

        // Network.
        "by proxy" => by_proxy(&format!("CONNECT {what} HTTP/1.1\r\n\r\n"), b"ping")?,
        "page by proxy" => {
            by_proxy(&format!("GET http://{what}/page HTTP/1.1\r\nHost: x\r\n\r\n"), b"")?
        }
        "words to proxy" => by_proxy(what, b"")?,
        "connections until" => {
            let proxy = proxy()?;
            let mut open = Vec::new();
            for _ in 0..number {
                let mut stream = TcpStream::connect(&proxy)?;
                stream.write_all(b"CONNECT ")?;
                open.push(stream);
            }
            let more = by_proxy_within(&format!("CONNECT {what} HTTP/1.1\r\n\r\n"), b"ping", 300);
            let waited = matches!(&more, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            drop(open);
            match waited {
                true => by_proxy(&format!("CONNECT {what} HTTP/1.1\r\n\r\n"), b"ping")?,
                false => "nothing waited".to_owned(),
            }
        }
        "tcp" => TcpStream::connect(what).map(|_| none)?,
        "udp" => UdpSocket::bind("127.0.0.1:0")?.send_to(b"out", what).map(|_| none)?,
        "fast open" => raw::fast_open(u16::try_from(number).unwrap_or(0)).map(|()| none)?,
        "socket" => {
            let mut words = what.split(' ').filter_map(|it| it.parse().ok());
            let mut next = || words.next().unwrap_or(0);
            raw::call(libc::SYS_socket, [next(), next(), next(), 0]).map(|_| none)?
        }
        "abstract socket" => {
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(what)?).map(|_| none)?
        }
        "socket at" => UnixStream::connect(path).map(|_| none)?,

        // Other processes.
        "pid" => std::process::id().to_string(),
        "processes" => names(Path::new("/proc"))?
            .split(' ')
            .filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
            .collect::<Vec<_>>()
            .join(" "),
        "signal" => {
            let pid = Pid::from_raw(i32::try_from(number).unwrap_or(i32::MAX));
            kill(pid, None::<Signal>).map(|()| none)?
        }
        "kill all" => kill(Pid::from_raw(-1), Signal::SIGKILL).map(|()| none)?,
        "kill the keeper" => kill(getppid(), Signal::SIGKILL).map(|()| none)?,
        "stop the keeper" => kill(getppid(), Signal::SIGSTOP).map(|()| none)?,

        "end by" => {
            let signal = Signal::try_from(i32::try_from(number).unwrap_or(0))?;
            // The runtime of Rust handles some. It is an error for those that cannot be.
            raw::restore(signal).ok();
            nix::sys::signal::raise(signal).map(|()| none)?
        }

        // System calls.
        "call" => {
            let mut words = what.split(' ').filter_map(|it| it.parse().ok());
            let mut next = || words.next().unwrap_or(0);
            let args = [next(), next(), next(), next()];
            let number = i64::try_from(number).unwrap_or(-1);
            raw::call(number, args).map(|it| it.to_string())?
        }
        #[cfg(target_arch = "x86_64")]
        "call as 32 bits" => raw::call_32(20).to_string(),

        // What it has.
        "status" => line(Path::new("/proc/self/status"), what)?,
        "mounts" => fs::read_to_string("/proc/self/mounts")?,
        "descriptors" => names(Path::new("/proc/self/fd"))?,
        "variables" => {
            let mut all: Vec<_> = env::vars().map(|(name, _)| name).collect();
            all.sort();
            all.join(" ")
        }
        "limit" => line(Path::new("/proc/self/limits"), what)?,
        "variable" => env::var(what).unwrap_or_default(),

        // Resources.
        "memory" => {
            let mut kept = vec![0_u8; usize::try_from(number).unwrap_or(usize::MAX)];
            kept.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::hint::black_box(kept).len().to_string()
        }
        "memory, kept" => {
            let mut kept = vec![0_u8; usize::try_from(number).unwrap_or(usize::MAX)];
            kept.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::hint::black_box(kept).leak().len().to_string()
        }
        // Asked for and never touched, as runtimes do.
        "reserve" => raw::reserve(number).map(|()| none)?,
        "lock" => raw::lock(number).map(|()| none)?,
        "file in memory" => {
            let file = nix::sys::memfd::memfd_create(c"x", nix::sys::memfd::MFdFlags::empty())?;
            write_pieces(file.into(), number).map(|()| none)?
        }
        "memory of a child" => {
            let number = number.to_string();
            let status = itself(&["memory", &number]).stdout(Stdio::null()).status()?;
            status.to_string()
        }
        "file of" => write_pieces(fs::File::create("/tmp/large")?, number).map(|()| none)?,
        "fill" => write_pieces(fs::File::create(path)?, number).map(|()| none)?,
        "file of, unmoved" => {
            raw::ignore(Signal::SIGXFSZ)?;
            write_pieces(fs::File::create("/tmp/large")?, number).map(|()| none)?
        }
        "many files" => {
            fs::create_dir_all("/tmp/many")?;
            (0..number).try_for_each(|n| fs::File::create(format!("/tmp/many/{n}")).map(drop))?;
            number.to_string()
        }
        "raise" => setrlimit(Resource::RLIMIT_NOFILE, number, number).map(|()| none)?,
        // A bound on processor time that it sets itself, in seconds.
        "processor time" => {
            setrlimit(Resource::RLIMIT_CPU, number, number + 1)?;
            forever()
        }
        "processor time, unmoved" => {
            raw::ignore(Signal::SIGXCPU)?;
            setrlimit(Resource::RLIMIT_CPU, number, number + 1)?;
            forever()
        }
        "processes until" => {
            let mut children = Vec::new();
            let mut refused = None;
            for _ in 0..number {
                match itself(&["wait", "20000"]).spawn() {
                    Ok(child) => children.push(child),
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            let count = children.len();
            for mut child in children {
                child.kill()?;
                child.wait()?;
            }
            match refused {
                Some(error) => return Err(error),
                None => count.to_string(),
            }
        }
        // They end with it.
        "processes, kept" => {
            for _ in 0..number {
                itself(&["wait", "20000000"]).stdout(Stdio::null()).spawn()?;
            }
            number.to_string()
        }
        "files until" => {
            let mut open = Vec::new();
            for _ in 0..number {
                open.push(fs::File::open("/dev/null")?);
            }
            open.len().to_string()
        }
        "work" => {
            // Without what its own start has taken.
            let (start, before, mut rounds) = (Instant::now(), processor_time()?, 0_u64);
            while start.elapsed() < Duration::from_millis(number) {
                rounds = std::hint::black_box(rounds + 1);
            }
            (processor_time()? - before).to_string()
        }
        "wait" => {
            thread::sleep(Duration::from_millis(number));
            none
        }

        // Leaving something behind.
        "daemon" => itself(&["hide"]).stdin(Stdio::null()).spawn().map(|it| it.id().to_string())?,
        "hide" => {
            setsid()?;
            itself(&["wait", "50000"]).spawn()?;
            none
        }
        // A process that has a new number each millisecond, in a session of its own.
        "hop" => {
            thread::sleep(Duration::from_millis(1));
            setsid().ok();
            match number.checked_sub(1) {
                Some(left) => itself(&["hop", &left.to_string()]).spawn().map(|_| none)?,
                None => none,
            }
        }
        // For half a minute, should nobody end it.
        "hopper" => itself(&["hop", "10000"]).spawn().map(|_| none)?,
        other => format!("does not know how to {other}"),
    })
}

/// What this process has used, in milliseconds.
fn processor_time() -> nix::Result<i64> {
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let ms = |it: nix::sys::time::TimeVal| it.tv_sec() * 1000 + it.tv_usec() / 1000;
    Ok(ms(used.user_time()) + ms(used.system_time()))
}

/// Where the plugin is told that its proxy is.
fn proxy() -> io::Result<String> {
    let proxy = env::var("HTTPS_PROXY").map_err(|_| Errno::EDESTADDRREQ)?;
    Ok(proxy.strip_prefix("http://").unwrap_or_default().to_owned())
}

fn by_proxy(head: &str, then: &[u8]) -> io::Result<String> {
    by_proxy_within(head, then, 20_000)
}

/// What comes back, without its headers: the status, and what follows them.
fn by_proxy_within(head: &str, then: &[u8], milliseconds: u64) -> io::Result<String> {
    let mut stream = TcpStream::connect(proxy()?)?;
    stream.set_read_timeout(Some(Duration::from_millis(milliseconds)))?;
    // In one piece: what comes behind the head is not lost.
    stream.write_all(&[head.as_bytes(), then].concat())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    Ok(format!("{status} {}", body.trim()).trim().to_owned())
}

fn write_pieces(file: fs::File, bytes: u64) -> io::Result<()> {
    let piece = vec![1_u8; 1 << 20];
    let mut file = io::BufWriter::new(file);
    (0..bytes.div_ceil(1 << 20)).try_for_each(|_| file.write_all(&piece))?;
    file.flush()
}

fn forever() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn itself(words: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap_or_default());
    command.arg(CHILD).args(words).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn run(mut command: Command) -> io::Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    let how = if status.success() { String::new() } else { format!(" ({status})") };
    Ok(format!("{}{how}", said.trim()))
}

fn names(folder: &Path) -> io::Result<String> {
    let entries = fs::read_dir(folder)?;
    let mut names: Vec<String> =
        entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names.join(" "))
}

/// The line that begins with a word.
fn line(path: &Path, word: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    Ok(line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
}
