"""What requests and replies hold, checked and documented: the models behind /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fusevlm.serve.limits import COLUMNS, FIELDS, PICTURES, QUESTION, SAMPLES, SEEDS, TOKENS, TURNS

LEAST = 1e-6  # risk that anybody could want
DATA_URL = "a picture as a data URL: data:image/png;base64,…"
Risk = Annotated[float, Field(ge=LEAST, le=1 - LEAST, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=QUESTION)]
LogProb = Annotated[float, Field(le=1e-6, allow_inf_nan=False)]
LogProbs = Annotated[list[LogProb], Field(min_length=1, max_length=TOKENS, fail_fast=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Mean = Annotated[float, Field(ge=0, le=SAMPLES, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


def few(value: Any) -> Any:
    """Refuse an object of very many fields unseen: each could be a fault, and take its time."""
    if isinstance(value, dict) and len(value) > FIELDS:
        told = {"size": len(value), "most": FIELDS}
        raise PydanticCustomError(
            "too_long", "it has {size} fields; at most {most} are taken", told
        )
    return value


class Bounded(BaseModel):
    """Of a request: an object of so many fields and no more."""

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        return few(value)


class Form(Bounded):
    """A request of ours: types are not guessed, and a misspelt field is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Turn(Form):
    """An earlier turn of the conversation."""

    role: Literal["user", "assistant"]
    text: Text


class Wanted(Form):
    """On which terms: the wanted error rate among answers, and the chance to miss it."""

    risk: Risk | None = Field(
        default=None, description="wanted error rate; the server's if left out"
    )
    delta: Risk | None = Field(
        default=None, description="chance to miss it; the server's if left out"
    )


class AskRequest(Wanted):
    """A question about a picture (or several, or none)."""

    question: Annotated[str, Field(min_length=1, max_length=QUESTION)]
    image: str | None = Field(default=None, description=DATA_URL)
    images: list[str] = Field(
        default=[], max_length=PICTURES, description="several pictures instead"
    )
    history: list[Turn] = Field(
        default=[], max_length=TURNS, description="earlier turns, oldest first"
    )
    n: int | None = Field(
        default=None, ge=0, le=SAMPLES, description="samples; the model's if left out"
    )
    samples: Literal["as needed"] | Mean | None = Field(
        default=None,
        description="instead of n: as many as the decision needs, or so many on average",
    )
    seed: int = Field(default=0, ge=0, le=SEEDS)
    stream: bool = Field(
        default=False, description="server-sent events: samples as they come, the answer"
    )


class ScoreRequest(Wanted):
    """Samples that somebody's model gave; with a fit they are judged, without it measured."""

    samples: list[Text] = Field(min_length=1, max_length=SAMPLES)
    question: Text = ""
    image: str | None = Field(default=None, description=DATA_URL)
    logprobs: (
        Annotated[list[LogProbs], Field(min_length=1, max_length=SAMPLES, fail_fast=True)] | None
    ) = Field(default=None, description="token log-probabilities of each sample at temperature 1")
    answer: Text | None = Field(
        default=None, description="what is judged; else the most frequent sample"
    )
    answer_logprobs: LogProbs | None = None
    columns: Annotated[dict[Name, Number], BeforeValidator(few)] = Field(
        default={},
        max_length=COLUMNS,
        description="prior statistics and evidence the fit knows by name",
    )


class DecideRequest(Wanted):
    """The same answer at another risk: nothing is sampled again."""

    id: Name


class FeedbackRequest(Form):
    """Was an answer wrong?"""

    id: Name
    wrong: bool


class Reply(BaseModel):
    """A reply of ours."""

    model_config = ConfigDict(protected_namespaces=())


class Neighbour(Reply):
    """A calibration query like this one."""

    model_config = ConfigDict(extra="allow")

    question: str
    answer: str
    wrong: bool


class AnswerReply(Reply):
    """An answer, how likely it is wrong, and whether to give it."""

    id: str = Field(description="of this answer, for /v1/decide and /v1/feedback")
    version: int = Field(description="of this form")
    question: str
    answer: str = Field(description="the judged answer; also where the decision is to abstain")
    decision: Literal["answer", "abstain"]
    reason: str = Field(description="of abstaining; empty where the answer is given")
    why: str = Field(description="the same in a sentence")
    cause: str = Field(description="novelty, aleatoric, competence, epistemic, or nothing")
    side: str = Field(description="of the input, where it is about the input: picture or question")
    p_wrong: float | None = Field(description="probability that this answer is wrong")
    risk: float
    delta: float
    threshold: float | None = Field(description="answer iff u is at most this; null: none is sure")
    coverage: float = Field(description="share of calibration queries answered at this risk")
    u: float
    m0: float
    evidence: float
    m_post: float
    sigma_post: float
    novelty: float | None = Field(description="p-value of being like the calibration's queries")
    bars: dict[str, float] = Field(description="share of calibration queries with less of each")
    added: dict[str, float] = Field(description="what each source adds to the posterior mean")
    samples: dict[str, int] = Field(description="sampled answers with counts")
    generated: float = Field(description="answers that were generated for it")
    neighbours: list[Neighbour]
    model: str
    notes: list[str]
    n_samples: int


class Measures(Reply):
    """What samples say without any calibration; larger = less sure."""

    semantic_entropy: float
    disagreement: float = Field(description="share of samples that say something else")
    distinct: int = Field(description="how many different meanings there are")


class ScoreReply(Reply):
    """What was decided of samples, where there is a fit; their measures in any case."""

    id: str | None
    answer: str
    judged: AnswerReply | None = Field(description="null where the server has no fit")
    measures: Measures


class Kept(Reply):
    """That feedback was kept."""

    id: str
    kept: Literal[True]


class Health(Reply):
    """Whether the server lives."""

    status: Literal["ok"]


class Trouble(Reply):
    """What went wrong."""

    message: str
    type: str
    code: str
    param: str | None
    request_id: str


class Problem(Reply):
    """Every fault is answered like this."""

    error: Trouble


class Foreign(Bounded):
    """Of requests made for another server: what is not known is allowed, and told of."""

    model_config = ConfigDict(extra="allow", strict=True)


class ImageUrl(Foreign):
    """Where a picture is: a data URL."""

    url: str


class Part(Foreign):
    """A piece of what was said."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class ChatMessage(Foreign):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=4 * PICTURES)] | None = None


class ChatOptions(Wanted):
    """Ours, in a request of OpenAI's: ``extra_body={"fusevlm": {...}}``."""

    n: int | None = Field(default=None, ge=0, le=SAMPLES)
    samples: Literal["as needed"] | Mean | None = None
    on_abstain: Literal["flag", "refuse"] | None = None


class ChatRequest(Foreign):
    """OpenAI's chat completion. What would change how answers are drawn is not heeded, and told."""

    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2 * TURNS)]
    stream: bool | None = False
    n: Literal[1] | None = None
    seed: Annotated[int, Field(ge=0, le=SEEDS)] | None = None
    tools: list[Any] | None = None
    fusevlm: ChatOptions | None = None


class Verdict(AnswerReply):
    """The field ``fusevlm`` of a completion: the answer's, and what was not heeded."""

    ignored: list[str]


class Said(Reply):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str


class Choice(Reply):
    """The one choice of a completion."""

    index: Literal[0]
    message: Said
    finish_reason: Literal["stop"]
    logprobs: None = None


class ChatReply(Reply):
    """OpenAI's chat completion with the field ``fusevlm``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    fusevlm: Verdict


class Served(Reply):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ServedList(Reply):
    """The models that can be asked: one, or none."""

    object: Literal["list"]
    data: list[Served]
