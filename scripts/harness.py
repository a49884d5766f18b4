"""A GPT as a model of lm-evaluation-harness, https://github.com/EleutherAI/lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from model.exchange.evaluation import continuation_scores
from scripts.writing import write

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer
    from model.gpt import GPT

MAX_NEW_TOKENS = 256  # where a task does not say


class HarnessGPT(TemplateLM):
    """Answers the harness's three kinds of requests. As in training, a document begins after end-of-text."""

    def __init__(self, gpt: GPT, tokenizer: Tokenizer, batch_size: int = 16) -> None:
        super().__init__()
        self.gpt, self.own_tokenizer, self.batch_size = gpt, tokenizer, batch_size

    @property
    def eot_token_id(self) -> int:
        return self.own_tokenizer.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self.own_tokenizer.encode(string)

    def _loglikelihood_tokens(self, requests: list, **options: Any) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        return continuation_scores(self.gpt, pairs, batch_size=self.batch_size)

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in pieces of the context's length."""
        pairs = [([self.eot_token_id], self.tok_encode(*request.args)) for request in requests]
        scores = iter(continuation_scores(self.gpt, [pair for pair in pairs if pair[1]], batch_size=self.batch_size))
        return [next(scores)[0] if text else 0.0 for _, text in pairs]

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Texts up to the first of a request's `until`, which tasks give with other options of the text."""
        return [self._text(*request.args) for request in requests]

    def _text(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        sampled = options.get("do_sample", options.get("temperature", 0) > 0)
        (text,), pieces = write(
            self.gpt,
            self.own_tokenizer,
            [self.tok_encode(context) or [self.eot_token_id]],
            options.get("max_gen_toks", MAX_NEW_TOKENS),
            stops=[until] if isinstance(until, str) else [stop for stop in until if stop],
            temperature=options.get("temperature", 1.0) if sampled else 0,
            top_k=options.get("top_k"),
            top_p=options.get("top_p"),
        )
        return "".join(piece for (piece,) in pieces) + text.end()


def run_tasks(
    gpt: GPT,
    tokenizer: Tokenizer,
    names: list[str],
    *,
    batch_size: int = 16,
    num_fewshot: int | None = None,
    limit: int | None = None,
    include_path: Path | None = None,
) -> tuple[dict[str, Any], str]:
    """The results of each task, and a table of them. Raises ValueError for an unknown task."""
    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise ValueError(f"--tasks {', '.join(unknown)}: lm-evaluation-harness has no such task; see --include_path")
    evaluated = lm_eval.simple_evaluate(
        HarnessGPT(gpt, tokenizer, batch_size),
        tasks=names,
        num_fewshot=num_fewshot,
        limit=limit,
        task_manager=manager,
    )
    return evaluated["results"], make_table(evaluated)
