//! Files as devices, on both drivers: the contract, locks, sizes, errors.

use std::rc::Rc;

use base::ErrorKind;
use bdev::{MemDev, conformance};
use host::{BackendChoice, Direct, Engine, EngineConfig, HostDev, Lock, OpenOpts, TempDir, create_sparse};
use rt::Rt;

const SIZE: u64 = 16 << 20;

fn engines() -> [Engine; 2] {
    [BackendChoice::Auto, BackendChoice::Threads]
        .map(|backend| Engine::new(EngineConfig { backend, ..EngineConfig::default() }).expect("an engine"))
}

fn rw() -> OpenOpts {
    OpenOpts { write: true, ..OpenOpts::default() }
}

/// Runs `f` on each engine with an empty file.
fn each<Fut: Future<Output = ()>>(f: impl Fn(Rt, std::path::PathBuf) -> Fut) {
    for engine in engines() {
        let dir = TempDir::new("dev").expect("a folder");
        let path = dir.join("disk");
        create_sparse(&path, SIZE).expect("a file");
        engine.block_on(f(engine.rt(), path));
        assert_eq!(engine.stats().in_flight, 0);
    }
}

#[test]
fn files_keep_the_contract() {
    each(|rt, path| async move {
        let dev = HostDev::open(&rt, &path, rw()).expect("open");
        conformance::run(&rt, dev, conformance::Opts { random_ops: 200, ..conformance::Opts::default() }).await;
    });
}

#[test]
fn buffered_files_keep_the_contract() {
    each(|rt, path| async move {
        let dev = HostDev::open_dev(&rt, &path, OpenOpts { direct: Direct::Off, ..rw() }).expect("open");
        assert!(!dev.is_direct() && !dev.is_block_device());
        conformance::run(&rt, dev, conformance::Opts { random_ops: 200, seed: 3, ..conformance::Opts::default() })
            .await;
    });
}

#[test]
fn memory_keeps_the_contract_here_too() {
    for engine in engines() {
        let rt = engine.rt();
        let dev = Rc::new(MemDev::new(&rt, SIZE));
        engine.block_on(conformance::run(&rt, dev, conformance::Opts::default()));
    }
}

#[test]
fn read_only_files_refuse_writes() {
    each(|rt, path| async move {
        let dev = HostDev::open(&rt, &path, OpenOpts::default()).expect("open");
        conformance::run(&rt, dev, conformance::Opts::default()).await;
    });
}

#[test]
fn a_device_is_opened_by_one() {
    each(|rt, path| async move {
        let open = |opts| HostDev::open(&rt, &path, opts);
        let first = open(rw()).expect("nobody else has it");
        for opts in [rw(), OpenOpts::default()] {
            let e = open(opts).err().expect("the first has it");
            assert_eq!(e.kind(), ErrorKind::Busy);
            assert_eq!(e.to_string(), format!("{} is in use by another process", path.display()));
        }
        drop(open(OpenOpts { lock: Lock::None, ..OpenOpts::default() }).expect("looking is always allowed"));
        drop(first);
        let reader = open(OpenOpts::default()).expect("free again");
        drop(open(OpenOpts::default()).expect("readers share"));
        assert_eq!(open(rw()).err().expect("somebody reads").kind(), ErrorKind::Busy);
        drop(reader);
        drop(open(rw()).expect("free again"));
    });
}

#[test]
fn what_cannot_be_opened_is_named() {
    each(|rt, path| async move {
        let folder = path.parent().expect("a folder").to_owned();
        for (path, kind) in [
            (folder.join("missing"), ErrorKind::NotFound),
            (folder, ErrorKind::Invalid),
            ("/dev/null".into(), ErrorKind::Invalid),
        ] {
            let e = HostDev::open(&rt, &path, OpenOpts::default()).err().expect("refused");
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.to_string().contains(&path.display().to_string()), "{e}");
        }
        assert_eq!(create_sparse(&path, 1).expect_err("there already").kind(), ErrorKind::Exists);
    });
}

#[test]
fn sizes_follow_the_file() {
    each(|rt, path| async move {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(SIZE + 700).expect("grow");
        let dev = HostDev::open(&rt, &path, rw()).expect("open");
        assert_eq!(dev.size(), SIZE + 512, "whole sectors");
        assert_eq!(dev.info().physical_sector, 4096);
        file.set_len(SIZE + 8192).expect("grow");
        assert_eq!(dev.size(), SIZE + 512, "not before it is asked");
        assert_eq!(dev.refresh_size().expect("a size"), SIZE + 8192);
        bdev::write(&*dev, SIZE + 4096, bdev::Bytes::zeroed(4096)).await.expect("the new end");
        // Shrunk by another program: reads behind the end fail.
        file.set_len(SIZE).expect("shrink");
        let e = bdev::read(&*dev, SIZE + 4096, 4096).await.expect_err("nothing there");
        assert_eq!(e.kind(), ErrorKind::Corrupt);
        assert!(e.to_string().contains("truncated"), "{e}");
    });
}

#[test]
fn a_truncated_file_is_an_error_also_when_it_grew_again() {
    for grows in [false, true] {
        each(|rt, path| async move {
            let dev = HostDev::open(&rt, &path, rw()).expect("open");
            // The configuration of the third label, and a slot of its ring.
            let (config, slot) = (SIZE - (512 << 10) + (16 << 10), SIZE - (512 << 10) + (128 << 10));
            let block = || bdev::Bytes::copy_from(&[7; 4096]);
            bdev::write(&*dev, config, block()).await.expect("a label");
            bdev::flush(&*dev).await.expect("flush");
            for _ in 0..2 {
                bdev::write(&*dev, slot, block()).await.expect("a slot of an intact label");
            }
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
            file.set_len(1 << 20).expect("shrink");
            if grows {
                file.set_len(SIZE).expect("grow");
            }
            let e = bdev::write(&*dev, slot, block()).await.expect_err("the file is not what it was");
            assert_eq!(e.kind(), ErrorKind::Corrupt);
            assert!(e.to_string().contains("truncated"), "{e}");
            assert_eq!(file.metadata().expect("its size").len(), if grows { SIZE } else { 1 << 20 }, "left alone");
            // For good: its content is gone.
            bdev::read(&*dev, 0, 4096).await.expect_err("no reads either");
        });
    }
}

#[test]
fn discards_free_space() {
    use std::os::unix::fs::MetadataExt;
    each(|rt, path| async move {
        let dev = HostDev::open(&rt, &path, rw()).expect("open");
        if !dev.info().supports_discard {
            return;
        }
        bdev::write(&*dev, 0, bdev::Bytes::copy_from(&[7; 1 << 20])).await.expect("write");
        bdev::flush(&*dev).await.expect("flush");
        let before = std::fs::metadata(&path).expect("stat").blocks();
        bdev::discard(&*dev, 0, 1 << 20).await.expect("discard");
        assert!(std::fs::metadata(&path).expect("stat").blocks() < before);
        assert_eq!(std::fs::metadata(&path).expect("stat").len(), SIZE);
    });
}

#[test]
fn an_engine_that_ends_waits_for_its_devices() {
    for engine in engines() {
        let dir = TempDir::new("dev").expect("a folder");
        let path = dir.join("disk");
        create_sparse(&path, SIZE).expect("a file");
        let rt = engine.rt();
        let dev = HostDev::open(&rt, &path, rw()).expect("open");
        let data = bdev::Bytes::copy_from(&[3; 1 << 20]);
        // More than a ring takes at once, without waiters for the results.
        for i in 0..1000u64 {
            let op = bdev::Op::Write { offset: (i % 16) << 20, bufs: vec![data.clone()], durable: false };
            drop(bdev::run(&*dev, op));
        }
        engine.block_on(rt.yield_now());
        drop(engine);
        assert!(data.is_unique(), "no device uses the memory any more");
        let e = rt_less_block_on(bdev::read(&*dev, 0, 512)).expect_err("its engine has ended");
        assert_eq!(e.kind(), ErrorKind::Interrupted);
    }
}

/// Polls once: for futures that are ready.
fn rt_less_block_on<T>(fut: impl Future<Output = T>) -> T {
    let mut fut = std::pin::pin!(fut);
    match fut.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(v) => v,
        std::task::Poll::Pending => panic!("not ready"),
    }
}

/// Destroys the content of the block device that `WEIR_TEST_BLOCK_DEVICE` names.
#[test]
#[ignore = "needs a block device to destroy: `cargo xtask campaign --only block-device` runs it"]
fn block_devices_keep_the_contract() {
    let path = std::env::var("WEIR_TEST_BLOCK_DEVICE").expect("WEIR_TEST_BLOCK_DEVICE names a block device");
    for engine in engines() {
        let rt = engine.rt();
        engine.block_on(async {
            let dev = HostDev::open_dev(&rt, &path, rw()).expect("open");
            assert!(dev.is_block_device());
            println!("{:?}, direct {}", bdev::BlockDev::info(&*dev), dev.is_direct());
            assert_eq!(HostDev::open(&rt, &path, rw()).err().expect("claimed").kind(), ErrorKind::Busy);
            conformance::run(&rt, dev, conformance::Opts::default()).await;
            let dev = HostDev::open(&rt, &path, OpenOpts::default()).expect("open read-only");
            conformance::run(&rt, dev, conformance::Opts::default()).await;
        });
    }
}
