"""Scenarios of difficulty 1: one app, one question or one change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_appworld.generation.checks import (
    NO_ANSWER,
    NOTHING_CHANGED,
    ONE_NEW_FILE,
    RIGHT_ANSWER,
    counts,
    only_changed,
    only_fields,
    records,
)
from hgpo_appworld.generation.programs import all_pages
from hgpo_appworld.generation.scenario import Draft, scenario
from hgpo_appworld.generation.words import FOLDERS, NOTE_TAGS, SENTENCES

if TYPE_CHECKING:
    import random

    from hgpo_appworld.generation.world import Person, Rows, World

_ALARMS: Final = all_pages("alarms", "apis.phone.show_alarms(access_token=phone_token")


@scenario("train", 1, "spotify", checks=(RIGHT_ANSWER, NOTHING_CHANGED))
def library_size(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Count the songs, albums or playlists of a library."""
    del rows
    kind = rng.choice(["song", "album", "playlist"])
    size = {
        "song": len(world.library[person.id]),
        "album": world.albums[person.id],
        "playlist": len(world.playlists[person.id]),
    }[kind]
    steps = [
        all_pages(
            "library", f"apis.spotify.show_{kind}_library(access_token=spotify_token"
        ),
    ]
    return Draft(
        f"How many {kind}s are there in my Spotify {kind} library?",
        steps,
        size,
        answer_code="len(library)",
    )


@scenario("dev", 1, "phone", checks=(RIGHT_ANSWER, NOTHING_CHANGED))
def alarm_time(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Say when an alarm rings."""
    del rows
    alarm = rng.choice(world.alarms[person.id])
    steps = [
        _ALARMS,
        f"times = [alarm['time'] for alarm in alarms if alarm['label'] == {alarm.label!r}]\nprint(times)",
    ]
    instruction = f'What time is the alarm labelled "{alarm.label}" on my phone set to? Answer in HH:MM format.'
    return Draft(instruction, steps, alarm.time, answer_code="times[0]")


@scenario("test_normal", 1, "simple_note", checks=(RIGHT_ANSWER, NOTHING_CHANGED))
def tagged_notes(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Count the notes with a tag."""
    del rows
    tag = rng.choice(
        [
            tag
            for tag in NOTE_TAGS
            if any(tag in note.tags for note in world.notes[person.id])
        ]
    )
    steps = [
        all_pages(
            "notes",
            "apis.simple_note.search_notes(access_token=simple_note_token",
            "[note['tags'] for note in notes]",
        ),
        f"tagged = [note for note in notes if {tag!r} in note['tags']]\nprint(len(tagged))",
    ]
    size = sum(tag in note.tags for note in world.notes[person.id])
    return Draft(
        f'How many of my notes in Simple Note have the tag "{tag}"?',
        steps,
        size,
        answer_code="len(tagged)",
    )


@scenario(
    "train",
    1,
    "phone",
    checks=(
        NO_ANSWER,
        only_changed("phone.Alarm"),
        counts("phone.Alarm", updated="1"),
        only_fields("phone.Alarm", "enabled"),
        records(
            "the right alarm has the right state",
            "phone.Alarm",
            "updated",
            "(record.id, record.enabled)",
            "[(private_data.alarm, private_data.enabled)]",
        ),
    ),
)
def switch_alarm(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Switch an alarm on or off."""
    del rows
    alarm = rng.choice(world.alarms[person.id])
    verb = "off" if alarm.enabled else "on"
    steps = [
        _ALARMS,
        f"wanted = next(alarm for alarm in alarms if alarm['label'] == {alarm.label!r})\nprint(wanted)",
        (
            f"print(apis.phone.update_alarm(alarm_id=wanted['alarm_id'], enabled={not alarm.enabled}, "
            "access_token=phone_token))"
        ),
    ]
    private = {"alarm": alarm.id, "enabled": not alarm.enabled}
    return Draft(
        f'Switch {verb} the alarm labelled "{alarm.label}" on my phone.',
        steps,
        None,
        private,
    )


@scenario(
    "train",
    1,
    "file_system",
    checks=(
        NO_ANSWER,
        *ONE_NEW_FILE,
    ),
)
def new_file(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Create a file."""
    del world, rows
    folder = rng.choice(FOLDERS)
    text = rng.choice(SENTENCES)
    name = f"reminder_{rng.randrange(10, 99)}.txt"
    steps = [
        (
            "print(apis.file_system.show_directory(access_token=file_system_token, directory_path='~/', "
            "entry_type='directories'))"
        ),
        (
            f"print(apis.file_system.create_file(file_path='~/{folder}/{name}', content={text!r}, "
            "access_token=file_system_token))"
        ),
    ]
    private = {"path": f"{person.home}{folder}/{name}", "content": text}
    instruction = f'Create the file ~/{folder}/{name} in my file system with the content "{text}".'
    return Draft(instruction, steps, None, private)
