"""An agent that replaces its conversation by a summary when it gets long."""

from model import LOOK, ask, results, reward

system = {"role": "system", "content": "Find the exit."}
messages = [system, {"role": "user", "content": "You wake up in room 0."}]
for room in range(1, 5):
    if len(messages) > 5:
        summary = ask(
            [*messages, {"role": "user", "content": "Summarize what you know."}]
        )
        messages = [system, {"role": "user", "content": summary["content"]}]
    reply = ask(messages, tools=[LOOK])
    messages.append(reply)
    messages += results(reply, room)
reward(1.0)
