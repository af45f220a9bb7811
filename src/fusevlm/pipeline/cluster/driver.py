"""The process that has Ray: it checks the cluster, and hands pieces to an actor pool of Ray Data.

``python -m fusevlm.pipeline.cluster.driver FD``: a JSON object a line comes and goes through the
socket FD (:mod:`.engine` is at its other end). When that end is closed, this process ends, and the
cluster it started with it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.config import as_tree, make_config
from fusevlm.errors import FuseError, InputError
from fusevlm.pipeline.cluster import fitness
from fusevlm.pipeline.cluster.fitness import Machine, Resources, Shares, Wish
from fusevlm.pipeline.cluster.ledger import Ledger
from fusevlm.pipeline.cluster.worker import Worker
from fusevlm.store.files import save
from fusevlm.store.places import Folder

STORE_BYTES = 256_000_000  # of Ray's object store: pieces are a few hundred bytes each
MOST_BLOCKS = 2000  # pieces go in so many bundles at most
PATIENCE = 20.0  # seconds for a file to be seen by another node
IN_FLIGHT = 2  # bundles that wait at each worker
QUIET = {  # of Ray itself
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",  # then the cluster counts as gone
}


class Cluster:
    """A Ray cluster that this process is connected to."""

    def __init__(self, address: str, workers: int) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        self.ray = extra("ray", "--engine ray", "distributed")
        extra("ray.data", "--engine ray", "distributed")
        need_answer(address)  # Ray itself would end this process
        own = {} if address else {"num_cpus": _cpus(workers), "object_store_memory": STORE_BYTES}
        try:
            self.ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                runtime_env={"env_vars": fitness.passed_on()},
                **own,
            )
        except (RuntimeError, ConnectionError, ValueError) as error:
            raise InputError(
                f"no Ray cluster can be used{f' at {address}' if address else ' here'}: "
                f"{_first_line(error)}"
            ) from error
        context = self.ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False

    def resources(self) -> Resources:
        """What the cluster has."""
        there = self.ray.cluster_resources()
        nodes = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
        return Resources(float(there.get("CPU", 0)), float(there.get("GPU", 0)), nodes)

    def machines(self, run: Path) -> list[Machine]:
        """Every node, and whether it sees the run folder."""
        token = f".probe-{secrets.token_hex(8)}"
        save(run / token, token.encode())
        probe = self.ray.remote(_probe())
        strategies = extra("ray.util.scheduling_strategies", "--engine ray", "distributed")
        there = [node for node in self.ray.nodes() if node["Alive"]]
        try:
            asked = [
                probe.options(
                    num_cpus=0,
                    scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(
                        node["NodeID"], soft=False
                    ),
                ).remote(str(run.absolute()), token, node["NodeID"], fitness.PACKAGES, PATIENCE)
                for node in there
            ]
            found = []
            for node, answer in zip(there, asked, strict=True):
                facts = dict(self.ray.get(answer))
                mark = run / f"{token}-{node['NodeID']}"
                facts["sees"] = facts["sees"] and _appears(mark)
                facts["node"] = node["NodeManagerAddress"]
                found.append(fitness.as_machine(facts))
            return found
        finally:
            for path in run.glob(f"{token}*"):
                Folder(run).remove(path.name)

    def fill(self, told: Mapping[str, Any], shares: Shares) -> Any:
        """Rows of what workers answer, as they come."""
        ray, pieces = self.ray, list(told["pieces"])
        ledger = (
            ray.remote(Ledger)
            .options(num_cpus=0, max_concurrency=64)
            .remote(told["limits"], told["before"])
        )
        rows = [{"piece": json.dumps(piece)} for piece in pieces]
        data = ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS))
        memory = told["memory_gb"]
        made = data.map_batches(
            Maker,
            batch_size=1,
            fn_constructor_args=(told["task"], ledger),
            compute=ray.data.ActorPoolStrategy(
                size=shares.workers, max_tasks_in_flight_per_actor=IN_FLIGHT
            ),
            num_cpus=shares.cpus,
            num_gpus=shares.gpus or None,
            memory=None if memory is None else memory * 1e9,
        )
        for row in made.iter_rows():
            yield json.loads(row["answer"])


class Maker:
    """The actor: a :class:`Worker` that Ray Data calls with batches."""

    def __init__(self, task: Mapping[str, Any], ledger: Any) -> None:
        import ray

        def call(name: str, *given: Any) -> Any:
            return ray.get(getattr(ledger, name).remote(*given))

        self.worker = Worker(task, call)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        return {"answer": [self.worker.make(str(text)) for text in batch["piece"]]}


def need_answer(address: str) -> None:
    """Refuse HOST:PORT at which nothing answers."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return  # such as auto: Ray knows where to look
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster can be used at {address}: {error}. Start one there (ray start --head "
            f"--port={port}), or leave --address out."
        ) from error


def _cpus(workers: int) -> int:
    """Of a cluster on this machine: all it has, and one more than workers that are asked for."""
    return max(os.cpu_count() or 1, workers + 1 if workers else 0)


def _probe() -> Any:
    """What looks at a node; sent as it is, so that it runs where fusevlm is not installed."""

    def probe(
        run: str, token: str, node: str, packages: Sequence[str], patience: float
    ) -> dict[str, Any]:
        import hashlib
        import importlib.util
        import os
        import platform
        import time
        from importlib import metadata
        from pathlib import Path

        versions, source = {}, ""
        for name in packages:
            try:
                versions[name] = metadata.version(name).partition("+")[0]
            except metadata.PackageNotFoundError:
                continue
        found = importlib.util.find_spec("fusevlm")
        if found is not None and found.origin:
            home, total = Path(found.origin).parent, hashlib.sha256()
            for path in sorted(home.rglob("*.py")):
                total.update(f"{path.relative_to(home).as_posix()}\0".encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
            source = total.hexdigest()[:16]
        mark, sees = os.path.join(run, token), False
        end = time.monotonic() + patience
        while not sees and time.monotonic() < end:
            try:
                with open(mark) as stream:
                    sees = stream.read() == token
                with open(f"{mark}-{node}", "w") as stream:
                    stream.write(token)
            except OSError:
                sees = False
                if not os.path.isdir(run):
                    break
                time.sleep(0.5)
        return {
            "node": node, "python": platform.python_version(), "packages": versions,
            "source": source, "sees": sees,
        }  # fmt: skip

    return probe


def _appears(path: Path) -> bool:
    """Whether a file that another node wrote is seen here, before long."""
    end = time.monotonic() + PATIENCE
    while not path.is_file():
        if time.monotonic() > end or not path.parent.is_dir():
            return False
        time.sleep(0.2)
    return True


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class Talk:
    """Lines of JSON through a socket; the process ends with it."""

    def __init__(self, handle: int) -> None:
        self._stream = socket.socket(fileno=handle).makefile("rw", encoding="utf-8")
        self._asked: list[dict[str, Any]] = []
        self._more = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._stream:
            with self._more:
                self._asked.append(json.loads(line))
                self._more.notify()
        os._exit(0)  # nobody is there any more; what Ray started ends with this process

    def hear(self) -> dict[str, Any]:
        with self._more:
            while not self._asked:
                self._more.wait()
            return self._asked.pop(0)

    def say(self, **told: Any) -> None:
        self._stream.write(json.dumps(told) + "\n")
        self._stream.flush()


def serve(talk: Talk) -> None:
    """Do what is asked, until nobody asks."""
    asked = talk.hear()
    cluster = Cluster(asked["address"], asked["workers"])
    there = cluster.resources()
    wish = Wish(asked["workers"], asked["cpus"], asked["gpus"], asked["memory_gb"])
    fitness.shares(there, wish, needs_gpu=False, n_pieces=1)  # refuses before anything is asked
    run = Path(asked["run"])
    machines = cluster.machines(run)
    fitness.refuse_other(fitness.this_machine(), machines, asked["shared"], str(run))
    seen = all(machine.sees for machine in machines)
    talk.say(ready=asdict(there), seen=seen)
    while True:
        told = talk.hear()
        there, task = cluster.resources(), told["task"]
        config = make_config(task["config"], "the run")
        on_gpu = fitness.needs_gpu(task["stage"], config, there.gpus)
        at_once = config.server.concurrency if task["paid"] else len(told["pieces"])
        shares = fitness.shares(there, wish, on_gpu, min(at_once, len(told["pieces"])))
        talk.say(workers=shares.workers, cpus=shares.cpus, gpus=shares.gpus)
        own = {**task, "config": as_tree(fitness.of_each(config, shares.workers))}
        for answer in cluster.fill({**told, "task": own}, shares):
            talk.say(**answer)
            if "error" in answer:
                break
        else:
            talk.say(done=True)


def main() -> None:
    """Serve the socket that is named on the command line."""
    talk = Talk(int(sys.argv[1]))
    try:
        serve(talk)
    except FuseError as error:
        talk.say(refused=str(error))
    except Exception as error:
        traceback.print_exc()
        talk.say(broken=f"{type(error).__name__}: {_first_line(error)}")


if __name__ == "__main__":
    main()
