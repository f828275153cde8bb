//! The folder of kstats (`--kstat DIR`): the tree of [`admin::kstat`] as files, through FUSE.
//!
//! It has a thread and an engine of its own, so that a pool whose engine is busy keeps nobody from
//! reading what others count, and a program that reads a lot keeps no pool from its work. The
//! thread waits for the end of its daemon: when the handle is dropped the folder is unmounted, also
//! if it is in use, and open files give errors from then on. A folder that a killed daemon left is
//! taken away before the next one is mounted.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use admin::fs::places::{check_real_place, clear_dead_mounts, path_blocking};
use admin::kstat::{Node, Question, waits};
use admin::pool_set::PoolSet;
use base::{Error, ErrorKind, Nanos, Result};
use fuse::{TextNode, TextSource, mount_texts};
use host::{Engine, EngineConfig};
use rt::{LocalBoxFuture, Rt};

/// Source and type in the list of mounts.
const NAME: &str = "kstat";

/// Tries to make the place a folder, and the time between.
const MAKE_TRIES: u32 = 20;
const MAKE_PAUSE: Nanos = Nanos::from_ms(20);

/// The mounted folder.
pub(crate) struct KstatFolder {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KstatFolder {
    /// Mounts the kstats of `pools` at `at`, which is made if it is not there.
    pub(crate) fn mount(pools: &Arc<PoolSet>, at: &Path) -> Result<KstatFolder> {
        let fail = |e: Error| e.at(format!("kstats cannot be shown at '{}'", at.display()));
        let (stop, stopped) = mpsc::channel::<()>();
        let (said, says) = mpsc::channel::<Result<()>>();
        let (pools, place) = (pools.clone(), at.to_path_buf());
        let run = move || {
            let ended = run(pools, place, stopped, &said);
            // Nobody hears it if the folder was mounted.
            let _ = said.send(ended);
        };
        let thread = std::thread::Builder::new().name("weir-kstat".into()).spawn(run);
        let thread = thread.map_err(|e| fail(Error::new(ErrorKind::Io, format!("no thread for it: {e}"))))?;
        let answer = says.recv().unwrap_or_else(|_| Err(Error::new(ErrorKind::Interrupted, "its thread has ended")));
        answer.map_err(fail)?;
        Ok(KstatFolder { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for KstatFolder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves the folder until the other end of `stopped` is gone; `said` hears when it is mounted.
fn run(pools: Arc<PoolSet>, at: PathBuf, stopped: mpsc::Receiver<()>, said: &mpsc::Sender<Result<()>>) -> Result<()> {
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        // The mount of a daemon that was just killed may die a moment later.
        let mut tries = 0;
        while let Err(e) = make_place(&rt, &at).await {
            tries += 1;
            if tries == MAKE_TRIES {
                return Err(e);
            }
            rt.sleep(MAKE_PAUSE).await;
        }
        let mounted = mount_texts(&rt, NAME, Rc::new(Kstats(pools)), &at).await?;
        let _ = said.send(Ok(()));
        // An error when the handle is dropped.
        let _ = host::blocking(move || stopped.recv()).await;
        mounted.unmount(true, true).await
    })
}

/// Clears what a killed daemon left at the place, and makes it a folder.
async fn make_place(rt: &Rt, at: &Path) -> Result<()> {
    // Of no pool: only what is in the way.
    clear_dead_mounts("", Some(at)).await?;
    let place = at.to_path_buf();
    let make = move || {
        check_real_place(&place)?;
        let made = std::fs::create_dir_all(&place);
        made.map_err(|e| Error::new(ErrorKind::Io, format!("the folder cannot be made: {e}")))
    };
    path_blocking(rt, at, make).await?
}

/// The tree of kstats. A look at it that waits for pools is on a thread of its own.
struct Kstats(Arc<PoolSet>);

fn node(n: Node) -> TextNode {
    TextNode { is_folder: n == Node::Folder, mode: n.mode() }
}

impl Kstats {
    fn ask<T: Send + 'static>(
        &self,
        waits: bool,
        f: impl FnOnce(&PoolSet) -> Result<T> + Send + 'static,
    ) -> LocalBoxFuture<'_, Result<T>> {
        let pools = self.0.clone();
        Box::pin(async move { if waits { host::blocking(move || f(&pools)).await? } else { f(&pools) } })
    }
}

impl TextSource for Kstats {
    fn find(&self, path: String) -> LocalBoxFuture<'_, Result<Option<TextNode>>> {
        self.ask(waits(&path, Question::Node), move |pools| Ok(pools.kstat_node(&path)?.map(node)))
    }
    fn list(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<(String, TextNode)>>> {
        let named = |(name, n): (String, Node)| (name, node(n));
        self.ask(waits(&path, Question::Names), move |pools| {
            Ok(pools.kstat_names(&path)?.into_iter().map(named).collect())
        })
    }
    fn read(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
        self.ask(waits(&path, Question::Text), move |pools| pools.kstat_text(&path))
    }
    fn write(&self, path: String, data: Vec<u8>) -> LocalBoxFuture<'_, Result<()>> {
        self.ask(true, move |pools| {
            let text = std::str::from_utf8(&data).map_err(|_| Error::invalid("what was written is no text"))?;
            pools.kstat_write(&path, text)
        })
    }
}
