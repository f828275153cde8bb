//! OpenZFS's zdb checks the written pools. Without a zdb the tests print that they were skipped.

use std::process::Command;

use openweir::{Batch, CreateOptions, Device, Pool, Vdev};

#[test]
fn zdb_finds_nothing_wrong_with_files_and_objects() {
    let dir = std::env::temp_dir().join(format!("openweir-judged-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let disks = (0..3).map(|n| Device::new_file(dir.join(format!("{n}.img")), 128 << 20)).collect();
    // Features that the installed zdb knows.
    let options = CreateOptions { compatibility: Some("openzfs-2.1-linux".into()), ..CreateOptions::default() };
    let pool = Pool::create("judged", Vdev::raidz(1, disks), options).wait().unwrap();
    pool.create_filesystem("judged/a", &[("compression", "lz4"), ("copies", "2")]).wait().unwrap();
    let fs = pool.filesystem("judged/a").wait().unwrap();
    (0..50).for_each(|n| fs.write(format!("f{n}"), vec![n as u8; n * 5000]).wait().unwrap());
    let objects = fs.objects().wait().unwrap();
    let mut batch = Batch::new();
    let (map, data) = (batch.create_zap(), batch.create_data(32 << 10));
    batch.set(objects.root(), "map", map);
    batch.set(objects.root(), "data", data);
    batch.write(data, 1 << 20, vec![5; 300_000]);
    (0..800).for_each(|n| batch.set(map, format!("key {n}"), format!("{n}").repeat(20).as_str()));
    let done = objects.commit(batch).wait().unwrap();
    let (map, data) = (done.object(map).unwrap(), done.object(data).unwrap());
    pool.snapshot(&["judged/a@1"], false).wait().unwrap();
    pool.clone_snapshot("judged/a@1", "judged/b", &[]).wait().unwrap();
    let mut batch = Batch::new();
    (0..400).for_each(|n| batch.remove(map, format!("key {}", n * 2)));
    batch.punch(data, 1 << 20, 100_000);
    objects.commit(batch).wait().unwrap();
    (0..25).for_each(|n| fs.unlink(format!("f{}", n * 2)).wait().unwrap());
    drop((fs, objects));
    pool.export().wait().unwrap();

    // Without the machine's list of pools, which other judges write.
    let zdb = |args: &[&str]| Command::new("zdb").args(["-U", "/nonexistent/zpool.cache"]).args(args).output();
    let folder = dir.to_str().unwrap();
    match zdb(&["-e", "-p", folder, "-bcc", "judged"]) {
        Err(e) => eprintln!("NOT JUDGED: zdb cannot be run: {e}"),
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success() && text.contains("No leaks"), "{text}");
            let number = map.number().unwrap().to_string();
            let out = zdb(&["-e", "-p", folder, "-dddd", "judged/a@1", &number]).unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success() && text.contains("key 799"), "{text}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}
