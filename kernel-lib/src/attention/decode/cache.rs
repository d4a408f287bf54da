//! Where the keys of a sequence are: behind each other, or on pages of a table.

use tegula::prelude::*;

use crate::attention::matrix::head_rows;

/// Keys or values of one head of a sequence.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Keys<E: Element> {
    /// `[b, c, h_kv, d]`, or `[pages, page size, h_kv, d]`.
    pub cache: View<E, 4>,
    pub batch: Scalar<i32>,
    pub kv_head: Scalar<i32>,
    /// How many of them are to be read: what lies behind reads as zeros.
    pub count: Scalar<i32>,
    pub pages: Option<Pages>,
}

/// A page table, `[b, pages of a sequence]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Pages {
    pub table: View<i32, 2>,
    /// Keys of a page, a power of two.
    pub size: usize,
    /// Stop at an entry that is no page. (On a GPU such an entry is taken as the nearest that is one.)
    pub checked: bool,
}

impl Pages {
    /// Keys that a sequence has room for.
    #[track_caller]
    pub fn capacity<E: Element>(self, cache: View<E, 4>) -> Scalar<i32> {
        let capacity = self.table.dim(1).cast::<i32>() * self.size as i32;
        // A cache without pages has no page that an entry could be taken as.
        select(cache.dim(0).eq_(0), 0, capacity)
    }
}

impl<E: Element> Keys<E> {
    /// `[block, dim]` keys from `key` on, which is a multiple of `block`.
    ///
    /// Rows of a table's pages are gathered by pointers, a row of each key's: a page may have fewer keys than a tile, and a tile more than a page.
    #[track_caller]
    pub fn tile(self, key: Scalar<i32>, shape: [usize; 2]) -> Tile<E> {
        self.part(key, 0, shape)
    }

    /// [`tile`](Self::tile) of the elements from `first` on.
    #[track_caller]
    pub fn part(self, key: Scalar<i32>, first: usize, shape: [usize; 2]) -> Tile<E> {
        self.part_at(self.entries(key, shape[0]), key, first, shape)
    }

    /// The table's entries for `block` keys from `key` on, `[1, entries]`: what keys and values may have in common.
    #[track_caller]
    pub fn entries(self, key: Scalar<i32>, block: usize) -> Option<Tile<i32>> {
        let Pages { table, size, .. } = self.pages?;
        Some(table.load([self.batch, key / size as i32], [1, (block / size).max(1)]))
    }

    /// Says that a [`tile`](Self::tile) will be loaded: of a cache on pages, that entries of the table will, since where pages lie is known by loading these only. What is asked for behind the last key
    /// of a sequence, up to where there is room for keys, is brought in vain.
    #[track_caller]
    pub fn prefetch(self, key: Scalar<i32>, shape: [usize; 2]) {
        let Keys { cache, batch, kv_head, count, pages } = self;
        match pages {
            Some(Pages { table, size, .. }) => {
                table.prefetch([batch, key / size as i32], [1, (shape[0] / size).max(1)]);
            }
            None => head_rows(cache, batch, kv_head, count).prefetch([key, constant(0)], shape),
        }
    }

    /// [`part`](Self::part), where the table's entries are known.
    #[track_caller]
    pub fn part_at(
        self,
        entries: Option<Tile<i32>>,
        key: Scalar<i32>,
        first: usize,
        [block, dim]: [usize; 2],
    ) -> Tile<E> {
        let Keys { cache, batch, kv_head, count, pages } = self;
        let (Some(Pages { size, checked, .. }), Some(entry)) = (pages, entries) else {
            let rows = head_rows(cache, batch, kv_head, count);
            return rows.load([key, constant(first as i32)], [block, dim]);
        };
        let entries = (block / size).max(1);
        fn of_keys<T: Element>(entry: Tile<T>, entries: usize, block: usize) -> Tile<T> {
            entry.reshape([entries, 1]).broadcast_to([entries, block / entries]).reshape([block])
        }
        let number = key + arange(0, block);
        let exists = number.lt(count);
        let pages = cache.dim(0).cast::<i32>();
        if checked {
            let entry = of_keys(entry, entries, block);
            let is_page = entry.ge(0) & entry.lt(pages);
            device_assert(is_page | number.ge(count), "an entry of the page table is no page of the cache");
        }
        let head = kv_head.cast::<i64>() * cache.stride(2);
        // Once a page, not once a key.
        let page = entry.clamp(0, pages - 1).cast::<i64>() * cache.stride(0) + head;
        // Where in its page: of a page as large as a tile or larger, the tile begins at a multiple of the tile's size.
        let in_page = size as i32 - 1;
        let slot =
            if size >= block { (key & in_page) + arange(0, block) } else { arange(0, block) & in_page };
        let row = of_keys(page, entries, block) + slot.cast::<i64>() * cache.stride(1);
        let column = arange(0, dim).cast::<i64>() + first as i64;
        let at = row.expand(1) + (column * cache.stride(3)).expand(0);
        let inside = exists.expand(1) & column.lt(cache.dim(3)).expand(0);
        (cache.base_ptr() + at).load_masked(inside, zeros::<E>([block, dim]))
    }
}
