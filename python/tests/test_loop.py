"""Custom training loops with Model, Engine and Trainer on arrays."""

import pytest
from conftest import SMALL, grpo, vowels, weights

from lockstep_rl import Completion, Engine, GRPOConfig, Group, Model, Sampling, SFTConfig, Trainer

np = pytest.importorskip("numpy")
SAMPLING = Sampling(max_new_tokens=6, seed=42)


@pytest.fixture
def loaded(model):
    return Model(model, threads=1)


def test_scoring_equals_the_log_probabilities_of_the_sampler(loaded):
    groups = Engine(loaded).generate(["ab ", "sun "], SAMPLING, num_generations=3)
    pairs = [(group.prompt, one.ids) for group in groups for one in group.completions]
    scores = loaded.score(pairs)
    recorded = [one.logprobs for group in groups for one in group.completions]
    assert len(scores) == 6 and all(np.array_equal(s.logprobs, r) for s, r in zip(scores, recorded))
    assert all((s.entropies > 0).all() and s.entropies.dtype == np.float32 for s in scores)
    assert all(one.version == 0 and one.finish_reason in ("stop", "length") for g in groups for one in g.completions)


def test_probabilities_of_all_tokens_add_up_to_1(loaded):
    every = [(np.array([1, 2], np.uint32), np.array([token], np.uint32)) for token in range(loaded.vocab_size)]
    logps = np.array([scores.logprobs[0] for scores in loaded.score(every)], np.float64)
    assert np.exp(logps).sum() == pytest.approx(1.0, abs=1e-5)
    assert -(np.exp(logps) * logps).sum() == pytest.approx(loaded.score(every[:1])[0].entropies[0], abs=1e-4)
    assert loaded.score(every[:1], temperature=2.0)[0].logprobs[0] != np.float32(logps[0])


def test_arrays_are_passed_without_a_copy(loaded):
    group = Engine(loaded).generate([[1, 2]], SAMPLING)[0]
    ids = group.completions[0].ids
    assert ids.dtype == np.uint32 and ids.flags.owndata is False and ids.base is not None
    prompt = np.array([1, 2], np.uint32)
    assert group.prompt is not prompt and Engine(loaded).generate([prompt], SAMPLING)[0].prompt is prompt
    capsule = np.from_dlpack(group.completions[0].logprobs)
    assert np.shares_memory(capsule, group.completions[0].logprobs)


class Exported:
    """A stand-in for an array of another package, with DLPack support."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_token_ids_may_be_lists_tuples_or_arrays_of_other_packages(loaded):
    given = [[1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], np.int32), Exported(np.array([1, 2], np.uint32))]
    scores = [loaded.score([(ids, ids)])[0].logprobs for ids in given]
    assert all(np.array_equal(scores[0], other) for other in scores)


def test_generation_is_deterministic_and_differs_for_equal_prompts(loaded):
    def generated(engine):
        return [one.ids.tolist() for group in engine.generate(["ab "] * 2, SAMPLING, 4) for one in group.completions]

    engine = Engine(loaded, max_num_seqs=2)
    first, second = generated(engine), generated(engine)
    assert first == generated(Engine(loaded)) and first != second and first[:4] != first[4:]
    greedy = engine.generate(["ab "], Sampling(temperature=0.0, max_new_tokens=4), 2)[0].completions
    assert greedy[0].ids.tolist() == greedy[1].ids.tolist()
    stopped = engine.generate(["ab "], Sampling(max_new_tokens=6, stop_ids=list(range(loaded.vocab_size))))
    assert len(stopped[0].completions[0].ids) == 1 and stopped[0].completions[0].finish_reason == "stop"


def test_decoding_reverses_encoding(loaded):
    ids = loaded.encode("ab sun")
    assert ids.dtype == np.uint32 and loaded.decode(ids) == "ab sun" and loaded.eos_ids == [0]
    assert loaded.decode([*ids, 0]) == "ab sun" and loaded.decode([*ids, 0], skip_special_tokens=False) != "ab sun"


def test_a_custom_loop_trains_the_same_weights_as_the_trainer(model, rows, loaded):
    fields = dict(shuffle_dataset=False, lr_scheduler_type="constant")
    grpo(model, rows, **fields).train()
    engine = Engine(loaded)
    trainer = Trainer(loaded, GRPOConfig(**{**SMALL, **fields}))
    texts = [row["prompt"] for row in rows]
    for step in range(4):
        prompts = [texts[(2 * step + i) % len(texts)] for i in range(2)]
        groups = engine.generate(prompts, SAMPLING, num_generations=2)
        for group in groups:
            group.set_advantages(vowels([loaded.decode(one.ids) for one in group.completions]))
        metrics = trainer.step(groups)
        assert metrics["sampling/logp_mismatch_tokens"] == 0 and metrics["learning_rate"] == 0.01
    assert loaded.version == 4
    loaded.save("own")
    assert weights("own") == weights("out/model")


def test_a_step_raises_the_probability_of_the_better_completion(loaded):
    prompt = loaded.encode("ab ")
    better, worse = loaded.encode("sun"), loaded.encode("moon")
    pairs = [(prompt, better), (prompt, worse)]

    def logps():
        return [scores.logprobs for scores in loaded.score(pairs)]

    before = logps()
    trainer = Trainer(loaded, GRPOConfig(learning_rate=1e-3))
    group = Group(prompt, [Completion(better, before[0], advantage=1.0),
                           Completion(worse, before[1], advantage=np.full(4, -1.0))])
    metrics = trainer.step([group])
    after = logps()
    assert after[0].sum() > before[0].sum() and after[1].sum() < before[1].sum()
    assert metrics["grad_norm"] > 0 and metrics["learning_rate"] == 1e-3
    masked = Completion(better, after[0], advantage=1.0, mask=[False] * 3)
    assert trainer.step([Group(prompt, [masked])], learning_rate=0.0)["grad_norm"] == 0


@pytest.mark.parametrize("call, error, words", [
    (lambda m: m.score([([], [1])]), ValueError, "a prompt is empty"),
    (lambda m: m.score([([1], [4000])]), ValueError, "4000 must be below the vocabulary size"),
    (lambda m: m.score([([1.5], [1])]), ValueError, "must be integers"),
    (lambda m: m.score([([-1], [1])]), ValueError, "of 0 or more"),
    (lambda m: m.score([([[1]], [1])]), ValueError, "2 dimensions"),
    (lambda m: m.score([([1], [1])], temperature=0), ValueError, "temperature"),
    (lambda m: Engine(m, max_num_seqs=0), ValueError, "max_num_seqs"),
    (lambda m: Engine(m).generate([[]]), ValueError, "prompt 0 has no token"),
    (lambda m: Engine(m).generate(["ab"], num_generations=0), ValueError, "num_generations"),
    (lambda m: Engine(m).generate(["ab"], Sampling(top_p=2.0)), ValueError, "top_p"),
    (lambda m: Engine(m, max_model_len=4).generate(["ab sun"]), ValueError, "4"),
    (lambda m: Trainer(m, SFTConfig()), TypeError, "GRPOConfig"),
    (lambda m: Trainer(m, GRPOConfig(use_peft=True)), ValueError, "adapter"),
    (lambda m: Trainer(m).step([]), ValueError, "no completion"),
    (lambda m: Trainer(m).step([Group([1], [Completion([1], [-1.0])])]), ValueError, "has no advantage"),
    (lambda m: Trainer(m).step([Group([1], [Completion([1, 2], [-1.0], advantage=1)])]), ValueError, "1 numbers for 2"),
    (lambda m: Group([1], []).set_advantages([1.0]), ValueError, "1 rewards for 0"),
    (lambda m: Model("./nowhere"), FileNotFoundError, "nowhere"),
    (lambda m: Model("m", dtype="f16"), ValueError, "f32 or bf16"),
])
def test_wrong_arguments_in_a_loop_raise_a_clear_error(loaded, call, error, words):
    with pytest.raises(error, match=words):
        call(loaded)
