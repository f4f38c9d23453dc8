//! Full-text search over the text files of one folder.
//!
//! The operator names the folder; nothing outside it is ever read, whatever a path
//! or a symbolic link says. The index lives in memory and is built when the plugin
//! becomes active.

#[cfg(test)]
#[path = "../agrees.rs"]
mod agrees;
#[path = "../confine.rs"]
mod confine;
mod index;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, PoisonError, RwLock},
};

use index::{Index, words};
use plugbay_sdk::{
    Activation, Context, Effect, Error, Plugin, Reply, Tool,
    schemars::{self, JsonSchema},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The folder, absolute or relative to this plugin's own.
    root: PathBuf,
    /// Larger files stay out.
    #[serde(default = "default_max_file_bytes")]
    max_file_bytes: u64,
    /// With this many files the index is full.
    #[serde(default = "default_max_files")]
    max_files: usize,
}

fn default_max_file_bytes() -> u64 {
    1 << 20
}

fn default_max_files() -> usize {
    20_000
}

struct Library {
    config: Config,
    index: RwLock<Arc<Index>>,
}

impl Library {
    /// Opens the folder and reads it once.
    fn open(activation: &Activation) -> Result<Self, Error> {
        let mut config: Config = activation.config()?;
        let root = config.root.canonicalize();
        config.root = root.map_err(|error| {
            Error::precondition(format!("the folder {}: {error}", config.root.display()))
        })?;
        let library = Self { config, index: RwLock::default() };
        let index = library.read(|_| Ok(()))?;
        library.replace(index);
        Ok(library)
    }

    fn index(&self) -> Arc<Index> {
        Arc::clone(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, index: Index) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(index);
    }

    /// Reads the whole folder. `each` hears the number of files so far and can stop it.
    fn read(&self, each: impl Fn(usize) -> Result<(), Error>) -> Result<Index, Error> {
        let mut index = Index::default();
        let mut folders = vec![self.config.root.clone()];
        while let Some(folder) = folders.pop() {
            each(index.len())?;
            // A folder that cannot be listed, or has gone meanwhile, is not there.
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.filter_map(Result::ok) {
                let Ok(kind) = entry.file_type() else { continue };
                let path = entry.path();
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && index.len() < self.config.max_files {
                    each(index.len())?;
                    if let (Some(text), Ok(name)) =
                        (self.text(&path), path.strip_prefix(&self.config.root))
                    {
                        index.add(name.display().to_string(), &text);
                    }
                }
            }
        }
        Ok(index)
    }

    /// What is in a file, if it is text and not too large.
    fn text(&self, path: &Path) -> Option<String> {
        let max = self.config.max_file_bytes;
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(max + 1).read_to_end(&mut bytes).ok()?;
        if max < bytes.len() as u64 || bytes.contains(&0) {
            return None;
        }
        String::from_utf8(bytes).ok()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// Words to look for. A file matches if it has any of them; more and rarer are better.
    query: String,
    /// How many files to show.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = 50))]
    limit: usize,
}

fn default_limit() -> usize {
    5
}

/// Lines shown of each file.
const LINES_SHOWN: usize = 3;
/// Longer lines are cut.
const LINE_MAX: usize = 200;

#[derive(Serialize)]
struct Found {
    path: String,
    score: f64,
    lines: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    number: usize,
    text: String,
}

fn search(ctx: Context<Library>, Search { query, limit }: Search) -> Result<Reply, Error> {
    let asked: Vec<String> = words(&query).collect();
    if asked.is_empty() {
        return Err(Error::invalid("the query has no word in it"));
    }
    let library = ctx.state();
    let index = library.index();
    let mut found = Vec::new();
    for hit in index.search(&query, limit.clamp(1, 50)) {
        ctx.check()?;
        // A file that has changed or gone since it was read shows fewer lines.
        let text = library.text(&library.config.root.join(hit.name)).unwrap_or_default();
        let has_word = |line: &str| words(line).any(|word| asked.contains(&word));
        let lines = text.lines().enumerate().filter(|(_, line)| has_word(line));
        let line = |(at, line): (usize, &str)| Line { number: at + 1, text: cut(line.trim()) };
        found.push(Found {
            path: hit.name.to_owned(),
            score: (hit.score * 1000.0).round() / 1000.0,
            lines: lines.take(LINES_SHOWN).map(line).collect(),
        });
    }
    let mut text = String::new();
    for Found { path, lines, .. } in &found {
        text += &format!("{path}\n");
        for Line { number, text: line } in lines {
            text += &format!("{number:>6}  {line}\n");
        }
    }
    if found.is_empty() {
        text = format!("nothing found in {} files", index.len());
    }
    Ok(Reply::text(text.trim_end()).data(json!({ "files": index.len(), "found": found })))
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(LINE_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadLines {
    /// A path as `search` shows it.
    path: PathBuf,
    /// The first line; 1 if it is not said.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    from: usize,
    /// The last line; 99 more than the first if it is not said, at most 499 more.
    to: Option<usize>,
}

fn one() -> usize {
    1
}

/// Lines in one answer.
const READ_MAX: usize = 500;

fn read_lines(ctx: Context<Library>, args: ReadLines) -> Result<String, Error> {
    let ReadLines { path, from, to } = args;
    let from = from.max(1);
    let to = to.unwrap_or(from.saturating_add(99)).min(from.saturating_add(READ_MAX - 1));
    if to < from {
        return Err(Error::invalid(format!("expected `to` to be at least {from}, found {to}")));
    }
    let real = confine::resolve(&ctx.state().config.root, &path).map_err(Error::not_found)?;
    if !real.is_file() {
        return Err(Error::not_found(format!("{} is not a file", path.display())));
    }
    let mut text = String::new();
    let mut last = 0;
    // A line is read up to a bound too: a file without line ends is one line.
    let mut reader = BufReader::new(File::open(real)?.take(ctx.state().config.max_file_bytes));
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? != 0 {
        last += 1;
        if (from..=to).contains(&last) {
            text += &String::from_utf8_lossy(&line);
        }
        if last == to {
            break;
        }
        line.clear();
        ctx.check()?;
    }
    if last < from {
        return Err(Error::invalid(format!("the file has {last} lines, none from {from} on")));
    }
    Ok(text)
}

fn reindex(ctx: Context<Library>, (): ()) -> Result<String, Error> {
    let library = ctx.state();
    let before = library.index().len();
    let index = library.read(|files| {
        ctx.progress(files as u64, before.max(files) as u64, "");
        ctx.check()
    })?;
    let now = index.len();
    library.replace(index);
    ctx.progress(now as u64, now as u64, "");
    Ok(format!("{now} files, {before} before"))
}

fn plugin() -> Plugin<Library> {
    Plugin::new("example.search", env!("CARGO_PKG_VERSION"))
        .on_activate(async |activation: Arc<Activation>| {
            // Reading a folder takes a while, and the host may have questions meanwhile.
            tokio::task::spawn_blocking(move || Library::open(&activation)).await?
        })
        .tool(
            Tool::plain("search", search)
                .describe(
                    "Searches the folder for words and shows the best files with the lines that \
                     match.",
                )
                .effect(Effect::Read)
                .idempotent(),
        )
        .tool(
            Tool::plain("read_lines", read_lines)
                .describe("Reads some lines of one file in the folder.")
                .effect(Effect::Read)
                .idempotent(),
        )
        .tool(
            Tool::plain("reindex", reindex)
                .describe("Reads the folder again, after files have changed.")
                .effect(Effect::Read)
                .idempotent(),
        )
}

fn main() -> ExitCode {
    plugin().run()
}

#[cfg(test)]
mod tests {
    use plugbay_sdk::{Code, testing::Host};
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::create_dir(folder.path().join(".git")).unwrap();
        write("tea.md", b"# Tea\n\nGreen tea is brewed at 80 degrees.\nBlack tea at 95.\n");
        write("sub/coffee.md", b"Coffee is ground first.\nThen brewed.\n");
        write("picture.png", b"\x89PNG\0tea");
        write(".git/tea.md", b"tea");
        folder
    }

    async fn host(folder: &TempDir) -> Host {
        let host = Host::new(plugin());
        host.activate(json!({"root": folder.path()})).await.unwrap();
        host
    }

    #[tokio::test]
    async fn the_manifest_agrees() {
        agrees::with_manifest("search", &Host::new(plugin()).tools());
    }

    #[tokio::test]
    async fn words_are_found_with_their_lines() {
        let folder = folder();
        let host = host(&folder).await;
        let output = host.call("search", json!({"query": "brewed TEA"})).await.unwrap();
        let text = "tea.md\n     1  # Tea\n     3  Green tea is brewed at 80 degrees.\n     4  \
                    Black tea at 95.\nsub/coffee.md\n     2  Then brewed.";
        assert_eq!(output.text(), text);
        let data: Value = output.data().unwrap();
        assert_eq!((&data["files"], &data["found"][0]["path"]), (&json!(2), &json!("tea.md")));
        let output = host.call("search", json!({"query": "tea brewed", "limit": 1})).await;
        assert!(!output.unwrap().text().contains("coffee"));
        let output = host.call("search", json!({"query": "cocoa"})).await.unwrap();
        assert_eq!(output.text(), "nothing found in 2 files");
        let failed = host.call("search", json!({"query": "?!"})).await.unwrap_err();
        assert_eq!(failed.code, Code::InvalidArgument);
    }

    #[tokio::test]
    async fn lines_are_read_and_nothing_outside_is() {
        let folder = folder();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link.md")).unwrap();
        let host = host(&folder).await;
        let read = |args: Value| host.call("read_lines", args).start();
        let output = read(json!({"path": "tea.md", "from": 3, "to": 3})).await.unwrap();
        assert_eq!(output.text(), "Green tea is brewed at 80 degrees.\n");
        let output = read(json!({"path": "sub/coffee.md"})).await.unwrap();
        assert_eq!(output.text(), "Coffee is ground first.\nThen brewed.\n");
        for path in ["link.md", "../x", "/etc/passwd", "nothing", "sub"] {
            assert_eq!(
                read(json!({"path": path})).await.unwrap_err().code,
                Code::NotFound,
                "{path}"
            );
        }
        for (from, to) in [(9, 10), (3, 2)] {
            let failed = read(json!({"path": "tea.md", "from": from, "to": to})).await.unwrap_err();
            assert_eq!(failed.code, Code::InvalidArgument);
        }
        // A link is no way into the index either.
        let output = host.call("search", json!({"query": "root"})).await.unwrap();
        assert!(output.text().starts_with("nothing found"));
    }

    #[tokio::test]
    async fn reindex_sees_what_has_changed_and_says_how_far_it_is() {
        let folder = folder();
        let host = host(&folder).await;
        fs::write(folder.path().join("cocoa.md"), "Cocoa needs milk.").unwrap();
        let mut call = host.call("reindex", json!({})).start();
        let mut last = None;
        while let Some(progress) = call.progress().await {
            last = progress.n.zip(progress.total);
        }
        assert_eq!(last, Some((3, 3)));
        assert_eq!(call.await.unwrap().text(), "3 files, 2 before");
        assert!(host.call("search", json!({"query": "cocoa"})).await.unwrap().text().contains('1'));
    }

    #[tokio::test]
    async fn a_cancelled_reindex_leaves_the_index_as_it_was() {
        let folder = folder();
        let library = Library {
            config: Config {
                root: folder.path().canonicalize().unwrap(),
                max_file_bytes: 1000,
                max_files: 9,
            },
            index: RwLock::default(),
        };
        let stopped = library.read(|files| match files {
            0 => Ok(()),
            _ => Err(Error::cancelled()),
        });
        assert_eq!(stopped.err().and_then(|error| error.code()), Some(Code::Cancelled));
        let host = host(&folder).await;
        let call = host.call("reindex", json!({})).deadline(std::time::Duration::ZERO).start();
        assert_eq!(call.await.unwrap_err().code, Code::DeadlineExceeded);
        assert!(host.call("search", json!({"query": "tea"})).await.unwrap().text().contains("tea"));
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_said_at_activation() {
        let host = Host::new(plugin());
        let failed = host.activate(json!({"root": "/no/such/folder"})).await.unwrap_err();
        assert_eq!(failed.code, Code::FailedPrecondition);
        let failed = host.activate(json!({})).await.unwrap_err();
        assert_eq!(failed.message.as_deref(), Some("config: missing field `root`"));
    }
}
