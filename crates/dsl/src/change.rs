//! Changing datasets: properties, quotas and reservations, renaming.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Dnode, Tx, zap};
use rt::LocalBoxFuture;

use crate::core::{Space, signed};
use crate::create::{check_len, check_name};
use crate::dir::{Dir, Used};
use crate::limits::Counted;
use crate::pool::DslPool;
use crate::props::{self, PropValue};
use crate::space::SpaceCheck;

/// Properties whose value is in the records of the dataset too, where only local values count.
const NUMBERS: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];

/// Removes an entry of a ZAP, if it is there.
async fn remove_entry(dn: &Dnode, name: &str, tx: &Tx) -> Result<()> {
    match zap::remove(dn, name.as_bytes(), tx).await {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl DslPool {
    /// Stores or removes a local value of a property: in the ZAP, in memory, and in the records
    /// that have a copy (syncing context).
    pub(crate) async fn write_prop(&self, dir: &Rc<Dir>, name: &str, value: Option<&PropValue>, tx: &Tx) -> Result<()> {
        if let Some(value) = value {
            self.ensure_salt(name, value, tx).await?;
            // A received limit binds as a local one.
            let plain = name.strip_suffix("$recvd").unwrap_or(name);
            if Counted::ALL.iter().any(|c| c.limit() == plain) && value.num() != u64::MAX {
                self.begin_counting(dir, tx).await?;
            }
        }
        let dn = self.mos().hold(ObjectId(dir.phys().props_zapobj)).await?;
        let mut stored = value.cloned();
        if let Some((newer, is_newer)) = props::newer(name, value) {
            match value {
                Some(value) if is_newer => {
                    zap::update_u64(&dn, newer.as_bytes(), value.num(), tx).await?;
                    stored = props::find(name).map(|p| p.default_value());
                }
                _ => remove_entry(&dn, &newer, tx).await?,
            }
        }
        match &stored {
            Some(PropValue::Num(n)) => zap::update_u64(&dn, name.as_bytes(), *n, tx).await?,
            Some(PropValue::Text(t)) => zap::update_text(&dn, name.as_bytes(), t, tx).await?,
            None => remove_entry(&dn, name, tx).await?,
        }
        // A local value ends that the received one is passed over.
        let passed_over = format!("{name}$inherit");
        if value.is_some() && dir.local_props().contains_key(&passed_over) {
            remove_entry(&dn, &passed_over, tx).await?;
            dir.store_prop(&passed_over, None);
        }
        if let Some(head) = dir.head() {
            let (event, text) = match value {
                Some(PropValue::Num(n)) => ("set", format!("{name}={n}")),
                Some(PropValue::Text(t)) => ("set", format!("{name}={t}")),
                None => ("inherit", format!("{name}=")),
            };
            self.core().log_internal_ds(event, (dir.full_name(), head.object), text, tx);
        }
        dir.store_prop(name, value.cloned());
        let number = value.map_or(0, PropValue::num);
        match name {
            "quota" => dir.change(|p| p.quota = number),
            "reservation" => dir.set_reservation(number),
            "refreservation" => {
                if let Some(head) = dir.head() {
                    head.set_refreservation(number);
                }
            }
            "refquota" => {
                if let Some(head) = dir.head() {
                    head.set_refquota(number);
                }
            }
            _ => {}
        }
        push_props(dir);
        Ok(())
    }

    /// Sets properties of a dataset, all or none.
    pub async fn set_props(self: &Rc<Self>, name: &str, values: Vec<(String, PropValue)>) -> Result<()> {
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, values) = (name.clone(), values.clone());
            Box::pin(async move { pool.set_props_in(&name, &values, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::set_props`], in a task that is running. With `trial` it only makes the checks.
    pub async fn set_props_in(
        self: &Rc<Self>,
        name: &str,
        values: &[(String, PropValue)],
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let dir = pool.find_dir(name)?;
        for (prop, value) in values {
            pool.check_set(&dir, prop, value)?;
        }
        pool.check_space(SpaceCheck::ExtraReserved, 2)?;
        if trial {
            return Ok(());
        }
        for (prop, value) in values {
            pool.write_prop(&dir, prop, Some(value), &tx).await?;
        }
        Ok(())
    }

    fn check_set(&self, dir: &Rc<Dir>, prop: &str, value: &PropValue) -> Result<()> {
        let Some(known) = props::find(prop) else {
            return if props::is_user_prop(prop) {
                Ok(())
            } else {
                Err(Error::invalid(format!("invalid property '{prop}'")))
            };
        };
        if !known.settable() {
            return Err(Error::new(ErrorKind::ReadOnly, format!("'{prop}' is readonly")));
        }
        self.check_value(prop, value)?;
        let phys = dir.phys();
        match (prop, value.num()) {
            // It is stored in the volume, whose user changes it.
            ("volsize", _) => Err(Error::invalid("'volsize' is changed with the volume's content only")),
            ("keylocation", _) => match self.crypt_info(dir) {
                Some(info) if info.is_root => crate::crypto::check_location(value.text()),
                None if value.text() == "none" => Ok(()),
                _ => Err(Error::invalid(format!(
                    "'{}' is no encryption root: keylocation belongs to the dataset that has the key",
                    dir.full_name()
                ))),
            },
            ("quota", quota) if quota != 0 && quota < phys.used_bytes.max(phys.reserved) => {
                let why = "size is less than current used or reserved space";
                Err(Error::new(ErrorKind::NoSpace, why))
            }
            ("reservation", reserved) => {
                let more = reserved.max(phys.used_bytes).saturating_sub(phys.reserved.max(phys.used_bytes));
                let room = dir.parent().map_or_else(|| dir.available(), |p| p.available());
                let over_quota = phys.quota != 0 && reserved > phys.quota;
                if over_quota || more > room {
                    let why = format!("size is greater than available space: {room} bytes more can be reserved");
                    return Err(Error::new(ErrorKind::NoSpace, why));
                }
                Ok(())
            }
            ("refquota", quota) => {
                let referenced = dir.head().map_or(0, |h| h.phys().referenced_bytes);
                if quota != 0 && quota < referenced {
                    let why = "size is less than current used or reserved space";
                    return Err(Error::new(ErrorKind::NoSpace, why));
                }
                Ok(())
            }
            ("refreservation", reserved) => {
                let Some(head) = dir.head() else { return Ok(()) };
                let unique = head.phys().unique_bytes;
                let more = reserved.saturating_sub(unique).saturating_sub(head.refreservation().saturating_sub(unique));
                if more > 0 && (more > dir.available() || (phys.quota != 0 && reserved > phys.quota)) {
                    let room = dir.available();
                    let why = format!("size is greater than available space: {room} bytes more can be reserved");
                    return Err(Error::new(ErrorKind::NoSpace, why));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sets properties that came with a stream (`$recvd`), which count where there is no local
    /// value. With `all`, received values that did not come again go. Of those in `passed_over` the
    /// received value does not count, but the inherited one. Those that cannot be set are returned,
    /// with the reason.
    pub async fn set_received(
        self: &Rc<Self>,
        name: &str,
        values: Vec<(String, PropValue)>,
        passed_over: Vec<String>,
        all: bool,
    ) -> Vec<(String, Error)> {
        let task_name = name.to_string();
        let done = self
            .sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Vec<(String, Error)>>> {
                let (name, values, passed_over) = (task_name.clone(), values.clone(), passed_over.clone());
                Box::pin(async move {
                    let dir = pool.find_dir(&name)?;
                    pool.check_space(SpaceCheck::ExtraReserved, 2)?;
                    let mut failed = Vec::new();
                    let local = dir.local_props();
                    let came = |stored: &str| values.iter().any(|(n, _)| stored == format!("{n}$recvd"));
                    for stored in local.keys().filter(|n| all && n.ends_with("$recvd") && !came(n)) {
                        pool.write_prop(&dir, stored, None, &tx).await?;
                    }
                    for (prop, value) in &values {
                        let stored = format!("{prop}$recvd");
                        if local.get(&stored) == Some(value) {
                            continue;
                        }
                        if let Err(e) = pool.check_set(&dir, prop, value) {
                            failed.push((prop.clone(), e));
                            continue;
                        }
                        pool.write_prop(&dir, &stored, Some(value), &tx).await?;
                        let follows = local.get(prop).is_none_or(|own| local.get(&stored) == Some(own));
                        if NUMBERS.contains(&prop.as_str()) && follows {
                            pool.write_prop(&dir, prop, Some(value), &tx).await?;
                        }
                    }
                    for prop in passed_over.iter().filter(|p| !local.contains_key(*p)) {
                        pool.write_prop(&dir, &format!("{prop}$inherit"), Some(&PropValue::Num(0)), &tx).await?;
                    }
                    if !local.contains_key("$hasrecvd") {
                        pool.write_prop(&dir, "$hasrecvd", Some(&PropValue::Num(0)), &tx).await?;
                    }
                    Ok(failed)
                })
            })
            .await;
        done.unwrap_or_else(|e| vec![("any".to_string(), e)])
    }

    /// Drops a local value, so that the dataset inherits that of its ancestors again; `received`:
    /// so that the received value counts again, if there is one.
    pub async fn inherit(self: &Rc<Self>, name: &str, prop: &str, received: bool) -> Result<()> {
        match props::find(prop) {
            Some(known) if !known.settable() => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("{prop} property is read-only")));
            }
            Some(known) if !known.inheritable() => {
                return Err(Error::invalid(match known.default_value() {
                    PropValue::Num(0 | u64::MAX) => {
                        format!("'{prop}' property cannot be inherited: use 'zfs set {prop}=none' to clear")
                    }
                    _ => format!("'{prop}' property cannot be inherited"),
                }));
            }
            None if !props::is_user_prop(prop) => return Err(Error::invalid(format!("invalid property '{prop}'"))),
            _ => {}
        }
        let (name, prop) = (name.to_string(), props::find(prop).map_or(prop, |p| p.name).to_string());
        self.sync_task(move |pool, tx| Box::pin(async move { pool.inherit_in(&name, &prop, received, &tx).await }))
            .await
    }

    /// Drops a local value, in a task that is running; the property is one that can be inherited.
    pub async fn inherit_in(self: &Rc<Self>, name: &str, prop: &str, received: bool, tx: &Rc<Tx>) -> Result<()> {
        let dir = self.find_dir(name)?;
        self.write_prop(&dir, prop, None, tx).await?;
        let passed_over = format!("{prop}$inherit");
        let own = dir.local_props();
        let value = match (received, own.contains_key(&passed_over)) {
            (false, false) if own.contains_key(&format!("{prop}$recvd")) => Some(PropValue::Num(0)),
            (true, true) => None,
            _ => return Ok(()),
        };
        self.write_prop(&dir, &passed_over, value.as_ref(), tx).await
    }

    /// Renames a dataset within the pool, with all its descendants.
    pub async fn rename(self: &Rc<Self>, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let (from, to) = (from.to_string(), to.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (from, to) = (from.clone(), to.clone());
            Box::pin(async move {
                let dir = pool.find_dir(&from)?;
                let Some(old_parent) = dir.parent() else {
                    return Err(Error::invalid(format!(
                        "'{from}' is a pool: a pool is renamed by importing it under another name"
                    )));
                };
                if to.starts_with(&format!("{from}/")) {
                    return Err(Error::invalid("New dataset name cannot be a descendant of current dataset name"));
                }
                let (parent, last) = pool.parent_for_new(&to)?;
                pool.check_parent(&parent).await?;
                for below in dir.subtree() {
                    let tail = below.full_name()[from.len()..].to_string();
                    let name = format!("{to}{tail}");
                    check_name(&name)?;
                    // What is too deep already may stay so, and not become deeper.
                    let is_deeper = to.split('/').count() > from.split('/').count();
                    if is_deeper {
                        pool.check_new_name(&name)?;
                    }
                    if to.len() > from.len()
                        && let Some(head) = below.head()
                    {
                        for snap in pool.snapshots(&head).await? {
                            check_len(&format!("{to}{}", &snap.name()[from.len()..]))?;
                        }
                    }
                }
                let phys = dir.phys();
                let charge = phys.used_bytes.max(phys.reserved);
                if !Rc::ptr_eq(&parent, &old_parent) && !is_below(&parent, &old_parent) && charge > parent.available() {
                    let why = format!("out of space: '{}' has no room for '{from}'", parent.full_name());
                    return Err(Error::new(ErrorKind::Quota, why));
                }
                pool.check_crypt_move(&dir, &parent)?;
                pool.check_space(SpaceCheck::Reserved, 4)?;
                let old_map = pool.mos().hold(ObjectId(old_parent.phys().child_dir_zapobj)).await?;
                let new_map = pool.mos().hold(ObjectId(parent.phys().child_dir_zapobj)).await?;
                zap::remove(&old_map, dir.name().as_bytes(), &tx).await?;
                zap::add_u64(&new_map, last.as_bytes(), dir.object.0, &tx).await?;
                pool.move_counts(&dir, &old_parent, &parent, &tx).await?;
                let used = Space::used_by(&phys);
                let extra = Space { used: signed(charge - phys.used_bytes), ..Space::default() };
                old_parent.did_use(Used::Child, used.negated());
                old_parent.did_use(Used::ChildRsrv, extra.negated());
                if let Some(head) = dir.head() {
                    pool.core().log_internal_ds("rename", (from, head.object), format!("-> {to}"), &tx);
                }
                dir.attach_to(&parent, &last);
                dir.change(|p| p.parent_obj = parent.object.0);
                parent.did_use(Used::Child, used);
                parent.did_use(Used::ChildRsrv, extra);
                push_props(&dir);
                Ok(())
            })
        })
        .await
    }
}

fn is_below(dir: &Rc<Dir>, above: &Rc<Dir>) -> bool {
    let mut at = Some(dir.clone());
    while let Some(d) = at {
        if Rc::ptr_eq(&d, above) {
            return true;
        }
        at = d.parent();
    }
    false
}

/// Pushes effective properties to the open object sets of a directory and all below it.
fn push_props(dir: &Rc<Dir>) {
    for d in dir.subtree() {
        if let Some(head) = d.head() {
            head.push_props();
        }
    }
}
