"""Wrong versions of the mathematics, each of which a named test must catch.

    python -m tests.mutants            all of them
    python -m tests.mutants --list     what they are

A mutant is one textual change to a copy of the package; its test runs against the copy and must
fail. The same tests must pass against the unchanged copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fusevlm"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    right: str
    wrong: str
    test: str


MUTANTS = [
    Mutant("missing log 2", "maths/wishart.py", " + n * float(np.log(2.0))", "",
           "maths/test_wishart.py::test_mean_and_variance_against_scipys_wishart_samples"),
    Mutant("ψ for ψ₁", "maths/wishart.py", "zeta(2.0, half)", "digamma(half)",
           "maths/test_wishart.py::test_figures_measured_at_the_papers_size"),
    Mutant("off by one in j", "maths/wishart.py", "np.arange(1, n + 1)", "np.arange(n)",
           "maths/test_wishart.py::test_derivatives_of_the_moment_generating_function"),
    Mutant("moments not swapped for n > d", "maths/wishart.py",
           "wishart_moments(max(n, d), min(n, d))", "wishart_moments(max(n, d), max(n, d))",
           "maths/test_wishart.py::test_swapped_moments_against_monte_carlo"),
    Mutant("slope d for n", "maths/evidence.py", "slope=min(n, d)", "slope=d",
           "maths/test_evidence.py::test_is_the_log_of_a_plain_determinant"),
    Mutant("jitter after weights", "maths/evidence.py",
           "        diagonal = np.diag(_cholesky(G, amount))\n"
           "        plain = 2.0 * float(np.sum(np.log(diagonal)))\n"
           "        return plain if log_w is None else plain + float(np.sum(log_w))\n",
           "        w = np.zeros(n) if log_w is None else log_w\n"
           "        S = G * np.exp(0.5 * (w[:, None] + w[None, :]))\n"
           "        return 2.0 * float(np.sum(np.log(np.diag(_cholesky(S, amount)))))\n",
           "maths/test_evidence.py::test_repeats_are_finite_and_still_follow_the_weights"),
    Mutant("absolute jitter", "maths/evidence.py", "jitter * trace / min(n, d)", "jitter",
           "maths/test_evidence.py::test_jitter_is_relative_reported_and_added_before_the_weights"),
    Mutant("weights inverted", "maths/evidence.py", "2.0 * alpha * (1.0 - p)",
           "-2.0 * alpha * (1.0 - p)",
           "maths/test_evidence.py::test_weights_grow_with_incoherence"),
    Mutant("α instead of 2α", "maths/evidence.py", "2.0 * alpha * (1.0 - p)", "alpha * (1.0 - p)",
           "maths/test_evidence.py::test_umpire_identity"),
    Mutant("ν_eff without the square", "maths/evidence.py", "w.sum() ** 2 / (w @ w)",
           "w.sum() / (w @ w)",
           "maths/test_evidence.py::"
           "test_effective_size_counts_equal_weights_and_survives_huge_ones"),
    Mutant("Taylor term doubled", "maths/evidence.py", "0.5 * n * (n / effective_size",
           "1.0 * n * (n / effective_size",
           "maths/test_evidence.py::test_taylor_form_follows_the_papers_expansion"),
    Mutant("weights of the left-out sample kept", "maths/noise.py", "whole - log_w + np.log",
           "whole + np.log",
           "maths/test_noise.py::test_one_factorisation_equals_deleting_each_row"),
    Mutant("jackknife factor inverted", "maths/noise.py", "(n - 1) / n * float", "1 / n * float",
           "maths/test_noise.py::test_jackknife_equals_its_definition"),
    Mutant("split halves taken for the whole", "maths/noise.py", "float(np.mean(variances)) / n",
           "float(np.mean(variances))",
           "maths/test_noise.py::test_right_on_average_where_the_paper_is_right"),
    Mutant("split halves in order of drawing", "maths/noise.py", "a, b = order[side], order[~side]",
           "a, b = np.flatnonzero(side), np.flatnonzero(~side)",
           "maths/test_noise.py::test_order_of_samples_does_not_matter"),
    Mutant("N for N − 2", "maths/noise.py", "(len(V) - 2)", "len(V)",
           "maths/test_noise.py::test_ols_noise_against_scipys_regression"),
    Mutant("n/τ² for n²/τ²", "maths/fusion.py", "tau2 / b**2", "tau2 / b",
           "maths/test_fusion.py::test_against_quadrature"),
    Mutant("prior and evidence swapped", "maths/fusion.py", "noise_var / total",
           "prior_var / total", "maths/test_fusion.py::test_against_quadrature"),
    Mutant("σ² for σ", "maths/fusion.py", "m_post + z * sigma_post", "m_post + z * sigma_post**2",
           "maths/test_fusion.py::test_score_adds_standard_deviations_not_variances"),
    Mutant("T ignored in the vector form", "maths/fusion.py", "np.linalg.solve(T, c)",
           "c / np.diag(T)",
           "maths/test_fusion.py::test_vector_evidence_against_conditioning_the_joint_gaussian"),
    Mutant("rank-one term of the merge", "maths/covariance.py",
           "np.sqrt(old.count * size / total)", "np.sqrt(size / total)",
           "maths/test_covariance.py::test_streaming_equals_all_at_once"),
    Mutant("no trace normalisation", "maths/covariance.py", "S *= (1.0 - intensity) / scale",
           "S *= 1.0 - intensity", "maths/test_covariance.py::test_streaming_equals_all_at_once"),
    Mutant("samples counted for queries", "maths/covariance.py",
           'self.n_queries if counted_in == "queries" else moments.count', "moments.count",
           "maths/test_covariance.py::"
           "test_counting_queries_gives_the_intensity_of_the_distinct_rows"),
    Mutant("Ledoit–Wolf without ‖S‖²", "maths/covariance.py", "(mean_fourth - squared_norm)",
           "mean_fourth",
           "maths/test_covariance.py::"
           "test_ledoit_wolf_equals_scikit_learn_when_every_query_has_one_sample"),
    Mutant("OAS without its +1", "maths/covariance.py", "(size + 1 - 2 / d)", "(size - 2 / d)",
           "maths/test_covariance.py::test_oas_is_the_fixed_point_of_its_own_iteration"),
    Mutant("whitening without centring", "maths/whitening.py",
           "solve_triangular(self.L, (rows - self.mean).T", "solve_triangular(self.L, rows.T",
           "maths/test_whitening.py::test_exact_gram_is_the_mahalanobis_product"),
    Mutant("Woodbury sign", "maths/whitening.py", "scaled @ scaled.T - low @ low.T",
           "scaled @ scaled.T + low @ low.T",
           "maths/test_whitening.py::test_low_rank_equals_its_own_dense_inverse"),
    Mutant("p-value without the observed errors", "maths/bounds.py",
           "bdtr(np.minimum(errors, seen), seen, risk)",
           "bdtr(np.maximum(np.minimum(errors, seen) - 1, 0), seen, risk)",
           "maths/test_bounds.py::test_binomial_p_value"),
    Mutant("δ for 1 − δ", "maths/bounds.py", "1.0 - delta)", "delta)",
           "maths/test_bounds.py::test_clopper_pearson_against_scipy"),
    Mutant("Bentkus without e", "maths/bounds.py", "np.e * binomial_p_value", "binomial_p_value",
           "maths/test_bounds.py::test_hoeffding_bentkus_by_its_definition"),
    Mutant("σ0² with the noise left in", "calibrate/prior.py", "rss / len(z) - float(noise[0])",
           "rss / len(z)",
           "calibrate/test_prior.py::test_closed_form_sigma_equals_the_search_at_equal_n"),
    Mutant("least squares weights inverted", "calibrate/prior.py",
           "1.0 / (noise + sigma2) if", "(noise + sigma2) if",
           "calibrate/test_prior.py::test_against_a_three_parameter_optimiser"),
    Mutant("covariance taken for a biserial", "calibrate/vector.py", "/ len(y) / density",
           "/ len(y)",
           "calibrate/test_vector.py::test_independent_sources_are_the_literal_formula"),
    Mutant("shared information counted twice", "calibrate/vector.py",
           "covariance - np.outer(c, k) - np.outer(b, r)", "covariance - np.outer(c, k)",
           "calibrate/test_vector.py::"
           "test_joint_sources_equal_conditioning_the_true_gaussian"),
    Mutant("P(right) for P(wrong)", "calibrate/vector.py", "ndtr((m_post - self.t) / sigma_post)",
           "ndtr((self.t - m_post) / sigma_post)",
           "calibrate/test_vector.py::test_probabilities_are_calibrated"),
    Mutant("ties of z to the first", "calibrate/tuning.py",
           "min(best, key=lambda z: (abs(z - DEFAULT_Z), z))", "best[0]",
           "calibrate/test_tuning.py::test_z_cannot_matter_when_sigma_is_constant"),
    Mutant("threshold with < for ≤", "calibrate/thresholds.py",
           'checks.vector(u, "u") <= self.threshold', 'checks.vector(u, "u") < self.threshold',
           "calibrate/test_thresholds.py::test_a_score_equal_to_the_threshold_is_answered"),
    Mutant("ties at the threshold not counted", "calibrate/thresholds.py",
           'theta, side="right"', 'theta, side="left"',
           "calibrate/test_thresholds.py::"
           "test_empirical_is_the_largest_threshold_with_low_risk"),
    Mutant("first feasible for last", "calibrate/thresholds.py", "int(indices[-1])",
           "int(indices[0])",
           "calibrate/test_thresholds.py::"
           "test_non_monotone_risk_takes_the_last_feasible_threshold"),
    Mutant("any rejection for the sequence", "calibrate/thresholds.py",
           "    kept = np.flatnonzero(p > delta)\n"
           "    stop = int(kept[0]) if len(kept) else len(p)\n"
           "    return stop - 1 if stop else None\n",
           "    return _last(np.flatnonzero(p <= delta))\n",
           "test_guarantee.py::test_guaranteed_rules_keep_their_promise"),
    Mutant("no union bound", "calibrate/thresholds.py",
           "found.loss, found.answered, delta / len(found.theta))",
           "found.loss, found.answered, delta)",
           "calibrate/test_thresholds.py::test_clopper_pearson_by_brute_force"),
    Mutant("groups without correction", "calibrate/thresholds.py",
           'checks.fraction(delta, "delta") / len(names)', 'checks.fraction(delta, "delta")',
           "calibrate/test_thresholds.py::test_groups_share_the_error_budget"),
    Mutant("quantile off by one", "calibrate/thresholds.py",
           "int(np.ceil(coverage * len(scores) - 1e-9)) - 1",
           "int(np.ceil(coverage * len(scores) - 1e-9)) - 2",
           "calibrate/test_thresholds.py::"
           "test_quantile_is_the_smallest_threshold_that_covers_enough"),
    Mutant("tuning queries reused for the threshold", "fuse.py",
           "kept = apart if len(apart) else tune", "kept = np.arange(len(batch))",
           "test_fuse.py::test_practical_thresholds_never_see_the_tuning_queries"),
    Mutant("query centring always on", "responses.py",
           "return rows - rows.mean(axis=0) if options.center == \"query\" else rows",
           "return rows - rows.mean(axis=0)",
           "test_fuse.py::test_paper_evidence_is_the_literal_formula"),
    Mutant("log-probability for probability", "responses.py",
           'return means if kind == "logprob" else np.exp(means)', "return means",
           "test_fuse.py::test_paper_evidence_is_the_literal_formula"),
    Mutant("AUROC ties lost", "metrics/discrimination.py",
           "2 * np.cumsum(at.right, axis=-1) - at.right",
           "2 * np.cumsum(at.right, axis=-1) - 2 * at.right",
           "metrics/test_discrimination.py::test_auroc_is_the_share_of_pairs_ranked_right"),
    Mutant("TPR not interpolated", "metrics/discrimination.py",
           "_pick(curve.tpr, left) + slope * (wanted - _pick(curve.fpr, left))",
           "_pick(curve.tpr, left)",
           "metrics/test_discrimination.py::test_tpr_at_fpr_interpolates_sklearns_roc"),
    Mutant("AURAC shifted by one", "metrics/selective.py",
           "total(e + (E - rho * W) * (H[end] - H[W])) / end[..., -1]",
           "(total(e + (E - rho * W) * (H[end] - H[W])) - e.sum(axis=-1) / end[..., -1])"
           " / np.maximum(end[..., -1] - 1, 1)",
           "metrics/test_selective.py::test_areas_without_ties_agree_with_a_loop"),
    Mutant("ECE with signed gaps", "metrics/calibration.py",
           "total(np.abs(bins.sum_p - bins.wrong))", "total(bins.sum_p - bins.wrong)",
           "metrics/test_metric_calibration.py::test_ece_agrees_with_a_loop_over_bins"),
    Mutant("units ignored", "metrics/bootstrap.py", "yield counts[:, unit_of_row]",
           "yield rng.multinomial(unit_of_row.size, np.full(unit_of_row.size, "
           "1 / unit_of_row.size), size=n)",
           "metrics/test_bootstrap.py::test_whole_units_are_drawn"),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    args = parser.parse_args()
    if args.list:
        for mutant in MUTANTS:
            print(f"{mutant.name}: {mutant.file}, caught by {mutant.test}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        survivors = hunt(Path(folder))
    print(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} mutants caught")
    return 1 if survivors else 0


def hunt(folder: Path) -> list[Mutant]:
    """Run every mutant's test against its copy; return those that survived."""
    copy = folder / "fusevlm"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    tests = sorted({mutant.test for mutant in MUTANTS})
    if run_tests(folder, tests) != 0:
        raise SystemExit("the tests fail on the unchanged package; nothing can be learnt")
    survivors = []
    for mutant in MUTANTS:
        target = copy / mutant.file
        original = target.read_text()
        if original.count(mutant.right) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.file} holds {mutant.right!r} "
                             f"{original.count(mutant.right)} times; expected once")  # fmt: skip
        target.write_text(original.replace(mutant.right, mutant.wrong))
        caught = run_tests(folder, [mutant.test]) == 1
        target.write_text(original)
        print(f"{'caught' if caught else 'SURVIVED':9s}{mutant.name}  ({mutant.test})", flush=True)
        if not caught:
            survivors.append(mutant)
    return survivors


def run_tests(package_folder: Path, tests: list[str]) -> int:
    """Pytest's exit code: 0 passed, 1 failed; anything else is neither."""
    environment = {**os.environ, "PYTHONPATH": str(package_folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=ROOT, env=environment, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
