"""Passwords are in no repr, no masked text and no error."""

from __future__ import annotations

import json
import re
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trueup.config.address import join, parse
from trueup.config.load import load
from trueup.config.model import Config, Node
from trueup.config.secrets import mask, secrets_of
from trueup.errors import ConfigError

# Three markers with anything between them: a marker in an output reveals a part of a password.
MARKS = ("Kxq", "Wvj", "Zjy")
ODD = st.text(alphabet="@/:#?%&='\"\\ ${}[];,\n\tée€0^+-", max_size=5) | st.text(max_size=3)
PASSWORDS = st.tuples(ODD, ODD, ODD, ODD).map(
    lambda odd: f"{odd[0]}{MARKS[0]}{odd[1]}{MARKS[1]}{odd[2]}{MARKS[2]}{odd[3]}".replace("\0", "")
)
UNBROKEN = PASSWORDS.map(lambda password: re.sub(r"(?a)\s", "", password))
thorough = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def conninfos(password: str) -> list[str]:
    """Generate conninfo texts with a password, quoted correctly or not."""
    encoded = quote(password, safe="")
    return [
        f"postgresql://u:{password}@h/db",
        f"postgresql://u:{password}@h:5432/db?sslmode=require",
        f"postgresql://u:{encoded}@h/db",
        f"postgresql://u@h/db?password={encoded}&application_name=x",
        f"postgresql://u@h/db?sslpassword={encoded}",
        f"postgresql://u@h/db?password={password}",
        f"host=h password={password} dbname=db",
        f"host=h password='{password}",
        f"host=h password='{password}' dbname=db",
        join({"host": "h", "password": password, "sslpassword": password}),
    ]


def assert_hidden(text: str) -> None:
    for mark in MARKS:
        assert mark not in text, text


def shown(error: ConfigError) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + error.cure + repr(error.__context__)


@thorough
@given(PASSWORDS)
def test_objects_and_errors_do_not_show_it(password: str) -> None:
    for conninfo in conninfos(password):
        try:
            config = load(nodes={"n1": conninfo}, env={})
        except ConfigError as error:
            # The traceback quotes the source line, which contains no password.
            assert_hidden(shown(error))
        else:
            assert_hidden(f"{config} {config!r} {asdict(config.nodes['n1'])}")
        assert_hidden(f"{Node('n1', conninfo)!r} {Config(nodes={'n1': Node('n1', conninfo)})}")


@thorough
@given(PASSWORDS)
def test_describe_shows_no_password(password: str) -> None:
    encoded = quote(password, safe="")
    for conninfo in [
        f"postgresql://u:{password}@h/db",
        f"postgresql://u:{encoded}@h/db",
        f"postgresql://u@h/db?password={encoded}",
        join({"host": "h", "password": password, "sslpassword": password}),
    ]:
        assert_hidden(Node("n1", conninfo).describe())


# In a file, a password that contains ${NAME} refers to a variable, and the error names the variable.
@thorough
@given(PASSWORDS.filter(lambda password: "${" not in password))
def test_an_address_in_a_file(tmp_path: Path, password: str) -> None:
    file = tmp_path / "trueup.toml"
    for conninfo in conninfos(password):
        for text in (json.dumps(conninfo), f'"{conninfo}"', f"'{conninfo}'", conninfo):
            file.write_text(f"[nodes]\nn1 = {text}", encoding="utf-8", errors="replace")
            try:
                config = load(str(file), env={})
            except ConfigError as error:
                assert_hidden(shown(error))
            else:
                # A line break that is not escaped starts another key, and the names of nodes are shown.
                if set(config.nodes) == {"n1"}:
                    assert_hidden(f"{config} {config.warnings}")


@thorough
@given(PASSWORDS)
def test_a_table_keeps_the_password_as_it_is(tmp_path: Path, password: str) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text('[nodes.n1]\nhost = "h"\npassword = "${PW}"')
    node = load(str(file), env={"PW": password}).nodes["n1"]
    assert parse(node.conninfo)[0]["password"] == password


@thorough
@given(PASSWORDS)
@example(f'""{MARKS[0]}{MARKS[1]}\\ {MARKS[2]}')
def test_mask_with_the_secrets_of_the_node(password: str) -> None:
    for conninfo in conninfos(password):
        node = Node("n1", conninfo)
        secrets = secrets_of(node)
        assert_hidden(mask(f'connection to "{conninfo}" failed', *secrets))
        params, wrong = parse(conninfo)
        if not wrong and params.get("password") == password:
            forms = f"{password} | {password!r} | {quote(password)} | {json.dumps(password)}"
            assert_hidden(mask(f"FATAL: {forms} is wrong", *secrets))


@thorough
@given(UNBROKEN)
def test_mask_without_knowing_the_secrets(password: str) -> None:
    encoded = quote(password, safe="")
    libpq = join({"host": "h", "password": password})
    for conninfo in [
        f"postgresql://u:{password}@h/db",
        f"postgres://u:{encoded}@h",
        f"postgresql://u@h/db?password={encoded}&x=y",
        libpq,
    ]:
        assert_hidden(mask(f'error: "{conninfo}" is wrong\nnext line'))


@thorough
@given(PASSWORDS)
def test_mask_of_quoted_keywords(password: str) -> None:
    assert_hidden(mask(f"error: {join({'password': password, 'host': 'h'})} is wrong"))


@thorough
@given(st.text(), st.lists(st.text()))
def test_mask_never_fails(text: str, secrets: list[str]) -> None:
    masked = mask(text, *secrets)
    for secret in secrets:
        assert len(secret) < 3 or secret not in masked or set(secret) <= {"*"} or "*" in secret


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:pw@h/db", "postgresql://u:***@h/db"),
        ("at postgresql://u:p@w/x#y:z@h/db now", "at postgresql://u:***@h/db now"),
        ("postgresql://u:p w@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:a@b c@h/db", "postgresql://u:***@h/db"),
        ("postgresql://bob@corp:pw@h/db", "postgresql://bob@corp:***@h/db"),
        ("postgresql://u:a@h/d postgres://v:b@i/e", "postgresql://u:***@h/d postgres://v:***@i/e"),
        ("postgresql+psycopg://u:pw@h/db", "postgresql+psycopg://u:***@h/db"),
        ("postgresql://u:1@h/db", "postgresql://u:***@h/db"),
        ("password=x host=h", "password=*** host=h"),
        ("password=a&b host=h", "password=*** host=h"),
        ("password = 'a b\\'c' host=h", "password = *** host=h"),
        ("PGPASSWORD=x psql", "PGPASSWORD=*** psql"),
        ("sslpassword=x", "sslpassword=***"),
        (
            "postgresql://h/db?password=x&sslpassword=y&a=b",
            "postgresql://h/db?password=***&sslpassword=***&a=b",
        ),
        ("{'password': 'a b', 'host': 'h'}", "{'password': *** 'host': 'h'}"),
        ('password = "a b" # my own', "password = *** # my own"),
        ('password="a"\\b host=h', "password=*** host=h"),
        ("sc://h:15002/;token=abc;user_id=x", "sc://h:15002/;token=***;user_id=x"),
        ("Authorization: Bearer abc.def\nHost: h", "Authorization: ***\nHost: h"),
        ("curl -H 'proxy-authorization: Basic YWJj' h", "curl -H 'proxy-authorization: ***' h"),
        ("{'Authorization': 'ApiKey abc=='}", "{'Authorization': ***"),
        ("X-ClickHouse-Key: abc", "X-ClickHouse-Key: ***"),
        ("refused: bearer eyJhbGciOi1 expired", "refused: bearer *** expired"),
        ("api_key=abc apikey = abc", "api_key=*** apikey = ***"),
        ("https://h/?api-key=abc&x=y", "https://h/?api-key=***&x=y"),
        ("host=h pwd=abc", "host=h pwd=***"),
        ("passphrase='a b' x", "passphrase=*** x"),
        ("fs.s3a.access.key=abc fs.s3a.secret.key=def", "fs.s3a.access.key=*** fs.s3a.secret.key=***"),
        ("AccountKey=abc==", "AccountKey=***"),
        ("password: abc", "password: ***"),
        ("user: bob\npassword: a:b/c\nhost: h", "user: bob\npassword: ***\nhost: h"),
        ("{user: bob, db_password: abc, host: h}", "{user: bob, db_password: ***, host: h}"),
        ('password: "a b"', "password: ***"),
        ("spark.hadoop.fs.s3a.secret.key: abc", "spark.hadoop.fs.s3a.secret.key: ***"),
        ("nodes.n1.password: abc\nhost: h", "nodes.n1.password: ***\nhost: h"),
        ("abfss://c/x?sv=1&sig=a%2Bb%3D&se=2", "abfss://c/x?sv=1&sig=***&se=2"),
        (
            "https://b.s3/x?X-Amz-Credential=AKIA/1&X-Amz-Signature=abc",
            "https://b.s3/x?X-Amz-Credential=***&X-Amz-Signature=***",
        ),
        ("https://ghp_abc@host/x and HTTP://abc@h", "https://***@host/x and HTTP://***@h"),
    ],
)
def test_texts_that_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "password authentication failed for user bob@corp",
        "postgresql://bob@h:5432/db is down, ask admin@example.com",
        "postgresql://h:5432/db is down, ask admin@example.com",
        "postgresql://u:***@h/db: no such user bob@corp",
        "see https://example.com: write to a@b",
        "postgresql://[::1]:5432/db",
        "the bearer of this message: the key of the row",
        "trueup.toml: nodes.n3.password: the environment variable N3_PASSWORD is not set",
        "https://h/x?signal=1&design=2",
        "see https://example.com/@name and https://example.com?x=a@b",
    ],
)
def test_texts_that_are_not_masked(text: str) -> None:
    assert mask(text) == text


def test_the_text_behind_a_uri_stays_readable() -> None:
    text = 'postgresql://u:pw@h/db: password authentication failed for user "bob@corp"'
    assert mask(text) == text.replace("pw", "***", 1)


def test_given_secrets() -> None:
    assert mask("the word abc, a%20b%2F and 'a b/'", "abc", "a b/") == "the word ***, *** and '***'"
    # Masking two characters everywhere would garble the text; in the place of a password they are masked.
    assert mask("an apple, password=an", "an") == "an apple, password=***"
    assert mask("abcdef", "abc", "abcdef", "cde") == "***"


@pytest.mark.parametrize(
    "text",
    [
        "x://" * 100_000,
        "x://" * 100_000 + "@",
        "x://a:b@c " * 20_000,
        "a." * 200_000,
        # Each of these took minutes when every match was searched to the end of the text.
        "http://h:80/," * 50_000 + "a@b",
        "password=" * 60_000,
        "password='" * 60_000,
        "'password':'" * 60_000,
        "authorization:" * 50_000,
        "password: " * 60_000,
        "a_" * 200_000,
        "a_password: b " * 40_000,
        "http://" * 100_000,
        "https://a@" * 60_000,
        "?sig=" * 100_000,
    ],
    ids=lambda text: text[:15],
)
def test_masking_of_long_texts_is_fast(text: str) -> None:
    start = time.perf_counter()
    mask(text, "secret")
    assert time.perf_counter() - start < 10


def test_secrets_of() -> None:
    assert secrets_of(Node("n", "postgresql://u:a%40b@h/db?sslpassword=xyz")) == ("a@b", "xyz", "a%40b")
    assert secrets_of(Node("n", "host=h password='a b'")) == ("a b",)
    assert secrets_of(Node("n", "service=x")) == ()
    assert "p@w/x" in secrets_of(Node("n", "postgresql://u:p@w/x@h/db"))


@pytest.mark.parametrize(
    ("conninfo", "reason"),
    [
        ("postgresql://u:hunter2%zz@h/db", "% is not followed by two hex digits"),
        ("postgresql://u:hunter2 x@h/db", "it contains a space"),
        ("postgresql://u:%00hunter2@h/db", "it contains %00"),
        ("postgresql://u:hunter2@[::1/db", 'the "]" of an IPv6 address is missing'),
        ("postgresql://u:hunter2@[]/db", "the IPv6 address is empty"),
        ("postgresql://u:hunter2@[::1]x/db", 'after the "]" of an IPv6 address'),
        ("postgresql://u@h/db?pasword=hunter2", "contains a keyword that libpq does not know"),
        ("postgresql://u@h/db?hunter2", 'the part after "?"'),
        ("postgresql://u@h/db?password=a=hunter2", 'the part after "?"'),
        ("postgresql://u:a@hunter2@h/db", "must be percent-encoded"),
        ("postgresql://u:hunter2/x@h/db", "must be percent-encoded"),
        ("postgresql://u:12/hunter2@h/db", "must be percent-encoded"),
        ("oracle://u:hunter2@h/db", "it must start with postgresql://"),
        ("hunter2", "keyword=value"),
        ("password='hunter2", "a quote is not closed"),
        ("password=x hunter2=y", "a keyword that libpq does not know"),
        ("port=hunter2", "the port is not a number"),
        ("password=hunter2\0", "it contains a NUL character"),
        ("password=hunter2\udcff", "it is not UTF-8"),
        (" ", "it is empty"),
    ],
)
def test_addresses_that_libpq_cannot_read(conninfo: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(nodes={"n1": conninfo}, env={})
    assert str(caught.value).startswith("--node n1: invalid address: ")
    assert reason in str(caught.value)
    assert "hunter2" not in shown(caught.value)
    assert caught.value.__context__ is None


def test_a_node_name_that_is_an_address() -> None:
    # `--node` without a name, cut at its first "=".
    given = {"postgresql://u:hunter2@h/db?sslmode": "require"}
    with pytest.raises(ConfigError) as caught:
        load(nodes=given, env={})
    assert "hunter2" not in shown(caught.value)
