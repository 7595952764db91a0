"""The commented difflog.toml that `trueup difflog init` writes: every setting, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.config.template import write_new

if TYPE_CHECKING:
    from pathlib import Path

# A line with "# " is an explanation; a "#" right before a key is another way to say it.
TEMPLATE = """\
# difflog.toml: what is versioned, which side logs come late, and where the version log goes.
#
# ${VAR} and ${VAR:-default} stand for environment variables, in any text; $${ is a literal ${.
# Relative paths start at the folder of this file.
# The same may stand in trueup.toml: [difflog], [difflog.entity], [[difflog.log]], [difflog.log.columns], ...

# The folder of chunks, runs, late rows and rows whose visit is not known yet.
work = "difflog"
# M of version = M * S + F: more than the fast supplier ever writes versions of one entity.
multiplier = 1000

# What is versioned. The fast supplier writes its rows, the slow one (this log) patches them.
[entity]
# What one of them is called; also the name of its folders.
name = "visit"
# The columns that name one entity.
key = ["VisitID"]
# The column with the version that the fast supplier counts.
fast_version = "y_VisitVersion"
# Columns of the fast supplier that the slow one does not look at; they are glued to the log at the end.
dropped = ["UserAgent", "Referer"]
# The column that is true in a row that says "deleted"; leave it out where nothing is ever deleted.
deleted = "IsDeleted"

# Columns of the fast supplier that are part of the slow state too, and how a new value joins an old one:
#   "replace"  the new value, if there is one        "append"  two lists, one after the other
#   "sum"      both added up                         "union"   two lists, each value once
#   "min"      the smaller one                       { rule = "last", by = "COLUMN" }  the later one by that time
#   "max"      the larger one                        { rule = "expr", sql = "..." }    Spark SQL over old.X and new.X
[entity.kept]
StartDate = "replace"
Duration = "max"

# The side logs, applied in this order. One [[log]] each.
[[log]]
# What the log is called; also the name of its folders.
name = "conversions"
# Which column of this log holds which column of the entity's key; ["VisitID"] where the names are the same.
key = { VisitID = "visit_id" }
# The columns that name a row of this log within its entity: rows that come twice are taken once. Without: all count.
id = ["EventID"]
# Rows of one entity are merged in this order.
order_by = "EventTime"

# The columns that this log brings, and their rules.
[log.columns]
Goals = "append"
Score = { rule = "expr", sql = "coalesce(new.Score, 0) + coalesce(old.Score, 0)" }
LastGoal = { rule = "last", by = "EventTime" }

[[log]]
name = "money"
key = ["VisitID"]
id = ["PaymentID"]
order_by = "PaidAt"
[log.columns]
Revenue = "sum"

# The state table: the newest state of every entity, a Delta table.
[state]
# Its folder.
path = "difflog/state"
# Into how many parts it is cut by key; a run rewrites only those that it touches.
buckets = 16
# A state is forgotten when ttl_column is so many days past; 0 keeps states for ever.
ttl_days = 30
# A date or time column of the entity; named nowhere else, it is kept by itself.
ttl_column = "StartDate"

# The table that the log goes to: embedded in a folder (path), or on a server (url).
[clickhouse]
# The folder of an embedded table, for one process at a time.
path = "difflog/clickhouse"
# The server's address, instead of a path.
#url = "clickhouse://default:${CH_PASSWORD}@localhost:8123/default"
# The database that the table is in.
database = "default"
# The table; it is made where it is not there.
table = "visits"
"""


def write_example(path: Path, force: bool = False) -> Path:
    """Write the template, readable by its owner only; an existing file is only replaced by force."""
    return write_new(path, TEMPLATE, force=force)
