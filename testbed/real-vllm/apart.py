"""Prefill and decode apart: NIXL workers of both roles behind three replicas, and one whole worker to compare with.

The whole worker (the oracle) is not registered: no request reaches it through the router.
"""
import contextlib
import itertools
import json
import os
import tempfile
from pathlib import Path

from real import MODEL, Worker
from processes import Replica, ask, cluster, free_port, until

REPLICAS = ("r1", "r2", "r3")
LEASE_S = 12        # vLLM's kv_lease_duration: a prefill worker keeps blocks that nobody fetches for so long
WARM_S = 300        # for what vLLM's CPU build compiles at the first request with log probabilities
LOG_LINE_S = 10     # from a request's end to its line in the access log
CONFIG = f"""
[timeouts]
first_token = "40s"
inter_token = "20s"
[transfer]
held_for = "{LEASE_S}s"
"""
# Every prompt is divided here, also a short one.
os.environ["GRAPEVINE_TRANSFER__SHORT_PROMPT_TOKENS"] = "0"



class LoggedReplica(Replica):
    """A replica whose access log is read back."""

    def __init__(self, *arguments, **options):
        self.lines, self.read_bytes = {}, 0
        super().__init__(*arguments, **options)

    def read_log(self):
        with open(self.log, "rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        whole = new[:new.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("target") == "grapevine::access":
                    self.lines[entry["request_id"]] = entry

    def logged(self, request_id):
        """The access log's line of a request."""
        def found():
            self.read_log()
            return self.lines.get(request_id)
        return until(found, LOG_LINE_S, f"{self.name}: the access log has {request_id}")


class NixlWorker(Worker):
    """A worker of one role. Its blocks travel over TCP on loopback, never through shared memory."""

    def __init__(self, model, folder, role):
        self.role, self.side_port = role, free_port()
        super().__init__(model, folder, environment={
            "NIXL_ROLE": role, "NIXL_PORT": str(self.side_port), "NIXL_LEASE": str(LEASE_S), "UCX_TLS": "tcp,self"})


def warm_up(worker):
    """Has a worker compile what it compiles within a request, or a check would wait for g++."""
    body = {"model": MODEL, "prompt": "warm", "max_tokens": 1, "echo": True, "logprobs": 1}
    status, _, answer = ask(worker.address, "POST", "/v1/completions", json.dumps(body), within_s=WARM_S)
    assert status == 200, answer


class Fleet:
    """`prefill`, `decode`: workers by URL; `oracle`: a worker that the router does not know."""

    def __init__(self, prefill, decode, oracle):
        self.prefill = {w.url: w for w in prefill}
        self.decode = {w.url: w for w in decode}
        self.workers = {**self.prefill, **self.decode}
        self.oracle, self.replicas, self.numbers = oracle, [], itertools.count()

    def id(self, name):
        """A request id that no other request of the run has, and a replica, in turn."""
        n = next(self.numbers)
        return f"{name}-{n}", self.replicas[n % len(self.replicas)]

    def total(self, name, workers, label=""):
        return sum(w.metric(name, label) for w in workers.values())

    def busy(self):
        """Requests that the engines have, running and waiting."""
        return sum(self.total(f"vllm:num_requests_{what}", self.workers) for what in ("running", "waiting"))

    def used(self, workers):
        """Part of the KV cache that requests hold, summed over workers: cached blocks that nobody holds do not count."""
        return self.total("vllm:kv_cache_usage_perc", workers)

    def explain(self, replica, body, path="/v1/chat/completions"):
        status, _, answer = ask(replica.admin, "POST", f"/explain?path={path}", json.dumps(body))
        assert status == 200, answer
        return json.loads(answer)

    def both_halves(self, replica, body):
        """Where a chat would go: (URL of the prefill worker, URL of the decode worker)."""
        explained = self.explain(replica, body)
        return explained["prefill"]["worker"], explained["worker"]

    def settle(self, within_s=90):
        """Waits until every replica uses every worker again, and no engine has a request."""
        def serve():
            listed = [r.admin_get("/workers")["workers"] for r in self.replicas]
            return all(w["verdict"] == "good" and not w["ejected_for_ms"] for workers in listed for w in workers)
        until(serve, within_s, "all workers serve through all replicas", every_s=0.3)
        until(lambda: self.busy() == 0, within_s, "engines without requests", every_s=0.3)


@contextlib.contextmanager
def workers_apart(model):
    """Two prefill workers, two decode workers and the oracle, without replicas; and a folder for these."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grapevine-real-vllm-")))
        workers = [NixlWorker(model, folder, role) for role in ("kv_producer", "kv_producer", "kv_consumer", "kv_consumer")]
        workers.append(Worker(model, folder))
        for worker in workers:
            stack.callback(worker.stop)
        print(f"starting five vLLM workers ({model} model, 1 to 10 min) ...", flush=True)
        for worker in workers:
            worker.wait()
            warm_up(worker)
        yield Fleet(workers[:2], workers[2:4], workers[4]), folder


@contextlib.contextmanager
def fleet(binary, model):
    """The same behind three replicas with mutual TLS."""
    with workers_apart(model) as (f, folder):
        config = folder / "grapevine.toml"
        config.write_text(CONFIG)
        arguments = ["--config", config, "--log-json", "--kv-connector", "nixl",
                     *(word for url in f.prefill for word in ("--prefill", url)),
                     *(word for url in f.decode for word in ("--decode", url))]
        with cluster(binary, folder / "cluster", REPLICAS, (), arguments, kind=LoggedReplica, declared=4) as replicas:
            f.replicas = replicas
            f.settle()
            yield f
