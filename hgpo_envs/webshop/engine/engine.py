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
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.reward import reward

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

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
_BUY, _BACK, _NEXT, _PREVIOUS = (
    text.lower() for text in (pages.BUY, pages.BACK, pages.NEXT, pages.PREVIOUS)
)
_TURNS: Final = {
    ("search_results", _NEXT): 1,
    ("search_results", _PREVIOUS): -1,
    ("item_page", _PREVIOUS): 0,
}
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
        return _Session(
            *now,
            self.options.copy(),
            self.visited.copy(),
            chance,
            self.purchase,
        )


class _View(NamedTuple):
    """What is seen of a page: the original's observation, the state text, the actions and what can be clicked."""

    observation: str
    text: str
    actions: list[str]
    clickables: Mapping[str, Node]


class _OriginalError(Exception):
    """An error that the original raises, with the same message."""


class WebShopEngine:
    """Plays goals of one shop. Creating an engine is cheap, because products, goals and results belong to the shop.

    Args:
        shop: The catalogue, goals and cached pages.
        observation_mode: `text` or `text_rich`, the original's two text observations.
        show_attributes: Whether item pages have the tab `Attributes`.
        quirks: Which of the original's quirks to reproduce.
    """

    _view: _View

    def __init__(
        self,
        shop: Shop,
        observation_mode: ObservationMode,
        show_attributes: bool,
        quirks: Quirks,
    ) -> None:
        self.shop: Final = shop
        self.observation_mode: Final = observation_mode
        self.show_attributes: Final = show_attributes
        self.quirks: Final = quirks
        self._current: _Session | None = None
        self._task = ""

    @property
    def _session(self) -> _Session:
        if self._current is None:
            raise RuntimeError("no task has been started: call start first")
        return self._current

    @property
    def goal(self) -> Goal:
        """The current goal."""
        return self._session.goal

    def start(self, task_id: str | int) -> State:
        """Start a task at the search page.

        Args:
            task_id: The goal's index in the shuffled order, as text or integer.

        Raises:
            KeyError: If there is no such goal.
        """
        goal = self.shop.goal(task_id)
        page = pages.index_page(goal.instruction)
        self._current = session = _Session(goal, f"{_ADDRESS}/{goal.index}", page)
        self._task = pages.task_part(pages.text_observation(page.nodes))
        self._view = self._look(session)
        return self._state(session, valid=True)

    def act(self, command: str) -> State:
        """Execute `search[words]` or `click[name]` with a listed name. Any other command changes nothing."""
        session = self._session
        if session.purchase and self.quirks.after_done == "freeze":
            return replace(self._state(session, valid=False), terminated=True)
        # An error of the original leaves the page, but may have changed the session.
        name, argument = pages.parse_action(command)
        before = session.page
        error = None
        bought = False
        try:
            if name == "search" and argument:
                self._search(
                    session,
                    tuple(argument.split(" ")),
                    1,
                )
            elif (
                name == "click"
                and argument in self._view.clickables
                and argument != "search"
            ):
                bought = self._click(session, argument)
            else:
                return self._state(session, valid=False)
        except _OriginalError as raised:
            error = str(raised)
        if session.page is not before:
            self._view = self._look(session)
        return self._state(
            session,
            valid=error is None,
            bought=bought,
            error=error,
        )

    def fork(self) -> WebShopEngine:
        """Return an independent engine in the same state of the same task. Takes 1 to 2 microseconds."""
        other = WebShopEngine(
            self.shop,
            self.observation_mode,
            self.show_attributes,
            self.quirks,
        )
        if self._current is not None:
            other._current = self._current.fork()
            other._view = self._view
            other._task = self._task
        return other

    def key(self) -> Hashable:
        """Return the page, and everything in the session that a later page or score can depend on.

        The order of chosen options counts, because addresses contain it. Visited products count only in `text_rich`
        observations, which mark them.
        """
        session = self._session
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
            (self._view.text, tuple(sorted(session.visited))) if rich else None,
        )

    # Actions

    def _search(
        self, session: _Session, keywords: tuple[str, ...], number: int
    ) -> None:
        session.keywords = keywords
        session.number = number
        session.asin = None
        session.options = {}
        selection = self._select(session, keywords)
        size = pages.PAGE_SIZE
        product = self.shop.catalogue.product
        products = [
            product(int(row)) for row in selection[(number - 1) * size : number * size]
        ]
        session.url = f"{_ADDRESS}/search_results/{session.goal.index}/{'+'.join(keywords)}/{number}"
        session.page = pages.results_page(
            session.goal.instruction,
            number,
            len(selection),
            products,
        )

    def rank(self, product: int, query: str) -> int | None:
        """Return the position of a product in the results of `search[query]`, from 0, or None. For experts.

        The query must be one for which the original raises no error.
        """
        rows = np.flatnonzero(
            np.asarray(self._select(self._session, tuple(query.split(" ")))) == product
        )
        return int(rows[0]) if len(rows) else None

    def _select(self, session: _Session, keywords: tuple[str, ...]) -> Selection:
        """Return the products that keywords find."""
        magic = keywords[0] if self.quirks.magic_queries else ""
        if magic == "<r>":
            session.chance = session.chance or random.Random(RANDOM_QUERY_SEED)
            try:
                return tuple(session.chance.sample(range(len(self.shop.catalogue)), 50))
            except ValueError as error:
                raise _OriginalError(f"ValueError: {error}") from None
        if magic == "<a>":
            raise _OriginalError("TypeError: 'NoneType' object is not subscriptable")
        if magic == "<c>":
            if len(keywords) == 1:
                raise _OriginalError("IndexError: list index out of range")
            return self.shop.products_where("category", keywords[1].strip())
        if magic == "<q>":
            return self.shop.products_where("query", " ".join(keywords[1:]).strip())
        return self.shop.catalogue.search(" ".join(keywords))

    def _click(self, session: _Session, name: str) -> bool:
        """Execute a click and return whether it was a purchase."""
        turn = None
        if name in (_NEXT, _PREVIOUS):
            # the kind of page as the original determines it: the first name that occurs anywhere in the address
            turn = _TURNS.get(
                (next((kind for kind in _PAGE_NAMES if kind in session.url), ""), name)
            )
        if name == _BUY:
            self._buy(session)
            return True
        if name == _BACK:
            session.keywords = ()
            session.asin = None
            session.options = {}
            session.visited = set()
            session.url = f"{_ADDRESS}/{session.goal.index}"
            session.page = pages.index_page(session.goal.instruction)
        elif turn is not None:
            self._search(session, session.keywords, session.number + turn)
        elif name in _TABS:
            product = self._product(session)
            tab = _TABS[name]
            session.url = f"{self._item_address(session, 'item_sub_page')}/{tab}/{session.options}"
            session.page = pages.sub_page(
                session.goal.instruction,
                product,
                tab,
            )
        else:
            self._open_item(session, name)
        return False

    def _open_item(self, session: _Session, name: str) -> None:
        """Open the item's page after a click on a product, on an option's value, or on the way back from a tab."""
        node = self._view.clickables[name]
        if node.kind == "product":
            session.asin = name.upper()
            session.visited.add(session.asin)
        elif node.kind == "option":
            session.options[node.option.lower()] = name
        product = self._product(session)
        session.url = (
            f"{self._item_address(session, 'item_page')}/{json.dumps(session.options)}"
        )
        body = self.shop.item_nodes(product.index, self.show_attributes)
        session.page = pages.item_page(session.goal.instruction, body)

    def _buy(self, session: _Session) -> None:
        product = self._product(session)
        price = self.shop.price(product.index)
        session.purchase = reward(
            product,
            session.goal,
            price,
            session.options,
            self.quirks.option_colours,
        )
        session.url = (
            f"{_ADDRESS}/done/{session.goal.index}/{product.asin}/{session.options}"
        )
        session.page = pages.done_page(
            product.asin,
            session.options,
            session.purchase.score,
        )

    def _product(self, session: _Session) -> Product:
        """Return the current product."""
        catalogue = self.shop.catalogue
        try:
            return catalogue.product(catalogue.index_of(session.asin or ""))
        except KeyError:
            raise _OriginalError(f"KeyError: {session.asin!r}") from None

    def _item_address(self, session: _Session, kind: str) -> str:
        return f"{_ADDRESS}/{kind}/{session.goal.index}/{session.asin}/{'+'.join(session.keywords)}/{session.number}"

    # Observations

    def _look(self, session: _Session) -> _View:
        page = session.page
        clickables = pages.clickables(page)
        if self.observation_mode == "text":
            observation = pages.text_observation(page.nodes)
            text = pages.state_text(observation, self._task)
        else:
            observation = pages.text_rich_observation(
                page.nodes,
                session.url,
                session.visited,
            )
            text = pages.rich_state_text(observation, session.goal.instruction)
        return _View(
            observation,
            text,
            pages.action_list(page.search_bar, clickables),
            clickables,
        )

    def _state(
        self,
        session: _Session,
        *,
        valid: bool,
        bought: bool = False,
        error: str | None = None,
    ) -> State:
        view = self._view
        page = session.page
        purchase = session.purchase
        score = purchase.score if purchase else 0.0
        info: dict[str, Any] = {
            "page": view.observation,
            "available_actions": {
                "has_search_bar": page.search_bar,
                "clickables": list(view.clickables),
            },
            "page_type": page.name,
            "url": session.url,
        }
        if bought and purchase:
            info |= purchase.parts()
        if error:
            info["error"] = error
        won = score == 1.0
        gain = 0.0
        if bought:
            gain = score
            if self.quirks.reward_scale == "success":
                gain = _SUCCESS * won
        return State(
            view.text,
            view.actions,
            valid,
            bought,
            won,
            gain,
            score,
            info,
        )
