//! A key-value store on a ZAP: names up to 255 bytes, values up to 8 KiB, transactions over several
//! keys.
//!
//! `cargo run -p openweir --example kv`
#![allow(missing_docs)]

use openweir::{Batch, CreateOptions, Engine, Error, ErrorKind, ImportOptions, Object, Objects, Pool, Result, Value};

/// The store: one ZAP of a file system, named by the entry `kv` of its root.
pub struct Kv {
    objects: Objects,
    map: Object,
}

impl Kv {
    /// Opens the store of a file system; makes it the first time.
    pub fn open(pool: &Pool, dataset: &str) -> Result<Kv> {
        let objects = pool.filesystem(dataset).wait()?.objects().wait()?;
        if let Some(Value::Number(n)) = objects.get(objects.root(), "kv").wait()? {
            return Ok(Kv { objects, map: Object::stored(n) });
        }
        let mut batch = Batch::new();
        let map = batch.create_zap();
        batch.insert(objects.root(), "kv", map);
        let made = objects.commit(batch).wait()?;
        let map = made.object(map).ok_or_else(|| Error::new(ErrorKind::Other, "the batch made no map"))?;
        Ok(Kv { objects, map })
    }

    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.objects.get(self.map, key).wait()?.and_then(|v| v.bytes().map(<[u8]>::to_vec)))
    }

    /// Sets several keys at once, all or none.
    pub fn set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let mut batch = Batch::new();
        pairs.iter().for_each(|(key, value)| batch.set(self.map, *key, *value));
        self.objects.commit(batch).wait().map(drop)
    }

    /// Sets a key if it still has the value that was seen: false if it has another.
    pub fn swap(&self, key: &str, seen: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.expect(self.map, key, seen.map(Value::from));
        batch.set(self.map, key, new);
        match self.objects.commit(batch).wait() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Conflict => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn remove(&self, key: &str) -> Result<()> {
        let mut batch = Batch::new();
        batch.remove(self.map, key);
        self.objects.commit(batch).wait().map(drop)
    }

    pub fn count(&self) -> Result<u64> {
        self.objects.count(self.map).wait()
    }

    /// Calls `f` with every key and value, a thousand at a time.
    pub fn each(&self, mut f: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cookie = Some(0);
        while let Some(at) = cookie {
            let (entries, next) = self.objects.entries(self.map, at, 1000).wait()?;
            entries.iter().for_each(|e| f(&e.name, e.value.bytes().unwrap_or_default()));
            cookie = next;
        }
        Ok(())
    }
}

/// Fills a store, imports the pool again, and looks.
pub fn run() -> Result<u64> {
    let engine = Engine::start()?;
    let disk = engine.memory_device(256 << 20).wait()?;
    let pool = engine.create_pool("tank", disk.clone(), CreateOptions::default()).wait()?;
    let kv = Kv::open(&pool, "tank")?;
    for n in 0..500 {
        let (a, b) = (format!("user:{n}:name"), format!("user:{n}:mail"));
        kv.set(&[(&a, format!("name {n}").as_bytes()), (&b, format!("{n}@example.org").as_bytes())])?;
    }
    assert!(kv.swap("user:7:name", Some(b"name 7"), b"Seven")?);
    assert!(!kv.swap("user:7:name", Some(b"name 7"), b"Sept")?);
    kv.remove("user:8:mail")?;
    // Everything is on disk when the pool is exported.
    drop(kv);
    pool.export().wait()?;

    let pool = engine.import_pool(vec![disk], ImportOptions::default()).wait()?;
    let kv = Kv::open(&pool, "tank")?;
    assert_eq!(kv.get("user:7:name")?.as_deref(), Some(&b"Seven"[..]));
    assert_eq!(kv.get("user:8:mail")?, None);
    let mut seen = 0;
    kv.each(|_, _| seen += 1)?;
    assert_eq!(seen, kv.count()?);
    Ok(seen)
}

#[allow(dead_code)]
fn main() -> Result<()> {
    println!("{} keys", run()?);
    Ok(())
}
