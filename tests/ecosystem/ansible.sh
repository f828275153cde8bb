# Ansible's modules zpool, zfs, zfs_facts, zpool_facts and zfs_delegate_admin from PyPI: a playbook,
# its dry run first, again without changes, then one that changes and takes away.
. "$(dirname "$0")/common.sh"
need python3
# Of the collections, which are half a gigabyte, only the one with the modules.
python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q 'ansible-core<2.20' &&
    "$top/venv/bin/pip" download -q --no-deps -d "$top/wheel" 'ansible<13' || { echo "ansible is not installed"; exit 77; }
python3 - "$top/wheel" "$top/collections" <<'END'
import glob, sys, zipfile
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/ansible-*.whl")[0]) as z:
    z.extractall(sys.argv[2], [n for n in z.namelist() if n.startswith("ansible_collections/community/general/")])
END
export ANSIBLE_COLLECTIONS_PATH=$top/collections ANSIBLE_HOME=$top/home ANSIBLE_LOCALHOST_WARNING=False ANSIBLE_NOCOLOR=1
export ANSIBLE_PYTHON_INTERPRETER=$top/venv/bin/python LC_ALL=C.UTF-8
for n in {1..5}; do truncate -s 256M "$top/d$n"; done

header() { printf -- '- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n'; }
{ header; sed "s|TOP|$top|g" <<'END'
  - name: A pool
    community.general.zpool:
      name: t
      mountpoint: TOP/mnt/t
      pool_properties: {ashift: 12, comment: by hand, autotrim: true}
      filesystem_properties: {compression: zstd, atime: false, "x:mine": "1"}
      vdevs:
      - {type: mirror, disks: [TOP/d1, TOP/d2]}
      - {role: cache, disks: [TOP/d5]}
  - name: File systems and a volume
    community.general.zfs:
      name: "{{ item.name }}"
      state: present
      extra_zfs_properties: "{{ item.of }}"
    loop:
    - {name: t/data/deep, of: {recordsize: "16384", quota: "104857600", "x:why": a test}}
    - {name: t/vol, of: {volsize: "33554432", volblocksize: "8192"}}
    - {name: t/legacy, of: {mountpoint: legacy, sync: disabled, exec: false}}
    - {name: t/data/deep@one, of: {"x:kept": "yes"}}
  - name: A clone
    community.general.zfs: {name: t/clones/twin, state: present, origin: t/data/deep@one}
  - name: Grants
    community.general.zfs_delegate_admin:
      name: t/data
      users: [games, mail]
      groups: [staff]
      permissions: [snapshot, mount, compression]
  - name: Local ones
    community.general.zfs_delegate_admin: {name: t/data, everyone: true, permissions: [diff], local: true}
END
} > "$top/make.yml"
{ header; sed "s|TOP|$top|g" <<'END'
  - community.general.zfs_facts: {name: t, recurse: true, parsable: true, properties: "name,type,used,quota,recordsize,x:why,compression"}
  - assert:
      that:
      - ansible_zfs_datasets | map(attribute='name') | sort == ['t', 't/clones', 't/clones/twin', 't/data', 't/data/deep', 't/data/deep@one', 't/legacy', 't/vol']
      - (ansible_zfs_datasets | selectattr('name', 'eq', 't/data/deep') | first).quota == '104857600'
      - (ansible_zfs_datasets | selectattr('name', 'eq', 't/data/deep') | first).recordsize == '16384'
      - (ansible_zfs_datasets | selectattr('name', 'eq', 't/clones/twin') | first)['x:why'] == '-'
      - (ansible_zfs_datasets | selectattr('name', 'eq', 't/legacy') | first).compression == 'zstd'
      - (ansible_zfs_datasets | selectattr('name', 'eq', 't/vol') | first).type == 'volume'
  - community.general.zfs_facts: {name: t/data/deep}
  - assert:
      that:
      - ansible_zfs_datasets | length == 1
      - ansible_zfs_datasets[0].quota == '100M' and ansible_zfs_datasets[0].recordsize == '16K'
      - ansible_zfs_datasets[0].mounted == 'yes' and ansible_zfs_datasets[0].mountpoint == 'TOP/mnt/t/data/deep'
  - community.general.zfs_facts: {name: t, type: snapshot, depth: 3, properties: "creation,x:kept"}
  - assert: {that: ["ansible_zfs_datasets | length == 1", "ansible_zfs_datasets[0]['x:kept'] == 'yes'"]}
  - community.general.zpool_facts: {name: t, parsable: true}
  - assert:
      that:
      - ansible_zfs_pools[0].health == 'ONLINE' and ansible_zfs_pools[0].comment == 'by hand'
      - ansible_zfs_pools[0].ashift == '12' and ansible_zfs_pools[0].capacity | int < 5
      - ansible_zfs_pools[0].size | int > 200000000
      - ansible_zfs_pools[0]['feature@async_destroy'] == 'enabled'
  - community.general.zpool_facts: {properties: "free,size"}
  - assert: {that: ["ansible_zfs_pools | length == 1", "ansible_zfs_pools[0].name == 't'"]}
  - community.general.zfs_facts: {name: t/nothing}
    register: nothing
    failed_when: "'does not exist' not in nothing.msg"
END
} > "$top/facts.yml"
{ header; sed "s|TOP|$top|g" <<'END'
  - name: Another mirror
    community.general.zpool:
      name: t
      pool_properties: {comment: longer, autotrim: false}
      filesystem_properties: {compression: lz4}
      vdevs: &more
      - {type: mirror, disks: [TOP/d1, TOP/d2]}
      - {type: mirror, disks: [TOP/d3, TOP/d4]}
      - {role: cache, disks: [TOP/d5]}
  - name: Again
    community.general.zpool: {name: t, vdevs: *more}
    register: again
    failed_when: again.changed
  - name: Other properties
    community.general.zfs: {name: t/data/deep, state: present, extra_zfs_properties: {quota: "52428800", readonly: true}}
  - name: A larger volume
    community.general.zfs: {name: t/vol, state: present, extra_zfs_properties: {volsize: "67108864"}}
  - name: With all that depends on it
    community.general.zfs: {name: t/data/deep@one, state: absent}
  - name: Not there any more
    community.general.zfs: {name: t/legacy, state: absent}
  - name: One user less
    community.general.zfs_delegate_admin: {name: t/data, users: [mail], permissions: [mount], state: absent}
  - name: And not all
    community.general.zfs_delegate_admin: {name: t/data, everyone: true, local: true, state: absent}
END
} > "$top/change.yml"
{ header; sed "s|TOP|$top|g" <<'END'
  - name: One mirror less
    community.general.zpool:
      name: t
      vdevs: &less
      - {type: mirror, disks: [TOP/d1, TOP/d2]}
      - {role: cache, disks: [TOP/d5]}
  - command: zpool wait -t remove t
  - name: Again
    community.general.zpool: {name: t, vdevs: *less}
    register: again
    failed_when: again.changed
  - name: No grants
    community.general.zfs_delegate_admin: {name: t/data, state: absent}
END
} > "$top/less.yml"
play() { "$top/venv/bin/ansible-playbook" -i localhost, "$@" | tee "$top/out"; }
recap() { grep -q "ok=$1 *changed=$2 .*failed=0" "$top/out"; }

# A dry run makes no pool. (Of the other tasks it would find none.)
sed '/File systems and a volume/,$d' "$top/make.yml" > "$top/pool.yml"
play --check --diff "$top/pool.yml"
recap 1 1
grep -q "would create 't'" "$top/out"
no zpool list t
play "$top/make.yml"
recap 5 5
[ "$(zfs get -H -o value volblocksize t/vol)" = 8K ]
zfs allow t/data | tee "$top/allowed"
[ "$(sed 's/ -*$//' "$top/allowed" | tr '\n' ';')" = "---- Permissions on t/data;Local permissions:;	everyone diff;Local+Descendent permissions:;	user games compression,mount,snapshot;	user mail compression,mount,snapshot;	group staff compression,mount,snapshot;" ]
# What is right is not touched.
before=$(zpool history t | wc -l)
play "$top/make.yml"
recap 5 0
# Grants are set again, which changes nothing.
[ "$(zpool history t | tail -n +$before | grep '^2' | grep -cv 'zfs allow')" = 0 ]
play "$top/facts.yml"
recap 11 0
sed '/name: Again/,$d' "$top/change.yml" > "$top/first.yml"
play --check --diff "$top/first.yml"
recap 1 1
[ "$(zpool get -H -o value comment t)" = "by hand" ]
play "$top/change.yml"
# The module does not call it a change if a property was set before.
recap 8 6
[ "$(zfs list -H -o name -r -t all t | tr '\n' ' ')" = "t t/clones t/data t/data/deep t/vol " ]
[ "$(zfs get -Hp -o value quota,readonly t/data/deep | tr '\n' ' ')" = "52428800 on " ]
[ "$(zfs get -Hp -o value volsize t/vol)" = 67108864 ]
zpool status t | grep -q mirror-1
no grep everyone <(zfs allow t/data)
zfs allow t/data | grep -q 'user mail compression,snapshot$'
fill "$top/mnt/t" 1
cp -r "$top/mnt/t" "$top/kept"
play "$top/less.yml"
[ -z "$(zfs allow t/data)" ]
no grep mirror-1 <(zpool status t)
diff -r --no-dereference "$top/kept" "$top/mnt/t"
good t
"$top/venv/bin/ansible" localhost -m community.general.zpool -a "name=t state=absent"
no zpool list t
