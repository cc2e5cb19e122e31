"""What the explorer can do: kinds of instructions, the APIs that they need, and the programs that it would write.

The programs read the first page of every list and no other: the mistake of models that overlook `page_index`. So the
explorer solves a task if the first page is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Attempts: TypeAlias = "Callable[[re.Match[str]], list[Attempt]]"


@dataclass(frozen=True)
class Attempt:
    """A program, and how its output shows that it was executed.

    Attributes:
        program: The program.
        shows: A regular expression that its output contains. Empty if nothing follows it.
    """

    program: str
    shows: str = ""


@dataclass(frozen=True)
class Skill:
    """A kind of instruction that the explorer understands.

    Attributes:
        instruction: A regular expression that finds it.
        apis: The APIs that its programs call, as ``app.name``.
        attempts: Returns what to do from what the expression found. Tokens are named after the app: ``venmo_key``.
    """

    instruction: str
    apis: tuple[str, ...]
    attempts: Attempts

    @property
    def apps(self) -> list[str]:
        """The apps that it needs an account of."""
        return list(dict.fromkeys(api.partition(".")[0] for api in self.apis))


SKILLS: Final[list[Skill]] = []
"""In the order in which they are tried."""


def _skill(instruction: str, *apis: str) -> Callable[[Attempts], Attempts]:
    """Add a skill, whose attempts are those of the function. The arguments are `Skill`'s."""

    def add(attempts: Attempts) -> Attempts:
        SKILLS.append(Skill(instruction, apis, attempts))
        return attempts

    return add


def find_skill(instruction: str) -> tuple[Skill, re.Match[str]] | None:
    """Return the first skill that understands an instruction, with what its expression found."""
    for skill in SKILLS:
        found = re.search(skill.instruction, instruction)
        if found:
            return skill, found
    return None


def _answered(program: str, answer: str) -> list[Attempt]:
    """Return the attempts that print an answer and then give it."""
    return [
        Attempt(f"{program}\nreply = {answer}\nprint('reply:', reply)", "reply: "),
        Attempt("apis.supervisor.complete_task(answer=reply)"),
    ]


def _done(program: str) -> list[Attempt]:
    """Return the attempts that execute a program and then complete the task."""
    return [Attempt(program, "message"), Attempt("apis.supervisor.complete_task()")]


@_skill(
    r"How many (song|album|playlist)s are there in my Spotify",
    "spotify.show_song_library",
    "spotify.show_album_library",
    "spotify.show_playlist_library",
)
def _library_size(found: re.Match[str]) -> list[Attempt]:
    return _answered(
        f"entries = apis.spotify.show_{found[1]}_library(access_token=spotify_key)",
        "len(entries)",
    )


@_skill(r'What time is the alarm labelled "(.+)" on my phone', "phone.show_alarms")
def _alarm_time(found: re.Match[str]) -> list[Attempt]:
    return _answered(
        "entries = apis.phone.show_alarms(access_token=phone_key)",
        f"next((entry['time'] for entry in entries if entry['label'] == {found[1]!r}), None)",
    )


@_skill(
    r'How many of my notes in Simple Note have the tag "(.+)"',
    "simple_note.search_notes",
)
def _tagged_notes(found: re.Match[str]) -> list[Attempt]:
    return _answered(
        f"entries = apis.simple_note.search_notes(tags=[{found[1]!r}], access_token=simple_note_key)",
        "len(entries)",
    )


@_skill(
    r"title of the (most|least) played song in my Spotify",
    "spotify.show_song_library",
    "spotify.show_song",
)
def _most_played(found: re.Match[str]) -> list[Attempt]:
    choose = "max" if found[1] == "most" else "min"
    return _answered(
        "entries = apis.spotify.show_song_library(access_token=spotify_key)\n"
        "details = [apis.spotify.show_song(song_id=entry['song_id']) for entry in entries]",
        f"{choose}(details, key=lambda song: song['play_count'])['title']",
    )


@_skill(
    r"How much money have I sent to (.+) on Venmo this year",
    "venmo.search_users",
    "venmo.show_transactions",
)
def _money_sent(found: re.Match[str]) -> list[Attempt]:
    return _answered(
        f"other = apis.venmo.search_users(query={found[1]!r}, access_token=venmo_key)[0]\n"
        "entries = apis.venmo.show_transactions(user_email=other['email'], direction='sent', "
        "min_created_at=f'{DateTime.now().year}-01-01', access_token=venmo_key)",
        "round(sum(entry['amount'] for entry in entries), 2)",
    )


@_skill(
    r'Mark all (\w+) priority tasks of my Todoist project "(.+)" as completed',
    "todoist.show_projects",
    "todoist.show_tasks",
    "todoist.update_task",
)
def _complete_chores(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"projects_found = apis.todoist.show_projects(query={found[2]!r}, access_token=todoist_key)\n"
        f"chores = apis.todoist.show_tasks(project_id=projects_found[0]['project_id'], priority={found[1]!r}, "
        "is_completed=False, access_token=todoist_key)['no_section_tasks']\n"
        "for chore in chores:\n"
        "    print(apis.todoist.update_task(task_id=chore['task_id'], is_completed=True, access_token=todoist_key))"
    )


@_skill(
    r'Send \$(\d+) on Venmo to each of my (\w+)s, .* with the note "(.+)"',
    "phone.search_contacts",
    "venmo.create_transaction",
)
def _pay(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"others = apis.phone.search_contacts(relationship={found[2]!r}, access_token=phone_key)\n"
        "for other in others:\n"
        f"    print(apis.venmo.create_transaction(receiver_email=other['email'], amount={found[1]}, "
        f"description={found[3]!r}, access_token=venmo_key))"
    )


@_skill(
    r'My Simple Note note "(.+)" says who owes me how much\. Request each amount on Venmo',
    "simple_note.search_notes",
    "simple_note.show_note",
    "venmo.create_payment_request",
)
def _request_shares(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"entry = apis.simple_note.search_notes(query={found[1]!r}, access_token=simple_note_key)[0]\n"
        "text = apis.simple_note.show_note(note_id=entry['note_id'], access_token=simple_note_key)['content']\n"
        "for share in text.splitlines():\n"
        "    who, how_much = share.split(': ')\n"
        "    print(apis.venmo.create_payment_request(user_email=who, amount=float(how_much), "
        f"description={found[1]!r}, access_token=venmo_key))"
    )


@_skill(
    r'\((\S+)\) sent me an email with the subject "(.+)"\. Save its body in my file system as (\S+)\.',
    "gmail.show_inbox_threads",
    "gmail.show_thread",
    "file_system.create_file",
)
def _save_email(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"entries = apis.gmail.show_inbox_threads(from_email={found[1]!r}, access_token=gmail_key)\n"
        f"entry = next(entry for entry in entries if entry['subject'] == {found[2]!r})\n"
        "text = apis.gmail.show_thread(email_thread_id=entry['email_thread_id'], access_token=gmail_key)"
        "['emails'][0]['body']\n"
        f"print(apis.file_system.create_file(file_path={found[3]!r}, content=text, access_token=file_system_key))"
    )


@_skill(
    r'Switch (on|off) the alarm labelled "(.+)" on my phone',
    "phone.show_alarms",
    "phone.update_alarm",
)
def _switch_alarm(found: re.Match[str]) -> list[Attempt]:
    return _done(
        "entries = apis.phone.show_alarms(access_token=phone_key)\n"
        "for entry in entries:\n"
        f"    if entry['label'] == {found[2]!r}:\n"
        f"        print(apis.phone.update_alarm(alarm_id=entry['alarm_id'], enabled={found[1] == 'on'}, "
        "access_token=phone_key))"
    )


@_skill(
    r"Star every email thread from .+ \((\S+)\) in my Gmail",
    "gmail.show_inbox_threads",
    "gmail.mark_thread_starred",
)
def _star_threads(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"entries = apis.gmail.show_inbox_threads(from_email={found[1]!r}, starred=False, access_token=gmail_key)\n"
        "for entry in entries:\n"
        "    print(apis.gmail.mark_thread_starred(email_thread_id=entry['email_thread_id'], access_token=gmail_key))"
    )


@_skill(
    r'Add a task to my Todoist project "(.+)" for every line of my Simple Note note "(.+)"\. The line',
    "simple_note.search_notes",
    "simple_note.show_note",
    "todoist.show_projects",
    "todoist.create_task",
)
def _note_to_tasks(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"entry = apis.simple_note.search_notes(query={found[2]!r}, access_token=simple_note_key)[0]\n"
        "text = apis.simple_note.show_note(note_id=entry['note_id'], access_token=simple_note_key)['content']\n"
        f"target = apis.todoist.show_projects(query={found[1]!r}, access_token=todoist_key)[0]\n"
        "for chore in text.splitlines():\n"
        "    print(apis.todoist.create_task(project_id=target['project_id'], title=chore, access_token=todoist_key))"
    )


@_skill(
    r'Create the file (\S+) in my file system with the content "(.+)"',
    "file_system.create_file",
)
def _new_file(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"print(apis.file_system.create_file(file_path={found[1]!r}, content={found[2]!r}, "
        "access_token=file_system_key))"
    )


@_skill(
    r'Create a Spotify playlist named "(.+)" with all (\w+) songs of my Spotify song library',
    "spotify.show_song_library",
    "spotify.show_song",
    "spotify.create_playlist",
    "spotify.add_song_to_playlist",
)
def _genre_playlist(found: re.Match[str]) -> list[Attempt]:
    return _done(
        "entries = apis.spotify.show_song_library(access_token=spotify_key)\n"
        "details = [apis.spotify.show_song(song_id=entry['song_id']) for entry in entries]\n"
        f"new = apis.spotify.create_playlist(title={found[1]!r}, access_token=spotify_key)\n"
        "print(new)\n"
        "for song in details:\n"
        f"    if song['genre'] == {found[2]!r}:\n"
        "        print(apis.spotify.add_song_to_playlist(playlist_id=new['playlist_id'], song_id=song['song_id'], "
        "access_token=spotify_key))"
    )


@_skill(
    r"Approve all pending Venmo payment requests that my (\w+)s sent me",
    "phone.search_contacts",
    "venmo.show_received_payment_requests",
    "venmo.approve_payment_request",
    "venmo.deny_payment_request",
)
def _answer_requests(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"others = apis.phone.search_contacts(relationship={found[1]!r}, access_token=phone_key)\n"
        "entries = apis.venmo.show_received_payment_requests(status='pending', access_token=venmo_key)\n"
        "for entry in entries:\n"
        "    known = entry['sender']['email'] in [other['email'] for other in others]\n"
        "    reply = apis.venmo.approve_payment_request if known else apis.venmo.deny_payment_request\n"
        "    print(reply(payment_request_id=entry['payment_request_id'], access_token=venmo_key))"
    )


@_skill(
    r'Send a text message to each of my (\w+)s: "(.+)"',
    "phone.search_contacts",
    "phone.send_text_message",
)
def _text_contacts(found: re.Match[str]) -> list[Attempt]:
    return _done(
        f"others = apis.phone.search_contacts(relationship={found[1]!r}, access_token=phone_key)\n"
        "for other in others:\n"
        f"    print(apis.phone.send_text_message(phone_number=other['phone_number'], message={found[2]!r}, "
        "access_token=phone_key))"
    )
