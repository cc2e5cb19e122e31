"""The runs that a viewer shows, each with an index that follows the run while it is being written."""

from __future__ import annotations

import glob
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hgpo_datasets import manifest
from hgpo_datasets.reader import errors, is_plain, step_files
from hgpo_datasets.row_tables import files_of
from hgpo_datasets.sources import PARQUET, is_run, names_apart, parts_of, runs_below
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import seems_locked
from hgpo_envs.files.secrets import redact
from hgpo_envs.unicode_text import clean_text
from hgpo_train.advantages import registry
from hgpo_train.advantages.advantage_tables import FOLDER
from hgpo_train.advantages.variants import read_variants
from hgpo_train.view import notes
from hgpo_train.view.estimates import AS_TRAINED, is_safe_state_key
from hgpo_train.view.index import Index, read_index
from hgpo_train.view.plain_tables import import_table
from hgpo_train.view.tokens import find_tokenizer, models_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenizers import Tokenizer

    from hgpo_train.advantages import Estimator

ESTIMATORS: Final = ("hgpo", "gigpo", "grpo")
TREE_ESTIMATORS: Final = ("tree_hgpo", "tree_grpo")
"""The same if a run has branches, which those refuse."""
EVALUATION: Final = "evaluation"
"""The folder of a training run with the rollouts of its evaluations."""


_adding = threading.Lock()
"""Requests are answered in several threads."""


class NoRowsError(InputError):
    """A run has no committed rows yet."""


class _Trained(msgspec.Struct):
    """What a training run's configuration says about its estimator."""

    estimator: str | None = msgspec.field(name="advantage.estimator", default=None)
    parameters: dict[str, bool | int | float | str | None] = msgspec.field(
        name="advantage.parameters", default_factory=dict
    )


class Source:
    """One run, or one file of a step table.

    Args:
        path: The run or the file.
        table: Files of another program to show instead, which are written once as a run (`plain_tables`).

    Attributes:
        place: The absolute path, without `steps`.
        name: Its last part, for people.
        folder: The folder of the run; None for a file.
        run: The folder, or the file.
        notes: The file of notes about its rollouts; None for files and tables of other programs.
        seen: The runs in it and beside it that were looked at.
    """

    def __init__(self, path: Path, table: Sequence[str] = ()) -> None:
        self.path = path
        self.folder = path if is_run(path) else None
        if table:
            self._copy = tempfile.TemporaryDirectory(
                prefix="hgpo-view-", ignore_cleanup_errors=True
            )
            self.folder = Path(self._copy.name) / "run"
            import_table(table, self.folder)
        self.notes = None if self.folder is None or table else self.folder / notes.NAME
        self.run = self.folder or path
        self.place = (path.parent if path.name == "steps" else path).resolve()
        self.name = clean_text(self.place.name or str(path))
        if _is_training(self.place.parent) and self.place.name == EVALUATION:
            self.name = clean_text(f"{self.place.parent.name}/{EVALUATION}")
        self.seen: set[Path] = set()
        self._lock = threading.Lock()
        self._read: tuple[object, Index] | None = None

    @property
    def version(self) -> str:
        """A text that changes when rows are committed; empty if the run was deleted."""
        return _stamp(self.folder / manifest.NAME if self.folder else self.path)

    @property
    def changes(self) -> str:
        """A text that changes when anything that the page shows is written, or the run's writer begins or ends."""
        if self.folder is None:
            return self.version
        stamps = [
            _stamp(self.folder / name) for name in ("metrics.jsonl", notes.NAME, FOLDER)
        ]
        return " ".join([self.version, *stamps, str(seems_locked(self.folder))])

    def index(self) -> Index:
        """Return the index of the rows that are committed now.

        Raises:
            InputError: There are no committed rows, or a file is damaged.
        """
        with self._lock, errors(self.path):
            version = self.version
            if self._read is None or self._read[0] != version:
                files = step_files(self.run)
                if not files:
                    raise NoRowsError(f"no committed rows in {self.path}")
                self._read = (version, read_index(files))
            return self._read[1]

    def config(self) -> dict[str, Any]:
        """Return the configuration in the manifest; empty for a file."""
        header = manifest.read(self.folder).header if self.folder else None
        return dict(header.config) if header else {}

    def document(self) -> dict[str, Any]:
        """Return the run as a list of runs shows it; `problem` says why it cannot be read, and is otherwise None."""
        trained = self.trained()
        problem = self.problem()
        return {
            "name": self.name,
            "path": clean_text(str(self.path)),
            "live": self.folder is not None and seems_locked(self.folder),
            "notable": self.notes is not None,
            "training": self.training() is not None,
            "trained": trained and {"name": trained[0], "set": trained[1]},
            "stored": self.stored(),
            "usual": self.usual(
                branched=problem is None and "branches" in self.config()
            ),
            "problem": problem,
        }

    def problem(self) -> str | None:
        """Return why the run cannot be shown: its manifest is damaged, or it has no rows yet; None if it can."""
        try:
            self.config()
            if not step_files(self.run):
                return f"no committed rows in {self.name} yet"
        except InputError as error:
            return redact(clean_text(str(error)))
        return None

    def trained(self) -> tuple[str, dict[str, Any]] | None:
        """Return the estimator of a training run and its parameters; None if it cannot be computed from rows alone."""
        try:
            training = msgspec.convert(self.config().get("training", {}), _Trained)
        except (InputError, msgspec.ValidationError):
            # deleted, damaged, or written by another program
            return None
        # A foreign run must not name a module to import.
        name = training.estimator
        if name not in registry.names() or not is_safe_state_key(
            training.parameters.get("state_key")
        ):
            return None
        return name, training.parameters

    def usual(self, *, branched: bool) -> list[str]:
        """Return the estimators that are shown first: of training, and others, over trees if the usual ones refuse."""
        trained = self.trained()
        first = [trained[0]] if trained else []
        others = TREE_ESTIMATORS if branched else ESTIMATORS
        of_training = [AS_TRAINED] if self.stored() else first
        return [*of_training, *(name for name in others if name not in first)]

    def estimators(self, names: Sequence[str]) -> dict[str, Estimator | None]:
        """Return estimators with those parameters of training that they have; None for the advantages of training.

        Raises:
            InputError: An estimator is unknown.
        """
        trained, parameters = self.trained() or (None, {})
        # A parameter that none of the names has is not unknown: that of training has it.
        read = dict.fromkeys([*names, trained])
        read.pop(AS_TRAINED, None)
        found: dict[str, Estimator | None] = {AS_TRAINED: None} if self.stored() else {}
        for variant in read_variants(filter(None, read), parameters):
            found[variant.name] = variant.estimator
        return found

    def stored(self) -> bool:
        """Return whether the run has the advantages that it was trained on."""
        return self.folder is not None and bool(files_of(self.folder, FOLDER))

    def tokenizer(self) -> Tokenizer | None:
        """Return the run's tokenizer, if it is on this machine."""
        return find_tokenizer(self.config(), self.training())

    def training(self) -> Path | None:
        """Return the folder of the training run that wrote this run, or None."""
        return (
            self.folder
            if self.folder is not None and _is_training(self.folder)
            else None
        )


def _is_training(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and (folder / "metrics.jsonl").exists()


def _stamp(path: Path) -> str:
    """Return a text that changes when a file is written; empty if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def run_documents(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Return the documents of runs, each with the name of the open training run whose policy it played (`trainer`)."""
    documents = []
    for source in sources:
        trainers = [
            other.name
            for other in sources
            if other is not source and _was_played(other, source)
        ]
        documents.append({**source.document(), "trainer": next(iter(trainers), None)})
    return documents


def _was_played(training: Source, source: Source) -> bool:
    """Return whether a run is in the folder of a training run, or its policy is a checkpoint there."""
    if training.training() is None:
        return False
    try:
        names = list(models_of(source.config()))
    except InputError:  # its entry in the list says that it cannot be read
        names = []
    models = [Path(name).resolve() for name in names if "\0" not in name]
    places = [*source.place.parents, *models]
    for model in models:
        places += model.parents
    return training.place in places


def open_sources(paths: Iterable[str], *, wait: bool = False) -> list[Source]:
    """Return the runs and files that paths mean, as for `hgpo_datasets.scan_steps`.

    A folder of runs means each of them. A run without committed rows is kept if there are others, because it may be
    written now; with `wait` also if there are none. Parquet files of other programs that one path means, a pattern or
    a folder without runs, are one table.

    Raises:
        InputError: A path does not exist, is a URL, or contains no run; or no run has rows.
    """
    # 1. Parquet files of other programs that one path means are one table; anything else is a run or a file of one.
    names = list(paths)
    sources: list[Source] = []
    tables: dict[str, list[str]] = {}
    patterns = {_pattern_of_folder(path): path for path in names}
    for part in parts_of(patterns):
        if part.kind == "url":
            raise InputError(
                f"expected a local run, received the URL {part.path}; copy it to this machine"
            )
        if part.kind == "file" and is_plain(part.path):
            tables.setdefault(part.source, []).append(part.path)
        else:
            sources.append(Source(Path(part.path)))
    for pattern, files in tables.items():
        sources.append(
            Source(Path(files[0] if len(files) == 1 else patterns[pattern]), files)
        )

    add_evaluations(sources)

    # 2. At least one run can be shown, or is waited for.
    refused: InputError | None = None
    waits = False
    for source in sources:
        try:
            source.index()
            break
        except InputError as error:
            refused = refused or error
            waits = waits or (wait and isinstance(error, NoRowsError))
    else:
        if not waits:
            raise refused or InputError(
                f"no runs in {', '.join(names) or 'an empty list'}; name a run"
            )

    # 3. Names differ, also of a run that is named twice.
    counts: dict[str, int] = {}
    names = _names_apart(sources)
    for source, name in zip(sources, names, strict=True):
        count = counts[name] = counts.get(name, 0) + 1
        source.name = name + (f" ({count})" if count > 1 else "")
    return sources


def add_evaluations(sources: list[Source]) -> None:
    """Add the evaluations in and beside training runs that are not among the runs, such as one that has just begun."""
    with _adding:
        for training in [source for source in sources if source.training()]:
            places = {source.place for source in sources}
            for source in map(Source, _new_runs(training)):
                with suppress(InputError):  # a damaged manifest
                    is_evaluation = source.config().get("evaluation") is True
                    is_inside = source.place.parent == training.place
                    is_played = is_inside or (
                        is_evaluation and _was_played(training, source)
                    )
                    if is_played and source.place not in places:
                        *_, source.name = _names_apart([*sources, source])
                        sources.append(source)


def _new_runs(training: Source) -> list[Path]:
    """Return the folder of evaluations in a training run and the runs beside it, each the first time it is there."""
    folders = [training.place / EVALUATION]
    with suppress(OSError):  # of a folder that may not be listed
        folders += training.place.parent.iterdir()
    found = [
        folder for folder in folders if folder not in training.seen and is_run(folder)
    ]
    training.seen.update(found)
    return found


def _names_apart(sources: Sequence[Source]) -> list[str]:
    names = [source.name for source in sources]
    places = [source.place for source in sources]
    return [clean_text(name) for name in names_apart(names, places)]


def _pattern_of_folder(path: str) -> str:
    """Return the pattern of the Parquet files in a folder that contains them and no runs; any other path unchanged."""
    folder = Path(path)
    if (
        "://" in path
        or not folder.is_dir()
        or runs_below(folder)
        or not any(folder.glob(f"*{PARQUET}"))
    ):
        return path
    return f"{glob.escape(path)}/*{PARQUET}"
