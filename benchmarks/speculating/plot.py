"""Draws measured tokens of a round beside the formula. Run in an environment of its own:

    python -m benchmarks.speculating.plot DATA FILE

DATA is JSON, by method: `lengths`, `measured`, `low`, `high` and the formula's `a`.
"""

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("svg")
# The same data is the same file, and its text stays text.
matplotlib.rcParams.update({"svg.hashsalt": "kvrelay", "svg.fonttype": "none"})

from matplotlib import pyplot  # noqa: E402 - the backend comes first


def main(data: str, file: str) -> None:
    """Writes the plot."""
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for number, (method, own) in enumerate(json.loads(data).items()):
        color, a, lengths = f"C{number}", own["a"], own["lengths"]
        formula = [sum(a**place for place in range(k + 1)) for k in lengths]
        axes.plot(lengths, own["measured"], "o-", color=color, label=f"{method}, measured")
        axes.fill_between(lengths, own["low"], own["high"], color=color, alpha=0.15, linewidth=0)
        axes.plot(lengths, formula, "--", color=color, label=f"formula, a = {a:.2f}")
    axes.set_xlabel("k, drafts in a chain")
    axes.set_ylabel("tokens of a round")
    axes.set_ylim(bottom=1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
