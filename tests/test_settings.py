"""`name=value` texts: values written as JSON or TOML are read back; an annotation as text makes any value text."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_train.policies.registry import find_policy
from hgpo_train.settings import read_assignments, read_value
from hgpo_train.training.config import load_config

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(LITERALS)
def test_json_is_read_back(value):
    assert read_value(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("0.5", object, 0.5),
        ("1_000", object, 1000),
        ("inf", float, math.inf),
        (".5", float, 0.5),
        (".5", object, ".5"),
        ("True", object, True),
        ("false", object, False),
        ("{ top_k = 20 }", object, {"top_k": 20}),
        ('{"top_k": 20}', object, {"top_k": 20}),
        ("'a b'", object, "a b"),
        ("./tiny", object, "./tiny"),
        ("2026-01-01", object, "2026-01-01"),
        ("1\nother = 2", object, "1\nother = 2"),
        ("9" * 5000, object, "9" * 5000),
        ("[" * 3000, object, "[" * 3000),
        ("7", str, "7"),
        ("true", str | None, "true"),
        ("null", str, "null"),
        ("null", str | None, None),
        ('"7"', str, "7"),
    ],
)
def test_values(text, annotation, value):
    assert read_value(text, annotation) == value
    assert type(read_value(text, annotation)) is type(value)


@pytest.mark.parametrize("text", ["nonsense", "=3", " =3", ""])
def test_anything_else_is_one_line(text):
    with refused(r"^--x: expected name=value, received "):
        read_assignments("--x", [text], {})


def test_a_value_may_contain_equals_signs_and_surrounding_spaces():
    assert read_assignments("--x", ["a = x=y", "b=1", "b=2"], {}) == {
        "a": "x=y",
        "b": 2,
    }


def test_annotations_of_the_configuration_decide():
    assert (
        load_config(
            None, ["name=7", "tracking.wandb=2026", "environment.split=true"]
        ).name
        == "7"
    )
    assert load_config(
        None, ["environment.options.price_seed=7"]
    ).environment.options == {"price_seed": 7}
    assert load_config(None, ["tracking.wandb=none"]).tracking.wandb is None


@pytest.mark.parametrize(
    "policy", ["openai:tiny", "transformers:tiny", "vllm:tiny", "random"]
)
def test_annotations_of_a_policys_options_decide(policy):
    given = read_assignments(
        "--policy-option",
        ["api_key_env=1", "device=0", "top_p=1"],
        find_policy(policy)[0].option_types,
    )
    texts = {"openai:tiny": {"api_key_env"}, "transformers:tiny": {"device"}}.get(
        policy, set()
    )
    assert {name for name, value in given.items() if isinstance(value, str)} == texts
    assert given["top_p"] == 1


def test_options_of_an_unknown_policy_are_refused_by_its_name():
    with refused("unknown policy 'no_such_policy'"):
        find_policy("no_such_policy:x")[0]
