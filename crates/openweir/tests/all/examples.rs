//! The examples work as described.

#[path = "../../examples/foreign.rs"]
mod foreign;
#[path = "../../examples/kv.rs"]
mod kv;
#[path = "../../examples/server.rs"]
mod server;
#[path = "../../examples/simulated.rs"]
mod simulated;
#[path = "../../examples/snaplog.rs"]
mod snaplog;

#[test]
fn a_key_value_store() {
    assert_eq!(kv::run().unwrap(), 999);
}

#[test]
fn a_snapshotting_log() {
    let want: Vec<_> = [80, 90, 100].map(|n| (format!("tank/log@{n:08}"), n)).into();
    assert_eq!(snaplog::run().unwrap(), want);
}

#[test]
fn a_file_server() {
    assert_eq!(server::run().unwrap(), "b\ntoday.txt\n");
}

#[test]
fn a_simulated_pool_finds_what_power_cuts_break() {
    let (files, batches) = simulated::run(20).unwrap();
    assert!(files > 0, "a transfer in two steps breaks");
    assert_eq!(batches, 0);
}

#[test]
fn a_reader_of_foreign_pools() {
    let folder = std::env::temp_dir().join(format!("openweir-foreign-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let found = foreign::run(&folder).unwrap();
    std::fs::remove_dir(&folder).unwrap();
    assert_eq!((found.datasets, found.directories, found.files, found.bytes), (3, 4, 3, 6_010_000));
    assert!(found.failed.is_empty());
}
