//! Raw streams received without the key: with it the content is that of the sender, and sent on the
//! stream is the same, byte for byte.

use base::ErrorKind;
use dsl::crypto::KeyMaterial;
use dsl::receive::{RECV, ReceiveOpts};
use dsl::send::SendOpts;
use ondisk::stream::{Record, Token};
use sim::{DiskImage, Rng};
use spa::{EngineOpts, GroupKind, ImportOpts, Pool};

use crate::common::World;
use crate::snapshots::{check_dir, check_fs};
use crate::streams::{
    Sent, assert_alike, assert_same, change, create, export, joined, load_key, objects, parts, receive, rest, send,
    sender, snapshot, unpack,
};

const RAW: SendOpts = SendOpts { large_blocks: false, embedded: false, compressed: false, raw: true };
/// An encrypted file system with its own key and these properties.
fn encrypted<'a>(props: &'a [(&'a str, u64)]) -> Sent<'a> {
    Sent { props, encrypted: true }
}

#[test]
fn a_kernels_raw_stream_opens_with_its_key() {
    let Some(dir) = unpack() else { return };
    let world = World::over(31, vec![DiskImage::load(dir.join("d0.img")).unwrap(), DiskImage::zeroed(128 << 20)]);
    world.sim.block_on(async {
        let candidate = spa::scan(vec![world.disks[0].dev()]).await.remove(0);
        let readonly = ImportOpts { readonly: true, ..ImportOpts::default() };
        let from = Pool::import(world.sim.rt(), candidate, readonly, EngineOpts::for_memory(256 << 20)).await.unwrap();
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let stream = std::fs::read(dir.join("raw.zstream")).unwrap();
        receive(&to, "to/enc@1", &stream, ReceiveOpts::default()).await.unwrap();
        assert_alike("raw", &stream, &send(&to, "to/enc@1", None, RAW).await);
        let denied = to.dsl().find_snapshot("to/enc@1").await.unwrap().objset().await.err().unwrap();
        assert_eq!(denied.kind(), ErrorKind::Denied);
        let words = || KeyMaterial::new(b"correct-horse-battery");
        from.dsl().load_key("str/enc", &words(), false).await.unwrap();
        to.dsl().load_key("to/enc", &words(), false).await.unwrap();
        assert_same("raw", &objects(&from, "str/enc@1").await, &objects(&to, "to/enc@1").await);
        // It is a file system like others.
        change(&to, "to/enc", &mut Rng::new(1), 20).await;
        check_fs(to.dsl(), &to.dsl().find("to/enc").unwrap(), &["1".to_string()]).await;
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}

#[test]
fn raw_increments_arrive_on_other_layouts() {
    for seed in 0..4u64 {
        let world = World::with_sizes(seed, &[192 << 20; 4]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let to = match seed % 2 {
                0 => create(&world, "to", GroupKind::Raidz(1), &[1, 2, 3], 12).await,
                _ => create(&world, "to", GroupKind::Mirror, &[1, 2], 9).await,
            };
            let props = [("compression", 15), ("recordsize", [16384, 131_072][rng.below(2) as usize]), ("xattr", 2)];
            let from = sender(&world, &mut rng, 9, encrypted(&props), &[]).await;
            let (mut last, mut names): (Option<String>, Vec<String>) = (None, Vec::new());
            for n in 0..4 {
                snapshot(&from, "from/fs", &mut rng, &n.to_string()).await;
                let snap = format!("from/fs@{n}");
                let stream = send(&from, &snap, last.as_deref(), RAW).await;
                let target = format!("to/fs@{n}");
                receive(&to, &target, &stream, ReceiveOpts::default()).await.unwrap();
                // The sum of the meta-dnode's tree is the sender's, or the MACs would not fit.
                let since = last.as_deref().map(|l| l.replace("from/", "to/"));
                let what = format!("seed {seed}: {target}");
                assert_alike(&what, &stream, &send(&to, &target, since.as_deref(), RAW).await);
                names.push(n.to_string());
                check_fs(to.dsl(), &to.dsl().find("to/fs").unwrap(), &names).await;
                check_dir(&to.dsl().root());
                if n == 1 {
                    load_key(&to, "to/fs").await.unwrap();
                }
                if n > 0 {
                    assert_same(&what, &objects(&from, &snap).await, &objects(&to, &target).await);
                }
                last = Some(snap);
            }
            assert_same("head", &objects(&from, "from/fs@3").await, &objects(&to, "to/fs").await);
            export([from, to]).await;
        });
    }
}

#[test]
fn raw_streams_fit_raw_targets_only() {
    let world = World::with_sizes(35, &[128 << 20; 2]);
    let mut rng = Rng::new(35);
    world.sim.block_on(async {
        let from = sender(&world, &mut rng, 12, encrypted(&[("compression", 15)]), &["a", "b"]).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let (a, b) =
            (send(&from, "from/fs@a", None, RAW).await, send(&from, "from/fs@b", Some("from/fs@a"), RAW).await);
        let plain = send(&from, "from/fs@a", None, SendOpts::default()).await;
        let no = ReceiveOpts::default;
        receive(&to, "to/plain@a", &plain, no()).await.unwrap();
        // Compressed and not raw it is in clear.
        let packed = send(&from, "from/fs@a", None, SendOpts { compressed: true, ..SendOpts::default() }).await;
        assert!(parts(&packed).iter().any(|(record, _)| matches!(record, Record::Write(w) if w.compression != 0)));
        receive(&to, "to/packed@a", &packed, no()).await.unwrap();
        assert_same("packed", &objects(&from, "from/fs@a").await, &objects(&to, "to/packed@a").await);
        let e = receive(&to, "to/plain@b", &b, no()).await.unwrap_err();
        assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("existing unencrypted dataset"), "{e}");
        let e = receive(&to, "to/plain@b", &a, ReceiveOpts { force: true, ..no() }).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
        receive(&to, "to/fs@a", &a, no()).await.unwrap();
        // A plain increment needs the key.
        let more = send(&from, "from/fs@b", Some("from/fs@a"), SendOpts::default()).await;
        assert_eq!(receive(&to, "to/fs@b", &more, no()).await.unwrap_err().kind(), ErrorKind::Denied);
        // Hostile: every record in turn is damaged in some field, with right sums.
        let good = parts(&b);
        for n in 0..60 {
            let mut parts = good.clone();
            let at = 1 + rng.below(parts.len() as u64 - 2) as usize;
            let x = [0, 1, u64::MAX, 1 << 47, 4096][rng.below(5) as usize];
            match &mut parts[at].0 {
                Record::Object(o) => match n % 5 {
                    0 => o.levels = x as u8,
                    1 => o.max_block_id = x,
                    2 => o.indirect_shift = x as u8,
                    3 => o.block_size = x as u32,
                    _ => o.dn_slots = x as u8,
                },
                Record::ObjectRange(r) => r.first.0 = x,
                Record::Write(w) => match n % 3 {
                    0 => w.offset = x,
                    1 => w.compression = x as u8 | 1,
                    _ => w.crypt.mac[0] ^= 1,
                },
                Record::Free(r) => (r.offset, r.length) = (x, x / 2),
                Record::FreeObjects(r) => r.count = x,
                _ => {}
            }
            // What is taken has wrong MACs at most, which the key shows.
            if receive(&to, "to/fs@b", &joined(&parts), no()).await.is_ok() {
                to.dsl().destroy_snapshots(vec!["to/fs@b".into()], false).await.unwrap();
                to.dsl().rollback("to/fs@a").await.unwrap_or_default();
            }
            assert!(to.dsl().find("to/fs").unwrap().dir().child(RECV).is_none());
        }
        receive(&to, "to/fs@b", &b, ReceiveOpts { force: true, ..no() }).await.unwrap();
        load_key(&to, "to/fs").await.unwrap();
        assert_same("b", &objects(&from, "from/fs@b").await, &objects(&to, "to/fs@b").await);
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}

#[test]
fn a_raw_stream_that_broke_off_goes_on() {
    let world = World::with_sizes(36, &[128 << 20; 2]);
    let mut rng = Rng::new(36);
    world.sim.block_on(async {
        let from = sender(&world, &mut rng, 12, encrypted(&[]), &["a"]).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let stream = send(&from, "from/fs@a", None, RAW).await;
        let how = || ReceiveOpts { resumable: true, ..ReceiveOpts::default() };
        let (mut next, mut stops) = (stream.clone(), 0);
        loop {
            let cut = if stops < 5 { rng.below(next.len() as u64) as usize } else { next.len() };
            if receive(&to, "to/fs@a", &next[..cut], how()).await.is_ok() {
                break;
            }
            stops += 1;
            let Ok(head) = to.dsl().find("to/fs") else { continue };
            if let Some(token) = to.dsl().resume_token(&head).await.unwrap() {
                let token = Token::parse(&token).unwrap();
                assert!(token.raw_ok && token.compress_ok);
                next = rest(&from, &token).await;
            }
        }
        load_key(&to, "to/fs").await.unwrap();
        assert_same("resumed", &objects(&from, "from/fs@a").await, &objects(&to, "to/fs@a").await);
        assert_alike("resumed", &stream, &send(&to, "to/fs@a", None, RAW).await);
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}
