"""``fusevlm sample``."""

from __future__ import annotations

import argparse

from fusevlm.cli.progress import progress_line

EPILOG = """\
examples:
  fusevlm sample --preset paper --queries vqa.jsonl --images val2014 --out runs/vqa
  fusevlm sample --model ./my-vlm --queries questions.csv --out runs/mine -n 20 --temperature 0.7

run the same command again to go on after an interruption;
exit code 3 says that some queries failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or hub name of an image-text model")
    parser.add_argument("--queries", required=True, help="CSV, JSON-lines or Parquet of queries")
    parser.add_argument("--images", help="folder of the images (default: beside the queries)")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--preset", choices=["paper"], help="LLaVA-1.5-13b, n=50, MCT")
    parser.add_argument("-n", type=int, default=20, help="samples per query (20)")
    parser.add_argument("--temperature", default="mct", help="mct, uniform or a number (mct)")
    parser.add_argument("--max-new-tokens", type=int, default=16, help="token limit (16)")
    parser.add_argument("--top-p", type=float, help="nucleus sampling")
    parser.add_argument("--top-k", type=int, help="top-k sampling")
    parser.add_argument("--stop", action="append", default=[], help="stop string (repeatable)")
    parser.add_argument("--answer-temperature", type=float, default=0.0, help="judged answer (0)")
    parser.add_argument("--prompt", help="prompt with {question} in it (short answers)")
    parser.add_argument("--layer", action="append", help="last, middle or a number (repeatable)")
    parser.add_argument("--batch", type=int, default=8, help="queries decoded together (8)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--limit", type=int, help="only the first so many queries")
    parser.add_argument("--half", action="store_true", help="store hidden states as float16")
    parser.add_argument("--gram", metavar="FIT", help="store Grams whitened by this saved Fuse")
    parser.add_argument("--dtype", default="auto", help="of the weights (auto)")
    parser.add_argument("--device-map", help="as transformers takes it, such as auto or cuda:0")
    parser.add_argument("--quantize", choices=["4bit", "8bit"], help="load weights quantized")
    parser.add_argument("--revision", help="revision of a hub model")
    parser.add_argument("--path", choices=["auto", "repeated_cache"], default="auto")


def run(args: argparse.Namespace) -> int:
    from fusevlm import checks
    from fusevlm.data.tables import read_queries

    queries = read_queries(args.queries, args.images, limit=args.limit)
    for module in ("torch", "transformers"):
        checks.extra(module, "fusevlm sample", "torch")
    from fusevlm.cli import EXIT_OK, EXIT_PARTIAL
    from fusevlm.errors import InputError
    from fusevlm.fuse.estimator import Fuse
    from fusevlm.models import temperatures
    from fusevlm.models.huggingface import HuggingFace
    from fusevlm.models.protocol import PAPER_SAMPLING, SHORT_ANSWER, Decoding
    from fusevlm.pipeline.stages import sample_stage

    if args.preset == "paper":
        model = args.model or PAPER_SAMPLING["model"]
        vars(args).update({**PAPER_SAMPLING, "model": model})
    if args.model is None:
        raise InputError("no model: say --model FOLDER_OR_NAME, or --preset paper.")
    decoding = Decoding(
        prompt=args.prompt or SHORT_ANSWER,
        max_new_tokens=args.max_new_tokens,
        top_p=args.top_p,
        top_k=args.top_k,
        stop=tuple(args.stop),
        answer_temperature=args.answer_temperature,
        layers=tuple(_layer(word) for word in args.layer or ("last", "middle")),
        path=args.path,
    )
    heat = temperatures.parse(args.temperature, args.n, args.seed)
    options = {}
    if args.quantize:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=args.quantize == "4bit", load_in_8bit=args.quantize == "8bit"
        )
    backend = HuggingFace.load(
        args.model, decoding=decoding, revision=args.revision, dtype=args.dtype,
        device_map=args.device_map, **options,
    )  # fmt: skip
    outcome = sample_stage(
        backend, queries, args.out, n=args.n, temperatures=heat, seed=args.seed, batch=args.batch,
        decoding=decoding, half=args.half, gram_of=Fuse.load(args.gram) if args.gram else None,
        progress=progress_line("queries", quiet=args.quiet),
    )  # fmt: skip
    resumed = f", {outcome.resumed} of them in an earlier run" if outcome.resumed else ""
    print(
        f"{outcome.done} queries, {outcome.failed} failed{resumed}; path "
        f"{'shared_prefix' if backend.shares else 'repeated_cache'}; "
        f"{outcome.near_boundary} draws near a boundary"
    )
    print(f"run: {outcome.folder}")
    return EXIT_PARTIAL if outcome.failed else EXIT_OK


def _layer(word: str) -> str | int:
    return int(word) if word.lstrip("-").isdigit() else word
