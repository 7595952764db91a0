-- name: create
CREATE TABLE public.orders (
    id         bigint PRIMARY KEY,
    customer   text NOT NULL,
    total      numeric(12, 2) NOT NULL,
    placed     timestamptz NOT NULL,
    lines      jsonb,
    note       text
);
INSERT INTO public.orders VALUES (0, 'Watcher', 0, now(), NULL, 'probe 0');

-- name: load
INSERT INTO public.orders
SELECT i, 'Customer ' || i %% 5000, (i %% 100000) / 100.0, timestamptz '2024-01-01 00:00:00+00' + i * interval '1 minute',
       jsonb_build_array(jsonb_build_object('sku', i %% 977, 'count', 1 + i %% 3)), NULL
  FROM generate_series(1, %(rows)s) AS i

-- name: change
UPDATE public.orders SET total = total + 0.01, note = 'changed' WHERE id = %(id)s

-- name: discount
UPDATE public.orders SET total = round(total * 0.99, 2) WHERE id BETWEEN %(id)s AND %(id)s + 500 AND id > 0

-- name: delete
DELETE FROM public.orders WHERE id BETWEEN %(id)s AND %(id)s + 3 AND id > 0

-- name: renumber
-- Changes the key: the old document must be removed, the new one written.
UPDATE public.orders SET id = id + 10 * %(rows)s WHERE id = %(id)s AND id > 0

-- name: insert
INSERT INTO public.orders
SELECT coalesce(max(id), 0) + 1, 'New customer', 1, now(), '[]', 'new' FROM public.orders

-- name: probe
UPDATE public.orders SET note = 'probe ' || %(number)s::text WHERE id = 0
