"""Scenarios of difficulty 3: several apps, or a decision for every record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_appworld.generation.checks import (
    NO_ANSWER,
    ONE_NEW_FILE,
    counts,
    only_changed,
    only_fields,
    records,
)
from hgpo_appworld.generation.programs import all_pages
from hgpo_appworld.generation.scenario import Draft, scenario
from hgpo_appworld.generation.words import CHORES, EXPENSES, MONEY_NOTES, SENTENCES
from hgpo_appworld.generation.world import NOW, add_email, ago

if TYPE_CHECKING:
    import random

    from hgpo_appworld.generation.world import Person, Rows, World


def _contacts_of(relationship: str) -> str:
    return all_pages(
        "contacts",
        f"apis.phone.search_contacts(relationship={relationship!r}, access_token=phone_token",
        "[contact['email'] for contact in contacts]",
    )


def _add_note(
    rows: Rows,
    person: Person,
    rng: random.Random,
    title: str,
    lines: list[str],
    tag: str,
) -> None:
    """Add a note of the last days, with one entry per line."""
    made = ago(rng, 20)
    rows.add(
        "simple_note",
        "Note",
        user_id=person.id,
        title=title,
        content="\n".join(lines),
        tags=[tag],
        created_at=made,
        updated_at=made,
        pinned=False,
    )


def _note_lines(title: str) -> list[str]:
    """Return the steps that find a note and split it into lines."""
    return [
        all_pages(
            "notes",
            f"apis.simple_note.search_notes(query={title!r}, access_token=simple_note_token",
        ),
        (
            f"wanted = next(note for note in notes if note['title'] == {title!r})\n"
            "note = apis.simple_note.show_note(note_id=wanted['note_id'], access_token=simple_note_token)\n"
            "lines = note['content'].splitlines()\nprint(lines)"
        ),
    ]


@scenario(
    "train",
    3,
    "phone",
    "venmo",
    checks=(
        NO_ANSWER,
        only_changed("venmo.Transaction", "venmo.User", "venmo.Notification"),
        counts("venmo.Transaction", added="len(private_data.receivers)"),
        records(
            "each transaction has the right receiver, amount and note",
            "venmo.Transaction",
            "added",
            "(record.sender_id, record.receiver_id, record.amount, record.description)",
            "(private_data.user, receiver, private_data.amount, private_data.note) "
            "for receiver in private_data.receivers",
        ),
        only_fields("venmo.User", "venmo_balance"),
    ),
)
def pay_contacts(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Send money to contacts of a relationship."""
    del rows
    relationship = rng.choice(["roommate", "friend", "coworker", "sibling"])
    amount = rng.randrange(5, 60)
    note = rng.choice(MONEY_NOTES)
    steps = [
        _contacts_of(relationship),
        "print(apis.venmo.show_venmo_balance(access_token=venmo_token))",
        (
            "for contact in contacts:\n"
            f"    print(apis.venmo.create_transaction(receiver_email=contact['email'], amount={amount}, "
            f"description={note!r}, access_token=venmo_token))"
        ),
    ]
    receivers = [other.id for other in world.contacts[person.id][relationship]]
    private = {
        "receivers": receivers,
        "amount": amount,
        "note": note,
        "user": person.id,
    }
    instruction = (
        f"Send ${amount} on Venmo to each of my {relationship}s, as they are in my phone contacts, "
        f'with the note "{note}".'
    )
    return Draft(instruction, steps, None, private)


@scenario(
    "dev",
    3,
    "simple_note",
    "venmo",
    checks=(
        NO_ANSWER,
        only_changed("venmo.PaymentRequest", "venmo.Notification"),
        counts("venmo.PaymentRequest", added="len(private_data.shares)"),
        records(
            "each request has the right receiver, amount and description",
            "venmo.PaymentRequest",
            "added",
            "(record.sender_id, record.receiver_id, record.amount, record.description)",
            "(private_data.user, receiver, amount, private_data.title) for receiver, amount in private_data.shares",
        ),
    ),
)
def request_shares(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Request the amounts that a note lists."""
    title = f"{rng.choice(EXPENSES)} {NOW.year}"
    debtors = rng.sample(world.contacts[person.id]["friend"], 3)
    amounts = [rng.randrange(500, 9900) for _ in debtors]
    lines = [
        f"{debtor.email}: {cents / 100:.2f}"
        for debtor, cents in zip(debtors, amounts, strict=True)
    ]
    _add_note(rows, person, rng, title, lines, "money")
    steps = [
        *_note_lines(title),
        (
            "for line in lines:\n"
            "    email, amount = line.split(': ')\n"
            "    print(apis.venmo.create_payment_request(user_email=email, amount=float(amount), "
            f"description={title!r}, access_token=venmo_token))"
        ),
    ]
    shares = [
        [debtor.id, cents / 100] for debtor, cents in zip(debtors, amounts, strict=True)
    ]
    instruction = (
        f'My Simple Note note "{title}" says who owes me how much. Request each amount on Venmo, with the title of the '
        "note as the description."
    )
    return Draft(
        instruction, steps, None, {"shares": shares, "title": title, "user": person.id}
    )


@scenario(
    "test_normal",
    3,
    "gmail",
    "file_system",
    checks=(
        NO_ANSWER,
        *ONE_NEW_FILE,
    ),
)
def save_email(world: World, person: Person, rng: random.Random, rows: Rows) -> Draft:
    """Save the body of an email as a file."""
    sender = rng.choice(world.contacts[person.id]["coworker"])
    subject = f"Code for locker {rng.randrange(100, 999)}"
    body = f"The code is {rng.randrange(1000, 9999)}. {rng.choice(SENTENCES)}"
    add_email(rows, sender, person, subject, body, ago(rng, 10))
    path = f"{person.home}notes/locker_{rng.randrange(10, 99)}.txt"
    steps = [
        all_pages(
            "threads",
            f"apis.gmail.show_inbox_threads(from_email={sender.email!r}, access_token=gmail_token",
        ),
        (
            f"wanted = next(thread for thread in threads if thread['subject'] == {subject!r})\n"
            "email = apis.gmail.show_email(email_id=wanted['email_ids'][0], access_token=gmail_token)\n"
            "print(email['body'])"
        ),
        (
            f"print(apis.file_system.create_file(file_path={path!r}, content=email['body'], "
            "access_token=file_system_token))"
        ),
    ]
    instruction = (
        f'{sender.name} ({sender.email}) sent me an email with the subject "{subject}". '
        f"Save its body in my file system as {path}."
    )
    return Draft(instruction, steps, None, {"path": path, "content": body})


@scenario(
    "train",
    3,
    "simple_note",
    "todoist",
    checks=(
        NO_ANSWER,
        only_changed("todoist.Task"),
        counts("todoist.Task", added="len(private_data.titles)"),
        records(
            "each task has the right project and title",
            "todoist.Task",
            "added",
            "(record.user_id, record.project_id, record.title)",
            "(private_data.user, private_data.project, title) for title in private_data.titles",
        ),
    ),
)
def note_to_tasks(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Add a task for every line of a note."""
    project, (project_id, _) = rng.choice(
        [entry for entry in world.projects[person.id].items() if entry[0] != "Inbox"]
    )
    title = f"To do for {project}"
    chores = [
        f"{chore} ({number})"
        for number, chore in enumerate(rng.sample(CHORES, rng.randrange(3, 6)), 1)
    ]
    _add_note(rows, person, rng, title, chores, "ideas")
    steps = [
        *_note_lines(title),
        (
            f"projects = apis.todoist.show_projects(query={project!r}, access_token=todoist_token)\n"
            f"project = next(project for project in projects if project['name'] == {project!r})\n"
            "print(project['project_id'])"
        ),
        (
            "for line in lines:\n"
            "    print(apis.todoist.create_task(project_id=project['project_id'], title=line, "
            "access_token=todoist_token))"
        ),
    ]
    instruction = (
        f'Add a task to my Todoist project "{project}" for every line of my Simple Note note "{title}". '
        "The line is the title of the task."
    )
    return Draft(
        instruction,
        steps,
        None,
        {"titles": chores, "project": project_id, "user": person.id},
    )


@scenario(
    "train",
    3,
    "phone",
    "venmo",
    checks=(
        NO_ANSWER,
        only_changed(
            "venmo.PaymentRequest",
            "venmo.Transaction",
            "venmo.User",
            "venmo.Notification",
        ),
        counts(
            "venmo.PaymentRequest",
            updated="len(private_data.approved) + len(private_data.denied)",
        ),
        records(
            "the right requests are approved",
            "venmo.PaymentRequest",
            "updated",
            "record.id if record.approved_at else 0",
            "[*private_data.approved, *([0] * len(private_data.denied))]",
        ),
        counts("venmo.Transaction", added="len(private_data.approved)"),
    ),
)
def answer_requests(
    world: World, person: Person, rng: random.Random, rows: Rows
) -> Draft:
    """Approve the payment requests of some contacts, and deny others."""
    relationship = rng.choice(["friend", "coworker"])
    known = world.contacts[person.id]
    others = [other for kind in known if kind != relationship for other in known[kind]]
    senders = [*rng.sample(known[relationship], 2), *rng.sample(others, 2)]
    cents = [rng.randrange(200, 4000) for _ in senders]
    ids = [
        rows.add(
            "venmo",
            "PaymentRequest",
            sender_id=sender.id,
            receiver_id=person.id,
            amount=amount / 100,
            description=rng.choice(MONEY_NOTES),
            created_at=ago(rng, 30),
            updated_at=NOW.isoformat(),
            private=False,
        )
        for sender, amount in zip(senders, cents, strict=True)
    ]
    steps = [
        _contacts_of(relationship),
        all_pages(
            "requests",
            "apis.venmo.show_received_payment_requests(status='pending', access_token=venmo_token",
        ),
        (
            "emails = [contact['email'] for contact in contacts]\n"
            "for request in requests:\n"
            "    decide = apis.venmo.approve_payment_request if request['sender']['email'] in emails "
            "else apis.venmo.deny_payment_request\n"
            "    print(decide(payment_request_id=request['payment_request_id'], access_token=venmo_token))"
        ),
    ]
    instruction = (
        f"Approve all pending Venmo payment requests that my {relationship}s sent me, and deny all others. My phone "
        f"contacts say who my {relationship}s are."
    )
    return Draft(instruction, steps, None, {"approved": ids[:2], "denied": ids[2:]})
