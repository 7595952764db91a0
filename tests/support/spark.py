"""A Spark cluster on this machine, from the installed PySpark: a standalone master, two workers, Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support.class_archive import archive_options
from trueup.engine.java import find_java
from trueup.engine.python import compiled_python
from trueup.testing.processes import wait_until

# Fast to start, and small: several JVMs share the machine.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC -Xss4m"
# The beginning of a script that takes the place of Java. As a command, the launcher prints an empty line, and then its
# words, each with a NUL.
LAUNCHES = r"""case "$*" in *launcher.Main*) printf '\n%s\0Submit\0' "$0"; exit 0 ;; esac
echo "WARNING: Using incubator modules: jdk.incubator.vector" >&2
"""
# A session that does not compile its queries, and one that does, which is the default.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
# A session of hundreds of tests: with little memory, a tenth of its processor time is garbage collection.
ROOMY = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -Xmn600m"}
# A session that does not divide the rows of small tables.
ONE_PARTITION = dict.fromkeys(
    ("spark.sql.shuffle.partitions", "spark.sql.files.minPartitionNum", "spark.sql.leafNodeDefaultParallelism"), "1"
)
# Three cores per application, independent of the number of cores of this machine.
CONF = {
    "spark.cores.max": "3",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    **INTERPRETED,
}
_MASTER = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_WORKER = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "4", "--memory", "2g")
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass
class SparkCluster:
    """A standalone master with two workers; each process writes a log into the folder."""

    folder: Path
    url: str = ""
    remote: str = ""
    connect_ui: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> dict[str, str]:
        """Return the settings of an application that fits into the cluster."""
        executor = f"{JVM_OPTIONS} {archive_options()} {self._temporary}"
        events = f"file://{self.folder}/events"
        # A Python that does not compile PySpark again in each of its processes.
        python = compiled_python() or sys.executable
        places = {"spark.eventLog.dir": events, "spark.pyspark.python": python}
        return {**CONF, "spark.executor.extraJavaOptions": executor, **places}

    @property
    def _temporary(self) -> str:
        """The option of Java for temporary files, of which killed executors leave some."""
        return f"-Djava.io.tmpdir={self.folder}"

    def start(self, *workers: str) -> None:
        """Start the master and workers with these names, and wait until the workers are registered."""
        (self.folder / "events").mkdir()
        self._start("master", *_MASTER)
        self.url = self._wait_for_log("master", r"(spark://127\.0\.0\.1:\d+)")
        for name in workers:
            self._start(name, *_WORKER, "--webui-port", "0", "--work-dir", str(self.folder / name), self.url)
        for name in workers:
            self._wait_for_log(name, r"(Successfully registered with master)")

    def start_connect(self) -> None:
        """Start a Spark Connect server whose executors run in the cluster."""
        settings = {
            **self.conf,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        submit = ("org.apache.spark.deploy.SparkSubmit", "--master", self.url, "--class", _CONNECT)
        self._start("connect", *submit, *options, "spark-internal")
        port = self._wait_for_log("connect", r"Spark Connect server started at: \S*?:(\d+)")
        self.remote = f"sc://127.0.0.1:{port}"
        self.connect_ui = "http://127.0.0.1:" + self._wait_for_log("connect", r"service 'SparkUI' on port (\d+)")

    def stop(self) -> None:
        """Stop all processes; executors end with their workers."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, *arguments: str) -> None:
        """Start a Spark program in the background."""
        import pyspark

        home = Path(pyspark.__file__).parent
        # Without the settings and secrets of the user: tests search the processes for values set by trueup.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "TRUEUP_", "SPARK_"))}
        environment = {
            **kept,
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Read by the daemons, and by spark-submit.
            "SPARK_DAEMON_JAVA_OPTS": f"{JVM_OPTIONS} {archive_options()} {self._temporary}",
            "SPARK_SUBMIT_OPTS": f"{archive_options()} {self._temporary}",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(home / "bin" / "spark-class"), *arguments]
        with (self.folder / f"{name}.log").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd=self.folder
            )

    def _wait_for_log(self, name: str, pattern: str) -> str:
        """Wait until the log of a program matches, and return the first group of the match."""
        log = self.folder / f"{name}.log"
        process = self.processes[name]

        def match() -> re.Match[str] | None:
            return re.search(pattern, log.read_text(errors="replace"))

        assert wait_until(lambda: match() is not None or process.poll() is not None, 90), log.read_text()
        result = match()
        assert result is not None, log.read_text()
        return result.group(1)
