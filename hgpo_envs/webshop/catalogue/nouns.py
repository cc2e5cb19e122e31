"""The nouns of product titles, from which the reward's type score is computed.

The original uses the words that spaCy's `en_core_web_sm` tags as NOUN or PROPN. Without spaCy and this model, a file of
recorded nouns or the rule `StandInNouns` is used instead. The catalogue records the method.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_regular, parse_json, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODEL: Final = "en_core_web_sm"

LONGEST_RECORDED: Final = 1 << 30
"""The maximum decompressed size in bytes of a file of nouns, which is kept in memory."""


class Nouns(Protocol):
    """A method that finds the nouns of titles."""

    name: str
    """The name that the catalogue records: the method and its version, or the file's digest."""

    def of(self, titles: Sequence[str]) -> list[list[str]]:
        """Return the lowercase nouns of each title, in order and with repetitions."""
        ...


class SpacyNouns:
    """spaCy's `en_core_web_sm`, as in the original."""

    def __init__(self, pipeline: Any) -> None:  # noqa: ANN401 - spaCy may be absent
        meta = pipeline.meta
        self.name = (
            f"spacy {meta['spacy_version'].strip('>=<').split(',')[0]} {meta['lang']}_{meta['name']} {meta['version']}"
        )
        self.pipeline = pipeline

    def of(self, titles: Sequence[str]) -> list[list[str]]:
        """Return the words tagged NOUN, PROPN or PNOUN. The original also tests PNOUN, which is not a spaCy tag."""
        parsed = self.pipeline.pipe(titles, batch_size=256)
        return [[word.text.lower() for word in title if word.pos_ in {"PNOUN", "NOUN", "PROPN"}] for title in parsed]


class RecordedNouns:
    """A JSON file (gzipped or not) that maps each title to its nouns."""

    def __init__(self, path: Path) -> None:
        try:
            found = parse_json(read_bytes(path, LONGEST_RECORDED, "file of nouns", unpack=True))
        except InputError as error:
            raise InputError(f"cannot read the nouns of {path}: {error}") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}: expected a JSON object of title: [nouns], received {type(found).__name__}")
        self.found: dict[str, list[str]] = found
        with open_regular(path) as file:
            self.name = f"file sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
        self.path = path

    def of(self, titles: Sequence[str]) -> list[list[str]]:
        """Return the recorded nouns. Raises InputError for a title that is not in the file."""
        for title in titles:
            nouns = self.found.get(title)
            if not isinstance(nouns, list) or not all(isinstance(noun, str) for noun in nouns):
                raise InputError(f"{self.path} has no list of nouns for the title {title!r:.80}")
        return [self.found[title] for title in titles]


class StandInNouns:
    """A rule that replaces a tagger: all words except function words, common adjectives, words in -ly and numbers.

    Titles are sequences of names, so spaCy tags almost all of the remaining words as NOUN or PROPN. A word is a run of
    letters and digits that starts with a letter.
    """

    name = "stand-in 1"

    def of(self, titles: Sequence[str]) -> list[list[str]]:
        """Return the nouns by this rule.

        >>> StandInNouns().of(["Women's Soft Red Cotton T-Shirt with 2 Pockets, Easily Washed"])
        [['women', 'cotton', 'shirt', 'pockets']]
        """
        return [
            [word for word in _WORD.findall(title.lower()) if word not in _OTHER and not word.endswith("ly")]
            for title in titles
        ]


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


def noun_finder(nouns: str | Path | None) -> Nouns:
    """Return the method for a choice.

    Args:
        nouns: The path of a file of recorded nouns, "spacy", "stand-in", or None for spaCy if it is installed and else
            the stand-in.

    Raises:
        InputError: If the file cannot be read, or spaCy or its model is not installed.
    """
    from pathlib import Path

    if nouns == "stand-in":
        return StandInNouns()
    if nouns is not None and nouns != "spacy":
        return RecordedNouns(Path(nouns))
    try:
        import spacy

        return SpacyNouns(spacy.load(MODEL))
    except (ImportError, OSError):
        if nouns is None:
            return StandInNouns()
        raise InputError(
            f"nouns='spacy' needs spaCy and its model {MODEL} (pip install spacy; python -m spacy download {MODEL}); "
            "or use a file of nouns or 'stand-in'"
        ) from None
