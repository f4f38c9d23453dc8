//! The arguments of a call as they were given: words, files, stdin.

use std::{
    fs,
    io::{self, Read},
};

use serde_json::{Map, Value};

use crate::{
    args,
    exit::Exit,
    trouble::{Outcome, Trouble},
    values::{self, From, Given, Word},
};

/// The arguments as they were given, read and not yet typed.
#[derive(Debug)]
pub(crate) struct Asked {
    /// What `--json` gave.
    pub(crate) base: Map<String, Value>,
    /// What `key=value` words gave.
    pub(crate) given: Vec<Given>,
}

impl Asked {
    /// Reads everything that the command line refers to.
    ///
    /// # Errors
    /// A word is no `key=value`, or what it refers to cannot be read.
    pub(crate) fn read(args: &args::Call) -> Outcome<Self> {
        let mut stdin = Stdin { is_read: false };
        let base = args.object.as_deref().map(|it| stdin.object(it)).transpose()?;
        let word = |it: &String| values::word(it).map_err(Trouble::usage);
        let words = args.words.iter().map(word).collect::<Outcome<Vec<_>>>()?;
        let given = words.into_iter().map(|it| stdin.given(it)).collect::<Outcome<_>>()?;
        Ok(Self { base: base.unwrap_or_default(), given })
    }
}

/// Stdin, which can be read once.
struct Stdin {
    is_read: bool,
}

impl Stdin {
    fn all(&mut self) -> Outcome<String> {
        if std::mem::replace(&mut self.is_read, true) {
            return Err(Trouble::usage("stdin is named twice and can be read once"));
        }
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Trouble::usage(format!("cannot read text from stdin: {error}")))?;
        Ok(text)
    }

    fn object(&mut self, word: &str) -> Outcome<Map<String, Value>> {
        let text = if word == "-" { self.all()? } else { word.to_owned() };
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(Trouble::usage("--json: expected an object, found another value").help(
                "such as --json '{\"who\": \"Ada\"}'; for the answer as JSON, write -o json",
            )),
            Err(error) => Err(Trouble::usage(format!("--json: expected a JSON object: {error}"))
                .help(
                    "such as --json '{\"who\": \"Ada\"}'; for the answer as JSON, write -o json",
                )),
        }
    }

    fn given(&mut self, word: Word) -> Outcome<Given> {
        let text = match word.from {
            From::Here(text) => text,
            From::Stdin => self.all()?,
            From::File(path) => fs::read_to_string(&path).map_err(|error| {
                let missing = error.kind() == io::ErrorKind::NotFound;
                let exit = if missing { Exit::NotFound } else { Exit::Usage };
                Trouble::new(exit, format!("`{}`: cannot read `{path}`: {error}", word.key))
                    .help(format!("for a text that begins with @, write {}=@@…", word.key))
            })?,
        };
        Ok(Given { key: word.key, is_json: word.is_json, text })
    }
}
