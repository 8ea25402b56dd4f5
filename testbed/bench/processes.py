"""Processes of a run on this machine: started with free ports, ended by their pid, waited for under a limit.

Used by the scripts of this folder and by ../real-vllm. Standard library only.
"""
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

START_S = 30        # from starting a process to its line on standard output
STOP_S = 10         # from SIGTERM to SIGKILL
JOIN_S = 30         # from starting replicas to a cluster that agrees


class Failed(Exception):
    """A run cannot go on; the text is the reason."""


def run_script(main):
    """Runs a script's main and exits: with what it returns, with the words of a Failed, or with 130 at Ctrl-C."""
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"{Path(sys.argv[0]).name}: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)


def show(row, file=None):
    """Prints the figures of a run, a line each, and writes them to a file if there is one."""
    width = max(map(len, row))
    for name, value in row.items():
        print(f"{name:>{width}}: {value:.2f}" if isinstance(value, float) else f"{name:>{width}}: {value}")
    if file:
        file.write_text(json.dumps(row, indent=1) + "\n")


def until(condition, within_s, what, every_s=0.02):
    """Waits until `condition()` is true and returns its value; `Failed` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {within_s} s")
        time.sleep(every_s)


def free_port():
    """A port that was free a moment ago, for programs that cannot choose one themselves."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def free_ports(count):
    """So many of them, each another one."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def ask(address, method, path, body=None, headers=(), within_s=60):
    """One request on a connection of its own: (status, headers with lower-case names, body bytes).

    An address that begins with https:// is asked over TLS, whatever its certificate says.
    """
    host, port = address.removeprefix("https://").rsplit(":", 1)
    if address.startswith("https://"):
        anyone = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, int(port), timeout=within_s, context=anyone)
    else:
        connection = http.client.HTTPConnection(host, int(port), timeout=within_s)
    headers = dict(headers)
    if body:
        headers.setdefault("content-type", "application/json")
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def answers(address, path):
    """Whether a GET gets 200."""
    try:
        return ask(address, "GET", path, within_s=2)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class Child:
    """A process in a group of its own, so that what it started ends with it.

    `announces`: its standard output is read, by `listening`, for one line. Everything else goes to the file `log`.
    `prefix`: words before the command, such as taskset's.
    """

    def __init__(self, command, log, announces=False, env=None, prefix=()):
        self.command = [*prefix, *map(str, command)]
        self.log = Path(log)
        with open(self.log, "ab") as sink:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if announces else sink, stderr=sink,
                env={**os.environ, **(env or {})}, start_new_session=True)
        self.pid = self.process.pid

    def listening(self):
        """The JSON line that our servers print once they are bound."""
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            raise Failed(f"{' '.join(self.command)}\n  did not start: {self.last_words()}")
        return json.loads(line)

    def last_words(self):
        return self.log.read_text(errors="replace")[-2000:].strip() or "(said nothing)"

    def kill_group(self):
        """SIGKILL for the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_S)

    def stop(self):
        """SIGTERM, and SIGKILL when that is not obeyed; the rest of the group goes too."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill_group()
        if self.process.stdout:
            self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Replica(Child):
    """One `grapevine serve` on free ports; `data`, `admin`, `gossip` are its addresses."""

    stopping = ("--settle-secs", 0, "--drain-secs", 1)

    def __init__(self, binary, name, folder, arguments, prefix=()):
        super().__init__(
            [binary, "serve", "--replica-id", name, "--port", 0, "--admin-port", 0, "--gossip-port", 0,
             "--disable-prometheus", *self.stopping, *arguments],
            Path(folder, f"{name}.log"), announces=True, prefix=prefix)
        try:
            self.name, line = name, self.listening()
        except Failed:
            self.stop()
            raise
        self.data, self.admin, self.gossip = line["data"], line["admin"], line["gossip"]

    def admin_get(self, path):
        status, _, body = ask(self.admin, "GET", path)
        if status != 200:
            raise Failed(f"{self.name}: GET {path} gave {status}: {body[:300]!r}")
        return json.loads(body)


@contextlib.contextmanager
def cluster(binary, folder, names, worker_urls, arguments=(), kind=Replica, declared=0):
    """Replicas, of class `kind`, with mutual TLS that agree on the workers and know their models.

    `declared`: how many workers the arguments name beside `worker_urls`.
    """
    folder = Path(folder)
    count = len(worker_urls) + declared
    folder.mkdir(parents=True, exist_ok=True)
    ca = folder / "ca"
    for command in (["init"], ["issue", *names]):
        subprocess.run([binary, "ca", *command, "--dir", ca], check=True, stdout=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        replicas = []
        for name in names:
            files = ["--gossip-ca", ca / "ca.pem", "--gossip-cert", ca / f"{name}.pem",
                     "--gossip-key", ca / f"{name}.key"]
            seeds = [word for r in replicas for word in ("--seed", r.gossip)]
            workers = ["--worker-urls", *worker_urls] if worker_urls and not replicas else []
            replicas.append(stack.enter_context(
                kind(binary, name, folder, [*files, *seeds, *workers, *arguments])))

        def agreed():
            views = [r.admin_get("/cluster") for r in replicas]
            pools = [r.admin_get("/ring")["pools"] for r in replicas]
            # Without workers none is ready.
            are_ready = all(v["ready"] or not count for v in views)
            return are_ready and all(v["agreeing"] == len(names) for v in views) and all(
                len({worker for pool in of for worker in pool["workers"]}) == count for of in pools)

        until(agreed, JOIN_S, f"{len(names)} replicas that agree on {count} workers")
        yield replicas


@contextlib.contextmanager
def fake_workers(binary, folder, count, arguments=(), ports=None):
    """URLs of so many fake workers, each a process of its own; on these ports, else on free ones."""
    with contextlib.ExitStack() as stack:
        urls = []
        for number in range(count):
            port = ports[number] if ports else 0
            command = [binary, "fake-worker", "--port", port, "--exit-on-sigterm", *arguments]
            child = stack.enter_context(Child(command, Path(folder, f"worker-{number}.log"), announces=True))
            urls.append("http://" + child.listening()["http"])
        yield urls


@contextlib.contextmanager
def ending_on_sigterm():
    """Makes SIGTERM end the script as Ctrl-C does, so that what was started is ended."""
    def leave(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
