//! Tunables of the allocator, with OpenZFS's defaults (`metaslab.c`) except where noted at a field.

use ondisk::vdev_config::MetaslabCounts;

use crate::pick::Method;

/// Tunables of the allocator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocTunables {
    /// How many metaslabs new vdevs have.
    pub counts: MetaslabCounts,
    /// `zfs_active_allocator`: how a metaslab chooses a segment.
    pub method: Method,
    /// `metaslab_aliquot`: bytes that a group gets before the rotor moves on, scaled by how free
    /// its vdev is compared with its class.
    pub aliquot: u64,
    /// `metaslab_df_max_search`: how far from the cursor first fit searches, in bytes.
    pub df_max_search: u64,
    /// `metaslab_min_search_count`: but at least this many segments.
    pub min_search_count: usize,
    /// `metaslab_df_alloc_threshold`: best fit instead of first fit when the largest free segment
    /// is smaller than this.
    pub df_alloc_threshold: u64,
    /// `metaslab_df_free_pct`: best fit when less than this is free, in percent.
    pub df_free_pct: u64,
    /// `zfs_metaslab_find_max_tries`: metaslabs tried in a group before the search goes on to the
    /// next group.
    pub find_max_tries: usize,
    /// `zfs_metaslab_switch_threshold`: an active metaslab is deactivated when its largest free
    /// segments have shrunk by this many powers of two.
    pub switch_threshold: u32,
    /// `zfs_mg_fragmentation_threshold`: groups more fragmented than this, in percent, are skipped
    /// unless all are.
    pub mg_fragmentation_threshold: u8,
    /// `zfs_condense_pct`: a space map is rewritten when it is this long, in percent of its minimal
    /// form.
    pub condense_pct: u64,
    /// `zfs_metaslab_condense_block_threshold`, in bytes: and longer than this (4 blocks of 16
    /// KiB).
    pub condense_min_bytes: u64,
    /// `zfs_embedded_slog_min_ms`: a normal vdev with more metaslabs than this reserves one for the
    /// intent log (format page 14 section 1).
    pub embedded_slog_min_ms: u64,
    /// `metaslab_unload_delay`: txgs after which an idle metaslab is unloaded.
    pub unload_delay: u64,
    /// Memory of loaded metaslabs above which idle ones are unloaded at once, in bytes (OpenZFS:
    /// `zfs_metaslab_mem_limit`, 25 % of memory).
    pub memory_limit: usize,
}

impl Default for AllocTunables {
    fn default() -> AllocTunables {
        AllocTunables {
            counts: MetaslabCounts::default(),
            method: Method::Dynamic,
            aliquot: 1 << 20,
            df_max_search: 16 << 20,
            min_search_count: 100,
            df_alloc_threshold: 128 << 10,
            df_free_pct: 4,
            find_max_tries: 100,
            switch_threshold: 2,
            mg_fragmentation_threshold: 95,
            condense_pct: 200,
            condense_min_bytes: 64 << 10,
            embedded_slog_min_ms: 64,
            unload_delay: 32,
            memory_limit: 32 << 20,
        }
    }
}
