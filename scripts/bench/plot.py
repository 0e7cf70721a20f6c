"""Plots as SVG files: the same points give the same file."""
import matplotlib

from bench.points import networks

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams["svg.hashsalt"] = "lancet"
COLOURS = {"RAF": "#8c8c8c", "DeepSpeed": "#c9a227", "Tutel": "#4c8bbe", "FasterMoE": "#7d5ba6", "Lancet": "#c0392b",
           "Lancet, forward parts": "#e79a8f", "only dW": "#5b9e4d", "only partition": "#d98841"}


def save(figure, path):
    figure.tight_layout()
    # No date and fixed ids: the same points give the same file.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def panels(count, width, height):
    """Two in a row; the figure and its axes, one after the other."""
    rows = -(-count // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(width, height * rows), squeeze=False)
    return figure, axes.flat


def save_panels(figure, points, path, title, **legend):
    """legend: how the first panel's stands, where there is one."""
    if legend:
        figure.axes[0].legend(**legend)
    figure.suptitle(f"{title}: {networks(points)}", fontsize=11)
    save(figure, path)

