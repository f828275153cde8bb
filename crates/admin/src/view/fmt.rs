//! The output format of numbers and times.

use base::NiceNum;

/// Bytes as `zfs` prints them: `0B`, `512B`, `1.5K`.
pub fn bytes(n: u64) -> String {
    if n < 1024 { format!("{n}B") } else { NiceNum(n).to_string() }
}

/// A number as `zpool` prints it: `0`, `512`, `1.5K`.
pub fn num(n: u64) -> String {
    NiceNum(n).to_string()
}

/// A ratio in hundredths: `1.46`.
pub fn ratio(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Hundredths of `a / b`, 100 if either is 0.
pub fn hundredths(a: u64, b: u64) -> u64 {
    if a == 0 || b == 0 { 100 } else { (u128::from(a) * 100 / u128::from(b)).min(u128::from(u64::MAX)) as u64 }
}

/// A moment as `zfs get creation` prints it: `Fri Nov 20 17:27 2026`.
pub fn date(secs: u64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let t = host::local_time(i64::try_from(secs).unwrap_or(0));
    let day = DAYS[t.weekday as usize % 7];
    let month = MONTHS[(t.month.max(1) - 1) as usize % 12];
    format!("{day} {month} {:2} {:2}:{:02} {}", t.day, t.hour, t.minute, t.year)
}

/// The same with seconds, as `zfs get snapshots_changed` prints it: `Fri Nov 20  7:27:05 2026`.
pub fn date_with_seconds(secs: u64) -> String {
    let (date, t) = (date(secs), host::local_time(i64::try_from(secs).unwrap_or(0)));
    let (minutes, year) = date.split_at(date.len().saturating_sub(t.year.to_string().len() + 1));
    format!("{minutes}:{:02}{year}", t.second)
}

/// A moment as `ctime` has it: `Fri Nov 20 17:27:05 2026`.
pub fn moment(secs: u64) -> String {
    let t = host::local_time(i64::try_from(secs).unwrap_or(0));
    let date = date(secs);
    let (day, year) = (date.get(..10).unwrap_or_default(), t.year);
    format!("{day} {:02}:{:02}:{:02} {year}", t.hour, t.minute, t.second)
}

/// A moment as `zpool history` prints it: `2026-11-20.17:27:05`, in the time zone of this process.
pub fn stamp(secs: u64) -> String {
    let t = host::local_time(i64::try_from(secs.min(1 << 40)).unwrap_or(0));
    format!("{}-{:02}-{:02}.{:02}:{:02}:{:02}", t.year, t.month, t.day, t.hour, t.minute, t.second)
}

/// A span as `zpool status` prints it: `00:01:02`, `3 days 00:01:02`.
pub fn span(secs: u64) -> String {
    let (days, h, m, s) = (secs / 86_400, secs / 3600 % 24, secs / 60 % 60, secs % 60);
    if days > 0 { format!("{days} days {h:02}:{m:02}:{s:02}") } else { format!("{h:02}:{m:02}:{s:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_openzfs() {
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(512), "512B");
        assert_eq!(bytes(1536), "1.50K");
        assert_eq!(num(0), "0");
        assert_eq!(ratio(hundredths(146, 100)), "1.46");
        assert_eq!(ratio(hundredths(0, 100)), "1.00");
        assert_eq!(hundredths(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn spans_have_the_layout_of_zpool_status() {
        assert_eq!(span(62), "00:01:02");
        assert_eq!(span(3 * 86_400 + 3600), "3 days 01:00:00");
        assert_eq!(moment(1_795_195_647).len(), "Fri Nov 20 17:27:05 2026".len());
    }

    #[test]
    fn dates_have_the_layout_of_zfs_get() {
        let text = date(1_795_195_647);
        assert_eq!(text.len(), "Fri Nov 20 17:27 2026".len());
        assert!(text.ends_with(" 2026"), "{text}");
    }
}
