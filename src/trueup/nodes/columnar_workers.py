"""Compute digests of parts of local files: in threads or, if rows are hashed by md5, in processes.

A loop over md5 of many rows holds Python's lock.

A process is started by name, and not with multiprocessing, which would run the main module of the user's program again.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import IO, Any

from trueup.engine.slots import cores_here
from trueup.errors import EngineError, Interrupted, TrueupError
from trueup.nodes.block_digests import BlockDigests
from trueup.nodes.parquet_parts import Part, Work

# Rows for which the start of a process pays.
_ROWS = 1_000_000
Answer = tuple[BlockDigests, int]


def digests_of(work: Work, parts: Sequence[Part], stop: threading.Event, *, workers: int = 0) -> Iterator[Answer]:
    """Yield the digests of each part, and how many of its rows have NULL in the key. `workers`: 0 by the cores."""
    if work.is_short:
        yield from _in_threads(work, parts, stop, workers or min(cores_here(), len(parts)))
        return
    # One core is for the other nodes, and for this process.
    workers = workers or min(cores_here() - 1, len(parts), sum(part.rows for part in parts) // _ROWS)
    if workers > 1:
        yield from _in_processes(work, parts, stop, workers)
        return
    for part in parts:
        _check(stop, work)
        yield work.digests(part)


def _check(stop: threading.Event, work: Work) -> None:
    if stop.is_set():
        raise Interrupted("the run was stopped", node=work.node)


def _in_threads(work: Work, parts: Sequence[Part], stop: threading.Event, workers: int) -> Iterator[Answer]:
    def digests(part: Part) -> Answer:
        _check(stop, work)
        return work.digests(part)

    # An error stops the others: the first in the order of the parts is raised.
    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="trueup-files") as pool:
        futures = [pool.submit(digests, part) for part in sorted(parts, key=lambda part: -part.rows)]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_processes(work: Work, parts: Sequence[Part], stop: threading.Event, workers: int) -> list[Answer]:
    waiting: SimpleQueue[Part] = SimpleQueue()
    # Large parts first, so that all processes end at about the same time.
    for part in sorted(parts, key=lambda part: -part.rows):
        waiting.put(part)

    def run(_: int) -> list[Answer]:
        command = [sys.executable, "-m", "trueup.nodes.columnar_workers"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                return _asked(process, work, waiting, stop)
            except BaseException:
                stop.set()
                process.kill()
                raise

    with ThreadPoolExecutor(workers, thread_name_prefix="trueup-files") as pool:
        futures = [pool.submit(run, number) for number in range(workers)]
        # An error of one process stops the others: the first error that is not that is the reason.
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise next((error for error in errors if not isinstance(error, Interrupted)), errors[0])
        return [answer for future in futures for answer in future.result()]


def _asked(
    process: subprocess.Popen[bytes], work: Work, waiting: SimpleQueue[Part], stop: threading.Event
) -> list[Answer]:
    assert process.stdin is not None
    assert process.stdout is not None
    answers: list[Answer] = []
    try:
        _send(process.stdin, work)
        while True:
            _check(stop, work)
            try:
                part = waiting.get_nowait()
            except Empty:
                process.stdin.close()
                return answers
            _send(process.stdin, part)
            answer = pickle.load(process.stdout)
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
    except (EOFError, OSError, pickle.UnpicklingError):
        message = "a process that reads files has ended"
        raise EngineError(message, cure="check the free memory, and run again", node=work.node) from None


def _send(pipe: IO[bytes], value: object) -> None:
    pickle.dump(value, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Compute the digests of the parts that are sent, until the pipe is closed."""
    work: Work = pickle.load(requests)
    while True:
        try:
            part = pickle.load(requests)
        except EOFError:
            return
        answer: Any
        try:
            answer = work.digests(part)
        except TrueupError as error:
            answer = error
        except Exception as error:
            answer = EngineError(f"{part.path}: {type(error).__name__}: {error}", node=work.node)
        _send(answers, answer)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
