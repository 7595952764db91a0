"""A certificate verifies as it was written; any other byte, key or order of the chain is refused."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueup.api.certificate import certificate_key, verify_certificate
from trueup.errors import ConfigError, StoreError
from trueup.proof.document import FORMAT, canonical, file_text, hash_of
from trueup.proof.stated import verdict_of
from trueup.store import TaskStore
from trueup.store.statements import Issued
from trueup.verbs.certificate.keys import fingerprint, public_text, read_private, read_public
from trueup.verbs.certificate.run import write
from trueup.verbs.certificate.text import verify_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


COMPARED: dict[str, Any] = {
    "columns": [["id", "integer"]], "filter": "", "selected": [], "left_out": [], "float_tolerance": "0.0",
    "is_consistent": True,
}  # fmt: skip
# What limits a proof, each alone, and a word of its text.
PARTS: list[tuple[dict[str, Any], str]] = [
    ({"filter": "id < 9"}, "id < 9"),
    ({"left_out": ["note"]}, "note"),
    ({"selected": ["a query instead of the table on n1"]}, "a query"),
    ({"float_tolerance": "0.001"}, "0.001"),
    ({"is_consistent": False}, "snapshot"),
]


def _table(reason: str = "", name: str = "public.t", **part: Any) -> dict[str, Any]:
    position = {"table": name, "table_oid": 1, "system": "1/2", "timeline": 1, "position": "0/1"}
    nodes = [{"node": node, **position} for node in ("n1", "n2")]
    table = {"table": name, "reason": reason, "limits": [], "nodes": nodes, "rows": 9, "compared": {**COMPARED, **part},
             "proven_at": "2026-01-01T00:00:00Z"}  # fmt: skip
    return {**table, "verdict": verdict_of(table)}


def _issue(
    key: str = "",
    previous: dict[str, Any] | None = None,
    *,
    reason: str = "",
    chain: str = "c",
    table: dict[str, Any] | None = None,
    verdict: str = "",
) -> str:
    """Return the text of a certificate."""
    table = table or _table(reason)
    private = read_private(Path(key)) if key else None
    before = previous["statement"] if previous else None
    statement = {
        "format": FORMAT, "id": "i", "issued_at": "2026-01-01T00:00:00.000Z",
        "program": {"name": "trueup", "version": "1"}, "verdict": verdict or table["verdict"],
        "tables": [table], "limits": ["ä"], "chain": chain, "number": before["number"] + 1 if before else 1,
        "previous": {"id": "i", "number": before["number"], "sha256": hash_of(before)} if before else None,
        "signed_by": public_text(private.public_key()) if private else None,
    }  # fmt: skip
    return _signed(key, statement)


def _signed(key: str, statement: dict[str, Any]) -> str:
    private = read_private(Path(key)) if key else None
    document: dict[str, Any] = {"statement": statement, "sha256": hash_of(statement)}
    if private:
        value = private.sign(canonical(statement)).hex()
        document["signature"] = {"algorithm": "Ed25519", "public_key": statement["signed_by"], "value": value}
    return file_text(document)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("key") / "trueup.key"
    certificate_key(str(path))
    return str(path)


def _file(folder: Path, text: str, name: str = "c.json") -> str:
    path = folder / name
    path.write_text(text, encoding="ascii")
    return str(path)


def test_a_signed_certificate(tmp_path: Path, key: str) -> None:
    file = _file(tmp_path, _issue(key))
    result = verify_certificate(file, key=f"{key}.pub")
    assert (result.verdict, result.exit_code, result.files[0].remarks) == ("VERIFIED", 0, ())
    # Without a key it is intact; who issued it is not known, so nothing is verified.
    result = verify_certificate(file)
    assert (result.verdict, result.exit_code) == ("UNVERIFIED", 2)
    assert "the issuer is not known" in result.files[0].unverified[0]


def test_a_fingerprint(tmp_path: Path, key: str) -> None:
    file, name = _file(tmp_path, _issue(key)), fingerprint(public_text(read_public(Path(f"{key}.pub"))))
    assert verify_certificate(file, fingerprint=name).verdict == "VERIFIED"
    other = str(tmp_path / "other.key")
    certificate_key(other)
    foreign = _file(tmp_path, _issue(other), "foreign.json")
    assert verify_certificate(foreign, fingerprint=name).verdict == "REFUSED"
    assert verify_certificate(_file(tmp_path, _issue(), "unsigned.json"), fingerprint=name).verdict == "REFUSED"
    # The start of a fingerprint is no fingerprint: another key with it is found in seconds.
    for wrong in (name[:16], name.upper(), name + "0", "x" * 32):
        with pytest.raises(ConfigError, match="--fingerprint"):
            verify_certificate(file, fingerprint=wrong)
    with pytest.raises(ConfigError, match="cannot be combined"):
        verify_certificate(file, key=f"{key}.pub", fingerprint=name)


def test_members_beside_what_is_signed(tmp_path: Path, key: str) -> None:
    """Only the statement is signed: any other member is a change of the file."""

    def changed(change: Callable[[dict[str, Any]], object]) -> int:
        document = json.loads(_issue(key))
        change(document)
        return verify_certificate(_file(tmp_path, file_text(document)), key=f"{key}.pub").exit_code

    assert changed(lambda it: None) == 0
    assert changed(lambda it: it.update(note="VERIFIED")) == 1
    assert changed(lambda it: it["signature"].update(note="")) == 1
    assert changed(lambda it: it["statement"].update(note="")) == 1
    # The same name twice: readers differ in which one counts.
    text = _issue(key)
    for again in ('{\n "sha256": "0",', '{\n "statement": {},'):
        file = _file(tmp_path, text.replace("{", again, 1))
        assert verify_certificate(file, key=f"{key}.pub").exit_code == 1, again


@pytest.mark.parametrize(("part", "words"), PARTS)
def test_a_part_is_never_stated_as_the_whole(tmp_path: Path, key: str, part: dict[str, Any], words: str) -> None:
    table = _table(**part)
    assert table["verdict"] == "PROVEN IN PART"
    result = verify_certificate(_file(tmp_path, _issue(key, table=table)), key=f"{key}.pub")
    assert (result.verdict, result.exit_code, words in result.files[0].in_part[0]) == ("VERIFIED IN PART", 2, True)
    assert words in verify_text(result)
    # Who has the key states more than the facts.
    wider = {**table, "verdict": "PROVEN"}
    for text in (
        _issue(key, table=wider),
        _issue(key, table=table, verdict="PROVEN"),
        _issue(key, table=wider, verdict="PROVEN IN PART"),
    ):
        result = verify_certificate(_file(tmp_path, text), key=f"{key}.pub")
        assert (result.verdict, "contradicts" in result.files[0].wrong[0]) == ("REFUSED", True)


def test_a_hostile_document_shows_nothing_but_itself(tmp_path: Path) -> None:
    evil = "t\x1b[2J\x1b[1;1H\x9b8m\r\nVERIFIED: intact, signed\u202e"
    texts = [_issue(table=_table(evil)), _issue(table=_table(name=evil)), _issue(table=_table(filter=evil))]
    texts.append(_issue(table=_table(left_out=[evil], columns=[[evil, "integer"]])))
    for number, text in enumerate(texts):
        shown = verify_text(verify_certificate(_file(tmp_path, text, f"{number}\x1b[2J.json")))
        assert all(char.isprintable() or char == "\n" for char in shown)
        first, *others = shown.splitlines()
        assert first.startswith("UNVERIFIED: ")
        assert not any(line.lstrip().startswith("VERIFIED") for line in others), shown


def test_another_key(tmp_path: Path, key: str) -> None:
    other = str(tmp_path / "other.key")
    certificate_key(other)
    result = verify_certificate(_file(tmp_path, _issue(other)), key=f"{key}.pub")
    assert (result.exit_code, "another key" in result.files[0].wrong[0]) == (1, True)
    # The signature of another key under the name of the first one.
    document, foreign = json.loads(_issue(key)), json.loads(_issue(other))
    document["signature"]["value"] = foreign["signature"]["value"]
    assert verify_certificate(_file(tmp_path, file_text(document))).exit_code == 1
    document["signature"] = foreign["signature"]
    assert verify_certificate(_file(tmp_path, file_text(document))).exit_code == 1


def test_no_signature(tmp_path: Path, key: str) -> None:
    file = _file(tmp_path, _issue())
    result = verify_certificate(file)
    assert (result.verdict, result.exit_code) == ("UNVERIFIED", 2)
    assert verify_certificate(file, key=f"{key}.pub").exit_code == 1
    document = json.loads(_issue(key))
    del document["signature"]
    assert verify_certificate(_file(tmp_path, file_text(document))).files[0].wrong == ("its signature was removed",)


def test_what_is_void_is_never_verified_as_proven(tmp_path: Path, key: str) -> None:
    result = verify_certificate(_file(tmp_path, _issue(key, reason="slot lost")), key=f"{key}.pub")
    assert (result.verdict, result.exit_code) == ("UNVERIFIED", 2)
    assert "public.t is not proven: slot lost" in result.files[0].unverified[0]
    # Who has the key states nothing, or what is equal to nothing.
    nothing = json.loads(_issue(key))["statement"] | {"tables": [], "verdict": "VOID"}
    alone = {**_table(), "nodes": _table()["nodes"][:1]}
    void = {**alone, "verdict": "VOID"}
    for text, verdict, words in (
        (_signed(key, nothing), "UNVERIFIED", "it states nothing"),
        (_issue(key, table=alone), "REFUSED", "contradicts"),
        (_issue(key, table=void), "UNVERIFIED", "fewer than two nodes"),
    ):
        result = verify_certificate(_file(tmp_path, text), key=f"{key}.pub")
        (file,) = result.files
        assert (result.verdict, words in "".join((*file.wrong, *file.unverified))) == (verdict, True), words


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_other_byte_is_refused(tmp_path: Path, key: str, data: st.DataObject) -> None:
    content = _issue(key).encode()
    place = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["replace", "insert", "delete"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    changed = {
        "replace": content[:place] + byte + content[place + 1 :],
        "insert": content[:place] + byte + content[place:],
        "delete": content[:place] + content[place + 1 :],
    }[how]
    path = tmp_path / "changed.json"
    path.write_bytes(changed)
    if changed == content:
        assert verify_certificate(str(path), key=f"{key}.pub").exit_code == 0
        return
    try:
        code = verify_certificate(str(path), key=f"{key}.pub").exit_code
    except StoreError as error:
        # Not a certificate any more.
        code = error.exit_code
    assert code in (1, 2)


@given(VALUES, VALUES)
def test_the_canonical_form_is_unique(one: Any, other: Any) -> None:
    same = canonical({"v": one}) == canonical({"v": other})
    assert same == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    assert canonical(json.loads(canonical({"v": one}).partition(b"\n")[2])) == canonical({"v": one})


def test_fractions_are_refused() -> None:
    with pytest.raises(TypeError):
        canonical({"a": 1.5})


def test_the_links_of_a_chain(tmp_path: Path, key: str) -> None:
    texts: list[str] = []
    for _ in range(3):
        texts.append(_issue(key, json.loads(texts[-1]) if texts else None))
    files = [_file(tmp_path, text, f"{number}.json") for number, text in enumerate(texts)]
    public = f"{key}.pub"
    assert verify_certificate(*files, key=public).exit_code == 0
    part = verify_certificate(*files[1:], key=public)
    assert (part.exit_code, "earlier ones were not given" in part.files[0].remarks[0]) == (0, True)
    for wrong in ([0, 2], [1, 0, 2], [0, 2, 1], [0, 0], [2, 0]):
        assert verify_certificate(*(files[number] for number in wrong), key=public).exit_code == 1, wrong
    # The second one was issued again, with another content and the same number.
    fork = _file(tmp_path, _issue(key, json.loads(texts[0]), reason="other"), "fork.json")
    assert verify_certificate(files[0], fork, files[2], key=public).exit_code == 1
    foreign = _file(tmp_path, _issue(key, json.loads(texts[0]), chain="x"), "foreign.json")
    assert "another chain" in verify_certificate(files[0], foreign, key=public).files[1].wrong[0]


def test_keys_are_private_and_never_replaced(tmp_path: Path, key: str) -> None:
    for path in (Path(key), Path(f"{key}.pub")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(ConfigError, match="exists"):
            certificate_key(str(path))
    shown = tmp_path / "shown.key"
    shown.write_bytes(Path(key).read_bytes())
    for mode in (0o640, 0o604, 0o620, 0o601):
        shown.chmod(mode)
        with pytest.raises(ConfigError, match="other users can read or write the key"):
            read_private(shown)
    for content in (Path(f"{key}.pub").read_bytes(), b"", b"not a key"):
        shown.chmod(0o600)
        shown.write_bytes(content)
        with pytest.raises(ConfigError, match="is not a private key") as refused:
            read_private(shown)
        assert "not a key" not in str(refused.value).removeprefix(str(shown))
    with pytest.raises(ConfigError, match="is not a public key"):
        read_public(Path(key))
    with pytest.raises(ConfigError, match="cannot read"):
        read_private(tmp_path / "nothing")


def test_files_that_are_no_certificate(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"statement": {}}', '{"statement": 1}', "no", '{"statement": {"format": "x"}}'):
        with pytest.raises(StoreError, match="not a certificate"):
            verify_certificate(_file(tmp_path, text))
    incomplete = file_text({"statement": {"format": FORMAT, "tables": [{}]}, "sha256": ""})
    changes: list[dict[str, Any]] = [{"rows": "x"}, {"nodes": [1]}, {"proven_at": 1}]
    parts: list[dict[str, Any]] = [{"columns": [[]]}, {"columns": [{}]}, {"left_out": [1]}]
    changes += [{"compared": {**COMPARED, **part}} for part in parts]
    odd = [_issue(table={**_table(), **change}) for change in changes]
    for text in (incomplete, *odd):
        with pytest.raises(StoreError, match="not a certificate"):
            verify_certificate(_file(tmp_path, text))


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    issued = Issued(1, "i", "2026-01-01T00:00:00.000Z", "", "PROVEN", "t", _issue())
    written = write(issued, tmp_path / "c.json")
    assert Path(written.page).read_text().count("public.t")
    with pytest.raises(StoreError, match=r"exists; .*trueup certificate show 1"):
        write(issued, tmp_path / "c.json")


def test_the_chain_of_a_store(tmp_path: Path) -> None:
    def make(last: Issued | None, chain: str) -> Issued:
        number = last.number + 1 if last else 1
        return Issued(number, f"id {number}", "", f"hash of {chain or 'the first'}", "PROVEN", "", "")

    with TaskStore(tmp_path / "tasks.db") as store:
        assert [store.issue(make).sha256 for _ in range(2)] == ["hash of the first", "hash of id 1"]
        assert [each.number for each in store.issued()] == [1, 2]
        with pytest.raises(StoreError, match="does not exist"):
            store.certificate(3)
