//! Planted bugs, which profiles must find: those of the intent log (`zil`), of redaction
//! (`dsl`), of cloned blocks, dedup tables, expansions, removals and splits (`spa`), of blocks
//! (`zio`), of the space of owners (`dmu`) and of cache devices (`arc`).

/// What plants the bug of that name, if there is one, on the thread that calls it; none, with a
/// message, if this build has no bugs.
pub fn planter(name: Option<&str>) -> Option<impl Fn() + Sync + use<>> {
    #[cfg(feature = "planted-bugs")]
    {
        let of_logs = zil::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        let of_streams = dsl::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        let of_pools = spa::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        let of_owners = dmu::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        let of_blocks = zio::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        let of_caches = arc::bugs::Bug::ALL.iter().find(|(n, _)| Some(*n) == name).map(|b| b.1);
        Some(move || {
            arc::bugs::plant(of_caches);
            zio::bugs::plant(of_blocks);
            dmu::bugs::plant(of_owners);
            spa::bugs::plant(of_pools);
            zil::bugs::plant(of_logs);
            dsl::bugs::plant(of_streams);
        })
    }
    #[cfg(not(feature = "planted-bugs"))]
    match name {
        Some(_) => {
            eprintln!("--bug needs a build with --features planted-bugs");
            None
        }
        None => Some(|| ()),
    }
}
