#!/usr/bin/env python3
"""What hearing KV events costs a replica: CPU, bytes and age by messages a second.

    kv_events.py --grapevine target/dist/grapevine [--engines 16 240] [--rates 500 2000 8000] [--seconds 8]

One replica hears engines that this script plays: each message stores twelve blocks of 16 tokens, as a step of vLLM does
that computes 192 new tokens, and removes the twelve that came 100 messages before, so that a cache stays as large as it
is. 2,000 messages a second are 384,000 new prompt tokens a second. CPU is the replica's, user and system, by
/proc/<pid>/stat; what a replica without messages takes is taken off. Age is from the time in a message to its place in the
index, by the replica's histogram, so this script's own lateness is in it. Standard library only.
"""
import argparse
import contextlib
import json
import os
import random
import re
import selectors
import socket
import struct
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from processes import Failed, Replica, ask, run_script, until

BLOCKS, BLOCK_TOKENS, KEPT = 12, 16, 100
TICK_S = 0.01
CLOCK = os.sysconf("SC_CLK_TCK")


def uint(number):
    if number < 1 << 7:
        return bytes([number])
    for code, form, limit in ((0xcc, ">B", 8), (0xcd, ">H", 16), (0xce, ">I", 32), (0xcf, ">Q", 64)):
        if number < 1 << limit:
            return bytes([code]) + struct.pack(form, number)
    raise ValueError(number)


def array(items):
    head = bytes([0x90 | len(items)]) if len(items) < 16 else b"\xdc" + struct.pack(">H", len(items))
    return head + b"".join(items)


def text(word):
    return bytes([0xa0 | len(word)]) + word.encode()


def blocks(draw):
    """Names of a message's blocks, as MessagePack has them: an engine's own."""
    return b"".join(b"\xcf" + draw.randbytes(8) for _ in range(BLOCKS))


class Payloads:
    """Payloads behind the time, for one engine's messages that follow each other for ever."""

    head = array([b""] * BLOCKS)
    tokens = array([uint(random.Random(1).randrange(128_000)) for _ in range(BLOCKS * BLOCK_TOKENS)])

    def __init__(self, draw):
        self.sets = [blocks(draw) for _ in range(2 * KEPT)]

    def of(self, number):
        nil, medium = b"\xc0", text("GPU")
        new, old = (self.head + self.sets[at % len(self.sets)] for at in (number, number - KEPT))
        stored = array([text("BlockStored"), new, nil, self.tokens, uint(BLOCK_TOKENS), nil, medium])
        return array([stored, array([text("BlockRemoved"), old, medium])]) + uint(0)


def frame(body, more):
    long = len(body) > 255
    size = struct.pack(">Q", len(body)) if long else bytes([len(body)])
    return bytes([(2 if long else 0) | (1 if more else 0)]) + size + body


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 3) + b"PUB"


class Engines:
    """Publishers on free ports, one connection each."""

    def __init__(self, count):
        draw = random.Random(1)
        self.payloads = [Payloads(draw) for _ in range(count)]
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.links, self.numbers = {}, [0] * count
        self.rate, self.ends, self.sent, self.late = 0, False, 0, 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        ears = selectors.DefaultSelector()
        for at, listener in enumerate(self.listeners):
            listener.setblocking(False)
            ears.register(listener, selectors.EVENT_READ, at)
        due, owed, turn = time.monotonic(), 0.0, 0
        while not self.ends:
            for key, _ in ears.select(max(0.0, due - time.monotonic())):
                self.welcome(*key.fileobj.accept(), key.data)
            now = time.monotonic()
            if now < due:
                continue
            self.late += now - due > TICK_S
            owed += self.rate * TICK_S
            due += TICK_S
            while owed >= 1:
                owed -= 1
                turn += 1
                self.send(turn % len(self.listeners))

    def welcome(self, link, _, at):
        link.setblocking(True)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(GREETING)
        heard = b""
        # The other side's greeting, its READY, and its subscription.
        while len(heard) < 64 + 2 or heard.count(b"\x00\x01") < 1 and b"SUBSCRIBE" not in heard:
            some = link.recv(4096)
            if not some:
                return
            if len(heard) < 64 <= len(heard) + len(some):
                link.sendall(bytes([4, len(READY)]) + READY)
            heard += some
        self.links[at] = link

    def send(self, at):
        link = self.links.get(at)
        if link is None:
            return
        number = self.numbers[at]
        self.numbers[at] += 1
        body = b"\x93\xcb" + struct.pack(">d", time.time()) + self.payloads[at].of(number)
        link.sendall(frame(b"", True) + frame(struct.pack(">Q", number), True) + frame(body, False))
        self.sent += 1


class Worker(BaseHTTPRequestHandler):
    """Answers to one replica's probes for every engine, each at an address of its own."""

    protocol_version = "HTTP/1.1"
    ports = {}

    def do_GET(self):
        answer = {"status": "ok"}
        if self.path == "/v1/models":
            answer = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 100_000}]}
        elif self.path == "/kv_event_sources":
            at = f"tcp://*:{self.ports[self.server.server_address]}"
            answer = {"0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": at, "topic": ""}}
        elif self.path != "/health":
            return self.send_error(404)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def workers(count):
    """Addresses of workers, and the engines that publish for them. Loopback has one address for each."""
    engines = Engines(count)
    servers = []
    try:
        for at, listener in enumerate(engines.listeners):
            server = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
            Worker.ports[server.server_address] = listener.getsockname()[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.append(server)
        yield [f"http://127.0.0.1:{server.server_address[1]}" for server in servers], engines
    finally:
        engines.ends = True
        engines.thread.join()
        for server in servers:
            server.shutdown()
            server.server_close()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def resident_mb(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def metrics(replica):
    values = {}
    for line in ask(replica.admin, "GET", "/metrics")[2].decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


def quantile(before, after, share):
    """Upper limit of the bucket in which this share of the ages lies, in ms."""
    name = re.compile(r'grapevine_kv_event_age_seconds_bucket\{le="([^"]+)"\}')
    buckets = sorted((float(m[1]), after[k] - before.get(k, 0)) for k in after if (m := name.match(k)))
    wanted = share * buckets[-1][1]
    return next(limit for limit, count in buckets if count >= wanted) * 1000


def measure(replica, engines, rate, seconds):
    engines.rate = rate
    time.sleep(1)
    before, began, cpu, sent, late = metrics(replica), time.monotonic(), cpu_s(replica.pid), engines.sent, engines.late
    time.sleep(seconds)
    cpu, took = cpu_s(replica.pid) - cpu, time.monotonic() - began
    sent, late = engines.sent - sent, engines.late - late
    engines.rate = 0
    after = metrics(replica)
    applied = 'grapevine_kv_event_messages_total{result="applied"}'
    heard = after[applied] - before[applied]
    received = "grapevine_kv_event_received_bytes_total"
    return {
        "sent": sent / took, "heard": heard / took, "cores": cpu / took, "late_ticks": late,
        "bytes": (after[received] - before[received]) / took,
        "age": [quantile(before, after, share) for share in (0.5, 0.99)] if heard else None,
        "gaps": after["grapevine_kv_event_gaps_total"], "blocks": after["grapevine_kv_index_blocks"],
    }


def run(arguments):
    print("| engines | messages/s, heard | blocks stored/s | MB/s | cores | us a message | age p50, p99 up to, ms | blocks | MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for count in arguments.engines:
        with tempfile.TemporaryDirectory() as folder, workers(count) as (urls, engines):
            flags = ["--worker-urls", *urls, "--log-level", "warn"]
            with Replica(arguments.grapevine, "r1", folder, flags) as replica:
                until(lambda: len(engines.links) == count, 60, f"{count} subscriptions", 0.1)
                quiet = measure(replica, engines, 0, arguments.seconds)["cores"]
                for rate in arguments.rates:
                    seen = measure(replica, engines, rate, arguments.seconds)
                    if seen["gaps"] or seen["heard"] < 0.9 * seen["sent"]:
                        raise Failed(f"not all was heard at {rate} messages/s: {seen}")
                    cores = seen["cores"] - quiet
                    age = ", ".join(f"{limit:.0f}" for limit in seen["age"])
                    print(f"| {count} | {seen['heard']:,.0f} | {seen['heard'] * BLOCKS:,.0f} | {seen['bytes'] / 1e6:.2f} "
                          f"| {cores:.3f} | {cores / seen['heard'] * 1e6:.0f} | {age} | {seen['blocks']:,.0f} "
                          f"| {resident_mb(replica.pid):.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grapevine", required=True, metavar="FILE", help="the binary")
    parser.add_argument("--engines", type=int, nargs="+", default=[16, 240], metavar="N")
    parser.add_argument("--rates", type=int, nargs="+", default=[500, 2_000, 8_000], metavar="N",
                        help="messages a second, of all engines together")
    parser.add_argument("--seconds", type=float, default=8, metavar="S", help="for each rate")
    run(parser.parse_args())


if __name__ == "__main__":
    run_script(main)
