use lab::zil::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let medium = Medium::parse(&a[1]).unwrap();
    for disks in a[2].split(',') { for t in a[3].split(',') {
        let rate = Rate::parse(&a[4]).unwrap();
        let mut v = vec![];
        for policy in [zil::CommitPolicy::Batched, zil::CommitPolicy::Batchless2017] {
            let t0 = std::time::Instant::now();
            let cell = Cell { medium, disks: disks.parse().unwrap(), threads: t.parse().unwrap(), policy, rate, seconds: medium.seconds(), seed: 0 };
            let s = cell.run().unwrap();
            println!("{} {}x{} {:14} iops {:7.0} lat {:8.0} p50 {:8.0} p99 {:8.0} blk/s {:6.0} w/b {:5.1} fill {:3.0} txgs {} n {} vs {:.1} cpu {:.1}", a[1], disks, t, s.policy, s.iops, s.latency_mean_us, s.latency_p50_us, s.latency_p99_us, s.blocks_per_s, s.waiters_per_block, s.fill_percent, s.txgs, s.writes, s.seconds, t0.elapsed().as_secs_f64());
            v.push(if rate == Rate::Max { s.iops } else { s.latency_mean_us });
        }
        let p = lab::published::value(medium, rate, disks.parse().unwrap(), t.parse().unwrap());
        println!("   change {:+.1} published {:?} {:+.1}", change_percent(v[0], v[1]), p, p.map_or(0.0, |p| change_percent(p.0, p.1)));
    } }
}
