//! A pool whose last writer kept log space maps and was killed: the import applies the logs, and
//! the first txg flushes them to the metaslabs.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::Nanos;
use metaslab::ClassKind;
use sim::{CutStyle, DiskImage};
use spa::{EngineOpts, ImportOpts, Pool};
use zdb::CheckOpts;
use zpl::{Cred, MountOpts, Zfs};
use ztest::cuts::completions;
use ztest::lab::Lab;

use crate::images::{fixture, reader};

fn images(pool: &str) -> Vec<DiskImage> {
    fixture(&format!("other/{pool}"))
}

/// The findings of the independent checker, and the allocated bytes of each vdev.
fn check(images: &[DiskImage]) -> (Vec<String>, BTreeMap<u32, u64>, u64) {
    // A cut leaves one of the labels half written.
    let opts = CheckOpts { labels: false, ..CheckOpts::default() };
    let report = zdb::check(&reader(images), &opts, &mut |_| {});
    assert_eq!(report.leaked, 0, "{:?}", report.errors);
    (report.errors, report.allocated, report.histograms_split)
}

fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 16 << 20;
    opts
}

async fn import(lab: &Lab, readonly: bool) -> Rc<Pool> {
    let mut found = spa::scan(lab.disks.iter().map(|d| d.dev()).collect()).await;
    let import = ImportOpts { readonly, force: true, ..ImportOpts::default() };
    Pool::import(lab.sim.rt(), found.remove(0), import, opts()).await.expect("imports")
}

fn allocated(pool: &Pool) -> BTreeMap<u32, u64> {
    pool.allocator().top_spaces().into_iter().map(|t| (t.vdev.0, t.alloc)).collect()
}

async fn work(pool: &Rc<Pool>) {
    let ds = pool.dsl().find("lg/a").expect("lg/a exists");
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
    let cred = Cred::new(0, 0);
    for n in 0..20u8 {
        let file = fs.create(fs.root(), &[b'n', b'a' + n], 0o644, &cred, true).await.expect("created").obj;
        let data = bdev::Buf::copy_from(&vec![n; 3000 * usize::from(n) + 1]).freeze();
        fs.write(file, 0, vec![data], false).await.expect("written");
    }
    fs.sync_all().await.expect("synced");
    for n in 0..10u8 {
        fs.unlink(fs.root(), &[b'n', b'a' + 2 * n]).await.expect("removed");
    }
    fs.unmount().await.expect("unmounted");
}

#[test]
fn figures_without_writing_are_exact() {
    let images = images("logs");
    let (_, known, _) = check(&images);
    let lab = Lab::with_images(1, images, false);
    lab.sim.block_on(async {
        let pool = import(&lab, true).await;
        assert!(pool.notices().is_empty(), "{:?}", pool.notices());
        assert_eq!(allocated(&pool), known);
        assert!(pool.allocator().space(ClassKind::Normal).alloc > 0);
        // Every map loads with the entries of the logs.
        let tops = pool.tree().tops.borrow().clone();
        for top in tops {
            for ms in 0..top.ms_count() {
                pool.allocator().load(top.id, ms).await.expect("loads");
            }
        }
    });
}

#[test]
fn written_and_cut_anywhere_it_stays_good() {
    let before = images("logs");
    // The tool that made this pool writes inexact folders: their initial faults may stay.
    let (known, _, _) = check(&before);
    assert!(known.iter().all(|e| e.contains("folder 34")), "{known:?}");
    let lab = Lab::with_images(2, before, true);
    lab.disks.iter().for_each(|d| d.start_log());
    lab.sim.block_on(async {
        let pool = import(&lab, false).await;
        work(&pool).await;
        pool.export().await.expect("exports");
    });
    let after = lab.images();
    let (errors, ..) = check(&after);
    assert!(errors.iter().all(|e| e.contains("folder 34")), "{errors:?}");
    let reader = reader(&after);
    let logs = reader.entry_object("com.delphix:log_spacemap_zap").expect("readable").expect("the list stays");
    assert!(zdb::zap::entries(&logs).expect("readable").is_empty(), "no log stays");

    let logs: Vec<_> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let moments = completions(&logs);
    let mut replays: Vec<_> = logs.iter().map(|l| l.replay()).collect();
    assert!(moments.len() > 20);
    for (n, seq) in moments.iter().enumerate().step_by(4) {
        let cut: Vec<DiskImage> = replays
            .iter_mut()
            .enumerate()
            .map(|(disk, replay)| {
                replay.to_seq(*seq);
                replay.cut(CutStyle::Seeded, seq * 31 + disk as u64)
            })
            .collect();
        let (errors, ..) = check(&cut);
        assert!(errors.iter().all(|e| e.contains("folder 34")), "cut {n}: {errors:?}");
        if n % 12 != 0 {
            continue;
        }
        let lab = Lab::with_images(*seq, cut, true);
        let done = lab.sim.try_block_on_for(Nanos::from_secs(3600), async {
            let pool = import(&lab, false).await;
            pool.export().await.expect("exports");
        });
        done.unwrap_or_else(|stall| panic!("cut {n}: {stall}"));
        let (errors, ..) = check(&lab.images());
        assert!(errors.iter().all(|e| e.contains("folder 34")), "cut {n}, imported again: {errors:?}");
    }
}
