"""The reward functions of cases.json: as somebody wrote them for TRL."""

import array
import asyncio
import datetime
import functools
import os


def arguments(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("prompts", prompts)
    log_extra("ids", completion_ids)
    log_extra("answer", answer)
    log_extra("others", [{name: values[i] for name, values in sorted(kwargs.items())} for i in range(len(prompts))])
    log_metric("step", trainer_state.global_step)
    return [float(text == right) for text, right in zip(completions, answer)]


def length(completions, **kwargs):
    return [len(text) for text in completions]


def some(completions, **kwargs):
    return [None, True, 0.1]


def not_finite(completions, log_metric, **kwargs):
    log_metric("mean_length", float("nan"))
    return [float("nan"), float("inf"), -float("inf"), 1]


async def awaited(completions, log_metric, **kwargs):
    async def one(text):
        await asyncio.sleep(0)
        return len(text)

    log_metric("asked", len(completions))
    return await asyncio.gather(*map(one, completions))


class Length:
    def __call__(self, completions, **kwargs):
        return [len(text) for text in completions]


class AsyncLength:
    async def __call__(self, completions, **kwargs):
        return [len(text) for text in completions]


an_object, an_async_object = Length(), AsyncLength()


def times(completions, factor, **kwargs):
    return [factor * len(text) for text in completions]


partial = functools.partial(times, factor=0.5)


def decorated(completions, **kwargs):
    return awaited(completions, **kwargs)


def of_messages(prompts, completions, **kwargs):
    assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    assert all(message["role"] == "assistant" for completion in completions for message in completion)
    return [len(completion[0]["content"]) for completion in completions]


def a_tuple(completions, **kwargs):
    return tuple(1 for _ in completions)


def an_array(completions, **kwargs):
    return array.array("d", [0.25] * len(completions))


def of_tokens(completion_ids, **kwargs):
    return [[0.5 * place if place else None for place in range(len(ids))] for ids in completion_ids]


def of_steps(completions, **kwargs):
    return [[{"end": 1, "score": 1}, {"token": 1, "score": 0.5}] if text else None for text in completions]


def logs(completions, log_extra, log_metric, **kwargs):
    for text in completions:
        log_extra("upper", [text.upper()])
        log_metric("length", len(text))
    log_extra("odd", [float("nan"), datetime.date(2026, 1, 1), (1, {2: None})])
    return [0] * len(completions)


def prints(completions, **kwargs):
    print('{"rewards": [9, 9]}')
    os.write(1, b"not JSON\n")
    return [1] * len(completions)


def too_few(completions, **kwargs):
    return [1]


def a_number(completions, **kwargs):
    return 1.0


def a_text(completions, **kwargs):
    return "11"


def a_set(completions, **kwargs):
    return {float(len(text)) for text in completions}


def a_frozenset(completions, **kwargs):
    return frozenset(range(len(completions)))


def keys(completions, **kwargs):
    return {len(text): text for text in completions}.keys()


def a_dict(completions, **kwargs):
    return {len(text): 1.0 for text in completions}


def null_steps(completions, log_metric, **kwargs):
    log_metric("nothing", None)
    return [[{"end": len(text), "score": None if text else 0.5}] for text in completions]


def texts(completions, **kwargs):
    return ["1"] * len(completions)


def bad_step(completions, **kwargs):
    return [[{"end": 1}]] * len(completions)


def raises(completions, answer, **kwargs):
    return [{"a": 1, "b": 2}[text] for text in completions]


async def raises_later(completions, answer, **kwargs):
    await asyncio.sleep(0)
    return raises(completions, answer)


def extra_too_short(completions, log_extra, **kwargs):
    log_extra("note", ["x"])
    return [0] * len(completions)


def wants_gold(completions, gold, **kwargs):
    return [0] * len(completions)
