"""The faults of a mixed run: one at a time, each repaired before the next begins."""
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from processes import Child, Failed, answers, until  # noqa: E402

BACK_S = 60


class Worker:
    """A fake worker that can be killed, frozen, and started again on its port."""

    def __init__(self, binary, folder, number, arguments):
        self.command = [binary, "fake-worker", "--exit-on-sigterm", *arguments]
        self.log = Path(folder, f"worker-{number}.log")
        self.start(0)

    def start(self, port):
        self.child = Child([*self.command, "--port", port], self.log, announces=True)
        self.address = self.child.listening()["http"]
        self.url = f"http://{self.address}"

    def again(self):
        self.child.process.stdout.close()
        self.start(self.address.rsplit(":", 1)[1])

    def stop(self):
        self.child.stop()


class Faults:
    """`pause(seconds)` returns false when the run is over."""

    def __init__(self, binary, ledger, workers, replicas, pause):
        self.binary, self.ledger, self.workers, self.replicas, self.pause = binary, ledger, workers, replicas, pause

    def worker_killed(self, rng):
        worker = rng.choice(self.workers)
        fault = self.ledger.fault("worker killed", worker.url)
        worker.child.kill_group()
        self.pause(10)
        worker.again()
        self.ledger.over(fault)

    def worker_frozen(self, rng):
        worker = rng.choice(self.workers)
        fault = self.ledger.fault("worker frozen", worker.url)
        os.killpg(worker.child.pid, signal.SIGSTOP)
        try:
            self.pause(25)
        finally:
            os.killpg(worker.child.pid, signal.SIGCONT)
        self.ledger.over(fault)

    def replica_killed(self, rng):
        replica = rng.choice(self.replicas)
        fault = self.ledger.fault("replica killed", replica.name)
        replica.kill_group()
        self.pause(8)
        self.back(replica)
        self.ledger.over(fault)

    def replica_restarted(self, rng):
        """SIGTERM, drain, start: excuses no failure."""
        replica = rng.choice(self.replicas)
        fault = self.ledger.fault("replica restarted", replica.name)
        replica.process.terminate()
        replica.process.wait(600)
        self.back(replica)
        self.ledger.over(fault)

    def worker_drained(self, rng):
        """Drained and taken back: excuses no failure."""
        worker, replica = rng.choice(self.workers), rng.choice(self.replicas)
        fault = self.ledger.fault("worker drained", worker.url)
        self.command(replica, "drain", worker.url)
        self.pause(15)
        self.command(rng.choice(self.replicas), "activate", worker.url)
        self.ledger.over(fault)

    def worker_removed(self, rng):
        """Removed at one replica, added at another: excuses no failure."""
        worker = rng.choice(self.workers)
        fault = self.ledger.fault("worker removed", worker.url)
        self.command(rng.choice(self.replicas), "remove", worker.url)
        self.pause(15)
        self.command(rng.choice(self.replicas), "add", worker.url)
        self.ledger.over(fault)

    ALL = (worker_killed, replica_restarted, worker_frozen, worker_drained, replica_killed, worker_removed)

    def command(self, replica, *words):
        done = subprocess.run([self.binary, "workers", words[0], "--admin", f"http://{replica.admin}", *words[1:]],
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"workers {' '.join(words)}: {done.stdout}{done.stderr}")

    def back(self, replica):
        replica.process.stdout.close()
        replica.again([other.gossip for other in self.replicas if other is not replica])
        until(lambda: answers(replica.data, "/readiness"), BACK_S, f"{replica.name} ready again", every_s=0.1)

    def run(self, rng, every_s):
        """Injects faults until the run is over; ends with everything repaired."""
        number = 0
        while self.pause(every_s):
            Faults.ALL[number % len(Faults.ALL)](self, rng)
            number += 1
