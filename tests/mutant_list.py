"""The mutants, by room: where, what is right there, what is wrong instead, and the test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One wrong version of the package.

    place         file:function, file:Class.method or file:CONSTANT, the file under src/fusevlm
    right, wrong  an expression, or statements in a row; ``right`` stands there once
    test          the one that must fail, under tests
    """

    name: str
    place: str
    right: str
    wrong: str
    test: str

    @property
    def file(self) -> str:
        return self.place.partition(":")[0]

    @property
    def function(self) -> str:
        return self.place.partition(":")[2]

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


MUTANTS = [
    # ------------------------------------------------------------------------------------ maths
    Mutant("missing log 2", "maths/wishart.py:_moments",
           "float(np.sum(digamma(half))) + n * float(np.log(2.0))",
           "float(np.sum(digamma(half)))",
           "maths/test_wishart.py::test_mean_and_variance_against_scipys_wishart_samples"),
    Mutant("ψ for ψ₁", "maths/wishart.py:_moments", "zeta(2.0, half)", "digamma(half)",
           "maths/test_wishart.py::test_figures_measured_at_the_papers_size"),
    Mutant("off by one in j", "maths/wishart.py:_moments", "np.arange(1, n + 1)", "np.arange(n)",
           "maths/test_wishart.py::test_derivatives_of_the_moment_generating_function"),
    Mutant("moments not swapped for n > d", "maths/wishart.py:scatter_moments", "min(n, d)",
           "max(n, d)", "maths/test_wishart.py::test_swapped_moments_against_monte_carlo"),
    Mutant("slope d for n", "maths/evidence.py:gram_evidence", "min(n, d)", "d",
           "maths/test_evidence.py::test_is_the_log_of_a_plain_determinant"),
    Mutant("jitter after weights", "maths/evidence.py:log_det",
           "diagonal = np.diag(_cholesky(G, amount))",
           "diagonal = np.diag(_cholesky(G if log_w is None else\n"
           "    G * np.exp(0.5 * (log_w[:, None] + log_w[None, :])), amount))\n"
           "log_w = None",
           "maths/test_evidence.py::test_repeats_are_finite_and_still_follow_the_weights"),
    Mutant("absolute jitter", "maths/evidence.py:jitter_amount", "jitter * trace / min(n, d)",
           "jitter",
           "maths/test_evidence.py::test_jitter_is_relative_reported_and_added_before_the_weights"),
    Mutant("weights inverted", "maths/evidence.py:log_weights", "2.0 * alpha", "-2.0 * alpha",
           "maths/test_evidence.py::test_weights_grow_with_incoherence"),
    Mutant("α instead of 2α", "maths/evidence.py:log_weights", "2.0 * alpha", "alpha",
           "maths/test_evidence.py::test_umpire_identity"),
    Mutant("ν_eff without the square", "maths/evidence.py:effective_size", "w.sum() ** 2",
           "w.sum()",
           "maths/test_evidence.py::"
           "test_effective_size_counts_equal_weights_and_survives_huge_ones"),
    Mutant("Taylor term doubled", "maths/evidence.py:taylor_log_det", "0.5 * n", "1.0 * n",
           "maths/test_evidence.py::test_taylor_form_follows_the_papers_expansion"),
    Mutant("weights of the left-out sample kept", "maths/noise.py:leave_one_out_log_dets",
           "whole - log_w", "whole",
           "maths/test_noise.py::test_one_factorisation_equals_deleting_each_row"),
    Mutant("jackknife factor inverted", "maths/noise.py:jackknife_tau2", "(n - 1) / n", "1 / n",
           "maths/test_noise.py::test_jackknife_equals_its_definition"),
    Mutant("split halves taken for the whole", "maths/noise.py:split_half_tau2",
           "min(n, d) ** 2 * float(np.mean(variances)) / n",
           "min(n, d) ** 2 * float(np.mean(variances))",
           "maths/test_noise.py::test_right_on_average_where_the_paper_is_right"),
    Mutant("split halves in order of drawing", "maths/noise.py:split_half_tau2",
           "a, b = order[side], order[~side]",
           "a, b = np.flatnonzero(side), np.flatnonzero(~side)",
           "maths/test_noise.py::test_order_of_samples_does_not_matter"),
    Mutant("N for N − 2", "maths/noise.py:ols_noise", "len(V) - 2", "len(V)",
           "maths/test_noise.py::test_ols_noise_against_scipys_regression"),
    Mutant("n/τ² for n²/τ²", "maths/fusion.py:posterior", "b**2", "b",
           "maths/test_fusion.py::test_against_quadrature"),
    Mutant("prior and evidence swapped", "maths/fusion.py:posterior", "noise_var / total",
           "prior_var / total", "maths/test_fusion.py::test_against_quadrature"),
    Mutant("σ² for σ", "maths/fusion.py:score", "z * sigma_post", "z * sigma_post**2",
           "maths/test_fusion.py::test_score_adds_standard_deviations_not_variances"),
    Mutant("T ignored in the vector form", "maths/fusion.py:reduce_evidence",
           "np.linalg.solve(T, c)", "c / np.diag(T)",
           "maths/test_fusion.py::test_vector_evidence_against_conditioning_the_joint_gaussian"),
    Mutant("rank-one term of the merge", "maths/covariance.py:_absorbed", "old.count * size",
           "size", "maths/test_covariance.py::test_streaming_equals_all_at_once"),
    Mutant("no trace normalisation", "maths/covariance.py:CovarianceAccumulator.estimate",
           "(1.0 - intensity) / scale", "1.0 - intensity",
           "maths/test_covariance.py::test_streaming_equals_all_at_once"),
    Mutant("samples counted for queries", "maths/covariance.py:CovarianceAccumulator.estimate",
           "self.n_queries if counted_in == 'queries' else moments.count", "moments.count",
           "maths/test_covariance.py::"
           "test_counting_queries_gives_the_intensity_of_the_distinct_rows"),
    Mutant("Ledoit–Wolf without ‖S‖²", "maths/covariance.py:ledoit_wolf_intensity",
           "mean_fourth - squared_norm", "mean_fourth",
           "maths/test_covariance.py::"
           "test_ledoit_wolf_equals_scikit_learn_when_every_query_has_one_sample"),
    Mutant("OAS without its +1", "maths/covariance.py:oas_intensity", "size + 1", "size",
           "maths/test_covariance.py::test_oas_is_the_fixed_point_of_its_own_iteration"),
    Mutant("whitening without centring", "maths/whitening.py:ExactWhitening.gram",
           "rows - self.mean", "rows",
           "maths/test_whitening.py::test_exact_gram_is_the_mahalanobis_product"),
    Mutant("Woodbury sign", "maths/whitening.py:LowRankWhitening.gram",
           "scaled @ scaled.T - low @ low.T", "scaled @ scaled.T + low @ low.T",
           "maths/test_whitening.py::test_low_rank_equals_its_own_dense_inverse"),
    Mutant("p-value without the observed errors", "maths/bounds.py:binomial_p_value",
           "np.minimum(errors, seen)", "np.maximum(np.minimum(errors, seen) - 1, 0)",
           "maths/test_bounds.py::test_binomial_p_value"),
    Mutant("δ for 1 − δ", "maths/bounds.py:clopper_pearson_upper", "1.0 - delta", "delta",
           "maths/test_bounds.py::test_clopper_pearson_against_scipy"),
    Mutant("Bentkus without e", "maths/bounds.py:hoeffding_bentkus_p_value", "np.e", "1.0",
           "maths/test_bounds.py::test_hoeffding_bentkus_by_its_definition"),
    # ---------------------------------------------------------------------------------- metrics
    Mutant("AUROC ties lost", "metrics/discrimination.py:auroc_counts",
           "2 * np.cumsum(at.right, axis=-1) - at.right",
           "2 * np.cumsum(at.right, axis=-1) - 2 * at.right",
           "metrics/test_discrimination.py::test_auroc_is_the_share_of_pairs_ranked_right"),
    Mutant("TPR not interpolated", "metrics/discrimination.py:tpr_at_fpr_counts",
           "_pick(curve.tpr, left) + slope * (wanted - _pick(curve.fpr, left))",
           "_pick(curve.tpr, left)",
           "metrics/test_discrimination.py::test_tpr_at_fpr_interpolates_sklearns_roc"),
    Mutant("AURAC shifted by one", "metrics/selective.py:_mean_risk",
           "total(e + (E - rho * W) * (H[end] - H[W])) / end[..., -1]",
           "(total(e + (E - rho * W) * (H[end] - H[W])) - e.sum(axis=-1) / end[..., -1])"
           " / np.maximum(end[..., -1] - 1, 1)",
           "metrics/test_selective.py::test_areas_without_ties_agree_with_a_loop"),
    Mutant("ECE with signed gaps", "metrics/calibration.py:ece_counts",
           "np.abs(bins.sum_p - bins.wrong)", "bins.sum_p - bins.wrong",
           "metrics/test_metric_calibration.py::test_ece_agrees_with_a_loop_over_bins"),
    Mutant("units ignored", "metrics/bootstrap.py:_resamples", "counts[:, unit_of_row]",
           "rng.multinomial(unit_of_row.size, np.full(unit_of_row.size, 1 / unit_of_row.size),"
           " size=n)",
           "metrics/test_bootstrap.py::test_whole_units_are_drawn"),
    # ------------------------------------------------------------------------------------- fuse
    Mutant("σ0² with the noise left in", "fuse/prior.py:_search_sigma2",
           "rss / len(z) - float(noise[0])", "rss / len(z)",
           "fuse/test_prior.py::test_closed_form_sigma_equals_the_search_at_equal_n"),
    Mutant("least squares weights inverted", "fuse/prior.py:fit_prior",
           "1.0 / (noise + sigma2)", "noise + sigma2",
           "fuse/test_prior.py::test_against_a_three_parameter_optimiser"),
    Mutant("covariance taken for a biserial", "fuse/vector.py:_biserial",
           "centred.T @ (y - y.mean()) / len(y) / density",
           "centred.T @ (y - y.mean()) / len(y)",
           "fuse/test_vector.py::test_independent_sources_are_the_literal_formula"),
    Mutant("shared information counted twice", "fuse/vector.py:_biserial_weights",
           "covariance - np.outer(c, k) - np.outer(b, r)", "covariance - np.outer(c, k)",
           "fuse/test_vector.py::test_joint_sources_equal_conditioning_the_true_gaussian"),
    Mutant("P(right) for P(wrong)", "fuse/vector.py:VectorModel.p_wrong", "m_post - self.t",
           "self.t - m_post", "fuse/test_vector.py::test_probabilities_are_calibrated"),
    Mutant("ties of z to the first", "fuse/tuning.py:choose_z",
           "min(best, key=lambda z: (abs(z - DEFAULT_Z), z))", "best[0]",
           "fuse/test_tuning.py::test_z_cannot_matter_when_sigma_is_constant"),
    Mutant("threshold with < for ≤", "fuse/thresholds.py:Threshold.answers",
           "checks.vector(u, 'u') <= self.threshold", "checks.vector(u, 'u') < self.threshold",
           "fuse/test_thresholds.py::test_a_score_equal_to_the_threshold_is_answered"),
    Mutant("ties at the threshold not counted", "fuse/thresholds.py:_candidates", "'right'",
           "'left'",
           "fuse/test_thresholds.py::test_empirical_is_the_largest_threshold_with_low_risk"),
    Mutant("first feasible for last", "fuse/thresholds.py:_last", "indices[-1]", "indices[0]",
           "fuse/test_thresholds.py::test_non_monotone_risk_takes_the_last_feasible_threshold"),
    Mutant("any rejection for the sequence", "fuse/thresholds.py:_fixed_sequence",
           "stop - 1 if stop else None", "_last(np.flatnonzero(p <= delta))",
           "fuse/test_guarantee.py::test_guaranteed_rules_keep_their_promise"),
    Mutant("no union bound", "fuse/thresholds.py:clopper_pearson", "delta / len(found.theta)",
           "delta", "fuse/test_thresholds.py::test_clopper_pearson_by_brute_force"),
    Mutant("groups without correction", "fuse/thresholds.py:per_group",
           "checks.fraction(delta, 'delta') / len(names)", "checks.fraction(delta, 'delta')",
           "fuse/test_thresholds.py::test_groups_share_the_error_budget"),
    Mutant("quantile off by one", "fuse/thresholds.py:quantile",
           "int(np.ceil(coverage * len(scores) - 1e-9)) - 1",
           "int(np.ceil(coverage * len(scores) - 1e-9)) - 2",
           "fuse/test_thresholds.py::test_quantile_is_the_smallest_threshold_that_covers_enough"),
    Mutant("tuning queries reused for the threshold", "fuse/estimator.py:Fuse.fit",
           "apart if len(apart) else tune", "np.arange(len(queries))",
           "fuse/test_fuse.py::test_practical_thresholds_never_see_the_tuning_queries"),
    Mutant("query centring always on", "fuse/evidence.py:response_rows",
           "rows - rows.mean(axis=0) if options.center == 'query' else rows",
           "rows - rows.mean(axis=0)",
           "fuse/test_fuse.py::test_paper_evidence_is_the_literal_formula"),
    Mutant("log-probability for probability", "fuse/evidence.py:confidence",
           "means if kind == 'logprob' else np.exp(means)", "means",
           "fuse/test_fuse.py::test_paper_evidence_is_the_literal_formula"),
]  # fmt: skip
