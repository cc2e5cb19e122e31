"""What tests of the page do in a browser: find a region, evaluate from outside, and see that no text ran as code.

Importing it skips a module of tests where the viewer's server or Playwright is missing.
"""

import json
import re
from typing import Any

import pytest

for required in ("starlette", "uvicorn"):
    pytest.importorskip(required)
expect = pytest.importorskip("playwright.sync_api").expect


def region(within: Any, name: str) -> Any:
    return within.get_by_role("region", name=name)


def sees(page: Any, text: str) -> None:
    expect(page.get_by_text(text)).to_be_visible()


def arrives(page: Any, address: str) -> None:
    """Wait for an address in which a regular expression is found."""
    expect(page).to_have_url(re.compile(address))


def click(within: Any, role: str, name: str, **more: bool) -> None:
    within.get_by_role(role, name=name, **more).click()


def enter(page: Any, label: str, text: str) -> None:
    """Write a text into a field, and press Enter."""
    page.get_by_label(label).fill(text)
    page.get_by_label(label).press("Enter")


def assert_nothing_ran(page: Any) -> None:
    found = run_in(
        page, "JSON.stringify([typeof window.hacked, document.title === 'hacked'])"
    )
    assert json.loads(found) == ["undefined", False]
    assert (
        page.locator(
            "#app :is(img, script, iframe, object, embed, [onclick], [onload], [onerror])"
        ).count()
        == 0
    )
    assert page.locator("#app a[href^='javascript' i]").count() == 0


def run_in(page: Any, expression: str) -> Any:
    """Evaluate an expression from outside: the page's policy allows no `eval`."""
    session = page.context.new_cdp_session(page)
    done = session.send(
        "Runtime.evaluate",
        {"expression": expression, "awaitPromise": True, "returnByValue": True},
    )
    assert "exceptionDetails" not in done, done
    return done["result"]["value"]
