//! Device geometry and labels (format page 01 sections 1 and 2).
//!
//! A leaf device carries four copies of a 256 KiB *label*, two at its front and two at its end, so
//! that no single accident takes all. Each has a boot environment block, the *config* (an nvlist
//! with the device's pool and place in the vdev tree, see [`LabelConfig`]) and a ring of uberblocks
//! (see [`crate::uberblock`]). Between the labels lies the space that block pointers address.
//!
//! Each region ends in an embedded SHA-256 that is tied to its absolute offset on the device: a
//! label copied to another place is not valid there. The functions here take and return whole
//! regions and that offset; the caller does the I/O. Offsets are relative to the leaf (the
//! partition or file), never to the disk around it.

mod config;

use base::{Error, Result, ResultExt, align_down};
use codec::{EmbeddedHash, EmbeddedVerifier};
pub use config::{
    ConfigHead, DeviceLabel, LabelConfig, MosConfig, PoolState, SplitConfig, VERSION_FEATURES, VERSION_MAX_LEGACY,
    version_supported,
};

use crate::bytes::{be64, put_be64};
use crate::nvlist::NvList;

/// Copies of the label on a device.
pub const LABELS: usize = 4;
/// Size of a label, and the unit that device sizes are rounded down to, in bytes.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Device offset of the allocatable space, "DVA offset 0", in bytes.
pub const DATA_START: u64 = 0x40_0000;
/// Bytes at the end of a device that hold the last two labels.
pub const END_RESERVED: u64 = 2 * LABEL_SIZE;
/// Smallest device that a pool takes, in bytes (`SPA_MINDEVSIZE`).
pub const MIN_DEVICE_SIZE: u64 = 64 << 20;
/// Offset of the boot environment block in a label.
pub const BOOT_ENV_OFFSET: u64 = 8 << 10;
/// Size of the boot environment block, in bytes.
pub const BOOT_ENV_SIZE: usize = 8 << 10;
/// Offset of the config region in a label.
pub const CONFIG_OFFSET: u64 = 16 << 10;
/// Size of the config region, in bytes.
pub const CONFIG_SIZE: usize = 112 << 10;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Size of the uberblock ring, in bytes.
pub const RING_SIZE: usize = 128 << 10;
/// Bytes of a region that its embedded checksum takes, at its end.
pub const ECK_SIZE: usize = 40;

/// `size` bytes of a device rounded down to the 256 KiB that labels are aligned to.
pub const fn aligned_size(size: u64) -> u64 {
    align_down(size, LABEL_SIZE)
}

/// Offsets of the four labels on a device of `size` bytes, which must be [`MIN_DEVICE_SIZE`] or
/// more for a pool.
pub const fn label_offsets(size: u64) -> [u64; LABELS] {
    let end = aligned_size(size);
    [0, LABEL_SIZE, end.saturating_sub(2 * LABEL_SIZE), end.saturating_sub(LABEL_SIZE)]
}

/// Allocatable bytes of a leaf of `size` bytes: the space between the front 4 MiB and the last two
/// labels, 0 on a device that is too small.
pub const fn usable_size(size: u64) -> u64 {
    aligned_size(size).saturating_sub(DATA_START + END_RESERVED)
}

/// The smallest device, in bytes, that has `usable` allocatable bytes.
pub const fn device_size_for(usable: u64) -> u64 {
    usable.saturating_add(LABEL_SIZE - 1) / LABEL_SIZE * LABEL_SIZE + DATA_START + END_RESERVED
}

/// The device offset of the config region of the label at `label_offset`.
pub const fn config_offset(label_offset: u64) -> u64 {
    label_offset + CONFIG_OFFSET
}

/// The verifier that ties a region to its place.
pub(crate) fn verifier(device_offset: u64) -> [u64; 4] {
    [device_offset, 0, 0, 0]
}

fn check_len(region: &[u8], want: usize, what: &str) -> Result<()> {
    if region.len() == want {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} of {} bytes was given instead of {want}", region.len())))
}

/// The config in a label's config region ([`CONFIG_SIZE`] bytes) that was read at `device_offset`
/// (of the region, see [`config_offset`]). Errors: `Checksum` for a damaged or blank region,
/// `Corrupt` for a list that cannot be unpacked.
pub fn parse_config(region: &[u8], device_offset: u64) -> Result<NvList> {
    parse_config_with(region, device_offset, &mut EmbeddedVerifier::default())
}

/// As [`parse_config`], for several labels of a device: equal content is hashed once.
pub fn parse_config_with<'a>(region: &'a [u8], device_offset: u64, sums: &mut EmbeddedVerifier<'a>) -> Result<NvList> {
    check_len(region, CONFIG_SIZE, "label config")?;
    sums.verify(region, verifier(device_offset)).at(|| format!("label config at {device_offset:#x}"))?;
    parse_config_unchecked(region)
}

/// As [`parse_config`] without the checksum: for the scan for importable pools, which also lists
/// pools whose labels are damaged.
pub fn parse_config_unchecked(region: &[u8]) -> Result<NvList> {
    check_len(region, CONFIG_SIZE, "label config")?;
    NvList::decode(&region[..CONFIG_SIZE - ECK_SIZE]).at(|| "label config")
}

/// A config region ([`CONFIG_SIZE`] bytes), for any place.
pub struct ConfigRegion {
    bytes: Vec<u8>,
    hash: EmbeddedHash,
}

impl ConfigRegion {
    /// With `config` in it. Error: `TooBig` when the list does not fit.
    pub fn new(config: &NvList) -> Result<ConfigRegion> {
        let mut bytes = config.encode_xdr();
        if bytes.len() > CONFIG_SIZE - ECK_SIZE {
            return Err(Error::new(
                base::ErrorKind::TooBig,
                format!("the label config needs {} bytes, a label has {}", bytes.len(), CONFIG_SIZE - ECK_SIZE),
            ));
        }
        bytes.resize(CONFIG_SIZE, 0);
        let hash = EmbeddedHash::new(&bytes);
        Ok(ConfigRegion { bytes, hash })
    }

    /// Sealed for `device_offset` (of the region).
    pub fn at(&mut self, device_offset: u64) -> &[u8] {
        self.hash.seal(&mut self.bytes, verifier(device_offset));
        &self.bytes
    }
}

/// A config region ([`CONFIG_SIZE`] bytes) with `config` for `device_offset` (of the region).
/// Error: `TooBig` when the list does not fit.
pub fn seal_config(config: &NvList, device_offset: u64) -> Result<Vec<u8>> {
    let mut region = ConfigRegion::new(config)?;
    region.at(device_offset);
    Ok(region.bytes)
}

/// The content of a label's boot environment block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BootEnv {
    /// Version 0: text up to the first NUL, empty on a fresh label.
    Raw(Vec<u8>),
    /// Version 1: a list.
    List(NvList),
}

/// The boot environment in a block of [`BOOT_ENV_SIZE`] bytes that was read at `device_offset` (of
/// the block).
pub fn parse_boot_env(block: &[u8], device_offset: u64) -> Result<BootEnv> {
    check_len(block, BOOT_ENV_SIZE, "boot environment")?;
    codec::embedded_sha256_verify(block, verifier(device_offset))
        .at(|| format!("boot environment at {device_offset:#x}"))?;
    let payload = &block[8..BOOT_ENV_SIZE - ECK_SIZE];
    match be64(block, 0) {
        0 => Ok(BootEnv::Raw(payload.iter().copied().take_while(|&b| b != 0).collect())),
        // Some boot loaders write the version little-endian.
        1 | 0x0100_0000_0000_0000 => NvList::decode(payload).map(BootEnv::List).at(|| "boot environment"),
        v => Err(Error::unsupported(format!("boot environment has the unknown version {v}"))),
    }
}

/// A boot environment block ([`BOOT_ENV_SIZE`] bytes) for `device_offset` (of the block). Error:
/// `TooBig` when it does not fit.
pub fn seal_boot_env(env: &BootEnv, device_offset: u64) -> Result<Vec<u8>> {
    let mut block = vec![0; 8];
    match env {
        BootEnv::Raw(text) => block.extend_from_slice(text),
        BootEnv::List(list) => {
            put_be64(&mut block, 0, 1);
            block.extend_from_slice(&list.encode_xdr());
        }
    }
    if block.len() > BOOT_ENV_SIZE - ECK_SIZE {
        return Err(Error::new(base::ErrorKind::TooBig, "the boot environment does not fit in its block"));
    }
    block.resize(BOOT_ENV_SIZE, 0);
    codec::embedded_sha256_seal(&mut block, verifier(device_offset));
    Ok(block)
}

/// A whole fresh label ([`LABEL_SIZE`] bytes) for `label_offset`: `config`, an empty boot
/// environment, a zeroed uberblock ring. The first 8 KiB are zero; to keep the old ones, write from
/// [`BOOT_ENV_OFFSET`] on.
pub fn fresh_label(config: &NvList, label_offset: u64) -> Result<Vec<u8>> {
    let mut label = vec![0; BOOT_ENV_OFFSET as usize];
    label.extend(seal_boot_env(&BootEnv::Raw(Vec::new()), label_offset + BOOT_ENV_OFFSET)?);
    label.extend(seal_config(config, config_offset(label_offset))?);
    label.resize(LABEL_SIZE as usize, 0);
    Ok(label)
}
