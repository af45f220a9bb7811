"""What servers give: ``python -m benchmarks.servers NAME@BASE_URL …``, a row of the docs for each.

With ``--llama-cpp`` also llama.cpp's own server with SmolLM2-135M, started here (make .venv/.slow).
"""

import argparse
from contextlib import ExitStack

from fusevlm.models.completions import Gives
from fusevlm.models.protocol import Decoding
from fusevlm.models.registry import load_model
from fusevlm.render.text import layout

ASKED = ("n", "logprobs", "top_logprobs", "eos", "spelled", "seed", "unfiltered", "images",
         "varies")  # fmt: skip


def row(source: str, tokens: int) -> tuple[str, ...]:
    model = load_model(f"openai:{source}", Decoding(max_new_tokens=tokens))
    gives: Gives = model.gives  # type: ignore[attr-defined]
    cells = ["yes" if getattr(gives, name) else "–" for name in ASKED]
    return (source, *cells, gives.limit, str(model.describe()["calls"]))  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("servers", nargs="*", metavar="NAME@BASE_URL")
    parser.add_argument("--llama-cpp", action="store_true")
    parser.add_argument("--tokens", type=int, default=16, help="of the probe's answers (16)")
    args = parser.parse_args()
    with ExitStack() as stack:
        sources = list(args.servers)
        if args.llama_cpp:
            from tests.models.real_servers import llama_cpp

            sources.append(f"smollm2@{stack.enter_context(llama_cpp())}")
        rows = [row(source, args.tokens) for source in sources]
    print(layout(("server", *ASKED, "limit", "calls"), rows))


if __name__ == "__main__":
    main()
