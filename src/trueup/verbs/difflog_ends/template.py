"""The commented difflog.toml that `trueup difflog init` writes: every setting with its meaning."""

from __future__ import annotations

from pathlib import Path

from trueup.config.template import write_new
from trueup.config.wording import problem
from trueup.verbs.difflog_ends.sample import write_sample

# "# " starts an explanation; "#" directly before a key is an alternative setting.
TEMPLATE = """\
# difflog.toml: the versioned entity, its side logs, and the target of the version log.
#
# ${VAR} and ${VAR:-default} are replaced by environment variables, in any string; $${ is a literal ${.
# Relative paths are relative to the folder of this file.
# The same settings can be in trueup.toml: [difflog], [difflog.entity], [[difflog.log]], [difflog.log.columns], ...

# The folder of chunk sets, runs, late rows and rows whose visit is not known yet.
work = "difflog"
# M of Version = M * S + F: larger than any version F of the fast supplier.
multiplier = 1000

# The versioned entity. The fast supplier writes its rows, the slow one (this log) corrects them.
[entity]
# The name of the entity, and of its folders.
name = "visit"
# The columns that identify one entity.
key = ["VisitID"]
# The column with the version number of the fast supplier.
fast_version = "y_VisitVersion"
# Columns of the fast supplier that are not part of the slow state; they are added to the log at the end.
dropped = ["UserAgent", "Referer"]
# The column that is true in a row which deletes the entity; omit it if entities are never deleted.
deleted = "IsDeleted"

# Columns of the fast supplier that are also part of the slow state, and how a new value joins an old one:
#   "replace"  the new value, unless it is NULL      "append"  the concatenation of two lists
#   "sum"      the sum of both                       "union"   two lists, each value once
#   "min"      the smaller value                     { rule = "last", by = "COLUMN" }  the value with the later time
#   "max"      the larger value                      { rule = "expr", sql = "..." }    Spark SQL over old.X and new.X
[entity.kept]
StartDate = "replace"
Duration = "max"

# The side logs, applied in this order: one [[log]] per log.
[[log]]
# The name of the log, and of its folders.
name = "conversions"
# The columns of the entity's key, and the columns of this log that contain them; ["VisitID"] for the same names.
key = { VisitID = "visit_id" }
# The columns that identify a row of this log: duplicates are applied once. Without it, every row counts.
id = ["EventID"]
# The rows of one entity are merged in this order.
order_by = "EventTime"

# The columns of this log that are merged into the state, and their rules.
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

# The state table: a Delta table with the newest state of every entity.
[state]
# The folder of the table.
path = "difflog/state"
# The number of buckets by key; a run rewrites only the files that contain its keys.
buckets = 16
# A state expires this many days after the value of ttl_column; 0 keeps states forever.
ttl_days = 30
# A date or time column of the entity; if no other setting names it, it is added to [entity.kept].
ttl_column = "StartDate"

# The target table of the log: embedded in a folder (path), or on a server (url).
[clickhouse]
# The folder of an embedded table, which one process at a time can open.
path = "difflog/clickhouse"
# The address of a server, instead of a path.
#url = "clickhouse://default:${CH_PASSWORD}@localhost:8123/default"
# Allow to send the password of the url without TLS to a server on another machine.
insecure = false
# The database of the table.
database = "default"
# The table; it is created if it does not exist.
table = "visits"
"""


def write_example(path: Path, *, force: bool = False, sample: Path | None = None) -> None:
    """Write the template with private permissions, and sample data for it into the folder `sample`.

    Raises ConfigError if the file or the folder exists, unless `force`; then nothing is written.
    """
    if sample is not None and sample.exists() and not force:
        raise problem(str(sample), "the folder exists", "Remove it, choose another path, or replace it with --force.")
    write_new(path, TEMPLATE, force=force)
    if sample is not None:
        write_sample(sample)
