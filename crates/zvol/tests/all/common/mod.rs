//! Pools that the kernel module wrote, and the engine's view of them.
#![allow(dead_code, clippy::unwrap_used)]

pub mod archive;
pub mod compare;
pub mod manifest;

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bdev::{BlockDev, DevInfo, MemDev};
use sim::{Sim, SimConfig};
use spa::{EngineOpts, ImportOpts, Pool};

/// The folders of archives: all of them beside the project, the small ones among its fixtures.
pub fn folders() -> [PathBuf; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    [root.join("../shared/pools"), root.join("tests/fixtures/pools")]
}

/// The archive of a pool.
pub fn archive_of(pool: &str) -> Option<PathBuf> {
    let file = format!("{pool}.tar.zst");
    let found = folders().into_iter().map(|f| f.join(&file)).find(|p| p.is_file());
    if found.is_none() {
        // Not with a macro: the harness hides their output when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "\n*** NOT TESTED: reference pool '{pool}': there is neither ../shared/pools/{file} nor tests/fixtures/pools/{file} ***\n"
        );
    }
    found
}

/// A pool's files.
pub struct Reference {
    pub name: String,
    pub files: BTreeMap<String, archive::File>,
}

impl Reference {
    pub fn load(pool: &str) -> Option<Reference> {
        Some(Reference { name: pool.to_string(), files: archive::unpack(&archive_of(pool)?) })
    }

    /// Its disks, in memory.
    pub fn devices(&self, rt: &rt::Rt, writable: bool) -> Vec<Rc<dyn BlockDev>> {
        let disks = self.files.iter().filter(|(name, _)| name.ends_with(".img"));
        disks.map(|(name, file)| disk(rt, name, file, writable) as Rc<dyn BlockDev>).collect()
    }

    /// The lines of one of its manifests.
    pub fn lines(&self, file: &str) -> Vec<serde_json::Value> {
        compare::parse(&self.files[file].text())
    }
}

fn disk(rt: &rt::Rt, name: &str, file: &archive::File, writable: bool) -> Rc<MemDev> {
    let info = DevInfo {
        path: name.into(),
        size_bytes: file.size & !511,
        logical_sector: 512,
        physical_sector: 4096,
        rotational: false,
        writable,
        supports_discard: false,
        writes_durably: true,
    };
    let dev = MemDev::with_info(rt, info);
    for (at, part) in &file.parts {
        dev.poke(*at, part);
    }
    Rc::new(dev)
}

pub fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 64 << 20;
    opts
}

/// The pools on the devices, by name, each imported read-only or with the error sentence.
pub async fn import_all(rt: &rt::Rt, devices: Vec<Rc<dyn BlockDev>>) -> Vec<(String, base::Result<Rc<Pool>>)> {
    let mut out = Vec::new();
    for candidate in spa::scan(devices).await {
        let name = candidate.name.clone();
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        out.push((name, Pool::import(rt.clone(), candidate, import, opts()).await));
    }
    out
}

/// Runs a test in virtual time.
pub fn run<T, F: Future<Output = T>>(test: impl FnOnce(rt::Rt) -> F) -> T {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    sim.block_on(test(rt))
}
