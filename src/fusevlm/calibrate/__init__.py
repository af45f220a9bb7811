"""Calibration: what FUSE learns from a few hundred queries, with and without labels."""
