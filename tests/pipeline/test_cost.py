"""The dry run: estimates by hand, every model and file named, bad names refused."""

import pytest

from fusevlm.cli import main
from fusevlm.config import make_config
from fusevlm.errors import InputError
from fusevlm.pipeline import cost
from fusevlm.pipeline.cost import Gpu
from fusevlm.pipeline.validate import machine_problems, validate
from fusevlm.testing import tiny, tiny_helpers

BIG = {
    "data": {"source": "vqav2", "folder": "vqa", "images": "coco", "n_calibration": 500,
             "n_test": 1000, "train": ["coco:coco", "flickr30k-karpathy:f", "vqav2:vqa"]},
    "sample": {"model": "llava-hf/llava-1.5-13b-hf", "n": 50, "half": True, "dtype": "float16"},
    "embed": {"towers": "openai/clip-vit-large-patch14-336"},
    "adapter": {"source": "train"},
    "semantics": {"meanings": "nli", "similarity": "nli", "rephrase": "generator",
                  "generator": "llava-hf/llava-1.5-7b-hf", "p_true": True, "dtype": "float16"},
}  # fmt: skip


def changed(section, **settings):
    return make_config({**BIG, section: {**BIG.get(section, {}), **settings}}, "test")


@pytest.fixture(scope="module")
def big():
    return make_config(BIG, "test")


def by_kind(found):
    return {work.what: work for work in found.work}


def test_sampling_by_hand(big):
    """1,500 queries, prefill of 616 tokens, then 94 batches of 16 × 51 rows, three steps each."""
    found = by_kind(cost.estimate(big))["sampling"]
    prefill = 1500 * 2 * 13.35e9 * 616 / 1e14
    arithmetic = 2 * 13.35e9 * 16 * 51 / 1e14  # 0.22 s a step
    memory = (26.7e9 + 16 * 616 * 2 * 40 * 5120 * 2) / 1e12  # 0.035 s: fewer than many rows take
    assert found.hours == pytest.approx((prefill + 94 * 3 * max(arithmetic, memory)) / 3600)
    assert found.most_hours == pytest.approx((prefill + 94 * 16 * arithmetic) / 3600)


def test_few_samples_are_bound_by_memory():
    config = changed("sample", n=1, batch=1)
    found = by_kind(cost.estimate(config, Gpu(1000.0, 500.0)))["sampling"]
    memory = (26.7e9 + 616 * 2 * 40 * 5120 * 2) / 5e11
    prefill = 1500 * 2 * 13.35e9 * 616 / 1e15
    assert found.hours == pytest.approx((prefill + 1500 * 3 * memory) / 3600)
    half = by_kind(cost.estimate(config, Gpu(1000.0, 1000.0)))["sampling"]
    assert found.hours - half.hours == pytest.approx(1500 * 3 * memory / 2 / 3600)


def test_the_other_work_by_hand(big):
    found = by_kind(cost.estimate(big))
    assert set(found) == {"sampling", "towers", "inference", "rephrasing", "P(True)"}
    assert found["P(True)"].hours == pytest.approx(1500 * 2 * 13.35e9 * 656 / 1e14 / 3600)
    pairs = 1500 * 10 * 11
    assert found["inference"].hours == pytest.approx(pairs * 40 * 2 * 0.406e9 / 1e14 / 3600)
    assert found["inference"].most_hours == pytest.approx(
        1500 * 50 * 51 * 40 * 2 * 0.406e9 / 1e14 / 3600
    )
    # five answers each cost at least five prefills of the model that is judged
    assert found["rephrasing"].hours > 5 * 1500 * 2 * 13.35e9 * 616 / 1e14 / 3600
    whole = cost.estimate(big)
    assert whole.hours == pytest.approx(sum(work.hours for work in found.values()))


def test_the_complement_by_hand():
    """A forward pass a query; by the model, 32 tokens of a negation each as well."""
    plain = changed("semantics", p_true=False, rephrase="none", complement="templates")
    found = by_kind(cost.estimate(plain))["complement"]
    once = 1500 * 2 * 13.35e9 * 616 / 1e14 / 3600
    assert found.hours == found.most_hours == pytest.approx(once)
    assert cost.estimate(plain).vram["semantics"] > 26.7
    more = by_kind(cost.estimate(changed("semantics", complement="model")))["complement"]
    steps = 1500 * cost.REPHRASED_TOKENS * (26.7e9 + 616 * 2 * 40 * 5120 * 2) / 1e12 / 3600
    assert more.hours == pytest.approx(once * (616 + 80) / 616 + steps)


def test_memory_and_disk_by_hand(big):
    found = cost.estimate(big)
    states = 1500 * 52 * 5120 * 2 * 2
    assert found.disk == pytest.approx((states + 1500 * 51**2 * 4) / 1e9)
    assert found.ram == pytest.approx(2 + (1500 * 50 * 5120 * 2 * 2 + 1500 * 5120 * 8) / 1e9)
    token = 2 * 40 * 5120 * 2
    assert found.vram["sample"] == pytest.approx((26.7e9 + 16 * (616 + 51 * 16) * token) / 1e9)
    # the model, the inference model and the generator at once
    assert found.vram["semantics"] == pytest.approx(26.7 + 1 + 0.812 + 0.5 + 14.12 + 0.5)


def test_the_adapter_is_part_of_it(big):
    work, disk, words = cost.training(big)
    assert cost.n_pairs(big) == 414_113 + 145_000 + 443_757
    assert work.hours == pytest.approx(1_002_870 / 100 / 3600)
    assert disk == pytest.approx(1_002_870 * 2 * 768 * 2 / 1e9)
    assert "collapsed objective" in words
    literal = make_config({**BIG, "adapter": {"source": "train", "preset": "paper"}}, "test")
    assert "200 epochs" in cost.training(literal)[2]
    drawn = changed("data", n_train=5000)
    assert cost.n_pairs(drawn) == 5000
    assert cost.training(make_config({}, "test")) is None


def test_everything_is_listed_once(big):
    text = cost.report({"one": big, "two": big})
    for what in ("coco:coco", "flickr30k-karpathy:f", "vqav2:vqa", "llava-hf/llava-1.5-13b-hf",
                 "llava-hf/llava-1.5-7b-hf", "openai/clip-vit-large-patch14-336",
                 "microsoft/deberta-large-mnli", "vqa/v2_mscoco_val2014_annotations.json",
                 "coco/val2014"):  # fmt: skip
        assert text.count(f" {what}  (") == 1, what
    assert text.count("adapter: collapsed") == 1
    for formula in cost.FORMULAS.values():
        assert formula in text
    assert "together" in text


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("semantics", "nli", "a/b/c", r"semantics\.nli is 'a/b/c', which is no folder"),
        ("semantics", "nli", "two words", r"semantics\.nli is 'two words': neither a folder nor"),
        ("semantics", "generator", "./gone", r"semantics\.generator is './gone', which is no fol"),
        ("semantics", "generator", "nothing:x", "registered model 'nothing' is not known"),
        ("sample", "model", "/gone/vlm", r"sample\.model is '/gone/vlm', which is no folder"),
        ("embed", "towers", "?", r"embed\.towers is '\?': neither"),
        ("data", "train", ["cocos:coco"], r"the kind 'cocos' is not known. Did you mean 'coco'"),
    ],
)
def test_names_that_can_be_none_are_refused(section, key, value, message, tmp_path):
    config = changed(section, **{key: value})
    with pytest.raises(InputError, match=message):
        cost.report({"one": config})
    assert any(message.split()[0].replace("\\", "") in p or "not known" in p
               for p in validate(config, tmp_path).problems)  # fmt: skip


def test_an_adapter_that_is_not_there(tmp_path):
    config = make_config({"adapter": {"source": "data/adapter"}}, "test")
    with pytest.raises(InputError, match=r"adapter\.source is 'data/adapter', which is no folder"):
        cost.needs(config)
    (problem,) = (p for p in validate(config, tmp_path).problems if "adapter" in p)
    assert "adapter.source is 'data/adapter', which is no folder here" in problem


def test_a_hub_name_that_is_not_known_is_said():
    need = cost.model_need("semantics.nli", "microsoft/deberta-large-mlni")
    assert (need.there, need.gigabytes) == (False, None)
    assert "not known here Did you mean 'microsoft/deberta-large-mnli'?" in need.note
    assert "check the name" in cost.model_need("sample.model", "someone/something").note
    assert cost.size_of("someone/vlm-7b-chat").parameters == 7e9
    assert cost.size_of("someone/vlm") is None
    unknown = cost.estimate(changed("sample", model="someone/vlm"))
    assert unknown.hours is None
    assert "size of the model unknown" in cost.report({"one": changed("sample", model="x/y")})


def test_folders_are_measured(tmp_path):
    config = make_config(
        {
            "sample": {"model": tiny.save("llava", tmp_path / "vlm")},
            "embed": {"towers": tiny.save_towers(tmp_path / "towers")},
            "semantics": {
                "meanings": "nli",
                "nli": tiny_helpers.save_inference("bert", tmp_path / "nli"),
                "rephrase": "generator",
                "generator": tiny_helpers.save_blip(tmp_path / "blip"),
            },
        },
        "test",
    )
    found = {need.what: need for need in cost.needs(config)}
    for key in ("sample.model", "embed.towers", "semantics.nli", "semantics.generator"):
        assert found[key].there
        assert found[key].gigabytes > 0
    plan = validate(config, tmp_path / "run").plan
    assert f"semantics.generator: folder {tmp_path / 'blip'}" in plan
    assert f"semantics.nli: folder {tmp_path / 'nli'}" in plan
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"a folder without config\.json"):
        cost.model_need("semantics.nli", str(tmp_path / "empty"))


def test_what_this_machine_lacks(monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    config = make_config(
        {"sample": {"device_map": "auto", "quantize": "4bit"},
         "semantics": {"meanings": "nli", "device": "cuda"}},
        "test",
    )  # fmt: skip
    found = machine_problems(config)
    assert any("semantics.device is 'cuda', which torch cannot use here" in p for p in found)
    assert "accelerate is not installed. Run: pip install 'fusevlm[gpu]'" in found
    assert "bitsandbytes is not installed. Run: pip install 'fusevlm[gpu]'" in found


def test_a_run_has_a_dry_run_too(capsys):
    assert main(["run", "configs/own-vlm.toml", "--dry-run", "--bandwidth", "2000"]) == 0
    text = capsys.readouterr().out
    assert "train.jsonl  (size unknown, missing" in text
    assert "sampling: number of queries unknown" in text
    assert main(["run", "configs/demo.toml", "--dry-run"]) == 0
    assert "demo: 3000 queries × 20 samples" in capsys.readouterr().out
    assert main(["run", "configs/demo.toml", "--dry-run", "--bandwidth", "0"]) == 1
    assert "--bandwidth is 0" in capsys.readouterr().err
