//! Frozen pools ([`Pool::freeze`]): what the load of the intent log's campaign did is there after
//! an export and an import, though no txg is.
//!
//! Tasks change files of their own folders, wait for some of them, and make txgs sync; the unmount
//! commits the rest. The import then finds the state before the load, and logs that have all of it:
//! also records of txgs that ended long ago, and of blocks that were freed since.

use std::rc::Rc;

use base::Txg;
use dsl::props::PropValue;
use ondisk::zil::ZilHeader;
use sim::Rng;
use spa::Pool;
use zil::ZilTunables;
use zio::ZioOpts;
use zpl::{MountOpts, SyncMode, Zfs};

use crate::Check;
use crate::cutting::run_world;
use crate::lab::{Lab, Layout};
use crate::snaps::check_images;
use crate::zilcuts::{SHAPES, compare, create_pool, dataset, mount, new_actor, open};
use crate::zilload::{Story, text};

/// Bytes of a record.
const RECORD: u32 = 16 << 10;

/// Runs `steps` steps of each task of a seed in a frozen pool; the records that were replayed.
pub fn run_seed(seed: u64, steps: u64) -> Check<u64> {
    let mut rng = Rng::stream(seed, 0xf0);
    let all = rng.percent(60);
    let mut layout = Layout::draw(&mut rng, 128 << 20);
    layout.features = if all { crate::lab::all_features() } else { ondisk::feature::features_of_2_1() };
    let shape = &SHAPES[rng.below(SHAPES.len() as u64) as usize];
    layout = layout.shaped(shape, &mut rng);
    let ran = run_world(Lab::new(seed, &layout), async |lab| run(lab, &layout, (seed, steps, all), &mut rng).await);
    ran.map_err(|e| format!("seed {seed} ({}): {e}", shape.name))
}

async fn run(lab: &Lab, layout: &Layout, (seed, steps, all): (u64, u64, bool), rng: &mut Rng) -> Check<u64> {
    let sealed = rng.percent(20);
    let pool = create_pool(lab, layout, sealed, rng).await?;
    let sync = if rng.percent(20) { SyncMode::Always } else { SyncMode::Standard };
    let how = MountOpts { sync, throughput: rng.percent(20), longname: all, ..MountOpts::default() };
    // A clone of what no txg on disk has would wait for one.
    pool.zio().set_opts(ZioOpts { clones_wait_off: true, ..pool.zio().opts() });
    // A replay clones blocks into files only where the property allows blocks of that size.
    let value = vec![("recordsize".to_string(), PropValue::Num(RECORD.into()))];
    pool.dsl().set_props(&dataset(sealed), value).await.map_err(text)?;
    let fs = mount(&pool, sealed, how, RECORD, ZilTunables::default()).await?;
    let mut actors = Vec::new();
    for t in 0..1 + rng.below(3) {
        let mut actor = new_actor(&fs, &lab.sim.handle(), (seed, t), sync, all).await?;
        for _ in 0..steps / 4 {
            actor.step().await?;
        }
        actors.push(actor);
    }
    let stories: Vec<Rc<Story>> = actors.iter().map(|a| a.story.clone()).collect();
    pool.freeze().await.map_err(text)?;
    let last = pool.txg().last_durable();
    for _ in 0..steps {
        for actor in &mut actors {
            actor.step().await?;
        }
        if rng.percent(10) {
            pool.txg().wait_synced(Txg(0)).await.map_err(text)?;
        }
    }
    drop(actors);
    compare(&stories, &fs, u64::MAX).await.map_err(|w| format!("while it is frozen: {}", w.why()))?;
    leave(&pool, fs).await?;
    if pool.txg().last_durable() != last || pool.txg().last_synced() <= last {
        return Err(format!("txg {last} was to be the last one on disk"));
    }
    drop(pool);
    let pool = lab.import(false, layout.opts()).await.map_err(text)?;
    let header: ZilHeader = {
        let ds = pool.dsl().find(&dataset(sealed)).map_err(text)?;
        ds.zil_header().await.map_err(text)?
    };
    if header.is_empty() {
        return Err("there is nothing to replay".into());
    }
    let fs = open(&pool, sealed, MountOpts::default()).await.map_err(text)?;
    if let Some(e) = &fs.replayed().failed {
        return Err(format!("replay: {e}"));
    }
    let applied = fs.replayed().applied;
    compare(&stories, &fs, u64::MAX).await.map_err(|w| format!("after the import: {}", w.why()))?;
    leave(&pool, fs).await?;
    check_images(&lab.images())?;
    Ok(applied)
}

async fn leave(pool: &Rc<Pool>, fs: Rc<Zfs>) -> Check {
    fs.unmount().await.map_err(text)?;
    drop(fs);
    pool.export().await.map_err(text)
}
