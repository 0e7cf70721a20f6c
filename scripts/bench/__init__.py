"""Benchmarks, comparisons with PyTorch, and the figures of docs/results: `python3 scripts/bench` lists the commands."""
