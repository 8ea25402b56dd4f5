"""An open loop of HTTP/1.1 requests to several routers: each is sent at its time, whatever happened to earlier ones.

One thread with one epoll over connections that stay open (closed_loop.py). Which router a request goes to is drawn
among those in rotation, as a balancer would; a script takes a router out of rotation and puts it back.
Standard library only.
"""
import select
import threading
import time
from typing import NamedTuple

from closed_loop import Connection
from processes import Failed

IN_FLIGHT_MAX = 4_000
REST_S = 0.02           # longest sleep, so that the end is noticed
END_S = 30              # from the end of the arrivals to the last answer


class Outcome(NamedTuple):
    """The result of one request. Times are of `time.monotonic`."""
    address: str            # of the router
    worker: str | None      # as the router named it; None if no head of an answer arrived
    ok: bool
    sent_at: float
    ended_at: float
    why: str                # of a failure: the head's first line, and how it ended


class OpenLoop:
    """Sends in a thread while it is entered, a context manager; leaving waits for the last answers.

    `arrivals`: an iterator of (seconds after the one before, request bytes). `rng`: draws routers.
    """

    def __init__(self, addresses, worker_header, arrivals, rng):
        self.addresses, self.worker_header, self.arrivals, self.rng = list(addresses), worker_header, arrivals, rng
        self.outcomes, self.late_s, self.cpu_s, self.error = [], 0.0, 0.0, None
        self.out, self.idle, self.by_file = set(), {address: [] for address in addresses}, {}
        self.poll, self.lock, self.stopped = select.epoll(), threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join(END_S + 5)

    def take_out(self, address):
        """Sends no new requests to this router."""
        with self.lock:
            self.out.add(address)

    def put_back(self, address):
        with self.lock:
            self.out.discard(address)

    def check(self):
        """`Failed` when the thread has ended by itself."""
        if self.error:
            raise self.error

    def run(self):
        try:
            due = time.monotonic()
            while not self.stopped.is_set():
                after, request = next(self.arrivals)
                due += after
                while not self.stopped.is_set():
                    rest = due - time.monotonic()
                    if rest <= 0:
                        break
                    self.read(min(rest, REST_S))
                self.late_s = max(self.late_s, time.monotonic() - due)
                self.send(request)
                self.read(0)
            last = time.monotonic() + END_S
            while any(c.busy for c in self.by_file.values()) and time.monotonic() < last:
                self.read(REST_S)
            for connection in list(self.by_file.values()):
                if connection.busy:
                    self.ended(connection, False, f"no answer {END_S} s after the last request")
        except Exception as error:  # any error: the script must not measure a load that has stopped
            self.error = error if isinstance(error, Failed) else Failed(f"the load ended: {error!r}")
        finally:
            self.cpu_s = time.thread_time()
            for connection in self.by_file.values():
                connection.socket.close()
            self.poll.close()

    def send(self, request):
        if sum(c.busy for c in self.by_file.values()) >= IN_FLIGHT_MAX:
            raise Failed(f"{IN_FLIGHT_MAX} requests are in flight: the load is more than this machine takes")
        with self.lock:
            there = [address for address in self.addresses if address not in self.out]
        address = self.rng.choice(there)
        while True:
            connection, fresh = self.idle[address].pop() if self.idle[address] else None, False
            try:
                if connection is None:
                    connection, fresh = Connection(address, None), True
                    self.by_file[connection.socket.fileno()] = connection
                    self.poll.register(connection.socket, select.EPOLLIN)
                connection.sent_at = time.monotonic()
                connection.ask(None, request)
                return
            except OSError as error:
                if connection is not None:
                    connection.busy = False
                    self.drop(connection)
                # A connection that was closed while idle does not fail the request.
                if fresh or connection is None:
                    now = time.monotonic()
                    self.outcomes.append(Outcome(address, None, False, now, now, f"not sent: {error!r}"))
                    return

    def read(self, within_s):
        for file, _ in self.poll.poll(within_s):
            connection = self.by_file.get(file)
            if connection is None:
                continue
            at_rest = not connection.busy
            try:
                answer = connection.read(self.worker_header)
            except OSError as error:
                if at_rest:
                    self.idle[connection.address].remove(connection)
                else:
                    self.ended(connection, False, f"broken off: {error}")
                connection.busy = False
                self.drop(connection)
                continue
            if answer is not None:
                self.ended(connection, answer.ok, "")
                connection.busy = False
                self.idle[connection.address].append(connection)

    def ended(self, connection, ok, how):
        worker = connection.head and connection.header(self.worker_header)
        why = ""
        if not ok:
            line = connection.head.split(b"\r\n")[0].decode() if connection.head else "no head"
            why = f"{line}; {how or connection.got[-200:].decode(errors='replace')}"
        self.outcomes.append(Outcome(connection.address, worker.decode() if worker else None, ok, connection.sent_at,
                                     time.monotonic(), why))

    def drop(self, connection):
        del self.by_file[connection.socket.fileno()]
        connection.socket.close()
