"""Makes crates/train/tests/fixtures/trl_family/cases.json: steps of TRL's GRPOTrainer and RLOOTrainer, as numbers.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 && python conformance/trl_family_fixtures.py

The GRPOTrainer's steps have the losses, masks, corrections and bonuses beyond the clipped surrogate. Model, rollouts,
rewards and old log-probabilities are those of trl_fixtures.py, whose files must exist. These parts are not TRL's own,
besides those that trl_fixtures.py names:

- To correct for its sampler, the trainer believes that it uses vLLM. The log-probabilities that vLLM would have
recorded (`sampler_logps`) come through the trainer's `rollout_func`.
- Old log-probabilities replace those that TRL computes when it receives generated completions.
- RLOOTrainer has no `rollout_func`: its generation method returns the fixed completions.
"""

import json
import pathlib
import tempfile
import types

import trl_fixtures as base

import torch
import trl.trainer.rloo_trainer as rloo_trainer
from datasets import Dataset
from transformers import Qwen3ForCausalLM
from trl import GRPOConfig, RLOOConfig, RLOOTrainer

OUT = base.OUT.parent / "trl_family/cases.json"
G, GROUPS = base.G, base.GROUPS
rloo_trainer.shuffle_sequence_dict = lambda batch: batch


class Old:
    """Mixin that returns fixed old log-probabilities instead of the first ones that are computed without a gradient."""

    def _generate_and_score_completions(self, inputs):
        self.first = True
        return super()._generate_and_score_completions(inputs)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if not logps.requires_grad and self.first and self.computes_old and self.replayed_old is not None:
            logps = self.replayed_old
        self.first = self.first and logps.requires_grad
        return logps, entropies, aux


class Grpo(Old, base.Replay):
    pass


class Rloo(Old, RLOOTrainer):
    """RLOOTrainer that replays fixed completions, and records what it computes."""

    def _tokenize_prompts(self, prompts):
        return [p for p in self.data["prompts"] for _ in range(G)], None, {}

    def _generate_single_turn(self, *_):
        return self.data["completions"]

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.seen.update(advantages=output["advantages"].tolist())
        return output

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logps.requires_grad:
            logps.retain_grad()
            self.seen.update(logps=logps, entropies=entropies)
        return logps, entropies, aux

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.seen["loss"] = loss.item()
        return loss


def run(data, model_dir, old, *, algorithm="grpo", vllm=False, none_rewards=False, **config):
    completions = data["completions"]
    table = data["rewards_with_none" if none_rewards else "rewards"]

    def reward(k):
        def scores(prompts, completions, completion_ids, **_):
            assert completion_ids == data["completions"]
            return table[k]

        scores.__name__ = ["first", "second"][k]
        return scores

    def rollout(prompts, trainer):
        ids = [p for p in data["prompts"] for _ in range(G)]
        return dict(prompt_ids=ids, completion_ids=completions, logprobs=data["sampler_logps"])

    with tempfile.TemporaryDirectory() as out:
        common = dict(
            output_dir=out, per_device_train_batch_size=GROUPS * G, num_generations=G, gradient_accumulation_steps=1,
            max_completion_length=base.MAX_LENGTH, temperature=base.TEMPERATURE, epsilon=base.EPSILON,
            epsilon_high=base.EPSILON_HIGH, reward_weights=data["reward_weights"], max_steps=1, logging_steps=1, report_to=[],
            save_strategy="no", shuffle_dataset=False, bf16=False, use_cpu=True, gradient_checkpointing=False,
            learning_rate=1e-3, lr_scheduler_type="constant", disable_tqdm=True, seed=0, max_grad_norm=1e9,
        )  # fmt: skip
        model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        kind, config_kind = (Grpo, GRPOConfig) if algorithm == "grpo" else (Rloo, RLOOConfig)
        extra = dict(rollout_func=rollout) if algorithm == "grpo" else {}
        trainer = kind(
            model=model, reward_funcs=[reward(0), reward(1)], args=config_kind(**(common | config)),
            processing_class=base.tokenizer(), callbacks=[],
            train_dataset=Dataset.from_dict({"prompt": [f"w{i + 2}" for i in range(GROUPS)]}), **extra,
        )  # fmt: skip
        if trainer.ref_model is not None:
            with torch.no_grad():
                for p in trainer.ref_model.parameters():
                    p.mul_(0.9)
        # Otherwise, the first ones without a gradient are the reference model's, and base.Replay sets the old ones.
        trainer.computes_old = vllm or algorithm == "rloo"
        if vllm:
            trainer.use_vllm, trainer._last_loaded_step = True, 0
            trainer.vllm_importance_sampling_correction = True
            trainer.vllm_generation = types.SimpleNamespace(sync_weights=lambda: None)
        trainer.data, trainer.seen, trainer.replayed_old = data, {}, None
        if old is not None:
            width = max(len(c) for c in completions)
            trainer.replayed_old = torch.tensor([row + [0.0] * (width - len(row)) for row in old])
        losses = []
        compute = trainer._compute_loss
        trainer._compute_loss = lambda *a: [loss := compute(*a), losses.append(base.digits(loss.item()))][0]
        trainer.train()
        logs, seen = [log for log in trainer.state.log_history if "grad_norm" in log], trainer.seen
        names = ("clip_ratio/", "rewards/", "sampling/", "vespo/")
        keys = ["entropy", "kl", "reward", "reward_std", "frac_reward_zero_std", "policy_loss", "entropy_coef", "cispo_clip_ratio"]
        metrics = lambda log: {k: base.digits(v) for k, v in log.items() if k in keys or k.startswith(names)}
        case = dict(loss=losses[0], grad_norm=base.digits(logs[0]["grad_norm"]), advantages=base.digits(seen["advantages"]))
        case["metrics"] = metrics(logs[0])
        if len(logs) == 1:
            case["d_logps"] = base.ragged(seen["logps"].grad, completions)
        else:
            case["steps"] = [
                dict(loss=loss, grad_norm=base.digits(log["grad_norm"]), metrics=metrics(log)) for loss, log in zip(losses, logs)
            ]
        return case


def sampler(data, old):
    """Returns log-probabilities of a stale sampler: those of the old policy plus noise, so that ratios of tokens and of
    sequences exceed their bounds."""
    g = torch.Generator().manual_seed(3)
    return [(torch.tensor(row) + torch.randn(len(row), generator=g) * 0.3).tolist() for row in old]


def main():
    trl_cases = json.loads((base.OUT / "cases.json").read_text())
    data = base.rollouts()
    old = trl_cases["old_logps"]
    data["sampler_logps"] = sampler(data, old)
    data["sampler_logps_on"] = sampler(data, trl_cases["logps"])
    cases = []
    with tempfile.TemporaryDirectory() as model_dir:
        base.tiny_model().save_pretrained(model_dir)

        def add(policy, name="", **config):
            changed = policy == "changed"
            own = data if changed else data | dict(sampler_logps=data["sampler_logps_on"])
            case = run(own, model_dir, old if changed else None, **config)
            cases.append(dict(name=name, policy=policy, config=config, **case))
            print(len(cases), name, policy, config, flush=True)

        for loss_type, more in (("cispo", dict(epsilon_high=1.2)), ("sapo", {}), ("luspo", {}), ("vespo", {})):
            for level in ("token", "sequence"):
                add("on", "loss", loss_type=loss_type, importance_sampling_level=level, **more)
                add("changed", "loss", loss_type=loss_type, importance_sampling_level=level, beta=0.04, **more)
        add("changed", "loss", loss_type="luspo", importance_sampling_level="sequence", delta=1.4)
        add("changed", "temperatures", loss_type="sapo", sapo_temperature_pos=2.0, sapo_temperature_neg=3.0)
        add("changed", "shape", loss_type="vespo", vespo_k_pos=1.0, vespo_lambda_pos=0.5, vespo_k_neg=1.5, vespo_lambda_neg=2.5)
        add("changed", "truncated", loss_type="vespo", mask_truncated_completions=True)
        gdpo = dict(multi_objective_aggregation="normalize_then_sum", loss_type="grpo")
        add("on", "gdpo", **gdpo)
        add("changed", "gdpo", none_rewards=True, **gdpo)
        for share in (0.2, 0.5, 0.0):
            add("changed", "entropy mask", top_entropy_quantile=share, beta=0.04)
        add("changed", "entropy mask", top_entropy_quantile=0.4, importance_sampling_level="sequence", loss_type="grpo")
        add("changed", "entropy mask", top_entropy_quantile=0.4, mask_truncated_completions=True, loss_type="luspo")
        for level in ("token", "sequence"):
            add("changed", "off-policy mask", off_policy_mask_threshold=0.1, importance_sampling_level=level, beta=0.04)
        add("on", "off-policy mask", off_policy_mask_threshold=0.02, loss_type="cispo", epsilon_high=5.0)
        add("on", "entropy bonus", entropy_coef=0.05)
        add("changed", "entropy bonus", entropy_coef=0.05, loss_type="dr_grpo", top_entropy_quantile=0.5)
        add("changed", "entropy bonus", entropy_coef=0.05, mask_truncated_completions=True, loss_type="grpo")
        add(
            "on", "steps", max_steps=4, entropy_coef=0.02, use_adaptive_entropy=True, entropy_coef_delta=0.01, entropy_coef_max=0.035,
            entropy_target=2.0,
        )  # fmt: skip
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
            base_config = dict(vllm=True, vllm_importance_sampling_mode=mode)
            add("changed", "stale", beta=0.04, vllm_importance_sampling_clip_max=1.4, vllm_importance_sampling_clip_min=0.6, **base_config)
            add("on", "stale", vllm_importance_sampling_clip_max=1e9, importance_sampling_level="sequence", loss_type="grpo", **base_config)
        for mode in ("token_truncate", "token_mask"):
            add("changed", "stale", loss_type="vespo", vllm=True, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_max=1.4)

        rloo = dict(algorithm="rloo")
        for policy in ("on", "changed"):
            add(policy, "rloo", beta=0.0, **rloo)
            add(policy, "rloo", beta=0.05, **rloo)
            add(policy, "rloo", beta=0.05, normalize_advantages=True, **rloo)
            add(policy, "rloo", beta=0.05, none_rewards=True, **rloo)
        add("changed", "rloo", beta=0.0, reward_clip_range=(-0.5, 1.2), normalize_advantages=True, none_rewards=True, **rloo)
        add("changed", "rloo", beta=0.05, mask_truncated_completions=True, **rloo)

    data = {k: base.digits(data[k]) for k in ("sampler_logps", "sampler_logps_on")}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(dict(versions=trl_cases["versions"], **data, cases=cases), separators=(",", ":")) + "\n")
    print(len(cases), "cases", OUT.stat().st_size, "bytes")


main()
