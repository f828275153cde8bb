//! Requests about permissions of users: `zfs allow` and `zfs unallow`.

use base::Result;
use dsl::deleg::permission;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Identity, Kind, Need, Request, Rights};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<Allowed>(), Kind::of::<Allow>(), Kind::of::<Unallow>()];

/// What somebody gets or loses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Who, and where it counts: the key under which it is stored (`dsl::deleg`).
    pub who: String,
    /// Permissions, or names of sets; none: all that they have, when it is taken away.
    pub perms: Option<Vec<String>>,
}

/// What is granted at a dataset.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllowedView {
    /// The dataset.
    pub name: String,
    /// Permissions, or names of sets, under the keys of their holders.
    pub grants: Vec<(String, Vec<String>)>,
}

/// `zfs allow DATASET`: what is granted at a dataset and at those above it, in this order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allowed {
    /// The dataset.
    pub name: String,
}

impl Request for Allowed {
    const NAME: &'static str = "Allowed";
    const TITLE: &'static str = "zfs allow";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<AllowedView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<AllowedView>> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.allowed(&self.name).await })
    }
}

/// `zfs allow`: grant permissions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allow {
    /// The dataset.
    pub name: String,
    /// What is granted.
    pub grants: Vec<Grant>,
}

impl Request for Allow {
    const NAME: &'static str = "Allow";
    const TITLE: &'static str = "zfs allow";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    /// Who has `allow` passes on what he has himself, but not that.
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let given = || self.grants.iter().flat_map(|g| g.perms.iter().flatten());
        if given().any(|perm| perm == "allow") {
            return vec![Need::Owner];
        }
        let mut perms = vec!["allow".to_string()];
        perms.extend(given().map(|perm| permission(perm).unwrap_or(perm).to_string()));
        vec![Need::On(self.name.clone(), perms)]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.allow(&self.name, self.grants).await })
    }
}

/// `zfs unallow`: take permissions away.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unallow {
    /// The dataset.
    pub name: String,
    /// What is taken away.
    pub grants: Vec<Grant>,
    /// And below.
    pub recursive: bool,
}

impl Request for Unallow {
    const NAME: &'static str = "Unallow";
    const TITLE: &'static str = "zfs unallow";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    /// Who has `allow` takes from himself only.
    fn needs(&self, who: &Identity) -> Vec<Need> {
        let own = |g: &Grant| {
            let (kind, id) = (g.who.get(..1).unwrap_or_default(), g.who.get(3..).unwrap_or_default());
            kind.eq_ignore_ascii_case("u") && id == who.uid.to_string()
        };
        if !self.grants.iter().all(own) {
            return vec![Need::Owner];
        }
        vec![Need::on_or_below(&self.name, &["allow"], self.recursive)]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.unallow(&self.name, self.grants, self.recursive).await })
    }
}
