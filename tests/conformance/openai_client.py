"""Drives one Grapevine replica with the official `openai` client.

    openai_client.py http://127.0.0.1:30000/v1

Expects workers that serve `fake-model` and `org/other`. Prints one line a case; ends with 1 and the
reason at the first case that fails.
"""

import sys
import traceback

import openai

MODEL = "fake-model"
HELLO = [{"role": "user", "content": "hello"}]


def chat_plain(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert answer.object == "chat.completion", answer
    assert answer.model == MODEL, answer
    assert answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 5, answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5, answer.usage


def chat_stream(client):
    plain = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, stream=True)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == plain.choices[0].message.content, (text, plain)
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
    assert len({chunk.id for chunk in chunks}) == 1, chunks


def chat_stream_usage(client):
    prompt = [{"role": "user", "content": "cached " * 200}]
    for expect_cached in (False, True):
        stream = client.chat.completions.create(
            model=MODEL,
            messages=prompt,
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = list(stream)[-1]
        assert last.choices == [], last
        assert last.usage.completion_tokens == 3, last
        cached = last.usage.prompt_tokens_details.cached_tokens
        assert (cached > 0) == expect_cached, (expect_cached, last.usage)


def chat_choices(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2], answer


def chat_tools(client):
    tools = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ]
    history = [
        {"role": "user", "content": "what is the weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "rain"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=history, tools=tools, tool_choice="auto", max_tokens=3
    )
    bare = client.chat.completions.create(model=MODEL, messages=history, max_tokens=3)
    # Tools are part of the prompt: had they been lost on the way, both would have the same size.
    assert answer.usage.prompt_tokens > bare.usage.prompt_tokens, (answer.usage, bare.usage)


def completions(client):
    plain = client.completions.create(model=MODEL, prompt="once upon", max_tokens=6)
    stream = client.completions.create(model=MODEL, prompt="once upon", max_tokens=6, stream=True)
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text and text == plain.choices[0].text, (text, plain)


def embeddings(client):
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    assert len(answer.data) == 2, answer
    assert all(isinstance(x, float) for row in answer.data for x in row.embedding), answer


def models(client):
    ids = [model.id for model in client.models.list()]
    assert ids == [MODEL, "org/other"], ids
    assert client.models.retrieve(MODEL).id == MODEL
    assert client.models.retrieve("org/other").id == "org/other"
    other = client.chat.completions.create(model="org/other", messages=HELLO, max_tokens=1)
    assert other.model == "org/other", other


def raises(kind, status, code, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        assert error.status_code == status, error
        # vLLM's codes are numbers; some releases of the client make text of them.
        assert str(error.code) == code, (error.code, error)
        assert error.request_id, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def error_from_the_router(client):
    chat = client.chat.completions.create
    error = raises(
        openai.NotFoundError,
        404,
        "model_not_found",
        lambda: chat(model="no-such-model", messages=HELLO),
    )
    assert error.param == "model", error
    raises(
        openai.NotFoundError,
        404,
        "model_not_found",
        lambda: client.models.retrieve("no-such-model"),
    )
    raises(
        openai.BadRequestError,
        400,
        "invalid_request",
        lambda: chat(model="", messages=HELLO),
    )


def error_from_the_worker(client):
    chat = client.chat.completions.create
    for stream in (False, True):
        error = raises(
            openai.BadRequestError,
            400,
            "400",
            lambda: chat(model=MODEL, messages=HELLO, temperature=-1, stream=stream),
        )
        assert error.type == "BadRequestError", error
        assert "temperature must be non-negative" in error.message, error


def error_in_a_stream(client):
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=50,
        stream=True,
        extra_headers={"x-fault": '{"stop":{"at":"event:3","how":"fin"}}'},
    )
    seen = 0
    try:
        for _ in stream:
            seen += 1
    except openai.APIError as error:
        assert error.code == "upstream_broke", error
        assert seen == 3, seen
        return
    raise AssertionError(f"the stream ended without an error after {seen} chunks")


def timeout(client):
    hasty = client.with_options(timeout=0.3, max_retries=0)
    try:
        hasty.chat.completions.create(
            model=MODEL, messages=HELLO, extra_headers={"x-fault": '{"delay_ms":60000}'}
        )
    except openai.APITimeoutError:
        return
    raise AssertionError("no timeout")


def raw_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=1, extra_headers={"x-request-id": "from-python"}
    )
    assert raw.headers["x-request-id"] == "from-python", raw.headers
    assert raw.parse()._request_id == "from-python"


CASES = [
    chat_plain,
    chat_stream,
    chat_stream_usage,
    chat_choices,
    chat_tools,
    completions,
    embeddings,
    models,
    error_from_the_router,
    error_from_the_worker,
    error_in_a_stream,
    timeout,
    raw_headers,
]


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0, timeout=20)
    for case in CASES:
        try:
            case(client)
        except Exception:
            traceback.print_exc()
            print(f"{case.__name__}: failed")
            return 1
        print(f"{case.__name__}: ok")
    print(f"openai {openai.__version__}: {len(CASES)} cases passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
