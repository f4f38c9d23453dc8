//! Durations, sizes, rates and shares: text with a unit, never a bare number.
//!
//! A bare `30` is seconds to one tool and milliseconds to the next, and `MB` is
//! one number to a disk maker and another to a kernel. Both are refused.

use std::{borrow::Cow, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::de::DeValue;

use super::{
    codes::Code,
    read::{Node, Read, Reader},
    report::Problem,
};

/// Why a text is no such quantity, and what would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) message: String,
    /// What was probably meant, if that can be told.
    pub(crate) near: Option<String>,
}

impl Fault {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), near: None }
    }

    fn near(mut self, near: impl Into<String>) -> Self {
        self.near = Some(near.into());
        self
    }
}

/// A quantity that is written as text.
pub(crate) trait Quantity: Sized {
    /// The name of its schema.
    const NAME: &'static str;
    /// How it is written, for messages: `"30s"`, `"250ms"` or `"5m"`.
    const LIKE: &'static str;
    /// The same for editors.
    const PATTERN: &'static str;

    fn parse(text: &str) -> Result<Self, Fault>;
}

/// A stretch of time: `"250ms"`, `"30s"`, `"5m"`, `"2h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) Duration);

/// A number of bytes: `"64KiB"`, `"1MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// Calls per minute: `"120/min"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerMinute(pub(crate) u32);

/// Bytes per second: `"64KiB/s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BytesPerSecond(pub(crate) u64);

/// A share of one core: `"100%"` is one core, `"250%"` two and a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) u32);

/// A time, or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeOrNever(pub(crate) Option<Duration>);

impl Quantity for Time {
    const NAME: &'static str = "Duration";
    const LIKE: &'static str = r#""30s", "250ms" or "5m""#;
    const PATTERN: &'static str = "^[0-9]+(ms|s|m|h)$";

    fn parse(text: &str) -> Result<Self, Fault> {
        let (number, unit) = split(text)?;
        match in_ms(unit) {
            // A u32 of hours fits a u64 of milliseconds.
            Some(ms) => Ok(Self(Duration::from_millis(u64::from(number) * ms))),
            None => Err(wrong_time_unit(text, number, unit)),
        }
    }
}

impl Quantity for Size {
    const NAME: &'static str = "Size";
    const LIKE: &'static str = r#""64KiB", "1MiB" or "2GiB""#;
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)$";

    fn parse(text: &str) -> Result<Self, Fault> {
        let (number, unit) = split(text)?;
        let bytes: u64 = match unit {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(wrong_size_unit(text, number, unit)),
        };
        // A u32 times 2^30 fits a u64.
        Ok(Self(u64::from(number) * bytes))
    }
}

impl Quantity for PerMinute {
    const NAME: &'static str = "CallRate";
    const LIKE: &'static str = r#""120/min""#;
    const PATTERN: &'static str = "^[0-9]+/min$";

    fn parse(text: &str) -> Result<Self, Fault> {
        let (number, unit) = split(text)?;
        let fault = || Fault::new(format!("`{text}`: calls are counted per minute"));
        match unit {
            "/min" => Ok(Self(number)),
            "/m" | "/minute" | "rpm" => Err(fault().near(format!("{number}/min"))),
            "/s" | "/sec" => Err(fault().near(format!("{}/min", u64::from(number) * 60))),
            _ => Err(fault()),
        }
    }
}

impl Quantity for BytesPerSecond {
    const NAME: &'static str = "ByteRate";
    const LIKE: &'static str = r#""64KiB/s""#;
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)/s$";

    fn parse(text: &str) -> Result<Self, Fault> {
        match text.strip_suffix("/s") {
            Some(size) => match Size::parse(size) {
                Ok(Size(bytes)) => Ok(Self(bytes)),
                Err(fault) => Err(Fault { near: fault.near.map(|it| it + "/s"), ..fault }),
            },
            None => {
                let fault = Fault::new(format!("`{text}`: write a size per second"));
                Err(match Size::parse(text) {
                    Ok(_) => fault.near(format!("{text}/s")),
                    Err(_) => fault,
                })
            }
        }
    }
}

impl Quantity for Percent {
    const NAME: &'static str = "Percent";
    const LIKE: &'static str = r#""50%" (of one core)"#;
    const PATTERN: &'static str = "^[0-9]+%$";

    fn parse(text: &str) -> Result<Self, Fault> {
        match split(text)? {
            (number, "%") => Ok(Self(number)),
            (number, "core" | "cores") => {
                let fault = Fault::new(format!("`{text}`: write a share of one core"));
                Err(fault.near(format!("{}%", u64::from(number) * 100)))
            }
            _ => Err(Fault::new(format!("`{text}`: write a share of one core"))),
        }
    }
}

impl Quantity for TimeOrNever {
    const NAME: &'static str = "DurationOrNever";
    const LIKE: &'static str = r#""5m", "30s" or "never""#;
    const PATTERN: &'static str = "^(never|[0-9]+(ms|s|m|h))$";

    fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "never" => Ok(Self(None)),
            "off" | "none" | "no" => {
                Err(Fault::new(format!("`{text}` is no duration")).near("never"))
            }
            _ => Time::parse(text).map(|it| Self(Some(it.0))),
        }
    }
}

/// The digits and what follows them.
fn split(text: &str) -> Result<(u32, &str), Fault> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return Err(match rest.strip_prefix('-') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                Fault::new(format!("`{text}` is less than nothing"))
            }
            _ => Fault::new(format!("`{text}` has no number")),
        });
    }
    let Ok(number) = digits.parse() else {
        return Err(Fault::new(format!("`{text}` is more than anybody can mean")));
    };
    if rest.starts_with(['.', ',']) {
        return Err(Fault::new(format!("`{text}`: write a whole number, in a smaller unit")));
    }
    let unit = rest.trim_start();
    match unit {
        "" => Err(Fault::new(format!("`{text}` has no unit"))),
        _ if unit.len() < rest.len() => {
            Err(Fault::new(format!("`{text}`: write the unit next to the number"))
                .near(format!("{digits}{unit}")))
        }
        _ => Ok((number, unit)),
    }
}

fn in_ms(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    })
}

fn wrong_time_unit(text: &str, number: u32, unit: &str) -> Fault {
    let fault = Fault::new(format!("`{text}`: write the unit as ms, s, m or h"));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "millis" | "msec" | "msecs" | "milliseconds" => "ms",
        "sec" | "secs" | "second" | "seconds" => "s",
        "min" | "mins" | "minute" | "minutes" => "m",
        "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => return fault.near(format!("{}h", u64::from(number) * 24)),
        _ => {
            let near = compound(text).map(in_words);
            return Fault {
                near,
                ..Fault::new(format!("`{text}`: write one number and one unit"))
            };
        }
    };
    fault.near(format!("{number}{unit}"))
}

/// What "1h30m" would be.
fn compound(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit());
        let end = unit.map_or(rest.len(), |it| digits + it);
        let number: u64 = rest[..digits].parse().ok()?;
        ms = ms.checked_add(number.checked_mul(in_ms(&rest[digits..end])?)?)?;
        rest = &rest[end..];
    }
    Some(Duration::from_millis(ms))
}

fn wrong_size_unit(text: &str, number: u32, unit: &str) -> Fault {
    let fault = Fault::new(format!("`{text}`: write the unit as B, KiB, MiB or GiB"));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => "B",
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        _ => return fault,
    };
    fault.near(format!("{number}{unit}"))
}

/// Reads any quantity. Numbers are accepted here only to refuse them well.
fn read<Q: Quantity>(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Q> {
    let fault = match node.get_ref() {
        DeValue::String(text) => match Q::parse(text) {
            Ok(value) => return Some(value),
            Err(fault) => fault,
        },
        DeValue::Integer(number) => Fault::new(format!("`{number}` has no unit")),
        DeValue::Float(number) => Fault::new(format!("`{number}` has no unit")),
        _ => {
            reader.wrong_type(node, &format!("a number and a unit in quotes, such as {}", Q::LIKE));
            return None;
        }
    };
    let span = node.span();
    let label = format!("`{}` is written like {}", reader.key(), Q::LIKE);
    let mut problem = Problem::error(Code::PB0103, fault.message).at(reader.source, &span, label);
    if let Some(near) = fault.near {
        let title = format!("did you mean `{near}`?");
        problem = problem.suggest(reader.source, &span, &format!("\"{near}\""), title);
    }
    reader.note(problem);
    None
}

macro_rules! quantities {
    ($($type:ty)*) => { $(
        impl Read for $type {
            fn read(node: &Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
                read(node, reader)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                <$type>::NAME.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": <$type>::PATTERN,
                    "description": format!("Such as {}.", <$type>::LIKE),
                })
            }
        }
    )* };
}

quantities! { Time Size PerMinute BytesPerSecond Percent TimeOrNever }

/// A duration as it would be written.
pub(crate) fn in_words(time: Duration) -> String {
    let ms = time.as_millis();
    match ms {
        0 => "0s".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

/// A size as it would be written.
pub(crate) fn bytes_in_words(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    UNITS
        .iter()
        .find(|(unit, _)| *unit <= bytes && bytes.is_multiple_of(*unit))
        .map_or_else(|| format!("{bytes}B"), |(unit, word)| format!("{}{word}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<Q: Quantity + std::fmt::Debug>(text: &str, message: &str, near: Option<&str>) {
        let fault = Q::parse(text).unwrap_err();
        assert_eq!((fault.message.as_str(), fault.near.as_deref()), (message, near));
    }

    #[test]
    fn durations() {
        #[rustfmt::skip]
        let table = [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("0s", 0)];
        for (text, ms) in table {
            assert_eq!(Time::parse(text), Ok(Time(Duration::from_millis(ms))), "{text}");
        }
        refused::<Time>("30", "`30` has no unit", None);
        refused::<Time>("30 s", "`30 s`: write the unit next to the number", Some("30s"));
        refused::<Time>("10min", "`10min`: write the unit as ms, s, m or h", Some("10m"));
        refused::<Time>("2d", "`2d`: write the unit as ms, s, m or h", Some("48h"));
        refused::<Time>("1h30m", "`1h30m`: write one number and one unit", Some("90m"));
        refused::<Time>("1x", "`1x`: write one number and one unit", None);
        refused::<Time>("1.5s", "`1.5s`: write a whole number, in a smaller unit", None);
        refused::<Time>("-1s", "`-1s` is less than nothing", None);
        refused::<Time>("soon", "`soon` has no number", None);
        refused::<Time>("", "`` has no number", None);
        refused::<Time>("99999999999s", "`99999999999s` is more than anybody can mean", None);
        refused::<Time>("５s", "`５s` has no number", None);
    }

    #[test]
    fn sizes() {
        #[rustfmt::skip]
        let table = [("7B", 7), ("64KiB", 65_536), ("1MiB", 1 << 20), ("2GiB", 2 << 30),
                     ("4294967295GiB", 4_294_967_295 << 30)];
        for (text, bytes) in table {
            assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
        }
        let unit = "write the unit as B, KiB, MiB or GiB";
        refused::<Size>("128MB", &format!("`128MB`: {unit}"), Some("128MiB"));
        refused::<Size>("1g", &format!("`1g`: {unit}"), Some("1GiB"));
        refused::<Size>("1TiB", &format!("`1TiB`: {unit}"), None);
    }

    #[test]
    fn rates_shares_and_never() {
        assert_eq!(PerMinute::parse("120/min"), Ok(PerMinute(120)));
        refused::<PerMinute>("2/s", "`2/s`: calls are counted per minute", Some("120/min"));
        assert_eq!(BytesPerSecond::parse("64KiB/s"), Ok(BytesPerSecond(65_536)));
        refused::<BytesPerSecond>("64KiB", "`64KiB`: write a size per second", Some("64KiB/s"));
        refused::<BytesPerSecond>(
            "64KB/s",
            "`64KB`: write the unit as B, KiB, MiB or GiB",
            Some("64KiB/s"),
        );
        assert_eq!(Percent::parse("250%"), Ok(Percent(250)));
        refused::<Percent>("2cores", "`2cores`: write a share of one core", Some("200%"));
        assert_eq!(TimeOrNever::parse("never"), Ok(TimeOrNever(None)));
        refused::<TimeOrNever>("off", "`off` is no duration", Some("never"));
    }

    #[test]
    fn what_is_printed_can_be_written() {
        for text in ["250ms", "30s", "5m", "2h", "90m"] {
            assert_eq!(in_words(Time::parse(text).unwrap().0), text);
        }
        for text in ["7B", "64KiB", "1MiB", "2GiB", "1025B"] {
            assert_eq!(bytes_in_words(Size::parse(text).unwrap().0), text);
        }
    }
}
