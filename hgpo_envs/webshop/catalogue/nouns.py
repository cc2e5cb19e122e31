"""The nouns of product titles, from which the reward's type score is computed.

The original uses the words that spaCy's `en_core_web_sm` tags as NOUN or PROPN. Without spaCy and this model, a file of
recorded nouns or the rule `stand_in_nouns` is used instead. The catalogue records the method.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import parse_json, read_bytes, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    NounFinder = Callable[[Sequence[str]], list[list[str]]]
    """Returns the lowercase nouns of each title, in order and with repetitions."""

MODEL: Final = "en_core_web_sm"

LONGEST_RECORDED: Final = 1 << 30
"""The maximum decompressed size in bytes of a file of nouns, which is kept in memory."""


_WORD: Final = re.compile(r"(?<![^\W_])[^\W\d_][^\W_]*")

_OTHER_WORDS: Final = """
    a about above after all an and any are as at be been before below between both but by can could did do does doing
    down during each either few for from had has have he her here him his how i if in into is it its just may me might
    more most must my no nor not of off on once only or other our out over own per plus s shall she should since so some
    such t than that the their them then there these they this those through to too under until up upon us very via was
    we were what when where which while who whom why will with within without would you your
    adjustable anti automatic best better big black blue breathable bright brown casual cheap classic clean clear cold
    comfortable cool cute dark deep different double dry durable easy eco elastic electric electronic elegant extra fast
    fat fine fit flat flexible foldable free fresh friendly full fun funny good gray great green grey happy hard
    healthy heavy high hot huge hypoallergenic ideal inner large last lasting light lightweight little long loose low
    luxury magnetic matte medium mini modern multi multiple natural new nice non old one open orange organic original
    outer perfect personalized pink plain plastic portable premium professional pure purple quick real red removable
    reusable rich round safe sexy sharp short simple single slim small smart smooth soft solid special square stainless
    strong stylish super sweet synthetic tall thick thin three tight tiny top traditional transparent triple true
    two ultra unique universal upgraded vegan vintage warm washable washed waterproof wet white whole wide wireless
    wooden yellow young zero
"""
_OTHER: Final = frozenset(_OTHER_WORDS.split())


def stand_in_nouns(titles: Sequence[str]) -> list[list[str]]:
    """Return all words except function words, common adjectives, words in -ly and numbers, instead of a tagger's nouns.

    Titles are sequences of names, so spaCy tags almost all of the remaining words as NOUN or PROPN. A word is a run of
    letters and digits that starts with a letter.

    >>> stand_in_nouns(["Women's Soft Red Cotton T-Shirt with 2 Pockets, Easily Washed"])
    [['women', 'cotton', 'shirt', 'pockets']]
    """
    return [
        [
            word
            for word in _WORD.findall(title.lower())
            if word not in _OTHER and not word.endswith("ly")
        ]
        for title in titles
    ]


def spacy_nouns(pipeline: Any, titles: Sequence[str]) -> list[list[str]]:  # noqa: ANN401 - spaCy may be absent
    """Return the words tagged NOUN, PROPN or PNOUN. The original also tests PNOUN, which is not a spaCy tag."""
    parsed = pipeline.pipe(titles, batch_size=256)
    return [
        [word.text.lower() for word in title if word.pos_ in {"PNOUN", "NOUN", "PROPN"}]
        for title in parsed
    ]


def recorded_nouns(path: Path) -> tuple[str, NounFinder]:
    """Return the name and the nouns of a JSON file (gzipped or not) that maps each title to its nouns.

    Raises:
        InputError: If the file cannot be read; the finder, for a title that is not in the file.
    """
    try:
        recorded = parse_json(
            read_bytes(path, LONGEST_RECORDED, "file of nouns", unpack=True)
        )
    except InputError as error:
        raise InputError(f"cannot read the nouns of {path}: {error}") from None
    if not isinstance(recorded, dict):
        raise InputError(
            f"{path}: expected a JSON object of title: [nouns], received {type(recorded).__name__}"
        )

    def find(titles: Sequence[str]) -> list[list[str]]:
        for title in titles:
            nouns = recorded.get(title)
            if not isinstance(nouns, list) or not all(
                isinstance(noun, str) for noun in nouns
            ):
                raise InputError(
                    f"{path} has no list of nouns for the title {title!r:.80}"
                )
        return [recorded[title] for title in titles]

    return f"file sha256:{sha256(path)[:16]}", find


def noun_finder(nouns: str | Path | None) -> tuple[str, NounFinder]:
    """Return the method for a choice, with the name that the catalogue records: its version, or the file's digest.

    Args:
        nouns: The path of a file of recorded nouns, "spacy", "stand-in", or None for spaCy if it is installed and else
            the stand-in.

    Raises:
        InputError: If the file cannot be read, or spaCy or its model is not installed.
    """
    if nouns is not None and nouns not in ("spacy", "stand-in"):
        return recorded_nouns(Path(nouns))
    if nouns != "stand-in":
        try:
            import spacy

            pipeline = spacy.load(MODEL)
        except (ImportError, OSError):
            if nouns == "spacy":
                raise InputError(
                    f"nouns='spacy' needs spaCy and its model {MODEL} (pip install spacy; python -m spacy download "
                    f"{MODEL}); or use a file of nouns or 'stand-in'"
                ) from None
        else:
            meta = pipeline.meta
            version = meta["spacy_version"].strip(">=<").split(",")[0]
            return (
                f"spacy {version} {meta['lang']}_{meta['name']} {meta['version']}",
                partial(spacy_nouns, pipeline),
            )
    return "stand-in 1", stand_in_nouns
