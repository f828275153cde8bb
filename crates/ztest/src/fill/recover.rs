//! After a power cut: the pool imports, holds the acknowledged appends, and has room again once
//! files are removed.

use std::rc::Rc;

use base::Nanos;
use bdev::Bytes;
use sim::{DiskImage, SimHandle};
use spa::Pool;
use zpl::{Cred, Zfs};

use super::{Grown, Plan, SPAN_MAX, TXGS_BACK, context, mount, opts};
use crate::Check;
use crate::lab::{Lab, Layout};

/// Imports a pool after a power cut, verifies the durable data, makes room and uses it; returns the
/// disks.
pub(super) fn recover(
    images: Vec<DiskImage>,
    (layout, plan): (&Layout, &Plan),
    grown: &[Grown],
    at: u64,
    seed: u64,
) -> Check<Vec<DiskImage>> {
    let lab = Lab::with_images(seed, images, true);
    let work = async {
        let pool = lab.import(false, opts(layout, plan)).await.map_err(context("import"))?;
        let fs = mount(&pool, plan).await?;
        if let Some(e) = fs.replayed().failed {
            return Err(format!("replay: {e:?}"));
        }
        for g in grown {
            durable_is_there(&fs, g, at).await?;
        }
        pool.sync().await.map_err(context("sync"))?;
        make_room(&pool, &fs, plan, &lab.sim).await?;
        if let Some(e) = pool.suspended() {
            return Err(format!("the pool is suspended: {e:?}"));
        }
        fs.unmount().await.map_err(context("unmount"))?;
        pool.export().await.map_err(context("export"))
    };
    let result = lab.sim.try_block_on_for(SPAN_MAX, work);
    let images = lab.images();
    lab.sim.crash();
    result.map_err(|report| format!("stalled: {report}"))??;
    Ok(images)
}

/// Every append that was acknowledged by then is in the file, and nothing that was not written.
async fn durable_is_there(fs: &Zfs, g: &Grown, at: u64) -> Check {
    let text = String::from_utf8_lossy(&g.name);
    let least = g.durable.iter().filter(|(seq, _)| *seq <= at).map(|d| d.1).max().unwrap_or(0);
    let a = fs.lookup(fs.root(), &g.name).await.map_err(|e| format!("{text}: {e:?}"))?;
    // An append that was under way may be there in part, without being known to the model.
    let most = g.data.len() + (2 << 20);
    if a.size < least as u64 || a.size > most as u64 {
        return Err(format!("{text} has {} bytes, {least} were acknowledged of {}", a.size, g.data.len()));
    }
    let parts = fs.read(a.obj, 0, a.size).await.map_err(|e| format!("{text}: {e:?}"))?;
    let got: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
    let known = got.len().min(g.data.len());
    if got[..known] != g.data[..known] {
        return Err(format!("{text}: other bytes"));
    }
    Ok(())
}

/// Removes the content of the root folder and the snapshots; then writing must work.
async fn make_room(pool: &Rc<Pool>, fs: &Rc<Zfs>, plan: &Plan, sim: &SimHandle) -> Check {
    let head = pool.dsl().find(&plan.home()).map_err(context("find"))?;
    let snapshots = pool.dsl().snapshots(&head).await.map_err(context("listing snapshots"))?;
    let names: Vec<String> = snapshots.iter().map(|s| s.name()).collect();
    if !names.is_empty() {
        pool.dsl().destroy_snapshots(names, false).await.map_err(context("destroying snapshots after a cut"))?;
    }
    let (mut cookie, mut files) = (0, Vec::new());
    loop {
        let some = fs.readdir(fs.root(), cookie, 64 << 10).await.map_err(context("readdir"))?;
        let Some(last) = some.last() else { break };
        cookie = last.next_cookie;
        for e in some.into_iter().filter(|e| e.name.starts_with(b"f")) {
            let a = fs.lookup(fs.root(), &e.name).await.map_err(context("lookup"))?;
            files.push((a.size, e.name));
        }
    }
    files.sort();
    files.reverse();
    for (_, name) in files.iter().take(files.len().div_ceil(2)) {
        fs.unlink(fs.root(), name).await.map_err(context("unlink after a cut"))?;
    }
    for _ in 0..TXGS_BACK {
        pool.sync().await.map_err(context("sync after a cut"))?;
        sim.rt().sleep(Nanos::from_ms(50)).await;
    }
    let made = fs.create(fs.root(), b"new", 0o644, &Cred::new(0, 0), true).await;
    let made = made.map_err(|e| {
        let used = pool.dsl().root().phys().used_bytes;
        format!(
            "create after a cut and removing half of {} files: {e:?}: {:?}, used {used}",
            files.len(),
            pool.dsl().space()
        )
    })?;
    fs.write_sync(made.obj, 0, vec![Bytes::copy_from(&[7; 4096])], false)
        .await
        .map_err(context("write after a cut"))?;
    Ok(())
}
