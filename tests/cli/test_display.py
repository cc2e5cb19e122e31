"""Tables on narrow terminals."""

import io

import pytest
from rich.console import Console

from hgpo_train.cli.display import print_table


@pytest.mark.parametrize("width", [40, 60, 200])
def test_every_cell_is_shown_with_the_label_of_its_row(width):
    names = [f"a number {place}" for place in range(8)]
    kinds = ["look_at_obj_in_light", "pick"]
    numbers = [[f"{row}{place}.000" for place in range(8)] for row in range(2)]
    output = io.StringIO()
    rows = [[kind, *row] for kind, row in zip(kinds, numbers, strict=True)]
    print_table(["task type", *names], rows, console=Console(file=output, width=width))
    lines = [line.split() for line in output.getvalue().splitlines()]
    for kind, row in zip(kinds, numbers, strict=True):
        assert [cell for line in lines if line[0] == kind for cell in line[1:]] == row
    assert max(map(len, output.getvalue().splitlines())) <= width


def test_long_labels_are_broken_between_words():
    output = io.StringIO()
    name = "pick_clean_then_place_in_recep"
    print_table(
        ["task type", "tasks"], [[name, "2"]], console=Console(file=output, width=34)
    )
    assert [line.split() for line in output.getvalue().splitlines()][-2:] == [
        ["pick_clean_then_place_in_", "2"],
        ["recep"],
    ]


def test_a_title_is_not_broken_at_the_width_of_a_narrow_table():
    output = io.StringIO()
    title = "States with most pairs of steps at the same state"
    console = Console(file=output, width=80)
    print_table(["k", "n"], [["0", "1"]], title=title, console=console)
    assert output.getvalue().splitlines()[:2] == ["", title]
