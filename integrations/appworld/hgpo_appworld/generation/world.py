"""A generated world: people and what they have in their apps, as rows of AppWorld's databases.

Nothing here needs AppWorld. Rows are plain data, which `build_root.py` writes with AppWorld's own models in AppWorld's
interpreter.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from hgpo_appworld.apps import ACCOUNTS
from hgpo_appworld.generation import words

NOW: Final = datetime(2023, 5, 18, 12)  # noqa: DTZ001 - AppWorld's clocks have no time zone
"""The frozen time of every task."""

RELATIONSHIPS: Final = ("roommate", "friend", "coworker", "sibling")


@dataclass(frozen=True)
class Row:
    """A record of a database.

    Attributes:
        app: The app.
        model: The name of the model.
        id: The id that the database will give it: rows of a model are numbered from 1 in their order.
        fields: Its other fields. Times are texts in ISO format.
    """

    app: str
    model: str
    id: int
    fields: dict[str, Any]


class Rows:
    """Rows in the order in which they are written.

    Args:
        counts: How many rows of each model there are already.
    """

    def __init__(self, counts: Counter[tuple[str, str]] | None = None) -> None:
        self.counts = Counter(counts or {})
        self.rows: list[Row] = []

    def add(self, app: str, model: str, **fields: Any) -> int:
        """Add a row and return its id."""
        self.counts[app, model] += 1
        row = Row(app, model, self.counts[app, model], fields)
        self.rows.append(row)
        return row.id

    def following(self) -> Rows:
        """Return rows that are added after these, for a task."""
        return Rows(self.counts)


@dataclass(frozen=True)
class Person:
    """Someone with an account in every app. The id is the same in all of them."""

    id: int
    first_name: str
    last_name: str
    sex: str
    phone: str
    birthday: str

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.first_name} {self.last_name}"

    @property
    def email(self) -> str:
        """The email address, the same in all apps."""
        return f"{self.first_name}.{self.last_name}@example.com".lower()

    @property
    def home(self) -> str:
        """The home folder in the app file_system."""
        return f"/home/{self.first_name.lower()}/"

    def password(self, app: str) -> str:
        """Return the password of an account."""
        return f"{app[:3]}-{self.last_name.lower()}-{self.id * 37 % 101:03d}"


@dataclass(frozen=True)
class Song:
    """A song of the catalogue."""

    id: int
    title: str
    artist_id: int
    genre: str
    play_count: int
    duration: int


@dataclass(frozen=True)
class Note:
    """A note of a person."""

    id: int
    title: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Transfer:
    """A sum of money that one person sent to another."""

    sender: int
    receiver: int
    cents: int
    sent: datetime


@dataclass(frozen=True)
class Thread:
    """An email thread in somebody's inbox, with one email."""

    id: int
    sender: int
    subject: str
    body: str
    starred: bool


@dataclass(frozen=True)
class Chore:
    """A task of a todo project."""

    id: int
    title: str
    priority: str
    done: bool


@dataclass(frozen=True)
class Alarm:
    """An alarm of somebody's phone."""

    id: int
    label: str
    time: str
    enabled: bool


@dataclass
class World:
    """Everything that exists before a task begins. Dictionaries are keyed by the owner's id."""

    rows: Rows = field(default_factory=Rows)
    people: list[Person] = field(default_factory=list)
    contacts: dict[int, dict[str, list[Person]]] = field(default_factory=dict)
    songs: list[Song] = field(default_factory=list)
    library: dict[int, list[Song]] = field(default_factory=dict)
    albums: dict[int, int] = field(default_factory=dict)
    playlists: dict[int, list[str]] = field(default_factory=dict)
    notes: dict[int, list[Note]] = field(default_factory=dict)
    alarms: dict[int, list[Alarm]] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    inbox: dict[int, list[Thread]] = field(default_factory=dict)
    projects: dict[int, dict[str, tuple[int, list[Chore]]]] = field(
        default_factory=dict
    )
    files: dict[int, list[str]] = field(default_factory=dict)

    def person(self, person_id: int) -> Person:
        """Return the person with an id."""
        return self.people[person_id - 1]


def make_world(seed: int) -> World:
    """Return the world of a seed."""
    world = World()
    for part in (
        _people,
        _contacts,
        _music,
        _notes,
        _alarms,
        _money,
        _mail,
        _chores,
        _files,
    ):
        part(world, random.Random(f"{seed}/{part.__name__}"))
    return world


def ago(rng: random.Random, days: int) -> str:
    """Return a time within so many days before `NOW`, in ISO format."""
    return (NOW - timedelta(minutes=rng.randrange(60, days * 24 * 60))).isoformat()


def _people(world: World, rng: random.Random) -> None:
    last_names = rng.sample(words.LAST_NAMES, len(words.LAST_NAMES))
    for number, ((first, sex), last) in enumerate(
        zip(words.FIRST_NAMES, last_names, strict=True), 1
    ):
        born = datetime(1960, 1, 1) + timedelta(days=rng.randrange(16_000))  # noqa: DTZ001 - a date
        phone = f"555{rng.randrange(10**7):07d}"
        world.people.append(
            Person(number, first, last, sex, phone, born.date().isoformat())
        )
    for person in world.people:
        names = {"first_name": person.first_name, "last_name": person.last_name}
        world.rows.add(
            "admin",
            "MainUser",
            **names,
            email=person.email,
            phone_number=person.phone,
            birthday=person.birthday,
            sex=person.sex,
        )
        for app in ACCOUNTS:
            world.rows.add(
                "admin",
                "AccountPassword",
                main_user_id=person.id,
                account_name=app,
                password=person.password(app),
            )
            contact = (
                {"phone_number": person.phone}
                if app == "phone"
                else {"email": person.email}
            )
            extra: dict[str, Any] = {} if app == "phone" else {"verified": True}
            if app == "venmo":
                extra["venmo_balance"] = float(rng.randrange(600, 1500))
            world.rows.add(
                app,
                "User",
                **names,
                **contact,
                password=person.password(app),
                created_at=ago(rng, 900),
                **extra,
            )


def _contacts(world: World, rng: random.Random) -> None:
    """Give everyone contacts of each relationship. Six friends are more than the first page of a list shows."""
    for person in world.people:
        others = rng.sample([other for other in world.people if other != person], 11)
        sizes = (2, 6, 2, 1)
        known = world.contacts[person.id] = {}
        for relationship, size in zip(RELATIONSHIPS, sizes, strict=True):
            known[relationship] = others[:size]
            others = others[size:]
        for relationship, people in known.items():
            for other in people:
                world.rows.add(
                    "phone",
                    "Contact",
                    user_id=person.id,
                    first_name=other.first_name,
                    last_name=other.last_name,
                    email=other.email,
                    phone_number=other.phone,
                    relationships=[relationship],
                    birthday=other.birthday,
                    created_at=ago(rng, 700),
                )
        for friend in known["friend"]:
            world.rows.add(
                "venmo",
                "Friendship",
                user_id=person.id,
                friend_id=friend.id,
                created_at=ago(rng, 700),
            )


def _music(world: World, rng: random.Random) -> None:
    for name in words.ARTISTS:
        world.rows.add(
            "spotify",
            "Artist",
            name=name,
            genre=rng.choice(words.GENRES),
            created_at=ago(rng, 900),
        )
    albums = []
    for word in words.ALBUM_WORDS:
        artist = rng.randrange(1, len(words.ARTISTS) + 1)
        title = f"{word} from {rng.choice(words.NOUNS)}"
        albums.append(
            world.rows.add(
                "spotify",
                "Album",
                title=title,
                artist_ids=[artist],
                release_date=ago(rng, 2000),
                genre=rng.choice(words.GENRES),
            )
        )
    titles = [
        f"{adjective} {noun}" for adjective in words.ADJECTIVES for noun in words.NOUNS
    ]
    # all different: "the most played" is one song
    plays = rng.sample(range(100, 100_000), 72)
    for title, play_count in zip(rng.sample(titles, 72), plays, strict=True):
        artist = rng.randrange(1, 11)
        genre = rng.choice(words.GENRES)
        duration = rng.randrange(120, 420)
        number = world.rows.add(
            "spotify",
            "Song",
            title=title,
            artist_ids=[artist],
            album_id=rng.choice([None, *albums]),
            duration=duration,
            release_date=ago(rng, 2000),
            genre=genre,
            play_count=play_count,
        )
        world.songs.append(Song(number, title, artist, genre, play_count, duration))
    for person in world.people:
        own = world.library[person.id] = rng.sample(world.songs, rng.randrange(6, 30))
        for song in own:
            world.rows.add(
                "spotify",
                "UserLibrarySong",
                user_id=person.id,
                song_id=song.id,
                created_at=ago(rng, 500),
            )
        kept = rng.sample(albums, rng.randrange(2, 8))
        world.albums[person.id] = len(kept)
        for album in kept:
            world.rows.add(
                "spotify",
                "UserLibraryAlbum",
                user_id=person.id,
                album_id=album,
                created_at=ago(rng, 500),
            )
        titles = world.playlists[person.id] = rng.sample(
            words.PLAYLISTS, rng.randrange(2, 8)
        )
        for title in titles:
            playlist = world.rows.add(
                "spotify",
                "Playlist",
                title=title,
                user_id=person.id,
                is_public=False,
                created_at=ago(rng, 400),
            )
            for song in rng.sample(world.songs, rng.randrange(2, 7)):
                world.rows.add(
                    "spotify",
                    "PlaylistSong",
                    playlist_id=playlist,
                    song_id=song.id,
                    added_at=ago(rng, 300),
                )
        queue = [song.id for song in rng.sample(world.songs, 5)]
        world.rows.add(
            "spotify",
            "MusicPlayer",
            user_id=person.id,
            queue_song_ids=queue,
            cursor_position=0,
            volume=5,
        )


def _notes(world: World, rng: random.Random) -> None:
    for person in world.people:
        own = world.notes[person.id] = []
        for title in rng.sample(words.NOTE_TITLES, rng.randrange(7, 15)):
            tags = tuple(rng.sample(words.NOTE_TAGS, rng.randrange(1, 3)))
            created = ago(rng, 400)
            number = world.rows.add(
                "simple_note",
                "Note",
                user_id=person.id,
                title=title,
                content="\n".join(rng.sample(words.SENTENCES, rng.randrange(1, 4))),
                tags=list(tags),
                created_at=created,
                updated_at=created,
                pinned=False,
            )
            own.append(Note(number, title, tags))


def _alarms(world: World, rng: random.Random) -> None:
    for person in world.people:
        own = world.alarms[person.id] = []
        for label in rng.sample(words.ALARM_LABELS, rng.randrange(5, 9)):
            time = f"{rng.randrange(5, 23):02d}:{rng.randrange(0, 60, 5):02d}"
            enabled = rng.random() < 0.7
            number = world.rows.add(
                "phone",
                "Alarm",
                user_id=person.id,
                time=time,
                repeat_days=["monday", "thursday"],
                label=label,
                enabled=enabled,
                snooze_minutes=rng.choice([0, 5, 10]),
                vibration=True,
                created_at=ago(rng, 300),
            )
            own.append(Alarm(number, label, time, enabled))


def _money(world: World, rng: random.Random) -> None:
    for person in world.people:
        friends = world.contacts[person.id]["friend"]
        for _ in range(rng.randrange(10, 18)):
            other = rng.choice(friends)
            sender, receiver = (
                (person, other) if rng.random() < 0.7 else (other, person)
            )
            cents = rng.randrange(200, 9000)
            sent = ago(rng, 480)
            world.rows.add(
                "venmo",
                "Transaction",
                sender_id=sender.id,
                receiver_id=receiver.id,
                amount=cents / 100,
                description=rng.choice(words.MONEY_NOTES),
                created_at=sent,
                updated_at=sent,
                private=False,
            )
            world.transfers.append(
                Transfer(sender.id, receiver.id, cents, datetime.fromisoformat(sent))
            )


def _mail(world: World, rng: random.Random) -> None:
    for person in world.people:
        own = world.inbox[person.id] = []
        senders = [
            *world.contacts[person.id]["friend"],
            *world.contacts[person.id]["coworker"],
        ]
        for _ in range(rng.randrange(9, 13)):
            sender = rng.choice(senders)
            subject = rng.choice(words.SUBJECTS)
            body = "\n".join(rng.sample(words.SENTENCES, 2))
            sent = ago(rng, 200)
            starred = rng.random() < 0.2
            thread = add_email(
                world.rows, sender, person, subject, body, sent, starred=starred
            )
            own.append(Thread(thread, sender.id, subject, body, starred))


def add_email(
    rows: Rows,
    sender: Person,
    receiver: Person,
    subject: str,
    body: str,
    sent: str,
    *,
    starred: bool = False,
) -> int:
    """Add an email and return the id of its thread in the receiver's inbox."""
    email = rows.add(
        "gmail",
        "Email",
        sender_id=sender.id,
        recipient_ids=[receiver.id],
        subject=subject,
        body=body,
        created_at=sent,
    )
    times = {"created_at": sent, "updated_at": sent}
    thread = rows.add("gmail", "GlobalEmailThread", email_ids=[email], **times)
    made = [
        rows.add(
            "gmail",
            "UserEmailThread",
            global_email_thread_id=thread,
            user_id=owner.id,
            email_ids=[email],
            incoming=owner == receiver,
            outgoing=owner == sender,
            read=owner == sender,
            starred=starred and owner == receiver,
            **times,
        )
        for owner in (sender, receiver)
    ]
    return made[1]


def _chores(world: World, rng: random.Random) -> None:
    for person in world.people:
        own = world.projects[person.id] = {}
        for name in ("Inbox", *rng.sample(words.PROJECTS, 2)):
            project = world.rows.add(
                "todoist",
                "Project",
                user_id=person.id,
                name=name,
                is_inbox=name == "Inbox",
                description="",
                created_at=ago(rng, 300),
            )
            world.rows.add(
                "todoist",
                "ProjectCollaboratorLink",
                project_id=project,
                user_id=person.id,
                created_at=ago(rng, 300),
            )
            chores = []
            for order, title in enumerate(
                rng.sample(words.CHORES, rng.randrange(6, 10))
            ):
                priority = (
                    ("high", "medium", "low")[order]
                    if order < 3
                    else rng.choice(["high", "medium", "low"])
                )
                done = order > 2 and rng.random() < 0.3
                number = world.rows.add(
                    "todoist",
                    "Task",
                    project_id=project,
                    user_id=person.id,
                    title=title,
                    description="",
                    priority=priority,
                    is_completed=done,
                    order_index=order,
                    created_at=ago(rng, 200),
                )
                chores.append(Chore(number, title, priority, done))
            own[name] = project, chores


def _files(world: World, rng: random.Random) -> None:
    for person in world.people:
        folders = [
            "/",
            "/home/",
            person.home,
            *(f"{person.home}{name}/" for name in words.FOLDERS),
        ]
        for folder in folders:
            made = ago(rng, 900)
            world.rows.add(
                "file_system",
                "Directory",
                path=folder,
                user_id=person.id,
                created_at=made,
                updated_at=made,
            )
        own = world.files[person.id] = []
        for name in rng.sample(words.FILE_NAMES, rng.randrange(4, 7)):
            path = f"{rng.choice(folders[3:])}{name}.txt"
            made = ago(rng, 400)
            world.rows.add(
                "file_system",
                "File",
                path=path,
                user_id=person.id,
                content="\n".join(rng.sample(words.SENTENCES, 2)),
                created_at=made,
                updated_at=made,
            )
            own.append(path)
