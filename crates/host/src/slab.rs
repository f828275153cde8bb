//! A table of things named by small integers that are used again.

/// Index to value, with a free list.
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new(), len: 0 }
    }
    /// The index that the next [`Slab::insert`] gives.
    pub(crate) fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        match self.free.pop() {
            Some(i) => {
                self.entries[i as usize] = Some(value);
                i
            }
            None => {
                self.entries.push(Some(value));
                (self.entries.len() - 1) as u32
            }
        }
    }
    pub(crate) fn get_mut(&mut self, i: u32) -> Option<&mut T> {
        self.entries.get_mut(i as usize)?.as_mut()
    }
    pub(crate) fn remove(&mut self, i: u32) -> Option<T> {
        let value = self.entries.get_mut(i as usize)?.take()?;
        self.len -= 1;
        self.free.push(i);
        Some(value)
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Takes everything out.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        self.len = 0;
        std::mem::take(&mut self.entries).into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_used_again() {
        let mut s = Slab::new();
        let (a, b) = (s.insert('a'), s.insert('b'));
        assert_eq!((a, b, s.len()), (0, 1, 2));
        assert_eq!(s.remove(a), Some('a'));
        assert_eq!(s.remove(a), None);
        assert_eq!(s.next_index(), 0);
        assert_eq!(s.insert('c'), 0);
        assert_eq!(s.get_mut(0), Some(&mut 'c'));
        assert_eq!(s.take_all(), vec!['c', 'b']);
        assert_eq!(s.len(), 0);
    }
}
