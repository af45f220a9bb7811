"""``fusevlm adapter``: formats in, statistics out, and messages for what goes wrong."""

import csv
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from adapter_worlds import make_pairs
from safetensors.numpy import save_file

from fusevlm.cli import main
from fusevlm.errors import ArtefactError, InputError
from fusevlm.priors.gp import pairs
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.priors.gp.pairs import read_pairs
from fusevlm.render.latents import latent_picture, latent_plane


@pytest.fixture(scope="module")
def square():
    return make_pairs(80, width=(10, 10))


@pytest.fixture(scope="module")
def stored(square, tmp_path_factory):
    """The same pairs in every layout."""
    home = tmp_path_factory.mktemp("pairs")
    image, text = square
    save_file({"image": image, "text": text}, home / "p.safetensors")
    np.save(home / "p.npy", np.stack(square))
    np.save(home / "image.npy", image)
    np.save(home / "text.npy", text)
    pq.write_table(pa.table({"image": list(image), "text": list(text)}), home / "p.parquet")
    return home


@pytest.mark.parametrize("name", ["p.safetensors", "p.npy", "p.parquet"])
def test_every_layout_reads_the_same(stored, square, name):
    found = read_pairs(stored / name)
    np.testing.assert_array_equal(found["image"], square[0])
    np.testing.assert_array_equal(found["text"], square[1])


def test_a_run_folder_or_its_embed_stage_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "read_embeddings", lambda folder: ([str(folder)], {"image": 0}))
    assert read_pairs(tmp_path) == {"image": 0, "query_id": [str(tmp_path)]}
    stage = tmp_path / "embed"
    stage.mkdir()
    assert read_pairs(tmp_path) == read_pairs(stage) == {"image": 0, "query_id": [str(stage)]}


def test_train_then_apply(stored, square, tmp_path, capsys):
    home = str(tmp_path / "adapter")
    words = ["--latent", "3", "--inducing", "12", "--steps", "12", "--out", home]
    assert main(["adapter", "train", str(stored / "p.npy"), *words]) == 0
    shown = capsys.readouterr()
    assert "bound" in shown.out
    assert "L_KL" in shown.out
    assert "step 12/12" in shown.err
    assert "left" in shown.err
    wanted = GpAdapter.load(home).statistics(*square)
    for out in ("s.csv", "s.parquet"):
        target = str(tmp_path / out)
        assert main(["adapter", "apply", home, str(stored / "p.parquet"), "--out", target]) == 0
    with (tmp_path / "s.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == list(wanted)
    np.testing.assert_allclose([float(r["s"]) for r in rows], wanted["s"], rtol=1e-12)
    table = pq.read_table(tmp_path / "s.parquet").to_pydict()
    np.testing.assert_allclose(table["disagreement"], wanted["disagreement"], rtol=1e-12)


def test_one_modality_and_quiet(stored, tmp_path, capsys):
    words = ["--latent", "2", "--inducing", "8", "--steps", "3", "--quiet"]
    out = str(tmp_path / "a")
    assert (
        main(["adapter", "train", "--image", str(stored / "image.npy"), *words, "--out", out]) == 0
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{home}/none.npy"], "no such file"),
        (["{home}/p.txt"], "suffix '.txt'"),
        ([], "no embeddings were named"),
        (["{home}/p.npy", "--image", "{home}/image.npy"], "not both"),
        (["{home}/image.npy"], r"shape (80, 10); expected [2, N, D]"),
        (["{home}/p.npy", "--inducing", "200"], "fewer than 200 inducing points"),
        (["{home}/p.npy", "--preset", "paper", "--latent", "0"], "n_latent is 0"),
        (["{home}/p.npy", "--device", "abacus"], "device 'abacus'"),
    ],
)
def test_failures_say_why(stored, tmp_path, capsys, words, message):
    (stored / "p.txt").write_text("1 2 3")
    filled = [word.format(home=stored) for word in words]
    assert main(["adapter", "train", *filled, "--out", str(tmp_path / "a"), "--quiet"]) == 1
    assert message in capsys.readouterr().err


def test_damaged_files(tmp_path):
    (tmp_path / "p.safetensors").write_bytes(b"not one")
    with pytest.raises(ArtefactError, match="Truncated or foreign"):
        read_pairs(tmp_path / "p.safetensors")
    (tmp_path / "p.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ArtefactError, match="cannot read"):
        read_pairs(tmp_path / "p.npy")
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtefactError, match="cannot read"):
        read_pairs(tmp_path / "p.parquet")
    pq.write_table(pa.table({"image": [[1.0, 2.0], [3.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(InputError, match="column image: row 1 has not the width"):
        read_pairs(tmp_path / "ragged.parquet")
    pq.write_table(pa.table({"sound": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(ArtefactError, match="neither image nor text"):
        read_pairs(tmp_path / "other.parquet")


def test_help_does_not_import_torch():
    code = (
        "import sys, contextlib, io, fusevlm.cli as c\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    c.main(['adapter', 'train', '--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_picture(adapter, tmp_path):
    queries = adapter.latents(*make_pairs(6, seed=4)).x
    figure = latent_picture(adapter, queries, labels=np.arange(6))
    axes, bar = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["training pairs", "queries"]
    assert "predictive variance" in bar.get_ylabel()
    centre, plane = latent_plane(adapter.training_latents)
    drawn = axes.collections[2].get_offsets()
    np.testing.assert_allclose(drawn, (queries - centre) @ plane.T, atol=1e-12)
    figure.savefig(tmp_path / "latent.png")
    assert (tmp_path / "latent.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="expected latents of 3 dimensions"):
        latent_picture(adapter, np.zeros((2, 5)))
