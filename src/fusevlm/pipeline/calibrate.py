"""Stage calibrate: every method fitted on the calibration queries and saved."""

from __future__ import annotations

from fusevlm.pipeline.methods import check_methods, fit_method
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.score import read_scored


def make(work: Work) -> dict[str, int]:
    """Fit and save."""
    config = work.config.calibrate
    queries = read_scored(work.run, "calibration", work.config.score.layer)
    check_methods(config.methods, queries.columns)
    for number, name in enumerate(config.methods):
        work.progress(number, len(config.methods))
        fit_method(name, queries, config).save(work.folder("calibrate") / name)
    work.progress(len(config.methods), len(config.methods))
    return {"methods": len(config.methods), "queries": len(queries.ids)}
