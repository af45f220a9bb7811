"""The GP adapter against GPyTorch, and its own speed: one run, one table, ratios.

    OMP_NUM_THREADS=1 python -m benchmarks.adapter --minutes 10 --out adapter.json

Pairs come from a fixed generator (a curved 10-dimensional manifold in 768 dimensions plus noise).
The comparator is the form of GPyTorch that climbs fastest in a pilot, with one kernel and one set
of inducing points for all outputs, our start, M and threads: stochastic variational GPs with a
noise per output (its bound is then estimated from 2,000 pairs), or its operators for inducing
points (SGPR) put together by hand for all outputs at once, full batch, which needs one noise for
all. The bound it reaches in ``--minutes`` is the one to reach.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.priors.gp.bound import bound_and_gradient, decoder_of
from fusevlm.priors.gp.objectives import objective_for
from fusevlm.priors.gp.options import resolve
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.task import prepare
from fusevlm.priors.gp.train import adam_step, first_state
from fusevlm.render.text import layout

D, Q, M = 768, 10, 250
CPU = torch.device("cpu")
LR = 0.03


def generate_pairs(n, *, width=D, seed=0):
    """n unit-norm pairs: mean + V·sin(Wᵀx + b) + noise of its own per output; do not change."""
    rules, draws = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    latents = draws.standard_normal((n, 10), dtype=np.float32)
    pairs = []
    for _ in range(2):
        W = 0.25 * rules.standard_normal((10, 64), dtype=np.float32)
        b = rules.uniform(0.0, 2.0 * np.pi, 64).astype(np.float32)
        V = rules.standard_normal((64, width), dtype=np.float32) / 8.0
        mean = rules.standard_normal(width, dtype=np.float32)
        noise = 0.5 * np.exp(0.3 * rules.standard_normal(width, dtype=np.float32))
        Y = np.empty((n, width), np.float32)
        for i in range(0, n, 4096):
            part = mean + np.sin(latents[i : i + 4096] @ W + b) @ V
            part += noise * draws.standard_normal(part.shape, dtype=np.float32)
            Y[i : i + 4096] = part / np.linalg.norm(part, axis=1, keepdims=True)
        pairs.append(Y)
    return pairs


def build_task(pairs):
    options = resolve(held_out=0.0)
    return prepare({"image": pairs[0], "text": pairs[1]}, options, Team(), CPU), options


class Comparator:
    """GPyTorch SVGPs of both modalities on shared, learnt latents."""

    def __init__(self, task, family, batch_size):
        import gpytorch

        self.gpytorch, self.batch_size, self.family = gpytorch, batch_size, family
        self.X = torch.nn.Parameter(task.latents.float())
        self.Y = {name: data.Y for name, data in task.data.items()}
        self.N = task.n_pairs
        self.models = {n: self._model(task.decoders[n]) for n in self.Y}
        self.rng = np.random.default_rng(0)
        others = [self.X]
        q = []
        for model, likelihood in self.models.values():
            mine = list(model.variational_parameters())
            q += mine
            others += [*model.hyperparameters(), *likelihood.parameters()]
        if family == "natural":
            self.optimisers = [
                gpytorch.optim.NGD(q, num_data=self.N, lr=0.5),
                torch.optim.Adam(others, lr=LR),
            ]
        else:
            self.optimisers = [torch.optim.Adam([*others, *q], lr=LR)]

    def _model(self, decoder):
        g = self.gpytorch
        shape = torch.Size([len(decoder.mean)])
        family = {
            "cholesky": g.variational.CholeskyVariationalDistribution,
            "mean-field": g.variational.MeanFieldVariationalDistribution,
            "natural": g.variational.NaturalVariationalDistribution,
        }[self.family]

        class Svgp(g.models.ApproximateGP):
            def __init__(self):
                q = family(len(decoder.inducing), batch_shape=shape)
                super().__init__(
                    g.variational.VariationalStrategy(
                        self, decoder.inducing.float(), q, learn_inducing_locations=True
                    )
                )
                self.mean_module = g.means.ConstantMean(batch_shape=shape)
                self.covar_module = g.kernels.ScaleKernel(g.kernels.RBFKernel())

            def forward(self, x):
                return g.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        model = Svgp()
        model.covar_module.base_kernel.lengthscale = float(decoder.log_lengthscale.exp())
        model.covar_module.outputscale = float(decoder.log_amplitude2.exp())
        likelihood = g.likelihoods.GaussianLikelihood(
            batch_shape=shape, noise_constraint=g.constraints.GreaterThan(1e-5)
        )
        likelihood.noise = decoder.log_noise.exp().float()[:, None]
        return model, likelihood

    def elbo(self, index):
        """Σ_M Σ_k ELBO estimated from some rows."""
        total = 0.0
        for name, (model, likelihood) in self.models.items():
            mll = self.gpytorch.mlls.VariationalELBO(likelihood, model, num_data=self.N)
            total = total + mll(model(self.X[index]), self.Y[name][index].T).sum() * self.N
        return total

    def step(self):
        index = torch.as_tensor(self.rng.choice(self.N, self.batch_size, replace=False))
        for o in self.optimisers:
            o.zero_grad()
        loss = -(self.elbo(index) - 0.5 * self.X.square().sum()) / self.N
        loss.backward()
        for o in self.optimisers:
            o.step()

    def bound(self, n_rows=None):
        """Σ ELBO − ½‖X‖² over all rows (or an evenly spaced share of them)."""
        for model, _ in self.models.values():
            model.eval()
        rows = torch.arange(0, self.N, max(1, self.N // (n_rows or self.N)))
        with torch.no_grad():
            parts = [(self.elbo(part), len(part)) for part in torch.split(rows, 256)]
            value = sum(float(v) * n for v, n in parts) / len(rows)
            value -= 0.5 * float(self.X.square().sum())
        for model, _ in self.models.values():
            model.train()
        return value

    def run(self, seconds):
        """Train for so long; returns steps taken and seconds spent."""
        begun, steps = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            self.step()
            steps += 1
        return steps, time.monotonic() - begun


class HandmadeSgpr:
    """GPyTorch's inducing-point kernel and Woodbury operators, one right-hand side per output."""

    def __init__(self, task):
        import gpytorch

        self.N, self.last = task.n_pairs, float("nan")
        self.X = torch.nn.Parameter(task.latents.float())
        self.parts, parameters = [], [self.X]
        for name, data in task.data.items():
            decoder = task.decoders[name]
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            likelihood.noise = float(decoder.log_noise.exp().mean())
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            base.base_kernel.lengthscale = float(decoder.log_lengthscale.exp())
            base.outputscale = float(decoder.log_amplitude2.exp())
            kernel = gpytorch.kernels.InducingPointKernel(
                base, decoder.inducing.float(), likelihood
            )
            mean = torch.nn.Parameter(torch.zeros(data.Y.shape[1]))
            self.parts.append((kernel, likelihood, mean, data.Y))
            parameters += [*kernel.parameters(), mean]  # the likelihood is part of the kernel
        self.optimiser = torch.optim.Adam(list(dict.fromkeys(parameters)), lr=LR)

    def step(self):
        self.optimiser.zero_grad()
        total = -0.5 * self.X.square().sum()
        for kernel, likelihood, mean, Y in self.parts:
            n_outputs, noise = Y.shape[1], likelihood.noise
            low_rank = kernel(self.X).evaluate_kernel()
            covariance = low_rank.add_diagonal(noise.expand(self.N))
            quad, log_det = covariance.inv_quad_logdet(inv_quad_rhs=Y - mean, logdet=True)
            amplitude2 = kernel.base_kernel.outputscale
            slack = (amplitude2 * self.N - low_rank.diagonal().sum()) / noise.sum()
            constant = self.N * n_outputs * np.log(2.0 * np.pi)
            total = total - 0.5 * (quad.sum() + n_outputs * (log_det + slack) + constant)
        (-total / self.N).backward()
        self.optimiser.step()
        self.last = total.item()

    def bound(self, n_rows=None):
        return self.last

    run = Comparator.run


FORMS = [("mean-field", 32), ("natural", 128), ("SGPR by hand, one noise", None)]


def comparator(task, family, batch_size):
    return HandmadeSgpr(task) if batch_size is None else Comparator(task, family, batch_size)


def pilot(task, seconds):
    """The form whose bound is best after the same time."""
    rows = []
    for family, batch_size in FORMS:
        rival = comparator(task, family, batch_size)
        steps, spent = rival.run(seconds)
        bound = task.per_output(rival.bound(512))
        rows.append({"family": family, "batch": batch_size, "s_per_step": spent / steps,
                     "bound": bound})  # fmt: skip
        print(f"  pilot {family}, batch {batch_size}: {spent / steps:.2f} s a step, {bound:.4f}",
              flush=True)  # fmt: skip
        del rival
    return max(rows, key=lambda row: row["bound"]), rows


def time_to_reach(task, options, target, most_steps=200):
    """Seconds and steps until our objective passes ``target`` (nat per output)."""
    objective = objective_for(task, options, Team())
    begun = time.monotonic()
    state = first_state(objective)
    curve = []
    while state.step < most_steps:
        found = objective.evaluate(state.step, state.values)
        now = task.per_output(found.objective)
        curve.append((time.monotonic() - begun, now))
        if now >= target:
            return curve[-1][0], state.step, curve
        adam_step(state, found.gradient, options, objective, Team())
        state.step += 1
    return float("inf"), state.step, curve


def time_to_finish(pairs):
    """A whole fit with early stopping."""
    begun = time.monotonic()
    adapter = GpAdapter().fit(*pairs)
    return adapter, time.monotonic() - begun


def query_times(adapter, queries, n_random=10):
    """ms a query and the share within 0.5 nat of the best of all starts, per kind of query."""
    image, text = queries
    rows = {}
    for name, given in {
        "image": (image, None),
        "text": (None, text),
        "both": (image, text),
    }.items():
        adapter.latents(*[g if g is None else g[:64] for g in given])
        begun = time.monotonic()
        found = adapter.latents(*given)
        spent = time.monotonic() - begun
        starts = np.random.default_rng(0).standard_normal((len(image), n_random, Q))
        best = np.maximum(
            adapter.latents(*given, starts=starts, n_climbs=n_random).log_joint, found.log_joint
        )
        rows[name] = {
            "ms_per_query": 1e3 * spent / len(image),
            "within_half_nat": float(np.mean(best - found.log_joint <= 0.5)),
            "converged": float(found.converged.mean()),
        }
    return rows


def start_dependence(adapter, image, n_runs=10):
    """Largest spread of s_image over single random starts, as a share of the range of s_image."""
    rng = np.random.default_rng(1)
    values = []
    for _ in range(n_runs):
        starts = rng.standard_normal((len(image), 1, Q))
        x = adapter.latents(image, None, starts=starts, tol=1e-6).x
        values.append(np.log(adapter.predict(x)["image"].variance).mean(axis=1))
    return float(np.ptp(values, axis=0).max() / np.ptp(np.median(values, axis=0)))


def step_time(n, n_steps=3):
    """Seconds a full-batch step (bound and gradient, both modalities) takes, best of n_steps."""
    task, options = build_task(generate_pairs(n))
    values = objective_for(task, options, Team()).first_values()
    best = float("inf")
    for _ in range(n_steps):
        begun = time.monotonic()
        for name, data in task.data.items():
            bound_and_gradient(values["latents"], data, decoder_of(values, name))
        best = min(best, time.monotonic() - begun)
    return best


def peak_memory(n):
    """MB beyond imports and data at the peak of start, five steps and the finished posterior."""
    pairs = generate_pairs(n)
    GpAdapter(steps=1, n_inducing=8, held_out=0.0).fit(pairs[0][:64], pairs[1][:64])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _status("VmRSS")
    GpAdapter(steps=5).fit(*pairs)
    return (_status("VmHWM") - before) / 1024.0


def _status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(key)).split()[1])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for the comparator (10)")
    parser.add_argument("--pilot", type=float, default=30.0, help="seconds per GPyTorch form (30)")
    parser.add_argument("--pairs", type=int, default=20_000, help="training pairs (20000)")
    parser.add_argument("--out", help="JSON file for the numbers")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.memory:
        print(json.dumps(peak_memory(args.pairs)))
        return 0
    whole = generate_pairs(args.pairs + 1000)
    pairs, queries = [p[: args.pairs] for p in whole], [p[args.pairs :] for p in whole]
    task, options = build_task(pairs)
    results = {"pairs": args.pairs, "minutes": args.minutes, "torch": torch.__version__}

    chosen, results["pilot"] = pilot(task, args.pilot)
    rival = comparator(task, chosen["family"], chosen["batch"])
    steps, spent = rival.run(60.0 * args.minutes)
    target = task.per_output(rival.bound(2000))
    results["gpytorch"] = {**chosen, "steps": steps, "seconds": spent, "bound": target}
    del rival
    seconds, ours, curve = time_to_reach(task, options, target)
    results["ours"] = {"seconds": seconds, "steps": ours, "curve": curve,
                       "ratio": spent / seconds}  # fmt: skip
    del task
    adapter, fit_seconds = time_to_finish(pairs)
    record = adapter.fitted.record
    results["fit"] = {"seconds": fit_seconds, "steps": record.steps, "why": record.finished,
                      "bound": record.objective[-1], "held_out": max(record.held_out)}  # fmt: skip
    results["query"] = query_times(adapter, queries)
    results["start_dependence"] = start_dependence(adapter, queries[0][:300])
    command = [sys.executable, "-m", "benchmarks.adapter", "--memory", "--pairs", str(args.pairs)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    results["peak_MB"] = json.loads(shown.stdout)
    results["us_per_pair_step"] = {
        n: 1e6 * step_time(n) / n for n in (max(M, args.pairs // 4), args.pairs, 4 * args.pairs)
    }
    print(table(results))
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1))
    return 0


def table(r):
    g, ours, fit = r["gpytorch"], r["ours"], r["fit"]
    flat = r["us_per_pair_step"]
    rows = [
        (f"GPyTorch, {g['family']}, batch {g['batch'] or 'all'}",
         f"bound {g['bound']:.4f} after {g['seconds']:.0f} s, {g['steps']} steps", ""),
        ("ours to that bound", f"{ours['seconds']:.1f} s, {ours['steps']} steps", ""),
        ("ratio", f"{ours['ratio']:.0f}×", "≥ 50×"),
        ("ours, whole fit", f"bound {fit['bound']:.4f} in {fit['seconds']:.0f} s, "
         f"{fit['steps']} steps", ""),
        *[
            (f"x* from {name}", f"{q['ms_per_query']:.2f} ms a query, "
             f"{q['within_half_nat']:.1%} within 0.5 nat, {q['converged']:.1%} converged",
             "< 2 ms, ≥ 99 %")
            for name, q in r["query"].items()
        ],
        ("spread of s, 10 random starts", f"{r['start_dependence']:.1e} of its range", "< 1e-3"),
        ("memory beyond data and imports", f"{r['peak_MB']:.0f} MB", "< 1000 MB"),
        *[(f"step, {n} pairs", f"{us:.1f} µs a pair", "flat") for n, us in flat.items()],
    ]  # fmt: skip
    return layout(("what", "measured", "bar"), rows)


if __name__ == "__main__":
    sys.exit(main())
