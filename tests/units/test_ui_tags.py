"""The template tags of every page."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from datetime import UTC, datetime, timedelta
from types import ModuleType
from xml.etree import ElementTree

import pytest
import time_machine
from django import forms
from django.conf import settings
from django.template import Context, Engine, Template

from umpteenth.core.templatetags import ui

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def _render(source: str, **context: object) -> str:
    return Template(source).render(Context(context))


def _vendor_script() -> ModuleType:
    path = str(settings.BASE_DIR / ".ci" / "vendor")
    loader = importlib.machinery.SourceFileLoader("vendor_script", path)
    spec = importlib.util.spec_from_loader("vendor_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_an_icon_refers_to_the_sprite_and_is_silent() -> None:
    html = _render('{% icon "x" %}')
    assert 'aria-hidden="true"' in html
    assert "icons.svg?" in html
    assert '#x"' in html


def test_an_unknown_icon_is_a_fault() -> None:
    with pytest.raises(ui.UnknownIcon, match="no-such-icon"):
        _render('{% icon "no-such-icon" %}')


def test_the_sprite_holds_exactly_the_icons_in_use() -> None:
    """Where this fails, run `make vendor`."""
    sprite = ElementTree.parse(settings.BASE_DIR / "static" / "icons.svg").getroot()
    held = {symbol.get("id") for symbol in sprite}
    assert held == _vendor_script().icons_in_use()


@pytest.mark.parametrize("value", sorted(ui.STATES))
def test_each_state_has_a_word_a_shape_and_a_colour(value: str) -> None:
    html = _render("{% status_badge value %}", value=value)
    look = ui.STATES[value]
    assert look.label in html
    assert f"#{look.icon}" in html
    assert f"state-{look.tone}" in html


def test_a_state_takes_other_words() -> None:
    html = _render('{% status_badge "failed" "Connection failed" %}')
    assert "Connection failed" in html
    assert ">Failed<" not in html


def test_an_unlisted_state_shows_its_own_words_escaped() -> None:
    html = _render("{% status_badge value %}", value="half_done<b>")
    assert "Half done&lt;b&gt;" in html
    assert "state-quiet" in html


def test_a_state_as_a_shape_still_has_its_word() -> None:
    html = _render('{% status_icon "succeeded" %}')
    assert '<span class="visually-hidden">Succeeded</span>' in html
    assert 'title="Succeeded"' in html


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (44, "just now"),
        (45, "1 min ago"),
        (150, "2 min ago"),
        (3569, "59 min ago"),
        (3590, "1 h ago"),
        (5 * 3600, "5 h ago"),
        (86_399, "1 day ago"),
        (3 * 86_400, "3 days ago"),
        (40 * 86_400, "2026-01-20"),
        (-10, "in a moment"),
        (-600, "in 10 min"),
        (-2 * 86_400, "in 2 days"),
    ],
)
def test_ago_is_relative_with_the_exact_time_on_hover(seconds: int, words: str) -> None:
    with time_machine.travel(NOW, tick=False):
        html = _render("{{ at|ago }}", at=NOW - timedelta(seconds=seconds))
    assert f">{words}</time>" in html
    exact = NOW - timedelta(seconds=seconds)
    assert f'title="{exact:%Y-%m-%d %H:%M:%S} UTC"' in html
    assert f'datetime="{exact:%Y-%m-%dT%H:%M:%S}Z"' in html


def test_no_time_is_nothing() -> None:
    assert _render("{{ at|ago }}{{ at|exact_time }}", at=None) == ""


def test_exact_time_is_utc_until_the_script_makes_it_local() -> None:
    assert ">2026-03-01 12:00:00 UTC</time>" in _render("{{ at|exact_time }}", at=NOW)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.6404, "640 ms"),
        (0.9999, "1.0 s"),
        (1.24, "1.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (184, "3 min 4 s"),
        (7500, "2 h 5 min"),
        (7200, "2 h"),
        (3 * 86_400 + 4 * 3600, "3 d 4 h"),
        (-5, "0 ms"),
    ],
)
def test_durations_read_like_words(seconds: float, words: str) -> None:
    assert _render("{{ value|duration_s }}", value=seconds) == words
    assert _render("{{ value|duration_ms }}", value=seconds * 1000) == words
    assert _render("{{ value|duration_ms }}", value=timedelta(seconds=seconds)) == words


@pytest.mark.parametrize("value", [None, "", "soon", float("nan"), float("inf"), 10**400])
def test_no_number_is_nothing(value: object) -> None:
    source = "{{ value|duration_s }}{{ value|duration_ms }}{{ value|filesize }}"
    assert _render(source, value=value) == ""


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (12_345, "12 KB"),
        (10 * 1024**2, "10 MB"),
        (3_565_158, "3.4 MB"),
        (5 * 1024**4, "5.0 TB"),
        (9999 * 1024**4, "9999 TB"),
    ],
)
def test_sizes_read_like_words(size: int, words: str) -> None:
    assert _render("{{ value|filesize }}", value=size) == words


def test_a_long_address_is_cut_in_the_middle_with_the_whole_on_hover() -> None:
    text = "https://example.org/" + "a" * 100 + "/mcp?<end>"
    html = _render("{{ value|middle:30 }}", value=text)
    assert 'title="https://example.org/aaa' in html
    assert "…" in html
    assert "&lt;end&gt;</span>" in html
    shown = html.partition(">")[2].partition("</span>")[0].replace("&lt;", "<").replace("&gt;", ">")
    assert len(shown) == 30


def test_a_short_text_is_only_escaped() -> None:
    assert _render("{{ value|middle }}", value="<b>") == "&lt;b&gt;"


def test_json_is_indented_and_escaped_by_the_template() -> None:
    html = _render("{{ value|json_pretty }}", value={"a": ["<é>"]})
    assert html == "{\n  &quot;a&quot;: [\n    &quot;&lt;é&gt;&quot;\n  ]\n}"
    assert json.loads(ui.json_pretty({"at": NOW}))["at"].startswith("2026-03-01")


class _Form(forms.Form):
    name = forms.CharField(help_text="Letters and digits.")
    enabled = forms.BooleanField(required=False, help_text="At once.")
    kind = forms.ChoiceField(choices=[("a", "A")], widget=forms.RadioSelect)
    secret = forms.CharField(widget=forms.HiddenInput, required=False)
    size = forms.ChoiceField(choices=[("s", "S")], required=False)


def test_a_field_ties_label_help_and_error_to_its_control() -> None:
    form = _Form({})
    html = _render("{% field form.name %}", form=form)
    assert 'for="id_name"' in html
    assert 'aria-invalid="true"' in html
    assert 'aria-describedby="id_name-help id_name-error"' in html
    assert 'id="id_name-error"' in html
    assert "This field is required." in html
    clean = _render('{% field form.name placeholder="github" %}', form=_Form())
    assert 'placeholder="github"' in clean
    assert "is-invalid" not in clean
    assert 'aria-describedby="id_name-help"' in clean


def test_each_kind_of_control_gets_its_class() -> None:
    form = _Form()
    assert "form-check-input" in _render("{% field form.enabled %}", form=form)
    assert "form-select" in _render("{% field form.size %}", form=form)
    assert "<fieldset" in _render("{% field form.kind %}", form=form)
    assert "<label" not in _render("{% field form.secret %}", form=form)


def test_the_tags_need_no_load() -> None:
    assert "umpteenth.core.templatetags.ui" in Engine.get_default().builtins
