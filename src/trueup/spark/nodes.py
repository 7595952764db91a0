"""The node that a Spark read connects to: the options `address`, `node` and `config` of all three formats.

Spark writes the options of a source into its event log as they are (observed with temporary views). A password in
`address` is therefore an error. It can come from an environment variable, from libpq's own sources, or with
`trueup.register`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trueup.config.address import parse
from trueup.config.load import load
from trueup.config.model import Node
from trueup.config.secrets import find_secrets
from trueup.config.settings import ExpressionSettings
from trueup.config.values import interpolate, literal_part
from trueup.config.wording import problem
from trueup.errors import ConfigError

# The node name in messages when the option `address` is used.
ADDRESS = "address"
_PASSWORD_CURE = (
    "write ${VAR} for the password, use ~/.pgpass or PGPASSWORD on the driver, name a node of trueup.toml (option"
    " node), or pass the address to trueup.register(spark, nodes={...})"
)


def allowed_expressions(options: Mapping[str, str], nodes: Mapping[str, Node]) -> ExpressionSettings:
    """Return the functions that a filter may call: the option `allow_functions`, and those of the configuration."""
    uses_file = bool(options.get("config")) or options.get("node", "") not in ("", *nodes)
    configured = load(options.get("config") or None).expressions if uses_file else ExpressionSettings()
    return configured.with_functions(options.get("allow_functions"))


def find_node(options: Mapping[str, str], nodes: Mapping[str, Node]) -> Node:
    """Return the node of the option `address`, or the node of the option `node`, registered or configured."""
    address, name = options.get("address", ""), options.get("node", "")
    if bool(address) == bool(name):
        raise ConfigError(
            "the options address and node are both set or both missing",
            cure="set exactly one of them: address (a libpq URI) or node (a name)",
        )
    if name:
        if name in nodes:
            return nodes[name]
        configured = load(options.get("config") or None)
        return configured.select(names=[name], at_least=1)[0]
    where = "option address"
    # Also finds a password in the default of ${VAR:-default}.
    if any(secret.strip("\0'\"") for secret in find_secrets(literal_part(address))):
        raise problem(where, "it contains a password, which Spark would write into its event log", _PASSWORD_CURE)
    conninfo = interpolate(address, os.environ, where)
    if error := parse(conninfo)[1]:
        cure = "Write postgresql://user@host:port/dbname, or libpq keywords: host=... dbname=... user=..."
        raise problem(where, f"libpq cannot parse this address: {error}", cure)
    return Node(ADDRESS, conninfo)
