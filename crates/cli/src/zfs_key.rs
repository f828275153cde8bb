//! `zfs load-key`, `unload-key`, `change-key`, and the sources of keys: a prompt, standard input, a
//! file, a server (http, https).

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use admin::request::Secret;
use admin::request::{ChangeKey, Datasets, Keys, LoadKey, Select, UnloadKey};
use admin::view::{DatasetView, KeyView};
use base::Error;
use host::SecretBytes;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, assignment, print};

/// Longest key that is read, in bytes.
const KEY_MAX: usize = 8192;

/// Switches the terminal's echo off; on again when dropped.
struct NoEcho;

impl NoEcho {
    fn new() -> NoEcho {
        let _ = Command::new("stty").arg("-echo").status();
        NoEcho
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        let _ = Command::new("stty").arg("echo").status();
        eprintln!();
    }
}

fn failed(what: &str, e: std::io::Error) -> Fail {
    Error::new(base::ErrorKind::Io, format!("{what}: {e}")).into()
}

/// Reads a key, up to a newline if `line`, at most [`KEY_MAX`] bytes. Only the returned buffer ever
/// holds it.
fn read_key(from: &mut impl Read, line: bool) -> std::io::Result<SecretBytes> {
    let mut key = SecretBytes::with_room(KEY_MAX);
    while key.len() < KEY_MAX {
        // Byte by byte if other input may follow the line.
        let want = if line { 1 } else { KEY_MAX - key.len() };
        match key.read_from(from, want) {
            Ok(0) => break,
            Ok(_) if line && key.last() == Some(&b'\n') => break,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(key)
}

/// One line from the terminal, without echo, or from standard input; all of standard input if the
/// key is raw.
fn prompt_key(question: &str, format: &str) -> Result<SecretBytes, Fail> {
    let stdin = std::io::stdin();
    let _silent = (stdin.is_terminal() && format != "raw").then(|| {
        eprint!("{question}: ");
        let _ = std::io::stderr().flush();
        NoEcho::new()
    });
    // Not through the buffer of the standard library, which is never overwritten.
    let owned = stdin.as_fd().try_clone_to_owned().map_err(|e| failed("cannot read the key", e))?;
    read_key(&mut std::fs::File::from(owned), format != "raw").map_err(|e| failed("cannot read the key", e))
}

/// Longest time that a server may take for a key, in seconds.
const FETCH_SECS: &str = "60";
/// What the environment says about TLS, as for OpenZFS, with curl's letters for it.
const TLS: [(&str, &str); 4] = [
    ("SSL_CA_CERT_PATH", "--capath"),
    ("SSL_CA_CERT_FILE", "--cacert"),
    ("SSL_CLIENT_CERT_FILE", "--cert"),
    ("SSL_CLIENT_KEY_FILE", "--key"),
];

/// The key at a URL, by the program `curl`; the error says why there is none.
fn fetch_key(url: &str) -> Result<SecretBytes, String> {
    // The system's program where there is one, whatever the path says; without the user's curlrc,
    // and never a redirection to another kind of location.
    let own = ["/usr/bin/curl", "/usr/local/bin/curl"].into_iter().find(|path| Path::new(path).exists());
    let mut curl = Command::new(own.unwrap_or("curl"));
    curl.args(["-q", "--silent", "--show-error", "--fail", "--location", "--max-time", FETCH_SECS]);
    curl.args(["--proto", "=http,https", "--proto-redir", "=https", "--max-filesize", &KEY_MAX.to_string()]);
    for (variable, letter) in TLS {
        if let Some(value) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
            curl.arg(letter).arg(value);
        }
    }
    curl.args(["--url", url]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = |e: std::io::Error| format!("the program 'curl' cannot be run: {e}");
    let mut curl = curl.spawn().map_err(missing)?;
    let key = curl.stdout.take().map(|mut out| read_key(&mut out, false));
    let mut said = String::new();
    if let Some(err) = curl.stderr.take() {
        let _ = err.take(4096).read_to_string(&mut said);
    }
    let status = curl.wait().map_err(|e| e.to_string())?;
    match key {
        Some(Ok(key)) if status.success() => Ok(key),
        Some(Err(e)) => Err(e.to_string()),
        _ => Err(said.lines().next().map_or_else(|| status.to_string(), |line| line.trim().to_string())),
    }
}

/// The key from its `keylocation`. The prompt asks for a new one twice.
fn get_key(name: &str, format: &str, location: &str, new: bool) -> Result<Secret, Fail> {
    if let Some(path) = location.strip_prefix("file://") {
        let key = std::fs::File::open(path).and_then(|mut file| read_key(&mut file, false));
        return Ok(Secret(key.map_err(|e| failed(&format!("cannot read the key file '{path}'"), e))?));
    }
    if location.starts_with("https://") || location.starts_with("http://") {
        return Ok(Secret(fetch_key(location).map_err(|why| {
            let word = if new { "cannot fetch the new key of" } else { "cannot fetch the key of" };
            Error::new(base::ErrorKind::Io, format!("{word} '{name}' from '{location}': {why}"))
        })?));
    }
    if location != "prompt" {
        return Err(Error::unsupported(format!(
            "the key of '{name}' is at '{location}', which weir does not fetch: use -L file:///<path> or -L prompt"
        ))
        .into());
    }
    let word = if format == "passphrase" { "passphrase" } else { "key" };
    let key = prompt_key(&format!("Enter {}{word} for '{name}'", if new { "new " } else { "" }), format)?;
    if new && std::io::stdin().is_terminal() && format != "raw" {
        let again = prompt_key(&format!("Re-enter new {word} for '{name}'"), format)?;
        if again != key {
            return Err(Error::invalid("the two do not match").into());
        }
    }
    Ok(Secret(key))
}

/// The key of a file system to be created, if the properties ask for one.
pub fn key_for_new(name: &str, props: &[(String, String)]) -> Result<Option<Secret>, Fail> {
    let given = |wanted: &str| props.iter().rfind(|(n, _)| n == wanted).map(|(_, v)| v.as_str());
    match given("keyformat") {
        Some(format) => get_key(name, format, given("keylocation").unwrap_or("prompt"), true).map(Some),
        None => Ok(None),
    }
}

/// The encryption roots that the operands or `-a` select.
fn roots(p: &Parsed, topic: &'static str) -> Result<Vec<KeyView>, Fail> {
    if p.has('a') {
        if !p.operands.is_empty() {
            return Err(Fail::Usage("cannot specify dataset with -a".into(), topic));
        }
        return ask(&Keys { names: Vec::new(), recursive: true });
    }
    if p.operands.is_empty() {
        return Err(Fail::Usage("missing dataset argument".into(), topic));
    }
    ask(&Keys { names: p.operands.clone(), recursive: p.has('r') })
}

/// `zfs load-key`.
pub fn load(p: &Parsed) -> Done {
    let many = p.has('a') || p.has('r');
    let mut bad = None;
    let (mut done, mut all) = (0, 0);
    for key in roots(p, "load-key")? {
        if many && key.available && !p.has('n') {
            continue;
        }
        all += 1;
        let location = p.value('L').unwrap_or(&key.location);
        let loaded = get_key(&key.name, &key.format, location, false)
            .and_then(|secret| ask(&LoadKey { name: key.name.clone(), key: secret, check_only: p.has('n') }));
        match loaded {
            Ok(()) => done += 1,
            Err(e) => bad = bad.or(Some(e)),
        }
    }
    if many {
        let word = if p.has('n') { "verified" } else { "loaded" };
        print(&format!("{done} / {all} key(s) successfully {word}\n"));
    }
    bad.map_or(Ok(()), Err)
}

/// `zfs mount -l`: loads the key that a file system needs; without a name, all that are not loaded.
pub fn load_for_mount(name: Option<&str>) -> Done {
    let roots = match name {
        None => query_keys(Vec::new(), true)?,
        Some(name) => {
            let (names, wanted) = (vec![name.to_string()], vec!["encryptionroot".to_string()]);
            let select = Select { filesystems: true, depth: Some(0), names, wanted, ..Select::default() };
            let found: Vec<DatasetView> = ask(&Datasets(select))?;
            let root = found.iter().flat_map(|d| &d.props).find(|p| p.name == "encryptionroot");
            match root.map(|p| p.exact.clone()) {
                Some(root) if root != "-" => query_keys(vec![root], false)?,
                _ => Vec::new(),
            }
        }
    };
    load_all(roots)
}

/// Loads all keys of these pools, for `zpool import -l`.
pub fn load_of_pools(pools: &[String]) -> Done {
    load_all(query_keys(pools.to_vec(), true)?)
}

fn query_keys(names: Vec<String>, recursive: bool) -> Result<Vec<KeyView>, Fail> {
    ask(&Keys { names, recursive })
}

/// Loads the keys that are not loaded; one failure does not stop the others.
fn load_all(roots: Vec<KeyView>) -> Done {
    let mut bad = None;
    for key in roots.into_iter().filter(|k| !k.available) {
        let loaded = get_key(&key.name, &key.format, &key.location, false)
            .and_then(|secret| ask(&LoadKey { name: key.name, key: secret, check_only: false }));
        bad = bad.or(loaded.err());
    }
    bad.map_or(Ok(()), Err)
}

/// `zfs unload-key`.
pub fn unload(p: &Parsed) -> Done {
    let many = p.has('a') || p.has('r');
    let mut bad = None;
    let mut keys = roots(p, "unload-key")?;
    keys.reverse();
    for key in keys {
        if many && !key.available {
            continue;
        }
        if let Err(e) = ask(&UnloadKey { name: key.name }) {
            bad = bad.or(Some(e));
        }
    }
    bad.map_or(Ok(()), Err)
}

/// `zfs change-key`.
pub fn change(p: &Parsed) -> Done {
    let [name] = p.operands.as_slice() else {
        let what = if p.operands.is_empty() { "missing dataset argument" } else { "too many arguments" };
        return Err(Fail::Usage(what.into(), "change-key"));
    };
    let props = p.values('o').map(|v| assignment(v, "change-key")).collect::<Result<Vec<_>, _>>()?;
    let keys: Vec<KeyView> = ask(&Keys { names: vec![name.clone()], recursive: false })?;
    let Some(now) = keys.first() else {
        return Err(Error::invalid(format!("dataset '{name}' is not encrypted")).into());
    };
    if p.has('l') && !now.available {
        let at: Vec<KeyView> = ask(&Keys { names: vec![now.root.clone()], recursive: false })?;
        if let Some(root) = at.first() {
            let key = get_key(&root.name, &root.format, &root.location, false)?;
            ask(&LoadKey { name: root.name.clone(), key, check_only: false })?;
        }
    }
    let key = if p.has('i') {
        if !props.is_empty() {
            return Err(Fail::Usage("-i takes no properties".into(), "change-key"));
        }
        None
    } else {
        let given = |wanted: &str| props.iter().rfind(|(n, _)| n == wanted).map(|(_, v)| v.as_str());
        if now.root != now.name && given("keyformat").is_none() {
            let why = format!(
                "cannot change the key of '{name}': Keyformat required for new encryption root: it inherits the key of '{}'",
                now.root
            );
            return Err(Error::invalid(why).into());
        }
        let format = given("keyformat").unwrap_or(&now.format);
        let kept = if now.root == now.name { now.location.as_str() } else { "prompt" };
        Some(get_key(name, format, given("keylocation").unwrap_or(kept), true)?)
    };
    ask(&ChangeKey { name: name.clone(), props, key })
}
