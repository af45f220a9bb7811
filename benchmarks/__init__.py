"""Speed as ratios against a named alternative in one run: ``python -m benchmarks``."""
