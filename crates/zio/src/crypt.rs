//! Encrypted datasets: which parts of a block are encrypted or authenticated, and their place in
//! its pointer (format page 12, sections 4 to 7).
//!
//! Reads and writes of an encrypted dataset take its [`DataKey`]. By level and type a block is
//!
//! * *encrypted* as a whole: data, and metadata about users;
//! * a block of *dnodes*, in which only the bonus areas are encrypted and the rest is authenticated
//!   with them;
//! * *authenticated*: in clear, with an HMAC;
//! * *indirect*: in clear, with a hash over the MACs of the blocks below, so that the MAC of the
//!   root authenticates the whole tree;
//! * an *object set*: in clear, with two MACs inside, made by the layer above
//!   ([`DataKey::objset_macs`]), that cover the trees.
//!
//! Encryption comes after compression and before the checksum, so checksums can be verified, trees
//! walked and blocks freed without the key.
//!
//! Invariants: each write gets a new pair of salt and IV, but a block to be deduplicated gets the
//! pair that its bytes give, so that equal blocks are stored as equal bytes; encryption keeps the
//! size of a block.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use codec::crypto::{BlockCipher, IV_LEN, MasterKey, SALT_LEN, TAG_LEN, sha512};
use codec::keymem::{KeyMemory, KeySlot};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODE_CORE, DNODE_SIZE, DNODE_SPILL_BLKPTR, DnodePhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::{OBJSET_USERACCOUNTING_COMPLETE, ObjsetPhys};
use rt::Rt;

use crate::request::SealMark;

/// Uses of one salt, after which a new one is taken (format page 12, section 4).
const SALT_USES_MAX: u64 = 400_000_000;
/// Number of cached ciphers of recent salts.
const CIPHERS: usize = 8;

/// The key of an encrypted dataset, in memory. Shared by all its readers and writers.
pub struct DataKey {
    guid: u64,
    version: u64,
    master: Arc<MasterKey>,
    memory: Rc<KeyMemory>,
    ciphers: RefCell<VecDeque<([u8; SALT_LEN], Arc<BlockCipher>)>>,
    salt: Cell<[u8; SALT_LEN]>,
    uses_left: Cell<u64>,
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataKey({:#x})", self.guid)
    }
}

/// Encrypts areas of intent log blocks, on any thread.
pub struct AreaSeal {
    cipher: Arc<BlockCipher>,
    iv: [u8; IV_LEN],
}

impl AreaSeal {
    /// CPU time that `bytes` take.
    pub fn cost(&self, bytes: u64) -> base::Nanos {
        aead_cost(self.cipher.is_gcm(), bytes)
    }

    /// Encrypts `areas` of a block, authenticates `aad` with them, and returns the MAC.
    pub fn seal(&self, aad: &[u8], block: &mut [u8], areas: &[std::ops::Range<usize>]) -> Result<[u8; TAG_LEN]> {
        in_areas(block, areas, |text| self.cipher.seal(&self.iv, aad, text))
    }
}

/// CPU time to encrypt `bytes` in one of the two modes.
fn aead_cost(is_gcm: bool, bytes: u64) -> base::Nanos {
    let rate = if is_gcm { rt::cost::GCM } else { rt::cost::CCM };
    rate.cost(bytes)
}

/// How a block is protected, by level and type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Encrypted,
    Dnodes,
    Authenticated,
    Indirect,
    Objset,
}

fn class(level: u8, otype: ObjectType) -> Class {
    match (level, otype) {
        (1.., _) => Class::Indirect,
        (0, ObjectType::OBJSET) => Class::Objset,
        (0, ObjectType::DNODE) => Class::Dnodes,
        (0, t) if t.is_encrypted_ok() => Class::Encrypted,
        _ => Class::Authenticated,
    }
}

impl DataKey {
    /// The key of the dataset whose key object has this guid and version; its ciphers are kept in
    /// `memory`.
    pub fn new(master: MasterKey, memory: Rc<KeyMemory>, guid: u64, version: u64) -> Rc<DataKey> {
        Rc::new(DataKey {
            guid,
            version,
            master: Arc::new(master),
            memory,
            ciphers: RefCell::default(),
            salt: Cell::new([0; SALT_LEN]),
            uses_left: Cell::new(0),
        })
    }
    /// The guid of the key.
    pub fn guid(&self) -> u64 {
        self.guid
    }
    /// The master key.
    pub fn master(&self) -> &MasterKey {
        &self.master
    }
    /// Whether blocks may be written with it: keys of version 0 are read only.
    pub fn is_writable(&self) -> bool {
        self.version == 1
    }

    fn cipher(&self, salt: [u8; SALT_LEN]) -> Arc<BlockCipher> {
        let mut known = self.ciphers.borrow_mut();
        if let Some((_, cipher)) = known.iter().find(|(s, _)| *s == salt) {
            return cipher.clone();
        }
        let cipher = Arc::new(self.master.block_cipher(&salt, self.memory.slot()));
        known.truncate(CIPHERS - 1);
        known.push_front((salt, cipher.clone()));
        cipher
    }

    /// A salt and an IV for an intent log block, whose pointer is on disk before the block.
    pub fn fresh_salt_iv(&self, rt: &Rt) -> ([u8; SALT_LEN], [u8; IV_LEN]) {
        self.use_salt(rt);
        (self.salt.get(), fresh_iv(rt))
    }

    /// The encryption of an intent log block with this salt and IV.
    pub fn area_seal(&self, (salt, iv): ([u8; SALT_LEN], [u8; IV_LEN])) -> AreaSeal {
        AreaSeal { cipher: self.cipher(salt), iv }
    }

    /// The opposite of [`AreaSeal::seal`]; an error of kind `Checksum` if the MAC is wrong.
    pub fn open_areas(
        &self,
        (salt, iv): ([u8; SALT_LEN], [u8; IV_LEN]),
        aad: &[u8],
        block: &mut [u8],
        areas: &[std::ops::Range<usize>],
        tag: &[u8; TAG_LEN],
    ) -> Result<()> {
        let cipher = self.cipher(salt);
        in_areas(block, areas, |text| cipher.open(&iv, aad, text, tag))
    }

    /// Counts a use of the salt, and makes a new one after [`SALT_USES_MAX`].
    fn use_salt(&self, rt: &Rt) {
        if self.uses_left.get() == 0 {
            self.uses_left.set(SALT_USES_MAX);
            let mut salt = [0; SALT_LEN];
            rt.entropy(&mut salt);
            self.salt.set(salt);
        }
        self.uses_left.set(self.uses_left.get() - 1);
    }

    /// The protection of a block to be written; none for object sets. `dedup`: it is to be
    /// deduplicated.
    pub(crate) fn seal(&self, level: u8, otype: ObjectType, dedup: bool, rt: &Rt) -> Option<Sealing> {
        let how = match class(level, otype) {
            Class::Objset => return None,
            Class::Indirect => How::Indirect { version: self.version },
            Class::Authenticated => How::Hmac(self.master.clone()),
            Class::Encrypted if dedup => {
                return Some(Sealing::ByContent { master: self.master.clone(), slot: self.memory.slot() });
            }
            which @ (Class::Encrypted | Class::Dnodes) => {
                self.use_salt(rt);
                let iv = fresh_iv(rt);
                let salt = self.salt.get();
                let cipher = self.cipher(salt);
                How::Aead { cipher, salt, iv, dnodes: which == Class::Dnodes, version: self.version }
            }
        };
        Some(Sealing::Ready(Seal { how, tag: [0; TAG_LEN] }))
    }

    /// The protection of the block of a validated pointer; none if it has none to check.
    pub(crate) fn opening(&self, bp: &Blkptr) -> Result<Option<Seal>> {
        if !bp.encrypted() {
            return Ok(None);
        }
        let which = class(bp.level(), bp.otype());
        if !bp.is_little_endian() && which != Class::Objset {
            return Err(Error::unsupported(format!("block {bp} was encrypted on a big-endian machine")));
        }
        let how = match which {
            Class::Objset => return Ok(None),
            Class::Indirect => How::Indirect { version: self.version },
            Class::Authenticated => How::Hmac(self.master.clone()),
            Class::Encrypted | Class::Dnodes => {
                let (salt, iv) = bp.salt_iv();
                How::Aead { cipher: self.cipher(salt), salt, iv, dnodes: which == Class::Dnodes, version: self.version }
            }
        };
        Ok(Some(Seal { how, tag: bp.mac() }))
    }

    /// Opens the stored bytes of a block in place, whose pointer was validated and whose checksum
    /// is right: for readers without the engine. An error of kind `Checksum` if the MAC is wrong.
    pub fn open_stored(&self, bp: &Blkptr, stored: &mut [u8]) -> Result<()> {
        self.opening(bp)?.map_or(Ok(()), |seal| seal.open(stored))
    }

    /// Portable and local MAC of an object set.
    pub fn objset_macs(&self, os: &ObjsetPhys) -> ([u8; 32], [u8; 32]) {
        let half = |full: [u8; 64]| -> [u8; 32] { *full.first_chunk().expect("64 bytes have 32") };
        let mut meta = Vec::new();
        push_dnode(&mut meta, &os.meta_dnode, self.version);
        let portable = self.master.hmac(&[&(os.os_type as u64).to_be_bytes(), &0u64.to_le_bytes(), &meta]);
        let mut accounting = Vec::new();
        for dn in [&os.userused, &os.groupused, &os.projectused].into_iter().flatten() {
            push_dnode(&mut accounting, dn, self.version);
        }
        let local = if os.flags & OBJSET_USERACCOUNTING_COMPLETE == 0 || accounting.is_empty() {
            [0; 32]
        } else {
            half(self.master.hmac(&[&os.flags.to_le_bytes(), &accounting]))
        };
        (half(portable), local)
    }

    /// Checks the MACs of an object set. As in OpenZFS, a wrong portable MAC is an error only if
    /// the object set has a local MAC too: a receive in progress leaves both unset.
    pub fn check_objset(&self, os: &ObjsetPhys) -> Result<()> {
        let (portable, local) = self.objset_macs(os);
        if local != [0; 32] && (portable != os.portable_mac || local != os.local_mac) {
            return Err(Error::new(ErrorKind::Checksum, "wrong authentication code: it was changed without its key"));
        }
        Ok(())
    }
}

fn fresh_iv(rt: &Rt) -> [u8; IV_LEN] {
    let mut iv = [0; IV_LEN];
    rt.entropy(&mut iv);
    iv
}

/// Appends core and pointers of a dnode, as the MACs of object sets cover them.
fn push_dnode(out: &mut Vec<u8>, dn: &DnodePhys, version: u64) {
    let mut bytes = vec![0; dn.size()];
    dn.write_to(&mut bytes);
    push_core(out, &bytes);
    for bp in dn.bps().iter().chain(&dn.spill) {
        push_bp(out, bp, version);
    }
}

/// Appends the first 64 bytes of a dnode without the fields that change without the key: used space
/// and most flags.
fn push_core(out: &mut Vec<u8>, dnode: &[u8]) {
    let at = out.len();
    out.extend_from_slice(&dnode[..DNODE_CORE]);
    out[at + 7] &= DNODE_SPILL_BLKPTR;
    out[at + 24..at + 32].fill(0);
}

/// Bytes of the record of a pointer in hashes and MACs; version 0 omits the last 8.
const BP_RECORD: usize = 32;

/// Appends the record of a pointer in hashes and MACs: properties independent of the place and txg
/// of the block, and its MAC.
fn push_bp(out: &mut Vec<u8>, bp: &Blkptr, version: u64) {
    const DEDUP: u64 = 1 << 62;
    const CHECKSUM: u64 = 0xff << 40;
    const PSIZE: u64 = 0xffff << 16;
    const COMPRESS: u64 = 0x7f << 32;
    const LITTLE_ENDIAN: u64 = 1 << 63;
    let mut prop = bp.prop_word() & !(DEDUP | CHECKSUM);
    if version == 0 {
        prop &= !PSIZE;
    } else if bp.is_hole() {
        prop = 0;
    } else if bp.level() > 0 {
        prop &= !(LITTLE_ENDIAN | COMPRESS | PSIZE);
    }
    out.extend_from_slice(&prop.to_le_bytes());
    out.extend_from_slice(&bp.mac());
    if version != 0 {
        out.extend_from_slice(&[0; 8]);
    }
}

/// The encrypted areas of a block of dnodes, and the AAD of the rest.
fn dnode_areas(block: &[u8], version: u64) -> Result<(Vec<u8>, Vec<std::ops::Range<usize>>)> {
    let mut aad = Vec::with_capacity(block.len() / 2);
    let mut areas = Vec::new();
    let mut at = 0;
    while at + DNODE_SIZE <= block.len() {
        let dn = &block[at..];
        let size = DNODE_SIZE * (1 + usize::from(dn[12]));
        let pointers = usize::from(dn[3]);
        let spill = dn[7] & DNODE_SPILL_BLKPTR != 0;
        let from = DNODE_CORE + BLKPTR_SIZE * pointers;
        let to = size - if spill { BLKPTR_SIZE } else { 0 };
        if size > dn.len() || from > to {
            return Err(Error::corrupt("a dnode is larger than its place"));
        }
        push_core(&mut aad, dn);
        for bp in Blkptr::iter_block(&dn[DNODE_CORE..from]) {
            push_bp(&mut aad, &bp, version);
        }
        if spill {
            for bp in Blkptr::iter_block(&dn[to..size]) {
                push_bp(&mut aad, &bp, version);
            }
        }
        let (in_use, has_bonus) = (dn[0] != 0, dn[10] != 0 || dn[11] != 0);
        if in_use && has_bonus && ObjectType(dn[4]).is_encrypted_ok() {
            areas.push(at + from..at + to);
        } else {
            aad.extend_from_slice(&dn[from..to]);
        }
        at += size;
    }
    Ok((aad, areas))
}

/// How a block to be written is going to be protected: the input of a CPU job.
pub(crate) enum Sealing {
    /// All but the MAC is settled.
    Ready(Seal),
    /// It is encrypted with the salt and IV that its bytes give.
    ByContent {
        master: Arc<MasterKey>,
        /// For the cipher.
        slot: KeySlot,
    },
}

/// The protection of one block.
#[derive(Clone)]
pub(crate) struct Seal {
    how: How,
    tag: [u8; TAG_LEN],
}

#[derive(Clone)]
enum How {
    Aead {
        cipher: Arc<BlockCipher>,
        salt: [u8; SALT_LEN],
        iv: [u8; IV_LEN],
        dnodes: bool,
        version: u64,
    },
    Hmac(Arc<MasterKey>),
    Indirect {
        version: u64,
    },
    /// Somebody else has protected it: salt and IV, if it is encrypted.
    Given(Option<([u8; SALT_LEN], [u8; IV_LEN])>),
}

fn indirect_hash(block: &[u8], version: u64) -> [u8; TAG_LEN] {
    let mut records = Vec::with_capacity(block.len() / 4);
    let len = if version == 0 { BP_RECORD - 8 } else { BP_RECORD };
    for bytes in block.as_chunks::<BLKPTR_SIZE>().0 {
        // Indirect blocks are often mostly empty, and the record of an empty pointer is zeros.
        if *bytes == [0; BLKPTR_SIZE] {
            records.resize(records.len() + len, 0);
        } else {
            push_bp(&mut records, &Blkptr::from_bytes(bytes), version);
        }
    }
    *sha512(&records).first_chunk().expect("64 bytes have 16")
}

fn truncated_mac(full: [u8; 64]) -> [u8; TAG_LEN] {
    *full.first_chunk().expect("64 bytes have 16")
}

/// Runs `work` on the joined areas and copies the result back.
fn in_areas<T>(
    block: &mut [u8],
    areas: &[std::ops::Range<usize>],
    work: impl FnOnce(&mut [u8]) -> Result<T>,
) -> Result<T> {
    let mut text: Vec<u8> = Vec::with_capacity(areas.iter().map(std::ops::Range::len).sum());
    areas.iter().for_each(|a| text.extend_from_slice(&block[a.clone()]));
    let out = work(&mut text)?;
    let mut rest = &text[..];
    for a in areas {
        let (now, later) = rest.split_at(a.len());
        block[a.clone()].copy_from_slice(now);
        rest = later;
    }
    Ok(out)
}

impl Sealing {
    /// Whether the stored bytes differ from the plain ones.
    pub(crate) fn changes_bytes(&self) -> bool {
        match self {
            Sealing::Ready(seal) => seal.changes_bytes(),
            Sealing::ByContent { .. } => true,
        }
    }

    /// CPU time to protect `bytes`.
    pub(crate) fn cost(&self, bytes: u64) -> base::Nanos {
        match self {
            Sealing::Ready(seal) => seal.cost(bytes),
            Sealing::ByContent { master, .. } => {
                rt::cost::SHA512.cost(bytes) + aead_cost(master.suite().is_gcm(), bytes)
            }
        }
    }

    /// Encrypts `stored`, psize bytes; the protection with the MAC.
    pub(crate) fn close(self, stored: &mut [u8]) -> Result<Seal> {
        let mut seal = match self {
            Sealing::Ready(seal) => seal,
            Sealing::ByContent { master, slot } => {
                let (salt, iv) = master.salt_iv_of(stored);
                let cipher = Arc::new(master.block_cipher(&salt, slot));
                let how = How::Aead { cipher, salt, iv, dnodes: false, version: 1 };
                Seal { how, tag: [0; TAG_LEN] }
            }
        };
        seal.tag = seal.encrypt(stored)?;
        Ok(seal)
    }

    /// As [`Sealing::close`] for blocks in clear. `plain`: before compression.
    pub(crate) fn authenticate(self, stored: &[u8], plain: &[u8]) -> Seal {
        let Sealing::Ready(mut seal) = self else { panic!("encryption changes bytes") };
        seal.tag = match &seal.how {
            How::Hmac(master) => truncated_mac(master.hmac(&[stored])),
            How::Indirect { version } => indirect_hash(plain, *version),
            How::Given(_) => seal.tag,
            How::Aead { .. } => panic!("encryption changes bytes"),
        };
        seal
    }
}

impl Seal {
    /// The protection that somebody else has given a block.
    pub(crate) fn given(mark: SealMark) -> Seal {
        Seal { how: How::Given(mark.salt_iv), tag: mark.mac }
    }

    /// The protection of an indirect block, which needs no key.
    pub(crate) fn keyless_indirect() -> Sealing {
        Sealing::Ready(Seal { how: How::Indirect { version: 1 }, tag: [0; TAG_LEN] })
    }

    /// Whether the stored bytes differ from the plain ones.
    pub(crate) fn changes_bytes(&self) -> bool {
        matches!(self.how, How::Aead { .. })
    }

    /// CPU time to protect or open `bytes`.
    pub(crate) fn cost(&self, bytes: u64) -> base::Nanos {
        match &self.how {
            How::Aead { cipher, .. } => aead_cost(cipher.is_gcm(), bytes),
            How::Hmac(_) => rt::cost::SHA512.cost(bytes),
            How::Indirect { .. } => rt::cost::GCM.cost(bytes),
            How::Given(_) => base::Nanos(0),
        }
    }

    /// Encrypts `stored`, psize bytes; returns its MAC.
    fn encrypt(&self, stored: &mut [u8]) -> Result<[u8; TAG_LEN]> {
        match &self.how {
            How::Aead { cipher, iv, dnodes: false, .. } => cipher.seal(iv, &[], stored),
            How::Aead { cipher, iv, dnodes: true, version, .. } => {
                let (aad, areas) = dnode_areas(stored, *version)?;
                in_areas(stored, &areas, |text| cipher.seal(iv, &aad, text))
            }
            _ => panic!("only encryption with a salt changes bytes"),
        }
    }

    /// Makes of `bytes`, the block compressed and padded, what is stored; false if its MAC is not
    /// the one that this has.
    pub(crate) fn closes(&self, bytes: &mut [u8]) -> Result<bool> {
        if !self.changes_bytes() {
            return Ok(self.check(Some(bytes), None).is_ok());
        }
        Ok(self.encrypt(bytes)? == self.tag)
    }

    /// Opens `stored`, psize bytes with the right checksum. An error of kind `Checksum` if the MAC
    /// is wrong. Indirect blocks are checked after decompression ([`Seal::check`]).
    pub(crate) fn open(&self, stored: &mut [u8]) -> Result<()> {
        match &self.how {
            How::Aead { cipher, iv, dnodes: false, .. } => cipher.open(iv, &[], stored, &self.tag),
            How::Aead { cipher, iv, dnodes: true, version, .. } => {
                let (aad, areas) = dnode_areas(stored, *version)?;
                in_areas(stored, &areas, |text| cipher.open(iv, &aad, text, &self.tag))
            }
            How::Hmac(_) | How::Indirect { .. } | How::Given(_) => Ok(()),
        }
    }

    /// Checks the MAC of a block in clear: over `stored` bytes, or `plain` after decompression.
    pub(crate) fn check(&self, stored: Option<&[u8]>, plain: Option<&[u8]>) -> Result<()> {
        let good = match (&self.how, stored, plain) {
            (How::Hmac(master), Some(stored), _) => truncated_mac(master.hmac(&[stored])) == self.tag,
            (How::Indirect { version }, _, Some(plain)) => indirect_hash(plain, *version) == self.tag,
            _ => true,
        };
        if good { Ok(()) } else { Err(Error::new(ErrorKind::Checksum, "wrong authentication code")) }
    }

    /// Writes salt, IV and MAC into the pointer of the block, whose checksum words are set already.
    pub(crate) fn mark(&self, bp: &mut Blkptr) {
        match &self.how {
            How::Aead { salt, iv, .. } | How::Given(Some((salt, iv))) => bp.set_salt_iv(*salt, *iv),
            _ => {}
        }
        bp.set_mac(self.tag);
    }
}

/// The two checksum words of a pointer with a MAC: weak checksums are folded, strong ones truncated
/// (format page 12, section 5).
pub(crate) fn halved(sum: [u64; 4], algo: codec::ChecksumAlgo) -> [u64; 2] {
    use codec::ChecksumAlgo::{Edonr, Fletcher2, Fletcher4};
    if matches!(algo, Fletcher2 | Fletcher4 | Edonr) { [sum[0] ^ sum[2], sum[1] ^ sum[3]] } else { [sum[0], sum[1]] }
}

/// Maximum number of copies of a block of an encrypted dataset: the third DVA holds salt and IV.
pub const ENCRYPTED_COPIES_MAX: u8 = 2;
