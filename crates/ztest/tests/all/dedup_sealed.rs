//! Deduplication in encrypted file systems (format page 12, section 4): equal blocks under one key
//! are stored once, with the salt and IV that their bytes give, as those of the kernel are.

use base::ObjectId;
use dsl::crypto::KeyFormat;
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use spa::{ImportOpts, Pool};
use zpl::Zfs;
use ztest::lab::{Lab, POOL, new_fs};
use ztest::reference::{images_of, key};

use crate::dedup::{import, judge, mount, props, sealed_by_hex, unlock, world, write};
use crate::encrypted::ask;

/// The pointers of the first blocks of a file.
async fn pointers(fs: &Zfs, obj: ObjectId, blocks: u64) -> Vec<Blkptr> {
    let dn = fs.dataset().objset().await.unwrap().hold(obj).await.unwrap();
    let mut out = Vec::new();
    for n in 0..blocks {
        out.push(dn.block_pointer(n).await.unwrap());
    }
    out
}

async fn pointers_of(pool: &Pool, name: &str, file: &str, blocks: u64) -> Vec<Blkptr> {
    let fs = mount(pool, name).await;
    let obj = fs.lookup(fs.root(), file.as_bytes()).await.unwrap().obj;
    let out = pointers(&fs, obj, blocks).await;
    fs.unmount().await.unwrap();
    out
}

/// A block is shared by files and clones under one key, and by none under another; tables of both
/// forms.
#[test]
fn blocks_are_shared_under_one_key() {
    for fast in [true, false] {
        shared_under_one_key(fast);
    }
}

fn shared_under_one_key(fast: bool) {
    let (lab, mut layout) = world(61, "mirror");
    if !fast {
        layout.features = ondisk::feature::features_of_2_1();
    }
    let [a, b, clone] = ["a", "b", "clone"].map(|n| format!("{POOL}/{n}"));
    // The decryptor computes salt and IV of such blocks from their bytes.
    let keys = [&a, &b].map(|name| format!("{name}=hex:{}", key(KeyFormat::Hex).trim()));
    let judged = |name: &str| match fast {
        true => judge(&lab.images(), name, POOL),
        false => ask(&lab, name, &keys),
    };
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        for name in [&a, &b] {
            pool.dsl().create_fs_encrypted(name, Vec::new(), sealed_by_hex(), new_fs(&lab.sim)).await.unwrap();
        }
        pool.dsl().snapshot(vec![format!("{a}@s")], false, Vec::new()).await.unwrap();
        pool.dsl().clone_snapshot(&format!("{a}@s"), &clone, Vec::new()).await.unwrap();
        for name in [&a, &b, &clone] {
            let fs = mount(&pool, name).await;
            write(&fs, "f", 0, &[1, 2, 1]).await;
            fs.unmount().await.unwrap();
            pool.sync().await.unwrap();
        }
        let [in_a, in_b, in_clone] = [
            pointers_of(&pool, &a, "f", 3).await,
            pointers_of(&pool, &b, "f", 3).await,
            pointers_of(&pool, &clone, "f", 3).await,
        ];
        let shares = |x: &Blkptr, y: &Blkptr| x.same_place(y) && x.salt_iv() == y.salt_iv() && x.mac() == y.mac();
        assert!(in_a.iter().chain(&in_b).all(|bp| bp.dedup() && bp.is_encrypted_data()));
        assert!(shares(&in_a[0], &in_a[2]) && !shares(&in_a[0], &in_a[1]));
        assert!((0..3).all(|n| shares(&in_a[n], &in_clone[n])));
        assert!(in_a.iter().all(|x| in_b.iter().all(|y| !x.same_place(y) && x.salt_iv() != y.salt_iv())));
        pool.export().await.unwrap();
        drop(pool);
        judged("dedup-sealed");

        // Without its other users a block stays for the last.
        let pool = import(&lab, &layout).await;
        unlock(&pool).await;
        pool.dsl().destroy_fs(&clone).await.unwrap();
        let fs = mount(&pool, &a).await;
        write(&fs, "f", 0, &[3]).await;
        fs.unmount().await.unwrap();
        pool.sync().await.unwrap();
        let now = pointers_of(&pool, &a, "f", 3).await;
        assert!(shares(&now[2], &in_a[2]) && !shares(&now[0], &in_a[0]));
        // A rewrite leaves what is the same where it is.
        let fs = mount(&pool, &a).await;
        write(&fs, "f", 1, &[2, 1]).await;
        fs.unmount().await.unwrap();
        pool.sync().await.unwrap();
        let now = pointers_of(&pool, &a, "f", 3).await;
        assert!(shares(&now[1], &in_a[1]) && shares(&now[2], &in_a[2]));
        ztest::scan::scrub_clean(&pool).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judged("dedup-sealed-less");
    });
}

/// A file copied in an encrypted file system of the kernel, with `dedup` on, has the blocks that
/// the kernel wrote.
#[test]
fn blocks_of_the_kernel_are_found() {
    let Some(images) = images_of("encrypted") else {
        eprintln!("NOT RUN: encrypted.tar.zst is missing");
        return;
    };
    let lab = Lab::with_images(1, images, true);
    lab.sim.block_on(async {
        let opts = spa::EngineOpts::for_memory(1 << 30);
        let pool = lab.import_as(ImportOpts::default(), opts).await.unwrap();
        unlock(&pool).await;
        let mut found = 0;
        for ds in pool.dsl().all() {
            let ds = ds.name();
            let Ok(head) = pool.dsl().find(&ds) else { continue };
            let Ok(os) = head.objset().await else { continue };
            if os.props().dedup.is_none() || pool.dsl().crypt_info(&pool.dsl().find_dir(&ds).unwrap()).is_none() {
                continue;
            }
            drop((head, os));
            found += copies_share(&pool, &ds).await;
        }
        assert!(found > 0, "no block of the kernel was looked for");
        let root = pool.name();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "encrypted-shared", &root);
    });
}

/// Copies the files of a file system that have blocks with entries; the number of these blocks.
async fn copies_share(pool: &Pool, name: &str) -> usize {
    let fs = mount(pool, name).await;
    let mut found = 0;
    for n in 1..2000 {
        let os = fs.dataset().objset().await.unwrap();
        let Ok(dn) = os.hold(ObjectId(n)).await else { continue };
        if dn.otype() != ObjectType::PLAIN_FILE {
            continue;
        }
        let (size, blocks) = (u64::from(dn.block_size()), dn.max_blkid() + 1);
        let old = pointers(&fs, ObjectId(n), blocks).await;
        if !old.iter().any(Blkptr::dedup) {
            continue;
        }
        let attr = fs.getattr(ObjectId(n)).await.unwrap();
        let copy = format!("copy of {n}");
        let new = fs.create(fs.root(), copy.as_bytes(), 0o644, &zpl::Cred::new(0, 0), true).await.unwrap().obj;
        let data = fs.read(ObjectId(n), 0, attr.size).await.unwrap();
        fs.write(new, 0, data, false).await.unwrap();
        pool.sync().await.unwrap();
        if u64::from(os.hold(new).await.unwrap().block_size()) != size {
            continue;
        }
        for (was, is) in old.iter().zip(pointers(&fs, new, blocks).await).filter(|(was, _)| was.dedup()) {
            let same = is.dedup() && is.same_place(was) && is.salt_iv() == was.salt_iv() && is.mac() == was.mac();
            assert!(same, "{name}: {was} was copied as {is}");
            found += 1;
        }
    }
    fs.unmount().await.unwrap();
    found
}
