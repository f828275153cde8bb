//! The message for a device without a pool.

use base::Error;
use bdev::BlockDev;
use ondisk::bytes::le32;

use crate::open::partition::{GPT_SIGNATURE, SECTORS};

/// Offsets of the four partitions in a master boot record, in bytes; 16 bytes each, the type at 4,
/// the length in sectors at 12.
const MBR_ENTRIES: [usize; 4] = [446, 462, 478, 494];
/// The signature at the end of a master boot record.
const MBR_SIGNATURE: [u8; 2] = [0x55, 0xaa];

/// Why [`crate::scan()`] found no pool on a device, if it has a partition table; None otherwise.
pub async fn explain(dev: &dyn BlockDev) -> Option<Error> {
    let head = bdev::read(dev, 0, 2 * SECTORS[1]).await.ok()?;
    let table = partition_table(&head)?;
    let path = &dev.info().path;
    Some(Error::unsupported(match table {
        "GPT" => format!("device '{path}' has a partition table (GPT), and no pool in any of its partitions"),
        _ => format!(
            "device '{path}' has a partition table ({table}), which weir does not look into: name the partition that has the pool instead"
        ),
    }))
}

/// The kind of partition table in the first sectors.
fn partition_table(head: &[u8]) -> Option<&'static str> {
    if SECTORS.iter().any(|s| head.get(*s..*s + GPT_SIGNATURE.len()) == Some(GPT_SIGNATURE)) {
        return Some("GPT");
    }
    let record = head.get(..512)?;
    // Boot sectors of file systems have that signature too, but rarely both a type and a length
    // here.
    let in_use = |at: &usize| record[*at] & 0x7f == 0 && record[at + 4] != 0 && le32(record, at + 12) != 0;
    let plausible = record.ends_with(&MBR_SIGNATURE) && MBR_ENTRIES.iter().any(in_use);
    plausible.then_some("MBR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_told_from_other_things() {
        assert_eq!(partition_table(&[]), None);
        assert_eq!(partition_table(&[0; 8192]), None);
        for sector in SECTORS {
            let mut gpt = vec![0; 8192];
            gpt[sector..sector + 8].copy_from_slice(GPT_SIGNATURE);
            assert_eq!(partition_table(&gpt), Some("GPT"));
        }
        let mut mbr = vec![0; 8192];
        mbr[510..512].copy_from_slice(&MBR_SIGNATURE);
        assert_eq!(partition_table(&mbr), None);
        (mbr[462 + 4], mbr[462 + 12]) = (0xbf, 1);
        assert_eq!(partition_table(&mbr), Some("MBR"));
        mbr[462] = 0x80;
        assert_eq!(partition_table(&mbr), Some("MBR"));
        mbr[462] = 0x33;
        assert_eq!(partition_table(&mbr), None);
    }
}
