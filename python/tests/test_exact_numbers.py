"""Numbers beyond 64 bits are passed to graders exactly, and to Python functions unchanged."""

import decimal

import pytest

from lockstep_rl import rewards
from lockstep_rl._data import json_of

BIG = 10**20 + 1


@pytest.mark.parametrize("grader", [rewards.gsm8k, rewards.math, rewards.exact_match], ids=lambda grader: grader.kind)
@pytest.mark.parametrize("answer", [BIG, str(BIG), decimal.Decimal(BIG)], ids=["int", "str", "Decimal"])
def test_an_integer_beyond_64_bits_is_compared_exactly(grader, answer):
    completions = [f"Answer: {BIG}", f"Answer: {BIG - 1}", f"Answer: {float(BIG)}"]
    assert grader(completions, answer=[answer] * 3) == [1.0, 0.0, 0.0]


def test_big_integers_and_decimals_of_a_row_become_strings():
    row = {"answer": BIG, "limits": [2**64 - 1, -(2**63), 2**64, True], "price": decimal.Decimal("0.10"), "x": "1" * 30}
    expected = (
        '{"answer": "100000000000000000001", "limits": [18446744073709551615, -9223372036854775808, '
        '"18446744073709551616", true], "price": "0.10", "x": "' + "1" * 30 + '"}'
    )
    assert json_of([row], "train_dataset", ()) == [expected]
    assert json_of([{"answer": 5, "x": float("nan")}], "train_dataset", ()) == ['{"answer": 5, "x": null}']
