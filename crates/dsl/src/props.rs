//! Dataset properties: the table of names, types, defaults and value words, and how they are
//! stored.
//!
//! A property is stored in the ZAP of its DSL directory (format page 05 section 10): a number as
//! one u64, a string as bytes with its NUL. A dataset without a value of its own takes that of the
//! nearest ancestor that has one, if the property is inheritable, else the default. Words (`on`,
//! `lz4`, `noauto`) stand for numbers by the tables here.
//!
//! Everything here is pure; reading and writing the ZAPs is in `pool.rs`.

use base::{Error, Result};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use ondisk::feature::FeatureId;

/// The type of a property's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropType {
    /// A size in bytes; `none` stands for 0 where `none_is_zero`.
    Size {
        /// `none` prints for 0.
        none_is_zero: bool,
    },
    /// One of a list of words, stored as a number.
    Index(&'static [(&'static str, u64)]),
    /// `compression`: words with levels.
    Compression,
    /// `checksum`: words, stored as the checksum enum.
    Checksum,
    /// Free text.
    Text,
    /// A plain number.
    Number,
}

/// How a property may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropKind {
    /// Settable, and inherited by descendants.
    Inherit,
    /// Settable, for this dataset only.
    Default,
    /// Settable at creation only.
    Once,
    /// Computed.
    ReadOnly,
    /// Computed, and shown with all others only: commands do not know its name.
    Shown,
}

/// The kinds of dataset, by what `zfs get all` shows of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of a file system.
    Snapshot,
    /// A snapshot of a volume.
    VolumeSnapshot,
}

const FS: &[DatasetKind] = &[DatasetKind::Filesystem];
const VOLUME: &[DatasetKind] = &[DatasetKind::Volume];
const SNAPSHOT: &[DatasetKind] = &[DatasetKind::Snapshot];
const HEADS: &[DatasetKind] = &[DatasetKind::Filesystem, DatasetKind::Volume];
const SNAPSHOTS: &[DatasetKind] = &[DatasetKind::Snapshot, DatasetKind::VolumeSnapshot];
const FILES: &[DatasetKind] = &[DatasetKind::Filesystem, DatasetKind::Snapshot];
const BLOCKS: &[DatasetKind] = &[DatasetKind::Volume, DatasetKind::VolumeSnapshot];
const ALL: &[DatasetKind] =
    &[DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::VolumeSnapshot];
/// Shown by name, or if it is set.
const NO_KIND: &[DatasetKind] = &[];

/// One property.
#[derive(Clone, Copy, Debug)]
pub struct Prop {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub ty: PropType,
    /// The kinds of dataset that `zfs get all` shows it of.
    pub kinds: &'static [DatasetKind],
    /// How it may be used.
    pub kind: PropKind,
    /// Default number (also for index types); ignored for text.
    pub default: u64,
    /// Default text.
    pub default_text: &'static str,
    /// Values in one phrase, as `zfs get` without arguments prints them.
    pub values: &'static str,
}

const ONOFF: &[(&str, u64)] = &[("off", 0), ("on", 1)];

const fn index(
    name: &'static str,
    kinds: &'static [DatasetKind],
    words: &'static [(&'static str, u64)],
    kind: PropKind,
    default: u64,
    values: &'static str,
) -> Prop {
    Prop { name, ty: PropType::Index(words), kinds, kind, default, default_text: "", values }
}
const fn size(
    name: &'static str,
    kinds: &'static [DatasetKind],
    kind: PropKind,
    default: u64,
    none_is_zero: bool,
    values: &'static str,
) -> Prop {
    Prop { name, ty: PropType::Size { none_is_zero }, kinds, kind, default, default_text: "", values }
}
const fn text(
    name: &'static str,
    kinds: &'static [DatasetKind],
    kind: PropKind,
    default_text: &'static str,
    values: &'static str,
) -> Prop {
    Prop { name, ty: PropType::Text, kinds, kind, default: 0, default_text, values }
}

/// All properties that weir knows, in the order in which `zfs get all` prints them (OpenZFS
/// 2.1 and, for newer ones, 2.4; for the exception see [`shown_of`]).
pub const PROPS: &[Prop] = &[
    text("type", ALL, PropKind::ReadOnly, "", "filesystem | volume | snapshot | bookmark"),
    Prop {
        name: "creation",
        ty: PropType::Number,
        kinds: ALL,
        kind: PropKind::ReadOnly,
        default: 0,
        default_text: "",
        values: "<date>",
    },
    size("used", ALL, PropKind::ReadOnly, 0, false, "<size>"),
    size("available", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    size("referenced", ALL, PropKind::ReadOnly, 0, false, "<size>"),
    text("compressratio", ALL, PropKind::ReadOnly, "", "<1.00x or higher if compressed>"),
    text("mounted", FS, PropKind::ReadOnly, "", "yes | no"),
    text("origin", HEADS, PropKind::ReadOnly, "", "<snapshot>"),
    size("quota", FS, PropKind::Default, 0, true, "<size> | none"),
    size("reservation", HEADS, PropKind::Default, 0, true, "<size> | none"),
    size("volsize", BLOCKS, PropKind::Default, 0, false, "<size>"),
    size("volblocksize", VOLUME, PropKind::Once, crate::volume::BLOCK_SIZE as u64, false, "512 to 16M, power of 2"),
    size("recordsize", FS, PropKind::Inherit, 131_072, false, "512 to 16M, power of 2"),
    text("mountpoint", FS, PropKind::Inherit, "/", "<path> | legacy | none"),
    text("sharenfs", FS, PropKind::Inherit, "off", "on | off | NFS share options"),
    Prop {
        name: "checksum",
        ty: PropType::Checksum,
        kinds: HEADS,
        kind: PropKind::Inherit,
        default: 1,
        default_text: "",
        values: "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3",
    },
    Prop {
        name: "compression",
        ty: PropType::Compression,
        kinds: HEADS,
        kind: PropKind::Inherit,
        default: 1,
        default_text: "",
        values: "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]",
    },
    index("atime", FS, ONOFF, PropKind::Inherit, 1, "on | off"),
    index("devices", FILES, ONOFF, PropKind::Inherit, 1, "on | off"),
    index("exec", FILES, ONOFF, PropKind::Inherit, 1, "on | off"),
    index("setuid", FILES, ONOFF, PropKind::Inherit, 1, "on | off"),
    index("readonly", HEADS, ONOFF, PropKind::Inherit, 0, "on | off"),
    index("zoned", FS, ONOFF, PropKind::Inherit, 0, "on | off"),
    index(
        "snapdir",
        FS,
        &[("hidden", 0), ("visible", 1), ("disabled", 2)],
        PropKind::Inherit,
        0,
        "disabled | hidden | visible",
    ),
    index(
        "aclmode",
        FS,
        &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)],
        PropKind::Inherit,
        0,
        "discard | groupmask | passthrough | restricted",
    ),
    index(
        "aclinherit",
        FS,
        &[("discard", 0), ("noallow", 1), ("restricted", 4), ("secure", 4), ("passthrough", 3), ("passthrough-x", 5)],
        PropKind::Inherit,
        4,
        "discard | noallow | restricted | passthrough | passthrough-x",
    ),
    Prop {
        name: "createtxg",
        ty: PropType::Number,
        kinds: ALL,
        kind: PropKind::ReadOnly,
        default: 0,
        default_text: "",
        values: "<uint64>",
    },
    index("canmount", FS, &[("off", 0), ("on", 1), ("noauto", 2)], PropKind::Default, 1, "on | off | noauto"),
    index("xattr", FILES, &[("off", 0), ("sa", 2), ("on", 2), ("dir", 1)], PropKind::Inherit, 2, "on | off | dir | sa"),
    Prop {
        name: "copies",
        ty: PropType::Index(&[("1", 1), ("2", 2), ("3", 3)]),
        kinds: HEADS,
        kind: PropKind::Inherit,
        default: 1,
        default_text: "",
        values: "1 | 2 | 3",
    },
    Prop {
        name: "version",
        ty: PropType::Number,
        kinds: FILES,
        kind: PropKind::Once,
        default: 5,
        default_text: "",
        values: "1 | 2 | 3 | 4 | 5 | current",
    },
    index("utf8only", FILES, ONOFF, PropKind::Once, 0, "on | off"),
    index(
        "normalization",
        FILES,
        &[("none", 0), ("formD", 0x10), ("formKC", 0x60), ("formC", 0x50), ("formKD", 0x20)],
        PropKind::Once,
        0,
        "none | formC | formD | formKC | formKD",
    ),
    index(
        "casesensitivity",
        FILES,
        &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)],
        PropKind::Once,
        0,
        "sensitive | insensitive | mixed",
    ),
    index("vscan", FS, ONOFF, PropKind::Inherit, 0, "on | off"),
    index("nbmand", FILES, ONOFF, PropKind::Inherit, 0, "on | off"),
    text("sharesmb", FS, PropKind::Inherit, "off", "on | off | SMB share options"),
    size("refquota", FS, PropKind::Default, 0, true, "<size> | none"),
    size("refreservation", HEADS, PropKind::Default, 0, true, "<size> | none"),
    Prop {
        name: "guid",
        ty: PropType::Number,
        kinds: ALL,
        kind: PropKind::ReadOnly,
        default: 0,
        default_text: "",
        values: "<uint64>",
    },
    index(
        "primarycache",
        ALL,
        &[("none", 0), ("metadata", 1), ("all", 2)],
        PropKind::Inherit,
        2,
        "all | none | metadata",
    ),
    index(
        "secondarycache",
        ALL,
        &[("none", 0), ("metadata", 1), ("all", 2)],
        PropKind::Inherit,
        2,
        "all | none | metadata",
    ),
    index("defer_destroy", SNAPSHOTS, ONOFF, PropKind::Shown, 0, "yes | no"),
    size("userrefs", SNAPSHOTS, PropKind::Shown, 0, false, "<count>"),
    size("usedbysnapshots", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    size("usedbydataset", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    size("usedbychildren", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    size("usedbyrefreservation", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    index("logbias", HEADS, &[("latency", 0), ("throughput", 1)], PropKind::Inherit, 0, "latency | throughput"),
    Prop {
        name: "objsetid",
        ty: PropType::Number,
        kinds: ALL,
        kind: PropKind::ReadOnly,
        default: 0,
        default_text: "",
        values: "<uint64>",
    },
    index(
        "dedup",
        HEADS,
        &[
            ("off", 2),
            ("on", 1),
            ("verify", 0x101),
            ("sha256", 8),
            ("sha256,verify", 0x108),
            ("sha512", 11),
            ("sha512,verify", 0x10b),
            ("skein", 12),
            ("skein,verify", 0x10c),
            ("edonr,verify", 0x10d),
            ("blake3", 14),
            ("blake3,verify", 0x10e),
        ],
        PropKind::Inherit,
        2,
        "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]",
    ),
    text("mlslabel", ALL, PropKind::Inherit, "none", "<sensitivity label>"),
    index(
        "sync",
        HEADS,
        &[("standard", 0), ("always", 1), ("disabled", 2)],
        PropKind::Inherit,
        0,
        "standard | always | disabled",
    ),
    index(
        "dnodesize",
        FS,
        &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)],
        PropKind::Inherit,
        0,
        "legacy | auto | 1k | 2k | 4k | 8k | 16k",
    ),
    size("refcompressratio", ALL, PropKind::ReadOnly, 0, false, "<1.00x or higher if compressed>"),
    size("written", ALL, PropKind::ReadOnly, 0, false, "<size>"),
    text("clones", SNAPSHOT, PropKind::Shown, "", "<dataset>[,...]"),
    size("logicalused", HEADS, PropKind::ReadOnly, 0, false, "<size>"),
    size("logicalreferenced", ALL, PropKind::ReadOnly, 0, false, "<size>"),
    index(
        "volmode",
        HEADS,
        &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)],
        PropKind::Inherit,
        0,
        "default | full | geom | dev | none",
    ),
    size("filesystem_limit", FS, PropKind::Default, u64::MAX, true, "<count> | none"),
    size("snapshot_limit", HEADS, PropKind::Default, u64::MAX, true, "<count> | none"),
    size("filesystem_count", FS, PropKind::Shown, u64::MAX, true, "<count>"),
    size("snapshot_count", HEADS, PropKind::Shown, u64::MAX, true, "<count>"),
    index("snapdev", HEADS, &[("hidden", 0), ("visible", 1)], PropKind::Inherit, 0, "hidden | visible"),
    index(
        "acltype",
        FILES,
        &[("off", 0), ("disabled", 0), ("noacl", 0), ("posix", 1), ("posixacl", 1), ("nfsv4", 2)],
        PropKind::Inherit,
        0,
        "off | nfsv4 | posix",
    ),
    text("context", ALL, PropKind::Inherit, "none", "<selinux context>"),
    text("fscontext", ALL, PropKind::Inherit, "none", "<selinux fscontext>"),
    text("defcontext", ALL, PropKind::Inherit, "none", "<selinux defcontext>"),
    text("rootcontext", ALL, PropKind::Inherit, "none", "<selinux rootcontext>"),
    index("relatime", FS, ONOFF, PropKind::Inherit, 1, "on | off"),
    index(
        "redundant_metadata",
        HEADS,
        &[("all", 0), ("most", 1), ("some", 2), ("none", 3)],
        PropKind::Inherit,
        0,
        "all | most | some | none",
    ),
    index("overlay", FS, ONOFF, PropKind::Inherit, 1, "on | off"),
    text("encryption", ALL, PropKind::ReadOnly, "off", "on | off | aes-128-ccm | ... | aes-256-gcm"),
    text("keylocation", HEADS, PropKind::Default, "none", "prompt | file:///<path>"),
    text("keyformat", HEADS, PropKind::ReadOnly, "none", "none | raw | hex | passphrase"),
    size("pbkdf2iters", HEADS, PropKind::ReadOnly, 0, false, "<iters>"),
    text("encryptionroot", HEADS, PropKind::ReadOnly, "-", "<filesystem|volume>"),
    text("keystatus", HEADS, PropKind::ReadOnly, "-", "available | unavailable"),
    text("receive_resume_token", NO_KIND, PropKind::ReadOnly, "-", "<string token>"),
    size("inconsistent", NO_KIND, PropKind::ReadOnly, 0, false, "0 | 1"),
    text("redact_snaps", NO_KIND, PropKind::ReadOnly, "-", "<snapshot>[,...]"),
    size("special_small_blocks", HEADS, PropKind::Inherit, 0, false, "0 to 16M"),
    text("snapshots_changed", HEADS, PropKind::ReadOnly, "-", "<date>"),
    index("prefetch", ALL, &[("none", 0), ("metadata", 1), ("all", 2)], PropKind::Inherit, 2, "none | metadata | all"),
    index("volthreading", VOLUME, ONOFF, PropKind::Default, 1, "on | off"),
    index(
        "direct",
        FS,
        &[("disabled", 0), ("standard", 1), ("always", 2)],
        PropKind::Inherit,
        1,
        "disabled | standard | always",
    ),
    index("longname", FS, ONOFF, PropKind::Inherit, 0, "on | off"),
    size("defaultuserquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("defaultgroupquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("defaultprojectquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("defaultuserobjquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("defaultgroupobjquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("defaultprojectobjquota", FILES, PropKind::Default, 0, true, "<size> | none"),
    size("iolimit_bw_read", NO_KIND, PropKind::Default, 0, true, "<size a second> | none"),
    size("iolimit_bw_write", NO_KIND, PropKind::Default, 0, true, "<size a second> | none"),
    size("iolimit_bw_total", NO_KIND, PropKind::Default, 0, true, "<size a second> | none"),
    size("iolimit_op_read", NO_KIND, PropKind::Default, 0, true, "<operations a second> | none"),
    size("iolimit_op_write", NO_KIND, PropKind::Default, 0, true, "<operations a second> | none"),
    size("iolimit_op_total", NO_KIND, PropKind::Default, 0, true, "<operations a second> | none"),
];

/// The feature that a value needs, for properties with values newer than the base format.
pub fn needed_feature(name: &str, value: &PropValue) -> Option<FeatureId> {
    let n = value.num();
    match name {
        "compression" => match Compression::from_prop(n)?.algo {
            CompressAlgo::Lz4 => Some(FeatureId::Lz4Compress),
            CompressAlgo::Zstd => Some(FeatureId::ZstdCompress),
            _ => None,
        },
        "checksum" => match ChecksumAlgo::from_u8((n & 0xff) as u8)? {
            ChecksumAlgo::Sha512 => Some(FeatureId::Sha512),
            ChecksumAlgo::Skein => Some(FeatureId::Skein),
            ChecksumAlgo::Edonr => Some(FeatureId::Edonr),
            ChecksumAlgo::Blake3 => Some(FeatureId::Blake3),
            _ => None,
        },
        "dedup" => match n & 0xff {
            11 => Some(FeatureId::Sha512),
            12 => Some(FeatureId::Skein),
            13 => Some(FeatureId::Edonr),
            14 => Some(FeatureId::Blake3),
            _ => None,
        },
        "recordsize" | "volblocksize" if n > base::OLD_MAX_BLOCK => Some(FeatureId::LargeBlocks),
        "dnodesize" if n != 0 => Some(FeatureId::LargeDnode),
        "longname" if n != 0 => Some(FeatureId::Longname),
        "filesystem_limit" | "snapshot_limit" if n != u64::MAX => Some(FeatureId::FilesystemLimits),
        _ => None,
    }
}

/// Refuses values whose feature is not enabled.
pub fn check_feature(name: &str, value: &PropValue, is_enabled: impl Fn(FeatureId) -> bool) -> Result<()> {
    match needed_feature(name, value) {
        Some(id) if !is_enabled(id) => {
            let feature = id.get().name;
            Err(Error::unsupported(format!(
                "this value of property '{name}' needs the pool feature '{feature}': enable it with 'zpool set feature@{feature}=enabled'"
            )))
        }
        _ => Ok(()),
    }
}

/// A property's value as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PropValue {
    /// Numbers, sizes, words.
    Num(u64),
    /// Text.
    Text(String),
}

impl PropValue {
    /// The number, 0 for text.
    pub fn num(&self) -> u64 {
        if let PropValue::Num(n) = self { *n } else { 0 }
    }
    /// The text, empty for numbers.
    pub fn text(&self) -> &str {
        if let PropValue::Text(t) = self { t } else { "" }
    }
}

/// The source of a value, as in the SOURCE column of `zfs get`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PropSource {
    /// `-`: computed.
    None,
    /// `default`
    Default,
    /// `local`
    Local,
    /// `received`
    Received,
    /// `inherited from NAME`
    Inherited(String),
    /// `temporary`
    Temporary,
}

impl std::fmt::Display for PropSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PropSource::None => f.pad("-"),
            PropSource::Default => f.pad("default"),
            PropSource::Local => f.pad("local"),
            PropSource::Received => f.pad("received"),
            PropSource::Temporary => f.pad("temporary"),
            PropSource::Inherited(from) => f.pad(&format!("inherited from {from}")),
        }
    }
}

/// Short names that OpenZFS accepts.
const ALIASES: &[(&str, &str)] = &[
    ("avail", "available"),
    ("refer", "referenced"),
    ("ratio", "compressratio"),
    ("compress", "compression"),
    ("recsize", "recordsize"),
    ("reserv", "reservation"),
    ("volblock", "volblocksize"),
    ("rdonly", "readonly"),
    ("refreserv", "refreservation"),
    ("refratio", "refcompressratio"),
    ("lused", "logicalused"),
    ("lrefer", "logicalreferenced"),
    ("dnsize", "dnodesize"),
    ("case", "casesensitivity"),
    ("crtime", "creation"),
    ("redund_md", "redundant_metadata"),
    ("usedsnap", "usedbysnapshots"),
    ("usedds", "usedbydataset"),
    ("usedchild", "usedbychildren"),
    ("usedrefreserv", "usedbyrefreservation"),
];

/// The property called `name` or by that alias.
pub fn find(name: &str) -> Option<&'static Prop> {
    let name = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    PROPS.iter().find(|p| p.name == name && p.kind != PropKind::Shown)
}

/// True for a limit of owners without one of their own, `defaultuserquota` and its like. Those are
/// kept in the file system itself (format page 17 section 8), not with its properties.
pub fn is_default_quota(name: &str) -> bool {
    ondisk::zpl::master_key::DEFAULT_QUOTAS.contains(&name)
}

/// What follows the name of a property whose value is one that releases before it do not know: the
/// value is kept under this name, and the default under the plain one (format page 17 section 8).
const NEWER_SUFFIX: &str = "$iuv";

/// Properties with such values.
const NEWER: [(&str, &[u64]); 2] = [("snapdir", &[2]), ("redundant_metadata", &[2, 3])];

/// The name under which newer values of a property are kept, if it has any, and whether `value` is
/// one.
pub(crate) fn newer(name: &str, value: Option<&PropValue>) -> Option<(String, bool)> {
    let (_, values) = NEWER.iter().find(|(n, _)| *n == name)?;
    Some((format!("{name}{NEWER_SUFFIX}"), value.is_some_and(|v| values.contains(&v.num()))))
}

/// Stored properties with newer values under their plain names, as far as they are known.
pub(crate) fn with_newer(stored: Vec<(String, PropValue)>) -> Vec<(String, PropValue)> {
    let known = |(name, value): &(String, PropValue)| {
        let name = name.strip_suffix(NEWER_SUFFIX)?;
        let PropType::Index(values) = find(name)?.ty else { return None };
        values.iter().any(|(_, n)| *n == value.num()).then(|| name.to_string())
    };
    let newer: Vec<String> = stored.iter().filter_map(known).collect();
    let named = stored.into_iter().filter_map(|(name, value)| match name.strip_suffix(NEWER_SUFFIX) {
        Some(plain) => newer.iter().any(|n| n == plain).then(|| (plain.to_string(), value)),
        None => (!newer.contains(&name)).then_some((name, value)),
    });
    named.collect()
}

/// The names of the properties that `zfs get all` shows of a kind of dataset, in its order.
pub fn shown_of(kind: DatasetKind) -> Vec<&'static str> {
    let mut names: Vec<&str> = PROPS.iter().filter(|p| p.kinds.contains(&kind)).map(|p| p.name).collect();
    // The one property whose place depends on the kind.
    if kind == DatasetKind::VolumeSnapshot
        && let Some(from) = names.iter().position(|n| *n == "volsize")
        && let Some(to) = names.iter().position(|n| *n == "createtxg")
    {
        names[from..=to].rotate_left(1);
    }
    names
}

/// True for a user property, `module:property` (8192 bytes at most, format of OpenZFS's
/// `zfs_prop_user`).
pub fn is_user_prop(name: &str) -> bool {
    name.len() < 256
        && name.contains(':')
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.:".contains(&c))
}

/// Parses `128K`, `1.5G`, `10MB`, `1MiB`, `512`, `512B`; powers of 1024 (`zfs_nicestrtonum`).
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || Error::invalid(format!("'{text}' is not a size such as 512, 128K or 1.5G"));
    let digits = text.bytes().take_while(|c| c.is_ascii_digit() || *c == b'.').count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_uppercase();
    let large = || Error::invalid(format!("'{text}': numeric value is too large"));
    let letter = match unit.as_str() {
        // No units of units: 1BB, 1BiB.
        "B" => "",
        other => other.strip_suffix("IB").or_else(|| other.strip_suffix('B')).unwrap_or(other),
    };
    let shift = match letter {
        // Without a letter there is nothing that B could follow.
        "" if unit.len() < 2 => 0u32,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        "Z" if number.parse::<f64>().is_ok() => return Err(large()),
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(large);
    }
    let value: f64 = number.parse().map_err(|_| bad())?;
    let bytes = value * (1u64 << shift) as f64;
    if !bytes.is_finite() || bytes < 0.0 || bytes >= u64::MAX as f64 {
        return Err(large());
    }
    Ok(bytes as u64)
}

impl Prop {
    /// True if descendants inherit the value.
    pub fn inheritable(&self) -> bool {
        self.kind == PropKind::Inherit
    }

    /// True if a dataset of that kind may have it.
    pub fn applies_to(&self, kind: DatasetKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// True if the property may be set after creation.
    pub fn settable(&self) -> bool {
        matches!(self.kind, PropKind::Inherit | PropKind::Default)
    }

    /// The default value.
    pub fn default_value(&self) -> PropValue {
        if self.ty == PropType::Text {
            PropValue::Text(self.default_text.to_string())
        } else {
            PropValue::Num(self.default)
        }
    }

    /// Parses a user's input, with the range checks of OpenZFS.
    pub fn parse(&self, text: &str) -> Result<PropValue> {
        let name = self.name;
        let bad = || match self.ty {
            PropType::Size { .. } if self.values.ends_with("power of 2") => {
                let (low, high) = self.values.trim_end_matches(", power of 2").split_once(" to ").unwrap_or_default();
                Error::invalid(format!("'{name}' must be power of 2 from {low} to {high}, not '{text}'"))
            }
            PropType::Number => Error::invalid(format!("bad numeric value '{text}': '{name}' is {}", self.values)),
            _ => Error::invalid(format!("'{name}' must be one of '{}', not '{text}'", self.values)),
        };
        let value = match self.ty {
            PropType::Text => {
                if text.len() >= 1024 {
                    return Err(Error::invalid(format!("'{name}' is too long: its value has more than 1023 bytes")));
                }
                return Ok(PropValue::Text(text.to_string()));
            }
            PropType::Index(words) => words.iter().find(|(w, _)| *w == text).map(|(_, v)| *v).ok_or_else(bad)?,
            PropType::Compression => Compression::parse(text).ok_or_else(bad)?.to_prop(),
            PropType::Checksum => match text {
                "on" => 1,
                "off" => 2,
                "fletcher2" => 6,
                "fletcher4" => 7,
                "sha256" => 8,
                // A word of OpenZFS that checks as little as off.
                "noparity" => 10,
                "sha512" => 11,
                "skein" => 12,
                "edonr" => 13,
                "blake3" => 14,
                _ => return Err(bad()),
            },
            PropType::Size { none_is_zero } if none_is_zero && text == "none" => {
                if self.default == u64::MAX {
                    u64::MAX
                } else {
                    0
                }
            }
            PropType::Size { .. } if text == "auto" && name == "refreservation" => {
                return Err(Error::invalid("'refreservation=auto' only allowed on volumes"));
            }
            PropType::Size { .. } => {
                let kind = self.values;
                let value = parse_size(text)
                    .map_err(|_| Error::invalid(format!("bad numeric value '{text}': '{name}' is {kind}")))?;
                if value == 0 && matches!(name, "quota" | "refquota") {
                    return Err(Error::invalid("use 'none' to disable quota/refquota"));
                }
                value
            }
            PropType::Number => text.parse().map_err(|_| bad())?,
        };
        self.check(value).map_err(|_| bad())?;
        Ok(PropValue::Num(value))
    }

    fn check(&self, value: u64) -> Result<()> {
        let fits = match self.name {
            "recordsize" | "volblocksize" => {
                value.is_power_of_two() && (base::SECTOR..=base::MAX_BLOCK).contains(&value)
            }
            "special_small_blocks" => value <= base::MAX_BLOCK,
            "version" => (1..=5).contains(&value),
            _ => true,
        };
        if fits { Ok(()) } else { Err(Error::invalid("out of range")) }
    }

    /// Prints a value as `zfs get` does; `exact` as with `-p`.
    pub fn format(&self, value: &PropValue, exact: bool) -> String {
        let n = match value {
            PropValue::Text(t) => return t.clone(),
            PropValue::Num(n) => *n,
        };
        match self.ty {
            PropType::Index(words) => {
                words.iter().find(|(_, v)| *v == n).map_or_else(|| n.to_string(), |(w, _)| (*w).to_string())
            }
            PropType::Compression => Compression::from_prop(n).map_or_else(|| n.to_string(), |c| c.name().to_string()),
            PropType::Checksum => match n {
                1 => "on".into(),
                2 => "off".into(),
                _ => codec::ChecksumAlgo::from_u8((n & 0xff) as u8)
                    .map_or_else(|| n.to_string(), |c| c.name().to_string()),
            },
            PropType::Size { none_is_zero } => {
                let none = none_is_zero && n == if self.default == u64::MAX { u64::MAX } else { 0 };
                if none && !(exact && self.default == 0) {
                    "none".into()
                } else if exact {
                    n.to_string()
                } else {
                    base::NiceNum(n).to_string()
                }
            }
            PropType::Number | PropType::Text => n.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_units() {
        for (text, want) in [
            ("512", 512),
            ("128K", 131_072),
            ("128k", 131_072),
            ("1.5G", 1_610_612_736),
            ("10MB", 10 << 20),
            ("1MiB", 1 << 20),
            ("512b", 512),
        ] {
            assert_eq!(parse_size(text).ok(), Some(want), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1.2.3", "99999999999E", "1BB", "0bb", "1.1BiB", "1KBB", "1iB", "Z"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for text in ["1Z", "1.5zb", "16E", "17.5E"] {
            let e = parse_size(text).unwrap_err().to_string();
            assert!(e.ends_with("numeric value is too large"), "{e}");
        }
    }

    #[test]
    fn values_round_trip_through_words() {
        for (name, word, stored) in [
            ("compression", "lz4", 15),
            ("compression", "gzip-9", 13),
            ("compression", "zstd-3", 400),
            ("atime", "off", 0),
            ("canmount", "noauto", 2),
            ("recordsize", "16M", 16 << 20),
            ("special_small_blocks", "1000", 1000),
            ("special_small_blocks", "16M", 16 << 20),
            ("quota", "none", 0),
            ("checksum", "sha256", 8),
            ("aclinherit", "restricted", 4),
        ] {
            let prop = find(name).expect(name);
            let value = prop.parse(word).expect(word);
            assert_eq!(value, PropValue::Num(stored), "{name}={word}");
            assert_eq!(prop.format(&value, false), word);
        }
        // Older words for the same.
        for (name, old, new) in [("aclinherit", "secure", "restricted"), ("acltype", "disabled", "off")] {
            let prop = find(name).expect(name);
            assert_eq!(prop.format(&prop.parse(old).expect(old), false), new, "{name}={old}");
        }
        for (name, word) in
            [("recordsize", "3K"), ("recordsize", "32M"), ("atime", "maybe"), ("compression", "lz5"), ("copies", "4")]
        {
            assert!(find(name).expect(name).parse(word).is_err(), "{name}={word}");
        }
    }

    #[test]
    fn names_are_unique() {
        for (i, p) in PROPS.iter().enumerate() {
            assert!(PROPS[i + 1..].iter().all(|q| q.name != p.name), "{}", p.name);
        }
    }

    /// The order of OpenZFS 2.1, and of 2.4 for what is newer.
    #[test]
    fn each_kind_shows_its_properties_in_order() {
        let want = "type creation used available referenced compressratio mounted origin \
            quota reservation recordsize mountpoint sharenfs checksum compression atime \
            devices exec setuid readonly zoned snapdir aclmode aclinherit \
            createtxg canmount xattr copies version utf8only normalization casesensitivity \
            vscan nbmand sharesmb refquota refreservation guid primarycache secondarycache \
            usedbysnapshots usedbydataset usedbychildren usedbyrefreservation logbias objsetid dedup mlslabel \
            sync dnodesize refcompressratio written logicalused logicalreferenced volmode filesystem_limit \
            snapshot_limit filesystem_count snapshot_count snapdev acltype context fscontext defcontext \
            rootcontext relatime redundant_metadata overlay encryption keylocation keyformat pbkdf2iters \
            encryptionroot keystatus special_small_blocks snapshots_changed prefetch direct longname \
            defaultuserquota defaultgroupquota defaultprojectquota defaultuserobjquota \
            defaultgroupobjquota defaultprojectobjquota";
        assert_eq!(shown_of(DatasetKind::Filesystem).join(" "), want);
        let want = "type creation used available referenced compressratio origin reservation \
            volsize volblocksize checksum compression readonly createtxg copies refreservation \
            guid primarycache secondarycache usedbysnapshots usedbydataset usedbychildren usedbyrefreservation logbias \
            objsetid dedup mlslabel sync refcompressratio written logicalused logicalreferenced \
            volmode snapshot_limit snapshot_count snapdev context fscontext defcontext rootcontext \
            redundant_metadata encryption keylocation keyformat pbkdf2iters encryptionroot keystatus \
            special_small_blocks snapshots_changed prefetch volthreading";
        assert_eq!(shown_of(DatasetKind::Volume).join(" "), want);
        let want = "type creation used referenced compressratio devices exec setuid \
            createtxg xattr version utf8only normalization casesensitivity nbmand guid \
            primarycache secondarycache defer_destroy userrefs objsetid mlslabel refcompressratio written \
            clones logicalreferenced acltype context fscontext defcontext rootcontext encryption prefetch \
            defaultuserquota defaultgroupquota defaultprojectquota defaultuserobjquota \
            defaultgroupobjquota defaultprojectobjquota";
        assert_eq!(shown_of(DatasetKind::Snapshot).join(" "), want);
        let want = "type creation used referenced compressratio createtxg volsize guid \
            primarycache secondarycache defer_destroy userrefs objsetid mlslabel refcompressratio written \
            logicalreferenced context fscontext defcontext rootcontext encryption prefetch";
        assert_eq!(shown_of(DatasetKind::VolumeSnapshot).join(" "), want);
        assert!(["clones", "userrefs", "snapshot_count"].iter().all(|n| find(n).is_none()));
    }
}
