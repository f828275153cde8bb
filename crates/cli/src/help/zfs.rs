//! The pages of `zfs`, in the order in which its help lists them.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        name: "zfs create",
        usage: &[
            "create [-Pnpuv] [-o property=value] ... <filesystem>",
            "create [-Pnpsv] [-b blocksize] [-o property=value] ... -V <size> <volume>",
        ],
        text: "\
Makes a file system and mounts it; with -V a volume, a disk of that size inside
the pool, which keeps the space for all of its blocks.

  -o  a property    -p  make missing parents    -u  do not mount it
  -n  check only    -v  say what was made               -P  that with tabs
  -V  the size of a volume, rounded up to whole blocks
  -b  bytes of its blocks (volblocksize), 16K if not given; they stay
  -s  keep no space for it: writing fails when the pool is full
",
    },
    Page {
        name: "zfs destroy",
        usage: &[
            "destroy [-fnpRrv] <filesystem|volume>",
            "destroy [-dnpRrv] <filesystem@snap[%snap][,...]>",
            "destroy <filesystem#bookmark>",
        ],
        text: "\
Destroys a file system or volume, snapshots (a%b is a range) or a bookmark.
Space comes free in the background: 'zpool get freeing' tells how much is still
to come.

  -r  and everything below; snapshots of that name below
  -R  as -r, and clones with all that depends on them, wherever they are
  -d  snapshots that are held or have clones: when nothing needs them any more
  -f  end the serving of volumes, and the use of file systems that
      'zfs unmount -f' unmounts
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
        name: "zfs redact",
        usage: &["redact <snapshot> <bookmark> <redaction_snapshot> ..."],
        text: "\
Makes a redaction bookmark: it lists the blocks of files of the snapshot to
which none of the redaction snapshots refers any more. These are later snapshots
of the same file system or of its clones, by their full names.
'zfs send --redact' leaves the listed blocks out. A command that was interrupted
goes on when it is given again; 'zfs destroy' of the bookmark gives it up.
",
    },
    Page {
        name: "zfs send",
        usage: &[
            "send [-DLPRVbcehnpsvw] [-X dataset[,...]] [-i|-I snapshot] <snapshot>",
            "send [-DLPVcenvw] [-i snapshot|bookmark] <filesystem|volume|snapshot>",
            "send [-LPVbcehnpv] [-i snapshot|bookmark] --redact <bookmark> <snapshot>",
            "send [-LPVcenvw] -t <receive_resume_token>",
            "send [-PVnv] -S <filesystem>",
        ],
        text: "\
Writes a snapshot as a stream to standard output, which is a pipe or a file.
'zfs receive' takes it, that of OpenZFS, too. A file system or volume without
'@' is sent as it is now, and may not be mounted.

  -i  only what changed since this earlier snapshot, or that of this bookmark;
      '@name' and '#name' are of the same file system
  -I  the same with all snapshots between, in a package of several streams
  -R  a package of this snapshot and the earlier ones (with -i only what is
      new), and those of the same name of all file systems below, with their
      properties (--replicate)
  -s  with -R: leave out file systems that lack it (--skip-missing)
  -X  with -R: leave these out, with what is below them (--exclude)
  -p  properties as well (--props)    -h  holds as well (--holds)
  -b  properties as they were received, not as they are now (--backup)
  -L  blocks above 128 KiB as they are (--large-block)
  -e  small blocks as they lie in their pointers (--embed)
  -c  compressed blocks as they are stored (--compressed)
  -w  everything as it is stored, encrypted blocks too: no key is needed (--raw)
  --redact
      without the blocks that this redaction bookmark of the snapshot lists: see
      'zfs redact' (-d)
  -t  go on where 'zfs receive -s' was interrupted: the value of the property
      receive_resume_token there (--resume)
  -S  what an interrupted 'zfs receive -s' left in this file system (--saved)
  -v  say how long the stream will be, and each second how much is sent
      (--verbose)    -P  the same, for programs (--parsable)
  -V  show the progress as the name of the process (--proctitle)
  -n  send nothing: with -v or -P only say how long it will be (--dryrun)
  -D  nothing: a warning
",
    },
    Page {
        name: "zfs receive",
        usage: &[
            "receive [-FhMnsuv] [-o origin=snapshot] [-o property=value] ... [-x property] ... <filesystem|snapshot>",
            "receive [-FhMnsuv] [-d | -e] [-o property=value] ... [-x property] ... <filesystem>",
            "receive -A <filesystem>",
            "receive -c [-vn] <filesystem|snapshot>",
        ],
        text: "\
Makes a snapshot of a stream from standard input, of weir's or OpenZFS's 'zfs
send': a new file system, or the next snapshot of one that has the snapshot
before. Nothing of it is seen before all of it is there.

  -d  the name in the stream without its pool goes behind the file system
  -e  only its last part does
  -F  first take the file system back to the snapshot before; a full stream
      replaces a file system without snapshots
  -s  if the stream breaks off, keep what came: 'zfs get receive_resume_token'
      has the token for 'zfs send -t'    -A  give that up
  -o  origin=snapshot: a new file system becomes a clone of it
      property=value: of this file system; those below it inherit it
      encryption, keyformat, keylocation=file://..., pbkdf2iters: a new file
      system is encrypted, though the stream is not
  -x  the value of this property in the stream does not count
  -h  do not take holds of the stream
  -u  do not mount a new file system    -M  unmount also what is in use
  -n  receive nothing    -v  say what is, or with -n would be, received
  -c  receive nothing, but mend damaged blocks of this snapshot, of which the
      stream is; what else is damaged stays as it is
",
    },
    Page {
        name: "zfs diff",
        usage: &["diff [-FHht] <snapshot> [snapshot|filesystem]"],
        text: "\
Lists what changed in a file system since a snapshot, until a later one or now:
'+' new, '-' gone, 'M' modified (with how many names it got or lost), 'R'
renamed. The file system must be mounted. '@name' is of the same file system as
the other snapshot. What is no visible ASCII in a name is printed as \\0ooo.

  -F  with the type: '/' directory, 'F' file, '@' symbolic link, '|' pipe,
      '=' socket, 'B' and 'C' devices
  -t  with the change time    -h  names as they are    -H  tabs, no arrows
",
    },
    Page {
        name: "zfs program",
        usage: &["program [-jn] [-t <instructions>] [-m <bytes>] <pool> <script|-> [argument ...]"],
        text: "\
Runs a channel program: a script in Lua 5.2, from a file or, with '-', from
standard input. All of it is one transaction group: nothing else changes the
pool meanwhile, and a power cut leaves all of it or nothing. After an error
what it had done before stays done. The table 'zfs' has the calls of OpenZFS:
zfs.exists, get_prop, debug, zfs.list.*, zfs.sync.* and zfs.check.*; the guide
has their list. Arguments are in the table (...)['argv'].

  -n  change nothing; functions of zfs.sync end the program
  -t  instructions of Lua that it may take (10 million; at most 100 million)
  -m  bytes of memory that it may take (10 MiB; at most 100 MiB)
  -j  print the result as JSON
",
    },
    Page {
        name: "zfs rewrite",
        usage: &["rewrite [-Prvx] [-l length] [-o offset] <file|directory> ..."],
        text: "\
Writes the blocks of files anew: they get a new place, and the checksum,
compression and copies that the properties ask for now. Content and times of
the files stay, and so do holes and the size of blocks. What snapshots hold
takes space twice, and the next incremental stream has the blocks, unless -P is
given.

  -r  also the files in directories    -x  but not those of other file systems
  -o  from this byte on    -l  this many bytes of each file
  -v  print the name of each file
  -P  keep the logical birth times of blocks, so that the next incremental
      stream does not have them. The pool needs feature@physical_rewrite. What
      becomes a gang block or another block of a dedup table is sent anyway
",
    },
    Page {
        name: "zfs rollback",
        usage: &["rollback [-rRf] <snapshot>"],
        text: "\
Takes a file system or volume back to a snapshot; what was written since is
lost. Files that are open go on with the content of the snapshot, or give
errors if they are not in it.

  -r  destroy later snapshots and bookmarks    -R  and clones of them
  -f  also if it is a volume in use, or a file system in use before Linux 6.3
",
    },
    Page {
        name: "zfs clone",
        usage: &["clone [-pu] [-o property=value] ... <snapshot> <filesystem|volume>"],
        text: "\
Makes a file system with the content of a snapshot and mounts it; from the
snapshot of a volume a volume, which keeps no space in reserve.

  -o  a property    -p  make missing parents    -u  do not mount it
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
  --json-int  numbers as integers (with -j)
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
  --json-int  numbers as integers (with -j)
",
    },
    Page {
        name: "zfs set",
        usage: &["set [-u] <property=value> ... <filesystem|volume> ..."],
        text: "\
Sets properties. A new mountpoint moves a mounted file system there. A new
volsize makes a volume larger or cuts it off; what it keeps in reserve follows.
refreservation=auto keeps the space for all blocks of a volume.

userquota@<user>, groupquota@<group> and projectquota@<id> limit what one may
use, userobjquota@<user> and so on how many objects; 'none' is no limit. 'zfs
userspace' shows them.

  -u  change mountpoint, sharenfs and sharesmb without mounting or sharing
",
    },
    Page {
        name: "zfs inherit",
        usage: &["inherit [-rS] <property> <filesystem> ..."],
        text: "\
Drops a value of a dataset's own: it takes its parent's again.

  -r  and those of everything below
  -S  the value that 'zfs receive' brought counts again, if there is one
",
    },
    Page {
        name: "zfs load-key",
        usage: &["load-key [-rn] [-L <keylocation>] -a|<filesystem> ..."],
        text: "\
Loads the key of an encrypted file system, so that it and what inherits the key
can be mounted. The key is read from where property keylocation says: a prompt
(or standard input), a file, or a server, which the program curl asks. What
SSL_CA_CERT_FILE, SSL_CA_CERT_PATH, SSL_CLIENT_CERT_FILE and SSL_CLIENT_KEY_FILE
name in the environment is used for https.

  -r  also those below     -a  all in all pools
  -n  only look whether it is the right key
  -L  another place: prompt, file:///<path>, https://<server>/<path>
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
with -r also those of that name below. 'zfs rename fs@a b' is enough for one.

  -p  make missing parents    -u  leave mounts where they are
  -f  unmount what 'zfs unmount -f' unmounts
",
    },
    Page {
        name: "zfs mount",
        usage: &["mount [-j]", "mount [-flOv] [-o option,...] <-a | filesystem>"],
        text: "\
Without arguments: lists what is mounted. Otherwise mounts one file system, or
with -a all that are to be mounted (canmount=on and a mountpoint).

  -j  the list as JSON
  -l  load the keys of encrypted file systems first
  -O  also over a folder that is not empty, where overlay=off
  -f  also what was received redacted: blocks that were left out read as zeros
  -v  taken as by OpenZFS: there is nothing here that it would change
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
Unmounts one file system and those below it, wherever they are mounted, or with
-a all. One with mountpoint=legacy is left to umount(8).

  -f  also if it is in use after 'umount -l' took it out of the tree of mounts:
      open files give errors then. What is mounted and in use is refused with
      -f as well, as by OpenZFS on Linux, but for those of ordinary users that
      are mounted within another one
  -u  unload the keys that are then needed no more
",
    },
    Page {
        name: "zfs share",
        usage: &["share [-l] <-a [nfs|smb] | filesystem>"],
        text: "\
Shares one file system as its properties sharenfs and sharesmb say, or with -a
all whose properties are not 'off', those that are not mounted included. This
happens by itself when a file system is mounted and when a property is set:
the command is for what was unshared by hand.

NFS needs exportfs(8), which reads /etc/exports.d/zfs.exports; SMB needs
usershares of Samba.

  -l  load the keys of encrypted file systems first
",
    },
    Page {
        name: "zfs unshare",
        usage: &["unshare <-a [nfs|smb] | filesystem|mountpoint>"],
        text: "\
Ends the shares of one file system, or with -a all, of one protocol if it is
named. They come back with the next mount, or with 'zfs share'.
",
    },
    Page {
        name: "zfs wait",
        usage: &["wait [-t deleteq] <filesystem>"],
        text: "\
Waits until a mounted file system has no more files without a name that are
still to be freed, since they are large or a program has them open. One that is
not mounted is not waited for.

  -t  the kinds of work to wait for: deleteq is the only one
",
    },
    Page {
        name: "zfs userspace",
        usage: &[
            "userspace [-Hinp] [-o field[,...]] [-s field] ... [-S field] ... [-t type[,...]] <filesystem|snapshot|path>",
        ],
        text: "\
Lists what users use of a file system or snapshot, and their limits: the
properties userused@<user>, userquota@<user>, userobjused@<user> and
userobjquota@<user>. A user is a name or a number.

  -n  numbers, not names    -p  exact numbers    -H  tabs, no headers
  -o  fields: type, name, used, quota, objused, objquota
  -s  sort by type, name, used or quota, smallest first    -S  largest first
  -t  posixuser, posixgroup, all (smbuser, smbgroup: there are none)
  -i  taken as by OpenZFS: there are no names of SMB to be translated
",
    },
    Page {
        name: "zfs groupspace",
        usage: &[
            "groupspace [-Hinp] [-o field[,...]] [-s field] ... [-S field] ... [-t type[,...]] <filesystem|snapshot|path>",
        ],
        text: "\
As 'zfs userspace', of groups: groupused@<group>, groupquota@<group>,
groupobjused@<group>, groupobjquota@<group>.

  -n  numbers, not names    -p  exact numbers    -H  tabs, no headers
  -o  fields: type, name, used, quota, objused, objquota
  -s  sort by type, name, used or quota, smallest first    -S  largest first
  -t  posixuser, posixgroup, all (smbuser, smbgroup: there are none)
  -i  taken as by OpenZFS: there are no names of SMB to be translated
",
    },
    Page {
        name: "zfs projectspace",
        usage: &["projectspace [-Hp] [-o field[,...]] [-s field] ... [-S field] ... <filesystem|snapshot|path>"],
        text: "\
As 'zfs userspace', of projects, which are numbers: projectused@<id>,
projectquota@<id>, projectobjused@<id>, projectobjquota@<id>.

  -p  exact numbers    -H  tabs, no headers
  -o  fields: type, name, used, quota, objused, objquota
  -s  sort by type, name, used or quota, smallest first    -S  largest first
",
    },
    Page {
        name: "zfs project",
        usage: &[
            "project [-d | -r] <file|directory> ...",
            "project -c [-0] [-d | -r] [-p id] <file|directory> ...",
            "project [-p id] [-rs] <file|directory> ...",
            "project -C [-kr] <file|directory> ...",
        ],
        text: "\
Shows the projects of files and folders, with P where new entries of a folder
get its project; compares them, sets them, or takes them away.

  -p  the project; without it that of the file or folder itself
  -s  set the flag that new entries get the project too
  -c  say what has another project, or not that flag
  -0  with -c: only names, with a NUL behind each
  -C  no project and no flag    -k  with -C: the project stays
  -r  and everything below a folder    -d  only the folder itself
",
    },
    Page {
        name: "zfs allow",
        usage: &[
            "allow <filesystem|volume>",
            "allow [-dglu] <user|group>[,...] <perm|@set>[,...] <filesystem|volume>",
            "allow [-dl] -e|everyone <perm|@set>[,...] <filesystem|volume>",
            "allow -c <perm|@set>[,...] <filesystem|volume>",
            "allow -s <@set> <perm|@set>[,...] <filesystem|volume>",
        ],
        text: "\
Lists who was given permissions on a dataset and on those above it, or gives
permissions, to users and groups by name or number, on the dataset and on all
that is below it.

  -l  only on the dataset itself    -d  only on what is below it
  -u  the names are of users    -g  they are of groups; without both a name is
      that of a user, or else of a group
  -e  to everyone; the word 'everyone' in place of a name is the same
  -c  to those who make a dataset below, on what they have made
  -s  put permissions into a set, which counts here and below

Permissions are the names of properties, to set and to inherit them, and:
allow (also needs what is given), bookmark, change-key, clone (also needs create
and mount), create (mount), destroy (mount), diff, hold, load-key, mount,
promote (mount, and promote on the origin), receive (mount and create),
receive:append (the same, without -F), release, rename (mount, and create and
mount in the new place), rollback, send, send:raw, send:encrypted, share,
snapshot, userprop, userquota, groupquota, projectquota, userused, groupused,
projectused, and the same of objects: userobjquota and so on.
'zpool set delegation=off' makes all of them void.
",
    },
    Page {
        name: "zfs unallow",
        usage: &[
            "unallow [-dglru] <user|group>[,...] [<perm|@set>[,...]] <filesystem|volume>",
            "unallow [-dlr] -e|everyone [<perm|@set>[,...]] <filesystem|volume>",
            "unallow [-r] -c [<perm|@set>[,...]] <filesystem|volume>",
            "unallow [-r] -s <@set> [<perm|@set>[,...]] <filesystem|volume>",
        ],
        text: "\
Takes permissions away that 'zfs allow' gave on this dataset; without their
names all that somebody has. What is given on a dataset above stays.

  -r  and on everything below
  -l  only those on the dataset itself    -d  only those on what is below it
  -u  the names are of users    -g  they are of groups
  -e  those of everyone    -c  those of who makes datasets
  -s  those in a set; without names the set itself
",
    },
    Page {
        name: "zfs upgrade",
        usage: &["upgrade [-v]", "upgrade [-r] [-V version] <-a | filesystem ...>"],
        text: "\
Without names: the file systems that are not of the newest version, 5. With
names: gives them that version. Pools before version 24 cannot have it:
'zpool upgrade' comes first. What is in them stays as it is until it is changed.

  -v  what each version added
  -V  another version    -r  and everything below    -a  all file systems
",
    },
    Page { name: "zfs version", usage: &["version [-j]"], text: "As 'zpool version'.\n\n  -j  JSON\n" },
];
