"""Soak test of WebShop in many processes: constant memory, no open files left, and the same results.

    python benchmarks/webshop_soak.py --minutes 10 --processes 8 --environments 64

A list of seeded episodes is played once in one process. Each process then plays the list once, which fills its caches,
and draws from it afterwards with several interleaved environments. Texts, actions and rewards of every episode are
compared with those of the single process.
Exits with 1 if an episode differs, memory grows by more than 2% (and 2 MB) after the first fifth of the time, or file
handles remain open.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import xxhash
from record import add_keep, store
from rich.console import Console
from rich.table import Table

import hgpo_envs

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EPISODES = 400
STEPS = 12
MARK = 0.2
"""Fraction of the time after which memory should be constant."""

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class Load:
    """A periodic report of a process."""

    seconds: float
    private_mb: float
    files: int
    episodes: int
    different: int


def command(choose: random.Random, info: dict[str, Any], step: int) -> str:
    """Return a seeded action: first a search with words of the instruction, then mostly admissible actions."""
    words = info["task"].split()
    if step == 0 or choose.random() < 0.08:
        return f"search[{' '.join(choose.sample(words, min(4, len(words))))}]"
    offered = [action for action in info["admissible_actions"] if action.startswith("click[")]
    return choose.choice(offered) if offered and choose.random() < 0.97 else "click[nowhere]"


class Player:
    """An environment that plays the listed episodes step by step."""

    def __init__(self, data: str | None) -> None:
        self.env = gymnasium.make("HGPO/WebShop-v0", data=data, split="all", max_steps=STEPS)
        self.tasks = len(self.env.unwrapped.shared.source.ids("all"))  # type: ignore[attr-defined]
        self.episode = -1

    def begin(self, episode: int) -> None:
        """Start an episode of the list."""
        self.choose, self.episode, self.step = random.Random(episode), episode, 0
        self.digest = xxhash.xxh3_64()
        observation, self.info = self.env.reset(options={"task": self.choose.randrange(self.tasks)})
        self._take(observation, 0.0)

    def advance(self) -> str | None:
        """Make a step; return the episode's digest at its end."""
        observation, reward, terminated, truncated, self.info = self.env.step(
            command(self.choose, self.info, self.step)
        )
        self.step += 1
        self._take(observation, float(reward))
        return self.digest.hexdigest() if terminated or truncated else None

    def _take(self, observation: dict[str, Any], reward: float) -> None:
        observed = (observation["prompt"], self.info["page"], self.info["available_actions"], reward)
        self.digest.update(repr(observed).encode("utf-8", "surrogatepass"))


def reference(data: str | None) -> list[str]:
    """Return the digests of all listed episodes, played sequentially."""
    player, digests = Player(data), []
    for episode in range(EPISODES):
        player.begin(episode)
        digest = None
        while digest is None:
            digest = player.advance()
        digests.append(digest)
    return digests


def private_mb() -> float:
    """Return the private memory of this process in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


def open_files() -> int:
    """Return the number of open file handles of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def work(number: int, environments: int, seconds: float, data: str | None, digests: list[str], out: Connection) -> None:
    """Play a part of the environments until the time is over; report about once per second."""
    different = sum(found != known for found, known in zip(reference(data), digests, strict=True))
    begun = reported = time.monotonic()
    players = [Player(data) for _ in range(environments)]
    choose = random.Random(f"process {number}")
    played = 0
    for player in players:
        player.begin(choose.randrange(EPISODES))
    while time.monotonic() - begun < seconds:
        for player in players:
            digest = player.advance()
            if digest is not None:
                played += 1
                different += digest != digests[player.episode]
                player.begin(choose.randrange(EPISODES))
        if time.monotonic() - reported > min(1.0, seconds / 20):
            reported = time.monotonic()
            out.send(Load(reported - begun, private_mb(), open_files(), played, different))
    for player in players:
        player.env.close()
    out.close()


def soak(
    seconds: float, processes: int, environments: int, data: str | None, console: Console
) -> tuple[list[list[Load]], int]:
    """Run the processes; return their reports by process, and the number of file handles left in this process."""
    with console.status("one process plays the list"):
        digests = reference(data)
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()
    files = open_files()
    started, reports = [], [list[Load]() for _ in range(processes)]
    for number in range(processes):
        own = environments // processes + (number < environments % processes)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(number, own, seconds, data, digests, sender))
        process.start()
        sender.close()
        started.append((process, receiver))
    open_ends = {receiver: number for number, (_, receiver) in enumerate(started)}
    with console.status("soaking") as status:
        while open_ends:
            for receiver in connection.wait(list(open_ends)):
                number = open_ends[receiver]  # type: ignore[index]
                try:
                    reports[number].append(receiver.recv())  # type: ignore[union-attr]
                    status.update(f"soaking: {reports[number][-1].seconds:.0f} of {seconds:.0f} s")
                except EOFError:
                    del open_ends[receiver]  # type: ignore[arg-type]
                    receiver.close()
    for number, (process, _) in enumerate(started):
        process.join()
        code = process.exitcode
        process.close()
        if code:
            raise SystemExit(f"process {number} ended with {code}")
    return reports, open_files() - files


def summary(reports: list[list[Load]], seconds: float) -> tuple[list[dict[str, Any]], bool]:
    """Return one row per process, and whether all checks passed."""
    rows, well = [], True
    for number, loads in enumerate(reports):
        settled = [load for load in loads if load.seconds >= MARK * seconds]
        early, late = settled[0], settled[-1]
        third = max(1, len(settled) // 3)
        before, after = (sum(x.private_mb for x in part) / len(part) for part in (settled[:third], settled[-third:]))
        growth = after - before
        good = growth <= max(2.0, 0.02 * before) and late.files <= early.files and not late.different
        rows.append(
            {
                "process": number,
                "episodes": late.episodes,
                "different": late.different,
                "MB early": round(before, 1),
                "MB late": round(after, 1),
                "files early": early.files,
                "files late": late.files,
                "good": good,
            }
        )
        well = well and good
    return rows, well


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--data", help="a built catalogue; the bundled one by default")
    add_keep(parser)
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    seconds = given.minutes * 60
    reports, left = soak(seconds, given.processes, given.environments, given.data, console)
    rows, well = summary(reports, seconds)
    table = Table(
        *rows[0], title=f"{given.environments} environments, {given.processes} processes, {given.minutes:g} min"
    )
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    console.print(f"file handles left in the parent: {left}; {'all checks passed' if well and left <= 0 else 'FAILED'}")
    figures = {"minutes": given.minutes, "rows": rows, "files_left": left}
    console.print(store("webshop_soak", figures, keep=given.keep))
    sys.exit(0 if well and left <= 0 else 1)


if __name__ == "__main__":
    main()
