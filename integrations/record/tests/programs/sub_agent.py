"""An agent that lets another one search, which has a conversation of its own."""

from model import LOOK, ask, results, reward


def search():
    """Return what a sub-agent found."""
    messages = [
        {"role": "system", "content": "Search the rooms."},
        {"role": "user", "content": "Start in room 7."},
    ]
    for room in (8, 9):
        reply = ask(messages, tools=[LOOK])
        messages.append(reply)
        messages += results(reply, room)
    return messages[-1]["content"]


messages = [
    {"role": "system", "content": "Find the exit."},
    {"role": "user", "content": "You wake up in room 0."},
]
for _ in range(2):
    reply = ask(messages, tools=[LOOK])
    calls = reply.get("tool_calls") or []
    found = search()
    messages.append(reply)
    messages += [
        {"role": "tool", "tool_call_id": call["id"], "content": found} for call in calls
    ]
reward(0.5)
