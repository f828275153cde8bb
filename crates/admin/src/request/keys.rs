//! Requests about keys of encrypted datasets.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Identity, Kind, Need, Request, Rights, Secret};
use crate::view::KeyView;

/// The requests of this file.
pub(super) const KINDS: &[Kind] =
    &[Kind::of::<Keys>(), Kind::of::<LoadKey>(), Kind::of::<UnloadKey>(), Kind::of::<ChangeKey>()];

/// Encrypted datasets with the state of their keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Keys {
    /// The datasets; all pools if empty.
    pub names: Vec<String>,
    /// The encryption roots at and below them.
    pub recursive: bool,
}

impl Request for Keys {
    const NAME: &'static str = "Keys";
    const TITLE: &'static str = "zfs load-key";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<KeyView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let perms = ["load-key", "change-key"].map(str::to_string);
        self.names.iter().map(|name| Need::Any(name.clone(), perms.to_vec())).collect()
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<KeyView>> {
        let names = if self.names.is_empty() { cx.pools.running_names() } else { self.names };
        let mut all: Vec<KeyView> = Vec::new();
        for name in names {
            let (running, recursive) = (cx.pools.pool_of(&name)?, self.recursive);
            all.extend(cx.on(&running, move |e| async move { e.keys(&name, recursive).await })?);
        }
        Ok(all)
    }
}

/// `zfs load-key`: load the key of an encryption root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoadKey {
    /// The dataset.
    pub name: String,
    /// Its key.
    pub key: Secret,
    /// Only check whether it is the right one.
    pub check_only: bool,
}

impl Request for LoadKey {
    const NAME: &'static str = "LoadKey";
    const TITLE: &'static str = "zfs load-key";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.name, &["load-key"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        let LoadKey { name, key, check_only } = self;
        cx.on(&running, move |e| async move { e.load_key(&name, key, check_only).await })
    }
}

/// `zfs unload-key`: forget the key of an encryption root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnloadKey {
    /// The dataset.
    pub name: String,
}

impl Request for UnloadKey {
    const NAME: &'static str = "UnloadKey";
    const TITLE: &'static str = "zfs unload-key";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.name, &["load-key"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.unload_key(&self.name).await })
    }
}

/// `zfs change-key`: give a dataset another key, or its parent's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeKey {
    /// The dataset.
    pub name: String,
    /// keyformat, keylocation, pbkdf2iters.
    pub props: Vec<(String, String)>,
    /// The new key; none to inherit.
    pub key: Option<Secret>,
}

impl Request for ChangeKey {
    const NAME: &'static str = "ChangeKey";
    const TITLE: &'static str = "zfs change-key";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.name, &["change-key"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        let ChangeKey { name, props, key } = self;
        cx.on(&running, move |e| async move { e.change_key(&name, &props, key).await })
    }
}
