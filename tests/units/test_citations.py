"""Every requirement and every kind of fault that the product answers for is cited by a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REQUIREMENTS = """
    U4-U27 U37-U65 U81-U99 P3-P8 P14 P20-P26 P35-P58 P70-P77 A12-A15 A24-A25 A28-A31 A33-A34
    A37-A45 A50 A56 A58
"""
KINDS = """
    B01 B02 B04 B05 B09 B10 B12 B13 B15 B17 B18 B23
    C01 C03 C06 C09 C10 C14 C15 C16 C17 C24
    D01 D02 D04 D05 D08 D11 D13 D14 D15 D17
    E01 E05 E07 E08 E09 E11 E14 E15
    F01 F05 F06 F10 F13 F14 F15
    I01 I02 I05-I08
"""
# Their letter is that of other requirements, so that only the tests of logins count.
LOGIN_KINDS = "A01 A04 A07 A08 A14-A16 A20 A22-A24 A29 A30 A33 A36"
ABOUT_LOGINS = ("oauth", "authorization")
# One id, or a range of them: U4, B04, U39-U43.
_CITED = re.compile(r"\b([A-Z])(\d{1,3})\b(?:-\1(\d{1,3})\b)?")


def ids(text: str) -> Iterator[str]:
    for letter, first, last in _CITED.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number:0{len(first)}d}"


def cited(*about: str) -> set[str]:
    """By the tests alone, or by those `about` something: neither by their fakes nor by the
    servers of others."""
    here = Path(__file__).name
    files = [
        file
        for file in TESTS.rglob("test_*.py")
        if file.name != here
        and file.relative_to(TESTS).parts[0] != "servers"
        and (not about or any(word in file.name for word in about))
    ]
    return {each for file in files for each in ids(file.read_text("utf-8"))}


def test_a_range_stands_for_all_of_its_ids() -> None:
    assert list(ids("U8-U11, B04 and xB05; C240x A1-B2")) == [
        *("U8", "U9", "U10", "U11"),
        *("B04", "A1", "B2"),
    ]


def test_each_requirement_and_each_kind_of_fault_is_cited_by_a_test() -> None:
    wanted = [*ids(REQUIREMENTS), *ids(KINDS)]
    assert len(wanted) == 195
    found = cited()
    assert [each for each in wanted if each not in found] == []


def test_each_kind_of_fault_of_logins_is_cited_by_a_test_about_logins() -> None:
    wanted = list(ids(LOGIN_KINDS))
    assert len(wanted) == 15
    found = cited(*ABOUT_LOGINS)
    assert [each for each in wanted if each not in found] == []
