//! Orders the work in attention's backward pass on the CPU: which rows attend to which KV-cache page, and which parts
//! of the work can run at the same time.
//!
//! The gradient of a page (its keys and values) is a sum over the rows that attend to it, in ascending order of rows.
//! The gradient of a query is a sum over the pages that its row attends to, in ascending order of positions. So one
//! task processes all rows of a page, and the pages of a row are processed one after another. Sequences that share a
//! prompt share only the pages at their beginning. These shared pages form one part, which runs first. The remaining
//! pages of each sequence form a separate part, and these parts run in parallel.

use super::places::Places;
use super::{BLOCK, Geometry};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A KV-cache page, its block index in the sequences, and the rows that attend to the page.
pub(super) struct Visit {
    pub block: usize,
    pub page: usize,
    /// Whether this is the group's first visit of the page, so that its gradient starts at 0.
    pub first: bool,
    /// End of the page's used slots: slots from here on were not written, and no row attends to them.
    pub end: usize,
    /// The rows that attend to the page, as ascending ranges.
    pub rows: Vec<Range<usize>>,
}

/// Information about a KV-cache page: whether any row attends to it, and the end of its slots that are attended to or
/// written.
#[derive(Clone, Copy, Default)]
pub(super) struct Page {
    pub seen: bool,
    pub end: usize,
}

/// Rows and the KV-cache pages that they attend to, in order. One part for one kv head is one task of the thread
/// pool.
pub(super) struct Part {
    pub rows: Range<usize>,
    pub visits: Vec<Visit>,
    /// Whether no earlier part has accumulated into these rows' query gradients, so that this part must zero them
    /// first.
    pub begins: bool,
}

/// A group of rows (a prompt with its completions) that shares no KV-cache page with any other group.
pub(super) struct Group {
    rows: Range<usize>,
    /// Ranges of consecutive rows of one sequence: the same block table, positions ascending by one.
    runs: Vec<Range<usize>>,
    /// The pages that the group's rows attend to, in ascending order of blocks.
    visits: Vec<Visit>,
}

impl Group {
    pub fn new(g: &Geometry, places: &Places<'_>, rows: Range<usize>, pages: &mut [Page]) -> Group {
        let (mut runs, mut visits) = (Vec::new(), Vec::<Visit>::new());
        let mut known: HashMap<(usize, usize), usize> = HashMap::new();
        let mut start = rows.start;
        while start < rows.end {
            let mut end = start + 1;
            while end < rows.end
                && places.tables_of_rows[end] == places.tables_of_rows[start]
                && places.positions[end] == places.positions[end - 1] + 1
            {
                end += 1;
            }
            let (p0, p1) = (places.positions[start] as usize, places.positions[end - 1] as usize);
            for block in g.seen(p0).start / BLOCK..p1 / BLOCK + 1 {
                // The rows of the run that attend to the block: from the first row at or after the block's start to the
                // last row whose window reaches the block. At least one row does, because the window of the run's first
                // row reaches the first of these blocks.
                let from = (block * BLOCK).max(p0);
                let to = g.window.map_or(p1, |w| p1.min(block * BLOCK + BLOCK - 1 + w - 1));
                let page = places.page(start, block);
                let end = &mut pages[page].end;
                *end = (to + 1 - block * BLOCK).min(BLOCK).max(*end);
                let visit = *known.entry((block, page)).or_insert_with(|| {
                    visits.push(Visit { block, page, first: false, end: 0, rows: Vec::new() });
                    visits.len() - 1
                });
                visits[visit].rows.push(start + from - p0..start + to - p0 + 1);
            }
            runs.push(start..end);
            start = end;
        }
        visits.sort_by_key(|v| v.block);
        for visit in &mut visits {
            let page = &mut pages[visit.page];
            (visit.first, visit.end) = (!std::mem::replace(&mut page.seen, true), page.end);
        }
        Group { rows, runs, visits }
    }

    /// The whole group as one part.
    pub fn whole(self) -> Part {
        Part { rows: self.rows, visits: self.visits, begins: true }
    }

    /// Splits the group into a part of the pages that several sequences share, to be computed first, and one part for
    /// the pages of each single sequence.
    pub fn split(self) -> (Option<Part>, Vec<Part>) {
        if !self.splits() {
            return (Some(self.whole()), Vec::new());
        }
        let (shared, own): (Vec<_>, Vec<_>) = self.visits.into_iter().partition(|v| v.rows.len() > 1);
        let begins = shared.is_empty();
        let mut parts: Vec<_> = self.runs.into_iter().map(|rows| Part { rows, visits: Vec::new(), begins }).collect();
        for visit in own {
            let run = parts.partition_point(|part| part.rows.end <= visit.rows[0].start);
            parts[run].visits.push(visit);
        }
        parts.retain(|part| !part.visits.is_empty());
        ((!begins).then_some(Part { rows: self.rows, visits: shared, begins: true }), parts)
    }

    /// Whether the group can be split: no page is used as two different blocks, and in every sequence shared pages
    /// precede unshared ones.
    fn splits(&self) -> bool {
        let run_of = |rows: &Range<usize>| self.runs.partition_point(|run| run.end <= rows.start);
        let (mut pages, mut alone) = (HashSet::new(), HashSet::new());
        self.visits.iter().all(|visit| {
            let in_order = match &visit.rows[..] {
                [rows] => {
                    alone.insert(run_of(rows));
                    true
                }
                shared => !shared.iter().any(|rows| alone.contains(&run_of(rows))),
            };
            pages.insert(visit.page) && in_order
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Geometry = Geometry { heads: 1, kv_heads: 1, head_dim: 16, scale: 1.0, window: None };

    /// The parts of a group of these rows (block table and positions of each run): rows, `begins`, and the pages
    /// visited.
    fn parts(g: &Geometry, rows: &[(u32, Range<u32>)], tables: &[[u32; 3]]) -> Vec<(Range<usize>, bool, Vec<usize>)> {
        let positions: Vec<u32> = rows.iter().flat_map(|(_, p)| p.clone()).collect();
        let row_tables: Vec<u32> = rows.iter().flat_map(|(t, p)| p.clone().map(|_| *t)).collect();
        let places =
            Places { positions: &positions, tables_of_rows: &row_tables, tables: tables.as_flattened(), table_len: 3 };
        let mut pages = vec![Page::default(); 16];
        let (shared, own) = Group::new(g, &places, 0..positions.len(), &mut pages).split();
        let of = |part: Part| (part.rows, part.begins, part.visits.iter().map(|v| v.page).collect());
        shared.into_iter().chain(own).map(of).collect()
    }

    #[test]
    fn a_group_is_split_into_its_prompt_and_single_sequences() {
        // A prompt of 70 tokens. Two completions have copies of its last page.
        let rows = [(0, 0..70), (1, 70..140), (2, 70..80)];
        let tables = [[1, 2, 0], [1, 3, 4], [1, 5, 0]];
        let expected = [
            (0..150, true, vec![1]),
            (0..70, false, vec![2]),
            (70..140, false, vec![3, 4]),
            (140..150, false, vec![5]),
        ];
        assert_eq!(parts(&WIDE, &rows, &tables), expected);
        // With this window, the completions no longer attend to the prompt's first page.
        let narrow = Geometry { window: Some(4), ..WIDE };
        let expected = [(0..70, true, vec![1, 2]), (70..140, true, vec![3, 4]), (140..150, true, vec![5])];
        assert_eq!(parts(&narrow, &rows, &tables), expected);
    }

    #[test]
    fn a_group_of_one_sequence_is_not_split() {
        assert_eq!(parts(&WIDE, &[(0, 0..130)], &[[1, 2, 3]]), [(0..130, true, vec![1, 2, 3])]);
    }

    #[test]
    fn a_group_with_a_page_in_two_blocks_or_out_of_order_is_not_split() {
        // First case: a page is used as two blocks. Second case: a shared page follows an unshared one.
        for tables in [[[1, 2, 0], [2, 3, 0]], [[1, 3, 0], [2, 3, 0]]] {
            let parts = parts(&WIDE, &[(0, 0..100), (1, 0..100)], &tables);
            assert_eq!(parts.len(), 1, "{parts:?}");
            assert_eq!((parts[0].0.clone(), parts[0].1), (0..200, true));
        }
    }

    /// The visits of a group: block, page, whether it is the first, end of the used slots, rows.
    type Visits = Vec<(usize, usize, bool, usize, Vec<Range<usize>>)>;

    #[test]
    fn a_page_is_visited_by_the_rows_that_attend_to_it() {
        let visits = |window, rows: &[(u32, Range<u32>)], tables: &[[u32; 3]], written: &[(usize, usize)]| -> Visits {
            let positions: Vec<u32> = rows.iter().flat_map(|(_, p)| p.clone()).collect();
            let row_tables: Vec<u32> = rows.iter().flat_map(|(t, p)| p.clone().map(|_| *t)).collect();
            let (tables, table_len) = (tables.as_flattened(), 3);
            let places = Places { positions: &positions, tables_of_rows: &row_tables, tables, table_len };
            let mut pages = vec![Page::default(); 16];
            for &(page, end) in written {
                pages[page].end = end;
            }
            let group = Group::new(&Geometry { window, ..WIDE }, &places, 0..positions.len(), &mut pages);
            let part = group.whole();
            assert_eq!((part.rows.clone(), part.begins), (0..positions.len(), true));
            assert!(part.visits.iter().all(|visit| pages[visit.page].seen));
            assert_eq!(pages.iter().filter(|page| page.seen).count(), part.visits.iter().filter(|v| v.first).count());
            part.visits.into_iter().map(|v| (v.block, v.page, v.first, v.end, v.rows)).collect()
        };
        let one = |range: Range<usize>| vec![range];
        // One sequence in two pages. Slots that were written are used slots.
        let rows = [(0, 0..70)];
        let expected = [(0, 1, true, 64, one(0..70)), (1, 2, true, 6, one(64..70))];
        assert_eq!(visits(None, &rows, &[[1, 2, 0]], &[]), expected);
        let expected = [(0, 1, true, 64, one(0..70)), (1, 2, true, 10, one(64..70))];
        assert_eq!(visits(None, &rows, &[[1, 2, 0]], &[(1, 3), (2, 10)]), expected);
        // With a window of 4, position 66 is the last that attends to position 63.
        let expected = [(0, 1, true, 64, one(0..67)), (1, 2, true, 6, one(64..70))];
        assert_eq!(visits(Some(4), &rows, &[[1, 2, 0]], &[]), expected);
        assert_eq!(visits(Some(1), &rows, &[[1, 2, 0]], &[])[0].4, one(0..64));
        // Rows whose window does not reach the first block visit only the second; position 66 visits both.
        assert_eq!(visits(Some(4), &[(0, 80..90)], &[[1, 2, 0]], &[]), [(1, 2, true, 26, one(0..10))]);
        assert_eq!(visits(Some(4), &[(0, 67..68)], &[[1, 2, 0]], &[]), [(1, 2, true, 4, one(0..1))]);
        let both = [(0, 1, true, 64, one(0..1)), (1, 2, true, 3, one(0..1))];
        assert_eq!(visits(Some(4), &[(0, 66..67)], &[[1, 2, 0]], &[]), both);
        // Two sequences share a page; a jump in the positions begins another range of rows.
        let expected = [(0, 1, true, 64, vec![0..64, 64..70]), (1, 3, true, 6, one(64..70))];
        assert_eq!(visits(None, &[(0, 0..64), (1, 64..70)], &[[1, 9, 0], [1, 3, 0]], &[]), expected);
        assert_eq!(visits(None, &[(0, 0..2), (0, 5..7)], &[[1, 9, 0]], &[]), [(0, 1, true, 7, vec![0..2, 2..4])]);
        // A page that is used as two blocks is visited twice; only the first visit zeroes its gradient.
        let expected = [(0, 2, true, 64, one(0..66)), (1, 2, false, 64, one(64..66))];
        assert_eq!(visits(None, &[(0, 0..66)], &[[2, 2, 0]], &[]), expected);
    }
}
