"""What a training run is: one dataclass whose fields are the flags of `maclaurin train` and the keys of its YAML file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.common.choices import choices
from maclaurin.common.files import read_json, write_json
from maclaurin.common.records import LARGEST, WORDS
from maclaurin.training import names

if TYPE_CHECKING:
    from maclaurin.models.config import MaclaurinConfig

SCHEDULES = (
    "cosine",
    "linear",
    "constant",  # after the warm-up, also under its name in transformers:
    "constant_with_warmup",
    "cosine_with_min_lr",
    "cosine_with_restarts",
    "inverse_sqrt",
    "polynomial",
    "warmup_stable_decay",
)
PRECISIONS = ("auto", "fp32", "bf16")
ROWS = ("packed", "documents")
FREE_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
CUTS = ("sequence_parallel", "sequence_chunks")
EXCHANGES = ("chain", "fold", "gather")
TRACKERS = ("tensorboard", "wandb", "trackio")
# what a resumed run can change; all else determines its weights and data, or is stored in its checkpoint
MAY_CHANGE = {
    "output",
    "corpus",  # may have been moved: its content is compared
    "validation",  # likewise
    "steps",
    "schedule",
    "schedule_steps",
    "warmup_steps",
    "clip",
    "short_window",
    "short_window_probability",
    "long_window_end",
    "precision",
    "gradient_checkpointing",
    "shard_parameters",
    "tensor_parallel",
    "sequence_parallel",
    "sequence_exchange",
    "sequence_chunks",
    "peak_tflops",
    "eval_every",
    "eval_rows",
    "save_every",
    "keep",
    "track",
}


@names.by_other_names
@dataclass
class Recipe:
    output: str = field(default="runs/run", metadata={"help": "Folder of the run: checkpoints, logs, the final model."})
    mixer: str = field(
        default="2mamba-orders",
        metadata={
            "help": "Mixer of all layers, or a comma-separated list: one per layer, or a pattern that repeats; "
            "with options as in 2mamba:conv_width=4,gate=true; rows of the thesis are paper-1/NAME and paper-2/NAME."
        },
    )
    mixer_options: str = field(
        default="{}", metadata={"help": "The options instead, as JSON: of every mixer, or by mixer name."}
    )
    size: str = field(default="tiny", metadata={"help": "Size of the model: tiny, small, medium, large or large-depth."})
    hidden_size: int = field(default=0, metadata={"help": "Width of the model; here and below, 0 for that of the size."})
    intermediate_size: int = field(default=0, metadata={"help": "Width of the MLPs."})
    num_hidden_layers: int = field(default=0, metadata={"help": "Layers."})
    num_attention_heads: int = field(default=0, metadata={"help": "Heads."})
    corpus: str = field(default="stdlib", metadata={"help": "stdlib, a file or folder, a preset, or a dataset of the hub."})
    tokens: int = field(default=0, metadata={"help": "Use only the first N tokens of the corpus; 0 for all of them."})
    validation: str = field(
        default="", metadata={"help": "A corpus to validate on; without one, a part of --corpus is held out."}
    )
    text_field: str = field(default="text", metadata={"help": "Field of the text in .jsonl and .parquet files."})
    tokenizer: str = field(default="bytes", metadata={"help": "bytes, bpe:SIZE, or a folder or name of a pretrained one."})
    rows: str = field(
        default="packed", metadata={"help": "packed, or documents: one document per sequence, as in arXiv 2602.17363."}
    )
    length: int = field(default=512, metadata={"help": "Tokens per sequence."})
    batch_size: int = field(default=8, metadata={"help": "Sequences per device and forward pass."})
    accumulation: int = field(default=1, metadata={"help": "Forward passes per step."})
    steps: int = field(default=1000, metadata={"help": "Updates."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Largest learning rate."})
    schedule: str = field(
        default="cosine", metadata={"help": "Decay after the warm-up: cosine, linear, constant, or another of transformers."}
    )
    schedule_steps: int = field(
        default=0, metadata={"help": "Steps over which it decays, if the run is to end before; 0 for those of the run."}
    )
    warmup_steps: int = field(default=-1, metadata={"help": "Steps of linear warm-up; -1 for a twentieth of the run."})
    weight_decay: float = field(default=0.01, metadata={"help": "AdamW's weight decay."})
    clip: float = field(default=1.0, metadata={"help": "Largest gradient norm; 0 for no clipping."})
    short_window: int = field(
        default=0, metadata={"help": "Window that some steps use in place of the layers' own; 0 for none."}
    )
    short_window_probability: float = field(default=0.5, metadata={"help": "Probability that a step has the short window."})
    long_window_end: float = field(
        default=0.1, metadata={"help": "Part of the steps, the last ones, that never have the short window."}
    )
    precision: str = field(default="auto", metadata={"help": "fp32, bf16, or auto: bf16 on devices made for it."})
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "Save memory: recompute layers in the backward pass."}
    )
    shard_parameters: bool = field(
        default=False,
        metadata={"help": "Save memory: spread parameters and states of the optimizer over the processes (FSDP2)."},
    )
    tensor_parallel: int = field(
        default=1, metadata={"help": "Processes that share the heads of each layer; with shard_parameters, by the others."}
    )
    sequence_parallel: int = field(
        default=1, metadata={"help": "Processes that share each sequence, a slice of its tokens on each."}
    )
    sequence_exchange: str = field(
        default="chain",
        metadata={"help": "How these hand their states on: chain, or fold or gather, which compute more and wait less."},
    )
    sequence_chunks: int = field(
        default=1,
        metadata={"help": "Save memory: so many slices of each sequence, one after the other, with exact gradients."},
    )
    peak_tflops: float = field(
        default=0.0, metadata={"help": "Peak of the device, for the share of it in the log (mfu); 0 for a known GPU's."}
    )
    eval_every: int = field(default=0, metadata={"help": "Steps between evaluations; 0 for a tenth of the run."})
    eval_rows: int = field(default=64, metadata={"help": "Validation sequences per evaluation."})
    test_rows: int = field(
        default=0,
        metadata={"help": "Test sequences, scored at the end, of other documents than validation; 0 for none."},
    )
    save_every: int = field(default=0, metadata={"help": "Steps between checkpoints; 0 for a tenth of the run."})
    keep: int = field(default=2, metadata={"help": "Checkpoints kept."})
    track: str = field(
        default="tensorboard",
        metadata={"help": "Trackers beside log.jsonl, separated by commas: tensorboard, wandb, trackio; or none."},
    )
    seed: int = field(default=0, metadata={"help": "Seed of weights and data order."})
    trainer: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Other fields of transformers' TrainingArguments, by name."}
    )

    def __post_init__(self) -> None:
        from maclaurin.models.config import SIZES

        if self.warmup_steps == -1:
            self.warmup_steps = max(self.steps, 0) // 20
        one_of("size", self.size, tuple(SIZES))
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("precision", self.precision, PRECISIONS)
        one_of("rows", self.rows, ROWS)
        one_of("sequence_exchange", self.sequence_exchange, EXCHANGES)
        for name in ("length", "batch_size", "accumulation", "steps", "eval_rows", "keep", "tensor_parallel", *CUTS):
            at_least_one(name, getattr(self, name))
        for name in (
            "learning_rate",
            "weight_decay",
            "clip",
            "warmup_steps",
            "eval_every",
            "save_every",
            "short_window",
            "schedule_steps",
            "test_rows",
            "tokens",
            "peak_tflops",
            *FREE_SIZES,
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if 0 < self.schedule_steps < self.steps:
            raise ValueError(f"schedule_steps must be 0 or at least the {self.steps} steps, got {self.schedule_steps}")
        for name in ("short_window_probability", "long_window_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.sequence_parallel > 1 and self.sequence_chunks > 1:
            raise ValueError("give sequence_parallel or sequence_chunks, not both")
        if self.tensor_parallel > 1 and (self.sequence_parallel > 1 or not self.shard_parameters):
            raise ValueError("tensor_parallel needs shard_parameters, and whole sequences: sequence_parallel must be 1")
        for name in CUTS:
            if getattr(self, name) > 1 and self.rows != "packed":
                raise ValueError(f"{name} needs rows 'packed', got {self.rows!r}: padded documents are not cut")
        for tracker in self.trackers():
            one_of("track", tracker, TRACKERS)
        self._spell_out_mixers()
        names.check_trainer(self.trainer)

    def _spell_out_mixers(self) -> None:
        """Options beside the mixers' names, those of published rows, or a mapping become JSON; equal ones equal text."""
        from maclaurin.mixers.published import spelled_out

        options = self.options()
        if ":" in self.mixer or "/" in self.mixer:
            if options:
                raise ValueError(f"give the options in mixer or in mixer_options, not both, got {self.mixer!r:.80}")
            found = [spelled_out(*one) for one in choices("mixer", self.mixer)]
            options = {name: own for name, own in found if own}
            if any(own != options.get(name, {}) for name, own in found):
                raise ValueError(f"mixer must give a mixer the same options in all layers, got {self.mixer!r:.80}")
            self.mixer = ",".join(name for name, _ in found)
            if len(found) == 1:
                options = for_all(*found[0])
        self.mixer_options = json.dumps(options)

    @property
    def tokens_per_step(self) -> int:
        return self.length * self.batch_size * self.accumulation

    def options(self) -> dict[str, Any]:
        if isinstance(self.mixer_options, dict):  # as Python and YAML have them
            return self.mixer_options
        try:
            options = json.loads(self.mixer_options)
        except json.JSONDecodeError as error:
            raise ValueError(f"mixer_options must be JSON, such as '{{\"conv_width\": 4}}': {error}") from error
        if not isinstance(options, dict):
            raise ValueError(f"mixer_options must be a JSON object, got {self.mixer_options}")
        return options

    def config(self, **fields: Any) -> MaclaurinConfig:
        """The configuration of the model; `fields` are those that only the tokenizer knows."""
        from maclaurin.models.config import MaclaurinConfig

        free = {name: value for name in FREE_SIZES if (value := getattr(self, name))}
        return MaclaurinConfig.of_size(
            self.size,
            **free,
            mixer=self.mixers(),
            mixer_options=self.options(),
            max_position_embeddings=self.length,
            **fields,
        )

    def trackers(self) -> list[str]:
        return [] if self.track == "none" else self.track.split(",")

    def mixers(self) -> str | list[str]:
        return self.mixer.split(",") if "," in self.mixer else self.mixer

    def save(self, folder: Path) -> None:
        write_json(folder / "recipe.json", dataclasses.asdict(self))

    @staticmethod
    def load(folder: Path) -> Recipe:
        file = folder / "recipe.json"
        values = checked(read_json(file), str(file))
        try:
            return Recipe(**values)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    def check_goes_on(self, folder: Path, step: int) -> None:
        """Refuses a recipe with which the run in this folder cannot go on from this step."""
        if self.steps < step:
            raise ValueError(f"steps must be at least the {step} that {str(folder)!r} has taken, got {self.steps}")
        if not (folder / "recipe.json").exists():
            return
        before, now = Recipe.load(folder), self
        for name in MUST_STAY:
            _check_same(folder, name, getattr(before, name), getattr(now, name))
        for name in sorted({*before.trainer, *now.trainer}):
            if not name.startswith(names.MAY_CHANGE):
                _check_same(folder, name, before.trainer.get(name), now.trainer.get(name))


def for_all(mixer: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a model of one mixer: by its name where its options are objects, which would be taken for names."""
    return {mixer: options} if options and all(isinstance(value, dict) for value in options.values()) else options


MUST_STAY = [own.name for own in dataclasses.fields(Recipe) if own.name not in {*MAY_CHANGE, "trainer"}]


def _check_same(folder: Path, name: str, before: Any, now: Any) -> None:
    if before != now:
        raise ValueError(f"{str(folder)!r} has {name} {before!r}, the recipe gives {now!r}: it cannot go on")


def checked(values: dict[Any, Any], where: str) -> dict[str, Any]:
    """The fields of a recipe as they come from a file: known names, and values of their types."""
    kinds = get_type_hints(Recipe)
    if not isinstance(values.get("trainer", {}), dict):
        raise ValueError(f"{where} must have an object as trainer, got {type(values['trainer']).__name__}")
    found = names.resolved(values, kinds, where)
    for name, value in found.items():
        kind = kinds[name]
        if name == "trainer" or (name == "mixer_options" and isinstance(value, dict)):
            continue
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (kind in (int, float) and not abs(value) < LARGEST):
            got = f"{value!r:.40}" if isinstance(value, str | float | bool) else type(value).__name__
            raise ValueError(f"{where} must have {WORDS[kind]} as {name}, got {got}")
    return found
