"""The mathematics of FUSE: numpy and scipy only, float64, no input or output, no state.

Paper symbols are kept (``Sigma_r``, ``tau2``, ``nu_eff``). Axis names used in the docstrings:

=====  ==========================================================
n      sampled responses of one query
d      features of a response embedding
K      named pieces of evidence (``practical`` preset)
N      queries (the paper writes Q here, and again for a latent size)
=====  ==========================================================
"""
