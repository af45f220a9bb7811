"""What responses mean: clusters, similarities, rephrasings, and the model's own verdict."""
