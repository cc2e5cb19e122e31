"""Scenarios of difficulty 2: one app, several records to read or change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_appworld.generation.checks import (
    NO_ANSWER,
    NOTHING_CHANGED,
    RIGHT_ANSWER,
    counts,
    only_changed,
    only_fields,
    records,
)
from hgpo_appworld.generation.programs import all_pages
from hgpo_appworld.generation.scenario import Draft, scenario
from hgpo_appworld.generation.words import MESSAGES, NEW_PLAYLISTS
from hgpo_appworld.generation.world import NOW

if TYPE_CHECKING:
    import random

    from hgpo_appworld.generation.world import Person, Rows, World

_LIBRARY: Final = all_pages(
    "library", "apis.spotify.show_song_library(access_token=spotify_token"
)
_SONGS: Final = (
    "songs = [apis.spotify.show_song(song_id=song['song_id']) for song in library]\n"
    "print([(song['title'], song['genre'], song['play_count']) for song in songs[:3]])"
)


@scenario("train", 2, "spotify", checks=(RIGHT_ANSWER, NOTHING_CHANGED))
def most_played(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Name the song that was played most or least."""
    del rows
    which, choose = rng.choice([("most", max), ("least", min)])
    song = choose(world.library[person.id], key=lambda song: song.play_count)
    steps = [
        _LIBRARY,
        _SONGS,
        f"wanted = {choose.__name__}(songs, key=lambda song: song['play_count'])\nprint(wanted['title'])",
    ]
    return Draft(
        f"What is the title of the {which} played song in my Spotify song library?",
        steps,
        song.title,
        answer_code="wanted['title']",
    )


@scenario("dev", 2, "venmo", checks=(RIGHT_ANSWER, NOTHING_CHANGED))
def money_sent(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Add up what was sent to a friend this year."""
    del rows
    mine = [
        t for t in world.transfers if t.sender == person.id and t.sent.year == NOW.year
    ]
    friend = world.person(
        rng.choice(
            [t.receiver for t in mine] or [world.contacts[person.id]["friend"][0].id]
        )
    )
    cents = sum(t.cents for t in mine if t.receiver == friend.id)
    steps = [
        (
            f"found = apis.venmo.search_users(query={friend.name!r}, access_token=venmo_token)\n"
            f"friend = next(user for user in found if user['last_name'] == {friend.last_name!r})\n"
            "print(friend['email'])"
        ),
        all_pages(
            "sent",
            "apis.venmo.show_transactions(user_email=friend['email'], direction='sent', "
            f"min_created_at='{NOW.year}-01-01', access_token=venmo_token",
        ),
        "total = round(sum(transaction['amount'] for transaction in sent), 2)\nprint(total)",
    ]
    instruction = (
        f"How much money have I sent to {friend.name} on Venmo this year, in dollars?"
    )
    return Draft(instruction, steps, cents / 100, answer_code="total")


@scenario(
    "test_normal",
    2,
    "todoist",
    checks=(
        NO_ANSWER,
        only_changed("todoist.Task"),
        counts("todoist.Task", updated="len(private_data.tasks)"),
        only_fields("todoist.Task", "is_completed"),
        records(
            "the right tasks changed",
            "todoist.Task",
            "updated",
            "record.id",
            "private_data.tasks",
        ),
    ),
)
def urgent_chores(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Complete the tasks of a priority in a project."""
    del rows
    priority = rng.choice(["high", "medium", "low"])
    name = rng.choice([name for name in world.projects[person.id] if name != "Inbox"])
    _, chores = world.projects[person.id][name]
    steps = [
        all_pages("projects", "apis.todoist.show_projects(access_token=todoist_token"),
        (
            f"project = next(project for project in projects if project['name'] == {name!r})\n"
            "print(project['project_id'], project['num_tasks'])"
        ),
        (
            f"tasks = apis.todoist.show_tasks(project_id=project['project_id'], priority={priority!r}, "
            "is_completed=False, access_token=todoist_token)['no_section_tasks']\n"
            "print([task['title'] for task in tasks])"
        ),
        (
            "for task in tasks:\n"
            "    print(apis.todoist.update_task(task_id=task['task_id'], is_completed=True, "
            "access_token=todoist_token))"
        ),
    ]
    private = {
        "tasks": [
            chore.id
            for chore in chores
            if chore.priority == priority and not chore.done
        ]
    }
    instruction = f'Mark all {priority} priority tasks of my Todoist project "{name}" as completed.'
    return Draft(instruction, steps, None, private)


@scenario(
    "train",
    2,
    "gmail",
    checks=(
        NO_ANSWER,
        only_changed("gmail.UserEmailThread"),
        counts("gmail.UserEmailThread", updated="len(private_data.threads)"),
        only_fields("gmail.UserEmailThread", "starred"),
        records(
            "the right threads are starred",
            "gmail.UserEmailThread",
            "updated",
            "(record.id, record.starred)",
            "(thread, True) for thread in private_data.threads",
        ),
    ),
)
def star_threads(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Star the threads from a sender."""
    del rows
    plain = [thread for thread in world.inbox[person.id] if not thread.starred]
    sender = world.person(rng.choice(plain).sender)
    steps = [
        all_pages("threads", "apis.gmail.show_inbox_threads(access_token=gmail_token"),
        (
            f"wanted = [thread for thread in threads if not thread['starred'] "
            f"and {sender.email!r} in [other['email'] for other in thread['participants']]]\n"
            "print([thread['subject'] for thread in wanted])"
        ),
        (
            "for thread in wanted:\n"
            "    print(apis.gmail.mark_thread_starred(email_thread_id=thread['email_thread_id'], "
            "access_token=gmail_token))"
        ),
    ]
    private = {"threads": [thread.id for thread in plain if thread.sender == sender.id]}
    instruction = f"Star every email thread from {sender.name} ({sender.email}) in my Gmail inbox."
    return Draft(instruction, steps, None, private)


@scenario(
    "train",
    2,
    "spotify",
    checks=(
        NO_ANSWER,
        only_changed("spotify.Playlist", "spotify.PlaylistSong"),
        counts("spotify.Playlist", added="1"),
        records(
            "the playlist has the right title and owner",
            "spotify.Playlist",
            "added",
            "(record.title, record.user_id)",
            "[(private_data.title, private_data.user)]",
        ),
        counts("spotify.PlaylistSong", added="len(private_data.songs)"),
        records(
            "it has the right songs",
            "spotify.PlaylistSong",
            "added",
            "record.song_id",
            "private_data.songs",
        ),
    ),
)
def genre_playlist(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Make a playlist of the songs of a genre."""
    del rows
    genre = rng.choice(sorted({song.genre for song in world.library[person.id]}))
    title = rng.choice(NEW_PLAYLISTS)
    steps = [
        _LIBRARY,
        _SONGS,
        f"wanted = [song['song_id'] for song in songs if song['genre'] == {genre!r}]\nprint(wanted)",
        f"playlist = apis.spotify.create_playlist(title={title!r}, access_token=spotify_token)\nprint(playlist)",
        (
            "for song_id in wanted:\n"
            "    print(apis.spotify.add_song_to_playlist(playlist_id=playlist['playlist_id'], song_id=song_id, "
            "access_token=spotify_token))"
        ),
    ]
    songs = [song.id for song in world.library[person.id] if song.genre == genre]
    instruction = f'Create a Spotify playlist named "{title}" with all {genre} songs of my Spotify song library.'
    return Draft(
        instruction, steps, None, {"title": title, "songs": songs, "user": person.id}
    )


@scenario(
    "train",
    2,
    "phone",
    checks=(
        NO_ANSWER,
        only_changed("phone.GlobalTextMessage", "phone.UserTextMessage"),
        counts("phone.GlobalTextMessage", added="len(private_data.receivers)"),
        records(
            "each message has the right receiver and text",
            "phone.GlobalTextMessage",
            "added",
            "(record.sender_id, record.receiver_id, record.message)",
            "(private_data.user, receiver, private_data.text) for receiver in private_data.receivers",
        ),
    ),
)
def text_contacts(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Send a message to contacts of a relationship."""
    del rows
    relationship = rng.choice(["friend", "coworker", "roommate"])
    text = rng.choice(MESSAGES)
    steps = [
        all_pages(
            "contacts",
            f"apis.phone.search_contacts(relationship={relationship!r}, access_token=phone_token",
            "[contact['first_name'] for contact in contacts]",
        ),
        (
            "for contact in contacts:\n"
            f"    print(apis.phone.send_text_message(phone_number=contact['phone_number'], message={text!r}, "
            "access_token=phone_token))"
        ),
    ]
    private = {
        "receivers": [other.id for other in world.contacts[person.id][relationship]],
        "text": text,
        "user": person.id,
    }
    return Draft(
        f'Send a text message to each of my {relationship}s: "{text}"',
        steps,
        None,
        private,
    )
