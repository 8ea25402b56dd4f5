"""A steady load of a few requests at a time, and what its clients saw around a fault."""
import itertools
import json
import statistics
import threading
import time

from real import text, user
from streams import Stream, chat
from processes import Failed, ask, until  # found by `real`

CLIENTS = 3
TOKENS = 16
PACE_S = 1.0            # between the beginnings of a client's requests: a worker that starts needs the processors, too
PROMPTS = 30            # so that prompts come again
NEW = 4                 # one in so many is new: a worker that comes back holds none of the others
QUIET = 5               # requests through each replica, the last ones, that show a cluster that is well
SLOW_S = 2.0            # beyond five times the usual: slow


class Sent:
    """One request: `ending` is "done", or what its client saw instead."""

    def __init__(self, request_id, replica, streamed):
        self.id, self.replica, self.streamed = request_id, replica, streamed
        self.begun, self.took, self.ending, self.log = time.monotonic(), None, None, None


class Load:
    """Clients in turn through all replicas, half of them streaming; within `with`."""

    def __init__(self, f, name, headers=()):
        self.f, self.name, self.headers = f, name, dict(headers)
        self.all, self.lock, self.stopping = [], threading.Lock(), threading.Event()
        self.numbers = itertools.count()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        until(lambda: len(self.finished()) >= 2 * QUIET * len(self.f.replicas), 120, "a load that runs", every_s=0.1)
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(150)
            assert not thread.is_alive(), "a client hangs"

    def run(self):
        while not self.stopping.is_set():
            with self.lock:
                n = next(self.numbers)
                request_id, replica = self.f.id(f"load-{self.name}")
                sent = Sent(request_id, replica, streamed=n % 2 == 0)
                self.all.append(sent)
            prompt = f"new {n}" if n % NEW == 0 else n % PROMPTS
            body = chat(user(text(f"load {self.name} {prompt}", 80)), TOKENS)
            headers = {**self.headers, "x-request-id": request_id}
            try:
                ending = self.stream(replica, body, headers) if sent.streamed else self.plain(replica, body, headers)
            except OSError as error:
                ending = type(error).__name__
            sent.took, sent.ending = time.monotonic() - sent.begun, ending
            self.stopping.wait(PACE_S - sent.took)

    def stream(self, replica, body, headers):
        stream = Stream(replica.data, body, headers=headers).join()
        if stream.ending != "done":
            return f"{stream.ending} {stream.status}: {stream.error}"
        return "done" if stream.usage()["completion_tokens"] == TOKENS else f"{stream.usage()}"

    def plain(self, replica, body, headers):
        body = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
        status, _, answer = ask(replica.data, "POST", "/v1/chat/completions", json.dumps(body), headers, within_s=120)
        return "done" if status == 200 else f"{status}: {answer[:200]}"

    def finished(self):
        return [sent for sent in list(self.all) if sent.ending is not None]

    def since(self, moment):
        """Finished requests that ran at this moment or began later, with their lines in the access log."""
        chosen = [s for s in self.finished() if s.begun + s.took >= moment]
        for sent in chosen:
            sent.log = sent.log or sent.replica.logged(sent.id)
        return chosen


class Fault:
    """What became of a load since a moment."""

    def __init__(self, load):
        self.load, self.at = load, time.monotonic()
        usual = [s.took for s in load.finished()]
        self.usual_s = statistics.median(usual)

    def is_well(self, sent):
        return sent.ending == "done" and sent.log["attempts"] == 1 and sent.took < SLOW_S + 5 * self.usual_s

    def is_over(self):
        """The last requests through each replica, begun after the fault, are as ever."""
        since = self.load.since(self.at)
        for replica in self.load.f.replicas:
            last = sorted((s for s in since if s.replica is replica and s.begun > self.at), key=lambda s: s.begun)[-QUIET:]
            if len(last) < QUIET or not all(self.is_well(s) for s in last):
                return False
        return True

    def wait(self, within_s):
        try:
            until(self.is_over, within_s, "requests as ever through each replica", every_s=0.3)
        except Failed as error:
            raise Failed(f"{error}: {self.told()}") from None

    def wait_used(self, url, within_s):
        """Waits until a request of each replica went to this worker; returns seconds since the fault."""
        def used():
            since = [s for s in self.load.since(self.at) if s.ending == "done" and s.begun > self.at]
            by = {s.replica.name for s in since if url in (s.log["worker"], s.log.get("prefill_worker"))}
            return len(by) == len(self.load.f.replicas)
        until(used, within_s, f"{url} is used by all replicas", every_s=0.3)
        return time.monotonic() - self.at

    def failed(self):
        return [s for s in self.load.since(self.at) if s.ending != "done"]

    def told(self):
        since = self.load.since(self.at)
        failed = self.failed()
        again = sum(1 for s in since if s.ending == "done" and s.log["attempts"] > 1)
        bad = [s.begun + s.took - self.at for s in since if not self.is_well(s)]
        whole = max(s.took for s in since)
        return (f"{len(since)} requests, {len(failed)} failed, {again} had a second attempt, slowest {whole:.1f} s (usual "
                f"{self.usual_s:.2f}), well again on all replicas after {max(bad, default=0):.1f} s"
                + "".join(f" [{s.ending}]" for s in failed[:3]))
