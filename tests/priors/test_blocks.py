"""Stored pairs read in blocks: the same numbers as arrays in memory, and no copies in a step."""

import numpy as np
import pytest
import torch
from adapter_worlds import make_decoder, make_pairs

from fusevlm.errors import ArtefactError, InputError
from fusevlm.priors.gp import blocks, bound, task
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.priors.gp.blocks import Blocks
from fusevlm.priors.gp.objectives import CollapsedObjective, PaperObjective, elbo
from fusevlm.priors.gp.options import resolve
from fusevlm.priors.gp.parallel import Team
from fusevlm.priors.gp.train import adam_step, first_state, price, seconds_per_step
from fusevlm.store.pairs import KIND, open_pairs, write_pairs
from fusevlm.store.parts import Parts

SMALL = {"n_latent": 3, "n_inducing": 20}


def store(folder, image, text, size=64, failed=()):
    parts = Parts(folder, KIND)
    for index, start in enumerate(range(0, len(image), size)):
        some = range(start, min(start + size, len(image)))
        rows = {"query_id": [str(k) for k in some],
                "error": ["broken" if k in failed else None for k in some]}  # fmt: skip
        part = slice(some.start, some.stop)
        write_pairs(parts, index, rows, {"image": image[part], "text": text[part]})
    return open_pairs(folder)


def halves(pairs):
    return [p.astype(np.float16).astype(np.float32) for p in pairs]


def test_stored_rows_are_the_array(tmp_path):
    image, text = halves(make_pairs(200))
    failed = (0, 70, 71, 199)
    found = store(tmp_path, image, text, failed=failed)
    good = np.array([k for k in range(200) if k not in failed])
    rows, wanted = found["image"], image[good]
    assert rows.shape == (196, 24)
    np.testing.assert_array_equal(np.asarray(rows), wanted)
    np.testing.assert_array_equal(rows[50:150], wanted[50:150])
    np.testing.assert_array_equal(rows[190:500], wanted[190:])
    far, near = np.array([195, 0, 63, 64]), np.arange(195, 20, -2)
    np.testing.assert_array_equal(rows[far], wanted[far])
    np.testing.assert_array_equal(rows[near], wanted[near])
    with pytest.raises(IndexError):
        rows[np.array([196])]


def test_damaged_and_empty_parts_are_refused(tmp_path):
    store(tmp_path / "a", *make_pairs(100))
    path = tmp_path / "a" / "part-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-2] + b"xx")
    with pytest.raises(ArtefactError, match=r"part-00001\.safetensors is missing or damaged"):
        open_pairs(tmp_path / "a")
    with pytest.raises(ArtefactError, match="no embedded pair"):
        store(tmp_path / "b", *make_pairs(3), failed=(0, 1, 2))
    with pytest.raises(InputError, match="needs arrays"):
        GpAdapter(norm="normalize").fit(store(tmp_path / "c", *make_pairs(40))["image"])


def test_blocked_statistics_and_bound_equal_unblocked(tmp_path):
    """Definition (one product over all pairs) against the sums over blocks of stored rows."""
    image, text = halves(make_pairs(300))
    stored = store(tmp_path, image, text)["image"]
    keep = np.sort(np.random.default_rng(0).permutation(300)[:280])
    table = blocks.stored_table(stored, keep, torch.device("cpu"), torch.float64)
    Y = torch.tensor(image[keep], dtype=torch.float64)
    whole, apart = task.units(Y), task.units(table)
    np.testing.assert_allclose(apart.shift, whole.shift, atol=1e-15)
    standard = Blocks(table.source, table.index, table.dtype, table.device, whole)
    Z = (Y - whole.shift) / whole.scale
    X = torch.tensor(np.random.default_rng(1).standard_normal((280, 2)))
    decoder = make_decoder(9, 2, 24)
    L = bound.inducing_cholesky(decoder)
    A = torch.linalg.solve_triangular(
        L, bound.rbf(decoder.inducing, X, decoder.log_lengthscale, decoder.log_amplitude2),
        upper=False,
    )  # fmt: skip
    found = bound.statistics(X, standard, decoder, L, chunk=37)
    for name, wanted in {"Phi": A @ A.T, "AY": A @ Z, "A1": A.sum(1)}.items():
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-9, atol=1e-12)
    one = bound.bound_and_gradient(X, bound.rows(standard), decoder, chunk=37)
    two = bound.bound_and_gradient(X, bound.rows(Z), decoder, chunk=10_000)
    assert float(one.value) == pytest.approx(float(two.value), rel=1e-9)
    np.testing.assert_allclose(one.d_X, two.d_X, rtol=1e-9, atol=1e-9)
    one_start = task.principal_latents([standard], 2, seed=0, n_passes=3)
    np.testing.assert_allclose(
        one_start, task.principal_latents([Z], 2, seed=0, n_passes=3), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_training_on_stored_pairs_is_training_on_arrays(preset, tmp_path):
    """More pairs than a block and a part hold."""
    pairs = halves(make_pairs(5000, width=(12, 12)))
    options = {**SMALL, "precision": "float64"}
    options |= {"steps": 4} if preset == "default" else {"epochs": 2, "batch_size": 900, "lr": 1e-2}
    stored = store(tmp_path / "pairs", *pairs, size=1100)
    one = GpAdapter(preset, **options).fit(stored["image"], stored["text"]).fitted
    two = GpAdapter(preset, **options).fit(*pairs).fitted
    np.testing.assert_allclose(one.record.objective, two.record.objective, rtol=1e-9)
    np.testing.assert_allclose(one.arrays["latents"], two.arrays["latents"], atol=1e-8)


def test_an_interrupted_training_on_stored_pairs_goes_on(tmp_path):
    stored = store(tmp_path / "pairs", *make_pairs(150))
    options = {**SMALL, "steps": 6}

    def stop(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    def fit(folder, pairs=stored, **more):
        return GpAdapter(**options).fit(
            pairs["image"], pairs["text"], folder=tmp_path / folder, checkpoint_every=3, **more
        )

    with pytest.raises(KeyboardInterrupt):
        fit("a", progress=stop)
    resumed, straight = fit("a"), fit("b")
    assert resumed.fitted.record.objective == straight.fitted.record.objective
    with pytest.raises(ArtefactError, match="other embeddings"):
        fit("a", store(tmp_path / "other", *make_pairs(150, seed=9)))


def meta_task(options, n=500, width=16):
    """A task whose tensors have shapes and no contents: any copy to the CPU fails."""
    meta, work = torch.device("meta"), torch.float32
    raw = torch.empty(n, width, dtype=torch.float16, device=meta)
    u = blocks.Units(torch.empty(width, device=meta, dtype=torch.float64),
                     torch.empty((), device=meta, dtype=torch.float64))  # fmt: skip
    Y = Blocks(raw, torch.arange(n, device=meta), work, meta, u)
    decoder = make_decoder(options.n_inducing, options.n_latent, width)
    decoder = bound.Decoder(**{k: v.to(meta) for k, v in decoder.named().items()})
    data = bound.Rows(Y, n, torch.empty(width, device=meta), torch.empty(width, device=meta))
    latents = torch.empty(n, options.n_latent, device=meta, dtype=torch.float64)
    names = ("image", "text")
    return task.Task(dict.fromkeys(names, data), {}, dict.fromkeys(names, u), latents,
                     dict.fromkeys(names, decoder), n, "")  # fmt: skip


def test_a_step_of_the_papers_objective_never_leaves_its_device():
    """On tensors without contents: reading one number of them anywhere in a step would raise."""
    options = resolve("paper", **SMALL)
    objective = PaperObjective(meta_task(options), options, Team())
    state = first_state(objective)
    for _ in range(2):
        found = objective.evaluate(state.step, state.values)
        adam_step(state, found.gradient, options, objective, Team())
        state.step += 1
    assert {value.device.type for value in state.values.values()} == {"meta"}
    assert found.objective.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(found.objective)  # what the test rests on


def test_mixed_precision_is_close_to_float32():
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(40, 2, generator=g), torch.randn(40, 6, generator=g)
    wide = make_decoder(15, 2, 6)
    decoder = bound.Decoder(**{k: v.float() for k, v in wide.named().items()})
    m = 0.5 * torch.randn(15, 6, generator=g)
    T = torch.tril(0.2 * torch.randn(6, 15, 15, generator=g)) + torch.eye(15)
    one, moments = elbo(X, Y, decoder, m, T, 40)
    two, mixed = elbo(X, Y, decoder, m, T, 40, mixed=True)
    assert mixed[1].dtype == torch.float32
    assert float(two) != float(one)  # it is another arithmetic
    assert float(two) == pytest.approx(float(one), rel=5e-3)
    torch.testing.assert_close(mixed[1], moments[1], rtol=2e-2, atol=1e-3)
    with pytest.raises(InputError, match="mixed"):
        resolve(precision="mixed")


def test_the_price_is_said_before_training_and_changes_nothing(tmp_path):
    pairs, said = make_pairs(150), []
    order = []
    heard = GpAdapter(**SMALL, steps=3).fit(
        *pairs, say=lambda text: order.append(said.append(text)), folder=tmp_path,
        progress=lambda p: order.append(p.step),
    )  # fmt: skip
    assert order[0] is None
    assert said[0].startswith("collapsed bound: ")
    assert "at most 3 steps" in said[0]
    silent = GpAdapter(**SMALL, steps=3).fit(*pairs)
    assert heard.fitted.record.objective == silent.fitted.record.objective
    GpAdapter(**SMALL, steps=3).fit(*pairs, say=said.append, folder=tmp_path)
    assert len(said) == 1  # nothing is left to do
    options = resolve("paper", epochs=200)
    assert "0.5 s a step, 7,200 steps in 200 epochs: about 1 hours" in price(0.5, options, 7200)
    assert "3,600 of 7,200 steps" in price(0.5, options, 7200, 3600)


def test_seconds_per_step_are_of_real_steps():
    options = resolve(**SMALL, steps=5)
    made = task.prepare(
        dict(zip(("image", "text"), make_pairs(100), strict=True)), options, Team(),
        torch.device("cpu"),
    )  # fmt: skip
    objective = CollapsedObjective(made, options, Team())
    assert seconds_per_step(objective, options, Team(), n_steps=2, warm_up=1) > 0.0
