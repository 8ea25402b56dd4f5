#!/usr/bin/env python3
"""A worker joins under load, with a warm-up and without: time to first token of the prefixes that move to it.

    join.py --grapevine BINARY [--rate 30] [--seconds 20] [--tenants 32] [--prefix-tokens 4000] [--json FILE]

Three replicas and seven fake workers serve tenants of unequal weight (the n-th has 1/n of the first one's requests),
each with a system prompt of its own. An eighth worker joins; both rows have the same requests, addresses and rings. A
prefix counts as moved if the new worker served it in either row within `--seconds` after it became active; all requests
of moved prefixes are measured, wherever they went.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from processes import Child, Failed, ask, cluster, ending_on_sigterm, free_port, run_script, until

REPLICAS = ("r1", "r2", "r3")
WORKERS = 7
MODEL = "fake-model"
RUNNING_MAX = 2             # requests that a worker computes at once; about 5 a second
CLIENTS_MAX = 96            # requests at once
HOT_WITHIN_S = 120          # until the first replica keeps a prompt of most tenants
ACTIVE_WITHIN_S = 60


def chat(tenant, number, prefix_tokens):
    """A request of a tenant: its system prompt, and a question that no other request has (long enough to name a
    home of its own among the workers of a hot prefix). A token is about four bytes."""
    system = f"The rules of house {tenant}, in full. "
    system *= prefix_tokens * 4 // len(system) + 1
    question = f"Question {number} to house {tenant}: what about it? " * 25
    return json.dumps({
        "model": MODEL, "stream": True, "max_tokens": 32, "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]})


def send(address, tenant, body):
    """One streamed request, as its client sees it."""
    host, port = address.rsplit(":", 1)
    begun = time.monotonic()
    seen = {"tenant": tenant, "begun": begun, "ttft": None, "cached": None, "worker": None, "ok": False}
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        headers = {"content-type": "application/json", "x-grapevine-explain": "1"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        seen["worker"] = reply.getheader("x-grapevine-worker")
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if seen["ttft"] is None:
                seen["ttft"] = time.monotonic() - begun
            if line.startswith(b"data: [DONE]"):
                seen["ok"] = reply.status == 200
            elif b'"usage":{' in line:
                details = json.loads(line[6:])["usage"].get("prompt_tokens_details") or {}
                seen["cached"] = details.get("cached_tokens")
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return seen


class Load:
    """The same tenants in the same order at the same times in every row, until it is stopped."""

    def __init__(self, addresses, a):
        self.addresses, self.a = addresses, a
        self.done, self.stopped = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        draw = random.Random(7)
        weights = [1 / (n + 1) for n in range(self.a.tenants)]
        begun, due = time.monotonic(), 0.0
        with concurrent.futures.ThreadPoolExecutor(CLIENTS_MAX) as pool:
            sent = []
            number = 0
            while not self.stopped.wait(max(0.0, begun + due - time.monotonic())):
                due += draw.expovariate(self.a.rate)
                tenant = draw.choices(range(self.a.tenants), weights)[0]
                body = chat(tenant, number, self.a.prefix_tokens)
                sent.append(pool.submit(send, draw.choice(self.addresses), tenant, body))
                number += 1
            self.done = [of.result() for of in sent]

    def stop(self):
        self.stopped.set()
        self.thread.join()
        return self.done


def metric(replica, name, label=""):
    status, _, body = ask(replica.admin, "GET", "/metrics")
    lines = (line.rsplit(" ", 1) for line in body.decode().splitlines() if line.startswith(name))
    return sum(float(value) for series, value in lines
               if series[len(name):len(name) + 1] in ("", "{") and label in series) if status == 200 else 0.0


def row(binary, folder, ports, warm_up, a):
    """One join: all requests, when the worker became active, and the replica's report on the warm-up."""
    with contextlib.ExitStack() as stack:
        urls = []
        for number, port in enumerate(ports):
            command = [binary, "fake-worker", "--port", port, "--exit-on-sigterm", "--max-num-seqs", RUNNING_MAX]
            child = stack.enter_context(Child(command, folder / f"worker-{number}.log", announces=True))
            urls.append("http://" + child.listening()["http"])
        arguments = ["--log-level", "warn", "--warm-up-limit-secs", "30"]
        replicas = stack.enter_context(cluster(binary, folder, REPLICAS, urls[:WORKERS], arguments))
        load = Load([r.data for r in replicas], a)
        first = replicas[0]
        try:
            # The lightest tenants may send too few requests for a replica to keep their prompts.
            until(lambda: metric(first, "grapevine_hot_prompts") >= a.tenants / 2, HOT_WITHIN_S, "hot prompts", 0.2)
            time.sleep(a.seconds / 2)
            body = json.dumps({"url": urls[WORKERS], "models": [MODEL]})
            asked = time.monotonic()
            path = "/workers" if warm_up else "/workers?warmup=false"
            status, _, answer = ask(first.admin, "POST", path, body)
            if status != 201:
                raise Failed(f"the worker was not added: {status} {answer!r}")

            def is_active():
                views = (r.admin_get("/workers")["workers"] for r in replicas)
                return all(any(w["url"] == urls[WORKERS] and w["state"] == "active" for w in v) for v in views)

            until(is_active, ACTIVE_WITHIN_S, "the new worker is active")
            active = time.monotonic()
            time.sleep(a.seconds)
            warmed = metric(first, "grapevine_warm_up_prompts_total", '"warmed"')
        finally:
            done = load.stop()
        return {"new": urls[WORKERS], "active": active, "until_active_s": active - asked, "warmed": warmed,
                "failed": sum(not of["ok"] for of in done),
                "after": [of for of in done if active <= of["begun"] <= active + a.seconds and of["ok"]]}


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def report(rows, seconds):
    moved = {of["tenant"] for r in rows.values() for of in r["after"] if of["worker"] == r["new"]}
    print(f"{len(moved)} prefixes moved; {seconds:g} s after the new worker became active:\n")
    print("| join | active after s | prompts warmed | requests of moved prefixes | of these at the new worker "
          "| first of each prefix there: cached tokens, mean | TTFT p50 ms | TTFT p99 ms | p99 ms at the new worker "
          "| failed |\n|---|---|---|---|---|---|---|---|---|---|")
    for name, r in rows.items():
        of_moved = [of for of in r["after"] if of["tenant"] in moved]
        there = sorted((of for of in of_moved if of["worker"] == r["new"]), key=lambda of: of["begun"])
        firsts = {}
        for of in there:
            firsts.setdefault(of["tenant"], of["cached"] or 0)
        cached = sum(firsts.values()) / len(firsts) if firsts else float("nan")
        ttft = [of["ttft"] * 1000 for of in of_moved]
        at_new = [of["ttft"] * 1000 for of in there]
        print(f"| {name} | {r['until_active_s']:.1f} | {r['warmed']:.0f} | {len(of_moved)} | {len(there)} "
              f"| {cached:,.0f} | {quantile(ttft, .5):,.0f} | {quantile(ttft, .99):,.0f} "
              f"| {quantile(at_new, .99):,.0f} | {r['failed']} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--rate", type=float, default=30, help="requests a second; seven workers manage some 36")
    ap.add_argument("--seconds", type=float, default=20, help="measured after the join")
    ap.add_argument("--tenants", type=int, default=32, help="system prompts")
    ap.add_argument("--prefix-tokens", type=int, default=4_000, help="length of each")
    ap.add_argument("--json", type=Path, help="write all requests to this file")
    a = ap.parse_args()
    ports = [free_port() for _ in range(WORKERS + 1)]
    rows = {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-join-") as folder:
        for name, warm_up in (("with warm-up", True), ("without", False)):
            place = Path(folder, name.replace(" ", "-"))
            place.mkdir()
            rows[name] = row(a.grapevine.resolve(), place, ports, warm_up, a)
            print(f"{name}: done", file=sys.stderr)
    print(f"{a.tenants} tenants with {a.prefix_tokens:,} tokens each, {a.rate:g} requests/s, {len(REPLICAS)} replicas, "
          f"{WORKERS} + 1 workers, load average {os.getloadavg()[0]:.1f}.")
    report(rows, a.seconds)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(r["failed"] for r in rows.values()) else 0


if __name__ == "__main__":
    run_script(main)
