//! The list of notices.

use crate::notices::Notices;

#[test]
fn notices_are_kept_until_they_are_dropped() {
    let n = Notices::new(vec!["disk a is not there".into()]);
    n.push_once("disk b is not there".into());
    n.push_once("disk b is not there".into());
    n.push("disk b is not there".into());
    assert_eq!(n.all(), ["disk a is not there", "disk b is not there", "disk b is not there"]);
    n.drop_about("disk b");
    assert_eq!(n.all(), ["disk a is not there"]);
    n.drop_about("a");
    assert_eq!(n.all().len(), 1, "it begins with something else");
    n.replace("an older state".into());
    assert_eq!(n.all(), ["an older state"]);
}
