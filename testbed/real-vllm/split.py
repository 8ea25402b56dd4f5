#!/usr/bin/env python3
"""Prefill and decode apart with real vLLM over NIXL, behind three replicas, beside one whole worker.

run.sh --split makes the environment and calls this script; README.md lists the checks. Exit code 0: everything held.
"""
import argparse
import concurrent.futures
import contextlib
import json
import random
import sys
import time
from pathlib import Path

import split_faults
import split_forms
from apart import fleet
from real import KV_MIB, MODEL, run_checks, text, user
from streams import Stream, chat
from processes import ask, ending_on_sigterm  # found by `real`

EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
MESSAGES = "/v1/messages"
TOKENS = 24
SINGLE, CONVERSATIONS, TURNS = 60, 10, 4        # 100 prompts


def single_prompts():
    """Bodies and paths of prompts of 20 to some 1,500 tokens, a third each of completions, chats, Anthropic's messages."""
    rng = random.Random(14)
    for n in range(SINGLE):
        words = round(4 * 190 ** rng.random())
        prompt, options = text(f"apart {n}", words), {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}
        match n // 2 % 3:
            case 0: yield "/v1/chat/completions", {**options, "messages": user(prompt)}
            case 1: yield "/v1/completions", {**options, "prompt": prompt}
            case _: yield MESSAGES, {**options, "messages": user(prompt)}


def message_answered(address, body, streamed, headers):
    """The same of one of Anthropic's messages; tokens of the prompt whether they were cached or not."""
    status, _, answer = ask(address, "POST", MESSAGES, json.dumps({**body, "stream": streamed}), headers, within_s=120)
    assert status == 200, f"{status} {answer}"
    if not streamed:
        answer = json.loads(answer)
        said, reason, usage = answer["content"][0]["text"], answer["stop_reason"], answer["usage"]
    else:
        events = [json.loads(line[len("data: "):]) for line in answer.splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] == "message_stop", events[-1]
        said = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        last = next(event for event in events if event["type"] == "message_delta")
        reason, usage = last["delta"]["stop_reason"], last["usage"]
    prompt = sum(usage.get(part) or 0 for part in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))
    return said, reason, prompt, usage["output_tokens"]


def answered(address, path, body, streamed, headers=()):
    """(text, why it ended, prompt tokens, completion tokens) of an answer that is whole."""
    if path == MESSAGES:
        return message_answered(address, body, streamed, headers)
    if streamed:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        stream = Stream(address, body, path, headers).join()
        assert stream.ending == "done", f"{stream.ending}: {stream.status} {stream.error}"
        usage, reason, said = stream.usage(), stream.finish_reason, stream.text
    else:
        status, _, answer = ask(address, "POST", path, json.dumps(body), headers, within_s=120)
        assert status == 200, f"{status} {answer}"
        answer = json.loads(answer)
        choice = answer["choices"][0]
        usage, reason = answer["usage"], choice["finish_reason"]
        said = choice["message"]["content"] if "message" in choice else choice["text"]
    return said, reason, usage["prompt_tokens"], usage["completion_tokens"]


class Compared:
    """Answers through the router beside the oracle's."""

    def __init__(self, f):
        self.f, self.pairs, self.sizes, self.streamed, self.legs = f, set(), [], 0, []

    def one(self, path, body, streamed):
        request_id, replica = self.f.id("equal")
        headers = {"x-request-id": request_id}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            alone = pool.submit(answered, self.f.oracle.address, path, body, streamed)
            routed = answered(replica.data, path, body, streamed, headers)
            assert routed == alone.result(), f"{replica.name} {path}: {routed}, one worker alone {alone.result()}"
        line = replica.logged(request_id)
        assert line["split"] == "pair" and line["attempts"] == 1 and line["status"] == 200, line
        assert line["prefill_worker"] in self.f.prefill and line["worker"] in self.f.decode, line
        self.pairs.add((line["prefill_worker"], line["worker"]))
        self.sizes.append(routed[2])
        self.streamed += streamed
        self.legs.append((line["prefill_ms"], line["ms"]))
        return routed[0]


def text_equals_one_worker_alone(f):
    before = {url: w.metric(EXTERNAL_HITS) for url, w in f.decode.items()}
    sources = ("external_kv_transfer", "local_cache_hit", "local_compute")
    first = {s: f.total(BY_SOURCE, f.decode, f'source="{s}"') for s in sources}
    c = Compared(f)
    for n, (path, body) in enumerate(single_prompts()):
        c.one(path, body, streamed=n % 2 == 1)
    for n in range(CONVERSATIONS):
        messages = user(text(f"turns {n}", 30 + 10 * n))
        for turn in range(TURNS):
            said = c.one("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": TOKENS,
                                                  "temperature": 0}, streamed=(n + turn) % 2 == 1)
            messages = [*messages, {"role": "assistant", "content": said}, *user(text(f"turns {n} {turn}", 40))]
    rose = [w.metric(EXTERNAL_HITS) - before[url] for url, w in f.decode.items()]
    assert all(rose), f"a decode worker took no KV: {rose}"
    got = {s: f.total(BY_SOURCE, f.decode, f'source="{s}"') - first[s] for s in sources}
    assert got["local_compute"] <= len(c.sizes), f"decode workers computed prompts: {got}"
    assert c.pairs == {(p, d) for p in f.prefill for d in f.decode}, f"only {len(c.pairs)} pairs served"
    prefill_ms, ms = (sorted(times)[len(c.legs) // 2] for times in zip(*c.legs))
    return (f"{len(c.sizes)} of {len(c.sizes)} equal ({c.streamed} streamed), prompts of {min(c.sizes)} to {max(c.sizes)} "
            f"tokens, {len(c.pairs)} pairs; decode workers' prompt tokens by source: "
            + ", ".join(f"{s} {got[s]:.0f}" for s in sources)
            + f"; median {prefill_ms:.0f} ms prefill leg, {ms:.0f} ms in all")


def repeats_hit_the_prefill_cache_from_any_replica(f):
    prompts = 12
    first, later, tokens, used, explained = 0, 0, 0, set(), 0
    for n in range(prompts):
        body = {**chat(user(text(f"repeat {n}", 300)), 4), "stream": False}
        del body["stream_options"]
        homes = []
        for turn, replica in enumerate(f.replicas):
            meant = f.both_halves(replica, body)[0]
            request_id, _ = f.id("repeat")
            answered(replica.data, "/v1/chat/completions", body, False, {"x-request-id": request_id})
            line = replica.logged(request_id)
            homes.append(line["prefill_worker"])
            explained += meant == homes[-1]
            if turn:
                later, tokens = later + line["prefill_cached_tokens"], tokens + line["prompt_tokens"]
            else:
                first += line["prefill_cached_tokens"]
        assert len(set(homes)) == 1, f"prompt {n} was computed at {homes}"
        used.update(homes)
    assert used == set(f.prefill), f"only {used} computed"
    assert explained == prompts * len(f.replicas), f"explain named the worker {explained} times only"
    share = later / tokens
    assert share > 0.9, f"only {share:.1%} cached"
    return (f"{prompts} prompts, one prefill worker each from all {len(f.replicas)} replicas, as `explain` says; cached there "
            f"{first} tokens at first, then {later} of {tokens} ({share:.1%})")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary")
    ap.add_argument("--model", choices=KV_MIB, default="tiny")
    ap.add_argument("--only", default="", help="checks whose name has this, or one of these by commas, in it")
    a = ap.parse_args()
    checks = (text_equals_one_worker_alone, repeats_hit_the_prefill_cache_from_any_replica,
              *split_forms.CHECKS, *split_faults.CHECKS)
    with ending_on_sigterm(), contextlib.ExitStack() as stack:
        begun = time.monotonic()
        f = stack.enter_context(fleet(a.grapevine.resolve(), a.model))
        print(f"ready after {time.monotonic() - begun:.0f} s", flush=True)
        return run_checks([(check, [f]) for check in checks if any(part in check.__name__ for part in a.only.split(","))])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
