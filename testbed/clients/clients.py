"""The clients of a mixed run: official and common libraries, a browser, sockets. None of them retries by itself.

Each client is a function that makes one call and fills in a `Call`; an exception in it is the call's failure.
"""
import http.server
import json
import os
import random
import threading
from pathlib import Path

# LiteLLM fetches prices from the internet when it is imported, unless this is set.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import httpx
import litellm
import openai
from langchain_openai import ChatOpenAI
from playwright.sync_api import sync_playwright
from websockets.sync.client import connect

EXPLAIN = {"x-grapevine-explain": "1"}
WORDS = [f"word{n}" for n in range(400)]
# Longer than any limit on a first token.
LONG_S = 125
TIMEOUT_S = 400


class Wrong(Exception):
    """An answer that does not match the request."""


def text(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def placed(call, headers):
    """The replica and the worker that the answer's head names."""
    call.worker, call.replica = headers.get("x-grapevine-worker", ""), headers.get("x-grapevine-replica", "")


def check(good, what):
    if not good:
        raise Wrong(str(what)[:500])


class Clients:
    """All clients of one front; `models` are names, `tokens_per_s` is the speed of a worker with one request."""

    def __init__(self, front, key, models, tokens_per_s):
        self.front, self.key, self.models = front, key, models
        self.long_tokens = int(LONG_S * tokens_per_s)
        self.systems = [text(random.Random(n), 300) for n in range(8)]
        limits = {"max_retries": 0, "timeout": TIMEOUT_S}
        self.openai = openai.OpenAI(base_url=f"{front}/v1", api_key=key, default_headers=EXPLAIN, **limits)
        self.anthropic = anthropic.Anthropic(base_url=front, auth_token=key, api_key=None, **limits)
        self.langchain = {model: ChatOpenAI(base_url=f"{front}/v1", api_key=key, model=model, max_tokens=20,
                                            max_retries=0, timeout=TIMEOUT_S) for model in models}
        self.raw = httpx.Client(base_url=front, timeout=TIMEOUT_S,
                                headers={"authorization": f"Bearer {key}", **EXPLAIN})

    def messages(self, rng, words=40):
        return [{"role": "system", "content": rng.choice(self.systems)},
                {"role": "user", "content": text(rng, words)}]

    def openai_plain(self, call, rng):
        reply = self.openai.chat.completions.with_raw_response.create(
            model=rng.choice(self.models), messages=self.messages(rng), max_tokens=rng.randint(1, 40))
        placed(call, reply.headers)
        check(reply.parse().choices[0].finish_reason, reply.text)

    def openai_stream(self, call, rng):
        with self.openai.chat.completions.with_streaming_response.create(
                model=rng.choice(self.models), messages=self.messages(rng), max_tokens=rng.randint(20, 400),
                stream=True) as reply:
            placed(call, reply.headers)
            call.begun, last = True, None
            for line in reply.iter_lines():
                check('"error"' not in line, line)
                last = line or last
            check(last == "data: [DONE]", f"ended with {last!r}")

    def openai_other(self, call, rng):
        """Completions, embeddings, the list of models."""
        which, model = rng.randrange(3), rng.choice(self.models)
        if which == 0:
            reply = self.openai.completions.with_raw_response.create(model=model, prompt=text(rng, 200), max_tokens=8)
            good = lambda: reply.parse().choices
        elif which == 1:
            reply = self.openai.embeddings.with_raw_response.create(model=model, input=[text(rng, 20)] * 3)
            good = lambda: len(reply.parse().data) == 3
        else:
            reply = self.openai.models.with_raw_response.list()
            good = lambda: set(self.models) <= {m["id"] for m in json.loads(reply.text)["data"]}
        placed(call, reply.headers)
        check(good(), reply.text)

    def long_plain(self, call, rng):
        """A plain answer that takes two minutes: its first byte is its last."""
        reply = self.openai.chat.completions.with_raw_response.create(
            model=rng.choice(self.models), messages=self.messages(rng), max_tokens=self.long_tokens)
        placed(call, reply.headers)
        made = reply.parse().usage.completion_tokens
        check(made == self.long_tokens, f"{made} of {self.long_tokens} tokens")

    def responses(self, call, rng):
        """An answer that its worker keeps: read again by its id through any replica, and continued."""
        first = self.openai.responses.create(model=rng.choice(self.models), input=text(rng, 60), max_output_tokens=16)
        again = self.openai.responses.retrieve(first.id)
        check(again.id == first.id and again.output_text == first.output_text, again)
        second = self.openai.responses.create(model=first.model, input=text(rng, 10), max_output_tokens=16,
                                              previous_response_id=first.id)
        check(second.status == "completed", second)

    def audio(self, call, rng):
        """A file as multipart: the same words each time, from every worker."""
        file = ("noise.wav", rng.randbytes(rng.randint(1_000, 300_000)), "audio/wav")
        model = rng.choice(self.models)
        heard = [self.openai.audio.transcriptions.create(model=model, file=file).text for _ in range(2)]
        check(heard[0] and heard[0] == heard[1], heard)

    def anthropic_messages(self, call, rng):
        model = rng.choice(self.models)
        with self.anthropic.messages.stream(model=model, max_tokens=30,
                                            messages=[{"role": "user", "content": text(rng, 60)}]) as stream:
            call.begun = True
            check("".join(stream.text_stream), "no text")
            check(stream.get_final_message().stop_reason, "no end")

    def litellm_chat(self, call, rng):
        stream = rng.random() < 0.5
        reply = litellm.completion(model=f"openai/{rng.choice(self.models)}", api_base=f"{self.front}/v1",
                                   api_key=self.key, messages=self.messages(rng), max_tokens=20, stream=stream,
                                   num_retries=0, max_retries=0, timeout=TIMEOUT_S)
        if stream:
            call.begun = True
            chunks = list(reply)
            check(chunks[-1].choices[0].finish_reason, chunks[-1])
        else:
            check(reply.choices[0].message.content, reply)

    def langchain_chat(self, call, rng):
        chat = self.langchain[rng.choice(self.models)]
        question = [("system", rng.choice(self.systems)), ("human", text(rng, 30))]
        if rng.random() < 0.5:
            check(chat.invoke(question).content, "no text")
        else:
            call.begun = True
            check("".join(chunk.content for chunk in chat.stream(question)), "no text")

    def tools(self, call, rng):
        """Rerank, score, tokenize: endpoints without chat or stream."""
        model = rng.choice(self.models)
        path, body = rng.choice([
            ("/v1/rerank", {"model": model, "query": text(rng, 5), "documents": [text(rng, 20) for _ in range(4)]}),
            ("/v1/score", {"model": model, "text_1": text(rng, 5), "text_2": [text(rng, 20), text(rng, 20)]}),
            ("/tokenize", {"model": model, "prompt": text(rng, 100)})])
        reply = self.raw.post(path, json=body)
        placed(call, reply.headers)
        check(reply.status_code == 200, f"{path}: {reply.status_code} {reply.text}")

    def websocket(self, call, rng):
        """A realtime session: some frames each way, then the client closes."""
        url = self.front.replace("http", "ws", 1) + f"/v1/realtime?model={rng.choice(self.models)}"
        with connect(url, additional_headers={"authorization": f"Bearer {self.key}", **EXPLAIN},
                     open_timeout=20, close_timeout=10) as socket:
            placed(call, socket.response.headers)
            call.begun = True
            for turn in range(rng.randint(1, 20)):
                socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA" * 100, "n": turn}))
                check(json.loads(socket.recv(timeout=20)), "no answer")

    def wrong(self, call, rng):
        """Requests that must be refused, with their status."""
        status, method, path, body = rng.choice([
            (404, "POST", "/v1/chat/completions", {"model": "no-such-model", "messages": []}),
            (400, "POST", "/v1/chat/completions", "{"), (404, "POST", "/sleep", {}), (404, "GET", "/metrics", None),
            (404, "POST", "/collective_rpc", {"method": "x"}), (405, "DELETE", "/v1/chat/completions", None)])
        reply = self.raw.request(method, path, content=body if body is None or isinstance(body, str) else json.dumps(body),
                                 headers={"content-type": "application/json"})
        check(reply.status_code == status and "message" in reply.json()["error"],
              f"{method} {path}: {reply.status_code} {reply.text}, wanted {status}")


class Page:
    """A page of another origin in headless Chromium. All its calls run on the thread that made it."""

    def __init__(self, front, key, models, origin_port, chromium):
        self.front, self.key, self.models = front, key, models
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        self.page = self.browser.new_page()
        self.page.goto(f"http://127.0.0.1:{origin_port}/page.html")

    def fetch(self, call, rng):
        seen = self.page.evaluate("a => ask(...a)", [self.front, self.key, rng.choice(self.models), text(rng, 60),
                                                     rng.random() < 0.5])
        call.worker, call.replica, call.begun = seen["worker"], seen["replica"], seen["begun"]
        check(seen["ok"], seen["what"])

    def close(self):
        self.browser.close()
        self.playwright.stop()


def origin():
    """Serves the page: (port, function that ends it)."""
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *words, **named):
            super().__init__(*words, directory=str(Path(__file__).resolve().parent), **named)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1], server.shutdown
