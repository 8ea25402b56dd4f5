"""A closed loop of HTTP/1.1 requests over connections that stay open: one thread, one epoll, raw bytes.

For workers that answer in a millisecond on a machine that routers and workers share. A request of 2 KB costs 16 us of
CPU here and 62,000 a second were sent (24 in flight, to one haproxy that answers by itself), where asyncio streams took
36 us and http.client with threads 161. Behind a router it is 15 to 40 us, reported as `Run.cpu_s`.
Standard library only.
"""
import contextlib
import select
import socket
import time
from typing import NamedTuple

from processes import Failed

CONNECT_S = 5
READ_BYTES = 65_536
ANSWER_BYTES_MAX = 1 << 20


class Answer(NamedTuple):
    """The result of one request."""
    tag: object             # tag of its job
    worker: str | None      # as the router named it, in lower case; None if it did not, or if the request failed
    ok: bool                # status 200 and a whole body; of a stream, without an error event
    first_s: float          # from sending until the first event of a stream, else until the end
    whole_s: float          # from sending until the last byte


class Run(NamedTuple):
    """The results of a closed loop that has ended."""
    answers: list           # list of Answer, in order of their ends
    seconds: float
    cpu_s: float            # user and system time of this process meanwhile


class Connection:
    """A connection to a router with at most one request in flight."""

    def __init__(self, address, slot):
        self.address, self.slot = address, slot
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.busy = False

    def ask(self, tag, request):
        """Sends a request; `OSError` where the router has closed the connection."""
        self.tag, self.got, self.head, self.first, self.busy = tag, b"", None, None, True
        self.begun = time.perf_counter()
        # An empty socket buffer takes a request of some KB at once.
        if self.socket.send(request) != len(request):
            raise Failed(f"{self.address} does not read: a request of {len(request)} bytes was not taken whole")

    def read(self, worker_header):
        """Reads what has arrived: returns an Answer once it is whole, else None; `OSError` when the connection broke."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionError(f"{self.address} closed a connection before the end of an answer")
        self.got += data
        if len(self.got) > ANSWER_BYTES_MAX:
            raise Failed(f"{self.address} sent more than {ANSWER_BYTES_MAX} bytes for one answer")
        now = time.perf_counter()
        if self.head is None:
            end = self.got.find(b"\r\n\r\n")
            if end < 0:
                return None
            self.head, self.body_at = self.got[:end + 2].lower(), end + 4
            length = self.header(b"content-length")
            self.whole_at = None if length is None else self.body_at + int(length)
        if self.whole_at is not None:
            whole = len(self.got) >= self.whole_at
        else:
            if self.first is None and self.got.find(b"data: ", self.body_at) >= 0:
                self.first = now
            whole = self.got.endswith(b"\r\n0\r\n\r\n")
        if not whole:
            return None
        self.busy = False
        worker = self.header(worker_header)
        good = self.head.startswith(b"http/1.1 200") and (
            self.whole_at is not None or (b"data: [DONE]" in self.got and b'"error"' not in self.got))
        return Answer(self.tag, worker.decode() if worker else None, good, (self.first or now) - self.begun,
                      now - self.begun)

    def header(self, name):
        """The value of a header of the answer, in lower case; None if it is not there."""
        begin = self.head.find(b"\r\n" + name + b":")
        if begin < 0:
            return None
        begin += len(name) + 3
        return self.head[begin:self.head.index(b"\r\n", begin)].strip()


def run(slots, worker_header, within_s):
    """Sends the jobs of the slots, each slot one request at a time; `Failed` when that takes longer than `within_s`.

    A slot is (addresses, jobs): the routers to which it opens connections before the first request, and an iterator of
    (address, request bytes, tag). Slots that share an iterator share its jobs. `worker_header`: the header, in lower
    case, in which the router names the worker. A request whose connection breaks is answered with ok = False.
    """
    answers, at_work, by_file = [], 0, {}
    with contextlib.ExitStack() as stack:
        poll = stack.enter_context(select.epoll())

        def connect(address, slot):
            connection = Connection(address, slot)
            stack.callback(connection.socket.close)
            by_file[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
            return connection

        def broke(connection):
            """Opens another connection in its place; a request on the old one has failed."""
            if connection.busy:
                took = time.perf_counter() - connection.begun
                answers.append(Answer(connection.tag, None, False, took, took))
            del by_file[connection.socket.fileno()]
            connection.socket.close()
            slot, address = connection.slot, connection.address
            pools[slot][address] = connect(address, slot)

        def go_on(slot):
            """Sends the slot's next request; False when it has none."""
            for address, request, tag in slots[slot][1]:
                connection = pools[slot][address]
                try:
                    connection.ask(tag, request)
                    return True
                except OSError:
                    broke(connection)
            return False

        pools = [{address: connect(address, slot) for address in addresses}
                 for slot, (addresses, _) in enumerate(slots)]
        begun, cpu = time.monotonic(), time.process_time()
        for slot in range(len(slots)):
            at_work += go_on(slot)
        while at_work:
            for file, _ in poll.poll(1.0):
                connection = by_file.get(file)
                if connection is None:
                    continue
                at_rest = not connection.busy
                try:
                    answer = connection.read(worker_header)
                except OSError:
                    broke(connection)
                else:
                    if answer is None:
                        continue
                    answers.append(answer)
                if not at_rest:
                    at_work -= not go_on(connection.slot)
            if time.monotonic() > begun + within_s:
                raise Failed(f"{at_work} requests of {len(answers) + at_work} are not answered within {within_s:.0f} s")
        return Run(answers, time.monotonic() - begun, time.process_time() - cpu)
