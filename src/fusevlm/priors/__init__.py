"""Priors: what the input says before any sample. Paired embeddings in, statistics per query out.

A prior does not know what its modalities are nor who made the embeddings. Those here (distances to
the training embeddings, and to reference activations) need no training; the GP adapter of the paper
(:class:`fusevlm.priors.gp.adapter.GpAdapter`) needs torch and is imported from where it lives.
"""

from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.distances import KnnPrior, MahalanobisPrior
from fusevlm.priors.interface import Prior

__all__ = ["ActivationPrior", "KnnPrior", "MahalanobisPrior", "Prior"]
