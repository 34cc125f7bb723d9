"""The result of a call as text, for people, scripts and models alike."""

from __future__ import annotations

import json
from typing import Any, Final

from servers.limits import STANDARD, Limits
from servers.mcp.schema_cost import measure
from servers.mcp.schema_words import bytes_in_words
from servers.mcp.types import CallResult
from umpteenth.core.text import MAX_JSON_DEPTH, clean, clean_json

NO_WORDS: Final = "The tool reported an error without a text."
MAX_PARTS: Final = 10_000
MAX_DEPTH: Final = 10_000  # more than any message can have
MAX_VALUES: Final = 1_000_000
MANY_VALUES: Final = 10_000  # which take tens of milliseconds to read


def read_result(result: Any, duration_ms: float, limits: Limits = STANDARD) -> CallResult:
    """Whatever shape the result has, it becomes a `CallResult` (D15). Never raises.

    One over `limits.result_bytes` becomes an error that says so: its content is not kept (A41).
    """
    if not isinstance(result, dict):
        return failed_result("The server's answer is no result.", duration_ms)
    if has_more_values(result, MAX_VALUES):
        return failed_result(_not_kept(f"holds more than {MAX_VALUES:,} values"), duration_ms)
    if _is_too_large(result, limits):
        most = bytes_in_words(limits.result_bytes)
        return failed_result(_not_kept(f"is larger than {most} (max_result_bytes)"), duration_ms)
    warnings: list[str] = []
    content = _parts(result.get("content"), warnings)
    structured = _structured(result.get("structuredContent"), warnings)
    text = render(content, structured)
    failed = result.get("isError") is True
    return CallResult(
        ok=not failed,
        text=text,
        structured=structured,
        content=content,
        error=(text.strip() or NO_WORDS) if failed else "",
        duration_ms=duration_ms,
        warnings=warnings,
    )


def _is_too_large(result: dict[str, Any], limits: Limits) -> bool:
    """In bytes of UTF-8, however the server wrote it."""
    if limits.result_bytes >= limits.message_bytes:
        return False  # no message can hold one
    try:
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return True
    return len(text.encode(errors="replace")) > limits.result_bytes


def has_more_values(result: Any, most: int) -> bool:
    return measure(result, max_depth=MAX_DEPTH, max_nodes=most).nodes > most


def _not_kept(fault: str) -> str:
    return f"The result {fault} and was not kept. The call itself may have happened."


def failed_result(message: str, duration_ms: float) -> CallResult:
    """The call got an error of the protocol instead of a result."""
    return CallResult(ok=False, text="", error=message, duration_ms=duration_ms)


def render(content: list[dict[str, Any]], structured: Any) -> str:
    """Parts joined by line ends; structured content only where no part gives a text."""
    text = "\n".join(render_part(part) for part in content)
    if not text.strip() and structured is not None:
        return _json(structured)
    return text


def render_part(part: dict[str, Any]) -> str:
    """Text as it is, everything else as a placeholder that names what it is."""
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image", "audio"):
        return f"[{kind}: {_mime(part)}, {_byte_count(part.get('data'))} bytes]"
    if kind == "resource_link":
        return f"[resource link: {_word(part.get('uri'))}]"
    if kind == "resource" and isinstance(part.get("resource"), dict):
        return _render_resource(part["resource"])
    return f"[{_word(kind)}] {_json(part)}"


def _render_resource(resource: dict[str, Any]) -> str:
    text = resource.get("text")
    if isinstance(text, str):
        return text
    place = _word(resource.get("uri"))
    if isinstance(resource.get("blob"), str):
        return f"[resource: {place}, {_mime(resource)}, {_byte_count(resource['blob'])} bytes]"
    return f"[resource: {place}]"


def _parts(value: Any, warnings: list[str]) -> list[dict[str, Any]]:
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_PARTS:
        warnings.append(f"The result has {len(items)} parts; the first {MAX_PARTS} are kept.")
    return [
        clean_json(item if isinstance(item, dict) else {"type": "unknown", "value": item})
        for item in items[:MAX_PARTS]
    ]


def _structured(value: Any, warnings: list[str]) -> Any:
    if measure(value, max_depth=MAX_JSON_DEPTH, max_nodes=MAX_VALUES).depth > MAX_JSON_DEPTH:
        warnings.append(
            f"The structured content is nested deeper than {MAX_JSON_DEPTH} levels; "
            "what lies deeper is left out."
        )
    return clean_json(value)


def _mime(part: dict[str, Any]) -> str:
    return _word(part.get("mimeType"), "unknown type")


def _word(value: Any, default: str = "unknown") -> str:
    return clean(value, 2000) if isinstance(value, str) and value else default


def _byte_count(data: Any) -> int:
    """What base64 text decodes to, without decoding it; the text may be wrong anyway."""
    if not isinstance(data, str):
        return 0
    return len(data.rstrip("=")) * 3 // 4


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
