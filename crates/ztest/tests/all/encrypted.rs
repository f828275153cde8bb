//! Encrypted file systems: written, judged by zdb and by a decryptor that shares no code with weir,
//! imported again, given other keys.

use std::process::{Command, Stdio};
use std::rc::Rc;

use base::ErrorKind;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::props::PropValue;
use sim::{Rng, SimHandle};
use spa::Pool;
use zio::crypto::Suite;
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{Level, Scratch, Verdict, judge, judges, save};
use ztest::lab::{Lab, Layout, POOL, new_fs};

const WORDS: &str = "correct-horse-battery";
const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn key(format: KeyFormat, text: &str) -> NewKey {
    let iters = (format == KeyFormat::Passphrase).then_some(100_000);
    NewKey { format, material: KeyMaterial::new(Vec::from(text)), iters, location: "prompt".into() }
}

fn material(text: &str) -> KeyMaterial {
    KeyMaterial::new(Vec::from(text))
}

/// Content of file `n`, the same every time: text that compresses, and noise.
fn content(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let len = [0, 1, 300, 5_000, 140_000, 700_000][(n % 6) as usize];
    (0..len).map(|i| if n & 1 == 0 { (i / 7) as u8 } else { rng.next_u64() as u8 }).collect()
}

async fn fill(pool: &Rc<Pool>, name: &str, files: std::ops::Range<u64>) {
    let ds = pool.dsl().find(name).unwrap();
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
    let root = Cred::new(0, 0);
    for n in files {
        let file = format!("a file with a long enough name {n}");
        let attr = match fs.lookup(fs.root(), file.as_bytes()).await {
            Ok(attr) => attr,
            Err(_) => fs.create(fs.root(), file.as_bytes(), 0o640, &root, true).await.unwrap(),
        };
        for (at, part) in content(n).chunks(100_000).enumerate() {
            let data = vec![bdev::Buf::copy_from(part).freeze()];
            fs.write(attr.obj, 100_000 * at as u64, data, false).await.unwrap();
        }
    }
    fs.unmount().await.unwrap();
}

async fn compare(pool: &Rc<Pool>, name: &str, files: std::ops::Range<u64>) {
    let ds = match name.contains('@') {
        true => pool.dsl().find_snapshot(name).await.unwrap(),
        false => pool.dsl().find(name).unwrap(),
    };
    let fs = Zfs::open(&ds, MountOpts { readonly: true, ..MountOpts::from_props(&ds) }).await.unwrap();
    for n in files {
        let attr = fs.lookup(fs.root(), format!("a file with a long enough name {n}").as_bytes()).await.unwrap();
        let got: Vec<u8> = fs.read(attr.obj, 0, 1 << 30).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
        assert!(got == content(n), "{name}: file {n}");
    }
    fs.unmount().await.unwrap();
}

fn run<F: Future<Output = ()>>(lab: &Lab, what: impl FnOnce(SimHandle) -> F) {
    let sim = lab.sim.handle().clone();
    lab.sim.block_on(what(sim));
}

/// zdb, then the decryptor with the keys of the roots.
pub(crate) fn ask(lab: &Lab, name: &str, keys: &[String]) {
    let images = lab.images();
    match judge(&images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        // zdb 2.1 dies of an assertion of its own when it prints encrypted file systems.
        Verdict::Bad(why) if why.starts_with("zdb -dddd") => eprintln!("NOT JUDGED: {why}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
    let Some(folder) = judges() else {
        eprintln!("NOT JUDGED: the folder shared/judges is not there");
        return;
    };
    let scratch = Scratch::new(&format!("{name}-crypt")).unwrap();
    save(&images, scratch.path()).unwrap();
    let out = Command::new("python3")
        .arg(folder.join("zfscrypt.py"))
        .arg("-p")
        .arg(scratch.path())
        .args(keys)
        .stdin(Stdio::null())
        .output();
    let Ok(out) = out else {
        eprintln!("NOT JUDGED: python3 is not there");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if text.contains("No module named") {
        eprintln!("NOT JUDGED: {text}");
        return;
    }
    assert!(out.status.success() && text.contains("verified"), "{text}");
    assert!(!text.contains("no key"), "{text}");
}

#[test]
fn encrypted_file_systems() {
    let mut rng = Rng::new(7);
    let mut layout = Layout::draw(&mut rng, 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(7, &layout);
    let suites = [Suite::Aes128Ccm, Suite::Aes192Ccm, Suite::Aes256Ccm, Suite::Aes128Gcm, Suite::Aes192Gcm];
    run(&lab, |sim| {
        let (lab, layout) = (&lab, &layout);
        async move {
            let pool = lab.create(layout, Vec::new()).await.unwrap();
            let dsl = pool.dsl();
            let fs = |name: &str| format!("{POOL}/{name}");
            // Impossible parameters are refused with a sentence and leave nothing behind.
            let no_key = NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: None };
            let e = dsl.create_fs_encrypted(&fs("x"), Vec::new(), no_key, new_fs(&sim)).await.map(drop).unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("keyformat"), "{e}");
            let short =
                NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: Some(key(KeyFormat::Passphrase, "short")) };
            assert!(dsl.create_fs_encrypted(&fs("x"), Vec::new(), short, new_fs(&sim)).await.is_err());
            assert!(dsl.find(&fs("x")).is_err());

            let enc = NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: Some(key(KeyFormat::Passphrase, WORDS)) };
            let lz4 = vec![("compression".to_string(), PropValue::Num(15)), ("copies".into(), PropValue::Num(3))];
            dsl.create_fs_encrypted(&fs("enc"), lz4, enc, new_fs(&sim)).await.unwrap();
            dsl.create_fs(&fs("enc/child"), Vec::new(), new_fs(&sim)).await.unwrap();
            let off = NewCrypt { suite: Some(None), key: None };
            dsl.create_fs_encrypted(&fs("enc/plain"), Vec::new(), off, new_fs(&sim)).await.unwrap();
            for (i, suite) in suites.into_iter().enumerate() {
                let hex = NewCrypt { suite: Some(Some(suite)), key: Some(key(KeyFormat::Hex, HEX)) };
                let sha = vec![("checksum".to_string(), PropValue::Num([7, 8, 11, 12, 13][i]))];
                dsl.create_fs_encrypted(&fs(suite.name()), sha, hex, new_fs(&sim)).await.unwrap();
                fill(&pool, &fs(suite.name()), 0..6).await;
            }
            fill(&pool, &fs("enc"), 0..12).await;
            fill(&pool, &fs("enc/child"), 6..24).await;
            fill(&pool, &fs("enc/plain"), 0..3).await;
            dsl.snapshot(vec![format!("{}@s", fs("enc")), format!("{}@s", fs("enc/child"))], false, Vec::new())
                .await
                .unwrap();
            for (of, sealed) in [("enc", true), ("enc/plain", false)] {
                let (snap, mark) = (format!("{}@m", fs(of)), format!("{}#m", fs(of)));
                dsl.snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
                dsl.create_bookmark(&snap, &mark).await.unwrap();
                // A raw stream goes on from a bookmark only if it names the snapshot's set of IVs.
                let object = dsl.find_snapshot(&snap).await.unwrap().object;
                let ivset = dsl.ivset_guid(object).await.unwrap();
                let marks = dsl.bookmarks(&dsl.find(&fs(of)).unwrap()).await.unwrap();
                assert_eq!((ivset.is_some(), marks[0].ivset_guid()), (sealed, ivset.unwrap_or(0)), "{of}");
            }
            fill(&pool, &fs("enc"), 12..16).await;
            dsl.clone_snapshot(&format!("{}@s", fs("enc")), &fs("clone"), Vec::new()).await.unwrap();
            fill(&pool, &fs("clone"), 30..33).await;
            pool.export().await.unwrap();
        }
    });
    let mut keys = vec![format!("{POOL}/enc=passphrase:{WORDS}")];
    keys.extend(suites.iter().map(|s| format!("{POOL}/{}=hex:{HEX}", s.name())));
    ask(&lab, "encrypted", &keys);

    // Again, with the keys; then others.
    let lab = lab.reborn(8);
    run(&lab, |sim| {
        let (lab, layout) = (&lab, &layout);
        async move {
            let pool = lab.import(false, layout.opts()).await.unwrap();
            let dsl = pool.dsl();
            let fs = |name: &str| format!("{POOL}/{name}");
            let e = dsl.find(&fs("enc/child")).unwrap().objset().await.map(drop).unwrap_err();
            assert!(e.kind() == ErrorKind::Denied && e.to_string().contains("load-key"), "{e}");
            compare(&pool, &fs("enc/plain"), 0..3).await;
            let e = dsl.create_fs(&fs("enc/new"), Vec::new(), new_fs(&sim)).await.map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
            dsl.load_key(&fs("enc"), &material(WORDS), false).await.unwrap();
            compare(&pool, &fs("enc"), 0..16).await;
            compare(&pool, &format!("{}@s", fs("enc")), 0..12).await;
            compare(&pool, &fs("enc/child"), 6..24).await;
            compare(&pool, &fs("clone"), 0..12).await;
            compare(&pool, &fs("clone"), 30..33).await;
            for suite in suites {
                dsl.load_key(&fs(suite.name()), &material(HEX), false).await.unwrap();
                compare(&pool, &fs(suite.name()), 0..6).await;
            }
            // Another key for the root; one of its own for the child, which then goes back; one
            // destroyed, once without its key.
            dsl.change_key(&fs("enc"), key(KeyFormat::Hex, HEX)).await.unwrap();
            dsl.change_key(&fs("enc/child"), key(KeyFormat::Passphrase, "another passphrase")).await.unwrap();
            assert_eq!(dsl.encryption_roots(&fs("enc")).unwrap().len(), 2);
            assert!(dsl.change_key(&fs("clone"), key(KeyFormat::Hex, HEX)).await.is_err());
            dsl.inherit_key(&fs("enc/child")).await.unwrap();
            assert_eq!(dsl.encryption_roots(&fs("enc")).unwrap().len(), 1);
            fill(&pool, &fs("enc/child"), 40..42).await;
            dsl.destroy_fs(&fs("aes-128-ccm")).await.unwrap();
            dsl.unload_key(&fs("aes-128-gcm")).await.unwrap();
            dsl.destroy_fs(&fs("aes-128-gcm")).await.unwrap();
            dsl.unload_key(&fs("enc")).await.unwrap();
            assert!(dsl.load_key(&fs("enc"), &material(WORDS), false).await.is_err());
            pool.export().await.unwrap();
        }
    });
    let mut keys = vec![format!("{POOL}/enc=hex:{HEX}")];
    keys.extend(suites[1..3].iter().chain(&suites[4..]).map(|s| format!("{POOL}/{}=hex:{HEX}", s.name())));
    ask(&lab, "rekeyed", &keys);

    let lab = lab.reborn(9);
    run(&lab, |_| {
        let (lab, layout) = (&lab, &layout);
        async move {
            let pool = lab.import(false, layout.opts()).await.unwrap();
            pool.dsl().load_key(&format!("{POOL}/enc"), &material(HEX), false).await.unwrap();
            compare(&pool, &format!("{POOL}/enc/child"), 6..24).await;
            compare(&pool, &format!("{POOL}/enc/child"), 40..42).await;
            pool.export().await.unwrap();
        }
    });
}

/// A clone takes the place of an encryption root: the key is the clone's then, for the old root and
/// all that inherits from it, now and after an import.
#[test]
fn the_key_follows_a_promotion() {
    let mut rng = Rng::new(9);
    let mut layout = Layout::draw(&mut rng, 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(9, &layout);
    let fs = |name: &str| format!("{POOL}/{name}");
    let everything = async |pool: &Rc<Pool>| {
        compare(pool, &fs("enc"), 0..9).await;
        compare(pool, &fs("enc/child"), 3..6).await;
        compare(pool, &fs("clone"), 0..6).await;
        compare(pool, &fs("clone"), 9..12).await;
        compare(pool, &format!("{}@s", fs("clone")), 0..6).await;
    };
    run(&lab, |sim| {
        let (lab, layout) = (&lab, &layout);
        async move {
            let pool = lab.create(layout, Vec::new()).await.unwrap();
            let dsl = pool.dsl();
            let enc = NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: Some(key(KeyFormat::Passphrase, WORDS)) };
            dsl.create_fs_encrypted(&fs("enc"), Vec::new(), enc, new_fs(&sim)).await.unwrap();
            dsl.create_fs(&fs("enc/child"), Vec::new(), new_fs(&sim)).await.unwrap();
            fill(&pool, &fs("enc"), 0..6).await;
            fill(&pool, &fs("enc/child"), 3..6).await;
            dsl.snapshot(vec![format!("{}@s", fs("enc")), format!("{}@s", fs("enc/child"))], false, Vec::new())
                .await
                .unwrap();
            fill(&pool, &fs("enc"), 6..9).await;
            dsl.clone_snapshot(&format!("{}@s", fs("enc")), &fs("clone"), Vec::new()).await.unwrap();
            fill(&pool, &fs("clone"), 9..12).await;
            // A clone of a dataset that is no encryption root stays below its own root.
            dsl.clone_snapshot(&format!("{}@s", fs("enc/child")), &fs("outside"), Vec::new()).await.unwrap();
            let e = dsl.promote(&fs("outside")).await.unwrap_err();
            assert!(e.kind() == ErrorKind::Denied && e.to_string().contains("encryption root"), "{e}");
            dsl.destroy_fs(&fs("outside")).await.unwrap();

            dsl.promote(&fs("clone")).await.unwrap();
            assert_eq!(dsl.encryption_roots(POOL).unwrap(), [fs("clone")]);
            everything(&pool).await;
            pool.export().await.unwrap();
        }
    });
    ask(&lab, "promoted", &[format!("{}=passphrase:{WORDS}", fs("clone"))]);
    let lab = lab.reborn(10);
    run(&lab, |_| {
        let (lab, layout) = (&lab, &layout);
        async move {
            let pool = lab.import(false, layout.opts()).await.unwrap();
            let dsl = pool.dsl();
            assert_eq!(dsl.encryption_roots(POOL).unwrap(), [fs("clone")]);
            for name in ["enc", "enc/child"] {
                let dir = dsl.find_dir(&fs(name)).unwrap();
                assert_eq!(dsl.crypt_info(&dir).unwrap().root, fs("clone"));
            }
            let location = |name: &str| dsl.find_dir(&fs(name)).unwrap().local_props().contains_key("keylocation");
            assert!(location("clone") && !location("enc"));
            assert!(dsl.find(&fs("enc")).unwrap().objset().await.is_err());
            dsl.load_key(&fs("clone"), &material(WORDS), false).await.unwrap();
            everything(&pool).await;
            // And back.
            dsl.promote(&fs("enc")).await.unwrap();
            assert_eq!(dsl.encryption_roots(POOL).unwrap(), [fs("enc")]);
            dsl.unload_key(&fs("enc")).await.unwrap();
            assert!(dsl.find(&fs("clone")).unwrap().objset().await.is_err());
            pool.export().await.unwrap();
        }
    });
}
