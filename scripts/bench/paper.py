"""What papers report, for the figures: Lancet (its section 7 and Figs. 2 and 11 to 15), and GShard."""

ALL_TO_ALL_OVER_EXPERTS = 3.36  # the most, on V100
SPEED_UPS = {  # over the best baseline: (largest, mean), by figure and cluster
    ("fig11", "p3dn-v100"): (1.30, 1.22), ("fig11", "p4de-a100"): (1.21, 1.17),
    ("fig12", "p3dn-v100"): (1.24, 1.21), ("fig12", "p4de-a100"): (1.24, 1.17)}
CUTS = {  # largest cut of exposed communication, by cluster and baseline
    "p3dn-v100": {"RAF": 0.83, "Tutel": 0.77}, "p4de-a100": {"RAF": 0.69, "Tutel": 0.66}}
PREDICTION_ERROR = 0.0383  # in the mean
PLANNING_MINUTES = 20  # most plans take less

# GShard, section 5: weak scaling of MoE layers with an expert a device, on TPU v3 whose network is a 2D torus.
GSHARD_RANKS = (128, 2048)
GSHARD_STEP = 1.7  # a step on the most ranks over one on the fewest
GSHARD_ALL_TO_ALL = (0.16, 0.36)  # its share of the step on both
