"""The texts of tokens: those of the run's own tokenizer, from files of this machine alone."""

import json

import pytest
from groups import write_run
from viewed import RESPONSES, write_token_run

from hgpo_datasets import scan_steps
from hgpo_train.view.documents import step_documents
from hgpo_train.view.sources import open_sources
from hgpo_train.view.tokens import find_tokenizer
from hgpo_train.view.tokens import texts_of as token_texts

tokenizers = pytest.importorskip("tokenizers")


def texts_of(run, row):
    (source,) = open_sources([str(run)])
    return step_documents(source.index(), row, 1, source.tokenizer())[0]["token_texts"]


@pytest.mark.parametrize("row", [0, 1])
def test_each_token_has_its_text(token_run, row):
    texts = texts_of(token_run, row)
    assert texts is not None
    assert texts[-1] == "<|end|>", "a special token is shown"
    assert all(texts)
    joined = "".join(map(str, texts[:-1]))
    assert joined.replace("\ufffd", "") == RESPONSES[row].translate(
        {0x2014: "", 0x202E: "", 0xEF: ""}
    )
    assert (
        len(texts)
        == scan_steps(token_run).collect()["response_token_ids"].list.len()[row]
    )


def test_a_tokenizer_that_wrote_other_texts_is_not_used(tmp_path):
    run = write_token_run(tmp_path)
    vocabulary = {f"word{number}": number for number in range(300)}
    other = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token="word0")
    )
    other.save(str(tmp_path / "model/tokenizer.json"))
    assert texts_of(run, 0) is None


@pytest.mark.parametrize(
    "response", ["go 0", "go<|end|>0", "<think>\ngo<|end|>0", "go 1"]
)
def test_responses_with_special_tokens_and_a_tag_of_the_prompt(token_run, response):
    """Tables of earlier versions have no special tokens in their texts."""
    (source,) = open_sources([str(token_run)])
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode("go<|end|>0<|end|>").ids
    texts = token_texts(tokenizer, ids, response)
    assert (None if texts is None else "".join(map(str, texts))) == (
        None if "1" in response else "go<|end|>0<|end|>"
    )


def test_ids_without_a_token(token_run):
    (source,) = open_sources([str(token_run)])
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    assert token_texts(tokenizer, [1_000_000], "") == [None]
    assert token_texts(tokenizer, [-1], "") is None


def test_spaces_of_sentencepiece(tmp_path):
    written = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"▁go": 0, "▁north": 1}, unk_token="▁go")
    )
    written.decoder = tokenizers.decoders.Metaspace()
    written.save(str(tmp_path / "tokenizer.json"))
    tokenizer = find_tokenizer({"model": {"path": str(tmp_path)}}, None)
    assert tokenizer is not None
    assert token_texts(tokenizer, [0, 1], "go north") == [" go", " north"]


def test_the_checkpoint_of_a_training_run(token_run, tmp_path):
    folder = tmp_path / "training"
    checkpoint = folder / "checkpoints" / "000001"
    (checkpoint / "trainer").mkdir(parents=True)
    (tmp_path / "model/tokenizer.json").rename(checkpoint / "tokenizer.json")
    assert find_tokenizer({}, folder) is not None
    assert find_tokenizer({"policy": {"name": f"vllm:{folder}"}}, None) is not None
    assert texts_of(token_run, 0) is None, "the folder of the model has none now"


def test_a_run_without_a_tokenizer_here():
    for config in (
        {},
        {"policy": "random"},
        {"model": {"path": "//somewhere/else"}},
        {"model": {"path": 3}},
    ):
        assert find_tokenizer(config, None) is None
    for name in (
        "openai:some/model-that-nobody-has",
        "transformers:",
        "transformers:no such/model/name/at all",
    ):
        assert find_tokenizer({"policy": {"name": name}}, None) is None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"model": {"type": "BPE"}}']
)
def test_a_damaged_tokenizer_is_none(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert find_tokenizer({"model": {"path": str(tmp_path)}}, None) is None


def test_a_run_without_tokens(tmp_path, token_run):
    row = {
        "task_id": "t",
        "trajectory": "t",
        "step": 0,
        "state": "room",
        "action": "go",
        "reward": 0.0,
    }
    write_run(
        tmp_path / "bare",
        [row],
        config={"policy": {"name": f"transformers:{tmp_path / 'model'}"}},
    )
    assert texts_of(tmp_path / "bare", 0) is None


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "Sequence", "decoders": [DOUBLING] * 60},
        {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""},
        {"type": "WordPiece", "prefix": "##" * 100, "cleanup": False},
        {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
    ],
)
def test_the_decoder_of_a_stranger_is_not_run(token_run, tmp_path, decoder):
    file = tmp_path / "model/tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder": decoder}))
    (source,) = open_sources([str(token_run)])
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    number = tokenizer.token_to_id("a")
    assert tokenizer.decode([number] * 9) == "a" * 9
