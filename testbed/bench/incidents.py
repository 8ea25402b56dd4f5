#!/usr/bin/env python3
"""Three incidents, told only by what an operator has: `status`, `doctor`, `events`, the log, the alarms, the page.

    testbed/bench/incidents.py [--grapevine target/debug/grapevine] [--only freeze,kill,cut] [--out DIR] [--pictures DIR]

Three replicas, four fake workers, chat requests all the time, and a real Prometheus with the rules of
packaging/monitoring (`packaging/monitoring/prometheus.sh` provides it). Each incident has the fault of a chaos scenario
(`one-way` cuts both ways here, which is what becomes of it), and is repaired at the end. Measured, from the fault on: when the first line of `status` names the culprit,
when the log does, when an alarm fires, and when all is well again after the repair. The answers as they were are printed,
and kept in `--out`. `--pictures` needs the Python of `tests/page/setup.sh`, and takes the page while the fault lasts.

Reasons for the limits: `for:` of the rules is a minute; a scrape is each second here, and 15 s in most clusters.
"""
import argparse
import contextlib
import itertools
import json
import os
import subprocess
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

from gossip_relay import Relays
from processes import Child, Failed, Replica, answers, ask, ending_on_sigterm, free_port, run_script, until

ROOT = Path(__file__).parents[2]
NAMES = ["r1", "r2", "r3"]
WORKERS = 4
CLIENTS = 6             # each sends one request after the other
NAMED_WITHIN_S, ALARM_WITHIN_S, WELL_WITHIN_S = 150, 240, 120
CLIENT_S = 180          # a client waits; OpenAI's own waits for ten minutes
BEFORE_S = 20           # of quiet before each fault, so that the last minute is a good one
LOOK_EVERY_S = 0.25
PICTURE = {"width": 1100, "height": 760}


class Load:
    """Clients that ask for short streams, of prompts that come again."""

    def __init__(self, targets):
        self.targets, self.ends, self.counts = targets, threading.Event(), {"good": 0, "bad": 0}
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        for turn in itertools.count():
            if self.ends.is_set():
                return
            body = {"model": "fake-model", "stream": True, "max_tokens": 24,
                    "messages": [{"role": "user", "content": f"conversation {(number + turn) % 12} " + "and on " * 60}]}
            target = self.targets[turn % len(self.targets)]
            try:
                status, _, reply = ask(target, "POST", "/v1/chat/completions", json.dumps(body), within_s=CLIENT_S)
                is_good = status == 200 and b"[DONE]" in reply
            except OSError:
                is_good = False
            except Exception:  # noqa: BLE001: a stream that broke off
                is_good = False
            self.counts["good" if is_good else "bad"] += 1
            self.ends.wait(0.05 if is_good else 0.3)

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(CLIENT_S + 5)


class Scene:
    """What an operator has in front of them."""

    def __init__(self, args, replicas, workers, relays, prometheus):
        self.args, self.replicas, self.workers = args, {r.name: r for r in replicas}, workers
        self.relays, self.prometheus = relays, prometheus

    def run(self, *words, at="r1"):
        done = subprocess.run([self.args.grapevine, *words, "--admin", f"http://{self.replicas[at].admin}"],
                              capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"})
        return done.returncode, (done.stdout + done.stderr).rstrip()

    def first_line(self):
        return self.run("status")[1].split("\n", 1)[0]

    def alarms(self):
        """Alarms that fire now, with what they say."""
        _, _, body = ask(self.prometheus, "GET", "/api/v1/alerts")
        alerts = json.loads(body)["data"]["alerts"]
        return {a["labels"]["alertname"]: a["annotations"]["summary"] for a in alerts if a["state"] == "firing"}

    def picture(self, incident, began):
        """Takes the page of r1; returns when its headline named the culprit, in seconds after the fault."""
        if not self.chromium:
            return None
        context = self.chromium.new_context(viewport=PICTURE, color_scheme="light")
        page = context.new_page()
        page.goto(f"http://{self.replicas['r1'].admin}/")
        until(lambda: incident.culprit in page.inner_text("#headline h1"), NAMED_WITHIN_S, "the page names it", LOOK_EVERY_S)
        seconds = time.time() - began
        page.screenshot(path=self.args.pictures / f"incident-{incident.scenario}.png")
        context.close()
        return seconds

    def log_since(self, began):
        """Warnings and errors of the replicas since then, each with the seconds after it."""
        lines = []
        for replica in self.replicas.values():
            for line in replica.log.read_text(errors="replace").splitlines():
                word = line.split()
                if len(word) > 2 and word[1] in ("WARN", "ERROR"):
                    at = seconds_of(word[0])
                    if at is not None and at >= began - 0.1:
                        lines.append((at - began, f"{replica.name}: {line}"))
        return sorted(lines)


def seconds_of(stamp):
    """Seconds since 1970 of an RFC 3339 time in UTC."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    return None


class Freeze:
    scenario, title = "worker-freeze", "A worker's engine freezes behind a healthy HTTP server"

    def __init__(self, scene):
        self.worker = scene.workers[0]
        self.culprit, self.log_says = self.worker.url, "worker out of use"
        self.alarms = {"WorkerStalled", "WorkerDown"}

    def begin(self, _):
        ask(self.worker.address, "POST", "/_control/freeze")

    def repair(self, _):
        ask(self.worker.address, "POST", "/_control/unfreeze")


class Kill:
    scenario, title = "replica-kill", "A replica is killed"

    def __init__(self, _):
        self.culprit, self.log_says, self.alarms = "r3", "replica is dead", {"ReplicaMissing"}

    def begin(self, scene):
        scene.replicas["r3"].kill_group()

    def repair(self, scene):
        scene.replicas["r3"] = scene.start("r3")


class Cut:
    scenario, title = "one-way", "Two of three replicas do not hear each other; the third one hears both"

    def __init__(self, _):
        self.culprit, self.log_says, self.alarms = "r1 does not hear r2", None, {"LinkBroken"}

    def begin(self, scene):
        scene.relays.cut(("r1", "r2"))

    def repair(self, scene):
        scene.relays.cut()


INCIDENTS = {"freeze": Freeze, "kill": Kill, "cut": Cut}


def when(condition, within_s, began):
    """Seconds from `began` until the condition holds; none if it does not in time."""
    try:
        until(condition, within_s, "it", LOOK_EVERY_S)
        return time.time() - began
    except Failed:
        return None


def tell(scene, incident, load):
    """Plays one incident; returns its times and what was to be seen."""
    until(lambda: scene.run("status")[0] == 0, WELL_WITHIN_S, "a cluster that is well", LOOK_EVERY_S)
    time.sleep(BEFORE_S)
    before = dict(load.counts)
    began = time.time()
    incident.begin(scene)
    seen = {"scenario": incident.scenario, "title": incident.title}
    seen["status_s"] = when(lambda: incident.culprit in scene.first_line(), NAMED_WITHIN_S, began)
    if seen["status_s"] is None:
        raise Failed(f"{incident.scenario}: status never named {incident.culprit}: {scene.first_line()}")
    seen["status"] = scene.run("status")[1]
    said = [(after, line) for after, line in scene.log_since(began) if incident.log_says and incident.log_says in line]
    seen["page_s"] = scene.picture(incident, began)
    seen["doctor"] = scene.run("doctor")[1]
    seen["alarm_s"] = when(lambda: incident.alarms & set(scene.alarms()), ALARM_WITHIN_S, began)
    seen["alarms"] = scene.alarms()
    said = said or [(a, line) for a, line in scene.log_since(began) if incident.log_says and incident.log_says in line]
    seen["log_s"], seen["log"] = said[0] if said else (None, None)
    seen["requests"] = {kind: load.counts[kind] - before[kind] for kind in before}
    repaired = time.time()
    incident.repair(scene)
    seen["well_s"] = when(lambda: scene.run("status")[0] == 0, WELL_WITHIN_S, repaired)
    seen["events"] = scene.run("events")[1]
    return seen


def in_words(seconds):
    return "not at all" if seconds is None else f"{seconds:.1f} s"


def markdown(seen):
    rows = [("`status` names it (first line, exit code 4)", seen["status_s"]), ("the log names it", seen["log_s"]),
            ("an alarm fires", seen["alarm_s"]), ("all is well again, after the repair", seen["well_s"])]
    text = f"## {seen['title']}\n\nChaos scenario `{seen['scenario']}`. Requests meanwhile: {seen['requests']['good']} answered, "
    text += f"{seen['requests']['bad']} failed.\n\n| after the fault | |\n|---|---|\n"
    text += "".join(f"| {what} | {in_words(seconds)} |\n" for what, seconds in rows)
    for name in ("status", "doctor", "log", "events"):
        if seen[name]:
            text += f"\n```text\n$ {name}\n{seen[name]}\n```\n"
    return text + "\n" + "".join(f"- {name}: {says}\n" for name, says in seen["alarms"].items())


def prometheus(folder, stack, replicas):
    """A Prometheus with the rules, which scrapes the admin ports each second."""
    subprocess.run([ROOT / "packaging/monitoring/prometheus.sh"], check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "packaging/monitoring/rules.yml")],
        "scrape_configs": [{"job_name": "grapevine", "static_configs": [{"targets": [r.admin for r in replicas]}]}],
    }))
    command = [target / "prometheus/prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    stack.enter_context(Child(command, folder / "prometheus.log"))
    address = f"127.0.0.1:{port}"
    until(lambda: answers(address, "/-/ready"), 30, "prometheus")
    return address


@contextlib.contextmanager
def browser(pictures):
    """Takes pictures of a page; of none where nobody wants any."""
    if not pictures:
        yield None
        return
    from playwright.sync_api import sync_playwright
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield chromium
        chromium.close()


def started(args, folder, stack, chromium):
    """Workers, replicas behind relays, Prometheus."""
    children = []
    for n in range(WORKERS):
        child = stack.enter_context(Child([args.grapevine, "fake-worker", "--port", 0], folder / f"w{n}.log", announces=True))
        child.address = child.listening()["http"]
        child.url = "http://" + child.address
        children.append(child)
    relays = stack.enter_context(Relays(NAMES, 1))
    ca = folder / "ca"
    for command in (["init"], ["issue", *NAMES]):
        subprocess.run([args.grapevine, "ca", *command, "--dir", ca], check=True, stdout=subprocess.DEVNULL)

    def start(name):
        words = ["--gossip-ca", ca / "ca.pem", "--gossip-cert", ca / f"{name}.pem", "--gossip-key", ca / f"{name}.key",
                 "--gossip-advertise", relays.public[name], "--worker-urls", *(c.url for c in children)]
        seeds = [word for other in NAMES if other != name for word in ("--seed", relays.public[other])]
        replica = stack.enter_context(Replica(args.grapevine, name, folder, words + seeds))
        relays.found(name, replica.gossip)
        return replica

    replicas = [start(name) for name in NAMES]
    scene = Scene(args, replicas, children, relays, prometheus(folder, stack, replicas))
    scene.start, scene.chromium = start, chromium
    return scene


def play(args, name, chromium):
    """One incident, in a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scene = started(args, Path(folder), stack, chromium)
        balancer = stack.enter_context(Child(
            [args.grapevine, "balancer", "--port", 0,
             *itertools.chain.from_iterable(("--backend", r.data) for r in scene.replicas.values())],
            Path(folder, "balancer.log"), announces=True))
        load = Load([balancer.listening()["http"]])
        try:
            return tell(scene, INCIDENTS[name](scene), load)
        finally:
            load.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--grapevine", type=Path, default=target / "debug" / "grapevine")
    parser.add_argument("--only", default=",".join(INCIDENTS), help="these incidents, of freeze, kill, cut")
    parser.add_argument("--out", type=Path, help="folder for what was seen: JSON and Markdown")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the page")
    args = parser.parse_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    with ending_on_sigterm(), browser(args.pictures) as chromium:
        for name in args.only.split(","):
            seen = play(args, name, chromium)
            print(markdown(seen), flush=True)
            if args.out:
                (args.out / f"{name}.json").write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
