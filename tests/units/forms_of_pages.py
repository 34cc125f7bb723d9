"""What a browser would send of a form."""

from __future__ import annotations

from html.parser import HTMLParser

Fields = dict[str, list[str]]


class _Reader(HTMLParser):
    """Collects the fields of the form `wanted`; templates and what no script shows do not count."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.fields: Fields = {}
        self._wanted = wanted
        self._inside = False
        self._skipping = 0
        self._textarea = ""
        self._text: list[str] = []
        self._select = ""
        self._options: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in ("template", "noscript"):
            self._skipping += 1
        if tag == "form" and values.get("id") == self._wanted:
            self._inside = True
        if not self._inside or self._skipping:
            return
        name = values.get("name", "")
        if tag == "input" and name:
            self._input(name, values)
        elif tag == "textarea":
            self._textarea, self._text = name, []
        elif tag == "select":
            self._select, self._options = name, []
        elif tag == "option" and self._select:
            self._options.append((values.get("value", ""), "selected" in values))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("template", "noscript"):
            self._skipping -= 1
        elif tag == "form":
            self._inside = False
        elif tag == "textarea" and self._textarea:
            # The first line end after the tag is no part of the value.
            self._add(self._textarea, "".join(self._text).removeprefix("\n"))
            self._textarea = ""
        elif tag == "select" and self._select:
            chosen = [value for value, selected in self._options if selected]
            self._add(self._select, chosen[0] if chosen else self._options[0][0])
            self._select = ""

    def handle_data(self, data: str) -> None:
        if self._textarea:
            self._text.append(data)

    def _input(self, name: str, values: dict[str, str]) -> None:
        kind = values.get("type")
        if kind in ("radio", "checkbox") and "checked" not in values:
            return
        self._add(name, values.get("value", "on" if kind == "checkbox" else ""))

    def _add(self, name: str, value: str) -> None:
        self.fields.setdefault(name, []).append(value)


def fields_of(html: str, form: str) -> Fields:
    """By name, as a request would hold them; hidden fields and defaults included."""
    reader = _Reader(form)
    reader.feed(html)
    return reader.fields
