//! Volumes that the kernel module made.

use std::rc::Rc;

use crate::common::*;
use base::ErrorKind;
use spa::Pool;
use zvol::{Volume, VolumeOpts};

async fn open(pool: &Pool, name: &str) -> Rc<Volume> {
    Volume::open(&pool.dsl().find(name).unwrap(), VolumeOpts::default()).await.unwrap()
}

async fn read(vol: &Volume, off: u64, len: u64) -> Vec<u8> {
    vol.read(off, len).await.unwrap().iter().flat_map(|b| b.to_vec()).collect()
}

async fn pool_of(rt: &rt::Rt, reference: &Reference) -> Rc<Pool> {
    import_all(rt, reference.devices(rt, false)).await.remove(0).1.unwrap()
}

#[test]
fn ranges_are_cut_at_the_end() {
    let Some(reference) = Reference::load("zil") else { return };
    run(|rt| async move {
        let pool = pool_of(&rt, &reference).await;
        let vol = open(&pool, "zil/vol").await;
        assert_eq!((vol.name().as_str(), vol.size(), vol.block_size()), ("zil/vol", 16 << 20, 8192));
        assert!(vol.dataset().is_used());
        let whole = read(&vol, 0, u64::MAX).await;
        assert_eq!(whole.len() as u64, vol.size());
        let mut rng = sim::Rng::new(7);
        for _ in 0..300 {
            let off = rng.below(vol.size());
            let len = 1 + rng.below(100_000);
            let end = (off + len).min(vol.size());
            assert!(read(&vol, off, len).await == whole[off as usize..end as usize], "{len} at {off}");
        }
        for off in [vol.size(), vol.size() + 1, u64::MAX] {
            assert!(vol.read(off, 1).await.unwrap().is_empty());
        }
        assert!(vol.read(0, 0).await.unwrap().is_empty());
        let ds = vol.dataset().clone();
        drop(vol);
        assert!(!ds.is_used());
        let other = Volume::open(&pool.dsl().find("zil/f").unwrap(), VolumeOpts::default()).await.err().unwrap();
        assert!(other.kind() == ErrorKind::Invalid && other.to_string().contains("zil/f"), "{other}");
    });
}

/// 4 TiB in blocks of 512 bytes, nearly all of it holes.
#[test]
fn data_and_holes_are_found() {
    let Some(reference) = Reference::load("deep") else { return };
    run(|rt| async move {
        let pool = pool_of(&rt, &reference).await;
        let vol = open(&pool, "dp/vol").await;
        assert_eq!((vol.size(), vol.block_size()), (4 << 40, 512));
        let (mut at, mut data) = (0, 0);
        while let Some(from) = vol.next_data(at).await.unwrap() {
            let to = vol.next_hole(from).await.unwrap();
            assert!(at <= from && from < to && to <= vol.size());
            assert!(at == from || read(&vol, at, (from - at).min(1 << 16)).await.iter().all(|b| *b == 0));
            data += to - from;
            at = to;
        }
        assert!(data > 0 && data < 1 << 30, "{data}");
    });
}
