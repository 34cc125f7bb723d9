"""YAML that people write for us, read strictly: no key twice, no aliases, no tags of our own."""

from __future__ import annotations

from typing import Any

import yaml


class YamlError(ValueError):
    """The text cannot be read; one sentence that names it."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: YAML would silently keep the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise YamlError("A key must be a word.")
        if key in seen:
            raise YamlError(f"{str(key)[:100]}: this key stands twice.")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_yaml(text: str, what: str) -> Any:
    """The content of `what`, such as "job file". Raises `YamlError`."""
    if "&" in text and _has_alias(text):
        raise YamlError(f"A {what} has no anchors and aliases (& and *).")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise YamlError(_sentence(error, what)) from None
    except YamlError:
        raise
    except Exception:  # the loader's own for a tag whose value does not fit, such as `!!bool x`
        raise YamlError(f"The {what} is not YAML that can be read.") from None


def _has_alias(text: str) -> bool:
    """Aliases can blow a small file up to gigabytes; nobody has a use for them here."""
    try:
        return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    except yaml.YAMLError:
        return False


def _sentence(error: yaml.YAMLError, what: str) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1})" if mark is not None else ""
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"The {what} is not YAML{where}: {problem}."
