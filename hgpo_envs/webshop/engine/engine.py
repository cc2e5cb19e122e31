"""The shop's rules: the effects of searches and clicks.

All observable behaviour of the original is reproduced, including its quirks. For example, a search works on every page,
the kind of a page is determined by searching for its name in an address that also contains the query, and an invalid
magic query raises an error that leaves the page unchanged but the session partly changed. `Quirks` has a switch for
each quirk that can harm training.

Source: WebShop's `web_agent_site/envs/web_agent_text_env.py` (`WebAgentTextEnv.step`, `SimServer.receive`).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.reward import reward

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hgpo_envs.webshop.catalogue.products import Product
    from hgpo_envs.webshop.engine.goals import Goal
    from hgpo_envs.webshop.engine.pages import Node, Page
    from hgpo_envs.webshop.engine.reward import OptionColours, Reward
    from hgpo_envs.webshop.engine.shop import Selection, Shop

ObservationMode = Literal["text", "text_rich"]
AfterDone = Literal["continue", "freeze"]
RewardScale = Literal["score", "success"]

_ADDRESS: Final = "http://127.0.0.1:3000"
_PAGE_NAMES: Final = ("search_results", "item_page", "item_sub_page", "done")
_TABS: Final = {tab.lower(): tab for tab in pages.SUB_PAGES}
_SUCCESS: Final = 10.0
RANDOM_QUERY_SEED: Final = 77
"""The seed of `<r>` in each task. The original uses Python's global generator without a seed."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """Switches for the original's quirks that may harm training. The defaults reproduce the original.

    Attributes:
        option_colours: With `original`, the colour word of a chosen value is compared with a synthetic goal's whole
            pair of name and value, so that some correct choices never count. With `both`, both sides are reduced to
            their colour word.
        magic_queries: Whether a query that starts with `<r>`, `<a>`, `<c>` or `<q>` is a command (`<r>` random
            products, `<c>` those of a category, `<q>` those of a query) or an ordinary query.

        after_done: Whether a search on the last page opens a new page (`continue`) or no action has an effect
            (`freeze`).
        reward_scale: `score` for the score itself, or `success` for verl-agent's reward: 10 for a score of 1, else 0.
    """

    option_colours: OptionColours = "original"
    magic_queries: bool = True

    after_done: AfterDone = "continue"
    reward_scale: RewardScale = "score"


@dataclass(slots=True)
class _Session:
    """The state of one shopper."""

    goal: Goal
    url: str
    page: Page
    keywords: tuple[str, ...] = ()
    number: int = 0
    asin: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    chance: random.Random | None = None
    purchase: Reward | None = None

    def fork(self) -> _Session:
        """Return an independent copy."""
        chance = None
        if self.chance is not None:
            chance = random.Random()
            chance.setstate(self.chance.getstate())
        now = self.goal, self.url, self.page, self.keywords, self.number, self.asin
        return _Session(*now, self.options.copy(), self.visited.copy(), chance, self.purchase)


class _OriginalError(Exception):
    """An error that the original raises, with the same message."""


class WebShopEngine:
    """Plays goals of one shop. Creating an engine is cheap, because products, goals and results belong to the shop.

    Args:
        shop: The catalogue, goals and cached pages.
        observation_mode: `text` or `text_rich`, the original's two text observations.
        show_attributes: Whether item pages have the tab `Attributes`.
        quirks: Which of the original's quirks to reproduce. None reproduces all.
    """

    def __init__(
        self,
        shop: Shop,
        observation_mode: ObservationMode = "text",
        show_attributes: bool = False,
        quirks: Quirks | None = None,
    ) -> None:
        self.shop: Final = shop
        self.observation_mode: Final = observation_mode
        self.show_attributes: Final = show_attributes
        self.quirks: Final = quirks or Quirks()
        self._session: _Session | None = None
        self._clickables: dict[str, Node] = {}
        self._view: State | None = None
        self._task = ""

    @property
    def goal(self) -> Goal:
        """The current goal."""
        return self._started().goal

    def start(self, task_id: str | int) -> State:
        """Start a task at the search page.

        Args:
            task_id: The goal's index in the shuffled order, as text or integer.

        Raises:
            KeyError: If there is no such goal.
        """
        goal = self.shop.goal(task_id)
        page = pages.index_page(goal.instruction)
        self._session = _Session(goal, f"{_ADDRESS}/{goal.index}", page)
        self._task = pages.task_part(pages.text_observation(page.nodes))
        self._look()
        return self._state(valid=True)

    def act(self, command: str) -> State:
        """Execute `search[words]` or `click[name]` with a listed name. Any other command changes nothing."""
        session = self._started()
        if session.purchase and self.quirks.after_done == "freeze":
            return replace(self._state(valid=False), terminated=True)
        name, argument = pages.parse_action(command)
        before, error, bought = session.page, None, False
        try:
            if name == "search" and argument:
                self._search(tuple(argument.split(" ")), 1)
            elif name == "click" and argument in self._clickables and argument != "search":
                bought = self._click(argument)
            else:
                return self._state(valid=False)
        except _OriginalError as raised:
            error = str(raised)
        if session.page is not before:
            self._look()
        return self._state(valid=error is None, bought=bought, error=error)

    def fork(self) -> WebShopEngine:
        """Return an independent engine in the same state of the same task. Takes 1 to 2 microseconds."""
        other = WebShopEngine(self.shop, self.observation_mode, self.show_attributes, self.quirks)
        if self._session is not None:
            other._session = self._session.fork()
            other._clickables, other._view, other._task = self._clickables, self._view, self._task
        return other

    def key(self) -> Hashable:
        """Return the page, and everything in the session that a later page or score can depend on.

        The order of chosen options counts, because addresses contain it. Visited products count only in `text_rich`
        observations, which mark them.
        """
        session, view = self._started(), self._view
        assert view
        rich = self.observation_mode == "text_rich"
        return (
            session.url,
            session.page.name,
            session.page.body,
            session.keywords,
            session.number,
            session.asin,
            tuple(session.options.items()),
            session.chance and session.chance.getstate(),
            session.purchase and session.purchase.score,
            (view.text, tuple(sorted(session.visited))) if rich else None,
        )

    # Actions

    def _search(self, keywords: tuple[str, ...], number: int) -> None:
        session = self._started()
        session.keywords, session.number, session.asin, session.options = keywords, number, None, {}
        selection = self._found(keywords)
        size = pages.PAGE_SIZE
        products = [self.shop.product(int(row)) for row in selection[(number - 1) * size : number * size]]
        session.url = f"{_ADDRESS}/search_results/{session.goal.index}/{'+'.join(keywords)}/{number}"
        session.page = pages.results_page(session.goal.instruction, number, len(selection), products)

    def rank(self, product: int, query: str) -> int | None:
        """Return the position of a product in the results of `search[query]`, from 0, or None. For experts.

        The query must be one for which the original raises no error.
        """
        places = np.flatnonzero(np.asarray(self._found(tuple(query.split(" ")))) == product)
        return int(places[0]) if len(places) else None

    def _found(self, keywords: tuple[str, ...]) -> Selection:
        magic = keywords[0] if self.quirks.magic_queries else ""
        if magic == "<r>":
            return self._random_products()
        if magic == "<a>":
            raise _OriginalError("TypeError: 'NoneType' object is not subscriptable")
        if magic == "<c>":
            if len(keywords) == 1:
                raise _OriginalError("IndexError: list index out of range")
            return self.shop.products_where("category", keywords[1].strip())
        if magic == "<q>":
            return self.shop.products_where("query", " ".join(keywords[1:]).strip())
        return self.shop.search(" ".join(keywords))

    def _random_products(self) -> Selection:
        session = self._started()
        session.chance = session.chance or random.Random(RANDOM_QUERY_SEED)
        try:
            return tuple(session.chance.sample(range(len(self.shop.catalogue)), 50))
        except ValueError as error:
            raise _OriginalError(f"ValueError: {error}") from None

    def _click(self, name: str) -> bool:
        """Execute a click and return whether it was a purchase."""
        session = self._started()
        if name == pages.BUY.lower():
            self._buy()
            return True
        if name == pages.BACK.lower():
            self._back_to_search()
        elif name == pages.NEXT.lower() and self._place() == "search_results":
            self._search(session.keywords, session.number + 1)
        elif name == pages.PREVIOUS.lower() and self._place() == "search_results":
            self._search(session.keywords, session.number - 1)
        elif name == pages.PREVIOUS.lower() and self._place() == "item_page":
            self._search(session.keywords, session.number)
        elif name in _TABS:
            self._open_tab(_TABS[name])
        else:
            self._open_item(name)
        return False

    def _place(self) -> str:
        """Return the kind of page as the original determines it: the first name that occurs anywhere in the address."""
        url = self._started().url
        return next((kind for kind in _PAGE_NAMES if kind in url), "")

    def _back_to_search(self) -> None:
        session = self._started()
        session.keywords, session.asin, session.options, session.visited = (), None, {}, set()
        session.url = f"{_ADDRESS}/{session.goal.index}"
        session.page = pages.index_page(session.goal.instruction)

    def _open_item(self, name: str) -> None:
        """Open the item's page after a click on a product, on an option's value, or on the way back from a tab."""
        session = self._started()
        node = self._clickables[name]
        if node.kind == "product":
            session.asin = name.upper()
            session.visited.add(session.asin)
        elif node.kind == "option":
            session.options[node.option.lower()] = name
        product = self._product()
        session.url = f"{self._item_address('item_page')}/{json.dumps(session.options)}"
        body = self.shop.item_nodes(product.index, self.show_attributes)
        session.page = pages.item_page(session.goal.instruction, body)

    def _open_tab(self, tab: str) -> None:
        session = self._started()
        product = self._product()
        session.url = f"{self._item_address('item_sub_page')}/{tab}/{session.options}"
        session.page = pages.sub_page(session.goal.instruction, product, tab)

    def _buy(self) -> None:
        session = self._started()
        product = self._product()
        price = self.shop.price(product.index)
        session.purchase = reward(product, session.goal, price, session.options, self.quirks.option_colours)
        session.url = f"{_ADDRESS}/done/{session.goal.index}/{product.asin}/{session.options}"
        session.page = pages.done_page(product.asin, session.options, session.purchase.score)

    def _product(self) -> Product:
        """Return the current product."""
        asin = self._started().asin
        try:
            return self.shop.product(self.shop.catalogue.index_of(asin or ""))
        except KeyError:
            raise _OriginalError(f"KeyError: {asin!r}") from None

    def _item_address(self, kind: str) -> str:
        session = self._started()
        return f"{_ADDRESS}/{kind}/{session.goal.index}/{session.asin}/{'+'.join(session.keywords)}/{session.number}"

    # Observations

    def _look(self) -> None:
        """Compute the observation and the available actions of the current page."""
        session = self._started()
        page = session.page
        self._clickables = pages.clickables(page)
        if self.observation_mode == "text":
            text = pages.text_observation(page.nodes)
            state = pages.state_text(text, self._task)
        else:
            text = pages.text_rich_observation(page.nodes, session.url, session.visited)
            state = pages.rich_state_text(text, session.goal.instruction)
        names = list(self._clickables)
        info = {
            "page": text,
            "available_actions": {"has_search_bar": page.search_bar, "clickables": names},
            "page_type": page.name,
            "url": session.url,
        }
        actions = pages.action_list(page.search_bar, names)
        self._view = State(state, actions, valid=True, terminated=False, won=False, reward=0.0, score=0.0, info=info)

    def _state(self, *, valid: bool, bought: bool = False, error: str | None = None) -> State:
        session, view = self._started(), self._view
        assert view
        score = session.purchase.score if session.purchase else 0.0
        info: dict[str, Any] = dict(view.info)
        if bought and session.purchase:
            info |= session.purchase.parts()
        if error:
            info["error"] = error
        won = score == 1.0
        gain = 0.0 if not bought else (_SUCCESS if won else 0.0) if self.quirks.reward_scale == "success" else score
        return State(view.text, view.actions, valid, bought, won, gain, score, info)

    def _started(self) -> _Session:
        if self._session is None:
            raise RuntimeError("no task has been started: call start first")
        return self._session
