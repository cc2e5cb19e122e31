"""Searches the index: Lucene's ranking, ties included, without looking at more postings than can matter.

A *threshold* that the last result reaches at least is found from a few promising documents. Every query term's list
has a *bound*, its best score, and is given a *cut* below it. A document that scores no more than the cut on every list
scores no more than the sum of the cuts: where that is below the threshold, only documents above some cut are candidates
(Fagin, Lotem and Naor 2003, "Optimal aggregation algorithms for middleware"; with whole lists cut away it is MaxScore,
Turtle and Flood 1995). Codes rise with scores, and so one comparison a posting finds them. Candidates are then looked
up in the lists, the most telling first, and dropped as soon as they cannot reach the threshold.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError
from hgpo_envs.untrusted_files import open_regular, parse_json, read_bytes
from hgpo_envs.webshop.records import mapped
from hgpo_envs.webshop.search import bm25
from hgpo_envs.webshop.search.analyzer import terms

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RESULTS: Final = 50
"""How many documents a search finds at most."""

KEPT_TERMS: Final = 1 << 13
LONGEST_TERM: Final = 64
"""Characters of the longest term whose number is kept."""

_SHORT: Final = 60_000
"""Postings that are summed up sooner than a threshold is found."""

_PROMISING: Final = 16_000
"""Documents from which the threshold is taken."""

_SHARES: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of their bounds at which lists may be cut."""

_LOOK_AGAIN: Final = (2, 5)
"""After these lists the threshold is taken anew, from the documents that did best on them."""

_EVERY: Final = 16
"""One posting of so many is counted to choose among cuts."""

_FEW: Final = 4_000
"""Documents that are sorted about as fast as a flag for every document is searched."""

_CAREFUL: Final = 1 - 1e-6
"""Bounds are compared with a little less than the threshold: sums are rounded to float32 before documents compare."""


@dataclass(slots=True)
class _Postings:
    """The list of one query term.

    Attributes:
        documents: Ascending document numbers.
        codes: Their codes.
        table: float32, the score of each code, rising.
        bound: The best score in the list.
    """

    documents: NDArray[Any]
    codes: NDArray[Any]
    table: NDArray[np.float32]
    bound: float

    def scores(self, wanted: NDArray[Any]) -> NDArray[np.float32]:
        """What each of the documents wanted (ascending) scores here; 0 for those that are not in the list."""
        if len(wanted) < len(self.documents):
            at = np.searchsorted(self.documents, wanted)
            at[at == len(self.documents)] = 0
            found: NDArray[np.float32] = self.table[self.codes[at]]
            found[self.documents[at] != wanted] = 0
            return found
        found = np.zeros(len(wanted), np.float32)
        at = np.searchsorted(wanted, self.documents)
        at[at == len(wanted)] = 0
        common = wanted[at] == self.documents
        found[at[common]] = self.table[self.codes[common]]
        return found

    def code_above(self, cut: float) -> int:
        """The first code that scores more than a cut."""
        return int(np.searchsorted(self.table, np.float32(cut), side="right"))

    def above(self, cut: float) -> NDArray[Any]:
        """The documents that score more than a cut."""
        found: NDArray[Any] = self.documents[self.codes >= self.code_above(cut)]
        return found

    def count_above(self, cut: float) -> int:
        """About how many documents score more than a cut."""
        return _EVERY * int(np.count_nonzero(self.codes[::_EVERY] >= self.code_above(cut)))

    def best(self, count: int) -> NDArray[Any]:
        """About as many of the best documents as asked, or all if there are not so many."""
        if len(self.documents) <= count:
            return self.documents
        sample = self.codes[:: max(1, len(self.codes) // 8192)]
        rank = max(1, len(sample) * count // len(self.codes))
        code = np.partition(sample, len(sample) - rank)[len(sample) - rank]
        found: NDArray[Any] = self.documents[self.codes >= code][: 4 * count]
        return found


class Index:
    """A mapped search index (`hgpo_envs.webshop.search.index_writer` says how it lies).

    Args:
        folder: The index.
        products: How many there are; documents are numbered below it.

    Raises:
        InputError: A file is missing or damaged, or files do not fit together. What only a look at every number would
            show is found when it is met, as LookupError or ValueError.
    """

    def __init__(self, folder: Path, products: int) -> None:
        counts = _counts(folder / "index.json")
        self.size: Final[int] = counts["documents"]
        self._products: Final = products
        ends = mapped(folder / "term_ends.npy", np.uint32)
        numbers = mapped(folder / "term_numbers.npy", np.int32)
        self._starts = mapped(folder / "starts.npy", np.int64)
        self._documents = mapped(folder / "documents.npy", np.uint16, np.uint32)
        self._codes = mapped(folder / "codes.npy", np.uint16, np.uint32)
        terms_size = int(ends[-1]) if len(ends) else 0
        with open_regular(folder / "terms.bin", "catalogue's file") as file:
            fits = os.fstat(file.fileno()).st_size == terms_size
            names = np.memmap(file, np.uint8, "r") if fits and terms_size else np.empty(0, np.uint8)
        # a partial function of the arrays, not of the index: the files are unmapped as soon as the index is let go
        find = partial(_number, names.view(np.ndarray), ends, numbers)  # a view: slices of a memmap are slow to make
        self.number: Final = bounded_cache(find, KEPT_TERMS, LONGEST_TERM, lambda _, term: len(term))
        """The number of a term; None if no document has it."""
        postings = int(self._starts[-1]) if len(self._starts) else -1
        fits = fits and len(numbers) == len(ends) == len(self._starts) - 1
        if not fits or not len(self._codes) == len(self._documents) == postings:
            raise InputError(f"the files of {folder} do not fit together; build the catalogue again")
        frequencies = mapped(folder / "code_frequencies.npy", np.int32)
        lengths = mapped(folder / "code_lengths.npy", np.uint8)
        if len(frequencies) != len(lengths):
            raise InputError(f"the codes of {folder} do not fit together; build the catalogue again")
        self._saturation = bm25.saturation(frequencies, lengths, self.size, counts["tokens"])

    def lists(self, query: str) -> list[_Postings]:
        """The lists of a query's terms, the most telling first."""
        lists = []
        for term, count in Counter(terms(query)).items():
            number = self.number(term)
            if number is not None:
                begin, end = int(self._starts[number]), int(self._starts[number + 1])
                if not 0 <= begin < end or not self._documents[end - 1] < self._products:
                    raise ValueError(f"the postings of {term!r} are damaged")
                table = bm25.scores(bm25.weight(self.size, end - begin, count), self._saturation)
                codes = self._codes[begin:end]
                lists.append(_Postings(self._documents[begin:end], codes, table, float(table[codes.max()])))
        return sorted(lists, key=lambda postings: -postings.bound)

    def search(self, query: str, results: int = RESULTS) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The best documents for a query.

        Args:
            query: Any text; a term that it has twice counts twice.
            results: How many documents at most.

        Returns:
            Their numbers, best first, equal scores by number, and their scores (float32).
        """
        lists = self.lists(query)
        if not lists:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        threshold = 0.0
        if sum(len(postings.documents) for postings in lists) > _SHORT:
            threshold = _threshold(lists, results)
        documents, totals = _scored(lists, _candidates(lists, threshold), threshold, results)
        scores = totals.astype(np.float32)
        order = np.lexsort((documents, -scores))[:results]
        return documents[order].astype(np.int64), scores[order]


def _number(names: NDArray[np.uint8], ends: NDArray[np.uint32], numbers: NDArray[np.int32], term: str) -> int | None:
    """Finds a term among the sorted names, by bisection."""
    wanted, low, high = term.encode("utf-8", "surrogatepass"), 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        begin = int(ends[middle - 1]) if middle else 0
        found = names[begin : int(ends[middle])].tobytes()
        if found == wanted:
            return int(numbers[middle])
        low, high = (middle + 1, high) if found < wanted else (low, middle)
    return None


def _counts(path: Path) -> dict[str, int]:
    try:
        counts = parse_json(read_bytes(path, 1 << 16, "catalogue's file"))
    except InputError as error:
        raise InputError(f"{path}: {error}; build the catalogue again") from None
    names = ("documents", "tokens")
    if not isinstance(counts, dict) or not all(type(counts.get(name)) is int and counts[name] >= 0 for name in names):
        raise InputError(f"{path}: expected the numbers {' and '.join(names)}; build the catalogue again")
    return counts


def _threshold(lists: list[_Postings], results: int) -> float:
    """A score that at least as many documents reach as are wanted, by promising ones; 0 if there are fewer."""
    documents = lists[0].best(_PROMISING)
    for other in lists[1:]:
        if len(documents) >= max(results, _PROMISING // 4):
            break
        documents = _union([documents, other.best(_PROMISING)])
    return _reached(lists, documents, np.zeros(len(documents)), results)


def _reached(lists: list[_Postings], documents: NDArray[Any], totals: NDArray[np.float64], results: int) -> float:
    """The same, from these documents and what they score already on other lists."""
    if len(documents) < results:
        return 0.0
    for postings in lists:
        totals = totals + postings.scores(documents)
        kept = max(results, len(documents) // 2)  # fewer with every list: those that did well so far
        best = np.sort(np.argpartition(totals, len(totals) - kept)[len(totals) - kept :])
        documents, totals = documents[best], totals[best]
    return float(np.partition(totals, len(totals) - results)[len(totals) - results]) * _CAREFUL


def _candidates(lists: list[_Postings], threshold: float) -> NDArray[Any]:
    """Every document that can reach the threshold, ascending: those above the cut of some list."""
    if threshold <= 0:
        return _union([postings.documents for postings in lists])
    least = threshold / sum(postings.bound for postings in lists)
    choices = [_cuts(lists, threshold, share) for share in (least, *(share for share in _SHARES if share > least))]
    cuts = min(choices, key=lambda cuts: sum(map(_Postings.count_above, lists, cuts)))
    found = [postings.above(cut) for postings, cut in zip(lists, cuts, strict=True)]
    return _union(found)


def _cuts(lists: list[_Postings], threshold: float, share: float) -> list[float]:
    """Cuts that add up to less than the threshold: this share of the bound, the longest lists first."""
    left, cuts = threshold, []
    for postings in reversed(lists):
        cut = min(left, postings.bound * share)
        left -= cut
        cuts.append(float(np.nextafter(cut, -1)))
    return cuts[::-1]


def _union(found: list[NDArray[Any]]) -> NDArray[Any]:
    """All documents of some lists, ascending: sorted if they are few, else by a flag for each there is."""
    if len(found) == 1:
        return found[0]
    if sum(map(len, found)) < _FEW:
        documents = np.sort(np.concatenate(found), kind="stable")  # merges what is sorted already; np.unique does not
        first = np.ones(len(documents), np.bool_)
        np.not_equal(documents[1:], documents[:-1], out=first[1:])
        return documents[first]
    flags = np.zeros(1 + max(int(documents[-1]) for documents in found if len(documents)), np.bool_)
    for documents in found:
        flags[documents] = True
    return np.flatnonzero(flags).astype(found[0].dtype)


def _scored(
    lists: list[_Postings], documents: NDArray[Any], threshold: float, results: int
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The candidates that reach the threshold, with their scores; others are dropped as soon as they cannot."""
    totals = np.zeros(len(documents))
    rest = sum(postings.bound for postings in lists)
    for place, postings in enumerate(lists):
        totals += postings.scores(documents)
        rest -= postings.bound
        if place in _LOOK_AGAIN and len(documents) > _FEW:
            best = np.sort(np.argpartition(totals, len(totals) - _FEW)[len(totals) - _FEW :])
            threshold = max(threshold, _reached(lists[place + 1 :], documents[best], totals[best], results))
        if threshold > 0:
            able = totals >= threshold - rest * (2 - _CAREFUL)
            documents, totals = documents[able], totals[able]
    return documents, totals
