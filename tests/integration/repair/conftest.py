"""Fixtures for tests of repairs."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.repair import Nodes, NodesWith


@pytest.fixture
def nodes_with(databases: Databases) -> NodesWith:
    """Return a function that creates nodes with a table: its definition, then the rows of each node."""

    def make(table: str, *fills: str, name: str = "items") -> Nodes:
        nodes = databases(len(fills))
        for node, fill in zip(nodes, fills, strict=True):
            node.execute(table)
            if fill:
                node.execute(fill)
        return Nodes(nodes, name)

    return make
