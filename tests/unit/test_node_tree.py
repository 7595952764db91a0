"""Functions, operators and types in a tree are found whatever names it contains; unknown trees are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.db.node_tree import Calls, UnknownTree
from trueup.db.scan import problem_with, with_parameters

TREE = r"""({QUERY :commandType 1 :rtable ({RANGETBLENTRY :alias {ALIAS :aliasname %s :colnames <>} :eref {ALIAS
:aliasname %s :colnames ("id" %s)} :rtekind 0 :relid 16385}) :jointree {FROMEXPR :fromlist ({RANGETBLREF :rtindex 1})
:quals {OPEXPR :opno 521 :opfuncid 147 :opresulttype 16 :args ({FUNCEXPR :funcid 16396 :funcresulttype 23 :args
({VAR :varno 1 :vartype 23 :varnullingrels (b)}) :location 8} {CONST :consttype 25 :constvalue 4 [ 1 0 0 0 ]})}}
:targetList ({TARGETENTRY :expr {COERCEVIAIO :arg {ROWCOMPAREEXPR :opnos (o 96 97) :largs <>} :resulttype 16400}
:resname %s :resjunk false})})"""


def escaped(name: str) -> str:
    """Return a name as `outToken` of the server writes it."""
    if not name:
        return '""'
    first = "\\" if name[0] in '<"' or name[0].isdigit() or name[0] in "+-." else ""
    return first + "".join(f"\\{char}" if char in " \n\t(){}\\" else char for char in name)


def calls_of(tree: str) -> Calls:
    calls = Calls()
    calls.add(tree)
    return calls


@given(st.text(st.sampled_from(':{}()\\ \n<>"o1[]ab'), max_size=20))
def test_names_hide_nothing_and_add_nothing(name: str) -> None:
    for text in (name, ":funcid", ":opno", "} :funcid 1", "<>"):
        token = escaped(text)
        calls = calls_of(TREE.replace("%s", f'"{token}"', 3).replace(f'"{token}"', token, 2).replace("%s", token))
        assert (calls.functions, calls.operators) == ({147, 16396}, {521, 96, 97})
        assert (calls.types, calls.read_types) == ({16, 23, 25, 16400}, {25, 16400})


@pytest.mark.parametrize(
    "tree",
    [
        "({QUERY :commandType 3})",
        "({QUERY :commandType 1 :cteList ({COMMONTABLEEXPR :ctequery {QUERY :commandType 4}})})",
        "{NEXTVALUEEXPR :seqid 16400 :typeId 20}",
        "{ROWMARKCLAUSE :rti 1}",
        "{FUNCEXPR :funcid",
        "{FUNCEXPR :funcid x}",
        "{FUNCEXPR :funcid 1}}",
        "{FUNCEXPR :funcid 1",
        "nothing",
        "{",
    ],
)
def test_an_unknown_tree_is_refused(tree: str) -> None:
    with pytest.raises(UnknownTree):
        calls_of(tree)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 'x' AND b LIKE E'y\\'' AND c = $$z$$", "a =  $1  AND b LIKE  $2  AND c =  $3 "),
        ("d >= date '2026-01-01' AND t < timestamp with time zone 'now'", None),
        ("t AT TIME ZONE 'UTC' > now() - interval '1 day'", "t AT TIME ZONE  $1  > now() - interval '1 day'"),
        ("b = B'101' AND n = N'x'", None),
        # A type with a schema is not built in, even with the name of one that is.
        ("public.date '2026'", "public.date  $1 "),
        ("public.b/**/'x'", "public.b/**/ $1 "),
        ("\"date\" 'x'", '"date"  $1 '),
        ("public.comp'(1)' IS NULL", "public.comp $1  IS NULL"),
        ("x = 'it''s -- /* '", "x =  $1 "),
    ],
)
def test_strings_become_parameters(text: str, expected: str | None) -> None:
    assert with_parameters(text) == (text if expected is None else expected)


PIECES = ["'a'", "''", "$$b$$", "E'c'", " ", "\n", "--d\n", "/*e*/", ".", "f ", "date ", "(", ")"]


@given(st.lists(st.sampled_from(PIECES)))
def test_only_strings_after_a_built_in_type_are_kept(pieces: list[str]) -> None:
    text = "".join(pieces)
    if problem_with(text) is None:
        replaced = with_parameters(text)
        assert problem_with(replaced.replace("$", "")) is None
        if "date" not in text:
            assert "'" not in replaced
            assert "$$" not in replaced
