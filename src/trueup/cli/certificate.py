"""`trueup certificate`: issue signed statements of what was proven, and verify them offline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from trueup.cli.options import inline_nodes, node_options_of_a_report, option, repeated, shared
from trueup.cli.output import echo, echo_json, show, write_json
from trueup.cli.validate_options import META
from trueup.errors import ConfigError


class _IssueByDefault(click.Group):
    """A group in which `trueup certificate TABLE` means `trueup certificate issue TABLE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["issue", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_IssueByDefault)
def certificate() -> None:
    """State in a signed document what was proven, and verify such documents offline.

    \b
    Examples:
      trueup certificate keygen --output trueup.key
      trueup certificate public.orders --validation shop --sign trueup.key
      trueup certificate verify certificate-1.json --key trueup.key.pub

    `trueup certificate TABLE` is short for `trueup certificate issue TABLE`.
    """


@certificate.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@option("--validation", "NAME", "State what this validation has proven. [default: all of its tables]", "")
@repeated("--task", "ID", "State what this diff or check has proven; can be repeated.", key="tasks")
@option("--sign", "KEYFILE", "Sign it with this private key, which only its owner can read.", "")
@option("--output", "FILE", "Write the JSON document to this new file, and the page beside it.", "")
@META
@node_options_of_a_report
@shared("json", "task_db")
def issue(tables: tuple[str, ...], **options: Any) -> int:
    """Write a statement of what was proven for each TABLE, as a JSON document and an HTML page.

    \b
    Examples:
      trueup certificate issue public.orders public.customers --validation shop --sign trueup.key
      trueup certificate issue --task 3f9a --output orders.json

    Exit codes: 0 all tables are stated as proven, 2 an error, or a table is stated as void or as proven in part.
    """
    from trueup.api.certificate import certify
    from trueup.verbs.certificate.text import certificate_text

    as_json = options.pop("as_json")
    inline = inline_nodes(options.pop("inline"))
    result = certify(tables, nodes=inline or None, **options)
    show(result.as_json(), certificate_text(result), as_json=as_json)
    return result.exit_code


@certificate.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@option("--key", "PUBLIC", "File of the public key of the issuer.", "", key="public")
@option("--fingerprint", "DIGITS", "Fingerprint of the public key of the issuer, instead of --key.", "")
@shared("json")
def verify(files: tuple[str, ...], public: str, fingerprint: str, as_json: bool) -> int:
    """Verify certificates without any connection; several FILEs are links of one chain, the oldest first.

    \b
    Examples:
      trueup certificate verify certificate-7.json --key trueup.key.pub
      trueup certificate verify certificate-1.json certificate-2.json --key trueup.key.pub

    Exit codes: 0 intact, signed with this key, and all tables are proven; 1 changed, signed with another key, or not
    the next link of the chain; 2 not signed, no key or fingerprint was given, a table is not proven or only in part, or
    the file cannot be read.
    """
    from trueup.api.certificate import verify_certificate
    from trueup.verbs.certificate.text import verify_text

    result = verify_certificate(*files, key=public, fingerprint=fingerprint)
    show(result.as_json(), verify_text(result), as_json=as_json)
    return result.exit_code


@certificate.command()
@option("--output", "FILE", "Write the private key to this new file, and the public key beside it as FILE.pub.", "")
def keygen(output: str) -> None:
    """Make a key pair (Ed25519) that only its owner can read.

    \b
    Examples:
      trueup certificate keygen --output trueup.key
    """
    from pathlib import Path

    from trueup.api.certificate import certificate_key
    from trueup.verbs.certificate.keys import fingerprint, public_text, read_public

    if not output:
        raise ConfigError("--output is missing", cure="name the file of the private key")
    public = certificate_key(output)
    name = fingerprint(public_text(read_public(Path(public))))
    echo(f"private key: {output}\npublic key: {public}\nfingerprint: {name}")


@certificate.command(name="list")
@shared("config", "json", "task_db")
def list_(as_json: bool, **options: Any) -> None:
    """List the certificates that were issued, the oldest first.

    \b
    Examples:
      trueup certificate list
    """
    from trueup.api.certificate import issued_certificates
    from trueup.verbs.certificate.text import issued_text

    issued = issued_certificates(**options)
    if as_json:
        echo_json([asdict(each) for each in issued])
    elif issued:
        echo(issued_text(issued))
    else:
        echo("no certificate was issued yet", err=True)


@certificate.command(name="show")
@click.argument("number", type=int, metavar="NUMBER")
@option("--output", "FILE", "Write the JSON document to this new file, and the page beside it.", "")
@shared("config", "task_db")
def show_(number: int, output: str, **options: Any) -> None:
    """Print the certificate NUMBER that was issued, or write its files again.

    \b
    Examples:
      trueup certificate show 7
      trueup certificate show 7 --output certificate-7.json
    """
    from trueup.api.certificate import issued_certificates, write_certificate
    from trueup.verbs.certificate.text import certificate_text

    if output:
        echo(certificate_text(write_certificate(number, output, **options)))
        return
    known = {each.number: each for each in issued_certificates(**options)}
    if number not in known:
        raise ConfigError(f"certificate {number} does not exist", cure="list them with: trueup certificate list")
    write_json([known[number].document])
