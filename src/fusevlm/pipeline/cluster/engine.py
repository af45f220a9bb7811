"""The engine that has parts made by a cluster; it talks to the process that has Ray."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from fusevlm.checks import extra
from fusevlm.config import as_tree
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.registry import behind_server
from fusevlm.pipeline.cluster.mirror import publish
from fusevlm.pipeline.cluster.worker import Task
from fusevlm.pipeline.engine import Job
from fusevlm.pipeline.parts import Piece
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.sample import SERVER_TOLD, USED, load_sampler, note_server, read_server
from fusevlm.settings import ClusterConfig
from fusevlm.store.files import open_log

LOG = "ray.log"  # in the run folder: what Ray says
PAID = ("sample", "semantics")  # stages that may ask a service
ENDING = 20.0  # seconds for the other process to end by itself


class RayEngine:
    """Has parts made by the workers of a Ray cluster; ``with`` lets go of it."""

    here = False

    def __init__(self, settings: ClusterConfig | None = None) -> None:
        extra("ray", "--engine ray", "distributed")
        self.settings = settings or ClusterConfig()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: Any = None
        self._seen = True  # whether all nodes see the run folder

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process that has Ray, and the cluster that it started."""
        if self._stream is not None:
            with suppress(OSError):  # nobody is there any more to take what was left to say
                self._stream.close()
            self._stream = None
        if self._process is not None:
            try:
                self._process.wait(ENDING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def fill(self, job: Job, work: Work) -> None:
        """Make what is left to do of a job; the cluster is sought when there is something."""
        pieces = job.pieces()
        if not pieces:
            return
        self._open(work)
        try:
            self._fill(job, work, pieces)
        except BaseException:
            self.close()  # and with it what workers have under way
            raise
        job.parts.tidy()

    def _open(self, work: Work) -> None:
        if self._stream is not None:
            return
        work.say("ray: looking for the cluster")
        ours, theirs = socket.socketpair()
        with theirs, open_log(work.run / LOG) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fusevlm.pipeline.cluster.driver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is this process's business
            )
        self._stream = ours.makefile("rw", encoding="utf-8")
        ours.close()
        wanted = asdict(self.settings)
        try:
            shared = not work.config.storage.parts
            self._say(**wanted, run=str(work.run.absolute()), shared=shared)
            answer = self._hear(work, "it was looked for")
        except BaseException:
            self.close()
            raise
        self._seen, found = answer["seen"], answer["ready"]
        gpus = f", {found['gpus']:g} GPUs" if found["gpus"] else ""
        nodes = len(found["nodes"])
        work.say(f"ray: {nodes} node{'s' * (nodes > 1)} with {found['cpus']:g} CPUs{gpus}")

    def _fill(self, job: Job, work: Work, pieces: list[Piece]) -> None:
        config, paid = work.config, job.stage in PAID and behind_server(work.config.sample.model)
        before = _introduced(job, work) if paid else None
        size = job.parts.size or job.size
        limits = {k: v for k, v in asdict(config.server).items() if v is not None}
        self._say(
            task=asdict(
                Task(
                    job.stage,
                    str(work.run.absolute()),
                    as_tree(config),
                    job.parts.kind,
                    size,
                    paid,
                    "" if self._seen else publish(work.run, job.stage),
                )
            ),
            pieces=[_told(piece, job) for piece in pieces],
            limits=limits,
            before=before,
            memory_gb=self.settings.memory_gb,
        )
        total = len(job.items) if job.until is None else job.until
        done = total - sum(len(piece.items) for piece in pieces)
        begun = self._hear(work, f"{job.stage} was begun")
        workers = begun["workers"]
        work.say(f"{job.stage}: {workers} worker{'s' * (workers > 1)}, {begun['cpus']:g} CPUs each")
        work.progress(done, total)
        used = before or {}
        while True:
            answer = self._hear(work, f"{job.stage} was made")
            if "done" in answer:
                return
            for text in answer["said"]:
                work.say(text)
            job.parts.note(answer["index"])
            told = _grown(answer["told"], used)
            used = told.get(SERVER_TOLD, used)
            words = job.noted(answer["index"], told)
            done += answer["items"]
            work.progress(done, total, *filter(None, [words]))

    def _say(self, **told: Any) -> None:
        try:
            self._stream.write(json.dumps(told) + "\n")
            self._stream.flush()
        except OSError as error:
            raise self._gone("it was asked") from error

    def _hear(self, work: Work, what: str) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except OSError:
            line = ""
        if not line:
            raise self._gone(what, work)
        found: dict[str, Any] = json.loads(line)
        if "refused" in found:
            raise InputError(found["refused"])
        if "error" in found:
            raise ArtefactError(found["error"])
        if "broken" in found:
            raise ArtefactError(
                f"the cluster failed while {what}: {found['broken']} ({work.run / LOG} has all of "
                f"it). What is finished is kept: give the same command again."
            )
        return found

    def _gone(self, what: str, work: Work | None = None) -> ArtefactError:
        log = "" if work is None else f" ({work.run / LOG} has its last words)"
        return ArtefactError(
            f"the cluster went away while {what}{log}. What is finished is kept: start it again "
            f"where it was started by hand, and give the same command again."
        )


def _told(piece: Piece, job: Job) -> dict[str, Any]:
    """A piece in JSON's types."""
    n_items = len(piece.items)
    places = None if piece.places is None else list(piece.places)
    version = None if places is None else job.parts.fact(piece.index, "version")
    return {
        "index": piece.index, "start": piece.start, "stop": piece.start + n_items,
        "places": places, "version": version, "n_items": n_items,
    }  # fmt: skip


def _grown(told: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker tells, with no count of a service below one that another has told before.

    They only grow, and what a worker counted first may be heard last.
    """
    if SERVER_TOLD not in told:
        return told
    server = told[SERVER_TOLD]
    most = {name: max(server[name], before.get(name, 0)) for name in (*USED, "cost")}
    return {**told, SERVER_TOLD: {**server, **most}}


def _introduced(job: Job, work: Work) -> dict[str, Any]:
    """What a service gives, asked once and not by every worker; and what was used of it so far."""
    noted = read_server(work.run, "sample", "semantics")
    if not noted:
        note_server(job.parts.folder, load_sampler(work.config))
        noted = read_server(work.run, job.stage)
    return noted
