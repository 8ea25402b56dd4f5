"""What a process costs, by the operating system's accounts: CPU time, resident memory, system calls."""
import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from processes import Failed

TICKS = os.sysconf("SC_CLK_TCK")
EVENTS = {"calls": "raw_syscalls:sys_enter", "futex": "syscalls:sys_enter_futex"}


def processes_of(child):
    """The process and its children (nginx: master and workers), of all of its threads."""
    pids = [child.pid]
    for tasks in Path(f"/proc/{child.pid}/task").iterdir():
        pids += map(int, Path(tasks, "children").read_text().split())
    return pids


@dataclass
class Cpu:
    """Seconds of CPU."""
    user: float
    system: float

    @classmethod
    def of(cls, child):
        """All threads so far, including those that have ended."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes_of(child)]
        return cls(*(sum(int(of[index]) for of in fields) / TICKS for index in (11, 12)))

    def __sub__(self, before):
        return Cpu(self.user - before.user, self.system - before.system)

    def per(self, count, seconds):
        """The figures of one measurement: `count` requests or events in `seconds`."""
        total = self.user + self.system
        return {"cpu_us": total / count * 1e6, "user_us": self.user / count * 1e6,
                "per_s": count / seconds, "busy": total / seconds}


def resident_kb(child):
    total = 0
    for pid in processes_of(child):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total


class SystemCalls:
    """Counts system calls of a process while it is entered, with `perf stat`; `counted` afterwards, by EVENTS' names.

    The counting itself costs CPU, so such a run says nothing about time.
    """

    def __init__(self, child):
        self.pids, self.counted = ",".join(map(str, processes_of(child))), {}

    def __enter__(self):
        events = [word for event in EVENTS.values() for word in ("-e", event)]
        self.perf = subprocess.Popen(["perf", "stat", "-x", ";", *events, "-p", self.pids],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.perf.send_signal(2)
        try:
            said = self.perf.communicate(timeout=10)[1]
        finally:
            self.perf.kill()
        counts = {line.split(";")[2]: line.split(";")[0] for line in said.splitlines() if line.count(";") > 2}
        for name, event in EVENTS.items():
            with contextlib.suppress(ValueError):
                self.counted[name] = int(counts.get(event, ""))
        if len(self.counted) < len(EVENTS):
            raise Failed(f"perf does not count system calls (root, and tracefs, are needed): {said[-500:]}")
