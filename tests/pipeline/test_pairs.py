"""From official caption and question files to an adapter and to s, by commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.data import official
from tests.models.conftest import make_picture
from tests.pipeline.tiny_models import save_models, save_queries

from fusevlm.cli import main
from fusevlm.config import read_config
from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.towers import Towers
from fusevlm.pipeline import adapter as adapter_stage
from fusevlm.pipeline import embed, pairs
from fusevlm.pipeline.adapter import read_statistics
from fusevlm.pipeline.run import Work, run_stages
from fusevlm.priors.gp.adapter import GpAdapter
from fusevlm.store.generations import read_embeddings
from fusevlm.store.pairs import KIND, open_pairs
from fusevlm.store.parts import read_parts

CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
train = ["coco:coco", "flickr30k:flickr30k", "vqav2:vqav2", "train.jsonl"]
images = "{home}"
n_calibration = 24
n_test = 12

[sample]
model = "vlm"
n = 3
max_new_tokens = 3
batch = 12

[embed]
towers = "dual_encoder"
batch = 1

[adapter]
source = "train"
inducing = 8
latent = 3
steps = 2

[calibrate]
methods = ["practical", "prior-only"]

[evaluate]
bootstrap = 10
"""
SIZES = {"coco": 30, "flickr30k": 25, "vqav2": 20, "table": 24}


def save_official(home):
    """COCO captions (annotations/ beside train2014/), Flickr30k's token file, VQAv2's questions."""
    train = home / "coco" / "train2014"
    for folder in (home / "coco" / "annotations", train, home / "flickr30k" / "flickr30k-images",
                   home / "vqav2"):  # fmt: skip
        folder.mkdir(parents=True)
    names = [f"COCO_train2014_{k:012d}.jpg" for k in range(10)]
    for k, name in enumerate(names):
        make_picture(k).save(train / name)
        make_picture(50 + k).save(home / "flickr30k" / "flickr30k-images" / f"{k}.jpg")
    captions = [
        {"id": n, "image_id": n // 3, "caption": f"a red circle {'and a blue square ' * (n % 4)}"}
        for n in range(30)
    ]
    listed = [{"id": k, "file_name": name} for k, name in enumerate(names)]
    whole = {"info": {}, "images": listed, "annotations": captions, "licenses": []}
    official.write(home / "coco" / "annotations" / "captions_train2014.json", whole)
    lines = [f"{n % 10}.jpg#{n // 10}\tthe shape is {'green ' * (n % 3)}." for n in range(25)]
    official.write(home / "flickr30k" / "results_20130124.token", "\n".join(lines) + "\n")
    asked = [official.question(1000 * (n % 10) + n, text=f"how many {n}") for n in range(20)]
    official.write(
        home / "vqav2" / "v2_OpenEnded_mscoco_train2014_questions.json",
        official.wrapped("questions", asked),
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    save_models(root)
    save_queries(root, ["yes", "no"])
    save_official(root)
    (root / "vqav2" / "train2014").symlink_to(root / "coco" / "train2014")
    (root / "own.toml").write_text(CONFIG.format(home=root))
    return root


def command(home, verb, run, *changes):
    words = [*verb, str(home / "own.toml"), "--run", str(run), "--quiet"]
    return [*words, *(word for change in changes for word in ("--set", change))]


def test_official_files_to_s_by_one_command(home, tmp_path, capsys):
    """``fusevlm run``: every source is embedded, trained on, and s is what that adapter says."""
    assert main(command(home, ["run"], tmp_path / "run")) in (0, 3), capsys.readouterr().err
    ids = [i for rows, _ in read_parts(tmp_path / "run" / "pairs", KIND) for i in rows["query_id"]]
    kinds = [i.split("/")[0] for i in ids]
    assert [kinds.count(k) for k in ("coco", "flickr30k", "vqav2")] == [30, 25, 20]
    assert len(ids) == sum(SIZES.values())
    stored = open_pairs(tmp_path / "run" / "pairs")
    towers = Towers.load(str(home / "dual_encoder"))
    picture = load_image(home / "coco" / "train2014" / "COCO_train2014_000000000003.jpg")
    wanted = {
        "image": towers.images([picture])[0],
        "text": towers.texts(["a red circle and a blue square and a blue square"]).vectors[0],
    }
    for name, vector in wanted.items():  # caption 10 is of image 3; half precision on disk
        np.testing.assert_allclose(stored[name][10:11][0], vector, atol=2e-3)
    question = towers.texts(["how many 7"]).vectors[0]  # the question alone, no answer
    np.testing.assert_allclose(stored["text"][np.array([62])][0], question, atol=2e-3)
    adapter = GpAdapter.load(tmp_path / "run" / "train" / "model")
    assert adapter.fitted.record.n_pairs + adapter.fitted.record.n_held_out == 99
    names, judged = read_embeddings(tmp_path / "run" / "embed")
    found = read_statistics(tmp_path / "run")
    s = adapter.statistics(judged["image"], judged["text"])["s"]
    np.testing.assert_allclose([found[i]["s"] for i in names], s, rtol=1e-9)
    assert not (tmp_path / "run" / "train" / "model" / "checkpoints").exists()


def test_adapter_train_takes_a_config_and_a_draw(home, tmp_path, capsys):
    """``fusevlm adapter train CONFIG`` alone, 40 pairs drawn by the seed."""
    words = command(home, ["adapter", "train"], tmp_path / "a", "data.n_train=40")
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == f"adapter: {tmp_path / 'a' / 'train' / 'model'}\n"
    one = drawn(tmp_path / "a")
    assert len(one) == 40
    assert not (tmp_path / "a" / "data").exists()
    for name, seed in (("b", 0), ("c", 1)):
        config = read_config(home / "own.toml", ["data.n_train=40", f"data.seed={seed}"])
        run_stages(tmp_path / name, config, to="pairs")
    assert drawn(tmp_path / "b") == one != drawn(tmp_path / "c")
    assert main([*words, "--set", "adapter.inducing=9"]) == 1
    err = capsys.readouterr().err
    assert "train is stale: adapter.inducing was 8 and is now 9" in err
    assert "fusevlm adapter train" in err
    assert main([*words, "--set", "adapter.inducing=9", "--redo", "train"]) == 0
    capsys.readouterr()
    assert main([*words, "--inducing", "9"]) == 1
    assert "--inducing does not go with a TOML file" in capsys.readouterr().err
    stored = ["adapter", "train", str(tmp_path / "a"), "--inducing", "8", "--steps", "1"]
    assert main([*stored, "--latent", "2", "--quiet", "--out", str(tmp_path / "again")]) == 0
    assert "pairs 38, held out 2" in capsys.readouterr().out


def drawn(run):
    return [i for rows, _ in read_parts(run / "pairs", KIND) for i in rows["query_id"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter.preset": "paper", "adapter.epochs": 2, "adapter.batch": 50, "adapter.lr": 1e-3,
         "adapter.lambda1": 1.0, "adapter.lambda2": 0.5, "adapter.mixed": True, "adapter.latent": 2,
         "adapter.seed": 3},
    ],
)  # fmt: skip
def test_the_papers_objective_from_a_config(home, tmp_path, changes, capsys):
    """All its settings reach the adapter; what it will cost is said before it starts."""
    path = home / "paper.toml"
    path.write_text((home / "own.toml").read_text().replace("steps = 2\n", ""))
    words = ["adapter", "train", str(path), "--run", str(tmp_path / "run")]
    for key, value in changes.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    assert main(words) == 0, capsys.readouterr().err
    lines = capsys.readouterr().err.splitlines()
    priced = next(k for k, line in enumerate(lines) if "s a step, 4 steps in 2 epochs" in line)
    assert priced < next(k for k, line in enumerate(lines) if line.startswith("train 1/"))
    adapter = GpAdapter.load(tmp_path / "run" / "train" / "model")
    o = adapter.options
    assert (o.objective, o.epochs, o.batch_size, o.lr, o.latent_lr) == ("paper", 2, 50, 1e-3, 1e-3)
    assert (o.lambda1, o.lambda2, o.precision, o.n_latent, o.seed) == (1.0, 0.5, "mixed", 2, 3)
    assert (o.n_inducing, adapter.fitted.record.steps) == (8, 4)


def test_an_interrupted_embedding_ends_with_the_same_bytes(home, tmp_path, monkeypatch):
    """Stopped in the second part, with a half-written file left behind, then resumed."""
    config = read_config(home / "own.toml")
    run_stages(tmp_path / "straight", config, to="pairs")
    calls = []

    def stops(towers, queries):
        calls.append(len(queries))
        if len(calls) == 70:
            raise KeyboardInterrupt
        return embed.embedded(towers, queries)

    monkeypatch.setattr(pairs, "embedded", stops)
    with pytest.raises(KeyboardInterrupt):
        run_stages(tmp_path / "stopped", config, to="pairs")
    monkeypatch.undo()
    (tmp_path / "stopped" / "pairs" / ".part-00001.parquet.7.tmp").write_bytes(b"half")
    run_stages(tmp_path / "stopped", config, to="pairs")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "straight")
    assert len(contents(tmp_path / "straight")) == 6  # two parts of 64 and 35 pairs


def contents(run):
    return {p.name: p.read_bytes() for p in (run / "pairs").glob("*part-*")}


@pytest.mark.slow
def test_kill_9_while_embedding_then_resume(home, tmp_path):
    words = [sys.executable, "-m", "fusevlm.cli", *command(home, ["adapter", "train"], "RUN")]

    def started(name):
        own = [str(tmp_path / name) if word == "RUN" else word for word in words]
        return subprocess.Popen(own, env=os.environ, stdout=subprocess.DEVNULL)

    killed = started("killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("pairs/part-*.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert started("killed").wait() == started("straight").wait() == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "straight")
    one, two = (
        GpAdapter.load(tmp_path / name / "train" / "model") for name in ("killed", "straight")
    )
    assert one.fitted.record.objective == two.fitted.record.objective


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('data.train=["cocoa:x"]', "the kind 'cocoa' is not known. Did you mean 'coco'?"),
        ('data.train=["coco/trian:x"]', "the split of coco 'trian' is not known. Did you mean"),
        ('data.train=["coco:{home}/none"]', "holds neither annotations/captions_train2014.json"),
        ('data.train=["vqav2/val:{home}/vqav2"]', "v2_OpenEnded_mscoco_val2014_questions.json"),
        ('data.train=["flickr8k:{home}"]', "flickr8k needs"),
        ('data.train=["none.jsonl"]', "data.train names none.jsonl, which is no file"),
        ("data.n_train=500", "data.n_train asks for 500 pairs; data.train holds 99"),
        ("adapter.inducing=95", "94 training pairs (5 more held out) are fewer than 95 inducing"),
        ("adapter.latent=94", "cannot start 94 latent dimensions"),
    ],
)
def test_bad_training_data_is_named_before_any_model(home, tmp_path, capsys, monkeypatch, change,
                                                     message):  # fmt: skip
    """By validate and by the run itself, in the same words."""
    monkeypatch.setattr(pairs, "load_towers", lambda embed: pytest.fail("a model was loaded"))
    change = change.format(home=home)
    assert main(["validate", str(home / "own.toml"), "--set", change]) == 1
    assert message in capsys.readouterr().out
    assert main(command(home, ["adapter", "train"], tmp_path / "run", change)) == 1
    assert message in capsys.readouterr().err


def test_captions_without_images_are_counted_and_refused(home, tmp_path, capsys):
    broken = tmp_path / "flickr30k"
    shutil.copytree(home / "flickr30k", broken)
    (broken / "flickr30k-images" / "3.jpg").unlink()
    change = f'data.train=["flickr30k:{broken}"]'
    assert main(["validate", str(home / "own.toml"), "--set", change]) == 1
    assert "3 × missing image, such as" in capsys.readouterr().out
    assert main(command(home, ["adapter", "train"], tmp_path / "run", change)) == 1
    assert "3.jpg does not exist. Unpack the images." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("adapter.epochs=0", "adapter.epochs is 0; expected a whole number of at least 1"),
        ("adapter.lambda1=-1.0", "adapter.lambda1 is -1.0; expected a number at least 0"),
        ("adapter.lr=0.0", "adapter.lr is 0.0; expected a number above 0"),
        ("adapter.epochs=5", "adapter.epochs belongs to adapter.preset = 'paper'; it is 'default'"),
        ("adapter.lambda2=1.0", "adapter.lambda2 belongs to adapter.preset = 'paper'"),
        ("adapter.preset=paper", "adapter.steps belongs to adapter.preset = 'default'"),
        ("adapter.device=gpu", "adapter.device is 'gpu'; expected a device"),
        ("adapter.preset=papers", "adapter.preset is 'papers'; expected one of"),
    ],
)
def test_bad_settings_of_training_are_refused_by_name(home, change, message):
    with pytest.raises(InputError) as refused:
        read_config(home / "own.toml", [change])
    assert message in str(refused.value)


def test_towers_of_another_width_than_the_adapter(home, tmp_path, capsys):
    """Named by validate, and by a run before it does anything; vectors alone can still be had."""
    rows = np.random.default_rng(0).standard_normal((40, 7))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    GpAdapter(n_latent=2, n_inducing=5, steps=1).fit(rows, rows).save(tmp_path / "narrow")
    changes = [f"adapter.source={tmp_path / 'narrow'}", "data.train=[]"]
    words = ["validate", str(home / "own.toml")]
    for change in changes:
        words += ["--set", change]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "the adapter" in out
    assert "was fitted on 7" in out
    assert "not used: adapter.latent, adapter.inducing, adapter.steps" in out
    run = tmp_path / "run"
    assert main(command(home, ["run"], run, *changes)) == 1
    assert "was fitted on 7" in capsys.readouterr().err
    assert not (run / "data").exists()
    assert main(command(home, ["embed"], run, *changes)) == 0
    # towers from a hub, whose width is known by their vectors only
    work = Work(run, read_config(home / "own.toml", changes), lambda *_: None)
    with pytest.raises(InputError, match="width 16; the fit had 7"):
        adapter_stage.make(work)


def test_a_run_that_trains_nothing_has_no_such_stages(home, tmp_path, capsys):
    changes = ["adapter.source=embedded", "data.train=[]"]
    assert main([*command(home, ["run"], tmp_path / "run", *changes), "--only", "pairs"]) == 1
    assert "this run has no stage pairs: its adapter is 'embedded'" in capsys.readouterr().err
