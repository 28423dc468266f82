//! Splits the scored rows of a batch into pieces, so that a pass can be cancelled between two pieces of the head.

use std::ops::Range;

/// Maximum number of rows in a piece. It equals the block size of the lm-head op, so that splitting costs nothing.
const MAX_ROWS: usize = 512;
/// Pieces are split at multiples of this many rows of a group, because sums over rows are formed in steps of 32 (bf16
/// on AMX tiles).
const STEP: usize = 32;

/// Splits rows into pieces of up to 512 rows. Pieces end between groups or at multiples of 32 rows of a group, where a
/// split does not change a bit. `groups: [G + 1]` contains the first row of each group, followed by the number of rows.
/// Each piece comes with its group offsets, counted from the first row of the piece.
pub(super) fn head_pieces(groups: &[u32]) -> Vec<(Range<usize>, Vec<u32>)> {
    let mut out: Vec<(Range<usize>, Vec<u32>)> = Vec::new();
    for ends in groups.windows(2) {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        for from in (start..end).step_by(STEP) {
            let to = end.min(from + STEP);
            match out.last_mut() {
                Some((piece, groups)) if to - piece.start <= MAX_ROWS => {
                    if from == start {
                        groups.push((from - piece.start) as u32);
                    }
                    piece.end = to;
                }
                _ => out.push((from..to, vec![0])),
            }
        }
    }
    for (piece, groups) in &mut out {
        groups.push(piece.len() as u32);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_pieces_end_between_groups_or_at_multiples_of_32_rows() {
        let of = |groups: &[u32]| head_pieces(groups);
        assert_eq!(of(&[0]), []);
        assert_eq!(of(&[0, 0, 3, 3, 40]), [(0..40, vec![0, 3, 40])]);
        assert_eq!(of(&[0, 500, 600]), [(0..500, vec![0, 500]), (500..600, vec![0, 100])]);
        assert_eq!(
            of(&[0, 100, 1200]),
            [(0..484, vec![0, 100, 484]), (484..996, vec![0, 512]), (996..1200, vec![0, 204])]
        );
    }
}
