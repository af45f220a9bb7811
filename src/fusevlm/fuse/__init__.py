"""The method: evidence, prior, likelihoods, probability, thresholds, and the estimator Fuse."""
