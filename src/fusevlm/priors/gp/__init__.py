"""The Gaussian-process adapter: paired embeddings to a distribution and statistics per query."""
