"""Trainers and collators of others, as they come: they train, evaluate and give metrics the logits."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithFlattening, Trainer, TrainingArguments

from maclaurin.data import byte_tokenizer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.models.test_generate import small

DOCUMENTS = [
    torch.randint(1, 50, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in range(3, 9)
]


def arguments(folder, **fields):
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **fields,
    )


def nats(predictions, labels):
    """The mean cross entropy that logits give, in NumPy."""
    logits, targets = predictions[:, :-1].astype(np.float64), labels[:, 1:]
    chosen = targets != -100
    logits, targets = logits[chosen], targets[chosen]
    shifted = logits - logits.max(-1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(targets)), targets]).mean())


COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}


@pytest.mark.parametrize("fields", [{}, {"bf16": True}, {"label_smoothing_factor": 0.1}, COMPILED], ids=str)
def test_metrics_get_the_logits(fields, tmp_path):
    rows = Dataset.from_list([{"input_ids": [1 + n % 7 for n in range(i, i + 9)]} for i in range(6)])
    rows = rows.map(lambda row: {"labels": row["input_ids"]})
    trainer = Trainer(
        small("2mamba"),
        arguments(tmp_path, **fields),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda seen: {"nats": nats(seen.predictions, seen.label_ids), "shape": seen.predictions.shape},
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_shape"] == (6, 9, 50) and after["eval_loss"] < before["eval_loss"]
    if fields in ({}, COMPILED):
        assert abs(after["eval_nats"] - after["eval_loss"]) < 1e-5


@pytest.mark.parametrize("fields", [{}, COMPILED], ids=str)
def test_a_loss_of_ones_own_reads_logits(fields, tmp_path):
    class Distil(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            loss = outputs.loss + outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    rows = Dataset.from_list([{"input_ids": list(range(1, 9)), "labels": list(range(1, 9))}] * 4)
    result = Distil(small("linear"), arguments(tmp_path, **fields), train_dataset=rows).train()
    assert np.isfinite(result.training_loss)


@pytest.mark.parametrize(
    "words",
    [{}, {"return_seq_idx": True, "return_position_ids": False}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}],
    ids=str,
)
def test_a_flattened_batch_has_the_loss_of_its_documents(words, tmp_path):
    """As a batch by the collator alone, and as an evaluation by the Trainer."""
    model = small("2mamba")
    batch = DataCollatorWithFlattening(**words)([{"input_ids": ids} for ids in DOCUMENTS])
    predicted = sum(map(len, DOCUMENTS)) - len(DOCUMENTS)
    with torch.no_grad():
        losses = [
            model(ids, labels=ids, num_items_in_batch=predicted).loss for ids in (torch.tensor([d]) for d in DOCUMENTS)
        ]
        torch.testing.assert_close(model(**batch).loss, sum(losses))
    trainer = Trainer(
        model,
        arguments(tmp_path),
        data_collator=DataCollatorWithFlattening(**words),
        train_dataset=Dataset.from_list([{"input_ids": ids} for ids in DOCUMENTS]),
    )
    assert np.isfinite(trainer.train().training_loss)


def test_a_classifier_trains(tmp_path):
    small("2mamba").save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    padded = ([[5, 6, 7, 0], [1, 1, 1, 0]], [[8, 6, 9, 4], [1, 1, 1, 1]])
    rows = Dataset.from_list(
        [{"input_ids": ids, "attention_mask": mask, "labels": label} for label, (ids, mask) in enumerate(padded)] * 4
    )
    trainer = Trainer(
        model,
        arguments(tmp_path / "run"),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )
    trainer.train()
    assert 0 <= trainer.evaluate()["eval_right"] <= 1


@pytest.mark.parametrize(
    "fields", [{}, {"padding_free": True, "max_length": None}, {"packing": True, "max_length": 64}], ids=str
)
def test_trl_tunes_on_text(fields, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    config = MaclaurinConfig.of_size(
        "tiny", vocab_size=257, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mixer="2mamba"
    )
    torch.manual_seed(0)
    model = MaclaurinForCausalLM(config)
    rows = Dataset.from_dict({"text": ["a green bottle", "two green bottles", "three", "hanging on the wall"] * 2})
    seen = []
    model.model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(set(kwargs)), with_kwargs=True)
    trainer = trl.SFTTrainer(
        model,
        trl.SFTConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=3,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            **fields,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=byte_tokenizer(),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert 0 <= next(entry["mean_token_accuracy"] for entry in trainer.state.log_history if "mean_token_accuracy" in entry)
    assert np.isfinite(trainer.evaluate()["eval_loss"])
    if fields:
        assert {"position_ids", "cu_seq_lens_q", "seq_idx"} <= seen[0]
