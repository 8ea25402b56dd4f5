"""Requests of live_case.py: prompts of 2 KB in one user message, equal at the front and different at the end.

Equal seeds, equal prefixes. Standard library only.
"""
import itertools
import random

PROMPT_BYTES = 2_048
TAIL_BYTES = 128        # at the end of the prompt, different in each request
MODEL = "fake-model"


class Prompts:
    """`count` prefixes that belong to `name`; `tokens` of answer, streamed or plain."""

    numbers = itertools.count()     # counts all requests of this process, so no two tails are equal

    def __init__(self, name, count, stream=False, tokens=16):
        # The part that all requests share is at the front and short: haproxy hashes the first 512 bytes.
        front = (f'{{"model":"{MODEL}","max_tokens":{tokens},"stream":{str(stream).lower()},'
                 '"messages":[{"role":"user","content":"').encode()
        self.end = b'"}]}'
        length = len(front) + PROMPT_BYTES + len(self.end)
        self.head = ("POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                     f"x-grapevine-explain: 1\r\ncontent-length: {length}\r\n\r\n").encode()
        self.fronts = [front + prefix(name, number) for number in range(count)]

    def __len__(self):
        return len(self.fronts)

    def body(self, number):
        """The body of a request with this prefix and a tail of its own."""
        tail = f" Question {next(self.numbers)}: and what does that mean for the case before us? Please explain. "
        return self.fronts[number] + tail.ljust(TAIL_BYTES, ".").encode() + self.end

    def request(self, number):
        """The same as bytes for the wire."""
        return self.head + self.body(number)


def prefix(name, number):
    """Text that differs from that of other prefixes from its first words on."""
    rng = random.Random(f"{name} {number}")
    words = [f"{number:05d} {name}:"]
    size = len(words[0])
    while size < PROMPT_BYTES - TAIL_BYTES:
        words.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))))
        size += len(words[-1]) + 1
    return " ".join(words)[:PROMPT_BYTES - TAIL_BYTES].encode()
