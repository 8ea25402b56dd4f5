#!/usr/bin/env python3
"""Sends a replica's usual work through an instrumented build, so that the compiler learns what is hot.

    train.py --instrumented BINARY --testbed BINARY [--requests 2000]

Three replicas with mutual TLS between them and eight fake workers: conversations, prompts with common beginnings and
without, up to 64 KB, streamed and plain, chats and completions; then a pair of replicas one before the other, for TLS
and HTTP/2 on both sides. Every request must be answered. The replicas are ended by SIGTERM, and write their counts
where LLVM_PROFILE_FILE says. Texts and order follow from seeds; counts differ between runs by what time does.
Standard library only.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testbed" / "bench"))
from processes import Failed, Replica, cluster, ending_on_sigterm, fake_workers, run_script, until
from routers import certificate

WORKERS = 8
REPLICAS = ["r1", "r2", "r3"]
# Workers that take no time to speak of: what is trained is the router.
ENGINE = ["--max-num-seqs", 512, "--step-base", "1ms", "--step-per-sequence", "0s", "--prefill-tokens-per-s", 1e9,
          "--max-num-batched-tokens", 1_000_000, "--num-gpu-blocks", 200_000]
# Share of the requests, and what they are.
LOADS = [
    (1.0, "--shape", "conversations", "--turns", 6, "--concurrency", 32, "--max-tokens", 48),
    (1.0, "--shape", "shared", "--concurrency", 64, "--max-tokens", 16),
    (1.0, "--shape", "shared", "--plain", "--own-bytes", 800, "--concurrency", 64),
    (0.5, "--shape", "shared", "--plain", "--shared-bytes", 7_000, "--groups", 200, "--own-bytes", 1_000, "--concurrency", 32),
    (0.5, "--shape", "unique", "--plain", "--endpoint", "completions", "--own-bytes", 900, "--concurrency", 16),
    (0.1, "--shape", "unique", "--plain", "--own-bytes", 64_000, "--concurrency", 8),
    (0.2, "--shape", "shared", "--plain", "--concurrency", 1),
]
# The same over TLS and HTTP/2, which is less common.
FEWER = [(0.5, *LOADS[1][1:]), (0.5, *LOADS[2][1:])]


def send(binary, urls, loads, requests, more=()):
    for share, *words in loads:
        command = [binary, "bench", "--url", *urls, "--requests", max(1, round(share * requests)), "--duration", "120s",
                   "--json", *words, *more]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, words))}: {done.stderr[-600:]}{done.stdout[-600:]}")
        summary = json.loads(done.stdout)["endpoints"][0]["summary"]
        print(f"{summary['succeeded']} requests {' '.join(map(str, words))}", file=sys.stderr, flush=True)


def ended_well(*replicas):
    """What was killed instead of ended has written no counts."""
    for replica in replicas:
        if replica.process.returncode != 0:
            raise Failed(f"{replica.name} ended with {replica.process.returncode}: {replica.last_words()}")


def through_tls(args, folder, workers):
    """Clients and a replica speak HTTP/1.1 and HTTP/2 over TLS with another replica."""
    pem = certificate(folder)
    tls = ["--ssl-certfile", pem, "--ssl-keyfile", pem.with_suffix(".key")]
    with Replica(args.instrumented, "behind", folder, [*tls, "--worker-urls", *workers]) as behind:
        settings = folder / "front.toml"
        settings.write_text(f'[workers]\nurls = ["https://{behind.data}"]\nca = "{pem}"\nhttp2 = "on"\n')
        with Replica(args.instrumented, "front", folder, ["--config", settings]) as front:
            for replica in (behind, front):
                until(lambda: replica.admin_get("/cluster")["ready"], 30, f"{replica.name} is ready")
            send(args.testbed, [f"https://{behind.data}"], FEWER, args.requests, ["--ca", pem])
            send(args.testbed, [f"http://{front.data}"], FEWER, args.requests)
    ended_well(behind, front)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--instrumented", type=Path, required=True, help="built with -Cprofile-generate")
    ap.add_argument("--testbed", type=Path, required=True, help="any build with the testbed in it, for load and workers")
    ap.add_argument("--requests", type=int, default=2_000, help="in a load of share 1")
    args = ap.parse_args()
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-train-") as folder, ExitStack() as stack:
        folder = Path(folder)
        workers = stack.enter_context(fake_workers(args.testbed, folder, WORKERS, ENGINE))
        with cluster(args.instrumented, folder, REPLICAS, workers) as replicas:
            send(args.testbed, [f"http://{replica.data}" for replica in replicas], LOADS, args.requests)
        ended_well(*replicas)
        through_tls(args, folder, workers)


if __name__ == "__main__":
    run_script(main)
