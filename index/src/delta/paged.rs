//! Map keyed by dense numbers that is cheap to clone: snapshots share the pages that they do not change.

use std::sync::Arc;

/// Number of keys per page.
const PAGE: usize = 256;

/// Map from numbers to values. A lookup hashes nothing and follows two pointers, a clone copies one pointer per page,
/// and an insertion copies at most one page.
#[derive(Debug, Clone)]
pub(crate) struct PagedMap<V> {
    pages: Vec<Option<Arc<[Option<V>; PAGE]>>>,
}

impl<V> Default for PagedMap<V> {
    fn default() -> PagedMap<V> {
        PagedMap { pages: Vec::new() }
    }
}

impl<V: Clone> PagedMap<V> {
    pub(crate) fn get(&self, number: u32) -> Option<&V> {
        let page = self.pages.get(number as usize / PAGE)?.as_ref()?;
        page[number as usize % PAGE].as_ref()
    }

    pub(crate) fn insert(&mut self, number: u32, value: V) {
        let place = number as usize / PAGE;
        if self.pages.len() <= place {
            self.pages.resize(place + 1, None);
        }
        let page = self.pages[place].get_or_insert_with(|| Arc::new(std::array::from_fn(|_| None)));
        Arc::make_mut(page)[number as usize % PAGE] = Some(value);
    }

    /// Returns `true` if nothing was ever inserted.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Iterates over all entries in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let pages = (0..).step_by(PAGE).zip(&self.pages);
        let pages = pages.filter_map(|(first, page)| Some((first, page.as_ref()?)));
        pages
            .flat_map(|(first, page)| (first..).zip(page.iter()))
            .filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_earlier_clone_keeps_its_values() {
        let mut map = PagedMap::default();
        let mut expected = BTreeMap::new();
        let mut earlier = Vec::new();
        assert!(map.is_empty() && map.iter().next().is_none());
        for round in 0..20_u32 {
            earlier.push((map.clone(), expected.clone()));
            for place in 0..50 {
                let number = (place * 977 + round * 31) % 5000;
                map.insert(number, round);
                expected.insert(number, round);
            }
        }
        earlier.push((map, expected));
        for (map, expected) in earlier {
            assert!(map.iter().map(|(number, &value)| (number, value)).eq(expected.clone()));
            assert!((0..6000).all(|number| map.get(number) == expected.get(&number)));
        }
    }
}
