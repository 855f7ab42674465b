//! The `Range` header, for one range of bytes. What asks for several, or cannot be read, is answered with the whole,
//! as the standard allows; a range behind the end is refused.

use axum::http::{HeaderMap, header};
use std::ops::Range;

/// Which part of a file a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    /// At least one byte.
    Part(Range<u64>),
    /// A range that holds no byte of the file.
    Nothing,
}

pub(crate) fn wanted(headers: &HeaderMap, size: u64) -> Wanted {
    // Answers carry no validator, so a range that depends on one is answered with the whole.
    if headers.contains_key(header::IF_RANGE) {
        return Wanted::All;
    }
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).and_then(parse);
    match range {
        None => Wanted::All,
        Some((Some(first), last)) => {
            let end = last.map_or(size, |last| last.saturating_add(1)).min(size);
            if first < end { Wanted::Part(first..end) } else { Wanted::Nothing }
        }
        Some((None, last)) => match last.unwrap_or(0).min(size) {
            0 => Wanted::Nothing,
            count => Wanted::Part(size - count..size),
        },
    }
}

/// `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-COUNT`.
fn parse(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, range) = text.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") || (first.is_empty() && last.is_empty()) {
        return None;
    }
    let number = |text: &str| match text {
        "" => Some(None),
        digits if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok().map(Some),
        _ => None,
    };
    let (first, last) = (number(first)?, number(last)?);
    let backwards = matches!((first, last), (Some(first), Some(last)) if last < first);
    (!backwards).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str, size: u64) -> Wanted {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, text.parse().unwrap());
        wanted(&headers, size)
    }

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (text, size, want) in [
            ("bytes=0-0", 10, Wanted::Part(0..1)),
            ("bytes=2-4", 10, Wanted::Part(2..5)),
            ("Bytes = 2-4", 10, Wanted::Part(2..5)),
            ("bytes=7-", 10, Wanted::Part(7..10)),
            ("bytes=7-99", 10, Wanted::Part(7..10)),
            ("bytes=-3", 10, Wanted::Part(7..10)),
            ("bytes=-30", 10, Wanted::Part(0..10)),
            ("bytes=10-", 10, Wanted::Nothing),
            ("bytes=-0", 10, Wanted::Nothing),
            ("bytes=0-", 0, Wanted::Nothing),
            ("bytes=5-4", 10, Wanted::All),
            ("bytes=0-1,3-4", 10, Wanted::All),
            ("bytes=-", 10, Wanted::All),
            ("bytes=+1-2", 10, Wanted::All),
            ("lines=1-2", 10, Wanted::All),
            ("nonsense", 10, Wanted::All),
            ("bytes=0-18446744073709551615", 10, Wanted::Part(0..10)),
            ("bytes=0-99999999999999999999999", 10, Wanted::All),
        ] {
            assert_eq!(of(text, size), want, "{text} of {size}");
        }
    }

    #[test]
    fn a_condition_that_cannot_be_judged_gives_the_whole() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, "bytes=0-1".parse().unwrap());
        headers.insert(header::IF_RANGE, "\"x\"".parse().unwrap());
        assert_eq!(wanted(&headers, 10), Wanted::All);
    }

    proptest! {
        #[test]
        fn a_part_lies_within_the_file(text in "bytes=[0-9]{0,3}-[0-9]{0,3}|\\PC{0,20}", size in 0u64..500) {
            if let Ok(value) = text.parse() {
                let mut headers = HeaderMap::new();
                headers.insert(header::RANGE, value);
                if let Wanted::Part(part) = wanted(&headers, size) {
                    prop_assert!(part.start < part.end && part.end <= size);
                }
            }
        }
    }
}
