"""The browser that the tests of pages share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield started
        started.close()
