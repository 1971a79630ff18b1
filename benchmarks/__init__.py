"""Benchmarks: ratios measured in one run, written as JSON under benchmarks/results/."""
