"""Rewards of the runs that make_runs.sh trains."""
import time


def early_letters(completions, **_):
    """How many characters are of the alphabet's first half: many texts earn the same."""
    return [float(sum("a" <= character <= "m" for character in text)) for text in completions]


def letters_a(completions, **_):
    """How often the letter a occurs: a reward that one text wins, whatever the prompt."""
    return [float(text.count("a")) for text in completions]


def slow(completions, answer, **_):
    """1 for the right answer, after a wait that is longer than all else in a step."""
    time.sleep(0.1)
    return [float(text == right) for text, right in zip(completions, answer)]
