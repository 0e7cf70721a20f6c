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
