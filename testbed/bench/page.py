#!/usr/bin/env python3
"""What the page costs: its bytes with 12 and with 1,000 workers, and a replica's CPU with 0, 1 and 10 viewers.

    testbed/bench/page.py [--grapevine target/debug/grapevine] [--replicas 3] [--seconds 30] [--out FILE]

So many replicas and 12 fake workers that nobody uses; then 1,000 registered addresses, of which 988 lead nowhere.
"""
import argparse
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import processes
from processes import ask, cluster, fake_workers, run_script, show

PATHS = ("/", "/page/style.css", "/page/script.js")


class Viewer(threading.Thread):
    """Reads the stream of the first page until it is told to leave."""

    def __init__(self, address):
        super().__init__(daemon=True)
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(f"GET /page/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
        self.bytes = 0

    def run(self):
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 16):
                self.bytes += len(data)

    def leave(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join(10)


def cpu_s(pid):
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(replica, viewers, seconds):
    """Percent of a core while so many look, and bytes a second of one of them."""
    watching = [Viewer(replica.admin) for _ in range(viewers)]
    for viewer in watching:
        viewer.start()
    time.sleep(3)
    began, before, read = time.monotonic(), cpu_s(replica.pid), sum(viewer.bytes for viewer in watching)
    time.sleep(seconds)
    took = time.monotonic() - began
    percent = (cpu_s(replica.pid) - before) / took * 100
    read = (sum(viewer.bytes for viewer in watching) - read) / took / max(viewers, 1)
    for viewer in watching:
        viewer.leave()
    return percent, read


def size(replica):
    return sum(len(ask(replica.admin, "GET", path)[2]) for path in PATHS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target"))
    parser.add_argument("--grapevine", type=Path, default=target / "debug" / "grapevine")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--workers", default="12,1000", help="figures with so many workers, rising from 12")
    parser.add_argument("--seconds", type=int, default=30, help="of each figure of CPU")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args()
    names = [f"r{n}" for n in range(1, args.replicas + 1)]
    # Each replica takes its time to start on a machine that runs all of them.
    processes.JOIN_S += 10 * args.replicas
    row = {"replicas": args.replicas, "load average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        urls = stack.enter_context(fake_workers(args.grapevine, folder, 12))
        first, *_ = stack.enter_context(cluster(args.grapevine, folder, names, urls))
        for workers in map(int, args.workers.split(",")):
            if workers > 12:
                added = [{"url": f"http://127.0.0.1:{port}", "models": ["fake-model"]} for port in range(2, workers - 10)]
                status, _, body = ask(first.admin, "POST", "/workers?warmup=false", json.dumps(added))
                assert status in (200, 201), body
                time.sleep(10)
            row[f"{workers} workers, bytes of the page with style and script"] = size(first)
            for viewers in (0, 1, 10):
                percent, read = watched(first, viewers, args.seconds)
                row[f"{workers} workers, {viewers} viewers, percent of a core"] = percent
                if viewers:
                    row[f"{workers} workers, {viewers} viewers, kB/s of each"] = read / 1e3
    show(row, args.out)


if __name__ == "__main__":
    run_script(main)
