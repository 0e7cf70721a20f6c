"""What the Lancet paper reports, for the figures (its section 7 and Figs. 2 and 11 to 15)."""

ALL_TO_ALL_OVER_EXPERTS = 3.36  # the most, on V100
SPEED_UPS = {  # over the best baseline: (largest, mean), by figure and cluster
    ("fig11", "p3dn-v100"): (1.30, 1.22), ("fig11", "p4de-a100"): (1.21, 1.17),
    ("fig12", "p3dn-v100"): (1.24, 1.21), ("fig12", "p4de-a100"): (1.24, 1.17)}
CUTS = {  # largest cut of exposed communication, by cluster and baseline
    "p3dn-v100": {"RAF": 0.83, "Tutel": 0.77}, "p4de-a100": {"RAF": 0.69, "Tutel": 0.66}}
PREDICTION_ERROR = 0.0383  # in the mean
PLANNING_MINUTES = 20  # most plans take less
