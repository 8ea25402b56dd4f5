"""Generated loads, as trace files that `grapevine replay` reads: rows of block ids, equal ids for equal prefixes.

Equal seeds, equal loads. Used by the scripts of this folder. Standard library only.
"""
import gzip
import json
import random
from pathlib import Path

BLOCK = 64      # tokens of a block


class Ids:
    """Block ids; every call gives new ones."""

    def __init__(self):
        self.next = 1

    def take(self, tokens):
        """Ids for so many tokens, whole blocks, at least one."""
        count = max(1, round(tokens / BLOCK))
        self.next += count
        return list(range(self.next - count, self.next))


def hot(requests, rate, share=0.4, seed=1, prefix_tokens=3_000, own_tokens=(200, 2_000), answer_tokens=(60, 140)):
    """Open loop: `share` of all requests begin with the same prefix, the others share nothing."""
    rng, ids, at_s, rows = random.Random(seed), Ids(), 0.0, []
    prefix = ids.take(prefix_tokens)
    for _ in range(requests):
        at_s += rng.expovariate(rate)
        first = prefix if rng.random() < share else ids.take(prefix_tokens)
        blocks = first + ids.take(rng.uniform(*own_tokens))
        rows.append({"t_ms": round(at_s * 1000), "in_tokens": len(blocks) * BLOCK,
                     "out_tokens": rng.randint(*answer_tokens), "blocks": blocks})
    return rows


def conversations(sessions, starts_a_second, seed=1, groups=24, group_tokens=(500, 4_000), turns=(4, 12),
                  turn_tokens=(100, 600), answer_tokens=(20, 80), gap_ms=(500, 3_000)):
    """Closed loop: sessions of groups that share a system prompt; each turn adds to the one before."""
    rng, ids, at_s, rows = random.Random(seed), Ids(), 0.0, []
    systems = [ids.take(rng.uniform(*group_tokens)) for _ in range(groups)]
    for session in range(sessions):
        at_s += rng.expovariate(starts_a_second)
        # Some groups are larger than others.
        history = list(systems[min(int(rng.expovariate(1) * groups / 4), groups - 1)])
        for turn in range(rng.randint(*turns)):
            history += ids.take(rng.uniform(*turn_tokens))
            rows.append({"t_ms": round(at_s * 1000), "in_tokens": len(history) * BLOCK,
                         "out_tokens": rng.randint(*answer_tokens), "blocks": list(history), "session": session,
                         "turn": turn, "gap_ms": rng.randint(*gap_ms) if turn else 0})
    return rows


def write(folder, name, rows):
    """Writes NAME.jsonl.gz and NAME.meta.json; returns the path of the former."""
    path = Path(folder, f"{name}.jsonl.gz")
    with gzip.open(path, "wt") as sink:
        sink.writelines(json.dumps(row) + "\n" for row in rows)
    Path(folder, f"{name}.meta.json").write_text(json.dumps({"block_tokens": BLOCK}))
    return path
