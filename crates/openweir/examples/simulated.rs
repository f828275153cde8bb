//! A pool in memory for the tests of another program, with power cuts.
//!
//! The program under test is a ledger that moves money between accounts. Its promise: the sum never
//! changes, and a transfer that was acknowledged is there after a power cut. One way of writing it
//! keeps the promise, the other does not, and the simulation finds out.
//!
//! `cargo run -p openweir --example simulated`
#![allow(missing_docs)]

use openweir::sim::{DiskKind, Simulator};
use openweir::{Batch, CreateOptions, FileSystem, ImportOptions, Objects, Result};

const ACCOUNTS: u64 = 4;
const EACH: u64 = 1000;

/// The ledger under test.
trait Ledger: Sized {
    /// Makes it with [`EACH`] in every account.
    fn make(fs: &FileSystem) -> Result<Self>;
    fn open(fs: &FileSystem) -> Result<Self>;
    /// Moves 1; durable when it returns.
    fn transfer(&self, from: u64, to: u64) -> Result<()>;
    fn balances(&self) -> Result<Vec<u64>>;
}

/// Each balance is a file, written and synced: two steps, between which the power may go.
pub struct InFiles(FileSystem);

impl InFiles {
    fn write(&self, account: u64, balance: u64) -> Result<()> {
        let path = format!("account{account}");
        self.0.write(&path, balance.to_string()).wait()?;
        self.0.sync_path(&path).wait()
    }
    fn read(&self, account: u64) -> Result<u64> {
        let text = self.0.read(format!("account{account}")).wait()?;
        Ok(String::from_utf8_lossy(&text).parse().unwrap_or(0))
    }
}

impl Ledger for InFiles {
    fn make(fs: &FileSystem) -> Result<InFiles> {
        let ledger = InFiles(fs.clone());
        (0..ACCOUNTS).try_for_each(|n| ledger.write(n, EACH))?;
        Ok(ledger)
    }
    fn open(fs: &FileSystem) -> Result<InFiles> {
        Ok(InFiles(fs.clone()))
    }
    fn transfer(&self, from: u64, to: u64) -> Result<()> {
        self.write(from, self.read(from)? - 1)?;
        self.write(to, self.read(to)? + 1)
    }
    fn balances(&self) -> Result<Vec<u64>> {
        (0..ACCOUNTS).map(|n| self.read(n)).collect()
    }
}

/// Balances are entries of a ZAP, and a transfer is one batch.
pub struct InBatches(Objects);

impl InBatches {
    fn read(&self, account: u64) -> Result<u64> {
        let value = self.0.get(self.0.root(), account.to_string()).wait()?;
        Ok(value.and_then(|v| v.number()).unwrap_or(0))
    }
}

impl Ledger for InBatches {
    fn make(fs: &FileSystem) -> Result<InBatches> {
        let objects = fs.objects().wait()?;
        let mut batch = Batch::new();
        (0..ACCOUNTS).for_each(|n| batch.set(objects.root(), n.to_string(), EACH));
        objects.commit_durable(batch).wait()?;
        Ok(InBatches(objects))
    }
    fn open(fs: &FileSystem) -> Result<InBatches> {
        Ok(InBatches(fs.objects().wait()?))
    }
    fn transfer(&self, from: u64, to: u64) -> Result<()> {
        let (a, b) = (self.read(from)?, self.read(to)?);
        let mut batch = Batch::new();
        batch.set(self.0.root(), from.to_string(), a - 1);
        batch.set(self.0.root(), to.to_string(), b + 1);
        self.0.commit_durable(batch).wait().map(drop)
    }
    fn balances(&self) -> Result<Vec<u64>> {
        (0..ACCOUNTS).map(|n| self.read(n)).collect()
    }
}

/// One life, a cut somewhere in it, and the next: whether the promise was kept, and how many
/// transfers were acknowledged.
fn survives<L: Ledger>(seed: u64) -> Result<(bool, u64)> {
    let sim = Simulator::new(seed)?;
    let disk = sim.disk(128 << 20, DiskKind::Random).wait()?;
    let pool = sim.engine().create_pool("tank", disk.clone(), CreateOptions::default()).wait()?;
    let ledger = L::make(&pool.filesystem("tank").wait()?)?;
    sim.cut_after(500 + seed * 97, seed).wait()?;
    let mut acknowledged = 0;
    // Account 0 pays each of the others in turn, until the power is cut.
    while ledger.transfer(0, 1 + acknowledged % (ACCOUNTS - 1)).is_ok() {
        acknowledged += 1;
    }
    let sim = sim.power_cut(seed)?;
    let pool = sim.engine().import_pool(vec![disk], ImportOptions::default()).wait()?;
    let balances = L::open(&pool.filesystem("tank").wait()?)?.balances()?;
    let whole = balances.iter().sum::<u64>() == ACCOUNTS * EACH;
    Ok((whole && balances[0] <= EACH - acknowledged, acknowledged))
}

/// Seeds out of `seeds` that broke each of the two.
pub fn run(seeds: u64) -> Result<(u64, u64)> {
    let broken = |result: Result<(bool, u64)>| result.map(|(good, _)| u64::from(!good));
    let (mut files, mut batches) = (0, 0);
    for seed in 0..seeds {
        files += broken(survives::<InFiles>(seed))?;
        batches += broken(survives::<InBatches>(seed))?;
    }
    Ok((files, batches))
}

#[allow(dead_code)]
fn main() -> Result<()> {
    let (files, batches) = run(40)?;
    println!("of 40 power cuts {files} broke the ledger in files, {batches} the one in batches");
    Ok(())
}
