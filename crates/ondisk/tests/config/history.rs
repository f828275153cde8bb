use base::{ObjectId, Txg};
use ondisk::history::{self, HistoryPhys, Origin, Records};
use ondisk::nvlist::NvList;
use proptest::prelude::*;

use crate::{golden, mutations};

#[test]
fn real_records_say_what_zdb_says() {
    let l = NvList::decode(&golden("history-command.hex")).unwrap();
    assert_eq!(l.str("history command"), Some("zfs snapshot tank/files@one"));
    let origin = Origin {
        time: l.u64("history time").unwrap(),
        who: l.u64("history who").unwrap(),
        zone: l.str("history zone").unwrap(),
        hostname: l.str("history hostname").unwrap(),
    };
    let ours = history::command_record("zfs snapshot tank/files@one", origin);
    assert_eq!(ours.encode_native(), golden("history-command.hex"));

    let l = NvList::decode(&golden("history-event.hex")).unwrap();
    let origin =
        Origin { time: l.u64("history time").unwrap(), hostname: l.str("history hostname").unwrap(), ..origin };
    let dataset = (l.str("dsname").unwrap(), ObjectId(l.u64("dsid").unwrap()));
    let ours = history::event_record(
        l.str("internal_name").unwrap(),
        l.str("history internal str").unwrap(),
        Txg(l.u64("history txg").unwrap()),
        Some(dataset),
        origin,
    );
    assert_eq!(ours.encode_native(), golden("history-event.hex"));

    let l = NvList::decode(&golden("history-ioctl.hex")).unwrap();
    assert!(l.list("in_nvl").unwrap().contains("props"));
}

#[test]
fn bonus_of_a_real_pool() {
    let b = golden("history-bonus.hex");
    let h = HistoryPhys::parse(&b).unwrap();
    assert_eq!(h.phys_max_off, HistoryPhys::new(251_658_240).phys_max_off);
    assert_eq!((h.pool_create_len, h.bof, h.records_lost), (9688, 9688, 0));
    assert_eq!(h.to_bytes()[..], b[..]);
    assert_eq!(HistoryPhys::new(0).phys_max_off, 128 << 10);
    assert_eq!(HistoryPhys::new(u64::MAX).phys_max_off, 1 << 30);
}

#[test]
fn hostile_bonuses_are_refused() {
    let good = HistoryPhys { pool_create_len: 100, phys_max_off: 1000, bof: 100, eof: 900, records_lost: 0 };
    assert_eq!(HistoryPhys::parse(&good.to_bytes()).unwrap(), good);
    for bad in [
        HistoryPhys { phys_max_off: 0, ..good },
        HistoryPhys { phys_max_off: 2 << 30, ..good },
        HistoryPhys { pool_create_len: 1000, ..good },
        HistoryPhys { bof: 99, ..good },
        HistoryPhys { eof: 99, ..good },
        HistoryPhys { eof: 1001, ..good },
        HistoryPhys { bof: u64::MAX, eof: u64::MAX - 1, ..good },
    ] {
        assert!(HistoryPhys::parse(&bad.to_bytes()).is_err(), "{bad:?}");
    }
    assert!(HistoryPhys::parse(&[0; 39]).is_err());
}

#[test]
fn records_end_at_damage() {
    let r = history::command_record("zpool create x", Origin { time: 1, who: 0, zone: "linux", hostname: "h" });
    let mut log = history::encode_record(&r);
    let one = log.len();
    log.extend(history::encode_record(&r));
    let mut it = Records::new(&log[..log.len() - 1]);
    assert_eq!(it.next().unwrap().unwrap(), r);
    assert!(it.next().is_none());
    assert_eq!(it.consumed(), one);
    for (seed, bad) in mutations(&log, 1, 2000).enumerate() {
        let mut n = 0;
        for record in Records::new(&bad) {
            n += 1;
            if record.is_err() {
                assert!(n <= 2, "{seed}");
            }
        }
        assert!(n <= 60);
    }
}

proptest! {
    /// The ring against a model that keeps every record: the create record and the newest ones
    /// remain, in order.
    #[test]
    fn appending_keeps_the_newest(lens in proptest::collection::vec(1usize..90, 1..80)) {
        let mut h = HistoryPhys { phys_max_off: 700, ..HistoryPhys::default() };
        let mut disk = vec![0u8; 700];
        let mut model: Vec<NvList> = Vec::new();
        for (i, n) in lens.iter().enumerate() {
            let r = NvList::new().with_str("c", format!("{i}:{}", "x".repeat(*n)));
            let bytes = history::encode_record(&r);
            for part in [&bytes[..8], &bytes[8..]] {
                while h.must_evict(part.len() as u64) {
                    let len = read(&h, &disk, h.bof, 8);
                    h.evict(u64::from_le_bytes(len.try_into().unwrap())).unwrap();
                }
                let mut done = 0;
                for (at, len) in h.extents(h.eof, part.len() as u64) {
                    disk[at as usize..(at + len) as usize].copy_from_slice(&part[done..done + len as usize]);
                    done += len as usize;
                }
                h.eof += part.len() as u64;
            }
            model.push(r);
            if i == 0 {
                h.pool_create_len = h.eof;
                h.bof = h.eof;
            }
            prop_assert_eq!(HistoryPhys::parse(&h.to_bytes()).unwrap(), h);
            let mut got: Vec<NvList> = Records::new(&read(&h, &disk, 0, h.pool_create_len)).map(Result::unwrap).collect();
            got.extend(Records::new(&read(&h, &disk, h.bof, h.eof - h.bof)).map(Result::unwrap));
            prop_assert_eq!(got.len() + h.records_lost as usize, model.len());
            prop_assert_eq!(&got[0], &model[0]);
            prop_assert_eq!(&got[1..], &model[model.len() + 1 - got.len()..]);
        }
    }
}

fn read(h: &HistoryPhys, disk: &[u8], from: u64, len: u64) -> Vec<u8> {
    let pieces = h.extents(from, len);
    pieces.iter().flat_map(|&(at, n)| disk[at as usize..(at + n) as usize].to_vec()).collect()
}
