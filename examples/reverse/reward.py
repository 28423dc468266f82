"""A score between 0 and 1: the share of letters that are right, so that a near miss teaches more than noise."""


def letters(completions, answer, **kwargs):
    def score(text, right):
        hits = sum(a == b for a, b in zip(text, right))
        return hits / max(len(text), len(right))

    return [score(text, right) for text, right in zip(completions, answer)]
