//! Vdevs that were removed: their mappings, read from the MOS (format pages 09 section 11 and 14 section 5).

use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, VdevId};
use dmu::Objset;
use ondisk::indirect::{MAPPING_ENTRY_SIZE, MappingEntry, MappingPhys, parse_mapping, remap};
use vdev::{IndirectMap, Top, VdevKind, VdevTree};

/// Longest mapping that is read, in bytes: 11 million ranges.
const MAPPING_MAX: u64 = 256 << 20;

/// The mapping of one removed vdev.
struct Mapping(Vec<MappingEntry>);

impl IndirectMap for Mapping {
    fn remap(&self, offset: u64, size: u64) -> Result<Vec<(u64, VdevId, u64, u64)>> {
        remap(&self.0, offset, size)
    }
}

async fn read_mapping(mos: &Objset, object: ObjectId) -> Result<Mapping> {
    let dn = mos.hold(object).await?;
    let head = MappingPhys::parse(&dn.bonus())?;
    let len = head.num_entries.saturating_mul(MAPPING_ENTRY_SIZE as u64);
    if len > MAPPING_MAX {
        return Err(Error::unsupported(format!("{} ranges are more than weir reads", head.num_entries)));
    }
    let mut data = vec![0; len as usize];
    if len > 0 {
        dn.read(0, &mut data).await?;
    }
    Ok(Mapping(parse_mapping(&data)?))
}

/// Loads the mapping of every removed vdev. The last one removed comes first: the mappings of those before may lie on it.
pub(crate) async fn load_mappings(mos: &Objset, tree: &VdevTree) -> Result<()> {
    let removed: Vec<Rc<Top>> = tree.tops.borrow().iter().filter(|t| t.is_indirect()).cloned().collect();
    let before = |t: &Rc<Top>| t.config_ref().prev_indirect_vdev;
    let mut left = removed;
    while !left.is_empty() {
        // The one that no other was removed after. A circle of them is damage; then any order is as good.
        let last = left.iter().position(|t| !left.iter().any(|o| before(o) == Some(u64::from(t.id.0)))).unwrap_or(0);
        let top = left.remove(last);
        let object = top.config_ref().indirect_object.unwrap_or_default();
        let mapping = read_mapping(mos, object).await.at(|| format!("mapping of the removed vdev {}", top.id))?;
        if let VdevKind::Indirect(indirect) = top.kind() {
            let map: Rc<dyn IndirectMap> = Rc::new(mapping);
            assert!(indirect.map.set(map).is_ok(), "a mapping is loaded once");
        }
    }
    Ok(())
}
