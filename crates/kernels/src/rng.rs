//! Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A random number depends only on its key and its counter. So the noise of a sampled token is determined by (seed,
//! prompt, completion, token), and does not depend on the order or the thread in which tokens are drawn.

const ROUNDS: usize = 10;
const MULTIPLIERS: (u32, u32) = (0xD251_1F53, 0xCD9E_8D57);
const WEYL: (u32, u32) = (0x9E37_79B9, 0xBB67_AE85);

/// Philox with ten rounds: four random 32-bit words from a 64-bit key and a 128-bit counter.
#[inline(always)]
pub fn philox(key: u64, counter: [u32; 4]) -> [u32; 4] {
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    let mut c = counter;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS.0) * u64::from(c[0]);
        let p1 = u64::from(MULTIPLIERS.1) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k1, p0 as u32];
        k0 = k0.wrapping_add(WEYL.0);
        k1 = k1.wrapping_add(WEYL.1);
    }
    c
}

/// [`philox`] of N counters at once: lane j of the result belongs to counter j. It uses only integers, so every
/// instruction set gives the same bits.
#[inline(always)]
pub fn philox_lanes<const N: usize>(key: u64, counters: [[u32; N]; 4]) -> [[u32; N]; 4] {
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    let mut c = counters;
    for _ in 0..ROUNDS {
        let mut next = [[0; N]; 4];
        for j in 0..N {
            let p0 = u64::from(MULTIPLIERS.0) * u64::from(c[0][j]);
            let p1 = u64::from(MULTIPLIERS.1) * u64::from(c[2][j]);
            next[0][j] = (p1 >> 32) as u32 ^ c[1][j] ^ k0;
            next[1][j] = p1 as u32;
            next[2][j] = (p0 >> 32) as u32 ^ c[3][j] ^ k1;
            next[3][j] = p0 as u32;
        }
        c = next;
        k0 = k0.wrapping_add(WEYL.0);
        k1 = k1.wrapping_add(WEYL.1);
    }
    c
}

/// A random 32-bit word as a number in [0, 1) with 24 random bits.
#[inline(always)]
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// Two random 32-bit words as a number in [0, 1) with 53 random bits.
#[inline(always)]
pub fn unit_f64(hi: u32, lo: u32) -> f64 {
    (((u64::from(hi) << 32) | u64::from(lo)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A sequence of random numbers from a key and a stream id: for shuffles, initial weights and other sequential uses.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    stream: u64,
    position: u64,
}

impl Stream {
    /// The sequence of stream id `stream` under `key`, from its start.
    pub fn new(key: u64, stream: u64) -> Stream {
        Stream { key, stream, position: 0 }
    }
    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let (p, s) = (self.position, self.stream);
        self.position += 1;
        let w = philox(self.key, [p as u32, (p >> 32) as u32, s as u32, (s >> 32) as u32]);
        u64::from(w[0]) << 32 | u64::from(w[1])
    }
    /// The next number in [0, 1).
    pub fn next_f64(&mut self) -> f64 {
        let bits = self.next_u64();
        unit_f64((bits >> 32) as u32, bits as u32)
    }
    /// The next integer in 0..n. It is not quite uniform: the bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// The next standard normal number (Box–Muller).
    pub fn next_normal(&mut self) -> f64 {
        let u = 1.0 - self.next_f64();
        let v = self.next_f64();
        (-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v)
    }
    /// Shuffles `items` in place (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the Random123 library publishes for Philox.
    #[test]
    fn philox_matches_the_published_test_vectors() {
        assert_eq!(philox(0, [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox(u64::MAX, [ones; 4]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    }

    #[test]
    fn philox_lanes_match_separate_counters() {
        let key = 0x0123_4567_89ab_cdef;
        let counters: [[u32; 5]; 4] = std::array::from_fn(|w| std::array::from_fn(|j| (7 * w + 1000 * j) as u32));
        let words = philox_lanes(key, counters);
        for j in 0..5 {
            assert_eq!(words.map(|w| w[j]), philox(key, counters.map(|c| c[j])));
        }
    }

    #[test]
    fn random_words_map_to_numbers_below_one() {
        let expected = [0.0, 0.0, 2f32.powi(-24), 0.5, 1.0 - 2f32.powi(-24)];
        assert_eq!([0, 255, 256, 1 << 31, u32::MAX].map(unit_f32), expected);
        let cases = [(0, 2047), (0, 2048), (1, 0), (1 << 31, 0), (u32::MAX, u32::MAX)];
        let expected = [0.0, 2f64.powi(-53), 2f64.powi(-32), 0.5, 1.0 - 2f64.powi(-53)];
        assert_eq!(cases.map(|(hi, lo)| unit_f64(hi, lo)), expected);
    }

    const KEY: u64 = 0x0123_4567_89ab_cdef;
    const ID: u64 = 0xfedc_ba98_7654_3210;
    // These values come from an independent implementation in Python.
    const FIRST: [u64; 4] =
        [0xaef2_adf7_f69b_5950, 0xec2a_b39f_4671_fd85, 0xd7bb_4a2f_b8f7_6c27, 0x93f3_ffb3_e57c_34a2];
    const LATER: u64 = 0x0000_0005_0000_0007;
    const THERE: u64 = 0x955e_faf8_2e84_ed9a;
    const BELOW: [u64; 4] = [6, 0, 5, 577_941];
    const SHUFFLED: [u32; 10] = [3, 2, 7, 0, 1, 5, 4, 9, 8, 6];

    #[test]
    fn a_random_stream_depends_on_its_key_and_id() {
        let stream = || Stream::new(KEY, ID);
        let mut words = stream();
        assert_eq!([0; 4].map(|_| words.next_u64()), FIRST);
        let mut later = Stream { position: LATER, ..stream() };
        assert_eq!((later.next_u64(), later.position), (THERE, LATER + 1));
        let mut numbers = stream();
        assert_eq!([10, 1, 6, 1_000_000].map(|n| numbers.below(n)), BELOW);
        let fractions = FIRST.map(|bits| (bits >> 11) as f64 / 2f64.powi(53));
        let mut numbers = stream();
        assert_eq!([0; 4].map(|_| numbers.next_f64()), fractions);
        let mut numbers = stream();
        for pair in fractions.chunks(2) {
            let expected = (-2.0 * (1.0 - pair[0]).ln()).sqrt() * (2.0 * std::f64::consts::PI * pair[1]).cos();
            assert!((numbers.next_normal() - expected).abs() < 1e-12);
        }
        let mut items: Vec<u32> = (0..10).collect();
        stream().shuffle(&mut items);
        assert_eq!(items, SHUFFLED);
        let mut one = [7];
        stream().shuffle(&mut one);
        stream().shuffle::<u32>(&mut []);
        assert_eq!(one, [7]);
    }
}
