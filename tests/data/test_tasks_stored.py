"""Stored tasks: every example once per epoch, and files read for what they are."""

import builtins
import io
import sys

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import AAN, CIFAR10, IMDB, Digits


def test_digits():
    sklearn = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn")
    train, test = Digits(), Digits("test")
    assert (len(train), len(test)) == (1438, 359)
    images = torch.cat([batch.inputs for split in (train, test) for batch in split.once(100)])
    everything = torch.from_numpy(sklearn.load_digits().images).to(torch.uint8)
    assert sorted(images.flatten(1).tolist()) == sorted(everything.flatten(1).tolist())
    assert train.sample(5, 0).inputs.shape == (5, 8, 8)


def test_an_epoch_has_every_example_once_and_the_next_another_order():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    task = Digits("test")
    two = task.sample(2 * 359, seed=1)
    first, second = two.inputs.flatten(1).tolist()[:359], two.inputs.flatten(1).tolist()[359:]
    assert sorted(first) == sorted(second) and first != second


def test_without_scikit_learn_one_sentence_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'maclaurin\[eval\]'"):
        Digits().sample(1, 0)


def colours(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8), rng.integers(10, size=count)


def grey(pixels):
    return np.rint(0.2989 * pixels[..., 0] + 0.587 * pixels[..., 1] + 0.114 * pixels[..., 2]).astype(np.uint8)


def write_binaries(folder):
    folder.mkdir()
    pixels, labels = colours(60, 0)
    for name, part in (("data_batch_1", slice(0, 30)), ("data_batch_2", slice(30, 50)), ("test_batch", slice(50, 60))):
        rows = [
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for image, label in zip(pixels[part], labels[part], strict=True)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return pixels, labels


def test_cifar_from_its_binary_version(tmp_path):
    pixels, labels = write_binaries(tmp_path / "cifar-10-batches-bin")
    for split, rows in (("train", slice(0, 45)), ("validation", slice(45, 50)), ("test", slice(50, 60))):
        (examples,) = CIFAR10(str(tmp_path), split).once(100)
        assert examples.inputs.numpy().tolist() == grey(pixels[rows]).tolist()
        assert examples.labels.tolist() == labels[rows].tolist()
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="must be whole images of 3073 bytes, its size is 5"):
        len(CIFAR10(str(tmp_path), "test"))


def png(image):
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "png")
    return stream.getvalue()


def test_cifar_from_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pixels, labels = colours(20, 1)
    frame = pandas.DataFrame({"img": [{"bytes": png(image), "path": None} for image in pixels], "label": labels})
    frame.iloc[:15].to_parquet(tmp_path / "train-00000.parquet")
    frame.iloc[15:].to_parquet(tmp_path / "test-00000.parquet")
    (examples,) = CIFAR10(str(tmp_path), "test").once(100)
    assert examples.inputs.numpy().tolist() == grey(pixels[15:]).tolist()
    assert examples.labels.tolist() == labels[15:].tolist()
    assert (len(CIFAR10(str(tmp_path))), len(CIFAR10(str(tmp_path), "validation"))) == (14, 1)


def test_cifar_from_images(tmp_path):
    pixels, _ = colours(6, 2)
    for i, image in enumerate(pixels):
        folder = tmp_path / ("train" if i < 4 else "test") / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(png(image))
    (examples,) = CIFAR10(str(tmp_path), "test").once(10)
    assert sorted(examples.inputs.numpy().tolist()) == sorted(grey(pixels[4:]).tolist())
    assert sorted(examples.labels.tolist()) == [0, 1]


def check_reviews(task):
    (examples,) = task.once(10)
    assert examples.lengths.tolist() == [6, 3, 8]
    assert examples.labels.tolist() == [0, 0, 1]
    for tokens, text in zip(examples.inputs.tolist(), ("dreary", "bad", "wündervoll"), strict=True):
        expected = [byte + 1 for byte in text.encode()[:8]]
        assert tokens == expected + [0] * (8 - len(expected))
    assert task.vocab_size == 257 and examples.inputs.dtype == torch.int64


def test_reviews_from_folders_and_from_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    for split in ("train", "test"):
        for name in ("neg", "pos"):
            (tmp_path / "folders" / split / name).mkdir(parents=True)
    (tmp_path / "folders/train/neg/0_2.txt").write_text("dreary")
    (tmp_path / "folders/train/neg/1_1.txt").write_text("bad")
    (tmp_path / "folders/train/pos/0_9.txt").write_text("wündervoll")
    check_reviews(IMDB(str(tmp_path / "folders"), length=8))
    with pytest.raises(ValueError, match="has no example in its test part"):
        len(IMDB(str(tmp_path / "folders"), "test"))
    (tmp_path / "rows").mkdir()
    frame = pandas.DataFrame({"text": ["dreary", "bad", "wündervoll"], "label": [0, 0, 1]})
    frame.to_parquet(tmp_path / "rows" / "train-00000.parquet")
    check_reviews(IMDB(str(tmp_path / "rows"), length=8))
    frame.rename(columns={"text": "body"}).to_parquet(tmp_path / "rows" / "train-00000.parquet")
    with pytest.raises(ValueError, match="has rows without text; their fields are body, label"):
        len(IMDB(str(tmp_path / "rows"), length=8))


def test_reviews_from_the_hub(monkeypatch):
    """Kept in the cache of the hub, not streamed: an epoch is in a random order."""
    datasets = pytest.importorskip("datasets")
    asked = []

    def hub(source, *, split, streaming):
        asked.append((source, split, streaming))
        rows = {"text": ["dreary", "bad", "wündervoll"], "label": [0, 0, 1]}
        return datasets.Dataset.from_dict(rows)

    monkeypatch.setattr(datasets, "load_dataset", hub)
    check_reviews(IMDB(length=8))
    assert asked == [("stanfordnlp/imdb", "train", False)]
    with pytest.raises(ValueError, match="is no folder here and no owner/name of the hub"):
        len(IMDB("./nowhere/at/all"))


def test_pictures_from_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    pixels, labels = colours(20, 3)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    images = [{"bytes": png(image), "path": None} for image in pixels]
    stored = datasets.Dataset.from_dict({"img": images, "label": labels.tolist()}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda source, *, split, streaming: stored)
    (examples,) = CIFAR10(split="test").once(100)
    assert examples.inputs.numpy().tolist() == grey(pixels).tolist()
    assert examples.labels.tolist() == labels.tolist()


def test_without_datasets_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"need datasets: pip install 'maclaurin\[eval\]'"):
        len(IMDB())


def test_papers_in_pairs(tmp_path):
    lines = ["1.0\tA\tB\tfirst paper\tsecond", "0.0\tA\tC\tfirst paper\tx"]
    for name in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines if name == "eval" else lines[:1]) + "\n")
    task = AAN(str(tmp_path), "validation", length=7)
    (examples,) = task.once(10)
    assert examples.inputs.shape == (2, 2, 7)
    assert examples.labels.tolist() == [1, 0]
    assert examples.lengths.tolist() == [[7, 6], [7, 1]]
    assert bytes(token - 1 for token in examples.inputs[0, 0].tolist()).decode() == "first p"
    assert examples.inputs[1, 1].tolist() == [ord("x") + 1, 0, 0, 0, 0, 0, 0]
    assert len(AAN(str(tmp_path))) == 1
    (tmp_path / "new_aan_pairs.test.tsv").write_text("1.0\tA\tB\n")
    with pytest.raises(ValueError, match=r"five fields per line .*, line 1 has 3"):
        len(AAN(str(tmp_path), "test"))


def test_a_missing_source_is_one_sentence(tmp_path):
    for task in (CIFAR10(str(tmp_path / "nowhere")), IMDB("./nowhere")):
        with pytest.raises(ValueError, match="is no folder here and no owner/name of the hub"):
            len(task)
    with pytest.raises(ValueError, match=r"holds no file that ends in train\.tsv"):
        len(AAN(str(tmp_path)))
