//! Operations on file systems and their properties.

use super::*;

impl Runner {
    pub(super) async fn create_fs(&mut self) -> Check {
        if self.model.datasets.len() >= 12 {
            return Ok(());
        }
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let parent = &names[self.rng.below(names.len() as u64) as usize];
        let name = format!("{parent}/fs{}", self.rng.below(8));
        let mut props = Vec::new();
        for _ in 0..self.rng.below(3) {
            let (p, v) = self.draw_prop();
            if !props.iter().any(|(n, _)| n == p) {
                props.push((p.to_string(), v));
            }
        }
        let want = if self.model.datasets.contains_key(&name) {
            Err(ErrorKind::Exists)
        } else {
            props.iter().try_for_each(|(p, v)| self.unsupported(p, v))
        };
        self.note(format!("zfs create {name} {props:?}"));
        let got = self.pool().dsl().create_fs(&name, props.clone(), new_fs(&self.lab.sim)).await;
        if self.agree("create_fs", want, got)?.is_some() {
            self.enter_dataset(name, props).await?;
            self.refresh();
        }
        Ok(())
    }

    pub(super) async fn destroy_fs(&mut self) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        if !name.contains('/') || self.rng.percent(30) {
            return Ok(());
        }
        let children = self.model.below(&name).len() > 1;
        let busy = self.mounted.contains_key(&name) && self.rng.percent(15);
        if !busy {
            self.unmount(&name).await?;
        }
        let want = match (busy, children) {
            (true, _) => Err(ErrorKind::Busy),
            (_, true) => Err(ErrorKind::NotEmpty),
            _ => Ok(()),
        };
        self.note(format!("zfs destroy {name}"));
        let got = self.pool().dsl().destroy_fs(&name).await;
        if self.agree("destroy", want, got)?.is_some() {
            self.changes += 1;
            self.model.datasets.remove(&name);
        }
        Ok(())
    }

    pub(super) async fn rename_fs(&mut self) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let from = names[self.rng.below(names.len() as u64) as usize].clone();
        let parent = names[self.rng.below(names.len() as u64) as usize].clone();
        let to = format!("{parent}/fs{}", self.rng.below(8));
        if !from.contains('/') {
            return Ok(());
        }
        let want = if parent == from || parent.starts_with(&format!("{from}/")) {
            Err(ErrorKind::Invalid)
        } else if self.model.datasets.contains_key(&to) {
            Err(ErrorKind::Exists)
        } else {
            Ok(())
        };
        self.note(format!("zfs rename {from} {to}"));
        let got = self.pool().dsl().rename(&from, &to).await;
        if self.agree("rename_fs", want, got)?.is_some() {
            for old in self.model.below(&from) {
                let new = format!("{to}{}", &old[from.len()..]);
                if let Some(ds) = self.model.datasets.remove(&old) {
                    self.model.datasets.insert(new.clone(), ds);
                }
                if let Some(fs) = self.mounted.remove(&old) {
                    self.mounted.insert(new.clone(), fs);
                }
                for g in self.ghosts.iter_mut().filter(|g| g.ds == old) {
                    g.ds = new.clone();
                }
            }
            self.refresh();
        }
        Ok(())
    }

    pub(super) async fn set_prop(&mut self, inherit: bool) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        let (prop, value) = self.draw_prop();
        if inherit {
            if matches!(prop, "quota" | "reservation") {
                return Ok(());
            }
            self.note(format!("zfs inherit {prop} {name}"));
            let got = self.pool().dsl().inherit(&name, prop, false).await;
            if self.agree("inherit", Ok(()), got)?.is_some() {
                self.model.ds_mut(&name).props.remove(prop);
            }
        } else {
            self.note(format!("zfs set {prop}={value:?} {name}"));
            let got = self.pool().dsl().set_props(&name, vec![(prop.into(), value.clone())]).await;
            let want = self.unsupported(prop, &value);
            if self.agree("set", want, got)?.is_some() {
                self.model.ds_mut(&name).props.insert(prop.into(), value);
            }
        }
        self.refresh();
        Ok(())
    }
}
