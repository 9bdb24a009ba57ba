"""The browser that the tests of pages share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import chromium


class LastingBrowser:
    """Headless Chromium; one that has ended between two pages is started again."""

    def __init__(self, playwright: Any) -> None:
        self._playwright = playwright
        self._browser = self._started()

    def new_context(self, **settings: Any) -> Any:
        from playwright.sync_api import Error

        try:
            return self._browser.new_context(**settings)
        except Error:
            self._browser = self._started()
            return self._browser.new_context(**settings)

    def close(self) -> None:
        self._browser.close()

    def _started(self) -> Any:
        return self._playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[LastingBrowser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = LastingBrowser(playwright)
        yield browser
        browser.close()
