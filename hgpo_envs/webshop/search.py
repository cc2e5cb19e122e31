"""Searches the index: Lucene's ranking, ties included, without looking at more postings than can matter.

A threshold is found from a few promising documents; what stays below it whatever else it holds is passed over. With
`bound(i)` the best score of term i's list and `cut(i)` a score chosen below it,

    a document that scores at most cut(i) on every term i has at most the sum of the cuts,

so that once this sum is below the threshold, only documents above some term's cut are candidates (Fagin, Lotem and
Naor 2003, "Optimal aggregation algorithms for middleware"; with whole lists cut away it is MaxScore, Turtle and Flood
1995). Codes are sorted by score, and so comparing a list's codes with one number finds them. Candidates are then
looked up in the other lists and dropped as soon as they cannot reach the threshold.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.webshop import bm25
from hgpo_envs.webshop.analysis import terms

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RESULTS: Final = 50
"""How many documents a search finds at most."""

_PROMISING: Final = 2_000
"""Documents from which the first threshold is taken."""

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
        """What each of the documents wanted scores here; 0 for those that are not in the list."""
        at = np.searchsorted(self.documents, wanted)
        at[at == len(self.documents)] = 0
        found: NDArray[np.float32] = self.table[self.codes[at]]
        found[self.documents[at] != wanted] = 0
        return found

    def above(self, cut: float) -> NDArray[Any]:
        """The documents that score more than a cut."""
        code = int(np.searchsorted(self.table, np.float32(cut), side="right"))
        found: NDArray[Any] = self.documents[self.codes >= code]
        return found

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
    """A mapped search index (`hgpo_envs.webshop.index` says how it lies)."""

    def __init__(self, folder: Path) -> None:
        counts = json.loads((folder / "index.json").read_bytes())
        self.size: Final[int] = counts["documents"]
        self._names = np.memmap(folder / "terms.bin", np.uint8, "r") if self.size else np.empty(0, np.uint8)
        self._ends = mapped(folder / "term_ends.npy")
        self._numbers = mapped(folder / "term_numbers.npy")
        self._starts = mapped(folder / "starts.npy")
        self._documents = mapped(folder / "documents.npy")
        self._codes = mapped(folder / "codes.npy")
        frequencies, lengths = (np.load(folder / f"code_{name}.npy") for name in ("frequencies", "lengths"))
        self._saturation = bm25.saturation(frequencies, lengths, self.size, counts["tokens"])

    def number(self, term: str) -> int | None:
        """The number of a term; None if no document has it."""
        wanted, low, high = term.encode("utf-8", "surrogatepass"), 0, len(self._ends)
        while low < high:
            middle = (low + high) // 2
            begin = int(self._ends[middle - 1]) if middle else 0
            found = self._names[begin : int(self._ends[middle])].tobytes()
            if found == wanted:
                return int(self._numbers[middle])
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return None

    def _lists(self, query: str) -> list[_Postings]:
        """The lists of a query's terms, the most telling first."""
        lists = []
        for term, count in Counter(terms(query)).items():
            number = self.number(term)
            if number is not None:
                begin, end = int(self._starts[number]), int(self._starts[number + 1])
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
        lists = self._lists(query)
        if not lists:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        threshold = _threshold(lists, results)
        documents = _candidates(lists, threshold)
        documents, totals = _scored(lists, documents, threshold)
        scores = totals.astype(np.float32)
        order = np.lexsort((documents, -scores))[:results]
        return documents[order].astype(np.int64), scores[order]


def _threshold(lists: list[_Postings], results: int) -> float:
    """A score that at least as many documents reach as are wanted; 0 if there are not so many."""
    promising = lists[0].best(_PROMISING)
    for other in lists[1:]:
        if len(promising) >= _PROMISING:
            break
        promising = np.union1d(promising, other.best(_PROMISING))
    if len(promising) < results:
        return 0.0
    totals = np.zeros(len(promising))
    for postings in lists:
        totals += postings.scores(promising)
    return float(np.partition(totals, len(totals) - results)[len(totals) - results]) * _CAREFUL


def _candidates(lists: list[_Postings], threshold: float) -> NDArray[Any]:
    """Every document that can reach the threshold, ascending: those above the cut of some list."""
    telling, left = len(lists), threshold
    while telling > 1 and left - lists[telling - 1].bound > 0:
        telling -= 1
        left -= lists[telling].bound
    share = left / sum(postings.bound for postings in lists[:telling])
    found = [postings.above(np.nextafter(postings.bound * share, -1)) for postings in lists[:telling]]
    return found[0] if telling == 1 else np.unique(np.concatenate(found))


def _scored(
    lists: list[_Postings], documents: NDArray[Any], threshold: float
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The candidates that reach the threshold, with their scores; others are dropped as soon as they cannot."""
    totals = np.zeros(len(documents))
    rest = sum(postings.bound for postings in lists)
    for postings in lists:
        totals += postings.scores(documents)
        rest -= postings.bound
        able = totals >= threshold - rest * (2 - _CAREFUL)
        documents, totals = documents[able], totals[able]
    return documents, totals


def mapped(path: Path) -> NDArray[Any]:
    """An array of a .npy file; mapped unless it is empty, which cannot be."""
    array: NDArray[Any] = np.load(path, mmap_mode="r" if path.stat().st_size > 256 else None, allow_pickle=False)
    return array.view(np.ndarray)
