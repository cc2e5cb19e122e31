"""Search compared with recorded Lucene rankings and with a scalar BM25 written from its definition."""

import gzip
import json

import numpy as np
import pytest

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.search import index as search_index
from hgpo_envs.webshop.search.index_writer import IndexWriter


def test_recorded_rankings(recorded, shared):
    catalogue = Catalogue.open(recorded)
    lines = gzip.decompress((shared / "golden/webshop/search.jsonl.gz").read_bytes()).splitlines()
    assert lines
    for line in map(json.loads, lines):
        _, scores = catalogue.index.search(line["query"])
        assert [catalogue.product(row).asin for row in catalogue.search(line["query"])] == [a for a, _ in line["hits"]]
        np.testing.assert_allclose(scores, [score for _, score in line["hits"]], atol=1e-3, rtol=0)
    for query in ("", "the of and", "zzzzunknown", "\x00", "\ud800", "a" * 100_000, "👍🏽", '[]()*~^"'):
        assert len(catalogue.search(query)) <= 50
    assert catalogue.search("red " * 5_000) == catalogue.search("red")


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


def test_runs_merge_to_the_same_index(tmp_path, monkeypatch):
    documents = [f"a{n % 7}b c{n % 3}d word word e{n}f" for n in range(500)]
    write_index(tmp_path / "whole", documents)
    monkeypatch.setattr("hgpo_envs.webshop.search.index_writer.TOKENS_AT_ONCE", 64)
    write_index(tmp_path / "runs", documents)
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "runs" / path.name).read_bytes(), path.name
