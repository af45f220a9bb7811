"""For the environment of ``make test-vllm``: torchvision from PyPI beside a CPU build of torch.

Its operators are not there then, and its import fails where it describes two of them. They are
named first; pictures need none of them.
"""

import sys
from importlib.abc import MetaPathFinder


class First(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            operators = torch.library.Library("torchvision", "DEF")
            for one in ("nms", "qnms"):
                operators.define(f"{one}(Tensor dets, Tensor scores, float threshold) -> Tensor")
            sys.modules[__name__].operators = operators  # they go when it goes


sys.meta_path.insert(0, First())
