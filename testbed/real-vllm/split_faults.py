"""Checks of split.py: clients that leave, and workers that die, come back, or are cut off, under a steady load."""
import contextlib
import subprocess
import time

from apart import LEASE_S
from load import Fault, Load
from real import text, user
from streams import Stream, chat
from processes import until  # found by `real`

FAILOVER = {"x-grapevine-failover": "on"}
LEAVE_S = 10            # from a client's leaving to engines without requests
WELL_S = 120            # from a fault to requests as ever
USED_S = 120            # from a worker's /health to its use by all replicas
MULTIPORT = 15          # ports in one rule of iptables


def blocks_are_freed(f, since):
    """Waits until prefill workers hold no block; seconds since then."""
    until(lambda: f.used(f.prefill) == 0, 3 * LEASE_S + 10, "prefill workers without held blocks", every_s=0.1)
    return time.monotonic() - since


def nobody_is_served(f, streams):
    """Waits until engines have no request, after these clients left; seconds since then."""
    left = time.monotonic()
    for stream in streams:
        stream.leave()
    until(lambda: f.busy() == 0, LEAVE_S, "engines without requests after clients left", every_s=0.01)
    took = time.monotonic() - left
    for stream in streams:
        stream.join()
    return left, took


def leaving_during_prefill_frees_both(f):
    times = []
    for n in range(len(f.replicas)):
        streams = [Stream(replica.data, chat(user(text(f"early {n} {k}", 1900)), 8))
                   for k in range(2) for replica in f.replicas]
        until(lambda: f.busy() >= 1 or any(s.ending for s in streams), 60, "a prompt reaches an engine", every_s=0.002)
        early = [s for s in streams if not s.events and s.ending is None]
        assert early, [(s.ending, s.error) for s in streams]
        left, took = nobody_is_served(f, streams)
        times.append((took, blocks_are_freed(f, left)))
    worst, freed = (max(column) for column in zip(*times))
    return (f"engines' requests 0 within {worst * 1000:.0f} ms (worst of {len(times)} times 6 clients), no block held after "
            f"{freed:.1f} s")


def leaving_between_the_legs_frees_both(f):
    """The decode worker's engine stands still, so that the prompt is computed and nobody fetches it."""
    times = []
    for n, replica in enumerate(f.replicas):
        body = chat(user(text(f"between {n}", 300)), 8)
        prefill, decode = (f.workers[url] for url in f.both_halves(replica, body))
        decode.freeze()
        try:
            stream = Stream(replica.data, body)
            until(lambda: decode.requests() == 1, 60, "the decode leg is at its worker", every_s=0.005)
            assert prefill.requests() == 0 and not stream.events
            stream.leave()
            left = time.monotonic()
            until(lambda: decode.requests() == 0, LEAVE_S, "the decode leg is given up", every_s=0.005)
            given_up = time.monotonic() - left
            stream.join()
        finally:
            decode.thaw()
        until(lambda: f.busy() == 0, LEAVE_S, "engines without requests", every_s=0.02)
        times.append((given_up, blocks_are_freed(f, left)))
    given_up, freed = (max(column) for column in zip(*times))
    return (f"decode leg given up within {given_up * 1000:.0f} ms (worst of {len(times)}); blocks on the prefill worker "
            f"freed {freed:.1f} s after the client left (lease {LEASE_S} s)")


def leaving_during_decode_frees_both(f):
    times = []
    for n, replica in enumerate(f.replicas):
        stream = Stream(replica.data, chat(user(text(f"late {n}", 30)), 3_800))
        until(lambda: len(stream.events) >= 5 or stream.ending, 60, "a stream that runs", every_s=0.005)
        assert stream.ending is None, stream.error
        left, took = nobody_is_served(f, [stream])
        times.append((took, blocks_are_freed(f, left)))
    worst, freed = (max(column) for column in zip(*times))
    return f"engines' requests 0 within {worst * 1000:.0f} ms (worst of {len(times)}), no block held after {freed:.1f} s"


def comes_back(f, load, worker):
    """Starts a killed worker again, on its port, under the load."""
    worker.start()
    worker.wait()
    back = Fault(load)
    used = back.wait_used(worker.url, USED_S)
    back.wait(WELL_S)
    assert not back.failed(), back.told()
    return f"started again (new engine id): used by all replicas {used:.1f} s after its first /health; {back.told()}"


def killed(f, worker, name):
    """`kill -9` of all processes of a worker under load, and its return."""
    f.settle()
    with Load(f, name, FAILOVER) as load:
        fault = Fault(load)
        worker.child.kill_group()
        try:
            fault.wait(WELL_S)
            told = fault.told()
        finally:
            back = comes_back(f, load, worker)
        ended = time.monotonic()
    f.settle()
    freed = blocks_are_freed(f, ended)
    return fault, f"{told}; {back}; no block held {freed:.1f} s after the load ended"


def a_killed_prefill_worker_loses_no_request(f):
    fault, told = killed(f, next(iter(f.prefill.values())), "prefill")
    assert not fault.failed(), told
    return told


def a_killed_decode_worker_loses_no_request(f):
    fault, told = killed(f, next(iter(f.decode.values())), "decode")
    assert not fault.failed(), told
    return told


def ports_of(worker):
    """TCP ports on which a worker's processes listen, but for its HTTP port."""
    listed = subprocess.run(["ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout
    processes = subprocess.run(["ps", "-eo", "pid=,pgid="], check=True, capture_output=True, text=True).stdout
    group = {line.split()[0] for line in processes.splitlines() if int(line.split()[1]) == worker.child.pid}
    ports = set()
    for line in listed.splitlines():
        if any(f"pid={pid}," in line for pid in group):
            ports.add(int(line.split()[3].rsplit(":", 1)[1]))
    assert worker.side_port in ports, (worker.side_port, ports)
    return sorted(ports - {worker.port})


@contextlib.contextmanager
def cut_off(worker):
    """Loopback drops every packet of a worker's ports but HTTP's: the side channel and the blocks' own connections."""
    ports = ports_of(worker)
    chunks = [",".join(map(str, ports[n:n + MULTIPORT])) for n in range(0, len(ports), MULTIPORT)]

    def iptables(action, chunk):
        subprocess.run(["iptables", "-w", action, "INPUT", "-i", "lo", "-p", "tcp", "-m", "multiport", "--ports", chunk,
                        "-j", "DROP"], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            iptables("-I", chunk)
            stack.callback(iptables, "-D", chunk)
        yield


def a_closed_side_channel_is_found_and_forgiven(f):
    f.settle()
    worker = next(iter(f.prefill.values()))
    with Load(f, "channel", FAILOVER) as load:
        with cut_off(worker):
            fault = Fault(load)
            # vLLM's decode engines stand still while they wait for packets that nobody answers, for all requests there.
            fault.wait(2 * WELL_S)
            told, failed = fault.told(), fault.failed()
        opened = Fault(load)
        used = opened.wait_used(worker.url, USED_S)
        opened.wait(WELL_S)
        opened_told = opened.told()
        ended = time.monotonic()
    # Without requests nobody tries a worker that is still ejected: only the engines are waited for.
    until(lambda: f.busy() == 0, WELL_S, "engines without requests", every_s=0.3)
    freed = blocks_are_freed(f, ended)
    assert not failed, told
    return (f"{told}; opened again: used by all replicas after {used:.1f} s; {opened_told}; no block held {freed:.1f} s "
            "after the load ended")


CHECKS = (leaving_during_prefill_frees_both, leaving_between_the_legs_frees_both, leaving_during_decode_frees_both,
          a_killed_prefill_worker_loses_no_request, a_killed_decode_worker_loses_no_request,
          a_closed_side_channel_is_found_and_forgiven)
