//! The parsers on bytes that OpenZFS wrote: each file of `golden/` names its origin. A file is a
//! comment, the length of the block (with `lz4` when the bytes are as stored, compressed), and
//! lines of offset and bytes; unlisted bytes are zero.

#![allow(clippy::unwrap_used)]

use base::Txg;
use ondisk::blkptr::{Blkptr, BpLimits};
use ondisk::bytes::put_le64;
use ondisk::dnode::DnodePhys;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use ondisk::sa::{self, Attr, AttrTable, Layouts};
use ondisk::space_map::{self, Entry, MapType, SpaceMapPhys};
use ondisk::zap::{Header, KeyKind, Leaf, Match, MicroIndex, MicroZap, NORM_D, NORM_TOUPPER};
use ondisk::zil::{self, ZilChain};
use ondisk::zpl::{self, Dirent};

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines = text.lines().filter(|l| !l.starts_with('#'));
    let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
    let len: usize = head[0].parse().unwrap();
    let packed = head.contains(&"lz4");
    let mut b = Vec::new();
    for line in lines {
        let (at, hex) = line.split_once(": ").unwrap();
        b.resize(usize::from_str_radix(at, 16).unwrap(), 0);
        b.extend((0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()));
    }
    if packed {
        let mut out = vec![0; len];
        codec::decompress(codec::CompressAlgo::Lz4, &b, &mut out).unwrap();
        return out;
    }
    b.resize(len, 0);
    b
}

fn dnode(name: &str) -> DnodePhys {
    let b = fixture(name);
    let dn = DnodePhys::parse(&b).unwrap().unwrap();
    let mut again = vec![0xff; dn.size()];
    dn.write_to(&mut again);
    assert_eq!(again, b, "{name} is not written back as it was");
    for bp in dn.bps() {
        bp.validate(&BpLimits::FORMAT).unwrap();
    }
    dn
}

fn registry() -> AttrTable {
    let b = fixture("sa_registry");
    let mz = MicroZap::open(&b).unwrap();
    let entries: Vec<(String, u64)> =
        mz.entries().map(|e| e.unwrap()).map(|e| (String::from_utf8(e.name.to_vec()).unwrap(), e.value)).collect();
    AttrTable::from_registry(entries.iter().map(|(n, v)| (n.as_str(), *v))).unwrap()
}

fn layouts() -> Layouts {
    let (head, leaf) = (fixture("sa_layouts_header"), fixture("sa_layouts_leaf"));
    let h = Header::parse(&head).unwrap();
    let leaf = Leaf::open(&leaf, KeyKind::String).unwrap();
    let mut l = Layouts::default();
    for e in leaf.entries().unwrap() {
        let key = leaf.key(&e).unwrap();
        assert_eq!(h.params.hash(&key), e.hash);
        l.add_entry(&key, &leaf.value(&e).unwrap()).unwrap();
    }
    assert_eq!(h.num_entries, l.iter().count() as u64);
    l
}

#[test]
fn object_sets() {
    let b = fixture("mos_objset");
    let os = ObjsetPhys::parse(&b).unwrap();
    assert_eq!(
        (os.os_type, os.flags, os.meta_dnode.nlevels, os.zil_header.is_empty()),
        (ObjsetType::Meta, 0, os.meta_dnode.nlevels, true)
    );
    assert!(os.userused.is_none());
    assert_eq!(os.to_bytes(), b);
    let b = fixture("zpl_objset");
    let os = ObjsetPhys::parse(&b).unwrap();
    assert_eq!((os.os_type, os.flags, os.meta_dnode.nlevels), (ObjsetType::Zfs, 7, 6));
    assert_eq!(os.projectused.as_ref().unwrap().otype, ObjectType::USERGROUP_USED);
    assert_eq!(os.to_bytes(), b);
}

#[test]
fn directory_and_dataset() {
    let dn = dnode("dsl_dir");
    let dd = DslDirPhys::parse(dn.bonus()).unwrap();
    assert_eq!((dn.otype, dd.parent_obj, dd.head_dataset_obj), (ObjectType::DSL_DIR, 0, 54));
    assert_eq!(dd.used_breakdown.iter().sum::<u64>(), dd.used_bytes);
    assert_eq!(&dd.to_bytes()[..], dn.bonus());
    let dn = dnode("dsl_dataset");
    let ds = DslDatasetPhys::parse(dn.bonus()).unwrap();
    assert_eq!((dn.otype, ds.dir_obj, ds.creation_txg, ds.is_snapshot()), (ObjectType::OTN_ZAP_METADATA, 32, 1, false));
    ds.bp.validate(&BpLimits::FORMAT).unwrap();
    assert_eq!((ds.bp.otype(), ds.bp.level(), ds.bp.lsize()), (ObjectType::OBJSET, 0, 4096));
    assert_eq!(&ds.to_bytes()[..], dn.bonus());
}

#[test]
fn master_node() {
    let b = fixture("master_node");
    let mz = MicroZap::open(&b).unwrap();
    let ix = MicroIndex::build(&mz).unwrap();
    let value =
        |key: &str| mz.entry(ix.find(&mz, key.as_bytes(), Match::Exact).unwrap().unwrap()).unwrap().unwrap().value;
    assert_eq!(value(zpl::master_key::VERSION), 5);
    assert_eq!(value(zpl::master_key::NORMALIZATION), 0);
    assert_ne!(value(zpl::master_key::ROOT), 0);
    assert!(ix.find(&mz, b"version", Match::Exact).unwrap().is_none());
}

#[test]
fn space_maps() {
    let dn = dnode("space_map_dnode");
    let h = SpaceMapPhys::parse(dn.bonus()).unwrap();
    let data = fixture("space_map");
    assert_eq!((h.length, h.size(), dn.indblkshift), (data.len() as u64, 320, 14));
    let mut alloc = 0i64;
    let mut enc = space_map::Encoder::new(9, u64::from(dn.datablksz()), 0, false);
    for e in space_map::entries(&data, 9) {
        match e.unwrap() {
            Entry::Debug { kind, pass, txg } => enc.group(kind, pass.into(), txg),
            Entry::Pad => {}
            Entry::Run { kind, offset, size, .. } => {
                alloc += if kind == MapType::Alloc { size as i64 } else { -(size as i64) };
                enc.run(kind, offset, size);
            }
        }
    }
    assert_eq!(alloc, h.alloc, "allocated space of a single-device pool with 512-byte sectors");
    assert_eq!(enc.finish(), data);

    let data = fixture("log_space_map");
    let mut enc = space_map::Encoder::new_log(128 << 10, 0);
    for e in space_map::entries(&data, 9) {
        match e.unwrap() {
            Entry::Debug { kind, pass, txg } => enc.group(kind, pass.into(), txg),
            Entry::Pad => {}
            Entry::Run { kind, vdev, offset, size } => {
                enc.set_vdev(vdev);
                enc.run(kind, offset, size);
            }
        }
    }
    assert_eq!(enc.finish(), data);
}

#[test]
fn attributes_in_the_bonus() {
    let table = registry();
    assert_eq!(table, AttrTable::standard());
    // The large dnode is from a file system with layouts of its own; its layout 2 is this.
    let mut other = Layouts::default();
    other.add(&[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]).unwrap();
    for (name, layouts) in [("dnode_plain", layouts()), ("dnode_large", other)] {
        let dn = dnode(name);
        let f = sa::fields(dn.bonus(), &table, &layouts).unwrap();
        let get = |a: Attr| {
            f.iter().find(|f| f.num == table.num(a).unwrap()).map(|f| &dn.bonus()[f.offset..f.offset + f.len]).unwrap()
        };
        let mode = u64::from_le_bytes(get(Attr::Mode).try_into().unwrap());
        let aces = zpl::parse_aces(get(Attr::DaclAces)).unwrap();
        assert_eq!(aces.len() as u64, u64::from_le_bytes(get(Attr::DaclCount).try_into().unwrap()), "{name}");
        assert!(matches!(mode & zpl::S_IFMT, zpl::S_IFDIR | zpl::S_IFREG), "{name}");
        assert_eq!(sa::owner_ids(dn.bonus()).unwrap().uid, u64::from_le_bytes(get(Attr::Uid).try_into().unwrap()));
        // Laying the same values out again gives the same bytes.
        let values: Vec<(&[u8], bool)> =
            f.iter().map(|f| (&dn.bonus()[f.offset..f.offset + f.len], table.info(f.num).unwrap().len == 0)).collect();
        let lens: Vec<(usize, bool)> = values.iter().map(|(v, k)| (v.len(), *k)).collect();
        let p = sa::plan(&lens, dn.size() - 192).unwrap();
        assert_eq!((p.in_bonus, p.bonuslen, p.spill_len), (f.len(), usize::from(dn.bonuslen), 0), "{name}");
        let (layout, _) = sa::parse_header(dn.bonus()).unwrap().unwrap();
        assert_eq!(sa::build(layout, &values), dn.bonus(), "{name}");
    }
}

#[test]
fn attributes_in_a_spill_block() {
    let (table, layouts) = (registry(), layouts());
    let (dn, spill) = (dnode("dnode_spill"), fixture("sa_spill"));
    let bp = dn.spill.unwrap();
    bp.validate(&BpLimits::FORMAT).unwrap();
    assert_eq!((bp.lsize(), bp.otype(), dn.bonuslen), (512, ObjectType::SA, 192));
    // This one is embedded in the pointer.
    let (payload, len) = bp.payload();
    let mut block = vec![0; 512];
    codec::decompress(codec::CompressAlgo::Lz4, &payload[..len], &mut block).unwrap();
    assert_eq!(block, spill);
    let low = sa::fields(dn.bonus(), &table, &layouts).unwrap();
    let high = sa::fields(&spill, &table, &layouts).unwrap();
    assert_eq!(high.len(), 1);
    assert_eq!(table.attr(high[0].num), Some(Attr::Symlink));
    let lens: Vec<(usize, bool)> =
        low.iter().chain(&high).map(|f| (f.len, table.info(f.num).unwrap().len == 0)).collect();
    let p = sa::plan(&lens, 320).unwrap();
    assert_eq!((p.in_bonus, p.bonuslen, p.spill_len.next_multiple_of(512)), (low.len(), 192, 512));
}

#[test]
fn normalising_directories() {
    for (name, norm) in [("formD", NORM_D), ("mixed", NORM_TOUPPER)] {
        let (head, leaf) = (fixture(&format!("dir_header_{name}")), fixture(&format!("dir_leaf_{name}")));
        let h = Header::parse(&head).unwrap();
        let mut rewritten = head.clone();
        h.write_to(&mut rewritten);
        assert_eq!(rewritten, head);
        assert_eq!((h.params.normflags, h.num_leafs), (norm, 1));
        let leaf = Leaf::open(&leaf, KeyKind::String).unwrap();
        leaf.check().unwrap();
        assert!(leaf.is_sorted());
        let entries = leaf.entries().unwrap();
        assert_eq!(entries.len() as u64, h.num_entries);
        for e in &entries {
            let key = leaf.key(e).unwrap();
            assert_eq!(h.params.hash(&key), e.hash, "{}", String::from_utf8_lossy(&key));
            assert_eq!(leaf.find(e.hash, &key).unwrap().as_ref(), Some(e));
            let folded = leaf.find_by(e.hash, |k| h.params.matches(k, &key, Match::Folded)).unwrap().unwrap();
            assert_eq!((folded.hash, folded.cd), (e.hash, 0), "the lowest cd wins");
            let d = Dirent::unpack(leaf.value(e).unwrap().as_u64().unwrap());
            assert!(matches!(d.dtype, 4 | 8 | 10) && d.object != 0);
        }
        // Splitting a real leaf loses nothing.
        let mut low = Leaf::open(leaf.bytes().to_vec(), KeyKind::String).unwrap();
        let high = low.split(vec![0; 16384]).unwrap();
        low.check().unwrap();
        high.check().unwrap();
        assert_eq!(low.entries().unwrap().len() + high.entries().unwrap().len(), entries.len());
    }
}

#[test]
fn gang_block() {
    let bp = Blkptr::parse(&fixture("gang_bp")).unwrap();
    assert!(bp.is_gang());
    bp.validate(&BpLimits::FORMAT).unwrap();
    let header = fixture("gang_header");
    let children = ondisk::gang::parse(&header, &bp).unwrap();
    let sizes: Vec<u64> = children.iter().map(Blkptr::psize).collect();
    assert_eq!(sizes, ondisk::gang::piece_sizes(bp.psize(), 512, 3));
    assert_eq!(&ondisk::gang::build(&children, &bp, 512)[..], &header[..]);
}

#[test]
fn log_block() {
    let bp = Blkptr::parse(&fixture("zil_bp")).unwrap();
    let mut block = fixture("zil_block");
    let zc = ZilChain::parse(&block, &bp).unwrap();
    let mut preset = block[..zc.verified].to_vec();
    for (i, w) in bp.checksum_words().iter().enumerate() {
        put_le64(&mut preset, zc.cksum_at + 8 * i, *w);
    }
    assert_eq!(codec::fletcher4(&preset).0, zc.cksum);
    let [g0, g1, objset, seq] = bp.checksum_words();
    assert_eq!(zc.next.checksum_words(), [g0, g1, objset, seq + 1]);
    let records: Vec<zil::Record<'_>> = zil::records(&block, zc.records).collect::<base::Result<_>>().unwrap();
    assert!(!records.is_empty());
    assert!(records.windows(2).all(|w| w[1].seq == w[0].seq + 1));
    assert!(records.iter().all(|r| (1..=20).contains(&r.txtype) && r.txg > Txg(0)));
    put_le64(&mut block, 136, 100);
    assert!(ZilChain::parse(&block, &bp).is_err());
}
