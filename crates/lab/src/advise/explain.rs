//! An advice in sentences: what to change, what it brings and how sure that is, and why; or to
//! leave everything as it is, and why.
//!
//! Pure functions of an [`Advice`]. The reason is the part of the runs' time ([`crate::parts`])
//! that becomes shorter by most, if that is a tenth of what the operations gain: for a goal about a
//! high percentile its 99th percentile, else its sum for each operation. Nothing is said that no
//! run counted.
//!
//! A recording also says how much can be gained at all. Its clients keep their own pace between
//! operations, so a pool that took no time would have throughput 1 / (1 - w), where w is the share
//! of their time in which they wait for the pool: [`pace`]. What a request waits before the engine
//! reads it is in no recording and counts as theirs, so that is said and not taken for the answer.

use rt::oplog::Recording;
use rt::trace::OpKind;

use super::goal::{Best, Goal};
use super::{Advice, Figure};
use crate::calibrate::LIMITS;
use crate::parts::{self, PARTS};

/// Least share of what the operations gain that a part explains.
const EXPLAINS: f64 = 0.1;
/// Least factor by which a figure differs that is named beside a part.
const DIFFERS: f64 = 1.25;

/// Below so many operations that move data a 99th percentile is a matter of ten of them.
const FEW: usize = 1000;

/// A number with commas between its thousands.
fn grouped(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Microseconds for people.
fn time(us: f64) -> String {
    match us {
        us if us < 9.95 => format!("{us:.1} us"),
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 99_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// The value of a figure.
fn amount(figure: &str, value: f64) -> String {
    match figure {
        "ops_per_s" => grouped(value),
        "bytes_per_s" => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ => time(value),
    }
}

/// The words for a figure, and whether they are plural.
fn words(figure: &str) -> (String, bool) {
    let (of, name) = match (figure.strip_prefix("read_"), figure.strip_prefix("write_")) {
        (Some(name), _) => ("reads", name),
        (_, Some(name)) => ("writes", name),
        _ => ("reads and writes", figure),
    };
    let stat = match name {
        "ops_per_s" => return ("operations a second".into(), true),
        "bytes_per_s" => return ("bytes a second".into(), true),
        "p50_us" => "the median",
        "p90_us" => "the 90th percentile",
        "p99_us" => "the 99th percentile",
        "p999_us" => "the 99.9th percentile",
        "mean_us" => "the mean",
        _ => "the longest",
    };
    (format!("{stat} of the latencies of {of}"), false)
}

/// With a capital letter.
fn begun(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// `a`, `a and b`, `a, b and c`.
fn joined(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// The goal of a load whose clients wait for the pool in this share of their time: throughput, or
/// if they mostly keep their own pace the 99th percentile.
pub fn goal_for(waiting: f64) -> &'static str {
    if waiting < 0.5 { "p99" } else { "throughput" }
}

/// Most that throughput can gain, as a share, if clients wait for the pool in this share of their
/// time.
fn room(waiting: f64) -> f64 {
    1.0 / (1.0 - waiting).max(1e-9) - 1.0
}

/// What to say if throughput is the goal of clients that mostly keep their own pace.
pub fn pace(goal: &Goal, waiting: f64) -> Option<String> {
    let room = room(waiting);
    (matches!(goal.best, Best::Most(_)) && room < 1.0).then(|| {
        format!(
            "Operations are within the pool in {:.1} % of the time of their clients, which keep their own pace in the rest (programs, or the kernel and the processors before a request is read): by this recording throughput gains {:.1} % at most, and a percentile ('--goal p99') is the goal for such a load.",
            waiting * 100.0,
            room * 100.0
        )
    })
}

/// What to say if a recording lost operations.
pub fn losses(lost: u64) -> Option<String> {
    let lost = (lost > 0).then(|| grouped(lost as f64))?;
    Some(format!(
        "{lost} operations were lost, which came faster than they were taken: the load was heavier than what was searched for."
    ))
}

/// Operations that read, write or make durable, of those that worked.
fn moving(recording: &Recording) -> impl Iterator<Item = OpKind> {
    let kinds = recording.ops.iter().filter(|o| o.op.ok).map(|o| o.op.kind);
    kinds.filter(|kind| matches!(kind, OpKind::Read | OpKind::Write | OpKind::Fsync | OpKind::SyncFs))
}

/// Why nothing can be said about a recording of `pool`: nothing was done, or too much was lost.
pub fn unusable(recording: &Recording, pool: &str) -> Option<String> {
    let (ops, lost) = (recording.ops.len() as u64, recording.lost);
    if lost > ops / 10 {
        let (lost, ops) = (grouped(lost as f64), grouped(ops as f64));
        return Some(format!(
            "{lost} operations were lost and {ops} recorded, which is too few for an advice: record for a shorter time, or when less is done"
        ));
    }
    let what = match ops {
        0 => "done",
        _ if moving(recording).next().is_none() => "read or written",
        _ => return None,
    };
    Some(format!(
        "nothing was {what} in the mounts of '{pool}' meanwhile, so there is nothing to advise (volumes are not recorded)"
    ))
}

/// What to say of a goal about operations that were not recorded.
pub fn not_recorded(goal: &Goal, recording: &Recording) -> Option<String> {
    let mut figures = goal.limits.iter().map(|limit| limit.figure.as_str()).chain([goal.figure()]);
    let has = |is_read: bool| moving(recording).any(|kind| (kind == OpKind::Read) == is_read);
    let what = figures.find_map(|figure| match figure {
        f if f.starts_with("read_") && !has(true) => Some("reads"),
        f if f.starts_with("write_") && !has(false) => Some("writes"),
        _ => None,
    })?;
    Some(format!("the goal is about {what}, and none was recorded"))
}

/// What to say if so few operations were recorded that percentiles say little.
pub fn few(recording: &Recording) -> Option<String> {
    let count = moving(recording).count();
    (count < FEW).then(|| format!("Only {count} operations read or wrote: a longer recording makes the advice surer."))
}

impl Advice {
    fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().chain(&self.parts).find(|f| f.name == name)
    }

    /// What to say if the model does not do what the pool did: medians within 25 %, 99th
    /// percentiles within a factor of two.
    pub fn misfit(&self, model: &str) -> Option<String> {
        let both = |name: &str| Some((self.figure(name)?.now, self.figure(&format!("recorded_{name}"))?.now));
        let (median, tail) = (both("p50_us")?, both("p99_us")?);
        let ratio = |(a, b): (f64, f64)| a.max(1e-3) / b.max(1e-3);
        let fits =
            (ratio(median) - 1.0).abs() * 100.0 <= LIMITS.1 && (1.0 / LIMITS.2..=LIMITS.2).contains(&ratio(tail));
        let pair = |(a, b)| format!("{} replayed and {} recorded", time(a), time(b));
        (!fits).then(|| {
            format!(
                "The replay on {model} does not fit the pool: the median of reads and writes is {}, the 99th percentile {}; a model of its devices ('weir lab calibrate', --model) makes the advice surer.",
                pair(median),
                pair(tail)
            )
        })
    }

    /// At most three sentences: what to change, what it brings and how sure that is, and why; or
    /// one, to leave it.
    pub fn sentences(&self) -> Vec<String> {
        match Goal::parse(&self.goal) {
            Ok(goal) if !self.changes.is_empty() => vec![self.what(), self.brings(&goal), self.reason(&goal)],
            Ok(goal) => vec![self.leave(&goal)],
            Err(_) => Vec::new(),
        }
    }

    /// What to change.
    fn what(&self) -> String {
        let one = |c: &super::Advised| {
            let more = match c.name.as_str() {
                "recordsize" => ", which files have that are written or copied after it",
                "layout" => ", which is another pool",
                _ => "",
            };
            format!("{} from {} to {}{more}", c.name, c.before, c.value)
        };
        format!("Change {}.", joined(&self.changes.iter().map(one).collect::<Vec<_>>()))
    }

    /// `better with 7 of 8 seeds`, after the range of the gain if there is one.
    fn sure(&self, best: &Best) -> String {
        let (gain, error) = ((1.0 + self.gain_percent / 100.0).max(1e-9).ln(), self.error_percent / 100.0);
        let share = |log: f64| match best {
            Best::Most(_) => (log.exp() - 1.0) * 100.0,
            Best::Least(_) => (1.0 - (-log).exp()) * 100.0,
        };
        let seeds = format!("better with {} of {} seeds", self.better, self.seeds);
        match (share(gain - error), share(gain + error)) {
            (least, most) if least > 0.0 => {
                format!("by {least:.1} to {most:.1} %, two standard errors either way; {seeds}")
            }
            _ => seeds,
        }
    }

    /// What it brings, and how sure that is.
    fn brings(&self, goal: &Goal) -> String {
        let mut parts = Vec::new();
        let (held, missed): (Vec<_>, Vec<_>) =
            self.missed_now.iter().cloned().partition(|limit| !self.missed_then.contains(limit));
        let limits = |which: &[String], one: &str, more: &str| match which.len() {
            1 => format!("the limit {}{one}", which[0]),
            _ => format!("the limits {}{more}", joined(which)),
        };
        if !held.is_empty() {
            parts.push(limits(&held, ", missed now, holds then", ", missed now, hold then"));
        }
        if !missed.is_empty() {
            parts.push(limits(&missed, " is missed then too", " are missed then too"));
        }
        let (name, many) = words(goal.figure());
        let (now, then) = self.figure(goal.figure()).map_or((0.0, 0.0), |f| (f.now, f.then));
        let verb = match (then >= now, many) {
            (true, true) => "rise",
            (true, false) => "rises",
            (false, true) => "fall",
            (false, false) => "falls",
        };
        let [now, then] = [now, then].map(|value| amount(goal.figure(), value));
        parts.push(format!("{name} {verb} from {now} to {then} ({})", self.sure(&goal.best)));
        begun(&format!("{}.", parts.join("; ")))
    }

    /// Why: the part of the time that becomes shorter by most, and what is counted beside it.
    fn reason(&self, goal: &Goal) -> String {
        // A limit that holds only then counts before the rest.
        let held =
            goal.limits.iter().find(|l| self.missed_now.contains(&l.text) && !self.missed_then.contains(&l.text));
        let figure = held.map_or(goal.figure(), |limit| &limit.figure);
        let is_tail = ["p90", "p99", "max"].iter().any(|tail| figure.contains(tail));
        let (kind, how) = match is_tail {
            true => ("p99_us", "99th percentiles"),
            false => ("op_us", "on average for each operation"),
        };
        let whole = if figure.ends_with("_us") { figure } else { "mean_us" };
        let won = self.figure(whole).map_or(0.0, |f| f.now - f.then);
        let counts = |name: &str| !figure.starts_with("read_") || name.starts_with("read") || name == "ahead";
        let shorter = PARTS.iter().filter(|(name, _)| counts(name)).filter_map(|(name, phrase)| {
            let f = self.figure(&format!("{name}.{kind}"))?;
            let less = f.now - f.then;
            (less > EXPLAINS * f.now && less > EXPLAINS * won).then_some((less, *name, *phrase, f))
        });
        let most = shorter.max_by(|a, b| a.0.total_cmp(&b.0));
        let at_devices = most.is_some_and(|(_, name, ..)| name != "throttle");
        match (most, self.beside(at_devices)) {
            (Some((_, _, phrase, f)), beside) => {
                let spans = format!("{} in place of {}", time(f.then), time(f.now));
                let beside = beside.map_or(String::new(), |text| format!(", and {text}"));
                format!("The reason: {} ({how}){beside}.", phrase.replace("{}", &spans))
            }
            (None, Some(beside)) => format!("The reason: {beside}."),
            (None, None) => "No part that the runs count (throttle, log, queues, devices) has a tenth of that.".into(),
        }
    }

    /// The figure of the devices and txgs that differs by most.
    fn beside(&self, at_devices: bool) -> Option<String> {
        let texts = [
            (parts::DEPTH, 1.0, "# asynchronous writes are at a device whenever one is issued"),
            (parts::READ, 0.05, "devices read # bytes for each byte that clients read or write"),
            (parts::WRITTEN, 0.05, "devices write # bytes for each byte that clients read or write"),
            (parts::TXGS, 0.05, "# txgs a second come to the disk"),
        ];
        let differ = texts.into_iter().filter(|(name, ..)| at_devices || *name != parts::DEPTH);
        let factor = differ.filter_map(|(name, least, text)| {
            let f = self.figure(name)?;
            let (small, large) = (f.now.min(f.then), f.now.max(f.then));
            let factor = large / small.max(least / 10.0);
            (large >= least && factor >= DIFFERS).then_some((factor, text, f))
        });
        let (_, text, f) = factor.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(text.replace('#', &format!("{:.2} in place of {:.2}", f.then, f.now)))
    }

    /// Why nothing is to change.
    fn leave(&self, goal: &Goal) -> String {
        let tried = format!("the {} changes that were tried", self.tried.len());
        if !self.missed_now.is_empty() {
            let limits = goal.limits.iter().filter(|limit| self.missed_now.contains(&limit.text));
            let one = |limit: &super::goal::Limit| {
                let now = self.figure(&limit.figure).map_or(0.0, |f| f.now);
                format!("{} is missed with {}", limit.text, time(now))
            };
            let missed = joined(&limits.map(one).collect::<Vec<_>>());
            return format!("Leave it: {missed}, and none of {tried} surely comes closer.");
        }
        let (name, many) = words(goal.figure());
        if self.best_found == "as it is" || self.gain_percent < 0.1 {
            return format!("Leave it: none of {tried} makes {name} better.");
        }
        let (gain, what) = match &goal.best {
            Best::Most(_) => (self.gain_percent, "higher"),
            Best::Least(_) => ((1.0 - 1.0 / (1.0 + self.gain_percent / 100.0)) * 100.0, "lower"),
        };
        let they = if many { "operations a second" } else { &name };
        format!(
            "Leave it: the best of {tried}, {}, makes {they} {gain:.1} % {what} (two standard errors: {:.1} points; better with {} of {} seeds), and only 3 % that are sure are worth a change.",
            self.best_found, self.error_percent, self.better, self.seeds
        )
    }
}

#[cfg(test)]
mod tests {
    use base::Nanos;
    use rt::oplog::OpRecord;
    use rt::trace::FsOp;

    use super::super::{Advised, Attempt};
    use super::*;

    /// An advice about these figures: name, now, then.
    fn advice(goal: &str, changes: &[(&str, &str, &str)], figures: &[(&str, f64, f64)]) -> Advice {
        let text = |t: &str| t.to_string();
        let advised = |&(name, before, value): &(&str, &str, &str)| Advised {
            name: text(name),
            before: text(before),
            value: text(value),
            cost: String::new(),
            adds_percent: 1.0,
            needed_for: Vec::new(),
            lines: Vec::new(),
        };
        let attempt = || Attempt { name: text("a=1"), gain_percent: 0.0, misses: Vec::new(), seeds: 1 };
        Advice {
            goal: text(goal),
            missed_now: Vec::new(),
            missed_then: Vec::new(),
            changes: changes.iter().map(advised).collect(),
            best_found: text("a=1"),
            gain_percent: 100.0,
            error_percent: 5.0,
            better: 8,
            seeds: 8,
            runs: 60,
            figures: figures.iter().map(|&(name, now, then)| Figure { name: text(name), now, then }).collect(),
            parts: Vec::new(),
            tried: (0..31).map(|_| attempt()).collect(),
        }
    }

    const TIMEOUT: (&str, &str, &str) = ("zfs_txg_timeout", "5", "15");

    #[test]
    fn a_change_has_three_sentences() {
        let mut a = advice(
            "write p99",
            &[TIMEOUT, ("recordsize", "131072", "8192")],
            &[
                ("write_p99_us", 7800.0, 3900.0),
                ("throttle.p99_us", 6000.0, 3000.0),
                ("log_write.p99_us", 900.0, 800.0),
                ("read_disk.p99_us", 9000.0, 9000.0),
                (parts::DEPTH, 2.0, 9.0),
                (parts::WRITTEN, 15.84, 1.5),
            ],
        );
        let said = a.sentences();
        let want = [
            "Change zfs_txg_timeout from 5 to 15 and recordsize from 131072 to 8192, which files have that are written or copied after it.",
            "The 99th percentile of the latencies of writes falls from 7.8 ms to 3.9 ms (by 47.4 to 52.4 %, two standard errors either way; better with 8 of 8 seeds).",
            "The reason: writes wait 3.0 ms in place of 6.0 ms for the write throttle (99th percentiles), and devices write 1.50 in place of 15.84 bytes for each byte that clients read or write.",
        ];
        assert_eq!(said, want);
        // Throughput: sums for each operation, and what is at the devices.
        a.goal = "throughput".into();
        a.figures = advice(
            "",
            &[],
            &[
                ("ops_per_s", 12_790.0, 25_580.0),
                ("mean_us", 600.0, 300.0),
                ("throttle.op_us", 100.0, 95.0),
                ("read_queue.op_us", 350.0, 60.0),
                (parts::DEPTH, 9.0, 2.0),
            ],
        )
        .figures;
        let said = a.sentences();
        let want = [
            "Operations a second rise from 12,790 to 25,580 (by 90.2 to 110.3 %, two standard errors either way; better with 8 of 8 seeds).",
            "The reason: reads wait 60 us in place of 350 us in the queues of the devices (on average for each operation), and 2.00 in place of 9.00 asynchronous writes are at a device whenever one is issued.",
        ];
        assert_eq!(said[1..], want);
    }

    #[test]
    fn a_reason_is_counted_or_there_is_none() {
        let mut a = advice(
            "read p99",
            &[TIMEOUT],
            &[
                ("read_p99_us", 1000.0, 500.0),
                // Not about reads; too little of its own; too little of the whole.
                ("throttle.p99_us", 6000.0, 0.0),
                ("read_disk.p99_us", 4000.0, 3800.0),
                ("read_queue.p99_us", 40.0, 0.0),
                (parts::TXGS, 1.0, 0.9),
            ],
        );
        let none = "No part that the runs count (throttle, log, queues, devices) has a tenth of that.";
        assert_eq!(a.sentences()[2], none);
        a.figures.push(Figure { name: parts::READ.into(), now: 0.0, then: 2.0 });
        assert_eq!(
            a.sentences()[2],
            "The reason: devices read 2.00 in place of 0.00 bytes for each byte that clients read or write."
        );
    }

    #[test]
    fn limits_come_first() {
        let figures = [("p99_us", 7800.0, 3900.0), ("ops_per_s", 900.0, 850.0), ("log_flush.p99_us", 5000.0, 1000.0)];
        let mut a = advice("p99<5ms,throughput", &[TIMEOUT], &figures);
        a.missed_now = vec!["p99<5ms".into()];
        a.gain_percent = -5.6;
        let said = a.sentences();
        assert_eq!(
            said[1],
            "The limit p99<5ms, missed now, holds then; operations a second fall from 900 to 850 (better with 8 of 8 seeds)."
        );
        assert!(said[2].contains("flushes behind blocks of the intent log take 1.0 ms in place of 5.0 ms (99th"));
        a.missed_then = a.missed_now.clone();
        assert!(a.sentences()[1].starts_with("The limit p99<5ms is missed then too; operations a second fall"));
        // A goal that cannot be met.
        a.changes.clear();
        let want =
            "Leave it: p99<5ms is missed with 7.8 ms, and none of the 31 changes that were tried surely comes closer.";
        assert_eq!(a.sentences(), [want]);
    }

    #[test]
    fn leaving_it_has_a_reason() {
        let mut a = advice("p99", &[], &[("p99_us", 100.0, 100.0)]);
        (a.gain_percent, a.error_percent, a.better) = (2.0, 3.5, 5);
        let want = "Leave it: the best of the 31 changes that were tried, a=1, makes the 99th percentile of the latencies of reads and writes 2.0 % lower (two standard errors: 3.5 points; better with 5 of 8 seeds), and only 3 % that are sure are worth a change.";
        assert_eq!(a.sentences(), [want]);
        a.gain_percent = 0.0;
        let want = "Leave it: none of the 31 changes that were tried makes the 99th percentile of the latencies of reads and writes better.";
        assert_eq!(a.sentences(), [want]);
    }

    #[test]
    fn clients_that_keep_their_pace_gain_little_throughput() {
        let of = |goal: &str, waiting| pace(&Goal::parse(goal).unwrap(), waiting);
        let said = of("bytes", 0.2).unwrap();
        assert!(
            said.starts_with("Operations are within the pool in 20.0 % of") && said.contains("gains 25.0 % at"),
            "{said}"
        );
        assert!(of("throughput", 0.01).is_some() && of("p99<5ms", 0.01).is_some(), "throughput is what counts then");
        assert_eq!((of("p99", 0.01), of("throughput", 0.6)), (None, None));
        assert_eq!((goal_for(0.1), goal_for(0.9), goal_for(1.0)), ("p99", "throughput", "throughput"));
    }

    #[test]
    fn what_makes_an_advice_unsure_is_said() {
        assert_eq!(losses(0), None);
        assert!(losses(1234).unwrap().starts_with("1,234 operations were lost"));
        let mut a = advice("p99", &[], &[("p50_us", 100.0, 100.0), ("p99_us", 900.0, 900.0)]);
        assert_eq!(a.misfit("nvme"), None, "a workload has no recording");
        for (median, tail, fits) in [(90.0, 500.0, true), (5.0, 900.0, false), (100.0, 100.0, false)] {
            a.parts = [("recorded_p50_us", median), ("recorded_p99_us", tail)]
                .map(|(name, now)| Figure { name: name.into(), now, then: now })
                .to_vec();
            assert_eq!(a.misfit("nvme").is_none(), fits, "{median} {tail}");
        }
        let said = a.misfit("nvme").unwrap();
        assert!(said.contains("on nvme does") && said.contains("100 us replayed and 100 us recorded"), "{said}");
    }

    #[test]
    fn recordings_that_say_too_little_are_refused() {
        let recording = |kinds: &[OpKind], lost| {
            let op = |&kind: &OpKind| {
                let (ids, range) = ((5, 1, 9, 0), (0, 1));
                let ((client, dataset, object, target), (offset, len)) = (ids, range);
                let took = Nanos::from_us(1);
                let op = FsOp { kind, client, dataset, object, target, offset, len, sync: false, ok: true, took };
                OpRecord { end: Nanos::from_us(2), op }
            };
            Recording { ops: kinds.iter().map(op).collect(), lost, ..Recording::default() }
        };
        let why = |kinds: &[OpKind], lost| unusable(&recording(kinds, lost), "tank").unwrap_or_default();
        assert!(why(&[], 0).starts_with("nothing was done in the mounts of 'tank'"));
        assert!(why(&[OpKind::GetAttr], 0).starts_with("nothing was read or written"));
        assert!(why(&[OpKind::Read; 10], 2).starts_with("2 operations were lost and 10 recorded"));
        assert_eq!(why(&[OpKind::Read; 10], 1), "");
        let reads = recording(&[OpKind::Read; 2], 0);
        let missing = |goal: &str| not_recorded(&Goal::parse(goal).unwrap(), &reads);
        assert_eq!(missing("p99<5ms,write p50").unwrap(), "the goal is about writes, and none was recorded");
        assert_eq!(missing("read p99<5ms"), None);
        assert_eq!(few(&reads).unwrap(), "Only 2 operations read or wrote: a longer recording makes the advice surer.");
        assert_eq!(few(&recording(&[OpKind::Write; 1000], 0)), None);
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([7.0, 999.0, 1000.0, 1_234_567.0].map(grouped), ["7", "999", "1,000", "1,234,567"]);
        let times = [0.0, 9.94, 820.0, 7800.0, 120_000.0, 3_100_000.0].map(time);
        assert_eq!(times, ["0.0 us", "9.9 us", "820 us", "7.8 ms", "120 ms", "3.10 s"]);
    }
}
