#!/usr/bin/env python3
"""Two real vLLM workers behind three Grapevine replicas, checked with the official `openai` client.

run.sh makes the environment and calls this script; README.md lists the checks. Exit code 0: everything held.
"""
import concurrent.futures
import contextlib
import json
import random
import sys
import time

from openai import OpenAI

from real import MODEL, command_line, run_checks, text, two_workers, user
from processes import Failed, ask, cluster, ending_on_sigterm, until  # found by `real`

REPLICAS = ("r1", "r2", "r3")
OTHERS = ("consistent_hash", "cache_aware", "least_request", "random")     # compared with the default policy
EXPLAIN = {"x-grapevine-explain": "1"}


class Bench:
    """What the checks use: the workers and, per replica, its address and a client."""

    def __init__(self, workers, replicas):
        self.workers = {w.url: w for w in workers}
        self.replicas = replicas
        self.clients = [
            OpenAI(base_url=f"http://{r.data}/v1", api_key="none", max_retries=0, timeout=120) for r in replicas]

    def chat(self, client, messages, **options):
        """A plain chat: (completion, worker that served it, cached prompt tokens)."""
        options = {"max_tokens": 8, "temperature": 0, **options}
        reply = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, extra_headers=EXPLAIN, **options)
        completion = reply.parse()
        details = completion.usage.prompt_tokens_details
        return completion, reply.headers["x-grapevine-worker"], details.cached_tokens

    def total(self, name):
        return sum(w.metric(name) for w in self.workers.values())


def models_are_the_workers(b):
    for client in b.clients:
        listed = [m.id for m in client.models.list()]
        assert listed == [MODEL], listed
        assert client.models.retrieve(MODEL).id == MODEL
    return f"{MODEL}, from each of {len(b.clients)} replicas"


def plain_and_streamed_chat_agree(b):
    messages = user(text("agree", 60))
    options = {"max_tokens": 24, "temperature": 0}
    body = json.dumps({"model": MODEL, "messages": messages, **options})
    worker = next(iter(b.workers.values()))
    direct = json.loads(ask(worker.address, "POST", "/v1/chat/completions", body,
                            {"content-type": "application/json"})[2])["choices"][0]["message"]["content"]
    chunks = 0
    for client in b.clients:
        plain, _, _ = b.chat(client, messages, **options)
        assert plain.choices[0].message.content == direct, "plain answer differs from the worker's own"
        stream = list(client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, **options))
        streamed = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        assert streamed == direct, "streamed answer differs from the worker's own"
        assert stream[-1].usage.completion_tokens == plain.usage.completion_tokens
        chunks += len(stream)
    return f"same text plain, streamed ({chunks} chunks) and from the worker itself"


def repeated_prompts_hit_the_cache_from_any_replica(b):
    prompts = 12
    first, later, tokens, used = 0, 0, 0, set()
    for n in range(prompts):
        messages, served = user(text(f"repeat {n}", 400)), []
        for client in b.clients:
            completion, worker, cached = b.chat(client, messages)
            served.append(worker)
            if len(served) == 1:
                first += cached
            else:
                later += cached
                tokens += completion.usage.prompt_tokens
        assert len(set(served)) == 1, f"prompt {n} went to {served}"
        used.update(served)
    assert used == set(b.workers), f"only {used} served"
    share = later / tokens
    assert share > 0.9, f"only {share:.1%} cached"
    return f"{prompts} prompts, one worker each; cached tokens {first} at first, then {later} of {tokens} ({share:.1%})"


def errors_arrive_unchanged(b):
    hello = user("hello")
    bad = {
        "too long": {"model": MODEL, "messages": user(text("long", 6000))},
        "temperature": {"model": MODEL, "messages": hello, "temperature": -3},
        "max_tokens": {"model": MODEL, "messages": hello, "max_tokens": 99_999},
        "top_p, streamed": {"model": MODEL, "messages": hello, "top_p": 7, "stream": True},
        "wrong type": {"model": MODEL, "messages": hello, "stop": 5},
    }
    worker = next(iter(b.workers.values()))
    for what, request in bad.items():
        def answer(address):
            status, headers, body = ask(address, "POST", "/v1/chat/completions", json.dumps(request),
                                        {"content-type": "application/json"})
            return status, headers["content-type"], body
        direct = answer(worker.address)
        assert 400 <= direct[0] < 500, f"{what}: the worker itself answers {direct}"
        for replica in b.replicas:
            routed = answer(replica.data)
            assert routed == direct, f"{what}: {replica.name} gave {routed}, the worker {direct}"
    return f"status, content type and body equal byte for byte: {', '.join(bad)}"


def leaving_mid_stream_frees_the_engine(b):
    running = "vllm:num_requests_running"
    times = []
    for client in b.clients:
        stream = client.chat.completions.create(
            model=MODEL, messages=user(text("leave", 30)), stream=True, max_tokens=3_800,
            extra_body={"ignore_eos": True})
        for _ in zip(range(3), stream):
            pass
        assert b.total(running) == 1, "the stream is not running"
        stream.close()
        left = time.monotonic()
        until(lambda: b.total(running) == 0, 5, "an engine without requests after the client left")
        times.append(time.monotonic() - left)
    return f"running 1 -> 0 within {max(times) * 1000:.0f} ms (worst of {len(times)}), of 3,800 tokens asked for"


def conversations(b, name, sessions, turns):
    """Conversations in turn through all replicas: (hit rate by the workers' counters, highest possible)."""
    counters = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    before = [b.total(c) for c in counters]
    histories = [user(text(f"{name} {n}", 500)) for n in range(sessions)]
    sent = possible = 0
    tokens = [0] * sessions
    rng = random.Random(name)
    for turn in range(turns):
        for n in rng.sample(range(sessions), sessions):
            completion, _, _ = b.chat(rng.choice(b.clients), histories[n])
            sent, possible = sent + completion.usage.prompt_tokens, possible + tokens[n]
            tokens[n] = completion.usage.prompt_tokens
            histories[n] += [{"role": "assistant", "content": completion.choices[0].message.content},
                             {"role": "user", "content": text(f"{name} {n} {turn}", 60)}]
    hits, queries = (b.total(c) - old for c, old in zip(counters, before))
    return hits / queries, possible / sent


def prefix_hits_most_of_all_policies(b, bench_of):
    sessions, turns = 16, 4
    rates = {}
    for policy in OTHERS:
        try:
            with bench_of(policy) as other:
                rates[policy], _ = conversations(other, policy, sessions, turns)
        except Failed as failure:
            # A policy that this binary does not serve is reported, not left out.
            print(f"       {policy}: not compared ({str(failure)[-200:]})", flush=True)
    rates["prefix"], possible = conversations(b, "prefix", sessions, turns)
    told = ", ".join(f"{policy} {rate:.1%}" for policy, rate in sorted(rates.items(), key=lambda item: -item[1]))
    assert rates["prefix"] > rates["random"] + 0.1, told
    assert rates["prefix"] > max(rates.values()) - 0.02, f"not among the first: {told}"
    assert rates["prefix"] > possible - 0.05, f"{told}; {possible:.1%} possible"
    return f"{told}, possible {possible:.1%} ({sessions} conversations of {turns} turns, workers' own counters)"


def killing_a_worker_loses_no_new_request(b):
    prompts = [user(text(f"kill {n}", 100)) for n in range(30)]
    homes = [b.chat(b.clients[n % 3], m)[1] for n, m in enumerate(prompts)]
    dead, survivor = homes[0], next(url for url in b.workers if url != homes[0])
    b.workers[dead].child.kill_group()
    killed = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        after = list(pool.map(lambda n: b.chat(b.clients[n % 3], prompts[n])[1], range(len(prompts))))
    assert set(after) == {survivor}, f"served by {set(after)}"
    lost = homes.count(dead)
    return (f"{len(prompts)} of {len(prompts)} answered by the other within {time.monotonic() - killed:.1f} s, "
            f"{lost} of them at home on the dead one")


def main():
    a = command_line(__doc__, "tiny")
    with ending_on_sigterm(), contextlib.ExitStack() as stack:
        workers, folder = stack.enter_context(two_workers(a.model))
        urls = [w.url for w in workers]

        @contextlib.contextmanager
        def bench_of(policy):
            with cluster(a.grapevine, folder / policy, REPLICAS, urls, ["--policy", policy]) as replicas:
                yield Bench(workers, replicas)

        b = stack.enter_context(bench_of("prefix"))
        return run_checks((
            (models_are_the_workers, [b]),
            (plain_and_streamed_chat_agree, [b]),
            (repeated_prompts_hit_the_cache_from_any_replica, [b]),
            (errors_arrive_unchanged, [b]),
            (leaving_mid_stream_frees_the_engine, [b]),
            (prefix_hits_most_of_all_policies, [b, bench_of]),
            (killing_a_worker_loses_no_new_request, [b]),
        ))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
