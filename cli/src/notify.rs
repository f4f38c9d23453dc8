//! Tells systemd how we are, if it started us with `Type=notify`.

use std::{
    cell::RefCell,
    convert::Infallible,
    env,
    ffi::OsStr,
    io,
    os::unix::{
        ffi::OsStrExt,
        net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// The way to systemd; without systemd, nothing.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// What was said last, so that it is said once.
    status: RefCell<String>,
    /// How often a sign of life is due.
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub(crate) fn new() -> Self {
        let watchdog = env::var("WATCHDOG_USEC").ok().and_then(|it| it.parse().ok());
        let pid = env::var("WATCHDOG_PID").ok();
        let is_for_us = pid.is_none_or(|it| it == std::process::id().to_string());
        Self::to(env::var_os("NOTIFY_SOCKET").as_deref(), watchdog.filter(|_| is_for_us))
    }

    fn to(address: Option<&OsStr>, watchdog_us: Option<u64>) -> Self {
        // One that cannot be reached is no reason not to run.
        let socket = address.and_then(|it| connect(it).ok());
        // Twice as often as it must be, as systemd advises.
        let watchdog = watchdog_us.map(|it| Duration::from_micros(it) / 2);
        let watchdog = watchdog.filter(|it| socket.is_some() && !it.is_zero());
        Self { socket, status: RefCell::default(), watchdog }
    }

    fn say(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // Whoever does not listen any more misses it.
            socket.send(text.as_bytes()).ok();
        }
    }

    /// We serve.
    pub(crate) fn ready(&self) {
        self.say("READY=1");
    }

    /// How we are, in one line, which is not even made if nobody listens.
    pub(crate) fn status(&self, text: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        // A newline would begin another variable.
        let text = text().replace('\n', " ");
        if *self.status.borrow() != text {
            self.say(&format!("STATUS={text}"));
            self.status.replace(text);
        }
    }

    /// Says as often as is due that we live. Cancel safe.
    pub(crate) async fn live(&self) -> Infallible {
        let Some(pause) = self.watchdog else { return std::future::pending().await };
        loop {
            self.say("WATCHDOG=1");
            tokio::time::sleep(pause).await;
        }
    }

    /// We end.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    let address = match address.as_bytes().strip_prefix(b"@") {
        // A name that is no path; only Linux has those, and only Linux has systemd.
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)?
        }
        _ => SocketAddr::from_pathname(address)?,
    };
    socket.connect_addr(&address)?;
    // systemd that does not read must not hold us up.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn systemd_hears_what_is_said_and_each_status_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("plugbay-test-{}", std::process::id());
        use std::os::linux::net::SocketAddrExt;
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        for (address, socket) in
            [(path.into_os_string(), at_path), (format!("@{name}").into(), at_name)]
        {
            let notify = Notify::to(Some(&address), Some(30_000_000));
            assert_eq!(notify.watchdog, Some(Duration::from_secs(15)));
            notify.ready();
            notify.status(|| "1 plugin\nREADY=0".into());
            notify.status(|| "1 plugin\nREADY=0".into());
            assert!(notify.live().now_or_never().is_none());
            notify.stopping();
            let all = ["READY=1", "STATUS=1 plugin READY=0", "WATCHDOG=1", "STOPPING=1"];
            assert_eq!([(); 4].map(|()| heard(&socket)), all);
        }
    }

    #[test]
    fn without_systemd_nothing_is_said_and_nothing_fails() {
        for address in [None, Some(OsStr::new("/nowhere/at/all")), Some(OsStr::new(""))] {
            let notify = Notify::to(address, Some(1_000_000));
            assert_eq!(notify.watchdog, None);
            notify.ready();
            notify.status(|| panic!("nobody listens"));
        }
    }
}
