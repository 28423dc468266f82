"""Our step, measured before and after the peer's, and the peer's fastest configuration: python ratio.py OURS AGAIN PEERS"""

import json
import sys

ours = [json.load(open(path))["rows"][0] for path in sys.argv[1:3]]
peers = [json.loads(line) for line in open(sys.argv[3]) if line.startswith("{")]
best = min(peers, key=lambda p: p["step_s"])
for row in ours:
    print(f"lockstep {row['shape']}: step {row['step_s']:.2f} s (rollout {row['rollout_s']:.2f} s, update {row['update_s']:.2f} s)")
print(
    f"{best['peer']}, its fastest of {len(peers)}: step {best['step_s']:.2f} s (generation {best['generation_s']:.2f} s), "
    f"{best['dtype']}, micro-batch {best['micro_batch']}, checkpointing {best['checkpointing']}, "
    f"peak {best['peak_rss_bytes'] / 2**20:.0f} MiB"
)
slowest = max(row["step_s"] for row in ours)
fastest = min(row["step_s"] for row in ours)
print(f"ratio: {best['step_s'] / slowest:.1f} to {best['step_s'] / fastest:.1f}")
