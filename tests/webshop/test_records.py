"""Records and labels: random access to everything that was written."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.webshop.records import Labels, LabelWriter, Records, write_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def same_bits(one, other):
    if isinstance(one, float):
        return isinstance(other, float) and one.hex() == other.hex()
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same_bits, one.values(), other.values()))
    return one == other


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@settings(max_examples=20)
@given(st.lists(JSON), st.booleans())
def test_records_are_unchanged_to_the_bit(folder, values, compress):
    for path in folder.iterdir():
        path.unlink()
    write_records(folder, "values", values, compress=compress)
    read = Records(folder, "values")
    assert len(read) == len(values)
    assert all(same_bits(read[at], values[at]) for at in reversed(range(len(values))))
    for outside in (-1, len(values)):
        with pytest.raises(IndexError):
            read[outside]


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_records(tmp_path / name, "values", ["é"] * 100, compress=True)
    assert len({(tmp_path / name / "values.jsonl.gz").read_bytes() for name in ("one", "two")}) == 1


def test_infinity_becomes_null(tmp_path):
    write_records(tmp_path, "values", [[1.5, math.inf]])
    assert Records(tmp_path, "values")[0] == [1.5, None]


@given(st.lists(TEXT), TEXT)
def test_labels_find_every_row(folder, texts, other):
    writer = LabelWriter()
    for text in texts:
        writer.add(text)
    writer.save(folder, "texts")
    labels = Labels(folder, "texts")
    for wanted in {*texts, other}:
        assert labels.rows(wanted).tolist() == [row for row, text in enumerate(texts) if text == wanted]
