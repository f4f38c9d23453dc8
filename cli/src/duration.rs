//! Times as people write them: a number and a unit.

use std::time::Duration;

/// Reads `30s`, `250ms`, `5m`, `1h` or `1.5s`; more than zero and at most a day.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let Some(number) = number.parse::<f64>().ok().filter(|_| plain) else {
        return Err("expected a number and a unit, such as 30s, 250ms or 5m".into());
    };
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "" => return Err(format!("expected a unit, such as {text}s for seconds or {text}ms")),
        _ => return Err(format!("expected ms, s, m or h as the unit, found {unit:?}")),
    };
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("expected at least 1ms and at most 24h".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        #[rustfmt::skip]
        let table = [
            ("30s", 30_000), ("250ms", 250), ("5m", 300_000), ("1h", 3_600_000), ("1.5s", 1500),
            ("24h", 86_400_000), ("1ms", 1),
        ];
        for (text, ms) in table {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn anything_else_says_what_to_write() {
        #[rustfmt::skip]
        let table = [
            ("30", "30s for seconds"), ("s", "a number"), ("", "a number"), ("-1s", "a number"),
            ("5min", "the unit, found \"min\""), ("0s", "at least"), ("25h", "at most"),
            ("1e3s", "the unit"), ("infs", "a number"), ("1.2.3s", "a number"), ("9µs", "a number"),
        ];
        for (text, expected) in table {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
