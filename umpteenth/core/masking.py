"""Takes secret values out of text before it is stored or shown (design, section 5).

A value of 6 or more characters becomes `[secret NAME]`, in whatever form text usually carries
it: as it is, JSON-escaped, URL-encoded, HTML-escaped, and in base64 at each of its three
alignments. Of a value of several lines each long line is looked for as well, since logs and
streams carry lines.

How it finds them: each form is known by the short pieces ("grams") at its first few offsets, one
of which must lie on any grid of that stride. So a text is looked at only at every third (short
forms) or ninth (long forms) place, with one dictionary look-up each, however many secrets there
are. Measured on 10 MB of log and 200 secrets: 0.5 s; one regular expression of all forms takes
13 s, and 1.2 s if it is a trie.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from umpteenth.core.text import map_json

# Shorter ones stand in ordinary text too often.
MIN_LENGTH = 6
MIN_LINE_LENGTH = 16
MAX_LINES = 1_000
# What a process remembers for its logs.
MAX_KNOWN_VALUES = 2_000
MAX_KNOWN_CHARACTERS = 8 * 1024 * 1024

_PLACEHOLDER = re.compile(r"\[secret [^\[\]]{1,300}\]")
# What encoders leave as it is differs: everything strict, paths, JavaScript, httpx, requests.
_URL_SAFE = ("", "/", "!'()*", "!$&'()*+,;=:@", "!$&'()*+,;=:@/?", "!#$%&'()*+,/:;=?@[]~")
_HEAD = 4  # characters by which the beginning of a form is recognised
_PIECE = 256 * 1024  # characters masked at a time
_SMALL = 1024  # characters that are searched once more if they hold something
_LARGE_INTEGER = 10**4000  # Python refuses to write longer ones as text


def placeholder(name: str) -> str:
    """What stands in place of the value. Names that would break its shape lose that."""
    return f"[secret {re.sub(r'[^ -Z^-~]', '_', name)[:200] or '_'}]"


def forms_of(value: str) -> set[str]:
    """Every text in which the value is looked for; empty for one that is too short."""
    if len(value) < MIN_LENGTH:
        return set()
    forms = {value, html.escape(value), value.replace("\n", "\r\n")}
    forms |= _json_forms(value) | _url_forms(value) | _base64_forms(value)
    for line in _long_lines(value):
        forms |= {line} | _json_forms(line)
    return forms


def _long_lines(value: str) -> list[str]:
    lines = [line.strip() for line in value.split("\n")[:MAX_LINES]] if "\n" in value else []
    # `-----BEGIN PRIVATE KEY-----` is no secret and stands in many texts.
    return [
        line
        for line in lines
        if len(line) >= MIN_LINE_LENGTH and not (line.startswith("---") and line.endswith("---"))
    ]


def _json_forms(value: str) -> set[str]:
    forms: set[str] = set()
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    ascii_only = json.dumps(value)[1:-1]
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda m: "\\u" + m[0][2:].upper(), ascii_only)
    for form in (plain, ascii_only, upper):
        # Go and PHP escape more than they must.
        html_safe = form.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        forms |= {form, form.replace("/", "\\/"), html_safe}
    # JSON inside a JSON string, as results of tools often are.
    nested = {json.dumps(form, ensure_ascii=False)[1:-1] for form in (plain, ascii_only)}
    return forms | nested | {json.dumps(plain)[1:-1]}


def _url_forms(value: str) -> set[str]:
    forms: set[str] = set()
    data = value.encode("utf-8", "surrogatepass")
    for safe in _URL_SAFE:
        for form in (quote(data, safe=safe), quote_plus(data, safe=safe)):
            lower = re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), form)
            forms |= {form, lower}
    return forms


def _base64_forms(value: str) -> set[str]:
    """The characters that the value alone decides, after 0, 1 or 2 bytes of something else."""
    forms: set[str] = set()
    data = value.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode("ascii")
        first = -(-before * 8 // 6)
        core = encoded[first : (before + len(data)) * 8 // 6]
        forms |= {core, core.replace("+", "-").replace("/", "_")}
    return forms


class _Span(NamedTuple):
    start: int
    end: int
    placeholder: str


class _Grid:
    """The forms of one class of length, found by their grams on a grid."""

    def __init__(self, gram: int, stride: int) -> None:
        self.gram = gram
        self.stride = stride
        self.places: dict[str, tuple[tuple[str, int], ...]] = {}

    def add(self, form: str) -> None:
        for offset in range(self.stride):
            piece = form[offset : offset + self.gram]
            self.places[piece] = (*self.places.get(piece, ()), (form, offset))

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        if not self.places:
            return
        gram, look_up = self.gram, self.places.get
        for at in range(0, len(text) - gram + 1, self.stride):
            found = look_up(text[at : at + gram])
            if found is not None:
                for form, offset in found:
                    if at >= offset and text.startswith(form, at - offset):
                        yield at - offset, form


class _Index:
    """All forms of all values. Only ever grows; readers need no lock."""

    def __init__(self) -> None:
        self.forms: dict[str, str] = {}
        self.placeholders: set[str] = set()
        self.shortest = sys.maxsize
        self.longest = 0
        # gram + stride - 1 is the shortest form that the grid cannot miss.
        self.short = _Grid(gram=4, stride=3)
        self.long = _Grid(gram=8, stride=9)
        self.heads: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, value: str) -> None:
        mark = placeholder(name)
        for form in forms_of(value):
            if form not in self.forms:
                self.forms[form] = mark
                self.shortest = min(self.shortest, len(form))
                (self.long if len(form) >= 16 else self.short).add(form)
                self._add_head(form)
        if mark not in self.placeholders:
            self.placeholders.add(mark)
            self._add_head(mark)

    def _add_head(self, form: str) -> None:
        self.longest = max(self.longest, len(form))
        head = form[:_HEAD]
        self.heads[head] = (*self.heads.get(head, ()), form)
        for length in range(1, _HEAD):
            self.heads.setdefault(form[:length], ())

    def may_be_in(self, text: str) -> bool:
        """False only where nothing is to be replaced: the quick answer for small texts.

        A JSON value from a server may hold millions of them.
        """
        if len(text) < self.shortest:
            return False
        if len(text) > _SMALL:
            return True
        return any(True for grid in (self.short, self.long) for _ in grid.find(text))

    def unfinished(self, text: str) -> int:
        """Where the end of the text may be the beginning of a form; its length if nowhere."""
        size = len(text)
        for at in range(max(0, size - self.longest + 1), size):
            for form in self.heads.get(text[at : at + _HEAD], ()):
                if len(form) > size - at and text.startswith(form[: size - at], at):
                    return at
            if size - at < _HEAD and text[at:] in self.heads:
                return at
        return size

    def protected(self, text: str) -> list[tuple[int, int]]:
        """Placeholders that are there already: masking twice changes nothing."""
        if "[secret " not in text:
            return []
        return [m.span() for m in _PLACEHOLDER.finditer(text) if m[0] in self.placeholders]

    def spans(self, text: str, protected: list[tuple[int, int]]) -> list[_Span]:
        """What to replace, by start; of spans with one start, the longest; none inside another."""
        found = [
            _Span(start, start + len(form), self.forms[form])
            for grid in (self.short, self.long)
            for start, form in grid.find(text)
        ]
        if not found:
            return []
        found = [span for span in found if not _is_protected(span, protected)]
        found.sort(key=lambda span: (span.start, -span.end))
        kept: list[_Span] = []
        for span in found:
            if not kept or span.end > kept[-1].end:
                kept.append(span)
        return kept


def _around(protected: list[tuple[int, int]], place: int) -> tuple[int, int] | None:
    """The last placeholder that begins at the place or before it."""
    at = bisect_right(protected, place, key=lambda span: span[0])
    return protected[at - 1] if at else None


def _is_protected(span: _Span, protected: list[tuple[int, int]]) -> bool:
    """Whether it begins in a placeholder and is not more than that placeholder."""
    around = _around(protected, span.start)
    if around is None or span.start >= around[1]:
        return False
    return span.start > around[0] or span.end < around[1]


class Masker:
    """Replaces known values of 6 or more characters with `[secret NAME]`.

    Spans that overlap are replaced together, by the fewest placeholders that cover them, longest
    first. Values may be added while other threads mask.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._index = _Index()
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self.learn(values or {})

    @property
    def is_empty(self) -> bool:
        return not self._index.forms

    def add(self, name: str, value: str) -> None:
        """Mask this value too. A name may have had another value before; both stay masked."""
        with self._lock:
            if value not in self._names:
                self._names[value] = name
                self._index.add(name, value)

    def learn(self, values: Mapping[str, str]) -> None:
        """Mask all of these too, by what they are called."""
        for name, value in values.items():
            self.add(name, value)

    def mask(self, text: str) -> str:
        index = self._index
        if not index.may_be_in(text):
            return text
        stream = MaskStream(index)
        # In pieces, which bounds the memory for a text that is one value over and over.
        pieces = [stream.feed(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE)]
        return "".join([*pieces, stream.close()])

    def mask_json(self, value: Any) -> Any:
        """A copy with every string, key and number masked; a number that shows becomes text."""
        return map_json(value, self._mask_leaf) if self._index.forms else value

    def _mask_leaf(self, item: Any) -> Any:
        if isinstance(item, str):
            return self.mask(item)
        if isinstance(item, bool) or not isinstance(item, int | float):
            return item
        if isinstance(item, int) and abs(item) >= _LARGE_INTEGER:
            return item
        text = str(item)
        masked = self.mask(text)
        return item if masked == text else masked

    def mask_bytes(self, data: bytes) -> bytes:
        """Like `mask`, for text in UTF-8 that may hold anything else as well."""
        text = data.decode("utf-8", "surrogateescape")
        return self.mask(text).encode("utf-8", "surrogateescape")

    def stream(self) -> MaskStream:
        return MaskStream(self._index)


class MaskStream:
    """Masks text that arrives in pieces; all answers together are what `mask` makes of the whole.

    Held back is only what may be the beginning of a form, so that a line of output that looks
    like none is shown at once.
    """

    def __init__(self, index: _Index) -> None:
        self._index = index
        self._rest = ""
        # How much at the start of `rest` is covered by the placeholder written last.
        self._covered = 0
        self._last = ""

    def feed(self, text: str) -> str:
        return self._step(text, final=False)

    def close(self) -> str:
        return self._step("", final=True)

    def _step(self, text: str, *, final: bool) -> str:
        text = self._rest + text
        protected = self._index.protected(text)
        spans = self._index.spans(text, protected)
        # Whatever begins before the horizon is known for certain.
        horizon = len(text) if final else self._index.unfinished(text)
        out: list[str] = []
        cut = self._write(text, spans, horizon, out)
        held = _around(protected, cut)
        if held is not None and held[0] < cut < held[1]:
            cut = held[0]
        out.append(text[self._covered : cut])
        self._rest, self._covered = text[cut:], max(0, self._covered - cut)
        return "".join(out)

    def _write(self, text: str, spans: list[_Span], horizon: int, out: list[str]) -> int:
        """Put out all that is certain; the answer is where the rest begins."""
        at = 0
        while at < len(spans):
            overlapping = spans[at].start < self._covered
            # Of those that overlap what is covered, the one that reaches furthest is the last.
            while overlapping and at + 1 < len(spans) and spans[at + 1].start < self._covered:
                at += 1
            span = spans[at]
            at += 1
            if span.end > horizon:
                return min(span.start, horizon)
            out.append(text[self._covered : span.start])
            if not (overlapping and span.placeholder == self._last):
                out.append(span.placeholder)
            self._covered, self._last = span.end, span.placeholder
        return horizon


class _KnownValues(Masker):
    """The values that were resolved last, within bounds."""

    def add(self, name: str, value: str) -> None:
        with self._lock:
            if value in self._names:
                # Used again: among the last to be forgotten.
                self._names[value] = self._names.pop(value)
                return
            self._names[value] = name
            self._index.add(name, value)
            if self._is_full():
                self._forget()

    def _is_full(self) -> bool:
        return (
            len(self._names) > MAX_KNOWN_VALUES or sum(map(len, self._names)) > MAX_KNOWN_CHARACTERS
        )

    def _forget(self) -> None:
        """Drop the older half at once: an index cannot shrink, it is built anew."""
        values = list(self._names)
        for value in values[: len(values) // 2]:
            del self._names[value]
        index = _Index()
        for value, name in self._names.items():
            index.add(name, value)
        self._index = index


_known = _KnownValues()


def known_values() -> Masker:
    """What this process resolved so far, up to `MAX_KNOWN_VALUES`; logs are masked with it."""
    return _known
