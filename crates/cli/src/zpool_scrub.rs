//! `zpool scrub` and `zpool resilver`.

use admin::request::{PoolResilver, PoolScrub, ScrubAction, ScrubOf};

use crate::opts::Parsed;
use crate::zpool::all_pools;
use crate::{Done, Fail, ask};

/// Seconds of the units that a date is rounded to.
const MINUTE: u64 = 60;
const DAY: u64 = 86_400;

fn usage(why: &str) -> Fail {
    Fail::Usage(why.to_string(), "scrub")
}

/// A date without time, or with hour and minute: its numbers.
fn date(text: &str) -> Option<([u32; 3], Option<[u32; 2]>)> {
    fn numbers<const N: usize>(text: &str, between: char) -> Option<[u32; N]> {
        let all: Vec<u32> = text.split(between).map(|n| n.parse().ok()).collect::<Option<_>>()?;
        all.try_into().ok()
    }
    match text.split_once(' ') {
        None => Some((numbers(text, '-')?, None)),
        Some((day, time)) => Some((numbers(day, '-')?, Some(numbers(time, ':')?))),
    }
}

/// Seconds since 1970 of a date of this time zone; `is_end`: of the end of that minute or day.
fn seconds(text: &str, is_end: bool) -> Result<u64, Fail> {
    let parsed = date(text).and_then(|([year, month, day], time)| {
        let ([hour, minute], unit) = (time.unwrap_or_default(), if time.is_some() { MINUTE } else { DAY });
        let begin = host::local_seconds(i32::try_from(year).ok()?, month, day, hour, minute)?;
        Some(begin + if is_end { unit } else { 0 })
    });
    parsed.ok_or_else(|| usage(&format!("'{text}' is not a date: it must be YYYY-MM-DD or 'YYYY-MM-DD HH:MM'")))
}

/// `zpool scrub`
pub fn scrub(p: &Parsed) -> Done {
    let clash = |a: char, b: char| usage(&format!("invalid option combination: -{a} and -{b} are mutually exclusive"));
    for (a, b) in [('s', 'p'), ('p', 'C'), ('s', 'C'), ('e', 'C')] {
        if p.has(a) && p.has(b) {
            return Err(clash(a, b));
        }
    }
    let action = match (p.has('s'), p.has('p')) {
        (true, _) => ScrubAction::Stop,
        (_, true) => ScrubAction::Pause,
        _ => ScrubAction::Start,
    };
    let from = p.value('S').map(|d| seconds(d, false)).transpose()?;
    let until = p.value('E').map(|d| seconds(d, true)).transpose()?;
    let has_dates = from.is_some() || until.is_some();
    if has_dates && (action != ScrubAction::Start || p.has('C') || p.has('e')) {
        return Err(usage("invalid option combination: start/end date is available only with normal scrub"));
    }
    if let (Some(from), Some(until)) = (from, until)
        && from > until
    {
        return Err(usage("invalid arguments: end date has to be later than start date"));
    }
    if p.has('w') && action != ScrubAction::Start {
        let which = if p.has('s') { 's' } else { 'p' };
        return Err(usage(&format!("invalid option combination: -w cannot be used with -{which}")));
    }
    let pools = match (p.operands.is_empty(), p.has('a')) {
        (true, false) => return Err(usage("missing pool name argument")),
        (true, true) => all_pools()?,
        (false, _) => p.operands.clone(),
    };
    let of = match (p.has('e'), p.has('C'), has_dates) {
        (true, ..) => ScrubOf::Errors,
        (_, true, _) => ScrubOf::SinceLast,
        (.., true) => ScrubOf::Between { from, until },
        _ => ScrubOf::All,
    };
    ask(&PoolScrub { pools, action, wait: p.has('w'), of })
}

/// `zpool resilver`
pub fn resilver(p: &Parsed) -> Done {
    if p.operands.is_empty() {
        return Err(Fail::Usage("missing pool name argument".into(), "resilver"));
    }
    ask(&PoolResilver { pools: p.operands.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_time_zone() {
        let at = |text: &str, is_end| seconds(text, is_end).ok();
        for (day, time) in [("2026-11-20", "17:27"), ("2024-02-29", "00:00"), ("1999-12-31", "23:59")] {
            let minute = at(&format!("{day} {time}"), false).unwrap();
            let t = host::local_time(minute as i64);
            let text = format!("{}-{:02}-{:02} {:02}:{:02}", t.year, t.month, t.day, t.hour, t.minute);
            assert_eq!(text, format!("{day} {time}"));
            assert_eq!((t.second, at(&format!("{day} {time}"), true)), (0, Some(minute + 60)));
            let begin = at(day, false).unwrap();
            assert!(begin <= minute && at(day, true) == Some(begin + 86_400));
        }
        for bad in ["", "2026", "2026-13-01", "2026-02-30", "2026-1-1 24:00", "2026-1-1 1:60", "2026-1-1 1", "x-1-1"] {
            assert_eq!(at(bad, false), None, "{bad}");
        }
    }
}
