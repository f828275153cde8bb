//! The pages of `zpool`, in the order in which its help lists them.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        name: "zpool create",
        usage: &[
            "create [-fnd] [-o property=value] ... [-O file-system-property=value] ... [-m mountpoint] [-R root] [-t name] [--size size] <pool> <vdev> ...",
        ],
        text: "\
Makes a pool over files or block devices and mounts its root file system.

  <vdev>  a file or block device (a path, or a name in /dev) by itself, or a
          group: mirror, raidz, raidz1, raidz2, raidz3 or
          draid[parity][:<data>d][:<children>c][:<spares>s], and its devices.
          Vdevs after log, special or dedup serve that only; devices after
          spare and cache are hot spares and caches.
  --size  make files that do not exist, sparse, of this size (64M at least)
  -f      use devices that belong to an exported or foreign pool or that have
          another file system
  -n      check everything and show the layout, but write nothing
  -d      enable no features but those named with -o feature@x=enabled
  -o      a property of the pool: ashift, comment, failmode, autoexpand,
          compatibility (openzfs-2.1-linux: a pool for OpenZFS 2.1 too),
          feature@<name>=enabled|disabled ...
  -O      a property of the root file system: compression, recordsize, atime,
          mountpoint ..., encryption=on with keyformat=passphrase
  -m      where to mount it: a path, none, or legacy (default /<pool>)
  -R      an alternate root: stands before every mount point, this time only
  -t      the name until the export; on disk the pool is called <pool>

An ordinary user becomes the owner of the root directory. If anything fails,
nothing is left behind.
",
    },
    Page {
        name: "zpool add",
        usage: &["add [-fgLnP] [-o ashift=value] [--size size] <pool> <vdev> ..."],
        text: "\
Adds devices to a pool: vdevs as 'zpool create' takes them, spares and caches
among them. Data cannot be taken off them again; spares, caches and logs can be
removed.

  -f      also if the vdevs survive other losses than the pool's, or use
          devices that belong to an exported or foreign pool
  -n      check everything and show the layout, but change nothing
  -g, -L, -P
          with -n: guids for names, where links lead, full paths
  -o      ashift of the new vdevs
  --size  make files that do not exist, sparse, of this size
",
    },
    Page {
        name: "zpool attach",
        usage: &["attach [-fsw] [-o ashift=value] [--size size] <pool> <device> <new-device>"],
        text: "\
Makes a mirror of a device and a new one, or adds a side to its mirror. The new
device gets everything by a resilver.

  -f      use a device that belongs to an exported or foreign pool
  -s      rebuild it in the order of the space, not of the blocks: faster, on
          mirrors; a scrub follows, since nothing is verified on the way
  -w      wait for the resilver
  -o      ashift of the new device
  --size  make a file that does not exist, sparse, of this size
",
    },
    Page {
        name: "zpool replace",
        usage: &["replace [-fsw] [-o ashift=value] [--size size] <pool> <device> [<new-device>]"],
        text: "\
Has a new device take the place of another one, which may be gone: name it by
its guid then. Without a new device: what is at the path of the old one now. A
hot spare, distributed ones too, stands in for the device until one of the two
is detached. The old device leaves the pool when the resilver has ended.

  -f      use a device that belongs to an exported or foreign pool
  -s      rebuild it in the order of the space, not of the blocks: faster, on
          mirrors and draids; a scrub follows, since nothing is verified on the
          way
  -w      wait until then
  -o      ashift of the new device
  --size  make a file that does not exist, sparse, of this size
",
    },
    Page {
        name: "zpool detach",
        usage: &["detach <pool> <device>"],
        text: "\
Takes a device out of a mirror, gives up a replacement, or ends the use of a hot
spare. Refused where no other device has all that it has.
",
    },
    Page {
        name: "zpool remove",
        usage: &["remove [-npw] <pool> <device> ...", "remove -s <pool>"],
        text: "\
Removes hot spares that are not in use, caches, log devices, and single devices
and mirrors with data: what is on them is copied to the others in the
background. Pools with raidz cannot give up vdevs with data.

  -n  only tell how much memory the map of the copies would take
  -p  with -n: exact numbers
  -s  stop a removal that is under way: all stays where it was
  -w  wait until it is done
",
    },
    Page {
        name: "zpool trim",
        usage: &["trim [-w] [-r <rate>] [-c | -s] -a | <pool> [<device> ...]"],
        text: "\
Tells devices which space is free; on files that makes holes.

  -r      most bytes a second of each device, such as 100M
  -c      give up what runs
  -s      suspend what runs: 'zpool trim' goes on with it
  -w      wait until it is over
  -a      all pools
",
    },
    Page {
        name: "zpool initialize",
        usage: &["initialize [-w] [-c | -s | -u] -a | <pool> [<device> ...]"],
        text: "\
Writes a pattern over all free space of devices.

  -c      give up what runs
  -s      suspend what runs: 'zpool initialize' goes on with it
  -u      forget that devices were ever initialized; refused while one is
  -w      wait until it is over
  -a      all pools
",
    },
    Page {
        name: "zpool offline",
        usage: &["offline [-f] [-t] <pool> <device> ..."],
        text: "\
Takes devices out of use. They are neither read nor written until 'zpool
online'. Refused where the pool could not do without one.

  -f      declare them faulted, until 'zpool clear'; one that the pool could not
          do without is degraded and stays in use
  -t      until the next import only
",
    },
    Page {
        name: "zpool online",
        usage: &["online [-e] <pool> <device> ..."],
        text: "\
Brings devices back that were taken out of use. What was written meanwhile is
brought to them ('zpool status' tells how far that is).

  -e      use all of devices that have grown
",
    },
    Page {
        name: "zpool scrub",
        usage: &["scrub [-e | -C] [-s | -p] [-w] [-S <date>] [-E <date>] -a | <pool> ..."],
        text: "\
Reads everything in the pool, compares it with its checksums, and rewrites from
redundancy what is wrong. 'zpool status' tells how far it is and what it found.
It goes on after an export or a crash where it was.

  -p      pause; 'zpool scrub' goes on
  -s      stop
  -w      wait until it has ended
  -a      all pools
  -e      only the blocks that are known to be damaged ('zpool status -v');
          after a pause it goes on. The pool needs the feature head_errlog
  -C      only what no scrub has read since it was written: from the txg of the
          pool's property last_scrubbed_txg on
  -S, -E  only what was written from this date on, or until it, and some more
          on both sides: YYYY-MM-DD or 'YYYY-MM-DD HH:MM' of this time zone.
          Pools note dates since they have features of OpenZFS 2.4; what is
          older is read whole
",
    },
    Page {
        name: "zpool resilver",
        usage: &["resilver <pool> ..."],
        text: "\
Begins anew to bring to devices what was written while they were away. This
begins by itself when a device comes back; while one runs already, the device
waits for its end ('awaiting resilver'), unless this command begins it again.
",
    },
    Page {
        name: "zpool clear",
        usage: &["clear <pool> [<device>]"],
        text: "\
Forgets the errors that were counted for a device, or for all of the pool.
",
    },
    Page {
        name: "zpool split",
        usage: &["split [-gLlnP] [-o property=value] ... [-R root] <pool> <newpool> [<device> ...]"],
        text: "\
Makes a pool of one device of each mirror of a pool: with everything that was
written to it until now, its snapshots among it. The new pool has these devices,
and the last one of every other mirror; the old pool goes on with the rest. All
vdevs of the pool but logs have to be mirrors. Logs, caches and spares stay.

  -R  import the new pool with this alternate root; without it, it is left
      exported
  -l  with -R: ask for the keys of its encrypted file systems first
  -o  a property of the new pool, or an option of its mounts
  -n  show the layout, but change nothing
  -g, -L, -P
      with -n: guids for names, where links lead, full paths
",
    },
    Page {
        name: "zpool reopen",
        usage: &["reopen [-n] [<pool> ...]"],
        text: "\
Looks for the devices of these pools, or of all, anew: those that do not answer
are let go, and those that are there again are used again and get what they
missed by a resilver. A device that holds data without another copy is kept.

  -n  let a scrub that runs go on; the resilver waits for a later command
",
    },
    Page {
        name: "zpool reguid",
        usage: &["reguid [-g guid] <pool>"],
        text: "\
Gives a pool another guid, so that it and a copy of its devices can be imported
at the same time. All devices of the pool have to be in use.

  -g  this guid, a number; without it one is drawn at random
",
    },
    Page {
        name: "zpool destroy",
        usage: &["destroy [-f] <pool>"],
        text: "\
Unmounts the pool's file systems and gives its devices free. Until they are
used for something else the pool can be brought back with 'zpool import -D'.

  -f  end the use of volumes, and of file systems that 'zfs unmount -f'
      unmounts; give up what a suspended pool could not write
",
    },
    Page {
        name: "zpool import",
        usage: &[
            "import [-c cachefile | -d dir|file ...] [-D]",
            "import [-c cachefile | -d dir|file ...] [-D] [-f] [-l | -N] [-m] [-s] [-F [-n]] [-R root] [-o property=value] ... -a",
            "import [-c cachefile | -d dir|file ...] [-D] [-f] [-l | -N] [-m] [-s] [-F | -T txg [-n]] [--rewind-to-checkpoint] [-R root] [-o property=value] ... <pool | id> [[-t] newpool]",
        ],
        text: "\
Without a pool: lists the pools that could be imported. With a pool's name or
id: takes it into use, under a new name if one is given. -a: all of them.

  -d  a folder or file to search; may be repeated. Without it: the devices that
      weir remembers, then /dev
  -c  only the pools of a cache file (property cachefile), in the folders where
      it has their devices
  -D  destroyed pools; to import one -f is needed as well
  -f  also a pool that was last used by another host and not exported
  -F  if the newest state is damaged, one of the last few before it
  -T  the newest state of this txg or before that can be opened, however old:
      what has been written since is lost, and data of that state may be
      damaged, as its space may have been used again: 'zpool scrub' tells
  -n  with -F or -T: only say what it would do
  -m  also without a log device; what only it holds is lost
  -t  the new name is for this import only
      --rewind-to-checkpoint: the checkpoint's state; later changes are lost
  -l  load the keys of encrypted file systems first, so that they are mounted
  -N  mount nothing
  -s  look at the devices themselves, not into a list of them: always so
  -R  an alternate root
  -o  a property of the pool; readonly=on writes nothing at all; a word without
      a value is an option of the mounts, as of 'zfs mount'
",
    },
    Page {
        name: "zpool checkpoint",
        usage: &["checkpoint [-d [-w]] <pool>"],
        text: "\
Keeps the pool's state as it is now, to be gone back to with 'zpool import
--rewind-to-checkpoint'. There is one at most. Space that it refers to is not
used again while it exists.

  -d  give it up
  -w  with -d: wait until its space is free
",
    },
    Page {
        name: "zpool ddtprune",
        usage: &["ddtprune -d days|-p percentage <pool>"],
        text: "\
Removes entries from dedup tables with logs (feature@fast_dedup) whose blocks
have one reference: those tables get smaller, and the blocks are not found any
more when the same data is written again. The data itself stays.

  -d  entries that have not changed for so many days
  -p  so many percent of them, the oldest first
",
    },
    Page {
        name: "zpool upgrade",
        usage: &["upgrade", "upgrade -v", "upgrade [-V version] <-a | pool> ..."],
        text: "\
Without an operand: the pools that do not have all features that weir writes.
With the names of pools: enables them. A feature cannot be disabled again, and
software that does not know it cannot use the pool once it is active. What the
pool's property 'compatibility' does not allow is left out. Pools of versions
1 to 28, which are older than features, get those first.

  -a  all pools
  -v  only list the features that weir writes, and the older versions
  -V  not further than to this version: 1 to 28, or 5000 for features
",
    },
    Page {
        name: "zpool prefetch",
        usage: &["prefetch [-t ddt|brt] <pool>"],
        text: "\
Reads tables into the cache: those of deduplicated blocks (ddt), those of
cloned ones (brt), or both.

  -t  only tables of that kind
",
    },
    Page {
        name: "zpool history",
        usage: &["history [-il] [pool] ..."],
        text: "\
Shows the commands that changed a pool, oldest first; times are UTC.

  -i  internal events too
  -l  who gave a command, and where
",
    },
    Page {
        name: "zpool events",
        usage: &["events [-vHf] [pool]", "events -c"],
        text: "\
Lists what happened to pools and devices since the daemon began, oldest first:
at most zfs_zevent_len_max events (512). Times are local.

  -v  everything that is known of an event
  -H  for scripts: no header, a tab between the columns
  -f  wait for more
  -c  forget all
",
    },
    Page {
        name: "zpool wait",
        usage: &["wait [-Hp] [-t activity[,...]] <pool> [interval]"],
        text: "\
Waits until no work of these kinds is under way in the background: discard
(of a checkpoint), free, initialize, replace, remove, resilver, scrub, trim.
Without -t, of all of them. Work that is paused or suspended is not waited for.
With an interval in seconds the bytes that are left are printed that often.

  -H  for scripts: no header, a tab between the columns
  -p  exact numbers
",
    },
    Page {
        name: "zpool export",
        usage: &["export [-fF] -a|<pool> ..."],
        text: "\
Unmounts the pool's file systems, writes everything to its devices and lets go
of them.

  -a  all pools
  -f  end the use of volumes, and of file systems that 'zfs unmount -f'
      unmounts; give up what a suspended pool could not write
  -F  as -f, but its devices say that it is in use, so that another host needs
      'import -f', and it stays in its cache file
",
    },
    Page {
        name: "zpool list",
        usage: &["list [-gHLpPvj] [-o property[,...]] [pool] ..."],
        text: "\
Lists pools with their space.

  -H  tabs, no headers     -p  exact numbers      -v  with devices
  -P  full paths           -g  guids for names    -o  columns
  -L  where links lead     -j  JSON
  --json-int            numbers as integers (with -j)
  --json-pool-key-guid  pools by their guids (with -j)
",
    },
    Page {
        name: "zpool status",
        usage: &["status [-c script[,...]] [-DdegiLpPstvxj] [pool] ..."],
        text: "\
Shows the health of pools and their devices.

  -x  only pools with something wrong
  -e  only vdevs that are not online or have errors, and those above them
  -v  names of damaged files
  -c  columns that scripts tell of each device: they are in ZPOOL_SCRIPTS_PATH
      (~/.zpool.d:/etc/zfs/zpool.d); root runs them if ZPOOL_SCRIPTS_AS_ROOT=1
  -D  dedup tables, by how often their blocks are used
  -s  operations of each device that took longer than zio_slow_io_ms
  -d  wrong checksums of direct writes: always none, as each has its own copy
  -i  what was initialized of each device    -t  what was trimmed
  -p  exact numbers    -P  full paths    -L  where links lead
  -g  guids for names  -j  JSON
  --json-int            numbers as integers (with -j)
  --json-pool-key-guid  pools by their guids (with -j)
  --json-flat-vdevs     all vdevs in one object (with -j)
",
    },
    Page {
        name: "zpool get",
        usage: &[
            "get [-Hpj] [-o \"all\" | field[,...]] <\"all\" | property[,...]> [pool] ...",
            "get [-Hp] [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool> <vdev> ... | all-vdevs",
        ],
        text: "\
Shows properties of pools, or of devices and other vdevs of one (root is the
vdev above all).

  -H  tabs, no headers    -p  exact numbers    -j  JSON
  --json-int            numbers as integers (with -j)
  --json-pool-key-guid  pools by their guids (with -j)
  -o  fields: name, property, value, source
",
    },
    Page {
        name: "zpool set",
        usage: &["set <property=value> <pool>", "set <property=value> <pool> <vdev>"],
        text: "\
Sets a property of a pool: comment, failmode, autoexpand, autoreplace,
autotrim, delegation, listsnapshots, ashift, bootfs, cachefile, compatibility,
feature@<name>=enabled; names with a colon are properties of your own, which an
empty value removes. cachefile=FILE keeps the configuration in that file as long
as the pool is imported, for 'zpool import -c FILE' and other programs.

Of a vdev: comment, names with a colon, allocating=off (nothing new goes to that
top-level vdev), and failfast, checksum_n, checksum_t, io_n, io_t, slow_io_n,
slow_io_t, slow_io_events and autosit, which weir keeps and does not act on.
",
    },
    Page {
        name: "zpool sync",
        usage: &["sync [-f] [pool] ..."],
        text: "Waits until everything written to the pools so far is on disk.\n\n  -f  write a new state of each pool, even if nothing has changed\n",
    },
    Page {
        name: "zpool freeze",
        usage: &["freeze <pool>"],
        text: "\
For tests of intent logs: from now on, until the export, nothing but intent logs
reaches the devices of the pool in a way that an import would find. Exporting
and importing it is like a power cut right after everything was made durable by
the logs: the import finds the state of this moment and replays them.

Everything that logs do not have is lost: datasets, snapshots, properties, file
systems that are mounted later. Space is not freed. The import may need -f.
",
    },
    Page {
        name: "zpool labelclear",
        usage: &["labelclear [-f] <vdev>"],
        text: "\
Removes the labels of a pool from a device.

  -f  also if it belongs to an exported or foreign pool
",
    },
    Page {
        name: "zpool iostat",
        usage: &[
            "iostat [-c script[,...]] [-vlqHpynjgLP] [-w | -r] [-T d|u] [<pool> ... | <pool> <vdev> ... | <vdev> ...] [<interval> [<count>]]",
        ],
        text: "\
What the devices of pools do: since the pool was opened, then in each interval.
A vdev above devices has the sums of its devices.

  -v      each vdev as well
  -c      columns that scripts of /etc/zfs/zpool.d tell of each device, as in
          'zpool status'; with -v
  -l      mean latencies: all told, at the device, in the queues
  -q      what waits and what is at the devices, by class
  -w      histograms of latencies
  -r      histograms of sizes: alone, and gathered
  -y      without the line since the pool was opened
  -T      a time stamp before each: d a date, u seconds since 1970
  -p -H   exact numbers; without headers, with tabs
  -n      headers once: always so
  -g, -L, -P
          guids for names, where links lead, full paths
  -j      JSON
",
    },
    Page {
        name: "zpool version",
        usage: &["version [-j]"],
        text: "\
The release of OpenZFS whose formats and commands weir has, with weir's own
version behind it, in the two lines that tools look for.

  -j  JSON
",
    },
];
