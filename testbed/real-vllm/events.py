#!/usr/bin/env python3
"""KV events of real vLLM workers behind three replicas: what the events say of a prompt, and what its answer reports.

run.sh --events makes the environment and calls this script; README.md lists the checks. Exit code 0: everything held.
"""
import argparse
import contextlib
import json
import random
import re
import socket
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

from real import MODEL, Worker, run_checks, text
from processes import Child, Replica, answers, ask, cluster, ending_on_sigterm, free_port, until  # found by `real`

REPLICAS = ("r1", "r2", "r3")
BLOCK = 32      # tokens, as start_worker.sh has it


class Again(Replica):
    """A replica that was killed, started with the same arguments, on other ports."""

    def __init__(self, old):
        Child.__init__(self, old.command, old.log, announces=True)
        self.name, line = old.name, self.listening()
        self.data, self.admin, self.gossip = line["data"], line["admin"], line["gossip"]


class Cable:
    """A port that leads to another one, until it is cut."""

    def __init__(self, port):
        self.target, self.is_cut, self.links = port, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            if self.is_cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            self.links += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def pass_on(one, other):
        with contextlib.suppress(OSError):
            while some := one.recv(65_536):
                other.sendall(some)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True
        for link in self.links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self.links = []

    def mend(self):
        self.is_cut = False


class Events:
    def __init__(self, replicas, workers, stack):
        self.replicas, self.workers, self.stack, self.rng = replicas, workers, stack, random.Random(7)

    def sum(self, name, labels=""):
        total = 0
        for replica in self.replicas:
            page = ask(replica.admin, "GET", "/metrics")[2].decode()
            series = re.findall(rf"^{re.escape(name)}(?:{{([^}}]*)}})? (\S+)$", page, re.M)
            total += sum(float(value) for found, value in series if labels in found)
        return total

    def predictions(self):
        names = {result: self.sum("grapevine_kv_predictions_total", f'result="{result}"')
                 for result in ("exact", "over", "under")}
        return {**names, "predicted": self.sum("grapevine_kv_predicted_tokens_total"),
                "error": self.sum("grapevine_kv_prediction_error_tokens_total"),
                "events": self.sum("grapevine_kv_decisions_total", 'result="events"'),
                "evidence": self.sum("grapevine_kv_decisions_total", 'result="evidence"')}

    def chat(self, messages, tokens=24):
        replica = self.rng.choice(self.replicas)
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0,
                           "ignore_eos": True})
        status, _, answer = ask(replica.data, "POST", "/v1/chat/completions", body, within_s=120)
        assert status == 200, answer
        answer = json.loads(answer)
        return answer["choices"][0]["message"]["content"], answer["usage"]

    def caches(self, worker):
        """What each replica knows of a worker's cache."""
        path = "/workers/" + urllib.parse.quote(worker.url, safe="")
        return [replica.admin_get(path)["kv_caches"][0] for replica in self.replicas]

    def conversations(self, name, count, turns, words=60, systems=4):
        """Conversations that go on in turn, on so many system prompts."""
        all_messages = [[{"role": "system", "content": text(f"system {n % systems}", 150)},
                         {"role": "user", "content": text(f"{name} {n}", words)}] for n in range(count)]
        tokens = cached = requests = 0
        for turn in range(turns):
            for n, messages in enumerate(all_messages):
                answer, usage = self.chat(messages)
                tokens += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                requests += 1
                messages += [{"role": "assistant", "content": answer},
                             {"role": "user", "content": text(f"{name} {n} {turn}", words // 2)}]
        return requests, tokens, cached

    def compared(self, action):
        """Runs it; figures of what the events had said of its requests."""
        before = self.predictions()
        requests, tokens, cached = action()
        rise = {name: now - before[name] for name, now in self.predictions().items()}
        checked = rise["exact"] + rise["over"] + rise["under"]
        share = rise["exact"] / checked if checked else 0.0
        error = rise["error"] / checked if checked else 0.0
        figures = (f"{requests} requests, {cached / tokens:.0%} of {tokens} tokens cached; events known of "
                   f"{checked:.0f}: {share:.1%} exact, {rise['over']:.0f} over, {rise['under']:.0f} under, mean error "
                   f"{error:.1f} tokens")
        return checked, error, figures


def conversations_are_predicted(e):
    checked, error, figures = e.compared(lambda: e.conversations("talk", 24, 10))
    assert checked >= 100 and error < BLOCK, figures
    return figures


def a_small_cache_that_evicts_is_predicted(e):
    """Far more conversations than fit into the caches."""
    checked, error, figures = e.compared(lambda: e.conversations("flood", e.flood, 3, words=200))
    assert checked >= 50 and error < BLOCK, figures
    return figures


def events_that_were_missed_are_asked_for(e):
    """The way to a worker's events is cut while it computes, and comes back."""
    worker = e.workers[1]
    cables = [Cable(port) for port in worker.event_ports]
    labels = {"kv.events": f"tcp://*:{cables[0].port}", "kv.events_replay": f"tcp://*:{cables[1].port}",
              "kv.events_topic": "kv"}
    path = "/workers/" + urllib.parse.quote(worker.url, safe="")
    status, _, answer = ask(e.replicas[0].admin, "PATCH", path, json.dumps({"labels": labels}))
    assert status == 200, answer
    def alike():
        seen = e.caches(worker)
        return all(of["current"] and of["digest"] == seen[0]["digest"] for of in seen) and seen[0]["digest"]
    until(alike, 60, "all replicas at the cable")
    gaps = e.sum("grapevine_kv_event_messages_total", 'result="applied"')
    before = alike()
    for cable in cables:
        cable.cut()
    until(lambda: not any(of["connected"] for of in e.caches(worker)), 30, "nobody hears it")
    # On so many system prompts that this worker has some of them.
    e.conversations("unheard", 24, 2, systems=12)
    assert not any(of["believed"] for of in e.caches(worker)), e.caches(worker)
    for cable in cables:
        cable.mend()
    after = until(alike, 60, "what was missed is known")
    missed = e.sum("grapevine_kv_event_messages_total", 'result="applied"') - gaps
    assert before != after and missed > 0, (before, after, missed)
    checked, error, figures = e.compared(lambda: e.conversations("unheard", 24, 4, systems=12))
    assert error < BLOCK, figures
    return f"{missed / len(e.replicas):.0f} messages behind the cut; {figures}"


def a_replica_that_starts_takes_over_what_peers_know(e):
    old = e.replicas[-1]
    old.kill_group()
    replica = e.replicas[-1] = Again(old)
    e.stack.callback(replica.stop)
    until(lambda: answers(replica.admin, "/readyz"), 60, "the new replica is ready")
    until(lambda: all(of["current"] for worker in e.workers for of in e.caches(worker)), 60, "it knows all caches")
    for worker in e.workers:
        digests = {of["digest"] for of in e.caches(worker)}
        assert len(digests) == 1, digests
    page = ask(replica.admin, "GET", "/metrics")[2].decode()
    texts, blocks = (re.search(rf"^grapevine_{name} (\S+)$", page, re.M)[1] for name in ("kv_texts", "kv_text_blocks"))
    checked, error, figures = e.compared(lambda: e.conversations("talk", 24, 6))
    assert error < BLOCK, figures
    return f"{texts} texts with {blocks} blocks from a peer; {figures}"


def a_worker_that_restarts_is_known_to_be_empty(e):
    worker = e.workers[0]
    worker.child.kill_group()
    worker.start()
    worker.wait()
    checked, error, figures = e.compared(lambda: e.conversations("talk", 24, 4))
    assert error < BLOCK, figures
    return figures


CHECKS = {"talks": conversations_are_predicted, "evicts": a_small_cache_that_evicts_is_predicted,
          "gap": events_that_were_missed_are_asked_for, "replica": a_replica_that_starts_takes_over_what_peers_know,
          "worker": a_worker_that_restarts_is_known_to_be_empty}


def age(e):
    """Share of batches that were in the index within some milliseconds of the engine's time."""
    counts = {}
    for replica in e.replicas:
        page = ask(replica.admin, "GET", "/metrics")[2].decode()
        for le, count in re.findall(r'^grapevine_kv_event_age_seconds_bucket{le="([^"]+)"} (\S+)$', page, re.M):
            counts[float(le)] = counts.get(float(le), 0) + float(count)
    return ", ".join(f"{count / max(counts.values()):.1%} within {le * 1e3:.0f} ms"
                     for le, count in sorted(counts.items()) if le < 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grapevine", required=True)
    parser.add_argument("--model", choices=["tiny", "medium"], default="tiny")
    parser.add_argument("--only", help=f"some of {','.join(CHECKS)}, separated by commas")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else list(CHECKS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)
        stack.enter_context(ending_on_sigterm())
        workers = []
        for _ in range(2):
            ports = free_port(), free_port()
            events = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://*:{ports[0]}",
                                 "replay_endpoint": f"tcp://*:{ports[1]}", "topic": "kv"})
            worker = Worker(arguments.model, folder, arguments=["--kv-events-config", events])
            stack.callback(worker.stop)
            worker.wait()
            worker.event_ports = ports
            workers.append(worker)
        replicas = stack.enter_context(cluster(arguments.grapevine, folder, REPLICAS, [w.url for w in workers]))
        e = Events(replicas, workers, stack)
        # Each cache has 32,768 tokens; a conversation of the flood has some 900.
        e.flood = 150
        code = run_checks([(CHECKS[name], (e,)) for name in only])
        print(f"\nage of events: {age(e)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
