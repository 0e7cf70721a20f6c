"""Cells, Markdown tables and CSV files."""
import csv


def number(value, digits=1, unit=""):
    return "" if value is None else f"{value:.{digits}f}{unit}"


def signed_percent(value):
    return "" if value is None else f"{100 * value:+.1f}%"


def percent(value):
    return f"{100 * value:.1f}%"


def spread(values, digits=1):
    return f"{number(min(values), digits)} to {number(max(values), digits)}"


def markdown(header, rows):
    """Returns the lines of a table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def rounded(row):
    """Returns the row with three decimals of its fractions."""
    return {key: number(value, 3) if isinstance(value, float) else value for key, value in row.items()}


def write_csv(path, fields, rows):
    """Writes the fields of each row, a dictionary; missing fields and None are empty."""
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, fields, extrasaction="ignore", restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def write_page(path, lines, rows, fields=None):
    """Writes the lines into path.md and the rows into path.csv. fields: of the rows; default: those of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text("\n".join(lines).rstrip("\n") + "\n")
    write_csv(path.with_suffix(".csv"), fields or list(rows[0]), map(rounded, rows))
