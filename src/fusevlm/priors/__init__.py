"""Priors: paired embeddings in, one statistic (or several) per query out.

A prior does not know what its modalities are nor who made the embeddings. The GP adapter
(:class:`fusevlm.priors.gp.adapter.GpAdapter`) is one; the two here need no training.
"""

from fusevlm.priors.interface import Prior
from fusevlm.priors.knn import KnnPrior
from fusevlm.priors.mahalanobis import MahalanobisPrior

__all__ = ["KnnPrior", "MahalanobisPrior", "Prior"]
