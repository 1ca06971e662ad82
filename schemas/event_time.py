"""ISO 8601 text to event time. The only place of the project that knows calendars.

Nothing here asks the clock or the machine's time zone.
"""

import datetime as dt

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def offset_zone(offset: str) -> dt.timezone:
    """Returns the fixed zone of an offset such as `+02:00`."""
    sign = -1 if offset[0] == "-" else 1
    return dt.timezone(sign * dt.timedelta(hours=int(offset[1:3]), minutes=int(offset[4:])))


def iso8601_ms(text: str, zone: dt.timezone | None) -> int:
    """Returns the milliseconds since the epoch of an ISO 8601 date and time, floored.

    Args:
        text: what `datetime.fromisoformat` of Python 3.11 reads, with a time part.
        zone: the zone of zone-less text; None refuses it.

    Raises:
        ValueError: the text is no date and time, or has no zone and none is declared.
    """
    if len(text) < 11:
        raise ValueError("a date without a time")
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a character that no date and time has")  # fromisoformat takes some
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("no zone, and event.time.offset is not set")
        moment = moment.replace(tzinfo=zone)
    # Converting to UTC first would overflow in the years 1 and 9999; subtracting does not.
    return (moment - _EPOCH) // _MILLISECOND
