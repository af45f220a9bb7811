"""Load on the loopback, bounded: ``python -m benchmarks.load [--clients 64] [--seconds 60]``.

Two servers stand before the embedded model, one that asks queries together and one that does not
(``--batch 1``). Clients ask one of them for some seconds, then the other, in turns, so that both
meet the same machine; each client sends its next question when it has its answer. Told are
throughput (and its ratio), latency of what was answered, statuses, and the servers' memory.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

TURNS = 2  # of each server
WARM = 20  # questions before the clock starts
PICTURES = 256


@contextmanager
def server(*words):
    """(process id, address) of ``fusevlm serve``; its log is read and dropped."""
    child = subprocess.Popen(
        [sys.executable, "-m", "fusevlm.cli", "serve", "--port", "0", *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        found = re.search(r"http://\S+", child.stderr.readline())
        assert found, child.stderr.read()
        threading.Thread(target=lambda: all(True for _ in child.stderr), daemon=True).start()
        HTTPConnection(urlsplit(found[0]).netloc, timeout=120).request("GET", "/readyz")
        yield child.pid, found[0]
    finally:
        child.terminate()
        child.wait(60)


def bodies():
    """Requests about different pictures, as JSON."""
    from fusevlm.data.questions import queries

    found = []
    for query in queries("test", limit=PICTURES):
        buffer = io.BytesIO()
        query.images[0].save(buffer, "PNG")
        url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        found.append(json.dumps({"question": query.question, "image": url}).encode())
    return found


def resident(pid):
    """Megabytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


class Load:
    """Clients that ask one address until they are told to stop."""

    def __init__(self, url, clients, asked):
        self.url, self.clients, self.asked = url, clients, asked
        self.statuses, self.seconds, self.lock = Counter(), [], threading.Lock()

    def run(self, seconds, pid):
        """Ask for so long; the highest memory meanwhile."""
        stop, highest = time.monotonic() + seconds, 0.0
        threads = [
            threading.Thread(target=self._client, args=(k, stop)) for k in range(self.clients)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            highest = max(highest, resident(pid))
            time.sleep(0.2)
        for thread in threads:
            thread.join()
        return highest

    def _client(self, k, stop):
        headers = {"Content-Type": "application/json"}
        own = HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        while time.monotonic() < stop:
            body = self.asked[k % len(self.asked)]
            k += self.clients
            start = time.monotonic()
            try:
                own.request("POST", "/v1/ask", body, headers)
                reply = own.getresponse()
                reply.read()
                status = reply.status
            except (OSError, HTTPException) as error:
                status = type(error).__name__
                own.close()
            with self.lock:
                self.statuses[status] += 1
                if status == 200:
                    self.seconds.append(time.monotonic() - start)
            if status == 429:
                time.sleep(0.2)
        own.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each server")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked = bodies()
    with server("--batch", str(args.batch)) as together, server("--batch", "1") as alone:
        rows = {"batched": together, "alone": alone}
        loads = {name: Load(url, args.clients, asked) for name, (_, url) in rows.items()}
        memory = {name: [] for name in rows}
        for name, (pid, url) in rows.items():
            Load(url, 4, asked).run(WARM / 10, pid)
            memory[name].append(resident(pid))
        took = dict.fromkeys(rows, 0.0)
        for _ in range(TURNS):
            for name, (pid, _) in rows.items():
                start = time.monotonic()
                memory[name].append(loads[name].run(args.seconds / TURNS, pid))
                took[name] += time.monotonic() - start
    found = {
        name: {
            "clients": args.clients,
            "seconds": round(took[name], 1),
            "statuses": {str(status): n for status, n in sorted(load.statuses.items(), key=str)},
            "5xx": sum(n for status, n in load.statuses.items() if str(status) >= "500"),
            "per second": round(load.statuses[200] / took[name], 1),
            "p50 ms": round(1e3 * statistics.median(load.seconds)),
            "p99 ms": round(1e3 * statistics.quantiles(load.seconds, n=100)[98]),
            "memory MB before and in each turn": [round(one) for one in memory[name]],
        }
        for name, load in loads.items()
    }
    found["throughput, batched against alone"] = round(
        found["batched"]["per second"] / found["alone"]["per second"], 2
    )
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    failed = found["batched"]["5xx"] + found["alone"]["5xx"]
    grown = max(memory["batched"][2:]) - memory["batched"][1]
    return 0 if failed == 0 and grown < 200 else 1


if __name__ == "__main__":
    sys.exit(main())
