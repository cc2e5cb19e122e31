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
from hgpo_appworld.generation.programs import PASSWORDS, all_pages, finish, login
from hgpo_appworld.generation.scenario import Draft, Scenario
from hgpo_appworld.generation.words import FOLDERS, NOTE_TAGS, SENTENCES

if TYPE_CHECKING:
    import random

    from hgpo_appworld.generation.world import Person, Rows, World

_ALARMS: Final = all_pages("alarms", "apis.phone.show_alarms(access_token=phone_token")


def _library_size(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    del rows
    kind = rng.choice(["song", "album", "playlist"])
    size = {
        "song": len(world.library[person.id]),
        "album": world.albums[person.id],
        "playlist": len(world.playlists[person.id]),
    }[kind]
    steps = [
        PASSWORDS,
        login("spotify"),
        all_pages(
            "library", f"apis.spotify.show_{kind}_library(access_token=spotify_token"
        ),
        finish("len(library)"),
    ]
    return Draft(
        f"How many {kind}s are there in my Spotify {kind} library?", steps, size
    )


def _alarm_time(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    del rows
    alarm = rng.choice(world.alarms[person.id])
    steps = [
        PASSWORDS,
        login("phone"),
        _ALARMS,
        f"times = [alarm['time'] for alarm in alarms if alarm['label'] == {alarm.label!r}]\nprint(times)",
        finish("times[0]"),
    ]
    instruction = f'What time is the alarm labelled "{alarm.label}" on my phone set to? Answer in HH:MM format.'
    return Draft(instruction, steps, alarm.time)


def _tagged_notes(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    del rows
    tag = rng.choice(
        [
            tag
            for tag in NOTE_TAGS
            if any(tag in note.tags for note in world.notes[person.id])
        ]
    )
    steps = [
        PASSWORDS,
        login("simple_note"),
        all_pages(
            "notes",
            "apis.simple_note.search_notes(access_token=simple_note_token",
            "[note['tags'] for note in notes]",
        ),
        f"tagged = [note for note in notes if {tag!r} in note['tags']]\nprint(len(tagged))",
        finish("len(tagged)"),
    ]
    size = sum(tag in note.tags for note in world.notes[person.id])
    return Draft(
        f'How many of my notes in Simple Note have the tag "{tag}"?', steps, size
    )


def _switch_alarm(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    del rows
    alarm = rng.choice(world.alarms[person.id])
    verb = "off" if alarm.enabled else "on"
    steps = [
        PASSWORDS,
        login("phone"),
        _ALARMS,
        f"wanted = next(alarm for alarm in alarms if alarm['label'] == {alarm.label!r})\nprint(wanted)",
        (
            f"print(apis.phone.update_alarm(alarm_id=wanted['alarm_id'], enabled={not alarm.enabled}, "
            "access_token=phone_token))"
        ),
        finish(),
    ]
    private = {"alarm": alarm.id, "enabled": not alarm.enabled}
    return Draft(
        f'Switch {verb} the alarm labelled "{alarm.label}" on my phone.',
        steps,
        None,
        private,
    )


def _new_file(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    del world, rows
    folder = rng.choice(FOLDERS)
    text = rng.choice(SENTENCES)
    name = f"reminder_{rng.randrange(10, 99)}.txt"
    steps = [
        PASSWORDS,
        login("file_system"),
        (
            "print(apis.file_system.show_directory(access_token=file_system_token, directory_path='~/', "
            "entry_type='directories'))"
        ),
        (
            f"print(apis.file_system.create_file(file_path='~/{folder}/{name}', content={text!r}, "
            "access_token=file_system_token))"
        ),
        finish(),
    ]
    private = {"path": f"{person.home}{folder}/{name}", "content": text}
    instruction = f'Create the file ~/{folder}/{name} in my file system with the content "{text}".'
    return Draft(instruction, steps, None, private)


LIBRARY_SIZE: Final = Scenario(
    "library_size",
    "train",
    1,
    ("spotify",),
    _library_size,
    (RIGHT_ANSWER, NOTHING_CHANGED),
)
ALARM_TIME: Final = Scenario(
    "alarm_time", "dev", 1, ("phone",), _alarm_time, (RIGHT_ANSWER, NOTHING_CHANGED)
)
TAGGED_NOTES: Final = Scenario(
    "tagged_notes",
    "test_normal",
    1,
    ("simple_note",),
    _tagged_notes,
    (RIGHT_ANSWER, NOTHING_CHANGED),
)
SWITCH_ALARM: Final = Scenario(
    "switch_alarm",
    "train",
    1,
    ("phone",),
    _switch_alarm,
    (
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
NEW_FILE: Final = Scenario(
    "new_file",
    "train",
    1,
    ("file_system",),
    _new_file,
    (
        NO_ANSWER,
        *ONE_NEW_FILE,
    ),
)
