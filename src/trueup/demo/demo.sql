-- name: create
DROP TABLE IF EXISTS public.customers;
CREATE TABLE public.customers (
    id         bigint PRIMARY KEY,
    name       text NOT NULL,
    email      text,
    balance    numeric(12, 2) NOT NULL,
    joined     timestamptz NOT NULL,
    profile    jsonb
);

-- name: load
INSERT INTO public.customers
SELECT i * 10, 'Customer ' || i, 'customer' || i || '@example.com', (i %% 100000) / 100.0,
       timestamptz '2024-01-01 00:00:00+00' + i * interval '1 minute',
       jsonb_build_object('level', i %% 5, 'tags', jsonb_build_array('a', i %% 3))
  FROM generate_series(1, %(rows)s) AS i;

-- name: finish
ANALYZE public.customers

-- name: drift_n1
-- A row that only n1 has, before the first key of the other nodes.
INSERT INTO public.customers VALUES (-5, 'Early bird', NULL, 0, '2023-12-31 00:00:00+00', NULL);

-- name: drift_n2
-- Changed rows, missing rows, and a row after the last key of the other nodes.
UPDATE public.customers SET balance = balance + 0.01 WHERE id IN (20, (%(rows)s / 2) * 10, %(rows)s * 10);
UPDATE public.customers SET email = '' WHERE id = 70;
DELETE FROM public.customers WHERE id IN (30, (%(rows)s / 3) * 10);
INSERT INTO public.customers VALUES (%(rows)s * 10 + 5, 'Late comer', NULL, 0, '2030-01-01 00:00:00+00', NULL);

-- name: drift_n3
-- An extra row in the middle, a changed row, a missing first row.
INSERT INTO public.customers VALUES ((%(rows)s / 2) * 10 + 1, 'Squeezed in', NULL, 0, '2025-01-01 00:00:00+00', '{}');
UPDATE public.customers SET profile = profile || '{"vip": true}' WHERE id = (%(rows)s / 4) * 10;
DELETE FROM public.customers WHERE id = 10;
