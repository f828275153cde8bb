//! A pool whose root file system is encrypted.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::{BufRead, Write};
use std::process::Command;

use common::world::World;
use common::{ALONE, WEIR};

/// A world with a pool `tank` whose key is in a file.
fn pool(w: &World, mountpoint: &str) {
    fs::write(w.path("key"), "correct horse battery").unwrap();
    let key = w.path("key");
    w.ok(&format!(
        "zpool create -o compatibility=openzfs-2.1-linux -O mountpoint={mountpoint} --size 128M -O encryption=aes-128-ccm \
         -O keyformat=passphrase -O keylocation=file://{key} tank a.img"
    ));
}

fn value(w: &World, prop: &str, of: &str) -> String {
    w.ok(&format!("zfs get -H -o value {prop} {of}")).trim().to_string()
}

#[test]
fn the_root_of_a_pool_is_an_encryption_root() {
    let w = World::without_mounts("pool-encryption");
    // Every mistake is found before anything is made.
    for (props, what) in [
        ("-O encryption=on", "needs a key"),
        ("-O encryption=rot13", "is no value of encryption"),
        ("-O keylocation=file:///none", "need a keyformat"),
        ("-O encryption=on -O keyformat=passphrase -O keylocation=none", "which weir does not fetch"),
        (
            "-d -O encryption=on -O keyformat=passphrase -O keylocation=file:///etc/hostid.none",
            "cannot read the key file",
        ),
    ] {
        w.fails(&format!("zpool create --size 128M {props} tank a.img"), &[what]);
    }
    fs::write(w.path("key"), "short").unwrap();
    let props = format!("-O keyformat=passphrase -O keylocation=file://{}", w.path("key"));
    w.fails(&format!("zpool create --size 128M -O encryption=on {props} tank a.img"), &["8 to 512 characters, not 5"]);
    fs::write(w.path("key"), "correct horse battery").unwrap();
    w.fails(&format!("zpool create --size 128M {props} tank a.img"), &["is not to be encrypted"]);
    w.fails(
        &format!("zpool create -d --size 128M -O encryption=on {props} tank a.img"),
        &["feature@encryption=enabled"],
    );
    assert!(!fs::exists(w.path("a.img")).unwrap());

    pool(&w, "none");
    w.ok("zfs create tank/fs");
    w.ok("zfs create -o encryption=off tank/plain");
    let all = w.ok("zfs get -r -H -o name,value encryptionroot,keystatus tank");
    assert_eq!(all, "tank\ttank\ntank\tavailable\ntank/fs\ttank\ntank/fs\tavailable\ntank/plain\t-\ntank/plain\t-\n");
    assert_eq!(value(&w, "encryption", "tank/fs"), "aes-128-ccm");
    assert_eq!(w.ok("zpool get -H -o value feature@encryption tank"), "active\n");
    w.ok("zpool export tank");
    // OpenZFS reads what it can without the key, and finds the space right.
    let zdb = Command::new("zdb").args(ALONE).args(["-e", "-p"]).arg(w.dir.path()).args(["-bcc", "tank"]).output();
    if let Ok(o) = zdb {
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stdout));
    }
    let own = w.command(WEIR).args(["zdb", "-p"]).arg(w.dir.path()).arg("tank").output().unwrap();
    assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stdout));
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    assert_eq!(value(&w, "keystatus", "tank/fs"), "unavailable");
    w.fails("zfs create tank/more", &["encryption key not loaded"]);
    w.ok("zfs load-key tank");
    w.ok("zfs create tank/more");
    w.ok("zfs unload-key tank");
}

#[test]
fn files_in_the_root_are_encrypted() {
    let Some(w) = World::new("pool-encryption-files") else { return };
    let mnt = w.path("mnt");
    pool(&w, &mnt);
    let text = "a text that is in the image if it is stored as it is: 0123456789".repeat(64);
    fs::write(format!("{mnt}/f"), &text).unwrap();
    w.ok("zfs snapshot tank@s");
    w.ok("zpool export tank");
    let image = fs::read(w.path("a.img")).unwrap();
    let needle = &text.as_bytes()[..40];
    assert!(!image.windows(40).any(|at| at == needle), "the text is in the image");
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    assert!(!w.is_mounted("tank"));
    w.ok("zpool export tank");
    w.ok(&format!("zpool import -l -d {} tank", w.path("")));
    assert_eq!(fs::read_to_string(format!("{mnt}/f")).unwrap(), text);
}

/// A server of one file for each request: the answer, and what it was asked for.
fn serve(answers: Vec<&'static str>) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let asked = |answer: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap());
            while !request.ends_with("\r\n\r\n") {
                assert!(lines.read_line(&mut request).unwrap() > 0, "{request}");
            }
            stream.write_all(answer.as_bytes()).unwrap();
            request.lines().next().unwrap_or_default().to_string()
        };
        answers.into_iter().map(asked).collect()
    });
    (port, server)
}

#[test]
fn keys_come_from_servers() {
    const KEY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 21\r\nConnection: close\r\n\r\ncorrect horse battery";
    let w = World::without_mounts("pool-encryption-url");
    w.ok("zpool create -O mountpoint=none --size 128M tank a.img");
    let (port, server) = serve(vec![
        "HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\nConnection: close\r\n\r\ncorrect horse battery",
        "HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 900000\r\nConnection: close\r\n\r\n",
        KEY,
        KEY,
    ]);
    let url = format!("http://127.0.0.1:{port}/a%20key");
    let create = format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation={url} tank/fs");
    for why in ["404", "not supported or disabled", "file size"] {
        w.fails(&create, &["cannot fetch the new key of 'tank/fs' from 'http://127.0.0.1", why]);
    }
    w.ok(&create);
    w.ok("zfs unload-key tank/fs");
    w.ok("zfs load-key tank/fs");
    assert_eq!((value(&w, "keystatus", "tank/fs"), value(&w, "keylocation", "tank/fs")), ("available".into(), url));
    assert_eq!(server.join().unwrap(), ["GET /a%20key HTTP/1.1"; 5]);
    w.ok("zfs unload-key tank/fs");
    w.fails("zfs load-key tank/fs", &["cannot fetch the key of 'tank/fs'", "127.0.0.1"]);
    w.fails("zfs load-key -L https://127.0.0.1:1/key tank/fs", &["cannot fetch the key of 'tank/fs'", "127.0.0.1"]);
}
