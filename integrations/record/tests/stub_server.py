"""A small OpenAI-compatible server whose replies follow from the request alone, for tests and examples.

With tools it calls the first one; without, it counts the messages. A message "fail" makes it fail, "hang" never end.

    python stub_server.py PORT
"""

import asyncio
import json
import sys

from aiohttp import web


def message_of(request):
    """Return the reply to a request."""
    number = len(request["messages"])
    if not request.get("tools"):
        return {"role": "assistant", "content": f"I have read {number} messages. é\u2028", "refusal": None}
    call = {"name": request["tools"][0]["function"]["name"], "arguments": json.dumps({"turn": number})}
    calls = [{"id": f"call_{number}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "reasoning_content": f"Turn {number}.", "tool_calls": calls}


def tokens_of(request, message):
    """Return the token ids of a prompt and of its reply: bytes."""
    written = message["content"] or json.dumps(message["tool_calls"])
    return list(json.dumps(request["messages"]).encode()), list(written.encode())


def completion(request):
    """Return a chat completion, with token ids and log-probabilities if they are asked for."""
    message = message_of(request)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {"id": "c1", "object": "chat.completion", "model": request["model"], "choices": [choice]}
    prompt, tokens = tokens_of(request, message)
    if request.get("return_token_ids"):
        whole["prompt_token_ids"] = prompt
        choice["token_ids"] = tokens
    if request.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": chr(token), "logprob": -token / 1000} for token in tokens]}
    return whole


def parts(text):
    """Return a text in pieces of three characters."""
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def chunks(request):
    """Yield the events of a streamed chat completion."""
    whole = completion(request)
    choice = whole["choices"][0]
    message = choice["message"]
    head = {name: value for name, value in whole.items() if name != "choices"}
    deltas = [{"role": "assistant", "content": message["content"] and ""}]
    deltas += [{"reasoning_content": part} for part in parts(message.get("reasoning_content", ""))]
    deltas += [{"content": part} for part in parts(message["content"] or "")]
    for call in message.get("tool_calls", ()):
        deltas.append(
            {"tool_calls": [{"index": 0, **call, "function": {"name": call["function"]["name"], "arguments": ""}}]}
        )
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            for part in parts(call["function"]["arguments"])
        ]
    tokens = choice.get("token_ids")
    logprobs = choice.get("logprobs")
    for number, delta in enumerate(deltas):
        last = number == len(deltas) - 1
        start, stop = 2 * number, None if last else 2 * number + 2
        event = {"index": 0, "delta": delta, "finish_reason": None}
        if tokens is not None:
            event["token_ids"] = tokens[start:stop]
        if logprobs is not None:
            event["logprobs"] = {"content": logprobs["content"][start:stop]}
        yield {**head, "choices": [event]}
        head.pop("prompt_token_ids", None)
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}


def response(request):
    """Return an answer of the interface of responses: a thought and a call, or a text."""
    number = len(request["input"]) if isinstance(request["input"], list) else 1
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": "Hm."}]}
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "look",
        "arguments": "{}",
    }
    text = {
        "type": "message",
        "id": f"m_{number}",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done."}],
    }
    output = [thought, call] if request.get("tools") else [text]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "status": "completed",
        "output": output,
        "usage": {"input_tokens": 3},
    }


def event(value, name=""):
    """Return a server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


class Stub:
    """The server.

    Attributes:
        bodies: The bodies of all requests.
        headers: Their headers.
        delay: Seconds before each answer.
    """

    def __init__(self, delay=0.0):
        self.bodies = []
        self.headers = []
        self.delay = delay

    async def answer(self, http):
        """Answer a request."""
        body = await http.read()
        self.bodies.append(body)
        self.headers.append(dict(http.headers))
        await asyncio.sleep(self.delay)
        if http.path == "/v1/models":
            return web.json_response({"data": [{"id": "stub"}]})
        if http.method != "POST" or not body.startswith(b"{"):
            return web.Response(body=http.path_qs.encode() + body, headers={"X-Other": "kept"})
        request = json.loads(body)
        last = json.dumps(request.get("messages", request.get("input"))[-1:])
        if '"fail"' in last:
            return web.json_response({"error": {"message": "no capacity", "type": "server_error"}}, status=503)
        if '"refuse"' in last:
            return web.json_response({"error": {"message": "no capacity", "type": "server_error"}})
        if '"hang"' in last:
            await asyncio.sleep(3600)
        is_chat = http.path.endswith("chat/completions")
        if not request.get("stream"):
            return web.json_response(completion(request) if is_chat else response(request))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(http)
        events = [event(chunk) for chunk in chunks(request)] if is_chat else responses_events(request)
        if '"break"' in last:
            for part in events[:3]:
                await stream.write(part)
            http.transport.abort()
            return stream
        for part in [*events, b"data: [DONE]\n\n"] if is_chat else events:
            await stream.write(part)
        await stream.write_eof()
        return stream


def responses_events(request):
    """Return the events of a streamed response."""
    whole = response(request)
    begun = {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    done = {"type": "response.completed", "response": whole}
    return [event(begun, "response.created"), event(done, "response.completed")]


async def main(port):
    """Serve until interrupted."""
    runner = web.ServerRunner(web.Server(Stub().answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
