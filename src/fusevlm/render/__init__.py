"""Figures as text, HTML, Markdown, LaTeX and plots; given data, they give text."""
