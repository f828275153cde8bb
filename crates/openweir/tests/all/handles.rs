//! Handles: dropped without a close, used from many threads and executors, given up half way, and
//! outliving their engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use openweir::{
    Batch, CreateOptions, Device, Engine, ErrorKind, Event, ImportOptions, OpenOptions, Pool, ScanPhase, Value,
    block_on,
};

const SIZE: u64 = 128 << 20;

fn image(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("openweir-{name}-{}.img", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn memory_pool() -> Pool {
    let engine = Engine::start().unwrap();
    let disk = engine.memory_device(SIZE).wait().unwrap();
    engine.create_pool("tank", disk, CreateOptions::default()).wait().unwrap()
}

#[test]
fn everything_is_send() {
    fn check<T: Send + Sync + 'static>() {}
    fn call<T: Send + 'static>() {}
    check::<Engine>();
    check::<Pool>();
    check::<openweir::FileSystem>();
    check::<openweir::File>();
    check::<openweir::Objects>();
    check::<openweir::Error>();
    check::<Device>();
    call::<openweir::Call<Vec<u8>>>();
    call::<openweir::Events>();
    call::<openweir::sim::Simulator>();
}

#[test]
fn dropping_everything_closes_the_pool_in_order() {
    let path = image("drop");
    let begun = Instant::now();
    {
        let pool = Pool::create("tank", Device::new_file(&path, SIZE), CreateOptions::default()).wait().unwrap();
        let fs = pool.filesystem("tank").wait().unwrap();
        let file = fs.open("f", OpenOptions::new().create(0o644)).wait().unwrap();
        file.write_at(0, "kept").wait().unwrap();
        drop(pool);
        drop(fs);
        // The last handle is the file's; this write is started and its result ignored.
        drop(file.write_at(4, " too"));
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    let engine = Engine::start().unwrap();
    let found = engine.find_pools(vec![Device::path(&path)]).wait().unwrap();
    assert!(found[0].exported, "{found:?}");
    let pool = engine.import_pool(vec![Device::path(&path)], ImportOptions::default()).wait().unwrap();
    assert_eq!(pool.filesystem("tank").wait().unwrap().read("f").wait().unwrap(), b"kept too");
    // Dropped while the engine lives on: closed as well, and the device is free at once.
    drop(pool);
    assert!(engine.pools().wait().unwrap().is_empty());
    let pool = engine.import_pool(vec![Device::path(&path)], ImportOptions::default()).wait().unwrap();
    // Calls that were dropped at once and pools whose handle was never taken do not stay.
    drop(pool);
    drop(engine.import_pool(vec![Device::path(&path)], ImportOptions::default()));
    engine.stop().wait().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_panic_in_the_engine_is_an_error_for_everybody() {
    let path = image("panic");
    let pool = Pool::create("tank", Device::new_file(&path, SIZE), CreateOptions::default()).wait().unwrap();
    let fs = pool.filesystem("tank").wait().unwrap();
    let file = fs.open("f", OpenOptions::new().create(0o644)).wait().unwrap();
    file.write_at(0, "acknowledged").wait().unwrap();
    file.sync().wait().unwrap();
    let mut events = pool.events().wait().unwrap();
    let waits = pool.engine().local(|inside| {
        let rt = inside.rt().clone();
        async move {
            rt.sleep(openweir::local::base::Nanos::from_secs(3600)).await;
            Ok(())
        }
    });
    let panics = pool.engine().local(|_| async { if true { panic!("on purpose") } else { Ok(()) } });
    for e in [panics.wait().unwrap_err(), waits.wait().unwrap_err(), pool.sync().wait().unwrap_err()] {
        assert_eq!((e.kind(), e.message()), (ErrorKind::EngineGone, "the engine panicked: on purpose"));
    }
    while events.wait(Duration::from_secs(60)).is_some() {}
    assert!(events.is_ended() && !pool.engine().is_running());
    let begun = Instant::now();
    drop((file, fs, pool));
    assert!(begun.elapsed() < Duration::from_secs(20));
    let pool = Pool::import(vec![Device::path(&path)], ImportOptions::default()).wait().unwrap();
    assert_eq!(pool.filesystem("tank").wait().unwrap().read("f").wait().unwrap(), b"acknowledged");
    pool.destroy().wait().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_panic_of_a_closure_is_one_too() {
    let engine = Engine::start().unwrap();
    let e = engine.local(|_| if true { panic!("at once") } else { async { Ok(()) } }).wait().unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::EngineGone, "the engine panicked: at once"));
}

#[test]
fn waiting_on_the_engine_thread_is_refused() {
    let pool = memory_pool();
    let inner = pool.clone();
    let e = pool.engine().local(move |_| async move { inner.sync().wait() }).wait().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    // Awaiting is fine, and so is dropping a handle there.
    let inner = pool.clone();
    pool.engine().local(move |_| async move { inner.sync().await.map(drop) }).wait().unwrap();
}

#[test]
fn many_threads_use_one_pool() {
    let pool = memory_pool();
    let fs = pool.filesystem("tank").wait().unwrap();
    let shared = fs.open("log", OpenOptions::new().create(0o644)).wait().unwrap();
    std::thread::scope(|s| {
        for t in 0..8u8 {
            let (fs, shared, pool) = (fs.clone(), shared.clone(), &pool);
            s.spawn(move || {
                for n in 0..25 {
                    let path = format!("{t}-{n}");
                    fs.write(&path, vec![t; 3000 * n]).wait().unwrap();
                    shared.append([t; 64]).wait().unwrap();
                    assert_eq!(fs.read(&path).wait().unwrap(), vec![t; 3000 * n]);
                    // Each thread opens and drops handles of its own as well.
                    drop(pool.filesystem("tank").wait().unwrap());
                    if n == 10 {
                        pool.snapshot(&[&format!("tank@{t}")], false).wait().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs.readdir("/").wait().unwrap().len(), 8 * 25 + 1);
    assert_eq!(pool.snapshots("tank").wait().unwrap().len(), 8);
    let log = fs.read("log").wait().unwrap();
    assert_eq!(log.len(), 8 * 25 * 64);
    assert!(log.chunks(64).all(|c| c.iter().all(|b| *b == c[0])), "appends do not mix");
}

struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_call_that_is_dropped_happens_all_the_same() {
    let pool = memory_pool();
    let objects = pool.filesystem("tank").wait().unwrap().objects().wait().unwrap();
    let root = objects.root();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    for n in 0..200u64 {
        let mut batch = Batch::new();
        batch.set(root, format!("key {n}"), n);
        batch.set(root, "last", n);
        let mut call = std::pin::pin!(objects.commit(batch));
        // Some are never polled, some are polled and given up.
        if n % 2 == 0
            && let Poll::Ready(done) = call.as_mut().poll(&mut Context::from_waker(&waker))
        {
            done.unwrap();
        }
    }
    assert_eq!(objects.count(root).wait().unwrap(), 201);
    assert_eq!(objects.get(root, "last").wait().unwrap(), Some(Value::Number(199)));
    // Everything that was begun is done before the pool is closed.
    let fs = pool.filesystem("tank").wait().unwrap();
    let begun: Vec<_> = (0..50).map(|n| fs.write(format!("f{n}"), vec![1; 100_000])).collect();
    let export = pool.export();
    begun.into_iter().for_each(|c| c.wait().unwrap());
    export.wait().unwrap();
}

#[test]
fn any_executor_will_do() {
    let pool = memory_pool();
    let fs = pool.filesystem("tank").wait().unwrap();
    let work = async |fs: openweir::FileSystem, name: &'static str| {
        let file = fs.open(name, OpenOptions::new().create(0o644)).await?;
        file.write_at(0, name).await?;
        file.sync().await?;
        file.read_at(0, 100).await
    };
    assert_eq!(block_on(work(fs.clone(), "plain")).unwrap(), b"plain");
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, rt.spawn(work(fs.clone(), name)))).into_iter().collect();
    for (name, task) in tasks {
        assert_eq!(rt.block_on(task).unwrap().unwrap(), name.as_bytes());
    }
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        pool.export().await.unwrap();
        pool.engine().stop().await.unwrap();
    });
}

#[test]
fn streams_tell_what_happens() {
    let pool = memory_pool();
    let mut events = pool.events().wait().unwrap();
    pool.filesystem("tank").wait().unwrap().write("f", vec![3; 1 << 20]).wait().unwrap();
    let txg = pool.sync().wait().unwrap();
    pool.wait_txg(txg).wait().unwrap();
    assert_eq!(pool.wait_txg(u64::MAX).wait().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(pool.scan_status().wait().unwrap().state, ScanPhase::None);
    pool.scrub().wait().unwrap();
    let scan = pool.wait_scan().wait().unwrap();
    assert_eq!((scan.state, scan.errors, scan.resilver), (ScanPhase::Finished, 0, false));
    pool.export().wait().unwrap();
    let (mut last, mut classes) = (0, Vec::new());
    while let Some(event) = events.wait(Duration::from_secs(60)) {
        match event {
            Event::Txg(n) => {
                assert!(n > last);
                last = n;
            }
            Event::Zevent(z) => {
                assert!(z.field("pool_guid").is_some());
                classes.push(z.class);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(last >= txg);
    let class = |c: &str| classes.iter().position(|k| k == &format!("sysevent.fs.zfs.{c}")).unwrap();
    assert!(class("scrub_start") < class("scrub_finish") && class("scrub_finish") < class("pool_export"));
}
