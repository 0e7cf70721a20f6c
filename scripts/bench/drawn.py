"""The ends of a figure whose rounds are drawn again at random (bootstrap)."""
FEWEST = 6  # rounds; 95% of the draws of fewer would be little less than their least and their most


def ends(values, rounds):
    """Returns both ends of the figures of the draws from that many rounds."""
    values = sorted(values)
    if rounds < FEWEST:
        return values[0], values[-1]
    return values[int(0.025 * len(values))], values[int(0.975 * len(values))]


def words(rounds):
    """Returns what the ends are, in words."""
    return "least and most" if rounds < FEWEST else "95% of rounds drawn again"
