//! The context of a running request, and the checks and history records around its work.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use serde_json::Value;

use super::inlet::{Inlet, inlet};
use super::stream::{Outlet, Stream, outlet};
use super::{AnyRequest, Changes, Identity, needs};
use crate::engine::{PoolCall, PoolEngine, Progress};
use crate::fs::ops::Maker;
use crate::pool_set::{PoolSet, Running, join_errors};
use crate::programs::desk::{Counter, Guest, desk};

/// The sender of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user. Groups are known of those that come through the public socket.
    pub user: Identity,
    /// Through the public socket: private details are left out of the reply, and what changes
    /// something needs permissions.
    pub public: bool,
}

impl Caller {
    /// Who makes a dataset for this request.
    pub(crate) fn maker(&self) -> Maker {
        let Identity { uid, gid, .. } = self.user;
        Maker { uid, owner: self.public.then_some((uid, gid)) }
    }

    /// The user, if permissions limit what it may do.
    pub(crate) fn limited(&self) -> Option<Identity> {
        self.public.then(|| self.user.clone())
    }
}

/// The context of a request.
pub struct Cx<'a> {
    /// The pools, and their process.
    pub(crate) pools: &'a Arc<PoolSet>,
    /// Its progress.
    pub(crate) progress: &'a Arc<Progress>,
    /// The sender of a request.
    pub(crate) caller: Caller,
    /// Its stream, if it has one.
    stream: Option<Stream>,
    /// The record for histories; none without a command line.
    record: Option<Record>,
}

/// A command line to record in histories.
struct Record {
    command: String,
    uid: u64,
    changes: Changes,
    /// The visit to the engine has checked that the pool is not suspended.
    checked: Cell<bool>,
    /// The visit to the engine has recorded the line.
    logged: Cell<bool>,
}

impl Record {
    fn new(command: String, uid: u64, changes: Changes) -> Record {
        Record { command, uid, changes, checked: Cell::new(false), logged: Cell::new(false) }
    }

    /// Whether this visit to the pool must check that it is not suspended; only the first one must.
    fn checks(&self, pool: &str) -> bool {
        matches!(&self.changes, Changes::Pool(name) if name == pool) && !self.checked.replace(true)
    }

    /// The line that this visit to the pool records; only the first one does.
    fn line(&self, pool: &str) -> Option<(String, u64)> {
        let here = matches!(&self.changes, Changes::Pool(name) | Changes::Resumes(name) if name == pool);
        (here && !self.logged.replace(true)).then(|| (self.command.clone(), self.uid))
    }
}

/// Performs a request. `command` is its command line: the pools that it changes are checked before,
/// and record the line in their history. Its stream is closed afterwards.
pub fn perform(
    pools: &Arc<PoolSet>,
    request: Box<dyn AnyRequest>,
    command: Option<String>,
    caller: Caller,
    progress: &Arc<Progress>,
    stream: Option<Stream>,
) -> Result<Value> {
    if request.waits_for_pools() {
        pools.wait_ready()?;
    }
    if caller.public {
        needs::check(pools, &*request, &caller.user)?;
    }
    let changes = request.changes();
    let record = command.map(|command| Record::new(command, u64::from(caller.user.uid), changes.clone()));
    let cx = Cx { pools, progress, caller, stream, record };
    if cx.record.is_none() {
        return request.run(&cx);
    }
    let there = || pools.all_running().iter().map(|r| r.name.clone()).collect::<BTreeSet<String>>();
    match changes {
        Changes::Nothing | Changes::Unrecorded => request.run(&cx),
        Changes::Pool(name) | Changes::Resumes(name) => {
            let answer = request.run(&cx)?;
            cx.log_command(&BTreeSet::from([name]));
            Ok(answer)
        }
        Changes::Pools(names) => {
            for running in names.iter().filter_map(|name| pools.running(name)) {
                running.thread.with_pool(|e| async move { check_not_suspended(&e) })?;
            }
            let answer = request.run(&cx)?;
            cx.log_command(&names);
            Ok(answer)
        }
        Changes::Exports(names) => {
            cx.log_command(&names);
            request.run(&cx)
        }
        Changes::Imports => {
            let before = there();
            let answer = request.run(&cx)?;
            cx.log_command(&there().difference(&before).cloned().collect());
            Ok(answer)
        }
    }
}

impl Cx<'_> {
    /// Records the line in the histories of these pools, unless a visit has done so.
    fn log_command(&self, pools: &BTreeSet<String>) {
        let Some(record) = self.record.as_ref().filter(|r| !r.logged.replace(true)) else { return };
        for running in pools.iter().filter_map(|name| self.pools.running(name)) {
            let (command, uid) = (record.command.clone(), record.uid);
            self.pools.note_command(&command);
            // A failed record does not undo the command.
            let _ = running.thread.with_pool(move |e| async move {
                e.pool.log_command(&command, uid);
                Ok(())
            });
        }
    }

    /// Works on a pool, in one visit to its engine. If it is the pool that the request changes
    /// ([`Changes::Pool`]) the visit also checks that it is not suspended, and records the command
    /// line in its history when the work is done.
    pub(crate) fn on<T, F, Fut>(&self, running: &Running, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.begin(running, work).wait()
    }

    /// As [`Cx::on`], without the wait for the result.
    fn begin<T, F, Fut>(&self, running: &Running, work: F) -> PoolCall<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let checks = self.record.as_ref().is_some_and(|r| r.checks(&running.name));
        let line = self.record.as_ref().and_then(|r| r.line(&running.name));
        let pools = self.pools.clone();
        running.thread.begin_with_pool(move |e| async move {
            if checks {
                check_not_suspended(&e)?;
            }
            let out = work(e.clone()).await?;
            if let Some((command, uid)) = line {
                pools.note_command(&command);
                e.pool.log_command(&command, uid);
            }
            Ok(out)
        })
    }

    /// As [`Cx::on`], with the pool of that name.
    pub(crate) fn on_pool<T, F, Fut>(&self, pool: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.on(&*self.pools.need_running(pool)?, work)
    }

    /// As [`Cx::on_pool`], with work that writes to the request's stream.
    pub(crate) fn report_on_pool<T, F, Fut>(&self, pool: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>, Outlet) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let stream = self.stream()?;
        let running = self.pools.need_running(pool)?;
        let (outlet, source) = outlet();
        let call = self.begin(&running, move |e| work(e, outlet));
        let carried = stream.carry(source);
        let answer = call.wait();
        // What stopped the carrier is why the work failed.
        carried.and(answer)
    }

    /// As [`Cx::on_pool`], with work that takes bytes from the request's stream.
    pub(crate) fn fill_pool<T, F, Fut>(&self, pool: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>, Inlet) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let stream = self.stream()?;
        let running = self.pools.need_running(pool)?;
        let (inlet, feeder) = inlet();
        let call = self.begin(&running, move |e| work(e, inlet));
        stream.fill(feeder);
        call.wait()
    }

    /// As [`Cx::on_pool`], with work on the engine that serves work on this thread, until that
    /// ends or the other end of the request's stream is closed. The answer is that of this thread.
    pub(crate) fn beside_pool<T, F, Fut>(&self, pool: &str, serve: F, here: impl FnOnce(Guest<'_>) -> T) -> Result<T>
    where
        F: FnOnce(Rc<PoolEngine>, Counter) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + 'static,
    {
        let stream = self.stream()?;
        let running = self.pools.need_running(pool)?;
        let is_gone = || stream.is_closed();
        let (guest, counter) = desk(&is_gone);
        let call = self.begin(&running, move |e| serve(e, counter));
        let answer = here(guest);
        call.wait().map(|()| answer)
    }

    /// The stream of the request.
    pub(crate) fn stream(&self) -> Result<&Stream> {
        self.stream.as_ref().ok_or_else(|| Error::invalid("the request cannot be served: it came without its stream"))
    }

    /// As [`Cx::on`], with the pool of a dataset, or of a path in one of its mounts.
    pub(crate) fn on_dataset<T, F, Fut>(&self, name: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.on(&*self.pools.pool_of(name)?, work)
    }

    /// Works on datasets; neighbours of one pool share a visit to its engine. All are tried; the
    /// error joins those of all that failed.
    pub(crate) fn on_datasets<T, F, Fut>(&self, names: Vec<String>, work: F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Fn(Rc<PoolEngine>, String) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<Vec<T>>> + 'static,
    {
        let mut groups: Vec<(Result<Arc<Running>>, Vec<String>)> = Vec::new();
        for name in names {
            let found = self.pools.pool_of(&name);
            match (groups.last_mut(), &found) {
                (Some((Ok(last), list)), Ok(running)) if Arc::ptr_eq(last, running) => list.push(name),
                _ => groups.push((found, vec![name])),
            }
        }
        let (mut out, mut errors) = (Vec::new(), Vec::new());
        for (found, names) in groups {
            let work = work.clone();
            let visit = |running: Arc<Running>| {
                self.on(&running, move |e| async move {
                    let (mut out, mut errors) = (Vec::new(), Vec::new());
                    for name in names {
                        match work(e.clone(), name).await {
                            Ok(more) => out.extend(more),
                            Err(e) => errors.push(e),
                        }
                    }
                    join_errors(errors).map(|()| out)
                })
            };
            match found.and_then(visit) {
                Ok(more) => out.extend(more),
                Err(e) => errors.push(e),
            }
        }
        join_errors(errors).map(|()| out)
    }

    /// Works on each of these pools; a missing pool or a failure does not stop the others.
    pub(crate) fn on_pools<F, Fut>(&self, names: &[String], work: F) -> Result<()>
    where
        F: Fn(Rc<PoolEngine>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<()>> + 'static,
    {
        let done = names.iter().map(|name| self.on_pool(name, work.clone()));
        join_errors(done.filter_map(Result::err).collect())
    }
}

/// Fails for a suspended pool: a change would wait for its devices.
pub(crate) fn check_not_suspended(e: &PoolEngine) -> Result<()> {
    match e.pool.suspended() {
        Some(_) => {
            let why = "pool I/O is currently suspended: see 'zpool status', 'zpool clear' tries again";
            Err(Error::new(ErrorKind::Suspended, format!("pool '{}': {why}", e.pool.name())))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_visit_checks_and_leaves_the_line() {
        let record = |changes| Record::new("zpool set".to_string(), 7, changes);
        let line = Some(("zpool set".to_string(), 7));
        let one = record(Changes::Pool("tank".into()));
        assert!(!one.checks("dozer") && one.line("dozer").is_none());
        assert!(one.checks("tank") && !one.checks("tank"));
        assert_eq!((one.line("tank"), one.line("tank")), (line.clone(), None));
        // `zpool clear` must reach a suspended pool.
        let resumes = record(Changes::Resumes("tank".into()));
        assert!(!resumes.checks("tank"));
        assert_eq!(resumes.line("tank"), line);
        // Several pools are checked before, and record the line afterwards.
        let several = record(Changes::Pools(BTreeSet::from(["dozer".to_string(), "tank".to_string()])));
        assert!(!several.checks("tank") && several.line("tank").is_none());
    }
}
