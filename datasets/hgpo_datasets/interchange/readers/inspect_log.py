"""Logs of Inspect (inspect_ai): `.eval`, a zip archive with one JSON file a sample, or one JSON file.

Each call of the model is a step, without the calls of scorers and of models with another role; a log without its events
has the messages of the last conversation. The samples of one id, its epochs, are a group. The reward is the first
scorer's value, with C, P, N and I as 1, ½, 0 and 0, and yes, no and texts of numbers as Inspect's `value_to_float` has
them.

Facts: inspect_ai 0.3.285, log version 2 (log/_log.py, log/_condense.py, scorer/_metric.py): long texts of a sample are
in `attachments`, and the inputs of its calls are ranges of `events_data.messages`. Entries of the archive are
compressed with Zstandard (method 93), which zipfile reads from Python 3.14 on.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from hgpo_datasets.interchange.readers import json_records
from hgpo_datasets.interchange.readers.json_records import (
    fields,
    number,
    numbers,
    objects,
    text,
    without,
)
from hgpo_datasets.interchange.readers.messages import (
    checked_messages,
    conversation_rows,
    step_row,
)
from hgpo_datasets.interchange.readers.rollout_rows import MOST, limited, rollout_rows
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.unpack import ListReader
from hgpo_envs.files.untrusted_files import open_regular
from hgpo_envs.responses import finish_reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Object = dict[str, Any]

_ZSTANDARD: Final = 93
_NAME_LENGTHS: Final = 26
"""Where a local header of a zip archive has the lengths of the entry's name and extra field."""
_UNREADABLE: Final = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
_GRADES: Final = {"C": 1.0, "P": 0.5, "N": 0.0, "I": 0.0}
_WORDS: Final = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ATTACHMENT: Final = "attachment://"
_NO_EXTRA: Final = (
    "messages",
    "events",
    "events_data",
    "attachments",
    "input",
    "output",
    "store",
    "timelines",
)


def read_inspect(path: Path) -> Iterator[Object]:
    """Yield the steps of each sample."""
    if path.suffix == ".eval":
        samples = _archived_samples(path)
    else:
        samples = enumerate(
            objects(json_records.json_file(path).get("samples"), f"{path}, samples")
        )
    rows = [
        row
        for name, sample in samples
        for row in _rows(sample, f"{path}, sample {name}")
    ]
    # On a scale beyond 1, as that of percentages, no value says what is solved.
    if any((row["reward"] or 0.0) > 1.0 for row in rows):
        rows = [{**row, "won": None} for row in rows]
    yield from rows


def _archived_samples(path: Path) -> Iterator[tuple[object, Object]]:
    with open_regular(path, "log of Inspect") as file:
        try:
            # first only its list, of limited size; names and comments can have gigabytes
            reader = ListReader(file)
            zipfile.ZipFile(reader)
            reader.detach()
            archive = zipfile.ZipFile(file)
        except (InputError, *_UNREADABLE) as error:
            raise InputError(
                f"{path}: expected a log of Inspect ({one_line(error)})"
            ) from None
        for entry in archive.infolist():
            if entry.filename.startswith("samples/"):
                name = one_line(entry.filename, 100)
                where = f"{path}, {name}"
                try:
                    data = _content(archive, file, entry)
                except (*_UNREADABLE, pa.ArrowException) as error:
                    raise InputError(
                        f"{where} cannot be read ({one_line(error)}); copy the log again"
                    ) from None
                yield name, json_records.parse_object(data, where)


def _content(
    archive: zipfile.ZipFile, file: IO[bytes], entry: zipfile.ZipInfo
) -> bytes:
    if entry.file_size > json_records.MOST_BYTES:
        raise ValueError(f"it is larger than {json_records.MOST_BYTES:,} bytes")
    if entry.compress_type != _ZSTANDARD:
        return archive.read(entry)
    file.seek(entry.header_offset + _NAME_LENGTHS)
    name, more = struct.unpack("<HH", file.read(4))
    file.seek(name + more, 1)
    data: bytes = pa.decompress(
        file.read(entry.compress_size), entry.file_size, "zstd", asbytes=True
    )
    if zlib.crc32(data) != entry.CRC:
        raise ValueError("its checksum differs")
    return data


def _rows(sample: Object, where: str) -> list[Object]:
    attachments = fields(sample.get("attachments"))
    if attachments:
        sample = _attached(sample, attachments)
        if _size(sample) > MOST:
            raise InputError(
                f"{where}: expected texts of at most {MOST:,} characters, received more"
            )
    # The events have every call, also those of sub-agents and before a compaction.
    steps = list(limited(_calls(sample, where), where))
    if not steps:
        messages = checked_messages(sample.get("messages"), where)
        steps = list(limited(conversation_rows(messages), where))
    values = _values(fields(sample.get("scores")))
    reward = next(iter(values.values()), None)
    error = fields(sample.get("error")).get("message")
    question = sample.get("input")
    return rollout_rows(
        steps,
        where,
        reward=reward,
        named=numbers(values),
        extra=without(sample, _NO_EXTRA),
        truncated=bool(sample.get("limit")),
        error=None if error is None else one_line(error, 300),
        task_id=text(sample.get("id")) or "",
        task=question if isinstance(question, str) else steps and steps[0]["state"],
        trajectory=f"{sample.get('id')}/{sample.get('epoch')}",
        won=None if reward is None else reward >= 1.0,
    )


def _calls(sample: Object, where: str) -> Iterator[Object]:
    """Yield a row for each call of the model; none if the log has no events."""
    pool = checked_messages(fields(sample.get("events_data")).get("messages"), where)
    events = _outside_scorers(objects(sample.get("events"), f"{where}, events"))
    calls = [event for event in events if event.get("event") == "model"]
    # Calls of other models, which grade or play the user, have a role.
    own = [event for event in calls if not event.get("role")]
    for event in own or calls:
        choices = objects(
            fields(event.get("output")).get("choices"), f"{where}, choices"
        )
        if choices:
            prompt = checked_messages(event.get("input"), where) or _referred(
                event.get("input_refs"), pool, where
            )
            (reply,) = checked_messages([choices[0].get("message")], where)
            reason = finish_reason(choices[0].get("stop_reason"))
            yield {**step_row(prompt, reply), "finish_reason": reason}


def _outside_scorers(events: list[Object]) -> Iterator[Object]:
    """Yield the events but those of scorers, which may ask a model for a grade."""
    spans: set[str | None] = set()
    # Older logs have steps, which contain what is between their begin and their end.
    steps = 0
    for event in events:
        is_scorer = event.get("type") in ("scorer", "scorers")
        parent = text(event.get("parent_id"))
        if event.get("event") == "span_begin" and (is_scorer or parent in spans):
            spans.add(text(event.get("id")) or "")
        if event.get("event") == "step" and is_scorer:
            steps += 1 if event.get("action") == "begin" else -1
        if steps <= 0 and text(event.get("span_id")) not in spans:
            yield event


def _referred(ranges: object, pool: list[Object], where: str) -> list[Object]:
    """Return the messages in ranges of the sample's messages."""
    messages: list[Object] = []
    for bounds in ranges if isinstance(ranges, list) else []:
        is_pair = isinstance(bounds, list) and [type(bound) for bound in bounds] == [
            int,
            int,
        ]
        # Ranges that have more messages than there are would fill the memory.
        if not is_pair or len(messages) > len(pool):
            raise InputError(
                f"{where}, input_refs: expected ranges of its messages, received {one_line(ranges, 60)}"
            )
        messages += pool[bounds[0] : bounds[1]]
    return messages


def _attached(value: Any, attachments: Object) -> Any:  # noqa: ANN401 - JSON
    """Return a value with the texts that are stored apart."""
    if isinstance(value, str):
        return (
            attachments.get(value.removeprefix(_ATTACHMENT), value)
            if value.startswith(_ATTACHMENT)
            else value
        )
    if isinstance(value, list):
        return [_attached(item, attachments) for item in value]
    if isinstance(value, dict):
        return {name: _attached(item, attachments) for name, item in value.items()}
    return value


def _size(value: Any) -> int:  # noqa: ANN401 - JSON
    """Return the number of characters in the texts of a value, in which one attachment may be many times."""
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value
    return sum(map(_size, parts)) if isinstance(value, dict | list) else 0


def _values(scores: Object) -> dict[str, float | None]:
    """Return the value of each scorer; a scorer with several has one for each, as `scorer/name`."""
    found: dict[str, float | None] = {}
    for scorer, score in scores.items():
        value = fields(score).get("value")
        # A part without a value (NaN, which logs can hold as null) keeps its place: the next one is another measure.
        for name, one in fields(value).items():
            if one is None or isinstance(one, int | float):
                found[f"{scorer}/{name}"] = number(one)
        if not isinstance(value, dict):
            found[scorer] = _value(value)
    return found


def _value(value: object) -> float | None:
    if not isinstance(value, str):
        return number(value)
    grade = _GRADES.get(value, _WORDS.get(value.lower()))
    if grade is not None:
        return grade
    try:
        return number(float(value))
    except ValueError:
        return None
