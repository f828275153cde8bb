//! `zfs receive`: a stream from the client becomes snapshots.
//!
//! Data come while other commands work: the `admin` lock is held at the beginning and at the end
//! only. A target that is mounted is suspended for the moment in which it is replaced.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use bdev::{Buf, Bytes};
use dsl::Dataset;
use dsl::crypto::NewCrypt;
use dsl::props::{self, DatasetKind, PropKind, PropValue};
use dsl::receive::{Head, Input, ReceiveOpts, Received, Receiving, Source};
use ondisk::objset::ObjsetType;
use ondisk::stream::record::Begin;
use ondisk::stream::{begin_flags, features};
use rt::{LocalBoxFuture, Rt};

use crate::engine::PoolEngine;
use crate::fs::keys::take_crypt;
use crate::fs::mounts::{self, Force, MountPoint};
use crate::fs::ops::{Maker, NewHow, parse_props};
use crate::fs::temp_props::TempProps;
use crate::request::inlet::Inlet;
use crate::request::{Identity, Naming, ReceiveView, ReceiveWhat, ReceivedView, denied, moves_mounts, to_set};

/// Bytes that are copied between two looks at the turn's budget. What is copied to is often touched
/// for the first time, which takes several times as long as the copy.
const COPY_PIECE: usize = 16 << 10;

/// The bytes of an inlet, in the lengths that are asked for. A piece that is asked for as a whole
/// is given as it is.
struct Fed {
    rt: Rt,
    inlet: Inlet,
    piece: Bytes,
    /// Bytes of the piece that were taken.
    at: usize,
}

impl Fed {
    /// The stream from its beginning.
    fn new(rt: Rt, inlet: Inlet) -> Fed {
        Fed { rt, inlet, piece: Bytes::empty(), at: 0 }
    }

    /// Has bytes in the piece; false at the end of the stream.
    async fn fill(&mut self) -> bool {
        if self.at == self.piece.len() {
            (self.piece, self.at) = (self.inlet.next().await.unwrap_or_default(), 0);
        }
        !self.piece.is_empty()
    }
}

impl Source for Fed {
    fn take(&mut self, len: usize) -> LocalBoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            if !self.fill().await {
                return Ok(Bytes::empty());
            }
            if self.at == 0 && self.piece.len() == len {
                return Ok(std::mem::take(&mut self.piece));
            }
            let mut out = Buf::for_overwrite(len);
            let mut have = 0;
            while have < len && self.fill().await {
                let n = (len - have).min(self.piece.len() - self.at).min(COPY_PIECE);
                self.rt.spend(rt::cost::COPY.cost(n as u64)).await;
                out[have..have + n].copy_from_slice(&self.piece[self.at..self.at + n]);
                (have, self.at) = (have + n, self.at + n);
            }
            out.truncate(have);
            Ok(out.freeze())
        })
    }
}

/// What is known about a part of a stream beside its BEGIN.
#[derive(Default)]
pub(super) struct Part {
    /// The file system that was sent: of a package the top one.
    pub top: String,
    /// It is not of the top file system of a package.
    pub is_below: bool,
    /// It belongs to a package of a whole tree.
    pub recursive: bool,
    /// The snapshot of its parent at the sender that came before; 0: not known.
    pub parent_snap: Guid,
    /// Properties that came with it; none: the stream has no list.
    pub props: Option<Vec<(String, PropValue)>>,
    /// Those of the snapshot.
    pub snap_props: Vec<(String, PropValue)>,
    /// Tags of holds of the snapshot.
    pub holds: Vec<String>,
}

impl Part {
    /// The properties that came and are stored as received ones: all but those that cannot be
    /// inherited and are to be left out.
    fn received(&self, what: &ReceiveWhat) -> impl Iterator<Item = &(String, PropValue)> {
        let out = self.left_out(what);
        self.props.iter().flatten().filter(move |(name, _)| is_inheritable(name) || !out.contains(name))
    }

    /// The properties whose received values do not count.
    fn passed_over(&self, what: &ReceiveWhat) -> Vec<String> {
        self.left_out(what).into_iter().filter(|name| self.props.is_some() && is_inheritable(name)).collect()
    }

    /// Those of `-x`, and below the target those of `-o`, which are inherited from it.
    fn left_out(&self, what: &ReceiveWhat) -> Vec<String> {
        let given = what.props.iter().filter(|_| self.is_below).map(|(name, _)| name);
        what.exclude
            .iter()
            .chain(given)
            .map(|name| props::find(name).map_or(name.as_str(), |p| p.name).into())
            .collect()
    }
}

fn is_inheritable(name: &str) -> bool {
    props::find(name).map_or_else(|| props::is_user_prop(name), |known| known.inheritable())
}

/// Properties that are set after the data, which they could stop.
const DELAYED: &[&str] = &["refquota", "quota", "refreservation", "reservation", "sharesmb"];
/// Properties of encryption (`zfs_prop_encryption_key_param`, and `encryption`).
const OF_CRYPT: &[&str] = &["encryption", "keyformat", "pbkdf2iters"];

/// Whether a property says how a new file system is encrypted.
fn is_of_crypt(name: &str) -> bool {
    OF_CRYPT.contains(&name) || name == "keylocation"
}

/// The properties of `-o` but for those of encryption.
fn plain_props(what: &ReceiveWhat) -> Vec<(String, String)> {
    what.props.iter().filter(|(name, _)| !is_of_crypt(name)).cloned().collect()
}

/// Checks the properties of `-o` and `-x`.
fn check_props(what: &ReceiveWhat) -> Result<()> {
    if let Some(name) = what.exclude.iter().find(|name| props::find(name).is_none() && !props::is_user_prop(name)) {
        return Err(Error::invalid(format!("invalid property '{name}'")));
    }
    // What a new file system is made with, and the size of a volume, come with the data.
    let is_fixed = |name: &str| {
        let known = props::find(name);
        matches!(name, "version" | "volsize")
            || known.is_some_and(|p| matches!(p.kind, PropKind::Once | PropKind::ReadOnly))
    };
    match what.exclude.iter().find(|name| is_fixed(name) && !is_of_crypt(name)) {
        Some(name) => Err(Error::invalid(format!("property '{name}' cannot be excluded"))),
        None => parse_given(&plain_props(what)).map(drop),
    }
}

/// Checks the properties of encryption for a stream.
fn check_crypt_props(what: &ReceiveWhat, part: &Part, begin: &Begin) -> Result<()> {
    let has = |feature| begin.features() & feature != 0;
    if has(features::RAW) {
        let mut names = what.props.iter().map(|(name, _)| name).chain(&what.exclude);
        return match names.find(|name| OF_CRYPT.contains(&name.as_str())) {
            Some(name) => {
                let text = format!("encryption property '{name}' cannot be set or excluded for raw streams.");
                Err(Error::invalid(text))
            }
            None => Ok(()),
        };
    }
    let is_clone = begin.flags & begin_flags::CLONE != 0 || what.origin.is_some();
    let makes_new = (begin.from_guid.0 == 0 || is_clone) && !has(features::RESUMING);
    match what.props.iter().find(|(name, _)| is_of_crypt(name)) {
        // Of a whole tree they are for its first stream.
        Some((name, _)) if !makes_new && !part.recursive => {
            Err(Error::invalid(format!("encryption property '{name}' cannot be set for incremental streams.")))
        }
        _ => Ok(()),
    }
}

/// How a new target is encrypted.
fn crypt_for(what: &ReceiveWhat, part: &Part) -> Result<NewCrypt> {
    let names_it = what.exclude.iter().chain(what.props.iter().map(|(n, _)| n)).any(|n| n == "encryption");
    let mut crypt = NewCrypt::default();
    if !part.is_below {
        let mut given: Vec<_> = what.props.iter().filter(|(name, _)| is_of_crypt(name)).cloned().collect();
        crypt = take_crypt(&mut given, what.key.clone())?;
    }
    // Only what is not encrypted is sent with properties and not raw.
    if part.props.is_some() && !names_it {
        crypt.suite = Some(None);
    }
    Ok(crypt)
}

/// Parses properties of a file system or a volume, which only the stream tells.
pub(super) fn parse_given(given: &[(String, String)]) -> Result<Vec<(String, PropValue)>> {
    let mut out = Vec::new();
    for one in given {
        let of_fs = props::find(&one.0).is_none_or(|known| known.applies_to(DatasetKind::Filesystem));
        let kind = if of_fs { DatasetKind::Filesystem } else { DatasetKind::Volume };
        out.extend(parse_props(std::slice::from_ref(one), kind, false)?);
    }
    Ok(out)
}

/// The name of a received snapshot, `fs@snap`, from the target, the name in the stream and the file
/// system that was sent.
pub(super) fn name_for(naming: Naming, target: &str, sent_as: &str, top: &str) -> Result<String> {
    if naming != Naming::Given && target.contains('@') {
        let letter = if naming == Naming::Tail { 'e' } else { 'd' };
        return Err(Error::invalid(format!("invalid argument - snapshot not allowed with -{letter}")));
    }
    Ok(match naming {
        Naming::Given if target.contains('@') => target.to_string(),
        Naming::Given => format!("{target}{}", sent_as.strip_prefix(top).unwrap_or_default()),
        Naming::Prefix => format!("{target}{}", sent_as.find(['/', '@']).map_or("", |at| &sent_as[at..])),
        Naming::Tail => {
            let above = top.rfind('/').map_or(0, |at| at + 1);
            format!("{target}/{}", sent_as.get(above..).unwrap_or_default())
        }
    })
}

/// Who receives.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    /// Makes what is new.
    pub maker: Maker,
    /// The user, if permissions limit what it may receive.
    pub limited: Option<Identity>,
}

impl PoolEngine {
    /// Receives a stream.
    pub(crate) async fn receive(&self, what: &ReceiveWhat, by: Receiver, inlet: Inlet) -> Result<ReceiveView> {
        let rt = self.pool.rt().clone();
        check_props(what).map_err(|e| e.at(format!("cannot receive into '{}'", what.target)))?;
        let is_below = what.naming != Naming::Given && !what.target.contains('@');
        if is_below && self.pool.dsl().find(&what.target).is_err() {
            let why = format!("cannot receive: specified fs ({}) does not exist", what.target);
            return Err(Error::not_found(why));
        }
        let mut fed = Fed::new(rt.clone(), inlet);
        let mut input = Input::new(rt, &mut fed);
        let mut view = ReceiveView::default();
        let head = input.begin().await.map_err(|e| e.at("cannot receive"))?;
        let head = head.ok_or_else(|| Error::invalid("cannot receive: failed to read from stream"))?;
        if what.heal {
            if let Some(who) = &by.limited {
                if head.is_package() {
                    return Err(denied());
                }
                self.need_receive(who, what.target.split('@').next().unwrap_or_default(), false).await?;
            }
            self.heal(what, head, &mut input, &mut view).await?;
        } else if head.is_package() {
            self.receive_package(what, &by, head, &mut input, &mut view).await?;
        } else {
            let sent_as = String::from_utf8_lossy(&head.begin.to_name).into_owned();
            let top = sent_as.split('@').next().unwrap_or_default().to_string();
            let part = Part { top, ..Part::default() };
            self.receive_part(what, &by, head, part, &mut input, &mut view).await?;
        }
        Ok(view)
    }

    /// Receives the part of a stream that begins with `head`.
    pub(super) async fn receive_part(
        &self,
        what: &ReceiveWhat,
        by: &Receiver,
        head: Head,
        mut part: Part,
        input: &mut Input<'_>,
        view: &mut ReceiveView,
    ) -> Result<()> {
        let (since, at) = (self.pool.rt().now(), input.offset());
        let sent_as = String::from_utf8_lossy(&head.begin.to_name).into_owned();
        let named = name_for(what.naming, &what.target, &sent_as, &part.top);
        let target = named.map_err(|e| e.at("cannot receive"))?;
        let target = self.where_it_is(what, &part, &head.begin, target).await?;
        if let Some(who) = &by.limited {
            self.limit(who, what, &head.begin, (&target, &mut part), view).await?;
        }
        let part = &part;
        check_crypt_props(what, part, &head.begin).map_err(|e| e.at("cannot receive"))?;
        let mut received = ReceivedView {
            incremental: head.begin.from_guid.0 != 0,
            sent_as,
            snapshot: target.clone(),
            was_here: false,
            healed: None,
            bytes: 0,
            nanos: 0,
        };
        if what.dry_run {
            input.skip().await.map_err(|e| e.at("cannot receive"))?;
        } else {
            let is_volume = head.begin.objset_type == ObjsetType::Zvol as u32;
            received.was_here = !self.receive_snapshot(what, by.maker, (&target, part), head, input, view).await?;
            if is_volume {
                self.show_volumes().await;
            }
        }
        received.bytes = input.offset() - at + ondisk::stream::RECORD_SIZE as u64;
        received.nanos = self.pool.rt().now().0 - since.0;
        view.snapshots.push(received);
        Ok(())
    }

    /// Fails unless a user may receive this part; takes out of it what it may not set, with a
    /// warning for each.
    async fn limit(
        &self,
        who: &Identity,
        what: &ReceiveWhat,
        begin: &Begin,
        (target, part): (&str, &mut Part),
        view: &mut ReceiveView,
    ) -> Result<()> {
        let fs = target.split('@').next().unwrap_or_default();
        self.need_receive(who, fs, what.force).await?;
        let exists = self.pool.dsl().find_dir(fs).is_ok();
        // What a new target becomes a clone of could be any snapshot of the pool.
        let origin = match &what.origin {
            Some(origin) => Some(origin.clone()),
            None if !exists && begin.flags & begin_flags::CLONE != 0 => {
                self.pool.dsl().snapshot_near(fs, begin.from_guid).await?.map(|snap| snap.name())
            }
            None => None,
        };
        if let Some(origin) = origin {
            self.need_all(who, &origin, &["clone"]).await?;
        }
        for (name, _) in what.props.iter().filter(|_| !part.is_below) {
            if exists && moves_mounts(name) {
                return Err(denied());
            }
            self.need_all(who, fs, &[to_set(name)]).await?;
        }
        for name in what.exclude.iter().filter(|_| part.props.is_some() && exists) {
            self.need_all(who, fs, &[to_set(name)]).await?;
        }
        let mut refused = Vec::new();
        if let Some(came) = part.props.take() {
            let mut taken = Vec::new();
            for (name, value) in came {
                if exists && moves_mounts(&name) || !self.has_permission(who, fs, to_set(&name)).await? {
                    refused.push(format!("cannot receive {name} property on {fs}: permission denied"));
                } else {
                    taken.push((name, value));
                }
            }
            part.props = Some(taken);
        }
        if !part.snap_props.is_empty() && !self.has_permission(who, target, "userprop").await? {
            let names = std::mem::take(&mut part.snap_props).into_iter().map(|(name, _)| name);
            refused.extend(names.map(|name| format!("cannot receive {name} property on {target}: permission denied")));
        }
        if !part.holds.is_empty() && !self.has_permission(who, fs, "hold").await? {
            let tags = std::mem::take(&mut part.holds).into_iter().filter(|_| !what.no_holds);
            refused.extend(tags.map(|tag| format!("cannot receive hold {tag} on {target}: permission denied")));
        }
        view.warnings.extend(refused);
        Ok(())
    }

    /// `target`, or where its file system, or the parent of a new one, is by now: what was renamed
    /// here is found by the snapshot that the stream starts from (`zfs_receive_one` of OpenZFS).
    async fn where_it_is(&self, what: &ReceiveWhat, part: &Part, begin: &Begin, target: String) -> Result<String> {
        let dsl = self.pool.dsl();
        let Some((fs, snap)) = target.split_once('@') else { return Ok(target) };
        let is_clone = begin.flags & begin_flags::CLONE != 0 || what.origin.is_some();
        let is_new = begin.from_guid.0 == 0 || is_clone;
        let near = async |name: &str, guid: Guid| {
            let found = dsl.snapshot_near(name, guid).await?;
            Ok::<_, Error>(found.and_then(|s| s.dir().head()).map(|head| head.name()))
        };
        if is_new && begin.features() & features::RESUMING == 0 {
            let Some((parent, last)) = fs.rsplit_once('/') else { return Ok(target) };
            if part.parent_snap.0 == 0 || dsl.find(parent).is_ok() {
                return Ok(target);
            }
            let found = near(parent, part.parent_snap).await?;
            return Ok(found.map_or(target.clone(), |parent| format!("{parent}/{last}@{snap}")));
        }
        // One that was named itself is not looked for.
        let is_exact = what.naming == Naming::Given && !part.is_below;
        if is_exact || dsl.find(fs).is_ok() {
            return Ok(target);
        }
        let found = near(fs, begin.from_guid).await?;
        Ok(found.map_or(target.clone(), |fs| format!("{fs}@{snap}")))
    }

    /// False if the snapshot was here before.
    async fn receive_snapshot(
        &self,
        what: &ReceiveWhat,
        maker: Maker,
        (target, part): (&str, &Part),
        head: Head,
        input: &mut Input<'_>,
        view: &mut ReceiveView,
    ) -> Result<bool> {
        let guid = head.begin.to_guid;
        let (fs, _) = target.split_once('@').unwrap_or((target, ""));
        let is_new = self.pool.dsl().find(fs).is_err();
        let has = |feature| head.begin.features() & feature != 0;
        let (is_raw, is_redacted) = (has(features::RAW), has(features::REDACTED));
        let is_increment = head.begin.from_guid.0 != 0 && head.begin.flags & begin_flags::CLONE == 0;
        let is_resumed = head.begin.features() & features::RESUMING != 0;
        let makes_new = is_new || (is_resumed && !(is_increment && what.origin.is_none()));
        let receiving = match self.begin_receive(what, maker, (target, part), head, is_new).await {
            Ok(receiving) => receiving,
            Err(e)
                if is_increment
                    && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Exists)
                    && self.has(fs, guid).await =>
            {
                input.skip().await.map_err(|e| e.at("cannot receive"))?;
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        let done = match receiving.data(input).await {
            Ok(()) => self.finish_receive((what, part), (is_raw, is_redacted), &receiving, view).await,
            Err(e) => Err(e),
        };
        if let Err(e) = done {
            let kept = receiving.give_up().await.unwrap_or(false);
            return Err(if kept { self.with_token(fs, e).await } else { e });
        }
        self.set_received(what, (target, part), is_new, view).await;
        if makes_new && !what.no_mount && !self.mounts.is_mounted(fs) {
            self.mount_received(fs, view).await;
        }
        Ok(true)
    }

    async fn begin_receive(
        &self,
        what: &ReceiveWhat,
        maker: Maker,
        (target, part): (&str, &Part),
        head: Head,
        is_new: bool,
    ) -> Result<Receiving> {
        let _admin = self.admin.acquire(1).await;
        let (fs, _) = target.split_once('@').unwrap_or((target, ""));
        let place = || format!("cannot receive into '{fs}'");
        let is_volume = head.begin.objset_type == ObjsetType::Zvol as u32;
        let kind = if is_volume { DatasetKind::Volume } else { DatasetKind::Filesystem };
        let fits = |name: &str| is_of_crypt(name) || props::find(name).is_none_or(|known| known.applies_to(kind));
        if let Some((name, _)) = what.props.iter().find(|(name, _)| !part.is_below && !fits(name)) {
            let why = format!("property '{name}' does not apply to datasets of this type");
            return Err(Error::invalid(why).at(place()));
        }
        let mut props = Vec::new();
        if is_new && !part.is_below {
            props = parse_given(&plain_props(what)).map_err(|e| e.at(place()))?;
        }
        if is_new && part.props.is_some() {
            let came = part.received(what).filter(|(name, value)| !self.is_delayed(name, value));
            let passed_over = part.passed_over(what).into_iter().map(|name| format!("{name}$inherit"));
            let marks = passed_over.chain(["$hasrecvd".to_string()]).map(|name| (name, PropValue::Num(0)));
            props.extend(came.map(|(name, value)| (format!("{name}$recvd"), value.clone())).chain(marks));
        }
        let is_raw = head.begin.features() & features::RAW != 0;
        let makes_new = is_new || head.begin.from_guid.0 == 0;
        let crypt = match is_raw || !makes_new {
            true => NewCrypt::default(),
            false => crypt_for(what, part).map_err(|e| e.at(place()))?,
        };
        let made = self.make_parents(what, maker, fs, is_new).await?;
        let begun = async {
            if is_new && !what.no_mount {
                self.check_future_place(fs, &props).await.map_err(|e| e.at(place()))?;
            }
            let opts = ReceiveOpts {
                force: what.force,
                resumable: what.resumable,
                origin: what.origin.clone(),
                crypt,
                props,
                creator: maker.uid,
            };
            self.pool.dsl().begin_receive(target, head, opts).await
        };
        let begun = begun.await;
        if begun.is_err() {
            for parent in made.iter().rev() {
                // The first error counts.
                let _ = self.unmount_these(std::slice::from_ref(parent), Force::Full).await;
                let _ = self.pool.dsl().destroy_fs(parent).await;
            }
        }
        begun
    }

    /// Makes the file systems above `fs` that are missing below the target (`-d`).
    async fn make_parents(&self, what: &ReceiveWhat, maker: Maker, fs: &str, is_new: bool) -> Result<Vec<String>> {
        let dsl = self.pool.dsl();
        if !is_new || what.naming != Naming::Prefix || dsl.find(&what.target).is_err() {
            return Ok(Vec::new());
        }
        let mut missing: Vec<String> = Vec::new();
        let mut at = fs;
        while let Some((parent, _)) = at.rsplit_once('/')
            && dsl.find(parent).is_err()
        {
            missing.insert(0, parent.to_string());
            at = parent;
        }
        if let Some(parent) = missing.last() {
            let made = {
                let how = NewHow { volume: None, parents: true, no_mount: what.no_mount, maker };
                self.create_inner(parent, Vec::new(), how, None).await
            };
            made.map_err(|e| e.at(format!("cannot create '{parent}'")))?;
        }
        Ok(missing)
    }

    /// Whether a file system has the snapshot with that guid.
    async fn has(&self, fs: &str, guid: Guid) -> bool {
        let Ok(head) = self.pool.dsl().find(fs) else { return false };
        let snaps = self.pool.dsl().snapshots(&head).await.unwrap_or_default();
        snaps.iter().any(|s| Guid(s.phys().guid) == guid)
    }

    /// Makes the snapshot. A target that is mounted is suspended for that; it is unmounted if it is
    /// redacted from then on.
    async fn finish_receive(
        &self,
        (what, part): (&ReceiveWhat, &Part),
        (is_raw, is_redacted): (bool, bool),
        receiving: &Receiving,
        view: &mut ReceiveView,
    ) -> Result<Received> {
        let _admin = self.admin.acquire(1).await;
        let mut left = if part.is_below { Vec::new() } else { plain_props(what) };
        // A key that came raw is looked for where the receiver says.
        let location = what.props.iter().find(|(name, _)| name == "keylocation" && is_raw && !part.is_below);
        let Some(target) = receiving.target().cloned() else {
            let done = receiving.finish().await;
            if let (Ok(received), Some(location)) = (&done, location) {
                let fs = received.snapshot.split('@').next().unwrap_or_default();
                let set = self.set_inner(fs, std::slice::from_ref(location), false).await;
                view.warnings.extend(set.err().map(|e| e.to_string()));
            }
            return done;
        };
        left.extend(location.cloned());
        let name = target.name();
        let mut unmounted = Vec::new();
        if is_redacted || what.force_unmount || !self.can_suspend(&name) {
            let force = Force::full(what.force_unmount);
            unmounted = self.unmount_these(std::slice::from_ref(&name), force).await?;
        }
        let done = self.while_suspended(&name, receiving.finish()).await;
        // A file system that is redacted now is not shown any more.
        unmounted.retain(|u| u.name != name || u.temp.redacted || target.redaction().is_none());
        drop(target);
        let errors = self.mount_again(&unmounted).await;
        view.warnings.extend(errors.iter().map(Error::to_string));
        if done.is_ok() && !left.is_empty() {
            let set = self.set_inner(&name, &left, false).await;
            view.warnings.extend(set.err().map(|e| e.to_string()));
        }
        done
    }

    /// Whether a new file system does not have that value from the beginning. One whose feature is
    /// not enabled cannot be set at all, and a warning says so.
    fn is_delayed(&self, name: &str, value: &PropValue) -> bool {
        let is_enabled = |id| self.pool.dsl().features().is_enabled(id);
        DELAYED.contains(&name) || props::check_feature(name, value, is_enabled).is_err()
    }

    /// Sets the properties that came with a snapshot, but for those that a new file system has, and
    /// its holds.
    async fn set_received(
        &self,
        what: &ReceiveWhat,
        (target, part): (&str, &Part),
        is_new: bool,
        view: &mut ReceiveView,
    ) {
        let _admin = self.admin.acquire(1).await;
        let (fs, dsl) = (target.split('@').next().unwrap_or_default(), self.pool.dsl().clone());
        if part.props.is_some() {
            let is_left = |name: &str, value: &PropValue| !is_new || self.is_delayed(name, value);
            let left: Vec<_> = part.received(what).filter(|(name, value)| is_left(name, value)).cloned().collect();
            let names: Vec<String> = left.iter().map(|(name, _)| name.clone()).collect();
            let set = async {
                for (name, e) in dsl.set_received(fs, left, part.passed_over(what), !is_new).await {
                    view.refused.push(format!("cannot receive {name} property on {fs}: {e}"));
                }
                Ok(())
            };
            let set = match dsl.find(fs) {
                Ok(ds) if !is_new => self.change_props(&ds, &names, set).await,
                _ => set.await,
            };
            view.warnings.extend(set.err().map(|e| e.to_string()));
        }
        if !part.snap_props.is_empty() {
            let set = dsl.set_received_snapshot_props(target, part.snap_props.clone()).await;
            view.warnings.extend(set.err().map(|e| e.to_string()));
        }
        for tag in part.holds.iter().filter(|_| !what.no_holds) {
            let held = dsl.hold(tag, vec![target.to_string()], false).await;
            view.warnings.extend(held.err().map(|e| e.to_string()));
        }
    }

    /// Mounts a new file system, if it is to be mounted.
    async fn mount_received(&self, fs: &str, view: &mut ReceiveView) {
        let _admin = self.admin.acquire(1).await;
        let mounted = async {
            let ds = self.pool.dsl().find(fs)?;
            if self.is_to_be_mounted(&ds).await? && mounts::usable().is_ok() {
                self.mount(&ds, TempProps::default()).await?;
            }
            Ok::<(), Error>(())
        };
        view.warnings.extend(mounted.await.err().map(|e| e.to_string()));
        view.warnings.extend(self.mounts.take_notices());
    }

    async fn is_to_be_mounted(&self, ds: &Rc<Dataset>) -> Result<bool> {
        let wanted = ds.dir().prop("canmount").0.num() == 1
            && matches!(self.mount_point(&ds.dir()), MountPoint::Path(_))
            && ds.redaction().is_none()
            && (!ds.dir().is_encrypted() || self.pool.dsl().crypt_info(&ds.dir()).is_some_and(|c| c.available));
        Ok(wanted && ds.objset().await?.os_type() == ObjsetType::Zfs)
    }

    /// `e` with the way to go on.
    async fn with_token(&self, fs: &str, e: Error) -> Error {
        let token = match self.pool.dsl().find(fs) {
            Ok(head) => self.pool.dsl().resume_token(&head).await.ok().flatten(),
            Err(_) => None,
        };
        let Some(token) = token else { return e };
        Error::new(
            e.kind(),
            format!(
                "{e}\nPartially received snapshot is saved.\nA resuming stream can be generated on the sending \
                 system by running:\n    zfs send -t {token}"
            ),
        )
    }

    /// `zfs receive -A`
    pub(crate) async fn receive_abort(&self, name: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        self.find(name)?;
        self.pool.dsl().abort_receive(name).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_letters() {
        for (naming, target, sent, name) in [
            (Naming::Given, "t/x", "p/a/b@s", "t/x@s"),
            (Naming::Given, "t/x@y", "p/a/b@s", "t/x@y"),
            (Naming::Prefix, "t/x", "p/a/b@s", "t/x/a/b@s"),
            (Naming::Prefix, "t/x", "p@s", "t/x@s"),
            (Naming::Tail, "t/x", "p/a/b@s", "t/x/b@s"),
            (Naming::Tail, "t/x", "p@s", "t/x/p@s"),
        ] {
            assert_eq!(name_for(naming, target, sent, sent.split('@').next().unwrap()).unwrap(), name);
        }
        for naming in [Naming::Tail, Naming::Prefix] {
            assert!(name_for(naming, "t/x@y", "p@s", "p").is_err());
        }
        // Of a package: what lies below the file system that was sent.
        for (naming, name) in [(Naming::Given, "t/x/b@s"), (Naming::Prefix, "t/x/o/a/b@s"), (Naming::Tail, "t/x/a/b@s")]
        {
            assert_eq!(name_for(naming, "t/x", "p/o/a/b@s", "p/o/a").unwrap(), name);
        }
    }
}
