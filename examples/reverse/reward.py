"""The reward is the share of letters that are right, so that a nearly right answer scores higher than a random one."""


def letters(completions, answer, **kwargs):
    def score(text, right):
        hits = sum(a == b for a, b in zip(text, right))
        return hits / max(len(text), len(right))

    return [score(text, right) for text, right in zip(completions, answer)]
