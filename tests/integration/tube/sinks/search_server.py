"""A small search server: stores documents, and answers the requests of the sink like Elasticsearch.

    python search_server.py PORT API_KEY [LARGEST_REQUEST]

Numbers of a document's member `n` must be numbers, as in a mapping. A document with the text `busy` is answered
with 429 the first time.
"""

from __future__ import annotations

import http.server
import json
import sys
from typing import Any

INDEXES: dict[str, dict[str, dict[str, Any]]] = {}
BUSY: set[str] = set()
LOGIN = ""
LARGEST = 1 << 30


def refused(kind: str, reason: str, status: int) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"type": kind, "reason": reason}, "status": status}


def bulk(body: bytes) -> tuple[int, Any]:
    if len(body) > LARGEST:
        return refused("too_large", "request entity too large", 413)
    lines = body.decode().split("\n")
    assert lines.pop() == ""
    items = []
    while lines:
        (action, where), *_ = json.loads(lines.pop(0)).items()
        assert len(where["_id"].encode()) <= 512
        documents = INDEXES.setdefault(where["_index"], {})
        if action == "delete":
            found = documents.pop(where["_id"], None)
            items.append({"delete": {**where, "status": 404 if found is None else 200}})
            continue
        text = lines.pop(0)
        row = json.loads(text)
        result: dict[str, Any] = {**where, "status": 201}
        if not isinstance(row.get("n"), (int, float, type(None))):
            result |= {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "failed to parse [n]"}}
        elif row.get("busy") and where["_id"] not in BUSY:
            BUSY.add(where["_id"])
            result |= {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"}}
        else:
            documents[where["_id"]] = {**row, "_text": text}
        items.append({action: result})
    return 200, {"errors": True, "items": items}


def meets(row: dict[str, Any], query: dict[str, Any]) -> bool:
    """Evaluate the part of the query language that the sink uses."""
    (kind, inner), *_ = query.items()
    if kind == "bool":
        should = inner.get("should", [])
        return (
            all(meets(row, each) for each in inner.get("filter", []))
            and not any(meets(row, each) for each in inner.get("must_not", []))
            and (not should or any(meets(row, each) for each in should))
        )
    (name, value), *_ = inner.items()
    if kind == "exists":
        return value in row
    if kind == "term":
        return bool(row.get(name) == value)
    if kind == "terms":
        return row.get(name) in value
    assert kind == "range", kind
    (sign, edge), *_ = value.items()
    return name in row and bool(row[name] < edge if sign == "lt" else row[name] > edge)


def search(index: str, body: dict[str, Any]) -> tuple[int, Any]:
    names = [next(iter(each)) for each in body["sort"] if each != "_doc"]
    found = [(id_, row) for id_, row in INDEXES.get(index, {}).items() if meets(row, body["query"])]
    found.sort(key=lambda each: [each[1][name] for name in names])
    if edge := body.get("search_after"):
        found = [each for each in found if [each[1][name] for name in names] > edge]
    hits = [
        {
            "_id": id_,
            "_source": {name: row[name] for name in body["_source"] or ()},
            "sort": [row[name] for name in names],
        }
        for id_, row in found[: body["size"]]
    ]
    return 200, {"hits": {"hits": hits}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = self.answer(body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, body: bytes) -> tuple[int, Any]:
        if LOGIN and self.headers.get("Authorization") != LOGIN:
            return refused("security_exception", "unable to authenticate", 401)
        path = self.path.partition("?")[0].strip("/").split("/")
        if path[-1] == "_bulk":
            return bulk(body)
        if path[-1] == "_mget":
            wanted = json.loads(body)["docs"]
            rows = [INDEXES.get(one["_index"], {}).get(one["_id"]) for one in wanted]
            return 200, {"docs": [{"found": True, "_source": json.loads(row["_text"])} if row else {} for row in rows]}
        if path[-1] == "_search":
            return search(path[-2], json.loads(body))
        if path[-1] == "_settings":
            durability = "async" if "careless" in path[-2] else "request"
            return 200, {path[-2]: {"settings": {"index.translog.durability": durability}}}
        if path[-1] == "_all":
            return 200, INDEXES
        if self.command == "PUT" and path[-1] != "_mapping":
            if path[-1] in INDEXES:
                return refused("resource_already_exists_exception", f"index [{path[-1]}] already exists", 400)
            INDEXES[path[-1]] = {}
        return 200, {"acknowledged": True}

    do_PUT = do_GET = do_POST

    def log_message(self, *arguments: Any) -> None:
        pass


if __name__ == "__main__":
    LOGIN = f"ApiKey {sys.argv[2]}" if sys.argv[2] else ""
    LARGEST = int(sys.argv[3]) if len(sys.argv) > 3 else LARGEST
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
