//! What a header says about claim and replay.

use base::Txg;
use ondisk::zil::{ZIL_REPLAY_NEEDED, ZilHeader};

use super::pointer;
use crate::{claim, replay};

#[test]
fn a_log_is_claimed_once_and_replayed_after_that() {
    let none = ZilHeader::default();
    let fresh = ZilHeader { log: pointer(1, 4096), ..none };
    let claimed = ZilHeader { claim_txg: Txg(7), ..fresh };
    let waiting = ZilHeader { flags: ZIL_REPLAY_NEEDED, ..claimed };
    for (what, header, want) in [
        ("no log", none, (false, false)),
        ("a log of the last run", fresh, (true, false)),
        ("claimed, without records", claimed, (false, false)),
        ("claimed, with records", waiting, (false, true)),
        ("a flag without a claim", ZilHeader { claim_txg: Txg(0), ..waiting }, (true, false)),
        ("a claim without a log", ZilHeader { log: none.log, ..waiting }, (false, false)),
    ] {
        assert_eq!((claim::needs_claim(&header), replay::is_needed(&header)), want, "{what}");
    }
}
