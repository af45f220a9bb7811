"""Trains the embedded models; outside the wheel."""
