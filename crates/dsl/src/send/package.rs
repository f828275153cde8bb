//! Packages: several streams with a list of what they are (format page 25 section 5).
//!
//! [`DslPool::package`] reads the tree of file systems and plans ([`super::plan`]);
//! [`DslPool::send_package`] sends BEGIN with the list, its END, the streams, and an END. The
//! snapshots of a package are in use from the plan on, so that none is destroyed before its turn.

use std::rc::Rc;

use base::{Error, ObjectId, Result};
use bdev::Bytes;
use dmu::zap;
use ondisk::stream::record::{Begin, End};
use ondisk::stream::{Record, Sent, features};
use rt::LocalBoxFuture;

use super::plan::{self, Fs, Named, Note, Origin, PackageOpts, Since, Snap, Step, Wanted};
use super::{Out, SendOpts, Sink};
use crate::dataset::{Dataset, Use};
use crate::pool::DslPool;
use crate::props::{self, PropKind, PropType, PropValue};

/// Properties of space, which are no snapshot's.
const SPACE_LIMITS: [&str; 4] = ["quota", "reservation", "refquota", "refreservation"];

/// About how long it takes to look at a snapshot, and again to plan for it.
const SNAP_COST: base::Nanos = base::Nanos(2_000);

/// A package that is planned.
pub struct Package {
    /// The full name of the target.
    name: String,
    /// The packed list.
    list: Vec<u8>,
    /// Its receiver must know about holds.
    holds: bool,
    /// It was planned with `-R` or `-I`.
    pub several: bool,
    /// The streams, in order.
    pub steps: Vec<Step>,
    /// What the user is to be told.
    pub notes: Vec<Note>,
    /// A file system cannot be sent, which the notes say; the others can.
    pub incomplete: bool,
    /// The redaction bookmark by which a single stream is sent ([`DslPool::send_redacted`]).
    pub redact: Option<String>,
    /// The snapshots that are sent and those that they are sent since.
    _uses: Vec<Use>,
}

impl DslPool {
    /// Plans the package for the snapshot `to`, since `from` if that is given: the full name of a
    /// snapshot of the same file system or of its origin; without `-R` and `-I` anything that a
    /// single stream can start from.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, or none of that name in a file system below;
    /// `Denied` for encrypted file systems if the package is not raw; `Invalid` if `from` belongs
    /// to another file system; `TooBig` if the list is too long to be received.
    pub async fn package(&self, to: &str, from: Option<&str>, opts: &PackageOpts) -> Result<Package> {
        let (fs, target) =
            to.split_once('@').ok_or_else(|| Error::invalid(format!("'{to}' is the name of no snapshot")))?;
        let head = self.find(fs)?;
        self.find_snapshot(to).await?;
        let several = opts.replicate || opts.all;
        let since = match from.filter(|_| several) {
            Some(from) => self.since(&head, from).await?,
            None => Since::Nothing,
        };
        let tree = self.tree_of(&head, opts).await?;
        let all = opts.all || (opts.replicate && !matches!(since, Since::Snap(_)));
        let (target, of) = (target.to_string(), opts.clone());
        let cost = base::Nanos(SNAP_COST.0.saturating_mul(tree.snapshots()));
        let planned = self.ctx().rt().cpu(cost, move || {
            let plan = plan::plan(&tree, Wanted { to: &target, since: &since, opts: &of, all })?;
            let list = plan.list.as_ref().map_or(Ok(Vec::new()), plan::packed)?;
            Ok::<_, Error>((plan, list))
        });
        let (mut plan, list) = planned.await?;
        if let (false, [only]) = (several, plan.steps.as_mut_slice()) {
            only.from = from.map(str::to_string);
        }
        let mut uses = Vec::new();
        for name in plan.steps.iter().flat_map(|s| [Some(&s.name), s.from.as_ref()]).flatten() {
            if name.contains('@') {
                self.ctx().rt().spend(SNAP_COST).await;
                uses.push(Use::of(&self.find_snapshot(name).await?));
            }
        }
        Ok(Package {
            name: to.to_string(),
            list,
            holds: opts.holds,
            several,
            steps: plan.steps,
            notes: plan.notes,
            incomplete: plan.incomplete,
            redact: None,
            _uses: uses,
        })
    }

    /// What the snapshot `from` is to `head`.
    async fn since(&self, head: &Dataset, from: &str) -> Result<Since> {
        if self.origin_of(head).await?.is_some_and(|o| o.name() == from) {
            return Ok(Since::Origin);
        }
        match from.split_once('@') {
            Some((fs, snap)) if fs == head.name() => {
                self.find_snapshot(from).await?;
                Ok(Since::Snap(snap.to_string()))
            }
            _ => Err(Error::invalid(format!("incremental source must be in same filesystem: '{from}' is not"))),
        }
    }

    /// Sends a package to `sink`. Errors: those of [`DslPool::send`].
    pub async fn send_package(&self, package: &Package, opts: SendOpts, sink: &mut dyn Sink) -> Result<Sent> {
        super::check_name(&package.name)?;
        let begin = begin_of(&package.name, &package.list, package.holds);
        let end = Record::End(End::default());
        let mut out = Out::new(self.ctx().rt().clone(), Some(&mut *sink));
        out.put(Record::Begin(begin), package.list.clone().into()).await?;
        out.put(end.clone(), Bytes::default()).await?;
        let writer = out.writer;
        let mut streams = Sent::default();
        for Step { name, from, .. } in &package.steps {
            let sent = self.send_redacted(name, from.as_deref(), package.redact.as_deref(), opts, sink).await?;
            streams.records += sent.records;
            streams.bytes += sent.bytes;
        }
        let mut out = Out { writer, ..Out::new(self.ctx().rt().clone(), Some(sink)) };
        out.put(end, Bytes::default()).await?;
        let frame = out.sent();
        Ok(Sent { records: frame.records + streams.records, bytes: frame.bytes + streams.bytes })
    }

    /// About how many bytes each step will have. As OpenZFS has it, the first stream of a clone in
    /// a package of several counts as a full one.
    pub async fn package_sizes(&self, package: &Package, opts: SendOpts) -> Result<Vec<u64>> {
        let mut out = Vec::new();
        for step in &package.steps {
            let from = step.from.as_deref().filter(|_| step.since.is_some() || !package.several);
            out.push(self.send_size(&step.name, from, package.redact.as_deref(), opts).await?);
        }
        Ok(out)
    }

    /// What a package knows of `head`, and with `-R` of all below.
    fn tree_of<'a>(&'a self, head: &'a Rc<Dataset>, opts: &'a PackageOpts) -> LocalBoxFuture<'a, Result<Fs>> {
        Box::pin(async move {
            let (dir, phys) = (head.dir(), head.phys());
            let origin = self.origin_of(head).await?.map(|snap| Origin { name: snap.name(), guid: snap.phys().guid });
            let mut out = Fs {
                name: head.name(),
                guid: phys.guid,
                txg: phys.creation_txg,
                origin,
                encroot: dir.is_encrypted().then(|| self.is_encryption_root(&dir)),
                ..Fs::default()
            };
            let has_list = opts.has_list();
            if has_list {
                let stored = self.props_of(dir.phys().props_zapobj).await?;
                out.props = sent_props(&stored, opts.backup, false);
            }
            for snap in self.snapshots(head).await? {
                self.ctx().rt().spend(SNAP_COST).await;
                let phys = snap.phys();
                let mut s = Snap { name: snap.snapname(), guid: phys.guid, txg: phys.creation_txg, ..Snap::default() };
                if has_list {
                    s.props = sent_props(&self.props_of(phys.props_obj).await?, opts.backup, true);
                }
                if opts.holds {
                    s.holds = self.stored_holds(&snap).await?;
                }
                out.snaps.push(s);
            }
            if opts.replicate {
                let names = zap::list(&self.mos().hold(ObjectId(dir.phys().child_dir_zapobj)).await?).await?;
                for name in names.iter().map(|e| String::from_utf8_lossy(&e.name)) {
                    // Hidden ones, such as what a receive has not finished.
                    if name.contains(['$', '%']) {
                        continue;
                    }
                    let Some(child) = dir.child(&name).and_then(|d| d.head()) else { continue };
                    out.children.push(self.tree_of(&child, opts).await?);
                }
            }
            Ok(out)
        })
    }

    /// The stored properties of an object that there may be none of.
    async fn props_of(&self, object: u64) -> Result<Named<PropValue>> {
        match object {
            0 => Ok(Vec::new()),
            object => self.stored_props(ObjectId(object)).await,
        }
    }

    /// The holds of a snapshot, in the order of their ZAP.
    async fn stored_holds(&self, snap: &Dataset) -> Result<Named<u64>> {
        let object = snap.phys().userrefs_obj;
        if object == 0 {
            return Ok(Vec::new());
        }
        let entries = zap::list(&self.mos().hold(ObjectId(object)).await?).await?;
        let hold = |e: zap::ZapEntry| (String::from_utf8_lossy(&e.name).into_owned(), e.value.as_u64().unwrap_or(0));
        Ok(entries.into_iter().map(hold).collect())
    }
}

/// BEGIN of a package for the target `name`.
fn begin_of(name: &str, list: &[u8], holds: bool) -> Begin {
    let begin = Begin {
        payload_len: list.len() as u32,
        version_info: Begin::PACKAGE,
        to_name: name.as_bytes().to_vec(),
        ..Begin::default()
    };
    begin.with_features(if holds { features::HOLDS } else { 0 })
}

/// What a package has of the properties `stored` with a dataset: local ones, and received ones that
/// no local value hides; with `received` these alone.
fn sent_props(stored: &Named<PropValue>, received: bool, snapshot: bool) -> Named<PropValue> {
    let has = |name: &str| stored.iter().any(|(n, _)| n == name);
    let mut out: Named<PropValue> = Vec::new();
    for (key, value) in stored {
        let name = match key.split_once('$') {
            None if received => continue,
            None => key.as_str(),
            Some((name, "recvd")) if received => name,
            Some((name, "recvd")) if !has(name) && !has(&format!("{name}$inherit")) => name,
            Some(_) => continue,
        };
        let fits = props::is_user_prop(name) || {
            let known = props::find(name).filter(|p| p.name == name);
            let limit = snapshot && SPACE_LIMITS.contains(&name);
            known.is_some_and(|p| is_sent(p, value)) && !limit
        };
        if fits && !out.iter().any(|(n, _)| n == name) {
            out.push((name.to_string(), value.clone()));
        }
    }
    out
}

/// Whether receivers know and can set a property, and its value has the right type.
fn is_sent(prop: &props::Prop, value: &PropValue) -> bool {
    let settable = matches!(prop.kind, PropKind::Inherit | PropKind::Default);
    let text = prop.ty == PropType::Text;
    settable && !prop.name.starts_with("iolimit_") && text == matches!(value, PropValue::Text(_))
}

#[cfg(test)]
mod tests {
    use codec::checksum::Endian;
    use ondisk::stream::{StreamReader, StreamWriter, words};

    use super::*;

    /// The sum of everything before the END of a package's list.
    fn sum(top: &Fs, opts: &PackageOpts, target: &str) -> String {
        let wanted = Wanted { to: target, since: &Since::Nothing, opts, all: true };
        let list = plan::packed(&plan::plan(top, wanted).unwrap().list.unwrap()).unwrap();
        let begin = begin_of(&format!("{}@{target}", top.name), &list, opts.holds);
        let mut writer = StreamWriter::new(Endian::Little);
        let begin = writer.record(&Record::Begin(begin), &list);
        let end = writer.end(base::Guid(0));
        let mut reader = StreamReader::new();
        reader.record(&begin).unwrap();
        reader.payload(&list);
        let Record::End(end) = reader.record(&end).unwrap().record else { panic!("END is next") };
        words(end.checksum)
    }

    /// Two packages of kernels, which OpenZFS's test suite has: `dedup.zsend`, and
    /// `little-endian-all-drr-types-incr-NATIVE.zsend`, of a received clone with an encrypted file
    /// system below it.
    #[test]
    fn lists_are_those_of_kernels() {
        let fs = |name: &str, guid, snap: &str, snap_guid| Fs {
            name: name.into(),
            guid,
            txg: 1,
            snaps: vec![Snap { name: snap.into(), guid: snap_guid, txg: 9, ..Snap::default() }],
            ..Fs::default()
        };
        let below = fs("test/fs/subfs", 0x0c37_c1d1_5340_b8e7, "snap", 0xabd3_e8fd_04ae_dffb);
        let top = Fs {
            props: named(&[("compression", "1"), ("recordsize", "16384")]),
            children: vec![below],
            ..fs("test/fs", 0xdffe_468f_a5d9_23f7, "snap", 0xdeb1_3372_32f9_2a3e)
        };
        let replicate = PackageOpts { replicate: true, ..PackageOpts::default() };
        assert_eq!(sum(&top, &replicate, "snap"), "1eafd7b64d/e96f9a45694/4c26d6fd52cb2/13b4c8ec4af0e94");
        let below = Fs {
            encroot: Some(true),
            props: named(&[("keylocation", "file:///test/redacted/new-key")]),
            ..fs("test/redacted/encrypted", 0x4afc_452c_a99b_ca43, "clean", 0x9824_9ec8_c6dc_acdb)
        };
        let top = Fs {
            origin: Some(Origin { name: "test/source@baseline".into(), guid: 0x421d_0579_cc63_e574 }),
            children: vec![below],
            ..fs("test/redacted", 0x051c_e2fc_a0c4_cfb6, "clean", 0x9649_50de_82b7_d299)
        };
        let raw = PackageOpts { raw: true, ..replicate };
        assert_eq!(sum(&top, &raw, "clean"), "2802bd40c3/1510a8687e9e/7774bd35957a3/21a2427dadb23c6");
    }

    fn named(list: &[(&str, &str)]) -> Named<PropValue> {
        let value = |v: &str| v.parse().map_or_else(|_| PropValue::Text(v.into()), PropValue::Num);
        list.iter().map(|(n, v)| (n.to_string(), value(v))).collect()
    }

    #[test]
    fn properties_are_sent_as_they_are_set_or_were_received() {
        let stored = named(&[
            ("org:user", "x"),
            ("compression$recvd", "15"),
            ("compression", "2"),
            ("atime$recvd", "0"),
            ("exec$inherit", ""),
            ("exec$recvd", "0"),
            ("$hasrecvd", "0"),
            ("volblocksize", "8192"),
            ("keyformat", "3"),
            ("keylocation", "prompt"),
            ("quota", "1048576"),
            ("iolimit_bw_read", "5"),
            ("future", "1"),
            ("mountpoint", "7"),
            ("rdonly", "1"),
        ]);
        let local =
            [("org:user", "x"), ("compression", "2"), ("atime", "0"), ("keylocation", "prompt"), ("quota", "1048576")];
        assert_eq!(sent_props(&stored, false, false), named(&local));
        let received = [("compression", "15"), ("atime", "0"), ("exec", "0")];
        assert_eq!(sent_props(&stored, true, false), named(&received));
        assert_eq!(sent_props(&stored, false, true), named(&local[..4]));
    }
}
