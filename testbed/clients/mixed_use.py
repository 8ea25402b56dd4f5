#!/usr/bin/env python3
"""One cluster, the kinds of client that people use, and faults: checks that no request is lost that no fault excuses.

    mixed_use.py --grapevine BINARY [--minutes 60] [--seed 1] [--json FILE]

Twelve fake workers of two models, three replicas behind the balancer of the testbed, with keys, CORS and 200 s of
drain. Clients: the official `openai` (plain, streams, responses, embeddings, audio; plain answers that take two
minutes), `anthropic`, LiteLLM, LangChain, a page of another origin in headless Chromium, WebSocket sessions, and wrong
requests. None of them retries. After every half minute without a fault (`--every`) a node is killed, frozen, drained,
removed or restarted.

Needs the packages of requirements.txt and Debian's chromium (`setup.sh` makes the environment and reports what is
missing). Exit code 1 when a request failed that no fault explains, when a client had no success at all, or when the
cluster is not whole at the end.
"""
import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import clients
from faults import Faults, Worker
from ledger import Call, Ledger
from processes import Child, Failed, cluster, ending_on_sigterm, until
from restart import Restartable

REPLICAS = ("r1", "r2", "r3")
MODELS = {"llama-large": 6, "qwen-small": 6}
TOKENS_PER_S = 90       # of a fake worker with one request
KEY_NAME = "stranger"
END_S = 300             # for the last answers after the time is over


class Patient(Restartable):
    """A replica that lets two-minute answers end."""
    stopping = ("--settle-secs", 2, "--drain-secs", 200)


def keys_file(binary, folder):
    """(file, key)"""
    done = subprocess.run([binary, "keys", "new", KEY_NAME], capture_output=True, text=True, check=True)
    path = folder / "keys.toml"
    path.write_text(done.stdout)
    key = next(word for word in done.stderr.split() if word.startswith("gv-"))
    return path, key


def load(ledger, over, name, call_once, every_s, seed):
    """Calls again and again, with pauses around `every_s`, until the run is over."""
    rng = random.Random(f"{seed} {name}")
    while not over.wait(rng.uniform(0.3, 1.7) * every_s):
        call = Call(name.split(" ")[0], ledger.now())
        try:
            call_once(call, rng)
            call.ok = True
        except Exception as error:  # any exception of a client is the failure of its call
            call.what = f"{type(error).__name__}: {error}"[:600]
        ledger.record(call)


def page_load(ledger, over, front, key, port, chromium, seed):
    """The browser runs on the thread that uses it."""
    page = clients.Page(front, key, list(MODELS), port, chromium)
    try:
        load(ledger, over, "browser", page.fetch, 1.5, seed)
    finally:
        page.close()


def threads_of(ledger, over, front, key, port, chromium, seed):
    """Name, what it calls, seconds between two calls, how many of them."""
    all_ = clients.Clients(front, key, list(MODELS), TOKENS_PER_S)
    plan = [("openai-plain", all_.openai_plain, 1.5, 3), ("openai-stream", all_.openai_stream, 1.0, 6),
            ("openai-other", all_.openai_other, 2.0, 1), ("long-plain", all_.long_plain, 5.0, 4),
            ("responses", all_.responses, 4.0, 1), ("anthropic", all_.anthropic_messages, 3.0, 1),
            ("litellm", all_.litellm_chat, 2.0, 1), ("langchain", all_.langchain_chat, 2.0, 1),
            ("tools", all_.tools, 2.0, 1),
            ("audio", all_.audio, 3.0, 1),
            ("websocket", all_.websocket, 3.0, 2), ("wrong", all_.wrong, 3.0, 1)]
    ledger.planned = {name for name, *_ in plan} | {"browser"}
    for name, call_once, every_s, count in plan:
        for number in range(count):
            yield threading.Thread(target=load, args=(ledger, over, f"{name} {number}", call_once, every_s, seed))
    yield threading.Thread(target=page_load, args=(ledger, over, front, key, port, chromium, seed))


def whole(replicas, workers):
    """All replicas ready, in agreement, and with every worker."""
    views = [r.admin_get("/cluster") for r in replicas]
    rings = [r.admin_get("/ring")["pools"] for r in replicas]
    return (all(v["ready"] and v["live"] == len(replicas) == v["agreeing"] for v in views)
            and all(len({w for pool in pools for w in pool["workers"]}) == workers for pools in rings))


def run(folder, a):
    binary, ledger, over = a.grapevine.resolve(), Ledger(), threading.Event()
    keys, key = keys_file(binary, folder)
    port, end_origin = clients.origin()
    with contextlib.ExitStack() as stack:
        stack.callback(end_origin)
        workers = []
        for model, count in MODELS.items():
            for _ in range(count):
                workers.append(Worker(binary, folder, len(workers), ["--served-model-name", model]))
                stack.callback(workers[-1].stop)
        replicas = stack.enter_context(cluster(
            binary, folder, REPLICAS, [w.url for w in workers],
            ["--api-keys-file", keys, "--cors-allowed-origins", f"http://127.0.0.1:{port}", "--log-level", "warn",
             *a.serve], Patient))
        front = stack.enter_context(Child(
            [binary, "balancer", "--port", 0, "--check-path", "/readiness", "--check-interval", "100ms",
             "--backend", *(r.data for r in replicas)], folder / "balancer.log", announces=True))
        url = "http://" + front.listening()["http"]
        threads = list(threads_of(ledger, over, url, key, port, a.chromium, a.seed))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + a.minutes * 60

        def pause(seconds):
            until_then = min(deadline, time.monotonic() + seconds)
            over.wait(max(0.0, until_then - time.monotonic()))
            return time.monotonic() < deadline and not over.is_set()
        try:
            Faults(binary, ledger, workers, replicas, pause).run(random.Random(a.seed), a.every)
        finally:
            over.set()
            for thread in threads:
                thread.join(END_S)
        until(lambda: whole(replicas, len(workers)), 60, "a whole cluster at the end")
        errors = [line for r in replicas for line in r.log.read_text(errors="replace").splitlines() if "ERROR" in line]
    text, held = ledger.report()
    print(f"\n{a.minutes} minutes, {len(ledger.faults)} faults\n\n{text}")
    print("\n".join(f"- ERROR line: {line[:300]}" for line in errors[:20]))
    if a.json:
        a.json.write_text(json.dumps({"counts": ledger.counts, "lost": [str(c) for c, _ in ledger.lost],
                                      "excused": [(str(c), why) for c, why in ledger.excused],
                                      "faults": [str(f) for f in ledger.faults], "errors": errors}, indent=1) + "\n")
    return 0 if held and not any(thread.is_alive() for thread in threads) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=30, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser's binary")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("serve", nargs="*", help="after --: further arguments of `grapevine serve`")
    a = parser.parse_args()
    if not a.chromium:
        parser.error("no chromium: install it (Debian: apt-get install chromium), or name it with --chromium")
    with tempfile.TemporaryDirectory(prefix="grapevine-mixed-") as folder, ending_on_sigterm():
        try:
            return run(Path(folder), a)
        except (Failed, subprocess.SubprocessError) as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
