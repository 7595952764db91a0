"""The class-data archive of Java: when it is used, and in which folders. See tests/spark/test_class_archive.py."""

from __future__ import annotations

import json
import locale
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.spark import LAUNCHES
from trueup.engine.archive import Archive, archive_for
from trueup.engine.cache import cache_folder
from trueup.engine.java import JavaHome

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trueup"


@pytest.fixture
def java(tmp_path: Path) -> JavaHome:
    """A Java with an archive of its own classes."""
    server = tmp_path / "java" / "lib" / "server"
    server.mkdir(parents=True)
    for name in ("libjvm.so", "classes.jsa"):
        (server / name).write_text("x")
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return JavaHome(tmp_path / "java", 17, "here", tmp_path / "java")


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark with one jar."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_text("x")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return tmp_path / "spark"


def _archive(java: JavaHome, **settings: str) -> Archive:
    archive = archive_for(java, {f"spark.driver.{name}": value for name, value in settings.items()})
    assert archive is not None
    return archive


def _write(archive: Archive, content: bytes = b"classes") -> Path:
    part = Path(archive.path + ".part")
    part.write_bytes(content)
    archive.keep(part, archive.path)
    return Path(archive.path)


def test_every_java_spark_and_class_path_has_its_archive(
    cache: Path, java: JavaHome, spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _archive(java)
    assert (Path(first.path).parent, first.base, _archive(java)) == (cache.resolve(), "", first)
    # Options that Java accepts with any archive: the verbs share one.
    assert _archive(java, extraJavaOptions="-XX:+UseParallelGC -Xshare:auto -Xss4m", memory="3g") == first
    seen = {first.path, _archive(java, extraClassPath="/a.jar").path}
    seen.add(_archive(java, extraJavaOptions="-XX:-UseCompressedOops").path)
    (spark_home / "jars" / "more.jar").write_text("x")
    seen.add(_archive(java).path)
    (java.runtime / "release").write_text('JAVA_VERSION="17.0.16"\n')
    seen.add(_archive(java).path)
    (java.runtime / "lib" / "server" / "libjvm.so").write_text("another build")
    seen.add(_archive(java).path)
    (spark_home / "conf").mkdir()
    (spark_home / "conf" / "spark-defaults.conf").write_text("spark.driver.extraClassPath /a.jar")
    seen.add(_archive(java).path)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-class-path /b.jar pyspark-shell")
    seen.add(_archive(java).path)
    assert len(seen) == 8
    (java.runtime / "lib" / "server" / "classes.jsa").unlink()
    assert Path(_archive(java).base).parent == cache.resolve()


@pytest.mark.parametrize("options", ["-Xshare:off", "-XX:SharedArchiveFile=/a.jsa", "-XX:AOTCache=/a.aot"])
def test_the_choice_of_the_user(
    cache: Path, java: JavaHome, spark_home: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    assert archive_for(java, {"spark.driver.extraJavaOptions": f"-Xss4m {options}"}) is None
    (spark_home / "conf").mkdir()
    (spark_home / "conf" / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {options}")
    assert archive_for(java, {}) is None
    (spark_home / "conf" / "spark-defaults.conf").unlink()
    assert archive_for(java, {}) is not None
    for name in ("SPARK_SUBMIT_OPTS", "_JAVA_OPTIONS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, options)
            assert archive_for(java, {}) is None


@pytest.mark.parametrize(
    ("folder", "charset", "is_used"),
    [
        ("a b'c", "ANSI_X3.4-1968", True),
        ("ünï", "UTF-8", True),
        ("ünï", "ANSI_X3.4-1968", False),
        ("a\nb", "UTF-8", False),
        ("a:b", "UTF-8", False),
    ],
)
def test_a_path_that_java_would_not_get_as_it_is(
    java: JavaHome,
    spark_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    folder: str,
    charset: str,
    is_used: bool,
) -> None:
    # A home folder with such a name, and a job of cron, whose locale is C: the archive would be made every day.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    monkeypatch.setattr(locale, "nl_langinfo", lambda item: charset)
    assert (archive_for(java, {}) is not None) == is_used


def test_a_jar_that_is_a_broken_link_is_no_error(cache: Path, java: JavaHome, spark_home: Path) -> None:
    before = _archive(java)
    (spark_home / "jars" / "more.jar").symlink_to(spark_home / "none.jar")
    assert _archive(java) != before


def _cut(path: Path) -> None:
    os.truncate(path, 3)


def _readable(path: Path) -> None:
    path.chmod(0o644)


def _foreign(path: Path) -> None:
    os.chown(path, 12345, -1)


def _linked(path: Path) -> None:
    os.link(path, path.with_name("second"))


def _symbolic(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def _unrecorded(path: Path) -> None:
    path.with_suffix(".json").write_text(json.dumps("x"))


@pytest.mark.parametrize(
    "spoil", [_cut, _readable, pytest.param(_foreign, marks=as_root), _linked, _symbolic, _unrecorded]
)
def test_an_archive_that_may_not_be_used(
    cache: Path, java: JavaHome, spark_home: Path, spoil: Callable[[Path], None]
) -> None:
    archive = _archive(java)
    assert not archive.is_ready()
    path = _write(archive)
    assert archive.is_ready()
    assert not replace(archive, base=str(cache / "java.jsa")).is_ready()
    spoil(path)
    assert not archive.is_ready()
    # The next one takes its place.
    _write(archive, b"new classes")
    assert archive.is_ready()


def test_a_folder_that_others_can_change_is_not_used(cache: Path, java: JavaHome, tmp_path: Path) -> None:
    assert cache_folder() == cache.resolve()
    for folder in (cache, cache.parent, tmp_path):
        mode = folder.stat().st_mode
        folder.chmod(0o777)
        assert cache_folder() is None, folder
        folder.chmod(mode)
    # In a sticky folder, such as /tmp, others cannot rename it.
    tmp_path.chmod(0o1777)
    assert cache_folder() == cache.resolve()
    moved = cache.rename(tmp_path / "moved")
    cache.symlink_to("../other/../moved")
    (tmp_path / "other").mkdir()
    assert cache_folder() == moved.resolve()
    (tmp_path / "other").chmod(0o777)
    assert cache_folder() is None
    cache.unlink()
    cache.symlink_to(cache)
    assert cache_folder() is None


@as_root
def test_a_link_of_another_user_is_not_followed(cache: Path, tmp_path: Path) -> None:
    """In a shared folder, another user could let this user write to, and change the rights of, any own folder."""
    chosen = tmp_path / "chosen"
    chosen.mkdir(0o755)
    cache.parent.mkdir()
    cache.parent.chmod(0o1777)
    cache.symlink_to(chosen)
    assert cache_folder() == chosen.resolve()
    chosen.chmod(0o755)
    os.lchown(cache, 12345, -1)
    assert cache_folder() is None
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o755


@as_root
def test_nothing_is_created_in_the_home_of_another_user(cache: Path) -> None:
    cache.parent.mkdir()
    os.chown(cache.parent, 12345, -1)
    assert cache_folder() is None
    assert not cache.exists()


@as_root
def test_a_folder_of_another_user_is_not_used(cache: Path, java: JavaHome) -> None:
    assert cache_folder() is not None
    for folder in (cache, cache.parent):
        os.chown(folder, 12345, -1)
        assert cache_folder() is None, folder
        os.chown(folder, 0, -1)
    assert cache_folder() is not None


def test_a_home_that_cannot_be_written(java: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert cache_folder() is None
    assert archive_for(java, {}) is None


@pytest.mark.parametrize("folder", ["cache/trueup", "~/.cache/trueup"])
def test_a_relative_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Without a home folder, the path of the cache may start with a tilde."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: folder)
    assert cache_folder() is None
    assert list(tmp_path.iterdir()) == []


def test_a_java_that_does_not_start_without_the_archive_either(
    cache: Path, java: JavaHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = java.path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{LAUNCHES}echo "$SPARK_SUBMIT_OPTS" >> ../starts\nexit 1\n')
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(java.path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    path = _write(_archive(java))
    # In a process of its own: this one may have a Java process already.
    code = "from trueup.engine.session import start_session; start_session(slots=1)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Spark failed to start" in ran.stderr
    with_archive, without = (tmp_path / "starts").read_text().splitlines()
    assert (str(path) in with_archive, "jsa" in without) == (True, False)
    assert _archive(java).is_ready()
