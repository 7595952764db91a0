"""The sink of a search index, through the HTTP bulk API of Elasticsearch and OpenSearch.

A document is the row as a JSON object with some members of trueup: its source and its mark. Requests have a limited
size; if one of them fails, the whole batch is repeated.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, ClassVar
from urllib.parse import SplitResult

from trueup.db.names import parse_table_name
from trueup.errors import CheckFailed, ConfigError
from trueup.sinks.base import Document, Identity, Mark, Shards, SinkDown, SinkRejected, SourceTable
from trueup.sinks.documents import JsonRows
from trueup.sinks.http import HttpServer, exact_json
from trueup.sinks.keys import NEWEST, Place, Template, fixed_shard, key_parts, key_text
from trueup.sinks.once import Once
from trueup.sinks.options import Options

_log = logging.getLogger(__name__)

# Maximum bytes of a document id.
_LONGEST = 512
_LARGEST_PAGE = 10_000
_LISTED = 2_000
MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "trueup_table": {"type": "keyword"},
    "trueup_shard": {"type": "long"},
    # The key as one text, for the order of pages, and its parts.
    "trueup_name": {"type": "keyword"},
    "trueup_key": {"type": "keyword", "index": False, "doc_values": False},
    "trueup_seq": {"type": "long"},
    "trueup_at": {"type": "date"},
}


class BulkSink:
    """Indexes of a search cluster."""

    driver_only: ClassVar[bool] = False
    splits_shards: ClassVar[bool] = True

    def __init__(self, parts: SplitResult, options: Options, environment: Mapping[str, str] = os.environ) -> None:
        prefix, _, self._index = parts.path.rstrip("/").rpartition("/")
        if not self._index:
            raise ConfigError("the address of the search sink has no index", cure="write http://host:9200/index")
        self._id = Template(options.text("id", "{key}"))
        self._moves = options.yes_no("moves", True)
        self._most_bytes = options.number("bytes", 5_000_000, least=1)
        self._refresh = options.choice("refresh", "false", "true", "wait_for")
        insecure = options.yes_no("insecure", False)
        options.end()
        self._server = HttpServer.from_address(parts, prefix, environment, insecure=insecure)
        self._tables: dict[str, tuple[str, SourceTable]] = {}
        self._warns = Once()

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the indexes with the types of our members."""
        self.know(tables)
        for index in dict.fromkeys(index for index, _ in self._tables.values()):
            with self._errors():
                self._make(index)
        self.close()

    def know(self, tables: Sequence[SourceTable]) -> None:
        """Find the indexes of tables; create nothing."""
        shared: dict[str, list[SourceTable]] = {}
        for source in tables:
            schema, table = (part.text for part in parse_table_name(source.table))
            shared.setdefault(self._index.format(schema=schema, table=table), []).append(source)
        for sources in shared.values():
            self._id.check(sources, moves=self._moves)
        self._tables = {source.table: (index, source) for index, sources in shared.items() for source in sources}

    def differing(self, batch: Sequence[Document]) -> dict[Identity, str]:
        """Read the documents of a batch by their ids, as they were last written."""
        if not batch:
            return {}
        rows = {table: JsonRows(self._tables[table][1]) for table in {document.table for document in batch}}
        wanted = [{"_index": self._tables[document.table][0], "_id": self._name(document)} for document in batch]
        with self._errors():
            answer = self._server.ask("POST", "/_mget", json.dumps({"docs": wanted}).encode())
            found = answer.expect(200, exact=True)["docs"]
        wrong: dict[Identity, str] = {}
        for document, stored in zip(batch, found, strict=True):
            if "error" in stored:
                raise SinkDown(f"{self._server}: {_item_reason({**stored, 'status': 0})}", cure="check the index")
            own = stored["_source"] if stored.get("found") else None
            body = None if own is None else {name: value for name, value in own.items() if name not in MEMBERS}
            known = None if document.row is None else self._document(document.row, rows[document.table])
            if body != known:
                wrong[document.identity] = "extra" if known is None else "missing" if body is None else "changed"
        return wrong

    def _document(self, row: Mapping[str, Any], rows: JsonRows) -> Any:
        """Return the members of a row as they are read back."""
        return exact_json(rows.text({name: value for name, value in row.items() if name not in MEMBERS}))

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Send requests of limited size, then raise SinkRejected with all refused documents."""
        rows = {table: JsonRows(self._tables[table][1]) for table in {document.table for document in batch}}
        refused: dict[Identity, str] = {}
        part: list[tuple[Document, bytes]] = []
        size = 0
        with self._errors():
            for document in batch:
                lines = self._lines(document, rows[document.table], mark)
                if part and size + len(lines) > self._most_bytes:
                    self._send(part, refused)
                    part, size = [], 0
                part.append((document, lines))
                size += len(lines)
            self._send(part, refused)
        if refused:
            first = next(iter(refused.values()))
            raise SinkRejected(f"{len(refused):,} documents were refused, first reason: {first}", reasons=refused)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return a page found by a search, after a refresh that makes all writes visible."""
        index, source = self._tables[table]
        fixed = fixed_shard(shards, routed=source.routed and self._moves)
        old = [{"range": {"trueup_seq": {"lt": start_seq}}}, {"range": {"trueup_at": {"lt": _time(started_at)}}}]
        filters: list[Any] = [
            {"term": {"trueup_table": table}},
            {"bool": {"should": old, "minimum_should_match": 1}},
        ]
        if fixed is None and shards != "all":
            filters.append({"terms": {"trueup_shard": list(shards)}})
        with self._errors():
            if after is None:
                self._server.ask("POST", f"/{index}/_refresh").expect(200)
            places = self._page(index, filters, after, limit)
        return [(shard if fixed is None else fixed, key) for shard, key in places]

    def listed(self, table: str, shards: Shards) -> Iterator[Sequence[Place]]:
        """Search the documents of the table, and those without our members, whose ids are those of the table."""
        after = None
        while page := self.older(table, shards, *NEWEST, after, _LISTED):
            yield page
            after = page[-1][1]
        index, source = self._tables[table]
        query = {"bool": {"must_not": [{"exists": {"field": "trueup_table"}}]}}
        body = {"size": _LISTED, "query": query, "sort": ["_doc"], "_source": False}
        with self._errors():
            hits = self._server.ask("POST", f"/{index}/_search", json.dumps(body).encode()).expect(200)["hits"]["hits"]
        default, pattern = 0 if shards == "all" else next(iter(shards), 0), self._id.pattern(table)
        found = [fields for hit in hits if (fields := pattern.fullmatch(hit["_id"]))]
        places = [
            (int(fields["shard"]) if "shard" in fields.groupdict() else default, key)
            for fields in found
            if (key := key_parts(fields["key"], len(source.key)))
        ]
        if places:
            yield places
        if len(hits) == _LISTED:
            raise CheckFailed(
                [f"index {index} has {_LISTED:,} documents of other programs, or more: not all were looked at"],
                cure="delete them, or let the tube write to an index of its own",
            )

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    # Writing a batch.

    def _lines(self, document: Document, rows: JsonRows, mark: Mark) -> bytes:
        action = {"_index": self._tables[document.table][0], "_id": self._name(document)}
        if document.row is None:
            return json.dumps({"delete": action}).encode() + b"\n"
        members = {
            "trueup_table": document.table,
            "trueup_shard": document.shard,
            "trueup_name": _short(key_text(document.key)),
            "trueup_key": list(document.key),
            "trueup_seq": mark.seq,
            "trueup_at": _time(mark.at),
        }
        body = rows.text({name: value for name, value in document.row.items() if name not in MEMBERS}, **members)
        return json.dumps({"index": action}).encode() + b"\n" + body.encode() + b"\n"

    def _name(self, document: Document) -> str:
        return _short(self._id.name(document.table, document.shard, document.key))

    def _send(self, part: Sequence[tuple[Document, bytes]], refused: dict[Identity, str]) -> None:
        if not part:
            return
        body = b"".join(lines for _, lines in part)
        answer = self._server.ask("POST", f"/_bulk?refresh={self._refresh}", body, kind="application/x-ndjson")
        if answer.status in (400, 413):
            # An error of the whole request: find the document by halving.
            if len(part) == 1:
                refused[part[0][0].identity] = answer.reason
                return
            half = len(part) // 2
            self._send(part[:half], refused)
            self._send(part[half:], refused)
            return
        items = answer.expect(200)["items"]
        for (document, _), item in zip(part, items, strict=True):
            (action, result), *_ = item.items()
            status = int(result["status"])
            if status < 300 or (action == "delete" and status == 404):
                continue
            if status in (401, 403, 429) or status >= 500:
                raise SinkDown(
                    f"{self._server}: {_item_reason(result)}",
                    cure="wait until the cluster is less busy; the batch is repeated",
                )
            refused[document.identity] = _item_reason(result)

    # Finding older documents.

    def _page(self, index: str, filters: list[Any], after: tuple[str, ...] | None, limit: int) -> list[Place]:
        """Search until the page is full and contains all shards of its last key."""
        query: dict[str, Any] = {
            "size": min(limit + 1, _LARGEST_PAGE),
            "query": {"bool": {"filter": filters}},
            "sort": [{"trueup_name": "asc"}, {"trueup_shard": "asc"}],
            "_source": ["trueup_shard", "trueup_key"],
        }
        places: list[Place] = []
        edge: list[Any] | None = None
        if after is not None:
            filters.append({"range": {"trueup_name": {"gt": _short(key_text(after))}}})
        while True:
            body = {**query, **({"search_after": edge} if edge else {})}
            hits = self._server.ask("POST", f"/{index}/_search", json.dumps(body).encode()).expect(200)["hits"]["hits"]
            for hit in hits:
                place = int(hit["_source"]["trueup_shard"]), tuple(hit["_source"]["trueup_key"])
                if len(places) >= limit and place[1] != places[-1][1]:
                    return places
                places.append(place)
            if len(hits) < query["size"]:
                return places
            edge = hits[-1]["sort"]

    def _make(self, index: str) -> None:
        mapping = {"properties": MEMBERS}
        made = self._server.ask("PUT", f"/{index}", json.dumps({"mappings": mapping}).encode())
        if made.status == 400 and "already_exists" in made.reason:
            made = self._server.ask("PUT", f"/{index}/_mapping", json.dumps(mapping).encode())
        if made.status == 400:
            raise CheckFailed(
                [f"the index {index} cannot store the documents: {made.reason}"], cure="use another index"
            )
        made.expect(200)
        if self._warns(index):
            self._warn_unsafe(index)

    def _warn_unsafe(self, index: str) -> None:
        """Log a warning if the cluster confirms documents before they are on the disk."""
        answer = self._server.ask("GET", f"/{index}/_settings?flat_settings=true")
        if answer.status != 200:
            # The role has no right to read the settings.
            return
        indexes = [found for found in answer.expect(200).values() if isinstance(found, dict)]
        if any(found.get("settings", {}).get("index.translog.durability") == "async" for found in indexes):
            _log.warning(
                "the index %s has index.translog.durability = async: a crash can lose documents that were acknowledged;"
                " set it to request, or run a backfill after a crash",
                index,
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise SinkDown(
                f"{self._server}: {error or type(error).__name__}",
                cure="check that it is running, and check its address",
            ) from None


def _short(name: str) -> str:
    """Return a name, or its hash if it is too long."""
    data = name.encode()
    return name if len(data) <= _LONGEST else "sha256:" + hashlib.sha256(data).hexdigest()


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _item_reason(result: Mapping[str, Any]) -> str:
    error = result.get("error")
    if isinstance(error, dict):
        cause = error.get("caused_by") or {}
        texts = [str(text) for text in (error.get("reason"), cause.get("reason")) if text]
        return ": ".join(texts) or str(error.get("type"))
    return str(error or f"status {result['status']}")
