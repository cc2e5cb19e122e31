"""Groups that wait for an earlier group: bounded memory, the same table, nothing lost."""

import copy
import gc
import math
import tracemalloc
from typing import ClassVar

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.files import atomic
from hgpo_train.policies.random_choice import RandomPolicy
from hgpo_train.rollout import run
from hgpo_train.rollout.finished import FinishedGroup
from hgpo_train.rollout.group_scheduler import GroupScheduler
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec

GROUPS, SIZE, SLOTS = 120, 4, 8
WHAT = RolloutSpec(tasks=GROUPS, group_size=SIZE, seed=3)


class Hanging:
    """A random policy that replies to its first request only when there are no other requests."""

    name, reproducible, version = "hanging", True, 0

    def __init__(self, released=lambda: None) -> None:
        self._play, self._asked, self._first, self._released = RandomPolicy("response"), [], None, released

    def submit(self, requests) -> None:
        self._asked += requests
        if self._first is None:
            self._first = self._asked.pop(0)

    def collect(self, timeout):
        if not self._asked and self._first:
            self._released()
            self._asked, self._first = [self._first], ()
        asked, self._asked = self._asked, []
        return list(zip([request.id for request in asked], self._play.respond(asked), strict=True))

    def close(self) -> None:
        pass


class Watched(GroupScheduler):
    """A scheduler with custom limits that records how much waits and what is committed."""

    limits: ClassVar[dict] = {}
    last: ClassVar["Watched"]

    def __init__(self, plan, wanted, commit, **others) -> None:
        self.most, self.largest, self.batches = 0, 0, []

        def committed(batch) -> None:
            self.batches.append([group.size for group in batch])
            self.largest = max(self.largest, *(group.bytes for group in batch))
            commit(batch)

        super().__init__(plan, wanted, committed, **{**others, **self.limits})
        Watched.last = self

    def begin(self):
        begun = super().begin()
        assert begun is None or self._waiting_bytes < self._most_waiting
        return begun

    def finish(self, trajectory) -> None:
        super().finish(trajectory)
        assert self._waiting_bytes == sum(group.bytes for group in self._waiting.values())
        self.most = max(self.most, self._waiting_bytes)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(run, "GroupScheduler", Watched)
    monkeypatch.setattr(Watched, "limits", {"together": 16, "lookahead": 10**9})
    return Watched


def test_a_slow_rollout_delays_a_bounded_amount_of_memory_and_changes_nothing(runs, watched):
    runs.collect("straight", spec=WHAT, execution=ExecutionOptions(slots=1))
    waited = []
    for bound in (10_000, 40_000, 10**9):
        watched.limits |= {"most_waiting": bound}
        hanging = Hanging(lambda: waited.append(len(watched.last._waiting)))
        runs.collect(f"{bound}", hanging, spec=WHAT, execution=ExecutionOptions(slots=SLOTS))
        assert runs.digests(f"{bound}") == runs.digests("straight")
        assert watched.last.most < bound + SLOTS * watched.last.largest  # the groups under way add theirs
    assert SLOTS // SIZE < waited[0] < waited[1] < waited[2] == GROUPS - 1


def test_counted_bytes_equal_the_used_memory(runs, watched):
    taken = []

    class Noting(Hanging):
        def collect(self, timeout):
            groups = watched.last
            if len(groups._waiting) >= (60, 110)[len(taken) % 2] and len(taken) < 2:
                gc.collect()
                plain = sum(2 * group.size for group in groups._waiting.values())
                taken.append((tracemalloc.get_traced_memory()[0], groups._waiting_bytes, plain))
            return super().collect(timeout)

    tracemalloc.start()
    try:
        runs.collect("run", Noting(), runs.handle(max_steps=8), spec=WHAT, execution=ExecutionOptions(slots=SLOTS))
    finally:
        tracemalloc.stop()
    memory, counted, plain = (after - before for before, after in zip(*taken, strict=True))
    assert 0.9 * counted < memory < 1.5 * counted
    assert memory < 0.2 * plain, "far from their turn, groups wait packed"


def test_a_batch_is_bounded_in_bytes_and_the_files_do_not_depend_on_how_it_was_played(runs, watched):
    watched.limits |= {"batch_size": 100_000}
    for name, policy, slots in (("one", "random", 1), ("many", "random", 48), ("hanging", Hanging(), SLOTS)):
        runs.collect(name, policy, spec=WHAT, execution=ExecutionOptions(slots=slots))
        sizes = watched.last.batches
        assert sum(map(len, sizes)) == GROUPS
        assert all(sum(batch[:-1]) < 100_000 <= sum(batch) for batch in sizes[:-1])
    assert len(sizes) > GROUPS / 16
    assert runs.digests("one") == runs.digests("many") == runs.digests("hanging")


@pytest.mark.parametrize("full_disk", [False, True])
def test_stopping_commits_waiting_groups_in_bounded_batches(runs, watched, monkeypatch, full_disk):
    watched.limits |= {"batch_size": 100_000}
    write, refused = atomic.write_file, []

    def once(path, data, **options) -> None:
        if not refused:
            refused.append(path)
            raise OSError(28, "No space left on device")
        write(path, data, **options)

    def should_stop() -> bool:
        if len(watched.last._waiting) < 60:
            return False
        if full_disk:
            monkeypatch.setattr(atomic, "write_file", once)
        return True

    execution = ExecutionOptions(slots=SLOTS)
    if full_disk:
        with pytest.raises(OSError, match="No space left"):
            runs.collect("run", Hanging(), spec=WHAT, execution=execution, should_stop=should_stop)
    else:
        runs.collect("run", Hanging(), spec=WHAT, execution=execution, should_stop=should_stop)
    assert all(sum(batch[:-1]) < 100_000 for batch in watched.last.batches)
    assert len(watched.last.batches) > 2
    assert bool(refused) == full_disk
    first = runs.steps("run").select("task_id", "group").n_unique()
    assert first == watched.last.finished >= 60
    runs.collect("run", spec=WHAT, execution=execution)
    runs.collect("straight", spec=WHAT, execution=execution)
    order = ["trajectory", "step"]
    assert runs.steps("run").sort(order).equals(runs.steps("straight").sort(order))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.lists(st.text()),
    st.lists(st.integers(0, (1 << 31) - 1)),
    st.lists(st.floats(-1e300, 0) | st.just(-math.inf)),
)


@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=6), max_size=4))
def test_packed_rows_are_equal_and_their_size_depends_only_on_values(rows):
    plain = FinishedGroup.of(rows)
    packed = plain.packed()
    assert packed.rows == plain.rows == rows
    assert FinishedGroup.of(copy.deepcopy(rows)).size == FinishedGroup.of(packed.rows).size == packed.size == plain.size
    assert FinishedGroup.of(rows + rows).size == 2 * plain.size  # values that are the same object count each time


def test_the_size_of_packed_rows_is_near_that_of_the_table(runs):
    runs.collect("run", spec=RolloutSpec(tasks=10, group_size=4, seed=1))
    steps = runs.steps("run")
    given = [
        {name: value.to_list() if isinstance(value, pl.Series) else value for name, value in row.items()}
        for row in steps.iter_rows(named=True)
    ]
    assert 0.5 < FinishedGroup.of(given).size / steps.estimated_size() < 2
