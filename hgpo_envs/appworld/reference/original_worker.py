"""Runs AppWorld's own class or HTTP server, in AppWorld's interpreter: PYTHON original_worker.py class | server.

Each line of the input begins an episode in a process of its own, forked from this one, which has imported AppWorld and
done nothing else: worlds of one process would share what AppWorld keeps in memory, such as the access tokens that were
logged out. With ``class`` a line is the JSON list ``[task, programs]``, and the answer is a line with what was seen.
With ``server`` the answer is the port of a new server, which listens to this machine only; the next line ends it.
"""

import json
import os
import signal
import socket
import sys
from typing import Any


def main(kind: str) -> None:
    """Answer every line of the input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what AppWorld prints is no answer
    if kind == "class":
        pass
    else:
        import uvicorn  # noqa: F401
    child = 0
    for number, line in enumerate(sys.stdin):
        if child:
            end(child)
        if kind == "class":
            read, write = os.pipe()
            child = os.fork()
            if not child:
                with os.fdopen(write, "w", encoding="utf-8") as result:
                    json.dump(play(number, *json.loads(line)), result)
                os._exit(0)  # an ordinary exit takes seconds
            os.close(write)
            with os.fdopen(read, encoding="utf-8") as result:
                print(result.read(), file=answers, flush=True)
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            child = os.fork()
            if not child:
                serve(listener)
            print(listener.getsockname()[1], file=answers, flush=True)
            listener.close()
    if child:
        end(child)


def play(number: int, task: str, programs: list[str]) -> dict[str, Any]:
    """Play an episode and return what was seen."""
    from appworld import AppWorld

    world = AppWorld(task, experiment_name=f"class-{number}")
    outputs, completed = [], []
    for program in programs:
        outputs.append(world.execute(program))
        completed.append(bool(world.task_completed()))
        if completed[-1]:
            break
    tests = world.evaluate()
    return {"outputs": outputs, "completed": completed, "evaluation": tests.to_dict(stats_only=False)}


def serve(listener: socket.socket) -> None:
    """Run the HTTP server until this process is killed. It does not stop when asked to."""
    import uvicorn
    from appworld.serve.environment import app

    uvicorn.run(app, fd=listener.fileno(), log_level="error")
    os._exit(1)


def end(child: int) -> None:
    """Kill a process, which may have ended, and wait for it."""
    try:
        os.kill(child, signal.SIGKILL)
    finally:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1])
