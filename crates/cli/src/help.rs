//! Help: usage lines for mistakes, and a page for each command.

/// A command: its name (`zpool create`), its usage lines, and its page.
struct Page {
    name: &'static str,
    usage: &'static [&'static str],
    text: &'static str,
}

const PAGES: &[Page] = &[
    Page {
        name: "zpool create",
        usage: &[
            "create [-fnd] [-o property=value] ... [-O file-system-property=value] ... [-m mountpoint] [-R root] [--size size] <pool> <vdev> ...",
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
          compatibility, feature@<name>=enabled|disabled ...
  -O      a property of the root file system: compression, recordsize, atime,
          mountpoint ...
  -m      where to mount it: a path, none, or legacy (default /<pool>)
  -R      an alternate root: stands before every mount point, this time only

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
        usage: &["attach [-fw] [-o ashift=value] [--size size] <pool> <device> <new-device>"],
        text: "\
Makes a mirror of a device and a new one, or adds a side to its mirror. The new
device gets everything by a resilver.

  -f      use a device that belongs to an exported or foreign pool
  -w      wait for the resilver
  -o      ashift of the new device
  --size  make a file that does not exist, sparse, of this size
",
    },
    Page {
        name: "zpool replace",
        usage: &["replace [-fw] [-o ashift=value] [--size size] <pool> <device> [<new-device>]"],
        text: "\
Has a new device take the place of another one, which may be gone: name it by
its guid then. Without a new device: what is at the path of the old one now. A
hot spare, distributed ones too, stands in for the device until one of the two
is detached. The old device leaves the pool when the resilver has ended.

  -f      use a device that belongs to an exported or foreign pool
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
        usage: &["remove [-w] <pool> <device> ..."],
        text: "\
Removes hot spares that are not in use, caches and log devices.

  -w  wait until it is done: always so
",
    },
    Page {
        name: "zpool trim",
        usage: &["trim [-w] [-c | -s] <pool> [<device> ...]"],
        text: "\
Tells devices which space is free; on files that makes holes.

  -c      give up what runs
  -s      suspend what runs: 'zpool trim' goes on with it
  -w      wait until it is over
",
    },
    Page {
        name: "zpool initialize",
        usage: &["initialize [-w] [-c | -s] <pool> [<device> ...]"],
        text: "\
Writes a pattern over all free space of devices.

  -c      give up what runs
  -s      suspend what runs: 'zpool initialize' goes on with it
  -w      wait until it is over
",
    },
    Page {
        name: "zpool offline",
        usage: &["offline [-t] <pool> <device> ..."],
        text: "\
Takes devices out of use. They are neither read nor written until 'zpool
online'. Refused where the pool could not do without one.

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
        usage: &["scrub [-s | -p] [-w] <pool> ..."],
        text: "\
Reads everything in the pool, compares it with its checksums, and rewrites from
redundancy what is wrong. 'zpool status' tells how far it is and what it found.
It goes on after an export or a crash where it was.

  -p      pause; 'zpool scrub' goes on
  -s      stop
  -w      wait until it has ended
",
    },
    Page {
        name: "zpool resilver",
        usage: &["resilver <pool> ..."],
        text: "\
Begins anew to bring to devices what was written while they were away. This
begins by itself when a device comes back.
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
        name: "zpool destroy",
        usage: &["destroy [-f] <pool>"],
        text: "\
Unmounts the pool's file systems and gives its devices free. Until they are
used for something else the pool can be brought back with 'zpool import -D'.

  -f  unmount file systems in use
",
    },
    Page {
        name: "zpool import",
        usage: &[
            "import [-d dir|file] ... [-D]",
            "import [-d dir|file] ... [-D] [-f] [-l | -N] [-m] [-s] [-F [-n]] [-R root] [-o property=value] ... -a",
            "import [-d dir|file] ... [-D] [-f] [-l | -N] [-m] [-s] [-F [-n]] [--rewind-to-checkpoint] [-R root] [-o property=value] ... <pool | id> [[-t] newpool]",
        ],
        text: "\
Without a pool: lists the pools that could be imported. With a pool's name or
id: takes it into use, under a new name if one is given. -a: all of them.

  -d  a folder or file to search; may be repeated. Without it: the devices that
      weir remembers, then /dev
  -D  destroyed pools; to import one -f is needed as well
  -f  also a pool that was last used by another host and not exported
  -F  if the newest state is damaged, one of the last few before it
  -n  with -F: only say what it would do
  -m  also without a log device; what only it holds is lost
  -t  the new name is for this import only
      --rewind-to-checkpoint: the checkpoint's state; later changes are lost
  -l  load the keys of encrypted file systems first, so that they are mounted
  -N  mount nothing
  -s  look at the devices themselves, not into a list of them: always so
  -R  an alternate root
  -o  a property of the pool; readonly=on writes nothing at all
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
        usage: &["export [-f] -a|<pool> ..."],
        text: "\
Unmounts the pool's file systems, writes everything to its devices and lets go
of them.

  -a  all pools
  -f  unmount file systems in use
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
",
    },
    Page {
        name: "zpool status",
        usage: &["status [-giLpPtvxj] [pool] ..."],
        text: "\
Shows the health of pools and their devices.

  -x  only pools with something wrong
  -v  names of damaged files
  -i  what was initialized of each device    -t  what was trimmed
  -p  exact numbers    -P  full paths    -L  where links lead
  -g  guids for names  -j  JSON
",
    },
    Page {
        name: "zpool get",
        usage: &["get [-Hpj] [-o \"all\" | field[,...]] <\"all\" | property[,...]> [pool] ..."],
        text: "\
Shows properties of pools.

  -H  tabs, no headers    -p  exact numbers    -j  JSON
  -o  fields: name, property, value, source
",
    },
    Page {
        name: "zpool set",
        usage: &["set <property=value> <pool>"],
        text: "\
Sets a property of a pool: comment, failmode, autoexpand, autoreplace,
autotrim, delegation, listsnapshots, ashift, bootfs, cachefile=none,
compatibility, feature@<name>=enabled.
",
    },
    Page {
        name: "zpool sync",
        usage: &["sync [-f] [pool] ..."],
        text: "Waits until everything written to the pools so far is on disk.\n\n  -f  also if nothing has changed: always so\n",
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
        name: "zfs create",
        usage: &["create [-Pnpuv] [-o property=value] ... <filesystem>"],
        text: "\
Makes a file system and mounts it.

  -o  a property    -p  make missing parents    -u  do not mount it
  -n  check only    -v  say what was made               -P  that with tabs
",
    },
    Page {
        name: "zfs destroy",
        usage: &[
            "destroy [-fnpRrv] <filesystem>",
            "destroy [-dnpRrv] <filesystem@snap[%snap][,...]>",
            "destroy <filesystem#bookmark>",
        ],
        text: "\
Destroys a file system, snapshots (a%b is a range) or a bookmark. Space comes
free in the background: 'zpool get freeing' tells how much is still to come.

  -r  and everything below; snapshots of that name below
  -R  as -r, and clones with all that depends on them, wherever they are
  -d  snapshots that are held or have clones: when nothing needs them any more
  -f  unmount file systems in use
  -n  destroy nothing
  -v  say what is, or with -n would be, destroyed    -p  that exact, with tabs
",
    },
    Page {
        name: "zfs snapshot",
        usage: &["snapshot [-r] [-o property=value] ... <filesystem@snap> ..."],
        text: "\
Makes snapshots, all at the same moment.

  -r  and of everything below    -o  a user property (module:name=value)
",
    },
    Page {
        name: "zfs rollback",
        usage: &["rollback [-rRf] <snapshot>"],
        text: "\
Takes a file system back to a snapshot; what was written since is lost.

  -r  destroy later snapshots and bookmarks    -R  and clones of them
  -f  unmount the file system also if it is in use
",
    },
    Page {
        name: "zfs clone",
        usage: &["clone [-p] [-o property=value] ... <snapshot> <filesystem>"],
        text: "\
Makes a file system with the content of a snapshot and mounts it.

  -o  a property    -p  make missing parents
",
    },
    Page {
        name: "zfs promote",
        usage: &["promote <clone>"],
        text: "\
Gives a clone the snapshots that it was made from, so that the file system that
had them can be destroyed.
",
    },
    Page {
        name: "zfs hold",
        usage: &["hold [-r] <tag> <snapshot> ..."],
        text: "\
Keeps snapshots from being destroyed until the hold is released.

  -r  and snapshots of that name below
",
    },
    Page {
        name: "zfs release",
        usage: &["release [-r] <tag> <snapshot> ..."],
        text: "\
Releases holds.

  -r  and those of snapshots of that name below
",
    },
    Page {
        name: "zfs holds",
        usage: &["holds [-rH] <snapshot> ..."],
        text: "\
Lists holds.

  -r  and those of snapshots of that name below    -H  tabs, no headers
",
    },
    Page {
        name: "zfs bookmark",
        usage: &["bookmark <snapshot|bookmark> <bookmark>"],
        text: "\
Makes a bookmark, which remembers the moment of a snapshot when that is gone.
",
    },
    Page {
        name: "zfs list",
        usage: &[
            "list [-Hprj] [-d max] [-o property[,...]] [-s property]... [-S property]... [-t type[,...]] [filesystem|path] ...",
        ],
        text: "\
Lists datasets.

  -r  and everything below    -d  so many levels below    -o  columns, or space
  -t  filesystem, volume, snapshot, bookmark, all
  -s  sort by, smallest first    -S  largest first
  -H  tabs, no headers    -p  exact numbers    -j  JSON
",
    },
    Page {
        name: "zfs get",
        usage: &[
            "get [-Hprj] [-d max] [-o \"all\" | field[,...]] [-t type[,...]] [-s source[,...]] <\"all\" | property[,...]> [filesystem|path] ...",
        ],
        text: "\
Shows properties of datasets.

  -r  and everything below    -d  so many levels below
  -s  only from these sources: local, default, inherited, received, temporary,
      none
  -o  fields: name, property, value, received, source
  -t  filesystem, volume, snapshot, all
  -H  tabs, no headers    -p  exact numbers    -j  JSON
",
    },
    Page {
        name: "zfs set",
        usage: &["set <property=value> ... <filesystem> ..."],
        text: "\
Sets properties. A new mountpoint moves a mounted file system there.
",
    },
    Page {
        name: "zfs inherit",
        usage: &["inherit [-rS] <property> <filesystem> ..."],
        text: "\
Drops a value of a dataset's own: it takes its parent's again.

  -r  and those of everything below
  -S  to the value that was received: there is none, so as without it
",
    },
    Page {
        name: "zfs load-key",
        usage: &["load-key [-rn] [-L <keylocation>] -a|<filesystem> ..."],
        text: "\
Loads the key of an encrypted file system, so that it and what inherits the key
can be mounted. The key is read from where property keylocation says: a prompt
(or standard input) or a file.

  -r  also those below     -a  all in all pools
  -n  only look whether it is the right key
  -L  another place: prompt or file:///<path>
",
    },
    Page {
        name: "zfs unload-key",
        usage: &["unload-key [-r] -a|<filesystem> ..."],
        text: "\
Forgets the key of an encrypted file system that is not mounted.

  -r  also those below     -a  all in all pools
",
    },
    Page {
        name: "zfs change-key",
        usage: &["change-key [-l] [-o <property=value>] ... <filesystem>", "change-key -i [-l] <filesystem>"],
        text: "\
Gives a file system, and what inherits its key, another key. No data is written
anew. The key in use must be loaded.

  -l  load it first
  -i  use the key of the parent from now on
  -o  keyformat, keylocation, pbkdf2iters
",
    },
    Page {
        name: "zfs rename",
        usage: &["rename [-fpu] <filesystem> <filesystem>", "rename [-r] <snapshot> <snapshot>"],
        text: "\
Renames a file system, with everything below it, within its pool; or a snapshot,
with -r also those of that name below.

  -p  make missing parents    -u  leave mounts where they are
  -f  unmount file systems in use
",
    },
    Page {
        name: "zfs mount",
        usage: &["mount", "mount [-flOv] [-o option,...] <-a | filesystem>"],
        text: "\
Without arguments: lists what is mounted. Otherwise mounts one file system, or
with -a all that are to be mounted (canmount=on and a mountpoint).

  -l  load the keys of encrypted file systems first
  -O  also over a folder that is not empty, where overlay=off
  -f, -v
      taken as by OpenZFS: there is nothing here that they would change
  -o  for this mount only, whatever the properties say: ro, rw, atime, noatime,
      relatime, norelatime, exec, noexec, suid, nosuid, dev, nodev, xattr,
      noxattr; 'zfs get' shows them with the source 'temporary', and setting the
      property ends them; remount changes a mount that is there, where options
      that are not named go back to the properties
",
    },
    Page {
        name: "zfs unmount",
        usage: &["unmount [-fu] <-a | filesystem|mountpoint>"],
        text: "\
Unmounts one file system, or with -a all.

  -f  also if it is in use
  -u  unload the keys that are then needed no more
",
    },
    Page {
        name: "daemon",
        usage: &["start [-o tunable=value] ... [-m unix:PATH|127.0.0.1:PORT]", "stop [-f]", "status [-v]"],
        text: "\
The daemon owns imported pools and their mounts. The first command that needs
it starts it; pools that were imported when it ended are imported again.

  start   start it by hand, with tunables; -m gives out metrics for Prometheus
          on a Unix socket or a loopback port (nothing is given out otherwise)
  stop    unmount, write everything, end; -f also if a file system is in use
  status  its pools, what was not imported, what it is doing and for what it
          waits, its mounts; -v its tunables as well

Its socket is in $WEIR_RUNTIME_DIR, else /run/weir (root), $XDG_RUNTIME_DIR/weir
or /tmp/weir-<uid>. What it remembers is in $WEIR_STATE_DIR, else in state below
$WEIR_RUNTIME_DIR, else in /var/lib/weir (root), $XDG_STATE_HOME/weir or
~/.local/state/weir. Its log is daemon.log beside the socket, at most 4 MiB and
as much in daemon.log.1, and the journal where there is one.
Tunables also come from $WEIR_TUNABLES (name=value, separated by commas) and
from tunables.conf in the state folder.
",
    },
    Page {
        name: "zpool iostat",
        usage: &["iostat [-vlqHpynjgLP] [-w | -r] [-T d|u] [<pool> ... | <pool> <vdev> ...] [<interval> [<count>]]"],
        text: "\
What the devices of pools do: since the pool was opened, then in each interval.
A vdev above devices has the sums of its devices.

  -v      each vdev as well
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
        name: "tune",
        usage: &[
            "[-v] [-j] [-p pool]",
            "list [-v] [-j] [-p pool] [<part of a name> ...]",
            "get [-j] [-p pool] <name> ...",
            "set [--save] [-p pool] <name>=<value> ...",
        ],
        text: "\
Tunables, with OpenZFS's names and units. What is set holds at once, for all
pools or for one; what is set for one wins. 'throttle' and 'scheduler' choose
the write throttle and the I/O scheduler. The value 'default' takes back what
was set.

  -p      of one pool
  -v      with meaning, range, default and origin
  --save  also for later daemons: into tunables.conf in the state folder
  -j      JSON
",
    },
    Page {
        name: "top",
        usage: &["[-i seconds] [-c count] [<pool> ...]"],
        text: "\
How data flow through pools: dirty data on a gauge with the shares where a txg
is closed (s) and where writes begin to be delayed (d); devices by class; the
last txgs, open (-), waiting (.) and written (#); the cache; file systems.

  -i      how often (1)
  -c      end after so many pictures; otherwise q or Ctrl-C ends it
",
    },
    Page {
        name: "trace",
        usage: &["trace dirty|txg|io|queue|delay|zil|turns [-i seconds] [-c count] [--json] <pool>"],
        text: "\
What a pool does, live; Ctrl-C ends it with a summary.

  dirty   dirty data and its limit whenever a txg begins to sync
  txg     how long each txg was open, quiescing, waiting, syncing
  io      latency distributions of reads, writes, flushes and trims
  queue   how many writes of a txg are at a device whenever one is issued
  delay   which writes the throttle delayed, and how long
  zil     blocks of intent logs: latency, how many a second, how full, how many
          commits waited for each, time in queue, write, flush and waiting for
          the blocks before
  turns   how long tasks keep the pool's thread at a time, and which the longest

  -i      show distributions every so many seconds, not only at the end
  -c      end after so many
  --json  one object a line
",
    },
    Page {
        name: "lab throttle",
        usage: &[
            "throttle [--policy name] [--bandwidth size] [--threads n] [--block size] [--copies n] [--seconds n] [--offered size] [--mem size] [--seed n] [--json]",
        ],
        text: "\
Endless writers against a device of fixed bandwidth, in virtual time: the same
engine, so what it shows is what a pool does. Equal seeds give equal reports.

  --policy     openzfs, openzfs-2013, legacy-2008, smoothing or none
  --bandwidth  bytes a second of the device (100M)
  --threads    clients (10)
  --block      bytes of a write (8k)
  --copies     copies of each block on the device, 1 to 3 (1)
  --seconds    virtual time; the first quarter does not count (60)
  --offered    what the clients could write a second if nobody held them (1G)
  --mem        memory of the machine (8G): a tenth of it may be dirty
  --seed       what is left to chance (0)
  --json       one object with everything, the timeline included
",
    },
    Page {
        name: "lab zil",
        usage: &[
            "zil [--disks list] [--media list] [--rate max|64] [--threads list] [--seconds n] [--seed n] [--jobs n] [--json]",
        ],
        text: "\
Synchronous writers of 8 KiB on stripes of disks, in virtual time: the intent
log with the commit policy of before illumos 8585 (batched) and of after it
(batchless-2017), beside what was published of both. Equal seeds give equal
reports.

  --disks      numbers of disks (1,8)
  --media      hdd, ssd (both)
  --rate       max, or writes a second by each thread, Poisson (max)
  --threads    numbers of writers (1,2,4 ... 1024)
  --seconds    virtual time of a run at most; its first quarter does not count
               (24 on hdd, 12 on ssd)
  --seed       what is left to chance (0)
  --jobs       runs at once (1)
  --json       one object: every run in cells, gain_percent and
               latency_change_percent by medium
",
    },
    Page {
        name: "quickstart",
        usage: &["quickstart [--dir DIR] [--tree DIR]"],
        text: "\
A tour: makes a pool on sparse files in a scratch folder, mounts it where FUSE
works (and otherwise uses it without mounting), copies a tree into it, reads it
back, shows status, latencies and the compression ratio, exports and imports
the pool, compares every byte, and removes everything again.

  --dir   where to make the scratch folder (default: the folder for temporary
          files)
  --tree  the tree to copy (default: a made-up one and this program)
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
    Page { name: "zfs version", usage: &["version [-j]"], text: "As 'zpool version'.\n\n  -j  JSON\n" },
    Page {
        name: "zdb",
        usage: &["zdb [options] [pool | device]"],
        text: "\
Looks into pools that are not imported: labels, uberblocks, configuration,
datasets, objects, and a check of every block.
",
    },
];

/// Other names of commands.
const ALIASES: &[(&str, &str)] = &[("zfs snap", "zfs snapshot"), ("zfs umount", "zfs unmount")];

impl Page {
    /// A usage line with the whole command.
    fn line(&self, usage: &str) -> String {
        let name = self.name;
        match name.split_once(' ') {
            Some((program @ ("zpool" | "zfs"), _)) => format!("{program} {usage}"),
            Some((group, _)) => format!("weir {group} {usage}"),
            None if usage == name || usage.starts_with(&format!("{name} ")) => format!("weir {usage}"),
            None => format!("weir {name} {usage}"),
        }
    }
}

fn page(name: &str) -> Option<&'static Page> {
    let name = ALIASES.iter().find(|(other, _)| *other == name).map_or(name, |(_, real)| real);
    PAGES.iter().find(|p| p.name == name)
}

/// The commands of `zpool`, `zfs` or `lab`, in order.
fn commands(group: &str) -> Vec<&'static str> {
    let mut all: Vec<&str> = PAGES.iter().filter_map(|p| p.name.strip_prefix(group)?.strip_prefix(' ')).collect();
    all.sort_unstable();
    all
}

/// Words with commas, in lines of at most 80 characters that begin with `indent` spaces (the first
/// line has its own).
fn wrapped(words: &[&str], indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for (i, word) in words.iter().enumerate() {
        let last = i + 1 == words.len();
        let width = word.len() + usize::from(!last);
        if column > indent && column + 1 + width > 80 {
            out.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        out.push_str(if last { "" } else { "," });
        column += width;
    }
    out
}

/// What to print after a mistake in a command line: the usage of a command, or the names of all.
pub fn usage(name: &str) -> String {
    let name = name.trim();
    if let Some(page) = page(name) {
        return page.usage.iter().fold("usage:\n".to_string(), |out, u| out + "\t" + &page.line(u) + "\n");
    }
    let all = wrapped(&commands(name), 2);
    let command = if name == "lab" { "weir lab <study>" } else { name };
    format!("usage: {command} ...\nwith one of:\n  {all}\n'weir help {name} <command>' says more\n")
}

/// Prints the page of a command of `program`, or with no command the usage of all.
pub fn print_topic(program: &'static str, command: &[String]) -> crate::Done {
    let name = format!("{program} {}", command.join(" "));
    let Some(text) = topic(&name) else {
        return Err(crate::Fail::Usage(format!("unrecognized command '{}'", command.join(" ")), ""));
    };
    crate::print(&text);
    Ok(())
}

/// The page of `zpool create`, the commands of `zpool`, or everything for an empty topic.
pub fn topic(name: &str) -> Option<String> {
    let name = name.trim();
    if name.is_empty() {
        return Some(overview());
    }
    if let Some(page) = page(name) {
        let lines: String = page.usage.iter().map(|u| format!("  {}\n", page.line(u))).collect();
        let tunables = if name == "daemon" { tunables() } else { String::new() };
        return Some(format!("usage:\n{lines}\n{}{tunables}", page.text));
    }
    matches!(name, "zpool" | "zfs" | "lab").then(|| {
        let group = format!("{name} ");
        let pages = PAGES.iter().filter(|p| p.name.starts_with(&group));
        let lines: String = pages.flat_map(|p| p.usage.iter().map(|u| format!("  {}\n", p.line(u)))).collect();
        format!("usage:\n{lines}\n'weir help {name} <command>' says more\n")
    })
}

fn tunables() -> String {
    let lines = admin::tunables::Tunables::meanings().map(|(n, m)| format!("  {n:<28} {m}\n"));
    format!("\ntunables:\n{}", lines.collect::<String>())
}

/// What there is.
pub fn overview() -> String {
    let row = |name: &str, text: &str| format!("  {name:<12}{text}\n");
    let list = |name: &str, what: &str| row(name, &format!("{what}:\n{:14}{}", "", wrapped(&commands(name), 14)));
    let mut out = "\
weir: OpenZFS in user space

usage: weir <command> ...

"
    .to_string();
    out.push_str(&list("zpool", "pools and their devices"));
    out.push_str(&list("zfs", "file systems and snapshots"));
    for (name, text) in [
        ("zdb", "look into and check pools that are not imported"),
        ("daemon", "start, stop, status of the daemon that owns imported pools"),
        ("quickstart", "a tour on a scratch pool"),
        ("tune", "settings, at run time"),
        ("top", "how data flow through pools, drawn anew every second"),
        ("trace", "what a pool does, live"),
    ] {
        out.push_str(&row(name, text));
    }
    out.push_str(&row("lab", &format!("studies in virtual time: {}", commands("lab").join(", "))));
    out.push_str(&row("version", "the version"));
    out.push_str(&row("help", "this, or 'weir help zpool create' and the like"));
    out + "\nCalled through a symbolic link named zpool, zfs or zdb it is that command.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that the match of a command's `run` takes, read from its source.
    fn taken(source: &str) -> Vec<&str> {
        let body = source.split("match command.as_str() {").nth(1).unwrap().split("other if NOT_YET").next().unwrap();
        let arms = body.lines().filter_map(|l| l.strip_prefix("        \"")?.split_once(" =>"));
        arms.flat_map(|(names, _)| names.split(" | ").map(|n| n.trim_matches('"'))).collect()
    }

    #[test]
    fn every_command_that_is_taken_has_a_page_and_is_listed() {
        let no_page = ["help", "-h", "--help", "-?", "-V", "--version"];
        for (program, source) in [("zpool", include_str!("zpool.rs")), ("zfs", include_str!("zfs.rs"))] {
            let taken: Vec<&str> = taken(source).into_iter().filter(|n| !no_page.contains(n)).collect();
            assert!(taken.len() > 20, "{program}: {taken:?}");
            for name in &taken {
                let page = page(&format!("{program} {name}")).unwrap_or_else(|| panic!("no page of {program} {name}"));
                for text in [overview(), usage(program), topic(program).unwrap()] {
                    let listed = page.name.split(' ').nth(1).unwrap();
                    assert!(text.contains(&format!(" {listed}")), "{program} {name} is not in {text}");
                }
                assert!(page.usage.iter().all(|u| u.split(' ').next() == page.name.split(' ').nth(1)), "{name}");
            }
            assert!(commands(program).iter().all(|c| taken.contains(c)), "{program}: a page of no command");
        }
        assert!(overview().lines().chain(usage("zpool").lines()).all(|l| l.len() <= 80), "{}", overview());
    }

    #[test]
    fn every_page_has_usage_and_fits_a_terminal() {
        for page in PAGES {
            assert!(!page.usage.is_empty() && !page.text.is_empty(), "{}", page.name);
            assert!(topic(page.name).is_some_and(|t| t.starts_with("usage:\n  ")), "{}", page.name);
            for line in page.text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", page.name);
            }
        }
        assert!(topic("nonsense").is_none());
        assert!(topic("").is_some_and(|t| t.contains("quickstart")));
        assert!(usage("zpool create").contains("create [-fnd]"));
        assert!(usage("zfs").contains("inherit"));
        assert!(topic("tune").is_some_and(|t| t.starts_with("usage:\n  weir tune [-v] ")));
        assert!(topic("top").is_some_and(|t| t.starts_with("usage:\n  weir top [-i ")));
        assert!(topic("daemon").is_some_and(|t| t.contains("  weir daemon status")));
        assert!(topic("zfs umount").is_some_and(|t| t.starts_with("usage:\n  zfs unmount ")));
        assert!(topic("zfs create").is_some_and(|t| t.contains("  zfs create [-Pnpuv]")));
        assert!(topic("quickstart").is_some_and(|t| t.contains("  weir quickstart [--dir")));
        assert!(topic("trace").is_some_and(|t| t.contains("  weir trace dirty|")));
        assert!(topic("lab zil").is_some_and(|t| t.contains("  weir lab zil [--disks")));
        assert!(topic("lab").is_some_and(|t| t.contains("throttle [--policy") && t.contains("zil [--disks")));
    }
}
