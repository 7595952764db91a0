"""Rules that weaken the equality of a column: each is off unless the user sets it, and is named in every result."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, fields
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from trueup.rows.spec import ValueClass

UNITS = {"ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "day": 86_400_000_000}
NUMBERS: tuple[ValueClass, ...] = ("bool", "int", "decimal", "float")
TIMES: tuple[ValueClass, ...] = ("timestamp", "instant", "time")
_TIME_BYTES = 8
TEXTS: tuple[ValueClass, ...] = ("text", "char")
# More digits than a number of any node has: the default of Python rounds to 28.
_EXACT = Context(prec=300_000, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True)
class Rule:
    """How values of one column may differ and still be equal."""

    # Numbers: the largest difference, absolute or as a part of the larger number, or digits to round to.
    absolute: Decimal | None = None
    relative: Decimal | None = None
    scale: int | None = None
    # Times: the unit to round to, of UNITS; and the zone of times without one, which must be UTC.
    unit: str = ""
    zone: str = ""
    # Texts: without blanks at both ends, without regard to case, in the normal form C of Unicode.
    trim: bool = False
    ignore_case: bool = False
    normalize: bool = False
    null_is_empty: bool = False
    # Arrays: without regard to the order and the number of equal elements.
    set: bool = False

    def __bool__(self) -> bool:
        return self != NO_RULE

    def __str__(self) -> str:
        named = [(field.name, getattr(self, field.name)) for field in fields(self)]
        used = [(name, value) for name, value in named if value not in (None, "", False)]
        return ", ".join(name if value is True else f"{name} {value}" for name, value in used)

    @property
    def is_numeric(self) -> bool:
        """Whether numbers may differ, so that floats can be compared with decimals."""
        return self.absolute is not None or self.relative is not None or self.scale is not None

    def problem(self, kind: ValueClass, parsed: ValueClass | None) -> str:
        """Return why the rule cannot be applied to a column that is compared as this class, or an empty text."""
        kind = parsed or kind
        if self.is_numeric and kind not in NUMBERS:
            return f"absolute, relative and scale are for numbers, not for {kind}"
        if self.unit and kind not in TIMES:
            return f"unit is for times, not for {kind}"
        if (self.trim or self.ignore_case or self.normalize or self.null_is_empty) and kind not in TEXTS:
            return f"trim, ignore_case, normalize and null_is_empty are for texts, not for {kind}"
        if self.set and kind != "json":
            return f"set is for arrays and JSON, not for {kind}"
        return ""

    def is_equal(self, kind: ValueClass, left: bytes | None, right: bytes | None) -> bool:
        """Return whether two canonical values of a class are equal by the rule; their bytes differ."""
        if self.null_is_empty and b"" in (left or b"", right or b""):
            return self._text(left or b"") == self._text(right or b"")
        if left is None or right is None:
            return False
        if kind in TEXTS:
            return self._text(left) == self._text(right)
        if kind in TIMES and self.unit:
            # Texts of times that are none, such as 0000-00-00, have another length.
            return len(left) == len(right) == _TIME_BYTES and self._time(left) == self._time(right)
        return kind in NUMBERS and self.is_numeric and self._near(_number(left), _number(right))

    def _text(self, data: bytes) -> str:
        # Bytes that are not UTF-8 become characters that no text has.
        text = data.decode("utf-8", "surrogateescape")
        if self.normalize:
            text = unicodedata.normalize("NFC", text)
        if self.trim:
            text = text.strip()
        return text.casefold() if self.ignore_case else text

    def _time(self, data: bytes) -> int:
        unit = UNITS[self.unit]
        return (int.from_bytes(data, "big", signed=True) + unit // 2) // unit

    def _near(self, left: Decimal | None, right: Decimal | None) -> bool:
        if left is None or right is None:
            return False
        if not (left.is_finite() and right.is_finite()):
            return str(left) == str(right)
        if self.scale is not None:
            step = Decimal(1).scaleb(-self.scale)
            left, right = (number.quantize(step, ROUND_HALF_UP, _EXACT) for number in (left, right))
        gap = _EXACT.subtract(left, right).copy_abs()
        if gap == 0 or (self.absolute is not None and gap <= self.absolute):
            return True
        return self.relative is not None and gap <= _EXACT.multiply(
            self.relative, max(left.copy_abs(), right.copy_abs())
        )


NO_RULE = Rule()


def _number(data: bytes) -> Decimal | None:
    """Return a printed number, or None."""
    try:
        number = Decimal(data.decode().strip())
    except (InvalidOperation, UnicodeDecodeError):
        return None
    return number if is_writable(number) else None


def is_writable(number: Decimal) -> bool:
    """Return whether a number can be written without an exponent: 1e999999999 would need a gigabyte."""
    return not number.is_finite() or (number.adjusted() < 140_000 and int(number.as_tuple().exponent) > -140_000)


def rule_from(values: dict[str, Any]) -> Rule:
    """Return the rule of a table of the configuration; raise ValueError with what is wrong."""
    known: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("absolute", "relative"):
            known[name] = _positive(name, value)
        elif name == "scale":
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError("scale must be a whole number")
            known[name] = value
        elif name == "unit":
            if value not in UNITS:
                raise ValueError(f"unit must be one of {', '.join(UNITS)}")
            known[name] = value
        elif name == "zone":
            if value != "UTC":
                raise ValueError('zone must be "UTC"')
            known[name] = value
        elif name in ("trim", "ignore_case", "normalize", "null_is_empty", "set"):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false")
            known[name] = value
        else:
            raise ValueError(
                f"there is no rule {name}; the rules are {', '.join(field.name for field in fields(Rule))}"
            )
    return Rule(**known)


def _positive(name: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"{name} must be a number")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{name} must be a number") from None
    if not number.is_finite() or number < 0:
        raise ValueError(f"{name} must not be negative")
    return number
