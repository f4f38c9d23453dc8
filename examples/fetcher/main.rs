//! Fetches large files at a polite rate: a long job that reports progress, can be
//! cancelled, and takes up where it left off.
//!
//! There is no network in it, so that it runs everywhere: a source is a file in one of
//! the operator's folders or made up on the spot. All else is what a downloader does.

#[cfg(test)]
#[path = "../agrees.rs"]
mod agrees;
#[path = "../confine.rs"]
mod confine;
mod source;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use plugbay_sdk::{
    Activation, Code, Context, Effect, Error, Level, Plugin, Reply, Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use source::Source;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where fetched files go, absolute or relative to this plugin's own folder. It is
    /// made if it is not there.
    folder: PathBuf,
    /// Folders that `file://` sources may be in.
    #[serde(default)]
    sources: Vec<PathBuf>,
    /// Bytes per second.
    #[serde(default = "default_rate")]
    rate: u64,
}

fn default_rate() -> u64 {
    1 << 20
}

struct State {
    config: Config,
    /// Names that are being fetched.
    busy: Mutex<BTreeSet<String>>,
}

impl State {
    fn open(activation: &Activation) -> Result<Self, Error> {
        let mut config: Config = activation.config()?;
        let wrong = |path: &Path, error| {
            Error::precondition(format!("the folder {}: {error}", path.display()))
        };
        fs::create_dir_all(&config.folder).map_err(|error| wrong(&config.folder, error))?;
        for path in config.sources.iter_mut().chain([&mut config.folder]) {
            *path = path.canonicalize().map_err(|error| wrong(path, error))?;
        }
        config.rate = config.rate.max(1);
        Ok(Self { config, busy: Mutex::default() })
    }

    /// Makes sure that nobody else fetches the same file.
    fn claim(self: &Arc<Self>, name: &str) -> Result<Claim, Error> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(name.to_owned()) {
            return Err(Error::conflict(format!("{name} is being fetched already")));
        }
        Ok(Claim { state: Arc::clone(self), name: name.to_owned() })
    }
}

struct Claim {
    state: Arc<State>,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.state.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fetch {
    /// `file:///path` in a folder of the operator's, or `generate:BYTES:SEED`.
    source: String,
    /// The name of the file to make: letters, digits, `.`, `_` and `-`.
    name: String,
    /// What its SHA-256 must be, in hex.
    sha256: Option<String>,
}

/// Written at once.
const CHUNK: usize = 64 << 10;

async fn fetch(ctx: Context<State>, args: Fetch) -> Result<Reply, Error> {
    let Fetch { source: url, name, sha256 } = args;
    if !is_plain(&name) {
        return Err(Error::invalid(
            "the name has other characters than letters, digits, . _ and -",
        ));
    }
    let state = ctx.state();
    let _claim = state.claim(&name)?;
    let target = state.config.folder.join(&name);
    let mut source =
        Source::open(&url, &state.config.sources).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Error::invalid(error),
            _ => Error::not_found(error),
        })?;
    let mut part = Part::open(&target, &url)?;
    if source.len() < part.len {
        part.restart()?;
    }
    let resumed = part.len;
    if 0 < resumed {
        ctx.log(Level::Info, "fetch.resumed", &format!("{name} from byte {resumed}"));
    }
    source.seek(resumed)?;
    let total = source.len();
    let mut chunk = vec![0; CHUNK.min(usize::try_from(state.config.rate).unwrap_or(CHUNK))];
    loop {
        ctx.progress(part.len, total, &name);
        let n = source.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        part.append(&chunk[..n])?;
        let pause = Duration::from_secs_f64(n as f64 / state.config.rate as f64);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = ctx.cancelled() => {}
        }
        if let Err(stopped) = ctx.check() {
            // Not wanted: nothing stays. Out of time: the next call goes on from here.
            part.keep = stopped.code() != Some(Code::Cancelled);
            return Err(stopped);
        }
    }
    let (bytes, digest) = (part.len, part.finish(&target, sha256.as_deref())?);
    Ok(Reply::text(format!("{name}: {bytes} bytes, sha256 {digest}"))
        .data(json!({"name": name, "bytes": bytes, "resumed_at": resumed, "sha256": digest})))
}

/// A file under way. Dropped before it is finished, it is gone, unless it is kept.
struct Part {
    file: File,
    path: PathBuf,
    /// Says which source it is a part of.
    origin: PathBuf,
    len: u64,
    digest: Sha256,
    keep: bool,
}

impl Part {
    /// Takes up what an earlier attempt at the same source has left, or begins.
    fn open(target: &Path, url: &str) -> io::Result<Self> {
        let beside = |ending: &str| {
            let mut name = target.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let (path, origin) = (beside(".part"), beside(".from"));
        let same = fs::read_to_string(&origin).is_ok_and(|known| known == url);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(!same);
        let mut file = options.open(&path)?;
        fs::write(&origin, url)?;
        // What is there already counts for the checksum; the file is at its end then.
        let mut digest = Sha256::new();
        let len = io::copy(&mut file, &mut digest)?;
        Ok(Self { file, path, origin, len, digest, keep: false })
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file = File::create(&self.path)?;
        self.len = 0;
        self.digest = Sha256::new();
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.digest.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Puts the file in its place if it is what it should be; returns its digest.
    fn finish(self, target: &Path, expected: Option<&str>) -> Result<String, Error> {
        let digest = self.digest.clone().finalize();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(&digest)) {
            // Dropping it removes what is wrong.
            return Err(Error::tool(format!(
                "the checksum is {digest}, which is not the expected"
            )));
        }
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        Ok(digest)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.keep {
            // After `finish` the part has another name, and the origin is of no more use.
            let _gone = fs::remove_file(&self.path);
            let _gone = fs::remove_file(&self.origin);
        }
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&name.len())
        && name.chars().all(plain)
        && !name.starts_with('.')
        && !name.ends_with(".part")
        && !name.ends_with(".from")
}

fn list(ctx: Context<State>, (): ()) -> Result<Reply, Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(&ctx.state().config.folder)?.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_plain(&name) {
            files.push((name, entry.metadata()?.len()));
        }
    }
    files.sort();
    let text: Vec<_> = files.iter().map(|(name, bytes)| format!("{name}\t{bytes}")).collect();
    let files: Vec<_> =
        files.iter().map(|(name, bytes)| json!({"name": name, "bytes": bytes})).collect();
    Ok(Reply::text(text.join("\n")).data(json!({ "files": files })))
}

fn plugin() -> Plugin<State> {
    Plugin::new("example.fetcher", env!("CARGO_PKG_VERSION"))
        .on_activate(async |activation: Arc<Activation>| State::open(&activation))
        .tool(
            Tool::new("fetch", fetch)
                .describe(
                    "Fetches a source into a file of the operator's folder and verifies its \
                     SHA-256. Takes its time; what an earlier attempt has fetched is not fetched \
                     again.",
                )
                .effect(Effect::Write)
                .idempotent(),
        )
        .tool(
            Tool::plain("list", list)
                .describe("Lists the files that have been fetched.")
                .effect(Effect::Read)
                .idempotent(),
        )
}

fn main() -> ExitCode {
    plugin().run()
}

#[cfg(test)]
mod tests {
    use plugbay_sdk::testing::Host;
    use serde_json::Value;
    use tempfile::TempDir;
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Ten thousand bytes a second.
    async fn host() -> (Host, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("from")).unwrap();
        let host = Host::new(plugin());
        let config = json!({
            "folder": folder.path().join("to"),
            "sources": [folder.path().join("from")],
            "rate": 10_000,
        });
        host.activate(config).await.unwrap();
        (host, folder)
    }

    fn files(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path().join("to")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn generated(n: u64) -> Value {
        json!({"source": format!("generate:{n}:1"), "name": "x.bin"})
    }

    #[tokio::test]
    async fn the_manifest_agrees() {
        agrees::with_manifest("fetcher", &Host::new(plugin()).tools());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_arrives_whole_at_the_given_rate_and_says_how_far_it_is() {
        let (host, folder) = host().await;
        let before = Instant::now();
        let mut call = host.call("fetch", generated(100_000)).start();
        let mut seen = Vec::new();
        while let Some(progress) = call.progress().await {
            assert_eq!(progress.total, Some(100_000));
            seen.extend(progress.n);
        }
        let output = call.await.unwrap();
        assert_eq!(before.elapsed().as_secs(), 10);
        assert_eq!(seen, (0..=10).map(|n| n * 10_000).collect::<Vec<_>>());
        let bytes = fs::read(folder.path().join("to/x.bin")).unwrap();
        let digest: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let data: Value = output.data().unwrap();
        let wanted = json!({"name": "x.bin", "bytes": 100_000, "resumed_at": 0, "sha256": digest});
        assert_eq!(data, wanted);
        assert_eq!(files(&folder), ["x.bin"]);
        assert_eq!(host.call("list", json!({})).await.unwrap().text(), "x.bin\t100000");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_fetch_leaves_nothing_behind() {
        let (host, folder) = host().await;
        let call = host.call("fetch", generated(100_000)).start();
        sleep(5 * SECOND).await;
        assert_eq!(files(&folder), ["x.bin.from", "x.bin.part"]);
        let before = Instant::now();
        call.cancel();
        assert_eq!(call.await.unwrap_err().code, Code::Cancelled);
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(files(&folder), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_ran_out_of_time_is_taken_up_again() {
        let (host, folder) = host().await;
        let call = host.call("fetch", generated(100_000)).deadline(SECOND * 55 / 10);
        assert_eq!(call.await.unwrap_err().code, Code::DeadlineExceeded);
        sleep(SECOND).await;
        assert_eq!(files(&folder), ["x.bin.from", "x.bin.part"]);
        let before = Instant::now();
        let data: Value = host.call("fetch", generated(100_000)).await.unwrap().data().unwrap();
        assert_eq!(data["resumed_at"], 60_000);
        assert_eq!(before.elapsed().as_secs(), 4);
        let whole = host.call("fetch", generated(100_000)).await.unwrap().data::<Value>().unwrap();
        assert_eq!((&whole["sha256"], &whole["resumed_at"]), (&data["sha256"], &json!(0)));
        assert_eq!(files(&folder), ["x.bin"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_of_another_source_is_not_taken_for_ours() {
        let (host, folder) = host().await;
        fs::write(folder.path().join("to/x.bin.part"), "something else").unwrap();
        fs::write(folder.path().join("to/x.bin.from"), "generate:100:2").unwrap();
        let data: Value = host.call("fetch", generated(100)).await.unwrap().data().unwrap();
        assert_eq!(data["resumed_at"], 0);
        // Nor is a part that is longer than its source has become.
        fs::write(folder.path().join("from/short"), "short").unwrap();
        let url = format!("file://{}", folder.path().join("from/short").display());
        fs::write(folder.path().join("to/y.part"), "longer than short").unwrap();
        fs::write(folder.path().join("to/y.from"), &url).unwrap();
        host.call("fetch", json!({"source": url, "name": "y"})).await.unwrap();
        assert_eq!(fs::read(folder.path().join("to/y")).unwrap(), b"short");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_checksum_is_found_and_the_file_is_not_there() {
        let (host, folder) = host().await;
        fs::write(folder.path().join("from/abc"), "abc").unwrap();
        let url = format!("file://{}", folder.path().join("from/abc").display());
        let args = |sha256: &str| json!({"source": url, "name": "abc", "sha256": sha256});
        let output = host.call("fetch", args(&"0".repeat(64))).await.unwrap();
        assert!(output.is_error && output.text().starts_with("the checksum is ba7816bf"));
        assert_eq!(files(&folder), [""; 0]);
        let right = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        assert!(!host.call("fetch", args(right)).await.unwrap().is_error);
        assert_eq!(files(&folder), ["abc"]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_file_is_fetched_once_at_a_time_and_names_are_plain() {
        let (host, _folder) = host().await;
        let first = host.call("fetch", generated(100_000)).start();
        tokio::task::yield_now().await;
        let code = async |args: Value| host.call("fetch", args).await.unwrap_err().code;
        assert_eq!(code(generated(100_000)).await, Code::Conflict);
        for name in ["", "../x", "a/b", ".x", "x.part", "x.from", "ü"] {
            let args = json!({"source": "generate:1", "name": name});
            assert_eq!(code(args).await, Code::InvalidArgument, "{name}");
        }
        assert_eq!(code(json!({"source": "http://x", "name": "x"})).await, Code::InvalidArgument);
        assert_eq!(code(json!({"source": "file:///x", "name": "x"})).await, Code::NotFound);
        assert!(first.await.is_ok());
    }
}
