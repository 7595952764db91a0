"""The parts of writing rows that need no server: the text format of COPY, and lists of keys."""

from __future__ import annotations

import pytest

from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.rows.write.copy_text import field_of, join, key_id, key_ids, key_of, split, text_of_field
from trueup.rows.write.guarded import Expected
from trueup.rows.write.key_lists import KeyList, array_literal, in_key_list, key_batches, key_list
from trueup.rows.write.target import Target, column_list

VALUES = [None, "", "plain", "tab\tline\nreturn\r", "back\\slash", "\\N", "\b\f\v", "é"]


def table(*types: str) -> TableSpec:
    columns = [ColumnSpec(f"c%{number}", kind, "native") for number, kind in enumerate(types)]
    return TableSpec("public", "t%", tuple(map(KeySpec, columns)), tuple(columns))


INT, ARRAY = '"pg_catalog"."int4"', '"pg_catalog"."_text"'


@pytest.mark.parametrize("value", VALUES)
def test_a_field_is_parsed_to_its_value(value: str | None) -> None:
    assert text_of_field(field_of(value)) == value
    assert b"\t" not in field_of(value)
    assert b"\n" not in field_of(value)


def test_a_line_is_split_into_its_fields() -> None:
    fields = [field_of(value) for value in VALUES]
    assert split(join(fields)) == fields


@pytest.mark.parametrize("key", [("1",), ("a-b\tc",), ("\\N",), ("1", "x\ty"), ("", "")])
def test_a_key_is_parsed_from_its_id(key: tuple[str, ...]) -> None:
    assert key_of(key_id(key)) == key
    assert key_ids([key, key]) == [key_id(key)] * 2


def test_a_key_list_has_one_array_per_column() -> None:
    assert key_list(table(INT), ["1", "2"]) == KeyList(2, ('{"1","2"}',))
    assert key_list(table(INT, INT), ['["1", "a"]', '["2", "b\\"\\\\"]']).literals == ('{"1","2"}', '{"a","b\\"\\\\"}')
    assert array_literal([]) == "{}"


def test_batches_of_integer_keys_are_in_numeric_order() -> None:
    numbers = [batch.literals[0] for batch in key_batches(table(INT), ["10", "9", "-3"], 2)]
    assert numbers == ['{"-3","9"}', '{"10"}']
    assert [batch.literals[0] for batch in key_batches(table(INT), ["b", "10", "9"], 2)] == ['{"10","9"}', '{"b"}']


def test_a_statement_with_parameters_doubles_percent_signs_in_names() -> None:
    assert (
        in_key_list(table(INT)).as_string(None)
        == f'(CASE WHEN true THEN "t"."c%%0" ELSE NULL::{INT} END) = ANY(%s::{INT}[])'
    )
    literal = in_key_list(table(INT), KeyList(1, ('{"1"}',))).as_string(None)
    assert literal.startswith('(CASE WHEN true THEN "t"."c%0" ')
    assert "%s::text[]" in in_key_list(table(INT, ARRAY)).as_string(None)
    assert column_list(["a%"], "t", parameters=True).as_string(None) == '"t"."a%%"'


def test_an_update_sets_no_key_and_no_fixed_column() -> None:
    assert Target(table(INT), ("c%0", "v", "identity"), ("identity",)).updatable == ("v",)


def test_the_digest_of_expected_rows_ignores_missing_rows() -> None:
    assert Expected([b"1", b"2"], [("1",), ("2",)], [b"-5", None]).digest == (1, -5)
