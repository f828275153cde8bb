//! Operations on owners and their limits, and on what takes both back.

use zpl::OwnerKind;

use super::*;
use crate::owners::{SNAPSHOTS, snapshot};

/// Owners that get limits: root seldom.
const LIMITED: [u64; 6] = [1000, 1001, 65_534, 4_000_000_000, 1000, 0];
/// Projects of files.
const PROJECTS: [u32; 4] = [0, 1, 77, 4_000_000_000];

impl Runner {
    /// Owners, projects and limits change in the pool, which is still to be made, snapshots are
    /// made and file systems go back to them.
    pub fn have_owners(&mut self, all: bool) {
        match all {
            true => self.have_all_features(),
            false => self.layout.features = ondisk::feature::features_of_2_1(),
        }
        // Snapshots have the names of their file systems.
        self.weights.retain(|(k, _)| !matches!(k, Kind::DestroyFs | Kind::RenameFs));
        let own = [(Kind::Owner, 120), (Kind::Limit, 40), (Kind::Snapshot, 10), (Kind::Rollback, 6)];
        self.weights.extend(own);
    }

    pub(super) async fn change_owner(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let (cred, roll) = (self.draw_cred(), self.rng.below(3));
        if roll == 0 {
            let project = PROJECTS[self.rng.below(4) as usize];
            let may = matches!(self.fs(&t).get(ino).kind, FileKind::File | FileKind::Dir);
            self.note(format!("project of {ino} {project}"));
            let got = t.fs.set_project(ObjectId(ino), project).await;
            let done = self.agree("project", if may { Ok(()) } else { Err(ErrorKind::Unsupported) }, got)?;
            return self.adopt(&t, ino, if done.is_some() { C } else { 0 }).await;
        }
        let mut set = SetAttr::default();
        if roll == 1 {
            set.uid = Some(cred.uid)
        } else {
            set.gid = Some(cred.gid)
        }
        self.note(format!("owner of {ino} {:?} {:?}", set.uid, set.gid));
        let got = t.fs.setattr(ObjectId(ino), set).await;
        let Some(a) = self.agree("owner", Ok(()), got)? else { return Ok(()) };
        let m = self.fs_mut(&t).get_mut(ino);
        (m.uid, m.gid) = (set.uid.unwrap_or(m.uid), set.gid.unwrap_or(m.gid));
        self.adopt_attr(&t, ino, C, &a)
    }

    pub(super) async fn set_limit(&mut self) -> Check {
        let t = self.turn().await?;
        let kind = OwnerKind::ALL[self.rng.below(3) as usize];
        let objects = self.rng.percent(40);
        let id = match kind {
            OwnerKind::Project => u64::from(PROJECTS[self.rng.below(4) as usize]),
            _ => LIMITED[self.rng.below(6) as usize],
        };
        let limit = match (self.rng.below(3), objects) {
            (0, _) => 0,
            (_, true) => self.rng.between(1, 60),
            (_, false) => self.rng.between(1, 1500) << 10,
        };
        self.note(format!("limit of {kind:?} {id} objects {objects}: {limit}"));
        let got = t.fs.set_quota(kind, objects, id, limit).await;
        if self.agree("limit", Ok(()), got)?.is_some() {
            let quotas = &mut self.model.ds_mut(&t.ds).quotas;
            let before = match limit {
                0 => quotas.remove(&(kind as usize, objects, id)),
                _ => quotas.insert((kind as usize, objects, id), limit),
            };
            // A txg that changes nothing leaves no trace.
            self.changes += u64::from(before.unwrap_or(0) != limit);
        }
        Ok(())
    }

    pub(super) async fn make_snapshot(&mut self) -> Check {
        let t = self.turn().await?;
        let made = self.snaps.get(&t.ds).map_or(0, |s| s.len() as u64);
        if made >= SNAPSHOTS {
            return Ok(());
        }
        let name = snapshot(&t.ds, made);
        self.note(format!("snapshot {name}"));
        let got = self.pool().dsl().snapshot(vec![name], false, Vec::new()).await;
        if self.agree("snapshot", Ok(()), got)?.is_some() {
            let state = self.model.datasets[&t.ds].clone();
            self.snaps.entry(t.ds).or_default().push(state);
        }
        Ok(())
    }

    pub(super) async fn roll_back(&mut self) -> Check {
        let t = self.turn().await?;
        let name = t.ds.clone();
        drop(t);
        let Some((n, state)) = self.snaps.get(&name).and_then(|s| Some((s.len() as u64 - 1, s.last()?.clone()))) else {
            return Ok(());
        };
        let snap = snapshot(&name, n);
        self.unmount(&name).await?;
        self.note(format!("rollback {snap}"));
        let got = self.pool().dsl().rollback(&snap).await;
        if self.agree("rollback", Ok(()), got)?.is_some() {
            let ds = self.model.ds_mut(&name);
            (ds.fs, ds.quotas) = (state.fs.clone(), state.quotas.clone());
            self.changes += 1;
        }
        Ok(())
    }
}
