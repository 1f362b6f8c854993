"""On a phone no view of the viewer is wider than the screen, and no cell is squeezed to a letter a line."""

import pytest
from playwright.sync_api import Browser
from tests.acceptance.test_viewer_access import VIEWS, everything
from tests.support.browsers import needs_browser
from tests.support.viewed_pool import viewed

pytestmark = needs_browser

TALLEST = "Math.max(0, ...[...document.querySelectorAll('td')].map((cell) => cell.getBoundingClientRect().height))"


@pytest.mark.parametrize("name", VIEWS)
def test_it_fits(browser: Browser, name: str) -> None:
    address, drawn = VIEWS[name]
    with viewed(browser, scheme="dark") as pool:
        pool.answers = everything()
        pool.page.set_viewport_size({"width": 390, "height": 844})
        page = pool.open(address)
        for part in drawn.split(", "):
            page.locator(part).first.wait_for(state="attached")
        page.locator("details:not([open]) > summary").evaluate_all("list => list.forEach(one => one.click())")
        pool.look(f"{name}-phone")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate(TALLEST) < 90
