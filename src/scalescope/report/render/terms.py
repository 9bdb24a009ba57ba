"""Finds the glossary's terms in text, and explains each where it first appears in a chapter of the page."""

import re
from collections.abc import Iterator
from typing import Any

from scalescope.report.glossary import GLOSSARY, GlossaryTerm

_BY_FORM = {form.casefold(): term for term in GLOSSARY for form in term.forms}
# Longer forms first. Parts of options, paths and names such as `--world-size` or `a/launch.py` are not terms.
_FORMS = "|".join(re.escape(form) for form in sorted(_BY_FORM, key=len, reverse=True))
_PATTERN = re.compile(rf"(?<![\w/.=\\-])(?:{_FORMS})(?![\w/=\\-]|\.\w)", re.IGNORECASE)


def terms_in(text: str) -> Iterator[tuple[int, int, GlossaryTerm]]:
    """Where terms begin and end in the text."""
    for match in _PATTERN.finditer(text):
        yield match.start(), match.end(), _BY_FORM[match[0].casefold()]


class TermMarker:
    """Turns text into HTML in which the first occurrence of each term has a tooltip."""

    def __init__(self, markup: Any) -> None:
        self._markup = markup  # markupsafe's, which is loaded only when a page is made
        self._explained: set[str] = set()

    def __call__(self, text: str) -> Any:
        """The text, escaped; a term that was explained before stays plain."""
        new = []
        for start, end, term in terms_in(text):
            if term.name not in self._explained:
                self._explained.add(term.name)
                new.append((start, end, term))
        return self._marked(text, new, '<abbr tabindex="0" title="{}">{}</abbr>')

    def heading(self, text: str) -> Any:
        """The heading of a column: each has its tooltip, which its button shows when it has the focus."""
        return self._marked(text, list(terms_in(text))[:1], '<abbr title="{}">{}</abbr>')

    def _marked(self, text: str, terms: list[tuple[int, int, GlossaryTerm]], tag: str) -> Any:
        parts, last = [], 0
        for start, end, term in terms:
            parts += [self._markup.escape(text[last:start])]
            parts += [self._markup(tag).format(term.meaning, text[start:end])]
            last = end
        return self._markup("").join([*parts, self._markup.escape(text[last:])])
