"""Text analysis identical to Lucene 8's English chain: tokenise, remove possessives and stop words, stem.

The chain is Anserini's default: StandardTokenizer (UAX #29 with Unicode 9.0, emoji sequences of emoji 11.0, words of at
most 255 UTF-16 units), EnglishPossessiveFilter, LowerCaseFilter, StopFilter with Lucene's 33 English words, and
PorterStemFilter (`hgpo_envs.webshop.search.porter`).
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.webshop.search.porter import stem

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_WORD: Final = 255
"""The maximum length of a word in UTF-16 units. Longer words are split."""

_STOP_WORDS: Final = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

KNOWN_PIECES: Final = 1 << 14
"""The number of pieces of text between spaces whose terms are cached per process."""

LONGEST_KNOWN: Final = 24
"""The maximum length of a cached piece in characters. Each character may be a term of its own, which takes 70 bytes."""


@cache
def _classes() -> dict[str, Any]:
    """Return the character classes of Unicode's word-break rules."""
    classes: dict[str, Any] = json.loads(
        (resources.files("hgpo_envs.webshop.search") / "word_break.json").read_bytes()
    )
    return classes


def _set(*names: str) -> str:
    """Return the regular expression of the code points in some classes of `word_break.json`."""
    lines = [line for name in names for line in _classes()[name]["ranges"]]
    ranges = " ".join(lines).split()
    return f"[{''.join(map(_range, ranges))}]"


def _range(part: str) -> str:
    """Return a range in a regular expression, of hexadecimal numbers: `41` or `41-5A`."""
    return "-".join(re.escape(chr(int(end, 16))) for end in part.split("-"))


def _with_marks(characters: str) -> str:
    """Return the expression of a character with the marks that follow it (rule WB4)."""
    return f"(?:{characters}{_set('marks')}*+)"


def _words() -> str:
    """Return the expression of runs of letters, numbers and katakana with their joining characters (WB5 to WB13b)."""
    ex = _with_marks
    letter = ex(_set("letters", "hebrew"))
    hebrew = ex(_set("hebrew"))
    number = ex(_set("numbers"))
    katakana = ex(_set("katakana"))
    joiner = ex(_set("joiners"))
    in_word = ex(_set("mid_letter", "mid_both", "quote"))
    in_number = ex(_set("mid_number", "mid_both", "quote"))
    quoted = hebrew + ex('"') + hebrew
    single = hebrew + ex("'")
    item = (
        f"(?:{katakana}(?:{joiner}*{katakana})*"
        f"|(?:{quoted}|{single}"
        f"|{number}(?:(?:{joiner}+|{in_number})?{number})*"
        f"|{letter}(?:{joiner}*(?!{quoted}|{single}){letter}|{in_word}{letter})*)+)"
    )
    return f"{joiner}*{item}(?:{joiner}+{item})*{joiner}*"


def _pictures() -> tuple[str, str]:
    """Return the expressions of joined emoji and of single emoji (Unicode Technical Standard 51)."""
    tones = "[\U0001f3fb-\U0001f3ff]"
    pictures = _set("pictures")
    join = f"\u200d(?=\u200d*(?:{tones}|{pictures}))"
    mark = f"(?![\ufe0e\ufe0f]){_set('marks')}"
    marks = f"(?:(?!{join}){mark})*"
    tone = f"{tones}{marks}"
    picture = f"\u200d*{pictures}{marks}\ufe0f?"
    one = f"(?:(?:\u200d*{_set('modified')}(?:{mark})*)?{tone}|{picture})"
    tagged = f"{one}[\U000e0020-\U000e007e]+\U000e007f"
    keycap = f"[0-9#*](?:{mark})*\ufe0f?\u20e3(?:{mark})*"
    flag = _with_marks("[\U0001f1e6-\U0001f1ff]") + "{2}"
    return f"{one}(?:(?:{join})+{one})+", f"{tagged}|{one}|{keycap}|{flag}"


@cache
def _any() -> re.Pattern[str]:
    """Return the pattern of words. It is compiled lazily, since this takes 0.3 s and most texts are ASCII."""
    joined, alone = _pictures()
    scripts = f"{_with_marks(_set('complex'))}+|{_with_marks(_set('han'))}|{_with_marks(_set('hiragana'))}"
    return re.compile(f"{joined}|{_words()}|{scripts}|{alone}")


@cache
def _core() -> re.Pattern[str]:
    """Return the pattern of the characters of which every word contains at least one."""
    names = (
        "letters",
        "hebrew",
        "numbers",
        "katakana",
        "complex",
        "han",
        "hiragana",
        "pictures",
        "modified",
    )
    return re.compile(
        _set(*names) + "|[0-9#*\U0001f3fb-\U0001f3ff\U0001f1e6-\U0001f1ff]"
    )


_ASCII: Final = re.compile(
    r"_*(?:[0-9]+(?:(?:_+|[.,;'])[0-9]+)*|[A-Za-z]+(?:(?:_+|[.:'])[A-Za-z]+)*)+"
    r"(?:_+(?:[0-9]+(?:(?:_+|[.,;'])[0-9]+)*|[A-Za-z]+(?:(?:_+|[.:'])[A-Za-z]+)*)+)*_*"
)
"""The pattern of words in ASCII text, several times faster than `_any`."""


def words(text: str) -> list[str]:
    """Return a text's words as Lucene 8's StandardTokenizer does.

    >>> words("Women's U.S.A. Wi-Fi 3.5oz, ½ cup 日本 tm™")
    ["Women's", 'U.S.A', 'Wi', 'Fi', '3.5oz', 'cup', '日', '本', 'tm', '™']
    """
    # the pattern's time is quadratic in the length of its input
    if len(text) > LONGEST_WORD:
        return list(_cut_words(text))
    matches = (_ASCII if text.isascii() else _any()).findall(text)
    if any(len(word) > LONGEST_WORD // 2 for word in matches):
        return list(_cut_words(text))
    return matches


def _cut_words(text: str) -> Iterator[str]:
    """Yield the words of a text with possibly too long words, matching in a window of 255 UTF-16 units."""
    at = core = 0
    while at < len(text):
        # Lucene reads a window at a time. A search for a word takes long where there is none, and every word has a
        # core: without one in the window, there is nothing to search for.
        seen = _seen_from(text, at)
        if core < at or core == 0:
            match = _core().search(text, at)
            if match is None:
                return
            core = match.start()
        word = _any().search(text, at, seen) if core < seen else None
        if word is None:
            # not the whole window, whose end may contain the start of a word
            at += LONGEST_WORD // 4
        elif word.start() > at:
            at = word.start()
        else:
            yield word.group()
            at = word.end()


def _seen_from(text: str, at: int) -> int:
    """Return the end of a window of 255 UTF-16 units. A character beyond the basic plane has two units."""
    units = 0
    for place, letter in enumerate(text[at : at + LONGEST_WORD]):
        units += 2 if letter > "\uffff" else 1
        if units > LONGEST_WORD:
            return at + place
    return at + LONGEST_WORD


def term(word: str) -> str | None:
    """Return the index term of a word, or None for a stop word.

    >>> [term(word) for word in ("Shoes", "women's", "the", "USB")]
    ['shoe', 'women', None, 'usb']
    """
    if len(word) >= 2 and word[-1] in "sS" and word[-2] in "'\u2019\uff07":
        word = word[:-2]
    word = word.replace("İ", "i")  # of which Python makes two characters
    # alone, so that no letter sees another
    word = word.lower() if word.isascii() else "".join(map(str.lower, word))
    return None if word in STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """Return a text's index terms in order."""
    return [found for piece in text.split(" ") for found in piece_terms(piece)]


def piece_terms(piece: str) -> tuple[str, ...]:
    """Return the index terms of a piece of text. Texts may be split at spaces, because no word contains one."""
    return _known_terms(piece) if len(piece) <= LONGEST_KNOWN else _terms(piece)


def _terms(piece: str) -> tuple[str, ...]:
    return tuple(found for word in words(piece) if (found := term(word)) is not None)


_known_terms = lru_cache(KNOWN_PIECES)(_terms)
