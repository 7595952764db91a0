-- name: publish
CREATE PUBLICATION demo FOR TABLE public.customers

-- name: copying
SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'

-- name: work
WITH changed AS (
    UPDATE public.customers SET balance = balance + 1 WHERE id BETWEEN %(key)s AND %(key)s + 90
), gone AS (
    DELETE FROM public.customers WHERE id = %(key)s + 100
)
INSERT INTO public.customers (id, name, balance, joined) VALUES (%(new)s, 'New', 0, now()) ON CONFLICT DO NOTHING

-- name: spoil
UPDATE public.customers SET balance = -1 WHERE id = 20;
DELETE FROM public.customers WHERE id = 30;
INSERT INTO public.customers (id, name, balance, joined) VALUES (-5, 'Unknown', 0, now());
CREATE FUNCTION public.spoil() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = 40 THEN
        NEW.email = 'wrong';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER spoil BEFORE UPDATE ON public.customers FOR EACH ROW EXECUTE FUNCTION public.spoil();
ALTER TABLE public.customers ENABLE ALWAYS TRIGGER spoil

-- name: touch
UPDATE public.customers SET balance = balance + 1 WHERE id = 40

-- name: unspoil
DROP TRIGGER spoil ON public.customers
