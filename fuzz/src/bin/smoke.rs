//! Fuzzing for a while without a fuzzer: `cargo run --release --manifest-path
//! fuzz/Cargo.toml --bin smoke -- --seconds 30`.
//!
//! It bends the vectors of the spec and whatever lies in `fuzz/corpus/`, blindly
//! but fast, and works on the stable toolchain. The corpus is read once and never
//! grows, so memory does not either. A finding is saved, and told with how to see
//! it again.

use std::{
    fs,
    io::{self, Write},
    panic,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use plugbay_fuzz::{INPUT_MAX, TARGETS, Target};

const USAGE: &str = "\
usage: smoke [--seconds N] [--seed N]     try bent inputs, 30 seconds if not told otherwise
       smoke --replay decode|pair FILE    try one input as it is";

enum Task {
    Smoke { seconds: u64, seed: u64 },
    Replay { target: Target, file: PathBuf },
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = match parse(&arguments) {
        Some(Task::Smoke { seconds, seed }) => smoke(root, Duration::from_secs(seconds), seed),
        Some(Task::Replay { target, file }) => replay(target, &file),
        None => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("smoke: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: &[String]) -> Option<Task> {
    let (mut seconds, mut seed) = (30, random_seed());
    loop {
        match arguments {
            [] => return Some(Task::Smoke { seconds, seed }),
            [flag, target, file] if flag == "--replay" => {
                let (_, target) = TARGETS.iter().find(|(name, _)| name == target)?;
                return Some(Task::Replay { target: *target, file: file.into() });
            }
            [flag, number, rest @ ..] => {
                match flag.as_str() {
                    "--seconds" => seconds = number.parse().ok()?,
                    "--seed" => seed = number.parse().ok()?,
                    _ => return None,
                }
                arguments = rest;
            }
            [_] => return None,
        }
    }
}

/// Another one each time. Nothing but variety hangs on it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn replay(target: Target, file: &Path) -> io::Result<bool> {
    let input = fs::read(file)?;
    Ok(panic::catch_unwind(|| target(&input)).is_ok())
}

fn smoke(root: &Path, length: Duration, seed: u64) -> io::Result<bool> {
    println!("seed {seed}");
    let mut random = Random(seed);
    let start = Instant::now();
    for (at, (name, target)) in (1..).zip(TARGETS) {
        let corpus = corpus(root, name, &mut random)?;
        let (begun, end) = (Instant::now(), length / TARGETS.len() as u32 * at);
        let mut tried = 0_u64;
        // Each seed as it is first, then bent.
        while tried < corpus.len() as u64 || start.elapsed() < end {
            let input = match corpus.get(tried as usize) {
                Some(seed) => seed.clone(),
                None => bend(&corpus, &mut random),
            };
            if panic::catch_unwind(|| target(&input)).is_err() {
                let file = save(root, name, &input)?;
                eprintln!("{name} failed with seed {seed} after {tried} inputs; see it again with");
                eprintln!("  smoke --replay {name} {}", file.display());
                return Ok(false);
            }
            tried += 1;
        }
        let rate = tried as f64 / begun.elapsed().as_secs_f64();
        println!("{name:8}{tried:>10} inputs {rate:>10.0}/s from {} seeds", corpus.len());
        io::stdout().flush()?;
    }
    Ok(true)
}

/// Where it is saved depends on the input alone, so one finding is one file.
fn save(root: &Path, target: &str, input: &[u8]) -> io::Result<PathBuf> {
    let mut hash = Random(input.len() as u64);
    let name = input.iter().fold(0, |sum, byte| {
        hash.0 ^= u64::from(*byte);
        sum ^ hash.next()
    });
    let folder = root.join("artifacts").join(target);
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("smoke-{name:016x}"));
    fs::write(&file, input)?;
    Ok(file)
}

/// What is bent: anything, the spec's vectors, and the files of `corpus/`.
fn corpus(root: &Path, target: &str, random: &mut Random) -> io::Result<Vec<Vec<u8>>> {
    // Any bytes are a story for a pair.
    let mut bytes = |len| (0..len).map(|_| random.next() as u8).collect();
    let mut seeds: Vec<Vec<u8>> = (0..64).map(|at| bytes(at * 30)).collect();
    if target == "decode" {
        for kind in ["valid", "invalid"] {
            for file in files(&root.join("../sdk-spec/vectors").join(kind))? {
                if file.extension().is_some_and(|it| it == "hex") {
                    let bytes = read_hex(&fs::read_to_string(&file)?).ok_or_else(|| {
                        io::Error::other(format!("expected hex digits in {}", file.display()))
                    })?;
                    // How it is cut comes first.
                    seeds.push([&[7, 1, 200, 16][..], &bytes].concat());
                }
            }
        }
    }
    for file in files(&root.join("corpus").join(target))? {
        seeds.push(fs::read(file)?);
    }
    Ok(seeds)
}

/// In order of their names, so that a seed means the same everywhere.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries.map(|it| Ok(it?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    files.sort();
    Ok(files)
}

fn read_hex(text: &str) -> Option<Vec<u8>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let digits: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let digits = digits.into_bytes();
    digits
        .chunks(2)
        .map(|two| {
            let high = char::from(*two.first()?).to_digit(16)?;
            let low = char::from(*two.get(1)?).to_digit(16)?;
            Some((high * 16 + low) as u8)
        })
        .collect()
}

/// Another input, made from the seeds.
fn bend(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..1 + random.below(8) {
        let (at, len) = (random.below(input.len() + 1), 1 + random.below(40));
        let span = at..(at + len).min(input.len());
        match random.below(10) {
            // One byte: any, one bit, or one of those that mean much.
            0..4 if at < input.len() => match random.below(3) {
                0 => input[at] = random.next() as u8,
                1 => input[at] ^= 1 << random.below(8),
                _ => {
                    let much = [0, 1, 0x0f, 0x10, 0x7f, 0x80, 0x90, 0xc0, 0xc1, 0xdf, 0xff];
                    input[at] = much[random.below(much.len())];
                }
            },
            0..5 => drop(input.splice(at..at, (0..len).map(|_| random.next() as u8))),
            5 => drop(input.drain(span)),
            6 => {
                let copy = input[span].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            // Behind one another: two streams without their first four bytes, two stories.
            7..9 => {
                let other = &corpus[random.below(corpus.len())];
                input.extend_from_slice(other.get(4..).unwrap_or_default());
            }
            _ => input.truncate(at),
        }
        input.truncate(INPUT_MAX);
    }
    input
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
