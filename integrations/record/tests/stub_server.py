"""A small OpenAI-compatible server whose replies follow from the request alone, for tests and examples.

With tools it calls the first one; without, it counts the messages. A last message "fail", "refuse", "break", "hang" or
"pack" makes it answer 503, answer an error with 200, break off, never answer, or compress its answer.

    python stub_server.py PORT [DELAY]        prints the address; port 0 is a free one
"""

import asyncio
import gzip
import json
import sys

from aiohttp import web


def chat_message(request):
    """Return the reply to a chat completion."""
    number = len(request["messages"])
    if not request.get("tools"):
        return {
            "role": "assistant",
            "content": f"I have read {number} messages. é\u2028",
        }
    call = {
        "name": request["tools"][0]["function"]["name"],
        "arguments": json.dumps({"turn": number}),
    }
    calls = [{"id": f"call_{number}", "type": "function", "function": call}]
    return {
        "role": "assistant",
        "content": None,
        "reasoning_content": f"Turn {number}.",
        "tool_calls": calls,
    }


def completion(request):
    """Return a chat completion, with token ids (the bytes of a text) and log-probabilities if they are asked for."""
    message = chat_message(request)
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {
        "id": "c1",
        "object": "chat.completion",
        "model": request["model"],
        "choices": [choice],
    }
    tokens = list((message["content"] or json.dumps(message["tool_calls"])).encode())
    if request.get("return_token_ids"):
        whole["prompt_token_ids"] = list(json.dumps(request["messages"]).encode())
        choice["token_ids"] = tokens
    if request.get("logprobs"):
        choice["logprobs"] = {
            "content": [
                {"token": chr(token), "logprob": -token / 1000} for token in tokens
            ]
        }
    return whole


def pieces(text):
    """Return a text in pieces of three characters."""
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def deltas(message):
    """Return the parts of a streamed message."""
    found = [{"role": "assistant", "content": message["content"] and ""}]
    found += [
        {"reasoning_content": piece}
        for piece in pieces(message.get("reasoning_content", ""))
    ]
    found += [{"content": piece} for piece in pieces(message["content"] or "")]
    for call in message.get("tool_calls", ()):
        head = {"name": call["function"]["name"], "arguments": ""}
        found.append({"tool_calls": [{"index": 0, **call, "function": head}]})
        parts = pieces(call["function"]["arguments"])
        found += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            for part in parts
        ]
    return found


def chat_events(request):
    """Return the events of a streamed chat completion: two tokens with each part of the message, the rest at last."""
    whole = completion(request)
    (choice,) = whole.pop("choices")
    parts = deltas(choice.pop("message"))
    tokens = choice.pop("token_ids", None)
    logprobs = choice.pop("logprobs", None)
    events = []
    for number, delta in enumerate([*parts, {}]):
        span = slice(2 * number, 2 * number + 2 if delta else None)
        part = {
            "index": 0,
            "delta": delta,
            "finish_reason": None if delta else choice["finish_reason"],
        }
        if tokens is not None:
            part["token_ids"] = tokens[span]
        if logprobs is not None:
            part["logprobs"] = {"content": logprobs["content"][span]}
        events.append({**whole, "object": "chat.completion.chunk", "choices": [part]})
        whole.pop("prompt_token_ids", None)
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [
        b"data: [DONE]\n\n"
    ]


def response(request):
    """Return an answer of the interface of responses: a thought and a call, or a text."""
    number = len(request["input"]) if isinstance(request["input"], list) else 1
    thought = {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": [{"type": "summary_text", "text": "Hm."}],
    }
    call = {
        "type": "function_call",
        "call_id": f"call_{number}",
        "name": "look",
        "arguments": "{}",
    }
    text = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done."}],
    }
    output = [thought, call] if request.get("tools") else [text]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "status": "completed",
        "output": output,
    }


def response_events(request):
    """Return the events of a streamed response."""
    whole = response(request)
    begun = {
        "type": "response.created",
        "response": {**whole, "status": "in_progress", "output": []},
    }
    done = {"type": "response.completed", "response": whole}
    return [
        f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n".encode()
        for event in (begun, done)
    ]


class Stub:
    """The server.

    Attributes:
        requests: Path, headers and body of each request.
    """

    def __init__(self, delay=0.0):
        self.requests = []
        self._delay = delay

    async def answer(self, http):
        """Answer a request."""
        body = await http.read()
        self.requests.append((http.path_qs, dict(http.headers), body))
        await asyncio.sleep(self._delay)
        if http.method != "POST" or not body.startswith(b"{"):
            return web.Response(
                body=http.path_qs.encode() + body, headers={"X-Other": "kept"}
            )
        request = json.loads(body)
        is_chat = "chat/completions" in http.path
        last = request["messages"][-1]["content"] if is_chat else None
        error = {"error": {"message": "no capacity", "type": "server_error"}}
        if last in ("fail", "refuse"):
            return web.json_response(error, status=503 if last == "fail" else 200)
        if last == "hang":
            await asyncio.Event().wait()
        if not request.get("stream"):
            data = json.dumps(
                completion(request) if is_chat else response(request), indent=1
            ).encode()
            packed = {"Content-Encoding": "gzip"} if last == "pack" else {}
            data = gzip.compress(data) if packed else data
            return web.Response(
                body=data, content_type="application/json", headers=packed
            )
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(http)
        for number, event in enumerate(
            chat_events(request) if is_chat else response_events(request)
        ):
            if last == "break" and number == 3:
                http.transport.abort()
                return stream
            await stream.write(event)
        await stream.write_eof()
        return stream


async def main(port, delay):
    """Serve until interrupted, and print the address."""
    runner = web.ServerRunner(web.Server(Stub(delay).answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("http://{}:{}/v1".format(*runner.addresses[0]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float((*sys.argv, 0)[2])))
