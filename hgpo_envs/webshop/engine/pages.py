"""The shop's pages as lists of nodes, and what can be read and clicked on them.

A page is built once, as nodes in document order; the original's `text` and `text_rich` observations, its available
actions and any other view are read off the same nodes. There is no HTML: what the original's templates, its parser
and its visibility filter make of a page is stated here as rules.

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
_BLANK: Final = " \t\n\f\r"  # what the parser takes for white space
_ALL_ATTRIBUTES_TAB: Final = SUB_PAGES
_NO_ATTRIBUTES_TAB: Final = SUB_PAGES[:3]

NodeKind = Literal["text", "button", "option", "product"]
PageName = Literal["index", "results", "item", "description", "features", "reviews", "attributes", "done"]


class Node(NamedTuple):
    """One visible text of a page.

    Attributes:
        text: The text as it is written in the page, white space included.
        kind: Whether it is plain text, a button, an option's value or a link to a product.
        option: The name of the option that an option's value belongs to.
    """

    text: str
    kind: NodeKind = "text"
    option: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What one page shows.

    Attributes:
        name: Which kind of page it is.
        head: The nodes up to the instruction; none on the last page.
        body: The nodes after the instruction.
        search_bar: Whether there is a field to type a query in.
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
    """The first page: the instruction and the search bar."""
    head = (Node("WebShop"), Node("Instruction: "), Node(instruction))
    return Page("index", head, (Node("Search", "button"),), search_bar=True)


def _head(instruction: str) -> tuple[Node, ...]:
    return (Node("Instruction:"), Node(instruction))


def results_page(instruction: str, number: int, total: int, products: Iterable[Product]) -> Page:
    """A page of search results. `Next >` is always there, `< Prev` from page 2 on."""
    body = [_BACK_NODE, Node(f"Page {number} (Total results: {total})")]
    if number > 1:
        body.append(_PREVIOUS_NODE)
    body.append(_NEXT_NODE)
    for product in products:
        body += (Node(product.asin, "product"), Node(product.title), Node(product.price_text))
    return Page("results", _head(instruction), tuple(body))


def item_nodes(product: Product, *, show_attributes: bool) -> tuple[Node, ...]:
    """What an item page shows after the instruction: options, title, price and tabs."""
    body = [_BACK_NODE, _PREVIOUS_NODE]
    for name, values in product.options.items():
        body.append(Node(name))
        body += [Node(value, "option", name) for value in values]
    body += (Node(product.title), Node(f"Price: {product.price_text}"), Node("Rating: N.A."))
    tabs = _ALL_ATTRIBUTES_TAB if show_attributes else _NO_ATTRIBUTES_TAB
    body += [Node(tab, "button") for tab in tabs]
    body.append(Node(BUY, "button"))
    return tuple(body)


def item_page(instruction: str, body: tuple[Node, ...]) -> Page:
    """A product's page, of the nodes that `item_nodes` made."""
    return Page("item", _head(instruction), body)


def sub_page(instruction: str, product: Product, tab: str) -> Page:
    """One of a product's tabs. There are no reviews in the shop's data: that tab is always empty."""
    body = [_BACK_NODE, _PREVIOUS_NODE]
    if tab == "Description":
        body.append(Node(product.description))
    elif tab == "Features":
        body += [Node(f" {bullet}") for bullet in product.bullet_points]
    elif tab == "Attributes":
        body += [Node(f" {attribute}") for attribute in product.attributes]
        body += [Node(product.category), Node(product.query), Node(product.product_category)]
    name: PageName = tab.lower()  # type: ignore[assignment]
    return Page(name, _head(instruction), tuple(body))


def html_safe_json(options: Mapping[str, str]) -> str:
    r"""JSON as the last page prints it: sorted, ASCII, and without characters that mean something in HTML.

    >>> html_safe_json({"size": "5'", "color": "<red>"})
    '{"color": "\\u003cred\\u003e", "size": "5\\u0027"}'
    """
    text = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def done_page(asin: str, options: Mapping[str, str], score: float) -> Page:
    """The page after a purchase. It names neither instruction nor goal: the original leaves those fields unset."""
    texts = (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", html_safe_json(options), "attrs", "None", "category", "None"),
        *("query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"),
        *("query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None"),
    )
    return Page("done", (), tuple(Node(text) for text in texts))


def visible_text(text: str) -> str:
    r"""What is left of a node's text: blank text becomes one space, or nothing where a newline is in it.

    >>> visible_text(" a\n"), visible_text(" \t"), visible_text(" \n")
    (' a\n', ' ', '')
    """
    if text.strip(_BLANK):
        return text
    return " " if text and "\n" not in text else ""


def text_observation(nodes: Iterable[Node]) -> str:
    """The `text` observation: every text stripped, joined by ` [SEP] `."""
    return SEPARATOR.join([text for node in nodes if (text := node.text.strip()) or visible_text(node.text)])


def text_rich_observation(nodes: Iterable[Node], url: str, visited: Collection[str]) -> str:
    """The `text_rich` observation: one text a line, what can be clicked marked, what was clicked first.

    An option's value counts as clicked when it stands in double quotes anywhere in the URL: a value that JSON escapes
    never does, and a quoted word of the query may.

    Args:
        nodes: The page's nodes.
        url: The page's address.
        visited: The asins opened since the last start at the search page.
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
    """What can be clicked: the buttons, then products, then options, each under the text that an action names it by.

    A text that occurs twice keeps its first place and leads to its last node: an option's value may hide a button,
    or the same value of another option.
    """
    nodes = [node for node in page.body if node.kind != "text"]
    return {
        **{_collapsed(node.text).lower(): node for node in nodes if node.kind == "button"},
        **{_collapsed(node.text).lower(): node for node in nodes if node.kind == "product"},
        **{node.text: node for node in nodes if node.kind == "option"},
    }


def _collapsed(text: str) -> str:
    """A link's text as its element gives it: blank text is one space or one newline."""
    if text.strip(_BLANK) or not text:
        return text
    return "\n" if "\n" in text else " "


def parse_action(command: str) -> tuple[str, str]:
    """A command's name and argument, the argument in lowercase; without an argument, the command and ''.

    The name reaches as far as it can; what follows the last `]` is not looked at; a newline ends the match.

    >>> parse_action("click[Buy Now] please"), parse_action("think[a] click[b]"), parse_action("buy")
    (('click', 'buy now'), ('think[a] click', 'b'), ('buy', ''))
    """
    line, _, _ = command.partition("\n")
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))  # a regular expression would try every pair of brackets
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else (command, "")


def action_list(search_bar: bool, names: Iterable[str]) -> list[str]:
    """The available actions as a policy is shown them (verl-agent's `format_avail_actions`)."""
    actions = [QUERY_ACTION] if search_bar else []
    return actions + [f"click[{name}]" for name in names]


def state_text(text: str, task: str) -> str:
    """The state text: each part after the task's, quoted; the text itself where the task is not in it.

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
    r"""The state text of a `text_rich` page: what was clicked, and what follows the instruction.

    >>> rich_state_text("You have clicked red.\nInstruction:\nbuy socks\n[button] Buy Now [button_]\n", "buy socks")
    'You have clicked red.\n[button] Buy Now [button_]\n'
    """
    for heading in ("Instruction:\n", "Instruction: \n"):
        before, found, after = text.partition(f"{heading}{visible_text(task)}\n")
        if found:
            return "".join(line for line in before.splitlines(keepends=True) if line.startswith(_CLICKED)) + after
    return text


def task_part(text: str) -> str:
    """The part of a first page that names the task: its third."""
    parts: Sequence[str] = text.split(SEPARATOR)
    return parts[2] if len(parts) > 2 else ""
