"""Three routers in front of the same workers, for live_case.py: a Grapevine cluster, and three haproxy that hash.

All have the same interface: `addresses` (three, host:port), `worker_header` (in which an answer names its worker, by
its URL), `wait_until_gone`, `add`, `places` and `spilled`. Standard library only.
"""
import contextlib
import csv
import http.client
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path

from hot_prefix import settings
from processes import Child, Failed, answers, ask, cluster, free_port, until

NAMES = ("r1", "r2", "r3")
MODEL = "fake-model"
SETTLED_WITHIN_S = 60       # slow starts at the start are over
SEEN_WITHIN_S = 30          # a kill is known to all
ADDED_WITHIN_S = 60         # a worker that was added is in every ring; includes a warm-up
HASHED_BYTES = 512          # of the body, by haproxy
SPILLED = 'grapevine_placements_total{reason="spill_bound"}'


@dataclass
class Grapevine:
    """A cluster of one build under one policy; `keys`: further settings, each `section.key=value`."""

    title: str
    binary: Path
    policy: str
    keys: list = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, folder, urls, _spare):
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--policy", self.policy, "--log-level", "warn", *settings(folder, self.keys)]
        with cluster(self.binary, folder, NAMES, urls, arguments) as replicas:
            three = GrapevineThree(replicas)
            three.wait_until_settled()
            yield three


class GrapevineThree:
    worker_header = b"x-grapevine-worker"

    def __init__(self, replicas):
        self.replicas = replicas
        self.addresses = [replica.data for replica in replicas]
        self.spilled_before = 0

    def of_each(self, url=None):
        """Every replica's view of the workers, or of the one at `url`."""
        views = (worker for replica in self.replicas for worker in replica.admin_get("/workers")["workers"])
        return [worker for worker in views if url in (None, worker["url"])]

    def wait_until_settled(self):
        def settled():
            return all(w["health"] != "unhealthy" and w["slow_start"] is None for w in self.of_each())
        until(settled, SETTLED_WITHIN_S, "workers past their slow start", every_s=0.1)

    def wait_until_gone(self, url):
        """Waits until every replica knows, by itself or from another, that nothing answers at `url`."""
        def gone():
            return all(w["health"] == "unhealthy" or w["doubted"] or w["breaker"] == "open" for w in self.of_each(url))
        until(gone, SEEN_WITHIN_S, f"{url} is known to be gone", every_s=0.05)

    def add(self, url):
        """Adds a worker through the first replica; returns when all have it in one and the same ring."""
        body = json.dumps({"url": url, "models": [MODEL]})
        status, _, answer = ask(self.replicas[0].admin, "POST", "/workers", body)
        if status != 201:
            raise Failed(f"the worker was not added: {status} {answer!r}")

        def added():
            views = self.of_each(url)
            digests = {replica.admin_get("/ring")["digest"] for replica in self.replicas}
            return len(views) == len(self.replicas) and len(digests) == 1 and all(
                w["state"] == "active" and w["health"] != "unhealthy" for w in views)
        until(added, ADDED_WITHIN_S, "the new worker is active everywhere", every_s=0.05)

    def spilled(self):
        """Requests that went elsewhere since the last call because their worker was above the bound."""
        pages = [ask(replica.admin, "GET", "/metrics", within_s=10)[2].decode() for replica in self.replicas]
        counts = [float(line.rsplit(" ", 1)[1]) for page in pages for line in page.splitlines() if line.startswith(SPILLED)]
        before, self.spilled_before = self.spilled_before, sum(counts)
        return self.spilled_before - before

    def places(self, bodies, gone):
        """URL of each request's place by the hash alone while `gone` is dead: the first other worker in its order.

        By the first replica's `/explain`; keys of a dead home have their place in the rest of their order.
        """
        host, port = self.replicas[0].admin.rsplit(":", 1)
        found = []
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
            for body in bodies:
                connection.request("POST", "/explain?load=ignore", body, {"content-type": "application/json"})
                reply = connection.getresponse()
                answer = json.loads(reply.read())
                if reply.status != 200:
                    raise Failed(f"/explain gave {reply.status}: {answer}")
                found.append(next(row["worker"] for row in answer["order"] if row["worker"] != gone))
        return found


@dataclass
class HaproxyHash:
    """Three independent haproxy that hash the first bytes of the body to a ring of the workers."""

    title: str = "haproxy hash"

    @contextlib.contextmanager
    def running(self, folder, urls, spare):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            three = [stack.enter_context(Haproxy(folder, name, urls, spare)) for name in NAMES]
            for one in three:
                until(lambda: answers(one.data, "/v1/models"), SETTLED_WITHIN_S, f"haproxy that answers: {one.last_words()}")
            yield HaproxyThree(three)


class Haproxy(Child):
    """One process; `spare` is in its table and takes part once it is enabled."""

    def __init__(self, folder, name, urls, spare):
        self.data, self.commands = f"127.0.0.1:{free_port()}", Path(folder, f"{name}.sock")
        rows = [(url, "") for url in urls] + [(spare, " disabled")]
        config = Path(folder, f"{name}.cfg")
        config.write_text(f"""
global
  nbthread 1
  maxconn 4096
  stats socket {self.commands} mode 600 level admin
defaults
  mode http
  timeout connect 1s
  timeout client 1h
  timeout server 1h
  http-reuse always
  option http-buffer-request        # else there is no body yet when the worker is chosen
  option http-no-delay              # else the events of a stream wait for each other in the kernel
  option redispatch 1
frontend front
  bind {self.data} backlog 4096
  default_backend workers
backend workers
  balance hash req.body,bytes(0,{HASHED_BYTES})
  hash-type consistent
  option httpchk GET /health
  http-response set-header x-worker http://%s
  default-server check inter 200ms fall 1 rise 1 pool-max-conn 1024
{"".join(f"  server {address(url)} {address(url)}{state}{chr(10)}" for url, state in rows)}
""")
        super().__init__(["haproxy", "-q", "-f", config], Path(folder, f"{name}.log"))

    def tell(self, text):
        """The reply of haproxy to a line on its command socket."""
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(5)
            to.connect(str(self.commands))
            to.sendall(text.encode() + b"\n")
            return b"".join(iter(lambda: to.recv(65_536), b"")).decode()

    def takes(self, url):
        """Whether it sends requests there."""
        rows = csv.DictReader(self.tell("show stat").removeprefix("# ").splitlines())
        return next(row["status"] for row in rows if row["svname"] == address(url)).startswith("UP")


class HaproxyThree:
    worker_header = b"x-worker"

    def __init__(self, three):
        self.three = three
        self.addresses = [one.data for one in three]

    def spilled(self):
        """It has no bound."""
        return None

    def wait_until_gone(self, url):
        until(lambda: not any(one.takes(url) for one in self.three), SEEN_WITHIN_S, f"{url} is known to be gone")

    def add(self, url):
        """Enables the spare worker at each of the three, because they do not talk to each other."""
        for one in self.three:
            said = one.tell(f"enable server workers/{address(url)}").strip()
            if said:
                raise Failed(f"haproxy does not enable {url}: {said}")
        until(lambda: all(one.takes(url) for one in self.three), ADDED_WITHIN_S, "the new worker takes requests")

    def places(self, bodies, gone):
        """None: haproxy cannot be asked, and it sends every request to its place."""
        return None


def address(url):
    return url.removeprefix("http://")
