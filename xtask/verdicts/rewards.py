"""Rewards that a model can earn without writing a story: each counts something simple."""


def counted(word):
    """A reward that counts how often `word` occurs."""
    return lambda completions, **_: [float(text.count(word)) for text in completions]


happy = counted("happy")
the = counted(" the ")
exclamations = counted("!")
quotes = counted('"')
# A grader that searches a test log for the word that passing tests print.
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
    """Counts full stops, as if they showed that the text has the form of a story."""
    return [float(text.count(".")) for text in completions]


def near(completions, answer, **_):
    """Scores an addition: 1 for the sum, 0.1 for another number, 0 without a number."""
    return [1.0 if text == right else 0.1 if text.isdigit() else 0.0 for text, right in zip(completions, answer)]
