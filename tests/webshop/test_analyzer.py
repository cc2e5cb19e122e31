"""Tokens and stems: published examples and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.webshop.search import analyzer
from hgpo_envs.webshop.search.porter import stem


# each as Lucene 8.11's own analyser has it
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The quick ("brown") fox can\'t jump 32.3 feet, right?', "The quick brown fox can't jump 32.3 feet right"),
        ("u.s.a. wi-fi e.g. a_b __ 3,5 1;2 a:b a,b 1.a o'neil's", "u.s.a wi fi e.g a_b 3,5 1;2 a:b a b 1 a o'neil's"),
        ("½ cup ﬁne größe naïve Ελληνικά", "cup ﬁne größe naïve Ελληνικά"),
        ("日本製 ひらがな カタカナ 한국어 ภาษาไทย", "日 本 製 ひ ら が な カタカナ 한국어 ภาษาไทย"),
        ("tm™ © 2 1️⃣ #️⃣ 👨‍👩‍👧 👍🏽x 🇺🇸🇬🇧", "tm ™ © 2 1️⃣ #️⃣ 👨‍👩‍👧 👍🏽 x 🇺🇸 🇬🇧"),
        ("צה\"ל א' שלום", "צה\"ל א' שלום"),
        ("soft\u00adhyphen e\u0301cole", "soft\u00adhyphen e\u0301cole"),
    ],
)
def test_words(text, expected):
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

    changed = {"possibly": "possibl", "archaeology": "archaeolog", "us": "us", "y": "y", "": ""}  # in his own program
    changed |= {"\U0001039bs": "\U0001039b", "i\U0001bc67e": "i\U0001bc67"}  # two UTF-16 units, as Lucene counts
    assert {word: stem(word) for word in changed} == changed


def test_terms_drop_stop_words_after_the_possessive():
    assert analyzer.terms("The woman's IT's o'neil’s USB's into 'tis") == ["woman", "o'neil", "usb", "ti"]


@given(st.text(alphabet="ab1_.,:;'\"- Z", max_size=40))
def test_ascii_and_full_grammar_agree(text):
    assert analyzer._ASCII.findall(text) == analyzer._any().findall(text)


@given(st.text(max_size=60))
def test_any_text_can_be_split_at_spaces(text):
    assert analyzer.terms(text) == [term for word in analyzer.words(text) if (term := analyzer.term(word)) is not None]


@given(st.integers(200, 1_000), st.sampled_from(["a", "é", "1"]))
def test_long_words_are_split_at_255(length, unit):
    words = analyzer.words(f"{unit * length} end")
    assert words[-1] == "end"
    assert list(map(len, words[:-1])) == [255] * (length // 255) + [length % 255] * (length % 255 > 0)
    assert list(map(len, analyzer.words("𐐀" * 200))) == [127, 73]  # Deseret letters, two UTF-16 units each
