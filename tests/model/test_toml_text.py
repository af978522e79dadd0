"""Texts that are not TOML, and msgspec's complaints in words of a file's writer."""

from __future__ import annotations

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.toml_text import allowed_by, parsed_toml


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = 1\nb = ]\n", r"f.toml:2: text must be TOML: Invalid value"),
        ("a = 1\nb = [1,\n", r"f.toml:2: text must be TOML: Invalid value \(at end of document\)"),
        ("a = 1\nb = " + "9" * 5_000, r"f.toml:2: text must be TOML: a number has thousands of digits"),
        ("a = 1\nb = " + "[" * 5_000, r"f.toml: text must be TOML: lists or tables are nested too deeply"),
        ("a = 1979-02-31", r"f.toml:1: text must be TOML: Invalid date"),
    ],
)
def test_text_that_is_not_toml_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parsed_toml(text, "f.toml")


@pytest.mark.parametrize(
    ("complaint", "allowed"),
    [
        ("Expected `int`, got `str`", "a whole number"),
        ("Expected `array`, got `int`", "a list"),
        ("Expected `float | object`, got `bool`", "a number or a table"),
    ],
)
def test_allowed_values_are_named_in_words_of_toml(complaint: str, allowed: str) -> None:
    assert allowed_by(complaint) == allowed
