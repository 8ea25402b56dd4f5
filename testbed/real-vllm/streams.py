"""One streamed answer, read by a thread: its events, and how it ended. Shared by the scripts of this folder."""
import contextlib
import http.client
import json
import threading
import time

from real import MODEL


def chat(messages, tokens, **options):
    """The body of a streamed chat of exactly so many tokens."""
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "ignore_eos": True, **options}


class Stream:
    """A request with `"stream": true`.

    `ending`: None while it runs, then "done" (with [DONE]), "refused" (no 200), "error event", "cut", or "left".
    """

    def __init__(self, address, body, path="/v1/chat/completions", headers=()):
        host, port = address.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=120)
        self.headers = {"content-type": "application/json", "x-grapevine-explain": "1", **dict(headers)}
        self.path, self.body = path, json.dumps(body)
        self.events, self.ending, self.status, self.worker, self.retry_after = [], None, None, None, None
        self.error, self.has_left = None, False
        self.begun, self.done_at = time.monotonic(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            self.connection.request("POST", self.path, self.body, self.headers)
            reply = self.connection.getresponse()
            self.status, self.worker = reply.status, reply.getheader("x-grapevine-worker")
            self.retry_after = reply.getheader("retry-after")
            if reply.status != 200:
                self.error, self.ending = reply.read(), "refused"
                return
            for line in reply:
                self.read_line(line)
            # The events of a response have no [DONE]: the last one says that it is complete.
            is_complete = self.events and self.events[-1].get("type") == "response.completed"
            self.ending = self.ending or ("done" if is_complete else "cut")
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # AttributeError: http.client, where `leave` closed the socket before the head came.
            self.error, self.ending = error, self.ending or ("left" if self.has_left else "cut")
        finally:
            self.done_at = time.monotonic()
            self.connection.close()

    def read_line(self, line):
        if not line.startswith(b"data:"):
            return
        value = line[5:].strip()
        if value == b"[DONE]":
            self.ending = self.ending or "done"
            return
        event = json.loads(value)
        if event.get("error"):
            self.error, self.ending = event["error"], "error event"
        else:
            self.events.append(event)

    def leave(self):
        """Closes the socket under the reader."""
        self.has_left = True
        # None once the answer has ended.
        sock = self.connection.sock
        with contextlib.suppress(OSError):
            if sock is not None:
                sock.shutdown(2)

    def join(self):
        self.thread.join(150)
        assert not self.thread.is_alive(), "a stream hangs"
        return self

    @property
    def text(self):
        """Of chats, completions and responses."""
        parts = []
        for event in self.events:
            if event.get("type") == "response.output_text.delta":
                parts.append(event["delta"])
            for choice in event.get("choices", ()):
                parts.append(choice["delta"].get("content") if "delta" in choice else choice["text"])
        return "".join(part or "" for part in parts)

    @property
    def finish_reason(self):
        reasons = [c["finish_reason"] for e in self.events for c in e.get("choices", ()) if c["finish_reason"]]
        assert len(reasons) <= 1, reasons
        return reasons[0] if reasons else None

    def usage(self):
        return next((e["usage"] for e in reversed(self.events) if e.get("usage")), None)
