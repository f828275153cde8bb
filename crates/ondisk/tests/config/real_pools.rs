//! Every label and uberblock of reference pools that modules of OpenZFS 2.1 and 2.4 wrote, where
//! they are at hand (`shared/pools` beside the repository): labels print as `zdb -l` printed them,
//! re-encode to the same bytes in list and typed form, and seal to the same regions.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ondisk::label::{self, BootEnv, DeviceLabel};
use ondisk::nvlist::NvList;
use ondisk::uberblock;

/// The folder with the pools, or `None` with a word on standard error.
fn pools() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("SKIPPED: {} is not there, no labels of real pools are compared", dir.display());
    None
}

/// A pool unpacked in a folder that goes away with this value.
struct Unpacked(PathBuf);

impl Unpacked {
    fn new(pools: &Path, name: &str) -> Unpacked {
        let dir = std::env::temp_dir().join(format!("weir-labels-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let this = Unpacked(dir);
        let tar = Command::new("tar")
            .args(["--zstd", "-xf"])
            .arg(pools.join(format!("{name}.tar.zst")))
            .arg("-C")
            .arg(&this.0)
            .args(["--wildcards", "*/d*.img", "*/zdb-l.txt"])
            .status()
            .unwrap();
        assert!(tar.success(), "{name} does not unpack");
        this
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The list that `zdb -l` printed for label 0 of an image, indented as it is there; `None` where it
/// found no label.
fn zdb_label(text: &str, image: &str) -> Option<String> {
    let section = text.split("### ").find(|s| s.starts_with(image))?;
    // OpenZFS 2.4 puts a space behind the number.
    let (_, body) = section.split_once("LABEL 0")?;
    let body = body.trim_start_matches(' ').strip_prefix("\n------------------------------------\n")?;
    Some(body.split_once("    labels = ").unwrap().0.to_owned())
}

/// The pairs of a list by name, each as text.
fn by_name(list: &NvList) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| (name.to_string(), format!("{value:?}"))).collect()
}

/// Checks all devices of a pool and returns the number of labels.
fn check(pools: &Path, name: &str) -> usize {
    let unpacked = Unpacked::new(pools, name);
    let dir = unpacked.0.join(name);
    let zdb = std::fs::read_to_string(dir.join("zdb-l.txt")).unwrap();
    let mut labels = 0;
    let mut images: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    images.sort();
    for image in images.iter().filter(|p| p.extension().is_some_and(|e| e == "img")) {
        let file = std::fs::File::open(image).unwrap();
        let image = image.file_name().unwrap().to_str().unwrap();
        let want = zdb_label(&zdb, image);
        let read = |offset: u64, len: usize| {
            let mut b = vec![0; len];
            file.read_exact_at(&mut b, offset).unwrap();
            b
        };
        let mut best = None;
        for offset in label::label_offsets(file.metadata().unwrap().len()) {
            let at = label::config_offset(offset);
            let region = read(at, label::CONFIG_SIZE);
            let config = match label::parse_config(&region, at) {
                Ok(c) => c,
                Err(e) => {
                    assert!(want.is_none(), "{name} {image} label at {offset:#x}: {e}");
                    continue;
                }
            };
            labels += 1;
            assert_eq!(
                config.indented(4).to_string(),
                want.clone().unwrap_or_default(),
                "{name} {image} at {offset:#x}"
            );
            assert_eq!(label::seal_config(&config, at).unwrap(), region, "{name} {image} at {offset:#x}");
            let typed = DeviceLabel::from_nvlist(&config).unwrap();
            let again = typed.to_nvlist();
            if config.iter().any(|(name, _)| name == "min_alloc") {
                // A pair of OpenZFS 2.4 that is kept, but comes behind the others.
                assert_eq!(by_name(&again), by_name(&config), "{name} {image} at {offset:#x}");
            } else {
                assert_eq!(again.encode_xdr(), config.encode_xdr(), "{name} {image} at {offset:#x}");
            }
            let boot = read(offset + label::BOOT_ENV_OFFSET, label::BOOT_ENV_SIZE);
            let fresh = BootEnv::Raw(Vec::new());
            // Labels that moved with the end of a grown device have none.
            if name != "grown" || offset < label::DATA_START {
                assert_eq!(label::parse_boot_env(&boot, offset + label::BOOT_ENV_OFFSET).unwrap(), fresh);
                assert_eq!(label::seal_boot_env(&fresh, offset + label::BOOT_ENV_OFFSET).unwrap(), boot);
            }

            let DeviceLabel::Pool(pool) = typed else { continue };
            pool.vdev_tree.validate().unwrap();
            let ashift = pool.vdev_tree.ashift.unwrap();
            let ring = read(offset + label::RING_OFFSET, label::RING_SIZE);
            let size = uberblock::slot_size(ashift);
            for (slot, ub) in uberblock::scan_ring(&ring, ashift, offset) {
                let bytes = &ring[slot as usize * size..][..size];
                let ub = match ub {
                    Ok(ub) => ub,
                    // Initialising a label leaves an uberblock of txg 0 without checksum in slot 0;
                    // a removed disk keeps it.
                    Err(e) => {
                        assert!(slot == 0 && bytes[16..24] == [0; 8], "{name} {image} slot {slot}: {e}");
                        continue;
                    }
                };
                assert_eq!(uberblock::slot_for_txg(ub.txg, ashift, false), slot, "{name} {image}");
                assert_eq!(ub.seal(size, uberblock::slot_offset(offset, ashift, slot)), bytes, "{name} {image} {slot}");
                assert!(ub.version == pool.version || ub.txg < pool.txg);
                best = uberblock::best(best.into_iter().chain([ub]));
            }
            let Some(newest) = &best else {
                assert_eq!(name, "removed", "{image} has no uberblock");
                continue;
            };
            assert!(newest.txg >= pool.txg, "{name} {image}: a label never leads its uberblock");
            let alone = pool.vdev_children == Some(1) && name != "mirror-stale";
            if alone {
                let sum = pool.pool_guid.0.wrapping_add(pool.vdev_tree.guid_sum());
                assert_eq!(newest.guid_sum, sum, "{name} {image}");
            }
        }
    }
    labels
}

#[test]
fn labels_of_small_pools() {
    let Some(pools) = pools() else { return };
    for (name, count) in [("split", 16), ("mirror-log", 24), ("ashift13", 8), ("grown", 4)] {
        assert_eq!(check(&pools, name), count, "{name}");
    }
}

/// All reference pools; a GPT hides its pool from this test, which reads whole images.
#[test]
#[ignore = "unpacks a GB of sparse images: `cargo xtask campaign --only labels` runs it"]
fn labels_of_all_pools() {
    let Some(pools) = pools() else { return };
    let mut total = 0;
    for entry in std::fs::read_dir(&pools).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".tar.zst") {
            total += check(&pools, name);
        }
    }
    assert_eq!(total, 129 * 4);
}
