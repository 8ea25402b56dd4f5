"""The result of each request, and the failures that a fault excuses.

A fault excuses a failure only if it explains it: the connection or the stream was on the process that was killed or
frozen at that moment. Any other failed request is lost, and one lost request fails the run. A client without any
success fails the run, too, because it proves nothing.
"""
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

# A request that broke within so many seconds of a replica's end broke because of it.
REPLICA_S = 3.0
# A stream on a worker that was killed ends at once; on one that is frozen, at the limit between two events.
KILLED_S, FROZEN_S = 5.0, 30.0
KEPT = 200          # descriptions of failures


@dataclass
class Call:
    """One request of one client. `begun`: bytes of its answer had arrived."""
    client: str
    start: float
    end: float = 0.0
    ok: bool = False
    begun: bool = False
    worker: str = ""
    replica: str = ""
    what: str = ""


@dataclass
class Fault:
    """`kind` names node and fault, such as "worker frozen"; `target` is a replica's name or a worker's URL."""
    kind: str
    target: str
    start: float
    end: float = float("inf")


@dataclass
class Ledger:
    """Calls and faults of a run; safe for threads."""
    begun: float = field(default_factory=time.monotonic)
    faults: list = field(default_factory=list)
    planned: set = field(default_factory=set)   # clients; each must have at least one success
    counts: dict = field(default_factory=lambda: defaultdict(Counter))
    times: dict = field(default_factory=lambda: defaultdict(list))
    excused: list = field(default_factory=list)
    lost: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self):
        return time.monotonic() - self.begun

    def fault(self, kind, target):
        found = Fault(kind, target, self.now())
        with self.lock:
            self.faults.append(found)
        print(f"{found.start:7.1f} s  {kind} {target}", flush=True)
        return found

    def over(self, fault):
        fault.end = self.now()
        print(f"{fault.end:7.1f} s  over: {fault.kind} {fault.target}", flush=True)

    def record(self, call):
        call.end = self.now()
        with self.lock:
            self.counts[call.client]["requests"] += 1
            if call.ok:
                self.counts[call.client]["ok"] += 1
                self.times[call.client].append(call.end - call.start)
                return
            reason = self.excuse(call)
            self.counts[call.client]["excused" if reason else "lost"] += 1
            kept = self.excused if reason else self.lost
            if len(kept) < KEPT:
                kept.append((call, reason))
        if not reason:
            print(f"{call.end:7.1f} s  LOST {call}", flush=True)

    def excuse(self, call):
        """The fault that excuses this call, or None."""
        for fault in self.faults:
            if fault.start > call.end or fault.end + FROZEN_S < call.start:
                continue
            if fault.kind == "replica killed" and call.replica in ("", fault.target) \
                    and call.start <= fault.start <= call.end <= fault.start + REPLICA_S:
                return f"its replica {fault.target} was killed"
            # A worker that is drained or removed finishes its requests.
            limit = {"worker killed": KILLED_S, "worker frozen": FROZEN_S}.get(fault.kind)
            if limit and call.worker and fault.target == call.worker and call.begun:
                if call.start <= fault.start + KILLED_S and fault.start <= call.end <= fault.start + limit:
                    return f"its answer had begun on {fault.target}, which was {fault.kind.split()[1]}"
        return None

    def report(self):
        """Markdown, and whether nothing was lost and every client got something."""
        lines = ["| client | requests | whole | excused by a fault | lost | seconds p50 | max |",
                 "|---|---|---|---|---|---|---|"]
        total = Counter()
        for client, count in sorted(self.counts.items()):
            total.update(count)
            took = sorted(self.times[client]) or [0.0]
            lines.append(f"| {client} | {count['requests']} | {count['ok']} | {count['excused']} | {count['lost']} "
                         f"| {took[len(took) // 2]:.2f} | {took[-1]:.1f} |")
        lines.append(f"| all | {total['requests']} | {total['ok']} | {total['excused']} | {total['lost']} | | |")
        reasons = Counter(reason for _, reason in self.excused)
        lines += ["", *(f"- {count} x {reason}" for reason, count in reasons.most_common())]
        lines += [f"- LOST {call}" for call, _ in self.lost]
        silent = sorted(client for client in self.planned if not self.counts[client]["ok"])
        lines += [f"- NOTHING of {client} succeeded" for client in silent]
        return "\n".join(lines), total["requests"] > 0 and not total["lost"] and not silent
