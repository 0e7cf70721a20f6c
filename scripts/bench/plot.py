"""Plots as SVG files: the same points give the same file."""
import matplotlib

from bench.points import cluster_of, group, networks, title_of

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams["svg.hashsalt"] = "lancet"
COLOURS = {"RAF": "#8c8c8c", "DeepSpeed": "#c9a227", "Tutel": "#4c8bbe", "FasterMoE": "#7d5ba6", "Lancet": "#c0392b",
           "Lancet, backward whole": "#e79a8f", "only dW": "#5b9e4d", "only partition": "#d98841",
           "FlowMoE": "#3a9d9d", "Lancet, paper": "#d98cb3", "peer groups": "#7d5ba6"}


def save(figure, path):
    figure.tight_layout()
    # No date and fixed ids: the same points give the same file.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def panels(points, path, title, draw, keys=("hardware", "label", "model"), size=(11, 3.1), columns=2, **legend):
    """Draws a panel for each group of points and returns the rows of the table. draw: draws a group's points on an axis
    and returns their rows; size: inches of the figure's width and of a row's height; legend: options of the first
    panel's."""
    groups = group(points, *keys).values()
    rows, name = -(-len(groups) // columns), title_of if "label" in keys else cluster_of
    figure, axes = plt.subplots(rows, columns, figsize=(size[0], size[1] * rows), squeeze=False)
    table = []
    for axis, here in zip(axes.flat, groups):
        table += draw(axis, here)
        axis.set_title(f"{name(here[0])} ({networks(here)})", fontsize=9)
    if legend:
        figure.axes[0].legend(**legend)
    figure.suptitle(f"{title}: {networks(points)}", fontsize=11)
    save(figure, path)
    return table
