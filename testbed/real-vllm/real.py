"""Shared by the scripts of this folder: real vLLM workers, prompts, and the table of results."""
import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
from processes import Child, answers, ask, free_port, until  # noqa: E402

MODEL = "tiny-llama"
KV_MIB = {"tiny": 16, "medium": 256}        # 32,768 tokens a worker with either model
WORKER_START_S = int(os.environ.get("REAL_VLLM_START_S", "300"))
WORDS = ("time", "person", "year", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye", "place",
         "work", "week", "case", "point", "company", "number", "group", "problem", "fact", "under", "leave", "small")


def text(seed, words):
    rng = random.Random(seed)
    return f"{seed}: " + " ".join(rng.choice(WORDS) for _ in range(words))


def user(content):
    return [{"role": "user", "content": content}]


class Worker:
    """One vLLM server; `address` is host:port, `url` its name in the router.

    `environment`: for start_worker.sh, beside model and cache.
    """

    def __init__(self, model, folder, port=None, arguments=(), environment=()):
        self.model, self.folder, self.arguments, self.environment = model, folder, arguments, dict(environment)
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.start()

    def start(self):
        environment = {"MODEL": self.model, "NAME": MODEL, "KV_MIB": str(KV_MIB[self.model]), **self.environment}
        log = self.folder / f"worker-{self.port}.log"
        self.child = Child(["bash", HERE / "start_worker.sh", self.port, *self.arguments], log, env=environment)

    def wait(self):
        def ready():
            if self.child.process.poll() is not None:
                raise SystemExit(f"a worker ended at start:\n{self.child.last_words()}")
            return answers(self.address, "/health")
        until(ready, WORKER_START_S, "a worker's /health", every_s=0.5)

    def stop(self):
        """The process that it has now: it may have been started again."""
        self.child.stop()

    def metric(self, name, label=""):
        """Sum of a metric over its labels, or over those series that have this one (`engine="1"`)."""
        page = ask(self.address, "GET", "/metrics")[2].decode()
        series = re.findall(rf"^{re.escape(name)}{{([^}}]*)}} (\S+)$", page, re.M)
        return sum(float(value) for labels, value in series if label in labels)

    def requests(self):
        """Requests that its API server has open: known even while the engine is frozen."""
        return json.loads(ask(self.address, "GET", "/load")[2])["server_load"]

    def signal_engine(self, number):
        """Sends a signal to the engine's processes only: the API server with its /health runs on."""
        listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], check=True, capture_output=True, text=True).stdout
        engines = [int(line.split()[0]) for line in listed.splitlines()
                   if int(line.split()[1]) == self.child.pid and "VLLM::" in line]
        assert engines, "no engine process found"
        for pid in engines:
            os.kill(pid, number)
        return len(engines)

    def freeze(self):
        return self.signal_engine(signal.SIGSTOP)

    def thaw(self):
        return self.signal_engine(signal.SIGCONT)


def command_line(doc, model):
    """The command line of a script: the binary, absolute, and the size of the workers' model."""
    ap = argparse.ArgumentParser(description=doc.splitlines()[0])
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary")
    ap.add_argument("--model", choices=KV_MIB, default=model)
    a = ap.parse_args()
    a.grapevine = a.grapevine.resolve()
    return a


@contextlib.contextmanager
def two_workers(model, arguments=()):
    """Two workers that answer, and a folder for replicas; both end with it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grapevine-real-vllm-")))
        workers = []
        for _ in range(2):
            worker = Worker(model, folder, arguments=arguments)
            stack.callback(worker.stop)
            workers.append(worker)
        print(f"starting two vLLM workers ({model} model, 20 s to 2 min) ...", flush=True)
        for worker in workers:
            worker.wait()
        yield workers, folder


def run_checks(checks):
    """Runs (function, arguments) in turn, reports each, prints the table; returns the exit code."""
    rows = []
    for check, arguments in checks:
        begun = time.monotonic()
        try:
            rows.append((check.__name__, "held", check(*arguments)))
        except Exception as error:  # every check is reported, whatever the result of the one before
            traceback.print_exc()
            rows.append((check.__name__, "FAILED", f"{error or type(error).__name__}"[:300]))
        print(f"{rows[-1][1]:6} {rows[-1][0]} ({time.monotonic() - begun:.0f} s)", flush=True)
    print("\n| check | result | figures |\n|---|---|---|")
    for name, result, figures in rows:
        print(f"| {name.replace('_', ' ')} | {result} | {figures} |")
    return 0 if all(result == "held" for _, result, _ in rows) else 1
