"""Parts made by workers: the same bytes, once each; and what a cluster must be like."""

import json
from dataclasses import replace
from functools import partial
from socket import socketpair

import pytest
from tests.pipeline.synthetic_runs import config_of, differing, write_tables

from fusevlm.config import as_tree
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.budget import BudgetError, Meter
from fusevlm.pipeline.cluster import driver, engine, fitness
from fusevlm.pipeline.cluster.driver import need_answer
from fusevlm.pipeline.cluster.engine import _told
from fusevlm.pipeline.cluster.fitness import Machine, Resources, Wish, shares
from fusevlm.pipeline.cluster.ledger import MOST_ATTEMPTS, Ledger, shared_by
from fusevlm.pipeline.cluster.worker import Task, Worker
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.engine import Job
from fusevlm.pipeline.run import Work, run_stages
from fusevlm.pipeline.sample import note_part
from fusevlm.settings import ServerConfig
from fusevlm.store.files import read_sealed, save_sealed
from fusevlm.store.generations import read_generations, write_generations
from fusevlm.store.parts import Parts, read_note, write_part
from fusevlm.types import Generation


def calling(ledger):
    """The ledger without an actor around it."""
    return lambda name, *given: getattr(ledger, name)(*given)


class Elsewhere:
    """An engine with two workers that take turns, here and without Ray."""

    here = False

    def __init__(self, order=lambda pieces: pieces, workers=2):
        self.order, self.n, self.answers = order, workers, []

    def fill(self, job, work):
        pieces = job.pieces()
        ledger = Ledger({})
        size = job.parts.size or job.size
        task = Task(job.stage, str(work.run), as_tree(work.config), job.parts.kind, size)
        workers = [Worker(vars(task), calling(ledger)) for _ in range(self.n)]
        for k, piece in enumerate(self.order(pieces)):
            answer = json.loads(workers[k % self.n].make(json.dumps(_told(piece, job))))
            self.answers.append((job.stage, answer))
            if "error" in answer:
                raise InputError(answer["error"])
            job.parts.note(answer["index"])
            job.noted(answer["index"], answer["told"])
        job.parts.tidy()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tables, and a run that this process made alone."""
    home = tmp_path_factory.mktemp("cluster")
    write_tables(home)
    run_stages(home / "alone", config_of(home), to="score")
    return home


@pytest.mark.parametrize("order", [list, reversed], ids=["in order", "backwards"])
def test_workers_make_the_bytes_of_one_process(home, tmp_path, order):
    engine = Elsewhere(lambda pieces: list(order(pieces)), workers=3)
    run_stages(tmp_path / "run", config_of(home), to="score", engine=engine)
    assert differing(home / "alone", tmp_path / "run") == []
    assert {stage for stage, _ in engine.answers} == {"sample", "embed", "semantics", "score"}
    pids = {answer["pid"] for _, answer in engine.answers}
    assert len(pids) == 1  # it was this process after all


def test_begun_here_continued_elsewhere_finished_here(home, tmp_path):
    """Interrupted in the middle of the sampling, twice."""
    run, config = tmp_path / "run", config_of(home)

    class Stops(Exception):
        pass

    def after(n):
        def progress(stage):
            def show(done, total, note=""):
                if stage == "sample" and done >= n:
                    raise Stops

            return show

        return progress

    with pytest.raises(Stops):
        run_stages(run, config, progress=after(30))
    begun = len(list((run / "sample").glob("part-*.json")))
    assert 0 < begun < 17

    class Half(Elsewhere):
        def fill(self, job, work):
            super().fill(replace(job, until=80) if job.stage == "sample" else job, work)
            if job.stage == "sample":
                raise Stops

    with pytest.raises(Stops):
        run_stages(run, config, engine=Half())
    further = len(list((run / "sample").glob("part-*.json")))
    assert begun < further < 17
    run_stages(run, config, to="score")
    assert differing(home / "alone", run) == []


def test_states_reduced_by_workers_are_those_of_one_process(home, tmp_path):
    config = config_of(home, sample={"states": "reduced"})
    run_stages(tmp_path / "one", config, to="score")
    engine = Elsewhere(lambda pieces: list(reversed(pieces)))
    run_stages(tmp_path / "two", config, to="score", engine=engine)
    assert differing(tmp_path / "one", tmp_path / "two") == []


def worker_of(home, run, ledger, stage="sample"):
    config = config_of(home)
    run_stages(run, config, only="data")
    (run / stage).mkdir(exist_ok=True)
    task = Task(stage, str(run), as_tree(config), "fusevlm.generations", 8)
    return Worker(vars(task), calling(ledger))


PIECE = {"index": 2, "start": 16, "stop": 24, "places": None, "version": None, "n_items": 8}


def test_a_part_that_a_dead_worker_finished_is_not_made_again(home, tmp_path):
    run, ledger = tmp_path / "run", Ledger({})
    worker = worker_of(home, run, ledger)
    first = json.loads(worker.make(json.dumps(PIECE)))
    assert (first["index"], first["items"]) == (2, 8)
    whole = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (run / "sample").iterdir()}
    again = json.loads(worker_of(home, run, ledger).make(json.dumps(PIECE)))
    assert again["index"] == 2
    assert whole == {p.name: (p.read_bytes(), p.stat().st_mtime_ns)
                     for p in (run / "sample").iterdir()}  # fmt: skip
    ids = [query.id for query in read_asked(run)]
    assert [g.query_id for g in read_generations(run / "sample")] == ids[16:24]


def test_a_part_that_was_half_written_is_made_again(home, tmp_path):
    run, ledger = tmp_path / "run", Ledger({})
    worker = worker_of(home, run, ledger)
    ledger.begin(2)  # by a worker that died with half a part on disk
    (run / "sample" / "part-00002.parquet").write_bytes(b"half")
    assert "error" not in json.loads(worker.make(json.dumps(PIECE)))
    assert len(list(read_generations(run / "sample"))) == 8


def test_rows_that_are_tried_again_are_merged_once(home, tmp_path):
    """The version of the part tells whether the worker that died had written it."""
    run, ledger = tmp_path / "run", Ledger({})
    worker = worker_of(home, run, ledger)
    worker.make(json.dumps(PIECE))
    parts = Parts(run / "sample", "fusevlm.generations")
    old = parts.read(2)
    rows = {**old.rows, "error": ["torn" if k == 3 else None for k in range(8)]}
    write_part(parts.place, parts.kind, 2, replace(old, rows=rows))
    retry = {**PIECE, "places": [3], "version": 1, "n_items": 1}
    for _ in range(2):
        assert "error" not in json.loads(worker.make(json.dumps(retry)))
        assert read_note(parts.place, parts.kind, 2)["version"] == 2
    assert [g.error for g in read_generations(run / "sample")] == [None] * 8


def test_a_piece_whose_workers_keep_dying_is_given_up(home, tmp_path):
    ledger = Ledger({})
    worker = worker_of(home, tmp_path / "run", ledger)
    for _ in range(MOST_ATTEMPTS):
        ledger.begin(2)
    answer = json.loads(worker.make(json.dumps(PIECE)))
    assert "part 2 of sample was begun 4 times, and each time its worker died" in answer["error"]


def test_a_finished_piece_is_not_given_up_for_those_that_came_with_it(home, tmp_path):
    """Pieces go in bundles: when a worker dies, those that it finished are begun again too."""
    run, ledger = tmp_path / "run", Ledger({})
    worker = worker_of(home, run, ledger)
    for _ in range(2 * MOST_ATTEMPTS):
        assert "error" not in json.loads(worker.make(json.dumps(PIECE)))
    assert "version" not in read_note(Parts(run / "sample", "fusevlm.generations").place,
                                      "fusevlm.generations", 2)  # fmt: skip


def test_a_model_that_kills_its_workers_is_given_up_before_it_is_loaded(home, tmp_path):
    ledger = Ledger({})
    worker = worker_of(home, tmp_path / "run", ledger)
    for _ in range(MOST_ATTEMPTS):
        ledger.begin(2)
    assert "its worker died" in worker.make(json.dumps(PIECE))
    assert "_opened" not in vars(worker)


def test_what_stops_a_stage_is_told_in_its_own_words(home, tmp_path):
    config = config_of(home, sample={"model": "synthetic:d=1"})
    run_stages(tmp_path / "run", config, only="data")
    with pytest.raises(InputError, match="synthetic: d is 1; expected"):
        run_stages(tmp_path / "run", config, to="sample", engine=Elsewhere())


# ---------------------------------------------------------------------------------------- engine


def engine_at(socket, monkeypatch):
    """An engine that talks to the other end of a socket, whoever is there."""
    monkeypatch.setattr(engine, "extra", lambda *given: None)  # without Ray
    found = engine.RayEngine()
    found._stream = socket.makefile("rw", encoding="utf-8")
    socket.close()
    return found


def sampling(home, run, **sections):
    """The job of a run's samples, and its work."""
    config = config_of(home, **sections)
    run_stages(run, config, only="data")
    work = Work(run, config, lambda *_: None)
    parts = Parts(run / "sample", "fusevlm.generations")
    return Job("sample", parts, read_asked(run), 8), work


def test_a_cluster_that_went_away_between_two_stages_is_told(home, tmp_path, monkeypatch):
    """What could not be sent is not sent again by closing."""
    ours, theirs = socketpair()
    talk = engine_at(ours, monkeypatch)
    theirs.close()
    with pytest.raises(ArtefactError, match=r"went away while it was asked.*the same command"):
        talk.fill(*sampling(home, tmp_path / "run"))
    assert talk._stream is None


def test_progress_of_those_that_come_first_is_of_no_others(home, tmp_path, monkeypatch):
    """60 calibration queries, none of them done: not 70 of 130."""
    ours, theirs = socketpair()
    job, work = sampling(home, tmp_path / "run")
    lines, seen = [{"workers": 2, "cpus": 0.5}, {"done": True}, {}], []
    theirs.sendall("\n".join(map(json.dumps, lines)).encode())
    talk = engine_at(ours, monkeypatch)
    work = replace(work, progress=lambda *given: seen.append(given))
    talk.fill(replace(job, until=60, breaks=(60,)), work)
    assert seen == [(0, 60)]
    talk.close()
    theirs.close()


USED = {"n": True, "logprobs": True, "calls": 90, "prompt_tokens": 9, "answer_tokens": 8,
        "cost": 0.5}  # fmt: skip


def test_what_was_used_of_a_service_never_shrinks(home, tmp_path, monkeypatch):
    """The worker that counted first is heard last: what is noted is what all have used."""
    run, ours, theirs = tmp_path / "run", *socketpair()
    job, work = sampling(home, run, sample={"model": "openai:m@http://localhost:1/v1"})
    save_sealed(run / "sample" / "server.json", USED)
    for index in range(2):
        write_generations(job.parts, index, [Generation(f"q{index}", error="broken")])
    lines = [{"workers": 2, "cpus": 0.5}]
    for index, calls in ((1, 120), (0, 100)):
        told = {"server": {**USED, "calls": calls, "cost": calls / 100}, "halted": ""}
        lines.append({"index": index, "items": 8, "told": told, "said": []})
    theirs.sendall("\n".join(map(json.dumps, [*lines, {"done": True}, {}])).encode())
    talk = engine_at(ours, monkeypatch)
    talk.fill(replace(job, noted=partial(note_part, job.parts)), work)
    noted = read_sealed(run / "sample" / "server.json", "")
    assert (noted["calls"], noted["cost"], noted["prompt_tokens"]) == (120, 1.2, 9)
    talk.close()
    theirs.close()


class Told(Exception):
    """There is nothing more to hear."""


class Fake:
    """A cluster with so many CPUs that notes what it is asked for; and who talks with it."""

    def __init__(self, cpus, lines):
        self.cpus, self.lines, self.filled = cpus, list(lines), []

    def resources(self):
        return Resources(float(self.cpus))

    def machines(self, run):
        return [fitness.this_machine()]

    def fill(self, told, shares):
        self.filled.append((told, shares))
        return []

    def hear(self):
        if not self.lines:
            raise Told
        return self.lines.pop(0)

    def say(self, **told):
        return


@pytest.mark.parametrize("cpus", [2, 64])
@pytest.mark.parametrize("workers", [0, 3, 50])
@pytest.mark.parametrize("at_once", [1, 8])
def test_calls_at_a_time_are_those_of_all_workers(home, monkeypatch, cpus, workers, at_once):
    """However many workers there are, whatever the machine has that gave the command."""
    config = config_of(home, server={"concurrency": at_once})
    wanted = {"address": "", "workers": workers, "cpus": None, "gpus": None, "memory_gb": None}
    task = Task("sample", "run", as_tree(config), "fusevlm.generations", 8, paid=True)
    job = {"task": vars(task), "pieces": list(range(100))}
    fake = Fake(cpus, [{**wanted, "run": "run", "shared": True}, job])
    monkeypatch.setattr(driver, "Cluster", lambda *given: fake)
    with pytest.raises(Told):
        driver.serve(fake)
    ((told, found),) = fake.filled
    assert found.workers == min(workers or cpus, at_once)
    assert found.workers * told["task"]["config"]["server"]["concurrency"] <= at_once


# ---------------------------------------------------------------------------------------- budgets


def test_a_shared_budget_is_one_budget():
    """Two workers against one meter: the same promises are kept and refused as by one of them."""
    limits = {"max_calls": 5, "price_prompt": 1.0, "price_answer": 2.0}
    ledger, alone = Ledger(limits), Meter(ServerConfig(**limits))
    one, two = (shared_by(calling(ledger)).meter for _ in range(2))
    first, second = one.promise(2, 2, 10), two.promise(2, 2, 10)
    mine = [alone.promise(2, 2, 10) for _ in range(2)]
    for meter in (one, two, alone):
        with pytest.raises(BudgetError, match="max_calls = 5 is used up: 0 used, 4 kept"):
            meter.promise(2, 1, 1)
    one.send(first)
    one.count(first, 7, 3)
    alone.send(mine[0])
    alone.count(mine[0], 7, 3)
    two.withdraw(second)
    alone.withdraw(mine[1])
    assert (two.calls, two.prompt, two.answer) == (alone.calls, alone.prompt, alone.answer)
    assert two.cost == alone.cost > 0
    assert two.refusal == alone.refusal
    two.promise(2, 1, 1)
    one.withdraw(first)
    one.withdraw(first)  # twice is once


def test_what_was_used_before_counts_for_all_workers():
    before = {"calls": 4, "prompt_tokens": 10, "answer_tokens": 2}
    shared = shared_by(calling(Ledger({"max_calls": 5}, before)))
    assert shared.meter.calls == 4
    with pytest.raises(BudgetError):
        shared.meter.promise(2, 1, 1)


def test_a_shared_pace_makes_workers_wait_for_each_other():
    ledger = Ledger({"per_minute": 60})
    one, two = (shared_by(calling(ledger)).pace for _ in range(2))
    assert one.turn() == 0.0
    assert two.turn() == pytest.approx(1.0, abs=0.2)
    one.hold(10.0)
    assert two.turn() == pytest.approx(10.0, abs=0.3)


# ---------------------------------------------------------------------------------------- fitness


def test_one_cpu_is_refused():
    with pytest.raises(InputError, match=r"has 1 CPU: a worker would hold it and wait for ever"):
        shares(Resources(1.0), Wish(), False, 10)


@pytest.mark.parametrize(
    ("cpus", "wish", "pieces", "expected"),
    [
        (2, Wish(), 10, (2, 0.5)),  # one CPU is left for what brings pieces
        (2, Wish(workers=1), 10, (1, 1.0)),
        (3, Wish(workers=2), 10, (2, 1.0)),
        (8, Wish(), 3, (3, 1.0)),
        (64, Wish(workers=63), 1000, (63, 1.0)),
        (64, Wish(workers=100), 1000, (100, 0.63)),
    ],
)
def test_workers_leave_a_cpu_for_their_pieces(cpus, wish, pieces, expected):
    found = shares(Resources(float(cpus)), wish, False, pieces)
    assert (found.workers, found.cpus) == expected
    assert found.workers * found.cpus <= cpus - 1


def test_any_number_of_workers_leaves_a_cpu():
    """Shares are counted as Ray does, in ten-thousandths: none is rounded up, none refused."""
    for cpus in range(2, 33):
        for workers in range(1, 200):
            found = shares(Resources(float(cpus)), Wish(workers=workers), False, 1000)
            assert round(found.cpus * 10_000) * workers <= (cpus - 1) * 10_000
            assert found.cpus > min(1.0, (cpus - 1) / workers) - 1e-4
    given = shares(Resources(12.0), Wish(workers=10, cpus=1.1), False, 1000)  # 11.000000000000002
    assert (given.workers, given.cpus) == (10, 1.1)


def test_workers_that_leave_nothing_are_refused():
    with pytest.raises(InputError, match="leave none of the 4 CPUs"):
        shares(Resources(4.0), Wish(workers=4, cpus=1.0), False, 10)


def test_a_worker_on_a_gpu_holds_one():
    found = shares(Resources(16.0, 4.0), Wish(), True, 100)
    assert (found.workers, found.gpus) == (4, 1.0)
    assert shares(Resources(16.0, 4.0), Wish(gpus=0.5), True, 100).workers == 8
    with pytest.raises(InputError, match="want 1 GPU for a worker, and the cluster has 0"):
        shares(Resources(16.0), Wish(), True, 100)
    with pytest.raises(InputError, match="Ask for 4"):
        shares(Resources(16.0, 4.0), Wish(workers=5), True, 100)


def test_which_stages_hold_a_gpu(home):
    config = config_of(home, sample={"device": "cuda"}, semantics={"rephrase": "templates"})
    assert fitness.needs_gpu("sample", config, 1)
    assert fitness.needs_gpu("semantics", config, 1)  # the model is asked again
    assert not fitness.needs_gpu("score", config, 1)
    assert not fitness.needs_gpu("embed", config, 1)
    vllm = config_of(home, sample={"model": "vllm:some/model"})
    assert fitness.needs_gpu("sample", vllm, 2)
    assert not fitness.needs_gpu("sample", vllm, 0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:99999"])
def test_an_address_where_nothing_answers_is_refused(address):
    with pytest.raises(InputError, match=r"no Ray cluster can be used at .*ray start --head"):
        need_answer(address)
    for other in ("", "auto", "local", "ray://somewhere:1"):
        need_answer(other)


HERE = Machine("here", "3.11.9", {"numpy": "2.4.6", "torch": "2.13.0"}, "aaaa")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "3.12.1"}, r"node there has Python 3.12.1, and here is 3.11.9"),
        ({"packages": {"numpy": "2.0.0", "torch": "2.13.0"}}, "has numpy 2.0.0, and here is numpy"),
        ({"packages": {"numpy": "2.4.6"}}, "has no torch, and here is torch 2.13.0"),
        ({"source": "bbbb"}, "has another state of fusevlm"),
        ({"source": ""}, "fusevlm is not installed on node there"),
        ({"sees": False}, r"does not see the run folder /runs/x.*storage\.parts=s3"),
    ],
)
def test_a_node_that_would_make_other_parts_is_refused(change, message):
    there = replace(HERE, node="there")
    fitness.refuse_other(HERE, [there], True, "/runs/x")
    with pytest.raises(InputError, match=message):
        fitness.refuse_other(HERE, [there, replace(there, **change)], True, "/runs/x")


def test_a_folder_that_is_not_shared_is_no_matter_with_a_bucket():
    fitness.refuse_other(HERE, [replace(HERE, sees=False)], False, "/runs/x")


def test_no_key_is_passed_on_to_workers():
    given = {"FUSEVLM_API_KEY": "secret", "OPENAI_API_KEY": "secret", "OMP_NUM_THREADS": "3",
             "AWS_SECRET_ACCESS_KEY": "secret", "ONEDNN_MAX_CPU_ISA": "x"}  # fmt: skip
    found = fitness.passed_on(given)
    assert found == {"OMP_NUM_THREADS": "3", "ONEDNN_MAX_CPU_ISA": "x"}
    assert fitness.passed_on({}) == {"OMP_NUM_THREADS": "1"}


def test_builds_of_one_version_are_one_version(monkeypatch):
    monkeypatch.setattr(fitness.metadata, "version", lambda name: "2.13.0+cu126")
    assert set(fitness.versions().values()) == {"2.13.0"}
