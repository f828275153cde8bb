//! Scrub and resilver: commands, views, and the names of damaged files.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dsl::Dataset;
use ondisk::feature::FeatureId;
use ondisk::scan::{ScanFunc, ScanState};
use ondisk::vdev_config::VdevKind;
use spa::{ScrubRange, WorkKind, WorkState};
use zpl::{MountOpts, Zfs};

use crate::engine::PoolEngine;
use crate::request::{ScrubAction, ScrubOf};
use crate::view::{ActivityView, ErrorScrubView, ScanView};

/// A dataset with damaged objects; without the [`Zfs`] it has no paths.
type OpenDamaged = (Rc<Dataset>, Option<Rc<Zfs>>);

/// Names in a view at most.
const NAMES_MAX: usize = 10_000;

impl PoolEngine {
    /// `zpool scrub`, `-p`, `-s`; `of` is for one that begins.
    pub async fn scrub(&self, action: ScrubAction, of: ScrubOf) -> Result<()> {
        let range = match of {
            ScrubOf::All | ScrubOf::Errors => ScrubRange::All,
            ScrubOf::SinceLast => ScrubRange::SinceLast,
            ScrubOf::Between { from, until } => ScrubRange::Between { from, until },
        };
        let (pool, name) = (&self.pool, self.pool.name());
        let start = async || match of {
            ScrubOf::Errors => pool.scan().start_error_scrub().await,
            _ => pool.scan().start_scrub_of(range).await,
        };
        if action == ScrubAction::Start {
            pool.devices().reopen_lost().await?;
        }
        let (what, result) = match action {
            ScrubAction::Start => ("scrub", start().await),
            ScrubAction::Pause => ("pause scrubbing", pool.scan().pause_scrub().await),
            ScrubAction::Stop => ("cancel scrubbing", pool.scan().stop_scrub().await),
        };
        result.map_err(|e| Error::new(e.kind(), format!("cannot {what} {name}: {e}")))
    }

    /// `zpool resilver`.
    pub fn resilver(&self) -> Result<()> {
        if self.pool.is_readonly() {
            let why = format!("cannot restart resilver of {0}: pool '{0}' is imported read-only", self.pool.name());
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        if !self.pool.dsl().features().is_enabled(FeatureId::ResilverDefer) {
            let why = format!(
                "cannot restart resilver of {0}: 'resilver_defer' is not enabled: 'zpool set feature@resilver_defer=enabled \
                 {0}' enables it",
                self.pool.name()
            );
            return Err(Error::unsupported(why));
        }
        self.pool.scan().restart_resilver();
        Ok(())
    }

    /// The activities of `zpool wait`, in its order. Paused or suspended work is not busy.
    pub fn activity(&self) -> Vec<ActivityView> {
        let pool = &self.pool;
        let scan = pool.scan().status();
        let running = scan.phys.state == ScanState::Scanning && scan.paused_at == 0;
        let scanning = |func: ScanFunc| running && scan.phys.func == func;
        let to_scan = scan.phys.to_examine.saturating_sub(scan.issued);
        let works = |kind: WorkKind| {
            let mut left = None;
            for leaf in pool.tree().leaves() {
                if let Some(w) =
                    pool.devices().works().get(leaf.guid(), kind).filter(|w| w.state() == WorkState::Active)
                {
                    let rest = u128::from(leaf.dev.size()) * u128::from(100 - w.percent().min(100)) / 100;
                    left = Some(left.unwrap_or(0) + rest as u64);
                }
            }
            left
        };
        // A requested resilver counts: it begins with one of the next txgs.
        let resilvering = scanning(ScanFunc::Resilver) || pool.scan().is_resilver_pending();
        // Of a scrub of errors only the blocks are known, not their bytes.
        let on_errors = scan.errors.is_running() && !scan.errors.paused && !running;
        let on_errors = on_errors.then_some(scan.errors.to_examine);
        let replacing = pool.mos_config().vdev_tree.iter().any(|c| c.kind == VdevKind::Replacing);
        let discarding = pool.discarding();
        let expanding = pool.devices().expander().left();
        let freeing = Some(pool.dsl().freeing()).filter(|n| *n > 0);
        [
            ("discard", discarding),
            ("free", freeing),
            ("initialize", works(WorkKind::Initialize)),
            ("replace", replacing.then_some(to_scan)),
            ("remove", pool.devices().evacuator().left()),
            ("resilver", resilvering.then_some(to_scan)),
            ("scrub", scanning(ScanFunc::Scrub).then_some(to_scan).or(on_errors)),
            ("trim", works(WorkKind::Trim)),
            ("raidz_expand", expanding),
        ]
        .map(|(name, left)| ActivityView { name: name.into(), busy: left.is_some(), left: left.unwrap_or(0) })
        .into()
    }

    /// The last or running scan.
    pub(crate) fn scan_view(&self) -> Option<ScanView> {
        let s = self.pool.scan().status();
        let function = match s.phys.func {
            ScanFunc::None => return None,
            ScanFunc::Scrub => "SCRUB",
            ScanFunc::Resilver => "RESILVER",
        };
        let state = match s.phys.state {
            ScanState::None => return None,
            ScanState::Scanning => "SCANNING",
            ScanState::Finished => "FINISHED",
            ScanState::Canceled => "CANCELED",
        };
        Some(ScanView {
            function: function.into(),
            state: state.into(),
            start: s.phys.start_time,
            end: s.phys.end_time,
            to_examine: s.phys.to_examine,
            examined: s.phys.examined,
            issued: s.issued,
            processed: s.phys.processed,
            errors: s.phys.errors,
            pass_start: s.pass_start,
            paused_at: s.paused_at,
            pass_paused: s.pass_paused,
            pass_examined: s.pass_examined,
            pass_issued: s.pass_issued,
            now: self.pool.rt().wall_clock().secs.max(0) as u64,
        })
    }

    /// The last or running scrub of errors.
    pub(crate) fn error_scrub_view(&self) -> Option<ErrorScrubView> {
        let s = self.pool.scan().status();
        let state = match s.errors.state {
            ScanState::None => return None,
            ScanState::Scanning => "ERRORSCRUBBING",
            ScanState::Finished => "FINISHED",
            ScanState::Canceled => "CANCELED",
        };
        Some(ErrorScrubView {
            state: state.into(),
            start: s.errors.start_time,
            end: s.errors.end_time,
            examined: s.errors.examined,
            to_examine: s.errors.to_examine,
            paused_at: s.errors_paused_at,
        })
    }

    /// The damaged files of scans: a path in a mounted file system, `fs:/path` in others,
    /// `fs:<0x7>` without a path, `<metadata>:<0x7>` for the pool's own.
    pub(crate) async fn damaged_names(&self) -> Vec<String> {
        let blocks = self.pool.scan().damaged_blocks().await.unwrap_or_default();
        let objects: BTreeSet<(u64, u64)> = blocks.iter().map(|b| (b.objset, b.object)).collect();
        let mut open: Option<(u64, Option<OpenDamaged>)> = None;
        let mut out = Vec::new();
        for (objset, object) in objects.into_iter().take(NAMES_MAX) {
            if objset == 0 {
                out.push(format!("<metadata>:<{object:#x}>"));
                continue;
            }
            if open.as_ref().is_none_or(|(at, _)| *at != objset) {
                if let Some((_, Some((_, Some(fs))))) = open.take() {
                    let _ = fs.unmount().await;
                }
                open = Some((objset, self.open_damaged(objset).await));
            }
            let found = open.as_ref().and_then(|(_, found)| found.as_ref());
            let Some((ds, fs)) = found else {
                out.push(format!("<{objset:#x}>:<{object:#x}>"));
                continue;
            };
            let path = match fs {
                Some(fs) => fs.path_of(ObjectId(object)).await.ok(),
                None => None,
            };
            let path = path.map(|p| String::from_utf8_lossy(&p).into_owned());
            out.push(match (path, self.mounts.path_of(&ds.name())) {
                (Some(path), Some(mount)) => format!("{}{path}", mount.display()),
                (Some(path), None) => format!("{}:{path}", ds.name()),
                (None, _) => format!("{}:<{object:#x}>", ds.name()),
            });
        }
        if let Some((_, Some((_, Some(fs))))) = open {
            let _ = fs.unmount().await;
        }
        out
    }

    async fn open_damaged(&self, objset: u64) -> Option<OpenDamaged> {
        let dsl = self.pool.dsl();
        let mut found = dsl.all().into_iter().find(|d| d.object.0 == objset);
        if found.is_none() {
            for head in dsl.all() {
                let snaps = dsl.snapshots(&head).await.unwrap_or_default();
                found = snaps.into_iter().find(|d| d.object.0 == objset);
                if found.is_some() {
                    break;
                }
            }
        }
        let ds = found?;
        let opts = MountOpts { readonly: true, redacted: true, ..MountOpts::default() };
        let fs = Zfs::open(&ds, opts).await.ok();
        Some((ds, fs))
    }
}
