"""The small files of a run in a bucket, for workers that do not see its folder.

Parts lie in the bucket already; beside them go the tables and manifests that stages read. Pictures
do not: a worker must see them where they are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fusevlm.store.places import Bucket, copy_in, copy_out, point_of

FILES = ("run.json", "*/stage.json", "*/place.json", "*/server.json", "data/queries.parquet",
         "adapter/statistics.parquet", "sample/reduced.json", "sample/whitening/*")  # fmt: skip
HOME = "run"  # the level they lie at, beside the stages


def publish(run: Path, stage: str) -> str:
    """Put the small files beside the parts of a stage; where that is."""
    address = point_of(run / stage).beside(HOME)
    found = [path for pattern in FILES for path in sorted(run.glob(pattern)) if path.is_file()]
    names = {path.relative_to(run).as_posix().replace("/", "%2F"): path for path in found}
    copy_out(Bucket(address), names)
    return address


def fetch(address: str) -> Path:
    """A folder of this machine with the files that were put there."""
    place = Bucket(address)
    folder = Path(tempfile.mkdtemp(prefix="fusevlm-run-"))
    copy_in(place, place.names(), folder)
    return folder
