//! Blocks with parity: reading with as few columns as it takes, writing all of them.
//!
//! A read takes the data columns and nothing else while they are all there. Columns of children
//! that are away, or that missed the block's txg, or that failed, are computed from parity. Whether
//! the result is the block its checksum tells; where it does not, [`crate::arbitrate`] looks at
//! everything.

use base::{Error, ErrorKind, Result};
use bdev::{Buf, Bytes};
use codec::raidz;
use rt::join::join_all;

use crate::done::WriteDone;
use crate::geometry::{Column, Stripe};
use crate::leaf::WriteAs;
use crate::node::{Io, Promise, VdevKind};

/// The data columns of a stripe in `block`, which begins at byte `base` of the whole.
pub(crate) fn split<'a>(stripe: &Stripe, block: &'a mut [u8], base: u64) -> Vec<&'a mut [u8]> {
    let mut rest = block;
    let mut at = base;
    stripe
        .data()
        .iter()
        .map(|c| {
            if c.len == 0 {
                return <&mut [u8]>::default();
            }
            let (_, tail) = std::mem::take(&mut rest).split_at_mut((c.from - at) as usize);
            let (own, tail) = tail.split_at_mut(c.len as usize);
            (rest, at) = (tail, c.from + c.len);
            own
        })
        .collect()
}

/// The parity columns of a stripe over its data, each as long as the longest data column.
pub(crate) fn parity_of(stripe: &Stripe, data: &[&[u8]]) -> Vec<Bytes> {
    let len = stripe.data_len_max() as usize;
    let mut columns: Vec<Buf> = (0..stripe.parity).map(|_| Buf::for_overwrite(len)).collect();
    let mut parity: Vec<&mut [u8]> = columns.iter_mut().map(|b| &mut b[..]).collect();
    if !parity.is_empty() {
        raidz::generate(data, &mut parity);
    }
    columns.into_iter().map(Buf::freeze).collect()
}

/// Reads a block. The flag tells that a device failed to read its part.
pub(crate) async fn read(top: &VdevKind, stripes: &[Stripe], psize: u64, io: Io<'_>) -> Result<(Bytes, bool)> {
    // One column has it all: its bytes are the block.
    if let [stripe] = stripes
        && let [only] = stripe.data()
        && top.column_node(only).promise(io, only.offset) == Promise::Good
        && let Ok((data, failed)) = top.column_node(only).read_at(io, only.offset, only.len).await
    {
        return Ok((data, failed));
    }
    let mut out = Buf::for_overwrite(psize as usize);
    let mut failed = false;
    // Every column of every stripe is asked for before the first is waited for.
    let mut reads = Vec::new();
    for stripe in stripes {
        for c in stripe.data() {
            let node = top.column_node(c);
            let wanted = c.len > 0 && node.promise(io, c.offset) == Promise::Good;
            reads.push(async move {
                match wanted {
                    true => Some(node.read_at(io, c.offset, c.len).await),
                    false => None,
                }
            });
        }
    }
    let mut results = join_all(reads).await.into_iter();
    for stripe in stripes {
        let mut lost = Vec::new();
        for (i, c) in stripe.data().iter().enumerate() {
            match results.next().flatten() {
                Some(Ok((data, again))) => {
                    failed |= again;
                    out[c.from as usize..][..data.len()].copy_from_slice(&data);
                }
                Some(Err(e)) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Some(Err(_)) => {
                    failed = true;
                    lost.push(i);
                }
                None if c.len > 0 => lost.push(i),
                None => {}
            }
        }
        if !lost.is_empty() {
            rebuild(top, stripe, &mut out, lost, io, &mut failed).await?;
        }
    }
    Ok((out.freeze(), failed))
}

/// Computes the data columns `lost` of a stripe from parity; where that does not suffice, children
/// are read that may miss the block.
async fn rebuild(
    top: &VdevKind,
    stripe: &Stripe,
    out: &mut Buf,
    mut lost: Vec<usize>,
    io: Io<'_>,
    failed: &mut bool,
) -> Result<()> {
    let len = stripe.data_len_max();
    let mut parity: Vec<Option<Bytes>> = vec![None; stripe.parity];
    let mut doubtful = Vec::new();
    let mut have = 0;
    for (y, c) in stripe.columns[..stripe.parity].iter().enumerate() {
        if have == lost.len() {
            break;
        }
        let node = top.column_node(c);
        match node.promise(io, c.offset) {
            Promise::Good => match node.read_at(io, c.offset, len).await {
                Ok((data, again)) => {
                    *failed |= again;
                    parity[y] = Some(data);
                    have += 1;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Err(_) => *failed = true,
            },
            Promise::Doubtful => doubtful.push(y),
            Promise::None => {}
        }
    }
    // The last resort: they may have it all the same, and the checksum will tell.
    let mut i = 0;
    while have < lost.len() && i < lost.len() {
        let c = stripe.data()[lost[i]];
        let node = top.column_node(&c);
        if node.promise(io, c.offset) == Promise::Doubtful
            && let Ok((data, _)) = node.read_at(io, c.offset, c.len).await
        {
            out[c.from as usize..][..data.len()].copy_from_slice(&data);
            lost.remove(i);
        } else {
            i += 1;
        }
    }
    for y in doubtful {
        let c: Column = stripe.columns[y];
        if have < lost.len()
            && let Ok((data, _)) = top.column_node(&c).read_at(io, c.offset, len).await
        {
            parity[y] = Some(data);
            have += 1;
        }
    }
    if have < lost.len() {
        let why = format!("{} of its columns cannot be read and {have} parity columns can", lost.len());
        return Err(Error::new(ErrorKind::Io, why));
    }
    let known: Vec<Option<&[u8]>> = parity.iter().map(|p| p.as_deref()).collect();
    raidz::reconstruct(&mut split(stripe, out, 0), &lost, &known);
    Ok(())
}

/// Writes a block with its parity. Over when every column is; good if of each stripe no more
/// columns failed than there is parity.
pub(crate) fn write(top: &VdevKind, stripes: &[Stripe], data: &Bytes, how: WriteAs) -> WriteDone {
    let mut all = Vec::with_capacity(stripes.len());
    for stripe in stripes {
        let part = |c: &Column| data.slice(c.from as usize..(c.from + c.len) as usize);
        let mut bytes: Vec<Bytes> = stripe.data().iter().map(part).collect();
        let mut columns = {
            let slices: Vec<&[u8]> = bytes.iter().map(|b| &b[..]).collect();
            parity_of(stripe, &slices)
        };
        columns.append(&mut bytes);
        let mut parts = Vec::with_capacity(columns.len());
        let mut failed = 0;
        for (c, bytes) in stripe.columns.iter().zip(&columns) {
            let pad = c.size as usize - bytes.len();
            match top.column_node(c).write_at(top, c.offset, bytes, pad, how) {
                Some(done) => parts.push(done),
                None => failed += 1,
            }
        }
        if failed > stripe.parity {
            let why = format!("{failed} of the {} devices that a block goes to are not there", stripe.columns.len());
            all.push(WriteDone::ready(Err(Error::new(ErrorKind::Io, why))));
        } else {
            all.push(WriteDone::quorum(parts, stripe.parity - failed));
        }
    }
    WriteDone::join(all)
}
