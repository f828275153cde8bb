//! The random operations, each done by the engine and then by the model.
//!
//! An operation predicts from the model whether it must succeed; [`Snaps::agree`] compares the
//! prediction with the result. A lack of space is always a legal answer.

use std::collections::{BTreeMap, BTreeSet};

use base::ErrorKind;
use dsl::props::PropValue;
use ondisk::objset::ObjsetType;
use zpl::{Cred, MountOpts, Zfs};

use super::model::{Fs, Snap};
use super::{Snaps, is_full, pattern};
use crate::Check;
use crate::lab::new_fs;

impl Snaps {
    pub(super) async fn step(&mut self) -> Check {
        match self.rng.below(100) {
            0..30 if self.can_rewrite() && self.rng.percent(40) => self.rewrite().await,
            0..30 => self.write().await,
            30..47 => self.snapshot().await,
            47..57 => self.destroy_snaps().await,
            57..65 => self.clone().await,
            65..71 => self.promote().await,
            71..77 => self.rollback().await,
            77..81 => self.destroy_fs().await,
            81..84 => self.create_fs().await,
            84..88 => self.hold().await,
            88..92 => self.bookmark().await,
            92..96 => self.rename().await,
            96..99 => self.limits().await,
            _ => self.reimport().await,
        }
    }

    pub(super) async fn write(&mut self) -> Check {
        let name = self.pick_fs();
        if self.model.fs[&name].foreign {
            return Ok(());
        }
        let rounds = 1 + self.rng.below(4);
        /// A file and its write (offset, data); None removes it.
        type Step = (String, Option<(u64, Vec<u8>)>);
        let mut plan: Vec<Step> = Vec::new();
        for _ in 0..rounds {
            let file = format!("f{}", self.rng.below(6));
            if self.rng.percent(20) {
                plan.push((file, None));
            } else {
                let len = [100, 5000, 140_000, 400_000][self.rng.below(4) as usize];
                let off = if self.rng.percent(50) { 0 } else { self.rng.below(300_000) };
                plan.push((file, Some((off, pattern(self.rng.next_u64(), len)))));
            }
        }
        self.note(format!(
            "write {name}: {:?}",
            plan.iter().map(|(f, p)| (f, p.as_ref().map(|p| (p.0, p.1.len())))).collect::<Vec<_>>()
        ));
        let root = Cred::new(0, 0);
        let full = self
            .with_fs(&name, async |fs| {
                let mut done = 0;
                for (file, what) in &plan {
                    let found = fs.lookup(fs.root(), file.as_bytes()).await;
                    let result = match what {
                        None if found.is_ok() => fs.unlink(fs.root(), file.as_bytes()).await,
                        None => Ok(()),
                        Some((off, data)) => {
                            let obj = match found {
                                Ok(a) => a.obj,
                                Err(_) => match fs.create(fs.root(), file.as_bytes(), 0o644, &root, false).await {
                                    Ok(a) => a.obj,
                                    Err(e) if is_full(&e) => return Ok(done),
                                    Err(e) => return Err(e),
                                },
                            };
                            match fs.write(obj, *off, vec![bdev::Buf::copy_from(data).freeze()], false).await {
                                Ok((n, _)) if n == data.len() as u64 => Ok(()),
                                Ok(_) => Err(ErrorKind::NoSpace.into()),
                                Err(e) => Err(e),
                            }
                        }
                    };
                    match result {
                        Ok(()) => done += 1,
                        Err(e) if is_full(&e) => return Ok(done),
                        Err(e) => return Err(e),
                    }
                }
                Ok(done)
            })
            .await?;
        let stopped = full < plan.len();
        let f = self.model.fs.get_mut(&name).expect("picked");
        for (file, what) in plan.into_iter().take(full) {
            match what {
                None => drop(f.files.remove(&file)),
                Some((off, data)) => {
                    let bytes = f.files.entry(file).or_default();
                    let end = off as usize + data.len();
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[off as usize..end].copy_from_slice(&data);
                }
            }
        }
        if stopped {
            // The last write may be partial: take over the actual content.
            let now = self.read_head(&name).await?;
            self.model.fs.get_mut(&name).expect("picked").files = now;
        }
        Ok(())
    }

    async fn snapshot(&mut self) -> Check {
        let name = self.pick_fs();
        let recursive = self.rng.percent(30);
        let snap = format!("s{}", self.rng.below(8));
        let all = if recursive { self.model.below(&name) } else { vec![name.clone()] };
        let taken = all.iter().any(|n| self.model.fs[n].snaps.iter().any(|s| s.name == snap));
        self.note(format!("snapshot {name}@{snap} recursive {recursive}"));
        let props =
            if self.rng.percent(20) { vec![("a:b".to_string(), PropValue::Text("c".into()))] } else { Vec::new() };
        let got = self.pool().dsl().snapshot(vec![format!("{name}@{snap}")], recursive, props).await;
        let want = if taken { Err(ErrorKind::Exists) } else { Ok(()) };
        if self.agree("snapshot", want, got)? {
            for n in all {
                let id = self.id();
                let f = self.model.fs.get_mut(&n).expect("listed");
                let files = f.files.clone();
                f.snaps.push(Snap { id, name: snap.clone(), files, holds: BTreeSet::new(), deferred: false });
            }
        }
        Ok(())
    }

    async fn destroy_snaps(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let upto = if self.rng.percent(30) { self.model.fs[&name].snaps.len() - 1 } else { at };
        let defer = self.rng.percent(30);
        let snaps = self.model.fs[&name].snaps[at..=upto].to_vec();
        let busy = |s: &Snap| !s.holds.is_empty() || !self.model.clones_of(s.id).is_empty();
        let want = if !defer && snaps.iter().any(busy) { Err(ErrorKind::Busy) } else { Ok(()) };
        let names: Vec<String> = snaps.iter().map(|s| format!("{name}@{}", s.name)).collect();
        self.note(format!("destroy {names:?} defer {defer}"));
        let got = self.pool().dsl().destroy_snapshots(names, defer).await;
        if self.agree("destroy snapshots", want, got)? {
            let ids: BTreeSet<u64> = snaps.iter().map(|s| s.id).collect();
            for s in &mut self.model.fs.get_mut(&name).expect("picked").snaps {
                s.deferred |= ids.contains(&s.id);
            }
            self.model.settle();
        }
        Ok(())
    }

    async fn clone(&mut self) -> Check {
        let Some((from, at)) = self.pick_snap() else { return Ok(()) };
        let parent = self.pick_fs();
        let name = format!("{parent}/c{}", self.rng.below(5));
        if name.split('/').count() > 5 {
            return Ok(());
        }
        let snap = self.model.fs[&from].snaps[at].clone();
        let want = self.room_for(&name, &parent).await?;
        self.note(format!("clone {from}@{} {name}", snap.name));
        let got = self.pool().dsl().clone_snapshot(&format!("{from}@{}", snap.name), &name, Vec::new()).await;
        if self.agree("clone", want, got)? {
            let foreign = self.is_foreign(&name).await?;
            let f = Fs { files: snap.files.clone(), origin: Some(snap.id), foreign, ..Fs::default() };
            self.model.fs.insert(name, f);
        }
        Ok(())
    }

    /// Whether `name` can be made below `parent`: nothing has that name, and volumes have no
    /// children.
    async fn room_for(&self, name: &str, parent: &str) -> Check<Result<(), ErrorKind>> {
        Ok(match (self.model.fs.contains_key(name), self.is_volume(parent).await?) {
            (true, _) => Err(ErrorKind::Exists),
            (_, true) => Err(ErrorKind::Invalid),
            _ => Ok(()),
        })
    }

    async fn is_volume(&self, name: &str) -> Check<bool> {
        let ds = self.pool().dsl().find(name).map_err(|e| format!("{name}: {e:?}"))?;
        let kind = ds.os_type().await.map_err(|e| format!("{name}: {e:?}"))?;
        Ok(kind == ObjsetType::Zvol)
    }

    async fn create_fs(&mut self) -> Check {
        let parent = self.pick_fs();
        let name = format!("{parent}/n{}", self.rng.below(4));
        if name.split('/').count() > 5 {
            return Ok(());
        }
        let want = self.room_for(&name, &parent).await?;
        self.note(format!("create {name}"));
        let got = self.pool().dsl().create_fs(&name, Vec::new(), new_fs(&self.lab.sim)).await;
        if self.agree("create", want, got)? {
            self.model.fs.insert(name, Fs::default());
        }
        Ok(())
    }

    /// The encryption root that a file system has its key from.
    fn key_of(&self, name: &str) -> Option<String> {
        let dsl = self.pool().dsl().clone();
        dsl.find_dir(name).ok().and_then(|dir| dsl.crypt_info(&dir)).map(|info| info.root)
    }

    async fn promote(&mut self) -> Check {
        let clones: Vec<String> =
            self.model.fs.iter().filter(|(_, f)| f.origin.is_some()).map(|(n, _)| n.clone()).collect();
        if clones.is_empty() {
            return Ok(());
        }
        let name = clones[self.rng.below(clones.len() as u64) as usize].clone();
        let id = self.model.fs[&name].origin.expect("a clone");
        let Some((old, _)) = self.model.snap(id) else { return Err(format!("model: {name} has a lost origin")) };
        let old = old.to_string();
        let at = self.model.fs[&old].snaps.iter().position(|s| s.id == id).expect("found");
        let moving = self.model.fs[&old].snaps[..=at].to_vec();
        let conflict = moving.iter().any(|m| self.model.fs[&name].snaps.iter().any(|s| s.name == m.name));
        let marks_conflict = self.model.fs[&old]
            .bookmarks
            .iter()
            .any(|(n, id)| moving.iter().any(|m| m.id >= *id) && self.model.fs[&name].bookmarks.contains_key(n));
        if marks_conflict {
            return Ok(());
        }
        // Keys come first: only a root moves with its key, anything else stays below its root.
        let roots = self.pool().dsl().encryption_roots(&self.root).map_err(|e| format!("{e:?}"))?;
        let apart = !roots.contains(&old)
            && self.key_of(&old).is_some()
            && self.key_of(parent_of(&name)) != self.key_of(parent_of(&old));
        let want = match (apart, conflict) {
            (true, _) => Err(ErrorKind::Denied),
            (_, true) => Err(ErrorKind::Exists),
            _ => Ok(()),
        };
        self.note(format!("promote {name} over {old}"));
        let got = self.pool().dsl().promote(&name).await;
        if self.agree("promote", want, got)? {
            let beyond = self.model.fs[&old].origin;
            let f = self.model.fs.get_mut(&old).expect("found");
            f.snaps.drain(..=at);
            f.origin = Some(id);
            let (go, stay): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut f.bookmarks).into_iter().partition(|(_, mark)| *mark <= id);
            f.bookmarks = stay;
            let f = self.model.fs.get_mut(&name).expect("picked");
            f.snaps.splice(0..0, moving);
            f.origin = beyond;
            f.bookmarks.extend(go);
        }
        Ok(())
    }

    async fn rollback(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let f = &self.model.fs[&name];
        let snap = f.snaps[at].clone();
        let newer = at + 1 != f.snaps.len() || f.bookmarks.values().any(|id| *id > snap.id);
        let want = if newer { Err(ErrorKind::Exists) } else { Ok(()) };
        self.note(format!("rollback {name}@{}", snap.name));
        let got = self.pool().dsl().rollback(&format!("{name}@{}", snap.name)).await;
        if self.agree("rollback", want, got)? {
            let foreign = self.is_foreign(&name).await?;
            let f = self.model.fs.get_mut(&name).expect("picked");
            (f.files, f.foreign) = (snap.files, foreign);
        }
        Ok(())
    }

    /// Whether a dataset is none that can be written to as a file system: a volume, or of an old
    /// version.
    pub(super) async fn is_foreign(&self, name: &str) -> Check<bool> {
        let ds = self.pool().dsl().find(name).map_err(|e| format!("{name}: {e:?}"))?;
        let Ok(fs) = Zfs::open(&ds, MountOpts::from_props(&ds)).await else { return Ok(true) };
        let readonly = fs.opts().readonly;
        fs.unmount().await.map_err(|e| format!("{name}: {e:?}"))?;
        Ok(readonly)
    }

    async fn destroy_fs(&mut self) -> Check {
        let name = self.pick_fs();
        if name == self.root {
            return Ok(());
        }
        let full = self.model.below(&name).len() > 1 || !self.model.fs[&name].snaps.is_empty();
        let want = if full { Err(ErrorKind::NotEmpty) } else { Ok(()) };
        self.note(format!("destroy {name}"));
        let got = self.pool().dsl().destroy_fs(&name).await;
        if self.agree("destroy", want, got)? {
            self.model.fs.remove(&name);
            self.model.settle();
        }
        Ok(())
    }

    async fn hold(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let tag = format!("t{}", self.rng.below(2));
        let snap = self.model.fs[&name].snaps[at].clone();
        let full = vec![format!("{name}@{}", snap.name)];
        let dsl = self.pool().dsl().clone();
        let held = snap.holds.contains(&tag);
        let release = self.rng.percent(60);
        self.note(format!("{} {tag} {full:?}", if release { "release" } else { "hold" }));
        let (want, got) = if release {
            (if held { Ok(()) } else { Err(ErrorKind::NotFound) }, dsl.release(&tag, full, false).await)
        } else {
            (if held { Err(ErrorKind::Exists) } else { Ok(()) }, dsl.hold(&tag, full, false).await)
        };
        if self.agree("hold", want, got)? {
            let s = &mut self.model.fs.get_mut(&name).expect("picked").snaps[at];
            if release {
                s.holds.remove(&tag);
            } else {
                s.holds.insert(tag);
            }
            self.model.settle();
        }
        Ok(())
    }

    async fn bookmark(&mut self) -> Check {
        if !self.layout.features.contains(&ondisk::feature::FeatureId::Bookmarks) {
            return Ok(());
        }
        let dsl = self.pool().dsl().clone();
        let mark = format!("b{}", self.rng.below(4));
        if self.rng.percent(40) {
            let name = self.pick_fs();
            let there = self.model.fs[&name].bookmarks.contains_key(&mark);
            self.note(format!("destroy {name}#{mark}"));
            let got = dsl.destroy_bookmark(&format!("{name}#{mark}")).await;
            let want = if there { Ok(()) } else { Err(ErrorKind::NotFound) };
            if self.agree("destroy bookmark", want, got)? {
                self.model.fs.get_mut(&name).expect("picked").bookmarks.remove(&mark);
            }
            return Ok(());
        }
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let snap = self.model.fs[&name].snaps[at].clone();
        let there = self.model.fs[&name].bookmarks.contains_key(&mark);
        self.note(format!("bookmark {name}@{} #{mark}", snap.name));
        let got = dsl.create_bookmark(&format!("{name}@{}", snap.name), &format!("{name}#{mark}")).await;
        let want = if there { Err(ErrorKind::Exists) } else { Ok(()) };
        if self.agree("bookmark", want, got)? {
            self.model.fs.get_mut(&name).expect("picked").bookmarks.insert(mark, snap.id);
        }
        Ok(())
    }

    async fn rename(&mut self) -> Check {
        let dsl = self.pool().dsl().clone();
        if self.rng.percent(50) {
            let Some((name, at)) = self.pick_snap() else { return Ok(()) };
            let new = format!("s{}", self.rng.below(8));
            let old = self.model.fs[&name].snaps[at].name.clone();
            let taken = self.model.fs[&name].snaps.iter().any(|s| s.name == new);
            self.note(format!("rename {name}@{old} @{new}"));
            let got = dsl.rename_snapshot(&format!("{name}@{old}"), &format!("{name}@{new}"), false).await;
            let want = if taken { Err(ErrorKind::Exists) } else { Ok(()) };
            if self.agree("rename snapshot", want, got)? {
                self.model.fs.get_mut(&name).expect("picked").snaps[at].name = new;
            }
            return Ok(());
        }
        let (from, parent) = (self.pick_fs(), self.pick_fs());
        let to = format!("{parent}/r{}", self.rng.below(6));
        if from == self.root
            || self.model.fs.contains_key(&to)
            || format!("{parent}/").starts_with(&format!("{from}/"))
            || to.split('/').count() > 4
        {
            return Ok(());
        }
        let key = self.key_of(&from);
        // A root takes its key along, others stay below their root, what is plain moves anywhere.
        let bound = key.as_ref().is_some_and(|root| *root != from) && self.key_of(&parent) != key
            || self.is_volume(&parent).await?;
        self.note(format!("rename {from} {to}"));
        let got = dsl.rename(&from, &to).await;
        if self.agree("rename", if bound { Err(ErrorKind::Invalid) } else { Ok(()) }, got)? {
            for name in self.model.below(&from) {
                let f = self.model.fs.remove(&name).expect("listed");
                self.model.fs.insert(format!("{to}{}", &name[from.len()..]), f);
            }
        }
        Ok(())
    }

    async fn limits(&mut self) -> Check {
        let name = self.pick_fs();
        let prop = ["reservation", "refreservation", "refquota"][self.rng.below(3) as usize];
        let value = [0, 1 << 20, 5 << 20][self.rng.below(3) as usize];
        let value = if prop == "refquota" && value != 0 { value * 4 } else { value };
        self.note(format!("set {prop}={value} {name}"));
        let got = self.pool().dsl().set_props(&name, vec![(prop.to_string(), PropValue::Num(value))]).await;
        self.agree("set", Ok(()), got).map(|_| ())
    }
}

/// The file system that one stands in.
fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(parent, _)| parent)
}
