"""A page in a browser, with the messages and requests it made."""

import os
import shutil
from pathlib import Path
from typing import Any

LAUNCHES = "#trials table"


class Opened:
    """A page, and its messages and requests."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **context})
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def column(self, number: int) -> list[str]:
        """The cells of a column of the launches."""
        cells: list[str] = self.page.locator(f"{LAUNCHES} tbody tr td:nth-child({number})").all_inner_texts()
        return cells

    def colour(self, name: str) -> str:
        return str(self.page.evaluate(f"getComputedStyle(document.body).{name}"))

    def keep(self, name: str, folder: Path) -> None:
        path = folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        if wanted := os.environ.get("SCALESCOPE_ARTEFACTS"):
            Path(wanted).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, wanted)
