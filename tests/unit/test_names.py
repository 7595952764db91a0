"""Names on the command line: quotes, dots, capitals and any other character."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.db.names import display_name, parse_column_names, parse_table_name
from trueup.errors import ConfigError

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize(
    ("text", "schema", "table"),
    [
        ("customers", "public", "customers"),
        ("shop.orders", "shop", "orders"),
        (" shop . orders ", "shop", "orders"),
        ('"My Schema"."My.Table"', "My Schema", "My.Table"),
        ('shop."say ""hi"""', "shop", 'say "hi"'),
        ('"täble"', "public", "täble"),
        ("täble", "public", "täble"),
        ('"a;b"', "public", "a;b"),
        ('"100%"', "public", "100%"),
    ],
)
def test_table_names(text: str, schema: str, table: str) -> None:
    found = parse_table_name(text)
    assert tuple(part.text for part in found) == (schema, table)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        (".t", "empty"),
        ("s.", "empty"),
        ("s..t", "empty"),
        ("a.b.c", "more than two parts"),
        ('"a', "not closed"),
        ('a"b"', "misplaced"),
        ('"a"b', "misplaced"),
        ('""', "misplaced"),
        ('"a"".b', "not closed"),
    ],
)
def test_invalid_table_names(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_table_name(text)
    assert caught.value.cure


def test_an_unquoted_name_is_folded_first_and_exact_second() -> None:
    schema, table = parse_table_name('Shop."Orders"')
    assert schema.spellings() == ("shop", "Shop")
    assert table.spellings() == ("Orders",)
    assert parse_table_name("orders")[1].spellings() == ("orders",)


@given(NAMES, NAMES)
def test_a_quoted_name_is_exact(schema: str, table: str) -> None:
    found = parse_table_name(f"{quoted(schema)}.{quoted(table)}")
    assert [part.spellings() for part in found] == [(schema,), (table,)]


@given(NAMES, NAMES)
def test_a_displayed_name_can_be_parsed(schema: str, table: str) -> None:
    found = parse_table_name(display_name(schema, table))
    assert [part.spellings()[0] for part in found] == [schema, table]


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    for parse in (parse_table_name, parse_column_names):
        with suppress(ConfigError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("id", ("id",)),
        ("id, name ,x", ("id", "name", "x")),
        ('"a,b", "c ""d""",e', ("a,b", 'c "d"', "e")),
        ('"Name"', ("Name",)),
    ],
)
def test_column_names(text: str, names: tuple[str, ...]) -> None:
    assert parse_column_names(text) == names


@pytest.mark.parametrize("text", ["a,", ",a", "a,,b", '"a', 'a"b'])
def test_invalid_lists_of_columns(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name"):
        parse_column_names(text)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_quoted_columns_are_exact(names: list[str]) -> None:
    assert parse_column_names(",".join(map(quoted, names))) == tuple(names)
