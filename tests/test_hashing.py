"""State hashes and chains against scalar arithmetic from their definition, and against published test vectors."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs import hashing

WORD = 2**64
INT64 = st.integers(-(2**63), 2**63 - 1)


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def link(a, b):
    value = mix((a + 0x9E3779B97F4A7C15) % WORD) ^ (b % WORD)
    return value - WORD if value >= 2**63 else value


def test_mix_is_splitmix64():
    # the first outputs of splitmix64 seeded with 0, as published with the generator
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix(n * 0x9E3779B97F4A7C15 % WORD) for n in (1, 2, 3)] == outputs


@given(INT64, INT64)
def test_link_is_its_definition(a, b):
    found = hashing.link(np.array([a]), np.array([b]))
    assert found.tolist() == [link(a, b)]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=7
        ),
        max_size=5,
    ),
    st.integers(0, 4),
)
def test_chains_equal_exactly_where_windows_equal(trajectories, depth):
    states = np.array([s for t in trajectories for s, _ in t], dtype=np.int64)
    actions = np.array([a for t in trajectories for _, a in t], dtype=np.int64)
    first = np.array([i == 0 for t in trajectories for i in range(len(t))], dtype=bool)
    for with_actions in (False, True):
        values, defined = hashing.chain_columns(
            states, first, depth, actions if with_actions else None
        )
        for k in range(depth + 1):
            windows = []
            for trajectory in trajectories:
                for t in range(len(trajectory)):
                    window = trajectory[t - k : t + 1] if t >= k else None
                    if window and with_actions:
                        window = [*window[:-1], (window[-1][0], None)]
                    elif window:
                        window = [s for s, _ in window]
                    windows.append(window)
            assert [w is not None for w in windows] == defined[k].tolist()
            known = [
                (str(w), v)
                for w, v, d in zip(windows, values[k], defined[k], strict=True)
                if d
            ]
            assert (
                len(set(known))
                == len({w for w, _ in known})
                == len({v for _, v in known})
            )


@given(
    st.lists(st.lists(INT64, min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_chains_of_steps_rows_and_columns_are_their_definition(episodes, depth):
    chain = hashing.Chain(depth)
    for states in episodes:
        expected: list[int] = []
        values, defined = hashing.chain_columns(
            np.array(states), np.arange(len(states)) == 0, depth
        )
        for t, state in enumerate(states):
            hashed = np.array([state])
            rows = hashing.advance(rows, hashed) if t else hashing.start(hashed, depth)  # noqa: F821 (of the step before)
            row = chain.advance(state) if t else chain.start(state)
            expected = [link(before, state) for before in (0, *expected)][: depth + 1]
            assert row.tolist() == expected + [hashing.UNDEFINED] * (
                depth + 1 - len(expected)
            )
            assert rows.tolist() == [row.tolist()]
            assert values[defined[:, t], t].tolist() == expected
            assert row.dtype == np.int64
            assert row.flags.c_contiguous
            row[:] = 0  # the caller may overwrite the returned array


def test_texts_hash_once_and_lone_surrogates_do_not_raise():
    texts = ["", "a", "\ud800", "a", "\x00", "日本"]
    assert hashing.text_hashes(texts).tolist() == [hashing.text_hash(t) for t in texts]
    assert hashing.text_hash("") == 0x2D06800538D394C2
