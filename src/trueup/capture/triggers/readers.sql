-- name: read
SELECT round, begun, done FROM {readers} WHERE tube = %(tube)s AND reader = %(reader)s

-- name: begin
INSERT INTO {readers} AS readers (tube, reader, round, begun) VALUES (%(tube)s, %(reader)s, %(after)s + 1, %(token)s)
ON CONFLICT (tube, reader) DO UPDATE SET round = greatest(readers.round, %(after)s) + 1, begun = excluded.begun
RETURNING round

-- name: done
UPDATE {readers} SET done = begun
 WHERE tube = %(tube)s AND reader = %(reader)s AND begun = %(token)s AND done <> begun

-- name: forget
DELETE FROM {readers} WHERE tube = %(tube)s AND reader = %(reader)s
