//! The state file of the daemon: which pools were imported, and the paths of their devices.
//!
//! A daemon that ends leaves its pools to the next one, as a machine that restarts does: pools with
//! `imported` are imported again at the start. The paths of the others are search paths for `zpool
//! import` without `-d`.

use std::path::Path;

use admin::keeper::KnownPool;
use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::paths::replace_file;

/// Pools remembered at most; of those not imported the oldest go first.
const POOLS_MAX: usize = 256;
/// Longest state file that is read, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// The content of the state file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct State {
    /// In the order in which they were last imported or exported.
    pub pools: Vec<KnownPool>,
}

impl State {
    /// Reads the file; the default if there is none.
    pub fn load(path: &Path) -> Result<State> {
        let fail = |e: &dyn std::fmt::Display| {
            let advice = "remove it to start with nothing remembered";
            Error::new(ErrorKind::Io, format!("the state file '{}' cannot be read: {e}: {advice}", path.display()))
        };
        let meta = match std::fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(State::default()),
            Err(e) => return Err(fail(&e)),
        };
        if meta.len() > FILE_MAX {
            return Err(fail(&format!("it has {} bytes", meta.len())));
        }
        let text = std::fs::read(path).map_err(|e| fail(&e))?;
        serde_json::from_slice(&text).map_err(|e| fail(&e))
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("the state is plain data");
        replace_file(path, &text)
    }

    /// Replaces the entry with the guid of `pool`.
    pub fn remember(&mut self, pool: KnownPool) {
        self.pools.retain(|p| p.guid != pool.guid);
        self.pools.push(pool);
        while self.pools.len() > POOLS_MAX {
            let Some(oldest) = self.pools.iter().position(|p| !p.imported) else { break };
            self.pools.remove(oldest);
        }
    }

    /// The pool `old` has the guid `new` now.
    pub fn change_guid(&mut self, old: u64, new: u64) {
        self.pools.retain(|p| p.guid != new);
        self.pools.iter_mut().filter(|p| p.guid == old).for_each(|p| p.guid = new);
    }

    /// The pool is not imported any more.
    pub fn exported(&mut self, guid: u64) {
        self.pools.iter_mut().filter(|p| p.guid == guid).for_each(|p| p.imported = false);
    }

    /// The pool does not exist any more.
    pub fn forget(&mut self, guid: u64) {
        self.pools.retain(|p| p.guid != guid);
    }

    /// Paths of all devices, each once.
    pub fn device_paths(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for path in self.pools.iter().flat_map(|p| &p.devices) {
            if !out.contains(path) {
                out.push(path.clone());
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(guid: u64, imported: bool) -> KnownPool {
        KnownPool {
            name: format!("p{guid}"),
            guid,
            devices: vec![format!("/d{guid}")],
            imported,
            ..KnownPool::default()
        }
    }

    #[test]
    fn pools_are_remembered_by_guid() {
        let dir = host::TempDir::new("state").unwrap();
        let path = dir.join("pools.json");
        assert_eq!(State::load(&path).unwrap(), State::default());
        let mut s = State::default();
        s.remember(pool(1, true));
        s.remember(pool(2, true));
        s.remember(KnownPool { name: "other".into(), ..pool(1, true) });
        s.exported(2);
        s.change_guid(2, 3);
        s.save(&path).unwrap();
        let back = State::load(&path).unwrap();
        assert_eq!(back, s);
        assert_eq!(
            back.pools.iter().map(|p| (p.name.as_str(), p.imported)).collect::<Vec<_>>(),
            [("p2", false), ("other", true)]
        );
        assert_eq!(back.pools.iter().map(|p| p.guid).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(back.device_paths(), ["/d2", "/d1"]);
        std::fs::write(&path, b"{ nonsense").unwrap();
        assert!(State::load(&path).unwrap_err().to_string().contains("remove it"));
    }

    #[test]
    fn the_list_is_bounded() {
        let mut s = State::default();
        s.remember(pool(1, true));
        for guid in 2..1000 {
            s.remember(pool(guid, false));
        }
        assert_eq!(s.pools.len(), POOLS_MAX);
        assert_eq!(s.pools[0].guid, 1);
        s.forget(1);
        assert_eq!(s.pools.len(), POOLS_MAX - 1);
    }
}
