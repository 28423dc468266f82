"""Rewards of the runs that make_runs.sh trains."""
import time


def early_letters(completions, **_):
    """How many characters are of the alphabet's first half: many texts earn the same."""
    return [float(sum("a" <= character <= "m" for character in text)) for text in completions]


def letters_a(completions, **_):
    """How often the letter a occurs: a reward that one text wins, whatever the prompt."""
    return [float(text.count("a")) for text in completions]


def slow(completions, **_):
    """The same as `early_letters`, after a wait that is longer than all else in a step."""
    time.sleep(0.15)
    return early_letters(completions)
