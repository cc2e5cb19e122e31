"""Porter's stemmer with its author's later changes, as in Lucene.

Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980. The changes in his own program are
`-bli` -> `-ble` and `-logi` -> `-log`, and words of one or two letters are unchanged. Other stemmers named "porter"
differ (some turn `us` into `u`).
"""

from __future__ import annotations

from typing import Final

_STEP_2: Final = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (
        ("bli", "ble"),
        ("alli", "al"),
        ("entli", "ent"),
        ("eli", "e"),
        ("ousli", "ous"),
    ),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP_3: Final = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP_4: Final = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}


def stem(word: str) -> str:
    """Return the stem of a lowercase word.

    >>> [stem(word) for word in ("women", "shoes", "us", "possibly", "apologies", "relational", "hopping", "flies")]
    ['women', 'shoe', 'us', 'possibl', 'apolog', 'relat', 'hop', 'fli']
    """
    if not word.isascii() and max(word) > "\uffff":
        return _joined(stem(_split(word)))
    if len(word) <= 2:
        return word
    word = _plural_and_past(word)
    if word[-1] == "y" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2.get(word[-2:-1], ()))
    word = _replace(word, _STEP_3.get(word[-1], ()))
    word = _strip(word)
    return _final_e_and_l(word)


def _split(word: str) -> str:
    """Return a word's UTF-16 units as characters, because Lucene stems UTF-16 units."""
    return "".join(
        map(chr, memoryview(word.encode("utf-16-le", "surrogatepass")).cast("H"))
    )


def _joined(units: str) -> str:
    return units.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "surrogatepass"
    )


def _shape(word: str) -> str:
    """Return the word's pattern of vowels `v` (a, e, i, o, u, and y after a consonant) and consonants `c`."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Return Porter's measure: how many times a consonant follows a vowel."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _doubled(word: str) -> bool:
    return len(word) >= 2 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short_end(word: str) -> bool:
    """Return whether the word ends in consonant, vowel, consonant, the last not w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _plural_and_past(word: str) -> str:
    """Apply steps 1a and 1b."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word[-1] == "s" and word[-2] != "s":
        word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return _restored(rest) if _has_vowel(rest) else word
    return word


def _restored(rest: str) -> str:
    """Restore the ending of a word after -ed or -ing was removed (the rest of step 1b)."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _doubled(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _short_end(rest) else rest


def _replace(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    """Apply steps 2 and 3: replace the first matching ending if the rest has a measure above 0."""
    for ending, other in endings:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            return rest + other if _measure(rest) > 0 else word
    return word


def _strip(word: str) -> str:
    """Apply step 4: remove the first matching ending if the rest has a measure above 1."""
    for ending in _STEP_4.get(word[-2:-1], ()):
        if word.endswith(ending) and (
            ending != "ion" or word[: -len(ending)].endswith(("s", "t"))
        ):
            rest = word[: -len(ending)]
            return rest if _measure(rest) > 1 else word
    return word


def _final_e_and_l(word: str) -> str:
    """Apply step 5."""
    if word[-1] == "e":
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_end(word[:-1])):
            word = word[:-1]
    if word[-1] == "l" and _doubled(word) and _measure(word) > 1:
        word = word[:-1]
    return word
