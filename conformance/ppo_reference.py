"""Makes crates/train/tests/fixtures/ppo/cases.json: PPO in f64, in slow and obvious code.

PPO is computed as Ouyang et al. 2022 (arXiv:2203.02155) and Schulman et al. 2017 (arXiv:1707.06347) describe it, with
the names of TRL's former PPOTrainer. The code loops over completions and tokens with the papers' formulas; gradients
are those of torch's autograd. Nothing of Lockstep is imported. Inputs are rounded to f32 first, because Lockstep's
inputs are f32.

    python conformance/ppo_reference.py
"""

import json
import math
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parents[1] / "crates/train/tests/fixtures/ppo/cases.json"
torch.set_default_dtype(torch.float64)


def f32(x):
    return x.float().double()


def rollouts():
    """Returns seven completions; one has a single token, one has tokens that no policy sampled, and one has no token
    that counts."""
    g = torch.Generator().manual_seed(3)
    lengths = [6, 1, 8, 3, 5, 2, 8]
    masks = [[True] * n for n in lengths]
    masks[2] = [t not in (3, 4, 7) for t in range(8)]
    masks[5] = [False, False]
    draw = lambda n, scale=1.0, shift=0.0: f32(torch.randn(n, generator=g) * scale + shift)
    rows = []
    for n, mask in zip(lengths, masks):
        old = draw(n, 1.0, -2.0)
        values = draw(n, 0.7)
        rows.append(dict(
            mask=mask, score=round(float(torch.randn(1, generator=g) * 1.5), 3),
            old_logps=old, ref_logps=f32(old + draw(n, 0.5)), logps=f32(old + draw(n, 0.3)),
            entropies=draw(n).abs(), old_values=values, values=f32(values + draw(n, 0.3)),
        ))  # fmt: skip
    return rows


def kept(rows, name):
    return torch.stack([row[name][t] for row in rows for t in range(len(row["mask"])) if row["mask"][t]])


def whiten(rows, name, shift_mean):
    all_tokens = kept(rows, name)
    mean = sum(all_tokens) / len(all_tokens)
    variance = sum((x - mean) ** 2 for x in all_tokens) / (len(all_tokens) - 1)
    for row in rows:
        for t in range(len(row["mask"])):
            if row["mask"][t]:
                white = (row[name][t] - mean) / (variance + 1e-8) ** 0.5
                row[name][t] = white if shift_mean else white + mean


def rewards(rows, c):
    for row in rows:
        n = len(row["mask"])
        row["kl"], row["rewards"] = torch.zeros(n), torch.zeros(n)
        actions = [t for t in range(n) if row["mask"][t]]
        for t in actions:
            d = row["ref_logps"][t] - row["old_logps"][t]
            row["kl"][t] = -d if c["kl_estimator"] == "k1" else math.exp(d) - 1 - d
            row["rewards"][t] = -c["kl_coef"] * row["kl"][t]
            if t == actions[-1]:
                row["rewards"][t] += row["score"]
    if c["whiten_rewards"]:
        whiten(rows, "rewards", shift_mean=False)


def advantages(rows, c):
    """Computes each advantage from its definition, A_t = sum over l of (gamma lam)^l delta_{t+l}, not by the
    recursion."""
    for row in rows:
        n = len(row["mask"])
        actions = [t for t in range(n) if row["mask"][t]]
        r = [row["rewards"][t] for t in actions]
        v = [row["old_values"][t] for t in actions] + [torch.tensor(0.0)]
        deltas = [r[i] + c["gamma"] * v[i + 1] - v[i] for i in range(len(actions))]
        row["advantages"], row["returns"] = torch.zeros(n), torch.zeros(n)
        for i, t in enumerate(actions):
            for k in range(i, len(actions)):
                row["advantages"][t] += (c["gamma"] * c["lam"]) ** (k - i) * deltas[k]
            row["returns"][t] = row["advantages"][t] + row["old_values"][t]
    row_values, returns = kept(rows, "old_values"), kept(rows, "returns")
    explained = 1 - (returns - row_values).var() / returns.var()
    whiten(rows, "advantages", shift_mean=True)
    return explained


def losses(rows, c):
    policy, value, entropy, kl, ratios, policy_clips, value_clips, count = 0, 0, 0, 0, 0, 0, 0, 0
    for row in rows:
        for t in range(len(row["mask"])):
            if not row["mask"][t]:
                continue
            ratio = torch.exp(row["logps"][t] - row["old_logps"][t])
            # The inputs of Lockstep's losses are f32.
            advantage, target = f32(row["advantages"][t]), f32(row["returns"][t])
            free = -advantage * ratio
            clipped = -advantage * torch.clamp(ratio, 1 - c["cliprange"], 1 + c["cliprange"])
            policy = policy + torch.maximum(free, clipped)
            policy_clips += int(clipped > free)
            v, old = row["values"][t], row["old_values"][t]
            near = torch.clamp(v, old - c["cliprange_value"], old + c["cliprange_value"])
            free, clipped = (v - target) ** 2, (near - target) ** 2
            value = value + 0.5 * torch.maximum(free, clipped)
            value_clips += int(clipped > free)
            entropy = entropy + row["entropies"][t]
            kl = kl + 0.5 * (row["logps"][t] - row["old_logps"][t]) ** 2
            ratios = ratios + ratio
            count += 1
    metrics = {
        "loss/policy_avg": policy / count, "loss/value_avg": value / count, "policy/entropy_avg": entropy / count,
        "policy/approxkl_avg": kl / count, "policy/clipfrac_avg": policy_clips / count,
        "val/clipfrac_avg": value_clips / count, "val/ratio": ratios / count,
    }  # fmt: skip
    return (policy - c["entropy_coef"] * entropy) / count, c["vf_coef"] * value / count, metrics


def numbers(rows, name):
    return [[float(x) for x in row[name]] for row in rows]


def case(**changes):
    c = dict(
        kl_coef=0.05, kl_estimator="k1", gamma=1.0, lam=0.95, whiten_rewards=False, cliprange=0.2, cliprange_value=0.2,
        vf_coef=0.1, entropy_coef=0.0,
    )  # fmt: skip
    c |= changes
    rows = rollouts()
    rewards(rows, c)
    explained = advantages(rows, c)
    given = {name: numbers(rows, name) for name in ("kl", "rewards", "advantages", "returns")}
    for row in rows:
        for name in ("logps", "entropies", "values"):
            row[name].requires_grad_(True)
    policy, value, metrics = losses(rows, c)
    (policy + value).backward()
    for row in rows:
        for name in ("logps", "entropies", "values"):
            row["d_" + name] = row[name].grad if row[name].grad is not None else torch.zeros(len(row["mask"]))
    given |= {name: numbers(rows, name) for name in ("d_logps", "d_entropies", "d_values")}
    rollout = {
        "objective/kl": sum(sum(row["kl"]) for row in rows) / len(rows),
        "objective/non_score_reward": sum(-c["kl_coef"] * sum(row["kl"]) for row in rows) / len(rows),
        "objective/scores": sum(row["score"] for row in rows) / len(rows),
        "objective/entropy": sum(-row["old_logps"][t] for row in rows for t in range(len(row["mask"])) if row["mask"][t]) / len(rows),
        "val/explained_variance": explained,
    }  # fmt: skip
    rollout["objective/rlhf_reward"] = rollout["objective/scores"] + rollout["objective/non_score_reward"]
    metrics = {name: float(torch.as_tensor(x).detach()) for name, x in (metrics | rollout).items()}
    return dict(config=c, policy_loss=policy.item(), value_loss=value.item(), metrics=metrics, **given)


def main():
    rows = rollouts()
    names = ("old_logps", "ref_logps", "logps", "entropies", "old_values", "values")
    inputs = {name: numbers(rows, name) for name in names}
    inputs |= dict(masks=[row["mask"] for row in rows], scores=[row["score"] for row in rows])
    cases = [
        case(),
        case(kl_estimator="k3", gamma=0.99),
        case(whiten_rewards=True, gamma=0.9, lam=0.5),
        case(entropy_coef=0.01, vf_coef=0.5, gamma=0.99, cliprange=0.1, cliprange_value=0.4),
        case(kl_coef=0.0, lam=1.0),
        case(lam=0.0, kl_coef=0.2),
    ]
    # The cases must test something: some ratios and some values are clipped, and some are not.
    for c in cases:
        assert 0 < c["metrics"]["policy/clipfrac_avg"] < 1 and 0 < c["metrics"]["val/clipfrac_avg"] < 1, c["config"]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    fixture = dict(versions=dict(torch=torch.__version__.split("+")[0]), inputs=inputs, cases=cases)
    OUT.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(len(cases), "cases,", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
