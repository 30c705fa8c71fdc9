"""Trains the network that `digits` serves, on scikit-learn's 1,797 real 8×8 images, in seconds.

    python digits_training.py --seed 0 --out FOLDER

writes FOLDER/weights.safetensors and FOLDER/training.json (widths, accuracy on held-out images, seconds). Every fourth
image is held out, always the same ones, so that seeds can be compared. Pixels go in as they are (0 to 16): their
scaling is folded into the first layer when it is saved.
"""

import argparse
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

WIDTHS = (64, 2048, 2048, 10)
EPOCHS = 12
BATCH = 128
PIXEL_MAX = 16.0


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images [n, 64] float32 in 0 to 16, training labels [n] int64, held-out images, held-out labels."""
    data = load_digits()
    images, labels = data.data.astype(np.float32), data.target.astype(np.int64)
    held_out = np.arange(len(labels)) % 4 == 3
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def train(seed: int) -> tuple[dict[str, torch.Tensor], float]:
    """({"0.weight": [out, in], "0.bias": [out], …}, fraction of held-out images classified rightly)."""
    images, labels, test_images, test_labels = (torch.from_numpy(part) for part in split())
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # nn.Linear draws its weights from the global generator
    linears = [torch.nn.Linear(inside, outside) for inside, outside in pairwise(WIDTHS)]
    layers: list[torch.nn.Module] = []
    for linear in linears:
        layers += [linear, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for chosen in torch.split(torch.randperm(len(images), generator=generator), BATCH):
            loss = torch.nn.functional.cross_entropy(network(images[chosen] / PIXEL_MAX), labels[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    with torch.inference_mode():
        accuracy = (network(test_images / PIXEL_MAX).argmax(1) == test_labels).float().mean().item()
        linears[0].weight.div_(PIXEL_MAX)
    return {
        f"{i}.{name}": value.detach() for i, linear in enumerate(linears) for name, value in linear.named_parameters()
    }, accuracy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    began = time.perf_counter()
    weights, accuracy = train(wanted.seed)
    wanted.out.mkdir(parents=True, exist_ok=True)
    report = {
        "widths": WIDTHS,
        "seed": wanted.seed,
        "held_out_accuracy_fraction": accuracy,
        "held_out_images": len(split()[3]),
        "training_s": round(time.perf_counter() - began, 3),
    }
    (wanted.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    partial = wanted.out / f"weights.partial-{os.getpid()}"
    save_file(weights, partial)
    partial.replace(wanted.out / "weights.safetensors")
    print(
        f"digits: {accuracy:.1%} of {report['held_out_images']} held-out images right, after {report['training_s']} s"
    )


if __name__ == "__main__":
    main()
