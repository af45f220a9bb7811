"""What a command would load first, loaded once by the process that all others are forked from.

No thread is started here: what is forked has none but its own.
"""

import importlib

HEAVY = [
    "scipy.stats", "scipy.optimize", "pandas", "pyarrow.parquet", "pyarrow.dataset",
    "pyarrow.pandas_compat", "safetensors.numpy", "torch.fx", "transformers.generation",
    "transformers.models.llava.modeling_llava", "transformers.models.llava.processing_llava",
    "transformers.models.llama.modeling_llama", "transformers.models.clip.modeling_clip",
    "transformers.models.clip.image_processing_pil_clip",
    "transformers.models.clip.processing_clip", "transformers.models.altclip",
    "transformers.models.chinese_clip", "PIL.Image", "matplotlib.figure",
    "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg", "easy_vqa",
    "fusevlm.cli.adapter", "fusevlm.cli.ask", "fusevlm.cli.bench", "fusevlm.cli.fits",
    "fusevlm.cli.runs", "fusevlm.models.huggingface", "fusevlm.models.towers",
    "fusevlm.pipeline.pairs", "fusevlm.pipeline.report", "fusevlm.pipeline.validate",
    "fusevlm.pipeline.verify", "fusevlm.priors.gp.adapter", "fusevlm.scorer",
    "tests.safety.children",
]  # fmt: skip
for name in HEAVY:
    importlib.import_module(name)

from PIL import Image  # noqa: E402

from fusevlm.data.questions import queries  # noqa: E402

Image.init()
for split in ("calibration", "test"):
    queries(split, limit=1)  # all embedded pictures are looked at, which is remembered
