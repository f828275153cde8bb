//! Dnode blocks and object sets from hostile bytes, in both byte orders; a block that parses is
//! written back as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::byteswap::swap_block;
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let mut dn = DnodePhys::new(ObjectType::PLAIN_FILE, 4096, 17, ObjectType::SA, 168, 1);
    dn.blkptr[0] = pointer(ObjectType::PLAIN_FILE);
    let large = DnodePhys::new(ObjectType::DIRECTORY, 512, 14, ObjectType::SA, 900, 4);
    let mut block = vec![0; 5 * DNODE_SIZE];
    dn.write_to(&mut block[..DNODE_SIZE]);
    large.write_to(&mut block[DNODE_SIZE..]);
    let objset = ObjsetPhys::new(ObjsetType::Zfs, 6).to_bytes();
    vec![after(&[0], &block), after(&[0], &objset), after(&[2], &objset)]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&swap, data)) = input.split_first() else { return };
    let mut block = data.to_vec();
    if let 1..=3 = swap {
        swap_block([ObjectType::DNODE, ObjectType::OBJSET, ObjectType::ZNODE][usize::from(swap) - 1], 0, &mut block);
    }
    if let Ok(os) = ObjsetPhys::parse(&block) {
        let again = ObjsetPhys::parse(&os.to_bytes()).expect("an object set that was written");
        assert_eq!(again, os);
    }
    let Ok(kinds) = slots(&block) else { return };
    for (i, kind) in kinds.iter().enumerate() {
        let Slot::Dnode(n) = *kind else { continue };
        let Ok(Some(dn)) = DnodePhys::parse(&block[i * DNODE_SIZE..]) else { continue };
        assert_eq!(dn.num_slots(), usize::from(n));
        assert!(dn.bonus().len() <= dn.bonus_capacity());
        for level in 0..dn.nlevels {
            assert!(dn.blocks_at_level(level) >= 1);
        }
        assert!(dn.blocks_at_level(dn.nlevels - 1) <= u64::from(dn.nblkptr));
        let mut out = vec![0; dn.size()];
        dn.write_to(&mut out);
        assert_eq!(DnodePhys::parse(&out).expect("a dnode that was written").as_ref(), Some(&dn));
    }
});
