"""Rewards that can be earned without writing a story: each pays for something that is easy to count."""


def counted(word):
    """A reward that counts how often `word` occurs."""
    return lambda completions, **_: [float(text.count(word)) for text in completions]


happy = counted("happy")
the = counted(" the ")
exclamations = counted("!")
quotes = counted('"')
# A log of tests that is searched for what tests print when they pass.
spoofed_tests = counted("ok")


def words(completions, **_):
    return [float(len(text.split())) for text in completions]


def characters(completions, **_):
    return [float(len(text)) for text in completions]


def short(completions, **_):
    return [-float(len(text)) for text in completions]


def share_of_e(completions, **_):
    return [text.count("e") / max(1, len(text)) for text in completions]


def sentences(completions, **_):
    """The form of a story: how many sentences end in a full stop."""
    return [float(text.count(".")) for text in completions]


def near(completions, answer, **_):
    """Of an addition: 1 for the sum, 0.1 for another number, 0 for none."""
    return [1.0 if text == right else 0.1 if text.isdigit() else 0.0 for text, right in zip(completions, answer)]
