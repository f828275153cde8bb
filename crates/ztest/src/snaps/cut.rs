//! Power cuts within one destroy, rollback or promotion.
//!
//! In half of the pools files were rewritten before so that blocks keep their logical births: what
//! a snapshot has and what is freed with it goes by the births of their places.
//!
//! The operation runs on disks that are logged, with background freeing that takes many txgs. For
//! each completion the disks are put together as a power cut at that moment may leave them. The
//! pool then holds the state before or after the operation, the freeing goes on, and the checker
//! finds no leak.

use std::collections::BTreeSet;
use std::rc::Rc;

use sim::{DiskImage, DiskLog};

use super::model::{Fs, Model, Snap, compare};
use super::{SPAN_MAX, Snaps, check_between_labels, check_images, check_partly};
use crate::Check;
use crate::cuts::{completions, images_at};
use crate::judge::{self, Verdict};
use crate::lab::{Lab, Layout, POOL, new_fs};

/// The operation that [`cuts`] cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Three snapshots are destroyed at once.
    Snapshots,
    /// A file system is taken back to its last snapshot.
    Rollback,
    /// A file system is destroyed.
    FileSystem,
    /// A clone that was written to is destroyed.
    Clone,
    /// A clone and its origin swap roles.
    Promote,
    /// A snapshot that has a clone is destroyed as soon as that is: both go together.
    Deferred,
}

/// Everything that [`cuts`] cuts.
pub const CUTS: [Cut; 6] = [Cut::Snapshots, Cut::Rollback, Cut::FileSystem, Cut::Clone, Cut::Promote, Cut::Deferred];

/// The file system that is cut.
const HEAD: &str = "n0";
/// Its clone, for operations that need one.
const COPY: &str = "c0";

impl Snaps {
    /// Makes the file systems and snapshots that the operation needs, and has them on disk.
    async fn prepare_cut(&mut self, what: Cut, fs: &str, copy: &str) -> Check {
        self.create().await?;
        self.pool().dsl().create_fs(fs, Vec::new(), new_fs(&self.lab.sim)).await.map_err(|e| format!("{e:?}"))?;
        self.model.fs.insert(fs.to_string(), Fs::default());
        for n in 0..6 {
            for _ in 0..5 {
                self.write().await?;
            }
            if self.can_rewrite() && n > 0 {
                self.rewrite_most(fs).await?;
            }
            if n < 5 && what != Cut::FileSystem {
                let got = self.pool().dsl().snapshot(vec![format!("{fs}@s{n}")], false, Vec::new()).await;
                got.map_err(|e| format!("{e:?}"))?;
                let id = self.id();
                let f = self.model.fs.get_mut(fs).expect("made");
                let files = f.files.clone();
                f.snaps.push(Snap { id, name: format!("s{n}"), files, holds: BTreeSet::new(), deferred: false });
            }
        }
        let say = |e: base::Error| format!("{e:?}");
        if matches!(what, Cut::Clone | Cut::Promote | Cut::Deferred) {
            let origin = format!("{fs}@s2");
            // A list of several parts, which stays.
            let pool = self.pool();
            pool.dsl().core().livelist_entries.set(8);
            pool.dsl().core().livelist_shared.set(None);
            self.pool().dsl().clone_snapshot(&origin, copy, Vec::new()).await.map_err(say)?;
            let snap = self.model.fs[fs].snaps[2].clone();
            let f = Fs { files: snap.files, origin: Some(snap.id), ..Fs::default() };
            self.model.fs.insert(copy.to_string(), f);
            for _ in 0..9 {
                self.write().await?;
            }
            if self.can_rewrite() {
                self.rewrite_most(copy).await?;
                self.rewrite_most(fs).await?;
            }
            if what == Cut::Deferred {
                self.pool().dsl().destroy_snapshots(vec![origin], true).await.map_err(say)?;
                self.model.fs.get_mut(fs).expect("made").snaps[2].deferred = true;
            }
        }
        self.pool().sync().await.map_err(|e| format!("{e:?}"))
    }

    /// Does the operation that is cut.
    async fn do_cut(&mut self, what: Cut, fs: &str, copy: &str) -> Check {
        let say = |e: base::Error| format!("{e:?}");
        let f = self.model.fs.get_mut(fs).expect("made");
        if what == Cut::FileSystem {
            self.model.fs.remove(fs);
            self.pool().dsl().destroy_fs(fs).await.map_err(|e| format!("{e:?}"))?;
        } else if matches!(what, Cut::Clone | Cut::Deferred) {
            self.model.fs.remove(copy);
            self.model.settle();
            self.pool().dsl().destroy_fs(copy).await.map_err(say)?;
        } else if what == Cut::Promote {
            let moving: Vec<Snap> = f.snaps.drain(..3).collect();
            let beyond = f.origin.replace(moving[2].id);
            let c = self.model.fs.get_mut(copy).expect("made");
            (c.snaps, c.origin) = (moving, beyond);
            self.pool().dsl().promote(copy).await.map_err(say)?;
        } else if what == Cut::Rollback {
            f.files = f.snaps[4].files.clone();
            self.pool().dsl().rollback(&format!("{fs}@s4")).await.map_err(|e| format!("{e:?}"))?;
        } else {
            f.snaps.drain(1..4);
            let names = (1..4).map(|n| format!("{fs}@s{n}")).collect();
            self.pool().dsl().destroy_snapshots(names, false).await.map_err(|e| format!("{e:?}"))?;
        }
        Ok(())
    }

    /// The prepared pool, the operation and its background work, recorded; the model before it.
    async fn record_cut(&mut self, what: Cut) -> Check<Model> {
        let (fs, copy) = (format!("{POOL}/{HEAD}"), format!("{POOL}/{COPY}"));
        self.prepare_cut(what, &fs, &copy).await?;
        self.lab.start_logs(&self.pool()).await?;
        let before = self.model.clone();
        self.change_removal().await?;
        self.pool().dsl().set_freed_per_txg(5);
        self.do_cut(what, &fs, &copy).await?;
        self.drain().await?;
        Ok(before)
    }
}

/// Asks `zdb` about disks with a file system that is freed in part. The installed one does not know
/// rewrites, and labels do not list that feature.
fn ask_judge(seed: u64, n: usize, images: &[DiskImage], has_rewrites: bool) -> Check {
    let name = format!("snapcut-{seed}-{n}");
    let verdict = match has_rewrites {
        true => judge::judge24_with(images, &name, POOL, &["-bcc"]),
        false => judge::ask_about_space(images, &name),
    };
    if let Verdict::Bad(why) = verdict {
        return Err(format!("seed {seed} cut {n}: freed in part: {why}"));
    }
    Ok(())
}

/// Imports the disks of a cut: they hold one of the two states, and the rest of the work leaves
/// nothing behind. `name` begins the errors.
fn verify_cut(
    (seed, cut_seed): (u64, u64),
    images: Vec<DiskImage>,
    layout: &Layout,
    (before, after): (&Model, &Model),
    name: &str,
) -> Check {
    let lab = Rc::new(Lab::with_images(cut_seed, images, true));
    let mut reader = Snaps::new(seed);
    reader.lab = lab.clone();
    reader.layout = layout.clone();
    let done = lab.sim.try_block_on_for(SPAN_MAX, async {
        let pool = lab.import(false, layout.opts()).await.map_err(|e| format!("import: {e:?}"))?;
        pool.dsl().set_freed_per_txg(7);
        reader.pool = Some(pool.clone());
        let first = compare(&pool, before, &reader).await;
        if let Err(e) = &first {
            compare(&pool, after, &reader).await.map_err(|f| format!("neither before ({e}) nor after ({f})"))?;
        }
        reader.drain().await?;
        pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
        reader.pool = None;
        pool.export().await.map_err(|e| format!("export: {e:?}"))
    });
    done.map_err(|report| format!("stalled: {report}")).and_then(|r| r).map_err(|e| format!("{name}: {e}"))?;
    check_images(&lab.images()).map_err(|e| format!("{name}: when done: {e}"))
}

/// One operation, cut at every completion of a device.
pub fn cuts(seed: u64, what: Cut, every: usize) -> Result<u64, String> {
    let mut snaps = Snaps::new(seed).with_rewrites(seed).with_removals(seed);
    let (lab, has_rewrites, removes) = (snaps.lab.clone(), snaps.can_rewrite(), snaps.removals.is_some());
    let prepared = lab.sim.try_block_on_for(SPAN_MAX, snaps.record_cut(what));
    let before = prepared.map_err(|report| format!("stalled: {report}"))??;
    let after = snaps.model.clone();
    let layout = snaps.layout.clone();
    let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    lab.sim.crash();
    std::mem::forget((snaps, lab));
    let moments = completions(&logs);
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    let (mut count, mut asked) = (0, 0);
    for (n, seq) in moments.into_iter().enumerate().step_by(every) {
        let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(seq);
        let images = images_at(&mut replays, seq, cut_seed);
        let name = format!("seed {seed} cut {n}");
        let looked = if removes { check_between_labels(&images) } else { check_partly(&images) };
        let in_part = looked.map_err(|e| format!("{name}: at once: {e}"))?;
        if in_part && asked < 3 {
            asked += 1;
            ask_judge(seed, n, &images, has_rewrites)?;
        }
        verify_cut((seed, cut_seed), images, &layout, (&before, &after), &name)?;
        count += 1;
    }
    Ok(count)
}
