#!/usr/bin/env python3
"""Data-parallel ranks of a real vLLM behind three replicas.

run.sh --ranks makes the environment and calls this script; README.md lists the checks. Exit code 0: everything held.
"""
import contextlib
import json
import sys
import tempfile
from pathlib import Path

from real import MODEL, WORKER_START_S, Worker, command_line, run_checks, text, user
from processes import ask, cluster, ending_on_sigterm, free_port, until  # found by `real`

REPLICAS = ("r1", "r2", "r3")
RANKS = 2
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
EXPLAIN = {"x-grapevine-explain": "1"}
PROMPTS = 16


def asked(address, messages, headers=()):
    """A chat: (status, headers, body)."""
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0})
    status, head, answer = ask(address, "POST", "/v1/chat/completions", body, {**EXPLAIN, **dict(headers)}, within_s=120)
    return status, head, json.loads(answer)


class Ranks:
    """`counted`: for each worker's URL, where its counters stand: (worker, label of its series)."""

    def __init__(self, replicas, counted):
        self.replicas, self.counted = replicas, counted

    def counts(self, name):
        return {url: worker.metric(name, label) for url, (worker, label) in self.counted.items()}

    def rise(self, name, action):
        """By how much a counter rises with an action, by worker; an engine's counters may come a moment later."""
        before = self.counts(name)
        result = action()
        return result, lambda: {url: now - before[url] for url, now in self.counts(name).items()}


def repeats_hit_the_same_rank_from_any_replica(r, name):
    def ask_all():
        first, later, tokens = 0, 0, 0
        sent = dict.fromkeys(r.counted, 0)
        for n in range(PROMPTS):
            served = set()
            for turn, replica in enumerate(r.replicas):
                status, head, answer = asked(replica.data, user(text(f"{name} {n}", 300)))
                assert status == 200, answer
                served.add(head["x-grapevine-worker"])
                cached, size = answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"]
                sent[head["x-grapevine-worker"]] += size
                first, later, tokens = (first, later + cached, tokens + size) if turn else (first + cached, later, tokens)
            assert len(served) == 1, f"prompt {n} went to {served}"
        return first, later, tokens, sent

    (first, later, tokens, sent), rose = r.rise(QUERIES, ask_all)
    assert all(sent.values()), f"a rank served nothing: {sent}"
    # Its own counters, too, tell that what was meant for a rank was computed there.
    until(lambda: rose() == sent, 10, f"counters of the ranks that say {sent}", every_s=0.2)
    assert later / tokens > 0.9, f"only {later / tokens:.1%} cached"
    return (f"{PROMPTS} prompts, one rank each from all {len(r.replicas)} replicas; cached {first} tokens at first, then "
            f"{later} of {tokens} ({later / tokens:.1%}); the ranks' own counters agree: "
            + ", ".join(f"{url.rsplit(':', 1)[1]} {count:.0f} tokens" for url, count in sent.items()))


def a_clients_rank_decides(r):
    """For workers behind one address."""
    told = []
    for rank, (url, (_, label)) in enumerate(r.counted.items()):
        header = {"x-data-parallel-rank": str(rank)}

        def ask_all():
            for n in range(4):
                for replica in r.replicas:
                    status, head, answer = asked(replica.data, user(text(f"mine {n}", 60)), header)
                    assert status == 200 and head["x-grapevine-worker"] == url, (status, head, answer)
        _, rose = r.rise(QUERIES, ask_all)
        until(lambda: rose()[url] > 0, 10, f"{label} counts", every_s=0.2)
        others = {u: count for u, count in rose().items() if u != url}
        assert not any(others.values()), f"rank {rank} was asked for; computed elsewhere: {others}"
        told.append(f"{label} {rose()[url]:.0f} tokens")
    for replica in r.replicas:
        status, _, answer = asked(replica.data, user("hello"), {"x-data-parallel-rank": "7"})
        assert status == 400, (status, answer)
    return f"each of {RANKS} ranks got all that named it ({', '.join(told)}) and the other nothing; rank 7 is 400"


def external_balancing_is_refused_for_a_dense_model(start):
    """One address a rank: vLLM has it for mixtures of experts only, so there are no such ranks to be tried here."""
    worker = start("--data-parallel-rank", "0")
    until(lambda: worker.child.process.poll() is not None, WORKER_START_S, "vLLM that refuses to start", every_s=0.5)
    said = worker.child.log.read_text(errors="replace")
    reason = "Non-MoE models do not support external data parallel mode"
    assert reason in said, said[-1000:]
    return f"vLLM: \"{reason}\"; its instances are plain workers (the other scripts)"


def main():
    a = command_line(__doc__, "tiny")
    checks = []
    with ending_on_sigterm(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grapevine-real-vllm-")))

        def started(*arguments):
            worker = Worker(a.model, folder, arguments=["--data-parallel-size", str(RANKS), *arguments])
            stack.callback(worker.stop)
            return worker

        def behind(urls, counted, arguments=(), declared=0):
            place = folder / f"cluster-{free_port()}"
            return Ranks(stack.enter_context(
                cluster(a.grapevine, place, REPLICAS, urls, arguments, declared=declared)), counted)

        inside = started()
        print(f"starting a vLLM worker with {RANKS} ranks ({a.model} model, 1 to 3 min) ...", flush=True)
        inside.wait()
        ranked = {f"{inside.url}@{n}": (inside, f'engine="{n}"') for n in range(RANKS)}
        named = behind(list(ranked), ranked)
        counted = behind((), ranked, ["--worker-urls", inside.url, "--intra-node-data-parallel-size", RANKS], RANKS)
        checks += [(repeats_hit_the_same_rank_from_any_replica, [named, "named"]),
                   (a_clients_rank_decides, [named]),
                   (repeats_hit_the_same_rank_from_any_replica, [counted, "counted"]),
                   (a_clients_rank_decides, [counted]),
                   (external_balancing_is_refused_for_a_dense_model, [started])]
        return run_checks(checks)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
