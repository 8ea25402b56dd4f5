"""vllm-router and SMG for cost.py, from their PyPI wheels, in a virtual environment under target/."""
import subprocess
import venv
from pathlib import Path

from processes import Child, free_port
from routers import on_core, threads_on

HERE = Path(__file__).resolve().parents[2] / "target/peers"
WHEELS = ("vllm-router", "smg")


def installed():
    """The environment's folder of programs; made, and filled by pip, when it is not there."""
    programs = HERE / "bin"
    if not all((programs / wheel).exists() for wheel in WHEELS):
        venv.create(HERE, with_pip=True)
        subprocess.run([programs / "pip", "install", "--quiet", *WHEELS], check=True)
    return programs


class Peer(Child):
    """Both are tokio programs, which take as many threads as they see cores."""

    def __init__(self, command, title, policy, folder, workers, cores):
        self.title, port = title, free_port()
        self.data = f"127.0.0.1:{port}"
        urls = [f"http://{worker}" for worker in workers]
        super().__init__([*command, "--host", "127.0.0.1", "--port", port, "--policy", policy, "--prometheus-port",
                          free_port(), "--log-level", "error", "--worker-urls", *urls],
                         Path(folder, "peer.log"), prefix=on_core(cores),
                         env={"TOKIO_WORKER_THREADS": str(threads_on(cores))})


def kinds():
    """(title, constructor of folder, workers and cores) for each."""
    programs = installed()
    commands = (("vllm-router consistent_hash", [programs / "vllm-router"], "consistent_hash"),
                ("SMG cache_aware", [programs / "smg", "launch"], "cache_aware"))
    return [(title, lambda *rest, c=command, t=title, p=policy: Peer(c, t, p, *rest))
            for title, command, policy in commands]
