"""The routers that cost.py compares, and the workers behind them, each pinned to its cores.

Every router has as many threads or processes as cores (`"0"`, `"0,1"`) and keeps its connections to the workers; nginx
and haproxy pass streams on unbuffered.
"""
import subprocess
from dataclasses import dataclass
from pathlib import Path

from processes import Child, Failed, Replica, answers, ask, free_port, free_ports, until

READY_S = 15
CHAT_REPLY = ('{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"fake-model","choices":[{"index":0,'
              '"message":{"role":"assistant","content":"' + "word " * 40 + '"},"finish_reason":"stop"}],'
              '"usage":{"prompt_tokens":256,"total_tokens":296,"completion_tokens":40,'
              '"prompt_tokens_details":{"cached_tokens":240}}}')
MODELS_REPLY = '{"object":"list","data":[{"id":"fake-model","object":"model","created":1,"owned_by":"bench"}]}'


@dataclass(frozen=True)
class Way:
    """How clients and workers speak; without anything HTTP/1.1 in the clear."""
    tls: Path | None = None         # a file with a certificate and its key: clients come over TLS, with either version
    workers_http2: bool = False     # workers are asked in HTTP/2


def certificate(folder):
    """A file with a certificate that only itself signed and its key, for `Way.tls`."""
    both, key = Path(folder, "tls.pem"), Path(folder, "tls.key")
    # Not an authority, though nobody else signed it: verifiers refuse an authority's certificate as a server's.
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                    "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
                    "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", both], check=True, capture_output=True)
    both.write_text(both.read_text() + key.read_text())
    return both


def at(port, way):
    return f"{'https://' if way.tls else ''}127.0.0.1:{port}"


def on_core(core):
    """Words before a command that runs on these cores alone: a number, or several as taskset takes them."""
    return ["taskset", "-c", str(core)]


def threads_on(cores):
    return str(cores).count(",") + 1


def instant_workers(folder, count, core):
    """Workers that read the whole request and answer at once, in the HTTP that they are asked in: one haproxy process,
    `count` ports.

    A fake worker models an engine, which would limit the rate here.
    """
    ports = free_ports(count)
    config = Path(folder, "workers.cfg")
    for name, reply in ("chat", CHAT_REPLY), ("models", MODELS_REPLY):
        Path(folder, f"{name}.json").write_text(reply)
    config.write_text(f"""
global
  nbthread 1
  maxconn 8192
  tune.bufsize 262144
defaults
  mode http
  timeout client 1h
  timeout http-request 10s
  timeout http-keep-alive 5s
frontend workers
{"".join(f"  bind 127.0.0.1:{port}{chr(10)}" for port in ports)}
  http-request return status 200 if {{ path /health }}
  http-request return status 200 content-type application/json file {folder}/models.json if {{ path /v1/models }}
  http-request wait-for-body time 10s
  http-request return status 200 content-type application/json file {folder}/chat.json
""")
    child = Child(["haproxy", "-q", "-f", config], Path(folder, "workers.log"), prefix=on_core(core))
    workers = [f"127.0.0.1:{port}" for port in ports]
    try:
        # nginx would pass over a worker that refused it once.
        until(lambda: all(answers(worker, "/health") for worker in workers), READY_S, "workers that answer")
    except Failed:
        child.stop()
        raise
    return child, workers


def fake_worker(binary, folder, core, arguments):
    """A fake worker with vLLM's surface: (child, address)."""
    child = Child([binary, "fake-worker", "--port", 0, *arguments], Path(folder, "fake-worker.log"), announces=True,
                  prefix=on_core(core))
    return child, child.listening()["http"]


class Nginx(Child):
    title = "nginx"

    @staticmethod
    def can(way):
        return not way.workers_http2

    def __init__(self, folder, workers, cores, way=Way()):
        port = free_port()
        self.data = at(port, way)
        config = Path(folder, "nginx.conf")
        config.write_text(f"""
daemon off;
worker_processes {threads_on(cores)};
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 16m;
  client_body_buffer_size 256k;     # else bodies above 16 kB go through a file
  keepalive_requests 1000000000;
  upstream workers {{
{"".join(f"    server {worker};{chr(10)}" for worker in workers)}
    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 4s;
  }}
  server {{
    listen 127.0.0.1:{port}{' ssl http2' if way.tls else ''} backlog=4096;
    {f"ssl_certificate {way.tls}; ssl_certificate_key {way.tls};" if way.tls else ""}
    location / {{
      proxy_pass http://workers;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
""")
        super().__init__(["nginx", "-c", config, "-e", "stderr"], Path(folder, "nginx.log"), prefix=on_core(cores))


class Haproxy(Child):
    title, buffer, rules = "haproxy", 16_384, ("balance roundrobin",)

    @staticmethod
    def can(_way):
        return True

    def __init__(self, folder, workers, cores, way=Way()):
        port = free_port()
        self.data = at(port, way)
        config = Path(folder, "haproxy.cfg")
        config.write_text(f"""
global
  nbthread {threads_on(cores)}
  maxconn 8192
  tune.bufsize {self.buffer}
defaults
  mode http
  timeout connect 1s
  timeout http-request 10s
  timeout client 1h
  timeout server 1h
  http-reuse always
frontend front
  bind 127.0.0.1:{port}{f" ssl crt {way.tls} alpn h2,http/1.1" if way.tls else ""} backlog 4096
  default_backend workers
backend workers
{"".join(f"  {rule}{chr(10)}" for rule in self.rules)}{"".join(f"  server w{n} {worker} pool-max-conn 1024{' proto h2' * way.workers_http2}{chr(10)}" for n, worker in enumerate(workers))}
""")
        super().__init__(["haproxy", "-q", "-f", config], Path(folder, "haproxy.log"), prefix=on_core(cores))


class HaproxyHash(Haproxy):
    """Reads the whole body, and hashes it to a worker on a consistent ring: the least that a prefix router does."""

    title, buffer = "haproxy, hash of the body", 131_072
    rules = ("option http-buffer-request", "balance hash req.body", "hash-type consistent")


class Grapevine(Replica):
    """Default settings but for `arguments`: policy `prefix`, every body parsed and hashed, one log line a request."""

    def __init__(self, title, binary, arguments, folder, workers, cores, way=Way()):
        self.title = title
        urls = [f"http://{worker}" for worker in workers]
        arguments = ["--worker-urls", *urls, *arguments]
        if way.tls:
            arguments += ["--ssl-certfile", way.tls, "--ssl-keyfile", way.tls.with_suffix(".key")]
        if way.workers_http2:
            arguments += ["--worker-http2", "on"]
        super().__init__(binary, "bench", folder, arguments, prefix=on_core(cores))
        if way.tls:
            self.data = f"https://{self.data}"


def wait_until_routing(router, worker_count):
    """Waits until the router serves; for Grapevine also until it knows the models of all workers."""
    until(lambda: answers(router.data, "/v1/models"), READY_S, f"{router.title} that answers")
    if isinstance(router, Replica):
        def learned():
            pools = router.admin_get("/ring")["pools"]
            return any(len(pool["workers"]) == worker_count for pool in pools)
        until(learned, READY_S, "workers whose models are known")
    status, _, body = ask(router.data, "POST", "/v1/chat/completions",
                          '{"model":"fake-model","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}',
                          {"content-type": "application/json"})
    assert status == 200, f"{router.title} answers {status}: {body[:300]!r}"
