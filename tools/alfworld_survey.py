"""Generate `rooms.json.gz`: the contents of ALFWorld's 120 rooms, from its layouts and official games.

    python -m tools.alfworld_survey LAYOUTS GAMES OUT

`LAYOUTS` is the folder `alfworld/gen/layouts` of the `alfworld` package, `GAMES` the official `json_2.1.1` folder. In
all games, the furniture of a room is fixed: its receptacles and the locations in front of them, which of them can be
opened (those that the layouts list), its fixtures (a lamp, a plant) and the kinds of objects. Games differ in the
number and the locations of objects of each kind; the file contains their frequencies. Eight rooms have no official
game; their data comes from the layouts alone.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from hgpo_envs.alfworld.data.rooms import room_kind
from hgpo_envs.errors import InputError

SCENES: Final = [*range(1, 31), *range(201, 231), *range(301, 331), *range(401, 431)]
ATTRIBUTES: Final = (
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "sliceable",
    "toggleable",
    "isReceptacleObject",
)
OPENABLE: Final = {"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"}
LAMP_STANDS: Final = ("Desk", "SideTable", "Dresser", "Shelf")
_FACT: Final = re.compile(r"\((\w+)((?: [^()\s]+)+)\)")
_CODES: Final = (("_bar_", "|"), ("_plus_", "+"), ("_minus_", "-"), ("_dot_", "."))


def _plain(name: str) -> str:
    for code, sign in _CODES:
        name = name.replace(code, sign)
    return name


class Survey:
    """Counts over all games, and the fixed contents of each room."""

    def __init__(self) -> None:
        self.attributes: dict[str, set[str]] = defaultdict(set)
        self.holds: dict[str, set[str]] = defaultdict(set)
        self.copies: dict[str, Counter[int]] = defaultdict(Counter)
        self.where: dict[str, dict[str, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        self.goals: dict[str, dict[str, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        self.games: Counter[int] = Counter()
        self.locations: dict[int, dict[str, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        self.openable: dict[int, set[str]] = defaultdict(set)
        self.kinds: dict[int, set[str]] = defaultdict(set)
        self.fixtures: dict[int, Counter[tuple[str, tuple[str, ...]]]] = defaultdict(
            Counter
        )
        self.overlaps: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
        self.placed: dict[int, Counter[str]] = defaultdict(Counter)
        self.types: dict[str, str] = {}

    def add(self, folder: Path) -> None:
        """Add one game folder to the counts."""
        problem = json.loads((folder / "game.tw-pddl").read_text())["pddl_problem"]
        traj = json.loads((folder / "traj_data.json").read_text())
        facts: dict[str, list[list[str]]] = defaultdict(list)
        for match in _FACT.finditer(
            problem, problem.index("(:init"), problem.index("(:goal")
        ):
            facts[match[1]].append([_plain(word) for word in match[2].split()])
        scene = int(folder.parent.name.rsplit("-", 1)[1])
        self.games[scene] += 1
        target = traj["pddl_params"]["object_target"]
        parent = (
            traj["pddl_params"]["parent_target"] or traj["pddl_params"]["toggle_target"]
        )
        self.goals[traj["task_type"]][target][parent] += 1
        self._receptacles(scene, facts)
        self._objects(scene, facts, target)

    def _receptacles(self, scene: int, facts: dict[str, list[list[str]]]) -> None:
        for receptacle, kind in facts["receptacleType"]:
            self.types[receptacle] = kind.removesuffix("Type")
        for receptacle, location in facts["receptacleAtLocation"]:
            self.locations[scene][receptacle][location] += 1
        self.openable[scene].update(receptacle for (receptacle,) in facts["openable"])
        for receptacle, thing in facts["canContain"]:
            self.holds[receptacle.removesuffix("Type")].add(thing.removesuffix("Type"))

    def _objects(
        self, scene: int, facts: dict[str, list[list[str]]], target: str
    ) -> None:
        kinds = {name: kind.removesuffix("Type") for name, kind in facts["objectType"]}
        for attribute in ATTRIBUTES:
            for (name,) in facts[attribute]:
                if name in kinds:  # the halves of a cracked egg have no type
                    self.attributes[kinds[name]].add(attribute)
        lies: dict[str, list[str]] = defaultdict(list)
        for name, receptacle in sorted(facts["inReceptacle"]):
            lies[name].append(receptacle)
        movable = {name for (name,) in facts["pickupable"] if name in kinds}
        copies = Counter(kinds[name] for name in movable)
        self.kinds[scene].update(copies)
        for kind in copies.keys() - {target}:
            self.copies[kind][copies[kind]] += 1
        for name in movable:
            self._place(scene, kinds[name], lies.get(name) or [""])
        for name in kinds.keys() & lies.keys() - movable:
            self.fixtures[scene][name, tuple(lies[name])] += 1

    def _place(self, scene: int, kind: str, receptacles: list[str]) -> None:
        for receptacle in receptacles:
            self.where[room_kind(scene)][kind][self.types.get(receptacle, "")] += 1
            self.placed[scene][receptacle] += 1
            self.overlaps[scene].update(
                (receptacle, other) for other in receptacles if other != receptacle
            )

    def room(self, scene: int, layouts: Path) -> dict[str, Any]:
        """Return one room's entry."""
        if not self.games[scene]:
            return self._from_layout(scene, layouts)
        names = sorted(self.locations[scene])
        number = {name: i for i, name in enumerate(names)}
        receptacles = []
        for name in names:
            location = (
                self.locations[scene][name].most_common(1)[0][0].removeprefix("loc|")
            )
            receptacles.append(
                [
                    self.types[name],
                    _position(name),
                    location,
                    int(name in self.openable[scene]),
                ]
            )
        fixtures = [
            [name.split("|", 1)[0], _position(name), [number[r] for r in held]]
            for (name, held), games in sorted(self.fixtures[scene].items())
            if 2 * games > self.games[scene]
        ]
        overlaps = [
            [number[a], number[b], round(n / self.placed[scene][a], 2)]
            for (a, b), n in sorted(self.overlaps[scene].items())
            if n / self.placed[scene][a] >= 0.02  # fewer are chance
        ]
        return {
            "scene": scene,
            "receptacles": receptacles,
            "fixtures": fixtures,
            "overlaps": overlaps,
            "objects": sorted(self.kinds[scene]),
        }

    def _from_layout(self, scene: int, layouts: Path) -> dict[str, Any]:
        places = json.loads((layouts / f"FloorPlan{scene}-openable.json").read_text())
        kinds = set(
            json.loads((layouts / f"FloorPlan{scene}-objects.json").read_text())
        )
        receptacles = []
        for name, (x, z, rotation, horizon) in sorted(places.items()):
            kind = (
                name.rsplit("|", 1)[1]
                if name.endswith("Basin")
                else name.split("|", 1)[0]
            )
            location = f"{round(4 * x)}|{round(4 * z)}|{rotation // 90}|{horizon}"
            receptacles.append([kind, _position(name), location, int(kind in OPENABLE)])
        stands = [
            i
            for stand in LAMP_STANDS
            for i, row in enumerate(receptacles)
            if row[0] == stand
        ]
        lamp = (
            [["DeskLamp", receptacles[stands[0]][1], stands[:1]]]
            if stands and "DeskLamp" in kinds
            else []
        )
        movable = sorted(
            kind for kind in kinds if "pickupable" in self.attributes.get(kind, ())
        )
        return {
            "scene": scene,
            "receptacles": receptacles,
            "fixtures": lamp,
            "overlaps": [],
            "objects": movable,
        }

    def tables(self) -> dict[str, Any]:
        """Return the data common to all rooms."""
        return {
            "attributes": {
                kind: sorted(values) for kind, values in sorted(self.attributes.items())
            },
            "holds": {
                kind: sorted(values) for kind, values in sorted(self.holds.items())
            },
            "copies": {
                kind: _counts(counter) for kind, counter in sorted(self.copies.items())
            },
            "where": {
                room: {
                    kind: _counts(counter) for kind, counter in sorted(kinds.items())
                }
                for room, kinds in sorted(self.where.items())
            },
            "goals": {
                task: {
                    kind: _counts(counter) for kind, counter in sorted(kinds.items())
                }
                for task, kinds in sorted(self.goals.items())
            },
        }


def _counts(counter: Counter[Any]) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)}


def _position(name: str) -> str:
    """Return the coordinates in an identifier: everything after its kind."""
    return name.split("|", 1)[1]


def survey(layouts: Path, games: Path) -> str:
    """Return the text of `rooms.json.gz`: one line per table entry and per room.

    Raises:
        InputError: when a folder does not hold what it should.
    """
    folders = sorted(path.parent for path in games.glob("*/*/*/game.tw-pddl"))
    if not folders or not (layouts / "FloorPlan1-openable.json").is_file():
        raise InputError(
            f"expected layouts in {layouts} and games in {games}; found {len(folders)} games"
        )
    result = Survey()
    for folder in folders:
        result.add(folder)
    lines = [
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in result.tables().items()
    ]
    rooms = ",\n".join(
        f'"{scene}": {json.dumps(result.room(scene, layouts), separators=(",", ":"))}'
        for scene in SCENES
    )
    return "{" + ",\n".join(lines) + f',\n"rooms": {{\n{rooms}\n}}}}\n'


if __name__ == "__main__":
    text = survey(Path(sys.argv[1]), Path(sys.argv[2]))
    Path(sys.argv[3]).write_bytes(gzip.compress(text.encode(), mtime=0))
