"""Parts made by real workers of Ray: the bytes of one process, wherever a run is begun or ended."""

import pytest
from tests.pipeline.synthetic_runs import config_of, differing, write_tables

from fusevlm.errors import InputError
from fusevlm.pipeline.cluster.engine import RayEngine
from fusevlm.pipeline.run import run_stages
from fusevlm.settings import ClusterConfig

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
N_PARTS = 17


class Stops(Exception):
    """Raised by progress, as Ctrl-C would be."""


def after(n_queries):
    def progress(stage):
        def show(done, total, note=""):
            if stage == "sample" and done >= n_queries:
                raise Stops

        return show

    return progress


def ray(workers):
    return RayEngine(ClusterConfig(workers=workers))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tables, and runs that one process made: with all states, and with reduced ones."""
    home = tmp_path_factory.mktemp("ray")
    write_tables(home)
    for states in ("full", "reduced"):
        run_stages(home / states, config_of(home, sample={"states": states}), to="score")
    return home


@pytest.mark.parametrize(("workers", "states"), [(1, "full"), (2, "reduced")])
def test_workers_make_the_bytes_of_one_process(home, tmp_path, workers, states):
    said = []
    config = config_of(home, sample={"states": states})
    with ray(workers) as engine:
        run_stages(tmp_path / "run", config, to="score", engine=engine, say=said.append)
    assert differing(home / states, tmp_path / "run") == []
    assert any(f"sample: {workers} worker" in line for line in said)


def test_begun_here_continued_on_ray_finished_here(home, tmp_path):
    run, config = tmp_path / "run", config_of(home, sample={"states": "full"})

    def n_parts():
        return len(list((run / "sample").glob("part-*.json")))

    with pytest.raises(Stops):
        run_stages(run, config, progress=after(30))
    begun = n_parts()
    with ray(2) as engine, pytest.raises(Stops):
        run_stages(run, config, engine=engine, progress=after(80))
    assert 0 < begun < n_parts() < N_PARTS
    run_stages(run, config, to="score")
    assert differing(home / "full", run) == []


def test_what_a_worker_refuses_is_told_in_its_own_words(home, tmp_path):
    config = config_of(home, sample={"model": "synthetic:d=1"})
    with ray(1) as engine, pytest.raises(Exception, match="synthetic: d is 1; expected"):
        run_stages(tmp_path / "run", config, to="sample", engine=engine)


def test_a_cluster_that_is_not_there_is_refused(home, tmp_path):
    with (
        RayEngine(ClusterConfig(address="127.0.0.1:1")) as engine,
        pytest.raises(InputError, match=r"no Ray cluster can be used at 127\.0\.0\.1:1: .*refused"),
    ):
        run_stages(tmp_path / "run", config_of(home), to="sample", engine=engine)
