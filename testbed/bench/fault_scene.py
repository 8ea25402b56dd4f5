"""A cluster of processes under an open load, its faults, and the counters of its replicas meanwhile.

For fault_agreement.py. Standard library only.
"""
import contextlib
import functools
import http.client
import itertools
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter

from gossip_relay import Relays
from hot_prefix import settings
from live_case import Workers
from live_prompts import MODEL
from live_routers import NAMES, GrapevineThree
from many import spent
from open_loop import OpenLoop
from processes import answers, ask, cluster, free_port, until
from restart import Restartable

WORKERS = 5
ENGINE = ["--engine", "llama-8b-h100"]
SAMPLES_A_SECOND = 50       # of each replica: the greatest rate that it accepts
PREFIXES = 300
PREFIX_BYTES = (2_000, 8_000)
NEW_BYTES = (4_000, 16_000)
NEW_SHARE = 0.25
TAIL_BYTES = 200
ANSWER_TOKENS = 16
TEXT_BYTES = 1 << 20        # from which prompts are cut
TICK_S = 0.5                # between two looks at the counters
BACK_WITHIN_S = 30          # a replica that was started again
SAMPLE = re.compile(rb'^grapevine_agreement_samples_total\{result="(\w+)",prompt="(\w+)"\} (\d+)', re.MULTILINE)


class Behind(Restartable):
    """A replica that others reach through its relay only; `gossip` is the relay's address."""

    def __init__(self, relays, binary, name, folder, arguments):
        self.relays = relays
        super().__init__(binary, name, folder, [*arguments, "--gossip-advertise", relays.public[name]])
        self.bound, self.gossip = self.gossip, relays.public[name]
        relays.found(name, self.bound)

    def again(self, seeds):
        self.gossip = self.bound
        super().again(seeds)
        self.gossip = self.relays.public[self.name]


def requests(rng, rate):
    """(seconds after the one before, bytes) without end."""
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=TEXT_BYTES))

    def cut(name, size):
        at = rng.randrange(len(text) - size)
        return f"{name}: {text[at:at + size]}"

    prefixes = [cut(f"prefix {n}", rng.randint(*PREFIX_BYTES)) for n in range(PREFIXES)]
    ranks = list(itertools.accumulate(1 / (n + 1) for n in range(PREFIXES)))
    for number in itertools.count():
        if rng.random() < NEW_SHARE:
            system = cut(f"text {number}", rng.randint(*NEW_BYTES))
        else:
            system = rng.choices(prefixes, cum_weights=ranks)[0]
        body = json.dumps({"model": MODEL, "max_tokens": ANSWER_TOKENS, "stream": True, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": cut(f"question {number}", TAIL_BYTES)}]})
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                f"x-grapevine-explain: 1\r\ncontent-length: {len(body)}\r\n\r\n")
        yield rng.expovariate(rate), (head + body).encode()


class Watch:
    """Reads the replicas' counters each half second, in a thread, and at once on request."""

    def __init__(self, replicas):
        self.replicas, self.away, self.lock = replicas, set(), threading.Lock()
        self.counts = {replica.name: Counter() for replica in replicas}     # of this process of it
        self.former = {replica.name: Counter() for replica in replicas}     # of those before it
        self.seen, self.due, self.stopped = [], time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def run(self):
        while not self.stopped.wait(max(0.0, self.due - time.monotonic())):
            with self.lock:
                if time.monotonic() >= self.due:
                    self.look()

    def look(self):
        for replica in self.replicas:
            if replica.name in self.away:
                continue
            # Any error: the next look has what it counted meanwhile.
            with contextlib.suppress(OSError, http.client.HTTPException):
                _, _, page = ask(replica.admin, "GET", "/metrics", within_s=TICK_S)
                self.counts[replica.name] = Counter(
                    {(result.decode(), prompt.decode()): int(value) for result, prompt, value in SAMPLE.findall(page)})
        self.due = time.monotonic() + TICK_S
        self.seen.append((time.monotonic(), sum((*self.counts.values(), *self.former.values()), Counter())))

    def moment(self):
        """Looks now, and each half second from now on; returns the time."""
        with self.lock:
            self.look()
            return self.seen[-1][0]

    def leaves(self, replica):
        """It does not answer from now on."""
        with self.lock:
            self.away.add(replica.name)

    def returns(self, replica, anew=False):
        """It answers again; `anew`: as another process, which counts from 0."""
        with self.lock:
            self.away.discard(replica.name)
            if anew:
                self.former[replica.name] += self.counts[replica.name]
                self.counts[replica.name] = Counter()

    def between(self, start, end):
        """Growth of the counters from one time to another, to the nearest look."""
        def at(time_s):
            return min(self.seen, key=lambda seen: abs(seen[0] - time_s))[1]
        return at(end) - at(start)


class Scene:
    """A cluster under load, its faults, and their times."""

    def __init__(self, stack, binary, folder, a, seed):
        rng, self.stack, self.a = random.Random(seed), stack, a
        self.relays = stack.enter_context(Relays(NAMES, seed))
        ports = [free_port() for _ in range(WORKERS + 1)]
        self.workers = Workers(stack, binary, folder, ports, ENGINE)
        keys = [f"gossip.agreement_samples={SAMPLES_A_SECOND}", *a.set]
        self.replicas = stack.enter_context(cluster(
            binary, folder, NAMES, self.workers.urls[:-1], ["--log-level", a.log_level, *settings(folder, keys)],
            functools.partial(Behind, self.relays)))
        self.three = GrapevineThree(self.replicas)
        self.settled()
        self.watch = stack.enter_context(Watch(self.replicas))
        arrivals = requests(random.Random(rng.random()), a.rate)
        self.load = OpenLoop(self.three.addresses, GrapevineThree.worker_header, arrivals, random.Random(rng.random()))
        self.moments, self.begins, self.excuses, self.cores = [], 0.0, [], None

    def settled(self):
        self.three.wait_until_settled()

    def rest(self, seconds):
        """Lets the load flow."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.load.check()
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def healthy(self):
        """The time before a fault."""
        self.settled()
        begun, cpu = time.monotonic(), self.cpu()
        self.rest(self.a.before)
        if self.cores is None:
            self.cores = (self.cpu() - cpu) / (time.monotonic() - begun)

    def cpu(self):
        """CPU seconds of all started processes, and of this one."""
        pids = [child.pid for child in (*self.replicas, *self.workers.children.values())]
        return sum(spent(pid)[0] for pid in (*pids, self.relays.process.pid, os.getpid()))

    def moment(self, fault, what):
        """Records a moment: a fault or a repair."""
        at = self.watch.moment()
        if not self.moments or self.moments[-1]["fault"] != fault:
            self.begins = at
        self.moments.append({"fault": fault, "what": what, "at": at, "begins": self.begins,
                             "load_average": os.getloadavg()[0]})
        print(f"{fault}: {what}", file=sys.stderr, flush=True)

    def after(self):
        """The time after a moment that is evaluated."""
        self.rest(self.a.after)

    def kill_replica(self, one):
        self.load.take_out(one.data)
        self.watch.leaves(one)
        one.kill_group()
        self.excuses.append((one.data, None, time.monotonic()))
        one.process.stdout.close()

    def start_replica(self, one):
        one.again([other.gossip for other in self.replicas if other is not one])
        until(lambda: answers(one.data, "/readiness"), BACK_WITHIN_S, f"{one.name} is ready again", every_s=0.005)
        self.watch.returns(one, anew=True)
        self.load.put_back(one.data)

    def play(self, deeds):
        """Injects all of these faults, each after a healthy time. The load ends before the processes that it passes."""
        with self.load:
            self.rest(self.a.warm)
            for deed in deeds:
                self.healthy()
                deed(self)

    def explains(self, outcome):
        """Whether a fault explains the failure of this request."""
        return any(outcome.sent_at <= at <= outcome.ended_at + 0.1 and (
            outcome.address == address if worker is None else outcome.worker == worker)
            for address, worker, at in self.excuses)
