"""Plots and the page of a run; they are given data and give text."""
