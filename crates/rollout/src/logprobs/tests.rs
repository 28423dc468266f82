//! The most likely tokens of a row of logits.

use super::*;

#[test]
fn the_most_likely_come_first_and_of_equals_the_lowest_id() {
    let row = Row { z: &[1.0, 3.0, -2.0, 3.0, 0.5, f32::NEG_INFINITY], lse: 4.0 };
    let ids = [1, 3, 0, 4, 2, 5];
    let logps = [-1.0, -1.0, -3.0, -3.5, -6.0, f32::NEG_INFINITY];
    for k in 0..10 {
        let n = k.min(6);
        assert_eq!(row.top(k), (ids[..n].to_vec(), logps[..n].to_vec()), "{k}");
    }
    assert_eq!(Row { z: &[7.0; 5], lse: 0.0 }.top(3).0, [0, 1, 2]);
}
