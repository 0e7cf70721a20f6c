"""The errors of predictions on emulated devices. Policies whose plans are the same schedule are one plan, whose rounds
are pooled. An error is predicted / step - 1, as in figure 14: below 0, the step was longer than predicted."""
import itertools
import random
import statistics

from bench.points import group
from bench.policies import MOST_LATE, PUBLISHED, ends_of

TOLD_APART = 0.03  # predicted steps that differ by more are expected in the right order


def error(predicted, measured):
    return 100 * (predicted / measured - 1)


def rows_of(case, document):
    """Returns a row for each policy of a policies.json; policies of one plan have the same numbers."""
    policies = document["policies"]
    rows = {each["policy"]: None for each in policies}
    for same in group(policies, "plan").values():
        shared = of_plan(same, policies[0])
        rows.update({each["policy"]: {"case": case, "policy": each["policy"], "ran": each["ran"], **shared}
                     for each in same})
    return list(rows.values())


def of_plan(same, base):
    """Returns the numbers of the policies that ran one plan. A speed-up is the median of the ratios within a round."""
    steps = [ms for each in same for ms in each["step_ms"]]
    ratios = [ours / ms for each in same for ours, ms in zip(base["step_ms"], each["step_ms"])]
    step, faster, predicted = statistics.median(steps), statistics.median(ratios), same[0]["predicted_ms"]
    predicted_faster = base["predicted_ms"] / predicted
    return {"plan": same[0]["plan"], "rounds": len(steps), "predicted_ms": predicted, "step_ms": step,
            "least_ms": min(steps), "most_ms": max(steps), "error_pct": error(predicted, step), "speed_up": faster,
            "predicted_speed_up": predicted_faster, "speed_up_error_pct": error(predicted_faster, faster),
            "late_pct": max(each["late_pct"] for each in same)}


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


def best_over_auto(document, draws=1000):
    """Returns the published policy with the least median step, that step over the one of `auto`, and both ends of the
    ratio over rounds drawn again; the draws are the same each time. Plans that were late are left out; None if that of
    `auto` was."""
    generator, count = random.Random(1), len(document["policies"][0]["step_ms"])
    plans = {plan: same for plan, same in group(document["policies"], "plan").items()
             if max(each["late_pct"] for each in same) <= MOST_LATE}
    of = {each["policy"]: plan for plan, same in plans.items() for each in same}
    if "auto" not in of:
        return None

    def ratio(chosen):
        steps = {plan: statistics.median(each["step_ms"][i] for each in same for i in chosen)
                 for plan, same in plans.items()}
        best = min((name for name in of if name in PUBLISHED), key=lambda name: steps[of[name]])
        return steps[of[best]] / steps[of["auto"]], best

    ratios = [ratio(generator.choices(range(count), k=count))[0] for _ in range(draws)]
    found, best = ratio(range(count))
    return best, found, ends_of(ratios, count)


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
