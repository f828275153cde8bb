//! Notices of a pool: sentences about what its administrator should know, such as a device that is
//! not there, until they are no longer true.

use std::cell::RefCell;

/// The notices of a pool, oldest first.
#[derive(Default)]
pub(crate) struct Notices(RefCell<Vec<String>>);

impl Notices {
    /// The notices of an import.
    pub(crate) fn new(all: Vec<String>) -> Notices {
        Notices(RefCell::new(all))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Replaces all by one.
    pub(crate) fn replace(&self, text: String) {
        *self.0.borrow_mut() = vec![text];
    }

    /// Adds a notice.
    pub(crate) fn push(&self, text: String) {
        self.0.borrow_mut().push(text);
    }

    /// Adds a notice, unless there is the same one.
    pub(crate) fn push_once(&self, text: String) {
        let mut all = self.0.borrow_mut();
        if !all.contains(&text) {
            all.push(text);
        }
    }

    /// Drops the notices that begin with `start`.
    pub(crate) fn drop_about(&self, start: &str) {
        self.0.borrow_mut().retain(|n| !n.starts_with(start));
    }
}
