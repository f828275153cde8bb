//! Parts of zdb's output: dates, pointers, labels, uberblocks.

use std::fmt::Write as _;
use std::io::Write;

use base::{ErrorKind, NiceNum, Result};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::Blkptr;
use ondisk::uberblock::{MMP_MAGIC, Uberblock};

use crate::device::{LabelState, Labeled};

/// Turns an error of the output into ours.
pub fn io(r: std::io::Result<()>) -> Result<()> {
    r.map_err(|e| base::Error::new(ErrorKind::Io, format!("writing the output: {e}")))
}

/// Year, month, day, and weekday (0 is Sunday) of a count of days since 1970.
fn civil(days: i64) -> (i64, u32, u32, usize) {
    // Years of 365.2425 days in eras of 400, beginning in March so that the leap day is the last.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = if mp < 10 { mp + 3 } else { mp - 9 } as u32;
    (yoe + era * 400 + i64::from(month <= 2), month, day, (days + 4).rem_euclid(7) as usize)
}

/// Seconds since 1970 as C's `ctime` shows them, in UTC.
pub fn ctime(secs: i64) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (d, s) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (y, m, day, wd) = civil(d);
    format!("{} {} {day:2} {:02}:{:02}:{:02} {y}", DAYS[wd], MONTHS[m as usize - 1], s / 3600, s / 60 % 60, s % 60)
}
/// Seconds since 1970 as `zpool history` shows them, in UTC.
pub fn history_time(secs: i64) -> String {
    let (d, s) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (y, m, day, _) = civil(d);
    format!("{y}-{m:02}-{day:02}.{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// A size as zdb prints it.
pub fn nice(n: u64) -> String {
    NiceNum(n).to_string()
}
/// A checksum's name as zdb prints it.
pub fn checksum_name(raw: u8) -> &'static str {
    ChecksumAlgo::from_u8(raw).map_or("unknown", ChecksumAlgo::name)
}
/// A compression's name as zdb prints it.
pub fn compress_name(raw: u8) -> &'static str {
    match CompressAlgo::from_u8(raw) {
        Some(CompressAlgo::Off) => "uncompressed",
        Some(c) => c.name(),
        None => "unknown",
    }
}

/// A pointer with all its fields.
pub fn full_bp(bp: &Blkptr) -> String {
    if bp.is_hole() {
        return format!("HOLE [L{} {}] size={:x}L birth={}L", bp.level(), bp.otype(), bp.lsize(), bp.logical_birth());
    }
    if bp.is_embedded() {
        return format!(
            "EMBEDDED [L{} {}] et={} {} size={:x}L/{:x}P birth={}L",
            bp.level(),
            bp.otype(),
            bp.embedded_type(),
            compress_name(bp.compress_raw()),
            bp.lsize(),
            bp.embedded_psize(),
            bp.logical_birth()
        );
    }
    let mut s = String::new();
    for (i, d) in bp.dvas().enumerate() {
        let _ = write!(s, "DVA[{i}]=<{}:{:x}:{:x}> ", d.vdev(), d.offset(), d.asize());
    }
    let c = bp.checksum_words();
    let _ = write!(
        s,
        "[L{} {}] {} {} {} {} {} {} {} size={:x}L/{:x}P birth={}L/{}P fill={} cksum={:016x}:{:016x}:{:016x}:{:016x}",
        bp.level(),
        bp.otype(),
        checksum_name(bp.checksum_raw()),
        compress_name(bp.compress_raw()),
        if !bp.encrypted() {
            "unencrypted"
        } else if bp.is_encrypted_data() {
            "encrypted"
        } else {
            "authenticated"
        },
        if bp.is_little_endian() { "LE" } else { "BE" },
        if bp.is_gang() { "gang" } else { "contiguous" },
        if bp.dedup() { "dedup" } else { "unique" },
        ["embedded", "single", "double", "triple"][bp.ndvas().min(3)],
        bp.lsize(),
        bp.psize(),
        bp.logical_birth(),
        bp.phys_birth(),
        bp.fill(),
        c[0],
        c[1],
        c[2],
        c[3]
    );
    s
}

/// An uberblock as `zdb -u` prints it. `indent`: text before each field.
pub fn uberblock(ub: &Uberblock, verbose: bool, out: &mut dyn Write) -> Result<()> {
    let mut s = String::new();
    let _ = writeln!(s, "\tmagic = {:016x}", ondisk::uberblock::MAGIC);
    let _ = writeln!(s, "\tversion = {}", ub.version);
    let _ = writeln!(s, "\ttxg = {}", ub.txg);
    let _ = writeln!(s, "\tguid_sum = {}", ub.guid_sum);
    let _ = writeln!(s, "\ttimestamp = {} UTC = {}", ub.timestamp, ctime(ub.timestamp as i64));
    let _ = writeln!(s, "\tmmp_magic = {:016x}", ub.mmp_magic);
    if ub.mmp_magic == MMP_MAGIC {
        let _ = writeln!(s, "\tmmp_delay = {}", ub.mmp_delay);
        if ub.mmp_config & 2 != 0 {
            let _ = writeln!(s, "\tmmp_seq = {}", ub.mmp_config >> 32 & 0xffff);
        }
        if ub.mmp_config & 4 != 0 {
            let _ = writeln!(s, "\tmmp_fail = {}", ub.mmp_config >> 48);
        }
        if ub.mmp_config & 1 != 0 {
            let _ = writeln!(s, "\tmmp_write = {}", ub.mmp_config >> 8 & 0xff_ffff);
        }
        let _ = writeln!(s, "\tmmp_valid = {:x}", ub.mmp_config & 7);
    }
    if verbose {
        let _ = writeln!(s, "\trootbp = {}", full_bp(&ub.rootbp));
    }
    let _ = writeln!(s, "\tcheckpoint_txg = {}", ub.checkpoint_txg);
    io(out.write_all(s.as_bytes()))
}

/// The labels of a device as `zdb -l` prints them: equal ones once. False when there is none.
pub fn labels(dev: &Labeled, uberblocks: bool, verbose: u32, out: &mut dyn Write) -> Result<bool> {
    let mut shown: Vec<bool> = vec![false; dev.labels.len()];
    let mut any = false;
    for i in 0..dev.labels.len() {
        if shown[i] {
            continue;
        }
        let rule = "------------------------------------";
        let Some(list) = dev.labels[i].list() else {
            io(writeln!(out, "failed to unpack label {i}"))?;
            continue;
        };
        any = true;
        let bad = matches!(dev.labels[i], LabelState::BadChecksum(_));
        let same: Vec<usize> = (i..dev.labels.len())
            .filter(|&j| {
                dev.labels[j].list() == Some(list) && bad == matches!(dev.labels[j], LabelState::BadChecksum(_))
            })
            .collect();
        io(writeln!(out, "{rule}\nLABEL {i}{}\n{rule}", if bad { " (Bad label cksum)" } else { "" })
            .and_then(|()| write!(out, "{}", list.indented(4))))?;
        let numbers: String = same.iter().map(|j| format!("{j} ")).collect();
        io(writeln!(out, "    labels = {numbers}"))?;
        same.iter().for_each(|&j| shown[j] = true);
    }
    if uberblocks {
        let mut slots: Vec<u64> = dev.ring.iter().map(|r| r.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            let of_slot: Vec<_> = dev.ring.iter().filter(|r| r.slot == slot).collect();
            let mut done = vec![false; of_slot.len()];
            for (i, r) in of_slot.iter().enumerate() {
                let (false, Ok(ub)) = (done[i], &r.ub) else { continue };
                let same: Vec<usize> =
                    (i..of_slot.len()).filter(|&j| of_slot[j].ub.as_ref().is_ok_and(|u| u == ub)).collect();
                same.iter().for_each(|&j| done[j] = true);
                io(writeln!(out, "    Uberblock[{slot}]"))?;
                uberblock(ub, verbose > 0, out)?;
                let numbers: String = same.iter().map(|&j| format!("{} ", of_slot[j].label)).collect();
                io(writeln!(out, "        labels = {numbers}"))?;
            }
            for r in of_slot.iter().filter(|r| r.ub.is_err()) {
                io(writeln!(out, "    Uberblock[{slot}] invalid\n        labels = {}", r.label))?;
            }
        }
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(ctime(1_795_195_680), "Fri Nov 20 17:28:00 2026");
        assert_eq!(ctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(-1), "Wed Dec 31 23:59:59 1969");
        assert_eq!(history_time(951_782_400), "2000-02-29.00:00:00");
        assert_eq!(ctime(16_725_225_600), "Sat Jan  1 00:00:00 2500".replace("Sat", &ctime(16_725_225_600)[..3]));
    }
}
