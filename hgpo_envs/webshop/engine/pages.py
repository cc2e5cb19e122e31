"""The shop's pages as lists of nodes, with their observations and clickable names.

A page is built once as nodes in document order. The original's `text` and `text_rich` observations and its available
actions are computed from these nodes. There is no HTML: this module implements the combined result of the original's
templates, parser and visibility filter.

Source: WebShop's `web_agent_site/templates/*.html` and `envs/web_agent_text_env.py` (`convert_html_to_text`,
`get_available_actions`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hgpo_envs.webshop.catalogue.products import Product

SEPARATOR: Final = " [SEP] "
BUY: Final = "Buy Now"
NEXT: Final = "Next >"
PREVIOUS: Final = "< Prev"
BACK: Final = "Back to Search"
SUB_PAGES: Final = ("Description", "Features", "Reviews", "Attributes")
PAGE_SIZE: Final = 10
QUERY_ACTION: Final = "search[<your query>]"

_CLICKED: Final = "You have clicked "
_BLANK: Final = " \t\n\f\r"  # white space for the original's HTML parser

NodeKind = Literal["text", "button", "option", "product"]
PageName = Literal[
    "index",
    "results",
    "item",
    "description",
    "features",
    "reviews",
    "attributes",
    "done",
]


class Node(NamedTuple):
    """One visible text of a page.

    Attributes:
        text: The text in the page, including white space.
        kind: Whether it is plain text, a button, an option's value or a link to a product.
        option: For an option's value, the name of the option.
    """

    text: str
    kind: NodeKind = "text"
    option: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page.

    Attributes:
        name: The kind of page.
        head: The nodes up to the instruction. The last page has none.
        body: The nodes after the instruction.
        search_bar: Whether the page has a search field.
    """

    name: PageName
    head: tuple[Node, ...]
    body: tuple[Node, ...]
    search_bar: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in document order."""
        return self.head + self.body


_BACK_NODE: Final = Node(BACK, "button")
_PREVIOUS_NODE: Final = Node(PREVIOUS, "button")
_NEXT_NODE: Final = Node(NEXT, "button")


def index_page(instruction: str) -> Page:
    """Return the first page, with the instruction and the search bar."""
    head = (Node("WebShop"), Node("Instruction: "), Node(instruction))
    return Page(
        "index",
        head,
        (Node("Search", "button"),),
        search_bar=True,
    )


def _head(instruction: str) -> tuple[Node, ...]:
    return (Node("Instruction:"), Node(instruction))


def results_page(
    instruction: str, number: int, total: int, products: Iterable[Product]
) -> Page:
    """Return a page of search results. Every page has `Next >`, and pages from 2 on have `< Prev`."""
    body = [_BACK_NODE, Node(f"Page {number} (Total results: {total})")]
    if number > 1:
        body.append(_PREVIOUS_NODE)
    body.append(_NEXT_NODE)
    for product in products:
        body += (
            Node(product.asin, "product"),
            Node(product.title),
            Node(product.price_text),
        )
    return Page("results", _head(instruction), tuple(body))


def item_nodes(product: Product, *, show_attributes: bool) -> tuple[Node, ...]:
    """Return the nodes of an item page after the instruction: options, title, price and tabs."""
    body = [_BACK_NODE, _PREVIOUS_NODE]
    for name, values in product.options.items():
        body.append(Node(name))
        body += [Node(value, "option", name) for value in values]
    body += (
        Node(product.title),
        Node(f"Price: {product.price_text}"),
        Node("Rating: N.A."),
    )
    body += [
        Node(tab, "button") for tab in (SUB_PAGES if show_attributes else SUB_PAGES[:3])
    ]
    body.append(Node(BUY, "button"))
    return tuple(body)


def item_page(instruction: str, body: tuple[Node, ...]) -> Page:
    """Return a product's page from the result of `item_nodes`."""
    return Page("item", _head(instruction), body)


def sub_page(instruction: str, product: Product, tab: str) -> Page:
    """Return one of a product's tabs. The tab `Reviews` is always empty, because the data contains no reviews."""
    body = [_BACK_NODE, _PREVIOUS_NODE]
    if tab == "Description":
        body.append(Node(product.description))
    elif tab == "Features":
        body += [Node(f" {bullet}") for bullet in product.bullet_points]
    elif tab == "Attributes":
        body += [Node(f" {attribute}") for attribute in product.attributes]
        body += [
            Node(product.category),
            Node(product.query),
            Node(product.product_category),
        ]
    name: PageName = tab.lower()  # type: ignore[assignment]
    return Page(name, _head(instruction), tuple(body))


def html_safe_json(options: Mapping[str, str]) -> str:
    r"""Return options as JSON as the last page prints it: sorted, ASCII, with HTML's special characters escaped.

    >>> html_safe_json({"size": "5'", "color": "<red>"})
    '{"color": "\\u003cred\\u003e", "size": "5\\u0027"}'
    """
    text = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def done_page(asin: str, options: Mapping[str, str], score: float) -> Page:
    """Return the page after a purchase. It shows no instruction or goal, because the original leaves them unset."""
    texts = (
        *(
            "Thank you for shopping with us!",
            "Your code: ",
            "None",
            " (Paste it in your MTurk interface.)",
        ),
        *(
            "Purchased",
            "asin",
            asin,
            "options",
            html_safe_json(options),
            "attrs",
            "None",
            "category",
            "None",
        ),
        *("query", "None", "product category", "None"),
        *(
            "Target",
            "asin",
            "options",
            "attrs",
            "price upper",
            "instuction text",
            "category",
            "product category",
        ),
        *(
            "query",
            "Goal ",
            "None",
            "Reward",
            "Your score (min 0.0, max 1.0)",
            str(score),
            "Reward Details ",
            "None",
        ),
    )
    return Page(
        "done",
        (),
        tuple(Node(text) for text in texts),
    )


def visible_text(text: str) -> str:
    r"""Return a node's visible text. Blank text becomes one space, or empty if it contains a newline.

    >>> visible_text(" a\n"), visible_text(" \t"), visible_text(" \n")
    (' a\n', ' ', '')
    """
    if text.strip(_BLANK):
        return text
    return " " if text and "\n" not in text else ""


def text_observation(nodes: Iterable[Node]) -> str:
    """Return the `text` observation: all texts, stripped and joined by ` [SEP] `."""
    return SEPARATOR.join(
        [
            text
            for node in nodes
            if (text := node.text.strip()) or visible_text(node.text)
        ]
    )


def text_rich_observation(
    nodes: Iterable[Node], url: str, visited: Collection[str]
) -> str:
    """Return the `text_rich` observation: one text per line, with clickable texts marked and clicked options first.

    An option's value counts as clicked if it occurs in double quotes anywhere in the URL. Values that JSON escapes
    therefore never count, and a quoted word of the query may count.

    Args:
        nodes: The page's nodes.
        url: The page's address.
        visited: The asins opened since the last visit to the search page.
    """
    clicked: list[str] = []
    lines: list[str] = []
    for node in nodes:
        text = visible_text(node.text)
        if not text:
            continue
        if node.kind == "text":
            lines.append(text)
        elif node.kind == "button":
            lines.append(f"[button] {text} [button_]")
        elif node.kind == "product":
            mark = "clicked button" if text in visited else "button"
            lines.append(f"\n[{mark}] {text} [{mark}_]")
        elif f'"{text}"' in url:
            clicked.insert(0, f"{_CLICKED}{text}.")
            lines.append(f"  [clicked button] {text} [clicked button_]")
        else:
            lines.append(f"  [button] {text} [button_]")
    return "".join([f"{line}\n" for line in clicked + lines])


def clickables(page: Page) -> dict[str, Node]:
    """Return the clickable nodes by their names in actions: buttons, then products, then options.

    A name that occurs twice keeps its first position but maps to its last node. An option's value may therefore hide a
    button or the same value of another option.
    """
    found: dict[str, Node] = {}
    for kind in ("button", "product", "option"):
        for node in page.body:
            if node.kind == kind:
                name = node.text if kind == "option" else _collapsed(node.text).lower()
                found[name] = node
    return found


def _collapsed(text: str) -> str:
    """Return a link's text as the HTML parser does: blank text becomes one space or one newline."""
    if text.strip(_BLANK) or not text:
        return text
    return "\n" if "\n" in text else " "


def parse_action(command: str) -> tuple[str, str]:
    """Return a command's name and argument, the argument in lowercase. Without an argument, return the command and ''.

    The name is as long as possible. Text after the last `]` or after a newline is ignored.

    >>> parse_action("click[Buy Now] please"), parse_action("think[a] click[b]"), parse_action("buy")
    (('click', 'buy now'), ('think[a] click', 'b'), ('buy', ''))
    """
    line, _, _ = command.partition("\n")
    end = line.rfind("]")
    # not a regular expression, which would try every pair of brackets
    start = line.rfind("[", 1, max(end - 1, 0))
    if start <= 0:
        return command, ""
    return line[:start], line[start + 1 : end].lower()


def action_list(search_bar: bool, names: Iterable[str]) -> list[str]:
    """Return the available actions in the form for policies (verl-agent's `format_avail_actions`)."""
    actions = [QUERY_ACTION] if search_bar else []
    return actions + [f"click[{name}]" for name in names]


def state_text(text: str, task: str) -> str:
    """Return the state text: the quoted parts after the task, or the unchanged text if it does not contain the task.

    Source: verl-agent's `WebshopEnvironmentManager.format_obs`.

    >>> state_text("Instruction: [SEP] buy socks [SEP] Back to Search [SEP] Page 1", "buy socks")
    "'Back to Search' [SEP] 'Page 1'"
    """
    parts = text.split(SEPARATOR)
    if task not in parts:
        return text
    following = parts[parts.index(task) + 1 :]
    return "'" + f"'{SEPARATOR}'".join(following) + "'" if following else ""


def rich_state_text(text: str, task: str) -> str:
    r"""Return the state text of a `text_rich` page: the clicked options and the text after the instruction.

    >>> rich_state_text("You have clicked red.\nInstruction:\nbuy socks\n[button] Buy Now [button_]\n", "buy socks")
    'You have clicked red.\n[button] Buy Now [button_]\n'
    """
    for heading in ("Instruction:\n", "Instruction: \n"):
        before, found, after = text.partition(f"{heading}{visible_text(task)}\n")
        if found:
            return (
                "".join(
                    line
                    for line in before.splitlines(keepends=True)
                    if line.startswith(_CLICKED)
                )
                + after
            )
    return text


def task_part(text: str) -> str:
    """Return the part of a first page that contains the task: the third."""
    parts: Sequence[str] = text.split(SEPARATOR)
    return parts[2] if len(parts) > 2 else ""
