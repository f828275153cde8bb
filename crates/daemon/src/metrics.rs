//! Metrics in the text form of Prometheus, over HTTP on a Unix socket or a loopback port; off by
//! default.
//!
//! `weir daemon start -m unix:PATH` or `-m 127.0.0.1:PORT`. Every GET request gets all metrics,
//! whatever its path. Only loopback addresses are accepted, so that other machines cannot see the
//! pools.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use vdev::Prio;

use admin::view::{FlowView, IoView};

/// Time for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request.
const REQUEST_MAX: usize = 16 << 10;

/// An address where something is served on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A loopback address.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// `unix:PATH` or `ADDRESS:PORT`, for metrics.
    pub fn parse(text: &str) -> Result<Endpoint> {
        Endpoint::parse_for(text, "metrics")
    }

    /// `unix:PATH` or `ADDRESS:PORT`; `what` is served there, for messages.
    pub fn parse_for(text: &str, what: &str) -> Result<Endpoint> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(Error::invalid(format!("the socket for {what} needs a path: unix:PATH")));
            }
            return Ok(Endpoint::Unix(PathBuf::from(path)));
        }
        let at: SocketAddr = text.parse().map_err(|_| {
            Error::invalid(format!("'{text}' is no place for {what}: it must be unix:PATH or 127.0.0.1:PORT"))
        })?;
        if !at.ip().is_loopback() {
            let why = format!("{what} is given out on loopback addresses only, and {at} is none");
            return Err(Error::invalid(why));
        }
        Ok(Endpoint::Tcp(at))
    }

    /// Listens and replies for ever, on a thread of its own; `read` gives the views of the pools.
    pub fn serve(&self, read: impl Fn() -> Vec<FlowView> + Send + 'static) -> Result<()> {
        let fail =
            |e: std::io::Error| Error::new(ErrorKind::Io, format!("metrics cannot be given out at {self:?}: {e}"));
        match self {
            Endpoint::Unix(path) => {
                // Only a socket without a listener is removed.
                if std::os::unix::net::UnixStream::connect(path)
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
                {
                    std::fs::remove_file(path).map_err(fail)?;
                }
                let listener = UnixListener::bind(path).map_err(fail)?;
                std::thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        let _ = stream.set_read_timeout(Some(PATIENCE));
                        let _ = stream.set_write_timeout(Some(PATIENCE));
                        answer(stream, &read);
                    }
                });
            }
            Endpoint::Tcp(at) => {
                let listener = TcpListener::bind(at).map_err(fail)?;
                std::thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        let _ = stream.set_read_timeout(Some(PATIENCE));
                        let _ = stream.set_write_timeout(Some(PATIENCE));
                        answer(stream, &read);
                    }
                });
            }
        }
        Ok(())
    }
}

fn answer(mut stream: impl Read + Write, read: &impl Fn() -> Vec<FlowView>) {
    let mut request = Vec::new();
    let mut part = [0u8; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(n) if n > 0 && request.len() < REQUEST_MAX => request.extend_from_slice(&part[..n]),
            _ => return,
        }
    }
    let (status, body) = if request.starts_with(b"GET ") {
        ("200 OK", render(&read()))
    } else {
        ("405 Method Not Allowed", "only GET\n".to_string())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // A closed connection is no error.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

/// The value of a label, escaped.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn leaves<'a>(view: &'a IoView, out: &mut Vec<&'a IoView>) {
    if view.children.is_empty() {
        out.push(view);
    }
    view.children.iter().for_each(|c| leaves(c, out));
}

/// All pools in the text form, version 0.0.4.
pub fn render(pools: &[FlowView]) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        let _ = writeln!(out, "# HELP weir_{name} {help}\n# TYPE weir_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "weir_{name}{{{labels}}} {value}");
        }
    };
    let each = |f: &dyn Fn(&FlowView) -> f64| -> Vec<(String, f64)> {
        pools.iter().map(|p| (format!("pool=\"{}\"", quoted(&p.io.name)), f(p))).collect()
    };
    metric("dirty_bytes", "gauge", "Bytes written but not yet on disk.", each(&|p| p.dirty as f64));
    metric("dirty_limit_bytes", "gauge", "The limit of that (zfs_dirty_data_max).", each(&|p| p.dirty_max as f64));
    metric("write_delay_seconds", "gauge", "Delay of a write that comes now.", each(&|p| p.delay_ns as f64 / 1e9));
    metric("delayed_writes_total", "counter", "Transactions that the throttle delayed.", each(&|p| p.delayed as f64));
    metric("delayed_seconds_total", "counter", "How long they were.", each(&|p| p.delayed_ns as f64 / 1e9));
    metric("blocked_writes_total", "counter", "Transactions that met the limit.", each(&|p| p.blocked as f64));
    metric("txgs_synced_total", "counter", "Transaction groups on disk.", each(&|p| p.synced as f64));
    metric("arc_bytes", "gauge", "Memory of the cache.", each(&|p| p.arc[0] as f64));
    metric("arc_limit_bytes", "gauge", "Its limit.", each(&|p| p.arc[1] as f64));
    metric("arc_hits_total", "counter", "Reads served from memory.", each(&|p| p.arc[2] as f64));
    metric("arc_misses_total", "counter", "Reads that went to a device.", each(&|p| p.arc[3] as f64));
    let admin = pools.iter().flat_map(|p| {
        let label = format!("pool=\"{}\"", quoted(&p.io.name));
        let mut sum = 0;
        let below = p.admin.iter().enumerate().map(|(b, n)| {
            sum += n;
            (format!("_bucket{{{label},le=\"{}\"}}", 2f64.powi(b as i32 + 1) / 1e6), sum as f64)
        });
        // The last bucket has no upper bound: its values appear under `+Inf` only.
        let mut samples: Vec<(String, f64)> = below.take(p.admin.len().saturating_sub(1)).collect();
        let count = p.admin.iter().sum::<u64>() as f64;
        samples.push((format!("_bucket{{{label},le=\"+Inf\"}}"), count));
        samples.push((format!("_sum{{{label}}}"), p.admin_ns as f64 / 1e9));
        samples.push((format!("_count{{{label}}}"), count));
        samples
    });
    let admin: Vec<(String, f64)> = admin.collect();
    let mut devices: Vec<(String, &IoView)> = Vec::new();
    for p in pools {
        let mut list = Vec::new();
        leaves(&p.io, &mut list);
        let label = |l: &IoView| format!("pool=\"{}\",device=\"{}\"", quoted(&p.io.name), quoted(&l.name));
        devices.extend(list.into_iter().map(|l| (label(l), l)));
    }
    let per_class = |f: &dyn Fn(&IoView, usize) -> f64| -> Vec<(String, f64)> {
        let classes = |(label, view): &(String, &IoView)| {
            Prio::ALL.map(|c| (format!("{label},class=\"{}\"", c.name()), f(view, c.index()))).to_vec()
        };
        devices.iter().flat_map(classes).collect()
    };
    let class = |v: &IoView, c: usize, part: usize| v.stats.class.get(c).map_or(0.0, |s| s[part] as f64);
    metric("device_operations_total", "counter", "Operations by class.", per_class(&|v, c| class(v, c, 0)));
    metric("device_bytes_total", "counter", "Bytes by class.", per_class(&|v, c| class(v, c, 1)));
    metric("device_total_seconds_total", "counter", "Time from queue to end.", per_class(&|v, c| class(v, c, 2) / 1e9));
    metric("device_disk_seconds_total", "counter", "Time at the device.", per_class(&|v, c| class(v, c, 3) / 1e9));
    let depth = |list: &[u64], c: usize| list.get(c).copied().unwrap_or(0) as f64;
    metric("device_queued", "gauge", "Operations that wait.", per_class(&|v, c| depth(&v.stats.queued, c)));
    metric("device_active", "gauge", "Operations at the device.", per_class(&|v, c| depth(&v.stats.active, c)));
    let flushes = devices.iter().map(|(label, v)| (label.clone(), v.stats.flushes as f64)).collect();
    metric("device_flushes_total", "counter", "Flushes.", flushes);
    let datasets = |f: &dyn Fn(&[u64; 4]) -> u64| -> Vec<(String, f64)> {
        let of = |d: &admin::view::DatasetIo| (format!("dataset=\"{}\"", quoted(&d.name)), f(&d.io) as f64);
        pools.iter().flat_map(|p| &p.datasets).map(of).collect()
    };
    metric("dataset_reads_total", "counter", "Reads of a mounted file system.", datasets(&|d| d[0]));
    metric("dataset_read_bytes_total", "counter", "Their bytes.", datasets(&|d| d[1]));
    metric("dataset_writes_total", "counter", "Writes of a mounted file system.", datasets(&|d| d[2]));
    metric("dataset_written_bytes_total", "counter", "Their bytes.", datasets(&|d| d[3]));
    let help = "Administrative operations by the time until they were on disk.";
    let _ = writeln!(out, "# HELP weir_admin_seconds {help}\n# TYPE weir_admin_seconds histogram");
    admin.iter().for_each(|(labels, value)| {
        let _ = writeln!(out, "weir_admin_seconds{labels} {value}");
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use admin::view::{DatasetIo, IoStats};

    #[test]
    fn only_sockets_and_loopback_are_taken() {
        assert_eq!(Endpoint::parse("unix:/run/m").unwrap(), Endpoint::Unix("/run/m".into()));
        assert!(matches!(Endpoint::parse("127.0.0.1:9100").unwrap(), Endpoint::Tcp(_)));
        assert!(matches!(Endpoint::parse("[::1]:9100").unwrap(), Endpoint::Tcp(_)));
        for bad in ["", "unix:", "9100", "0.0.0.0:9100", "192.168.0.1:80", "localhost:80", "127.0.0.1:99999"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_sample_has_a_type_and_odd_names_are_escaped() {
        let mut leaf = IoView { name: "a\"b\\c".into(), stats: IoStats::nothing(), ..IoView::default() };
        leaf.stats.class[3] = [5, 640, 2_000_000_000, 1_000_000_000];
        let io = IoView { name: "tank".into(), stats: leaf.stats.clone(), children: vec![leaf], ..IoView::default() };
        let datasets = vec![DatasetIo { name: "tank/x".into(), io: [1, 2, 3, 4] }];
        let mut admin = vec![0; 32];
        (admin[1], admin[10], admin[31]) = (2, 3, 1);
        let text = render(&[FlowView { io, dirty: 7, datasets, admin, admin_ns: 5_000_000, ..FlowView::default() }]);
        for (bound, n) in [("0.000002", 0), ("0.000004", 2), ("0.002048", 5), ("+Inf", 6)] {
            let line = format!("weir_admin_seconds_bucket{{pool=\"tank\",le=\"{bound}\"}} {n}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(text.contains("weir_admin_seconds_sum{pool=\"tank\"} 0.005\n"), "{text}");
        assert!(text.contains("weir_dirty_bytes{pool=\"tank\"} 7\n"), "{text}");
        let line = "weir_device_total_seconds_total{pool=\"tank\",device=\"a\\\"b\\\\c\",class=\"asyncq_write\"} 2\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("weir_dataset_written_bytes_total{dataset=\"tank/x\"} 4\n"));
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let name = line.split('{').next().unwrap();
            let name = if name.starts_with("weir_admin_") { "weir_admin_seconds" } else { name };
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
        }
    }

    #[test]
    fn a_scrape_gets_everything_and_others_a_refusal() {
        let dir = host::TempDir::new("metrics").unwrap();
        let path = dir.path().join("socket");
        let endpoint = Endpoint::Unix(path.clone());
        endpoint.serve(|| vec![FlowView { dirty: 9, ..FlowView::default() }]).unwrap();
        let ask = |what: &str| {
            let mut s = std::os::unix::net::UnixStream::connect(&path).unwrap();
            s.write_all(what.as_bytes()).unwrap();
            let mut all = String::new();
            s.read_to_string(&mut all).unwrap();
            all
        };
        let text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("weir_dirty_bytes{pool=\"\"} 9"), "{text}");
        assert!(ask("POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(endpoint.serve(Vec::new).is_err(), "somebody is there already");
    }
}
