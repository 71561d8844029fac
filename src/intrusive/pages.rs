//! A slab that grows by pages, so that growth copies no elements, and that frees empty pages.

use std::ops::{Index, IndexMut};

/// Allocators map memory of about this size separately, so a freed page returns to the kernel.
const PAGE_BYTES_MIN: usize = 128 * 1024;

/// A slab of `T`. An element has a stable key, and the lowest free key is used first.
pub struct Pages<T> {
    pages: Vec<SlabPage<T>>,
    /// One bit per page, set if the page has room.
    open: Vec<u64>,
    /// No word of `open` below this one has a bit set.
    open_from: usize,
    /// The page that became empty last. It keeps its memory, so that a load that varies around a page boundary allocates
    /// once.
    spare: usize,
    len: usize,
    /// Positions that were used since their page was allocated.
    touched: usize,
}

struct SlabPage<T> {
    /// Grows by pushes within its capacity, so that unused memory stays untouched.
    items: Vec<Option<T>>,
    /// One bit per position below `items.len()`, set if the position is vacant.
    free: Vec<u64>,
    used: u32,
}

impl<T> Pages<T> {
    /// Elements per page.
    const ITEMS: usize = (PAGE_BYTES_MIN / size_of::<Option<T>>()).next_power_of_two();
    const SHIFT: u32 = Self::ITEMS.trailing_zeros();
    const MASK: usize = Self::ITEMS - 1;

    /// An empty slab.
    pub const fn new() -> Self {
        const { assert!(Self::ITEMS >= 64, "a page holds at least one word of the bitmap") };
        Self { pages: Vec::new(), open: Vec::new(), open_from: 0, spare: 0, len: 0, touched: 0 }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of elements that have memory, in use or not.
    pub const fn touched(&self) -> usize {
        self.touched
    }

    /// The memory of the slab.
    pub const fn bytes(&self) -> usize {
        self.touched * size_of::<Option<T>>()
            + self.pages.capacity() * (size_of::<SlabPage<T>>() + Self::ITEMS / 8)
            + self.open.capacity() * size_of::<u64>()
    }

    /// What the next `count` insertions add to [`bytes`](Self::bytes), apart from the bitmaps of new pages.
    pub fn growth(&mut self, count: usize) -> usize {
        let first = self.first_open().unwrap_or(self.pages.len());
        let (mut left, mut vacant) = (count, 0);
        for page in self.pages[first..].iter().filter(|page| (page.used as usize) < Self::ITEMS) {
            vacant += left.min(page.items.len() - page.used as usize);
            left = left.saturating_sub(Self::ITEMS - page.used as usize);
            if left == 0 {
                break;
            }
        }
        (count - vacant) * size_of::<Option<T>>()
    }

    /// Stores `item` and returns its key.
    ///
    /// # Panics
    /// If there are 2^32 - 1 elements.
    pub fn insert(&mut self, item: T) -> u32 {
        let number = self.open_page();
        let page = &mut self.pages[number];
        let before = page.items.len();
        let position = page.insert(item);
        self.touched += page.items.len() - before;
        if page.used as usize == Self::ITEMS {
            self.open[number / 64] &= !(1 << (number % 64));
        }
        self.len += 1;
        let key = number << Self::SHIFT | position;
        assert!(key < super::NIL as usize, "a slab has fewer than 2^32 - 1 elements");
        key as u32
    }

    /// Removes the element. Another one may get its key.
    ///
    /// # Panics
    /// If the key is not in use.
    pub fn remove(&mut self, key: u32) -> T {
        let number = key as usize >> Self::SHIFT;
        let page = &mut self.pages[number];
        let item = page.remove(key as usize & Self::MASK);
        if page.used == 0 {
            let previous = std::mem::replace(&mut self.spare, number);
            if previous != number && self.pages[previous].used == 0 {
                let page = std::mem::take(&mut self.pages[previous]);
                self.touched -= page.items.len();
            }
        }
        self.open[number / 64] |= 1 << (number % 64);
        self.open_from = self.open_from.min(number / 64);
        self.len -= 1;
        item
    }

    /// The element with this key.
    pub fn get(&self, key: u32) -> Option<&T> {
        self.pages.get(key as usize >> Self::SHIFT)?.items.get(key as usize & Self::MASK)?.as_ref()
    }

    /// A number above every key in use.
    pub fn keys_end(&self) -> u32 {
        self.pages.last().map_or(0, |last| ((self.pages.len() - 1) << Self::SHIFT | last.items.len()) as u32)
    }

    /// All elements with their keys, by key.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().enumerate().flat_map(|(number, page)| {
            page.items.iter().enumerate().filter_map(move |(position, item)| {
                item.as_ref().map(|item| ((number << Self::SHIFT | position) as u32, item))
            })
        })
    }

    /// Recomputes the counts.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        let used: usize = self.pages.iter().map(|page| page.used as usize).sum();
        let touched: usize = self.pages.iter().map(|page| page.items.len()).sum();
        assert_eq!((used, touched), (self.len, self.touched), "the counts of the slab are right");
    }

    /// The first page with room.
    fn first_open(&mut self) -> Option<usize> {
        while let Some(word) = self.open.get(self.open_from) {
            if *word != 0 {
                return Some(self.open_from * 64 + word.trailing_zeros() as usize);
            }
            self.open_from += 1;
        }
        None
    }

    /// The first page with room, which is added if there is none.
    fn open_page(&mut self) -> usize {
        if let Some(number) = self.first_open() {
            return number;
        }
        let number = self.pages.len();
        self.pages.push(SlabPage::default());
        if number.is_multiple_of(64) {
            self.open.push(0);
        }
        self.open_from = number / 64;
        self.open[number / 64] |= 1 << (number % 64);
        number
    }
}

impl<T> SlabPage<T> {
    fn insert(&mut self, item: T) -> usize {
        if self.items.capacity() == 0 {
            self.items.reserve_exact(Pages::<T>::ITEMS);
            self.free = vec![0; Pages::<T>::ITEMS / 64];
        }
        let position = match self.first_free() {
            Some(position) => {
                self.free[position / 64] &= !(1 << (position % 64));
                self.items[position] = Some(item);
                position
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        };
        self.used += 1;
        position
    }

    fn remove(&mut self, position: usize) -> T {
        let item = self.items[position].take().expect("the key is in use");
        self.free[position / 64] |= 1 << (position % 64);
        self.used -= 1;
        item
    }

    fn first_free(&self) -> Option<usize> {
        if self.used as usize == self.items.len() {
            return None;
        }
        let word = self.free.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.free[word].trailing_zeros() as usize)
    }
}

impl<T> Default for SlabPage<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<u32> for Pages<T> {
    type Output = T;

    #[inline]
    fn index(&self, key: u32) -> &T {
        let page = &self.pages[key as usize >> Self::SHIFT];
        page.items[key as usize & Self::MASK].as_ref().expect("the key is in use")
    }
}

impl<T> IndexMut<u32> for Pages<T> {
    #[inline]
    fn index_mut(&mut self, key: u32) -> &mut T {
        let page = &mut self.pages[key as usize >> Self::SHIFT];
        page.items[key as usize & Self::MASK].as_mut().expect("the key is in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_key_is_used_first() {
        let mut slab = Pages::new();
        let keys: Vec<u32> = (0..10_000).map(|n: u64| slab.insert(n)).collect();
        assert_eq!(keys, (0..10_000).collect::<Vec<u32>>());
        for key in [9_999, 17, 5_000] {
            assert_eq!(slab.remove(key), u64::from(key));
        }
        assert_eq!([slab.insert(1), slab.insert(2), slab.insert(3)], [17, 5_000, 9_999]);
        assert_eq!(slab.len(), 10_000);
        assert_eq!(slab[17], 1);
        assert_eq!(slab.iter().count(), 10_000);
    }

    #[test]
    fn all_empty_pages_but_one_are_freed() {
        let mut slab = Pages::new();
        let keys: Vec<u32> = (0..3 * Pages::<u64>::ITEMS as u64).map(|n| slab.insert(n)).collect();
        for &key in &keys[..2 * Pages::<u64>::ITEMS] {
            slab.remove(key);
        }
        assert_eq!(slab.pages.iter().filter(|page| page.items.capacity() > 0).count(), 2);
        assert_eq!(slab.touched(), 2 * Pages::<u64>::ITEMS);
        assert!(slab.get(0).is_none());
        assert_eq!(slab.insert(7), 0);
        slab.check();
    }

    #[test]
    fn growth_is_predicted() {
        let mut slab = Pages::new();
        for n in 0..3 * Pages::<u64>::ITEMS as u64 {
            let (touched, growth) = (slab.touched(), slab.growth(1));
            slab.insert(n);
            assert_eq!((slab.touched() - touched) * size_of::<Option<u64>>(), growth);
            if n % 5 < 2 {
                slab.remove(n as u32 / 2);
                assert_eq!(slab.growth(1), 0);
            }
        }
    }

    #[test]
    fn growth_by_many_is_predicted() {
        const ITEMS: usize = Pages::<u64>::ITEMS;
        for count in [0, 1, 7, 90, 500, ITEMS, 2 * ITEMS, 4 * ITEMS] {
            let mut slab = Pages::new();
            let keys: Vec<u32> = (0..3 * ITEMS as u64 + 90).map(|n| slab.insert(n)).collect();
            // The first page has vacant positions, the second is whole, and the third is empty and has no memory.
            for &key in keys[..90].iter().chain(&keys[2 * ITEMS..]) {
                slab.remove(key);
            }
            let (touched, growth) = (slab.touched(), slab.growth(count));
            (0..count as u64).for_each(|n| _ = slab.insert(n));
            assert_eq!((slab.touched() - touched) * size_of::<Option<u64>>(), growth, "{count}");
        }
    }

    #[test]
    #[should_panic(expected = "the key is in use")]
    fn a_stale_key_is_caught() {
        let mut slab = Pages::new();
        let key = slab.insert(1);
        slab.insert(2);
        slab.remove(key);
        let _ = slab[key];
    }
}
