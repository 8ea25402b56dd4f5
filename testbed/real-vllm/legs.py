#!/usr/bin/env python3
"""What vLLM itself does with the two legs of a divided request, asked without a router: one line a question.

run.sh --legs makes the environment and calls this script. It asserts nothing: it is for the table in README.md.
"""
import argparse
import json
import sys
import time

from apart import LEASE_S, workers_apart
from real import KV_MIB, MODEL, text, user
from processes import ask, ending_on_sigterm  # found by `real`

KEEP = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None}
LETTERS = ["e", "a", "o", " "]       # one of them is in the first tokens of most answers
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


def post(worker, path, body):
    """(status, body, ms)"""
    begun = time.monotonic()
    status, _, answer = ask(worker.address, "POST", path, json.dumps(body), within_s=120)
    return status, json.loads(answer), round((time.monotonic() - begun) * 1000)


def texts(answer):
    if "choices" in answer:
        return [c["message"]["content"] if "message" in c else c["text"] for c in answer["choices"]]
    if "output" in answer:
        return [part["text"] for item in answer["output"] for part in item.get("content", ())]
    return [part.get("text") for part in answer.get("content", ())]


def legs(f, path, body, limit="max_tokens", prefill_only=()):
    """Both legs on the first pair, and the oracle; what is worth knowing of each."""
    p, d = next(iter(f.prefill.values())), next(iter(f.decode.values()))
    first = post(p, path, {**body, limit: 1, "kv_transfer_params": KEEP, **dict(prefill_only)})
    params = first[1].get("kv_transfer_params")
    told = {"prefill": first[0], "ms": first[2], "params": params and {
        k: len(v[0]) if k == "remote_block_ids" else v for k, v in params.items()
        if k in ("remote_block_ids", "remote_num_tokens", "remote_request_id", "transfer_mode")}}
    if first[0] != 200:
        told["said"] = first[1]
    if params:
        second = post(d, path, {**body, "kv_transfer_params": params})
        alone = post(f.oracle, path, body)
        told |= {"decode": second[0], "decode_ms": second[2], "equal": texts(second[1]) == texts(alone[1])}
        if second[0] != 200:
            told["said"] = second[1]
    return told, params


def used_until_freed(f, worker):
    """Seconds until a worker holds no block; the gauge is a step behind, so a small prompt moves it."""
    begun = time.monotonic()
    while time.monotonic() - begun < 3 * LEASE_S:
        post(worker, CHAT, {"model": MODEL, "messages": user("x"), "max_tokens": 1})
        if worker.metric("vllm:kv_cache_usage_perc") == 0:
            return round(time.monotonic() - begun, 1)
        time.sleep(0.2)
    return None


def prompt(name, words=80):
    return {"model": MODEL, "messages": user(text(name, words)), "max_tokens": 8, "temperature": 0}


def questions(f):
    p, d = next(iter(f.prefill.values())), next(iter(f.decode.values()))
    local = 'source="local_compute"'
    compute = lambda: d.metric("vllm:prompt_tokens_by_source_total", local)
    yield "one prompt", lambda: legs(f, CHAT, prompt("one"))[0]
    yield "n 2", lambda: legs(f, CHAT, {**prompt("n"), "n": 2, "temperature": 1, "seed": 3})[0]
    yield "responses", lambda: legs(f, RESPONSES, {
        "model": MODEL, "input": text("r", 80), "max_output_tokens": 8, "temperature": 0}, "max_output_tokens",
        {"store": False})[0]
    yield "Anthropic's messages", lambda: legs(f, MESSAGES, prompt("m"))[0]
    yield "echo with logprobs", lambda: legs(f, COMPLETIONS, {
        "model": MODEL, "prompt": text("e", 60), "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1})[0]
    yield "prompt_logprobs", lambda: legs(f, COMPLETIONS, {
        "model": MODEL, "prompt": text("pl", 60), "max_tokens": 4, "temperature": 0, "prompt_logprobs": 1})[0]
    yield "stop at the first token", lambda: legs(f, CHAT, {**prompt("stop"), "stop": LETTERS})[0]
    yield "the same with min_tokens 1 on prefill", lambda: legs(
        f, CHAT, {**prompt("stop2"), "stop": LETTERS}, prefill_only={"min_tokens": 1})[0]

    def twice():
        before = compute()
        params = legs(f, CHAT, prompt("twice"))[1]
        again = post(d, CHAT, {**prompt("twice"), "kv_transfer_params": params})
        other = post(list(f.decode.values())[1], CHAT, {**prompt("twice"), "kv_transfer_params": params})
        alone = texts(post(f.oracle, CHAT, prompt("twice"))[1])
        return {"same worker": again[0], "equal": texts(again[1]) == alone if again[0] == 200 else again[1],
                "other worker": other[0], "its text equal": texts(other[1]) == alone if other[0] == 200 else other[1],
                "computed": compute() - before}
    yield "blocks fetched twice", twice

    def wrong():
        params = post(p, CHAT, {**prompt("right"), "max_tokens": 1, "kv_transfer_params": KEEP})[1]["kv_transfer_params"]
        status, answer, _ = post(d, CHAT, {**prompt("wrong"), "kv_transfer_params": params})
        alone = texts(post(f.oracle, CHAT, prompt("wrong"))[1])
        return {"decode": status, "equal to its own prompt's text": texts(answer) == alone if status == 200 else answer}
    yield "blocks of another prompt of about this length", wrong

    def nobody():
        post(p, CHAT, {**prompt("nobody", 300), "max_tokens": 1, "kv_transfer_params": KEEP})
        return {"used": p.metric("vllm:kv_cache_usage_perc"), "freed_after_s": used_until_freed(f, p), "lease_s": LEASE_S}
    yield "nobody fetches", nobody

    def late():
        body = prompt("late", 200)
        params = post(p, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": KEEP})[1]["kv_transfer_params"]
        used_until_freed(f, p)
        status, answer, ms = post(d, CHAT, {**body, "kv_transfer_params": params})
        alone = texts(post(f.oracle, CHAT, body)[1])
        return {"decode": status, "ms": ms, "equal": texts(answer) == alone if status == 200 else answer}
    yield "fetched after the lease", late

    def gone():
        params = post(p, CHAT, {**prompt("gone"), "max_tokens": 1, "kv_transfer_params": KEEP})[1]["kv_transfer_params"]
        status, answer, ms = post(d, CHAT, {**prompt("gone"), "kv_transfer_params": {**params, "remote_engine_id": "nobody"}})
        return {"decode": status, "ms": ms, "said": answer if status != 200 else texts(answer)}
    yield "another engine id at the right port", gone

    def refused():
        body = prompt("refused", 200)
        params = post(p, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": KEEP})[1]["kv_transfer_params"]
        status, answer, _ = post(d, CHAT, {**body, "temperature": -3, "kv_transfer_params": params})
        return {"decode": status, "freed_after_s": used_until_freed(f, p)}
    yield "a decode leg that is refused (400)", refused

    # Last: it ends the decode worker's engine.
    yield "two prompts", lambda: legs(f, COMPLETIONS, {
        "model": MODEL, "prompt": [text("a", 60), text("b", 90)], "max_tokens": 8, "temperature": 0})[0]


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--grapevine", help="not used: run.sh gives it to all scripts")
    ap.add_argument("--model", choices=KV_MIB, default="tiny")
    a = ap.parse_args()
    with ending_on_sigterm(), workers_apart(a.model) as (f, _):
        for what, question in questions(f):
            print(json.dumps({what: question()}), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
