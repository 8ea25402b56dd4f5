"""Checks of split.py: forms of requests, each as one worker alone answers it, or refused with the reason."""
import json

from real import MODEL, text, user
from streams import Stream, chat
from processes import ask  # found by `real`

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
# What differs between any two answers, or tells which worker had what in its cache.
VARYING = {"id", "item_id", "response_id", "created", "created_at", "completed_at", "prompt_tokens_details",
           "input_tokens_details", "cached_tokens", "cache_read_input_tokens", "system_fingerprint",
           "request_id", "obfuscation"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": TOOL["function"]["parameters"]}}


def hello(name, **options):
    return {"model": MODEL, "messages": user(text(name, 60)), "max_tokens": 12, "temperature": 0, **options}


def prompt(name, **options):
    return {"model": MODEL, "prompt": text(name, 60), "max_tokens": 12, "temperature": 0, **options}


# (what, path, body, way in the access log)
FORMS = (
    ("max_tokens 1", CHAT, hello("one token", max_tokens=1), "pair"),
    ("max_completion_tokens", CHAT, hello("completion", max_completion_tokens=5), "pair"),
    ("min_tokens", CHAT, hello("least", min_tokens=6), "pair"),
    ("stop", CHAT, hello("stop", stop=["e", "a"]), "pair"),
    ("seed", CHAT, hello("seed", temperature=1, seed=7), "pair"),
    ("logprobs of a chat", CHAT, hello("logprobs", logprobs=True, top_logprobs=2), "pair"),
    ("logprobs of a completion", COMPLETIONS, prompt("logprobs", logprobs=2), "pair"),
    ("a tool by name", CHAT, hello("tool", tools=[TOOL], max_tokens=40, tool_choice={
        "type": "function", "function": {"name": "weather"}}), "forced_tool"),
    ("a tool, required", CHAT, hello("required", tools=[TOOL], tool_choice="required", max_tokens=60), "forced_tool"),
    ("a JSON schema", CHAT, hello("schema", response_format=SCHEMA, max_tokens=40), "pair"),
    ("a response", RESPONSES, {"model": MODEL, "input": text("response", 60), "max_output_tokens": 12,
                               "temperature": 0, "store": False}, "pair"),
    ("tokens as prompt", COMPLETIONS, prompt("tokens", prompt=list(range(300, 420))), "pair"),
    ("n 2", CHAT, hello("choices", n=2, temperature=1, seed=5), "choices"),
    ("two prompts", COMPLETIONS, prompt("two", prompt=[text("two a", 40), text("two b", 50)]), "several_prompts"),
    ("echo", COMPLETIONS, prompt("echo", echo=True, logprobs=1), "echo"),
    ("prompt_logprobs", COMPLETIONS, prompt("prompt_logprobs", prompt_logprobs=1), "prompt_logprobs"),
    ("beam search", COMPLETIONS, prompt("beam", use_beam_search=True, n=2), "choices"),
    ("Anthropic's messages", MESSAGES, hello("messages"), "messages"),
    ("max_tokens 0", CHAT, hello("nothing", max_tokens=0), "pair"),
    ("a prompt that is too long", CHAT, hello("long", messages=user(text("long", 6000))), "pair"),
)
STREAMS = (
    ("usage in each event", CHAT, chat(user(text("continuous", 60)), 8,
                                       stream_options={"include_usage": True, "continuous_usage_stats": True}), "pair"),
    ("no usage", CHAT, {**hello("no usage"), "stream": True}, "pair"),
    ("a tool, streamed", CHAT, {**FORMS[7][2], "stream": True}, "forced_tool"),
    ("a response, streamed", RESPONSES, {**FORMS[10][2], "stream": True}, "pair"),
    ("n 2, streamed", CHAT, {**hello("choices"), "n": 2, "temperature": 1, "seed": 5, "stream": True}, "choices"),
)


def comparable(value):
    """A JSON value without what varies; numbers with four digits, since sums of floats depend on the batch."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in VARYING and v is not None}
    if isinstance(value, list):
        return [comparable(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value


def joined(events):
    """A stream by choice, however many tokens an event has: (what each choice says, other events, last usage)."""
    said, others, usage = {}, [], None
    for event in comparable(events):
        for choice in event.get("choices", []):
            parts = said.setdefault(choice["index"], {"text": "", "arguments": "", "names": [], "end": None})
            delta = choice.get("delta", {})
            parts["text"] += delta.get("content") or choice.get("text") or ""
            for call in delta.get("tool_calls", []):
                parts["arguments"] += call["function"].get("arguments") or ""
                parts["names"] += [name for name in [call["function"].get("name")] if name]
            parts["end"] = choice.get("finish_reason") or parts["end"]
        if event.get("type") == "response.output_text.delta":
            said["response"] = said.get("response", "") + event["delta"]
        elif "type" in event:
            others.append({k: v for k, v in event.items() if k != "sequence_number"})
        usage = event.get("usage") or usage
    return said, others, usage


def forms_are_right_or_refused_with_the_reason(f):
    ways = {}
    for what, path, body, way in FORMS:
        alone = ask(f.oracle.address, "POST", path, json.dumps(body))
        request_id, replica = f.id("form")
        routed = ask(replica.data, "POST", path, json.dumps(body), {"x-request-id": request_id})
        assert routed[0] == alone[0], f"{what}: {routed[0]} {routed[2]}, one worker alone {alone[0]} {alone[2]}"
        first, second = (comparable(json.loads(answer[2])) for answer in (routed, alone))
        assert first == second, f"{what}: {first}, one worker alone {second}"
        line = replica.logged(request_id)
        assert line["split"] == way, f"{what}: {line}"
        ways.setdefault(way, []).append(f"{what} {alone[0]}" if alone[0] != 200 else what)
    for what, path, body, way in STREAMS:
        request_id, replica = f.id("form")
        alone = Stream(f.oracle.address, body, path).join()
        routed = Stream(replica.data, body, path, {"x-request-id": request_id}).join()
        assert (routed.ending, routed.status) == (alone.ending, alone.status), f"{what}: {routed.ending} {routed.error}"
        assert joined(routed.events) == joined(alone.events), f"{what}: {routed.events}\nalone {alone.events}"
        line = replica.logged(request_id)
        assert line["split"] == way, f"{what}: {line}"
        ways.setdefault(way, []).append(what)
    return "; ".join(f"{way}: {', '.join(whats)}" for way, whats in ways.items())


def clients_cannot_say_where_blocks_are(f):
    blocks = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "x", "remote_block_ids": [[1]],
              "remote_request_id": "y", "remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 1}
    paths = {CHAT: hello("blocks"), COMPLETIONS: prompt("blocks"), RESPONSES: FORMS[10][2], MESSAGES: hello("blocks")}
    for path, body in paths.items():
        for replica in f.replicas:
            status, _, answer = ask(replica.data, "POST", path, json.dumps({**body, "kv_transfer_params": blocks}))
            assert status == 400 and b"kv_transfer_params" in answer, f"{path}: {status} {answer}"
    return f"400 from each replica, for {', '.join(paths)}"


CHECKS = (forms_are_right_or_refused_with_the_reason, clients_cannot_say_where_blocks_are)
