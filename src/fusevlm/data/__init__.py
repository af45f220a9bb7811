"""Queries and answers as they come in files."""
