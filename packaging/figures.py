#!/usr/bin/env python3
"""Figures of what is shipped: sizes of the packages that can be made here, start to ready, resident memory.

    figures.py BINARY        a minute; the median of 10 starts; memory 10 s after ready, idle and with 240 workers

A package whose tools are missing is named with the reason. One process answers the checks of all workers.
"""
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testbed" / "bench"))
from processes import Replica, answers, ending_on_sigterm, run_script, until  # noqa: E402

STARTS, WORKERS, SETTLE_S, IMAGE = 10, 240, 10, "grapevine-figures:local"


class Worker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    log_message = lambda *_: None


class Workers(http.server.ThreadingHTTPServer):
    request_queue_size = 1024               # all workers are checked at once
    handle_error = lambda *_: None          # a check that did not wait


def sizes(binary, folder):
    for name, out in ("deb", folder / "deb"), ("wheel", folder / "wheel"), ("image", IMAGE):
        done = subprocess.run([HERE / name / "build.sh", binary, out], capture_output=True, text=True)
        said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
        if done.returncode:
            print(f"{name}: not made: {said}")
        elif name == "image":
            size = subprocess.check_output(["docker", "image", "inspect", "--format", "{{.Size}}", IMAGE])
            subprocess.run(["docker", "image", "rm", IMAGE], check=True, capture_output=True)
            print(f"image: {int(size) / 1e6:.1f} MB")
        else:
            print(f"{name}: {Path(said[0]).stat().st_size / 1e6:.1f} MB")


def resident(replica):
    time.sleep(SETTLE_S)
    lines = Path(f"/proc/{replica.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary = Path(sys.argv[1]).resolve(strict=True)
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-figures-") as folder:
        print(f"binary: {binary.stat().st_size / 1e6:.1f} MB")
        sizes(binary, Path(folder))
        took = []
        for _ in range(STARTS):
            began = time.monotonic()
            with Replica(binary, "figures", folder, ["--ready-without-workers"]) as replica:
                until(lambda: answers(replica.data, "/readiness"), 30, "ready", 0.002)
                took.append((time.monotonic() - began) * 1e3)
                idle = resident(replica) if len(took) == STARTS else None
        print(f"start to ready: {statistics.median(took):.0f} ms ({min(took):.0f} to {max(took):.0f})")
        print(f"resident, idle: {idle:.1f} MiB")
        with Workers(("0.0.0.0", 0), Worker) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            urls = [f"http://127.3.0.{n + 1}:{server.server_port}" for n in range(WORKERS)]
            with Replica(binary, "figures", folder, ["--worker-urls", *urls]) as replica:
                listed = lambda: replica.admin_get(f"/workers?limit={WORKERS}")["workers"]
                until(lambda: [w["health"] for w in listed()] == ["healthy"] * WORKERS, 60, "healthy workers", 0.1)
                print(f"resident, {WORKERS} workers: {resident(replica):.1f} MiB")
            server.shutdown()
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    run_script(main)
