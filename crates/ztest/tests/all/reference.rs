//! Pools that the kernel module wrote, changed by weir. The long profile: `ztest --reference`.

use ztest::judge::Level;
use ztest::reference::{Outcome, REFERENCES, try_pool};

#[test]
fn pools_of_others_stay_good() {
    let level = if ztest::judge::has_zdb() { Level::Zdb } else { Level::None };
    if level == Level::None {
        eprintln!("NOT JUDGED: zdb is missing (zfsutils-linux)");
    }
    for reference in REFERENCES.iter().filter(|r| r.quick) {
        match try_pool(reference, 1, 25, level) {
            Outcome::Good(_) => {}
            // Archives of the project's own part are always there: a judge is missing.
            Outcome::Missing(what) if level != Level::None => {
                eprintln!("{}: NOT JUDGED: {what}", reference.name);
                match try_pool(reference, 1, 25, Level::None) {
                    Outcome::Good(_) => {}
                    outcome => panic!("{}: {outcome}", reference.name),
                }
            }
            outcome => panic!("{}: {outcome}", reference.name),
        }
    }
}
