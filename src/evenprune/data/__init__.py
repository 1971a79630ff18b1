"""Data sets, one a file; each gives training and test samples as (inputs, labels, columns of groups)."""
