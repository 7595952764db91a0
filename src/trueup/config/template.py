"""The commented trueup.toml that `trueup init` writes: every setting, its default and what it does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trueup.config.wording import problem

if TYPE_CHECKING:
    from pathlib import Path

# A line with "# " is an explanation; a "#" right before a key or a header is a setting to uncomment.
TEMPLATE = """\
# trueup.toml: the nodes to keep true, and how.
#
# ${VAR} and ${VAR:-default} stand for environment variables, in any text; $${ is a literal ${.
# A variable like TRUEUP__DIFF__BLOCK_SIZE=5000 overrides a setting of this file.
# Every setting below shows its default; remove the "#" in front of it to change it.

[nodes]
# One database each: a libpq URI, keywords or a service. Passwords are best kept in ~/.pgpass.
#n1 = "postgresql://app@db1.example.com:5432/shop"
#n2 = "service=shop2"

# Or one libpq keyword a line.
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
# Rows in a block, the unit that is hashed as a whole.
#block_size = 100_000
# The least block size that may be given.
#min_block_size = 1_000
# The greatest block size that may be given.
#max_block_size = 1_000_000
# Allow a block size outside of these two.
#override_block_size = false
# Blocks hashed at a time, as a share of the processors (0.0 to 4.0).
#concurrency_factor = 0.5
# Connections to each node at most (0 is no limit, otherwise at least 2).
#max_connections = 0
# Rows that are read out and compared one by one at a time; blocks that differ are split down to it.
#compare_unit_size = 10_000
# Stop after so many differing rows; the verdict is then incomplete.
#max_diff_rows = 1_000_000
# How often differing rows are read again, to tell real differences from changes in flight.
#recheck = 2
# Seconds between two of these checks.
#recheck_wait = 2.0
# Read each node in one snapshot.
#snapshot = true
# Numerics are equal by "value" (1.0 is 1.00) or by "representation" (it is not).
#numeric = "value"
# How rows are hashed: "native" is fastest, "portable" works across all versions, "auto" tries native first.
#digest = "auto"
# Seconds to hash one block on one node before the block is split.
#block_timeout = 60.0
# How often a query is tried again after the connection was lost.
#retries = 3
# Values longer than so many bytes are compared and reported as length and sha256.
#long_value = 1_048_576
# The folder for reports; empty is the current folder.
#report_dir = ""
# What is written of a diff: "json", or "json, html" for a page to look at besides.
#output = "json"
# On a live system: small queries one at a time, and pauses while a node is busier than the limits below.
#gentle = false
# Seconds that a query of a gentle run should take; the number of rows follows.
#gentle_seconds = 0.5
# Rows read on each node at most in a second, gentle or not; 0 is no limit.
#max_rows_per_second = 0
# A gentle run waits while replication is more seconds behind than this.
#max_lag = 10.0
# A gentle run waits while more sessions of others are active than this.
#max_active_sessions = 25
# A gentle run waits while more sessions of others wait for locks than this.
#max_lock_waits = 3
# Compare only the rows that meet this condition, in every table.
#table_filter = ""
# Compare only these columns, and the key: "a, b".
#columns = ""
# Compare all columns but these: "a, b".
#exclude_columns = ""
# Columns that name a row, where no key is declared: "a, b".
#key = ""

[spark]
# Where the work runs: in "spark", in this process ("local"), or "auto": by size.
#engine = "auto"
# A Spark master (spark://host:7077, local[4], yarn); empty starts Spark on this machine.
#master = ""
# A Spark Connect server (sc://host:15002); give a master or a remote, not both.
#remote = ""
# With "auto", tables of fewer estimated rows are compared in this process.
#local_rows = 100_000_000
# Tasks at once; 0 counts the cores of this machine or of the cluster, and takes diff.concurrency_factor of them.
#slots = 0

# Settings that are passed to Spark as they are; none by default.
#[spark.conf]
#"spark.executor.memory" = "2g"

[tasks]
# The file of the task store; empty is a file in your data folder.
#task_db = ""

# Jobs of `trueup schedule`: commands with their arguments, and when; ${VAR} in arguments is for the command.
#[schedule.nightly]
# The command.
#verb = "diff"
# Its arguments: a text as in a shell, or a list of texts.
#arguments = "--schema public --cluster shop"
# When: minute, hour, day, month, weekday, as cron has it (0 and 7 are Sunday); or an interval instead: every = "15m".
#cron = "30 3 * * *"
# The time zone of cron.
#timezone = "UTC"

# A version log has a file of its own, difflog.toml (`trueup difflog init` makes one to start from),
# or all of that in a section [difflog] here.
"""


def write_template(path: Path, *, force: bool = False) -> Path:
    """Write the template of trueup.toml; an existing file is only replaced by force."""
    return write_new(path, TEMPLATE, force=force)


def write_new(path: Path, text: str, *, force: bool = False) -> Path:
    """Write a file to start from, readable by its owner only; an existing one is only replaced by force."""
    replace = os.O_TRUNC if force else os.O_EXCL
    if path.exists() and not path.is_file():
        # A device would get new permissions, for everybody.
        raise problem(str(path), "this is not a file", "Choose another path.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | replace, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            # The mode above only counts for a new file.
            os.chmod(path, 0o600)
            file.write(text)
    except FileExistsError:
        cure = "Edit it, choose another path, or replace it with --force."
        raise problem(str(path), "the file exists", cure) from None
    except OSError as error:
        cure = "Choose another path, or check the rights on the folder."
        raise problem(str(path), f"it cannot be written ({error.strerror})", cure) from None
    return path
