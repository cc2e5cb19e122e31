"""Records and labels: random access to everything that was written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.webshop.records import Labels, LabelWriter, Records, write_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


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
    assert [repr(read[at]) for at in range(len(values))] == [repr(value) for value in values]  # -0.0 is not 0.0
    for outside in (-1, len(values)):
        with pytest.raises(IndexError):
            read[outside]


@given(st.lists(TEXT), TEXT)
def test_labels_find_every_row(folder, texts, other):
    writer = LabelWriter()
    for text in texts:
        writer.add(text)
    writer.save(folder, "texts")
    labels = Labels(folder, "texts")
    for wanted in {*texts, other}:
        assert labels.rows(wanted).tolist() == [row for row, text in enumerate(texts) if text == wanted]
