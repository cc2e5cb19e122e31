"""Search in the index: Lucene's ranking, including ties, without scoring postings that cannot affect the result.

A *threshold*, a lower bound of the last result's score, is computed from a few promising documents. The list of each
query term has a *bound*, its best score, and a *cut* below the bound. A document that exceeds no list's cut scores at
most the sum of the cuts. If this sum is below the threshold, only documents above some cut are candidates (Fagin, Lotem
and Naor 2003, "Optimal aggregation algorithms for middleware"; if whole lists are cut, this is MaxScore, Turtle and
Flood 1995). Codes increase with scores, so one comparison per posting finds the candidates. The candidates are then
scored list by list, in descending order of the bounds, and dropped as soon as they cannot reach the threshold.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, read_bytes
from hgpo_envs.webshop.records import mapped
from hgpo_envs.webshop.search import bm25
from hgpo_envs.webshop.search.analyzer import terms

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RESULTS: Final = 50
"""The maximum number of results of a search."""

KEPT_TERMS: Final = 1 << 13
LONGEST_TERM: Final = 64
"""The maximum length in characters of a term whose number is cached."""

_SHORT: Final = 60_000
"""The number of postings up to which scoring all of them is faster than computing a threshold."""

_PROMISING: Final = 16_000
"""The number of documents from which the threshold is computed."""

_SHARES: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
"""The fractions of their bounds at which lists may be cut."""

_LOOK_AGAIN: Final = (2, 5)
"""The indices of lists after which the threshold is computed again, from the best documents so far."""

_EVERY: Final = 16
"""The sampling interval of the postings that are counted to choose the cuts."""

_FEW: Final = 4_000
"""The number of documents up to which sorting is faster than an array of flags for all documents."""

_CAREFUL: Final = 1 - 1e-6
"""The threshold is multiplied by this factor, because sums are rounded to float32 before documents are compared."""


@dataclass(slots=True)
class _Postings:
    """The list of a query term.

    Attributes:
        documents: The document numbers, ascending.
        codes: The code of each posting.
        table: The score of each code, a float32 array in ascending order.
        bound: The best score in the list.
    """

    documents: NDArray[Any]
    codes: NDArray[Any]
    table: NDArray[np.float32]
    bound: float

    def scores(self, wanted: NDArray[Any]) -> NDArray[np.float32]:
        """Return the score of each wanted document (ascending), 0 for those that are not in the list."""
        if len(wanted) < len(self.documents):
            at = np.searchsorted(self.documents, wanted)
            at[at == len(self.documents)] = 0
            scores: NDArray[np.float32] = self.table[self.codes[at]]
            scores[self.documents[at] != wanted] = 0
            return scores
        scores = np.zeros(len(wanted), np.float32)
        at = np.searchsorted(wanted, self.documents)
        at[at == len(wanted)] = 0
        common = wanted[at] == self.documents
        scores[at[common]] = self.table[self.codes[common]]
        return scores

    def code_above(self, cut: float) -> int:
        """Return the first code whose score exceeds a cut."""
        return int(np.searchsorted(self.table, np.float32(cut), side="right"))

    def above(self, cut: float) -> NDArray[Any]:
        """Return the documents whose score exceeds a cut."""
        documents: NDArray[Any] = self.documents[self.codes >= self.code_above(cut)]
        return documents

    def count_above(self, cut: float) -> int:
        """Return an estimate of the number of documents whose score exceeds a cut."""
        return _EVERY * int(
            np.count_nonzero(self.codes[::_EVERY] >= self.code_above(cut))
        )

    def best(self, count: int) -> NDArray[Any]:
        """Return approximately `count` of the best documents, or all if there are fewer."""
        if len(self.documents) <= count:
            return self.documents
        # The codes of a sample tell which code about so many postings reach.
        sample = self.codes[:: max(1, len(self.codes) // 8192)]
        rank = max(1, len(sample) * count // len(self.codes))
        code = _ranked(sample, rank)
        documents: NDArray[Any] = self.documents[self.codes >= code][: 4 * count]
        return documents


def _ranked(values: NDArray[Any], rank: int) -> Any:  # noqa: ANN401 (a number of NumPy)
    """Return the value at a rank, from 1 for the largest."""
    return np.partition(values, len(values) - rank)[len(values) - rank]


def _largest(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the positions of the largest values, ascending."""
    return np.sort(np.argpartition(values, len(values) - count)[len(values) - count :])


class _Counts(msgspec.Struct):
    """The numbers of documents with terms, and of terms in them."""

    documents: Annotated[int, msgspec.Meta(ge=0)]
    tokens: Annotated[int, msgspec.Meta(ge=0)]


class Index:
    """A memory-mapped search index. Its layout is documented in `hgpo_envs.webshop.search.index_writer`.

    Args:
        folder: The folder of the index.
        products: The number of products. Document numbers are below it.

    Raises:
        InputError: If a file is missing or damaged, or if the files do not match. Damage that only a check of every
            number would find raises LookupError or ValueError in a search.
    """

    def __init__(self, folder: Path, products: int) -> None:
        try:
            counts = msgspec.json.decode(
                read_bytes(folder / "index.json", 1 << 16, "catalogue's file"),
                type=_Counts,
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"{folder / 'index.json'}: {one_line(error)}; build the catalogue again"
            ) from None
        self.size: Final[int] = counts.documents
        self._products: Final = products
        # 1. The terms: their names, one after the other, and the number of each.
        ends = mapped(folder / "term_ends.npy", np.uint32)
        numbers = mapped(folder / "term_numbers.npy", np.int32)
        terms_size = int(ends[-1]) if len(ends) else 0
        with open_regular(folder / "terms.bin", "catalogue's file") as file:
            fits = os.fstat(file.fileno()).st_size == terms_size
            names = (
                np.memmap(file, np.uint8, "r")
                if fits and terms_size
                else np.empty(0, np.uint8)
            )
        # The cache gets the arrays, not the index: a reference cycle would delay unmapping the files.
        # a view, because slicing a memmap is slow
        find = partial(
            _number,
            names.view(np.ndarray),
            ends,
            numbers,
        )
        self.number: Final = bounded_cache(
            find,
            KEPT_TERMS,
            LONGEST_TERM,
            lambda _, term: len(term),
        )
        """The number of a term, or None if no document contains it."""
        # 2. The postings of each number.
        self._starts = mapped(folder / "starts.npy", np.int64)
        self._documents = mapped(
            folder / "documents.npy",
            np.uint16,
            np.uint32,
        )
        self._codes = mapped(
            folder / "codes.npy",
            np.uint16,
            np.uint32,
        )
        postings = int(self._starts[-1]) if len(self._starts) else -1
        # 3. The frequency and length of each code, from which the score of a posting is computed.
        frequencies = mapped(folder / "code_frequencies.npy", np.int32)
        lengths = mapped(folder / "code_lengths.npy", np.uint8)
        fits = fits and len(frequencies) == len(lengths)
        fits = fits and len(numbers) == len(ends) == len(self._starts) - 1
        if not fits or not len(self._codes) == len(self._documents) == postings:
            raise InputError(
                f"the files of {folder} do not match each other; build the catalogue again"
            )
        self._saturation = bm25.saturation(
            frequencies,
            lengths,
            self.size,
            counts.tokens,
        )

    def lists(self, query: str) -> list[_Postings]:
        """Return the lists of a query's terms in descending order of their bounds."""
        lists = []
        for term, count in Counter(terms(query)).items():
            number = self.number(term)
            if number is None:
                continue
            begin = int(self._starts[number])
            end = int(self._starts[number + 1])
            # A document beyond the last product would make `_union` take memory for it.
            if not 0 <= begin < end or not self._documents[end - 1] < self._products:
                raise ValueError(f"the postings of {term!r} are damaged")
            documents = self._documents[begin:end]
            codes = self._codes[begin:end]
            table = bm25.scores(
                bm25.weight(self.size, end - begin, count), self._saturation
            )
            bound = float(table[codes.max()])
            lists.append(_Postings(documents, codes, table, bound))
        return sorted(lists, key=lambda postings: -postings.bound)

    def search(
        self, query: str, results: int = RESULTS
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the best documents for a query.

        Args:
            query: Any text. Repeated terms count repeatedly.
            results: The maximum number of documents.

        Returns:
            The document numbers (int64), best first and ties by number, and their scores (float32).
        """
        # 1. The list of each term, the one with the best score first.
        lists = self.lists(query)
        if not lists:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        # 2. A score that every result reaches. Without it (0), all documents of the lists are candidates.
        threshold = 0.0
        if sum(len(postings.documents) for postings in lists) > _SHORT:
            threshold = _threshold(lists, results)
        # 3. The documents that can reach it, and 4. their scores.
        candidates = _candidates(lists, threshold)
        documents, totals = _scored(lists, candidates, threshold, results)
        # 5. Lucene compares sums that are rounded to float32.
        scores = totals.astype(np.float32)
        order = np.lexsort((documents, -scores))[:results]
        return documents[order].astype(np.int64), scores[order]


def _number(
    names: NDArray[np.uint8],
    ends: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    term: str,
) -> int | None:
    """Find a term's number by bisection of the sorted names."""
    wanted = term.encode("utf-8", "surrogatepass")
    low = 0
    high = len(ends)
    while low < high:
        middle = (low + high) // 2
        begin = int(ends[middle - 1]) if middle else 0
        name = names[begin : int(ends[middle])].tobytes()
        if name == wanted:
            return int(numbers[middle])
        low, high = (middle + 1, high) if name < wanted else (low, middle)
    return None


def _threshold(lists: list[_Postings], results: int) -> float:
    """Return a score that at least `results` documents reach, from promising documents; 0 if there are fewer."""
    documents = lists[0].best(_PROMISING)
    for other in lists[1:]:
        if len(documents) >= max(results, _PROMISING // 4):
            break
        documents = _union([documents, other.best(_PROMISING)])
    return _reached(
        lists,
        documents,
        np.zeros(len(documents)),
        results,
    )


def _reached(
    lists: list[_Postings],
    documents: NDArray[Any],
    totals: NDArray[np.float64],
    results: int,
) -> float:
    """Return a score that at least `results` of some documents reach.

    Args:
        lists: The lists that are not yet scored.
        documents: The documents, ascending.
        totals: Their scores on other lists.
        results: The number of results.
    """
    if len(documents) < results:
        return 0.0
    for postings in lists:
        totals = totals + postings.scores(documents)
        # Any documents give a valid score. To save time, only the better half is kept after each list.
        best = _largest(totals, max(results, len(documents) // 2))
        documents = documents[best]
        totals = totals[best]
    return float(_ranked(totals, results)) * _CAREFUL


def _candidates(lists: list[_Postings], threshold: float) -> NDArray[Any]:
    """Return all documents that can reach the threshold, ascending: those above some list's cut."""
    if threshold <= 0:
        return _union([postings.documents for postings in lists])
    # Cuts at the same share of all bounds, or at larger ones of the smallest bounds: which leaves the fewest documents?
    least = threshold / sum(postings.bound for postings in lists)
    shares = [
        least,
        *(share for share in _SHARES if share > least),
    ]
    choices = [_cuts(lists, threshold, share) for share in shares]
    counts = [sum(map(_Postings.count_above, lists, cuts)) for cuts in choices]
    cuts = choices[int(np.argmin(counts))]
    parts = [postings.above(cut) for postings, cut in zip(lists, cuts, strict=True)]
    return _union(parts)


def _cuts(lists: list[_Postings], threshold: float, share: float) -> list[float]:
    """Return cuts whose sum is below the threshold: a fraction of the bound, starting with the smallest bounds."""
    left = threshold
    cuts = []
    for postings in reversed(lists):
        cut = min(left, postings.bound * share)
        left -= cut
        cuts.append(float(np.nextafter(cut, -1)))
    return cuts[::-1]


def _union(lists: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the distinct documents of some lists, ascending."""
    if len(lists) == 1:
        return lists[0]
    if sum(map(len, lists)) < _FEW:
        # merges sorted runs, which np.unique does not
        documents = np.sort(np.concatenate(lists), kind="stable")
        first = np.ones(len(documents), np.bool_)
        np.not_equal(
            documents[1:],
            documents[:-1],
            out=first[1:],
        )
        return documents[first]
    flags = np.zeros(
        1 + max(int(documents[-1]) for documents in lists if len(documents)), np.bool_
    )
    for documents in lists:
        flags[documents] = True
    return np.flatnonzero(flags).astype(lists[0].dtype)


def _scored(
    lists: list[_Postings], documents: NDArray[Any], threshold: float, results: int
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Score the candidates and return those that reach the threshold, with their scores."""
    totals = np.zeros(len(documents))
    rest = sum(postings.bound for postings in lists)
    for place, postings in enumerate(lists):
        totals += postings.scores(documents)
        rest -= postings.bound
        # The best documents so far give a higher threshold.
        if place in _LOOK_AGAIN and len(documents) > _FEW:
            best = _largest(totals, _FEW)
            threshold = max(
                threshold,
                _reached(lists[place + 1 :], documents[best], totals[best], results),
            )
        # Documents that cannot reach it with the bounds of the other lists are dropped.
        if threshold > 0:
            able = totals >= threshold - rest * (2 - _CAREFUL)
            documents = documents[able]
            totals = totals[able]
    return documents, totals
