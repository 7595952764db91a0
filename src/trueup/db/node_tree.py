"""Read functions, operators and types from the text form of PostgreSQL's query trees (as in `debug_print_rewritten`).

Node kinds are an allow list: a kind that is not in it may call code that the names of fields below do not cover.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The tokens of the server's own reader: brackets, and words in which a backslash escapes the next character.
_TOKEN = re.compile(r"[(){}]|(?:[^\s(){}\\]|\\.)+", re.DOTALL)

# Nodes of queries and expressions. Some have two names: PostgreSQL 16 renamed them.
_KINDS = _words("""
    QUERY RANGETBLENTRY RTE ALIAS RTEPERMISSIONINFO FROMEXPR JOINEXPR RANGETBLREF RANGETBLFUNCTION TARGETENTRY
    SETOPERATIONSTMT SORTGROUPCLAUSE GROUPINGSET WINDOWCLAUSE COMMONTABLEEXPR TABLESAMPLECLAUSE
    VAR CONST PARAM AGGREF GROUPINGFUNC WINDOWFUNC SUBSCRIPTINGREF FUNCEXPR NAMEDARGEXPR OPEXPR DISTINCTEXPR NULLIFEXPR
    SCALARARRAYOPEXPR BOOLEXPR SUBLINK FIELDSELECT RELABELTYPE COERCEVIAIO ARRAYCOERCEEXPR CONVERTROWTYPEEXPR
    COLLATEEXPR COLLATE CASEEXPR CASE CASEWHEN WHEN CASETESTEXPR ARRAYEXPR ARRAY ROWEXPR ROW ROWCOMPAREEXPR ROWCOMPARE
    COALESCEEXPR COALESCE MINMAXEXPR MINMAX SQLVALUEFUNCTION XMLEXPR NULLTEST BOOLEANTEST COERCETODOMAIN
    COERCETODOMAINVALUE JSONVALUEEXPR JSONFORMAT JSONRETURNING JSONCONSTRUCTOREXPR JSONISPREDICATE JSONEXPR JSONBEHAVIOR
    """)
# Fields that contain OIDs, in any node.
_FUNCTIONS = _words("funcid opfuncid hashfuncid negfuncid aggfnoid winfnoid tsmhandler startInRangeFunc endInRangeFunc")
_OPERATORS = _words("opno opnos eqop sortop")
_TYPES = _words("""
    vartype consttype paramtype funcresulttype opresulttype aggtype wintype refcontainertype refelemtype refrestype
    resulttype array_typeid element_typeid row_typeid coalescetype minmaxtype casetype type typeId typid
    """)
# Nodes whose value is read from a text, by the input function of its type; a domain checks the value.
_FROM_TEXT = _words("CONST PARAM COERCEVIAIO COERCETODOMAIN JSONRETURNING JSONEXPR")


class UnknownTree(Exception):
    """The tree contains something that is not known here, which its message names."""


@dataclass
class Calls:
    """What a tree calls, as OIDs: functions, operators; the types of all values, and of those read from a text."""

    functions: set[int] = field(default_factory=set)
    operators: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    read_types: set[int] = field(default_factory=set)
    # The tables, and the numbers of columns of any of them; 0 is a whole row.
    tables: set[int] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)

    def add(self, tree: str) -> None:
        """Add everything that a tree calls; raise UnknownTree if it is not a SELECT or an expression."""
        for kind, name, value in _values(tree):
            if (kind, name) == ("VAR", "varattno"):
                self.columns.add(int(value))
            if name == "" and kind not in _KINDS:
                raise UnknownTree(kind)
            if kind == "QUERY" and name == "commandType" and value != "1":
                raise UnknownTree("a statement that is not a SELECT")
            chosen = self._sets(kind, name)
            if chosen and value != "o":  # the first word of a list of OIDs
                if not value.isdigit():
                    raise UnknownTree(f"{kind}.{name}")
                for oids in chosen if value != "0" else ():
                    oids.add(int(value))

    def _sets(self, kind: str, name: str) -> list[set[int]]:
        if name == "relid":
            return [self.tables]
        if name in _FUNCTIONS:
            return [self.functions]
        if name in _OPERATORS:
            return [self.operators]
        if name in _TYPES:
            return [self.types, self.read_types] if kind in _FROM_TEXT else [self.types]
        return []


def _values(tree: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, field and value of every simple value, and of every node its kind with an empty field.

    The server breaks lines after 78 bytes, also inside of a longer name, which is then not escaped any more. That can
    end a node too early, which is an error, but cannot hide other nodes: each starts with its own bracket and kind.
    """
    # Per open node: its kind, the current field, and whether that field has a value.
    nodes: list[tuple[str, str, bool]] = []
    opened = False
    for match in _TOKEN.finditer(tree):
        token = match[0]
        if opened:
            nodes.append((token, "", True))
            opened = False
            yield token, "", ""
        elif token == "{":
            _fill(nodes)
            opened = True
        elif token == "}":
            if not nodes:
                raise UnknownTree("an unmatched bracket")
            nodes.pop()
        elif token in "()":
            _fill(nodes)
        elif not nodes:
            # Only lists of nodes are outside of a node: the empty list.
            if token != "<>":
                raise UnknownTree(token)
        elif nodes[-1][2] and token.startswith(":"):
            nodes[-1] = nodes[-1][0], token[1:], False
        else:
            # A value may start with a colon: a name that the user chose.
            _fill(nodes)
            kind, name, _ = nodes[-1]
            if name:
                yield kind, name, token
    if nodes or opened:
        raise UnknownTree("a truncated tree")


def _fill(nodes: list[tuple[str, str, bool]]) -> None:
    """Note that the current field has a value."""
    if nodes:
        kind, name, _ = nodes[-1]
        nodes[-1] = kind, name, True
