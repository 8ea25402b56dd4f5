#!/usr/bin/env python3
"""Rolling restart under load: its effect on hit rate and agreement.

    restart.py --grapevine BINARY [--policy prefix] [--seconds 120] [--starts 4] [--json FILE]

Three replicas behind the balancer of the testbed, eight fake workers, conversations in a closed loop. The same load
runs twice with the same workers' ports, and so the same ring: once undisturbed, once with a restart (SIGTERM, drain,
start on the same ports) of each replica in turn. Hit rates are the workers' own counters over the same windows of both
runs; the dip is the difference.

Agreement: before, during and after the restart all replicas that are ready are asked, again and again, where they would
send the next turn of conversations that live in the cluster (`POST /explain`), once as in a quiet cluster, where only
ring, heat and evidence decide, and once with the load of the moment.

Exit code 1 when a window's hit rate is more than a point below the undisturbed run's, when a request failed, or when
agreement, as in a quiet cluster, of the first two seconds after `ready` is more than a point below its former value.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import loads
from processes import Child, Failed, Replica, answers, ask, cluster, ending_on_sigterm, fake_workers, run_script, until

REPLICAS = ("r1", "r2", "r3")
WORKERS = 8
ENGINE = ["--engine", "llama-8b-h100"]
PROBES = 120            # conversations about which replicas are asked
DIP_MAX = 1.0           # points
AGREE_S = 2.0           # after ready
QUERIED, HIT = "vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{"


def counters(addresses):
    """(tokens looked up, tokens hit) over all workers."""
    sums = [0.0, 0.0]
    for address in addresses:
        page = ask(address, "GET", "/metrics", within_s=10)[2].decode()
        for line in page.splitlines():
            for at, name in enumerate((QUERIED, HIT)):
                if line.startswith(name):
                    sums[at] += float(line.rsplit(" ", 1)[1])
    return sums


class Watch:
    """Reads the workers' counters each half second while the load runs."""

    def __init__(self, workers):
        self.addresses = [url.removeprefix("http://") for url in workers]
        self.begun, self.seen, self.stopped = time.monotonic(), [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.stopped.wait(0.5):
            self.seen.append((time.monotonic() - self.begun, counters(self.addresses)))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def hit_rate(self, start, end):
        """Between two times, in percent; None without traffic."""
        inside = [sums for at, sums in self.seen if start <= at <= end]
        if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
            return None
        (q0, h0), (q1, h1) = inside[0], inside[-1]
        return 100 * (h1 - h0) / (q1 - q0)


class Probes:
    """Conversations that live in the cluster, and the decisions of replicas on their next turn."""

    def __init__(self, seed=7):
        rng = random.Random(seed)
        words = [f"w{n}" for n in range(500)]
        def text(count):
            return " ".join(rng.choice(words) for _ in range(count))
        systems = [text(600) for _ in range(12)]
        self.turns = [[{"role": "system", "content": rng.choice(systems)}, {"role": "user", "content": text(500)}]
                      for _ in range(PROBES)]
        self.next = [json.dumps({"model": "fake-model", "messages": turn + [
            {"role": "assistant", "content": "so"}, {"role": "user", "content": text(30)}]}) for turn in self.turns]

    def converse(self, front):
        """First turns as real requests, many at once, so that some do not go to their homes."""
        def one(turn):
            body = json.dumps({"model": "fake-model", "messages": turn, "max_tokens": 60})
            return ask(front, "POST", "/v1/chat/completions", body, {"content-type": "application/json"})[0]
        with ThreadPoolExecutor(24) as pool:
            if set(pool.map(one, self.turns)) != {200}:
                raise Failed("a first turn failed")

    def answers(self, admin, load):
        """(worker, home) of each conversation's next turn at one replica."""
        host, port = admin.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        found = []
        with contextlib.closing(connection):
            for body in self.next:
                connection.request("POST", f"/explain?load={load}", body, {"content-type": "application/json"})
                answer = json.loads(connection.getresponse().read())
                found.append((answer["worker"], answer["home"]))
        return found

    def agreement(self, replicas, load):
        """Share of the conversations on which all the replicas agree, and of those that live away from home."""
        with ThreadPoolExecutor(len(replicas)) as pool:
            of_each = list(pool.map(lambda r: self.answers(r.admin, load), replicas))
        same = [len({worker for worker, _ in of_all}) == 1 for of_all in zip(*of_each)]
        away = [any(worker != home for worker, home in of_all) for of_all in zip(*of_each)]
        return sum(same) / len(same), sum(away) / len(away)


class Restartable(Replica):
    """A replica that can be ended and started again on its ports."""

    stopping = ("--settle-secs", 1, "--drain-secs", 10)

    def __init__(self, binary, name, folder, arguments):
        self.binary, self.folder, self.arguments = binary, folder, arguments
        super().__init__(binary, name, folder, arguments)

    def again(self, seeds):
        """Starts it where it was."""
        def port(address):
            return address.rsplit(":", 1)[1]
        ports = ["--port", port(self.data), "--admin-port", port(self.admin), "--gossip-port", port(self.gossip)]
        words = [w for seed in seeds for w in ("--seed", seed)]
        Child.__init__(self, [self.binary, "serve", "--replica-id", self.name, *ports, "--disable-prometheus",
                              *self.stopping, *self.arguments, *words],
                       Path(self.folder, f"{self.name}.log"), announces=True)
        self.listening()


def run(binary, folder, a, trace, ports):
    """One run of the load: watch, report, and the record of each restart; restarts need the `ports` of workers."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(fake_workers(binary, folder, WORKERS, ENGINE, ports))
        replicas = stack.enter_context(cluster(
            binary, folder, REPLICAS, workers,
            ["--policy", a.policy, "--log-level", "warn"], Restartable))
        command = [binary, "balancer", "--port", 0, "--check-path", "/readiness", "--check-interval", "100ms",
                   "--backend", *(r.data for r in replicas)]
        balancer = stack.enter_context(Child(command, folder / "balancer.log", announces=True))
        front = balancer.listening()["http"]
        probes, stories = Probes(), []
        replay = [binary, "replay", "--trace", trace, "--endpoint", "chat", "--messages", "sessions", "--json",
                  "--in-flight-max", 4096, "--url", f"http://{front}", "--worker-urls", *workers]
        with Watch(workers) as watch:
            process = stack.enter_context(contextlib.closing(Running(replay, folder / "replay.log")))
            time.sleep(a.seconds * 0.1)
            probes.converse(front)
            time.sleep(max(0.0, watch.begun + a.seconds * 0.35 - time.monotonic()))
            for at in range(len(replicas) if ports else 0):
                stories.append(restarted(probes, replicas, at, watch))
            report = process.report(a.seconds + 300)
        return watch, report, stories


def restarted(probes, replicas, at, watch):
    """Restarts a replica; returns agreement before and after, and the times of the steps."""
    def now():
        return time.monotonic() - watch.begun
    def rounds(seconds, of):
        """[(seconds since the begin, agreement quiet, away, agreement with load)] for so long, at least once."""
        begun, found = time.monotonic(), []
        while not found or time.monotonic() < begun + seconds:
            quiet, away = probes.agreement(of, "ignore")
            live, _ = probes.agreement(of, "now")
            found.append((time.monotonic() - begun, quiet, away, live))
        return found
    one, others = replicas[at], replicas[:at] + replicas[at + 1:]
    story = {"before": rounds(3, replicas), "told": now()}
    one.process.terminate()
    one.process.wait(60)
    story["ended"] = now()
    one.process.stdout.close()
    one.again([other.gossip for other in others])
    until(lambda: answers(one.data, "/readiness"), 30, "a restarted replica that is ready", every_s=0.005)
    story["ready"] = now()
    story["after"] = rounds(5, replicas)
    story["prefix_index"] = [prefix_index_entries(r) for r in replicas]
    return story


def prefix_index_entries(replica):
    page = ask(replica.admin, "GET", "/metrics")[2].decode()
    return next((float(line.split()[1]) for line in page.splitlines() if line.startswith("grapevine_prefix_index_entries ")), 0)


class Running:
    """A replay in the background."""

    def __init__(self, command, log):
        with open(log, "wb") as sink:
            self.process = subprocess.Popen([str(w) for w in command], stdout=subprocess.PIPE, stderr=sink)

    def report(self, within_s):
        out, _ = self.process.communicate(timeout=within_s)
        return json.loads(out.splitlines()[-1])

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def mean(values):
    return sum(values) / len(values)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--policy", default="prefix")
    ap.add_argument("--seconds", type=int, default=120, help="over which sessions start")
    ap.add_argument("--starts", type=float, default=4, help="sessions a second")
    ap.add_argument("--json", type=Path, help="write everything to this file")
    a = ap.parse_args()
    binary = a.grapevine.resolve()
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-restart-") as name:
        folder = Path(name)
        trace = loads.write(folder, "load", loads.conversations(round(a.seconds * a.starts), a.starts))
        calm, calm_report, _ = run(binary, folder / "calm", a, trace, None)
        ports = [int(address.rsplit(":", 1)[1]) for address in calm.addresses]
        watch, report, stories = run(binary, folder / "restart", a, trace, ports)

    told, ready = stories[0]["told"], stories[-1]["ready"]
    windows = [("before", told - 20, told), ("restarts and 5 s more", told, ready + 5),
               ("after", ready + 5, ready + 25)]
    ended = ", ".join(f"{s['ended'] - s['told']:.2f}" for s in stories)
    back = ", ".join(f"{s['ready'] - s['ended']:.2f}" for s in stories)
    print(f"{a.policy}: {report['requests']} requests, failed {report['requests'] - report['succeeded']} "
          f"(undisturbed {calm_report['requests'] - calm_report['succeeded']}); three restarts: ended {ended} s after "
          f"SIGTERM, ready {back} s after that\n\n"
          "| window | seconds | hit rate | undisturbed | difference, points |\n|---|---|---|---|---|")
    held, kept = report["requests"] == report["succeeded"], []
    for label, start, end in windows:
        with_it, without = watch.hit_rate(start, end), calm.hit_rate(start, end)
        if with_it is None or without is None:
            continue
        kept.append((label, with_it, without))
        if label != "before":
            held &= with_it - without >= -DIP_MAX
        print(f"| {label} | {start:.0f} to {end:.0f} | {with_it:.1f} % | {without:.1f} % | {with_it - without:+.1f} |")

    formerly = [found for s in stories for found in s["before"]]
    early = [found for s in stories for found in s["after"] if found[0] <= AGREE_S or found is s["after"][0]]
    late = [found for s in stories for found in s["after"] if found not in early]
    print("\n| agreement of three replicas | before | first 2 s after ready | later |\n|---|---|---|---|")
    for label, at in (("in a quiet cluster", 1), ("with the load of the moment", 3)):
        before, soon, then = (mean([found[at] for found in part]) for part in (formerly, early, late or early))
        print(f"| {label} | {before:.3f} | {soon:.3f} | {then:.3f} |")
        if at == 1:
            held &= soon >= before - 0.01
    print(f"\nconversations away from home: {mean([f[2] for f in formerly]):.0%} before, "
          f"{mean([f[2] for f in early]):.0%} after; prefix index entries {', '.join(f'{n:.0f}' for n in stories[-1]['prefix_index'])}; "
          f"load average {os.getloadavg()[0]:.1f}; {'held' if held else 'NOT held'}")
    if a.json:
        a.json.write_text(json.dumps({"windows": kept, "stories": stories, "report": report, "calm": calm_report}, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    run_script(main)
