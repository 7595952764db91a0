-- name: create
CREATE TABLE public.orders (id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12, 2), paid boolean NOT NULL,
                            placed_at timestamptz NOT NULL, details jsonb)

-- name: load
INSERT INTO public.orders
SELECT n, 'customer ' || n %% 1000, (n %% 100000) / 100.0, n %% 3 = 0, timestamptz '2026-01-01 00:00+00' + n * interval '7 s',
       jsonb_build_object('items', n %% 5, 'note', CASE WHEN n %% 11 = 0 THEN NULL ELSE 'n ' || n END)
  FROM generate_series(1, %(rows)s::bigint) n

-- name: finish
VACUUM (ANALYZE) public.orders

-- name: copy
SELECT id, customer, total::text AS total, paid, placed_at, details::text AS details FROM public.orders

-- name: drift
UPDATE public.orders SET total = total + 0.01 WHERE id = 42;
UPDATE public.orders SET details = details || '{"items": 9}' WHERE id = 4711 % %(rows)s + 1;
UPDATE public.orders SET placed_at = placed_at + interval '1 us' WHERE id = 77;
DELETE FROM public.orders WHERE id = %(rows)s;
INSERT INTO public.orders VALUES (%(rows)s + 1, 'new', NULL, false, now(), NULL)
