"""Search compared with recorded Lucene rankings and with a scalar BM25 written from its definition."""

import gzip
import json
import math
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.search import index as search_index
from hgpo_envs.webshop.search.analyzer import terms
from hgpo_envs.webshop.search.index_writer import IndexWriter


def test_recorded_rankings(recorded, shared):
    catalogue = Catalogue.open(recorded)
    lines = gzip.decompress((shared / "golden/webshop/search.jsonl.gz").read_bytes()).splitlines()
    assert lines
    for line in map(json.loads, lines):
        found = catalogue.scored(line["query"])
        assert [catalogue.product(index).asin for index, _ in found] == [asin for asin, _ in line["hits"]]
        np.testing.assert_allclose(
            [score for _, score in found], [score for _, score in line["hits"]], atol=1e-3, rtol=0
        )
        assert catalogue.search(line["query"]) == tuple(index for index, _ in found)
    for query in ("", "the of and", "zzzzunknown", "\x00", "\ud800", "a" * 100_000, "👍🏽", '[]()*~^"'):
        assert len(catalogue.search(query)) <= 50
    assert catalogue.search("red " * 5_000) == catalogue.search("red")


def single(x: float) -> float:
    """Round to float32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def kept_length(length: int) -> int:
    """Round a length as Lucene's one-byte encoding does: exact below 40, else three bits after the leading one."""
    if length < 24 + 16:
        return length
    rest = length - 24
    shift = rest.bit_length() - 4
    return 24 + (rest >> shift << shift)


def ranking(documents: list[str], query: str, results: int) -> list[tuple[int, float]]:
    """BM25 as Lucene 8 computes it, one document at a time, float32 after every operation."""
    counted = [Counter(terms(text)) for text in documents]
    lengths = [sum(count.values()) for count in counted]
    filled = sum(length > 0 for length in lengths)
    if not filled:
        return []
    average = single(sum(lengths) / filled)
    k1, b = single(0.9), single(0.4)
    found = []
    for number, (count, length) in enumerate(zip(counted, lengths, strict=True)):
        share = single(single(b * kept_length(length)) / average)
        inverse = single(1 / single(k1 * single(single(1 - b) + share)))
        total, hit = 0.0, False
        for term, often in Counter(terms(query)).items():
            holding = sum(term in other for other in counted)
            if count[term]:
                hit = True
                weight = single(often * single(math.log(1 + (filled - holding + 0.5) / (holding + 0.5))))
                total += single(weight - single(weight / single(1 + single(count[term] * inverse))))
        if hit:
            found.append((number, single(total)))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:results]


def write_index(folder, documents: list[str], ranks=None) -> search_index.Index:
    writer = IndexWriter(folder)
    for text in documents:
        writer.add(text)
    writer.finish(np.arange(len(documents), dtype=np.int32) if ranks is None else ranks, lambda *_: None)
    return search_index.Index(folder, 1 << 30)


@pytest.mark.slow
def test_early_termination_misses_no_result(tmp_path, monkeypatch):
    """On 8,000 documents, a search with thresholds returns the same as scoring all postings."""
    random = np.random.default_rng(3)
    vocabulary, chances = np.array([f"w{n}x" for n in range(300)]), 1 / np.arange(1, 301)

    def text(most):
        return " ".join(random.choice(vocabulary, random.integers(1, most), p=chances / chances.sum()))

    index = write_index(tmp_path / "index", [text(80) for _ in range(8_000)], random.permutation(8_000).astype("i4"))
    for query in [text(9) for _ in range(300)]:
        monkeypatch.setattr(search_index, "_SHORT", 1 << 30)  # scores all postings
        whole = index.search(query)
        for few in (20, 1_000, 16_000):
            for name in ("_PROMISING", "_FEW", "_SHORT"):
                monkeypatch.setattr(search_index, name, few)
            assert [values.tolist() for values in index.search(query)] == [values.tolist() for values in whole], query


WORDS = st.sampled_from(["shoe", "shoes", "red", "women's", "size", "x", "100%", "blue", "the", "日本", "™", "u.s.a."])
TEXTS = st.lists(WORDS, max_size=60).map(" ".join)


@given(st.lists(TEXTS, max_size=30), TEXTS, st.integers(1, 6), st.integers(1, 8))
def test_search_is_bm25(tmp_path_factory, documents, query, results, promising):
    index = write_index(tmp_path_factory.mktemp("index") / "index", documents)
    with pytest.MonkeyPatch.context() as patch:  # few, so that thresholds and cuts are at work on few documents
        whole = index.search(query, results)
        for name in ("_PROMISING", "_FEW", "_EVERY", "_SHORT"):
            patch.setattr(search_index, name, promising)
        found, scores = index.search(query, results)
    assert [values.tolist() for values in whole] == [found.tolist(), scores.tolist()]
    assert list(zip(found.tolist(), scores.tolist(), strict=True)) == ranking(documents, query, results)


def test_runs_merge_to_the_same_index(tmp_path, monkeypatch):
    documents = [f"a{n % 7}b c{n % 3}d word word e{n}f" for n in range(500)]
    write_index(tmp_path / "whole", documents)
    monkeypatch.setattr("hgpo_envs.webshop.search.index_writer.TOKENS_AT_ONCE", 64)
    write_index(tmp_path / "runs", documents)
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "runs" / path.name).read_bytes(), path.name
