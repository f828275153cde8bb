//! `zpool split`: [`spa`] makes the new pool on the engine thread of the old one, and leaves it
//! exported; with an alternate root it is imported on a thread of its own then.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use spa::Bias;

use crate::engine::{PoolEngine, Progress};
use crate::keeper::KnownPool;
use crate::pool::create::stored_props;
use crate::pool::devices::pool_device_name;
use crate::pool::props::{Wanted, When};
use crate::pool_set::PoolSet;
use crate::request::PoolSplit;
use crate::view::{Imported, SplitDone};

/// Most bytes that the cache of a pool may hold that is only written once.
const CACHE_MAX: u64 = 16 << 20;

impl PoolSet {
    /// `zpool split`.
    pub(crate) fn pool_split(&self, request: PoolSplit, progress: &Arc<Progress>) -> Result<SplitDone> {
        let place = format!("Unable to split {}", request.pool);
        let wanted = Wanted::parse(&request.props, When::Import).map_err(|e| e.at(&place))?;
        if wanted.readonly {
            return Err(Error::invalid("property readonly can only be set at import time").at(place));
        }
        let (name, mount) = (request.new_name.clone(), request.mount);
        let running = self.need_running(&request.pool)?;
        spa::check_pool_name(&name).map_err(|e| e.at(&place))?;
        let _namespace = self.namespace();
        if self.running(&name).is_some() && !request.dry_run {
            return Err(Error::new(ErrorKind::Exists, "a pool with that name already exists").at(place));
        }
        let mut opts = self.engine_opts(&name, 1);
        opts.arc_max = opts.arc_max.min(CACHE_MAX);
        let (pool_props, altroot) = (Wanted { altroot: None, ..wanted }, request.altroot.clone());
        let split = running.thread.with_pool(move |e| async move {
            let named: Vec<String> = request.devices.iter().map(|d| pool_device_name(&e.pool, d)).collect();
            if request.dry_run {
                return Ok((None, words(&e.pool.devices().choose_split(&named)?, request.guids), Vec::new()));
            }
            let settings = async |new: &std::rc::Rc<spa::Pool>| {
                if pool_props == Wanted::default() {
                    return Ok(());
                }
                PoolEngine::new(new.clone(), None, stored_props(new).await?).set_pool_props(pool_props).await
            };
            let (guid, leaves) = e.pool.split(&request.new_name, &named, opts, settings).await?;
            let paths = leaves.into_iter().map(|leaf| leaf.path).collect();
            Ok((Some((guid.0, paths)), Vec::new(), e.refresh_devices()))
        });
        let (new, layout, left) = split.map_err(|e| e.at(&place))?;
        let mut out = SplitDone { layout, ..SplitDone::default() };
        let Some((guid, devices)) = new else { return Ok(out) };
        self.keeper.set_devices(running.guid(), left)?;
        let known = KnownPool { name: name.clone(), guid, devices, altroot, ..KnownPool::default() };
        self.keeper.remember(known.clone())?;
        if known.altroot.is_some() {
            let done = self.import_last(&known, &known.devices, &spa::ImportOpts::default(), mount, progress)?;
            out.imported =
                Imported { pools: vec![name], notices: done.notices, unmounted: done.failures, ..Imported::default() };
        }
        Ok(out)
    }
}

/// The leaves as `zpool create` would take them.
fn words(leaves: &[spa::SplitLeaf], guids: bool) -> Vec<String> {
    let mut out = Vec::new();
    for (bias, word) in [(Bias::Normal, None), (Bias::Dedup, Some("dedup")), (Bias::Special, Some("special"))] {
        let of_bias: Vec<_> = leaves.iter().filter(|leaf| leaf.bias == bias).collect();
        out.extend(word.filter(|_| !of_bias.is_empty()).map(str::to_string));
        out.extend(of_bias.into_iter().map(|leaf| if guids { leaf.guid.to_string() } else { leaf.path.clone() }));
    }
    out
}
