"""Hardware files: their JSON, in which comments are allowed, and the share of the nominal bandwidth that a collective
reaches, as share_at in src/cost/hardware.cpp computes it."""
import json
import math
import re


def read_commented(path):
    """Reads a JSON file with comments, // and /* */. Raises OSError or ValueError if it cannot be read."""
    # Strings are matched so that a // in one of them stays.
    return json.loads(re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', r"\1", path.read_text(), flags=re.S))


def between(x, points):
    """Linear in the logarithm of x between points (x, y), constant beyond the first and the last."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            return y0 + (y1 - y0) * math.log(x / x0) / math.log(x1 / x0)
    return points[-1][1]


def share_at(table, places, mb):
    """table: rows [places, MB, share] in rising order, places being nodes, or devices of a node."""
    groups = {}
    for row_places, row_mb, share in table:
        groups.setdefault(row_places, []).append((row_mb, share))
    return between(places, [(here, between(mb, points)) for here, points in groups.items()])


SECTIONS = ("device", "node", "network", "overlap")
HIGH_IS_SLOW = ("reserved_gib", "launch_us", "latency_us", "hop_us", "message_us", "core_share", "core_ms_per_mb",
                "signal_us")


def changed(document, text):
    """Returns a hardware file's JSON with changes to its numbers, with commas between them: `slow` or `fast` takes the
    end of every number's band that makes steps longer, or shorter, SECTION=slow those of a section, SECTION.FIELD=slow
    that of one number; SECTION.FIELD=NUMBER gives a value, SECTION.FIELD=xNUMBER multiplies it. Curves and tables have
    their ends as lists, and every share gets the number. A later change goes before an earlier one; numbers go before
    ends. Raises ValueError on a change of another form or of no known field."""
    if not text:
        return document
    document = json.loads(json.dumps(document))
    changes = [change.rpartition("=") for change in filter(None, text.split(","))]
    for where, _, to in sorted(changes, key=lambda change: change[2] not in ("slow", "fast")):
        fields = [(name, field) for section in SECTIONS for name, field in document[section].items()
                  if where in ("", section, f"{section}.{name}")]
        if not fields or (to not in ("slow", "fast") and "." not in where):
            raise ValueError(f"expected changes like slow, device=fast, network.latency_us=50 or "
                             f"device.fp32_efficiency=x0.8, found '{where}{'=' * bool(where)}{to}'")
        for name, field in fields:
            key = "points" if "points" in field else "value"
            if to in ("slow", "fast"):
                end = "high" if (to == "slow") == (name in HIGH_IS_SLOW) else "low"
                field[key] = field.get(end, field[key])
                continue
            number = float(to.removeprefix("x"))
            of = (lambda value: value * number) if to.startswith("x") else (lambda value: number)
            field[key] = of(field[key]) if key == "value" else [[*row[:-1], of(row[-1])] for row in field[key]]
    return document
