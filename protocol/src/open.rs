//! The calls of one direction that are open, by id.

use alloc::collections::VecDeque;

/// A map whose keys only ever increase, as ids do, and whose entries mostly leave
/// in the order in which they came: a queue, searched by halving.
///
/// Entering and leaving at the front cost nothing; leaving from the middle costs a
/// move of the shorter side, which is bounded by the limit on calls.
#[derive(Debug)]
pub(crate) struct OpenCalls<T> {
    calls: VecDeque<(u32, T)>,
    /// The last id that was used; 0 if none was.
    last: u32,
}

impl<T> Default for OpenCalls<T> {
    fn default() -> Self {
        Self { calls: VecDeque::new(), last: 0 }
    }
}

impl<T> OpenCalls<T> {
    /// The last id that was used; 0 if none was.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// An id is used without a call that is open. Larger than every one before.
    pub(crate) fn use_up(&mut self, id: u32) {
        debug_assert!(self.last < id, "ids only ever increase");
        self.last = id;
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn find(&self, id: u32) -> Option<usize> {
        match self.calls.front() {
            Some((first, _)) if *first == id => Some(0),
            // A new one is not searched for.
            _ if self.last < id => None,
            _ => self.calls.binary_search_by_key(&id, |(id, _)| *id).ok(),
        }
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.find(id).and_then(|at| self.calls.get(at)).map(|(_, call)| call)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.find(id).and_then(|at| self.calls.get_mut(at)).map(|(_, call)| call)
    }

    /// Enters. The id is larger than every one before.
    pub(crate) fn insert(&mut self, id: u32, call: T) {
        self.use_up(id);
        self.calls.push_back((id, call));
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let gone = match self.find(id)? {
            0 => self.calls.pop_front(),
            at => self.calls.remove(at),
        };
        gone.map(|(_, call)| call)
    }

    /// In order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.calls.iter().map(|(id, call)| (*id, call))
    }

    /// In order of their ids.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.calls.iter_mut().map(|(id, call)| (*id, call))
    }
}

impl<T> IntoIterator for OpenCalls<T> {
    type Item = (u32, T);
    type IntoIter = alloc::collections::vec_deque::IntoIter<(u32, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.calls.into_iter()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0..40_u32), 0..200)) {
            let (mut ours, mut model, mut last) = (OpenCalls::default(), BTreeMap::new(), 0);
            for (enter, n) in steps {
                if enter {
                    last += 1 + n;
                    ours.insert(last, n);
                    model.insert(last, n);
                } else {
                    // Any id at all, most of them known.
                    let id = last.saturating_sub(n);
                    prop_assert_eq!(ours.get(id), model.get(&id));
                    prop_assert_eq!(ours.contains(id), model.contains_key(&id));
                    prop_assert_eq!(ours.remove(id), model.remove(&id));
                }
                prop_assert_eq!(ours.len(), model.len());
                prop_assert_eq!(ours.is_empty(), model.is_empty());
            }
            let left: Vec<_> = ours.iter_mut().map(|(id, n)| (id, *n)).collect();
            prop_assert_eq!(left, model.into_iter().collect::<Vec<_>>());
        }
    }
}
