#!/usr/bin/env python3
"""Drives the page of a real cluster in a browser: every view and click, while replicas and workers fail and come back.

    tests/page/setup.sh
    target/page-python/bin/python tests/page/drive.py [--binary target/debug/grapevine] [--pictures DIRECTORY]

Anything that the policy of the page refuses, any request to elsewhere, any error of the script, and any finding of axe
in any view (all its rules, light and dark) fails the run. Exit code 0: everything held.
"""
import argparse
import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

sys.path.append(str(Path(__file__).parents[2] / "testbed" / "bench"))
from processes import Child, Failed, ask, run_script, until  # noqa: E402

LIMIT_S = 60            # for a change to be seen in the browser; generous, since machines are busy
MODEL = "fake-model"
TOKEN = "a-token-of-the-operator"
FOREIGN = "attacker.example"        # its names lead to this machine, in the browser alone
HOSTILE = "</td><script>alert(1)</script><img/src=x/onerror=alert(1)>"
SIZES = {"wide": (1440, 1000), "narrow": (390, 844)}


class Replica:
    """One replica, on the same ports at each of its starts."""

    def __init__(self, args, name, folder, workers, seeds):
        self.args, self.name, self.folder, self.workers, self.seeds = args, name, folder, workers, seeds
        self.ports = {"port": 0, "admin-port": 0, "gossip-port": 0}
        self.start()

    def start(self):
        ca = self.folder / "ca"
        command = [self.args.binary, "serve", "--replica-id", self.name, "--disable-prometheus", "--settle-secs", 0,
                   "--drain-secs", 1, "--gossip-ca", ca / "ca.pem", "--gossip-cert", ca / f"{self.name}.pem",
                   "--gossip-key", ca / f"{self.name}.key", "--worker-urls", *self.workers]
        for name, port in self.ports.items():
            command += [f"--{name}", port]
        for seed in self.seeds:
            command += ["--seed", seed]
        self.child = Child(command, self.folder / f"{self.name}.log", announces=True)
        self.at = self.child.listening()
        of = {"port": "data", "admin-port": "admin", "gossip-port": "gossip"}
        self.ports = {name: self.at[key].rsplit(":", 1)[1] for name, key in of.items()}
        self.page = f"http://{self.at['admin']}"

    def kill(self):
        self.child.kill_group()


class Cluster:
    """Three replicas, four fake workers."""

    def __init__(self, args, folder):
        self.folder, self.children = folder, []
        ca = folder / "ca"
        run = lambda *words: Child([args.binary, "ca", *words, "--dir", ca], folder / "ca.log").process.wait(30)
        run("init")
        self.workers = []
        for n in range(4):
            child = Child([args.binary, "fake-worker", "--port", 0], folder / f"w{n}.log", announces=True)
            self.children.append(child)
            child.url = f"http://{child.listening()['http']}"
            self.workers.append(child)
        urls = [worker.url for worker in self.workers]
        self.replicas = []
        self.args, self.issue, self.urls = args, lambda name: run("issue", name), urls
        for n in range(1, 4):
            self.add(f"r{n}")
        until(lambda: all(self.agrees(replica) for replica in self.replicas), LIMIT_S, "the replicas agree")

    def add(self, name):
        self.issue(name)
        seeds = [replica.at["gossip"] for replica in self.replicas[:3]]
        self.replicas.append(Replica(self.args, name, self.folder, self.urls, seeds))

    def agrees(self, replica):
        view = json.loads(ask(replica.at["admin"], "GET", "/cluster")[2])
        return view["ready"] and view["agreeing"] == len(self.replicas)

    def close(self):
        for child in [replica.child for replica in self.replicas] + self.children:
            child.kill_group()


class Traffic(threading.Thread):
    """Streams until it is told to stop, at whichever replica answers."""

    def __init__(self, replicas):
        super().__init__(daemon=True)
        self.replicas, self.over = replicas, threading.Event()

    def run(self):
        n = 0
        while not self.over.wait(0.1):
            n += 1
            text = f"group {n % 7}: " + "what was said before, " * 60 + str(n)
            body = {"model": MODEL, "stream": True, "max_tokens": 12, "messages": [{"role": "user", "content": text}]}
            try:
                ask(self.replicas[n % 2].at["data"], "POST", "/v1/chat/completions", json.dumps(body), within_s=30)
            except (OSError, http.client.HTTPException):
                pass    # its replica was killed


class Browser:
    """A page that fails the run at whatever it should not do."""

    def __init__(self, playwright):
        self.browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", f"--host-resolver-rules=MAP *.{FOREIGN} 127.0.0.1"])
        self.faults, self.axe, self.rules = [], Axe(), set()

    def open(self, scheme="light", size="wide", scripts=True):
        width, height = SIZES[size]
        context = self.browser.new_context(color_scheme=scheme, java_script_enabled=scripts,
                                           viewport={"width": width, "height": height})
        page = context.new_page()
        page.on("console", lambda line: self.heard(line.type, line.text))
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("request", lambda request: self.asked(request.url))
        page.on("dialog", lambda dialog: self.faults.append(f"a dialog: {dialog.message}"))
        return page

    def open_foreign(self):
        """A page of others, which may do as it likes."""
        page = self.browser.new_context().new_page()
        page.on("dialog", lambda dialog: self.faults.append(f"a dialog: {dialog.message}"))
        return page

    def heard(self, kind, text):
        if "Content Security Policy" in text or "Content-Security-Policy" in text:
            self.faults.append(f"policy: {text}")
        # Replicas are killed here: what the browser says of their connections is right. 401 asks for the token.
        elif kind == "error" and "net::ERR_" not in text and "401" not in text:
            self.faults.append(f"console: {text}")

    def asked(self, url):
        if not url.startswith(("http://127.0.0.1:", "data:")):
            self.faults.append(f"request to elsewhere: {url}")

    def accessible(self, page, name):
        """Lets axe look at a view, in both colour schemes."""
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = self.axe.run(page).response
            self.rules |= {rule["id"] for rule in found["passes"]}
            for finding in found["violations"]:
                places = ", ".join(str(node["target"]) for node in finding["nodes"][:5])
                self.faults.append(f"axe, {name}, {scheme}: {finding['id']}: {finding['help']}: {places}")
        page.emulate_media(color_scheme="light")

    def judge(self):
        if self.faults:
            raise Failed("\n".join(self.faults))


def headline(page):
    return page.locator("#headline h1")


def says(page, text, within_s=LIMIT_S):
    expect(headline(page)).to_contain_text(text, timeout=within_s * 1000)


def step(what):
    print(f"- {what}", flush=True)


def picture(args, page, name, whole=True):
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=args.pictures / f"{name}.png", full_page=whole)


def pictures(args, browser, url, name):
    if not args.pictures:
        return
    for scheme in ("light", "dark"):
        for size in SIZES:
            page = browser.open(scheme, size)
            page.goto(url)
            picture(args, page, f"{name}-{scheme}-{size}")
            overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if overflow > 0:
                browser.faults.append(f"{name}, {size}: {overflow} pixels wider than the window")
            page.context.close()


def views(args, cluster, browser, page):
    first = cluster.replicas[0]
    step("the first page, live")
    page.goto(first.page + "/")
    says(page, "3 replicas that agree; 4 workers usable")
    expect(page.locator("#live")).to_have_text(re.compile("^Live"))
    expect(page.locator("#replicas tbody tr")).to_have_count(3)
    expect(page.locator("#workers tbody tr")).to_have_count(4)
    expect(page.locator("#hour figure")).to_have_count(7)
    browser.accessible(page, "overview")

    step("without scripts")
    plain = browser.open(scripts=False)
    plain.goto(first.page + "/")
    says(plain, "All is well")
    expect(plain.locator("#workers tbody tr")).to_have_count(4)
    plain.context.close()

    step("keyboard: the link to the content, and a focus that stays while parts are replaced")
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    link = page.locator("#workers tbody a").first
    link.focus()
    href = link.get_attribute("href")
    before = page.locator("#headline time").inner_text()
    expect(page.locator("#headline time")).not_to_have_text(before, timeout=LIMIT_S * 1000)
    page.wait_for_function("href => document.activeElement.getAttribute('href') === href", arg=href)

    step("a worker, a replica")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Worker http://")
    expect(page.locator("#hour figure")).to_have_count(4, timeout=LIMIT_S * 1000)
    pictures(args, browser, page.url, "worker")
    browser.accessible(page, "worker")
    page.go_back()
    page.locator("#replicas tbody a").nth(1).click()
    expect(page.locator("h1")).to_contain_text("Replica r")
    expect(page.locator("#hour figure")).to_have_count(2, timeout=LIMIT_S * 1000)
    pictures(args, browser, page.url, "replica")
    browser.accessible(page, "replica")
    page.get_by_role("link", name="Overview").click()


def ask_where(args, browser, page, name, expected):
    page.get_by_role("link", name="Where would it go?").click()
    page.get_by_label("Model").select_option(MODEL)
    page.get_by_label("Prompt").fill("a <b>secret</b> prompt")
    page.get_by_role("button", name="Show where it would go").click()
    expect(page.locator("#asked h2").first).to_contain_text("The request would go to http://")
    for text in expected:
        expect(page.locator("#asked")).to_contain_text(text)
    if "secret" in page.content():
        raise Failed("the prompt is shown")
    browser.accessible(page, name)
    picture(args, page, name)
    page.get_by_role("link", name="Overview").click()


def faults(args, cluster, browser, page):
    first, last = cluster.replicas[0], cluster.replicas[2]
    step("where a prompt would go, by three replicas")
    ask_where(args, browser, page, "asked", ["3 replicas would choose alike", "r1", "r2", "r3"])

    step("a replica is killed, and comes back")
    last.kill()
    says(page, "1 dead for")
    expect(page).to_have_title(re.compile("^✖ "))
    expect(page.locator("#marks")).to_contain_text("is dead")
    ask_where(args, browser, page, "asked-one-dead", ["not known: it is dead", "2 replicas would choose alike"])
    pictures(args, browser, first.page + "/", "one-dead")
    browser.accessible(page, "one dead")
    last.start()
    says(page, "3 replicas that agree")
    expect(page.locator("#marks")).to_contain_text("is alive again")

    step("a worker is frozen, and goes on")
    frozen = cluster.workers[0]
    os.kill(frozen.pid, signal.SIGSTOP)
    says(page, "3 of 4 workers usable")
    row = page.locator("#workers tbody tr").first
    expect(row).to_contain_text(frozen.url)
    expect(row.locator(".sign.bad")).to_be_visible()
    browser.accessible(page, "frozen")
    pictures(args, browser, first.page + "/", "frozen")
    os.kill(frozen.pid, signal.SIGCONT)
    says(page, "; 4 workers usable")

    step("the replica that shows the page is killed, and comes back")
    first.kill()
    expect(page.locator("#live")).to_contain_text("Not live", timeout=LIMIT_S * 1000)
    expect(page.locator("#workers tbody tr")).to_have_count(4)
    picture(args, page, "not-live", whole=False)
    browser.accessible(page, "not live")
    first.start()
    expect(page.locator("#live")).to_have_text(re.compile("^Live"), timeout=LIMIT_S * 1000)
    says(page, "3 replicas that agree")


def attacks(args, cluster, browser, page):
    """Names that are markup wherever somebody else chooses one, and pages of others that reach for the port."""
    first = cluster.replicas[0]
    step("markup as a worker's id, model and zone, in a request's headers and in its model")
    # Ids have neither spaces nor quotes; what they may have is tried, and more of it in the model's name.
    worker = {"id": HOSTILE, "url": "http://127.0.0.1:9", "models": [HOSTILE + " \"'&"], "zone": "<b>zone"}
    status, _, body = ask(first.at["admin"], "POST", "/workers?warmup=false", json.dumps(worker))
    if status not in (200, 201):
        raise Failed(f"the worker was refused: {status} {body[:300]!r}")
    chat = {"model": worker["models"][0], "messages": [{"role": "user", "content": "hi"}]}
    markup = "<script>alert(1)</script>"
    headers = {"x-request-id": markup, "user-agent": markup, "x-tenant": markup}
    ask(first.at["data"], "POST", "/v1/chat/completions", json.dumps(chat), headers)
    page.goto(first.page + "/")
    row = page.locator("#workers tbody tr", has_text="onerror=alert(1)").first
    expect(row).to_be_visible()
    row.locator("a").first.click()
    expect(page.locator("h1")).to_contain_text("</td><script>")
    browser.accessible(page, "hostile worker")
    picture(args, page, "hostile-worker")
    page.get_by_role("link", name="Where would it go?").click()
    expect(page.get_by_label("Model")).to_contain_text("</td><script>")
    made = page.evaluate("[document.querySelectorAll('script:not([src])').length, document.querySelectorAll('img').length]")
    if made != [0, 0]:
        raise Failed(f"a name became markup: {made}")
    quoted = urllib.parse.quote(worker["id"], safe="")
    status, _, body = ask(first.at["admin"], "DELETE", f"/workers/{quoted}")
    if status != 200:
        raise Failed(f"the worker was not removed: {status} {body[:300]!r}")

    step("a rebound name, and a page of others that posts, fetches, frames and listens")
    port = first.at["admin"].rsplit(":", 1)[1]
    before = ask(first.at["admin"], "GET", "/workers")[2]
    foreign = browser.open_foreign()
    answer = foreign.goto(f"http://rebound.{FOREIGN}:{port}/")
    if answer.status != 403:
        raise Failed(f"a rebound name got {answer.status}")
    with served(FOREIGN_PAGE.replace("PORT", port)) as at:
        foreign.goto(f"http://www.{FOREIGN}:{at}/")
        expect(foreign.locator("#done")).to_have_text(re.compile("^read: 0, of "), timeout=LIMIT_S * 1000)
        tried = foreign.locator("#done").inner_text()
        foreign.locator("form").evaluate("form => form.submit()")
        foreign.wait_for_url(f"http://127.0.0.1:{port}/**")
        if "permission_denied" not in foreign.content():
            raise Failed(f"a form of others was taken: {foreign.content()[:300]}")
    foreign.context.close()
    # The rest of a worker may change meanwhile; its existence and state may not.
    rows = lambda text: [(w["id"], w["state"]) for w in json.loads(text)["workers"]]
    if rows(before) != rows(ask(first.at["admin"], "GET", "/workers")[2]):
        raise Failed("a page of others changed the workers")
    step(f"  {tried}")
    page.goto(first.page + "/")


FOREIGN_PAGE = """<!doctype html><title>others</title><p id="done"></p>
<form method="post" action="http://127.0.0.1:PORT/page/ask"><input name="prompt" value="x"><input name="model" value="y"></form>
<iframe src="http://127.0.0.1:PORT/"></iframe>
<script>
const at = "http://127.0.0.1:PORT";
const json = {"content-type": "application/json"};
const worker = JSON.stringify({url: "http://127.0.0.1:9", models: ["stolen"]});
const tries = [
  () => fetch(at + "/cluster"), () => fetch(at + "/workers"), () => fetch(at + "/about"), () => fetch(at + "/metrics"),
  () => fetch(at + "/workers", {method: "POST", headers: json, body: worker}),
  () => fetch(at + "/workers", {method: "POST", mode: "no-cors", body: worker}),
  () => fetch(at + "/add_worker?url=http://127.0.0.1:9", {method: "POST", mode: "no-cors"}),
  () => fetch(at + "/config/reload", {method: "POST", mode: "no-cors"}),
  () => fetch(at + "/quarantine", {method: "DELETE"}),
  () => new Promise((good, bad) => { const s = new EventSource(at + "/page/live"); s.onmessage = good; s.onerror = bad; }),
];
Promise.all(tries.map(go => go().then(answer => answer.type !== "opaque", () => false))).then(seen => {
  document.getElementById("done").textContent = "read: " + seen.filter(Boolean).length + ", of " + seen.length + " tries";
});
</script>"""


@contextlib.contextmanager
def served(text):
    """One page, on a port of its own."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = text.encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()


def large(args, cluster, browser):
    """Many replicas and workers: each view as long as its limits, as quick to read, and no wider than the window."""
    first = cluster.replicas[0]
    step(f"{args.replicas} replicas and {args.workers} workers")
    for n in range(len(cluster.replicas) + 1, args.replicas + 1):
        cluster.add(f"r{n}")
    added = [{"url": f"http://127.0.0.1:{port}", "models": [MODEL]} for port in range(2, args.workers - 2)]
    status, _, body = ask(first.at["admin"], "POST", "/workers?warmup=false", json.dumps(added))
    if status not in (200, 201):
        raise Failed(f"{status} {body[:300]!r}")
    page = browser.open()
    page.goto(first.page + "/")
    says(page, f"of {args.workers} workers usable", within_s=3 * LIMIT_S)
    expect(page.locator("#replicas tbody tr")).to_have_count(min(args.replicas, 50), timeout=3 * LIMIT_S * 1000)
    expect(page.locator("#workers tbody tr")).to_have_count(min(args.workers, 50))
    sizes = {path: len(ask(first.at["admin"], "GET", path)[2]) for path in ("/", "/page/style.css", "/page/script.js")}
    began = time.monotonic()
    page.reload()
    says(page, "usable")
    print(f"  {sum(sizes.values())} bytes, shown after {time.monotonic() - began:.2f} s", flush=True)
    if sum(sizes.values()) > 150_000:
        raise Failed(f"the page is larger than 150 kB: {sizes}")
    browser.accessible(page, "large")
    pictures(args, browser, first.page + "/", "large")
    page.locator("#workers tbody a").first.click()
    expect(page.locator("h1")).to_contain_text("Worker http://")
    page.context.close()


def token(args, folder, browser):
    step("a token, a session, and its end")
    with Child([args.binary, "serve", "--replica-id", "alone", "--port", 0, "--admin-port", 0, "--gossip-port", 0,
                "--disable-prometheus", "--admin-token", TOKEN], folder / "alone.log", announces=True) as child:
        page = browser.open()
        at = f"http://{child.listening()['admin']}"
        page.goto(at + "/")
        expect(page.get_by_label("Token")).to_be_focused()
        picture(args, page, "login")
        browser.accessible(page, "login")
        page.get_by_label("Token").fill("not-the-token-of-it")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the token")
        browser.accessible(page, "login refused")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        says(page, "no worker")
        browser.accessible(page, "no worker")
        expect(page.locator("#live")).to_have_text(re.compile("^Live"))
        if TOKEN in page.url or TOKEN in json.dumps(page.context.cookies()):
            raise Failed("the token is in the browser")
        page.get_by_role("link", name="Sign out").click()
        browser.accessible(page, "sign out")
        page.get_by_role("button", name="Sign out").click()
        page.goto(at + "/")
        expect(page.get_by_label("Token")).to_be_visible()
        page.context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target"))
    parser.add_argument("--binary", type=Path, default=target / "debug" / "grapevine")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of each view")
    parser.add_argument("--replicas", type=int, default=0, help="at the end, so many replicas ...")
    parser.add_argument("--workers", type=int, default=200, help="... and so many workers, most of which lead nowhere")
    args = parser.parse_args()
    expect.set_options(timeout=LIMIT_S * 1000)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = Path(folder)
        cluster = Cluster(args, folder)
        traffic = Traffic(cluster.replicas)
        try:
            traffic.start()
            browser = Browser(playwright)
            page = browser.open()
            views(args, cluster, browser, page)
            faults(args, cluster, browser, page)
            pictures(args, browser, cluster.replicas[0].page + "/", "well")
            attacks(args, cluster, browser, page)
            token(args, folder, browser)
            if args.replicas:
                large(args, cluster, browser)
            browser.judge()
        finally:
            traffic.over.set()
            cluster.close()
    print(f"everything held; axe: {len(browser.rules)} rules passed, no finding")


if __name__ == "__main__":
    run_script(main)
