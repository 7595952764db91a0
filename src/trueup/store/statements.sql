-- Version 7: the signed statements of `trueup certificate`, a chain: each has the hash of the one before. Never deleted.

CREATE TABLE statements (
    number    INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    issued_at TEXT NOT NULL,
    -- SHA-256 of the statement, in hexadecimal digits.
    sha256    TEXT NOT NULL,
    verdict   TEXT NOT NULL,
    tables    TEXT NOT NULL,
    -- The document as it is in its file.
    document  TEXT NOT NULL
);
