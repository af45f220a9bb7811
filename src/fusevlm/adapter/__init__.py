"""The GP adapter (extra ``adapter``): embeddings of pairs become distributions.

Rooms: options (no torch), kernel, bound (collapsed objective), elbo (the paper's), start, train,
posterior, infer (query time), gp (the class to use), picture, parallel, pairs (files, no torch).
"""
