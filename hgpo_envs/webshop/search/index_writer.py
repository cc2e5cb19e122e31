"""Writing of the search index, an inverted file of memory-mapped arrays, in bounded memory.

    index/
      terms.bin, term_ends.npy     the terms in UTF-8, sorted by bytes and concatenated; uint32 end of each
      term_numbers.npy             int32: the number of each sorted term
      starts.npy                   int64 (terms + 1,): the offset of the postings of term n
      documents.npy                the documents of each term, ascending; a document is the rank of its asin
      codes.npy                    one code per posting, which identifies its pair of frequency and length
      code_frequencies.npy         int32: the frequency of each code
      code_lengths.npy             uint8: the length of each code in Lucene's one-byte encoding
      index.json                   the number of documents with terms and of terms in all documents

Codes are sorted by BM25's saturation of their pair, so a posting's score increases with its code for every term. The
highest code of a list therefore gives its highest score, and scoring a list takes one look-up per posting.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.webshop.search.analyzer import piece_terms
from hgpo_envs.webshop.search.bm25 import length_byte, saturation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

TOKENS_AT_ONCE: Final = 1 << 23
"""The number of tokens counted, and of postings merged, at a time. It determines the memory use."""

KNOWN_PIECES: Final = 1 << 20


class IndexWriter:
    """A writer that counts the terms of documents in sorted runs on disk and merges the runs.

    Args:
        folder: The index folder to fill. It also contains the runs until they are merged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / ".runs"
        self.runs.mkdir(parents=True)
        self.vocabulary: dict[str, int] = {}
        self.pieces: dict[str, tuple[int, ...]] = {}
        self.tokens: list[int] = []
        self.lengths: list[int] = []
        self.flushed = 0  # the number of documents in runs
        self.files = 0
        self.pairs: set[int] = set()

    def add(self, text: str) -> None:
        """Add the next document."""
        before = len(self.tokens)
        known = self.pieces
        tokens = self.tokens
        for piece in text.split(" "):
            terms = known.get(piece)
            tokens += self._learn(piece) if terms is None else terms
        self.lengths.append(len(tokens) - before)
        if len(tokens) >= TOKENS_AT_ONCE:
            self._flush()

    def _learn(self, piece: str) -> tuple[int, ...]:
        vocabulary = self.vocabulary
        terms = tuple(
            vocabulary.setdefault(term, len(vocabulary)) for term in piece_terms(piece)
        )
        if len(self.pieces) >= KNOWN_PIECES:
            self.pieces.clear()
        if len(piece) <= 64:
            self.pieces[piece] = terms
        return terms

    def _flush(self) -> None:
        """Write one run: sorted (term, document) pairs with their frequencies."""
        # 1. A term and its document in one integer, so that one sort groups the tokens of each pair.
        lengths = np.array(self.lengths[self.flushed :], np.int64)
        documents = np.repeat(
            np.arange(self.flushed, len(self.lengths), dtype=np.int64), lengths
        )
        keys = np.array(self.tokens, np.int64) << 32
        keys |= documents
        keys.sort()
        # 2. The first token of each pair; the distance to the next one is the frequency.
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        frequencies = np.diff(first, append=len(keys)).astype(np.int32)
        keys = keys[first]
        document = (keys & 0xFFFFFFFF).astype(np.int32)
        # 3. The pairs of frequency and length, which get their codes when all are known.
        short = _length_bytes(lengths.tolist())[document - self.flushed]
        self.pairs.update(np.unique(frequencies.astype(np.int64) << 8 | short).tolist())
        for name, values in (
            ("terms", (keys >> 32).astype(np.int32)),
            ("documents", document),
            ("counts", frequencies),
        ):
            np.save(self.runs / f"{name}-{self.files}.npy", values)
        self.files += 1
        self.flushed = len(self.lengths)
        self.tokens.clear()

    def finish(
        self, ranks: NDArray[np.int32], progress: Callable[[int, int], None]
    ) -> None:
        """Merge the runs and complete the index.

        Args:
            ranks: int32 array of shape (documents,), the rank of each document's asin, which becomes its number.
            progress: Called with the number of merged postings and their total.
        """
        if len(self.lengths) > self.flushed:
            self._flush()
        # 1. What depends on all documents: the counts, and the code of each pair of frequency and length.
        lengths = np.array(self.lengths, np.int64)
        documents = int(np.count_nonzero(lengths))
        total = int(lengths.sum())
        (self.folder / "index.json").write_text(
            json.dumps({"documents": documents, "tokens": total})
        )
        codes = self._codes(documents, total)
        starts = self._starts()
        np.save(self.folder / "starts.npy", starts)
        short = _length_bytes(self.lengths)
        # 2. The postings, merged for as many terms at a time as fit into memory, but at least one.
        with (
            (self.folder / "documents.npy").open("wb") as out,
            (self.folder / "codes.npy").open("wb") as out_codes,
        ):
            document_type = np.uint16 if len(ranks) <= 1 << 16 else np.uint32
            code_type = np.uint16 if len(codes) <= 1 << 16 else np.uint32
            _write_header(out, document_type, int(starts[-1]))
            _write_header(out_codes, code_type, int(starts[-1]))
            first = 0
            while first < len(starts) - 1:
                last = (
                    int(
                        np.searchsorted(
                            starts, starts[first] + TOKENS_AT_ONCE, side="right"
                        )
                    )
                    - 1
                )
                last = max(last, first + 1)
                document, code = self._merged(
                    first,
                    last,
                    ranks,
                    short,
                    codes,
                )
                out.write(document.astype(document_type).tobytes())
                out_codes.write(code.astype(code_type).tobytes())
                first = last
                progress(int(starts[first]), int(starts[-1]))
        self._write_terms()
        shutil.rmtree(self.runs)

    def _run(self, name: str, number: int) -> NDArray[Any]:
        path = self.runs / f"{name}-{number}.npy"
        array: NDArray[Any] = np.load(
            path, mmap_mode="r" if path.stat().st_size > 128 else None
        )
        return array

    def _starts(self) -> NDArray[np.int64]:
        counts = np.zeros(len(self.vocabulary) + 1, np.int64)
        for number in range(self.files):
            counts[1:] += np.bincount(
                self._run("terms", number), minlength=len(self.vocabulary)
            )
        return np.cumsum(counts)

    def _codes(self, documents: int, total: int) -> NDArray[np.int64]:
        """Sort the pairs of frequency and length by BM25's saturation and write them.

        Returns:
            int64 array of shape (2, pairs): the packed pairs (frequency << 8 | length) in ascending order, and the
            code of each.
        """
        pairs = np.array(sorted(self.pairs), np.int64)
        frequencies = (pairs >> 8).astype(np.int32)
        lengths = (pairs & 0xFF).astype(np.uint8)
        order = np.argsort(
            saturation(frequencies, lengths, documents, total), kind="stable"
        )
        np.save(self.folder / "code_frequencies.npy", frequencies[order])
        np.save(self.folder / "code_lengths.npy", lengths[order])
        code = np.empty(len(pairs), np.int64)
        code[order] = np.arange(len(pairs))
        return np.stack([pairs, code])

    def _merged(
        self,
        first: int,
        last: int,
        ranks: NDArray[np.int32],
        short: NDArray[np.uint8],
        codes: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents and codes of the postings of terms first … last - 1, sorted by term and rank."""
        parts = []
        for number in range(self.files):
            terms = self._run("terms", number)
            begin, end = np.searchsorted(terms, [first, last])
            document, count = (
                self._run(name, number)[begin:end] for name in ("documents", "counts")
            )
            pair = count.astype(np.int64) << 8 | short[document]
            code = codes[1][np.searchsorted(codes[0], pair)]
            # term and rank in one sortable integer; the list of a term has at most one posting per document
            parts.append(
                (
                    (terms[begin:end] - first).astype(np.int64) << 32 | ranks[document],
                    code,
                )
            )
        keys = np.concatenate([key for key, _ in parts])
        order = np.argsort(keys)
        return keys[order] & 0xFFFFFFFF, np.concatenate([code for _, code in parts])[
            order
        ]

    def _write_terms(self) -> None:
        encoded = sorted(
            (term.encode("utf-8", "surrogatepass"), number)
            for term, number in self.vocabulary.items()
        )
        (self.folder / "terms.bin").write_bytes(b"".join(term for term, _ in encoded))
        np.save(
            self.folder / "term_ends.npy",
            np.cumsum([len(term) for term, _ in encoded], dtype=np.uint32),
        )
        np.save(
            self.folder / "term_numbers.npy",
            np.array([number for _, number in encoded], np.int32),
        )


def _length_bytes(lengths: list[int]) -> NDArray[np.uint8]:
    return np.array([length_byte(length) for length in lengths], np.uint8)


def _write_header(file: Any, kind: type[np.generic], length: int) -> None:  # noqa: ANN401 - any binary file
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(np.dtype(kind)),
            "fortran_order": False,
            "shape": (length,),
        },
    )
