//! The output of `zdb` for datasets, objects, space maps, intent logs and history.

use std::fmt::Write as _;
use std::io::Write;

use base::{Error, Result};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::{BpobjPhys, DeadlistPhys};
use ondisk::bytes::le64;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::space_map::{Entry, MapType, SpaceMapPhys};
use ondisk::zap::{Header, ZapKind, ZapValue, kind};
use ondisk::zil::records;
use ondisk::zpl::{Dirent, S_IFDIR, S_IFMT};

use crate::check::mos;
use crate::check::space::{MAX_OTHER_MAP, for_each_entry};
use crate::dsl::Dsl;
use crate::objset::{Object, Objset};
use crate::pool::PoolReader;
use crate::text::{checksum_name, compress_name, ctime, full_bp, history_time, io, nice};
use crate::zpl::FileSystem;
use crate::{bpobj, zap, zil};

const HEADING: &str = "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type\n";

/// Prints the MOS and all datasets, or one dataset, or objects of it. `level`: how many `-d`.
pub fn datasets(
    pool: &PoolReader,
    dataset: Option<&str>,
    objects: &[u64],
    level: u32,
    out: &mut dyn Write,
) -> Result<()> {
    let dsl = Dsl::load(pool)?;
    if dataset.is_none_or(|d| d == "mos" || d == "MOS" || d == "0") {
        objset(pool, &pool.mos, &dsl, objects, level, out)?;
    }
    let list = match dataset {
        None => dsl.in_zdb_order(),
        Some("mos" | "MOS" | "0") => Vec::new(),
        Some(name) => {
            vec![dsl.find(name).ok_or_else(|| Error::not_found(format!("there is no dataset '{name}'")))?]
        }
    };
    for ds in list.into_iter().filter(|d| !d.phys.bp.is_hole()) {
        match pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp) {
            Ok(os) => objset(pool, &os, &dsl, objects, level, out)?,
            Err(e) => io(writeln!(out, "{}: {e}", ds.name))?,
        }
    }
    Ok(())
}

fn objset(pool: &PoolReader, os: &Objset, dsl: &Dsl, objects: &[u64], level: u32, out: &mut dyn Write) -> Result<()> {
    let ds = dsl.datasets.get(&os.dsobj);
    let (txg, used) = match ds {
        Some(d) => (d.phys.creation_txg, d.phys.referenced_bytes),
        None => {
            let mos = dsl.dirs.values().find(|d| d.name.ends_with("/$MOS"));
            (4, mos.map_or(0, |d| d.phys.used_bytes))
        }
    };
    let root = if level >= 4 { format!(", rootbp {}", full_bp(&os.bp)) } else { String::new() };
    io(writeln!(
        out,
        "Dataset {} [{}], ID {}, cr_txg {txg}, {}, {} objects{root}",
        os.name,
        os.phys.os_type.name(),
        os.dsobj,
        nice(used),
        os.bp.fill()
    ))?;
    if level < 2 && objects.is_empty() {
        return Ok(());
    }
    let fs = match os.phys.os_type {
        ObjsetType::Zfs if level >= 3 && !os.bp.encrypted() => FileSystem::open(os).ok(),
        _ => None,
    };
    if let Some(d) = ds {
        if !d.snapshot {
            intent_log(os, level, out)?;
        }
        if level >= 3 {
            deadlist(pool, d.phys.deadlist_obj, level, out)?;
        }
    }
    io(out.write_all(HEADING.as_bytes()))?;
    if !objects.is_empty() {
        for &n in objects {
            object(pool, os, &os.object(n)?, fs.as_ref(), level.max(4), out)?;
        }
        return io(writeln!(out));
    }
    object(pool, os, &os.meta(), fs.as_ref(), level, out)?;
    for o in os.accounting().iter().flatten() {
        object(pool, os, o, fs.as_ref(), level, out)?;
    }
    let (mut slots, mut max, mut fault) = (0u64, 0u64, None);
    os.for_each_object(&mut |r| {
        let done = match r {
            Ok(o) => {
                slots += o.dn.num_slots() as u64;
                max = max.max(o.num + o.dn.num_slots() as u64 - 1);
                object(pool, os, &o, fs.as_ref(), level, out)
            }
            Err(e) => io(writeln!(out, "{e}")),
        };
        fault = fault.take().or(done.err());
    });
    if let Some(e) = fault {
        return Err(e);
    }
    let empty = if max == 0 { 0.0 } else { (max.saturating_sub(slots)) as f64 * 100.0 / max as f64 };
    io(writeln!(
        out,
        "\n    Dnode slots:\n\tTotal used:    {slots:10}\n\tMax used:      {max:10}\n\tPercent empty: {empty:10.6}\n"
    ))
}

/// The line of an object, and from level 4 on its content.
fn object(
    pool: &PoolReader,
    os: &Objset,
    o: &Object,
    fs: Option<&FileSystem>,
    level: u32,
    out: &mut dyn Write,
) -> Result<()> {
    let dn = &o.dn;
    let lsize = dn.data_len();
    let fill: u64 = dn.bps().iter().map(Blkptr::fill).fold(0, u64::wrapping_add);
    let full = if o.num == 0 {
        100.0 * fill as f64 / (lsize as f64 / 512.0)
    } else {
        100.0 * fill as f64 * f64::from(dn.datablksz()) / lsize as f64
    };
    let mut aux = String::new();
    if dn.checksum != 0 || level >= 6 {
        let _ = write!(aux, " (K={})", checksum_name(dn.checksum));
    }
    if dn.compress != 0 || level >= 6 {
        let _ = write!(aux, " (Z={})", compress_name(dn.compress));
    }
    let num = if o.num > u64::MAX - 3 { o.num as i64 } else { o.num.min(i64::MAX as u64) as i64 };
    io(writeln!(
        out,
        "{num:10}  {:3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:6.2}  {}{aux}",
        dn.nlevels,
        nice(u64::from(dn.indblksz())),
        nice(u64::from(dn.datablksz())),
        // In whole sectors, as programs see it.
        nice(dn.used_bytes().saturating_add(256) / 512 * 512),
        nice(dn.size() as u64),
        nice(lsize),
        dn.otype.name()
    ))?;
    if level < 4 {
        return Ok(());
    }
    if dn.bonustype != ObjectType::NONE {
        io(writeln!(out, "{:49}{:4}   bonus  {}", "", dn.bonuslen, dn.bonustype.name()))?;
    }
    let flags: String = [(1, "USED_BYTES "), (2, "USERUSED_ACCOUNTED "), (8, "USEROBJUSED_ACCOUNTED ")]
        .iter()
        .filter(|(f, _)| dn.flags & f != 0)
        .map(|(_, n)| *n)
        .chain(dn.spill.iter().map(|_| "SPILL_BLKPTR"))
        .collect();
    io(writeln!(out, "\tdnode flags: {flags}\n\tdnode maxblkid: {}", dn.maxblkid))?;
    if !os.bp.encrypted() {
        // A part that cannot be shown is named; the rest of the dump goes on.
        let shown = bonus(o, fs, level, out).and_then(|()| contents(pool, o, out));
        if let Err(e) = shown {
            io(writeln!(out, "\t{e}"))?;
        }
    }
    if level >= 5 {
        block_tree(o, out)?;
    }
    io(writeln!(out))
}

/// The bonus buffer of an object, by its type.
fn bonus(o: &Object, fs: Option<&FileSystem>, level: u32, out: &mut dyn Write) -> Result<()> {
    let b = o.dn.bonus();
    let mut s = String::new();
    match o.dn.bonustype {
        ObjectType::SA | ObjectType::ZNODE => {
            let Some(fs) = fs else { return Ok(()) };
            znode_bonus(o, fs, level, &mut s)?;
        }
        ObjectType::DSL_DIR => {
            dir_bonus(&DslDirPhys::parse(b)?, &mut s);
        }
        ObjectType::DSL_DATASET => {
            dataset_bonus(&DslDatasetPhys::parse(b)?, &mut s);
        }
        ObjectType::SPACE_MAP_HEADER => {
            let p = SpaceMapPhys::parse(b)?;
            let _ = writeln!(s, "\tspace map: length {:#x}, alloc {:#x}", p.length, p.alloc);
            for (i, n) in p.histogram.iter().flatten().enumerate().filter(|(_, n)| **n != 0) {
                let _ = writeln!(s, "\t\t{i:4}: {n:6}");
            }
        }
        ObjectType::BPOBJ_HDR => {
            let p = BpobjPhys::parse(b)?;
            let _ = writeln!(
                s,
                "\tbpobj: {} block pointers, {} ({}/{} comp), {} lists in object {}",
                p.num_blkptrs,
                nice(p.bytes),
                nice(p.comp),
                nice(p.uncomp),
                p.num_subobjs,
                p.subobjs
            );
        }
        ObjectType::DEADLIST_HDR => {
            let p = DeadlistPhys::parse(b)?;
            let _ = writeln!(s, "\tdeadlist: {} ({}/{} comp)", nice(p.used), nice(p.comp), nice(p.uncomp));
        }
        _ if b.len().is_multiple_of(8) => {
            for (i, w) in b.chunks_exact(8).enumerate() {
                let _ = writeln!(s, "\t\tbonus[{i}] = {}", le64(w, 0));
            }
        }
        _ => {}
    }
    io(out.write_all(s.as_bytes()))
}

/// The attributes of a file.
fn znode_bonus(o: &Object, fs: &FileSystem, level: u32, s: &mut String) -> Result<()> {
    let a = fs.attrs(o)?;
    let path = if level >= 4 { fs.path_of(o.num) } else { None };
    let _ = writeln!(s, "\tpath\t{}", path.unwrap_or_else(|| format!("???<object#{}>", o.num)));
    let _ = writeln!(s, "\tuid     {}\n\tgid     {}", a.uid, a.gid);
    for (name, t) in ["atime", "mtime", "ctime", "crtime"].iter().zip(a.times) {
        let _ = writeln!(s, "\t{name}\t{}", ctime((t[0] as i64).clamp(-1 << 40, 1 << 40)));
    }
    let _ = writeln!(s, "\tgen\t{}\n\tmode\t{:o}\n\tsize\t{}", a.generation, a.mode, a.size);
    let _ = writeln!(s, "\tparent\t{}\n\tlinks\t{}\n\tpflags\t{:x}", a.parent, a.links, a.flags);
    if a.projid != 0 {
        let _ = writeln!(s, "\tprojid\t{}", a.projid);
    }
    if a.xattr != 0 {
        let _ = writeln!(s, "\txattr\t{}", a.xattr);
    }
    if a.mode >> 12 == 10 {
        let _ = writeln!(s, "\ttarget\t{}", String::from_utf8_lossy(&fs.target(o, &a)?));
    }
    if let Some(x) = &a.dxattr {
        let _ = writeln!(s, "\tSA xattrs: {} bytes\n", x.len());
        let list = ondisk::nvlist::NvList::decode(x)?;
        for (name, v) in list.iter() {
            if let ondisk::nvlist::NvValue::ByteArray(v) = v {
                let _ = writeln!(s, "\t\t{name} = {}", v.escape_ascii());
            }
        }
    }
    if matches!(a.mode & S_IFMT, 0o020000 | 0o060000) {
        let _ = writeln!(s, "\trdev\t{:#018x}", a.rdev);
    }
    Ok(())
}

/// A `dsl_dir_phys_t`.
fn dir_bonus(d: &DslDirPhys, s: &mut String) {
    let _ = writeln!(s, "\t\tcreation_time = {}", ctime(d.creation_time as i64));
    let _ = writeln!(s, "\t\thead_dataset_obj = {}", d.head_dataset_obj);
    let _ = writeln!(s, "\t\tparent_dir_obj = {}", d.parent_obj);
    let _ = writeln!(s, "\t\torigin_obj = {}", d.origin_obj);
    let _ = writeln!(s, "\t\tchild_dir_zapobj = {}", d.child_dir_zapobj);
    for (name, v) in [
        ("used_bytes", d.used_bytes),
        ("compressed_bytes", d.compressed_bytes),
        ("uncompressed_bytes", d.uncompressed_bytes),
        ("quota", d.quota),
        ("reserved", d.reserved),
    ] {
        let _ = writeln!(s, "\t\t{name} = {}", nice(v));
    }
    let _ = writeln!(s, "\t\tprops_zapobj = {}", d.props_zapobj);
    let _ = writeln!(s, "\t\tdeleg_zapobj = {}", d.deleg_zapobj);
    let _ = writeln!(s, "\t\tflags = {:x}", d.flags);
    for (name, v) in ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"].iter().zip(d.used_breakdown) {
        let _ = writeln!(s, "\t\tused_breakdown[{name}] = {}", nice(v));
    }
    let _ = writeln!(s, "\t\tclones = {}", d.clones);
}

/// A `dsl_dataset_phys_t`.
fn dataset_bonus(d: &DslDatasetPhys, s: &mut String) {
    let _ = writeln!(s, "\t\tdir_obj = {}\n\t\tprev_snap_obj = {}", d.dir_obj, d.prev_snap_obj);
    let _ = writeln!(s, "\t\tprev_snap_txg = {}\n\t\tnext_snap_obj = {}", d.prev_snap_txg, d.next_snap_obj);
    let _ = writeln!(s, "\t\tsnapnames_zapobj = {}", d.snapnames_zapobj);
    let _ = writeln!(s, "\t\tnum_children = {}\n\t\tuserrefs_obj = {}", d.num_children, d.userrefs_obj);
    let _ = writeln!(s, "\t\tcreation_time = {}", ctime(d.creation_time as i64));
    let _ = writeln!(s, "\t\tcreation_txg = {}\n\t\tdeadlist_obj = {}", d.creation_txg, d.deadlist_obj);
    let _ = writeln!(s, "\t\tused_bytes = {}", nice(d.referenced_bytes));
    let _ = writeln!(s, "\t\tcompressed_bytes = {}", nice(d.compressed_bytes));
    let _ = writeln!(s, "\t\tuncompressed_bytes = {}", nice(d.uncompressed_bytes));
    let _ = writeln!(s, "\t\tunique = {}", nice(d.unique_bytes));
    let _ = writeln!(s, "\t\tfsid_guid = {}\n\t\tguid = {}\n\t\tflags = {:x}", d.fsid_guid, d.guid, d.flags);
    let _ = writeln!(s, "\t\tnext_clones_obj = {}\n\t\tprops_obj = {}", d.next_clones_obj, d.props_obj);
    let _ = writeln!(s, "\t\tbp = {}", full_bp(&d.bp));
}

fn value_text(v: &ZapValue, directory: bool) -> String {
    if let (true, Some(n)) = (directory, v.as_u64()) {
        let d = Dirent::unpack(n);
        let t = match d.dtype {
            1 => "FIFO",
            2 => "Character Device",
            4 => "Directory",
            6 => "Block Device",
            8 => "Regular File",
            10 => "Symbolic Link",
            12 => "Socket",
            _ => "not specified",
        };
        return format!("{} (type: {t})", d.object);
    }
    if let Some(b) = v.as_bytes() {
        let text = b.strip_suffix(&[0]).filter(|t| t.iter().all(|c| (b' '..=b'~').contains(c)));
        return match text {
            Some(t) => String::from_utf8_lossy(t).into_owned(),
            None => b.iter().map(|x| format!("{x:02x}")).collect(),
        };
    }
    v.ints().map(|n| format!("{n} ")).collect()
}

fn contents(pool: &PoolReader, o: &Object, out: &mut dyn Write) -> Result<()> {
    let t = o.dn.otype;
    if t.is_zap() && !o.is_empty() {
        let b0 = o.block(0)?;
        let entries = zap::entries(o)?;
        let mut s = String::new();
        if kind(&b0)? == ZapKind::Micro {
            let _ = writeln!(s, "\tmicrozap: {} bytes, {} entries\n", b0.len(), entries.len());
        } else {
            let h = Header::parse(&b0)?;
            let _ = writeln!(
                s,
                "\tFat ZAP stats:\n\t\tPointer table:\n\t\t\t{} elements\n\t\t\tzt_blk: {}\n\t\t\tzt_numblks: {}\n\t\t\tzt_shift: {}",
                h.table_len(),
                h.table_blk,
                h.table_numblks,
                h.table_shift
            );
            let _ = writeln!(
                s,
                "\t\tZAP entries: {}\n\t\tLeaf blocks: {}\n\t\tTotal blocks: {}\n\t\tzap_salt: {:#x}\n",
                h.num_entries, h.num_leafs, h.freeblk, h.params.salt
            );
        }
        let words = h_flags_words(&b0);
        for e in &entries {
            let name = if words {
                e.key
                    .chunks(8)
                    .map(|w| w.iter().map(|b| format!("{b:02x}")).collect::<String>())
                    .collect::<Vec<_>>()
                    .join(":")
            } else {
                e.key.escape_ascii().to_string()
            };
            let _ = writeln!(s, "\t\t{name} = {}", value_text(&e.value, t == ObjectType::DIRECTORY));
        }
        return io(out.write_all(s.as_bytes()));
    }
    match t {
        ObjectType::PACKED_NVLIST => {
            let list = crate::objset::packed_nvlist(o)?;
            io(write!(out, "\tpacked nvlist:\n{}", list.indented(8)))
        }
        ObjectType::SPACE_MAP => space_map_entries(o, 0, 2000, out),
        ObjectType::BPOBJ if o.dn.bonustype == ObjectType::BPOBJ_HDR => {
            let mut fault = Ok(());
            let mut left = 1000;
            bpobj::for_each(pool, o.num, &mut |bp| {
                if left > 0 && fault.is_ok() {
                    left -= 1;
                    fault = io(writeln!(out, "\t\t{bp}"));
                }
            })?;
            fault
        }
        ObjectType::OBJECT_ARRAY | ObjectType::BPOBJ_SUBOBJ => {
            let n = o.dn.data_len().min(64 << 10);
            for (i, w) in o.read(0, n as usize)?.chunks_exact(8).enumerate().filter(|(_, w)| le64(w, 0) != 0) {
                io(writeln!(out, "\t\t[{i}] = {}", le64(w, 0)))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn h_flags_words(block0: &[u8]) -> bool {
    Header::parse(block0).is_ok_and(|h| h.params.flags & ondisk::zap::FLAG_UINT64_KEY != 0)
}

fn block_tree(o: &Object, out: &mut dyn Write) -> Result<()> {
    io(writeln!(out, "Indirect blocks:"))?;
    let mut stack: Vec<(Blkptr, u8, u64)> =
        o.dn.bps().iter().enumerate().rev().map(|(i, b)| (*b, o.dn.nlevels - 1, i as u64)).collect();
    let mut seen = std::collections::HashSet::new();
    while let Some((bp, level, id)) = stack.pop() {
        if bp.is_hole() && bp.logical_birth().0 == 0 {
            continue;
        }
        let start = (u128::from(id) << (u32::from(level) * o.dn.epb_shift())) * u128::from(o.dn.datablksz());
        io(writeln!(out, "{start:16x} {:>w$}L{level} {bp}", "", w = usize::from(o.dn.nlevels - 1 - level)))?;
        if level > 0 && !bp.is_hole() {
            if !seen.insert((bp.0[0], bp.0[1])) {
                io(writeln!(out, "    the block is there twice"))?;
                continue;
            }
            match o.indirect(&bp, level) {
                Ok(block) => {
                    let children: Vec<Blkptr> = Blkptr::iter_block(&block).collect();
                    let ids = children.iter().enumerate().rev();
                    stack.extend(ids.map(|(i, c)| (*c, level - 1, (id << o.dn.epb_shift()) + i as u64)));
                }
                Err(e) => io(writeln!(out, "    {e}"))?,
            }
        }
    }
    Ok(())
}

fn space_map_entries(o: &Object, shift: u32, limit: u64, out: &mut dyn Write) -> Result<()> {
    let mut i = 0u64;
    let mut fault = Ok(());
    for_each_entry(o, shift, MAX_OTHER_MAP, &mut |e| {
        if i < limit && fault.is_ok() {
            fault = io(match e {
                Entry::Debug { kind, pass, txg } => {
                    let k = if kind == MapType::Alloc { "ALLOC" } else { "FREE" };
                    writeln!(out, "\t    [{i:6}] {k}: txg {txg} pass {pass}")
                }
                Entry::Pad => writeln!(out, "\t    [{i:6}] PAD"),
                Entry::Run { kind, vdev, offset, size } => {
                    let k = if kind == MapType::Alloc { 'A' } else { 'F' };
                    writeln!(
                        out,
                        "\t    [{i:6}]    {k}  range: {offset:010x}-{:010x}  size: {size:06x} vdev: {vdev:06}",
                        offset + size
                    )
                }
            });
        }
        i += 1;
        Ok(())
    })?;
    fault
}

fn deadlist(pool: &PoolReader, obj: u64, level: u32, out: &mut dyn Write) -> Result<()> {
    if obj == 0 {
        return Ok(());
    }
    let Ok(Some(lists)) = bpobj::deadlist(pool, obj) else { return Ok(()) };
    let head = DeadlistPhys::parse(pool.mos.object(obj)?.dn.bonus())?;
    io(writeln!(
        out,
        "\n    Deadlist: {} ({}/{} comp), {} entries",
        nice(head.used),
        nice(head.comp),
        nice(head.uncomp),
        lists.len()
    ))?;
    if level >= 4 {
        for (key, list) in &lists {
            let p = BpobjPhys::parse(pool.mos.object(*list)?.dn.bonus())?;
            io(writeln!(
                out,
                "      mintxg {key} -> obj {list}: {} bps, {} ({}/{} comp)",
                p.num_blkptrs,
                nice(p.bytes),
                nice(p.comp),
                nice(p.uncomp)
            ))?;
        }
    }
    Ok(())
}

/// The intent logs of all heads, or of one dataset. `level`: how many `-i`.
pub fn intent_logs(pool: &PoolReader, dataset: Option<&str>, level: u32, out: &mut dyn Write) -> Result<()> {
    let dsl = Dsl::load(pool)?;
    for ds in dsl.in_zdb_order() {
        let wanted = dataset.is_none_or(|d| d == ds.name) && !ds.snapshot && !ds.phys.bp.is_hole();
        if !wanted {
            continue;
        }
        match pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp) {
            Ok(os) => {
                io(writeln!(out, "Dataset {} [{}], ID {}", ds.name, os.phys.os_type.name(), ds.obj))?;
                intent_log(&os, level + 3, out)?;
            }
            Err(e) => io(writeln!(out, "{}: {e}", ds.name))?,
        }
    }
    Ok(())
}

fn intent_log(os: &Objset, level: u32, out: &mut dyn Write) -> Result<()> {
    let h = &os.phys.zil_header;
    if h.is_empty() {
        return Ok(());
    }
    io(writeln!(
        out,
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags {:#x}",
        h.claim_txg, h.claim_blk_seq, h.claim_lr_seq, h.replay_seq, h.flags
    ))?;
    io(writeln!(out))?;
    if level >= 2 {
        for b in zil::chain(&os.io, h) {
            let seq = b.bp.checksum_words()[3];
            let Some((data, zc)) = &b.data else {
                if level >= 4 {
                    io(writeln!(out, "\tBlock seqno {seq}, not written, {}", b.bp))?;
                }
                continue;
            };
            if level >= 4 {
                io(writeln!(out, "\tBlock seqno {seq}, {} bytes used, {}", zc.nused, b.bp))?;
            }
            for r in records(data, zc.records) {
                match r {
                    Ok(r) => io(writeln!(
                        out,
                        "\t\t{}{:<20} len {:6}, txg {}, seq {}",
                        if r.case_insensitive { "CI-" } else { "" },
                        zil::record_name(r.txtype),
                        r.bytes.len(),
                        r.txg,
                        r.seq
                    ))?,
                    Err(e) => io(writeln!(out, "\t\t{e}"))?,
                }
            }
        }
    }
    io(writeln!(out))
}

/// Metaslabs and their space maps. `level`: how many `-m`.
pub fn metaslabs(pool: &PoolReader, level: u32, out: &mut dyn Write) -> Result<()> {
    let mut quiet = |_: crate::check::Finding<'_>| {};
    let space = crate::check::load_space(pool, &mut quiet);
    io(writeln!(out, "\nMetaslabs:"))?;
    for (id, v) in &space.vdevs {
        let ashift = pool.io.tops.get(*id as usize).and_then(Option::as_ref).map_or(9, |t| t.ashift);
        io(writeln!(
            out,
            "\tvdev {id:10}\n\tmetaslabs {:5}   {:<19}   {:<15}   {:<12}\n\t{:-<15}   {:-<19}   {:-<15}   {:-<12}",
            v.metaslabs.len(),
            "offset",
            "spacemap",
            "free",
            "",
            "",
            "",
            ""
        ))?;
        for m in &v.metaslabs {
            io(writeln!(
                out,
                "\tmetaslab {:6}   offset {:12x}   spacemap {:6}   free {:>7}",
                m.index,
                m.start,
                m.object,
                nice(m.size - m.allocated.min(m.size))
            ))?;
            let Some(p) = &m.phys else { continue };
            if level >= 2 {
                io(writeln!(
                    out,
                    "space map object {}:\n  smp_length = {:#x}\n  smp_alloc = {:#x}",
                    m.object, p.length, p.alloc
                ))?;
                if m.unflushed != 0 {
                    io(writeln!(out, "\tFlush data:\n\tunflushed txg={}\n", m.unflushed))?;
                }
                for (i, n) in p.histogram.iter().flatten().enumerate().filter(|(_, n)| **n != 0) {
                    io(writeln!(out, "\t\t\t{:3}: {n:6}", i as u32 + ashift))?;
                }
            }
            if level >= 4 {
                space_map_entries(&pool.mos.object(m.object)?, ashift, u64::MAX, out)?;
            }
        }
        io(writeln!(out))?;
    }
    Ok(())
}

/// The pool's history. `all`: internal events too.
pub fn history(pool: &PoolReader, all: bool, out: &mut dyn Write) -> Result<()> {
    io(writeln!(out, "\nHistory:"))?;
    let (records, fault) = mos::history(pool)?;
    for r in &records {
        let time = history_time(r.u64("history time").unwrap_or(0).min(1 << 40) as i64);
        if let Some(c) = r.str("history command") {
            io(writeln!(out, "{time} {c}"))?;
        } else if all {
            match (r.str("internal_name"), r.str("ioctl")) {
                (Some(n), _) => {
                    let txg = r.u64("history txg").unwrap_or(0);
                    let ds = r.str("dsname").map(|d| format!(" {d} ({})", r.u64("dsid").unwrap_or(0)));
                    let text = r.str("history internal str").unwrap_or("");
                    io(writeln!(out, "{time} [txg:{txg}] {n}{} {text}", ds.unwrap_or_default()))?;
                }
                (None, Some(i)) => io(writeln!(out, "{time} ioctl {i}\n{}", r.indented(4)))?,
                _ => io(writeln!(out, "{time}\n{}", r.indented(4)))?,
            }
        }
    }
    match fault {
        Some(e) => io(writeln!(out, "{e}")),
        None => Ok(()),
    }
}

/// A listing of a folder, or the content of a file, in a file system.
pub fn file(pool: &PoolReader, dataset: &str, path: &str, out: &mut dyn Write) -> Result<()> {
    let dsl = Dsl::load(pool)?;
    let ds = dsl.find(dataset).ok_or_else(|| Error::not_found(format!("there is no dataset '{dataset}'")))?;
    let fs = FileSystem::open(&pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp)?)?;
    let obj = fs.lookup(path)?;
    let a = fs.attrs(&obj)?;
    if a.mode & S_IFMT == S_IFDIR {
        for e in zap::entries(&obj)? {
            io(writeln!(out, "{} = {}", e.key.escape_ascii(), value_text(&e.value, true)))?;
        }
        return Ok(());
    }
    let mut at = 0;
    while at < a.size {
        let n = (1 << 20).min(a.size - at);
        io(out.write_all(&obj.read(at, n as usize)?))?;
        at += n;
    }
    Ok(())
}
