"""The demo of a proof: certificates, a proof in seconds, rows changed on the replica, and what voids a certificate."""

from __future__ import annotations

import time

from trueup.api.validate import Validation
from trueup.demo.background import TIMEOUT, in_background, wait_until
from trueup.demo.validate import TABLE, Log, replicated, running, write
from trueup.verbs.validate.proving.prove import Proof, proof_text
from trueup.verbs.validate.status import Status, status_text


def run(*, rows: int, seconds: float, say: Log) -> list[Proof]:
    """Start two servers with native replication between them; return the proofs that were shown."""
    with replicated(rows, say) as (up, down):
        validation = Validation("demo", nodes={"n1": up.uri, "n2": down.uri})
        validation.create(
            source="n1", target="n2", tables=(TABLE,), check_interval=0.5, both_sides=True, scrub_share=0.0
        )
        proofs: list[Proof] = []

        def prove(expected: str) -> None:
            wait_until(lambda: validation.prove(timeout=TIMEOUT).verdict == expected)
            proofs.append(validation.prove(timeout=TIMEOUT))
            say(proof_text(proofs[-1]))

        with running(validation, say), in_background(lambda stop: write(up, rows, stop)):
            say("trueup prove --validation demo, at once: the rows are not compared yet")
            proofs.append(validation.prove(timeout=TIMEOUT))
            say(proof_text(proofs[-1]))
            validation.update(scrub_share=0.5)
            say("trueup prove, when the scrub has hashed all blocks; the load goes on")
            prove("MATCH")
            time.sleep(seconds / 3)
            say("a row of n2 is changed by hand")
            down.execute("UPDATE customers SET name = 'changed by hand' WHERE id = 10")
            prove("DIFFER")
            for error in validation.errors():
                say(f"  {error.source} ({', '.join(error.key)}) {error.kind} in {', '.join(error.columns)}")
            say("the row is put back, and the table of n2 is written again without row changes in the log")
            good = up.execute("SELECT name FROM customers WHERE id = 10")[0][0]
            down.execute("UPDATE customers SET name = %s WHERE id = 10", [good])
            prove("MATCH")
            # Without a scrub, the certificate stays void; the process learns of the new share in its next round.
            validation.update(scrub_share=0.0)
            down.execute("VACUUM FULL customers")
            say(status_text(_void_status(validation)))
            validation.update(scrub_share=0.5)
            say("the scrub hashes all blocks again")
            prove("MATCH")
        return proofs


def _void_status(validation: Validation) -> Status:
    """Wait until the certificate is void, and return that status: a scrub that still runs may renew it at once."""
    statuses: list[Status] = []

    def is_void() -> bool:
        statuses[:] = [validation.status()]
        certificate = statuses[0].tables[0].certificate
        return certificate is not None and certificate["void"] is not None

    wait_until(is_void)
    return statuses[0]
