//! Where bytes come from: a file of the operator's, or a generator.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
};

use crate::confine;

/// A source that can be read from any byte on.
pub(crate) enum Source {
    File(File, u64),
    Generated { seed: u64, at: u64, len: u64 },
}

/// Generated sources are no larger.
const GENERATED_MAX: u64 = 1 << 30;

impl Source {
    /// Opens what `url` names: `file:///path`, below one of `roots`, or
    /// `generate:BYTES` or `generate:BYTES:SEED`.
    ///
    /// # Errors
    /// It is neither, or is not there.
    pub(crate) fn open(url: &str, roots: &[PathBuf]) -> io::Result<Self> {
        if let Some(rest) = url.strip_prefix("generate:") {
            let (len, seed) = rest.split_once(':').unwrap_or((rest, "0"));
            let number = |text: &str| text.parse::<u64>().ok();
            return match (number(len).filter(|len| *len <= GENERATED_MAX), number(seed)) {
                (Some(len), Some(seed)) => Ok(Self::Generated { seed, at: 0, len }),
                _ => Err(unknown("expected generate:BYTES or generate:BYTES:SEED, up to 1 GiB")),
            };
        }
        let Some(path) = url.strip_prefix("file://") else {
            return Err(unknown("expected file:///path or generate:BYTES"));
        };
        let path = PathBuf::from(path);
        // The first folder that has it; the path is below the folder or is not there.
        let mut below = roots.iter().filter_map(|root| {
            confine::resolve(root, path.strip_prefix(root).ok()?).ok().filter(|real| real.is_file())
        });
        let real = below.next().ok_or_else(|| {
            let name = path.display();
            io::Error::new(io::ErrorKind::NotFound, format!("{name} is in no folder to fetch from"))
        })?;
        let file = File::open(real)?;
        let len = file.metadata()?.len();
        Ok(Self::File(file, len))
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::File(_, len) | Self::Generated { len, .. } => *len,
        }
    }

    /// Goes to a byte.
    pub(crate) fn seek(&mut self, to: u64) -> io::Result<()> {
        match self {
            Self::File(file, _) => file.seek(SeekFrom::Start(to)).map(drop),
            Self::Generated { at, .. } => {
                *at = to;
                Ok(())
            }
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file, _) => file.read(buffer),
            Self::Generated { seed, at, len } => {
                let left = usize::try_from(*len - (*at).min(*len)).unwrap_or(usize::MAX);
                let n = buffer.len().min(left);
                for byte in &mut buffer[..n] {
                    *byte = mix(*seed ^ (*at / 8)).to_le_bytes()[(*at % 8) as usize];
                    *at += 1;
                }
                Ok(n)
            }
        }
    }
}

/// SplitMix64: any word of the stream without those before it.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn unknown(expected: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, expected)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn all(mut source: Source) -> Vec<u8> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn generated_bytes_can_be_resumed_anywhere() {
        let open = || Source::open("generate:1000:7", &[]).unwrap();
        let whole = all(open());
        assert_eq!(whole.len(), 1000);
        for at in [0, 1, 8, 513, 999, 1000] {
            let mut source = open();
            source.seek(at).unwrap();
            assert_eq!(all(source), whole[at as usize..], "{at}");
        }
        assert_ne!(whole, all(Source::open("generate:1000:8", &[]).unwrap()));
    }

    #[test]
    fn only_the_operators_folders_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("in")).unwrap();
        fs::write(root.join("in/a"), "a").unwrap();
        fs::write(root.join("b"), "b").unwrap();
        let roots = [root.join("in")];
        let open = |path: &str| Source::open(&format!("file://{}/{path}", root.display()), &roots);
        assert_eq!(all(open("in/a").unwrap()), b"a");
        for path in ["b", "in/../b", "in", "in/nothing"] {
            assert_eq!(open(path).err().unwrap().kind(), io::ErrorKind::NotFound, "{path}");
        }
        for url in ["http://x/", "generate:x", "generate:1:2:3", "generate:1073741825", "a"] {
            let error = Source::open(url, &roots).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{url}");
        }
    }
}
