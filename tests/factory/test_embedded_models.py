"""The embedded models: tokens, packing, training steps, saving, resuming."""

import json
import re

import numpy as np
import pytest
import torch
import transformers

from factory import models, packing, recipes, train
from factory.optimise import learning_rate, optimise
from fusevlm.data import questions, scenes
from fusevlm.data.pictures import as_image
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.huggingface import HuggingFace
from fusevlm.models.towers import Towers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TINY = train.Plan(
    seed=3, dual_steps=3, dual_images=8, vlm_steps=4, vlm_images=4, vlm_questions=2,
    asker_steps=2, n_pairs=48, n_latent=2, n_inducing=8, adapter_steps=3, n_scenes=24,
)  # fmt: skip


@pytest.fixture(scope="module")
def some():
    return scenes.split("train")[:24]


def segments(scenes_, rng, n=3):
    return [
        [
            packing.segment(a.question + models.INSTRUCTION, a.answer)
            for a in (questions.draw(s, rng) for _ in range(n))
        ]
        for s in scenes_
    ]


def test_every_text_survives_the_tokenizer():
    texts = {q for kind in questions.KINDS.values() for q in (*kind.seen, *kind.unseen)}
    for scene in scenes.split("train")[:400]:
        for asked in (*questions.package_questions(scene), *questions.derived_questions(scene)):
            texts |= {asked.question, asked.answer}
    for text in texts:
        ids = models.encode(text)
        assert models.UNK not in ids, text
        assert models.tokenizer().decode(ids, skip_special_tokens=True) == text


def test_texts_that_fit_every_picture_teach_nothing():
    rng = torch.Generator().manual_seed(0)
    image, text = torch.randn(2, 3, 8, generator=rng)
    scale = torch.tensor(1.0)
    every = torch.ones(3, 3, dtype=torch.bool)
    assert packing.contrastive_loss(image, text, scale, every) == 0
    some = every.clone()
    some[0, 1] = False
    with_others = packing.contrastive_loss(image, text, scale, some)
    alone = packing.contrastive_loss(image, text[:1], scale, some[:1])
    torch.testing.assert_close(with_others, alone)


def test_digits_are_tokens_of_their_own():
    tokens = models.tokenizer().convert_ids_to_tokens(models.encode("35"))
    assert tokens == [models.SPACE, "3", "5"]


def test_packed_segments_have_the_logits_of_prompts_of_their_own(some):
    model = models.language_model(0).eval()
    rows = segments(some[:3], np.random.default_rng(0))
    pixels = models.as_tensor(scenes.read_pixels(some[:3]))
    ids, _ = packing.pack(rows)
    with torch.inference_mode():
        packed = packing.packed_logits(model, packing.image_features(model, pixels), ids)
        for b, row in enumerate(rows):
            for k, part in enumerate(row):
                alone = model(
                    input_ids=torch.tensor([[*packing.PREFIX, *part.ids]]),
                    pixel_values=pixels[b : b + 1],
                ).logits[0, len(packing.PREFIX) :]
                torch.testing.assert_close(packed[b, k, : len(part.ids)], alone)


def test_labels_are_the_answer_and_its_end():
    part = packing.segment("how wide is the shape in pixels?" + models.INSTRUCTION, "25")
    _, labels = packing.pack([[part]])
    kept = [int(i) for i in labels.flatten() if i != packing.IGNORED]
    assert kept == [*models.encode("25"), models.EOS]


def test_training_and_back_end_see_the_same_prompt(some, tmp_path):
    models.save_half(models.language_model(0), models.answer_processor(), tmp_path)
    backend = HuggingFace.load(str(tmp_path))
    asked = questions.package_questions(some[0])[0]
    query = questions.make_query("train", some[0], asked, "noise", 2)
    given = backend.prepare(query)
    part = packing.segment(asked.question + models.INSTRUCTION, asked.answer)
    expected = [*packing.PREFIX, *part.ids[: part.n_prompt]]
    assert given["input_ids"][0].tolist() == expected
    pixels = models.as_tensor(np.asarray(query.images[0])[None])
    torch.testing.assert_close(given["pixel_values"], pixels, atol=1e-5, rtol=0)


def test_saved_models_load_through_the_back_ends_with_the_same_outputs(some, tmp_path):
    clip, vlm = models.dual_encoder(1).eval(), models.language_model(1).eval()
    models.save_half(clip, models.towers_processor(), tmp_path / "clip")
    models.save_half(vlm, models.answer_processor(), tmp_path / "vlm")
    pixels = scenes.read_pixels(some[:4])
    towers = Towers.load(str(tmp_path / "clip"))
    assert towers.model.dtype == torch.float32
    texts = ["small red circle", "what color is the shape?"]
    with torch.inference_mode():
        ids, mask = packing.text_ids(texts)
        text = clip.get_text_features(input_ids=ids, attention_mask=mask).pooler_output
        image = clip.get_image_features(pixel_values=models.as_tensor(pixels)).pooler_output
    unit = torch.nn.functional.normalize
    assert np.abs(towers.texts(texts).vectors - unit(text, dim=-1).numpy()).max() < 5e-3
    found = towers.images([as_image(p) for p in pixels])
    assert np.abs(found - unit(image, dim=-1).numpy()).max() < 5e-3
    backend = HuggingFace.load(str(tmp_path / "vlm"))
    query = questions.make_query("x", some[0], questions.package_questions(some[0])[0], "clean", 0)
    inputs = backend.prepare(query)
    with torch.inference_mode():
        ours, theirs = vlm(**inputs).logits, backend.model(**inputs).logits
    torch.testing.assert_close(theirs, ours, atol=2e-2, rtol=1e-2)
    generation = next(iter(backend.sample([query], 3, np.ones(3), 0)))
    assert generation.error is None


@pytest.mark.parametrize(
    ("build", "recipe"),
    [
        (lambda seed: recipes.Taught(models.dual_encoder(seed)), recipes.contrast),
        (lambda seed: recipes.TaughtAnswerer(models.language_model(seed)), recipes.answering),
        (models.language_model, recipes.asking),
    ],
)
def test_a_few_steps_lower_the_loss(build, recipe, some, tmp_path):
    model = build(0)
    loss_at = recipe(model, some, seed=0, images=8)
    losses = optimise(model, loss_at, steps=14, lr=2e-3, folder=tmp_path, task={})
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.2


def test_the_learning_rate_rises_then_falls():
    rates = [learning_rate(t, 100, 1.0) for t in range(100)]
    assert int(np.argmax(rates)) in (5, 6)
    assert rates[-1] < 0.01


def test_slow_parameters_learn_at_their_pace(tmp_path):
    """AdamW's first step is the learning rate, whatever the gradient."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 1) for name in ("tower", "rest")})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss_at(step):
        return sum(p.sum() for p in model.parameters())

    optimise(
        model, loss_at, steps=1, lr=0.01, folder=tmp_path, task={}, weight_decay=0.0,
        slow="tower", pace=0.3,
    )  # fmt: skip
    for name, p in model.named_parameters():
        step = 0.003 if name.startswith("tower") else 0.01
        torch.testing.assert_close(before[name] - p.detach(), torch.full_like(p, step))


def test_a_text_is_read_to_its_end():
    """transformers pools at the largest id when EOS is 2: later words would not count."""
    model = models.dual_encoder(0).eval()
    ids, mask = packing.text_ids(["yellow circle", "yellow rectangle", "yellow triangle"])
    with torch.inference_mode():
        found = model.get_text_features(input_ids=ids, attention_mask=mask).pooler_output
    assert float((found[0] - found[2]).abs().max()) > 1e-3


class Stopped(Exception):
    pass


def weights(folder):
    return models.load(folder).state_dict()


@pytest.mark.parametrize(
    ("build", "recipe"),
    [
        (lambda: recipes.Taught(models.dual_encoder(0)), recipes.contrast),
        (lambda: recipes.TaughtAnswerer(models.language_model(0)), recipes.answering),
    ],
)
def test_resumed_training_ends_where_uninterrupted_training_does(build, recipe, some, tmp_path):
    def run(folder, stop_at=None):
        model = build()
        loss_at = recipe(model, some, seed=0, images=4)

        def watch(done, steps, note):
            if done == stop_at:
                raise Stopped

        losses = optimise(
            model, loss_at, steps=6, lr=1e-3, folder=folder, task={"a": 1}, every=2, show=watch
        )
        return model.state_dict(), losses

    whole, losses = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "cut", stop_at=5)
    resumed, again = run(tmp_path / "cut")
    assert again == losses
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_a_checkpoint_of_another_task_is_refused(some, tmp_path):
    model = recipes.Taught(models.dual_encoder(0))
    loss_at = recipes.contrast(model, some, seed=0, images=4)
    optimise(model, loss_at, steps=1, lr=1e-3, folder=tmp_path, task={"seed": 0})
    with pytest.raises(ArtefactError, match="another run"):
        optimise(model, loss_at, steps=1, lr=1e-3, folder=tmp_path, task={"seed": 1})


def test_it_makes_everything_goes_on_and_refuses_another_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "measure_all", lambda out: {})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train.train_all(whole, TINY, quiet=False)
    shown = capsys.readouterr().err
    assert re.search(r"dual_encoder 3/3 .*loss \d", shown)
    assert "measuring" in shown
    facts = json.loads((whole / train.METRICS).read_text())
    assert set(facts["stages"]) == set(train.STAGES)
    assert sum(facts["bytes"].values()) < 12_000_000

    def stopping(name, *, quiet):
        def show(done, total, note=""):
            if (name, done) == (train.VLM, 2):
                raise KeyboardInterrupt

        return show

    with monkeypatch.context() as patch:
        patch.setattr(train, "progress_line", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train_all(cut, TINY)
    assert not (cut / train.METRICS).exists()
    train.train_all(cut, TINY)
    for name in (train.DUAL, train.VLM, train.ASKER):
        one, other = weights(whole / name), weights(cut / name)
        assert all(torch.equal(value, other[key]) for key, value in one.items()), name
    with pytest.raises(ArtefactError, match="another plan"):
        train.train_all(whole, train.plan_for(4))


def test_plans_scale_with_the_minutes_and_refuse_nonsense():
    full = train.plan_for(0)
    half = train.plan_for(0, train.NOMINAL_MINUTES / 2)
    assert half.vlm_steps == round(full.vlm_steps / 2)
    assert half.vlm_lr == full.vlm_lr
    with pytest.raises(InputError, match="minutes"):
        train.plan_for(0, 0.0)


def test_drawn_training_questions_are_right_and_cannot_be_guessed_without_the_picture():
    some = scenes.split("train")[:400]
    known = {q for s in some for q, _ in s.asked}
    rng = np.random.default_rng(0)
    drawer = recipes.Drawer(some)
    answers = {True: [], False: []}
    for scene in some:
        for asked in drawer.draw(scene, 8, rng):
            if asked.source == questions.PACKAGE:
                assert asked.question in known
                assert scenes.agrees(asked.question, asked.answer, scene.color, scene.shape)
            else:
                assert questions.KINDS[asked.kind].answer(scene) == asked.answer
            if asked.kind == "yes_no":
                answers[scenes.is_denial(asked.question)].append(asked.answer == "yes")
    for found in answers.values():
        assert abs(np.mean(found) - 0.5) < 4 * 0.5 / np.sqrt(len(found))
    assert len(answers[True]) < len(answers[False])


def test_adapter_pairs_are_clean_training_pairs():
    pairs = train.training_pairs(TINY)
    assert len(pairs) == 48
    known = {s.image_id for s in scenes.split("train")}
    for query in pairs:
        assert query.metadata["image_id"] in known
        assert query.metadata["severity"] == 0
        assert not query.metadata["held_out_pair"]
        assert not query.metadata["unseen_phrasing"]
