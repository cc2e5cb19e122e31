"""Searches the index: Lucene's ranking, ties included, without looking at more postings than can matter."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.webshop import bm25
from hgpo_envs.webshop.analysis import terms

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RESULTS: Final = 50
"""How many products a search finds at most."""


class Index:
    def __init__(self, folder: Path) -> None:
        counts = json.loads((folder / "index.json").read_bytes())
        self.documents: int = counts["documents"]
        load = lambda name: mapped(folder / f"{name}.npy")
        self.terms = np.memmap(folder / "terms.bin", np.uint8, "r")
        self.term_ends = load("term_ends")
        self.term_numbers = load("term_numbers")
        self.starts = load("starts")
        self.posting_documents = load("documents")
        self.posting_codes = load("codes")
        self.saturation = bm25.saturation(
            load("code_frequencies"), load("code_lengths"), counts["documents"], counts["tokens"]
        )
        self.size = len(load("starts"))

    def number(self, term: str) -> int | None:
        wanted = term.encode("utf-8", "surrogatepass")
        low, high = 0, len(self.term_ends)
        while low < high:
            middle = (low + high) // 2
            begin = int(self.term_ends[middle - 1]) if middle else 0
            found = self.terms[begin : int(self.term_ends[middle])].tobytes()
            if found == wanted:
                return int(self.term_numbers[middle])
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def exhaustive(self, query: str, n: int, k: int = RESULTS):
        acc = np.zeros(n, np.float64)
        for term, count in Counter(terms(query)).items():
            number = self.number(term)
            if number is None:
                continue
            b, e = int(self.starts[number]), int(self.starts[number + 1])
            w = bm25.weight(self.documents, e - b, count)
            table = bm25.scores(w, self.saturation)
            acc[self.posting_documents[b:e]] += table[self.posting_codes[b:e]]
        s = acc.astype(np.float32)
        hit = np.flatnonzero(s > 0)
        order = hit[np.lexsort((hit, -s[hit]))][:k]
        return order, s[order]


def mapped(path: Path) -> NDArray[Any]:
    """An array of a .npy file; mapped unless it is empty, which cannot be."""
    array: NDArray[Any] = np.load(path, mmap_mode="r" if path.stat().st_size > 256 else None, allow_pickle=False)
    return array.view(np.ndarray)
