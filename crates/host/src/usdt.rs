//! USDT probes: trace events for `bpftrace`, `perf` and `gdb`, which find them in notes of the
//! program file (`.note.stapsdt`, shown by `readelf -n`).
//!
//! A probe is one `nop` and a note with the places of its arguments. Beside it stands a counter
//! (its *semaphore*) that the kernel raises while a tracer is attached: [`wanted`] collects these
//! into groups of events, and only while there are some is there a listener for [`fire`]. So a
//! program without a tracer makes no event. Each probe's first argument is the pool's name as a C
//! string; times are in nanoseconds. docs/probes.md lists them.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU16, Ordering};

use rt::trace::{Event, Groups};

/// A probe with its semaphore: `probe!(SEMAPHORE, name, arguments)`. The layout of the note is that
/// of SystemTap's `sys/sdt.h`, version 3; arguments are unsigned 64-bit numbers in registers.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
macro_rules! probe {
    ($semaphore:ident, $name:literal, $first:expr $(, $arg:expr)* $(,)?) => {
        if $semaphore.load(Ordering::Relaxed) > 0 {
            // SAFETY: one nop; the directives put a note beside the code and change no register,
            // flag or memory.
            unsafe {
                std::arch::asm!(
                    concat!(
                        "990: nop\n",
                        ".pushsection .note.stapsdt,\"?\",\"note\"\n",
                        ".balign 4\n",
                        ".4byte 992f-991f, 994f-993f, 3\n",
                        "991: .asciz \"stapsdt\"\n",
                        "992: .balign 4\n",
                        "993: .8byte 990b\n",
                        ".8byte _.stapsdt.base\n",
                        ".8byte {semaphore}\n",
                        ".asciz \"weir\"\n",
                        ".asciz \"", $name, "\"\n",
                        ".asciz \"8@{}", $(probe!(@also $arg),)* "\"\n",
                        "994: .balign 4\n",
                        ".popsection\n",
                        ".ifndef _.stapsdt.base\n",
                        ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n",
                        ".weak _.stapsdt.base\n",
                        ".hidden _.stapsdt.base\n",
                        "_.stapsdt.base: .space 1\n",
                        ".size _.stapsdt.base, 1\n",
                        ".popsection\n",
                        ".endif",
                    ),
                    in(reg) u64::from($first),
                    $(in(reg) u64::from($arg),)*
                    semaphore = sym $semaphore,
                    options(readonly, nostack, preserves_flags, att_syntax),
                );
            }
        }
    };
    (@also $arg:expr) => { " 8@{}" };
}

/// Elsewhere there are no probes.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
macro_rules! probe {
    ($semaphore:ident, $name:literal, $($arg:expr),* $(,)?) => {
        if $semaphore.load(Ordering::Relaxed) > 0 {
            let _ = ($(u64::from($arg),)*);
        }
    };
}

macro_rules! semaphores {
    ($($semaphore:ident $group:expr;)*) => {
        $(
            // SAFETY: a section of plain writable data, where tools look for semaphores.
            #[unsafe(link_section = ".probes")]
            static $semaphore: AtomicU16 = AtomicU16::new(0);
        )*
        /// The groups of events with a tracer attached.
        pub fn wanted() -> Groups {
            let mut all = Groups(0);
            $(
                if $semaphore.load(Ordering::Relaxed) > 0 {
                    all = all.and($group);
                }
            )*
            all
        }
    };
}

semaphores! {
    TXG Groups::TXG;
    ADMIN Groups::TXG;
    ADMITTED Groups::DELAY;
    ISSUED Groups::QUEUE;
    DONE Groups::IO;
    FLUSHED Groups::IO;
    LOG Groups::LOG;
    FAULT Groups::FAULT;
    DAMAGED Groups::FAULT;
    TURN Groups::TURN;
    OP Groups::OP;
}

/// Passes the probe of an event of the pool `pool`.
#[inline(never)]
pub fn fire(pool: &CStr, event: &Event) {
    let pool = pool.as_ptr() as usize as u64;
    match *event {
        Event::Txg { txg, phase, dirty, limit, of_txg } => {
            probe!(TXG, "txg", pool, txg, phase as u8, dirty, limit, of_txg);
        }
        Event::Admin { txg, waited } => probe!(ADMIN, "admin", pool, txg, waited.0),
        Event::Admitted { txg, waited, delay } => probe!(ADMITTED, "admitted", pool, txg, waited.0, delay.0),
        Event::Issued { leaf, class, write, offset, len, items, queued, active } => {
            // The most used arguments first: bpftrace sees six arguments on x86-64.
            probe!(ISSUED, "issued", pool, leaf, class, write, queued, active, offset, len, items);
        }
        Event::Done { leaf, class, write, len, total, disk, ok } => {
            probe!(DONE, "done", pool, leaf, class, write, len, total.0, disk.0, ok);
        }
        Event::Flushed { leaf, total, ok } => probe!(FLUSHED, "flushed", pool, leaf, total.0, ok),
        Event::Log { objset, phase, bytes, size, waiters, times: t } => {
            probe!(LOG, "log", pool, objset, phase as u8, bytes, size, waiters, t.queue.0, t.write.0, t.flush.0);
        }
        Event::Fault { leaf, kind, class, write, offset, len } => {
            probe!(FAULT, "fault", pool, leaf, kind as u8, class, write, offset, len);
        }
        Event::Damaged { objset, object, level, blkid, forged } => {
            probe!(DAMAGED, "damaged", pool, objset, object, level as u64, blkid, forged);
        }
        Event::Turn { task, id, took, on_cpu } => {
            probe!(TURN, "turn", pool, id, took.0, task.as_ptr() as usize as u64, task.len() as u64, on_cpu.0);
        }
        Event::Op(o) => {
            probe!(OP, "op", pool, o.kind as u8, o.client, o.object, o.took.0, o.len, o.offset, o.dataset);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Nanos;

    use super::*;

    #[test]
    fn probes_are_off_until_somebody_is_attached() {
        assert_eq!(wanted(), Groups(0));
        // As the kernel does when a tracer attaches.
        DONE.fetch_add(1, Ordering::Relaxed);
        assert_eq!(wanted(), Groups::IO);
        let event = Event::Done { leaf: 1, class: 2, write: true, len: 3, total: Nanos(4), disk: Nanos(5), ok: true };
        fire(c"tank", &event);
        fire(c"tank", &Event::Admin { txg: 1, waited: Nanos(2) });
        DONE.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(wanted(), Groups(0));
    }
}
