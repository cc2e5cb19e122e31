"""An agent that appends to its conversation."""

from model import LOOK, ask, results, reward

messages = [
    {"role": "system", "content": "Find the exit."},
    {"role": "user", "content": "You wake up in room 0."},
]
for room in range(1, 4):
    reply = ask(messages, tools=[LOOK])
    messages.append(reply)
    messages += results(reply, room)
reward(1.0)
