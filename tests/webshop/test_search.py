"""Search: recorded Lucene rankings, its index, words and stems, and the files of records and labels."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.records import Labels, LabelWriter, Records, write_records
from hgpo_envs.webshop.search import analyzer
from hgpo_envs.webshop.search import index as search_index
from hgpo_envs.webshop.search.index_writer import IndexWriter
from hgpo_envs.webshop.search.porter import stem


def test_recorded_rankings(recorded, shared):
    catalogue = Catalogue.open(recorded)
    lines = gzip.decompress(
        (shared / "golden/webshop/search.jsonl.gz").read_bytes()
    ).splitlines()
    assert lines
    for line in map(json.loads, lines):
        _, scores = catalogue.index.search(line["query"])
        assert [
            catalogue.product(row).asin for row in catalogue.search(line["query"])
        ] == [a for a, _ in line["hits"]]
        np.testing.assert_allclose(
            scores, [score for _, score in line["hits"]], atol=1e-3, rtol=0
        )
    for query in (
        "",
        "the of and",
        "zzzzunknown",
        "\x00",
        "\ud800",
        "a" * 100_000,
        "👍🏽",
        '[]()*~^"',
    ):
        assert len(catalogue.search(query)) <= 50
    assert catalogue.search("red " * 5_000) == catalogue.search("red")


def write_index(folder, documents, ranks=None):
    writer = IndexWriter(folder)
    for text in documents:
        writer.add(text)
    writer.finish(
        np.arange(len(documents), dtype=np.int32) if ranks is None else ranks,
        lambda *_: None,
    )
    return search_index.Index(folder, 1 << 30)


@pytest.mark.slow
def test_early_termination_misses_no_result(tmp_path, monkeypatch):
    """On 8,000 documents, a search with thresholds returns the same as scoring all postings."""
    random = np.random.default_rng(3)
    vocabulary = np.array([f"w{n}x" for n in range(300)])
    chances = 1 / np.arange(1, 301)

    def text(most):
        return " ".join(
            random.choice(
                vocabulary, random.integers(1, most), p=chances / chances.sum()
            )
        )

    index = write_index(
        tmp_path / "index",
        [text(80) for _ in range(8_000)],
        random.permutation(8_000).astype("i4"),
    )
    for query in [text(9) for _ in range(300)]:
        monkeypatch.setattr(search_index, "_SHORT", 1 << 30)  # scores all postings
        whole = index.search(query)
        for few in (20, 1_000, 16_000):
            for name in ("_PROMISING", "_FEW", "_SHORT"):
                monkeypatch.setattr(search_index, name, few)
            assert [values.tolist() for values in index.search(query)] == [
                values.tolist() for values in whole
            ], query


@pytest.mark.slow
def test_runs_merge_to_the_same_index(tmp_path, monkeypatch):
    documents = [f"a{n % 7}b c{n % 3}d word word e{n}f" for n in range(500)]
    write_index(tmp_path / "whole", documents)
    monkeypatch.setattr("hgpo_envs.webshop.search.index_writer.TOKENS_AT_ONCE", 64)
    write_index(tmp_path / "runs", documents)
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "runs" / path.name).read_bytes(), (
            path.name
        )


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(JSON), st.booleans())
def test_records_are_unchanged_to_the_bit(folder, values, compress):
    for path in folder.iterdir():
        path.unlink()
    write_records(folder, "values", values, compress=compress)
    read = Records(folder, "values")
    assert len(read) == len(values)
    # -0.0 is not 0.0
    assert [repr(read[at]) for at in range(len(values))] == [
        repr(value) for value in values
    ]
    for outside in (-1, len(values)):
        with pytest.raises(IndexError):
            read[outside]


@pytest.mark.slow
@given(st.lists(TEXT), TEXT)
def test_labels_find_every_row(folder, texts, other):
    writer = LabelWriter()
    for text in texts:
        writer.add(text)
    writer.save(folder, "texts")
    labels = Labels(folder, "texts")
    for wanted in {*texts, other}:
        assert labels.rows(wanted).tolist() == [
            row for row, text in enumerate(texts) if text == wanted
        ]


def test_words():
    for text, expected in (  # each as Lucene 8.11's own analyser has it
        (
            'The quick ("brown") fox can\'t jump 32.3 feet, right?',
            "The quick brown fox can't jump 32.3 feet right",
        ),
        (
            "u.s.a. wi-fi e.g. a_b __ 3,5 1;2 a:b a,b 1.a o'neil's",
            "u.s.a wi fi e.g a_b 3,5 1;2 a:b a b 1 a o'neil's",
        ),
        ("½ cup ﬁne größe naïve Ελληνικά", "cup ﬁne größe naïve Ελληνικά"),
        (
            "日本製 ひらがな カタカナ 한국어 ภาษาไทย",
            "日 本 製 ひ ら が な カタカナ 한국어 ภาษาไทย",
        ),
        ("tm™ © 2 1️⃣ #️⃣ 👨‍👩‍👧 👍🏽x 🇺🇸🇬🇧", "tm ™ © 2 1️⃣ #️⃣ 👨‍👩‍👧 👍🏽 x 🇺🇸 🇬🇧"),
        ("צה\"ל א' שלום", "צה\"ל א' שלום"),
        ("soft\u00adhyphen e\u0301cole", "soft\u00adhyphen e\u0301cole"),
    ):
        assert analyzer.words(text) == expected.split(" ")


def test_porters_examples():
    examples = """
    caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster bled bled
    motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan falling fall hissing
    hiss fizzed fizz failing fail filing file happy happi sky sky relational relat conditional condit rational ration
    valenci valenc digitizer digit radicalli radic differentli differ vileli vile analogousli analog vietnamization
    vietnam predication predic operator oper feudalism feudal decisiveness decis hopefulness hope callousness callous
    formaliti formal sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize formal
    electriciti electr electrical electr hopeful hope goodness good revival reviv allowance allow inference infer
    airliner airlin gyroscopic gyroscop adjustable adjust defensible defens irritant irrit replacement replac
    adjustment adjust dependent depend adoption adopt homologou homolog communism commun activate activ angulariti
    angular homologous homolog effective effect bowdlerize bowdler probate probat rate rate cease ceas controll control
    roll roll
    """
    pairs = examples.split()
    for word, expected in zip(pairs[::2], pairs[1::2], strict=True):
        assert stem(word) == expected, word

    # in his own program
    changed = {
        "possibly": "possibl",
        "archaeology": "archaeolog",
        "us": "us",
        "y": "y",
        "": "",
    }
    # two UTF-16 units, as Lucene counts
    changed |= {"\U0001039bs": "\U0001039b", "i\U0001bc67e": "i\U0001bc67"}
    assert {word: stem(word) for word in changed} == changed


def test_terms_drop_stop_words_after_the_possessive():
    assert analyzer.terms("The woman's IT's o'neil’s USB's into 'tis") == [
        "woman",
        "o'neil",
        "usb",
        "ti",
    ]


@given(st.text(alphabet="ab1_.,:;'\"- Z", max_size=40))
def test_ascii_and_full_grammar_agree(text):
    assert analyzer._ASCII.findall(text) == analyzer._any().findall(text)


@given(st.text(max_size=60))
def test_any_text_can_be_split_at_spaces(text):
    assert analyzer.terms(text) == [
        term
        for word in analyzer.words(text)
        if (term := analyzer.term(word)) is not None
    ]


@given(st.integers(200, 1_000), st.sampled_from(["a", "é", "1"]))
def test_long_words_are_split_at_255(length, unit):
    words = analyzer.words(f"{unit * length} end")
    assert words[-1] == "end"
    whole, rest = divmod(length, 255)
    assert list(map(len, words[:-1])) == [255] * whole + [rest] * (rest > 0)
    # Deseret letters, two UTF-16 units each
    assert list(map(len, analyzer.words("𐐀" * 200))) == [127, 73]
