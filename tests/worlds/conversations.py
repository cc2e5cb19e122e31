"""Files of rollouts as lines of JSON, and a conversation of one question and one answer."""

import json


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def message(role, content, **more):
    return {"role": role, "content": content, **more}


TALK = [message("user", "Go."), message("assistant", "no")]
