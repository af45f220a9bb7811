"""Training: starts, resume, several processes, divergence, bad input, both presets."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from adapter_worlds import make_pairs
from safetensors.numpy import save_file
from tests.store.test_objects import arrays_of

from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.priors.gp import task
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.priors.gp.bound import DivergedError
from fusevlm.priors.gp.options import resolve
from fusevlm.priors.gp.train import CHECKPOINTS

SMALL = {"n_latent": 3, "n_inducing": 20}


def test_pca_start_against_numpy(pairs):
    Y = [
        task.standardise(torch.tensor(p), task.units(torch.tensor(p)), torch.float64) for p in pairs
    ]
    X = task.principal_latents(Y, 3, seed=0, n_passes=40).numpy()
    U, S, _ = np.linalg.svd(np.concatenate([y.numpy() for y in Y], axis=1), full_matrices=False)
    reference = U[:, :3] * S[:3]
    reference /= np.sqrt(np.mean(reference**2))
    for q in range(3):
        assert abs(np.corrcoef(X[:, q], reference[:, q])[0, 1]) == pytest.approx(1.0, abs=1e-6)
        assert X[:, q].std() == pytest.approx(reference[:, q].std(), rel=1e-4)


def test_training_raises_bound_and_held_out_likelihood(adapter):
    record = adapter.fitted.record
    assert record.objective[-1] > record.objective[0] + 0.01
    assert max(record.held_out) > record.held_out[0]
    assert record.n_held_out == 15
    assert record.kl is None  # widths 24 and 20
    assert adapter.training_latents.shape == (285, 3)


def test_same_seed_same_adapter_other_seed_another(pairs):
    one, two = (GpAdapter(**SMALL, steps=4).fit(*pairs).statistics(*pairs)["s"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    other = GpAdapter(**SMALL, steps=4, seed=1).fit(*pairs).statistics(*pairs)["s"]
    assert not np.array_equal(one, other)


def test_early_stopping_keeps_the_best(pairs):
    adapter = GpAdapter(**SMALL, steps=200, check_every=2, patience=2, min_gain=0.01).fit(*pairs)
    record = adapter.fitted.record
    assert record.steps < 200
    assert "no gain on held-out" in record.finished
    best = record.held_out_step[int(np.argmax(record.held_out))]
    assert record.best_step == best


def test_paper_preset_trains_its_own_objective():
    pairs = make_pairs(150, width=(12, 12))
    adapter = GpAdapter(
        "paper", **SMALL, epochs=15, batch_size=32, lr=0.02, latent_lr=0.02, lambda2=0.01
    ).fit(*pairs)
    record = adapter.fitted.record
    assert record.steps == 75
    assert np.mean(record.objective[-5:]) > np.mean(record.objective[:5]) + 0.05
    assert record.kl > 0
    collapsed = GpAdapter(**SMALL, steps=30, held_out=0.0).fit(*pairs)
    assert collapsed.fitted.record.objective[-1] > np.mean(record.objective[-5:])
    found = adapter.statistics(*make_pairs(9, width=(12, 12), seed=5))
    assert all(np.isfinite(v).all() and v.shape == (9,) for v in found.values())


def test_the_papers_learning_rate_does_not_move_the_latents():
    """Why it is not the default: 200 steps of 1e-6."""
    pairs = make_pairs(60, width=(8, 8))
    options = {"n_latent": 2, "n_inducing": 10, "batch_size": 60}
    before = GpAdapter("paper", **options, epochs=1).fit(*pairs).training_latents
    after = GpAdapter("paper", **options, epochs=201).fit(*pairs).training_latents
    assert np.abs(after - before).max() < 1e-3


def test_ard_and_single_modality():
    image, _ = make_pairs(120)
    adapter = GpAdapter(**SMALL, steps=10, ard=True).fit(image)
    assert adapter.fitted.arrays["image.log_lengthscale"].shape == (3,)
    found = adapter.statistics(image[:5])
    np.testing.assert_array_equal(found["s"], found["s_image"])
    assert "disagreement" not in found
    with pytest.raises(InputError, match="text embeddings were given, but the fit had none"):
        adapter.statistics(image[:5], image[:5])


def test_statistics_are_what_their_names_say(adapter):
    image, text = make_pairs(12, seed=3)
    found = adapter.statistics(image, text)
    assert set(found) == {
        "s", "s_image", "s_text", "reconstruction", "latent_distance", "disagreement",
    }  # fmt: skip
    x_image, x_text = adapter.latents(image, None).x, adapter.latents(None, text).x
    Sigma_I = [np.diag(v) for v in adapter.predict(x_image)["image"].variance]
    Sigma_T = [np.diag(v) for v in adapter.predict(x_text)["text"].variance]
    s = [
        0.5 * (np.linalg.slogdet(a)[1] / 24 + np.linalg.slogdet(b)[1] / 20)
        for a, b in zip(Sigma_I, Sigma_T, strict=True)
    ]
    np.testing.assert_allclose(found["s"], s, rtol=1e-6)
    np.testing.assert_allclose(found["disagreement"], np.linalg.norm(x_image - x_text, axis=1))
    d = np.sort(np.linalg.norm(x_image[:, None] - adapter.training_latents, axis=2), axis=1)
    e = np.sort(np.linalg.norm(x_text[:, None] - adapter.training_latents, axis=2), axis=1)
    wanted = 0.5 * (d[:, :10].mean(axis=1) + e[:, :10].mean(axis=1))
    np.testing.assert_allclose(found["latent_distance"], wanted, rtol=1e-6)
    joint = adapter.statistics(image, text, joint=True)
    assert "disagreement" not in joint
    assert not np.allclose(joint["s"], found["s"])


def test_noise_differs_between_outputs():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    level = np.where(np.arange(16) < 8, 0.05, 0.5)
    Y = np.sin(x @ rng.standard_normal((2, 16))) + level * rng.standard_normal((400, 16))
    adapter = GpAdapter(n_latent=2, n_inducing=25, steps=80, norm="any").fit(Y)
    variance = adapter.predict(np.zeros((1, 2)))["image"].variance[0]
    assert variance[8:].min() > 4 * variance[:8].max()
    np.testing.assert_allclose(variance[8:], 0.25, rtol=0.5)


def test_save_and_load(adapter, tmp_path):
    queries = make_pairs(7, seed=11)
    adapter.save(tmp_path / "a")
    again = GpAdapter.load(tmp_path / "a")
    for name, values in adapter.statistics(*queries).items():
        np.testing.assert_allclose(values, again.statistics(*queries)[name], rtol=1e-12)
    assert again.fitted.record == adapter.fitted.record


def test_foreign_truncated_and_newer_adapters_are_refused(adapter, tmp_path):
    adapter.save(tmp_path / "a")
    arrays = arrays_of(tmp_path / "a")
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtefactError, match="truncated or replaced"):
        GpAdapter.load(tmp_path / "a")
    arrays.write_bytes(whole)
    manifest = tmp_path / "a" / "adapter.json"
    head = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**head, "schema_version": 99}))
    with pytest.raises(ArtefactError, match=r"schema version 99.*Upgrade"):
        GpAdapter.load(tmp_path / "a")
    manifest.write_text(json.dumps({**head, "kind": "something else"}))
    with pytest.raises(ArtefactError, match=r"not a fusevlm\.GpAdapter"):
        GpAdapter.load(tmp_path / "a")
    with pytest.raises(ArtefactError, match=r"adapter\.json is missing"):
        GpAdapter.load(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, t: (i[:100], t), "image has 100 rows and text 300"),
        (lambda i, t: (i * 2, t), "not of norm 1.*norm='normalize'"),
        (lambda i, t: (np.where(i == i[7, 3], np.nan, i), t), "NaN or infinite.*row 7"),
        (lambda i, t: (i[0], t), r"image embeddings have shape \(24,\)"),
        (lambda i, t: (i[:20], t[:20]), "19 training pairs.*fewer than 20 inducing points"),
        (lambda i, t: (np.repeat(i[:1], 300, 0), t), "all image embeddings are equal"),
        (lambda i, t: (None, None), "neither image nor text"),
        (lambda i, t: ([["a"]], t), "not numeric"),
    ],
)
def test_bad_training_data(pairs, change, message):
    with pytest.raises(InputError, match=message):
        GpAdapter(**SMALL, steps=1).fit(*change(*pairs))


def test_bad_queries(adapter, pairs):
    with pytest.raises(InputError, match="width 20; the fit had 24"):
        adapter.statistics(pairs[1], pairs[1])
    with pytest.raises(InputError, match="NaN"):
        adapter.statistics(np.full((2, 24), np.nan))
    with pytest.raises(InputError, match="'sound'; expected one of image, text"):
        adapter.log_likelihood("sound", pairs[0], np.zeros((300, 3)))
    with pytest.raises(NotFittedError, match="untrained"):
        GpAdapter().statistics(*pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "best"}, "preset is 'best'"),
        ({"n_latents": 3}, "unknown option of the adapter 'n_latents'. Did you mean 'n_latent'"),
        ({"n_inducing": 0}, "n_inducing is 0"),
        ({"lr": -1.0}, "lr is -1"),
        ({"held_out": 1.0}, "held_out is 1"),
        ({"lambda2": 400.0}, "belong to the paper's objective"),
        ({"norm": "l1"}, "norm is 'l1'"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        GpAdapter(**options)


def test_normalize_is_an_option(pairs):
    scaled = [p * np.linspace(1, 3, 300)[:, None] for p in pairs]
    one = GpAdapter(**SMALL, steps=3, norm="normalize").fit(*scaled)
    two = GpAdapter(**SMALL, steps=3).fit(*pairs)
    assert one.fitted.record.objective[-1] == pytest.approx(
        two.fitted.record.objective[-1], rel=1e-4
    )


def test_divergence_is_stopped_and_said(pairs):
    with pytest.raises(DivergedError, match=r"(diverged at step \d+.*Lower lr|K_uu)"):
        GpAdapter(**SMALL, steps=50, lr=30.0, latent_lr=30.0).fit(*pairs)


def test_a_checkpoint_of_other_options_or_data_is_refused(pairs, tmp_path):
    GpAdapter(**SMALL, steps=4).fit(*pairs, folder=tmp_path)
    with pytest.raises(ArtefactError, match=r"other options: steps=4 \(now 5\)"):
        GpAdapter(**SMALL, steps=5).fit(*pairs, folder=tmp_path)
    with pytest.raises(ArtefactError, match="other embeddings"):
        GpAdapter(**SMALL, steps=4).fit(*make_pairs(300, seed=8), folder=tmp_path)
    GpAdapter(**SMALL, steps=5).fit(*pairs, folder=tmp_path, fresh=True)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(pairs, tmp_path, caplog):
    GpAdapter(**SMALL, steps=6).fit(*pairs, folder=tmp_path, checkpoint_every=2)
    folders = sorted((tmp_path / CHECKPOINTS).iterdir())
    assert [f.name for f in folders] == ["00000004", "00000006"]
    arrays = arrays_of(folders[1])
    arrays.write_bytes(arrays.read_bytes()[:100])
    resumed = GpAdapter(**SMALL, steps=6).fit(*pairs, folder=tmp_path)
    assert "skipped a checkpoint" in caplog.text
    straight = GpAdapter(**SMALL, steps=6).fit(*pairs)
    assert resumed.fitted.record.objective == straight.fitted.record.objective
    for folder in (tmp_path / CHECKPOINTS).iterdir():
        arrays_of(folder).write_bytes(b"no")
    with pytest.raises(ArtefactError, match="truncated or replaced"):
        GpAdapter(**SMALL, steps=6).fit(*pairs, folder=tmp_path)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_resume_is_exact(preset, pairs, tmp_path):
    """Stopped after 7 of 12 steps by an error, then resumed: bitwise the same training."""
    options = {**SMALL, "steps": 12, "epochs": 4, "batch_size": 100, "lr": 0.01}
    options |= {"lambda2": 0.0} if preset == "paper" else {}

    def stop(progress):
        if progress.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GpAdapter(preset, **options).fit(*pairs, folder=tmp_path, checkpoint_every=3, progress=stop)
    resumed = GpAdapter(preset, **options).fit(*pairs, folder=tmp_path, checkpoint_every=3)
    straight = GpAdapter(preset, **options).fit(*pairs)
    assert resumed.fitted.record.objective == straight.fitted.record.objective
    for name, value in straight.fitted.arrays.items():
        np.testing.assert_array_equal(resumed.fitted.arrays[name], value)


def environment():
    src = str(Path(task.__file__).parents[3])
    return {**os.environ, "PYTHONPATH": src, "OMP_NUM_THREADS": "1"}


def last_bound(output):
    return float(next(line for line in output.splitlines() if line.startswith("bound")).split()[1])


def test_kill_9_in_mid_training_then_resume(pairs, tmp_path):
    stored = str(tmp_path / "pairs.safetensors")
    save_file({"image": pairs[0], "text": pairs[1]}, stored)
    command = [
        sys.executable, "-m", "fusevlm.cli", "adapter", "train", stored,
        "--latent", "3", "--inducing", "30", "--steps", "150", "--held-out", "0.1", "--quiet",
        "--checkpoint-every", "5",
    ]  # fmt: skip
    killed = subprocess.Popen([*command, "--out", str(tmp_path / "killed")], env=environment())
    home = tmp_path / "killed" / CHECKPOINTS
    deadline = time.monotonic() + 120
    while len(list(home.glob("*/checkpoint.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "adapter.json").exists()
    outputs = [
        subprocess.run(
            [*command, "--out", str(tmp_path / out)],
            env=environment(), capture_output=True, text=True, check=True,
        ).stdout
        for out in ("killed", "straight")
    ]  # fmt: skip
    assert last_bound(outputs[0]) == last_bound(outputs[1])


def test_two_processes_are_one(pairs, tmp_path):
    """torchrun with two ranks: the same bound at every step (the first is bound and gradient)."""
    np.save(tmp_path / "image.npy", pairs[0])
    np.save(tmp_path / "text.npy", pairs[1])
    arguments = [
        "-m", "fusevlm.cli", "adapter", "train", "--image", str(tmp_path / "image.npy"),
        "--text", str(tmp_path / "text.npy"), "--latent", "3", "--inducing", "20",
        "--steps", "8", "--quiet", "--out",
    ]  # fmt: skip
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--standalone", *arguments, str(tmp_path / "two")]
    subprocess.run(torchrun, env=environment(), capture_output=True, text=True, check=True)
    two = GpAdapter.load(tmp_path / "two").fitted
    one = GpAdapter(**SMALL, steps=8).fit(*pairs).fitted
    np.testing.assert_allclose(two.record.objective, one.record.objective, rtol=1e-6)
    np.testing.assert_allclose(two.record.held_out, one.record.held_out, rtol=1e-5)
    np.testing.assert_allclose(two.arrays["latents"], one.arrays["latents"], atol=1e-3)
    shutil.rmtree(tmp_path / "two")


def test_options_resolve_to_the_papers_numbers():
    o = resolve("paper")
    assert (o.n_latent, o.n_inducing, o.batch_size, o.epochs, o.lr) == (10, 250, 128, 200, 1e-6)
