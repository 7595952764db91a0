"""The commented trueup.toml that `trueup init` writes: every setting with its default and a description."""

from __future__ import annotations

import os
from pathlib import Path

from trueup.config.files import write_whole
from trueup.config.wording import problem

# "# " starts a comment; a "#" directly before a key or a header is a setting to uncomment.
TEMPLATE = """\
# trueup.toml: nodes and settings of trueup.
#
# ${VAR} and ${VAR:-default} are replaced by environment variables in any text; $${ is a literal ${.
# A variable like TRUEUP__DIFF__BLOCK_SIZE=5000 overrides a setting of this file.
# Every setting below shows its default; remove the "#" in front of it to change it.

[nodes]
# One database per node: a libpq URI, keywords or a service. Keep passwords in ~/.pgpass.
#n1 = "postgresql://app@db1.example.com:5432/shop"
#n2 = "service=shop2"

# Or one libpq keyword per line.
#[nodes.n3]
#host = "db3.example.com"
#port = 5432
#dbname = "shop"
#user = "app"
#password = "${N3_PASSWORD}"

[clusters]
# Named sets of nodes.
#shop = ["n1", "n2", "n3"]

[diff]
# Rows per block.
#block_size = 100_000
# Minimum block size.
#min_block_size = 1_000
# Maximum block size.
#max_block_size = 1_000_000
# Allow a block size outside these limits.
#override_block_size = false
# Concurrent tasks per core, from 0.0 to 4.0; 0: one task.
#concurrency_factor = 0.5
# Maximum connections per node, at least 2; 0: no limit.
#max_connections = 0
# Rows per unit when a differing block is split.
#compare_unit_size = 10_000
# Stop after this number of differences per pair of nodes; the verdict is then INCOMPLETE.
#max_diff_rows = 1_000_000
# Number of times to re-check differences, to recognise changes in flight.
#recheck = 2
# Seconds to wait before each re-check.
#recheck_wait = 2.0
# Read each node in one snapshot.
#snapshot = true
# Numerics are equal by "value" (1.0 is 1.00) or by "representation" (it is not).
#numeric = "value"
# How rows are hashed: "native" is the fastest, "portable" works across all versions, "auto" tries native first.
#digest = "auto"
# Seconds to hash a block on a node before it is hashed in pieces.
#block_timeout = 60.0
# Number of retries of a query after the connection was lost.
#retries = 3
# Values longer than this number of bytes are compared and reported as length and sha256.
#long_value = 1_048_576
# Folder for reports; empty: the current folder.
#report_dir = ""
# Formats of the report of a diff: "json", or "json, html".
#output = "json"
# For a live system: small queries one at a time, and pauses while a node exceeds the limits below.
#gentle = false
# With gentle: target duration of a query, in seconds; the number of rows is adapted.
#gentle_seconds = 0.5
# Maximum rows read per second and node, gentle or not; 0: no limit.
#max_rows_per_second = 0
# With gentle: pause while replication lag exceeds this number of seconds.
#max_lag = 10.0
# With gentle: pause while more sessions of other users are active.
#max_active_sessions = 25
# With gentle: pause while more sessions of other users wait for locks.
#max_lock_waits = 3
# Compare only rows that meet this SQL condition, in every table.
#table_filter = ""
# Compare only these columns and the key: "a, b".
#columns = ""
# Do not compare these columns: "a, b".
#exclude_columns = ""
# Columns that identify a row, for tables without a primary key or a usable unique index: "a, b".
#key = ""

[spark]
# Where the work runs: "local" (threads of this process), "spark", or "auto" (spark if a master is set; otherwise
# threads begin, and Spark takes over work that lasts).
#engine = "auto"
# A Spark master (spark://host:7077, local[4], yarn); empty starts Spark on this machine.
#master = ""
# A Spark Connect server (sc://host:15002); set a master or a remote, not both.
#remote = ""
# With "auto", a round of a sync copies tables with fewer estimated rows in this process.
#local_rows = 100_000_000
# With "auto", Spark is started for a comparison or a copy when the rest of it is expected to take more seconds than
# this and cores of this machine are idle (0: always), and for a validation or a tube when it has lasted this long.
#local_seconds = 10.0
# If no task of a Spark job is finished for this many seconds, Spark on this machine is ended as one that hangs: threads
# continue, or the command fails and can be resumed. A start on this machine has the same limit, and two
# minutes at least. On a cluster, it is a warning. 0: no limit.
#stall_seconds = 300.0
# Concurrent tasks; 0: the cores of this machine or of the cluster times diff.concurrency_factor.
#slots = 0
# Keep an archive of Java's classes (190 MB) in the cache folder of the user, with which Spark starts twice as fast.
#class_archive = true

# Settings that are passed to Spark; none by default.
#[spark.conf]
#"spark.executor.memory" = "2g"
# The page of Spark on http://127.0.0.1:4040.
#"spark.ui.enabled" = "true"

[tasks]
# File of the task store; empty: a file in the data folder of the user.
#task_db = ""

[expressions]
# Functions that SQL expressions of all commands (filters, predicates, routings, plans) may call besides the built-in
# ones that cannot write: "public.is_active, random".
#allow_functions = ""
# Extensions whose functions SQL expressions may call: "citext, hstore".
#allow_extensions = ""

# Jobs of `trueup schedule`: commands, arguments and times; ${VAR} in arguments is replaced by the command.
#[schedule.nightly]
# The command.
#verb = "diff"
# The arguments: a text as in a shell, or a list of texts.
#arguments = "--schema public --cluster shop"
# Minute, hour, day, month, weekday, as in cron (0 and 7 are Sunday); or an interval instead: every = "15m".
#cron = "30 3 * * *"
# The time zone of cron.
#timezone = "UTC"

# The sink of the tube "search", for `trueup tube run` and `trueup tube prove` without --to.
#[tube.search]
# Its address, or the name of a node.
#to = "redis://:${REDIS_PASSWORD}@cache:6379/0"
# Options of the sink, as --option and --map.
#options = { mode = "set" }

# Alerts of `trueup serve` and of commands. What raises them:
#[alerts]
# The verdict of a table is not MATCH.
#verdict_change = true
# More differences than this at the last diff.
#differences_above = 100
# The last proof of a table is older, or it has none.
#proof_older_than = "1d"
# A validation has errors.
#validation_error = true
# A validation is further behind.
#lag_above = "5m"
# A server keeps more log for a slot of trueup.
#slot_retained_above = "10GB"
# A tube has dead letters.
#dead_letters = true
# A task failed.
#task_failed = true
# An alert that lasts is sent again after this time; "0": never.
#repeat_after = "4h"
# Send a message when an alert ends.
#resolved = true
# Where alerts are sent: one table per target.
#[alerts.to.ops]
# An address that gets JSON, as Slack reads it.
#webhook = "${OPS_WEBHOOK}"
#[alerts.to.pager]
# A command that gets the same JSON on stdin.
#command = ["/usr/local/bin/page", "ops"]
#[alerts.to.mail]
# A mail server: smtp+starttls://, smtps:// or smtp://.
#smtp = "smtp+starttls://trueup:${SMTP_PASSWORD}@mail.example.com:587"
# The sender.
#from = "trueup@example.com"
# The recipients.
#to = ["ops@example.com"]

# A version log is configured in difflog.toml (`trueup difflog init` writes an example), or in a section [difflog] here.
"""


def write_template(path: Path, *, force: bool = False) -> Path:
    """Write the template of trueup.toml; an existing file is only replaced with `force`."""
    return write_new(path, TEMPLATE, force=force)


def write_new(path: Path, text: str, *, force: bool = False) -> Path:
    """Write a new file, readable by its owner only; an existing file is only replaced with `force`."""
    if path.exists() and not path.is_file():
        # The permissions of a device would be changed.
        raise problem(str(path), "not a regular file", "Choose another path.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if force:
            write_whole(path, text.encode())
        else:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        cure = "Edit it, choose another path, or replace it with --force."
        raise problem(str(path), "the file exists", cure) from None
    except OSError as error:
        cure = "Choose another path, or check the permissions of the folder."
        raise problem(str(path), f"cannot be written ({error.strerror})", cure) from None
    return path
