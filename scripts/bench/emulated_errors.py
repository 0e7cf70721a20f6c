"""The errors of predictions on emulated devices. Policies whose plans are the same schedule are one plan, whose rounds
are pooled. An error is predicted / step - 1, as in figure 14: below 0, the step was longer than predicted."""
import itertools
import random
import statistics

from bench.points import group
from bench.policies import MOST_LATE

TOLD_APART = 0.03  # predicted steps that differ by more are expected in the right order


def error(predicted, measured):
    return 100 * (predicted / measured - 1)


def rows_of(case, about, found):
    """Returns a row for each policy. found: medians of the rounds by policy (policies.medians)."""
    base, rows = next(iter(found.values())), []
    for policy, row in found.items():
        faster, predicted = base["step_ms"] / row["step_ms"], base["predicted_ms"] / row["predicted_ms"]
        rows.append({"case": case, "policy": policy, **row, "error_pct": error(row["predicted_ms"], row["step_ms"]),
                     "speed_up": faster, "predicted_speed_up": predicted, "speed_up_error_pct": error(predicted, faster),
                     "commit": about["commit"]})
    return rows


def plans_of(rows):
    """Returns the rows of each plan of one case."""
    return list(group(rows, "plan").values())


def is_late(row):
    return row["late_pct"] > MOST_LATE


def on_time(rows):
    """Returns one row for each plan of a case that the machine kept up with."""
    return [same[0] for same in plans_of(rows) if not is_late(same[0])]


def speed_up_errors(rows):
    """Returns the errors of the speed-ups of a case; none if the base was late."""
    base = rows[0]
    return [] if is_late(base) else [row["speed_up_error_pct"] for row in on_time(rows) if row["plan"] != base["plan"]]


def pairs_in_order(rows):
    """Of the pairs of plans whose predictions differ: how many there are, and how many are measured in that order."""
    pairs = [(a, b) for a, b in itertools.combinations(on_time(rows), 2)
             if abs(a["predicted_ms"] / b["predicted_ms"] - 1) > TOLD_APART]
    right = [(a["predicted_ms"] < b["predicted_ms"]) == (a["step_ms"] < b["step_ms"]) for a, b in pairs]
    return len(pairs), sum(right)


def interval(values, draws=2000):
    """The bootstrapped 95% confidence interval of the mean; the draws are the same each time."""
    generator = random.Random(1)
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def errors_line(what, errors):
    sizes = [abs(each) for each in errors]
    low, high = interval(sizes)
    return (f"- error of the predicted {what}: {statistics.fmean(sizes):.1f}% in the mean (95% confidence: "
            f"{low:.1f}% to {high:.1f}%), {max(sizes):.1f}% at worst, {len(sizes)} plans")


def bias_line(errors):
    mean = statistics.fmean(errors)
    return f"- bias: steps were {abs(mean):.1f}% {'longer' if mean < 0 else 'shorter'} than predicted in the mean"


def summary(by_case):
    """Returns lines on the plans of all cases. by_case: the rows of each case."""
    steps = [row["error_pct"] for rows in by_case for row in on_time(rows)]
    faster = [each for rows in by_case for each in speed_up_errors(rows)]
    pairs, right = (sum(counts) for counts in zip(*map(pairs_in_order, by_case)))
    plans = sum(len(plans_of(rows)) for rows in by_case)
    lines = [errors_line("step", steps), bias_line(steps)] if steps else []
    lines += [errors_line("speed-up over the first policy", faster)] if faster else []
    return [*lines,
            f"- order: right in {right} of the {pairs} pairs of plans whose predictions differ by more than "
            f"{100 * TOLD_APART:.0f}%",
            f"- left out of these numbers: {plans - len(steps)} of {plans} plans, since they were late by more than "
            f"{MOST_LATE}% of a step"]
