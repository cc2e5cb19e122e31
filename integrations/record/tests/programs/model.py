"""What the example agents share: a client of any OpenAI-compatible server, and a world with rooms."""

import os

import httpx

CLIENT = httpx.Client(
    base_url=os.environ["OPENAI_BASE_URL"],
    headers={"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"},
    timeout=60,
)
LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def ask(messages, **fields):
    """Return the reply of the model as a message."""
    body = {"model": os.environ.get("MODEL", "stub"), "messages": messages, **fields}
    answer = CLIENT.post("/chat/completions", json=body).raise_for_status()
    return answer.json()["choices"][0]["message"]


def results(reply, room):
    """Return what the tools answer to the calls of a reply."""
    calls = reply.get("tool_calls") or []
    return [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": f"You are in room {room}.",
        }
        for call in calls
    ]


def reward(value):
    """End the rollout with a reward. Without the recorder there is nobody to tell."""
    CLIENT.post("/reward", json={"reward": value})
