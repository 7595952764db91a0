"""Sessions for large joins: why a Java process has ended is asked before its session is stopped."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from trueup.engine import bulk_session, failures
from trueup.engine.bulk_session import spark_session
from trueup.errors import CheckFailed, EngineError


class _Session:
    """A session whose Java process was killed, or not; nothing is known about it after its stop."""

    def __init__(self, ended: str) -> None:
        self.ended = ended
        self.conf = self

    def set(self, name: str, value: str) -> None:
        """Accept all settings."""

    def stop(self, session: object) -> None:
        assert session is self
        self.ended = ""


@pytest.mark.parametrize(
    ("ended", "error", "kind", "message"),
    [
        ("was killed (SIGKILL)", Py4JNetworkError("lost"), EngineError, "^the Java process of Spark was killed"),
        ("was killed (SIGKILL)", CheckFailed(["a value"]), CheckFailed, "a value"),
        ("", Py4JNetworkError("lost"), Py4JNetworkError, "lost"),
    ],
)
def test_the_reason_is_asked_before_the_stop(
    monkeypatch: pytest.MonkeyPatch, ended: str, error: Exception, kind: type[Exception], message: str
) -> None:
    session = _Session(ended)
    monkeypatch.setattr(bulk_session, "existing_session", lambda: None)
    monkeypatch.setattr(bulk_session, "start_session", lambda **_: session)
    monkeypatch.setattr(bulk_session, "stop_session", session.stop)
    for module in (bulk_session, failures):
        monkeypatch.setattr(module, "why_ended", lambda seconds=0.0: session.ended)
    with pytest.raises(kind, match=message), spark_session():
        raise error
    assert session.ended == ""
