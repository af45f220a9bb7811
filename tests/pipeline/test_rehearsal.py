"""Rehearsals: every large thing has a tiny stand-in, each is named, and all of it really runs."""

import json
import re

import pytest

from fusevlm.cli import main
from fusevlm.cli.runs import rehearsal_folder
from fusevlm.config import make_config, read_config
from fusevlm.data.training import CAPTIONS, QUESTIONS, parse_source, read_source
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.bench import read_bench
from fusevlm.pipeline.data import load_splits
from fusevlm.pipeline.evaluate import read_results
from fusevlm.store import start_afresh
from fusevlm.store.runs import read_run
from fusevlm.testing import miniatures, rehearsal

OWN = "configs/own-vlm.toml"


def test_classes_by_name_and_by_folder(tmp_path):
    names = {
        "llava-hf/llava-1.5-13b-hf": "llava",
        "llava-hf/llava-v1.6-mistral-7b-hf": "llava_next",
        "Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl",
        "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl",
        "OpenGVLab/InternVL3-8B-hf": "internvl",
        "google/paligemma-3b-mix-224": "paligemma",
        "HuggingFaceTB/SmolVLM-Instruct": "smolvlm",
        "HuggingFaceM4/Idefics3-8B-Llama3": "idefics3",
        "someone/else": None,
        "tiny:llava": None,
    }
    for name, family in names.items():
        assert rehearsal.class_of(name, rehearsal.CLASSES) == family, name
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}')
    assert rehearsal.class_of(str(tmp_path), rehearsal.CLASSES) == "qwen2_vl"
    inference = {"microsoft/deberta-large-mnli": "deberta", "x/deberta-v3-mnli": "deberta_v2",
                 "x/roberta-mnli": "bert"}  # fmt: skip
    for name, kind in inference.items():
        assert rehearsal.class_of(name, rehearsal.INFERENCE) == kind


@pytest.mark.parametrize("kind", [*CAPTIONS, *QUESTIONS])
def test_training_miniatures_are_read_by_the_official_readers(kind, tmp_path):
    now = rehearsal._train_source(f"{kind}:/gone", tmp_path, tmp_path)
    assert now.startswith(f"{kind}/")
    pairs = list(read_source(parse_source(now)))
    assert len(pairs) == rehearsal.N_TRAIN
    assert all(pair.question and pair.images[0].is_file() for pair in pairs)


@pytest.mark.parametrize("source", ["vqav2", "okvqa", "advqa"])
def test_official_miniatures_are_drawn_like_the_real_ones(source, tmp_path):
    asked = miniatures.ask(24)
    right = [[f"word {k}"] for k in range(24)]
    miniatures.save_vqa(tmp_path, tmp_path / "coco", source, "val", asked, right)
    data = {"source": source, "folder": str(tmp_path), "images": str(tmp_path / "coco"),
            "n_calibration": 10, "n_test": 8}  # fmt: skip
    splits = load_splits(make_config({"data": data}, "test").data)
    assert len(splits["calibration"]) == 10
    for query in splits["calibration"]:
        assert len(query.references) == 10
        assert len(set(query.references)) == 2
        assert query.images[0].is_file()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A rehearsal of the user's own model, from the command line; what it printed."""
    import contextlib
    import io

    home = tmp_path_factory.mktemp("own")
    words = ["run", OWN, "--rehearse", "--run", str(home / "llava")]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    return home, code, printed.getvalue()


def test_a_run_is_rehearsed_to_its_page(own):
    home, code, printed = own
    assert code == 0
    assert [p.name for p in home.iterdir()] == ["llava-rehearsal"]  # the real folder is not touched
    run = home / "llava-rehearsal"
    results = read_results(run)
    measured = results["slices"][0]["methods"]
    assert set(measured) == set(read_config(OWN).calibrate.methods)
    assert not results["absent"]
    assert all(figures["auroc"] is not None for figures in measured.values())
    assert 0 < results["slices"][0]["base_accuracy"]["estimate"] < 1
    assert {row["slice"] for row in results["slices"]} >= {"all"}
    assert (run / "report" / "index.html").is_file()
    config = read_run(run)
    assert (config.sample.device_map, config.embed.device, config.sample.half) == ("", "cpu", False)
    assert config.sample.model == "tiny:llava@0"
    assert "figures mean nothing" in printed


def test_its_log_names_every_replacement(own):
    home, _, printed = own
    run = home / "llava-rehearsal"
    tree = json.loads((run / "rehearsal.json").read_text())
    noted = {one["key"]: one for one in tree["stand_ins"]}
    lines = (run / "rehearsal.txt").read_text().splitlines()
    assert all(f"  {line}" in printed for line in lines)
    assert len(lines) == len(tree["stand_ins"])
    real, now = read_config(OWN), read_run(run)
    # every setting that differs is in the log, dataset paths under one name
    data = {"data.calibration", "data.test", "data.images"}
    for section in ("data", "sample", "embed", "adapter", "semantics", "score", "calibrate",
                    "evaluate", "report"):  # fmt: skip
        was, new = getattr(real, section), getattr(now, section)
        for key in was.__dataclass_fields__:
            name = f"{section}.{key}"
            if getattr(was, key) != getattr(new, key) and name not in data:
                assert name in noted, name
    assert "llava-hf/llava-1.5-13b-hf → tiny random LLaVA (tiny:llava@0)" in printed
    assert "openai/clip-vit-large-patch14-336 → tiny random CLIP" in printed
    assert noted["sample.n"]["was"] == "20"


def test_a_rehearsal_begins_afresh_and_touches_no_other_folder(own, tmp_path, capsys):
    home, _, _ = own
    run = home / "llava-rehearsal"
    with pytest.raises(InputError, match="begins afresh"):
        rehearsal_folder(run, "score")
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ArtefactError, match="somebody else's"):
        start_afresh(tmp_path, rehearsal.LOG)
    assert (tmp_path / "mine").read_text() == "kept"
    start_afresh(tmp_path / "new", rehearsal.LOG)
    (tmp_path / "new" / "more").write_text("")
    start_afresh(tmp_path / "new", rehearsal.LOG)
    assert [p.name for p in (tmp_path / "new").iterdir()] == [rehearsal.LOG]


def test_embedded_models_and_data_stay(tmp_path):
    real = read_config("configs/demo.toml")
    now, log = rehearsal.rehearse_run(real, tmp_path / "out")
    assert now.sample.model == now.embed.towers == now.adapter.source == "embedded"
    assert now.data.source == "embedded"
    assert (now.data.n_calibration, now.data.n_test) == (48, 32)
    assert {one.key for one in log} == {
        "sample.n", "sample.max_new_tokens", "evaluate.bootstrap", "report.examples",
        "data.n_calibration", "data.n_test",
    }  # fmt: skip


def test_columns_layers_and_folders_of_a_config_have_stand_ins(tmp_path):
    tree = {
        "data": {"source": "files", "calibration": "c.csv", "test": "t.csv", "unit": "scene"},
        "sample": {"model": "someone/else", "layers": ["last", "20"], "gram": "fit", "stop": ["."]},
        "embed": {"towers": "google/clip"},
        "adapter": {"source": "data/adapter"},
        "semantics": {"similarity": "sentences", "encoder": "x/encoder", "rephrase": "generator",
                      "generator": "Salesforce/blip-vqg"},
        "score": {"layer": "20"},
        "evaluate": {"slices": ["kind"], "severity": "level", "out_of_distribution": ["odd"]},
    }  # fmt: skip
    now, log = rehearsal.rehearse_run(make_config(tree, "test"), tmp_path / "out")
    said = "\n".join(map(str, log))
    assert "someone/else → tiny random LLaVA (tiny:llava@0); its own class is not known" in said
    assert "Salesforce/blip-vqg → tiny random BLIP" in said
    assert "x/encoder → tiny random BERT" in said
    assert "data/adapter → small adapter" in said
    assert "sample.gram: fit → none" in said
    assert (now.sample.layers, now.score.layer) == (("last", "3"), "3")
    splits = load_splits(now.data)
    assert {len(queries) for queries in splits.values()} == {48, 32}
    for name in ("kind", "level", "odd", "scene"):
        assert all(name in query.metadata for query in splits["test"])


@pytest.mark.slow
def test_the_paper_is_rehearsed_to_the_end(tmp_path, capsys):
    """configs/paper.toml: every stage, method, table and figure, with a log of what stood in."""
    words = ["bench", "configs/paper.toml", "--rehearse", "--out", str(tmp_path / "paper")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["paper-rehearsal"]
    out = tmp_path / "paper-rehearsal"
    bench = read_bench("configs/paper.toml")
    tree = json.loads((out / "results.json").read_text())
    places = [place["name"] for place in tree["places"]]
    assert places == ["VQAv2", "OK-VQA", "AdVQA"]
    for place in places:
        wanted = bench.places[place].calibrate.names()
        cells = {row["name"]: row["cells"][place] for row in tree["rows"]}
        assert set(wanted) <= set(cells)
        for name, cell in cells.items():
            assert cell["missing"] or cell["figures"]["auroc"] is not None, name
        missing = {name: cell["missing"] for name, cell in cells.items() if cell["missing"]}
        # too few queries may certify no answer sets; nothing else may be absent
        assert set(missing) <= {"clm_size"}, missing
        for over in ("samples", "criteria"):
            assert "<svg" in (out / f"{place}-{over}.svg").read_text()
        assert (out / place / "report" / "index.html").is_file()
    for name in ("results.md", "results.csv", "results.tex"):
        assert (out / name).stat().st_size > 0
    listed = re.findall(r"^- \[.*\]\((.*)\)$", (out / "results.md").read_text(), re.M)
    assert len(listed) > 2 * 3 * len(places)
    assert all((out / name).stat().st_size > 0 for name in listed)
    assert len(list(out.glob("adapter-*"))) == 1  # trained once for all datasets
    log = (out / "rehearsal.txt").read_text()
    for real in ("llava-hf/llava-1.5-13b-hf", "openai/clip-vit-large-patch14-336",
                 "microsoft/deberta-large-mnli", "llava-hf/llava-1.5-7b-hf", "data/vqav2",
                 "data/okvqa", "data/advqa", "coco:data/coco", "flickr30k:data/flickr30k",
                 "vqav2:data/vqav2", "sample.device: cuda → cpu", "semantics.device: cuda → cpu",
                 "sample.dtype: float16 → float32", "bench.samples:"):  # fmt: skip
        assert real in log, real
    assert all(f"  {line}" in printed for line in log.splitlines())
