"""Spans of time and instants, as people read them."""

import datetime as dt

_UNITS = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def span(milliseconds: int) -> str:
    """Returns a span of time in its largest exact unit, `90 min`."""
    for unit, size in _UNITS:
        if milliseconds >= size and milliseconds % size == 0:
            plural = "s" if unit == "day" and milliseconds != size else ""
            return f"{milliseconds // size:,} {unit}{plural}"
    return f"{milliseconds} ms"


def instant(milliseconds: int) -> str:
    """Returns an instant as people read it, or the number where no calendar reaches."""
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat().replace("+00:00", "Z")
