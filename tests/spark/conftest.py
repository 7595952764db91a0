"""A real Spark cluster on this machine, from the PySpark that is installed: a master, two workers, Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trueup.engine.java import find_java
from trueup.testing.processes import wait_until

# Quick to start, and small: several JVMs share the machine.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC -Xss4m"
# Three cores for each application, where this machine may have any other number.
CONF = {
    "spark.cores.max": "3",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


@dataclass
class SparkCluster:
    """A standalone master with two workers; every process writes a log into the folder."""

    folder: Path
    url: str = ""
    remote: str = ""
    connect_ui: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> dict[str, str]:
        """The settings of an application that fits into the cluster."""
        return {**CONF, "spark.eventLog.dir": f"file://{self.folder}/events"}

    def start(self, name: str, *arguments: str) -> None:
        """Start a Spark program in the background."""
        import pyspark

        home = Path(pyspark.__file__).parent
        # Without the user's settings and secrets: what is found in a process later, trueup has put there.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "TRUEUP_", "SPARK_"))}
        environment = {
            **kept,
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(home / "bin" / "spark-class"), *arguments]
        with (self.folder / f"{name}.log").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd=self.folder
            )

    def told(self, name: str, pattern: str) -> str:
        """What a program says in its log, once it says it."""
        log = self.folder / f"{name}.log"
        process = self.processes[name]

        def found() -> re.Match[str] | None:
            return re.search(pattern, log.read_text(errors="replace"))

        assert wait_until(lambda: found() is not None or process.poll() is not None, 90), log.read_text()
        said = found()
        assert said is not None, log.read_text()
        return said.group(1)

    def stop(self) -> None:
        """End all of it; executors end with their workers."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master with two workers on loopback."""
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"))
    (cluster.folder / "events").mkdir()
    try:
        cluster.start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
                      "--webui-port", "0")  # fmt: skip
        cluster.url = cluster.told("master", r"(spark://127\.0\.0\.1:\d+)")
        for name in ("worker1", "worker2"):
            cluster.start(name, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "4",
                          "--memory", "2g", "--webui-port", "0", "--work-dir", str(cluster.folder / name),
                          cluster.url)  # fmt: skip
        for name in ("worker1", "worker2"):
            cluster.told(name, r"(Successfully registered with master)")
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def connect_cluster(spark_cluster: SparkCluster) -> SparkCluster:
    """The same cluster, with a Spark Connect server whose executors run there."""
    settings = {
        **spark_cluster.conf,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    spark_cluster.start("connect", "org.apache.spark.deploy.SparkSubmit", "--master", spark_cluster.url,
                        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
                        *[part for key, value in settings.items() for part in ("--conf", f"{key}={value}")],
                        "spark-internal")  # fmt: skip
    port = spark_cluster.told("connect", r"Spark Connect server started at: \S*?:(\d+)")
    spark_cluster.remote = f"sc://127.0.0.1:{port}"
    spark_cluster.connect_ui = "http://127.0.0.1:" + spark_cluster.told("connect", r"service 'SparkUI' on port (\d+)")
    return spark_cluster
